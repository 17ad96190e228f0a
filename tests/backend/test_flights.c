/* test_flights.c - prompts that are read beside steps have the bits of the same pieces in steps, and so have the steps:
 * random prompts in random cuts, one or two to a flight, while other slots decode; in slots that held NaN. Models of
 * numbers that are made here, with RODIMUS_TEST_FULL=1 the published sizes, too. On a GPU alone. */
#include "engine/backend/backend.h"
#include "engine/base/philox.h"
#include "engine/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

enum { STREAMS = 20, READERS = 4, N_SLOTS = STREAMS + READERS, LONGEST = 2560, CHUNK = 64, N_ROUNDS = 4 };

struct setup {
    const struct backend_ops *ops;
    struct backend *be;
    struct model *model;
    const char *name;
    uint32_t most; /* rows of a flight */
    uint64_t seed, n_drawn;
};

static void need(const struct setup *b, int rc, const struct rod_error *err) {
    if (rc) fail_msg("%s: %s", b->name, err->message);
}
static uint32_t draw(struct setup *b, uint32_t n) { return (uint32_t)(philox_uniform(b->seed, b->n_drawn++, 0) * n); }
static void draw_tokens(struct setup *b, int32_t *tok, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)draw(b, b->model->dims.V);
}

static unsigned char *save(const struct setup *b, uint32_t slot, uint64_t pos, size_t *bytes) {
    struct rod_error err;
    unsigned char *state = malloc(*bytes = b->ops->state_bytes(b->be, pos));
    assert_non_null(state);
    need(b, b->ops->slot_save(b->be, slot, pos, state, *bytes, &err), &err);
    return state;
}
/* Whatever it held is NaN, the window, too. */
static void poison(const struct setup *b, uint32_t slot) {
    struct rod_error err;
    const uint64_t pos = 3 * (uint64_t)LONGEST;
    const size_t bytes = b->ops->state_bytes(b->be, pos);
    unsigned char *state = malloc(bytes);
    assert_non_null(state);
    memset(state, 0xff, bytes);
    need(b, b->ops->slot_load(b->be, slot, pos, state, bytes, &err), &err);
    free(state);
    b->ops->slot_zero(b->be, slot);
}
static void same_state(const struct setup *b, uint32_t got_slot, uint32_t want_slot, uint64_t pos) {
    size_t bytes = 0;
    unsigned char *got = save(b, got_slot, pos, &bytes), *want = save(b, want_slot, pos, &bytes);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("%s, seed %llu: after %llu tokens byte %zu of %zu is %02x, want %02x", b->name,
                     (unsigned long long)b->seed, (unsigned long long)pos, i, bytes, got[i], want[i]);
    free(got), free(want);
}

/* ---- the steps beside it ---- */

struct streams {
    int32_t tok[STREAMS];
    uint64_t pos, hash; /* of all tokens; at the end of all states, too */
};
static void begin_streams(struct setup *b, struct streams *s) {
    struct rod_error err;
    const float *logits;
    int32_t text[CHUNK + 1];
    *s = (struct streams){.pos = sizeof text / sizeof *text};
    for (uint32_t i = 0; i < s->pos; i++) text[i] = (int32_t)(i * 31 % b->model->dims.V);
    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct rod_sampling greedy = rod_sampling_greedy();
        const struct backend_sampling how = {.sampling = &greedy, .max_tokens = UINT32_MAX, .n_logprobs = -1};
        const struct backend_segment seg = {i, (uint32_t)s->pos, 0, 0, text, true};
        b->ops->slot_zero(b->be, i);
        need(b, b->ops->slot_sampling(b->be, i, &how, &err), &err);
        need(b, b->ops->forward(b->be, &seg, 1, &logits, &err), &err);
        s->tok[i] = (int32_t)i;
    }
}
static void step_streams(struct setup *b, struct streams *s) {
    struct backend_segment seg[STREAMS];
    const struct backend_token *t;
    struct rod_error err;
    for (uint32_t i = 0; i < STREAMS; i++) seg[i] = (struct backend_segment){i, 1, 1, s->pos, &s->tok[i], false};
    need(b, b->ops->launch(b->be, seg, STREAMS, &err), &err);
    need(b, b->ops->collect(b->be, &t, &err), &err);
    for (uint32_t i = 0; i < STREAMS; i++)
        s->tok[i] = t[i].picked.id, s->hash = s->hash * 1000003 + (uint64_t)t[i].picked.id + 1;
    s->pos++;
}
static void hash_states(struct setup *b, struct streams *s) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        size_t bytes = 0;
        unsigned char *state = save(b, i, s->pos, &bytes);
        s->hash = XXH3_64bits_withSeed(state, bytes, s->hash);
        free(state);
    }
}

/* ---- prompts ---- */

/* Two prompts in cuts of their own: by steps, or by flights with steps beside them, of which a second one may be begun
 * before the first has ended. */
static void read_two(struct setup *b, const uint32_t slots[2], int32_t (*text)[LONGEST], const uint32_t n[2],
                     struct streams *beside, uint32_t *n_beside) {
    uint32_t at[2] = {0, 0}, n_on = 0;
    const float *logits;
    struct rod_error err;
    while (at[0] < n[0] || at[1] < n[1]) {
        struct backend_segment seg[2];
        uint32_t n_segs = 0, room = b->most;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t left = n[i] - at[i] < room ? n[i] - at[i] : room,
                           some = left ? CHUNK * (1 + draw(b, left / CHUNK)) : 0;
            if (!some || (draw(b, 3) == 0 && at[1 - i] < n[1 - i] && !(i && !n_segs))) continue;
            seg[n_segs++] = (struct backend_segment){slots[i], some, 0, at[i], text[i] + at[i], true};
            at[i] += some, room -= some;
        }
        if (!n_segs) continue;
        if (!beside) {
            need(b, b->ops->forward(b->be, seg, n_segs, &logits, &err), &err);
            continue;
        }
        need(b, b->ops->flight_begin(b->be, seg, n_segs, &err), &err);
        const bool last = at[0] == n[0] && at[1] == n[1];
        for (n_on++; n_on > (last ? 0 : draw(b, 2));) {
            step_streams(b, beside), ++*n_beside;
            const int ended = b->ops->flight_ended(b->be, draw(b, 4) == 0, &err);
            need(b, ended < 0, &err);
            n_on -= ended == 1;
        }
    }
}

static void check_round(struct setup *b) {
    static int32_t text[2][LONGEST];
    const uint32_t flights[2] = {STREAMS, STREAMS + 1}, steps[2] = {STREAMS + 2, STREAMS + 3};
    uint32_t n[2], n_beside = 0;
    struct streams beside, alone;
    for (int i = 0; i < 2; i++) {
        n[i] = CHUNK * (1 + draw(b, LONGEST / CHUNK));
        draw_tokens(b, text[i], n[i]);
        poison(b, flights[i]), b->ops->slot_zero(b->be, steps[i]);
    }
    begin_streams(b, &beside);
    read_two(b, flights, text, n, &beside, &n_beside);
    hash_states(b, &beside);
    read_two(b, steps, text, n, NULL, NULL);
    for (int i = 0; i < 2; i++) same_state(b, flights[i], steps[i], n[i]);
    begin_streams(b, &alone);
    for (uint32_t i = 0; i < n_beside; i++) step_streams(b, &alone);
    hash_states(b, &alone);
    if (alone.hash != beside.hash)
        fail_msg("%s, seed %llu: %u steps beside flights drew other tokens or left other states: %llx, want %llx",
                 b->name, (unsigned long long)b->seed, n_beside, (unsigned long long)beside.hash,
                 (unsigned long long)alone.hash);
}

static uint64_t seed = 7;
static void check_model(const char *model, double share) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct rod_error err;
    char name[64];
    const struct backend_config config = {.device = device ? device : "cpu",
                                          .precision = "auto",
                                          .n_slots = N_SLOTS,
                                          .max_batch_tok = 2048,
                                          .max_out = 64,
                                          .prompt_share = share};
    struct setup b = {.name = name, .seed = seed};
    snprintf(name, sizeof name, "%s, share %g", model, share);
    need(&b, backend_find(config.device, &b.ops, &err), &err);
    if (!b.ops->flight_begin) skip(); /* a GPU has flights, no other backend */
    need(&b, model_synthetic(model, 1, NULL, &b.model, &err), &err);
    need(&b, b.ops->open(b.model, &config, &b.be, &err), &err);
    b.most = b.ops->info(b.be)->flight_tok;
    if (b.most) {
        assert_int_equal(b.most % CHUNK, 0);
        assert_int_equal(b.ops->flight_ended(b.be, true, &err), 1); /* no flight is there */
        for (int i = 0; i < N_ROUNDS; i++) check_round(&b);
    }
    b.ops->close(b.be);
    model_close(b.model);
    if (!b.most) skip(); /* cuBLASLt's products, or a driver without green contexts */
}

static void test_small_models(void **state) {
    (void)state;
    check_model("tales", 0.25);
    check_model("tales", 0.5);
}
static void test_a_window(void **state) {
    (void)state;
    if (!getenv("RODIMUS_TEST_FULL")) skip(); /* random weights of 3 GB and some ten seconds */
    check_model("rodimus-plus-1.6b", 0.25);
    check_model("rodimus-plus-1.6b", 0.5);
}
static void test_no_window(void **state) {
    (void)state;
    if (!getenv("RODIMUS_TEST_FULL")) skip(); /* random weights of 3 GB and some ten seconds */
    check_model("rodimus-1.4b", 0.25);
    check_model("rodimus-1.4b", 0.5);
}
static void test_a_flight_left_alone_is_closed(void **state) {
    (void)state;
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    static int32_t text[LONGEST];
    struct rod_error err;
    const struct backend_config config = {
        .device = device ? device : "cpu", .precision = "auto", .n_slots = 4, .prompt_share = 0.25};
    struct setup b = {.name = "tales"};
    need(&b, backend_find(config.device, &b.ops, &err), &err);
    if (!b.ops->flight_begin) skip(); /* a GPU has flights, no other backend */
    need(&b, model_synthetic("tales", 1, NULL, &b.model, &err), &err);
    need(&b, b.ops->open(b.model, &config, &b.be, &err), &err);
    const struct backend_segment seg = {1, 1024, 0, 0, text, true};
    b.ops->slot_zero(b.be, 1);
    const bool flies = b.ops->info(b.be)->flight_tok != 0;
    if (flies) need(&b, b.ops->flight_begin(b.be, &seg, 1, &err), &err);
    b.ops->close(b.be);
    model_close(b.model);
    if (!flies) skip(); /* cuBLASLt's products, or a driver without green contexts */
}

int main(void) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    if (given) seed = strtoull(given, NULL, 10);
    printf("note: seed %llu (RODIMUS_TEST_SEED)\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_models),
        cmocka_unit_test(test_a_window),
        cmocka_unit_test(test_no_window),
        cmocka_unit_test(test_a_flight_left_alone_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
