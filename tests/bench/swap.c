/* swap.c - what it costs to take a session out of its slot and to put one in: the copies beside the bus's floor,
 * measured in the same run, a fork, and the wait for a token of running streams while one session a second is swapped
 * out and in. Prints one JSON object.
 *
 * swap --model DIR | --synthetic NAME [--device D] [--precision P] [--streams N] [--seconds S] [--context N] [--rate R]
 *
 * Streams are asked for their tokens in three phases of S seconds: alone; beside R turns a second of 8 tokens read and
 * 4 generated, without states; beside the same turns, each of which goes on from the state that the last one left. */
#include "engine/core.h"
#include "engine/base/philox.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 21, FORKS = 16, TURN_PROMPT = 8, TURN_TOKENS = 4, BEYOND_WINDOW = 100 };
enum phase { ALONE, TURNS, SWAPS, MANY_TURNS, MANY_SWAPS, N_PHASES };

static const char *model_dir, *synthetic, *device = "auto", *precision = "auto";
static uint32_t n_streams = 64;
static uint64_t context_tok; /* 0: so many that the window is full */
static double phase_s = 5, rate = 1;

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "swap: %s\n", err->message);
    exit(1);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double *v, size_t n, double q) {
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, compare);
    const size_t at = (size_t)(q * (double)n);
    return v[at < n ? at : n - 1];
}

static int32_t token(const struct rod_engine *e, uint64_t i) { return (int32_t)(philox_uniform(3, i, 0) * e->parts.V); }

/* ---- copies: on the backend itself, while the engine sleeps ---- */

static void wait_for(struct backend *be, const struct backend_ops *ops, uint32_t slot) {
    struct rod_error err;
    int rc;
    while ((rc = ops->slot_moving(be, slot, &err)) > 0) {}
    must(rc, &err);
}

static uint64_t read_context(const struct rod_engine *e, uint32_t slot) {
    const struct backend_info *info = e->parts.ops->info(e->parts.backend);
    const uint32_t most = info->max_batch_tok / info->chunk_tok * info->chunk_tok;
    int32_t *tok = malloc(most * sizeof *tok);
    const float *logits;
    struct rod_error err;
    e->parts.ops->slot_zero(e->parts.backend, slot);
    for (uint64_t pos = 0, n; pos < context_tok; pos += n) {
        n = context_tok - pos < most ? context_tok - pos : most;
        for (uint64_t i = 0; i < n; i++) tok[i] = token(e, pos + i);
        const struct backend_segment seg = {slot, (uint32_t)n, 0, pos, tok, true};
        must(e->parts.ops->forward(e->parts.backend, &seg, 1, &logits, &err), &err);
    }
    free(tok);
    return context_tok;
}

/* One plain copy of as many bytes: by the device between itself and this memory, or by one thread of the CPU. */
static void measure_floor(const struct rod_engine *e, void *state, size_t bytes, double *out_s, double *in_s) {
    struct rod_error err;
    if (e->parts.ops->copy_seconds) {
        must(e->parts.ops->copy_seconds(e->parts.backend, state, bytes, out_s, in_s, &err), &err);
        return;
    }
    void *other = malloc(bytes);
    double s[REPEATS];
    memset(other, 1, bytes);
    for (int i = 0; i < REPEATS; i++) {
        const double begin = now_s();
        memcpy(i % 2 ? other : state, i % 2 ? state : other, bytes);
        s[i] = now_s() - begin;
    }
    *out_s = *in_s = quantile(s, REPEATS, 0.5);
    free(other);
}

static void measure_copies(const struct rod_engine *e) {
    const struct backend_ops *ops = e->parts.ops;
    struct backend *be = e->parts.backend;
    const uint64_t pos = read_context(e, 0);
    const size_t bytes = ops->state_bytes(be, pos);
    struct state_buffer *buffer = state_buffer_new(e->states, bytes);
    struct rod_error err;
    if (!buffer) exit(1);
    double out[REPEATS], in[REPEATS], fork[REPEATS], floor_out, floor_in, begin;
    memset(buffer->bytes, 1, bytes);
    for (int i = 0; i < REPEATS; i++) {
        begin = now_s();
        must(ops->slot_save_begin(be, 0, pos, buffer->bytes, bytes, &err), &err);
        wait_for(be, ops, 0);
        out[i] = now_s() - begin;
        begin = now_s();
        must(ops->slot_load_begin(be, 1, pos, buffer->bytes, bytes, &err), &err);
        wait_for(be, ops, 1);
        in[i] = now_s() - begin;
    }
    measure_floor(e, buffer->bytes, bytes, &floor_out, &floor_in);
    /* Forks come before a save in the device's order: what they add to its time is theirs. */
    const size_t least = ops->state_bytes(be, 0);
    for (int i = 0; i < REPEATS && ops->slot_copy; i++) {
        double took[2];
        for (int with = 0; with < 2; with++) {
            begin = now_s();
            for (int k = 0; with && k < FORKS; k++) ops->slot_copy(be, 0, 2, pos);
            must(ops->slot_save_begin(be, 2, 0, buffer->bytes, least, &err), &err);
            wait_for(be, ops, 2);
            took[with] = now_s() - begin;
        }
        fork[i] = (took[1] - took[0]) / FORKS;
    }
    printf("  \"state_bytes\": %zu, \"context\": %llu,\n  \"swap_out_ms\": %.3f, \"floor_out_ms\": %.3f, "
           "\"swap_in_ms\": %.3f, \"floor_in_ms\": %.3f,\n",
           bytes, (unsigned long long)pos, quantile(out, REPEATS, 0.5) * 1e3, floor_out * 1e3,
           quantile(in, REPEATS, 0.5) * 1e3, floor_in * 1e3);
    if (ops->slot_copy) printf("  \"fork_ms\": %.3f,\n", quantile(fork, REPEATS, 0.5) * 1e3);
    state_buffer_release(buffer);
}

/* ---- streams ---- */

struct series { /* of a phase */
    double *gaps, *turns, *firsts;
    size_t n_gaps, n_turns, n_late; /* late: the last turn had not ended when the next was due */
};
enum { MOST_GAPS = 1 << 21, MOST_TURNS = 10000 };

struct load {
    struct rod_engine *engine;
    sem_t woken;
    double *last_s; /* [n_streams] */
    uint32_t n_started;
    struct series series[N_PHASES], *now; /* now: NULL = not measured */
    struct rod_state *state;              /* of the session that is swapped; NULL before its first turn */
    bool turn_runs;
    double turn_begin_s, turn_first_s;
};

static void wake(void *arg) { sem_post(&((struct load *)arg)->woken); }

static struct rod_request *request(const struct load *l, uint64_t seed, size_t n_prompt, uint32_t max_tokens) {
    struct rod_request *r = rod_request_new();
    if (!r || !(r->prompt = malloc(n_prompt * sizeof *r->prompt))) exit(1);
    for (size_t i = 0; i < n_prompt; i++) r->prompt[i] = token(l->engine, seed * 1000003 + i);
    r->n_prompt = n_prompt;
    r->max_tokens = max_tokens;
    r->ignore_eos = true;
    r->sampling.seed = seed;
    return r;
}

static void submit(struct load *l, struct rod_request *r) {
    struct rod_error err;
    uint64_t ticket;
    must(rod_submit(l->engine, r, &ticket, &err), &err);
}

static void submit_turn(struct load *l, bool with_state) {
    const bool first = with_state && !l->state; /* the conversation so far */
    struct rod_request *r = request(l, 77, first ? context_tok : TURN_PROMPT, TURN_TOKENS);
    r->user = l;
    r->keep_state = with_state;
    if (with_state) r->state = l->state;
    if (with_state) l->state = NULL;
    l->turn_runs = true;
    l->turn_first_s = 0;
    l->turn_begin_s = now_s();
    submit(l, r);
}

static void take(struct load *l, struct rod_event *event) {
    const double now = now_s();
    if (event->kind == ROD_EVENT_ERROR) must(event->error.code, &event->error);
    if (event->user == l) {
        if (event->kind == ROD_EVENT_DELTA && l->turn_first_s == 0) l->turn_first_s = now;
        if (event->kind == ROD_EVENT_FINISH) {
            l->turn_runs = false;
            if (l->now && l->now->n_turns < MOST_TURNS) {
                l->now->firsts[l->now->n_turns] = l->turn_first_s - l->turn_begin_s;
                l->now->turns[l->now->n_turns++] = now - l->turn_begin_s;
            }
            if (event->state) l->state = event->state;
            event->state = NULL;
        }
    } else if (event->kind == ROD_EVENT_DELTA) {
        double *last = event->user;
        if (*last == 0) l->n_started++;
        if (*last > 0 && l->now && l->now->n_gaps < MOST_GAPS) l->now->gaps[l->now->n_gaps++] = now - *last;
        *last = now;
    }
    rod_event_free(event);
}

static void pull(struct load *l, double until_s) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const double left = until_s - now_s();
    const int64_t ns = t.tv_nsec + (int64_t)((left > 0 ? left : 0) * 1e9);
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    sem_timedwait(&l->woken, &t);
    for (struct rod_event *event; (event = rod_next_event(l->engine));) take(l, event);
}

static const char *const names[] = {[ALONE] = "alone",
                                    [TURNS] = "beside_turns",
                                    [SWAPS] = "beside_swaps",
                                    [MANY_TURNS] = "beside_10_times_the_turns",
                                    [MANY_SWAPS] = "beside_10_times_the_swaps"};

static void run_slice(struct load *l, enum phase phase, double slice_s) {
    const double begin = now_s(), end = begin + slice_s, every_s = phase >= MANY_TURNS ? 0.1 / rate : 1 / rate;
    const bool with_state = phase == SWAPS || phase == MANY_SWAPS;
    l->now = &l->series[phase];
    for (double due = begin + every_s / 2; now_s() < end;) {
        if (phase != ALONE && now_s() >= due) {
            if (l->turn_runs)
                l->now->n_late++;
            else
                submit_turn(l, with_state);
            due += every_s;
        }
        pull(l, due < end && phase != ALONE ? due : end);
    }
    while (l->turn_runs) pull(l, now_s() + 1);
    l->now = NULL;
}

static double print_phase(struct load *l, enum phase phase) {
    struct series *s = &l->series[phase];
    const double p99_s = quantile(s->gaps, s->n_gaps, 0.99);
    printf("  \"%s\": {\"tokens\": %zu, \"gap_ms\": {\"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"p999\": %.3f, "
           "\"max\": %.3f}",
           names[phase], s->n_gaps, quantile(s->gaps, s->n_gaps, 0.5) * 1e3, quantile(s->gaps, s->n_gaps, 0.9) * 1e3,
           p99_s * 1e3, quantile(s->gaps, s->n_gaps, 0.999) * 1e3, quantile(s->gaps, s->n_gaps, 1) * 1e3);
    if (phase != ALONE)
        printf(", \"turns\": %zu, \"late\": %zu, \"first_token_ms\": %.3f, \"turn_ms\": %.3f", s->n_turns, s->n_late,
               quantile(s->firsts, s->n_turns, 0.5) * 1e3, quantile(s->turns, s->n_turns, 0.5) * 1e3);
    printf("},\n");
    return p99_s;
}

/* One turn on an engine with nothing else to do, with a state and without. */
static void measure_idle_turns(struct load *l) {
    struct series *s = &l->series[SWAPS];
    for (int with = 0; with < 2; with++) {
        s->n_turns = 0;
        for (int i = 0; i < REPEATS; i++) {
            l->now = i > 1 ? s : NULL;
            submit_turn(l, with);
            while (l->turn_runs) pull(l, now_s() + 1);
        }
        printf("  \"idle_turn_%s_state_ms\": {\"first_token\": %.3f, \"end\": %.3f},\n", with ? "with" : "without",
               quantile(s->firsts, s->n_turns, 0.5) * 1e3, quantile(s->turns, s->n_turns, 0.5) * 1e3);
    }
    s->n_turns = 0;
    l->now = NULL;
}

static void measure_streams(struct load *l) {
    double p99[N_PHASES];
    for (uint32_t i = 0; i < n_streams; i++) {
        struct rod_request *r = request(l, 1000 + i, context_tok, UINT32_MAX);
        r->user = &l->last_s[i];
        submit(l, r);
    }
    while (l->n_started < n_streams) pull(l, now_s() + 1);
    for (const double warm = now_s() + 1; now_s() < warm;) pull(l, warm);
    for (double measured = 0; measured < phase_s; measured += 1 / rate)
        for (int phase = 0; phase < N_PHASES; phase++) run_slice(l, (enum phase)phase, 1 / rate);
    for (int phase = 0; phase < N_PHASES; phase++) p99[phase] = print_phase(l, (enum phase)phase);
    printf("  \"streams\": %u, \"rate\": %g, \"p99_swaps_over_alone\": %.3f, \"p99_swaps_over_turns\": %.3f\n",
           n_streams, rate, p99[SWAPS] / p99[ALONE], p99[SWAPS] / p99[TURNS]);
}

static void parse(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--model"))
            model_dir = value;
        else if (!strcmp(name, "--synthetic"))
            synthetic = value;
        else if (!strcmp(name, "--device"))
            device = value;
        else if (!strcmp(name, "--precision"))
            precision = value;
        else if (!strcmp(name, "--streams"))
            n_streams = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--context"))
            context_tok = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--seconds"))
            phase_s = strtod(value, NULL);
        else if (!strcmp(name, "--rate"))
            rate = strtod(value, NULL);
        else
            model_dir = synthetic = NULL, i = argc;
    }
    if (argc % 2 && !model_dir != !synthetic && n_streams && rate > 0) return;
    fprintf(stderr,
            "usage: swap --model DIR | --synthetic NAME [--device D] [--precision P] [--streams N] [--seconds S] "
            "[--context N] [--rate R]\n");
    exit(2);
}

int main(int argc, char **argv) {
    struct load l = {.now = NULL};
    struct rod_error err;
    parse(argc, argv);
    sem_init(&l.woken, 0, 0);
    l.last_s = calloc(n_streams, sizeof *l.last_s);
    for (int i = 0; i < N_PHASES; i++) {
        struct series *s = &l.series[i];
        s->gaps = calloc(MOST_GAPS, sizeof *s->gaps);
        s->turns = calloc(MOST_TURNS, sizeof *s->turns);
        s->firsts = calloc(MOST_TURNS, sizeof *s->firsts);
        if (!s->gaps || !s->turns || !s->firsts) return 1;
    }
    if (!l.last_s) return 1;
    const struct rod_engine_config config = {.model_dir = model_dir,
                                             .synthetic = synthetic,
                                             .device = device,
                                             .precision = precision,
                                             .n_slots = n_streams + 4,
                                             .max_queue = 1000,
                                             .wake = wake,
                                             .wake_arg = &l};
    double begin = now_s();
    must(rod_engine_open(&config, &l.engine, &err), &err);
    const struct rod_model_info *info = rod_engine_info(l.engine);
    struct state_pool_counts pool;
    state_pool_count(l.engine->states, &pool);
    if (!context_tok) context_tok = info->window_tok + BEYOND_WINDOW;
    printf("{\n  ");
    result_stamp(stdout);
    printf("\"model\": \"%s\", \"device\": \"%s\", \"open_s\": %.2f, \"pool_bytes\": %llu,\n", info->name, info->device,
           now_s() - begin, (unsigned long long)pool.bytes);
    measure_copies(l.engine);
    measure_idle_turns(&l);
    measure_streams(&l);
    printf("}\n");
    rod_state_free(l.state);
    rod_engine_close(l.engine);
    for (int i = 0; i < N_PHASES; i++) free(l.series[i].gaps), free(l.series[i].turns), free(l.series[i].firsts);
    free(l.last_s);
    return 0;
}
