/* test_broken.c - a session whose state is NaN breaks nobody: neither its neighbours in a step, nor the next session of
 * its slot, nor the next one of its row, in steps of every size that the device treats in a way of its own, on every
 * model of tests/vectors and tales. On the backend that RODIMUS_TEST_DEVICE names, the CPU without it, in
 * RODIMUS_TEST_PRECISION. */
#include "engine/base/philox.h"
#include "tests/backend_setup.h"

#include <math.h>

enum { N_STEPS = 6, MOST_SESSIONS = 300, MOST_PIECE = 5 };

struct setup {
    struct model *model;
    struct backend *be;
    const struct backend_ops *ops;
    const char *name;
    uint32_t V;
    uint64_t broken_pos; /* of the broken state */
    unsigned char *broken;
    size_t broken_bytes;
};

/* Session i of a round: its slot, its row in a step (order), whether its state is NaN. */
struct round {
    uint32_t n;
    uint32_t slot[MOST_SESSIONS], order[MOST_SESSIONS];
    bool broken[MOST_SESSIONS];
    float *logits; /* [N_STEPS][n][V] by session */
};

static uint32_t pick(uint64_t seed, uint64_t what, uint32_t n) { return (uint32_t)(philox_uniform(seed, what, 5) * n); }

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = pick(seed, i, i), kept = order[i - 1];
        order[i - 1] = order[j], order[j] = kept;
    }
}

static void forward(const struct setup *b, const struct backend_segment *segs, uint32_t n, const float **logits) {
    struct rod_error err;
    if (b->ops->forward(b->be, segs, n, logits, &err)) fail_msg("%s: %s", b->name, err.message);
}

/* A state after a full window of which every number that is not zero is NaN. */
static void make_broken(struct setup *b) {
    struct rod_error err;
    const float *logits;
    b->broken_pos = b->model->dims.visible + 3;
    b->ops->slot_zero(b->be, 0);
    int32_t tok[64];
    for (uint64_t at = 0, n; at < b->broken_pos; at += n) {
        n = b->broken_pos - at < 64 ? b->broken_pos - at : 64;
        for (uint64_t i = 0; i < n; i++) tok[i] = (int32_t)pick(99, at + i, b->V);
        forward(b, &(struct backend_segment){0, (uint32_t)n, 0, at, tok, true}, 1, &logits);
    }
    b->broken_bytes = b->ops->state_bytes(b->be, b->broken_pos);
    b->broken = malloc(b->broken_bytes);
    if (b->ops->slot_save(b->be, 0, b->broken_pos, b->broken, b->broken_bytes, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i + 4 <= b->broken_bytes; i += 4)
        if (b->broken[i] | b->broken[i + 1] | b->broken[i + 2] | b->broken[i + 3]) memset(b->broken + i, 0xff, 4);
}

/* Tokens of session i in a step, and whether they are a prompt's: first a prompt of 1 to 5 tokens, then single tokens,
 * then for half of the sessions a piece of a prompt again. */
static uint32_t piece_of(uint32_t i, uint32_t step, bool *prompt) {
    *prompt = step == 0 || (step == 4 && i % 2);
    return *prompt ? 1 + pick(i, 1000 + step, 4) % MOST_PIECE * pick(i, 1100 + step, 2) : 1;
}

static void run(const struct setup *b, struct round *r) {
    static struct backend_segment segs[MOST_SESSIONS];
    static int32_t tok[MOST_SESSIONS][MOST_PIECE];
    static uint64_t pos[MOST_SESSIONS];
    struct rod_error err;
    for (uint32_t i = 0; i < r->n; i++) {
        pos[i] = r->broken[i] ? b->broken_pos : 0;
        if (!r->broken[i])
            b->ops->slot_zero(b->be, r->slot[i]);
        else if (b->ops->slot_load(b->be, r->slot[i], pos[i], b->broken, b->broken_bytes, &err))
            fail_msg("%s: %s", b->name, err.message);
    }
    for (uint32_t step = 0; step < N_STEPS; step++) {
        uint32_t n_segs = 0, session[MOST_SESSIONS];
        for (int prompts = 0; prompts < 2; prompts++) /* single tokens first */
            for (uint32_t k = 0; k < r->n; k++) {
                const uint32_t i = r->order[k];
                bool prompt;
                const uint32_t n = piece_of(i, step, &prompt);
                if (prompt != prompts) continue;
                for (uint32_t t = 0; t < n; t++) tok[i][t] = (int32_t)pick(i, step * 100 + t, b->V);
                session[n_segs] = i;
                segs[n_segs++] = (struct backend_segment){r->slot[i], n, 1, pos[i], tok[i], prompt};
                pos[i] += n;
            }
        const float *logits;
        forward(b, segs, n_segs, &logits);
        for (uint32_t k = 0; k < n_segs; k++)
            memcpy(r->logits + ((size_t)step * r->n + session[k]) * b->V, logits + (size_t)k * b->V,
                   b->V * sizeof *logits);
    }
}

static void compare(const struct setup *b, const struct round *got, const struct round *want, const char *what) {
    for (uint32_t step = 0; step < N_STEPS; step++)
        for (uint32_t i = 0; i < got->n; i++) {
            const size_t at = ((size_t)step * got->n + i) * b->V;
            for (uint32_t v = 0; v < b->V; v++) {
                const float x = got->logits[at + v], y = want->logits[at + v];
                if (got->broken[i] ? isnan(x) : memcmp(&x, &y, sizeof x) == 0) continue;
                fail_msg("%s, %u sessions, %s: step %u, session %u in slot %u: logit %u is %.9g, want %.9g", b->name,
                         got->n, what, step, i, got->slot[i], v, (double)x, got->broken[i] ? (double)NAN : (double)y);
            }
        }
}

static void check(const struct setup *b, uint32_t n) {
    struct round clean = {.n = n}, broken = {.n = n}, after = {.n = n};
    struct round *const rounds[] = {&clean, &broken, &after};
    for (uint32_t k = 0; k < 3; k++) {
        shuffle(rounds[k]->slot, n, 10 * n + k);
        shuffle(rounds[k]->order, n, 20 * n + k);
        rounds[k]->logits = malloc((size_t)N_STEPS * n * b->V * sizeof(float));
    }
    for (uint32_t i = 0; i <= n / 8; i++) broken.broken[pick(n, i, n)] = true;
    run(b, &clean);
    run(b, &broken);
    compare(b, &broken, &clean, "beside broken ones");
    run(b, &after);
    compare(b, &after, &clean, "after broken ones");
    for (uint32_t k = 0; k < 3; k++) free(rounds[k]->logits);
}

static void a_broken_session_breaks_nobody(void **state) {
    (void)state;
    /* on a GPU each bucket of decode steps, full and not */
    static const uint32_t sizes[] = {1,  2,  3,  5,  8,  9,  12,  16,  17,  24,  29,  32,  40,  45,  48,
                                     56, 64, 70, 80, 96, 99, 112, 128, 150, 160, 192, 224, 250, 256, 300};
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const uint32_t most = device && strncmp(device, "cuda", 4) == 0 ? MOST_SESSIONS : 17;
    for (size_t s = 0; s < N_SETS; s++) {
        struct setup b = {.name = backend_sets[s]};
        backend_setup_open(
            backend_sets[s],
            (struct backend_config){.n_slots = most, .n_threads = 2, .max_batch_tok = 2048, .max_out = most}, &b.model,
            &b.ops, &b.be);
        b.V = b.model->dims.V;
        make_broken(&b);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= most; i++) check(&b, sizes[i]);
        free(b.broken);
        backend_setup_close(b.model, b.ops, b.be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_broken_session_breaks_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
