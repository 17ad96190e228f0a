// state.cu - the state in decode steps on Hopper (E4 to E7, one token a session): S passes through shared memory by bulk copies.
//
// A panel of S (32 channels, [M][32]) is the work of one warp, a channel a lane, so nothing is exchanged between threads but the sum of
// squares. Few rows (state_few_kernel): a panel each, and every block makes the gates of its row. Many (state_kernel): a warp takes a range
// of (panel, row) through a ring of tiles of its own, so the next ones are on their way while it works; the gates come ready from
// gates_row_kernel. The order of every sum is gla_kernel's: rows m = group, group + 16, ..., then the 16 groups.
#include "gates.cuh"

enum { STATE_GROUPS = 16, STATE_EARLY_R = 32 };

// ---- one thread: bulk copies ----

__device__ __forceinline__ uint32_t smem_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(uint64_t *bar, uint32_t arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_at(bar)), "r"(arrivals) : "memory");
#endif
}
__device__ __forceinline__ void bars_are_there() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void bulk_in(void *to, const void *from, uint32_t bytes, uint64_t *bar, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_at(bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(smem_at(to)), "l"(from), "r"(bytes),
                 "r"(smem_at(bar)), "l"(policy)
                 : "memory");
#endif
}
__device__ __forceinline__ void bulk_out(void *to, const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(smem_at(from)), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void before_bulk_out() { // every thread that wrote what the copy takes
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <int N> __device__ __forceinline__ void bulk_outs_read() { // of this thread's, all but the last N have left shared memory
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}
__device__ __forceinline__ void bulk_outs_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(smem_at(bar)), "r"(parity) : "memory");
#endif
}
__device__ __forceinline__ uint64_t policy_of(bool once) {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    if (once) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// ---- gates of a row, once: [q][k with i][alpha], M4 (M padded to 4) floats each, and the low rank ----

struct row_gates { // places in it
    uint32_t M4, R4;
    __host__ __device__ row_gates(uint32_t M, uint32_t R) : M4((M + 3) / 4 * 4), R4(R < STATE_EARLY_R ? (uint32_t)STATE_EARLY_R : (R + 3) / 4 * 4) {}
    __host__ __device__ uint32_t size() const { return 3 * M4 + R4; }
};

__global__ void gates_row_kernel(cuda_shape shape, gates_in in, float *gates) {
    const row_gates at(shape.M, shape.R);
    const uint32_t r = blockIdx.x;
    float *out = gates + (size_t)r * at.size();
    float bias_g[4], bias_t[4]; // M up to 128
    gate_biases(shape, in.g_b, in.t_b, bias_g, bias_t);
    let_next_start();
    wait_for_inputs();
    if (threadIdx.x < 4) { // padding
        for (uint32_t i = 0; i < 3; i++)
            if (shape.M + threadIdx.x < at.M4) out[i * at.M4 + shape.M + threadIdx.x] = 0;
        for (uint32_t i = shape.R + threadIdx.x; i < at.R4; i += 4) out[3 * at.M4 + i] = 0;
    }
    if (threadIdx.x < 32)
        gates_of(shape, in.in, in.splits, in.split_stride, r, bias_g, bias_t, [&](uint32_t m, float q, float k, float log_alpha) {
            out[m] = q, out[at.M4 + m] = k, out[2 * at.M4 + m] = expf(log_alpha);
        });
    else
        for (uint32_t i = threadIdx.x - 32; i < shape.R; i += 32) out[3 * at.M4 + i] = low_rank_of(shape, in.in_c0, in.splits_c0, in.split_stride_c0, r, i);
}

// ---- a panel ----

// E4's low rank at one channel: gla_kernel's four partial sums, i = part, part + 4, ...; early holds the first of c1 [R][Ep]. low:
// zeros from R up to STATE_EARLY_R.
template <int PARTS> // of the four, from `first` on
__device__ __forceinline__ void c1_early(float (&early)[PARTS][STATE_EARLY_R / 4], const float *c1, uint32_t R, uint32_t Ep, uint32_t first) {
#pragma unroll
    for (int l = 0; l < PARTS; l++)
#pragma unroll
        for (int j = 0; j < STATE_EARLY_R / 4; j++) early[l][j] = first + l + 4 * j < R ? c1[(size_t)(first + l + 4 * j) * Ep] : 0.0f;
}
template <int PARTS>
__device__ __forceinline__ void low_rank_parts(float (&sum)[PARTS], const float (&early)[PARTS][STATE_EARLY_R / 4], const float *c1, const float *low, uint32_t R,
                                               uint32_t Ep, uint32_t first) {
#pragma unroll
    for (int l = 0; l < PARTS; l++) {
        sum[l] = 0;
#pragma unroll
        for (int j = 0; j < STATE_EARLY_R / 4; j++) sum[l] = __fmaf_rn(early[l][j], low[first + l + 4 * j], sum[l]);
#pragma unroll 1
        for (uint32_t i = first + l + STATE_EARLY_R; i < R; i += 4) sum[l] = __fmaf_rn(c1[(size_t)i * Ep], low[i], sum[l]);
    }
}
// E6 and E7 at one channel, rows m = group0 + g + 16 i: put(m, the new S) and o[g].
template <int G, int UNROLL, class P>
__device__ __forceinline__ void state_rows(const float *tile, const float *q, const float *k, const float *a, uint32_t M, uint32_t group0, float u, float (&o)[G], P put) {
#pragma unroll
    for (int g = 0; g < G; g++) o[g] = 0;
    uint32_t m0 = group0;
#pragma unroll UNROLL
    for (; m0 + G <= M; m0 += STATE_GROUPS)
#pragma unroll
        for (int g = 0; g < G; g += 4) {
            const float4 qm = *(const float4 *)(q + m0 + g), km = *(const float4 *)(k + m0 + g), am = *(const float4 *)(a + m0 + g);
            const float qs[4] = {qm.x, qm.y, qm.z, qm.w}, ks[4] = {km.x, km.y, km.z, km.w}, as[4] = {am.x, am.y, am.z, am.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float v = __fmaf_rn(as[j], tile[(m0 + g + j) * 32], ks[j] * u);
                o[g + j] = __fmaf_rn(qs[j], v, o[g + j]);
                put(m0 + g + j, v);
            }
        }
#pragma unroll
    for (int g = 0; g < G; g++)
        if (m0 + g < M) {
            const float v = __fmaf_rn(a[m0 + g], tile[(m0 + g) * 32], k[m0 + g] * u);
            o[g] = __fmaf_rn(q[m0 + g], v, o[g]);
            put(m0 + g, v);
        }
}

struct channel_in { float a, z, s, scale; };
__device__ __forceinline__ channel_in read_channel(const state_io &io, uint32_t r, uint32_t e) {
    channel_in x = {0, 0, 0, io.row_scale ? io.row_scale[r] : 1.0f};
    if (e < io.shape.E) {
        const float *az = io.az + (size_t)r * 2 * io.shape.Ep + e;
        x.a = az[0], x.z = az[io.shape.Ep], x.s = io.s[(size_t)r * io.shape.Ep + e];
    }
    return x;
}
// o of a channel -> gated, and the panel's sum of squares; a whole warp calls it.
template <class T> __device__ __forceinline__ void finish_channel(const state_io &io, const channel_in &x, uint32_t r, uint32_t e, float residual, float act_norm, float o) {
    float out = 0;
    if (e < io.shape.E) {
        out = __fmaf_rn(residual, x.s, o) * silu(x.z * x.scale);
        ((T *)io.act)[act_at<T>(r, e, (io.shape.E + 15) / 16 * 16)] = from_float<T>(out * act_norm);
    }
    const float square = warp_sum(out * out);
    if (threadIdx.x % 32 == 0) io.sums[(size_t)r * (io.shape.Ep / 32) + e / 32] = square;
}

// ---- few rows ----

// A block: a row, `panels` of it, at least 4 warps; PW warps a panel share the groups. Shared memory: the panels' tiles.
template <class T, int PW, int THREADS>
__global__ void __launch_bounds__(THREADS, 2)
state_few_kernel(state_io io, gates_in in) {
    constexpr int PARTS = 4 / PW, G = STATE_GROUPS / PW, PANELS = THREADS / 32 / PW, WARPS = THREADS / 32;
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float raw[4 * 128], low[128];
    __shared__ __align__(16) float qs[128], ks[128], as[128];
    __shared__ float u_parts[PANELS][4][32], o_parts[PANELS][PW == 4 ? STATE_GROUPS : 1][32];
    __shared__ uint64_t full[PANELS];
    const uint32_t M = io.shape.M, Ep = io.shape.Ep, R = io.shape.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t own = warp / PW, h = warp % PW, r = blockIdx.y, panel = blockIdx.x * PANELS + own, e = panel * 32 + lane;
    const bool there = panel < Ep / 32;
    float *S = io.shape.S + (size_t)io.rows.slot[r] * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)panel * M * 32;
    float *tile = (float *)smem + (size_t)own * M * 32;
    if (lane == 0 && h == 0) { // S was last written a step ago, so it comes before the inputs are ready
        bar_init(full + own, 1);
        bars_are_there();
        if (there) bulk_in(tile, S, M * 128, full + own, policy_of(true));
    }
    let_next_start();
    const bool mine = e < io.shape.E;
    const uint32_t m = (WARPS - 1 - warp) * 32 + lane; // whose gates this thread makes
    const float bias_g = m < M ? in.g_b[m] : 0.0f, bias_t = m < M ? in.t_b[m] : 0.0f;
    float early[PARTS][STATE_EARLY_R / 4];
    const float *c1 = io.c1 + (mine ? e : 0);
    c1_early(early, c1, R, Ep, h * PARTS);
    const float bias_u = mine ? io.c1_b[e] : 0.0f, residual = mine ? io.residual[e] : 0.0f, act_norm = mine ? io.act_norm[e] : 0.0f;
    wait_for_inputs();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < 4 * M + max(R, (uint32_t)STATE_EARLY_R); i += THREADS) {
        const bool gate = i < 4 * M;
        const float *from = gate ? in.in + (size_t)r * 4 * M + i : in.in_c0 + (size_t)r * R + (i - 4 * M);
        const uint32_t splits = gate ? in.splits : i < 4 * M + R ? in.splits_c0 : 0;
        const size_t stride = gate ? in.split_stride : in.split_stride_c0;
        float v[4], sum = 0;
#pragma unroll
        for (uint32_t p = 0; p < 4; p++) v[p] = p < splits ? from[p * stride] : 0.0f;
#pragma unroll
        for (uint32_t p = 0; p < 4; p++) sum += v[p];
#pragma unroll 1
        for (uint32_t p = 4; p < splits; p++) sum += from[p * stride];
        if (gate) raw[i] = sum;
        else low[i - 4 * M] = sum;
    }
    const channel_in x = read_channel(io, r, e);
    __syncthreads(); // the sums of the partial products; the barriers are there
    if (m - lane < M) {
        const float norm = key_norm(io.shape, raw + M);
        if (m < M)
            gate_of(M, raw[m], raw[M + m], raw[2 * M + m], raw[3 * M + m], norm, bias_g, bias_t,
                    [&](float q, float k, float log_alpha) { qs[m] = q, ks[m] = k, as[m] = expf(log_alpha); });
    }
    float part[PARTS];
    low_rank_parts(part, early, c1, low, R, Ep, h * PARTS);
#pragma unroll
    for (int l = 0; l < PARTS; l++) u_parts[own][h * PARTS + l][lane] = part[l];
    __syncthreads(); // q, k, decays, E4's parts
    float o[G], sum = 0;
    if (there) {
        const float(*p)[32] = u_parts[own];
        const float u = sigmoid(((p[0][lane] + p[1][lane]) + (p[2][lane] + p[3][lane])) + bias_u) * (mine ? x.a * x.scale : 0.0f);
        bar_wait(full + own, 0);
        state_rows<G, 1>(tile + lane, qs, ks, as, M, h * G, u, o, [&](uint32_t row, float v) { S[(size_t)row * 32 + lane] = v; });
        if (PW == 4)
#pragma unroll
            for (int g = 0; g < G; g++) o_parts[own][(h * G + g) % (PW == 4 ? STATE_GROUPS : 1)][lane] = o[g];
        else if (h == 0) {
#pragma unroll
            for (int g = 0; g < G; g++) sum += o[g];
            if (PW == 2) o_parts[own][0][lane] = sum;
        }
    }
    __syncthreads(); // the groups' sums
    if (there && h == PW - 1) { // the groups in order
        if (PW == 4) {
#pragma unroll
            for (int g = 0; g < STATE_GROUPS; g++) sum += o_parts[own][g % (PW == 4 ? STATE_GROUPS : 1)][lane];
        } else if (PW == 2) {
            sum = o_parts[own][0][lane];
#pragma unroll
            for (int g = 0; g < G; g++) sum += o[g];
        }
        finish_channel<T>(io, x, r, e, residual, act_norm, sum);
    }
}

// ---- many rows ----

// A warp: a range of (panel, row), rows fastest, through `bufs` buffers of buf_bytes: a tile and the row's gates.
enum { STATE_WARPS = 4, STATE_BUFS = 3 };
template <class T>
__global__ void __launch_bounds__(STATE_WARPS * 32, 2)
state_kernel(state_io io, const float *gates, uint32_t n_rows, uint32_t bufs, uint32_t buf_bytes) {
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t M = io.shape.M, Ep = io.shape.Ep, R = io.shape.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const row_gates at(M, R);
    const uint64_t total = (uint64_t)(Ep / 32) * n_rows, all = gridDim.x * n_warps, me = blockIdx.x * n_warps + warp;
    const uint32_t begin = (uint32_t)(total * me / all), n = (uint32_t)(total * (me + 1) / all) - begin;
    unsigned char *ring = smem + (size_t)warp * bufs * buf_bytes;
    uint64_t *full = (uint64_t *)(smem + (size_t)n_warps * bufs * buf_bytes) + warp * bufs;
    const uint64_t often = policy_of(false);
    const auto S_of = [&](uint32_t item) {
        return io.shape.S + (size_t)io.rows.slot[item % n_rows] * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)(item / n_rows) * M * 32;
    };
    const auto fetch_tile = [&](uint32_t j, uint32_t b) { bulk_in(ring + (size_t)b * buf_bytes, S_of(begin + j), M * 128, full + b, often); };
    const auto fetch_gates = [&](uint32_t j, uint32_t b) {
        bulk_in(ring + (size_t)b * buf_bytes + M * 128, gates + (size_t)((begin + j) % n_rows) * at.size(), at.size() * 4, full + b, often);
    };
    if (lane == 0) { // S was last written a step ago, so it comes before the inputs are ready
        for (uint32_t b = 0; b < bufs; b++) bar_init(full + b, 2);
        bars_are_there();
        for (uint32_t j = 0; j < min(n, bufs); j++) fetch_tile(j, j);
    }
    __syncwarp(); // the barriers are there
    let_next_start();
    uint32_t panel = begin / n_rows, r = begin % n_rows, e = panel * 32 + lane;
    float early[4][STATE_EARLY_R / 4], bias_u, residual, act_norm;
    const float *c1;
    bool mine;
    const auto new_panel = [&] {
        e = panel * 32 + lane, mine = e < io.shape.E, c1 = io.c1 + (mine ? e : 0);
        c1_early(early, c1, R, Ep, 0);
        bias_u = mine ? io.c1_b[e] : 0.0f, residual = mine ? io.residual[e] : 0.0f, act_norm = mine ? io.act_norm[e] : 0.0f;
    };
    new_panel();
    wait_for_inputs();
    if (lane == 0)
        for (uint32_t j = 0; j < min(n, bufs); j++) fetch_gates(j, j);
    channel_in x = {0, 0, 0, 0};
    if (n) x = read_channel(io, r, e);
    for (uint32_t j = 0, b = 0, parity = 0; j < n; j++) {
        const uint32_t next_r = r + 1 == n_rows ? 0 : r + 1, next_panel = next_r ? panel : panel + 1;
        channel_in next = {0, 0, 0, 0};
        if (j + 1 < n) next = read_channel(io, next_r, next_panel * 32 + lane);
        float *tile = (float *)(ring + (size_t)b * buf_bytes), *S = S_of(begin + j);
        const float *q = tile + M * 32, *low = q + 3 * at.M4;
        bar_wait(full + b, parity);
        float part[4], o[STATE_GROUPS];
        low_rank_parts(part, early, c1, low, R, Ep, 0);
        const float u = sigmoid(((part[0] + part[1]) + (part[2] + part[3])) + bias_u) * (mine ? x.a * x.scale : 0.0f);
        state_rows<STATE_GROUPS, 4>(tile + lane, q, q + at.M4, q + 2 * at.M4, M, 0, u, o, [&](uint32_t m, float v) { tile[m * 32 + lane] = v; });
        before_bulk_out();
        __syncwarp(); // all have read and written the buffer
        if (lane == 0) {
            bulk_out(S, tile, M * 128);
            if (j && j - 1 + bufs < n) {
                const uint32_t last = b ? b - 1 : bufs - 1;
                bulk_outs_read<1>();
                fetch_tile(j - 1 + bufs, last), fetch_gates(j - 1 + bufs, last);
            }
        }
        float sum = 0;
#pragma unroll
        for (int g = 0; g < STATE_GROUPS; g++) sum += o[g];
        finish_channel<T>(io, x, r, e, residual, act_norm, sum);
        x = next, r = next_r;
        if (next_panel != panel) {
            panel = next_panel;
            if (j + 1 < n) new_panel();
        }
        if (++b == bufs) b = 0, parity ^= 1;
    }
    if (lane == 0) bulk_outs_done();
}

// ---- launchers ----

template <int PW, int THREADS> static void state_few(const state_io &io, const gates_in &in, uint32_t n_rows, void *stream) {
    constexpr uint32_t PANELS = THREADS / 32 / PW;
    const uint32_t bytes = PANELS * io.shape.M * 128;
    FOR_DTYPE(io.shape.dtype, {
        cudaFuncSetAttribute(state_few_kernel<T, PW, THREADS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        launch(state_few_kernel<T, PW, THREADS>, dim3((io.shape.Ep / 32 + PANELS - 1) / PANELS, n_rows), dim3(THREADS), bytes, stream, io, in);
    });
}
static void state_many(const state_io &io, const gates_in &in, uint32_t n_rows, float *gates, void *stream) {
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    const uint32_t buf_bytes = (io.shape.M * 128 + row_gates(io.shape.M, io.shape.R).size() * 4 + 127) / 128 * 128;
    const uint32_t bytes = STATE_WARPS * STATE_BUFS * (buf_bytes + 8), blocks = bytes <= 112 << 10 ? 2 : 1; // a multiprocessor
    launch(gates_row_kernel, dim3(n_rows), dim3(64), 0, stream, io.shape, in, gates);
    FOR_DTYPE(io.shape.dtype, {
        cudaFuncSetAttribute(state_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        launch(state_kernel<T>, dim3(blocks * (uint32_t)processors), dim3(STATE_WARPS * 32), bytes, stream, io, (const float *)gates, n_rows, (uint32_t)STATE_BUFS,
               buf_bytes);
    });
}

size_t cuda_gates_floats(const struct cuda_shape *shape) { return row_gates(shape->M, shape->R).size(); }

void k_gla_gates(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_rows, const float *in, uint32_t splits,
                 size_t split_stride, const float *in_c0, uint32_t splits_c0, size_t split_stride_c0, const float *g_b, const float *t_b,
                 const float *c1, const float *c1_b, const float *az, const float *row_scale, const float *s, const float *residual, const float *act_norm,
                 float *gates, float *sums, void *act, void *stream) {
    const state_io io = {*shape, layer, *rows, c1, c1_b, az, row_scale, s, residual, act_norm, sums, act};
    const gates_in partial = {in, in_c0, g_b, t_b, splits, splits_c0, split_stride, split_stride_c0};
    if (!on_hopper()) gla_of_partial(io, partial, n_rows, stream);
    else if (n_rows <= 8) state_few<4, 512>(io, partial, n_rows, stream);
    else if (n_rows <= 16) state_few<1, 256>(io, partial, n_rows, stream);
    else state_many(io, partial, n_rows, gates, stream);
}
