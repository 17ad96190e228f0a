/* test_one_launch.c - one_launch.cu: decode steps as one launch have the bits of the kernels of their stages,
 * which have twins of their own: over random shapes with rows that are padding, beside rows of NaN, at the published
 * sizes, and over as many steps as RODIMUS_TEST_FULL asks for. Devices without it have nothing to test. */
#include "gpu.h"

#include <time.h>

enum { MOST_LAYERS = 24, STEPS = 3, IN_TURN = 250 };

struct layer {
    struct cuda_matrix fc, in, c0, out, qkv, ao, f1, f2;
};
/* A model on the device, two pools of slots (the stages' and the launch's), and the stages' workspaces. */
struct trial {
    struct cuda_shape s, two;
    bool plus;
    uint32_t L, n_rows;
    struct layer layer[MOST_LAYERS];
    struct cuda_step_layer w[MOST_LAYERS];
    struct cuda_matrix head;
    float *norm_f, *x, *x_two, *rope, *squares, *row_scale, *az, *conv_s, *in, *c0, *sums, *qkv, *part, *part_ml,
        *logits, *logits_two;
    void *act_d, *act_e, *act_a, *act_q, *act_f, *words;
    size_t n_S, n_conv, n_keys, n_values;
    struct cuda_rows rows;
    int32_t slot[CUDA_ONE_LAUNCH_ROWS];
    int64_t pos[CUDA_ONE_LAUNCH_ROWS];
    const struct cuda_step_layer *layers;
};

/* ---- made ---- */

/* n random values up to `range`; many repeat themselves, at places that are no multiple of a row. */
static void fill_random(void *device, size_t n, double range, enum cuda_dtype dtype) {
    const size_t some = n < 1000003 ? n : 1000003, size = gpu_type_bytes(dtype);
    unsigned char *values = malloc(some * size + 4);
    assert_non_null(values);
    for (size_t i = 0; i < some; i++) {
        const float x = gpu_round(gpu_uniform(-range, range), dtype);
        const uint16_t bits = dtype == CUDA_F32 ? 0 : dtype == GPU_E4M3 ? half_f32_to_e4m3(x) : gpu_half_bits(x, dtype);
        memcpy(values + i * size, dtype == CUDA_F32 ? (const void *)&x : (const void *)&bits, size);
    }
    for (size_t at = 0; at < n; at += some)
        gpu_expect(gpu.k->write((unsigned char *)device + at * size, values, (n - at < some ? n - at : some) * size,
                                gpu.stream),
                   "writing to the GPU");
    free(values);
}
/* A packed matrix, its padding among the values: both sides read the same. */
static struct cuda_matrix random_matrix(uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    const size_t n = (size_t)cuda_pad16(rows) * cuda_pad16(cols);
    struct cuda_matrix m = {.data = gpu_bytes(n * 2), .rows = rows, .cols = cols, .dtype = dtype};
    fill_random(m.data, n, 1.7 / sqrt(cols), dtype);
    return m;
}
static float *random_floats(size_t n, double lo, double hi) {
    float *p = malloc(n * sizeof *p + 4);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = gpu_uniform(lo, hi);
    float *device = gpu_from(p, n);
    free(p);
    return device;
}
static void *zero_act(uint32_t cols, enum cuda_dtype dtype) {
    return gpu_zeros(gpu.k->cuda_activation_bytes(CUDA_ONE_LAUNCH_ROWS, cols ? cols : 16, dtype));
}

static void make_layer(struct trial *t, uint32_t i) {
    const struct cuda_shape *s = &t->s;
    const enum cuda_dtype dtype = s->dtype;
    struct layer *m = &t->layer[i];
    *m = (struct layer){.fc = random_matrix(2 * s->Ep, s->D, dtype),
                        .in = random_matrix(4 * s->M, s->E, dtype),
                        .c0 = random_matrix(s->R, s->E, dtype),
                        .out = random_matrix(s->D, s->E, dtype)};
    if (t->plus) {
        m->qkv = random_matrix((2 * s->H + 1) * s->P, s->D, dtype), m->ao = random_matrix(s->D, s->H * s->P, dtype);
        m->f1 = random_matrix(2 * s->F, s->D, dtype), m->f2 = random_matrix(s->D, s->F, dtype);
    }
    t->w[i] = (struct cuda_step_layer){.fc = m->fc.data,
                                       .in = m->in.data,
                                       .c0 = m->c0.data,
                                       .out = m->out.data,
                                       .qkv = m->qkv.data,
                                       .ao = m->ao.data,
                                       .f1 = m->f1.data,
                                       .f2 = m->f2.data,
                                       .mixer_norm = random_floats(s->D, 0.5, 1.5),
                                       .conv = random_floats((size_t)s->K * s->Ep, -1, 1),
                                       .conv_b = random_floats(s->Ep, -1, 1),
                                       .g_b = random_floats(s->M, -1, 1),
                                       .t_b = random_floats(s->M, -1, 1),
                                       .c1 = random_floats((size_t)s->R * s->Ep, -0.3, 0.3),
                                       .c1_b = random_floats(s->Ep, -1, 1),
                                       .residual = random_floats(s->Ep, -1, 1),
                                       .act_norm = random_floats(s->Ep, 0.5, 1.5),
                                       .attn_norm = random_floats(s->D, 0.5, 1.5),
                                       .q_norm = random_floats(s->P + 1, 0.5, 1.5),
                                       .k_norm = random_floats(s->P + 1, 0.5, 1.5),
                                       .ffn_norm = random_floats(s->D, 0.5, 1.5)};
}

/* Equal random contents in two pools. */
static void *twice(size_t n, enum cuda_dtype dtype, void **two) {
    if (!n) return *two = NULL;
    const size_t bytes = n * gpu_type_bytes(dtype);
    void *one = gpu_bytes(bytes), *host = malloc(bytes);
    assert_non_null(host);
    fill_random(one, n, 1, dtype);
    gpu_expect(gpu.k->read(host, one, bytes, gpu.stream), "reading from the GPU");
    *two = gpu_copy(host, bytes);
    free(host);
    return one;
}

static void make_slots(struct trial *t) {
    struct cuda_shape *s = &t->s;
    void *S, *conv, *keys, *values;
    s->S_layer = (size_t)s->Ep * s->M, s->S_slot = s->S_layer * t->L;
    s->conv_ring = s->K + CUDA_DRAFTS, s->conv_layer = (size_t)s->conv_ring * s->Ep,
    s->conv_slot = s->conv_layer * t->L;
    s->keys_layer = (size_t)s->ring_keys * s->P, s->keys_slot = s->keys_layer * t->L;
    s->values_layer = s->keys_layer * s->H, s->values_slot = s->values_layer * t->L;
    t->n_S = (s->n_slots + 1) * s->S_slot, t->n_conv = (s->n_slots + 1) * s->conv_slot;
    t->n_keys = (s->n_slots + 1) * s->keys_slot, t->n_values = (s->n_slots + 1) * s->values_slot;
    s->S = twice(t->n_S, CUDA_F32, &S), s->conv = twice(t->n_conv, s->dtype, &conv);
    s->keys = twice(t->n_keys, gpu_window_type(s), &keys), s->values = twice(t->n_values, gpu_window_type(s), &values);
    t->two = *s;
    t->two.S = S, t->two.conv = conv, t->two.keys = keys, t->two.values = values;
}

/* False: no step is one launch here. */
static bool make_trial(struct trial *t) {
    struct cuda_shape *s = &t->s;
    const size_t R = t->n_rows, width = (2 * (size_t)s->H + 1) * s->P, ranges = s->H ? (s->visible + 127) / 128 : 0;
    s->Ep = s->E, s->norm_eps = 1e-5f, s->k_eps = s->qk_norm_eps = 1e-6f;
    if (!gpu.k->cuda_one_launch_possible(s, t->L, t->n_rows, true)) {
        if (gpu.k->cuda_fused_possible(s)) fail_msg("%s: no step as one launch on a GPU that has them", gpu.what);
        return false;
    }
    make_slots(t);
    for (uint32_t i = 0; i < t->L; i++) make_layer(t, i);
    t->layers = gpu_copy(t->w, t->L * sizeof *t->w);
    t->head = random_matrix(s->V, s->D, s->dtype), t->norm_f = random_floats(s->D, 0.5, 1.5);
    t->x = gpu_floats(R * s->D), t->x_two = gpu_floats(R * s->D), t->rope = gpu_floats(R * s->rot_dim + 4);
    t->squares = gpu_floats(R * (s->D / 16)), t->row_scale = gpu_floats(R), t->az = gpu_floats(R * 2 * s->Ep);
    t->conv_s = gpu_floats(R * s->Ep), t->in = gpu_floats(4 * R * 4 * s->M), t->c0 = gpu_floats(4 * R * s->R);
    t->sums = gpu_zeros(R * (s->Ep / 32) * 4); /* of a row that is padding the state's kernel leaves none */
    t->qkv = gpu_floats(R * width + 4);
    t->part = gpu_floats(R * ranges * s->H * s->P + 4), t->part_ml = gpu_floats(R * ranges * s->H * 2 + 4);
    t->logits = gpu_floats(R * s->V), t->logits_two = gpu_floats(R * s->V);
    t->act_d = zero_act(s->D, s->dtype), t->act_e = zero_act(s->E, s->dtype), t->act_a = zero_act(s->E, s->dtype);
    t->act_q = zero_act(s->H * s->P, s->dtype), t->act_f = zero_act(s->F, s->dtype);
    t->words = gpu_zeros(gpu.k->cuda_one_launch_bytes(s));
    return true;
}

/* ---- run ---- */

static void launch_stages(struct trial *t) {
    struct cuda_shape *s = &t->s;
    void *st = gpu.stream;
    const uint32_t n = t->n_rows;
    const struct cuda_normed x = {t->act_d, t->squares, s->norm_eps, s->D}, last = {t->act_d, NULL, 0, 0};
    struct cuda_add_norm norm = {.n_rows = n,
                                 .n = s->D,
                                 .dtype = s->dtype,
                                 .base = t->x,
                                 .w = t->w[0].mixer_norm,
                                 .eps = s->norm_eps,
                                 .act = t->act_d,
                                 .row_scale = t->row_scale,
                                 .squares = t->squares,
                                 .n_squares = s->D / 16};
    gpu.k->k_add_norm(&norm, st);
    for (uint32_t i = 0; i < t->L; i++) {
        const struct layer *m = &t->layer[i];
        const struct cuda_step_layer *w = &t->w[i];
        const float *next = i + 1 < t->L ? w[1].mixer_norm : NULL;
        gpu.k->k_fused_conv(&(struct cuda_conv){.shape = *s,
                                                .layer = i,
                                                .rows = t->rows,
                                                .n_rows = n,
                                                .w = w->conv,
                                                .bias = w->conv_b,
                                                .az = t->az,
                                                .s = t->conv_s,
                                                .s_act = t->act_e,
                                                .a_act = t->act_a},
                            &m->fc, &x, st);
        gpu.k->k_fused_linear_pair(&(struct cuda_product){&m->in, t->act_e, t->in, 4 * s->M, n * 4 * s->M},
                                   &(struct cuda_product){&m->c0, t->act_a, t->c0, s->R, n * s->R}, n, st);
        gpu.k->k_gla_gates(
            &(struct cuda_state){.shape = *s,
                                 .layer = i,
                                 .rows = t->rows,
                                 .c1 = w->c1,
                                 .c1_b = w->c1_b,
                                 .az = t->az,
                                 .s = t->conv_s,
                                 .residual = w->residual,
                                 .act_norm = w->act_norm,
                                 .sums = t->sums,
                                 .act = t->act_e},
            &(struct cuda_partials){
                .in = {t->in, 4, n * 4 * s->M}, .c0 = {t->c0, 4, n * s->R}, .g_b = w->g_b, .t_b = w->t_b},
            n, st);
        struct cuda_residual residual = {.w = &m->out,
                                         .x = t->act_e,
                                         .sums = {t->sums, s->Ep / 32, s->E, s->norm_eps},
                                         .base = t->x,
                                         .y = t->x,
                                         .next_norm = t->plus ? w->attn_norm : next,
                                         .act = t->act_d,
                                         .squares = t->squares};
        gpu.k->k_fused_residual(&residual, n, st);
        if (!t->plus) continue;
        gpu.k->k_fused_linear(&m->qkv, &x, n, t->qkv, (2 * (size_t)s->H + 1) * s->P, st);
        gpu.k->k_decode_window(
            &(struct cuda_window){
                .shape = *s,
                .layer = i,
                .rows = t->rows,
                .n_list = n,
                .heads = {.qkv = {t->qkv, 1, 0}, .rope = t->rope, .q_norm = w->q_norm, .k_norm = w->k_norm},
                .part = t->part,
                .part_ml = t->part_ml,
                .act = t->act_q},
            true, st);
        residual.sums.squares = NULL;
        residual.w = &m->ao, residual.x = t->act_q, residual.y = NULL, residual.next_norm = w->ffn_norm;
        gpu.k->k_fused_residual(&residual, n, st);
        gpu.k->k_fused_ffn(&m->f1, &x, n, t->act_f, st);
        residual.w = &m->f2, residual.x = t->act_f, residual.y = t->x, residual.next_norm = next;
        gpu.k->k_fused_residual(&residual, n, st);
    }
    norm.w = t->norm_f, norm.row_scale = norm.squares = NULL;
    gpu.k->k_add_norm(&norm, st);
    gpu.k->k_fused_linear(&t->head, &last, n, t->logits, s->V, st);
}
static void launch_whole(struct trial *t) {
    const struct cuda_one_launch_step step = {.shape = t->two,
                                              .rows = t->rows,
                                              .n_layers = t->L,
                                              .layers = t->layers,
                                              .norm_f = t->norm_f,
                                              .x = t->x_two,
                                              .rope = t->rope,
                                              .head = t->head.data,
                                              .logits = t->logits_two,
                                              .words = t->words};
    gpu.k->k_one_launch(&step, t->n_rows, gpu.stream);
}
static void run_stages(struct trial *t) {
    launch_stages(t);
    gpu_expect(gpu.k->wait(gpu.stream), "running the stages");
}
static void run_whole(struct trial *t) {
    gpu_fill_blocks();
    launch_whole(t);
    gpu_expect(gpu.k->wait(gpu.stream), "running k_one_launch");
}

/* The rows' next tokens: new embeddings, one position on. */
static void next_step(struct trial *t, uint32_t n_padding, bool first) {
    const struct cuda_shape *s = &t->s;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const bool padding = r + n_padding >= t->n_rows;
        t->slot[r] = padding ? (int32_t)s->n_slots : (int32_t)((r * 5 + 3) % s->n_slots);
        if (first)
            t->pos[r] = padding ? 0 : gpu_pick(0, 2) ? gpu_pick(0, 2 * s->visible + 200) : (int64_t)gpu_pick(0, 5);
        else if (!padding)
            t->pos[r]++;
    }
    t->rows = (struct cuda_rows){.slot = gpu_copy(t->slot, t->n_rows * sizeof *t->slot),
                                 .pos = gpu_copy(t->pos, t->n_rows * sizeof *t->pos)};
    const float *x = host_random((size_t)t->n_rows * s->D, -1, 1, CUDA_F32),
                *rope = host_random((size_t)t->n_rows * s->rot_dim + 1, -1, 1, CUDA_F32);
    gpu_expect(gpu.k->write(t->x, x, (size_t)t->n_rows * s->D * 4, gpu.stream), "writing to the GPU");
    gpu_expect(gpu.k->write(t->x_two, x, (size_t)t->n_rows * s->D * 4, gpu.stream), "writing to the GPU");
    gpu_expect(gpu.k->write(t->rope, rope, (size_t)t->n_rows * s->rot_dim * 4, gpu.stream), "writing to the GPU");
}

static void compare_pool(const char *what, const void *got, const void *want, size_t n, enum cuda_dtype dtype) {
    if (!n) return;
    const size_t bytes = n * gpu_type_bytes(dtype);
    unsigned char *x = malloc(bytes), *y = malloc(bytes);
    assert_true(x && y);
    gpu_expect(gpu.k->read(x, got, bytes, gpu.stream), "reading from the GPU");
    gpu_expect(gpu.k->read(y, want, bytes, gpu.stream), "reading from the GPU");
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            fail_msg("%s (%s, seed %llu): byte %zu of %zu is %02x, want %02x", what, gpu.what,
                     (unsigned long long)gpu.seed, i, bytes, x[i], y[i]);
    free(x), free(y);
}
static void compare_pools(const struct trial *t) { /* the padding's slot is nobody's */
    const struct cuda_shape *s = &t->s;
    compare_pool("S", t->two.S, s->S, t->n_S - s->S_slot, CUDA_F32);
    compare_pool("convolution ring", t->two.conv, s->conv, t->n_conv - s->conv_slot, s->dtype);
    compare_pool("keys", t->two.keys, s->keys, s->H ? t->n_keys - s->keys_slot : 0, gpu_window_type(s));
    compare_pool("values", t->two.values, s->values, s->H ? t->n_values - s->values_slot : 0, gpu_window_type(s));
}
static void compare(const struct trial *t, uint32_t n_padding) {
    const struct cuda_shape *s = &t->s;
    const size_t n = (size_t)(t->n_rows - n_padding) * s->V;
    gpu_check_same("logits", gpu_fetch(t->logits_two, n), gpu_fetch(t->logits, n), n);
    compare_pools(t);
}

/* ---- tests ---- */

static void random_shape(struct trial *t, enum cuda_dtype dtype) {
    struct cuda_shape *s = &t->s;
    t->plus = gpu_pick(0, 2) > 0, t->L = gpu_pick(1, 3);
    *s = (struct cuda_shape){.D = 64 * gpu_pick(1, 12),
                             .E = 128 * gpu_pick(1, 12),
                             .M = gpu_pick(0, 1) ? 64 : gpu_pick(1, 64),
                             .R = gpu_pick(1, 40),
                             .K = gpu_pick(2, 4),
                             .V = gpu_pick(20, 5000),
                             .n_slots = 9,
                             .dtype = dtype};
    if (t->plus) {
        s->P = gpu_pick(0, 1) ? 64 : 128, s->H = 4 * gpu_pick(1, 4), s->Hk = 1, s->Hv = s->H;
        s->F = 16 * gpu_pick(1, 60), s->visible = gpu_pick(0, 1) ? gpu_pick(1, 300) : gpu_pick(1, 2300);
        s->ring_keys = s->visible + 63, s->rot_dim = 2 * gpu_pick(1, s->P / 2);
        s->rot_interleaved = gpu_pick(0, 1), s->qk_norm = gpu_pick(0, 1);
        if (t->n_rows == 1 && gpu_pick(0, 1)) s->window = CUDA_FP8; /* of more rows none */
    }
    snprintf(gpu.what, sizeof gpu.what,
             "%u rows, %s, D %u, E %u, M %u, R %u, K %u, H %u, P %u, F %u, V %u, window %u%s", t->n_rows,
             gpu_dtype_name(dtype), s->D, s->E, s->M, s->R, s->K, s->H, s->P, s->F, s->V, s->visible,
             s->window == CUDA_FP8 ? " in fp8" : "");
}
static void compare_steps(struct trial *t) {
    if (!make_trial(t)) return;
    const uint32_t n_padding = t->n_rows > 1 && gpu_pick(0, 1) ? gpu_pick(1, t->n_rows - 1) : 0;
    for (int step = 0; step < STEPS; step++) {
        next_step(t, n_padding, step == 0);
        run_stages(t);
        run_whole(t);
        compare(t, n_padding);
    }
}
static void one_launch_has_the_bits_of_its_stages(void **state) {
    (void)state;
    const uint32_t n = gpu.n_shapes ? gpu.n_shapes : 64;
    for (uint32_t i = 0; i < n; i++) {
        struct trial *t = host_bytes(sizeof *t);
        t->n_rows = 1u << i % 4;
        random_shape(t, i / 4 % 2 ? CUDA_F16 : CUDA_BF16);
        compare_steps(t);
        gpu_round_end();
    }
}
/* Of one row the first panel of a block is asked for before its stage, those behind it are not. */
static void blocks_with_several_panels_of_a_state_have_the_bits_of_the_stages(void **state) {
    (void)state;
    const uint32_t n = gpu.n_shapes ? 2 : 8;
    for (uint32_t i = 0; i < n; i++) {
        struct trial *t = host_bytes(sizeof *t);
        t->n_rows = 1;
        random_shape(t, i % 2 ? CUDA_F16 : CUDA_BF16);
        t->s.E = 128 * gpu_pick(34, 54); /* panels of 32, and 132 blocks */
        snprintf(gpu.what, sizeof gpu.what, "1 row, D %u, E %u, M %u, R %u", t->s.D, t->s.E, t->s.M, t->s.R);
        compare_steps(t);
        gpu_round_end();
    }
}

/* Of one row the window comes through the weights' rings, but its newest key, which may be a range alone; a block may
 * have several ranges. */
static void a_window_of_one_row_has_the_bits_of_the_stages(void **state) {
    (void)state;
    const uint32_t n = gpu.n_shapes ? 3 : 12;
    for (uint32_t i = 0; i < n; i++) {
        struct trial *t = host_bytes(sizeof *t);
        struct cuda_shape *s = &t->s;
        t->n_rows = 1;
        do random_shape(t, i / 3 % 2 ? CUDA_F16 : CUDA_BF16);
        while (!t->plus);
        if (i % 3 == 2) s->P = gpu_pick(0, 1) ? 64 : 128, s->H = s->Hv = 2048 / s->P; /* eight units a range */
        s->rot_dim = 2 * gpu_pick(1, s->P / 2);
        s->visible = i % 3 == 2 ? gpu_pick(2113, 2300) : gpu_pick(200, 600), s->ring_keys = s->visible + 63;
        const uint32_t n_ranges = s->visible / 128;
        snprintf(gpu.what, sizeof gpu.what, "1 row, D %u, E %u, H %u, P %u, window %u%s", s->D, s->E, s->H, s->P,
                 s->visible, s->window == CUDA_FP8 ? " in fp8" : "");
        if (make_trial(t)) {
            next_step(t, 0, true);
            t->pos[0] = i % 3 == 0 ? 128 * gpu_pick(1, n_ranges) - 2 /* the second step's newest key is alone */
                                   : i % 3 * s->ring_keys + gpu_pick(0, s->visible - STEPS - 2); /* beyond its end */
            for (int step = 0; step < STEPS; step++) {
                next_step(t, 0, false);
                run_stages(t);
                run_whole(t);
                compare(t, 0);
            }
        }
        gpu_round_end();
    }
}

/* A row's slot in both pools is all NaN after it; what other slots have must be the same. */
static void break_row(struct trial *t, uint32_t r) {
    const struct cuda_shape *s = &t->s;
    const struct {
        const void *one, *two;
        size_t slot;
    } pools[] = {{s->S, t->two.S, s->S_slot * 4},
                 {s->conv, t->two.conv, s->conv_slot * 2},
                 {s->keys, t->two.keys, s->H ? s->keys_slot * gpu_type_bytes(gpu_window_type(s)) : 0},
                 {s->values, t->two.values, s->H ? s->values_slot * gpu_type_bytes(gpu_window_type(s)) : 0}};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        for (int two = 0; two < 2; two++) {
            unsigned char *pool = (unsigned char *)(uintptr_t)(two ? pools[i].two : pools[i].one);
            gpu_expect(gpu.k->fill(pool + (size_t)t->slot[r] * pools[i].slot, 0xff, pools[i].slot, gpu.stream),
                       "poisoning memory");
        }
    gpu_expect(gpu.k->fill(t->x_two + (size_t)r * s->D, 0xff, s->D * 4, gpu.stream), "poisoning memory");
}
static void a_row_of_nan_changes_no_other_row_of_one_launch(void **state) {
    (void)state;
    const uint32_t n = gpu.n_shapes ? (gpu.n_shapes + 2) / 3 : 18;
    for (uint32_t i = 0; i < n; i++) {
        struct trial *t = host_bytes(sizeof *t);
        t->n_rows = 2u << i % 3;
        random_shape(t, i % 2 ? CUDA_F16 : CUDA_BF16);
        if (make_trial(t)) {
            const struct cuda_shape *s = &t->s;
            next_step(t, 0, true);
            run_stages(t);
            const uint32_t broken = gpu_pick(0, t->n_rows - 1);
            break_row(t, broken);
            run_whole(t);
            break_row(t, broken);
            for (uint32_t r = 0; r < t->n_rows; r++)
                if (r != broken)
                    gpu_check_same("logits beside a row of NaN", gpu_fetch(t->logits_two + (size_t)r * s->V, s->V),
                                   gpu_fetch(t->logits + (size_t)r * s->V, s->V), s->V);
            compare_pools(t);
        }
        gpu_round_end();
    }
}

static double us_of(void (*launch)(struct trial *), struct trial *t, uint32_t n) {
    struct timespec begin, end;
    for (uint32_t i = 0; i <= n; i++) { /* the first one warms up */
        if (i < 2) {
            gpu_expect(gpu.k->wait(gpu.stream), "running a step");
            clock_gettime(CLOCK_MONOTONIC, &begin);
        }
        launch(t);
    }
    gpu_expect(gpu.k->wait(gpu.stream), "running steps");
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec)) / n;
}
/* Of one row 24 layers, half of Rodimus-1.4B; of more rows fewer. */
static void published(bool plus, uint32_t n_rows) {
    struct trial *t = host_bytes(sizeof *t);
    t->n_rows = n_rows, t->plus = plus, t->L = MOST_LAYERS / n_rows;
    t->s = (struct cuda_shape){
        .D = 2048, .E = 4096, .M = 64, .R = 32, .K = 4, .V = 126464, .n_slots = 9, .dtype = CUDA_BF16};
    if (plus) {
        t->s.H = t->s.Hv = 16, t->s.Hk = 1, t->s.P = t->s.rot_dim = 128, t->s.F = 2736;
        t->s.visible = 2049, t->s.ring_keys = 2112;
    }
    snprintf(gpu.what, sizeof gpu.what, "Rodimus%s, %u layers, %u rows", plus ? "+" : "", t->L, n_rows);
    if (!make_trial(t)) return;
    next_step(t, 0, true);
    for (uint32_t r = 0; r < n_rows; r++) t->pos[r] = 4096 + r;
    for (int step = 0; step < STEPS; step++) {
        next_step(t, 0, false);
        run_stages(t);
        run_whole(t);
        compare(t, 0);
    }
    printf("note: %s: stages, not as a graph, %.0f us; whole %.0f us\n", gpu.what, us_of(launch_stages, t, 50),
           us_of(launch_whole, t, 200));
}
static void the_published_sizes_have_the_same_bits(void **state) {
    (void)state;
    if (gpu.n_shapes) skip(); /* a sanitizer takes minutes for a step of a published size; the small shapes ran */
    for (uint32_t n_rows = 1; n_rows <= 8; n_rows *= 2)
        for (int plus = 0; plus < 2; plus++) {
            published(plus, n_rows);
            gpu_round_end();
        }
}

/* Small layers, so that a step is little but exchanges. */
static bool make_small_layers(struct trial *t, bool plus) {
    t->n_rows = 1, t->plus = plus, t->L = MOST_LAYERS;
    t->s =
        (struct cuda_shape){.D = 256, .E = 1152, .M = 64, .R = 16, .K = 4, .V = 500, .n_slots = 2, .dtype = CUDA_BF16};
    if (plus) {
        t->s.H = t->s.Hv = 8, t->s.Hk = 1, t->s.P = t->s.rot_dim = 64, t->s.F = 512;
        t->s.visible = 1100, t->s.ring_keys = 1163;
    }
    snprintf(gpu.what, sizeof gpu.what, "%u steps in turn, %u layers of Rodimus%s", IN_TURN, t->L, plus ? "+" : "");
    if (!make_trial(t)) return false;
    next_step(t, 0, true);
    t->pos[0] = 3 * t->s.visible; /* the window is full */
    next_step(t, 0, false);
    return true;
}
static double seconds_since(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + 1e-9 * (double)(now.tv_nsec - begin->tv_nsec);
}
/* IN_TURN steps at one position from S as it was first; S goes on from one to the next. */
static void steps_one_by_one(struct trial *t, const float *first_S) {
    gpu_expect(gpu.k->write(t->two.S, first_S, t->n_S * 4, gpu.stream), "writing to the GPU");
    for (uint32_t i = 0; i < IN_TURN; i++) launch_whole(t);
    gpu_expect(gpu.k->wait(gpu.stream), "running k_one_launch");
}
static void record_soak(const struct trial *t, uint64_t steps, uint64_t exchanges, double seconds, FILE *f) {
    printf("note: Rodimus%s: %llu steps, %llu exchanges in %.1f s, the same each time\n", t->plus ? "+" : "",
           (unsigned long long)steps, (unsigned long long)exchanges, seconds);
    if (!f) return;
    fprintf(f,
            "%s{\"what\": \"whole steps of small layers of Rodimus%s as one launch, %u in turn from the same state\", "
            "\"seed\": %llu, \"steps\": %llu, \"exchanges\": %llu, \"seconds\": %.1f, \"different\": 0}\n",
            ftell(f) > 1 ? ", " : "", t->plus ? "+" : "", IN_TURN, (unsigned long long)gpu.seed,
            (unsigned long long)steps, (unsigned long long)exchanges, seconds);
}
/* At least n steps and so many seconds. The first steps are compared with the stages', all that follow with those. An
 * exchange: what a stage makes is there for all blocks, four or ten times a layer, and the embeddings. */
static void repeat_steps(struct trial *t, uint64_t n, double seconds, FILE *record) {
    float *first_S = host_floats(t->n_S), *first = NULL;
    gpu_expect(gpu.k->read(first_S, t->two.S, t->n_S * 4, gpu.stream), "reading from the GPU");
    const float *x = gpu_fetch(t->x_two, t->s.D);
    for (uint32_t i = 0; i < IN_TURN; i++) {
        gpu_expect(gpu.k->write(t->x, x, t->s.D * 4, gpu.stream), "writing to the GPU"); /* the stages add to it */
        run_stages(t);
    }
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    uint64_t steps = 0;
    for (; steps < n || seconds_since(&begin) < seconds; steps += IN_TURN) {
        steps_one_by_one(t, first_S);
        float *logits = malloc(t->s.V * sizeof *logits);
        assert_non_null(logits);
        gpu_expect(gpu.k->read(logits, t->logits_two, t->s.V * 4, gpu.stream), "reading from the GPU");
        if (!steps) compare(t, 0);
        if (!steps) first = logits;
        for (uint32_t k = 0; k < t->s.V; k++)
            if (!isfinite(logits[k])) fail_msg("%s: logit %u is %g", gpu.what, k, (double)logits[k]);
        gpu_check_same("logits, again", logits, first, t->s.V);
        if (steps) free(logits);
    }
    compare(t, 0); /* S and all after the last ones, too */
    record_soak(t, steps, steps * (1 + (t->plus ? 10ull : 4ull) * t->L), seconds_since(&begin), record);
    free(first);
}
/* RODIMUS_TEST_FULL=1: 10^8 exchanges of each model; RODIMUS_TEST_SOAK_S: as many as come in so many seconds. */
static void many_exchanges_end_and_give_the_same_again(void **state) {
    (void)state;
    const bool full = getenv("RODIMUS_TEST_FULL") != NULL;
    const uint64_t seconds = gpu_setting("RODIMUS_TEST_SOAK_S", 0), n = gpu_setting("RODIMUS_TEST_STEPS", 0);
    if (gpu.n_shapes) skip(); /* the same for thousands of steps */
    const char *path = getenv("RODIMUS_TEST_SOAK_JSON");
    FILE *record = path ? fopen(path, "w") : NULL;
    if (path && !record) fail_msg("%s cannot be written.", path);
    if (record) fputc('[', record);
    for (int plus = 0; plus < 2; plus++) {
        struct trial *t = host_bytes(sizeof *t);
        if (make_small_layers(t, plus))
            repeat_steps(t,
                         n                  ? n
                         : full && !seconds ? (plus ? 415000 : 1031000)
                                            : 2 * IN_TURN,
                         (double)seconds / 2, record);
        gpu_round_end();
    }
    if (record) fputs("]\n", record), assert_int_equal(fclose(record), 0);
}

GPU_MAIN(cmocka_unit_test(one_launch_has_the_bits_of_its_stages),
         cmocka_unit_test(blocks_with_several_panels_of_a_state_have_the_bits_of_the_stages),
         cmocka_unit_test(a_window_of_one_row_has_the_bits_of_the_stages),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_one_launch),
         cmocka_unit_test(the_published_sizes_have_the_same_bits),
         cmocka_unit_test(many_exchanges_end_and_give_the_same_again))
