/* dear.c - a stream of one key beside rows of another one, over 126,464 tokens on a device of 5 ms a step that computes
 * nothing: without rows, beside rows of an ordinary schema, and beside rows whose masks are dear. The three take turns;
 * printed are the stream's tokens a second and its longest gap, the median of the rounds, as one JSON object.
 *
 * dear [ROUNDS [SECONDS]]. The rows draw at random under their masks, on the host; one that ends begins anew. */
#include "engine/core.h"
#include "engine/model/model.h"
#include "tests/bench/vocabulary_tokenizer.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, MOST_ROUNDS = 99 };
enum load { ALONE, ORDINARY, DEAR, N_LOADS };
static const char *const names[N_LOADS] = {"alone", "ordinary", "dear"};

struct figures {
    double tok_per_s[MOST_ROUNDS], gap_ms[MOST_ROUNDS], row_tok_per_s[MOST_ROUNDS], rss_mb[MOST_ROUNDS];
};

struct setup {
    struct rod_engine *engine;
    struct rod_grammar *of[N_LOADS];
    sem_t woken;
    uint64_t n_asked, n_tok, n_row_tok, last_ns, gap_ns, tickets[ROWS + 1];
    uint32_t n_running;
    bool over;
    struct figures figures[N_LOADS];
};

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "dear: %s\n", err->message);
    exit(1);
}

static void wake(void *arg) { sem_post(&((struct setup *)arg)->woken); }

static double rss_mb(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %lu", &pages) != 1) exit(1);
    fclose(f);
    return (double)pages * 4096e-6;
}

static void open_engine(struct setup *b) {
    static const char schema[] =
        "{\"type\":\"array\",\"minItems\":1000,\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
        "\"integer\"},\"title\":{\"type\":\"string\",\"maxLength\":60},\"kind\":{\"enum\":[\"tale\",\"song\"]}},"
        "\"required\":[\"id\",\"title\",\"kind\"],\"additionalProperties\":false}}";
    static const char regex[] = "^(.*[a-m].{24}N?)+$";
    struct rod_error err;
    struct model *model;
    must(model_synthetic("rodimus-plus-1.6b", 1, NULL, &model, &err), &err);
    struct engine_parts parts = {.V = model->dims.V};
    must(make_tokenizer(&parts.tokenizer, &err), &err);
    must(backend_find("null", &parts.ops, &err), &err);
    const struct backend_config config = {
        .n_slots = ROWS + 1, .max_out = ROWS + 1, .device = "null:5", .precision = "auto"};
    must(parts.ops->open(model, &config, &parts.backend, &err), &err);
    model_close(model);
    const struct rod_engine_config engine = {.max_queue = 2 * ROWS, .wake = wake, .wake_arg = b};
    must(engine_open_parts(&engine, &parts, &b->engine, &err), &err);
    must(rod_grammar_open(b->engine, 0, 0, ROD_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &b->of[ORDINARY], &err),
         &err);
    must(rod_grammar_open(b->engine, 0, 0, ROD_GRAMMAR_REGEX, regex, strlen(regex), &b->of[DEAR], &err), &err);
}

/* Row i of ROWS, or the stream. */
static void submit(struct setup *b, uint32_t i, enum load load) {
    struct rod_request *r = rod_request_new();
    struct rod_error err;
    if (!r || !(r->prompt = calloc(1, sizeof *r->prompt))) exit(1);
    r->n_prompt = 1;
    r->prompt[0] = 300;
    r->ignore_eos = true;
    r->max_tokens = 1000000;
    r->sampling.temperature = 1;
    r->sampling.seed = ++b->n_asked;
    r->user = &b->tickets[i];
    r->key = i < ROWS ? 1 : 2;
    if (i < ROWS) {
        r->grammar = rod_grammar_ref(b->of[load]);
        r->bad = calloc(1, sizeof *r->bad); /* the host draws */
        if (!r->bad || !(r->bad[0].ids = calloc(1, sizeof *r->bad[0].ids))) exit(1);
        r->bad[0].n_ids = r->n_bad = 1;
    }
    must(rod_submit(b->engine, r, &b->tickets[i], &err), &err);
    b->n_running++;
}

static void take_events(struct setup *b, enum load load) {
    for (struct rod_event *e; (e = rod_next_event(b->engine)); rod_event_free(e)) {
        const uint32_t i = (uint32_t)((uint64_t *)e->user - b->tickets);
        if (e->kind == ROD_EVENT_DELTA && i < ROWS) b->n_row_tok += e->n_tokens;
        if (e->kind == ROD_EVENT_DELTA && i == ROWS) {
            const uint64_t now_ns = clock_now_ns();
            if (b->last_ns && now_ns - b->last_ns > b->gap_ns) b->gap_ns = now_ns - b->last_ns;
            b->last_ns = now_ns;
            b->n_tok++;
        }
        if (e->kind != ROD_EVENT_FINISH && e->kind != ROD_EVENT_ERROR) continue;
        b->n_running--;
        if (!b->over) submit(b, i, load); /* too ambiguous, or what it describes has ended */
    }
}

static void wait_until(struct setup *b, enum load load, double s) {
    const uint64_t end_ns = clock_now_ns() + (uint64_t)(s * 1e9);
    while (clock_now_ns() < end_ns && (b->n_running || !b->over)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 2000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        sem_timedwait(&b->woken, &until);
        take_events(b, load);
    }
}

static void run(struct setup *b, enum load load, uint32_t round, double s) {
    struct figures *f = &b->figures[load];
    b->over = false;
    for (uint32_t i = 0; i < ROWS && load != ALONE; i++) submit(b, i, load);
    submit(b, ROWS, load);
    wait_until(b, load, s / 4);
    b->n_tok = b->n_row_tok = b->gap_ns = b->last_ns = 0;
    wait_until(b, load, s);
    f->tok_per_s[round] = (double)b->n_tok / s;
    f->row_tok_per_s[round] = (double)b->n_row_tok / s;
    f->gap_ms[round] = (double)b->gap_ns * 1e-6;
    f->rss_mb[round] = rss_mb();
    b->over = true;
    for (uint32_t i = 0; i <= ROWS; i++) rod_cancel(b->engine, b->tickets[i]);
    wait_until(b, load, 60);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *of, uint32_t n) {
    qsort(of, n, sizeof *of, by_size);
    return of[n / 2];
}

int main(int argc, char **argv) {
    static struct setup b;
    const uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 3;
    const double s = argc > 2 ? strtod(argv[2], NULL) : 4;
    if (!n || n > MOST_ROUNDS || !(s > 0)) return 2;
    sem_init(&b.woken, 0, 0);
    open_engine(&b);
    for (uint32_t round = 0; round < n; round++)
        for (int load = 0; load < N_LOADS; load++) run(&b, (enum load)load, round, s);
    printf("{\n  ");
    result_stamp(stdout);
    printf("\"tokens\": %d, \"rows\": %d, \"step_ms\": 5, \"rounds\": %u, \"seconds\": %.1f", VOCABULARY, ROWS, n, s);
    for (int load = 0; load < N_LOADS; load++) {
        struct figures *f = &b.figures[load];
        printf(
            ",\n  \"%s\": {\"tok_per_s\": %.1f, \"longest_gap_ms\": %.1f, \"rows_tok_per_s\": %.1f, \"rss_mb\": %.0f}",
            names[load], median(f->tok_per_s, n), median(f->gap_ms, n), median(f->row_tok_per_s, n),
            median(f->rss_mb, n));
    }
    printf("\n}\n");
    rod_grammar_close(b.of[ORDINARY]);
    rod_grammar_close(b.of[DEAR]);
    rod_engine_close(b.engine);
    return 0;
}
