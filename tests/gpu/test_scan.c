/* test_scan.c - scan.cu: the recurrent layer of prompts against the twin of E4, E6 and E7, to the bit against k_conv
 * and, for tokens alone, k_gla; and its laws: no bit depends on neighbours or on a split at multiples of 64. */
#include "mixer.h"

enum { PIECE = 64 };

struct scan_case {
    struct cuda_shape shape;
    uint32_t n_rows, layer;
    size_t n_pool, n_tails;
    float *pool, *tails;                                                /* host; before */
    float *s_plain;                                                     /* host [n_rows][E] */
    struct cuda_gates gates;                                            /* device */
    float *c1, *c1_b, *az, *s, *residual, *act_norm, *row_scale, *work; /* device */
    void *a_act, *z_act;                                                /* packed; or NULL */
};
struct scan_result {
    float *states, *tails, *sums, *act; /* host */
};

/* Packed activations as k_scan takes them: it reads their last tile whole, so what fills it up is defined memory (NaN,
 * in a run under initcheck too), and no result has anything of it. */
static void *packed_rows(const float *src, size_t n, uint32_t cols, enum cuda_dtype dtype) {
    const size_t bytes = gpu.k->cuda_activation_bytes((uint32_t)n, cols, dtype);
    void *act = gpu_bytes(bytes);
    gpu_expect(gpu.k->fill(act, 0xff, bytes, gpu.stream), "filling activations");
    gpu.k->pack_act(NULL, (uint32_t)n, cols, act, dtype, gpu.stream);
    gpu.k->pack_act(gpu_from(src, n * cols), (uint32_t)n, cols, act, dtype, gpu.stream);
    gpu_expect(gpu.k->wait(gpu.stream), "packing activations");
    return act;
}
/* Columns [first, first + E) of az. */
static void *packed_half(const float *az, size_t n, const struct cuda_shape *shape, uint32_t first) {
    float *plain = host_floats(n * shape->E);
    for (size_t r = 0; r < n; r++)
        memcpy(plain + r * shape->E, az + r * 2 * shape->Ep + first, shape->E * sizeof *plain);
    return packed_rows(plain, n, shape->E, shape->dtype);
}

static struct scan_case scan_case(const struct cuda_shape *shape, uint32_t n_rows, uint32_t n_slots,
                                  struct mixer_inputs *x) {
    const size_t n = n_rows, M = shape->M, E = shape->E, R = shape->R, Ep = shape->Ep;
    *x = random_inputs(shape, n_rows);
    if (gpu_pick(0, 3) == 0) { /* one kind of forgetting, all along */
        const float all = gpu_pick(0, 2) == 0 ? 0.0f : gpu_pick(0, 1) ? -1e-6f : -30.0f;
        for (size_t i = 0; i < n * M; i++) x->log_alpha[i] = all;
    }
    struct scan_case c = {.shape = *shape, .n_rows = n_rows, .layer = gpu_pick(0, LAYERS - 1)};
    c.n_pool = (n_slots + 1) * shape->S_slot, c.n_tails = (n_slots + 1) * shape->conv_slot;
    c.pool = host_random(c.n_pool, -1, 1, CUDA_F32), c.tails = host_random(c.n_tails, -2, 2, shape->dtype);
    c.gates = (struct cuda_gates){.q = gpu_from(x->q, n * M),
                                  .k = gpu_from(x->k, n * M),
                                  .log_alpha = gpu_from(x->log_alpha, n * M),
                                  .c0 = gpu_from(x->c0, n * R)};
    c.c1 = gpu_from(x->c1, E * R), c.c1_b = gpu_from(x->c1_b, E);
    /* s as the convolution leaves it, fp32 and packed, is the same number */
    c.s_plain = host_floats(n * E);
    for (size_t i = 0; i < n * Ep; i++) {
        x->s[i] = gpu_round(x->s[i], shape->dtype);
        if (i % Ep < E) c.s_plain[i / Ep * E + i % Ep] = x->s[i];
    }
    c.s = gpu_from(x->s, n * Ep), c.residual = gpu_from(x->residual, E), c.act_norm = gpu_from(x->act_norm, E);
    /* az as a product leaves it, its scale beside it; the twin has them multiplied. Packed: with its scale, rounded */
    const bool packed = gpu.k->cuda_scan_packed(shape), scaled = !packed && gpu_pick(0, 1);
    for (size_t i = 0; packed && i < n * 2 * Ep; i++) x->az[i] = gpu_round(x->az[i], shape->dtype);
    c.a_act = packed ? packed_half(x->az, n, shape, 0) : NULL;
    c.z_act = packed ? packed_half(x->az, n, shape, shape->Ep) : NULL;
    float *scale = host_random(n, 0.5, 2, CUDA_F32), *az = host_floats(n * 2 * Ep);
    memcpy(az, x->az, n * 2 * Ep * sizeof *az);
    for (size_t i = 0; scaled && i < n * 2 * Ep; i++) x->az[i] *= scale[i / (2 * Ep)];
    c.az = gpu_from(az, n * 2 * Ep), c.row_scale = scaled ? gpu_from(scale, n) : NULL;
    c.work = gpu_bytes(gpu.k->cuda_scan_bytes(shape, n_rows));
    return c;
}

static struct cuda_scan scan_of(const struct scan_case *c, const struct cuda_rows *rows, float *sums, void *act) {
    return (struct cuda_scan){.io = {.shape = c->shape,
                                     .layer = c->layer,
                                     .rows = *rows,
                                     .c1 = c->c1,
                                     .c1_b = c->c1_b,
                                     .az = c->a_act ? NULL : c->az,
                                     .row_scale = c->row_scale,
                                     .s = c->a_act ? NULL : c->s,
                                     .residual = c->residual,
                                     .act_norm = c->act_norm,
                                     .sums = sums,
                                     .act = act},
                              .gates = c->gates,
                              .s_act = act,
                              .a_act = c->a_act,
                              .z_act = c->z_act,
                              .n_rows = c->n_rows,
                              .work = c->work};
}
/* Of the segments first, n (host), in steps of the same rows: all in one, or one after the other. */
static struct scan_result run(struct scan_case *c, const struct gpu_rows *rows, const int32_t *first, const int32_t *n,
                              uint32_t n_segs, bool together, bool chunkwise) {
    const uint32_t E = c->shape.E, tiles = c->shape.Ep / 32, n_rows = c->n_rows;
    float *sums = gpu_floats((size_t)n_rows * tiles);
    void *act = packed_rows(c->s_plain, n_rows, E, c->shape.dtype); /* s before, the read-out after */
    c->shape.S = gpu_from(c->pool, c->n_pool), c->shape.conv = gpu_from_typed(c->tails, c->n_tails, c->shape.dtype);
    const int32_t *at_first = gpu_copy(first, n_segs * sizeof *first), *at_n = gpu_copy(n, n_segs * sizeof *n);
    const uint32_t step = together ? n_segs : 1;
    for (uint32_t g = 0; g < n_segs; g += step) {
        struct cuda_rows part = rows->device;
        part.seg_first = at_first + g, part.seg_n = at_n + g;
        uint32_t most = 0;
        for (uint32_t j = g; j < g + step; j++) most = (uint32_t)n[j] > most ? (uint32_t)n[j] : most;
        struct cuda_scan scan = scan_of(c, &part, sums, act);
        scan.n_segs = step, scan.most_tok = most;
        if (chunkwise) {
            GPU_RUN(k_scan, &scan);
        } else {
            scan.io.az = c->az, scan.io.s = c->s;
            GPU_RUN(k_gla, &scan.io, &c->gates, step);
        }
    }
    return (struct scan_result){gpu_fetch(c->shape.S, c->n_pool),
                                gpu_fetch_typed(c->shape.conv, c->n_tails, c->shape.dtype),
                                gpu_fetch(sums, (size_t)n_rows * tiles), gpu_fetch_act(act, n_rows, E, c->shape.dtype)};
}

/* All segments in one step, with broken ones: pieces begin and end inside tiles of eight rows, right beside others'. */
static void scan_broken_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    static const uint32_t most_tok[] = {70, 5, 20, 150, 300};
    if (dtype == CUDA_F32) return;
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    const uint32_t E = shape.E, M = shape.M, Ep = shape.Ep;
    const struct gpu_rows rows = gpu_make_rows(n_rows, most_tok[i % 5], 9);
    GPU_WHAT(", %u segments, E %u, M %u, R %u, K %u", rows.n_segs, E, M, shape.R, shape.K);
    if (!gpu.k->cuda_scan_prepare(&shape)) fail_msg("%s: not possible on this device", gpu.what);
    struct mixer_inputs x;
    struct scan_case c = scan_case(&shape, n_rows, rows.n_slots, &x);
    float *sums = gpu_floats((size_t)n_rows * (Ep / 32));
    void *act = packed_rows(c.s_plain, n_rows, E, dtype); /* s before, the read-out after */
    shape.S = gpu_from(c.pool, c.n_pool), shape.conv = gpu_from_typed(c.tails, c.n_tails, dtype);
    uint32_t most = 0;
    for (uint32_t g = 0; g < rows.n_segs; g++) most = (uint32_t)rows.seg_n[g] > most ? (uint32_t)rows.seg_n[g] : most;
    const float *az = c.a_act ? NULL : c.az, *s = c.a_act ? NULL : c.s;
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, c.gates.q, n_rows, M);
    OF_ROWS(READ, c.gates.k, n_rows, M);
    OF_ROWS(READ, c.gates.log_alpha, n_rows, M);
    OF_ROWS(READ, c.gates.c0, n_rows, shape.R);
    OF_ROWS(READ, az, n_rows, 2 * Ep);
    OF_ROWS(READ, c.row_scale, n_rows, 1);
    OF_ROWS(READ, s, n_rows, Ep);
    if (c.a_act) OF_ACT(READ, c.a_act, n_rows, E, dtype);
    if (c.z_act) OF_ACT(READ, c.z_act, n_rows, E, dtype);
    OF_ACT(READ | WRITTEN, act, n_rows, E, dtype);
    OF_ROWS(WRITTEN, sums, n_rows, Ep / 32);
    OF_SLOTS(READ | WRITTEN, shape.S, rows.n_slots + 1, shape.S_slot, CUDA_F32);
    OF_SLOTS(READ | WRITTEN, shape.conv, rows.n_slots + 1, shape.conv_slot, dtype);
    OF_NOBODY(c.work, gpu.k->cuda_scan_bytes(&shape, n_rows));
    c.shape = shape;
    struct cuda_scan scan = scan_of(&c, &rows.device, sums, act);
    scan.n_segs = rows.n_segs, scan.most_tok = most;
    while (broken_again()) GPU_RUN(k_scan, &scan);
}
static void a_segment_of_nan_changes_no_other_s_state_or_read_out(void **state) {
    (void)state;
    for (int j = 0; j < 2; j++) broken_rounds(false, scan_broken_round); /* they cost little */
}

static void check_same(const char *what, const struct scan_case *c, const struct scan_result *x,
                       const struct scan_result *y) {
    const size_t before = strlen(gpu.what), n = c->n_rows;
    GPU_WHAT(", %s", what);
    gpu_check_same("states", x->states, y->states, c->n_pool);
    gpu_check_same("tails", x->tails, y->tails, c->n_tails);
    gpu_check_same("sums of squares", x->sums, y->sums, n * (c->shape.Ep / 32));
    gpu_check_same("read-out", x->act, y->act, n * c->shape.E);
    gpu.what[before] = 0;
}

static void scan_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    if (dtype == CUDA_F32) return;
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    const uint32_t E = shape.E, M = shape.M, Ep = shape.Ep, K = shape.K;
    const struct gpu_rows rows = gpu_make_rows(n_rows, i % 4 ? 300 : 3, 9);
    GPU_WHAT(", %u segments, E %u, M %u, R %u, K %u", rows.n_segs, E, M, shape.R, K);
    if (!gpu.k->cuda_scan_prepare(&shape)) fail_msg("%s: not possible on this device", gpu.what);
    struct mixer_inputs x;
    struct scan_case c = scan_case(&shape, n_rows, rows.n_slots, &x);
    const size_t n = n_rows;
    const struct scan_result got = run(&c, &rows, rows.seg_first, rows.seg_n, rows.n_segs, true, true);

    float *pool = host_floats(c.n_pool), *out = host_floats(n * E), *sums = host_floats(n * (Ep / 32));
    memcpy(pool, c.pool, c.n_pool * sizeof *pool);
    mixer_twin(&shape, &rows, c.layer, &x, pool, out);
    for (size_t r = 0; r < n; r++)
        for (uint32_t e = 0; e < E; e++) {
            sums[r * (Ep / 32) + e / 32] += out[r * E + e] * out[r * E + e];
            out[r * E + e] *= x.act_norm[e];
        }
    check_states(&shape, &rows, c.layer, got.states, pool, 1e-3);
    gpu_check("read-out, gated", got.act, out, n * E, 1e-3, gpu_ulp(dtype));
    gpu_check("sums of squares", got.sums, sums, n * (Ep / 32), 2e-3, 0);
    float *tails = host_floats(c.n_tails);
    memcpy(tails, c.tails, c.n_tails * sizeof *tails);
    for (size_t r = 0; r < n; r++) {
        float *tail = tails + (size_t)rows.slot[r] * shape.conv_slot + c.layer * shape.conv_layer;
        for (uint32_t e = 0; e < E; e++)
            tail[conv_place(&shape, rows.pos[r], 0) * Ep + e] = gpu_round(x.az[r * 2 * Ep + e], dtype);
    }
    gpu_check_same("the tails of all slots", got.tails, tails, c.n_tails);

    /* Each segment in steps of its own, cut at some multiples of the piece, gives the same bits. */
    int32_t *first = host_bytes(n * sizeof *first), *count = host_bytes(n * sizeof *count);
    uint32_t n_parts = 0;
    bool alone = true;
    for (uint32_t g = 0; g < rows.n_segs; g++)
        for (int32_t lo = 0; lo < rows.seg_n[g]; n_parts++) {
            const int64_t pos = rows.pos[rows.seg_first[g]];
            const int64_t end = ((pos + lo) / PIECE + gpu_pick(1, 3)) * PIECE - pos;
            first[n_parts] = rows.seg_first[g] + lo;
            count[n_parts] = (int32_t)(end < rows.seg_n[g] ? end : rows.seg_n[g]) - lo;
            lo += count[n_parts];
        }
    struct scan_result again = run(&c, &rows, first, count, n_parts, false, true);
    check_same("cut and alone", &c, &again, &got);
    for (uint32_t g = 0; g < rows.n_segs; g++) alone = alone && rows.seg_n[g] == 1;
    if (!alone) return;
    again = run(&c, &rows, rows.seg_first, rows.seg_n, rows.n_segs, true, false);
    memcpy(again.tails, got.tails, c.n_tails * sizeof *again.tails); /* k_conv's work there */
    check_same("one token a segment as k_gla", &c, &got, &again);
}
static void the_chunkwise_form_equals_the_twin_and_keeps_its_laws(void **state) {
    (void)state;
    gpu_rounds_of(false, scan_round);
}

/* A segment so long that one session's kernel takes it (kernels/tuning/h200.h); its parts are shorter. */
static void a_long_segment_has_the_bits_of_its_parts(void **state) {
    (void)state;
    enum { LONGEST = 1500 };
    for (uint32_t i = 0; i < 6; i++) {
        const enum cuda_dtype dtype = i % 2 ? CUDA_F16 : CUDA_BF16;
        snprintf(gpu.what, sizeof gpu.what, "a long segment, %s", gpu_dtype_name(dtype));
        struct cuda_shape shape = mixer_shape(i, 400, dtype);
        struct gpu_rows rows = gpu_make_rows(LONGEST, 1, 9);
        /* after a short one of another slot, which moves its rows within tiles of eight */
        const int32_t before = (int32_t)gpu_pick(1, 20), n = LONGEST - before;
        const int32_t firsts[] = {0, before}, counts[] = {before, n};
        const int64_t pos = gpu_pick(0, 3) ? gpu_pick(0, 400) : 0;
        int32_t *slot = host_bytes(LONGEST * sizeof *slot);
        int64_t *at = host_bytes(LONGEST * sizeof *at);
        for (int32_t r = 0; r < LONGEST; r++) slot[r] = r < before, at[r] = r < before ? r : pos + r - before;
        rows.device.slot = gpu_copy(slot, LONGEST * sizeof *slot), rows.device.pos = gpu_copy(at, LONGEST * sizeof *at);
        GPU_WHAT(", %d tokens at %d, E %u, M %u, R %u", n, (int)pos, shape.E, shape.M, shape.R);
        if (!gpu.k->cuda_scan_prepare(&shape)) fail_msg("%s: not possible on this device", gpu.what);
        struct mixer_inputs x;
        struct scan_case c = scan_case(&shape, LONGEST, 2, &x);
        const struct scan_result got = run(&c, &rows, firsts, counts, 2, true, true);
        int32_t first[LONGEST] = {0}, count[LONGEST] = {before};
        uint32_t n_parts = 1;
        for (int32_t lo = 0; lo < n; n_parts++) {
            const int64_t end = ((pos + lo) / PIECE + gpu_pick(1, 9)) * PIECE - pos;
            first[n_parts] = before + lo, count[n_parts] = (int32_t)(end < n ? end : n) - lo;
            lo += count[n_parts];
        }
        const struct scan_result again = run(&c, &rows, first, count, n_parts, false, true);
        check_same("cut", &c, &again, &got);
        gpu_round_end();
    }
}

/* A step of single tokens, which a decode step's kernels do. */
static void single_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    if (dtype == CUDA_F32) return;
    struct cuda_shape shape = mixer_shape(i, 120, dtype);
    const struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", E %u, M %u, R %u", shape.E, shape.M, shape.R);
    if (!gpu.k->cuda_scan_prepare(&shape)) fail_msg("%s: not possible on this device", gpu.what);
    struct mixer_inputs x;
    struct scan_case c = scan_case(&shape, n_rows, rows.n_slots, &x);
    const struct scan_result got = run(&c, &rows, rows.seg_first, rows.seg_n, rows.n_segs, true, true);
    const struct scan_result want = run(&c, &rows, rows.seg_first, rows.seg_n, rows.n_segs, true, false);
    memcpy(want.tails, got.tails, c.n_tails * sizeof *want.tails); /* k_conv's work there */
    check_same("as k_gla", &c, &got, &want);
}
static void a_token_alone_has_the_bits_of_a_decode_step(void **state) {
    (void)state;
    gpu_rounds_of(false, single_round);
}

/* Of az, and of a packed. */
static void break_convolutions(struct cuda_conv c, const struct gpu_rows *rows, float *host_az) {
    const struct cuda_shape *shape = &c.shape;
    const uint32_t n = rows->n_rows, E = shape->E, Ep = shape->Ep;
    const bool packed = gpu.k->cuda_scan_packed(shape);
    broken_rows_of(n, rows->slot, -1);
    OF_ROWS(READ, c.az, n, 2 * Ep);
    OF_ROWS(READ, c.row_scale, n, 1);
    OF_SLOTS(READ | WRITTEN, shape->conv, rows->n_slots + 1, shape->conv_slot, shape->dtype);
    OF_ROWS(WRITTEN, c.s, n, Ep);
    OF_ACT(WRITTEN, c.s_act, n, E, shape->dtype);
    OF_ACT(WRITTEN, c.a_act, n, E, shape->dtype);
    if (c.z_act) OF_ACT(WRITTEN, c.z_act, n, E, shape->dtype);
    while (broken_again()) GPU_RUN(k_prompt_conv, &c);
    if (!packed) return;
    for (size_t j = 0; j < (size_t)n * 2 * Ep; j++) host_az[j] = gpu_round(host_az[j], shape->dtype);
    c.a_act = packed_half(host_az, n, shape, 0);
    broken_rows_of(n, rows->slot, -1);
    OF_ACT(READ, c.a_act, n, E, shape->dtype);
    OF_SLOTS(READ | WRITTEN, shape->conv, rows->n_slots + 1, shape->conv_slot, shape->dtype);
    OF_ACT(WRITTEN, c.s_act, n, E, shape->dtype);
    while (broken_again()) GPU_RUN(k_packed_conv, &c);
}
static void conv_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    if (dtype == CUDA_F32) return;
    struct cuda_shape shape = mixer_shape(i, 700, dtype);
    const uint32_t E = shape.E, Ep = shape.Ep, K = shape.K, layer = gpu_pick(0, LAYERS - 1);
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 2 ? 3 : 70, 9);
    GPU_WHAT(", %u segments, E %u, K %u", rows.n_segs, E, K);
    const size_t n = n_rows, n_pool = (rows.n_slots + 1) * shape.conv_slot;
    const bool packed = gpu.k->cuda_scan_packed(&shape);
    float *host_az = host_random(n * 2 * Ep, -2, 2, CUDA_F32);
    struct cuda_conv c = {.shape = shape,
                          .layer = layer,
                          .rows = rows.device,
                          .n_rows = n_rows,
                          .w = gpu_from(host_random((size_t)K * Ep, -1, 1, CUDA_F32), (size_t)K * Ep),
                          .bias = gpu_from(host_random(E, -1, 1, CUDA_F32), E),
                          .az = gpu_from(host_az, n * 2 * Ep),
                          .row_scale = gpu_pick(0, 1) ? gpu_from(host_random(n, 0.5, 2, CUDA_F32), n) : NULL,
                          .s = gpu_floats(n * Ep),
                          .s_act = gpu_act_out(n_rows, E, dtype),
                          .a_act = gpu_act_out(n_rows, E, dtype),
                          .z_act = packed ? gpu_act_out(n_rows, E, dtype) : NULL};
    const float *scale = c.row_scale;
    float *pool = host_random(n_pool, -2, 2, dtype), *plain[2], *s_packed[2], *a_packed[2];
    if (gpu.breaks) {
        c.shape.conv = gpu_from_typed(pool, n_pool, dtype);
        break_convolutions(c, &rows, host_az);
        return;
    }
    for (int parallel = 0; parallel < 2; parallel++) {
        c.s = gpu_floats(n * Ep), c.s_act = gpu_act_out(n_rows, E, dtype), c.a_act = gpu_act_out(n_rows, E, dtype);
        c.shape.conv = gpu_from_typed(pool, n_pool, dtype);
        if (parallel) {
            GPU_RUN(k_prompt_conv, &c);
            gpu_check_same("the tails of all slots", gpu_fetch_typed(c.shape.conv, n_pool, dtype), pool, n_pool);
        } else
            GPU_RUN(k_conv, &c, rows.n_segs);
        const float *s = gpu_fetch(c.s, n * Ep);
        plain[parallel] = host_floats(n * E);
        for (size_t r = 0; r < n && !packed; r++) /* where k_scan reads it */
            memcpy(plain[parallel] + r * E, s + r * Ep, E * sizeof *s);
        s_packed[parallel] = gpu_fetch_act(c.s_act, n_rows, E, dtype);
        a_packed[parallel] = gpu_fetch_act(c.a_act, n_rows, E, dtype);
    }
    gpu_check("convolution", plain[1], plain[0], n * E, 1e-5, 0);
    gpu_check("convolution, packed", s_packed[1], s_packed[0], n * E, 1e-5, 2 * gpu_ulp(dtype));
    gpu_check_same("its input, packed", a_packed[1], a_packed[0], n * E);
    if (!packed) return;
    const float *scales = scale ? gpu_fetch(scale, n) : NULL;
    for (size_t j = 0; j < n * 2 * Ep; j++) /* as the kernels have it: scaled and rounded */
        host_az[j] = gpu_round(scales ? host_az[j] * scales[j / (2 * Ep)] : host_az[j], dtype);
    float *z = host_floats(n * E);
    for (size_t r = 0; r < n; r++) memcpy(z + r * E, host_az + r * 2 * Ep + Ep, E * sizeof *z);
    gpu_check_same("z, packed", gpu_fetch_act(c.z_act, n_rows, E, dtype), z, n * E);

    /* from a packed: k_conv of the rounded a */
    c.s_act = gpu_act_out(n_rows, E, dtype), c.a_act = packed_half(host_az, n, &shape, 0);
    c.shape.conv = gpu_from_typed(pool, n_pool, dtype);
    GPU_RUN(k_packed_conv, &c);
    const float *got = gpu_fetch_act(c.s_act, n_rows, E, dtype);
    gpu_check_same("the tails of all slots", gpu_fetch_typed(c.shape.conv, n_pool, dtype), pool, n_pool);
    c.az = gpu_from(host_az, n * 2 * Ep), c.row_scale = NULL, c.a_act = gpu_act_out(n_rows, E, dtype);
    GPU_RUN(k_conv, &c, rows.n_segs);
    gpu_check("convolution of packed rows", got, gpu_fetch_act(c.s_act, n_rows, E, dtype), n * E, 1e-5,
              2 * gpu_ulp(dtype));
}
static void the_convolution_with_rows_in_parallel_equals_the_other(void **state) {
    (void)state;
    gpu_rounds_of(false, conv_round);
}
static void a_session_of_nan_changes_no_other_s_convolution(void **state) {
    (void)state;
    broken_rounds(false, conv_round);
}

GPU_MAIN(cmocka_unit_test(the_chunkwise_form_equals_the_twin_and_keeps_its_laws),
         cmocka_unit_test(a_long_segment_has_the_bits_of_its_parts),
         cmocka_unit_test(a_token_alone_has_the_bits_of_a_decode_step),
         cmocka_unit_test(the_convolution_with_rows_in_parallel_equals_the_other),
         cmocka_unit_test(a_segment_of_nan_changes_no_other_s_state_or_read_out),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_convolution))
