// mixer.cu - the recurrent layer between its products: convolution (E2), gates (E3, E5), state update and read-out (E4, E6, E7).
#include "common.cuh"

template <class T>
__global__ void conv_kernel(cuda_shape shape, uint32_t layer, cuda_rows rows, const float *az, const float *w, const float *bias,
                            float *s, T *s_act, T *a_act) {
    const uint32_t e = blockIdx.x * blockDim.x + threadIdx.x, K = shape.K, Ep = shape.Ep, Ek = (shape.E + 15) / 16 * 16;
    const bool mine = e < shape.E;
    float weight[8], b = mine ? bias[e] : 0;
    for (uint32_t j = 0; j < 8; j++) weight[j] = mine && j + K >= 8 ? w[(j + K - 8) * Ep + e] : 0; // the oldest first, ending at 7
    let_next_start();
    const uint32_t first = (uint32_t)rows.seg_first[blockIdx.y], n = (uint32_t)rows.seg_n[blockIdx.y];
    T *tail = (T *)shape.conv + (size_t)rows.slot[first] * shape.conv_slot + layer * shape.conv_layer + e;
    uint32_t place = (uint32_t)(rows.pos[first] % K); // of position p: p mod K
    float tap[8]; // tap[7] = input at t, tap[6] at t - 1, ...; the tail was written a step ago
#pragma unroll
    for (uint32_t j = 1; j < 8; j++) tap[7 - j] = mine && j < K ? to_float(tail[(size_t)((place + K - j) % K) * Ep]) : 0.0f;
    wait_for_inputs();
    if (!mine) return;
    for (uint32_t t = 0; t < n; t++) {
        float a = az[(size_t)(first + t) * 2 * Ep + e], sum = b;
        T stored = from_float<T>(a);
        tap[7] = a;
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) sum += weight[j] * tap[j];
        sum = silu(sum);
        s[(size_t)(first + t) * Ep + e] = sum;
        s_act[act_at<T>(first + t, e, Ek)] = from_float<T>(sum);
        a_act[act_at<T>(first + t, e, Ek)] = stored;
        tail[(size_t)place * Ep] = stored;
        place = place + 1 == K ? 0 : place + 1;
        tap[7] = to_float(stored); // as a later step would read it
#pragma unroll
        for (uint32_t j = 0; j < 7; j++) tap[j] = tap[j + 1];
    }
}

void k_conv(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_segs, const float *az,
            const float *w, const float *bias, float *s, void *s_act, void *a_act, void *stream) {
    FOR_DTYPE(shape->dtype, (launch(conv_kernel<T>, dim3((shape->E + 127) / 128, n_segs), dim3(128), 0, stream, *shape, layer, *rows,
                                    az, w, bias, s, (T *)s_act, (T *)a_act)));
}

// log g from the pre-activation, also where g = softplus(x) is below the smallest float.
__device__ __forceinline__ float log_softplus(float x, float g) {
    float y = expf(x);
    return x < -8.0f ? x + y * (y * (5.0f / 24) - 0.5f) : logf(g);
}

__global__ void gates_kernel(cuda_shape shape, const float *in, uint32_t splits, size_t split_stride, const float *in_c0,
                             uint32_t splits_c0, size_t split_stride_c0, const float *g_b, const float *t_b, float *q, float *k,
                             float *log_alpha, float *c0) {
    __shared__ float shared[32];
    const uint32_t r = blockIdx.x, M = shape.M, m = threadIdx.x;
    const float bias_g = m < M ? g_b[m] : 0, bias_t = m < M ? t_b[m] : 0;
    let_next_start();
    wait_for_inputs();
    float v[4] = {0, 0, 0, 0};
    if (m < M)
#pragma unroll 8
        for (uint32_t p = 0; p < splits; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] += in[p * split_stride + (size_t)r * 4 * M + i * M + m];
    float norm = fmaxf(sqrtf(block_sum(v[1] * v[1], shared)), shape.k_eps);
    if (m < M) {
        float x = v[2] + bias_g, tau = 1.0f / (1.0f + expf(-(v[3] + bias_t)));
        float g = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
        q[(size_t)r * M + m] = v[0] * rsqrtf((float)M);
        k[(size_t)r * M + m] = v[1] / norm * expf(log_softplus(x, g) * tau);
        log_alpha[(size_t)r * M + m] = -(g * tau);
    }
    for (uint32_t i = threadIdx.x; i < shape.R; i += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (uint32_t p = 0; p < splits_c0; p++) sum += in_c0[p * split_stride_c0 + (size_t)r * shape.R + i];
        c0[(size_t)r * shape.R + i] = sum;
    }
}

void k_gates(const struct cuda_shape *shape, const float *in, uint32_t splits, size_t split_stride, const float *in_c0,
             uint32_t splits_c0, size_t split_stride_c0, const float *g_b, const float *t_b, uint32_t n_rows, float *q, float *k,
             float *log_alpha, float *c0, void *stream) {
    launch(gates_kernel, dim3(n_rows), dim3((shape->M + 31) / 32 * 32), 0, stream, *shape, in, splits, split_stride, in_c0, splits_c0,
           split_stride_c0, g_b, t_b, q, k, log_alpha, c0);
}

// A block: one segment, 32 channels, 128 threads: thread (group, quad) holds rows m = group, group + 16, ... of four
// channels of S in registers. The read-out adds a thread's rows, then the 16 groups in order.
enum { GLA_THREADS = 128, GLA_GROUPS = 16, GLA_MOST = 8 }; // M up to 128
template <class T>
__global__ void __launch_bounds__(GLA_THREADS)
gla_kernel(cuda_shape shape, uint32_t layer, cuda_rows rows, const float *q, const float *k, const float *log_alpha, const float *c0,
           const float *c1, const float *c1_b, const float *az, const float *s, const float *residual, const float *act_norm,
           float *sums, T *act) {
    __shared__ float4 part[GLA_GROUPS][8];
    __shared__ float qs[128], ks[128], as[128], us[32];
    const uint32_t M = shape.M, Ep = shape.Ep, R = shape.R, quad = threadIdx.x % 8, group = threadIdx.x / 8;
    const uint32_t e0 = blockIdx.x * 32, Ek = (shape.E + 15) / 16 * 16;
    const uint32_t first = (uint32_t)rows.seg_first[blockIdx.y], n = (uint32_t)rows.seg_n[blockIdx.y];
    let_next_start();
    // S was last written a step ago, so it comes before the inputs are ready
    float4 *S = (float4 *)(shape.S + (size_t)rows.slot[first] * shape.S_slot + layer * shape.S_layer + (size_t)e0 * M) + quad;
    float4 v[GLA_MOST];
#pragma unroll
    for (int i = 0; i < GLA_MOST; i++) {
        uint32_t m = group + i * GLA_GROUPS;
        if (m < M) v[i] = S[(size_t)m * 8];
    }
    wait_for_inputs();
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t r = first + t;
        for (uint32_t m = threadIdx.x; m < M; m += GLA_THREADS) {
            qs[m] = q[(size_t)r * M + m];
            ks[m] = k[(size_t)r * M + m];
            as[m] = expf(log_alpha[(size_t)r * M + m]);
        }
        { // E4: four threads a channel, each a quarter of the low rank
            uint32_t c = threadIdx.x / 4, e = e0 + c, lane4 = threadIdx.x % 4;
            float sum = 0;
            if (e < shape.E)
                for (uint32_t i = lane4; i < R; i += 4) sum += c1[(size_t)e * R + i] * c0[(size_t)r * R + i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (lane4 == 0) us[c] = e < shape.E ? sigmoid(sum + c1_b[e]) * az[(size_t)r * 2 * Ep + e] : 0.0f;
        }
        __syncthreads(); // q, k, decays, u of this token
        float4 u = ((const float4 *)us)[quad], o = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < GLA_MOST; i++) {
            uint32_t m = group + i * GLA_GROUPS;
            if (m < M) {
                float a = as[m], km = ks[m], qm = qs[m];
                v[i].x = a * v[i].x + km * u.x, v[i].y = a * v[i].y + km * u.y;
                v[i].z = a * v[i].z + km * u.z, v[i].w = a * v[i].w + km * u.w;
                o.x += qm * v[i].x, o.y += qm * v[i].y, o.z += qm * v[i].z, o.w += qm * v[i].w;
            }
        }
        part[group][quad] = o;
        __syncthreads(); // the groups' sums
        if (threadIdx.x < 32) {
            uint32_t c = threadIdx.x, e = e0 + c;
            float sum = 0, out = 0;
            for (int i = 0; i < GLA_GROUPS; i++) sum += ((const float *)part[i])[c];
            if (e < shape.E) {
                out = (sum + residual[e] * s[(size_t)r * Ep + e]) * silu(az[(size_t)r * 2 * Ep + Ep + e]);
                act[act_at<T>(r, e, Ek)] = from_float<T>(out * act_norm[e]);
            }
            float square = warp_sum(out * out);
            if (c == 0) sums[(size_t)r * gridDim.x + blockIdx.x] = square;
        }
        __syncthreads(); // all have read before the next token's values
    }
#pragma unroll
    for (int i = 0; i < GLA_MOST; i++) {
        uint32_t m = group + i * GLA_GROUPS;
        if (m < M) S[(size_t)m * 8] = v[i];
    }
}

void k_gla(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_segs, const float *q,
           const float *k, const float *log_alpha, const float *c0, const float *c1, const float *c1_b, const float *az,
           const float *s, const float *residual, const float *act_norm, float *sums, void *act, void *stream) {
    FOR_DTYPE(shape->dtype, (launch(gla_kernel<T>, dim3(shape->Ep / 32, n_segs), dim3(GLA_THREADS), 0, stream, *shape, layer, *rows, q, k,
                                    log_alpha, c0, c1, c1_b, az, s, residual, act_norm, sums, (T *)act)));
}
