/* policy.c - what the scheduler's constants (engine/base/policy.h) are worth: each is halved and doubled in virtual
 * time, at the prices of an H200 and of a small CPU, and what that changes by 2 % or more is printed. The scheduler's
 * files are compiled here once more, with variables in place of the constants. Pacing on a device, masks, drafts and
 * prefix entries have no such world: their figures come from a GPU.
 */
#define POLICY_VARIES
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-variable"
#include "engine/sched/budget.c"
#include "engine/sched/cost.c"
#include "engine/sched/sched.c"

#include "tests/sched_world.h"

#include <stdio.h>

enum { N_BURST = 256, N_STREAMS = 64, N_FEW = 12, N_SHORT = 32, N_FIGURES = 13 };
static const char *const figure_names[N_FIGURES] = {
    "burst: first token, median ms",       "burst: first token, 99 % ms",
    "burst: between tokens, 99 % ms",      "long prompt in steps, s",
    "in steps: between tokens, 99 % ms",   "short prompts without end: streams' pace",
    "short prompts: first token, 99 % ms", "long prompt in flights, s",
    "in flights: between tokens, 99 % ms", "long prompt beside 12 streams, s",
    "12 streams: between tokens, 99 % ms", "640 tokens beside flights: first token, 99 % ms",
    "640 tokens: between tokens, 99 % ms",
};
struct figures { /* 0: the device has no such figure */
    double of[N_FIGURES];
};

static struct world w;

/* 256 prompts of 128 tokens within 17 ms, behind eight requests; answers of 256 tokens. */
static void burst(const struct device *d, double *out) {
    static struct client r[N_BURST], early[8];
    static uint64_t first_ns[N_BURST];
    world_open(&w, d, N_BURST);
    w.s.config.shared_tok = w.s.config.max_batch_tok;
    w.s.config.max_batch_tok *= 4;
    for (int k = 0; k < 8; k++) start(&w, &early[k], 512, 8);
    while (sched_site_busy(&w.s, 0)) world_step(&w);
    w.n_waits = 0;
    const uint64_t begin_ns = w.now_ns;
    for (uint32_t n = 0; n < N_BURST || sched_site_busy(&w.s, 0); world_step(&w))
        for (; n < N_BURST && w.now_ns >= begin_ns + n * 68000ull; n++) {
            start(&w, &r[n], 128, 256);
            r[n].begin_ns = begin_ns + n * 68000ull;
        }
    for (uint32_t k = 0; k < N_BURST; k++) first_ns[k] = r[k].first_ns - r[k].begin_ns;
    out[0] = 1e-6 * (double)percentile(first_ns, N_BURST, 50);
    out[1] = 1e-6 * (double)percentile(first_ns, N_BURST, 99);
    out[2] = 1e-6 * (double)percentile(w.waits, w.n_waits < MOST_TOKENS ? w.n_waits : MOST_TOKENS, 99);
    sched_fini(&w.s);
}

/* 100,000 tokens beside streams. */
static void long_prompt(const struct device *d, bool flights, uint32_t n_streams, double *out) {
    static struct client r[N_STREAMS], big;
    world_open(&w, d, N_SLOTS);
    w.s.config.flight_tok = flights ? FLIGHT_TOK : 0;
    w.s.config.flight_streams = (uint32_t)POLICY_FLIGHT_STREAMS;
    start_streams(&w, r, n_streams, 128, 300);
    const uint32_t begin = w.n_steps;
    start(&w, &big, 100000, 1);
    big.req.may_fly = true;
    out[0] = first_s(&w, &big);
    out[1] = 1e-6 * (double)p99_ns(&w, begin);
    sched_fini(&w.s);
}

/* 32 clients beside 64 streams, each with a prompt of 128 tokens for a token alone, over and over. */
static void short_prompts(const struct device *d, double *out) {
    static struct client r[N_STREAMS], small[N_SHORT];
    static uint64_t first_ns[1 << 17];
    world_open(&w, d, N_SLOTS);
    start_streams(&w, r, N_STREAMS, 128, 300);
    for (uint32_t k = 0; k < N_SHORT; k++) start(&w, &small[k], 128, 1);
    const uint32_t begin = w.n_steps + 500;
    uint64_t begin_ns = 0, n_tokens = 0;
    uint32_t n_first = 0;
    while (w.n_steps < begin + 2000) {
        if (w.n_steps == begin) begin_ns = w.now_ns;
        world_step(&w);
        n_tokens += w.n_steps > begin && w.n_decode;
        for (uint32_t k = 0; k < N_SHORT; k++) {
            if (small[k].req.state != SCHED_NONE) continue;
            if (w.n_steps > begin) first_ns[n_first++] = small[k].first_ns - small[k].begin_ns;
            start(&w, &small[k], 128, 1);
        }
    }
    out[0] = (double)n_tokens * (double)decode_ns(d, N_STREAMS) / (double)(w.now_ns - begin_ns);
    out[1] = 1e-6 * (double)percentile(first_ns, n_first, 99);
    sched_fini(&w.s);
}

/* Prompts of 640 tokens, one after the other, beside 64 streams and a prompt without end in flights. */
static void middling_prompts(const struct device *d, double *out) {
    enum { N = 40 };
    static struct client r[N_STREAMS], big, c;
    static uint64_t first_ns[N];
    world_open(&w, d, N_SLOTS);
    w.s.config.flight_tok = FLIGHT_TOK;
    w.s.config.flight_streams = (uint32_t)POLICY_FLIGHT_STREAMS;
    start_streams(&w, r, N_STREAMS, 128, 300);
    start(&w, &big, 10000000, 1);
    big.req.may_fly = true;
    const uint32_t begin = w.n_steps;
    for (int i = 0; i < N; i++) {
        start(&w, &c, 640, 1);
        c.req.may_fly = true;
        while (c.req.state != SCHED_NONE) world_step(&w);
        first_ns[i] = c.first_ns - c.begin_ns;
    }
    out[0] = 1e-6 * (double)percentile(first_ns, N, 99);
    out[1] = 1e-6 * (double)p99_ns(&w, begin);
    sched_fini(&w.s);
}

/* Flights are a GPU's. */
static struct figures measure(const struct device *d) {
    struct figures f = {{0}};
    burst(d, f.of);
    long_prompt(d, false, N_STREAMS, f.of + 3);
    short_prompts(d, f.of + 5);
    if (!d->graphs) return f;
    long_prompt(d, true, N_STREAMS, f.of + 7);
    long_prompt(d, true, N_FEW, f.of + 9);
    middling_prompts(d, f.of + 11);
    return f;
}

static int print_changes(const struct device *d, const char *how, const struct figures *base) {
    const struct figures now = measure(d);
    int n = 0;
    for (int i = 0; i < N_FIGURES; i++) {
        const double change = base->of[i] > 0 ? now.of[i] / base->of[i] - 1 : 0;
        if (change > -0.02 && change < 0.02) continue;
        if (!n++) printf("    %s, %s:", how, d->name);
        printf("%s %s %.3g (%+.0f %%)", n > 1 ? ";" : "", figure_names[i], now.of[i], 100 * change);
    }
    if (n) printf("\n");
    return n;
}

/* A constant by its address: one of the pointers is NULL. */
struct varied {
    const char *name, *what, *run;
    int *integer;
    double *real;
};
#define VARIED_INT(name)                  &POLICY_##name, NULL
#define VARIED_REAL(name)                 NULL, &POLICY_##name
#define VARIED(type, name, value, of, by) {#name, of, by, VARIED_##type(name)},
static struct varied all[] = {POLICY_SCHED(VARIED)};

static void set(const struct varied *v, double to) {
    if (v->integer)
        *v->integer = (int)to;
    else
        *v->real = to;
}

int main(void) {
    static const int worlds[] = {7, 5};
    enum { N_WORLDS = sizeof worlds / sizeof *worlds };
    struct figures base[N_WORLDS];
    for (int i = 0; i < N_WORLDS; i++) {
        base[i] = measure(&devices[worlds[i]]);
        printf("%s\n", devices[worlds[i]].name);
        for (int k = 0; k < N_FIGURES; k++)
            if (base[i].of[k] > 0) printf("    %-48s %.3g\n", figure_names[k], base[i].of[k]);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct varied *v = &all[i];
        const double value = v->integer ? *v->integer : *v->real;
        int n = 0;
        printf("\n%s = %g %s\n    chosen: %s\n", v->name, value, v->what, v->run);
        for (int doubled = 0; doubled < 2; doubled++) {
            set(v, doubled ? 2 * value : value / 2);
            for (int k = 0; k < N_WORLDS; k++)
                n += print_changes(&devices[worlds[k]], doubled ? "doubled" : "halved", &base[k]);
        }
        set(v, value);
        if (!n) printf("    no change of 2 %% in these worlds\n");
    }
    return 0;
}
