/* test_ends.c - turns that the device ends, in steps of many rows: by a stop id that it draws or by the last token of
 * the budget, which the host learns when the next step, with a row of the same slot, is on its way. Right then the
 * state is saved, copied, loaded into another slot, and the session's next turn goes on from it. All of it, tokens,
 * log-probabilities and the bytes of every turn's state, is what the session gives alone, one step after the other. A
 * backend that keeps part of a state elsewhere while a slot decodes in large steps has to put it together in time. On
 * the backend that RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION; where no device samples,
 * the sampler does and there is no step ahead. */
#include "engine/base/philox.h"
#include "tests/backend_setup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#include <cmocka.h>

static const char *const sets[] = {
    "rodimus-plus-extremes", "rodimus-plus-options", "rodimus-small", "tales", "rodimus-plus-options" NARROW_WINDOW,
    "tales" NARROW_WINDOW};

#ifdef __SANITIZE_THREAD__ /* thirty times slower */
enum { N_SESSIONS = 24, N_SOME = 1 };
#else
enum { N_SESSIONS = 40, N_SOME = sizeof sets / sizeof *sets };
#endif
enum { N_SPARE = 5, N_SLOTS = N_SESSIONS + N_SPARE, TURNS = 3, MOST_PROMPT = 90, MOST_OUT = 24, MOST_PROMPTS = 10 };

struct turn {
    int32_t prompt[1 + MOST_PROMPT]; /* the token that no step of the turn before has read comes first */
    uint32_t n_prompt;
    bool has_pending;
    int32_t end_ids[2];
    struct rod_sampling sampling;
    struct backend_sampling choice;
    /* What it gives alone. */
    uint32_t n_out; /* tokens drawn, the end id too */
    int32_t ids[MOST_OUT];
    float logprobs[MOST_OUT];
    bool by_id;
    uint64_t end; /* tokens that the state has read */
    uint64_t hash;
};

/* READY: the slot has its state, and the prompt is not read. OUT, IN: its state moves. */
enum phase { READY, RUNS, OUT, IN, OVER };

struct session {
    struct turn turn[TURNS];
    enum phase phase;
    uint32_t slot, at, n_planned, n_seen; /* at: turn; n_planned, n_seen: rows of logits of it */
    uint64_t pos;
    unsigned char *state; /* in host memory */
};

/* A step on its way. */
struct flight {
    uint32_t n, n_decode, turn[N_SESSIONS];
    struct session *of[N_SESSIONS];
};

/* Where the backend does not sample. */
struct own_slot {
    const struct backend_sampling *choice;
    uint32_t n_drawn;
    int32_t last;
    bool ended;
};
struct own_device {
    struct own_slot slot[N_SLOTS];
    struct backend_token token[2][N_SESSIONS];
};

struct setup {
    struct model *model;
    struct backend *be;
    const struct backend_ops *ops;
    struct sampler sampler;
    struct own_device own;
    const char *name;
    uint64_t seed, n_drawn;
    struct session s[N_SESSIONS];
    uint32_t spare[N_SPARE];
    struct flight flight[2];
    uint64_t n_launched, n_collected;
    unsigned char *memory;
    size_t most_bytes;
    uint32_t n_by_id, n_by_budget, n_masked, n_way[4]; /* ends in steps of 17 rows and more */
};

static uint32_t pick(struct setup *b, uint32_t first, uint32_t last) {
    return first + (uint32_t)(philox_uniform(b->seed, b->n_drawn++, 5) * (last - first + 1));
}

static void check(const struct setup *b, int rc, const struct rod_error *err) {
    if (rc < 0) fail_msg("%s, seed %llu: %s", b->name, (unsigned long long)b->seed, err->message);
}

static bool contains(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* ---- steps ---- */

/* Where the backend does not sample: a device of one's own over it, with the same words (backend.h). */
static void own_sampling(struct setup *b, uint32_t slot, const struct backend_sampling *choice) {
    b->own.slot[slot] = (struct own_slot){.choice = choice};
}

static void own_draw(struct setup *b, const struct backend_segment *seg, const float *logits,
                     struct backend_token *out) {
    struct rod_error err;
    struct own_slot *slot = &b->own.slot[seg->slot];
    const struct backend_sampling *c = slot->choice;
    *out = (struct backend_token){.status = SAMPLER_OK};
    const struct sampler_input in = {.sampling = c->sampling,
                                     .banned = c->end_ids,
                                     .n_banned = slot->n_drawn < c->min_tokens ? c->n_end_ids : 0,
                                     .position = seg->pos + seg->n_tok,
                                     .n_logprobs = c->n_logprobs};
    check(b, sampler_pick(&b->sampler, &in, logits, &out->picked, &err), &err);
    slot->last = out->picked.id;
    out->ended = ++slot->n_drawn == c->max_tokens || contains(c->end_ids, c->n_end_ids, slot->last);
    slot->ended = out->ended;
}

static void own_launch(struct setup *b, const struct backend_segment *segs, uint32_t n) {
    struct rod_error err;
    struct backend_segment left[N_SESSIONS];
    const float *logits = NULL;
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!segs[i].tok && b->own.slot[segs[i].slot].ended) continue;
        left[n_left] = segs[i];
        if (!segs[i].tok) left[n_left].tok = &b->own.slot[segs[i].slot].last;
        n_left++;
    }
    if (n_left) check(b, b->ops->forward(b->be, left, n_left, &logits, &err), &err);
    for (uint32_t i = 0, k = 0; i < n; i++) {
        struct backend_token *to = &b->own.token[b->n_launched % 2][i];
        if (k < n_left && left[k].slot == segs[i].slot)
            own_draw(b, &left[k], logits + (size_t)k * b->model->dims.V, to), k++;
        else
            *to = (struct backend_token){.masked = true};
    }
}

static void launch(struct setup *b, const struct backend_segment *segs, uint32_t n) {
    struct rod_error err;
    if (b->ops->launch)
        check(b, b->ops->launch(b->be, segs, n, &err), &err);
    else
        own_launch(b, segs, n);
    b->n_launched++;
}

static const struct backend_token *collect(struct setup *b) {
    struct rod_error err;
    const struct backend_token *tokens = b->own.token[b->n_collected++ % 2];
    if (b->ops->launch) check(b, b->ops->collect(b->be, &tokens, &err), &err);
    return tokens;
}

/* The session's next rows, counted as planned. */
static struct backend_segment next_of(struct session *s) {
    const struct turn *t = &s->turn[s->at];
    struct backend_segment seg = {.slot = s->slot, .n_tok = 1, .n_out = 1, .pos = s->pos};
    if (s->phase == READY) {
        seg.n_tok = t->n_prompt;
        seg.tok = t->prompt;
        seg.prompt = t->n_prompt > 1 || !t->has_pending;
        s->phase = RUNS;
    } /* else what the slot drew itself */
    s->pos += seg.n_tok;
    s->n_planned++;
    return seg;
}

/* How the slot, which has its state, goes on. */
static void be_ready(struct setup *b, struct session *s) {
    struct rod_error err;
    const struct backend_sampling *choice = &s->turn[s->at].choice;
    if (b->ops->launch)
        check(b, b->ops->slot_sampling(b->be, s->slot, choice, &err), &err);
    else
        own_sampling(b, s->slot, choice);
    s->phase = READY;
    s->n_planned = s->n_seen = 0;
}

static void save(const struct setup *b, const struct session *s) {
    struct rod_error err;
    check(b, b->ops->slot_save(b->be, s->slot, s->pos, s->state, b->ops->state_bytes(b->be, s->pos), &err), &err);
}
static void load(const struct setup *b, const struct session *s) {
    struct rod_error err;
    check(b, b->ops->slot_load(b->be, s->slot, s->pos, s->state, b->ops->state_bytes(b->be, s->pos), &err), &err);
}
static uint64_t hash_of(const struct setup *b, const struct session *s) {
    return XXH3_64bits(s->state, b->ops->state_bytes(b->be, s->pos));
}

/* ---- alone ---- */

/* A turn by itself, one step after the other, from the state that the slot has; its tokens are noted. */
static void play(struct setup *b, struct session *s) {
    struct turn *t = &s->turn[s->at];
    be_ready(b, s);
    for (bool ended = false; !ended; s->n_seen++) {
        const struct backend_segment seg = next_of(s);
        launch(b, &seg, 1);
        const struct backend_token *token = collect(b);
        assert_int_equal(token->status, SAMPLER_OK);
        assert_false(token->masked);
        assert_in_range(s->n_seen, 0, MOST_OUT - 1);
        t->ids[s->n_seen] = token->picked.id;
        t->logprobs[s->n_seen] = token->picked.logprob;
        ended = token->ended;
    }
    t->n_out = s->n_seen;
}

/* Draws what a turn asks for: an end by a stop id is by one that it would draw somewhere. */
static void compose(struct setup *b, struct session *s) {
    struct turn *t = &s->turn[s->at];
    const uint64_t from = s->pos;
    const uint32_t n_new = t->has_pending && pick(b, 0, 3) == 0 ? 0 : pick(b, 1, MOST_PROMPT);
    for (t->n_prompt = t->has_pending; t->n_prompt < n_new + t->has_pending; t->n_prompt++)
        t->prompt[t->n_prompt] = (int32_t)pick(b, 0, b->model->dims.V - 1);
    t->sampling = rod_sampling_greedy();
    if (pick(b, 0, 2)) t->sampling.temperature = 0.8f;
    if (pick(b, 0, 1)) t->sampling.top_p = 0.9f;
    t->sampling.seed = b->seed + b->n_drawn;
    t->choice = (struct backend_sampling){.sampling = &t->sampling, .max_tokens = pick(b, 1, MOST_OUT)};
    if (pick(b, 0, 1)) return;
    t->choice.max_tokens = MOST_OUT;
    if (from) save(b, s);
    play(b, s);
    t->end_ids[0] = (int32_t)pick(b, 0, b->model->dims.V - 1);
    t->end_ids[1] = t->ids[pick(b, 0, t->n_out - 1)];
    t->choice.end_ids = t->end_ids;
    t->choice.n_end_ids = 2;
    t->choice.min_tokens = pick(b, 0, 5) ? 0 : pick(b, 1, 3);
    s->pos = from;
    if (from)
        load(b, s);
    else
        b->ops->slot_zero(b->be, s->slot);
}

static void run_alone(struct setup *b, struct session *s) {
    s->slot = pick(b, 0, N_SLOTS - 1);
    s->pos = 0;
    b->ops->slot_zero(b->be, s->slot);
    for (s->at = 0; s->at < TURNS; s->at++) {
        struct turn *t = &s->turn[s->at];
        compose(b, s);
        play(b, s);
        t->end = s->pos;
        const int32_t last = t->ids[t->n_out - 1];
        t->by_id = contains(t->choice.end_ids, t->choice.n_end_ids, last);
        if (!t->by_id && s->at + 1 < TURNS) t[1].has_pending = true, t[1].prompt[0] = last;
        save(b, s);
        t->hash = hash_of(b, s);
    }
}

/* ---- together ---- */

static void assert_same_state(const struct setup *b, const struct session *s, const char *what) {
    const struct turn *t = &s->turn[s->at];
    if (hash_of(b, s) != t->hash)
        fail_msg("%s, seed %llu: session %td %s after turn %u, %llu tokens: hash %016llx, alone %016llx", b->name,
                 (unsigned long long)b->seed, s - b->s, what, s->at, (unsigned long long)s->pos,
                 (unsigned long long)hash_of(b, s), (unsigned long long)t->hash);
}

/* Into a slot that others have left, or none: its own. */
static void change_slot(struct setup *b, struct session *s) {
    const uint32_t i = pick(b, 0, N_SPARE), from = s->slot;
    if (i == N_SPARE) return;
    s->slot = b->spare[i];
    b->spare[i] = from;
}
static void leave_slot(struct setup *b, uint32_t slot) {
    if (pick(b, 0, 2) == 0) b->ops->slot_zero(b->be, slot);
}

static void next_turn(struct setup *b, struct session *s) {
    if (++s->at == TURNS)
        s->phase = OVER;
    else
        be_ready(b, s);
}

static void load_elsewhere(struct setup *b, struct session *s) {
    struct rod_error err;
    leave_slot(b, s->slot);
    change_slot(b, s);
    if (pick(b, 0, 1)) {
        load(b, s);
        next_turn(b, s);
        return;
    }
    check(b, b->ops->slot_load_begin(b->be, s->slot, s->pos, s->state, b->ops->state_bytes(b->be, s->pos), &err), &err);
    s->phase = IN;
}

/* The host has seen the turn's end a moment ago. */
static void end_turn(struct setup *b, struct session *s) {
    struct rod_error err;
    const uint32_t way = pick(b, 0, 3);
    s->pos = s->turn[s->at].end; /* without the row that was ahead */
    b->n_way[way]++;
    if (way == 0) { /* out beside the next steps */
        check(b, b->ops->slot_save_begin(b->be, s->slot, s->pos, s->state, b->ops->state_bytes(b->be, s->pos), &err),
              &err);
        s->phase = OUT;
    } else if (way == 1) { /* out at once */
        save(b, s);
        assert_same_state(b, s, "saved");
        load_elsewhere(b, s);
    } else if (way == 2 && b->ops->slot_copy) {
        const uint32_t from = s->slot;
        change_slot(b, s);
        if (s->slot != from) {
            b->ops->slot_copy(b->be, from, s->slot, s->pos);
            leave_slot(b, from);
        }
        if (pick(b, 0, 1)) {
            save(b, s);
            assert_same_state(b, s, "copied");
        }
        next_turn(b, s);
    } else { /* where it is */
        next_turn(b, s);
    }
}

static void look_at_moves(struct setup *b) {
    struct rod_error err;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        struct session *s = &b->s[i];
        if (s->phase != OUT && s->phase != IN) continue;
        const int rc = b->ops->slot_moving(b->be, s->slot, &err);
        check(b, rc, &err);
        if (rc) continue;
        if (s->phase == IN) {
            next_turn(b, s);
            continue;
        }
        assert_same_state(b, s, "saved beside steps");
        load_elsewhere(b, s);
    }
}

/* Of about `most` streams, and prompts behind them. False: nothing runs. */
static bool plan(struct setup *b, uint32_t most, struct backend_segment *segs) {
    struct flight *f = &b->flight[b->n_launched % 2];
    *f = (struct flight){0};
    for (int prompts = 0; prompts < 2; prompts++)
        for (uint32_t i = 0, n = 0; i < N_SESSIONS; i++) {
            struct session *s = &b->s[i];
            if (s->phase != READY && s->phase != RUNS) continue;
            const struct turn *t = &s->turn[s->at];
            if (s->phase == RUNS && (s->n_planned == t->choice.max_tokens || prompts)) continue;
            const bool prompt = s->phase == READY && (t->n_prompt > 1 || !t->has_pending);
            if (prompt != (prompts == 1) || n == (prompts ? MOST_PROMPTS : most)) continue;
            if (pick(b, 0, 7) == 0) continue;
            f->of[f->n] = s;
            f->turn[f->n] = s->at;
            segs[f->n++] = next_of(s);
            f->n_decode += !prompts;
            n++;
        }
    return f->n > 0;
}

static void take(struct setup *b) {
    const struct flight *f = &b->flight[b->n_collected % 2];
    const struct backend_token *tokens = collect(b);
    for (uint32_t i = 0; i < f->n; i++) {
        struct session *s = f->of[i];
        const struct backend_token *got = &tokens[i];
        const struct turn *t = &s->turn[f->turn[i]];
        if (s->at != f->turn[i] || s->phase != RUNS) { /* it was ahead of the end */
            assert_true(got->masked);
            b->n_masked++;
            continue;
        }
        assert_false(got->masked);
        const float logprob = t->logprobs[s->n_seen];
        if (got->status != SAMPLER_OK || got->picked.id != t->ids[s->n_seen] ||
            memcmp(&got->picked.logprob, &logprob, sizeof logprob))
            fail_msg("%s, seed %llu: a step of %u rows, session %td, token %u of turn %u: %d of %.9g, alone %d of %.9g",
                     b->name, (unsigned long long)b->seed, f->n_decode, s - b->s, s->n_seen, f->turn[i], got->picked.id,
                     (double)got->picked.logprob, t->ids[s->n_seen], (double)logprob);
        s->n_seen++;
        assert_int_equal(got->ended, s->n_seen == t->n_out);
        if (!got->ended) continue;
        if (f->n_decode >= 17) *(t->by_id ? &b->n_by_id : &b->n_by_budget) += 1;
        end_turn(b, s);
    }
}

static void run_together(struct setup *b) {
    struct backend_segment segs[N_SESSIONS];
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        if (i >= N_SESSIONS) { /* spare ones hold what others left there */
            b->spare[i - N_SESSIONS] = i;
            continue;
        }
        b->ops->slot_zero(b->be, i);
        b->s[i].slot = i;
        b->s[i].pos = b->s[i].at = 0;
        be_ready(b, &b->s[i]);
    }
    uint32_t n_over = 0;
    for (uint32_t most = N_SESSIONS; n_over < N_SESSIONS;) {
        look_at_moves(b);
        if (pick(b, 0, 5) == 0) most = pick(b, 0, 3) ? pick(b, 17, N_SESSIONS) : pick(b, 1, 16);
        const uint64_t n_flying = b->n_launched - b->n_collected;
        if (plan(b, most, segs)) launch(b, segs, b->flight[b->n_launched % 2].n);
        if (n_flying) take(b); /* the one before, with this one on its way */
        n_over = 0;
        for (uint32_t i = 0; i < N_SESSIONS; i++) n_over += b->s[i].phase == OVER;
    }
    while (b->n_launched != b->n_collected) take(b);
}

static void set_up(struct setup *b, const char *set, uint64_t seed) {
    struct rod_error err;
    *b = (struct setup){.name = set, .seed = seed};
    backend_setup_open(set, (struct backend_config){.n_slots = N_SLOTS, .n_threads = 2, .max_batch_tok = 1024},
                       &b->model, &b->ops, &b->be);
    check(b, sampler_init(&b->sampler, b->model->dims.V, &err), &err);
    b->most_bytes = (b->ops->state_bytes(b->be, UINT64_MAX) + 4095) / 4096 * 4096;
    const size_t bytes = N_SESSIONS * b->most_bytes;
    b->memory = b->ops->host_take ? b->ops->host_take(b->be, bytes) : malloc(bytes);
    assert_non_null(b->memory);
    for (uint32_t i = 0; i < N_SESSIONS; i++) b->s[i].state = b->memory + i * b->most_bytes;
}

static void tear_down(struct setup *b) {
    sampler_fini(&b->sampler);
    if (b->ops->host_give)
        b->ops->host_give(b->memory, N_SESSIONS * b->most_bytes);
    else
        free(b->memory);
    backend_setup_close(b->model, b->ops, b->be);
}

static void a_state_taken_right_after_an_end_that_the_device_saw_is_the_one_of_the_session_alone(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    for (size_t i = 0; i < N_SOME; i++) {
        struct setup *b = malloc(sizeof *b);
        set_up(b, sets[i], given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) + i);
        for (uint32_t k = 0; k < N_SESSIONS; k++) run_alone(b, &b->s[k]);
        run_together(b);
        /* it was about what it says */
        assert_true(b->n_by_id > 0 && b->n_by_budget > 0);
        for (int way = 0; way < 4; way++) assert_true(b->n_way[way] > 0);
        assert_true(b->n_masked > 0);
        if (getenv("RODIMUS_TEST_VERBOSE"))
            printf("%s: ends in steps of 17 rows and more: %u by an id, %u by the budget; %u rows ahead of an end\n",
                   b->name, b->n_by_id, b->n_by_budget, b->n_masked);
        tear_down(b);
        free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_taken_right_after_an_end_that_the_device_saw_is_the_one_of_the_session_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
