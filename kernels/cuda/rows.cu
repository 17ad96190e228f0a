// rows.cu - what happens to a row between the products: embedding, sums with norms, the FFN's gate, gathering.
#include "common.cuh"

// The next kernel starts when this one's inputs are there: from then on every kernel may read the step's rows before
// its own wait.
template <class T>
__global__ void embed_kernel(const T *w, uint32_t K, cuda_rows rows, float scale, uint32_t D, float *x,
                             const double *inv_freq, uint32_t half, float2 *turn) {
    wait_for_inputs();
    let_next_start();
    const uint32_t r = blockIdx.x, tok = (uint32_t)rows.tok[r];
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        double s, c;
        sincos((double)rows.pos[r] * inv_freq[i], &s, &c);
        turn[(size_t)r * half + i] = make_float2((float)c, (float)s);
    }
    for (uint32_t i = threadIdx.x; i < D; i += blockDim.x)
        x[(size_t)r * D + i] = to_float(w[weight_at<T>(tok, i, K)]) * scale;
}

void k_embed(const struct cuda_matrix *w, const struct cuda_rows *rows, uint32_t n_rows, float scale, float *x,
             const double *inv_freq, uint32_t half, float *turn, void *stream) {
    FOR_DTYPE(w->dtype, (launch(embed_kernel<T>, dim3(n_rows), dim3(256), 0, stream, (const T *)w->data,
                                cuda_pad16(w->cols), *rows, scale, w->cols, x, inv_freq, half, (float2 *)turn)));
}

enum { NORM_THREADS = 512, NORM_MOST = 16 }; // columns up to 8192
template <class T>
__global__ void __launch_bounds__(NORM_THREADS)
    add_norm_kernel(const float *base, const float *partial, uint32_t n_partial, size_t partial_stride,
                    const float *row_sums, uint32_t n_sums, uint32_t sum_n, const float *w, float eps, uint32_t n,
                    float *out, T *act, float *row_scale, float *squares, uint32_t n_squares) {
    __shared__ alignas(16) float tiles[NORM_THREADS * NORM_MOST / 16];
    float v[NORM_MOST], weight[NORM_MOST];
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) { // the weights do not depend on the kernel before
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        weight[j] = act && i < n ? w[i] : 0.0f;
    }
    let_next_start();
    wait_for_inputs();
    const uint32_t r = blockIdx.x;
    float added[NORM_MOST];
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) { // every load before the first sum
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        added[j] = v[j] = 0;
        if (i < n) {
            v[j] = base[(size_t)r * n + i];
#pragma unroll 4
            for (uint32_t p = 0; p < n_partial; p++) added[j] += partial[p * partial_stride + (size_t)r * n + i];
        }
    }
    const float scale = row_sums ? rms_scale(row_total(row_sums + (size_t)r * n_sums, n_sums), sum_n, eps) : 1.0f;
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) {
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        if (i < n) {
            v[j] = add_scaled(v[j], scale, added[j]);
            if (out) out[(size_t)r * n + i] = v[j];
        }
        const float square = tile_sum(v[j] * v[j]); // v is 0 beyond the row
        if (i < n && i % 16 == 0) {
            tiles[i / 16] = square;
            if (squares && n_squares == (n + 15) / 16) squares[(size_t)r * n_squares + i / 16] = square;
        }
    }
    __syncthreads();                                                        // the tiles' sums
    if (squares && n_squares != (n + 15) / 16 && threadIdx.x < n_squares) { // of 64 columns each
        float four[4];
        load_four(four, tiles, threadIdx.x * 4, (n + 15) / 16);
        squares[(size_t)r * n_squares + threadIdx.x] = four_sum(four);
    }
    if (!act) return;
    const float norm = rms_scale(row_total(tiles, (n + 15) / 16), n, eps);
    if (row_scale && threadIdx.x == 0) row_scale[r] = scale_of_weighted<T>(norm);
    const uint32_t K = (n + 15) / 16 * 16;
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) {
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        if (i < n)
            act[act_at<T>(r, i, K)] =
                from_float<T>(row_scale ? weighted<T>(v[j], weight[j]) : normed(v[j], norm, weight[j]));
    }
}

void k_add_norm(const float *base, const float *partial, uint32_t n_partial, size_t partial_stride,
                const float *row_sums, uint32_t n_sums, uint32_t sum_n, const float *w, float eps, uint32_t n_rows,
                uint32_t n, float *out, void *act, float *row_scale, float *squares, uint32_t n_squares,
                enum cuda_dtype dtype, void *stream) {
    FOR_DTYPE(dtype, (launch(add_norm_kernel<T>, dim3(n_rows), dim3(NORM_THREADS), 0, stream, base, partial, n_partial,
                             partial_stride, row_sums, n_sums, sum_n, w, eps, n, out, (T *)act, row_scale, squares,
                             n_squares)));
}

template <class T>
__global__ void ffn_act_kernel(const float *in, uint32_t splits, size_t split_stride, const float *row_scale,
                               uint32_t F, T *act) {
    let_next_start();
    wait_for_inputs();
    const uint32_t r = blockIdx.y, K = (F + 15) / 16 * 16;
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= F) return;
    const size_t at = (size_t)r * 2 * ((F + 7) / 8 * 8) + i / 8 * 16 + i % 8; // eight columns of a2, eight of g2
    const float scale = row_scale ? row_scale[r] : 1.0f;
    float a = 0, g = 0;
    for (uint32_t p = 0; p < splits; p++) a += in[p * split_stride + at], g += in[p * split_stride + at + 8];
    act[act_at<T>(r, i, K)] = from_float<T>(ffn_gate(a * scale, g * scale));
}

void k_ffn_act(const float *in, uint32_t splits, size_t split_stride, const float *row_scale, uint32_t F,
               uint32_t n_rows, void *act, enum cuda_dtype dtype, void *stream) {
    FOR_DTYPE(dtype, (launch(ffn_act_kernel<T>, dim3((F + 127) / 128, n_rows), dim3(128), 0, stream, in, splits,
                             split_stride, row_scale, F, (T *)act)));
}

__global__ void norm_rows_kernel(float *x, const float *w, float eps, uint32_t n) {
    __shared__ float shared[32];
    let_next_start();
    wait_for_inputs();
    float sum = 0, *row = x + (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) sum += row[i] * row[i];
    float norm = rms_scale(block_sum(sum, shared), n, eps);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) row[i] *= norm * w[i];
}

void k_norm_rows(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n, void *stream) {
    launch(norm_rows_kernel, dim3(n_rows), dim3(256), 0, stream, x, w, eps, n);
}

__global__ void gather_rows_kernel(const float *src, const int32_t *list, uint32_t n, float *dst) {
    let_next_start();
    wait_for_inputs();
    const size_t from = (size_t)list[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) dst[to + i] = src[from + i];
}

void k_gather_rows(const float *src, const int32_t *list, uint32_t n_list, uint32_t n, float *dst, void *stream) {
    launch(gather_rows_kernel, dim3(n_list), dim3(256), 0, stream, src, list, n, dst);
}
