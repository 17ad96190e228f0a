// state_drafts.cu - the state in decode steps with drafts, on any device (E4 to E7, a token of each session and the
// drafts behind it): S is read once, and each row sees it as a step of its own would.
//
// A block (state_drafts.cuh) has a segment. Its registers take the tokens that S does not hold yet, before the inputs
// are ready, then the segment's own, one after the other; what the first leaves is S. A draft may turn out wrong: its
// u, k and alpha are kept instead, for whoever reads S next. The order of every sum is gla_kernel's.
#include "state_drafts.cuh"

// What a block shares.
struct draft_shared {
    float q[MOST_ROWS][128], k[MOST_ROWS][128], a[MOST_ROWS][128], low[MOST_ROWS][128]; // of each row
    float late_k[CUDA_DRAFTS][128], late_a[CUDA_DRAFTS][128];
    float u_parts[MOST_ROWS][PANELS][PANEL_WARPS][32], u[MOST_ROWS][PANELS][32];
    float o[2][PANELS][STATE_GROUPS][32]; // by groups, of a row and of the next one
};

template <class T, int I, bool WHOLE>
__global__ void __launch_bounds__(DRAFT_WARPS * 32, 2) state_drafts_kernel(state_io io, gates_in in) {
    __shared__ __align__(16) draft_shared sh;
    const uint32_t M = WHOLE ? 16 * I : io.shape.M, Ep = io.shape.Ep, R = io.shape.R, M4 = (M + 3) / 4 * 4;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = warp / PANEL_WARPS, h = warp % PANEL_WARPS,
                   m0 = G * h, panel = blockIdx.x * PANELS + own, e = panel * 32 + lane;
    const uint32_t first = (uint32_t)io.rows.seg_first[blockIdx.y], n = (uint32_t)io.rows.seg_n[blockIdx.y],
                   slot = (uint32_t)io.rows.slot[first];
    if (n == 0 || slot == io.shape.n_slots) { // no segment, or padding
        wait_for_inputs();
        return;
    }
    const uint32_t word = io.rows.deferred[first], n_late = word & 0xff;
    const bool second = word & CUDA_LATE_SECOND, there = panel < Ep / 32, mine = e < io.shape.E;
    // S and what it lacks were last written a step ago, so they come before the inputs are ready
    float *S =
        io.shape.S + (size_t)slot * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)panel * M * 32 + lane;
    float v[I][G], late_u[CUDA_DRAFTS];
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
        for (int g = 0; g < G; g++)
            v[i][g] = there && (WHOLE || 16 * i + m0 + g < M) ? S[(size_t)(16 * i + m0 + g) * 32] : 0.0f;
#pragma unroll
    for (uint32_t l = 0; l < CUDA_DRAFTS; l++) late_u[l] = there && l < n_late ? deferred_at(io, slot, l)[e] : 0.0f;
    for (uint32_t l = 0; l < n_late; l++)
        for (uint32_t m = threadIdx.x; m < 2 * M; m += DRAFT_WARPS * 32) {
            const float *from = late_gates(io, slot, l, second);
            if (m < M)
                sh.late_k[l][m] = from[m];
            else
                sh.late_a[l][m - M] = from[M4 + m - M];
        }
    float bias_g[I / 2], bias_t[I / 2], early[1][STATE_EARLY_R / 4];
    gate_biases(io.shape, in.g_b, in.t_b, bias_g, bias_t);
    const float *c1 = io.c1 + (mine ? e : 0);
    c1_early(early, c1, R, Ep, h);
    const float bias_u = mine ? io.c1_b[e] : 0.0f, residual = mine ? io.residual[e] : 0.0f,
                act_norm = mine ? io.act_norm[e] : 0.0f;
    __syncthreads(); // k and alpha of what is late
#pragma unroll
    for (uint32_t l = 0; l < CUDA_DRAFTS; l++)
        if (l < n_late) take_in<I, WHOLE>(v, sh.late_k[l], sh.late_a[l], M, m0, late_u[l]);
    wait_for_inputs();
    let_next_start();

    if (warp < n)
        make_row(io, in, sh, warp, first + warp, bias_g, bias_t,
                 blockIdx.x == 0 && warp > 0 ? late_gates(io, slot, warp - 1, !second) : NULL);
    channel_in x[2] = {}; // of the rows h and h + 4, which this warp finishes
#pragma unroll
    for (uint32_t j = 0; j < 2; j++)
        if (h + PANEL_WARPS * j < n) x[j] = read_channel(io, first + h + PANEL_WARPS * j, e);
    __syncthreads(); // the rows' gates and low ranks
    for (uint32_t t = 0; t < n; t++) {
        float part[1];
        low_rank_parts(part, early, c1, sh.low[t], R, Ep, h);
        sh.u_parts[t][own][h][lane] = part[0];
    }
    __syncthreads(); // E4's parts
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t t = h + PANEL_WARPS * j;
        if (t >= n) continue;
        const float(*p)[32] = sh.u_parts[t][own];
        const float u = sigmoid(((p[0][lane] + p[1][lane]) + (p[2][lane] + p[3][lane])) + bias_u) *
                        (mine ? x[j].a * x[j].scale : 0.0f);
        sh.u[t][own][lane] = u;
        if (there && t > 0) deferred_at(io, slot, t - 1)[e] = u; // all have read what was there
    }
    __syncthreads(); // u
#pragma unroll 1
    for (uint32_t t = 0; t < n; t++) {
        float o[G];
        take_in<I, WHOLE>(v, sh.k[t], sh.a[t], M, m0, sh.u[t][own][lane]);
        read_out<I, WHOLE>(o, v, sh.q[t], M, m0);
        if (t == 0 && there)
#pragma unroll
            for (int i = 0; i < I; i++)
#pragma unroll
                for (int g = 0; g < G; g++)
                    if (WHOLE || 16 * i + m0 + g < M) S[(size_t)(16 * i + m0 + g) * 32] = v[i][g];
#pragma unroll
        for (int g = 0; g < G; g++) sh.o[t % 2][own][m0 + g][lane] = o[g];
        __syncthreads(); // the groups' sums; those of the row before are free
        if (t % PANEL_WARPS != h || !there) continue;
        float sum = 0;
#pragma unroll
        for (int g = 0; g < STATE_GROUPS; g++) sum += sh.o[t % 2][own][g][lane]; // in order
        const bool low = t < PANEL_WARPS; /* member by member: the arrays stay in registers */
        const channel_in of = {0, low ? x[0].z : x[1].z, low ? x[0].s : x[1].s, low ? x[0].scale : x[1].scale};
        finish_channel<T>(io, of, first + t, e, residual, act_norm, sum);
    }
}

template <int I, bool WHOLE>
static void state_drafts(const state_io &io, const gates_in &in, uint32_t n_segs, void *stream) {
    FOR_DTYPE(io.shape.dtype, {
        launch(state_drafts_kernel<T, I, WHOLE>, dim3((io.shape.Ep / 32 + PANELS - 1) / PANELS, n_segs),
               dim3(DRAFT_WARPS * 32), 0, stream, io, in);
    });
}
void k_gla_drafts(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_segs,
                  const float *in, uint32_t splits, size_t split_stride, const float *in_c0, uint32_t splits_c0,
                  size_t split_stride_c0, const float *g_b, const float *t_b, const float *c1, const float *c1_b,
                  const float *az, const float *row_scale, const float *s, const float *residual, const float *act_norm,
                  float *sums, void *act, void *stream) {
    const state_io io = {*shape, layer, *rows, c1, c1_b, az, row_scale, s, residual, act_norm, sums, act};
    const gates_in partial = {in, in_c0, g_b, t_b, splits, splits_c0, split_stride, split_stride_c0};
    dispatch_case c = {};
    c.op = DISPATCH_DRAFT_STATE, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = n_segs, c.shape = shape;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c);
    if (kernel == STATE_DRAFTS_MANY_4_WHOLE || kernel == STATE_DRAFTS_MANY_4 || kernel == STATE_DRAFTS_MANY_8)
        state_drafts_many(io, partial, n_segs, kernel, stream);
    else if (kernel == STATE_DRAFTS_4_WHOLE)
        state_drafts<4, true>(io, partial, n_segs, stream);
    else if (kernel == STATE_DRAFTS_4)
        state_drafts<4, false>(io, partial, n_segs, stream);
    else
        state_drafts<8, false>(io, partial, n_segs, stream);
}
