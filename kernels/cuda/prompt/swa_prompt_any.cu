// swa_prompt_any.cu - attention of prompts (swa_prompt.cu) for every shape and device: a block of four warps a tile of
// queries and a head, tiles of 64 keys.
#include "swa_prompt.cuh"

template <int MOST> struct prompt_any { // heads of up to MOST dims
    enum {
        TILE = PROMPT_TILE,
        LD = MOST + 8,
        MATRIX = TILE * LD,
        BYTES = 3 * MATRIX * 2
    }; // a stride that spreads the rows over the banks
};

// Scores of a tile of keys -> their weights as operand A; top, sum and o of the lane's two queries take them in. mine:
// from the tile's first key to the first of these queries.
template <class T, int N, int DIMS>
__device__ __forceinline__ void any_weigh(float (&score)[N][4], float (&o)[DIMS][4], float (&top)[2], float (&sum)[2],
                                          int32_t mine, uint32_t visible, uint4 (&weight)[N / 2]) {
    enum { TILE = PROMPT_TILE, MOST = DIMS * 8 };
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float m = top[e], add = 0;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                if ((uint32_t)(mine + 8 * e - (8 * n + 2 * (int32_t)t + x)) >= visible) score[n][2 * e + x] = -INFINITY;
                m = fmaxf(m, score[n][2 * e + x]);
            }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float base = m == -INFINITY ? 0 : m, keep = power(top[e] - base); // -inf: no key yet
        top[e] = m;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            score[n][2 * e] = power(score[n][2 * e] - base);
            score[n][2 * e + 1] = power(score[n][2 * e + 1] - base);
            add += score[n][2 * e] + score[n][2 * e + 1];
        }
        sum[e] = __fmaf_rn(sum[e], keep, add);
#pragma unroll
        for (int n = 0; n < MOST / 8; n++) o[n][2 * e] *= keep, o[n][2 * e + 1] *= keep;
    }
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        weight[k] = make_uint4(two(score[2 * k][0], score[2 * k][1], T()), two(score[2 * k][2], score[2 * k][3], T()),
                               two(score[2 * k + 1][0], score[2 * k + 1][1], T()),
                               two(score[2 * k + 1][2], score[2 * k + 1][3], T()));
}
// What the lane's two queries see of values, over the sums of their weights.
template <class T, int DIMS>
__device__ __forceinline__ void any_write(const prompt_window &a, const prompt_job &j, const float (&o)[DIMS][4],
                                          float (&sum)[2], uint32_t head) {
    enum { MOST = DIMS * 8 };
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, P = s.P;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
        const float by = 1.0f / sum[e];
        const int32_t row = j.row + (int32_t)(warp * 16 + g + 8 * e);
        if (row >= j.end) continue;
#pragma unroll
        for (int n = 0; n < MOST / 8; n++)
            if (8 * n < P)
                *(uint32_t *)((T *)a.act +
                              act_at<T>((uint32_t)row, head * P + 8 * n + 2 * t, (s.H * P + 15) / 16 * 16)) =
                    two(o[n][2 * e] * by, o[n][2 * e + 1] * by, T());
    }
}

template <class T, int MOST>
__global__ void __launch_bounds__(128) prompt_any_kernel(const __grid_constant__ prompt_window a) {
    enum { LD = prompt_any<MOST>::LD, TILE = PROMPT_TILE };
    extern __shared__ __align__(16) unsigned char shared[];
    T *const qs = (T *)shared, *const ks = qs + prompt_any<MOST>::MATRIX, *const vs = ks + prompt_any<MOST>::MATRIX;
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, P = s.P,
                   padded = (P + 15) / 16 * 16;
    const uint32_t width = (s.H + s.Hk + s.Hv) * P, head = blockIdx.y, pieces = P / 8;
    let_next_start();
    wait_for_inputs();
    const prompt_job j = job_at<TILE>(a, a.prompts.tile[blockIdx.x], false, head);
    for (uint32_t i = threadIdx.x; i < 3 * TILE && padded != P; i += 128)
        *(uint4 *)(qs + i * LD + P) = make_uint4(0, 0, 0, 0);
    for (uint32_t i = threadIdx.x; i < TILE * pieces; i += 128) {
        const int32_t row = i / pieces, piece = i % pieces;
        const bool have = j.row + row < j.end;
        const T *from = (const T *)a.work + (have ? j.row + row : 0) * (size_t)width + head * P + piece * 8;
        *(uint4 *)(qs + row * LD + piece * 8) = have ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    }
    float o[MOST / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const prompt_source<T> keys = source_of<T>(a, j, false, head % s.Hk),
                           values = source_of<T>(a, j, true, head % s.Hv);
    uint32_t place = j.place;
    for (int32_t from = 0; from <= j.high; from += TILE) {
        for (uint32_t i = threadIdx.x; i < TILE * pieces; i += 128) {
            const int32_t row = i / pieces, piece = i % pieces;
            const bool wanted = from + row >= j.low && from + row <= j.high;
            ask16(ks + row * LD + piece * 8, source_row(keys, j, from, place, row, s.ring_keys) + piece * 8, wanted);
            ask16(vs + row * LD + piece * 8, source_row(values, j, from, place, row, s.ring_keys) + piece * 8, wanted);
        }
        asked();
        await_all_but<0>();
        __syncthreads(); // queries, keys, values
        float score[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < MOST / 16; k++) {
            if (16 * k >= P) break;
            const uint32_t *q = (const uint32_t *)(qs + (warp * 16 + g) * LD + 16 * k) + t,
                           *key = (const uint32_t *)(ks + g * LD + 16 * k) + t;
            const uint4 x = make_uint4(q[0], q[8 * LD / 2], q[4], q[8 * LD / 2 + 4]);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
                mma(score[n], x, make_uint2(key[n * 8 * LD / 2], key[n * 8 * LD / 2 + 4]), T());
        }
        const int32_t mine =
            j.query - from + (int32_t)(warp * 16 + g); // from the tile's first key to this lane's first query
        uint4 weight[TILE / 16];
        any_weigh<T>(score, o, top, sum, mine, s.visible, weight);
#pragma unroll
        for (int n = 0; n < MOST / 8; n++) {
            if (8 * n >= P) break;
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) {
                uint2 v; // keys 16 k + lane % 16, eight dims, rotated over
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                             : "=r"(v.x), "=r"(v.y)
                             : "r"((uint32_t)__cvta_generic_to_shared(vs + (16 * k + lane % 16) * LD + 8 * n)));
                mma(o[n], weight[k], v, T());
            }
        }
        __syncthreads(); // nobody reads keys and values any more
        place += TILE;
        place -= place >= s.ring_keys ? s.ring_keys : 0;
    }
    any_write<T>(a, j, o, sum, head);
}

template <int MOST> static bool allow_any(bool half) {
    return allow_shared(half ? prompt_any_kernel<__half, MOST> : prompt_any_kernel<__nv_bfloat16, MOST>,
                        prompt_any<MOST>::BYTES);
}
bool prompt_any_prepare(const struct cuda_shape *s) {
    const bool half = s->dtype == CUDA_F16;
    return s->P <= 64 ? allow_any<64>(half) : s->P <= 128 ? allow_any<128>(half) : allow_any<256>(half);
}
template <int MOST> static void attend_any(const prompt_window &a, void *stream) {
    const auto kernel =
        a.shape.dtype == CUDA_F16 ? prompt_any_kernel<__half, MOST> : prompt_any_kernel<__nv_bfloat16, MOST>;
    launch(kernel, dim3(a.prompts.n_single, a.shape.H), dim3(128), prompt_any<MOST>::BYTES, stream, a);
}
void prompt_any_attend(const prompt_window &a, void *stream) {
    const enum dispatch_kernel kernel = prompt_kernel_of(a);
    kernel == PROMPT_ANY_64    ? attend_any<64>(a, stream)
    : kernel == PROMPT_ANY_128 ? attend_any<128>(a, stream)
                               : attend_any<256>(a, stream);
}
