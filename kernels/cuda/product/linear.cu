// linear.cu - the products of a step on any device: weights streamed once through tensor cores, and packing them for
// that.
#include "kernels/cuda/epilogue.cuh"

size_t cuda_matrix_bytes(uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    return (size_t)cuda_pad16(rows) * cuda_pad16(cols) * (dtype == CUDA_F32 ? 4 : 2);
}
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

template <class S, class T>
__global__ void pack_kernel(const S *src, uint32_t row0, uint32_t rows, uint32_t cols, uint32_t pack, T *dst) {
    const uint32_t K = (cols + 15) / 16 * 16;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)rows * cols;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t o = (uint32_t)(i / cols), k = (uint32_t)(i % cols);
        o += row0;
        if (pack != CUDA_PACK_ROWS) o = o / 8 * 16 + o % 8 + (pack == CUDA_PACK_SECOND_EIGHTS ? 8 : 0);
        dst[weight_at<T>(o, k, K)] = from_float<T>(to_float(src[i]));
    }
}

void k_pack(const void *src, enum cuda_dtype src_dtype, uint32_t row0, uint32_t rows, uint32_t cols,
            enum cuda_pack pack, const struct cuda_matrix *dst, void *stream) {
    cudaStream_t st = (cudaStream_t)stream;
    if (src_dtype == CUDA_F32)
        FOR_DTYPE(dst->dtype, (pack_kernel<float, T><<<1024, 256, 0, st>>>((const float *)src, row0, rows, cols,
                                                                           (uint32_t)pack, (T *)dst->data)));
    else if (src_dtype == CUDA_F16)
        FOR_DTYPE(dst->dtype, (pack_kernel<__half, T><<<1024, 256, 0, st>>>((const __half *)src, row0, rows, cols,
                                                                            (uint32_t)pack, (T *)dst->data)));
    else
        FOR_DTYPE(dst->dtype, (pack_kernel<__nv_bfloat16, T><<<1024, 256, 0, st>>>(
                                  (const __nv_bfloat16 *)src, row0, rows, cols, (uint32_t)pack, (T *)dst->data)));
}

__device__ __forceinline__ uint4 load_stream(const uint4 *p) { // weights are read once: do not keep them in L1
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// One or two products of the same k with outputs of their own (W_in with W_m on s, W_c0 on a), as one launch.
struct linear_part {
    const uint4 *w;
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
template <class T, int WARPS, int MT, int NT, int U>
__global__ void __launch_bounds__(WARPS * 32)
    linear_kernel(linear_part one, linear_part two, uint32_t KT, uint32_t n_rows) {
    __shared__ float part[WARPS][16][8 * NT + 1];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t k0 = slice_at(KT, blockIdx.y * WARPS + warp), k1 = slice_at(KT, blockIdx.y * WARPS + warp + 1);
    const uint32_t blocks_one = (one.tiles + MT - 1) / MT;
    const bool second = blockIdx.x >= blocks_one;
    const linear_part p = {second ? two.w : one.w,
                           second ? two.x : one.x,
                           second ? two.y : one.y,
                           second ? two.ldy : one.ldy,
                           second ? two.split_stride : one.split_stride,
                           second ? two.O : one.O,
                           second ? two.tiles : one.tiles};
    const uint32_t tile0 = (second ? blockIdx.x - blocks_one : blockIdx.x) * MT;
    const uint32_t row0 = blockIdx.z * 8 * NT, n = k1 - k0;
    const uint4 *wp = p.w + ((size_t)tile0 * KT + k0) * 32 + lane;
    uint4 a[U][MT];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (u < n && tile0 + m < p.tiles) a[u][m] = load_stream(wp + ((size_t)m * KT + u) * 32);
    float acc[MT][NT][4] = {};
    let_next_start();
    wait_for_inputs(); // x is whole
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
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < NT; i++) mma(acc[m][i], a[u][m], b[i], T());
#pragma unroll
                for (int m = 0; m < MT; m++)
                    if (k + u + U < n && tile0 + m < p.tiles)
                        a[u][m] = load_stream(wp + ((size_t)m * KT + k + u + U) * 32);
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
__global__ void linear_f32_kernel(const float *w, const float *x, uint32_t K, uint32_t O, uint32_t n_rows, float *y,
                                  size_t ldy, size_t split_stride) {
    let_next_start();
    wait_for_inputs();
    const uint32_t o = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.z;
    const uint32_t k0 = (uint32_t)((uint64_t)K * blockIdx.y / gridDim.y),
                   k1 = (uint32_t)((uint64_t)K * (blockIdx.y + 1) / gridDim.y);
    if (o >= O) return;
    float sum = 0;
    for (uint32_t k = k0 + lane; k < k1; k += 32) sum += w[(size_t)o * K + k] * x[(size_t)r * K + k];
    sum = warp_sum(sum);
    if (lane == 0) y[blockIdx.y * split_stride + r * ldy + o] = sum;
}

template <class T>
static void linear_16(const linear_part &one, const linear_part &two, enum dispatch_kernel kernel, uint32_t KT,
                      uint32_t splits, uint32_t n_rows, void *stream) {
#define LINEAR_CASE(WARPS, MT, NT, U)                                                                                  \
    launch(linear_kernel<T, WARPS, MT, NT, U>,                                                                         \
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

static void linear_parts(const struct cuda_matrix *w, const linear_part &one, const linear_part &two, uint32_t n_rows,
                         void *stream) {
    const uint32_t KT = cuda_pad16(w->cols) / 16, splits = cuda_linear_splits(w, n_rows);
    const enum dispatch_kernel kernel = linear_kernel_of(w->dtype, n_rows);
    if (is_wide(kernel)) {
        const wide_operands in = {one.w, one.x, one.O}, in_two = {two.w, two.x, two.O};
        wide_plain(in, out_plain{{}, one.y, one.ldy, one.O}, two.tiles ? &in_two : NULL,
                   out_plain{{}, two.y, two.ldy, two.O}, w->cols, w->dtype, n_rows, stream);
        return;
    }
    if (w->dtype == CUDA_F16)
        linear_16<__half>(one, two, kernel, KT, splits, n_rows, stream);
    else
        linear_16<__nv_bfloat16>(one, two, kernel, KT, splits, n_rows, stream);
}

static linear_part part_of(const struct cuda_matrix *w, const void *x, float *y, size_t ldy, size_t split_stride) {
    return linear_part{(const uint4 *)w->data,  (const uint32_t *)x, y, ldy, split_stride, w->rows,
                       cuda_pad16(w->rows) / 16};
}

void k_linear(const struct cuda_matrix *w, const void *x, uint32_t n_rows, float *y, size_t ldy, size_t split_stride,
              void *stream) {
    if (w->dtype == CUDA_F32)
        launch(linear_f32_kernel, dim3((w->rows + 7) / 8, cuda_linear_splits(w, n_rows), n_rows), dim3(256), 0, stream,
               (const float *)w->data, (const float *)x, cuda_pad16(w->cols), w->rows, n_rows, y, ldy, split_stride);
    else
        linear_parts(w, part_of(w, x, y, ldy, split_stride), linear_part{}, n_rows, stream);
}

void k_linear_pair(const struct cuda_matrix *w1, const void *x1, float *y1, size_t ldy1, size_t split_stride1,
                   const struct cuda_matrix *w2, const void *x2, float *y2, size_t ldy2, size_t split_stride2,
                   uint32_t n_rows, void *stream) {
    if (w1->dtype == CUDA_F32) {
        k_linear(w1, x1, n_rows, y1, ldy1, split_stride1, stream);
        k_linear(w2, x2, n_rows, y2, ldy2, split_stride2, stream);
    } else
        linear_parts(w1, part_of(w1, x1, y1, ldy1, split_stride1), part_of(w2, x2, y2, ldy2, split_stride2), n_rows,
                     stream);
}
