/* conversations.c - the first token of a conversation's next request, which brings everything again: its new tokens
 * alone, behind a state in host memory, and behind one in a file, in turn on one engine. Prints one JSON object.
 *
 * conversations --model DIR | --synthetic NAME --dir DIR [--device D] [--precision P] [--context N] [--new N] [--answer
 * N] [--slots N] [--rounds N]
 *
 * A time is the engine's: from the request's slot to its first token, with the state's way in, the reading, and the
 * copy that the conversation keeps of the prompt's end. */
#include "engine/core.h"
#include "engine/base/philox.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 99, MOST_ANSWER = 1024 };
enum place { ALONE, IN_MEMORY, IN_FILE, N_PLACES };
static const char *const names[N_PLACES] = {"alone", "memory", "file"};

struct bench {
    struct rod_engine *engine;
    sem_t woken;
    int32_t *ids; /* the conversation so far */
    size_t n, n_first;
    uint64_t seed;
    uint32_t answer;       /* tokens */
    atomic_uint n_in_slot; /* states that were still in a free slot */
};

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "conversations: %s\n", err->message);
    exit(1);
}

static void note(void *arg, int level, const char *line) {
    (void)level;
    if (strstr(line, "is still in slot")) atomic_fetch_add(&((struct bench *)arg)->n_in_slot, 1);
}

static void wake(void *arg) { sem_post(&((struct bench *)arg)->woken); }

static void grow(struct bench *b, size_t n) {
    b->ids = realloc(b->ids, (b->n + n + MOST_ANSWER) * sizeof *b->ids);
    if (!b->ids) exit(1);
    for (size_t i = 0; i < n; i++)
        b->ids[b->n + i] = (int32_t)(philox_uniform(b->seed, b->n + i, 0) * b->engine->parts.V);
    b->n += n;
}

/* Time to the first token in ms; *cached: tokens that were not read. */
static double ask(struct bench *b, const int32_t *ids, size_t n, bool named, uint64_t *cached) {
    struct rod_request *r = rod_request_new();
    struct rod_error err;
    uint64_t ticket;
    double ms = 0;
    if (!r || !(r->prompt = malloc(n * sizeof *ids)) || !(r->marks = malloc(2 * sizeof *r->marks))) exit(1);
    memcpy(r->prompt, ids, n * sizeof *ids);
    r->n_prompt = n;
    r->marks[0] = b->n_first;
    r->marks[1] = n - 4; /* what opens the answer */
    r->n_marks = 2;
    r->n_user_texts = 1;
    r->max_tokens = b->answer;
    r->ignore_eos = true;
    r->sampling.temperature = 0;
    if (named) r->conversation = strdup("bench");
    must(rod_submit(b->engine, r, &ticket, &err), &err);
    for (bool ended = false; !ended;) {
        struct rod_event *e = rod_next_event(b->engine);
        if (!e) {
            sem_wait(&b->woken);
            continue;
        }
        if (e->kind == ROD_EVENT_ERROR) must(e->error.code, &e->error);
        for (size_t i = 0; named && i < e->n_tokens; i++) b->ids[b->n++] = e->tokens[i].id;
        ended = e->kind == ROD_EVENT_FINISH;
        if (ended) ms = (double)e->prefill_ns * 1e-6, *cached = e->cached_tok;
        rod_event_free(e);
    }
    return ms;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The engine sleeps: nobody else touches the index. */
static void forget_memory(struct bench *b) {
    while (prefix_evict(b->engine->prefixes, clock_now_ns())) {}
}

static void measure(struct bench *b, size_t n_context, size_t n_new, int rounds) {
    static double ms[N_PLACES][MOST_ROUNDS];
    uint64_t cached, n_wrong = 0;
    b->n_first = 100;
    grow(b, n_context);
    const double first_ms = ask(b, b->ids, b->n, true, &cached);
    for (int round = -1; round < rounds; round++) /* the first is not counted */
        for (int place = 0; place < N_PLACES; place++) {
            const size_t before = b->n;
            double took;
            if (place == ALONE) {
                struct bench other = {.engine = b->engine, .answer = b->answer, .seed = 1000 + (uint64_t)round};
                grow(&other, n_new);
                took = ask(b, other.ids, other.n, false, &cached);
                n_wrong += cached != 0;
                free(other.ids);
            } else {
                if (place == IN_FILE) forget_memory(b);
                grow(b, n_new - 1); /* and the last token of the answer */
                took = ask(b, b->ids, b->n, true, &cached);
                n_wrong += cached + 1 != before;
            }
            if (round >= 0) ms[place][round] = took;
        }
    printf("{\n  ");
    result_stamp(stdout);
    printf("  \"device\": \"%s\", \"model\": \"%s\", \"state_bytes\": %llu,\n", rod_engine_info(b->engine)->device,
           rod_engine_info(b->engine)->name, (unsigned long long)rod_engine_info(b->engine)->session_bytes);
    printf("  \"context\": %zu, \"new\": %zu, \"rounds\": %d, \"context_ms\": %.1f, \"began_elsewhere\": %llu,\n  "
           "\"answer\": %u, \"states_in_slots\": %u,\n",
           n_context, n_new, rounds, first_ms, (unsigned long long)n_wrong, b->answer, atomic_load(&b->n_in_slot));
    for (int place = 0; place < N_PLACES; place++) {
        printf("  \"%s_ms\": [", names[place]);
        for (int i = 0; i < rounds; i++) printf("%s%.3f", i ? ", " : "", ms[place][i]);
        qsort(ms[place], (size_t)rounds, sizeof **ms, compare);
        printf("],\n");
    }
    const double alone = ms[ALONE][rounds / 2];
    for (int place = 0; place < N_PLACES; place++)
        printf("  \"%s_median_ms\": %.3f, \"%s_over_alone\": %.4f%s\n", names[place], ms[place][rounds / 2],
               names[place], ms[place][rounds / 2] / alone, place + 1 < N_PLACES ? "," : "");
    printf("}\n");
}

int main(int argc, char **argv) {
    struct bench b = {.seed = 7, .answer = 16};
    size_t n_context = 20000, n_new = 800;
    int rounds = 7;
    struct rod_engine_config config = {
        .device = "auto", .precision = "auto", .n_slots = 4, .prefix_cache_bytes = 1 << 30};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--model")) config.model_dir = value;
        if (!strcmp(name, "--synthetic")) config.synthetic = value;
        if (!strcmp(name, "--dir")) config.state_dir = value;
        if (!strcmp(name, "--device")) config.device = value;
        if (!strcmp(name, "--precision")) config.precision = value;
        if (!strcmp(name, "--context")) n_context = strtoull(value, NULL, 10);
        if (!strcmp(name, "--new")) n_new = strtoull(value, NULL, 10);
        if (!strcmp(name, "--answer")) b.answer = (uint32_t)strtoul(value, NULL, 10);
        if (!strcmp(name, "--slots")) config.n_slots = (uint32_t)strtoul(value, NULL, 10);
        if (!strcmp(name, "--rounds")) rounds = (int)strtol(value, NULL, 10);
    }
    if (!config.state_dir || rounds < 1 || rounds > MOST_ROUNDS || n_context < 200 || n_new < 200) {
        fprintf(stderr,
                "conversations: wants --model DIR or --synthetic NAME, and --dir DIR; at least 200 tokens each\n");
        return 2;
    }
    struct rod_error err;
    sem_init(&b.woken, 0, 0);
    config.wake = wake;
    config.wake_arg = &b;
    config.log = note;
    config.log_arg = &b;
    config.state_host_bytes = (uint64_t)4 << 30;
    config.max_queue = 10;
    must(rod_engine_open(&config, &b.engine, &err), &err);
    measure(&b, n_context, n_new, rounds);
    rod_engine_close(b.engine);
    free(b.ids);
    return 0;
}
