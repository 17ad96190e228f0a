/* masked.c - what structured output costs all streams: tokens a second of N streams without a grammar, with tools in
 * auto mode (a grammar that waits for its opening tag), with some of them inside a call or a schema, and with all.
 * Prints one JSON object.
 *
 * masked [--synthetic NAME] [--device D] [--precision P] [--tokenizer DIR] [--streams N] [--masked N] [--rounds N]
 *        [--seconds S]
 *
 * A synthetic model has no tokenizer: it gets a vocabulary of the published size (vocabulary.h), so masks have the work
 * and the bytes that they have there. A row draws from random weights under its mask at temperature 1: any token that
 * may come. The loads take turns, a round of S seconds each; a load is compared with the plain one of its round, and
 * printed is the median of the rounds. In every load a stream ends after some hundred tokens, or where its grammar
 * does, and begins anew. */
#include "engine/core.h"
#include "engine/base/philox.h"
#include "engine/model/model.h"
#include "tests/bench/vocabulary_tokenizer.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 99, PROMPT_TOK = 64, ANSWER_TOK = 400, MOST_STREAMS = 4096 };
enum load { PLAIN, AUTO, SOME, ALL, N_LOADS };

static const char *synthetic = "rodimus-plus-1.6b", *device = "auto", *precision = "auto", *tokenizer_dir;
static uint32_t n_streams = 64, n_masked = 8, n_rounds = 5;
static double load_s = 1.2;

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "masked: %s\n", err->message);
    exit(1);
}

/* Of a load in a round. */
struct figures {
    double tok_per_s, masked_per_s, step_ms, rows;
};

struct setup {
    struct rod_engine *engine;
    struct rod_grammar *call, *schema, *waiting;
    sem_t woken;
    uint64_t tickets[MOST_STREAMS], n_asked, n_tok, n_masked_tok;
    uint32_t n_running;
    enum load load;
    bool over; /* who ends does not begin anew */
    struct figures of[N_LOADS][MOST_ROUNDS];
};

static void wake(void *arg) { sem_post(&((struct setup *)arg)->woken); }

/* ---- the engine ---- */

/* Calls of 12 tools as the server writes them; lazy: behind the opening tag. */
static struct rod_grammar *open_calls(struct setup *b, bool lazy) {
    static char text[1 << 15];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "{\"open\":\"<tool_call>\",\"close\":\"</tool_call>\",\"many\":true,%s\"tools\":[",
                                lazy ? "\"lazy\":true," : "");
    for (int i = 0; i < 12; i++)
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":"
            "\"string\"},\"query\":{\"type\":\"string\"},\"limit\":{\"type\":\"integer\",\"minimum\":1,"
            "\"maximum\":500},\"recursive\":{\"type\":\"boolean\"},\"encoding\":{\"enum\":[\"utf-8\","
            "\"latin-1\",\"utf-16\"]}},\"required\":[\"path\",\"query\"]}}",
            i ? "," : "", i);
    n += (size_t)snprintf(text + n, sizeof text - n, "]}");
    struct rod_grammar *g;
    struct rod_error err;
    must(rod_grammar_open(b->engine, 0, 0, ROD_GRAMMAR_CALLS, text, n, &g, &err), &err);
    return g;
}

static void open_engine(struct setup *b) {
    struct rod_error err;
    struct model *model;
    must(model_synthetic(synthetic, 1, NULL, &model, &err), &err);
    struct engine_parts parts = {.V = model->dims.V};
    if (tokenizer_dir)
        must(tokenizer_open(tokenizer_dir, &parts.tokenizer, &err), &err);
    else
        must(make_tokenizer(&parts.tokenizer, &err), &err);
    must(backend_find(device, &parts.ops, &err), &err);
    const struct backend_config config = {.n_slots = n_streams,
                                          .max_out = n_streams,
                                          .device = strcmp(device, "auto") ? device : parts.ops->name,
                                          .precision = precision};
    must(parts.ops->open(model, &config, &parts.backend, &err), &err);
    model_close(model);
    const struct rod_engine_config engine = {.max_queue = MOST_STREAMS, .wake = wake, .wake_arg = b};
    must(engine_open_parts(&engine, &parts, &b->engine, &err), &err);
    static const char schema[] =
        "{\"type\":\"array\",\"minItems\":50,\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
        "\"integer\"},\"title\":{\"type\":\"string\",\"maxLength\":60},\"kind\":{\"enum\":[\"tale\",\"song\","
        "\"riddle\"]},\"price\":{\"type\":\"number\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
        "\"maxItems\":5}},\"required\":[\"id\",\"title\",\"kind\"],\"additionalProperties\":false}}";
    must(rod_grammar_open(b->engine, 0, 0, ROD_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &b->schema, &err), &err);
    b->call = open_calls(b, false);
    b->waiting = open_calls(b, true);
}

/* ---- streams ---- */

static bool is_masked(enum load load, uint32_t i) { return load == ALL || (load == SOME && i < n_masked); }

/* Stream i asks. Half of the masked ones are inside a call, half inside a schema. */
static void submit(struct setup *b, uint32_t i) {
    struct rod_request *r = rod_request_new();
    struct rod_error err;
    const bool masked = is_masked(b->load, i);
    const uint64_t number = b->n_asked++;
    if (!r || !(r->prompt = malloc(PROMPT_TOK * sizeof *r->prompt))) exit(1);
    for (uint32_t t = 0; t < PROMPT_TOK; t++)
        r->prompt[t] = (int32_t)(philox_uniform(number + 1, t, 0) * b->engine->parts.V);
    r->n_prompt = PROMPT_TOK;
    r->max_tokens = ANSWER_TOK / 2 + (uint32_t)(philox_uniform(number + 1, 0, 1) * ANSWER_TOK);
    r->ignore_eos = true;
    r->sampling.temperature = 1;
    r->sampling.seed = number;
    r->user = &b->tickets[i];
    if (masked) r->grammar = rod_grammar_ref(i % 2 ? b->call : b->schema);
    if (b->load == AUTO) {
        r->grammar = rod_grammar_ref(b->waiting);
        r->grammar_again = true;
        if (!(r->grammar_open = strdup("<tool_call>"))) exit(1);
    }
    must(rod_submit(b->engine, r, &b->tickets[i], &err), &err);
    b->n_running++;
}

static void take_events(struct setup *b) {
    for (struct rod_event *event; (event = rod_next_event(b->engine)); rod_event_free(event)) {
        const uint32_t i = (uint32_t)((uint64_t *)event->user - b->tickets);
        if (event->kind == ROD_EVENT_ERROR) must(event->error.code, &event->error);
        if (event->kind == ROD_EVENT_DELTA) {
            b->n_tok += event->n_tokens;
            if (is_masked(b->load, i)) b->n_masked_tok += event->n_tokens;
        } else if (event->kind == ROD_EVENT_FINISH) {
            b->n_running--;
            if (!b->over) submit(b, i);
        }
    }
}

static void pull(struct setup *b, double seconds) {
    for (const double end = now_s() + seconds; now_s() < end;) {
        sem_wait(&b->woken);
        take_events(b);
    }
}

static void run(struct setup *b, enum load load, uint32_t round) {
    const struct engine_counters *c = &b->engine->counters;
    b->load = load;
    b->over = false;
    for (uint32_t i = 0; i < n_streams; i++) submit(b, i);
    pull(b, load_s / 3); /* prompts are read, and masks of most states made */
    b->n_tok = b->n_masked_tok = 0;
    const double begin = now_s();
    const uint64_t steps = c->steps, rows = c->rows_sum;
    pull(b, load_s);
    const double seconds = now_s() - begin, n_steps = (double)(c->steps - steps);
    b->of[load][round] = (struct figures){(double)b->n_tok / seconds, (double)b->n_masked_tok / seconds,
                                          1e3 * seconds / n_steps, (double)(c->rows_sum - rows) / n_steps};
    b->over = true;
    for (uint32_t i = 0; i < n_streams; i++) rod_cancel(b->engine, b->tickets[i]);
    while (b->n_running) {
        sem_wait(&b->woken);
        take_events(b);
    }
}

/* ---- figures ---- */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of a figure of a load in each round, over that of the plain load in the same round where it is a ratio. */
static double median(const struct setup *b, int load, size_t field, bool of_plain) {
    double v[MOST_ROUNDS];
    for (uint32_t i = 0; i < n_rounds; i++) {
        v[i] = *(const double *)((const char *)&b->of[load][i] + field);
        if (of_plain) v[i] /= *(const double *)((const char *)&b->of[PLAIN][i] + field);
    }
    qsort(v, n_rounds, sizeof *v, compare);
    return v[n_rounds / 2];
}

static void print(const struct setup *b) {
    static const char *const names[] = {"plain", "tools_auto", "some_masked", "all_masked"};
    const size_t tok = offsetof(struct figures, tok_per_s);
    printf("\"model\": \"%s\", \"device\": \"%s\", \"streams\": %u, \"some\": %u, \"rounds\": %u, \"seconds\": %.1f",
           synthetic, b->engine->backend_info.device, n_streams, n_masked, n_rounds, load_s);
    for (int load = 0; load < N_LOADS; load++) {
        printf(",\n  \"%s\": {\"tok_per_s\": %.0f, \"of_plain\": %.3f, \"masked_tok_per_s\": %.0f, \"step_ms\": %.3f, "
               "\"rows\": %.1f, \"rounds_of_plain\": [",
               names[load], median(b, load, tok, false), median(b, load, tok, true),
               median(b, load, offsetof(struct figures, masked_per_s), false),
               median(b, load, offsetof(struct figures, step_ms), false),
               median(b, load, offsetof(struct figures, rows), false));
        for (uint32_t i = 0; i < n_rounds; i++)
            printf("%s%.3f", i ? ", " : "", b->of[load][i].tok_per_s / b->of[PLAIN][i].tok_per_s);
        printf("]}");
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
        else if (!strcmp(name, "--rounds"))
            n_rounds = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--seconds"))
            load_s = strtod(value, NULL);
        else
            synthetic = NULL;
    }
    if (argc % 2 && synthetic && n_streams && n_streams <= MOST_STREAMS && n_masked <= n_streams && n_rounds &&
        n_rounds <= MOST_ROUNDS && load_s > 0)
        return;
    fprintf(stderr, "usage: masked [--synthetic NAME] [--device D] [--precision P] [--tokenizer DIR] [--streams N] "
                    "[--masked N] [--rounds N] [--seconds S]\n");
    exit(2);
}

int main(int argc, char **argv) {
    static struct setup b;
    parse(argc, argv);
    sem_init(&b.woken, 0, 0);
    printf("{\n  ");
    result_stamp(stdout);
    open_engine(&b);
    for (uint32_t round = 0; round < n_rounds; round++)
        for (int load = 0; load < N_LOADS; load++) run(&b, (enum load)load, round);
    print(&b);
    rod_grammar_close(b.call);
    rod_grammar_close(b.schema);
    rod_grammar_close(b.waiting);
    rod_engine_close(b.engine);
    return 0;
}
