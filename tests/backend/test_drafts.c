/* test_drafts.c - the law of drafts, to the bit, on every model of tests/vectors and tales: a token and its
 * drafts in one step give each row the logits that single steps give, and whatever part of them is accepted, the state
 * and all that follows are those of single steps. Random lives: RODIMUS_TEST_SEED. On the backend that
 * RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION. */
#include "engine/base/philox.h"
#include "tests/backend_setup.h"

#include <time.h>

enum { PLAIN, DRAFTED, SPARE, BESIDE, N_SLOTS, MOST_STEP = 1 + BACKEND_MAX_DRAFTS };

struct setup {
    struct model *model;
    struct backend *be;
    uint32_t V, slot; /* slot: where the drafted life is */
    const char *name;
    const struct backend_ops *ops;
    uint64_t seed, n_rolls, pos, beside;
    float *want;           /* [MOST_STEP][V] */
    unsigned char *state;  /* of the largest size */
    unsigned char *state2; /* the same */
};

static uint32_t roll(struct setup *b, uint32_t n) {
    return (uint32_t)(philox_uniform(b->seed, b->n_rolls++, 5) * (double)n);
}

static struct setup set_up(const char *set, uint32_t n_threads, uint64_t seed) {
    struct setup b = {.name = set, .seed = seed, .slot = DRAFTED};
    backend_setup_open(set, (struct backend_config){.n_slots = N_SLOTS, .n_threads = n_threads}, &b.model, &b.ops,
                       &b.be);
    b.V = b.model->dims.V;
    b.want = calloc((size_t)MOST_STEP * b.V, sizeof *b.want);
    const size_t most = b.ops->state_bytes(b.be, 100000);
    b.state = malloc(most), b.state2 = malloc(most);
    for (uint32_t i = 0; i < N_SLOTS; i++) b.ops->slot_zero(b.be, i);
    return b;
}

static void tear_down(struct setup *b) {
    free(b->want), free(b->state), free(b->state2);
    backend_setup_close(b->model, b->ops, b->be);
}

static const float *forward(const struct setup *b, const struct backend_segment *segs, uint32_t n) {
    const float *logits;
    struct rod_error err;
    if (b->ops->forward(b->be, segs, n, &logits, &err)) fail_msg("%s: %s", b->name, err.message);
    return logits;
}

static void expect_rows(const struct setup *b, const float *got, const float *want, uint32_t n, const char *what) {
    for (size_t i = 0; i < (size_t)n * b->V; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s, seed %llu, %s at position %llu: logit %zu of row %zu is %.9g, want %.9g", b->name,
                     (unsigned long long)b->seed, what, (unsigned long long)b->pos, i % b->V, i / b->V, (double)got[i],
                     (double)want[i]);
}

static void expect_states(const struct setup *b) {
    struct rod_error err;
    const size_t n = b->ops->state_bytes(b->be, b->pos);
    if (b->ops->slot_save(b->be, PLAIN, b->pos, b->state, n, &err)) fail_msg("%s", err.message);
    if (b->ops->slot_save(b->be, b->slot, b->pos, b->state2, n, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < n; i++)
        if (b->state[i] != b->state2[i])
            fail_msg("%s, seed %llu: byte %zu of the state after %llu tokens is %u, want %u", b->name,
                     (unsigned long long)b->seed, i, (unsigned long long)b->pos, b->state2[i], b->state[i]);
}

/* Each life reads a piece of a prompt. */
static void read_piece(struct setup *b, uint32_t n) {
    int32_t tok[256];
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)roll(b, b->V);
    struct backend_segment seg = {.slot = PLAIN, .n_tok = n, .n_out = 1, .pos = b->pos, .tok = tok, .prompt = true};
    memcpy(b->want, forward(b, &seg, 1), b->V * sizeof *b->want);
    seg.slot = b->slot;
    expect_rows(b, forward(b, &seg, 1), b->want, 1, "a piece of a prompt");
    b->pos += n;
}

/* A token, and drafts of which the first n_right are right, beside a row or a piece of another slot. */
static void decode(struct setup *b, uint32_t n_drafts, uint32_t n_right) {
    int32_t tok[MOST_STEP], other[70];
    for (uint32_t i = 0; i < MOST_STEP; i++) tok[i] = (int32_t)roll(b, b->V);
    for (uint32_t i = 0; i < 70; i++) other[i] = (int32_t)roll(b, b->V);
    for (uint32_t i = 0; i <= n_right; i++) {
        const struct backend_segment one = {.slot = PLAIN, .n_tok = 1, .n_out = 1, .pos = b->pos + i, .tok = &tok[i]};
        memcpy(b->want + (size_t)i * b->V, forward(b, &one, 1), b->V * sizeof *b->want);
    }
    const uint32_t n_other = roll(b, 3) ? 1 : 1 + roll(b, 70);
    const struct backend_segment drafted = {
        .slot = b->slot, .n_tok = 1 + n_drafts, .n_out = 1 + n_drafts, .pos = b->pos, .tok = tok};
    const struct backend_segment beside = {
        .slot = BESIDE, .n_tok = n_other, .n_out = 1, .pos = b->beside, .tok = other, .prompt = n_other > 1};
    const bool alone = roll(b, 2);
    const struct backend_segment segs[] = {drafted, beside};
    expect_rows(b, forward(b, segs, alone ? 1 : 2), b->want, 1 + n_right, "a step with drafts");
    if (!alone) b->beside += n_other;
    for (uint32_t i = 1; i < n_right; i++)
        if (!roll(b, 2)) b->ops->slot_accept(b->be, b->slot, i); /* one by one, or at once */
    if (n_right) b->ops->slot_accept(b->be, b->slot, n_right);
    b->pos += 1 + n_right;
}

/* The drafted life goes on in the spare slot, which had another one. */
static void move_over(struct setup *b) {
    struct rod_error err;
    const uint32_t to = DRAFTED + SPARE - b->slot;
    if (roll(b, 2)) {
        b->ops->slot_copy(b->be, b->slot, to, b->pos);
    } else {
        const size_t n = b->ops->state_bytes(b->be, b->pos);
        if (b->ops->slot_save(b->be, b->slot, b->pos, b->state, n, &err)) fail_msg("%s", err.message);
        if (b->ops->slot_load(b->be, to, b->pos, b->state, n, &err)) fail_msg("%s", err.message);
    }
    b->slot = to;
}

static void live(struct setup *b, uint32_t n_steps) {
    b->pos = b->beside = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++) b->ops->slot_zero(b->be, i);
    if (roll(b, 4)) read_piece(b, 1 + roll(b, 200));
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint32_t n_drafts = roll(b, MOST_STEP), what = roll(b, 16);
        decode(b, n_drafts, roll(b, n_drafts + 1));
        if (what == 0) move_over(b);
        if (what == 1) read_piece(b, 1 + roll(b, 90));
        if (what == 2) expect_states(b);
    }
    expect_states(b);
}

static uint64_t seed_of_run(void) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    return given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
}

static void steps_with_drafts_give_the_bits_of_single_steps(void **state) {
    (void)state;
    const uint64_t seed = seed_of_run();
    for (size_t i = 0; i < N_SETS; i++)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            struct setup b = set_up(backend_sets[i], n_threads, seed + n_threads);
            if (b.ops->slot_accept) live(&b, 40);
            if (b.ops->slot_accept) live(&b, 40);
            tear_down(&b);
        }
}

/* Each number of accepted drafts at each position mod 64, and so at each place of the rings. */
static void any_number_of_drafts_may_be_right_at_any_position(void **state) {
    (void)state;
    static const char *const some[] = {"rodimus-plus-short", "rodimus-small"};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct setup b = set_up(some[i], 1, 3);
        for (uint32_t n_right = 0; b.ops->slot_accept && n_right <= BACKEND_MAX_DRAFTS; n_right++) {
            b.pos = b.beside = 0;
            for (uint32_t slot = 0; slot < N_SLOTS; slot++) b.ops->slot_zero(b.be, slot);
            for (uint32_t at = 0; at < 64; at++) decode(&b, BACKEND_MAX_DRAFTS, n_right);
            expect_states(&b);
        }
        tear_down(&b);
    }
}

/* What it draws and its states are the same; so these move between slots of both kinds. */
static void slots_without_room_for_drafts_are_smaller_and_have_the_same_states(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 1, seed_of_run() + i);
        const struct backend *with = b.be;
        const uint64_t roomy = b.ops->info(b.be)->slot_bytes;
        struct backend *without;
        struct model *model;
        struct rod_error err;
        backend_setup_open(backend_sets[i],
                           (struct backend_config){.n_slots = N_SLOTS, .n_threads = 1, .no_drafts = true}, &model,
                           &b.ops, &without);
        const struct backend_info *info = b.ops->info(without);
        if (b.ops->slot_accept && info->slot_bytes >= roomy)
            fail_msg("%s: %llu bytes a slot, with room for drafts %llu", b.name, (unsigned long long)info->slot_bytes,
                     (unsigned long long)roomy);
        assert_string_equal(info->state_id, b.ops->info(with)->state_id);
        b.ops->slot_zero(without, DRAFTED);
        for (uint32_t step = 0; step < 90; step++) {
            int32_t tok[70];
            const uint32_t n = roll(&b, 12) ? 1 : 1 + roll(&b, 70);
            for (uint32_t t = 0; t < n; t++) tok[t] = (int32_t)roll(&b, b.V);
            struct backend_segment seg = {
                .slot = PLAIN, .n_tok = n, .n_out = 1, .pos = b.pos, .tok = tok, .prompt = n > 1};
            const float *logits;
            memcpy(b.want, forward(&b, &seg, 1), b.V * sizeof *b.want);
            seg.slot = DRAFTED;
            if (b.ops->forward(without, &seg, 1, &logits, &err)) fail_msg("%s: %s", b.name, err.message);
            expect_rows(&b, logits, b.want, 1, "a step without room for drafts");
            b.pos += n;
            if (roll(&b, 8)) continue;
            const size_t bytes = b.ops->state_bytes(b.be, b.pos);
            if (b.ops->slot_save(without, DRAFTED, b.pos, b.state, bytes, &err) ||
                b.ops->slot_load(b.be, DRAFTED, b.pos, b.state, bytes, &err))
                fail_msg("%s: %s", b.name, err.message);
            expect_states(&b);
            if (b.ops->slot_load(without, DRAFTED, b.pos, b.state2, bytes, &err))
                fail_msg("%s: %s", b.name, err.message);
        }
        backend_setup_close(model, b.ops, without);
        tear_down(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_with_drafts_give_the_bits_of_single_steps),
        cmocka_unit_test(any_number_of_drafts_may_be_right_at_any_position),
        cmocka_unit_test(slots_without_room_for_drafts_are_smaller_and_have_the_same_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
