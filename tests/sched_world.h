/* sched_world.h - a scheduler and a device that takes its time, in virtual time; what a step took is told a step later,
 * as when steps are launched ahead. With config.flight_tok the device has flights.
 */
#ifndef SCHED_WORLD_H
#define SCHED_WORLD_H

#include "engine/base/philox.h"
#include "tests/sched_setup.h"

enum { N_SLOTS = 257, N_POINTS = 4, MOST_STEPS = 200000, MOST_TOKENS = 200000, N_DEVICES = 8 };

/* What a step takes, in ns: its decode rows, at so many of them and on lines between, and its prompts if it has any. */
struct device {
    const char *name;
    uint32_t rows[N_POINTS];
    uint64_t rows_ns[N_POINTS], prompt_ns, tok_ns;
    double noise;
    uint32_t max_batch_tok;
    bool graphs; /* decode rows take what the next power of two takes */
};
static const struct device devices[N_DEVICES] = {
    {"H200", {1, 8, 64, 256}, {1200000, 1800000, 6000000, 9500000}, 2500000, 7000, 0.05, 2048, true},
    {"H200, faster prompts", {1, 8, 64, 256}, {1200000, 1800000, 6000000, 9500000}, 1500000, 7000, 0.05, 2048, true},
    {"H200, short contexts", {1, 8, 64, 256}, {1200000, 1800000, 4100000, 9500000}, 2400000, 7000, 0.05, 2048, true},
    {"GPU", {0, 0, 0, 256}, {760000, 0, 0, 16120000}, 900000, 8500, 0.02, 2048, false},
    {"GPU, short contexts", {0, 0, 0, 256}, {760000, 0, 0, 3832000}, 900000, 7000, 0, 2048, false},
    {"CPU, a small model", {0, 0, 0, 256}, {300000, 0, 0, 23340000}, 100000, 60000, 0.05, 256, false},
    {"slow CPU, a large model", {0, 0, 0, 256}, {90000000, 0, 0, 858000000}, 90000000, 2500000, 0, 128, false},
    {"H200, 2026-11-26", {1, 8, 64, 256}, {1350000, 1650000, 3700000, 8000000}, 1700000, 5350, 0.03, 2048, true},
};

static inline uint64_t decode_ns(const struct device *d, uint32_t n) {
    uint32_t rows = 1;
    while (d->graphs && rows < n) rows *= 2;
    if (!d->graphs) rows = n;
    int i = d->rows[1] ? 0 : N_POINTS - 1; /* a line from 0 to the last point */
    while (d->rows[1] && i < N_POINTS - 2 && rows > d->rows[i + 1]) i++;
    const int from = d->rows[1] ? i : 0, to = d->rows[1] ? i + 1 : N_POINTS - 1;
    const double part = ((double)rows - d->rows[from]) / ((double)d->rows[to] - d->rows[from]);
    return n ? (uint64_t)((double)d->rows_ns[from] + part * ((double)d->rows_ns[to] - (double)d->rows_ns[from])) : 0;
}

struct client {
    struct sched_req req;
    uint64_t begin_ns, first_ns, last_ns;
    uint64_t want; /* tokens; 0 = no end */
};

struct world {
    struct sched s;
    const struct device *device;
    uint64_t seed, n_drawn, now_ns;
    uint32_t n_steps, n_waits;
    uint32_t n_decode; /* of the step before, with n_tok and took_ns */
    uint64_t n_tok, took_ns;
    uint64_t flight_ends_ns;
    uint32_t n_flights;
    uint64_t flight_tok;                            /* of all flights */
    uint64_t steps[MOST_STEPS], waits[MOST_TOKENS]; /* of streams, from a token to the next */
};

static inline void world_open(struct world *w, const struct device *device, uint32_t n_slots) {
    memset(w, 0, sizeof *w);
    w->device = device, w->seed = 7;
    make(&w->s, n_slots, device->max_batch_tok, n_slots, 64);
}

static inline void world_token(struct world *w, struct client *c) {
    if (c->req.n_out > 1)
        w->waits[w->n_waits++ % MOST_TOKENS] = w->now_ns - c->last_ns;
    else
        c->first_ns = w->now_ns;
    c->last_ns = w->now_ns;
    if (c->want && c->req.n_out == c->want) sched_remove(&w->s, &c->req);
}

/* An H200 with a quarter of its multiprocessors for prompts: flights have so much of its tokens a second, and steps
 * beside one take so much longer. */
static const double FLIGHT_PART = 0.28, FLIGHT_SLOWS = 1.17;
enum { FLIGHT_TOK = 2048, FLIGHT_STREAMS = 8 };

static inline void world_fly(struct world *w) {
    struct sched_row rows[N_SLOTS];
    uint64_t n_tok = 0;
    if (!w->s.config.flight_tok) return;
    if (w->now_ns >= w->flight_ends_ns)
        while (w->s.flying.n) sched_land(&w->s, sched_first(&w->s.flying));
    if (w->s.flying.n) return; /* one at a time */
    const uint32_t n = sched_plan_flight(&w->s, 0, rows);
    for (uint32_t i = 0; i < n; i++) n_tok += rows[i].n_tok;
    if (!n) return;
    w->flight_ends_ns =
        w->now_ns + (uint64_t)((double)(w->device->prompt_ns + n_tok * w->device->tok_ns) / FLIGHT_PART);
    w->n_flights++;
    w->flight_tok += n_tok;
}

static inline void world_step(struct world *w) {
    struct sched_row rows[N_SLOTS];
    const struct device *d = w->device;
    world_fly(w);
    const uint32_t n = sched_plan(&w->s, 0, rows);
    uint32_t n_decode = 0;
    uint64_t n_tok = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i].req->state == SCHED_DECODE)
            n_decode++;
        else
            n_tok += rows[i].n_tok;
        sched_commit(&w->s, &rows[i]);
    }
    uint64_t ns = decode_ns(d, n_decode) + (n_tok ? d->prompt_ns + n_tok * d->tok_ns : 0);
    if (w->s.flying.n) ns = (uint64_t)((double)ns * FLIGHT_SLOWS);
    ns += (uint64_t)(d->noise * (double)ns * philox_uniform(w->seed, w->n_drawn++, 0));
    if (w->n_steps) sched_took(&w->s, 0, w->n_decode, w->n_tok, w->took_ns);
    w->n_decode = n_decode, w->n_tok = n_tok, w->took_ns = ns;
    w->now_ns += ns;
    assert_true(w->n_steps < MOST_STEPS);
    w->steps[w->n_steps++] = ns;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].n_out) world_token(w, (struct client *)(void *)rows[i].req);
}

static inline int compare_ns(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
static inline uint64_t percentile(uint64_t *ns, uint32_t n, uint32_t percent) {
    assert_true(n > 0);
    qsort(ns, n, sizeof *ns, compare_ns);
    return ns[(uint64_t)(n - 1) * percent / 100];
}
/* Of the steps since `first`: all streams have a token in each, so it is the time between tokens. */
static inline uint64_t p99_ns(struct world *w, uint32_t first) {
    static uint64_t ns[MOST_STEPS];
    memcpy(ns, w->steps + first, (w->n_steps - first) * sizeof *ns);
    return percentile(ns, w->n_steps - first, 99);
}

static inline void start(struct world *w, struct client *c, uint64_t n_prompt, uint64_t want) {
    *c = (struct client){.req = request(n_prompt), .begin_ns = w->now_ns, .want = want};
    sched_submit(&w->s, &c->req, w->now_ns);
    assert_ptr_equal(sched_admit(&w->s, w->now_ns), &c->req);
}

/* Streams without an end, and steps until there are so many; what a test then adds comes beside streams. */
static inline void start_streams(struct world *w, struct client *r, uint32_t n, uint64_t n_prompt, uint32_t n_steps) {
    for (uint32_t k = 0; k < n; k++) start(w, &r[k], n_prompt, 0);
    while (w->n_steps < n_steps) world_step(w);
}

/* Steps until its one token is said; how many seconds it waited for it. */
static inline double first_s(struct world *w, struct client *c) {
    while (c->req.state != SCHED_NONE) world_step(w);
    return (double)(c->first_ns - c->begin_ns) * 1e-9;
}

#endif
