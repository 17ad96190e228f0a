/* test_states.c - a slot's state out of a backend and into another slot, to the bit, on every model of tests/vectors
 * and tales: restored is never interrupted, whatever the slot held before and wherever in a chunk or window
 * the state was taken; and the same beside the steps of other slots. On the backend that RODIMUS_TEST_DEVICE names, the
 * CPU without it, in RODIMUS_TEST_PRECISION. */
#include "engine/base/philox.h"
#include "engine/state/state_layout.h"
#include "engine/tools/verify.h"
#include "tests/backend_setup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* What follows a state: decode steps, a piece of a prompt, more decode steps. Logits of each row are compared. */
enum { N_SLOTS = 4, BEFORE = 2, PIECE = 77, AFTER = 2, N_ROWS = BEFORE + PIECE + AFTER };

struct setup {
    struct model *model;
    struct backend *be;
    uint32_t V, chunk, visible;
    const char *name;
    const struct backend_ops *ops;
};

static struct setup set_up(const char *set) {
    struct setup b = {.name = set};
    backend_setup_open(
        set, (struct backend_config){.n_slots = N_SLOTS, .n_threads = 2, .max_batch_tok = 1024, .max_out = PIECE},
        &b.model, &b.ops, &b.be);
    b.V = b.model->dims.V;
    b.visible = b.model->dims.visible;
    b.chunk = b.ops->info(b.be)->chunk_tok;
    return b;
}

static void tear_down(struct setup *b) { backend_setup_close(b->model, b->ops, b->be); }

static int32_t *random_tokens(const struct setup *b, size_t n, uint64_t seed) {
    int32_t *tok = malloc((n + 1) * sizeof *tok);
    for (size_t i = 0; i < n; i++) tok[i] = (int32_t)(philox_uniform(seed, i, 0) * b->V);
    return tok;
}

/* tok[from..to) into the slot as one segment, logits of the last n_out copied to rows. */
static void feed(const struct setup *b, uint32_t slot, const int32_t *tok, uint64_t from, uint64_t to, uint32_t n_out,
                 float *rows) {
    struct rod_error err;
    const float *logits;
    const struct backend_segment seg = {slot, (uint32_t)(to - from), n_out, from, tok + from, to - from > 1};
    if (b->ops->forward(b->be, &seg, 1, &logits, &err)) fail_msg("%s: %s", b->name, err.message);
    if (n_out) memcpy(rows, logits, (size_t)n_out * b->V * sizeof *rows);
}

/* Tokens [0, pos): most of them as a prompt in whole chunks, the last ones in single steps. */
static void reach(const struct setup *b, uint32_t slot, const int32_t *tok, uint64_t pos) {
    float row[1];
    const uint64_t n_prompt = pos > 5 ? pos - 5 : pos ? 1 : 0;
    b->ops->slot_zero(b->be, slot);
    for (uint64_t at = 0, n; at < n_prompt; at += n) {
        n = n_prompt - at < 10 * b->chunk ? n_prompt - at : 10 * b->chunk;
        feed(b, slot, tok, at, at + n, 0, row);
    }
    for (uint64_t at = n_prompt; at < pos; at++) feed(b, slot, tok, at, at + 1, 0, row);
}

static float *go_on(const struct setup *b, uint32_t slot, const int32_t *tok, uint64_t pos) {
    float *rows = malloc((size_t)N_ROWS * b->V * sizeof *rows), *to = rows;
    for (int i = 0; i < BEFORE; i++, pos++, to += b->V) feed(b, slot, tok, pos, pos + 1, 1, to);
    feed(b, slot, tok, pos, pos + PIECE, PIECE, to);
    pos += PIECE, to += (size_t)PIECE * b->V;
    for (int i = 0; i < AFTER; i++, pos++, to += b->V) feed(b, slot, tok, pos, pos + 1, 1, to);
    return rows;
}

static unsigned char *save(const struct setup *b, uint32_t slot, uint64_t pos, size_t *bytes) {
    struct rod_error err;
    *bytes = b->ops->state_bytes(b->be, pos);
    unsigned char *state = malloc(*bytes + 1);
    memset(state, 0xa5, *bytes + 1);
    if (b->ops->slot_save(b->be, slot, pos, state, *bytes, &err)) fail_msg("%s: %s", b->name, err.message);
    assert_int_equal(state[*bytes], 0xa5);
    return state;
}

static void load(const struct setup *b, uint32_t slot, uint64_t pos, const void *state, size_t bytes) {
    struct rod_error err;
    if (b->ops->slot_load(b->be, slot, pos, state, bytes, &err)) fail_msg("%s: %s", b->name, err.message);
}

/* Fills all that a slot holds with NaN: any of it that is read later shows. Numbers that are zero stay, as do the
 * channels that a model has not. */
static void poison(const struct setup *b, uint32_t slot, const int32_t *tok) {
    const uint64_t full = b->visible + 3;
    size_t bytes;
    reach(b, slot, tok, full);
    unsigned char *state = save(b, slot, full, &bytes);
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        if (state[i] | state[i + 1] | state[i + 2] | state[i + 3]) memset(state + i, 0xff, 4);
    const uint64_t step = b->visible > 1 ? b->visible - 1 : 1;
    for (uint64_t i = 0; i < 3 + 128 / step; i++) load(b, slot, full + i * step, state, bytes);
    free(state);
}

static void expect_rows(const struct setup *b, const float *got, const float *want, uint64_t pos, const char *what) {
    for (size_t i = 0; i < (size_t)N_ROWS * b->V; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s, %s after %llu tokens: logit %zu of row %zu is %.9g, want %.9g", b->name, what,
                     (unsigned long long)pos, i % b->V, i / b->V, (double)got[i], (double)want[i]);
}

enum { N_POSITIONS = 16 };
/* Below, at and above a chunk and a full window, and anywhere. */
static void choose_positions(const struct setup *b, uint64_t pos[N_POSITIONS]) {
    const uint32_t w = b->visible ? b->visible : 100;
    const uint64_t some[] = {0, 1, 3, b->chunk - 1, b->chunk, b->chunk + 1, w - 1, w, w + 1, w + 62, w + 64, 2 * w};
    const size_t n = sizeof some / sizeof *some;
    memcpy(pos, some, sizeof some);
    for (size_t i = n; i < N_POSITIONS; i++) pos[i] = (uint64_t)(philox_uniform(41, i, w) * (2 * w + 200));
}

#ifdef __SANITIZE_THREAD__ /* thirty times slower */
enum { EVERY = 5 };
#else
enum { EVERY = 1 };
#endif

static void a_restored_state_goes_on_with_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]), other = set_up(backend_sets[i]);
        uint64_t positions[N_POSITIONS];
        choose_positions(&b, positions);
        int32_t *tok = random_tokens(&b, 3 * b.visible + 600, 21), *past = random_tokens(&b, 3 * b.visible + 600, 22);
        for (int k = 0; k < N_POSITIONS; k += EVERY) {
            const uint64_t pos = positions[k];
            reach(&b, 0, tok, pos);
            float *want = go_on(&b, 0, tok, pos);

            reach(&b, 1, tok, pos);
            size_t bytes, again_bytes;
            unsigned char *saved = save(&b, 1, pos, &bytes);
            float *rows = go_on(&b, 1, tok, pos);
            expect_rows(&b, rows, want, pos, "saved and gone on");
            free(rows);

            reach(&b, 2, past, 30 + 2 * b.visible); /* the slot's past */
            load(&b, 2, pos, saved, bytes);
            rows = go_on(&b, 2, tok, pos);
            expect_rows(&b, rows, want, pos, "restored over another session");
            free(rows);

            poison(&b, 3, past);
            load(&b, 3, pos, saved, bytes);
            unsigned char *again = save(&b, 3, pos, &again_bytes);
            assert_memory_equal(again, saved, bytes);
            rows = go_on(&b, 3, tok, pos);
            expect_rows(&b, rows, want, pos, "restored over NaN");
            free(rows);

            load(&other, 0, pos, saved, bytes);
            rows = go_on(&other, 0, tok, pos);
            expect_rows(&b, rows, want, pos, "restored by another backend");
            free(rows);
            free(saved), free(again), free(want);
        }
        assert_string_equal(b.ops->info(b.be)->state_id, other.ops->info(other.be)->state_id);
        free(tok), free(past);
        tear_down(&b), tear_down(&other);
    }
}

/* A state that is loaded and left leaves nothing to whoever is given the slot then. */
static void a_slot_that_was_loaded_leaves_no_trace(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        int32_t *tok = random_tokens(&b, 3 * b.visible + 600, 23);
        reach(&b, 0, tok, 0);
        float *want = go_on(&b, 0, tok, 0);
        poison(&b, 1, tok);
        reach(&b, 1, tok, 0);
        float *rows = go_on(&b, 1, tok, 0);
        expect_rows(&b, rows, want, 0, "zeroed");
        free(rows), free(want), free(tok);
        tear_down(&b);
    }
}

/* The bytes grow until the window is full and are then as many for ever. */
static void a_state_has_one_size_once_the_window_is_full(void **state) {
    (void)state;
    char ids[N_SETS][BACKEND_STATE_ID_BYTES];
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        const struct model_dims *d = &b.model->dims;
        const struct backend_info *info = b.ops->info(b.be);
        const size_t most = b.ops->state_bytes(b.be, b.visible);
        assert_true(most <= info->slot_bytes);
        assert_true(most >= (size_t)d->L * d->M * d->E * sizeof(float));
        for (uint32_t pos = 1; pos <= b.visible; pos++)
            assert_true(b.ops->state_bytes(b.be, pos) > b.ops->state_bytes(b.be, pos - 1));
        for (uint64_t pos = b.visible; pos; pos *= 2) assert_int_equal(b.ops->state_bytes(b.be, pos), most);
        assert_int_equal(b.ops->state_bytes(b.be, UINT64_MAX), most);
        snprintf(ids[i], sizeof ids[i], "%s", info->state_id);
        assert_true(strlen(ids[i]) > 0 && strlen(ids[i]) < BACKEND_STATE_ID_BYTES - 1);
        tear_down(&b);
    }
    assert_string_not_equal(ids[N_SETS - 1], ids[0]);
}

/* state_layout.h's words against golden_read_slot, where all is fp32: nothing of where pos stands in a ring is in the
 * bytes.
 */
static void the_bytes_are_what_the_layout_says(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        const struct model_dims *d = &b.model->dims;
        const struct state_layout layout = state_layout_of(d, DTYPE_F32);
        char id[BACKEND_STATE_ID_BYTES];
        state_layout_id(&layout, id);
        uint64_t positions[N_POSITIONS];
        choose_positions(&b, positions);
        int32_t *tok = random_tokens(&b, 3 * b.visible + 600, 25);
        const size_t nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P, Ep = (d->E + 31) / 32 * 32;
        struct golden_layer *want = golden_new_state(d, (uint32_t)b.visible);
        for (int n = 0; n < N_POSITIONS && !strcmp(id, b.ops->info(b.be)->state_id); n += EVERY) {
            const uint64_t pos = positions[n];
            const struct state_layer part = state_layer_at(&layout, pos);
            size_t bytes;
            reach(&b, 0, tok, pos);
            unsigned char *saved = save(&b, 0, pos, &bytes);
            assert_int_equal(bytes, d->L * part.bytes);
            struct rod_error err;
            assert_int_equal(golden_read_slot(b.ops, b.be, 0, pos, want, &err), 0);
            for (uint32_t l = 0; l < d->L; l++) {
                const unsigned char *layer = saved + l * part.bytes;
                for (size_t m = 0; m < d->M; m++)
                    for (size_t e = 0; e < d->E; e++)
                        assert_memory_equal(layer + 4 * (e / 32 * d->M * 32 + m * 32 + e % 32),
                                            want[l].S + m * d->E + e, 4);
                for (size_t j = 0; j < d->K; j++)
                    for (size_t e = 0; e < d->E; e++)
                        assert_memory_equal(layer + part.conv + 4 * (j * Ep + e), want[l].conv + e * d->K + j, 4);
                if (!d->plus) continue;
                assert_int_equal(part.n_keys, want[l].n_keys);
                assert_memory_equal(layer + part.keys, want[l].k, 4 * nk * part.n_keys);
                assert_memory_equal(layer + part.values, want[l].v, 4 * nv * part.n_keys);
            }
            free(saved);
        }
        golden_free_state(want, d->L), free(tok);
        tear_down(&b);
    }
}

/* n heads of P codes, of which the largest is 127, and the numbers that golden_read_slot gives for them. */
static void check_codes(const struct setup *b, const unsigned char *codes, const unsigned char *scales, size_t n,
                        const float *want) {
    const size_t P = b->model->dims.P;
    for (size_t h = 0; h < n; h++) {
        float scale;
        int most = 0;
        memcpy(&scale, scales + h * sizeof scale, sizeof scale);
        for (size_t i = h * P; i < (h + 1) * P; i++) {
            const int code = (int8_t)codes[i];
            most = abs(code) > most ? abs(code) : most;
            if (want[i] != scale * (float)code)
                fail_msg("%s: number %zu is %.9g, code %d times %.9g wanted", b->name, i, (double)want[i], code,
                         (double)scale);
        }
        if (most != (scale > 0 ? 127 : 0))
            fail_msg("%s: head %zu, scale %g: largest code %d", b->name, h, (double)scale, most);
    }
}

static void a_window_in_int8_is_codes_up_to_127_and_a_scale_a_head(void **state) {
    (void)state;
    uint32_t n_seen = 0;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        const struct model_dims *d = &b.model->dims;
        const struct state_layout *layout = b.ops->info(b.be)->state;
        const uint64_t pos = b.visible + 70;
        const struct state_layer part = state_layer_at(layout, pos);
        int32_t *tok = random_tokens(&b, pos, 26);
        struct golden_layer *want = golden_new_state(d, (uint32_t)b.visible);
        size_t bytes;
        struct rod_error err;
        reach(&b, 0, tok, pos);
        unsigned char *saved = save(&b, 0, pos, &bytes);
        assert_int_equal(golden_read_slot(b.ops, b.be, 0, pos, want, &err), 0);
        for (uint32_t l = 0; l < d->L && layout->window == DTYPE_INT8; l++, n_seen++) {
            const unsigned char *at = saved + l * part.bytes;
            check_codes(&b, at + part.keys, at + part.key_scales, (size_t)part.n_keys * d->Hk, want[l].k);
            check_codes(&b, at + part.values, at + part.value_scales, (size_t)part.n_keys * d->Hv, want[l].v);
        }
        free(saved), free(tok), golden_free_state(want, d->L);
        tear_down(&b);
    }
    if (!getenv("RODIMUS_TEST_DEVICE")) assert_true(n_seen > 0);
}

static void a_state_of_another_size_is_refused_and_changes_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        struct rod_error err;
        const uint64_t pos = 20;
        int32_t *tok = random_tokens(&b, 3 * b.visible + 600, 24);
        size_t bytes, after_bytes;
        reach(&b, 1, tok, pos);
        unsigned char *before = save(&b, 1, pos, &bytes);
        unsigned char *wrong = calloc(bytes + 4096, 1);
        const size_t sizes[] = {0, 1, bytes / 2, bytes - 1, bytes + 1, bytes + 4096};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            err.message[0] = 0;
            assert_int_equal(b.ops->slot_load(b.be, 1, pos, wrong, sizes[k], &err), ROD_EINVALID);
            assert_non_null(strstr(err.message, "bytes"));
            assert_int_equal(b.ops->slot_save(b.be, 1, pos, wrong, sizes[k], &err), ROD_EINVALID);
        }
        assert_int_equal(b.ops->slot_load(b.be, N_SLOTS, pos, before, bytes, &err), ROD_EINVALID);
        assert_int_equal(b.ops->slot_save(b.be, N_SLOTS, pos, wrong, bytes, &err), ROD_EINVALID);
        if (b.model->dims.E % 32) { /* the last tile's channels that are not the model's: its last float */
            const struct model_dims *d = &b.model->dims;
            memcpy(wrong, before, bytes);
            wrong[(size_t)(d->E + 31) / 32 * 32 * d->M * sizeof(float) - 1] = 0x3f;
            assert_int_equal(b.ops->slot_load(b.be, 1, pos, wrong, bytes, &err), ROD_EINVALID);
        }
        unsigned char *after = save(&b, 1, pos, &after_bytes);
        assert_memory_equal(after, before, bytes);
        free(before), free(wrong), free(after), free(tok);
        tear_down(&b);
    }
}

/* ---- moves beside steps ---- */

/* Host memory as the engine's pool has it. */
static unsigned char *take_memory(const struct setup *b, size_t bytes) {
    unsigned char *memory = b->ops->host_take ? b->ops->host_take(b->be, bytes) : malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}
static void give_memory(const struct setup *b, unsigned char *memory, size_t bytes) {
    if (b->ops->host_give)
        b->ops->host_give(memory, bytes);
    else
        free(memory);
}

static int moving(const struct setup *b, uint32_t slot) {
    struct rod_error err;
    const int rc = b->ops->slot_moving(b->be, slot, &err);
    if (rc < 0) fail_msg("%s: %s", b->name, err.message);
    return rc;
}

static void begin_save(const struct setup *b, uint32_t slot, uint64_t pos, void *state, size_t bytes) {
    struct rod_error err;
    if (b->ops->slot_save_begin(b->be, slot, pos, state, bytes, &err)) fail_msg("%s: %s", b->name, err.message);
}
static void begin_load(const struct setup *b, uint32_t slot, uint64_t pos, const void *state, size_t bytes) {
    struct rod_error err;
    if (b->ops->slot_load_begin(b->be, slot, pos, state, bytes, &err)) fail_msg("%s: %s", b->name, err.message);
}

enum { BESIDE = 3 }; /* steps of another session that a move is surely beside; and more while it goes on */

/* Single steps of the session of slot 0 until slot 1's move is over; what comes out is as without any move. */
static void step_beside(const struct setup *b, const int32_t *tok, uint64_t *pos, uint64_t end, const float *want,
                        uint64_t first) {
    float *row = malloc(b->V * sizeof *row);
    for (int i = 0; (i < BESIDE || moving(b, 1)) && *pos < end; i++, ++*pos) {
        feed(b, 0, tok, *pos, *pos + 1, 1, row);
        if (memcmp(row, want + (*pos - first) * b->V, b->V * sizeof *row))
            fail_msg("%s: the step at %llu beside a move gives other logits", b->name, (unsigned long long)*pos);
    }
    while (moving(b, 1)) {}
    free(row);
}

static void moves_and_steps_do_not_see_each_other(void **state) {
    (void)state;
    enum { STEPS = 200, START = 70 };
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        uint64_t positions[N_POSITIONS];
        choose_positions(&b, positions);
        int32_t *tok = random_tokens(&b, 3 * b.visible + 600, 31), *other = random_tokens(&b, 600, 32);
        float *beside = malloc((size_t)STEPS * b.V * sizeof *beside);
        reach(&b, 0, other, START);
        for (uint64_t p = START; p < START + STEPS; p++) feed(&b, 0, other, p, p + 1, 1, beside + (p - START) * b.V);
        reach(&b, 0, other, START);
        uint64_t at = START;
        for (int k = 1; k < N_POSITIONS; k += 3 * EVERY) {
            const uint64_t pos = positions[k];
            size_t bytes;
            reach(&b, 2, tok, pos);
            unsigned char *want = save(&b, 2, pos, &bytes), *moved = take_memory(&b, bytes + 1);
            float *rows, *want_rows = go_on(&b, 2, tok, pos);

            reach(&b, 1, tok, pos);
            begin_save(&b, 1, pos, moved, bytes);
            step_beside(&b, other, &at, START + STEPS, beside, START);
            assert_memory_equal(moved, want, bytes);
            assert_int_equal(moved[bytes], 0xa5);
            rows = go_on(&b, 1, tok, pos);
            expect_rows(&b, rows, want_rows, pos, "saved beside steps and gone on");
            free(rows);

            poison(&b, 1, tok);
            begin_load(&b, 1, pos, moved, bytes);
            step_beside(&b, other, &at, START + STEPS, beside, START);
            rows = go_on(&b, 1, tok, pos);
            expect_rows(&b, rows, want_rows, pos, "loaded over NaN beside steps");
            free(rows), free(want), free(want_rows);
            give_memory(&b, moved, bytes + 1);
        }
        free(tok), free(other), free(beside);
        tear_down(&b);
    }
}

static void count_one(void *arg) { atomic_fetch_add((atomic_uint *)arg, 1); }

/* All slots at once, out and in, in an order of their own; each is told of once. Of memory that is not the backend's.
 */
static void many_moves_are_each_over_once(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        atomic_uint n_told = 0;
        b.ops->on_moved(b.be, count_one, &n_told);
        const uint64_t pos = b.visible + 10;
        int32_t *tok[N_SLOTS];
        unsigned char *want[N_SLOTS], *got[N_SLOTS];
        size_t bytes;
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            tok[s] = random_tokens(&b, 3 * b.visible + 600, 50 + s);
            reach(&b, s, tok[s], pos);
            want[s] = save(&b, s, pos, &bytes);
            got[s] = calloc(bytes, 1);
        }
        for (uint32_t s = 0; s < N_SLOTS; s++) begin_save(&b, s, pos, got[s], bytes);
        for (uint32_t s = 0; s < N_SLOTS; s++)
            while (moving(&b, s)) {}
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            assert_memory_equal(got[s], want[s], bytes);
            begin_load(&b, s, pos, want[(s + 1) % N_SLOTS], bytes);
        }
        for (uint32_t s = N_SLOTS; s-- > 0;)
            while (moving(&b, s)) {}
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            size_t again;
            free(got[s]);
            got[s] = save(&b, s, pos, &again);
            assert_memory_equal(got[s], want[(s + 1) % N_SLOTS], bytes);
        }
        b.ops->close(b.be); /* the last may be told of after it is known to be over */
        assert_int_equal(atomic_load(&n_told), 2 * N_SLOTS);
        model_close(b.model);
        for (uint32_t s = 0; s < N_SLOTS; s++) free(tok[s]), free(want[s]), free(got[s]);
    }
}

/* A step that the device may still have before it: launched, where it can be. */
static void start_step(const struct setup *b, uint32_t slot, const int32_t *tok, uint64_t from, uint64_t to) {
    struct rod_error err;
    const struct backend_segment seg = {slot, (uint32_t)(to - from), 0, from, tok + from, true};
    if (!b->ops->launch)
        feed(b, slot, tok, from, to, 0, NULL);
    else if (b->ops->launch(b->be, &seg, 1, &err))
        fail_msg("%s: %s", b->name, err.message);
}

static void end_step(const struct setup *b) {
    struct rod_error err;
    const struct backend_token *tokens;
    if (b->ops->launch && b->ops->collect(b->be, &tokens, &err)) fail_msg("%s: %s", b->name, err.message);
}

/* What was launched comes first, though it may not have run when a move begins: of the slot that is saved, and of a
 * slot whose past still has a step to go when another state is loaded over it; so do its zeroing and its copies. */
static void a_move_comes_after_the_steps_launched_before_it(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i]);
        struct rod_error err;
        const struct rod_sampling greedy = rod_sampling_greedy();
        const struct backend_sampling sampling = {.sampling = &greedy, .max_tokens = 100, .n_logprobs = -1};
        const uint64_t pos = b.visible + 20, n = 10 * b.chunk, end = pos + 2 * n;
        int32_t *tok = random_tokens(&b, 3 * b.visible + 1600, 33), *past = random_tokens(&b, 3 * b.visible + 1600, 34);
        size_t bytes, again_bytes;
        reach(&b, 1, tok, pos);
        for (uint64_t at = pos; at < end; at += n) feed(&b, 1, tok, at, at + n, 0, NULL);
        unsigned char *want = save(&b, 1, end, &bytes), *got = take_memory(&b, bytes);
        reach(&b, 2, tok, pos), reach(&b, 3, past, pos);
        for (uint32_t s = 2; b.ops->launch && s < 4; s++)
            assert_int_equal(b.ops->slot_sampling(b.be, s, &sampling, &err), 0);
        for (uint64_t at = pos; at < end; at += n) start_step(&b, 2, tok, at, at + n);
        begin_save(&b, 2, end, got, bytes);
        while (moving(&b, 2)) {}
        assert_memory_equal(got, want, bytes);
        for (int k = 0; k < 2; k++) end_step(&b);
        for (uint64_t at = pos; at < end; at += n) start_step(&b, 3, past, at, at + n);
        begin_load(&b, 3, end, got, bytes);
        while (moving(&b, 3)) {}
        for (int k = 0; k < 2; k++) end_step(&b);
        unsigned char *again = save(&b, 3, end, &again_bytes);
        assert_memory_equal(again, want, bytes);
        for (int way = 0; way < 2 && b.ops->slot_copy; way++) { /* of the slot copied to, then of the one copied from */
            memset(got, 0xa5, bytes);
            reach(&b, 1, past, pos);
            for (int k = 0; k < 8; k++) b.ops->slot_copy(b.be, 3, 1, end);
            if (way) begin_load(&b, 3, end, want, bytes);
            begin_save(&b, 1, end, got, bytes);
            while (moving(&b, 1) || moving(&b, 3)) {}
            assert_memory_equal(got, want, bytes);
        }
        for (int k = 0; k < 8; k++) b.ops->slot_zero(b.be, 0);
        begin_load(&b, 0, end, want, bytes);
        while (moving(&b, 0)) {}
        free(again);
        again = save(&b, 0, end, &again_bytes);
        assert_memory_equal(again, want, bytes);
        give_memory(&b, got, bytes);
        free(want), free(again), free(tok), free(past);
        tear_down(&b);
    }
}

static void a_move_that_cannot_begin_is_refused(void **state) {
    (void)state;
    struct setup b = set_up("rodimus-plus-small");
    struct rod_error err;
    int32_t *tok = random_tokens(&b, 200, 34);
    size_t bytes, after_bytes;
    reach(&b, 1, tok, 20);
    unsigned char *before = save(&b, 1, 20, &bytes);
    assert_int_equal(b.ops->slot_load_begin(b.be, 1, 20, before, bytes - 1, &err), ROD_EINVALID);
    assert_int_equal(b.ops->slot_save_begin(b.be, 1, 20, before, bytes + 1, &err), ROD_EINVALID);
    assert_int_equal(b.ops->slot_load_begin(b.be, N_SLOTS, 20, before, bytes, &err), ROD_EINVALID);
    assert_int_equal(b.ops->slot_save_begin(b.be, N_SLOTS, 20, before, bytes, &err), ROD_EINVALID);
    for (uint32_t s = 0; s < N_SLOTS; s++) assert_int_equal(moving(&b, s), 0);
    unsigned char *after = save(&b, 1, 20, &after_bytes);
    assert_memory_equal(after, before, bytes);
    free(before), free(after), free(tok);
    tear_down(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_state_goes_on_with_the_same_bits),
        cmocka_unit_test(a_slot_that_was_loaded_leaves_no_trace),
        cmocka_unit_test(a_state_has_one_size_once_the_window_is_full),
        cmocka_unit_test(the_bytes_are_what_the_layout_says),
        cmocka_unit_test(a_window_in_int8_is_codes_up_to_127_and_a_scale_a_head),
        cmocka_unit_test(a_state_of_another_size_is_refused_and_changes_nothing),
        cmocka_unit_test(moves_and_steps_do_not_see_each_other),
        cmocka_unit_test(many_moves_are_each_over_once),
        cmocka_unit_test(a_move_comes_after_the_steps_launched_before_it),
        cmocka_unit_test(a_move_that_cannot_begin_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
