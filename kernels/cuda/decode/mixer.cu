// mixer.cu - the recurrent layer between its products: convolution (E2), gates (E3, E5), state update and read-out (E4,
// E6, E7).
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/gates.cuh"

template <class T> __global__ void conv_kernel(cuda_conv c) {
    const cuda_shape &shape = c.shape;
    const cuda_rows &rows = c.rows;
    const uint32_t e = blockIdx.x * blockDim.x + threadIdx.x, K = shape.K, ring = shape.conv_ring, Ep = shape.Ep,
                   Ek = (shape.E + 15) / 16 * 16;
    const bool mine = e < shape.E;
    const float b = mine ? c.bias[e] : 0;
    let_next_start();
    const uint32_t first = (uint32_t)rows.seg_first[blockIdx.y], n = (uint32_t)rows.seg_n[blockIdx.y];
    T *tail = (T *)shape.conv + (size_t)rows.slot[first] * shape.conv_slot + c.layer * shape.conv_layer + e;
    uint32_t place = (uint32_t)(rows.pos[first] % ring); // of position p: p mod ring
    float weight[8], tap[8];
    if (mine) conv_taps(weight, tap, c.w + e, tail, K, ring, Ep, place); // the tail was written a step ago
    wait_for_inputs();
    if (!mine) return;
    for (uint32_t t = 0; t < n; t++) {
        const float a = c.az[(size_t)(first + t) * 2 * Ep + e] * (c.row_scale ? c.row_scale[first + t] : 1.0f),
                    sum = conv_sum(weight, tap, a, b);
        const T stored = from_float<T>(a);
        c.s[(size_t)(first + t) * Ep + e] = sum;
        ((T *)c.s_act)[act_at<T>(first + t, e, Ek)] = from_float<T>(sum);
        ((T *)c.a_act)[act_at<T>(first + t, e, Ek)] = stored;
        tail[(size_t)place * Ep] = stored;
        place = place + 1 == ring ? 0 : place + 1;
        tap[7] = to_float(stored); // as a later step would read it
#pragma unroll
        for (uint32_t j = 0; j < 7; j++) tap[j] = tap[j + 1];
    }
}

void k_conv(const struct cuda_conv *c, uint32_t n_segs, void *stream) {
    assert(n_segs > 0 && n_segs <= CUDA_GRID_Z && c->shape.K <= 8 && c->shape.K <= c->shape.conv_ring);
    const dim3 grid((c->shape.E + 127) / 128, n_segs);
    FOR_DTYPE(c->shape.dtype, (launch(conv_kernel<T>, grid, dim3(128), 0, stream, *c)));
}

// The convolution of single tokens in 16 bit, E a multiple of 8. A warp: eight rows, 32 channels; a lane: a row,
// eight channels, so that the operands leave in pieces of 128 bytes. az is scaled. MOST_K: taps. DRAFTS: taps of rows
// of the same session in this step come from these.
enum { CONV_WARPS = 4 };
template <class T, int MOST_K, bool DRAFTS>
__global__ void __launch_bounds__(CONV_WARPS * 32) conv_rows_kernel(cuda_conv c) {
    const cuda_shape &shape = c.shape;
    const cuda_rows &rows = c.rows;
    const uint32_t lane = threadIdx.x % 32, r = blockIdx.y * 8 + lane / 4,
                   e = (blockIdx.x * CONV_WARPS + threadIdx.x / 32) * 32 + lane % 4 * 8;
    const uint32_t K = shape.K, ring = shape.conv_ring, Ep = shape.Ep;
    let_next_start();
    if (r >= c.n_rows || e >= shape.E) return;
    narrow<8> tap[MOST_K]; // before the newest, oldest first and ending at tap[MOST_K - 2]; written a step ago
    float weight[MOST_K][8], b[8];
    const uint32_t place = (uint32_t)(rows.pos[r] % ring);
    T *tail = (T *)shape.conv + (size_t)(uint32_t)rows.slot[r] * shape.conv_slot + c.layer * shape.conv_layer + e;
#pragma unroll
    for (uint32_t j = 1; j < MOST_K; j++) {
        tap[MOST_K - 1 - j] = narrow<8>{};
        const uint32_t before = place >= j ? place - j : place + ring - j; // (place - j) mod ring
        if (j < K) tap[MOST_K - 1 - j] = *(const narrow<8> *)(tail + (size_t)before * Ep);
    }
#pragma unroll
    for (uint32_t j = 0; j < MOST_K; j++) {
#pragma unroll
        for (int i = 0; i < 8; i++) weight[j][i] = 0;
        if (j + K >= MOST_K) load_floats(weight[j], c.w + e + (size_t)(j + K - MOST_K) * Ep);
    }
    load_floats(b, c.bias + e);
    wait_for_inputs();
    const float *az = c.az + (size_t)r * 2 * Ep + e;
    float a[8], sum[8];
    load_floats(a, az);
    if (DRAFTS) taps_of_step<T, MOST_K>(tap, rows.lead[r], K, az, Ep);
    conv_eight<T, MOST_K>(sum, weight, tap, a, b);
    const narrow<8> stored = narrowed<T>(a);
    store_floats(c.s + (size_t)r * Ep + e, sum);
    store_narrow<T>(c.s_act, act_at<T>(r, e, shape.E), narrowed<T>(sum));
    store_narrow<T>(c.a_act, act_at<T>(r, e, shape.E), stored);
    *(narrow<8> *)(tail + (size_t)place * Ep) = stored;
}

template <class T, int MOST_K> static void conv_rows_launch(const cuda_conv &c, void *stream) {
    const dim3 grid((c.shape.E + CONV_WARPS * 32 - 1) / (CONV_WARPS * 32), (c.n_rows + 7) / 8);
    launch(c.rows.lead ? conv_rows_kernel<T, MOST_K, true> : conv_rows_kernel<T, MOST_K, false>, grid,
           dim3(CONV_WARPS * 32), 0, stream, c);
}
void conv_rows(const cuda_conv &conv, void *stream) {
    assert(conv.n_rows > 0 && conv.shape.E % 8 == 0 && on_16_bytes(conv.az, conv.w, conv.bias, conv.s));
    dispatch_case c = {};
    c.op = DISPATCH_CONV_ROWS, c.device = this_device(), c.dtype = conv.shape.dtype, c.n_rows = conv.n_rows;
    c.shape = &conv.shape;
    const bool half = conv.shape.dtype == CUDA_F16, four = dispatch_kernel_of(&c) == CONV_ROWS_4;
    const auto start = four   ? half ? conv_rows_launch<__half, 4> : conv_rows_launch<__nv_bfloat16, 4>
                         : half ? conv_rows_launch<__half, 8>
                              : conv_rows_launch<__nv_bfloat16, 8>;
    start(conv, stream);
}

__global__ void gates_kernel(cuda_shape shape, cuda_partials in, cuda_gates out) {
    const size_t r = blockIdx.x;
    float bias_g[4], bias_t[4]; // M up to 128
    gate_biases(shape, in.g_b, in.t_b, bias_g, bias_t);
    let_next_start();
    wait_for_inputs();
    gates_of(shape, in.in, (uint32_t)r, bias_g, bias_t, [&](uint32_t m, float q, float k, float log_alpha) {
        out.q[r * shape.M + m] = q, out.k[r * shape.M + m] = k, out.log_alpha[r * shape.M + m] = log_alpha;
    });
    for (uint32_t i = threadIdx.x; i < shape.R; i += 32)
        out.c0[r * shape.R + i] = low_rank_of(shape, in.c0, (uint32_t)r, i);
}

void k_gates(const struct cuda_shape *shape, const struct cuda_partials *in, const struct cuda_gates *out,
             uint32_t n_rows, void *stream) {
    assert(n_rows > 0 && are_gates(*shape, *in, n_rows));
    launch(gates_kernel, dim3(n_rows), dim3(32), 0, stream, *shape, *in, *out);
}

// A block: one segment, CHANNELS channels, four threads a channel: thread (group, quad) holds rows m = group, group +
// 16, ... of four channels of S in registers. The read-out adds a thread's rows, then the 16 groups in order. GATES:
// each block makes the gates of its one token itself, from the partial products; its first warp does.
enum { GLA_GROUPS = 16, GLA_MOST_R = 128 };
struct gla_gates { // ready, or what they are made of
    cuda_gates ready;
    cuda_partials partial;
};
// E4's low rank at a channel, four threads each a quarter of it, R up to 32 of c1 in `early`.
__device__ __forceinline__ float gla_low_rank(const float (&early)[8], const float *c1, uint32_t step, const float *low,
                                              uint32_t R, bool there) {
    const uint32_t lane4 = threadIdx.x % 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (lane4 + 4 * i < R) sum = __fmaf_rn(early[i], low[lane4 + 4 * i], sum);
    if (there)
        for (uint32_t i = lane4 + 32; i < R; i += 4) sum = __fmaf_rn(c1[i * step], low[i], sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
}
template <class T, bool GATES, int CHANNELS, int MOST_M>
__global__ void __launch_bounds__(CHANNELS * 4, (MOST_M > 64 ? 128 : 256) / CHANNELS)
    gla_kernel(cuda_state io, gla_gates in) {
    constexpr uint32_t THREADS = CHANNELS * 4, QUADS = CHANNELS / 4, GLA_MOST = MOST_M / GLA_GROUPS;
    __shared__ float4 part[GLA_GROUPS][QUADS];
    __shared__ float qs[128], ks[128], as[128], us[CHANNELS], lows[THREADS / 32][GLA_MOST_R];
    const cuda_shape &shape = io.shape;
    const uint32_t M = shape.M, Ep = shape.Ep, R = shape.R, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS;
    const uint32_t e0 = blockIdx.x * CHANNELS, Ek = (shape.E + 15) / 16 * 16, lane = threadIdx.x % 32;
    float *low = lows[threadIdx.x / 32];
    const uint32_t first = (uint32_t)io.rows.seg_first[blockIdx.y], n = GATES ? 1 : (uint32_t)io.rows.seg_n[blockIdx.y];
    const uint32_t channel = e0 + threadIdx.x / 4,
                   lane4 = threadIdx.x % 4; // E4: four threads a channel, each a quarter of the low rank
    const bool in_state = e0 + quad * 4 < Ep;
    let_next_start();
    // S was last written a step ago, so it comes before the inputs are ready
    float4 *S = (float4 *)(shape.S + (size_t)io.rows.slot[first] * shape.S_slot + io.layer * shape.S_layer +
                           (size_t)(e0 / 32 + quad / 8) * M * 32) +
                quad % 8;
    float4 v[GLA_MOST];
#pragma unroll
    for (int i = 0; i < GLA_MOST; i++) {
        uint32_t m = group + i * GLA_GROUPS;
        if (m < M && in_state) v[i] = S[(size_t)m * 8];
    }
    float bias_g[MOST_M / 32], bias_t[MOST_M / 32];
    if (GATES && threadIdx.x < 32) gate_biases(shape, in.partial.g_b, in.partial.t_b, bias_g, bias_t);
    const float bias_u = channel < shape.E ? io.c1_b[channel] : 0;
    const float *c1 = io.c1 + (GATES ? channel : (size_t)channel * R); // [R][Ep] and [E][R]
    const uint32_t step = GATES ? Ep : 1;
    float c1_early[8]; // R up to 32
#pragma unroll
    for (int i = 0; i < 8; i++)
        c1_early[i] = channel < shape.E && lane4 + 4 * i < R ? c1[(lane4 + 4 * i) * step] : 0.0f;
    wait_for_inputs();
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t r = first + t;
        const float scale = io.row_scale ? io.row_scale[r] : 1.0f;
        const float a_in = channel < shape.E && lane4 == 0 ? io.az[(size_t)r * 2 * Ep + channel] * scale : 0.0f;
        for (uint32_t i = lane; i < R; i += 32) // each warp for itself
            low[i] = GATES ? low_rank_of(shape, in.partial.c0, r, i) : in.ready.c0[(size_t)r * R + i];
        if (GATES) {
            if (threadIdx.x < 32)
                gates_of(shape, in.partial.in, r, bias_g, bias_t, [&](uint32_t m, float q, float k, float log_alpha) {
                    qs[m] = q, ks[m] = k, as[m] = expf(log_alpha);
                });
        } else
            for (uint32_t m = threadIdx.x; m < M; m += THREADS) {
                qs[m] = in.ready.q[(size_t)r * M + m];
                ks[m] = in.ready.k[(size_t)r * M + m];
                as[m] = expf(in.ready.log_alpha[(size_t)r * M + m]);
            }
        __syncwarp(); // the low rank
        const float sum_u = gla_low_rank(c1_early, c1, step, low, R, channel < shape.E);
        if (lane4 == 0) us[threadIdx.x / 4] = sigmoid(sum_u + bias_u) * a_in;
        __syncthreads(); // q, k, decays, u of this token
        float4 u = ((const float4 *)us)[quad], o = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < GLA_MOST; i++) {
            uint32_t m = group + i * GLA_GROUPS;
            if (m < M) {
                float a = as[m], km = ks[m], qm = qs[m];
                v[i].x = __fmaf_rn(a, v[i].x, km * u.x), v[i].y = __fmaf_rn(a, v[i].y, km * u.y);
                v[i].z = __fmaf_rn(a, v[i].z, km * u.z), v[i].w = __fmaf_rn(a, v[i].w, km * u.w);
                o.x = __fmaf_rn(qm, v[i].x, o.x), o.y = __fmaf_rn(qm, v[i].y, o.y);
                o.z = __fmaf_rn(qm, v[i].z, o.z), o.w = __fmaf_rn(qm, v[i].w, o.w);
                if (GATES && in_state) S[(size_t)m * 8] = v[i];
            }
        }
        part[group][quad] = o;
        __syncthreads();                                       // the groups' sums
        if (threadIdx.x < CHANNELS && e0 + threadIdx.x < Ep) { // whole warps: Ep is a multiple of 32
            const uint32_t c = threadIdx.x, e = e0 + c;
            float sum = 0, out = 0;
#pragma unroll
            for (int i = 0; i < GLA_GROUPS; i++) sum += ((const float *)part[i])[c];
            if (e < shape.E) {
                out = __fmaf_rn(io.residual[e], io.s[(size_t)r * Ep + e], sum) *
                      silu(io.az[(size_t)r * 2 * Ep + Ep + e] * scale);
                ((T *)io.act)[act_at<T>(r, e, Ek)] = from_float<T>(out * io.act_norm[e]);
            }
            const float square = warp_sum(out * out);
            if (c % 32 == 0) io.sums[(size_t)r * (Ep / 32) + e / 32] = square;
        }
        __syncthreads(); // all have read before the next token's values
    }
#pragma unroll
    for (int i = 0; i < GLA_MOST; i++) {
        uint32_t m = group + i * GLA_GROUPS;
        if (!GATES && m < M && in_state) S[(size_t)m * 8] = v[i]; // with GATES it is written already
    }
}

template <bool GATES, int CHANNELS>
static void gla(const cuda_state &io, uint32_t n_segs, const gla_gates &in, void *stream) {
    const dim3 grid((io.shape.Ep + CHANNELS - 1) / CHANNELS, n_segs);
#define GLA(MOST_M)                                                                                                    \
    FOR_DTYPE(io.shape.dtype,                                                                                          \
              (launch(gla_kernel<T, GATES, CHANNELS, MOST_M>, grid, dim3(CHANNELS * 4), 0, stream, io, in)))
    if (io.shape.M <= 64)
        GLA(64);
    else
        GLA(128);
}
// Many channels a block share the gates; with few rows they would leave the state to too few multiprocessors.
template <bool GATES> static void gla(const cuda_state &io, uint32_t n_segs, const gla_gates &in, void *stream) {
    if (n_segs < 4)
        gla<GATES, 32>(io, n_segs, in, stream);
    else
        gla<GATES, 128>(io, n_segs, in, stream);
}

void k_gla(const struct cuda_state *io, const struct cuda_gates *gates, uint32_t n_segs, void *stream) {
    assert(n_segs > 0 && n_segs <= CUDA_GRID_Z && is_state(*io));
    gla<false>(*io, n_segs, gla_gates{*gates, {}}, stream);
}

void gla_of_partial(const cuda_state &io, const cuda_partials &in, uint32_t n_rows, void *stream) {
    gla<true>(io, n_rows, gla_gates{{}, in}, stream);
}
