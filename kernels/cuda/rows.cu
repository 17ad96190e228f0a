// rows.cu - what happens to a row between the products: embedding, sums with norms, the FFN's gate, gathering.
#include "common.cuh"

// The next kernel starts when this one's inputs are there: from then on every kernel may read the step's rows before
// its own wait.
template <class T> __global__ void embed_kernel(cuda_embed e, const T *w, uint32_t D, uint32_t K) {
    wait_for_inputs();
    let_next_start();
    const uint32_t r = blockIdx.x, tok = (uint32_t)e.rows.tok[r];
    for (uint32_t i = threadIdx.x; i < e.half; i += blockDim.x) {
        double s, c;
        sincos((double)e.rows.pos[r] * e.inv_freq[i], &s, &c);
        ((float2 *)e.rope)[(size_t)r * e.half + i] = make_float2((float)c, (float)s);
    }
    for (uint32_t i = threadIdx.x; i < D; i += blockDim.x)
        e.x[(size_t)r * D + i] = to_float(w[weight_at<T>(tok, i, K)]) * e.scale;
}

void k_embed(const struct cuda_embed *e, void *stream) {
    const struct cuda_matrix *w = e->w;
    assert(e->n_rows > 0 && w->format == CUDA_STORED && e->rows.tok && e->rows.pos && (!e->half || e->rope));
    FOR_DTYPE(w->dtype, (launch(embed_kernel<T>, dim3(e->n_rows), dim3(256), 0, stream, *e, (const T *)w->data, w->cols,
                                cuda_pad16(w->cols))));
}

enum { NORM_THREADS = 512, NORM_MOST = CUDA_NORM_COLUMNS / NORM_THREADS };
template <class T> __global__ void __launch_bounds__(NORM_THREADS) add_norm_kernel(cuda_add_norm a) {
    const uint32_t n = a.n, n_squares = a.n_squares;
    T *const act = (T *)a.act;
    __shared__ alignas(16) float tiles[NORM_THREADS * NORM_MOST / 16];
    float v[NORM_MOST], weight[NORM_MOST];
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) { // the weights do not depend on the kernel before
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        weight[j] = act && i < n ? a.w[i] : 0.0f;
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
            v[j] = a.base[(size_t)r * n + i];
#pragma unroll 4
            for (uint32_t p = 0; p < a.partial.n; p++)
                added[j] += a.partial.at[p * a.partial.stride + (size_t)r * n + i];
        }
    }
    const cuda_row_sums &sums = a.sums;
    const float scale =
        sums.squares ? rms_scale(row_total(sums.squares + (size_t)r * sums.n_sums, sums.n_sums), sums.n, sums.eps)
                     : 1.0f;
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) {
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        if (i < n) {
            v[j] = add_scaled(v[j], scale, added[j]);
            if (a.out) a.out[(size_t)r * n + i] = v[j];
        }
        const float square = tile_sum(v[j] * v[j]); // v is 0 beyond the row
        if (i < n && i % 16 == 0) {
            tiles[i / 16] = square;
            if (a.squares && n_squares == (n + 15) / 16) a.squares[(size_t)r * n_squares + i / 16] = square;
        }
    }
    __syncthreads();                                                          // the tiles' sums
    if (a.squares && n_squares != (n + 15) / 16 && threadIdx.x < n_squares) { // of 64 columns each
        float four[4];
        load_four(four, tiles, threadIdx.x * 4, (n + 15) / 16);
        a.squares[(size_t)r * n_squares + threadIdx.x] = four_sum(four);
    }
    if (!act) return;
    const float norm = rms_scale(row_total(tiles, (n + 15) / 16), n, a.eps);
    if (a.row_scale && threadIdx.x == 0) a.row_scale[r] = scale_of_weighted<T>(norm);
    const uint32_t K = (n + 15) / 16 * 16;
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) {
        uint32_t i = threadIdx.x + j * NORM_THREADS;
        if (i < n)
            act[act_at<T>(r, i, K)] =
                from_float<T>(a.row_scale ? weighted<T>(v[j], weight[j]) : normed(v[j], norm, weight[j]));
    }
}

void k_add_norm(const struct cuda_add_norm *a, void *stream) {
    assert(a->n_rows > 0 && a->n > 0 && a->n <= CUDA_NORM_COLUMNS);
    assert(!a->partial.n || are_parts(a->partial, (size_t)a->n_rows * a->n));
    assert(!a->sums.squares || (a->sums.n_sums > 0 && (a->sums.n_sums % 4 || on_16_bytes(a->sums.squares))));
    assert(!a->act || a->w);
    assert(!a->squares || a->n_squares == (a->n + 15) / 16 || a->n_squares == (a->n + 63) / 64);
    FOR_DTYPE(a->dtype, (launch(add_norm_kernel<T>, dim3(a->n_rows), dim3(NORM_THREADS), 0, stream, *a)));
}

template <class T> __global__ void ffn_act_kernel(cuda_ffn_act f) {
    let_next_start();
    wait_for_inputs();
    const uint32_t r = blockIdx.y, F = f.F, K = (F + 15) / 16 * 16;
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= F) return;
    const size_t at = (size_t)r * 2 * ((F + 7) / 8 * 8) + i / 8 * 16 + i % 8; // eight columns of a2, eight of g2
    const float scale = f.row_scale ? f.row_scale[r] : 1.0f;
    float a = 0, g = 0;
    for (uint32_t p = 0; p < f.in.n; p++) a += f.in.at[p * f.in.stride + at], g += f.in.at[p * f.in.stride + at + 8];
    ((T *)f.act)[act_at<T>(r, i, K)] = from_float<T>(ffn_gate(a * scale, g * scale));
}

void k_ffn_act(const struct cuda_ffn_act *f, void *stream) {
    assert(f->n_rows > 0 && f->n_rows <= CUDA_GRID_Z && f->F > 0);
    assert(are_parts(f->in, (size_t)f->n_rows * 2 * ((f->F + 7) / 8 * 8)));
    FOR_DTYPE(f->dtype, (launch(ffn_act_kernel<T>, dim3((f->F + 127) / 128, f->n_rows), dim3(128), 0, stream, *f)));
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
    assert(n_rows > 0 && n > 0);
    launch(norm_rows_kernel, dim3(n_rows), dim3(256), 0, stream, x, w, eps, n);
}

__global__ void gather_rows_kernel(const float *src, const int32_t *list, uint32_t n, float *dst) {
    let_next_start();
    wait_for_inputs();
    const size_t from = (size_t)list[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) dst[to + i] = src[from + i];
}

void k_gather_rows(const float *src, const int32_t *list, uint32_t n_list, uint32_t n, float *dst, void *stream) {
    assert(n_list > 0 && n > 0 && src != dst);
    launch(gather_rows_kernel, dim3(n_list), dim3(256), 0, stream, src, list, n, dst);
}
