// linear.cu - the products of a step on any device: weights streamed once through tensor cores.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/weights.cuh"

size_t cuda_activation_bytes(uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype) {
    return (size_t)((n_rows + 7) / 8 * 8) * cuda_pad16(cols) * (dtype == CUDA_F32 ? 4 : 2);
}

static enum dispatch_kernel linear_kernel_of(enum cuda_dtype dtype, uint32_t n_rows) {
    dispatch_case c = {};
    c.op = DISPATCH_LINEAR, c.device = this_device(), c.dtype = dtype, c.n_rows = n_rows, c.ending = DISPATCH_PLAIN;
    return dispatch_kernel_of(&c);
}
// wide.cu chooses among its own by the sizes.
static bool is_wide(enum dispatch_kernel kernel) {
    return kernel != LINEAR_F32 && kernel != LINEAR_1_1 && kernel != LINEAR_2_2 && kernel != LINEAR_2_4;
}

uint32_t cuda_linear_splits(const struct cuda_matrix *w, uint32_t n_rows) {
    return w->whole || is_wide(linear_kernel_of(w->dtype, n_rows)) ? 1 : 4;
}

// What a lane has of a tile; weights are read once: do not keep them in L1.
template <int BITS> __device__ __forceinline__ lane_codes<BITS> load_stream(const unsigned char *p) {
    lane_codes<BITS> v;
    if constexpr (BITS == 16)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                     : "l"(p));
    else if constexpr (BITS == 8)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];"
                     : "=r"(v.w[0]), "=r"(v.w[1])
                     : "l"(p));
    else
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u32 %0, [%1];" : "=r"(v.w[0]) : "l"(p));
    return v;
}

// One or two products of the same k with outputs of their own (W_in with W_m on s, W_c0 on a), as one launch.
template <int BITS> struct linear_part {
    weights<BITS> w;
    const uint32_t *x;
    float *y;
    size_t ldy, split_stride;
    uint32_t O, tiles;
};

// The order of every 16-bit product, whatever kernel computes it: k is cut into 16 slices by shape alone, slice i =
// k-tiles [KT i / 16, KT (i + 1) / 16); inside a slice one fp32 accumulator from 0, k-tiles ascending; a quarter is
// ((s0 + s1) + s2) + s3 of its slices, the result ((q0 + q1) + q2) + q3. The quarters may be left for the reader to
// add.
enum { SLICES = 16 };
__device__ __forceinline__ uint32_t slice_at(uint32_t KT, uint32_t slice) { return KT * slice / SLICES; }

// A block: MT tiles of 16 outputs, up to 8 NT rows, WARPS slices of k, one a warp: all 16 or one quarter. The first
// weights are on their way before the inputs are ready.
template <class T, int BITS, int WARPS, int MT, int NT, int U>
__global__ void __launch_bounds__(WARPS * 32)
    linear_kernel(linear_part<BITS> one, linear_part<BITS> two, uint32_t KT, uint32_t n_rows) {
    using W = weights<BITS>;
    __shared__ float part[WARPS][16][8 * NT + 1];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t k0 = slice_at(KT, blockIdx.y * WARPS + warp), k1 = slice_at(KT, blockIdx.y * WARPS + warp + 1);
    const uint32_t blocks_one = (one.tiles + MT - 1) / MT;
    const bool second = blockIdx.x >= blocks_one;
    const linear_part<BITS> p = second ? two : one;
    const uint32_t tile0 = (second ? blockIdx.x - blocks_one : blockIdx.x) * MT;
    const uint32_t row0 = blockIdx.z * 8 * NT, n = k1 - k0;
    const unsigned char *wp = p.w.tiles + ((size_t)tile0 * KT + k0) * W::TILE + lane * BITS;
    const auto operand = [&](const lane_codes<BITS> &codes, uint32_t m, uint32_t k) {
        uint32_t s[2] = {0, 0};
        if (BITS < 16) {
            const uint32_t tile = min(tile0 + m, p.tiles - 1);
            const uint32_t *scales = p.w.scales + ((size_t)tile * p.w.groups + (k >> p.w.per)) * 16 + g;
            s[0] = __ldg(scales), s[1] = __ldg(scales + 8);
        }
        return operand_of(p.w, codes, s, T());
    };
    lane_codes<BITS> a[U][MT];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (u < n && tile0 + m < p.tiles) a[u][m] = load_stream<BITS>(wp + ((size_t)m * KT + u) * W::TILE);
    float acc[MT][NT][4] = {};
    let_next_start();
    wait_for_inputs(); // x is complete
    const uint32_t *xp = p.x + ((size_t)(row0 / 8) * KT + k0) * 64 + lane;
    for (uint32_t k = 0; k < n; k += U) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (k + u < n) {
                uint2 b[NT];
#pragma unroll
                for (int i = 0; i < NT; i++)
                    b[i] = row0 + i * 8 + g < n_rows ? make_uint2(__ldg(xp + ((size_t)i * KT + k + u) * 64),
                                                                  __ldg(xp + ((size_t)i * KT + k + u) * 64 + 32))
                                                     : make_uint2(0, 0);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint4 x = operand(a[u][m], m, k0 + k + u);
#pragma unroll
                    for (int i = 0; i < NT; i++) mma(acc[m][i], x, b[i], T());
                }
#pragma unroll
                for (int m = 0; m < MT; m++)
                    if (k + u + U < n && tile0 + m < p.tiles)
                        a[u][m] = load_stream<BITS>(wp + ((size_t)m * KT + k + u + U) * W::TILE);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        if (m) __syncthreads(); // the last tile's parts are added
#pragma unroll
        for (int i = 0; i < NT; i++) {
            part[warp][g][i * 8 + 2 * t] = acc[m][i][0];
            part[warp][g][i * 8 + 2 * t + 1] = acc[m][i][1];
            part[warp][g + 8][i * 8 + 2 * t] = acc[m][i][2];
            part[warp][g + 8][i * 8 + 2 * t + 1] = acc[m][i][3];
        }
        __syncthreads(); // every warp's part before they are added
        for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += WARPS * 32) {
            uint32_t o = i % 16, r = i / 16, out = (tile0 + m) * 16 + o;
            float sum = 0;
#pragma unroll
            for (int q = 0; q < WARPS; q += 4) {
                float quarter = ((part[q][o][r] + part[q + 1][o][r]) + part[q + 2][o][r]) + part[q + 3][o][r];
                sum = q ? sum + quarter : quarter;
            }
            if (out < p.O && row0 + r < n_rows) p.y[blockIdx.y * p.split_stride + (row0 + r) * p.ldy + out] = sum;
        }
    }
}

// fp32: one warp an output and row; lanes take every 32nd input, then a butterfly.
__global__ void linear_f32_kernel(cuda_product p, const float *w, uint32_t K, uint32_t O) {
    let_next_start();
    wait_for_inputs();
    const uint32_t o = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.z;
    const uint32_t k0 = (uint32_t)((uint64_t)K * blockIdx.y / gridDim.y),
                   k1 = (uint32_t)((uint64_t)K * (blockIdx.y + 1) / gridDim.y);
    if (o >= O) return;
    const float *x = (const float *)p.x;
    float sum = 0;
    for (uint32_t k = k0 + lane; k < k1; k += 32) sum += w[(size_t)o * K + k] * x[(size_t)r * K + k];
    sum = warp_sum(sum);
    if (lane == 0) p.y[blockIdx.y * p.stride + r * p.ldy + o] = sum;
}

template <class T, int BITS>
static void linear_16(const linear_part<BITS> &one, const linear_part<BITS> &two, enum dispatch_kernel kernel,
                      uint32_t KT, uint32_t splits, uint32_t n_rows, void *stream) {
#define LINEAR_CASE(WARPS, MT, NT, U)                                                                                  \
    launch(linear_kernel<T, BITS, WARPS, MT, NT, U>,                                                                   \
           dim3((one.tiles + MT - 1) / MT + (two.tiles + MT - 1) / MT, splits, (n_rows + 8 * NT - 1) / (8 * NT)),      \
           dim3(WARPS * 32), 0, stream, one, two, KT, n_rows)
#define LINEAR_ROWS(WARPS)                                                                                             \
    do {                                                                                                               \
        if (kernel == LINEAR_1_1)                                                                                      \
            LINEAR_CASE(WARPS, 1, 1, 8);                                                                               \
        else if (kernel == LINEAR_2_2)                                                                                 \
            LINEAR_CASE(WARPS, 2, 2, 4);                                                                               \
        else                                                                                                           \
            LINEAR_CASE(WARPS, 2, 4, 4);                                                                               \
    } while (0)
    if (splits == 1)
        LINEAR_ROWS(16);
    else
        LINEAR_ROWS(4);
}

template <int BITS> static linear_part<BITS> part_of(const cuda_product &p) {
    if (!p.w) return linear_part<BITS>{};
    return linear_part<BITS>{weights_of<BITS>(p.w),     (const uint32_t *)p.x, p.y, p.ldy, p.stride, p.w->rows,
                             cuda_pad16(p.w->rows) / 16};
}

// One product, or two (else two.w is NULL) whose weights are kept alike.
static void linear_parts(const cuda_product &one, const cuda_product &two, uint32_t n_rows, void *stream) {
    assert(on_16_bytes(one.w->data, one.x) && (!two.w || on_16_bytes(two.w->data, two.x)));
    const struct cuda_matrix *w = one.w;
    const uint32_t KT = cuda_pad16(w->cols) / 16, splits = cuda_linear_splits(w, n_rows);
    const enum dispatch_kernel kernel = linear_kernel_of(w->dtype, n_rows);
    assert(!two.w || (two.w->format == w->format && two.w->dtype == w->dtype && two.w->cols == w->cols));
    if (is_wide(kernel)) return wide_pair(one, two, n_rows, stream);
    FOR_BITS(w, {
        const auto p = part_of<BITS>(one), q = part_of<BITS>(two);
        if (w->dtype == CUDA_F16)
            linear_16<__half>(p, q, kernel, KT, splits, n_rows, stream);
        else
            linear_16<__nv_bfloat16>(p, q, kernel, KT, splits, n_rows, stream);
    });
}

// Rows side by side, partial products apart.
static bool fits(const struct cuda_product *p, uint32_t n_rows) {
    const size_t apart = p->ldy * (n_rows - 1) + p->w->rows;
    return n_rows > 0 && p->ldy >= p->w->rows && (cuda_linear_splits(p->w, n_rows) == 1 || p->stride >= apart);
}
void k_linear(const struct cuda_product *p, uint32_t n_rows, void *stream) {
    const struct cuda_matrix *w = p->w;
    assert(fits(p, n_rows) && (w->dtype != CUDA_F32 || n_rows <= CUDA_GRID_Z));
    if (w->dtype == CUDA_F32)
        launch(linear_f32_kernel, dim3((w->rows + 7) / 8, cuda_linear_splits(w, n_rows), n_rows), dim3(256), 0, stream,
               *p, (const float *)w->data, cuda_pad16(w->cols), w->rows);
    else
        linear_parts(*p, cuda_product{}, n_rows, stream);
}

void k_linear_pair(const struct cuda_product *one, const struct cuda_product *two, uint32_t n_rows, void *stream) {
    assert(fits(one, n_rows) && fits(two, n_rows));
    if (one->w->dtype == CUDA_F32) {
        k_linear(one, n_rows, stream);
        k_linear(two, n_rows, stream);
    } else
        linear_parts(*one, *two, n_rows, stream);
}
