/* test_company.c - sessions in steps of all sizes, moved and copied between them, to the bit: each gives the logits
 * that it gives alone, one step after the other, in a slot of its own. A backend that keeps part of a state elsewhere
 * while a slot decodes in large steps has to put it together in time. On the backend that RODIMUS_TEST_DEVICE names,
 * the CPU without it, in RODIMUS_TEST_PRECISION. */
#include "engine/base/philox.h"
#include "tests/backend_setup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static const char *const sets[] = {
    "rodimus-plus-extremes", "rodimus-plus-options", "rodimus-small", "tales", "rodimus-plus-options" NARROW_WINDOW,
    "tales" NARROW_WINDOW};
enum { N_SOME = sizeof sets / sizeof *sets };

/* A session reads a prompt, decodes, reads another, decodes. */
enum { N_SESSIONS = 40, N_SLOTS = N_SESSIONS + 2, TURNS = 2, DECODE = 11, MOST_PROMPT = 90 };

struct session {
    uint32_t slot, turn, n_decoded, n_prompt[TURNS];
    uint64_t pos;
    int32_t tok[TURNS * (MOST_PROMPT + DECODE)];
    float *want; /* [TURNS][DECODE][V] */
};

struct setup {
    struct model *model;
    struct backend *be;
    const struct backend_ops *ops;
    const char *name;
    uint32_t V;
    uint64_t seed, n_drawn;
    struct session s[N_SESSIONS];
    uint32_t spare[N_SLOTS - N_SESSIONS];
};

static uint32_t pick(struct setup *b, uint32_t first, uint32_t last) {
    return first + (uint32_t)(philox_uniform(b->seed, b->n_drawn++, 5) * (last - first + 1));
}

static void forward(const struct setup *b, const struct backend_segment *segs, uint32_t n, const float **logits) {
    struct rod_error err;
    if (b->ops->forward(b->be, segs, n, logits, &err)) fail_msg("%s: %s", b->name, err.message);
}

static bool in_prompt(const struct session *s) { return s->n_decoded == 0 && s->n_prompt[s->turn] > 0; }

/* The session's next step: its prompt, then single tokens. It is counted as done. */
static struct backend_segment next_of(struct session *s) {
    const bool prompt = in_prompt(s);
    const struct backend_segment seg = {s->slot, prompt ? s->n_prompt[s->turn] : 1, !prompt, s->pos, s->tok + s->pos,
                                        prompt};
    s->pos += seg.n_tok;
    if (prompt)
        s->n_prompt[s->turn] = 0;
    else if (++s->n_decoded == DECODE)
        s->n_decoded = 0, s->turn++;
    return seg;
}

/* Draws the sessions, and runs each alone in slot 0. */
static void set_up(struct setup *b, const char *set, uint64_t seed) {
    *b = (struct setup){.name = set, .seed = seed};
    backend_setup_open(set, (struct backend_config){.n_slots = N_SLOTS, .n_threads = 2, .max_batch_tok = 1024},
                       &b->model, &b->ops, &b->be);
    b->V = b->model->dims.V;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        struct session *s = &b->s[i];
        for (size_t k = 0; k < sizeof s->tok / sizeof *s->tok; k++) s->tok[k] = (int32_t)pick(b, 0, b->V - 1);
        for (uint32_t t = 0; t < TURNS; t++) s->n_prompt[t] = pick(b, 1, MOST_PROMPT);
        s->want = malloc((size_t)TURNS * DECODE * b->V * sizeof(float));
        struct session alone = *s;
        alone.slot = 0;
        b->ops->slot_zero(b->be, 0);
        for (float *to = s->want; alone.turn < TURNS;) {
            const struct backend_segment seg = next_of(&alone);
            const float *logits;
            forward(b, &seg, 1, &logits);
            if (seg.n_out) memcpy(to, logits, b->V * sizeof *to), to += b->V;
        }
    }
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        b->ops->slot_zero(b->be, i);
        if (i < N_SESSIONS)
            b->s[i].slot = N_SESSIONS - 1 - i;
        else
            b->spare[i - N_SESSIONS] = i;
    }
}

static void tear_down(struct setup *b) {
    for (uint32_t i = 0; i < N_SESSIONS; i++) free(b->s[i].want);
    backend_setup_close(b->model, b->ops, b->be);
}

/* Some session goes on in another slot: a copy's, or one that its state was loaded into; and what it leaves decodes on,
 * which nobody sees. */
static void move_one(struct setup *b) {
    struct rod_error err;
    struct session *s = &b->s[pick(b, 0, N_SESSIONS - 1)];
    uint32_t *spare = &b->spare[pick(b, 0, N_SLOTS - N_SESSIONS - 1)];
    const uint32_t from = s->slot, to = *spare;
    if (b->ops->slot_copy && pick(b, 0, 1)) {
        b->ops->slot_copy(b->be, from, to, s->pos);
    } else {
        const size_t bytes = b->ops->state_bytes(b->be, s->pos);
        void *state = malloc(bytes);
        if (b->ops->slot_save(b->be, from, s->pos, state, bytes, &err)) fail_msg("%s: %s", b->name, err.message);
        if (b->ops->slot_load(b->be, to, s->pos, state, bytes, &err)) fail_msg("%s: %s", b->name, err.message);
        free(state);
    }
    *spare = from, s->slot = to;
}

/* One step of about `most` sessions, single tokens first. False: none is left. */
static bool step(struct setup *b, uint32_t most) {
    struct backend_segment segs[N_SESSIONS];
    const struct session *of[N_SESSIONS];
    uint32_t at[N_SESSIONS], n = 0, n_decode = 0, left = 0;
    for (int prompts = 0; prompts < 2; prompts++)
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            struct session *s = &b->s[i];
            if (s->turn == TURNS) continue;
            left++;
            bool taken = false;
            for (uint32_t k = 0; k < n_decode; k++) taken = taken || of[k] == s;
            if (taken || in_prompt(s) != (prompts == 1) || n == most || (prompts && n > n_decode + 2)) continue;
            if (pick(b, 0, 7) == 0) continue;
            of[n] = s, at[n] = s->turn * DECODE + s->n_decoded;
            segs[n++] = next_of(s);
            n_decode += !prompts;
        }
    if (n == 0) return left > 0;
    const float *logits;
    forward(b, segs, n, &logits);
    for (uint32_t i = 0; i < n_decode; i++)
        for (uint32_t v = 0; v < b->V; v++) {
            const float got = logits[(size_t)i * b->V + v], want = of[i]->want[(size_t)at[i] * b->V + v];
            if (memcmp(&got, &want, sizeof got))
                fail_msg("%s, seed %llu: a step of %u rows, session at %llu: logit %u is %.9g, alone %.9g", b->name,
                         (unsigned long long)b->seed, n_decode, (unsigned long long)segs[i].pos, v, (double)got,
                         (double)want);
        }
    return true;
}

static void whatever_the_size_of_its_steps_a_session_gives_the_bits_that_it_gives_alone(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    for (size_t i = 0; i < N_SOME; i++) {
        struct setup *b = malloc(sizeof *b);
        set_up(b, sets[i], given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) + i);
        uint32_t most = N_SESSIONS;
        while (step(b, most)) {
            if (pick(b, 0, 4) == 0) most = pick(b, 0, 2) ? pick(b, 17, N_SESSIONS) : pick(b, 1, 16);
            if (pick(b, 0, 2) == 0) move_one(b);
        }
        tear_down(b);
        free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_size_of_its_steps_a_session_gives_the_bits_that_it_gives_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
