/* sessions.c - what a session's turn costs beside a request without one: going on from host memory, from a file,
 * keeping the end, many ends at once, a fork. Prints one JSON object.
 *
 * sessions --model DIR | --synthetic NAME [--device D] [--dir STATE_DIR] [--context N] [--repeats N]
 *
 * A turn is one new token read and one generated; its time to the token is compared with that of a request of two
 * tokens (the pending one and the new one), so that the difference is the session's. */
#include "engine/core.h"
#include "tests/result_stamp.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 64, MOST = 200 };

static const char *model_dir, *synthetic, *device = "auto", *dir;
static uint32_t context_tok = 512, n_repeats = 31;
static struct rod_engine *engine;
static sem_t woken;

static double now_ms(void) { return (double)clock_now_ns() * 1e-6; }

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "sessions: %s\n", err->message);
    exit(1);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double *v, size_t n, double q) {
    qsort(v, n, sizeof *v, compare);
    const size_t at = (size_t)(q * (double)n);
    return n ? v[at < n ? at : n - 1] : 0;
}

static void wake(void *arg) {
    (void)arg;
    sem_post(&woken);
}

static void open_engine(void) {
    struct rod_error err;
    const struct rod_engine_config config = {.model_dir = model_dir,
                                             .synthetic = synthetic,
                                             .device = device,
                                             .n_slots = AT_ONCE,
                                             .max_queue = 1000,
                                             .state_dir = dir,
                                             .wake = wake};
    must(rod_engine_open(&config, &engine, &err), &err);
}

struct timing {
    double begin_ms, first_ms, last_ms, end_ms;
};

static void submit(struct timing *t, const char *session, uint32_t n_prompt) {
    struct rod_request *r = rod_request_new();
    struct rod_error err;
    uint64_t ticket;
    r->prompt = malloc(n_prompt * sizeof *r->prompt);
    for (r->n_prompt = 0; r->n_prompt < n_prompt; r->n_prompt++)
        r->prompt[r->n_prompt] = 300 + (int32_t)r->n_prompt % 700;
    r->max_tokens = 1;
    r->ignore_eos = true;
    r->sampling.temperature = 0;
    r->user = t;
    if (session) {
        r->turn = calloc(1, sizeof *r->turn);
        r->turn->tenant = strdup("");
        r->turn->session = strdup(session);
        r->turn->create = true;
    }
    *t = (struct timing){.begin_ms = now_ms()};
    must(rod_submit(engine, r, &ticket, &err), &err);
}

static void wait_all(struct timing *t, size_t n) {
    for (size_t left = n; left; sem_wait(&woken))
        for (struct rod_event *e; (e = rod_next_event(engine)); rod_event_free(e)) {
            struct timing *of = e->user;
            if (e->kind == ROD_EVENT_ERROR) must(1, &e->error);
            if (e->kind == ROD_EVENT_DELTA) of->last_ms = now_ms();
            if (e->kind == ROD_EVENT_DELTA && !of->first_ms) of->first_ms = of->last_ms;
            if (e->kind == ROD_EVENT_FINISH) of->end_ms = now_ms(), left--;
            if (!left) {
                rod_event_free(e);
                return;
            }
        }
    (void)t;
}

static struct timing run(const char *session, uint32_t n_prompt) {
    struct timing t;
    submit(&t, session, n_prompt);
    wait_all(&t, 1);
    return t;
}

static const char *name_of(uint32_t i, char name[16]) {
    snprintf(name, 16, "s%u", i);
    return name;
}

static void measure(void) {
    double plain[MOST], host[MOST], file[MOST], save[MOST], fork[MOST];
    struct timing many[AT_ONCE];
    struct rod_session_info info;
    struct rod_error err;
    char name[16], other[16];
    open_engine();
    for (uint32_t i = 0; i < n_repeats; i++) run(name_of(i, name), context_tok);
    for (uint32_t i = 0; i < n_repeats; i++) {
        const struct timing t = run(NULL, 2);
        plain[i] = t.first_ms - t.begin_ms;
    }
    for (uint32_t i = 0; i < n_repeats; i++) {
        const struct timing t = run(name_of(i, name), 1);
        host[i] = t.first_ms - t.begin_ms;
        save[i] = t.end_ms - t.last_ms;
    }
    must(rod_session_get(engine, "", "s0", &info, &err), &err);
    for (uint32_t i = 0; i < n_repeats; i++) {
        const double begin_ms = now_ms();
        snprintf(other, sizeof other, "f%u", i);
        must(rod_session_create(engine, "", &(struct rod_session_new){.id = other, .from = name_of(i, name)}, &info,
                                &err),
             &err);
        fork[i] = now_ms() - begin_ms;
    }
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        snprintf(other, sizeof other, "m%u", i);
        submit(&many[i], other, 16);
    }
    wait_all(many, AT_ONCE);
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        snprintf(other, sizeof other, "m%u", i);
        submit(&many[i], other, 1);
    }
    wait_all(many, AT_ONCE);
    double last_ms = 0, end_ms = 0;
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        if (many[i].last_ms > last_ms) last_ms = many[i].last_ms;
        if (many[i].end_ms > end_ms) end_ms = many[i].end_ms;
    }
    rod_engine_close(engine);
    open_engine();
    run(NULL, 2);
    for (uint32_t i = 0; i < n_repeats; i++) {
        const struct timing t = run(name_of(i, name), 1);
        file[i] = t.first_ms - t.begin_ms;
    }
    printf("{\"what\": \"what a session's turn costs; ms\", ");
    result_stamp(stdout);
    printf("\"model\": \"%s\", \"device\": \"%s\",\n", rod_engine_info(engine)->name, rod_engine_info(engine)->device);
    printf(" \"state_bytes\": %llu, \"context_tok\": %u, \"repeats\": %u,\n", (unsigned long long)info.state_bytes,
           context_tok, n_repeats);
    const double p = quantile(plain, n_repeats, 0.5);
    printf(" \"token_without_session\": %.3f, \"token_from_host\": %.3f, \"token_from_file\": %.3f,\n", p,
           quantile(host, n_repeats, 0.5), quantile(file, n_repeats, 0.5));
    printf(" \"resume_from_host\": %.3f, \"resume_from_file\": %.3f,\n", quantile(host, n_repeats, 0.5) - p,
           quantile(file, n_repeats, 0.5) - p);
    printf(" \"fork\": %.3f, \"save\": %.3f, \"save_99\": %.3f, \"save_of_%d_at_once\": %.3f}\n",
           quantile(fork, n_repeats, 0.5), quantile(save, n_repeats, 0.5), quantile(save, n_repeats, 0.99), AT_ONCE,
           end_ms - last_ms);
    rod_engine_close(engine);
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--model")) model_dir = argv[i + 1];
        if (!strcmp(argv[i], "--synthetic")) synthetic = argv[i + 1];
        if (!strcmp(argv[i], "--device")) device = argv[i + 1];
        if (!strcmp(argv[i], "--dir")) dir = argv[i + 1];
        if (!strcmp(argv[i], "--context")) context_tok = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--repeats")) n_repeats = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    }
    if (n_repeats < 1 || n_repeats > MOST || !model_dir == !synthetic) return 2;
    sem_init(&woken, 0, 0);
    measure();
    return 0;
}
