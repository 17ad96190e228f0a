// state_drafts.cu - the state in decode steps with drafts, on any device (E4 to E7, a token of each session and the
// drafts behind it): S is read once, and each row sees it as a step of its own would.
//
// A block (state_drafts.cuh) has a segment. Its registers take the tokens that S does not hold yet, before the inputs
// are ready, then the segment's own, one after the other; what the first leaves is S. A draft may turn out wrong: its
// u, k and alpha are kept instead, for whoever reads S next. The order of every sum is gla_kernel's.
#include "state_drafts.cuh"

template <class T, int I, bool WHOLE>
__global__ void __launch_bounds__(DRAFT_WARPS * 32, 2) state_drafts_kernel(cuda_state io, cuda_partials in) {
    __shared__ __align__(16) draft_rows sh;
    const draft_place p(io.shape, WHOLE ? 16 * I : io.shape.M);
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t first = (uint32_t)io.rows.seg_first[blockIdx.y], n = (uint32_t)io.rows.seg_n[blockIdx.y],
                   slot = (uint32_t)io.rows.slot[first];
    if (n == 0 || slot == io.shape.n_slots) { // no segment, or padding
        wait_for_inputs();
        return;
    }
    const uint32_t word = io.rows.deferred[first], n_late = word & 0xff;
    const bool second = word & CUDA_LATE_SECOND;
    // S and what it lacks were last written a step ago, so they come before the inputs are ready
    float *S = p.S_of(io, slot) + threadIdx.x % 32;
    float v[I][G], late_u[CUDA_DRAFTS];
    load_panel<I, WHOLE>(v, S, p);
#pragma unroll
    for (uint32_t l = 0; l < CUDA_DRAFTS; l++) late_u[l] = p.there && l < n_late ? deferred_at(io, slot, l)[p.e] : 0.0f;
    load_late(sh, io, p, slot, n_late, second);
    float bias_g[I / 2], bias_t[I / 2], early[1][STATE_EARLY_R / 4];
    gate_biases(io.shape, in.g_b, in.t_b, bias_g, bias_t);
    const draft_channel channel(io, p);
    c1_early(early, channel.c1, io.shape.R, io.shape.Ep, p.h);
    __syncthreads(); // k and alpha of what is late
#pragma unroll
    for (uint32_t l = 0; l < CUDA_DRAFTS; l++)
        if (l < n_late) take_in<I, WHOLE>(v, sh.late_k[l], sh.late_a[l], p.M, p.m0, late_u[l]);
    wait_for_inputs();
    let_next_start();

    if (warp < n)
        make_row(io, in, sh, warp, first + warp, bias_g, bias_t,
                 blockIdx.x == 0 && warp > 0 ? late_gates(io, slot, warp - 1, !second) : NULL);
    channel_in x[2] = {}; // of the rows h and h + 4, which this warp finishes
#pragma unroll
    for (uint32_t j = 0; j < 2; j++)
        if (p.h + PANEL_WARPS * j < n) x[j] = read_channel(io, first + p.h + PANEL_WARPS * j, p.e);
    __syncthreads(); // the rows' gates and low ranks
    make_u(sh, io, p, channel, early, x, n, slot);
    run_rows<T, I, WHOLE>(sh, io, p, channel, x, v, S, make_uint2(first, n));
}

template <int I, bool WHOLE>
static void state_drafts(const cuda_state &io, const cuda_partials &in, uint32_t n_segs, void *stream) {
    FOR_DTYPE(io.shape.dtype, {
        launch(state_drafts_kernel<T, I, WHOLE>, dim3((io.shape.Ep / 32 + PANELS - 1) / PANELS, n_segs),
               dim3(DRAFT_WARPS * 32), 0, stream, io, in);
    });
}
void k_gla_drafts(const struct cuda_state *io, const struct cuda_partials *in, uint32_t n_segs, void *stream) {
    const struct cuda_shape *shape = &io->shape;
    assert(n_segs > 0 && n_segs <= CUDA_GRID_Z && is_state(*io) && are_parts(in->in, 4 * shape->M));
    assert(io->rows.deferred && shape->deferred && shape->R <= 128);
    dispatch_case c = {};
    c.op = DISPATCH_DRAFT_STATE, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = n_segs, c.shape = shape;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c);
    if (kernel == STATE_DRAFTS_MANY_4_WHOLE || kernel == STATE_DRAFTS_MANY_8)
        state_drafts_many(*io, *in, n_segs, kernel, stream);
    else if (kernel == STATE_DRAFTS_4_WHOLE)
        state_drafts<4, true>(*io, *in, n_segs, stream);
    else
        state_drafts<8, false>(*io, *in, n_segs, stream);
}
