// state.cu - the state in decode steps on Hopper (E4 to E7, one token a session): S passes through shared memory by
// bulk copies.
//
// A panel of S (32 channels, [M][32]) is the work of one warp. Few rows (state_few_kernel): a panel each, a lane a
// channel, and every block makes the gates of its row. Many (state_kernel): a warp takes its panel of many rows, one
// after the other, through a ring of tiles of its own, so the next ones are on their way while it works; the block's
// warps share the gates. There a tile goes back only where k_step_rows says so: of other rows u, k and alpha are kept
// (deferred), and applied to the tile before the row's own token. The order of every sum is gla_kernel's: rows m =
// group, group + 16, ..., then the 16 groups.
#include "state.cuh"
#include <algorithm>

// Floats that a warp of it keeps of a row's channels (a, z, s, u of each deferred token), and in all: of three rows,
// and o by groups.
enum { CHANNELS_ROW = 32 * (3 + CUDA_DEFERRED), CHANNELS = 3 * CHANNELS_ROW + STATE_GROUPS * 32 };

// ---- one thread: bulk copies ----

__device__ __forceinline__ void bar_init(uint64_t *bar, uint32_t arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
#endif
}
__device__ __forceinline__ void bars_are_there() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void bulk_in(void *to, const void *from, uint32_t bytes, uint64_t *bar, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void bulk_out(void *to, const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void before_bulk_out() { // every thread that wrote what the copy takes
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <int N>
__device__ __forceinline__ void bulk_outs_read() { // of this thread's, all but the last N have left shared memory
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
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
            "r"(shared_address(bar)),
        "r"(parity)
        : "memory");
#endif
    delay(16);
}
__device__ __forceinline__ uint64_t policy_once() { // leaves the second-level cache first
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
__device__ __forceinline__ uint64_t
policy_stay() { // leaves it last: what will be written over soon, which makes it common again
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// ---- a panel ----

struct panel_gates { // of a row, [M]
    const float *q, *k, *a;
};
// E6 and E7 at one channel, rows m = group0 + g + 16 i: put(m, the new S) and o[g].
template <int G, int UNROLL, class P>
__device__ __forceinline__ void state_rows(const float *tile, const panel_gates &gates, uint32_t M, uint32_t group0,
                                           float u, float (&o)[G], P put) {
    const float *const q = gates.q, *const k = gates.k, *const a = gates.a;
#pragma unroll
    for (int g = 0; g < G; g++) o[g] = 0;
    uint32_t m0 = group0;
#pragma unroll UNROLL
    for (; m0 + G <= M; m0 += STATE_GROUPS)
#pragma unroll
        for (int g = 0; g < G; g += 4) {
            const float4 qm = *(const float4 *)(q + m0 + g), km = *(const float4 *)(k + m0 + g),
                         am = *(const float4 *)(a + m0 + g);
            const float qs[4] = {qm.x, qm.y, qm.z, qm.w}, ks[4] = {km.x, km.y, km.z, km.w},
                        as[4] = {am.x, am.y, am.z, am.w};
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

__device__ __forceinline__ float *panel_of(const cuda_state &io, size_t slot, uint32_t panel, uint32_t M) { // of S
    return io.shape.S + slot * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)panel * M * 32;
}

// ---- few rows ----

// A block: a row, `panels` of it, at least 4 warps; PW warps a panel share the groups. Shared memory: the panels'
// tiles.
template <class T, int PW, int THREADS>
__global__ void __launch_bounds__(THREADS, 2) state_few_kernel(cuda_state io, cuda_partials in) {
    constexpr int PARTS = 4 / PW, G = STATE_GROUPS / PW, PANELS = THREADS / 32 / PW, WARPS = THREADS / 32;
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float raw[4 * 128], low[128];
    __shared__ __align__(16) float qs[128], ks[128], as[128];
    __shared__ float u_parts[PANELS][4][32], o_parts[PW > 1 ? PANELS : 1][STATE_GROUPS][32];
    __shared__ uint64_t full[PANELS];
    const uint32_t M = io.shape.M, Ep = io.shape.Ep, R = io.shape.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t own = warp / PW, h = warp % PW, r = blockIdx.y, panel = blockIdx.x * PANELS + own,
                   e = panel * 32 + lane;
    const bool there = panel < Ep / 32;
    if ((uint32_t)io.rows.slot[r] == io.shape.n_slots) { // padding
        wait_for_inputs();
        return;
    }
    float *S = panel_of(io, (uint32_t)io.rows.slot[r], panel, M);
    float *tile = (float *)smem + (size_t)own * M * 32;
    if (lane == 0 && h == 0) { // S was last written a step ago, so it comes before the inputs are ready
        bar_init(full + own, 1);
        bars_are_there();
        if (there) bulk_in(tile, S, M * 128, full + own, policy_once());
    }
    const bool mine = e < io.shape.E;
    const uint32_t m = (WARPS - 1 - warp) * 32 + lane; // whose gates this thread makes
    const float bias_g = m < M ? in.g_b[m] : 0.0f, bias_t = m < M ? in.t_b[m] : 0.0f;
    float early[PARTS][STATE_EARLY_R / 4];
    const float *c1 = io.c1 + (mine ? e : 0);
    c1_early(early, c1, R, Ep, h * PARTS);
    const float bias_u = mine ? io.c1_b[e] : 0.0f, residual = mine ? io.residual[e] : 0.0f,
                act_norm = mine ? io.act_norm[e] : 0.0f;
    wait_for_inputs();
    let_next_start(); // now: the device starts one kernel at a time, and this one must not wait for that
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < 4 * M + max(R, (uint32_t)STATE_EARLY_R); i += THREADS) {
        const bool gate = i < 4 * M;
        const float *from = gate ? in.in.at + (size_t)r * 4 * M + i : in.c0.at + (size_t)r * R + (i - 4 * M);
        const uint32_t splits = gate ? in.in.n : i < 4 * M + R ? in.c0.n : 0;
        const size_t stride = gate ? in.in.stride : in.c0.stride;
        float v[4], sum = 0;
#pragma unroll
        for (uint32_t p = 0; p < 4; p++) v[p] = p < splits ? from[p * stride] : 0.0f;
#pragma unroll
        for (uint32_t p = 0; p < 4; p++) sum += v[p];
#pragma unroll 1
        for (uint32_t p = 4; p < splits; p++) sum += from[p * stride];
        if (gate)
            raw[i] = sum;
        else
            low[i - 4 * M] = sum;
    }
    const channel_in x = read_channel(io, r, e);
    __syncthreads(); // the sums of the partial products; the barriers are there
    if (m - lane < M) {
        const float norm = key_norm(io.shape, raw + M);
        if (m < M)
            gate_of(M, {raw[m], raw[M + m], raw[2 * M + m], raw[3 * M + m]}, norm, bias_g, bias_t,
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
        const float u =
            sigmoid(((p[0][lane] + p[1][lane]) + (p[2][lane] + p[3][lane])) + bias_u) * (mine ? x.a * x.scale : 0.0f);
        bar_wait(full + own, 0);
        state_rows<G, 1>(tile + lane, panel_gates{qs, ks, as}, M, h * G, u, o,
                         [&](uint32_t row, float v) { S[(size_t)row * 32 + lane] = v; });
        if (PW > 1)
#pragma unroll
            for (int g = 0; g < G; g++) o_parts[PW > 1 ? own : 0][h * G + g][lane] = o[g];
    }
    if (PW > 1) __syncthreads(); // the groups' sums
    if (!there || h) return;
#pragma unroll
    for (int g = 0; g < STATE_GROUPS; g++) sum += PW > 1 ? o_parts[PW > 1 ? own : 0][g][lane] : o[g % G]; // in order
    finish_channel<T>(io, x, r, e, residual, act_norm, sum);
}

// ---- many rows ----

// A lane has four channels of the tile, 4 (lane % 8) and on, of the rows m = 16 i + 4 (lane / 8) + j; and one of its
// own, channel `lane`, whose inputs and outputs are its affair.

struct row_gates { // places in a row's gates: [q][k with i][alpha], M4 (M padded to 4) floats each, the low rank, zeros
                   // after it, [k][alpha] of deferred tokens
    uint32_t M4, R4, deferred;
    __host__ __device__ row_gates(uint32_t M, uint32_t R, bool defers)
        : M4((M + 3) / 4 * 4), R4(R < STATE_EARLY_R ? (uint32_t)STATE_EARLY_R : (R + 3) / 4 * 4),
          deferred(defers ? (uint32_t)CUDA_DEFERRED : 0) {}
    __host__ __device__ uint32_t size() const { return (3 + 2 * deferred) * M4 + R4; }
    __host__ __device__ uint32_t late(uint32_t i) const { return (3 + 2 * i) * M4 + R4; }
};
// A row's gates by a warp: from the partial products to their sums, and from these to where the block has them. I: M /
// 16 at most.
template <int I> struct row_sums {
    float bias_g[I / 2], bias_t[I / 2], sums[I / 2][4], low[4];
    __device__ __forceinline__ void read(const cuda_shape &shape, const cuda_partials &in, uint32_t r) {
        const uint32_t R = shape.R;
        gate_sums(shape, in.in, r, sums);
#pragma unroll
        for (uint32_t i = threadIdx.x % 32, j = 0; j < 4; j++)
            if (32 * j < R) low[j] = i + 32 * j < R ? low_rank_of(shape, in.c0, r, i + 32 * j) : 0.0f;
    }
    // keep: where k and alpha stay, too; NULL: nowhere.
    __device__ __forceinline__ void leave(const cuda_shape &shape, const row_gates &at, float *to, float *keep) const {
        gates_of_sums(shape, sums, bias_g, bias_t, [&](uint32_t m, float q, float k, float log_alpha) {
            const float alpha = expf(log_alpha);
            to[m] = q, to[at.M4 + m] = k, to[2 * at.M4 + m] = alpha;
            if (keep) keep[m] = k, keep[at.M4 + m] = alpha;
        });
#pragma unroll
        for (uint32_t i = threadIdx.x % 32, j = 0; j < 4; j++)
            if (i + 32 * j < at.R4) to[3 * at.M4 + i + 32 * j] = 32 * j < shape.R ? low[j] : 0.0f;
    }
};
// E4's low rank at one channel, gla_kernel's four partial sums; low: zeros from R up to a multiple of 4.
__device__ __forceinline__ void low_rank_sums(float (&sum)[4], const float (&early)[4][STATE_EARLY_R / 4],
                                              const float *c1, const float *low, uint32_t R, uint32_t Ep) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int i = 0; i < STATE_EARLY_R / 4; i++) { // gla_kernel's order; zeros beyond R change nothing
        const float4 l = *(const float4 *)(low + 4 * i);
        sum[0] = __fmaf_rn(early[0][i], l.x, sum[0]), sum[1] = __fmaf_rn(early[1][i], l.y, sum[1]);
        sum[2] = __fmaf_rn(early[2][i], l.z, sum[2]), sum[3] = __fmaf_rn(early[3][i], l.w, sum[3]);
    }
#pragma unroll 1
    for (uint32_t i = STATE_EARLY_R; i < R; i += 4)
#pragma unroll
        for (int l = 0; l < 4; l++)
            if (i + l < R) sum[l] = __fmaf_rn(c1[(size_t)(i + l) * Ep], low[i + l], sum[l]);
}
struct late_tokens { // u of the deferred tokens, how many; whether the tile takes them in memory, too
    const float *u;
    uint32_t n;
    bool write;
};
// E6 and E7 of a row at four channels, a lane's rows m = 16 i + 4 part + j of the tile: what is deferred, then the
// row's own token; o: by groups j. q: the row's gates from row 4 part on; late: u of
// the deferred tokens.
template <int I, bool WHOLE>
__device__ __forceinline__ void state_tile(float4 *tile, const float *q, const row_gates &at, const late_tokens &late,
                                           uint32_t M, uint32_t part, const float4 &u, float4 (&o)[4]) {
#pragma unroll
    for (int i0 = 0; i0 < I; i0 += 4) { // 64 rows of the tile at once
        const auto there_is = [&](int i) { return WHOLE || 16 * i + 4 * part < M; };
        float4 v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (WHOLE || 16 * (i0 + i) + 4 * part + j < M) v[i][j] = tile[(16 * (i0 + i) + j) * 8];
        const auto take_in = [&](int i, const float *k, const float *alpha, const float4 &by) { // E6
            const float4 k4 = *(const float4 *)(k + 16 * (i0 + i)), a4 = *(const float4 *)(alpha + 16 * (i0 + i));
            const float ks[4] = {k4.x, k4.y, k4.z, k4.w}, as[4] = {a4.x, a4.y, a4.z, a4.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[i][j].x = __fmaf_rn(as[j], v[i][j].x, __fmul_rn(ks[j], by.x)),
                v[i][j].y = __fmaf_rn(as[j], v[i][j].y, __fmul_rn(ks[j], by.y));
                v[i][j].z = __fmaf_rn(as[j], v[i][j].z, __fmul_rn(ks[j], by.z)),
                v[i][j].w = __fmaf_rn(as[j], v[i][j].w, __fmul_rn(ks[j], by.w));
            }
        };
#pragma unroll
        for (int l = 0; l < CUDA_DEFERRED; l++)
            if (l < late.n)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (there_is(i0 + i))
                        take_in(i, q + at.late(l), q + at.late(l) + at.M4, *(const float4 *)(late.u + 32 * l));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!there_is(i0 + i)) continue;
            take_in(i, q + at.M4, q + 2 * at.M4, u);
            const float4 q4 = *(const float4 *)(q + 16 * (i0 + i));
            const float qs[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (WHOLE || 16 * (i0 + i) + 4 * part + j < M) { // E7
                    o[j].x = __fmaf_rn(qs[j], v[i][j].x, o[j].x), o[j].y = __fmaf_rn(qs[j], v[i][j].y, o[j].y);
                    o[j].z = __fmaf_rn(qs[j], v[i][j].z, o[j].z), o[j].w = __fmaf_rn(qs[j], v[i][j].w, o[j].w);
                }
        }
        if (late.write)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (WHOLE || 16 * (i0 + i) + 4 * part + j < M) tile[(16 * (i0 + i) + j) * 8] = v[i][j];
    }
}

// How many of n_all rows there are without the padding at the end; a whole warp calls it.
template <class R> __device__ __forceinline__ uint32_t rows_used(uint32_t n_all, const R &used_row) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_all; t += 32) {
        const uint32_t used = __ballot_sync(0xffffffffu, t + lane < n_all && used_row(t + lane));
        if (used) n = t + 32 - __clz(used);
    }
    return n;
}
// Asks for k and alpha of a row's deferred tokens, by a warp.
__device__ __forceinline__ void ask_deferred(const cuda_state &io, uint2 row, const row_gates &at, float *to) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < (row.y & 0xff); i++) {
        const float *from = deferred_at(io, row.x, i) + io.shape.Ep;
        for (uint32_t j = 4 * lane; j < 2 * at.M4; j += 128) ask16(to + at.late(i) + j, from + j);
    }
}
// Waits for the first of c1 here, so that no row waits for them, and with them for what was asked for since.
__device__ __forceinline__ void wait_early(float (&early)[4][STATE_EARLY_R / 4], uint32_t bits) {
    const float nothing = __uint_as_float(bits);
#pragma unroll
    for (int l = 0; l < 4; l++)
#pragma unroll
        for (int j = 0; j < STATE_EARLY_R / 4; j++) early[l][j] = __fadd_rn(early[l][j], nothing);
}
// A row's inputs of a panel's channels, by the warp: eight lanes take one of a, z, s, and of the deferred u.
struct channels_ask {
    const float *at, *late;
    size_t step;
    float *to;
    __device__ __forceinline__ channels_ask(const cuda_state &io, uint32_t first, uint32_t every, uint32_t panel,
                                            float *channels) {
        const uint32_t part = threadIdx.x % 32 / 8, quad = threadIdx.x % 8, Ep = io.shape.Ep;
        at = (part == 2 ? io.s + (size_t)first * Ep : io.az + ((size_t)first * 2 + part) * Ep) + panel * 32 + 4 * quad;
        step = (size_t)every * Ep * (part == 2 ? 1 : 2);
        late = io.rows.deferred ? deferred_at(io, 0, part) + panel * 32 + 4 * quad : NULL;
        to = channels + 32 * part + 4 * quad;
    }
    __device__ __forceinline__ void ask(const cuda_state &io, uint2 row, const float *groups) {
        const uint32_t part = threadIdx.x % 32 / 8;
        if (part < 3) ask16(to, at);
        if (part < (row.y & 0xff)) ask16(to + 96, late + row.x * io.shape.deferred_slot);
        at += step;
        to = to + CHANNELS_ROW < groups ? to + CHANNELS_ROW : to - 2 * CHANNELS_ROW;
    }
};
struct state_channel { // what is the same for all rows of a channel
    const float *c1;
    float bias_u, residual, act_norm;
    __device__ __forceinline__ state_channel(const cuda_state &io, uint32_t e) {
        const bool mine = e < io.shape.E;
        c1 = io.c1 + (mine ? e : 0), bias_u = mine ? io.c1_b[e] : 0.0f;
        residual = mine ? io.residual[e] : 0.0f, act_norm = mine ? io.act_norm[e] : 0.0f;
    }
};
// Where a warp of the block has what in shared memory.
struct state_room {
    unsigned char *ring;
    float *gates; // two sets, a row's a warp, of the block
    uint64_t *full;
    float *channels; // of three rows: a, z, s, u of deferred tokens
    float *groups;   // [STATE_GROUPS][32]: o before the groups are added
    uint2 *rows;     // slot and what is deferred; of the block
    __device__ __forceinline__ state_room(unsigned char *smem, uint32_t bufs, uint32_t bytes, uint32_t gates_size) {
        const uint32_t warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
        ring = smem + (size_t)warp * bufs * bytes;
        gates = (float *)(smem + (size_t)n_warps * bufs * bytes);
        full = (uint64_t *)(gates + 2 * n_warps * gates_size) + warp * bufs;
        channels = (float *)((uint64_t *)(gates + 2 * n_warps * gates_size) + n_warps * bufs) + warp * CHANNELS;
        groups = channels + 3 * CHANNELS_ROW;
        rows = (uint2 *)(channels + (n_warps - warp) * CHANNELS);
    }
};
// Slot of a row, and what is deferred.
__device__ __forceinline__ uint2 state_row_at(const cuda_state &io, uint32_t r) {
    return make_uint2((uint32_t)io.rows.slot[r], io.rows.deferred ? io.rows.deferred[r] : (uint32_t)CUDA_WRITE_BACK);
}
// One lane: the ring's barriers, and the tiles of the first rows.
template <class Fetch>
__device__ __forceinline__ void start_ring(uint64_t *full, uint32_t bufs, uint32_t n, const Fetch &fetch) {
    for (uint32_t b = 0; b < bufs; b++) bar_init(full + b, 1);
    bars_are_there();
    for (uint32_t t = 0; t < min(n, bufs); t++) fetch(t);
}
// A warp's tile goes back, if S takes what it holds now.
__device__ __forceinline__ void give_tile(bool write, float *S, const unsigned char *tile, uint32_t bytes) {
    if (write) before_bulk_out();
    __syncwarp(); // all have written, or read
    if (threadIdx.x % 32 == 0 && write) bulk_out(S, tile, bytes);
}
// One lane: asks for the tile after those that are on their way, where the place of row t, b, or the one before is
// free.
template <class Fetch>
__device__ __forceinline__ void fetch_next(const Fetch &fetch, const uint2 *rows, uint32_t t, uint32_t n, uint32_t b,
                                           uint32_t bufs, bool write, bool &unfetched) {
    if (unfetched && t - 1 + bufs < n) { // what was in the place before has left by now
        if (write)
            bulk_outs_read<1>();
        else
            bulk_outs_read<0>();
        fetch(rows[t - 1 + bufs], b ? b - 1 : bufs - 1);
    }
    unfetched = write;
    if (!unfetched && t + bufs < n) fetch(rows[t + bufs], b);
}
// o of the lane's own channel: what the lanes have by groups, added in order.
__device__ __forceinline__ float sum_groups(float *groups, const float4 (&o)[4]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) *(float4 *)(groups + (4 * (lane / 8) + j) * 32 + 4 * (lane % 8)) = o[j];
    __syncwarp(); // the groups
    float whole = 0;
#pragma unroll
    for (int g = 0; g < STATE_GROUPS; g++) whole += groups[g * 32 + lane];
    return whole;
}

// A block: the rows first, first + step, ... of neighbouring panels, a warp each. Each warp makes the gates of one row
// of as many as there are warps, for all, while those before are in use. Shared memory: the rings, two sets of gates,
// the ring's barriers. I: M / 16 at most.
template <class T, int I, bool WHOLE>
__global__ void __launch_bounds__(256, 1)
    state_kernel(cuda_state io, cuda_partials in, uint32_t n_rows, uint32_t step, uint32_t bufs) {
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t M = WHOLE ? 16 * I : io.shape.M, Ep = io.shape.Ep, R = io.shape.R, warp = threadIdx.x / 32,
                   lane = threadIdx.x % 32, part = lane / 8, quad = lane % 8;
    const uint32_t n_warps = blockDim.x / 32, bytes = M * 128, across = gridDim.x / step, first = blockIdx.x / across,
                   panel = blockIdx.x % across * n_warps + warp;
    const uint32_t e = panel * 32 + lane, n_all = (n_rows - first + step - 1) / step;
    const bool there = panel < Ep / 32, mine = e < io.shape.E;
    const row_gates at(M, R, io.rows.deferred);
    const state_room room(smem, bufs, bytes, at.size());
    float *const gates = room.gates, *const channels = room.channels, *const groups = room.groups;
    uint2 *const rows = room.rows;
    const uint64_t stay = policy_stay(), once = policy_once();
    const auto row_of = [&](uint32_t t) { return state_row_at(io, first + t * step); };
    const auto S_of = [&](uint32_t slot) { return panel_of(io, slot, panel, M); };
    const auto fetch = [&](uint2 row, uint32_t b) { // one lane: a row's tile into place b of the ring
        bulk_in(room.ring + b * bytes, S_of(row.x), bytes, room.full + b, row.y & CUDA_WRITE_BACK ? stay : once);
    };
    const uint32_t n = rows_used(n_all, [&](uint32_t t) { return row_of(t).x != io.shape.n_slots; });
    if (n == 0) return wait_for_inputs();
    if (lane == 0 && there) // S was last written a step ago, so it comes before the inputs are ready
        start_ring(room.full, bufs, n, [&](uint32_t t) { fetch(row_of(t), t); });
    for (uint32_t t = threadIdx.x; t < n; t += blockDim.x) rows[t] = row_of(t);
    const state_channel of(io, e);
    float early[4][STATE_EARLY_R / 4];
    row_sums<I> made;
    c1_early(early, of.c1, R, Ep, 0);
    gate_biases(io.shape, in.g_b, in.t_b, made.bias_g, made.bias_t);
    const auto read_gates = [&](uint32_t t, uint32_t set) { // of this warp's row of those from step t on
        if (t + warp >= n) return;
        ask_deferred(io, rows[t + warp], at, gates + (set * n_warps + warp) * at.size());
        made.read(io.shape, in, first + (t + warp) * step);
    };
    const auto make_gates = [&](uint32_t t, uint32_t set) {
        if (t + warp >= n) return;
        const uint2 row = rows[t + warp];
        float *to = gates + (set * n_warps + warp) * at.size();
        float *keep = blockIdx.x % across == 0 && !(row.y & CUDA_WRITE_BACK) ? deferred_at(io, row.x, row.y & 0xff) + Ep
                                                                             : NULL; // one block of the row's
        made.leave(io.shape, at, to, keep);
    };
    channels_ask inputs(io, first, step, panel, channels);
    bool unfetched = false; // lane 0: the place before this one has no new tile yet
    __syncthreads();        // the rows, the barriers
    wait_for_inputs();
    if (there) inputs.ask(io, rows[0], groups);
    asked();
    if (there && n > 1) inputs.ask(io, rows[1], groups);
    asked();
    read_gates(0, 0);
    asked();
    wait_early(early, n_rows == 0 ? 0u : 0x80000000u); // -0, but the compiler cannot know
    float *x = channels;                               // the row's
    for (uint32_t t = 0, r = first, b = 0, parity = 0, w = 0, set = 0; t < n; t++, r += step) {
        if (w == 0) {
            make_gates(t, set);
            asked();
            await_all_but<0>();
            __syncthreads(); // these gates; nobody reads those before
            read_gates(t + n_warps, set ^ 1);
        }
        if (there) {
            const uint2 row = rows[t], after = rows[min(t + 2, n - 1)];
            const uint32_t n_late = row.y & 0xff;
            const bool write = row.y & CUDA_WRITE_BACK;
            float4 *tile = (float4 *)(room.ring + b * bytes) + part * 32 + quad;
            const float *q = gates + (set * n_warps + w) * at.size() + 4 * part,
                        *low = gates + (set * n_warps + w) * at.size() + 3 * at.M4;
            float sum[4];
            low_rank_sums(sum, early, of.c1, low, R, Ep);
            await_all_but<1>(); // this row's
            __syncwarp();
            const float scale = io.row_scale ? io.row_scale[r] : 1.0f, z = x[32 + lane] * scale, from_s = x[64 + lane];
            const float own =
                mine ? sigmoid(((sum[0] + sum[1]) + (sum[2] + sum[3])) + of.bias_u) * (x[lane] * scale) : 0.0f;
            x[lane] = own;
            if (!write) deferred_at(io, row.x, n_late)[e] = own;
            __syncwarp(); // u of all channels
            const float4 u = *(const float4 *)(x + 4 * quad);
            bar_wait(room.full + b, parity);
            float4 o[4] = {};
            state_tile<I, WHOLE>(tile, q, at, late_tokens{x + 96 + 4 * quad, n_late, write}, M, part, u, o);
            give_tile(write, S_of(row.x), room.ring + b * bytes, bytes);
            if (lane == 0) fetch_next(fetch, rows, t, n, b, bufs, write, unfetched);
            if (t + 2 < n) inputs.ask(io, after, groups); // where the row before had its inputs
            asked();
            x = x + CHANNELS_ROW < groups ? x + CHANNELS_ROW : channels;
            const float whole = sum_groups(groups, o);
            finish_channel<T>(io, channel_in{0, z, from_s, 1.0f}, r, e, of.residual, of.act_norm, whole);
            if (++b == bufs) b = 0, parity ^= 1;
        }
        if (t + 1 + n / 8 == n)
            let_next_start(); // no earlier: where its copies begin at once, W_o's kernel costs 1 us more at 64 rows
        if (++w == n_warps) w = 0, set ^= 1;
    }
    if (lane == 0) bulk_outs_done();
}

// ---- S takes what is deferred ----

struct late_list {
    enum { MOST = 64 };
    cuda_late of[MOST];
};
// A block: a panel of a layer of a slot, a lane a channel.
__global__ void __launch_bounds__(256) write_back_kernel(cuda_shape shape, late_list slots) {
    wait_for_inputs();
    const cuda_late late = slots.of[blockIdx.z];
    const uint32_t slot = late.slot,
                   n = late.n_late        ? late.n_late
                       : shape.n_deferred ? shape.n_deferred[slot]
                                          : 0,
                   lane = threadIdx.x % 32, warp = threadIdx.x / 32, M4 = (shape.M + 3) / 4 * 4;
    if (n == 0) return;
    float *S =
        shape.S + (size_t)slot * shape.S_slot + blockIdx.y * shape.S_layer + (size_t)blockIdx.x * shape.M * 32 + lane;
    const float *from = shape.deferred + (size_t)slot * shape.deferred_slot + blockIdx.y * shape.deferred_layer;
    const uint32_t k_at = shape.Ep + (late.n_late && late.second ? 2 * M4 : 0);
    float u[CUDA_DRAFTS];
#pragma unroll
    for (uint32_t i = 0; i < CUDA_DRAFTS; i++)
        u[i] = i < n ? from[i * shape.deferred_token + blockIdx.x * 32 + lane] : 0.0f;
    for (uint32_t m = warp; m < shape.M; m += 8) {
        float v = S[(size_t)m * 32];
#pragma unroll
        for (uint32_t i = 0; i < CUDA_DRAFTS; i++)
            if (i < n) {
                const float *k = from + i * shape.deferred_token + k_at + m;
                v = __fmaf_rn(k[M4], v, __fmul_rn(k[0], u[i])); // state_kernel's order
            }
        S[(size_t)m * 32] = v;
    }
}
__global__ void written_back_kernel(uint32_t *n_deferred, late_list slots) {
    wait_for_inputs();
    n_deferred[slots.of[threadIdx.x].slot] = 0;
}

void k_write_back(const struct cuda_shape *shape, uint32_t n_layers, const struct cuda_late *slots, uint32_t n,
                  void *stream) {
    assert((n == 0 || shape->deferred) && n_layers > 0 && n_layers <= CUDA_GRID_Z && shape->Ep % 32 == 0);
    for (uint32_t i = 0; i < n; i++) assert(slots[i].slot < shape->n_slots && slots[i].n_late <= CUDA_DRAFTS);
    for (uint32_t first = 0; first < n; first += late_list::MOST) {
        const uint32_t some = std::min(n - first, (uint32_t)late_list::MOST);
        late_list list = {};
        std::copy(slots + first, slots + first + some, list.of);
        launch(write_back_kernel, dim3(shape->Ep / 32, n_layers, some), dim3(256), 0, stream, *shape, list);
        if (shape->n_deferred) launch(written_back_kernel, dim3(1), dim3(some), 0, stream, shape->n_deferred, list);
    }
}

// ---- launchers ----

template <int PW, int THREADS>
static void state_few(const cuda_state &io, const cuda_partials &in, uint32_t n_rows, void *stream) {
    constexpr uint32_t PANELS = THREADS / 32 / PW;
    const uint32_t bytes = PANELS * io.shape.M * 128;
    FOR_DTYPE(io.shape.dtype, {
        allow_shared(state_few_kernel<T, PW, THREADS>, bytes);
        launch(state_few_kernel<T, PW, THREADS>, dim3((io.shape.Ep / 32 + PANELS - 1) / PANELS, n_rows), dim3(THREADS),
               bytes, stream, io, in);
    });
}
static void state_many(const cuda_state &io, const cuda_partials &in, enum dispatch_kernel kernel, uint32_t n_rows,
                       void *stream) {
    const uint32_t M = io.shape.M, warps = M <= 64 ? 8 : 4,
                   gates = 2 * warps * row_gates(M, io.shape.R, io.rows.deferred).size() * 4,
                   tiles = warps * (M * 128 + 8), channels = warps * CHANNELS * 4;
    const uint32_t across = (io.shape.Ep / 32 + warps - 1) / warps,
                   step = std::max(1u, std::min(n_rows, multiprocessors() / across));
    const uint32_t rows = (n_rows + step - 1) / step * 8;
    const uint32_t bufs = std::min(6u, ((227u << 10) - gates - channels - rows) / tiles),
                   bytes = bufs * tiles + gates + channels + rows;
#define STATE(I, WHOLE)                                                                                                \
    FOR_DTYPE(io.shape.dtype, {                                                                                        \
        allow_shared(state_kernel<T, I, WHOLE>, bytes);                                                                \
        launch(state_kernel<T, I, WHOLE>, dim3(across *step), dim3(warps * 32), bytes, stream, io, in, n_rows, step,   \
               bufs);                                                                                                  \
    })
    if (kernel == STATE_4_WHOLE)
        STATE(4, true);
    else
        STATE(8, false);
#undef STATE
}

static enum dispatch_kernel kernel_of(const struct cuda_shape *shape, uint32_t n_rows) {
    dispatch_case c = {};
    c.op = DISPATCH_DECODE_STATE, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = n_rows, c.shape = shape;
    return dispatch_kernel_of(&c);
}
bool cuda_state_defers(const struct cuda_shape *shape, uint32_t n_rows) {
    const enum dispatch_kernel kernel = kernel_of(shape, n_rows);
    return kernel == STATE_4_WHOLE || kernel == STATE_8;
}
void k_gla_gates(const struct cuda_state *io, const struct cuda_partials *in, uint32_t n_rows, void *stream) {
    assert(n_rows > 0 && n_rows <= CUDA_GRID_Z && is_state(*io) && are_gates(io->shape, *in, n_rows));
    const enum dispatch_kernel kernel = kernel_of(&io->shape, n_rows);
    if (kernel == GLA)
        gla_of_partial(*io, *in, n_rows, stream);
    else if (kernel == STATE_FEW_4)
        state_few<4, 512>(*io, *in, n_rows, stream);
    else if (kernel == STATE_FEW_1)
        state_few<1, 256>(*io, *in, n_rows, stream);
    else
        state_many(*io, *in, kernel, n_rows, stream);
}
