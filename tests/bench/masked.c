/* masked.c - what structured output costs all streams: tokens a second of N streams without a grammar, with one that is
 * off (tools in auto mode), with one that is on for some of them, and for all. Prints one JSON object.
 *
 * masked [--synthetic NAME] [--device D] [--precision P] [--tokenizer DIR] [--streams N] [--masked N] [--seconds S]
 *
 * A synthetic model has no tokenizer: that of DIR gives the first ids their bytes, so masks are of the model's V bits
 * and only those ids may come. What masks cost with a large vocabulary is measured by mask.c. The loads take turns,
 * three rounds of S seconds each; printed is the median. */
#include "engine/core.h"
#include "engine/base/philox.h"
#include "engine/model/model.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, PROMPT_TOK = 64, MOST_STREAMS = 4096 };
enum load { PLAIN, AUTO, SOME, ALL, N_LOADS };

static const char *synthetic = "rodimus-plus-1.6b", *device = "auto", *precision = "auto";
static const char *tokenizer_dir = "config/models/tales";
static uint32_t n_streams = 64, n_masked = 8;
static double load_s = 3;

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "masked: %s\n", err->message);
    exit(1);
}

struct bench {
    struct rod_engine *engine;
    struct rod_grammar *grammar;
    sem_t woken;
    uint64_t tickets[MOST_STREAMS], n_tok, n_masked_tok;
    uint32_t n_running;
    double tok_per_s[N_LOADS][ROUNDS], masked_per_s[N_LOADS][ROUNDS];
};

static void wake(void *arg) { sem_post(&((struct bench *)arg)->woken); }

static void open_engine(struct bench *b) {
    struct rod_error err;
    struct model *model;
    must(model_synthetic(synthetic, 1, &model, &err), &err);
    struct engine_parts parts = {.V = model->dims.V};
    must(tokenizer_open(tokenizer_dir, &parts.tokenizer, &err), &err);
    must(backend_find(device, &parts.ops, &err), &err);
    const struct backend_config config = {.n_slots = n_streams,
                                          .max_out = n_streams,
                                          .device = strcmp(device, "auto") ? device : parts.ops->name,
                                          .precision = precision};
    must(parts.ops->open(model, &config, &parts.backend, &err), &err);
    model_close(model);
    const struct rod_engine_config engine = {.max_queue = MOST_STREAMS, .wake = wake, .wake_arg = b};
    must(engine_open_parts(&engine, &parts, &b->engine, &err), &err);
    static const char records[] = "(\\{\"name\":\"[a-z ]{1,40}\",\"n\":[0-9]{1,5}\\},?)*"; /* it has no end */
    must(rod_grammar_open(b->engine, ROD_GRAMMAR_REGEX, records, strlen(records), &b->grammar, &err), &err);
}

static bool is_masked(enum load load, uint32_t i) { return load == ALL || (load == SOME && i < n_masked); }

static void submit(struct bench *b, enum load load, uint32_t i) {
    struct rod_request *r = rod_request_new();
    struct rod_error err;
    if (!r || !(r->prompt = malloc(PROMPT_TOK * sizeof *r->prompt))) exit(1);
    for (uint32_t t = 0; t < PROMPT_TOK; t++)
        r->prompt[t] = (int32_t)(philox_uniform(i + 1, t, 0) * b->engine->parts.V);
    r->n_prompt = PROMPT_TOK;
    r->max_tokens = INT32_MAX;
    r->ignore_eos = true;
    r->sampling.temperature = 1;
    r->sampling.seed = i;
    r->user = is_masked(load, i) ? &b->n_masked_tok : &b->n_tok;
    if (load == AUTO || is_masked(load, i)) r->grammar = rod_grammar_share(b->grammar);
    if (load == AUTO && !(r->grammar_open = strdup("<tool_call>"))) exit(1);
    r->grammar_again = load == AUTO;
    must(rod_submit(b->engine, r, &b->tickets[i], &err), &err);
    b->n_running++;
}

static void take_events(struct bench *b) {
    for (struct rod_event *event; (event = rod_next_event(b->engine)); rod_event_free(event)) {
        if (event->kind == ROD_EVENT_ERROR) must(event->error.code, &event->error);
        if (event->kind == ROD_EVENT_DELTA)
            *(uint64_t *)event->user += event->n_tokens;
        else if (event->kind == ROD_EVENT_FINISH)
            b->n_running--;
    }
}

static void pull(struct bench *b, double seconds) {
    for (const double end = now_s() + seconds; now_s() < end;) {
        sem_wait(&b->woken);
        take_events(b);
    }
}

static void run(struct bench *b, enum load load, int round) {
    for (uint32_t i = 0; i < n_streams; i++) submit(b, load, i);
    pull(b, load_s / 3); /* prompts are read, and masks of most states made */
    b->n_tok = b->n_masked_tok = 0;
    const double begin = now_s();
    pull(b, load_s);
    const double seconds = now_s() - begin;
    b->tok_per_s[load][round] = (double)(b->n_tok + b->n_masked_tok) / seconds;
    b->masked_per_s[load][round] = (double)b->n_masked_tok / seconds;
    if (b->n_running != n_streams) fprintf(stderr, "masked: %u streams ended\n", n_streams - b->n_running);
    for (uint32_t i = 0; i < n_streams; i++) rod_cancel(b->engine, b->tickets[i]);
    while (b->n_running) {
        sem_wait(&b->woken);
        take_events(b);
    }
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double v[ROUNDS]) {
    qsort(v, ROUNDS, sizeof *v, compare);
    return v[ROUNDS / 2];
}

static void print(struct bench *b) {
    static const char *const names[] = {"plain", "grammar_off", "some_masked", "all_masked"};
    const double plain = median(b->tok_per_s[PLAIN]);
    printf("\"model\": \"%s\", \"device\": \"%s\", \"streams\": %u, \"some\": %u", synthetic,
           b->engine->backend_info.device, n_streams, n_masked);
    for (int load = 0; load < N_LOADS; load++) {
        const double tok_per_s = median(b->tok_per_s[load]);
        printf(",\n  \"%s\": {\"tok_per_s\": %.0f, \"of_plain\": %.3f, \"masked_tok_per_s\": %.0f}", names[load],
               tok_per_s, tok_per_s / plain, median(b->masked_per_s[load]));
    }
    printf("\n}\n");
}

static void parse(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--synthetic"))
            synthetic = value;
        else if (!strcmp(name, "--device"))
            device = value;
        else if (!strcmp(name, "--precision"))
            precision = value;
        else if (!strcmp(name, "--tokenizer"))
            tokenizer_dir = value;
        else if (!strcmp(name, "--streams"))
            n_streams = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--masked"))
            n_masked = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--seconds"))
            load_s = strtod(value, NULL);
        else
            synthetic = NULL;
    }
    if (argc % 2 && synthetic && n_streams && n_streams <= MOST_STREAMS && n_masked <= n_streams && load_s > 0) return;
    fprintf(stderr, "usage: masked [--synthetic NAME] [--device D] [--precision P] [--tokenizer DIR] [--streams N] "
                    "[--masked N] [--seconds S]\n");
    exit(2);
}

int main(int argc, char **argv) {
    static struct bench b;
    parse(argc, argv);
    sem_init(&b.woken, 0, 0);
    printf("{\n  ");
    result_stamp(stdout);
    open_engine(&b);
    for (int round = 0; round < ROUNDS; round++)
        for (int load = 0; load < N_LOADS; load++) run(&b, (enum load)load, round);
    print(&b);
    rod_grammar_close(b.grammar);
    rod_engine_close(b.engine);
    return 0;
}
