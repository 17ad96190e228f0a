// window.cuh - how numbers of a window lie in memory: as the activations' T, or as e4m3 (CUDA_FP8). A number of e4m3 is
// one of fp16 and of bf16 too, so a key or value is rounded once, when it is made, and all kernels read the same.
#pragma once
#include "kernels/cuda/common.cuh"
#include <cuda_fp8.h>

using e4m3 = __nv_fp8_e4m3;
// The nearest one, the largest for what is larger; of an infinity NaN, so that it is not hidden.
template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float x) { return e4m3(fabsf(x) == INFINITY ? NAN : x); }
__device__ __forceinline__ float2 two_floats(uint32_t x, __half) { return __half22float2(*(__half2 *)&x); }
__device__ __forceinline__ float2 two_floats(uint32_t x, __nv_bfloat16) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
__device__ __forceinline__ uint32_t codes_of(const float4 &x) {
    return from_float<e4m3>(x.x).__x | (uint32_t)from_float<e4m3>(x.y).__x << 8 |
           (uint32_t)from_float<e4m3>(x.z).__x << 16 | (uint32_t)from_float<e4m3>(x.w).__x << 24;
}
// Numbers of e4m3, the low bytes first, as fp16.
__device__ __forceinline__ uint32_t two_halves(uint32_t codes) {
    const __half2_raw x = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3);
    return x.x | (uint32_t)x.y << 16;
}
__device__ __forceinline__ uint2 four_halves(uint32_t codes) {
#if __CUDA_ARCH__ >= 900
    uint2 x; // without a shift for the upper two
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(x.x), "=r"(x.y)
        : "r"(codes));
    return x;
#else
    return make_uint2(two_halves(codes & 0xffff), two_halves(codes >> 16));
#endif
}
__device__ __forceinline__ uint4 eight_halves(uint2 codes) {
    const uint2 x = four_halves(codes.x), y = four_halves(codes.y);
    return make_uint4(x.x, x.y, y.x, y.y);
}

template <int BYTES> struct piece_of;
template <> struct piece_of<16> {
    using type = uint4;
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int i) {
        return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    }
};
template <> struct piece_of<8> {
    using type = uint2;
    static __device__ __forceinline__ uint32_t word(const uint2 &x, int i) { return i ? x.y : x.x; }
};
template <> struct piece_of<4> {
    using type = uint32_t;
    static __device__ __forceinline__ uint32_t word(uint32_t x, int) { return x; }
};
template <> struct piece_of<2> {
    using type = uint16_t;
    static __device__ __forceinline__ uint32_t word(uint16_t x, int) { return x; }
};

// A format: act, of activations; kept, in memory; query, of a query that meets keys; EIGHTS: of numbers in 16 bytes;
// weight, as values are multiplied by it. sums: of N dims over a tile's keys, in order, on from `begin`, the tiles
// before times a factor; hid: the tile has keys that are not seen, whose zeros make a -0 a 0.
template <class T> struct window16 {
    using act = T;
    using kept = T;
    using query = T;
    using weight = float;
    enum { EIGHTS = 1 };
    static __device__ __forceinline__ float query_of(float x) { return x; }
    static __device__ __forceinline__ weight weight_of(float x) { return x; }
    // The e-th eight numbers of 16 bytes, as query's.
    static __device__ __forceinline__ uint4 eight(const uint4 &x, int) { return x; }
    template <int N> struct sums {
        using piece = piece_of<N * 2>;
        float of[N] = {};
        __device__ __forceinline__ void begin(int d, float before, float by) { of[d] = __fmul_rn(before, by); }
        __device__ __forceinline__ void add(weight w, const typename piece::type &values) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const float2 v = two_floats(piece::word(values, i), T());
                of[2 * i] = __fmaf_rn(w, v.x, of[2 * i]), of[2 * i + 1] = __fmaf_rn(w, v.y, of[2 * i + 1]);
            }
        }
        __device__ __forceinline__ float end(int d, bool hid) const { return hid ? of[d] + 0.0f : of[d]; }
    };
};
// A tile's weighted values are summed in fp16, two at an instruction: 8 numbers of up to 448 with weights of up to 1.
// The rounding is a hundredth of what e4m3's was; fp32's sums take twice the instructions.
template <class T> struct window8 {
    using act = T;
    using kept = e4m3;
    using query = __half; // whatever T is: codes become fp16 by one instruction, and its products are exact, too
    using weight = uint32_t;
    enum { EIGHTS = 2 };
    // A query beyond fp16's numbers is its largest; an infinity stays.
    static __device__ __forceinline__ float query_of(float x) {
        return fabsf(x) > 65504.0f && fabsf(x) < INFINITY ? copysignf(65504.0f, x) : x;
    }
    static __device__ __forceinline__ weight weight_of(float x) {
        const __half2 w = __float2half2_rn(x);
        return *(const uint32_t *)&w;
    }
    static __device__ __forceinline__ uint4 eight(const uint4 &x, int e) {
        return eight_halves(e ? make_uint2(x.z, x.w) : make_uint2(x.x, x.y));
    }
    template <int N> struct sums {
        using piece = piece_of<N>;
        float before[N] = {}, by = 0;
        __half2 of[N / 2] = {};
        __device__ __forceinline__ void begin(int d, float x, float f) {
            before[d] = x, by = f;
            if (d % 2) of[d / 2] = __half2();
        }
        __device__ __forceinline__ void add(weight w, const typename piece::type &values) {
#pragma unroll
            for (int i = 0; i < N / 2; i += 2) {
                const uint2 v = four_halves(piece::word(values, i / 2));
                of[i] = __hfma2(*(const __half2 *)&w, *(const __half2 *)&v.x, of[i]);
                if (N > 2) of[i + 1] = __hfma2(*(const __half2 *)&w, *(const __half2 *)&v.y, of[i + 1]);
            }
        }
        __device__ __forceinline__ float end(int d, bool hid) const {
            const __half x = d % 2 ? __high2half(of[d / 2]) : __low2half(of[d / 2]);
            return __fmaf_rn(before[d], by, __half2float(hid ? __hadd(x, __half()) : x));
        }
    };
};
// What follows with F: the format of a window of 16 or 8 bits.
#define FOR_WINDOW(shape, ...)                                                                                         \
    do {                                                                                                               \
        if ((shape).dtype == CUDA_F16 && (shape).window == CUDA_FP8) {                                                 \
            using F = window8<__half>;                                                                                 \
            __VA_ARGS__;                                                                                               \
        } else if ((shape).dtype == CUDA_F16) {                                                                        \
            using F = window16<__half>;                                                                                \
            __VA_ARGS__;                                                                                               \
        } else if ((shape).window == CUDA_FP8) {                                                                       \
            using F = window8<__nv_bfloat16>;                                                                          \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using F = window16<__nv_bfloat16>;                                                                         \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)
