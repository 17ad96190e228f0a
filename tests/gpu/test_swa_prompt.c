/* test_swa_prompt.c - swa_prompt.cu: attention of prompts (E9). Prompts of any length at any positions, windows partly
 * filled and wrapped, ring places that hold no visible key are NaN, and the same bits however a prompt is split. */
#include "window.h"

struct prompts { /* of a step: parts of its segments */
    struct cuda_prompt part[300];
    uint32_t n;
    uint8_t row_of[300]; /* rows that are in none keep what they had */
};
struct inputs {
    struct cuda_shape s;
    uint32_t layer, splits;
    size_t stride;
    float *qkv, *row_scale, *rope, *q_norm, *k_norm; /* on the device */
    const struct cuda_matrix *w;                     /* not NULL: k_prompt_heads makes them of this and `normed` */
    struct cuda_normed normed;
    float *keys, *values; /* the rings before, on the host */
    size_t n_keys, n_values;
};
struct outputs {
    float *act, *keys, *values, *work; /* work: queries, keys, values of each row, in 16 bits */
};

/* Heads of the golden sets and the published models, or any. */
static struct cuda_shape prompt_shape(uint32_t i, enum cuda_dtype dtype) {
    struct cuda_shape s =
        window_shape(i, gpu_pick(0, 2) ? gpu_pick(1, 300) : gpu_pick(1, 5) * 64 + gpu_pick(0, 1), 0, dtype);
    if (i % 2) {
        const bool shared = gpu_pick(0, 2);
        s.H = gpu_pick(1, 6), s.P = shared ? 64 * gpu_pick(1, 2) : 8 * gpu_pick(1, 32);
        s.Hk = shared ? 1 : gpu_pick(1, s.H), s.Hv = gpu_pick(0, 1) ? s.H : gpu_pick(1, s.H);
        s.rot_dim = gpu_pick(0, 2) ? s.P : 2 * gpu_pick(0, s.P / 2);
        s.rot_interleaved = gpu_pick(0, 1), s.qk_norm = gpu_pick(0, 1);
        s.keys_layer = (size_t)s.ring_keys * s.Hk * s.P, s.keys_slot = s.keys_layer * LAYERS;
        s.values_layer = (size_t)s.ring_keys * s.Hv * s.P, s.values_slot = s.values_layer * LAYERS;
    }
    pick_window(&s);
    return s;
}
/* Segments, or what is left without their first or last row; some segments are no prompts. */
static void pick_prompts(const struct gpu_rows *rows, struct prompts *p) {
    memset(p, 0, sizeof *p);
    for (uint32_t i = 0; i < rows->n_segs; i++) {
        struct cuda_prompt part = {rows->seg_first[i], rows->seg_n[i]};
        if (part.n > 2 && !gpu_pick(0, 3)) part.row++, part.n--;
        if (part.n > 2 && !gpu_pick(0, 3)) part.n--;
        if (p->n && !gpu_pick(0, 5)) continue;
        memset(p->row_of + part.row, 1, (size_t)part.n);
        p->part[p->n++] = part;
    }
}
/* The keys that the first query of each prompt sees, before it; the rest is NaN. */
static void fill_rings(struct inputs *in, const struct gpu_rows *rows, const struct prompts *p) {
    const struct cuda_shape *s = &in->s;
    in->n_keys = (rows->n_slots + 1) * s->keys_slot, in->n_values = (rows->n_slots + 1) * s->values_slot;
    in->keys = host_floats(in->n_keys), in->values = host_floats(in->n_values);
    for (size_t i = 0; i < in->n_keys; i++) in->keys[i] = NAN;
    for (size_t i = 0; i < in->n_values; i++) in->values[i] = NAN;
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t slot = (uint32_t)rows->slot[p->part[i].row];
        const int64_t begin = rows->pos[p->part[i].row];
        for (int64_t pos = begin - 1; pos >= 0 && pos > begin - s->visible; pos--) {
            float *key = in->keys + key_at(s, slot, in->layer, pos),
                  *value = in->values + value_at(s, slot, in->layer, pos);
            for (uint32_t j = 0; j < s->Hk * s->P; j++)
                key[j] = gpu_round(gpu_uniform(-1.7f, 1.7f), gpu_window_type(s));
            for (uint32_t j = 0; j < s->Hv * s->P; j++) value[j] = gpu_round(gpu_uniform(-2, 2), gpu_window_type(s));
        }
    }
}
/* For initcheck, which does not see what tensor copies store, as k_prompt_linear and k_prompt_heads do; elsewhere
 * poison shows what nobody wrote. */
static void seen_as_written(void *p, size_t bytes) {
    if (!gpu.poison) gpu_expect(gpu.k->fill(p, 0xff, bytes, gpu.stream), "poisoning memory");
}
/* One call, or one after the other each with one part of every prompt. */
static struct outputs attend(struct inputs *in, const struct gpu_rows *rows, const struct prompts *calls,
                             uint32_t n_calls) {
    struct cuda_shape *s = &in->s;
    const uint32_t n_rows = rows->n_rows;
    const enum cuda_dtype type = gpu_window_type(s);
    s->keys = gpu_from_typed(in->keys, in->n_keys, type), s->values = gpu_from_typed(in->values, in->n_values, type);
    void *work = gpu_bytes(gpu.k->cuda_prompt_window_bytes(s, n_rows)),
         *act = gpu_act_out(n_rows, s->H * s->P, s->dtype);
    if (!gpu.poison) /* rows that are no prompt's are read back too */
        gpu_expect(gpu.k->fill(act, 0, gpu.k->cuda_activation_bytes(n_rows, s->H * s->P, s->dtype), gpu.stream),
                   "clearing the outputs");
    if (in->w) seen_as_written(work, gpu.k->cuda_prompt_window_bytes(s, n_rows));
    const uint32_t most = s->window == CUDA_FP8 ? CUDA_WINDOW_COPIES : UINT32_MAX;
    for (uint32_t i = 0, first = 0; i < n_calls;) {
        struct cuda_prompt_tile *tile = host_bytes(n_rows * sizeof *tile);
        const uint32_t n = calls[i].n - first < most ? calls[i].n - first : most;
        struct cuda_prompts prompts = gpu.k->cuda_prompt_tiles(s, calls[i].part + first, n, rows->pos, tile);
        assert_true(prompts.n_pairs + prompts.n_single <= n_rows && prompts.tile == tile);
        prompts.tile = gpu_copy(tile, n_rows * sizeof *tile);
        broken_rows_of(n_rows, rows->slot, -1);
        OF_PARTS(READ, in->qkv, in->splits, in->stride, n_rows, (s->H + s->Hk + s->Hv) * s->P);
        OF_ROWS(READ, in->rope, n_rows, s->rot_dim / 2 * 2);
        OF_ROWS(READ, in->row_scale, n_rows, 1);
        OF_SLOTS(READ | WRITTEN, s->keys, rows->n_slots + 1, s->keys_slot, type);
        OF_SLOTS(READ | WRITTEN, s->values, rows->n_slots + 1, s->values_slot, type);
        OF_NOBODY(work, gpu.k->cuda_prompt_window_bytes(s, n_rows));
        OF_ACT(WRITTEN, act, n_rows, s->H * s->P, s->dtype);
        if (in->w) {
            OF_ACT(READ, in->normed.act, n_rows, in->normed.D, s->dtype);
            OF_ROWS(READ, in->normed.squares, n_rows, cuda_prompt_sums(in->normed.D));
        }
        while (broken_again()) {
            if (in->w) {
                GPU_RUN(k_prompt_places, s, &rows->device, n_rows, &prompts, work);
                GPU_RUN(k_prompt_heads, s, in->layer, in->w, &in->normed, n_rows, in->rope, work);
            }
            GPU_RUN(k_prompt_window,
                    &(struct cuda_prompt_window){.shape = *s,
                                                 .layer = in->layer,
                                                 .rows = rows->device,
                                                 .n_rows = n_rows,
                                                 .prompts = prompts,
                                                 .heads = {.qkv = {in->w ? NULL : in->qkv, in->splits, in->stride},
                                                           .row_scale = in->row_scale,
                                                           .rope = in->rope,
                                                           .q_norm = in->q_norm,
                                                           .k_norm = in->k_norm},
                                                 .work = work,
                                                 .act = act});
        }
        first += n;
        if (first >= calls[i].n) i++, first = 0;
    }
    if (gpu.breaks) return (struct outputs){NULL, NULL, NULL, NULL};
    return (struct outputs){gpu_fetch_act(act, n_rows, s->H * s->P, s->dtype),
                            gpu_fetch_typed(s->keys, in->n_keys, type), gpu_fetch_typed(s->values, in->n_values, type),
                            gpu_fetch_typed(work, (size_t)n_rows * (s->H + s->Hk + s->Hv) * s->P, s->dtype)};
}

static void prompt_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct inputs in = {
        .s = prompt_shape(i, dtype), .layer = gpu_pick(0, LAYERS - 1), .splits = gpu_pick(0, 1) ? 1 : gpu_pick(2, 4)};
    struct cuda_shape *s = &in.s;
    if (dtype == CUDA_F32) {
        assert_false(gpu.k->cuda_prompt_window_possible(s));
        return;
    }
    const uint32_t P = s->P, H = s->H, width = (H + s->Hk + s->Hv) * P, half = s->rot_dim / 2;
    const enum cuda_dtype type = gpu_window_type(s);
    GPU_WHAT(", H %u %u %u, P %u, %u keys seen%s, rotated %u%s, %u splits", H, s->Hk, s->Hv, P, s->visible,
             window_name(s), s->rot_dim, s->qk_norm ? ", q/k norm" : "", in.splits);
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 3 ? 300 : 90, 9);
    if ((rows.n_slots + 1) * s->values_slot > 30000000) return; /* many sessions of the largest heads */
    if (!gpu.k->cuda_prompt_window_possible(s)) fail_msg("%s: no kernel for these heads", gpu.what);
    struct prompts p;
    pick_prompts(&rows, &p);
    fill_rings(&in, &rows, &p);
    in.stride = (size_t)n_rows * width + 16;
    float *qkv = host_random(in.splits * in.stride, -1, 1, CUDA_F32),
          *rope = host_floats((size_t)n_rows * half * 2 + 1), *q_norm = host_random(P, 0.5, 1.5, CUDA_F32),
          *k_norm = host_random(P, 0.5, 1.5, CUDA_F32),
          *scale = gpu_pick(0, 1) ? host_random(n_rows, 0.5, 1.5, CUDA_F32) : NULL;
    for (size_t j = 0; j < (size_t)n_rows * half; j++) {
        const double angle = (double)gpu_uniform(-3, 3);
        rope[2 * j] = (float)cos(angle), rope[2 * j + 1] = (float)sin(angle);
    }
    in.qkv = gpu_from(qkv, in.splits * in.stride), in.rope = gpu_from(rope, (size_t)n_rows * half * 2);
    in.q_norm = gpu_from(q_norm, P), in.k_norm = gpu_from(k_norm, P),
    in.row_scale = scale ? gpu_from(scale, n_rows) : NULL;
    struct outputs got = attend(&in, &rows, &p, 1);
    if (gpu.breaks) return;

    float *all = host_floats((size_t)n_rows * width), *ref = host_floats((size_t)H * P),
          *k = host_floats((size_t)s->visible * s->Hk * P), *v = host_floats((size_t)s->visible * s->Hv * P),
          *keys = host_copy(in.keys, in.n_keys), *values = host_copy(in.values, in.n_values);
    uint8_t *wrote_key = host_bytes(in.n_keys), *wrote_value = host_bytes(in.n_values);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < H + s->Hk + s->Hv; h++) {
            double x[256] = {0};
            float *to = all + (size_t)r * width + h * P;
            for (uint32_t c = 0; c < P; c++) {
                for (uint32_t j = 0; j < in.splits; j++)
                    x[c] += (double)qkv[j * in.stride + (size_t)r * width + h * P + c];
                if (scale) x[c] *= (double)scale[r];
                to[c] = (float)x[c];
            }
            if (h < H + s->Hk) rotate_head(s, x, h < H ? q_norm : k_norm, rope + (size_t)r * half * 2, to);
            for (uint32_t c = 0; c < P && h >= H && type != GPU_E4M3; c++) to[c] = gpu_round(to[c], type);
        }
    for (uint32_t r = 0; r < n_rows && type == GPU_E4M3; r++) { /* near the middle of two numbers either is right */
        float *own = all + (size_t)r * width + H * P;
        if (!p.row_of[r]) continue;
        check_codes("key and value", got.work + (size_t)r * width + H * P, own, (size_t)(s->Hk + s->Hv) * P);
        memcpy(own, got.work + (size_t)r * width + H * P, (size_t)(s->Hk + s->Hv) * P * sizeof *own);
    }
    const uint32_t step = (uint32_t)((double)n_rows * H * s->visible * P / 6e7) + 1;
    for (uint32_t j = 0; j < p.n; j++) {
        const uint32_t row = (uint32_t)p.part[j].row, n = (uint32_t)p.part[j].n, slot = (uint32_t)rows.slot[row];
        const int64_t begin = rows.pos[row], end = begin + n;
        for (int64_t q = begin; q < end; q++) {
            if ((q - begin) % step && q != end - 1) continue;
            const int64_t oldest = q + 1 > s->visible ? q + 1 - s->visible : 0;
            for (int64_t pos = oldest; pos <= q; pos++) {
                const float *own = all + (size_t)(row + (uint32_t)(pos - begin)) * width + H * P;
                memcpy(k + (size_t)(pos - oldest) * s->Hk * P,
                       pos < begin ? in.keys + key_at(s, slot, in.layer, pos) : own, s->Hk * P * sizeof *k);
                memcpy(v + (size_t)(pos - oldest) * s->Hv * P,
                       pos < begin ? in.values + value_at(s, slot, in.layer, pos) : own + s->Hk * P,
                       s->Hv * P * sizeof *v);
            }
            const uint32_t r = row + (uint32_t)(q - begin);
            const struct cpu_heads heads = {H, s->Hk, s->Hv, P};
            ref_window(&heads, (uint32_t)(q + 1 - oldest), all + (size_t)r * width, k, v, ref);
            /* queries and weights are rounded as keys and values are */
            gpu_check("attention", got.act + (size_t)r * H * P, ref, (size_t)H * P, 2 * gpu_ulp(dtype), gpu_ulp(dtype));
        }
        for (int64_t pos = end - begin > s->ring_keys ? end - s->ring_keys : begin; pos < end; pos++) {
            const float *own = all + (size_t)(row + (uint32_t)(pos - begin)) * width + H * P;
            const size_t key = key_at(s, slot, in.layer, pos), value = value_at(s, slot, in.layer, pos);
            memcpy(keys + key, own, s->Hk * P * sizeof *keys), memset(wrote_key + key, 1, s->Hk * P);
            memcpy(values + value, own + s->Hk * P, s->Hv * P * sizeof *values),
                memset(wrote_value + value, 1, s->Hv * P);
        }
    }
    /* both are rounded, so two sums that differ in fp32 may be a whole unit apart */
    check_ring("key", got.keys, keys, wrote_key, in.n_keys, type == GPU_E4M3 ? 0 : 2 * gpu_ulp(dtype));
    check_ring("value", got.values, values, wrote_value, in.n_values, type == GPU_E4M3 ? 0 : 2 * gpu_ulp(dtype));
    for (uint32_t r = 0; r < n_rows && gpu.poison; r++)
        for (uint32_t c = 0; c < H * P && !p.row_of[r]; c++)
            if (!isnan(got.act[(size_t)r * H * P + c]))
                fail_msg("%s: row %u is no prompt's and was written", gpu.what, r);

    /* the same bits if prompts are split at multiples of the chunk, the first parts in one step, the rest in another */
    struct prompts parts[2] = {{.n = 0}, {.n = 0}};
    for (uint32_t j = 0; j < p.n; j++) {
        const int64_t begin = rows.pos[p.part[j].row], end = begin + p.part[j].n,
                      cut = begin / CHUNK * CHUNK + CHUNK * (int64_t)gpu_pick(1, 3);
        const int32_t n = cut < end ? (int32_t)(cut - begin) : p.part[j].n;
        parts[0].part[parts[0].n++] = (struct cuda_prompt){p.part[j].row, n};
        if (n < p.part[j].n) parts[1].part[parts[1].n++] = (struct cuda_prompt){p.part[j].row + n, p.part[j].n - n};
    }
    if (!gpu.poison) return; /* rows that nobody wrote would be read back */
    const struct outputs again = attend(&in, &rows, parts, 2);
    gpu_check_same("a prompt in two parts", again.act, got.act, (size_t)n_rows * H * P);
    gpu_check_same("its keys", again.keys, got.keys, in.n_keys);
    gpu_check_same("its values", again.values, got.values, in.n_values);
}
static void a_prompt_equals_its_twin_however_it_is_split(void **state) {
    (void)state;
    gpu_rounds_of(false, prompt_round);
}
static void a_prompt_of_nan_changes_no_other_s_attention_or_ring(void **state) {
    (void)state;
    broken_rounds(false, prompt_round);
}

/* Heads of 128 dims rotated in their product are those of the product and then the attention's kernel, to the bit. */
static void heads_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const uint32_t K = 16 * gpu_pick(1, 40), visible = gpu_pick(0, 2) ? gpu_pick(1, 300) : 64 * gpu_pick(1, 5) + 1;
    struct inputs in = {.s = {.D = 64, .E = 64, .F = 64, .H = i % 4 ? gpu_pick(1, 6) : 2 * gpu_pick(4, 8), .P = 128},
                        .layer = gpu_pick(0, LAYERS - 1),
                        .splits = 1};
    struct cuda_shape *s = &in.s;
    s->dtype = dtype, s->visible = visible, s->ring_keys = visible + CHUNK - 1, s->rot_dim = 128;
    s->Hk = gpu_pick(0, 2) ? 1 : gpu_pick(1, s->H), s->Hv = gpu_pick(0, 1) ? s->H : gpu_pick(1, s->H);
    s->keys_layer = (size_t)s->ring_keys * s->Hk * s->P, s->keys_slot = s->keys_layer * LAYERS;
    s->values_layer = (size_t)s->ring_keys * s->Hv * s->P, s->values_slot = s->values_layer * LAYERS;
    pick_window(s);
    if (i % 4 == 2) n_rows += gpu_pick(0, 1500); /* tiles of every size, several a block */
    const uint32_t O = (s->H + s->Hk + s->Hv) * s->P, sums = cuda_prompt_sums(K);
    snprintf(gpu.what, sizeof gpu.what, "%u rows, %s, K %u, H %u %u %u, %u keys seen", n_rows, gpu_dtype_name(dtype), K,
             s->H, s->Hk, s->Hv, visible);
    if (!gpu.k->cuda_fused_possible(s)) return;
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 3 ? 700 : 90, 9);
    if ((rows.n_slots + 1) * s->values_slot > 30000000) return; /* many sessions of the largest heads */
    if (!gpu.k->cuda_prompt_window_possible(s)) fail_msg("%s: no kernel for these heads", gpu.what);
    struct prompts p = {.n = 0};
    for (uint32_t j = 0; j < rows.n_segs; j++) p.part[p.n++] = (struct cuda_prompt){rows.seg_first[j], rows.seg_n[j]};
    fill_rings(&in, &rows, &p);
    float *rope = host_floats((size_t)n_rows * 128);
    for (size_t j = 0; j < (size_t)n_rows * 64; j++) {
        const double angle = (double)gpu_uniform(-3, 3);
        rope[2 * j] = (float)cos(angle), rope[2 * j + 1] = (float)sin(angle);
    }
    const double range = sqrt(3.0 / K);
    const struct cuda_matrix m = gpu_matrix(host_random((size_t)O * K, -range, range, dtype), O, K, dtype);
    in.normed = (struct cuda_normed){
        gpu_act(host_random((size_t)n_rows * K, -1.7, 1.7, dtype), n_rows, K, dtype),
        gpu_from(host_random((size_t)n_rows * sums, 30, 130, CUDA_F32), (size_t)n_rows * sums), 1e-5f, K};
    in.rope = gpu_from(rope, (size_t)n_rows * 128);
    in.w = &m;
    const struct outputs got = attend(&in, &rows, &p, 1);
    if (gpu.breaks) return;
    in.w = NULL, in.qkv = gpu_floats((size_t)n_rows * O);
    seen_as_written(in.qkv, (size_t)n_rows * O * sizeof *in.qkv);
    GPU_RUN(k_prompt_linear, &m, &in.normed, n_rows, in.qkv, O);
    const struct outputs want = attend(&in, &rows, &p, 1);
    gpu_check_same("attention of heads rotated in their product", got.act, want.act, (size_t)n_rows * s->H * s->P);
    gpu_check_same("their keys", got.keys, want.keys, in.n_keys);
    gpu_check_same("their values", got.values, want.values, in.n_values);
}
static void heads_rotated_in_their_product_are_the_same(void **state) {
    (void)state;
    gpu_rounds_of(false, heads_round);
}
static void a_row_of_nan_changes_no_other_s_rotated_heads(void **state) {
    (void)state;
    broken_rounds(false, heads_round);
}

GPU_MAIN(cmocka_unit_test(heads_rotated_in_their_product_are_the_same),
         cmocka_unit_test(a_row_of_nan_changes_no_other_s_rotated_heads),
         cmocka_unit_test(a_prompt_equals_its_twin_however_it_is_split),
         cmocka_unit_test(a_prompt_of_nan_changes_no_other_s_attention_or_ring))
