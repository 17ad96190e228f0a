/* test_window.c - swa.cu, swa_decode.cu, swa_decode_near.cu, swa_decode_many.cu: rotary and the ring, attention over
 * the window (E9). Windows partly filled, exactly full and wrapped; ring places that hold no visible key are NaN. */
#include "window.h"

/* ---- rotary ---- */

static int32_t *random_list(uint32_t n_rows, uint32_t n_list) { /* rows in any order, each at most once */
    int32_t *list = host_bytes(n_rows * sizeof *list);
    for (uint32_t i = 0; i < n_rows; i++) list[i] = (int32_t)i;
    for (uint32_t i = 0; i < n_list; i++) {
        uint32_t j = gpu_pick(i, n_rows - 1);
        int32_t kept = list[i];
        list[i] = list[j], list[j] = kept;
    }
    return list;
}

static void rope_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 2 ? 1 : CHUNK, 9);
    struct cuda_shape s = window_shape(i, gpu_pick(1, 9), rows.n_slots, dtype);
    const uint32_t P = s.P, H = s.H, n_heads = s.H + s.Hk + s.Hv, width = n_heads * P, half = s.rot_dim / 2,
                   layer = gpu_pick(0, LAYERS - 1), splits = gpu_pick(1, 8),
                   n_list = gpu_pick(0, 1) ? n_rows : gpu_pick(1, n_rows);
    if ((rows.n_slots + 1) * s.values_slot > 30000000) return; /* many sessions of the largest heads */
    const size_t stride = (size_t)n_rows * width + 16, n_keys = (rows.n_slots + 1) * s.keys_slot,
                 n_values = (rows.n_slots + 1) * s.values_slot;
    GPU_WHAT(", %u listed, H %u %u %u, P %u, rotated %u%s, %u splits", n_list, H, s.Hk, s.Hv, P, s.rot_dim,
             s.qk_norm ? ", q/k norm" : "", splits);
    float *qkv = host_random(splits * stride, -1, 1, CUDA_F32), *rope = host_floats((size_t)n_rows * half * 2 + 1),
          *q_norm = host_random(P, 0.5, 1.5, CUDA_F32), *k_norm = host_random(P, 0.5, 1.5, CUDA_F32),
          *keys = host_random(n_keys, -1, 1, dtype), *values = host_random(n_values, -1, 1, dtype);
    uint8_t *wrote_key = host_bytes(n_keys), *wrote_value = host_bytes(n_values);
    for (size_t j = 0; j < (size_t)n_rows * half; j++) {
        const double angle = (double)gpu_uniform(-3, 3);
        rope[2 * j] = (float)cos(angle), rope[2 * j + 1] = (float)sin(angle);
    }
    const int32_t *list = random_list(n_rows, n_list);
    s.keys = gpu_from_typed(keys, n_keys, dtype), s.values = gpu_from_typed(values, n_values, dtype);
    float *q = gpu_floats((size_t)n_rows * H * P), *ref_q = host_floats((size_t)n_rows * H * P);
    const int32_t *list_at = gpu_copy(list, n_list * sizeof *list);
    const float *qkv_at = gpu_from(qkv, splits * stride), *rope_at = gpu_from(rope, (size_t)n_rows * half * 2),
                *q_norm_at = gpu_from(q_norm, P), *k_norm_at = gpu_from(k_norm, P);
    broken_rows_of(n_rows, rows.slot, -1);
    OF_PARTS(READ, qkv_at, splits, stride, n_rows, width);
    OF_ROWS(READ, rope_at, n_rows, half * 2);
    OF_ROWS(WRITTEN, q, n_rows, H * P);
    name_rings(READ | WRITTEN, &s);
    while (broken_again())
        GPU_RUN(
            k_rope,
            &(struct cuda_window){
                .shape = s,
                .layer = layer,
                .rows = rows.device,
                .list = list_at,
                .n_list = n_list,
                .heads = {.qkv = {qkv_at, splits, stride}, .rope = rope_at, .q_norm = q_norm_at, .k_norm = k_norm_at},
                .q = q});
    if (gpu.breaks) return;
    for (uint32_t j = 0; j < n_list; j++) {
        const uint32_t r = (uint32_t)list[j], slot = (uint32_t)rows.slot[r];
        const size_t key = key_at(&s, slot, layer, rows.pos[r]), value = value_at(&s, slot, layer, rows.pos[r]);
        for (uint32_t h = 0; h < n_heads; h++) {
            double v[256] = {0};
            for (uint32_t p = 0; p < P; p++)
                for (uint32_t k = 0; k < splits; k++) v[p] += (double)qkv[k * stride + (size_t)r * width + h * P + p];
            float *to = h < H          ? ref_q + ((size_t)r * H + h) * P
                        : h < H + s.Hk ? keys + key + (size_t)(h - H) * P
                                       : values + value + (size_t)(h - H - s.Hk) * P;
            if (h < H + s.Hk)
                rotate_head(&s, v, h < H ? q_norm : k_norm, rope + (size_t)r * half * 2, to);
            else
                for (uint32_t p = 0; p < P; p++) to[p] = (float)v[p];
        }
        memset(wrote_key + key, 1, (size_t)s.Hk * P);
        memset(wrote_value + value, 1, (size_t)s.Hv * P);
    }
    float *got_q = gpu_fetch(q, (size_t)n_rows * H * P);
    uint8_t *listed = host_bytes(n_rows);
    for (uint32_t j = 0; j < n_list; j++) listed[list[j]] = 1;
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = (size_t)r * H * P;
        if (listed[r])
            gpu_check("query", got_q + at, ref_q + at, (size_t)H * P, 2e-6, 0);
        else
            gpu_check_poison("the query of a row that is not listed", got_q + at, (size_t)H * P);
    }
    check_ring("key", gpu_fetch_typed(s.keys, n_keys, dtype), keys, wrote_key, n_keys, gpu_ulp(dtype));
    check_ring("value", gpu_fetch_typed(s.values, n_values, dtype), values, wrote_value, n_values, gpu_ulp(dtype));
}
static void rotary_equals_its_twin_and_fills_the_ring(void **state) {
    (void)state;
    gpu_rounds(rope_round);
}
static void a_session_of_nan_changes_no_other_s_queries_or_ring(void **state) {
    (void)state;
    broken_rounds(true, rope_round);
}

/* ---- attention ---- */

enum { SESSIONS = 5 };

/* Each session's ring holds the last keys up to position newest; the other places are NaN. */
struct rings {
    float *keys, *values;
    int64_t newest[SESSIONS];
};

static struct rings random_rings(const struct cuda_shape *s, uint32_t layer) {
    const size_t n_keys = (SESSIONS + 1) * s->keys_slot, n_values = (SESSIONS + 1) * s->values_slot;
    struct rings x = {.keys = host_floats(n_keys), .values = host_floats(n_values)};
    for (size_t i = 0; i < n_keys; i++) x.keys[i] = NAN;
    for (size_t i = 0; i < n_values; i++) x.values[i] = NAN;
    const int64_t newest[SESSIONS] = {(int64_t)gpu_pick(0, s->visible - 1), s->visible - 1, s->visible,
                                      (int64_t)s->ring_keys * gpu_pick(1, 5) + gpu_pick(0, s->ring_keys),
                                      ((int64_t)1 << 33) + gpu_pick(0, 9999)};
    for (uint32_t slot = 0; slot < SESSIONS; slot++) {
        x.newest[slot] = newest[slot];
        const double scale = gpu_pick(0, 3) ? 1.7 : 8; /* flat and sharp */
        for (int64_t pos = newest[slot]; pos >= 0 && pos > newest[slot] - s->ring_keys; pos--) {
            float *key = x.keys + key_at(s, slot, layer, pos), *value = x.values + value_at(s, slot, layer, pos);
            for (uint32_t j = 0; j < s->Hk * s->P; j++)
                key[j] = gpu_round(gpu_uniform(-scale, scale), gpu_window_type(s));
            for (uint32_t j = 0; j < s->Hv * s->P; j++) value[j] = gpu_round(gpu_uniform(-2, 2), gpu_window_type(s));
        }
    }
    return x;
}

static void window_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const uint32_t visible = i % 9 == 4 ? 0 : gpu_pick(0, 2) ? gpu_pick(1, 300) : gpu_pick(1, 8) * 32 + gpu_pick(0, 1);
    struct cuda_shape s = window_shape(i, visible, SESSIONS, dtype);
    const uint32_t P = s.P, H = s.H, layer = gpu_pick(0, LAYERS - 1),
                   n_list = gpu_pick(0, 1) || !gpu.poison ? n_rows : gpu_pick(1, n_rows);
    GPU_WHAT(", %u listed, H %u %u %u, P %u, %u keys seen", n_list, H, s.Hk, s.Hv, P, s.visible);
    struct rings rings = random_rings(&s, layer);
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    for (uint32_t r = 0; r < n_rows; r++) { /* any session, at any of the positions whose window the ring holds */
        const uint32_t slot = gpu_pick(0, SESSIONS - 1);
        const int64_t newest = rings.newest[slot], back = gpu_pick(0, 1) ? 0 : gpu_pick(0, CHUNK - 1);
        rows.slot[r] = (int32_t)slot;
        rows.pos[r] = back < newest ? newest - back : newest;
    }
    rows.device.slot = gpu_copy(rows.slot, n_rows * sizeof *rows.slot);
    rows.device.pos = gpu_copy(rows.pos, n_rows * sizeof *rows.pos);
    const int32_t *list = random_list(n_rows, n_list);
    const int32_t *at_list = gpu_copy(list, n_list * sizeof *list);
    float *q = host_random((size_t)n_rows * H * P, -1.7, 1.7, CUDA_F32);
    s.keys = gpu_from_typed(rings.keys, (SESSIONS + 1) * s.keys_slot, dtype);
    s.values = gpu_from_typed(rings.values, (SESSIONS + 1) * s.values_slot, dtype);
    const size_t blocks = gpu.k->cuda_window_blocks(&s);
    float *part = gpu_floats(n_list * blocks * H * P), *part_ml = gpu_floats(n_list * blocks * H * 2);
    void *act = gpu_act_out(n_rows, H * P, dtype);
    if (!gpu.k->cuda_window_prepare(&s)) fail_msg("%s: the window's kernel does not fit this GPU", gpu.what);
    float *q_at = gpu_from(q, (size_t)n_rows * H * P);
    const struct cuda_window a = {.shape = s,
                                  .layer = layer,
                                  .rows = rows.device,
                                  .list = at_list,
                                  .n_list = n_list,
                                  .q = q_at,
                                  .part = part,
                                  .part_ml = part_ml,
                                  .act = act};
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, q_at, n_rows, H * P);
    name_rings(READ, &s);
    OF_LIST(WRITTEN, part_ml, list, n_list, blocks * H * 2);
    OF_ACT(WRITTEN, act, n_rows, H * P, dtype);
    while (broken_again()) {
        GPU_RUN(k_window, &a);
        GPU_RUN(k_window_combine, &a);
    }
    if (gpu.breaks) return;
    float *got = gpu_fetch_act(act, n_rows, H * P, dtype), *ref = host_floats((size_t)H * P),
          *k = host_floats((size_t)s.visible * s.Hk * P), *v = host_floats((size_t)s.visible * s.Hv * P);
    uint8_t *listed = host_bytes(n_rows);
    /* queries and weights may be rounded as keys and values are */
    const double tol = dtype == CUDA_F32 ? 5e-6 : 2 * gpu_ulp(dtype);
    const uint32_t step = (uint32_t)((double)n_list * H * s.visible * P / 6e7) + 1;
    for (uint32_t j = 0; j < n_list; j++) {
        const uint32_t r = (uint32_t)list[j], slot = (uint32_t)rows.slot[r];
        listed[r] = 1;
        if (j % step) continue;
        const int64_t pos = rows.pos[r], oldest = pos + 1 > s.visible ? pos + 1 - s.visible : 0;
        for (int64_t p = oldest; p <= pos; p++) {
            memcpy(k + (size_t)(p - oldest) * s.Hk * P, rings.keys + key_at(&s, slot, layer, p), s.Hk * P * sizeof *k);
            memcpy(v + (size_t)(p - oldest) * s.Hv * P, rings.values + value_at(&s, slot, layer, p),
                   s.Hv * P * sizeof *v);
        }
        ref_window(&(struct cpu_heads){H, s.Hk, s.Hv, P}, (uint32_t)(pos + 1 - oldest), q + (size_t)r * H * P, k, v,
                   ref);
        gpu_check("attention", got + (size_t)r * H * P, ref, (size_t)H * P, tol, gpu_ulp(dtype));
    }
    for (uint32_t r = 0; r < n_rows && gpu.poison; r++)
        for (uint32_t p = 0; p < H * P && !listed[r]; p++)
            if (!isnan(got[(size_t)r * H * P + p]))
                fail_msg("%s: row %u is not listed and was written: %g", gpu.what, r,
                         (double)got[(size_t)r * H * P + p]);
}
static void attention_over_the_window_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(window_round);
}
static void a_session_of_nan_changes_no_other_s_attention(void **state) {
    (void)state;
    broken_rounds(true, window_round);
}

/* ---- both, in a decode step ---- */

struct decode_inputs {
    struct cuda_shape s;
    uint32_t layer, splits;
    size_t stride;
    float *qkv, *rope, *q_norm, *k_norm; /* on the device */
};
static struct cuda_heads heads_of(const struct decode_inputs *in) {
    return (struct cuda_heads){
        .qkv = {in->qkv, in->splits, in->stride}, .rope = in->rope, .q_norm = in->q_norm, .k_norm = in->k_norm};
}

/* act of the n_list rows (of n_rows) of the list. */
static float *decode_act(const struct decode_inputs *in, const struct gpu_rows *rows, const int32_t *list,
                         uint32_t n_list, bool single) {
    const struct cuda_shape *s = &in->s;
    const size_t blocks = gpu.k->cuda_window_blocks(s);
    float *part = gpu_floats(n_list * blocks * s->H * s->P), *part_ml = gpu_floats(n_list * blocks * s->H * 2);
    void *act = gpu_act_out(rows->n_rows, s->H * s->P, s->dtype);
    const int32_t *list_at = list ? gpu_copy(list, n_list * sizeof *list) : NULL;
    const uint32_t n_rows = rows->n_rows;
    broken_rows_of(n_rows, rows->slot, SESSIONS);
    OF_PARTS(READ, in->qkv, in->splits, in->stride, n_rows, (2 * s->H + 1) * s->P);
    OF_ROWS(READ, in->rope, n_rows, s->rot_dim / 2 * 2);
    name_rings(READ | WRITTEN, s);
    OF_ACT(WRITTEN, act, n_rows, s->H * s->P, s->dtype);
    while (broken_again())
        GPU_RUN(k_decode_window,
                &(struct cuda_window){.shape = *s,
                                      .layer = in->layer,
                                      .rows = rows->device,
                                      .list = list_at,
                                      .n_list = n_list,
                                      .heads = heads_of(in),
                                      .part = part,
                                      .part_ml = part_ml,
                                      .act = act},
                single);
    return gpu.breaks ? NULL : gpu_fetch_act(act, n_rows, s->H * s->P, s->dtype);
}
/* Rows of the list, again and again, and padding rows between them: so many that a block takes several ranges, or each
 * multiprocessor a run of them. Returns how many there is room for. */
static uint32_t make_crowd(const struct cuda_shape *s, const int32_t *list, uint32_t n_rows, int32_t padding,
                           int32_t **crowd) {
    const uint32_t room = (uint32_t)(30000000 / (gpu.k->cuda_window_blocks(s) * s->H * s->P)),
                   most = room > 600 ? 600 : room;
    *crowd = host_bytes((most + 1) * sizeof **crowd);
    for (uint32_t j = 0; j < most; j++) (*crowd)[j] = j < n_rows || gpu_pick(0, 2) ? list[j % n_rows] : padding;
    return most;
}

static void decode_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    if (dtype == CUDA_F32) return;
    n_rows = n_rows > SESSIONS ? SESSIONS : n_rows;
    struct decode_inputs in = {.s = window_shape(i, 1, SESSIONS, dtype), .splits = gpu_pick(1, 4)};
    struct cuda_shape *s = &in.s;
    s->H = s->Hv = 4 * gpu_pick(1, 4), s->Hk = 1;
    s->P = gpu_pick(0, 1) ? 64 : 128;
    s->visible = gpu_pick(0, 2) ? gpu_pick(1, 700) : gpu_pick(1, 18) * 128 + gpu_pick(0, 1);
    s->rot_dim = gpu_pick(0, 2) ? s->P : 2 * gpu_pick(0, s->P / 2);
    s->rot_interleaved = gpu_pick(0, 1), s->qk_norm = gpu_pick(0, 1);
    s->ring_keys = s->visible + CHUNK - 1;
    s->keys_layer = (size_t)s->ring_keys * s->P, s->keys_slot = s->keys_layer * LAYERS;
    s->values_layer = s->keys_layer * s->Hv, s->values_slot = s->values_layer * LAYERS;
    in.layer = gpu_pick(0, LAYERS - 1);
    if (!gpu.k->cuda_decode_window_possible(s)) fail_msg("%s: no kernel for these heads", gpu.what);
    pick_window(s);
    const enum cuda_dtype type = gpu_window_type(s);
    const uint32_t P = s->P, H = s->H, width = (2 * H + 1) * P, half = s->rot_dim / 2;
    GPU_WHAT(", of %u, H %u, P %u, %u keys seen%s, rotated %u%s, %u splits", n_rows, H, P, s->visible, window_name(s),
             s->rot_dim, s->qk_norm ? ", q/k norm" : "", in.splits);
    struct rings rings = random_rings(s, in.layer);
    const uint32_t padding = n_rows, n_all = n_rows + 1; /* a row among the crowds below */
    struct gpu_rows rows = gpu_make_rows(n_all, 1, 9);
    rows.slot[padding] = SESSIONS, rows.pos[padding] = 0;
    for (uint32_t r = 0; r < n_rows; r++) { /* the newest key is the step's: NaN in the ring until then */
        const uint32_t slot = (uint32_t)(rows.slot[r] = (int32_t)((r + i) % SESSIONS));
        rows.pos[r] = rings.newest[slot];
        for (uint32_t p = 0; p < P; p++) rings.keys[key_at(s, slot, in.layer, rows.pos[r]) + p] = NAN;
        for (uint32_t p = 0; p < H * P; p++) rings.values[value_at(s, slot, in.layer, rows.pos[r]) + p] = NAN;
    }
    rows.device.slot = gpu_copy(rows.slot, n_all * sizeof *rows.slot);
    rows.device.pos = gpu_copy(rows.pos, n_all * sizeof *rows.pos);
    in.stride = (size_t)n_all * width + 16;
    float *qkv = host_random(in.splits * in.stride, -1, 1, CUDA_F32), *rope = host_floats((size_t)n_all * half * 2 + 1),
          *q_norm = host_random(P, 0.5, 1.5, CUDA_F32), *k_norm = host_random(P, 0.5, 1.5, CUDA_F32);
    for (size_t j = 0; j < (size_t)n_all * half; j++) {
        const double angle = (double)gpu_uniform(-3, 3);
        rope[2 * j] = (float)cos(angle), rope[2 * j + 1] = (float)sin(angle);
    }
    in.qkv = gpu_from(qkv, in.splits * in.stride), in.rope = gpu_from(rope, (size_t)n_all * half * 2);
    in.q_norm = gpu_from(q_norm, P), in.k_norm = gpu_from(k_norm, P);
    const size_t n_keys = (SESSIONS + 1) * s->keys_slot, n_values = (SESSIONS + 1) * s->values_slot;
    s->keys = gpu_from_typed(rings.keys, n_keys, type), s->values = gpu_from_typed(rings.values, n_values, type);
    int32_t *list = random_list(n_rows, n_rows), *crowd;
    const uint32_t most = make_crowd(s, list, n_rows, (int32_t)padding, &crowd), some = most > 512 ? 512 : most;
    if (gpu.breaks) {
        decode_act(&in, &rows, crowd, gpu_pick(some < 8 ? some : 8, some), gpu_pick(0, 1));
        decode_act(&in, &rows, crowd, some, gpu_pick(0, 1)); /* the rings as the last run left them */
        return;
    }
    float *got = decode_act(&in, &rows, gpu_pick(0, 1) ? list : NULL, n_rows, gpu_pick(0, 1));
    const float *got_keys = gpu_fetch_typed(s->keys, n_keys, type),
                *got_values = gpu_fetch_typed(s->values, n_values, type);

    float *q = host_floats((size_t)H * P), *ref = host_floats((size_t)H * P), *k = host_floats((size_t)s->visible * P),
          *v = host_floats((size_t)s->visible * H * P);
    uint8_t *wrote_key = host_bytes(n_keys), *wrote_value = host_bytes(n_values);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t slot = (uint32_t)rows.slot[r];
        const int64_t pos = rows.pos[r], oldest = pos + 1 > s->visible ? pos + 1 - s->visible : 0;
        const size_t key = key_at(s, slot, in.layer, pos), value = value_at(s, slot, in.layer, pos);
        for (uint32_t h = 0; h < 2 * H + 1; h++) {
            double x[256] = {0};
            for (uint32_t p = 0; p < P; p++)
                for (uint32_t j = 0; j < in.splits; j++)
                    x[p] += (double)qkv[j * in.stride + (size_t)r * width + h * P + p];
            if (h <= H)
                rotate_head(s, x, h < H ? q_norm : k_norm, rope + (size_t)r * half * 2,
                            h < H ? q + h * P : rings.keys + key);
            else
                for (uint32_t p = 0; p < P; p++) rings.values[value + (h - H - 1) * P + p] = (float)x[p];
        }
        memset(wrote_key + key, 1, P);
        memset(wrote_value + value, 1, (size_t)H * P);
        for (int64_t p = oldest; p <= pos; p++) { /* as rounded there: near the middle of two numbers either is right */
            memcpy(k + (size_t)(p - oldest) * P, got_keys + key_at(s, slot, in.layer, p), P * sizeof *k);
            memcpy(v + (size_t)(p - oldest) * H * P, got_values + value_at(s, slot, in.layer, p), H * P * sizeof *v);
        }
        ref_window(&(struct cpu_heads){H, 1, H, P}, (uint32_t)(pos + 1 - oldest), q, k, v, ref);
        gpu_check("attention", got + (size_t)r * H * P, ref, (size_t)H * P, gpu_ulp(dtype), gpu_ulp(dtype));
    }
    check_ring("key", got_keys, rings.keys, wrote_key, n_keys, gpu_ulp(type));
    check_ring("value", got_values, rings.values, wrote_value, n_values, gpu_ulp(type));

    /* the same bits alone and in a crowd; padding rows have none */
    const uint32_t few = some < 8 ? some : 8, own = few < n_rows ? few : n_rows;
    const uint32_t crowds[] = {most, some, gpu_pick(few, some), gpu_pick(own, few)};
    for (uint32_t c = 0; c < 4; c++) {
        if (crowds[c] < n_rows) continue;
        const float *among = decode_act(&in, &rows, crowd, crowds[c], gpu_pick(0, 1));
        gpu_check_same("a row among many", among, got, (size_t)n_rows * H * P);
    }
    if (!gpu.poison) return; /* rows that nobody wrote would be read back */
    const uint32_t r = (uint32_t)list[0];
    const float *alone = decode_act(&in, &rows, list, 1, true);
    gpu_check_same("a row alone", alone + (size_t)r * H * P, got + (size_t)r * H * P, (size_t)H * P);
}
static void a_decode_step_equals_its_twins_and_depends_on_no_other_row(void **state) {
    (void)state;
    gpu_rounds_of(false, decode_round);
}
static void a_session_of_nan_changes_no_other_s_decode_step(void **state) {
    (void)state;
    broken_rounds(false, decode_round);
}

/* act of a step with drafts, in one call or in two. */
static float *draft_act(const struct decode_inputs *in, const struct gpu_rows *rows) {
    const struct cuda_shape *s = &in->s;
    const size_t blocks = gpu.k->cuda_window_blocks(s);
    const uint32_t n_rows = rows->n_rows, some = gpu_pick(0, 1) ? n_rows : gpu_pick(1, n_rows);
    float *part = gpu_floats(n_rows * blocks * s->H * s->P), *part_ml = gpu_floats(n_rows * blocks * s->H * 2);
    void *act = gpu_act_out(n_rows, s->H * s->P, s->dtype);
    int32_t *list = host_bytes(n_rows * sizeof *list);
    for (uint32_t r = 0; r < n_rows; r++) list[r] = (int32_t)r;
    const int32_t *list_at = gpu_copy(list, n_rows * sizeof *list);
    broken_rows_of(n_rows, rows->slot, SESSIONS);
    OF_PARTS(READ, in->qkv, in->splits, in->stride, n_rows, (2 * s->H + 1) * s->P);
    OF_ROWS(READ, in->rope, n_rows, s->rot_dim / 2 * 2);
    name_rings(READ | WRITTEN, s);
    OF_ACT(WRITTEN, act, n_rows, s->H * s->P, s->dtype);
    while (broken_again())
        for (uint32_t i = 0; i < n_rows; i = i ? n_rows : some)
            GPU_RUN(k_draft_window, &(struct cuda_window){.shape = *s,
                                                          .layer = in->layer,
                                                          .rows = rows->device,
                                                          .list = list_at + i,
                                                          .n_list = i ? n_rows - i : some,
                                                          .heads = heads_of(in),
                                                          .part = part,
                                                          .part_ml = part_ml,
                                                          .act = act});
    return gpu.breaks ? NULL : gpu_fetch_act(act, n_rows, s->H * s->P, s->dtype);
}
/* Tokens with drafts behind them against steps of single tokens: what they give and what they leave in the rings. A
 * draft's own values may be infinite or NaN: no row before it sees them. */
static void draft_window_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    if (dtype == CUDA_F32) return;
    struct decode_inputs in = {.s = window_shape(i, 1, SESSIONS, dtype), .splits = gpu_pick(1, 4)};
    struct cuda_shape *s = &in.s;
    s->H = s->Hv = 4 * gpu_pick(1, 4), s->Hk = 1;
    s->P = gpu_pick(0, 1) ? 64 : 128;
    s->visible = gpu_pick(0, 2) ? gpu_pick(1, 700) : gpu_pick(1, 18) * 128 + gpu_pick(0, 1);
    s->rot_dim = gpu_pick(0, 2) ? s->P : 2 * gpu_pick(0, s->P / 2);
    s->rot_interleaved = gpu_pick(0, 1), s->qk_norm = gpu_pick(0, 1);
    s->ring_keys = s->visible + CHUNK - 1;
    s->keys_layer = (size_t)s->ring_keys * s->P, s->keys_slot = s->keys_layer * LAYERS;
    s->values_layer = s->keys_layer * s->Hv, s->values_slot = s->values_layer * LAYERS;
    in.layer = gpu_pick(0, LAYERS - 1);
    pick_window(s);
    const enum cuda_dtype type = gpu_window_type(s);
    struct rings rings = random_rings(s, in.layer);
    struct gpu_rows rows;
    do rows = gpu_make_rows(n_rows > 40 ? gpu_pick(1, 40) : n_rows, CUDA_DRAFTS + 1, 9);
    while (rows.n_segs > SESSIONS && (n_rows = n_rows / 2));
    n_rows = rows.n_rows;
    const uint32_t P = s->P, H = s->H, width = (2 * H + 1) * P, half = s->rot_dim / 2;
    GPU_WHAT(", of %u in %u segments, H %u, P %u, %u keys seen%s, rotated %u%s, %u splits", n_rows, rows.n_segs, H, P,
             s->visible, window_name(s), s->rot_dim, s->qk_norm ? ", q/k norm" : "", in.splits);
    for (uint32_t g = 0; g < rows.n_segs; g++) {
        const int64_t newest = rings.newest[(g + i) % SESSIONS], back = gpu_pick(0, 1) ? 0 : gpu_pick(0, CUDA_DRAFTS);
        const bool padding = rows.seg_n[g] == 1 && gpu_pick(0, 3) == 0;
        for (int32_t t = 0; t < rows.seg_n[g]; t++) { /* their keys are the step's: NaN in the ring until then */
            const uint32_t r = (uint32_t)(rows.seg_first[g] + t);
            rows.slot[r] = padding ? SESSIONS : (int32_t)((g + i) % SESSIONS);
            rows.pos[r] = padding ? 0 : (back < newest ? newest - back : newest) + t;
            for (uint32_t p = 0; p < P; p++)
                rings.keys[key_at(s, (uint32_t)rows.slot[r], in.layer, rows.pos[r]) + p] = NAN;
            for (uint32_t p = 0; p < H * P; p++)
                rings.values[value_at(s, (uint32_t)rows.slot[r], in.layer, rows.pos[r]) + p] = NAN;
        }
    }
    rows.device.slot = gpu_copy(rows.slot, n_rows * sizeof *rows.slot);
    rows.device.pos = gpu_copy(rows.pos, n_rows * sizeof *rows.pos);
    rows.device.lead = gpu_leads(&rows);
    in.stride = (size_t)n_rows * width + 16;
    float *rope = host_floats((size_t)n_rows * half * 2 + 1);
    for (size_t j = 0; j < (size_t)n_rows * half; j++) {
        const double angle = (double)gpu_uniform(-3, 3);
        rope[2 * j] = (float)cos(angle), rope[2 * j + 1] = (float)sin(angle);
    }
    float *qkv = host_random(in.splits * in.stride, -1, 1, CUDA_F32);
    for (uint32_t g = 0; g < rows.n_segs; g++) {
        const uint32_t r = (uint32_t)rows.seg_first[g] + gpu_pick(0, (uint32_t)rows.seg_n[g] - 1);
        if (gpu.breaks || r == (uint32_t)rows.seg_first[g] || gpu_pick(0, 1)) continue;
        for (int k = 0; k < 9; k++) qkv[(size_t)r * width + gpu_pick(H * P, width - 1)] = k % 2 ? NAN : INFINITY;
    }
    in.qkv = gpu_from(qkv, in.splits * in.stride), in.rope = gpu_from(rope, (size_t)n_rows * half * 2);
    in.q_norm = gpu_from(host_random(P, 0.5, 1.5, CUDA_F32), P);
    in.k_norm = gpu_from(host_random(P, 0.5, 1.5, CUDA_F32), P);
    const size_t n_keys = (SESSIONS + 1) * s->keys_slot, n_values = (SESSIONS + 1) * s->values_slot;
    s->keys = gpu_from_typed(rings.keys, n_keys, type), s->values = gpu_from_typed(rings.values, n_values, type);
    const float *drafted = draft_act(&in, &rows);
    if (gpu.breaks) return;
    const float *keys = gpu_fetch_typed(s->keys, n_keys, type), *values = gpu_fetch_typed(s->values, n_values, type);
    s->keys = gpu_from_typed(rings.keys, n_keys, type), s->values = gpu_from_typed(rings.values, n_values, type);
    int32_t *list = host_bytes(n_rows * sizeof *list);
    for (int32_t t = 0; t <= CUDA_DRAFTS; t++) {
        uint32_t n = 0;
        for (uint32_t g = 0; g < rows.n_segs; g++)
            if (t < rows.seg_n[g] && rows.slot[rows.seg_first[g]] != SESSIONS) list[n++] = rows.seg_first[g] + t;
        if (!n) continue;
        const float *single = decode_act(&in, &rows, list, n, gpu_pick(0, 1));
        for (uint32_t j = 0; j < n; j++)
            gpu_check_same("attention of a draft", drafted + (size_t)list[j] * H * P, single + (size_t)list[j] * H * P,
                           H * P);
    }
    gpu_check_same("keys", keys, gpu_fetch_typed(s->keys, n_keys, type), n_keys);
    gpu_check_same("values", values, gpu_fetch_typed(s->values, n_values, type), n_values);
}
static void tokens_with_drafts_see_what_single_steps_see(void **state) {
    (void)state;
    gpu_rounds_of(false, draft_window_round);
}
static void a_session_of_nan_changes_no_other_s_attention_in_a_step_with_drafts(void **state) {
    (void)state;
    broken_rounds(false, draft_window_round);
}

GPU_MAIN(cmocka_unit_test(rotary_equals_its_twin_and_fills_the_ring),
         cmocka_unit_test(attention_over_the_window_equals_its_twin),
         cmocka_unit_test(a_decode_step_equals_its_twins_and_depends_on_no_other_row),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_queries_or_ring),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_attention),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_decode_step),
         cmocka_unit_test(tokens_with_drafts_see_what_single_steps_see),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_attention_in_a_step_with_drafts))
