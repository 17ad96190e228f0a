/* bench_drafts.c - `rodimus bench --acceptance P`: what drafts give at a known rate of right ones. Greedy sessions
 * generate, first without drafts; then each has its own plain tokens as a prediction, each replaced with probability
 * 1 - P. Each run uses the whole engine, whose policy says how long drafts are. Random weights give no token twice:
 * else their text goes round in circles, which the lookup finds, whatever the predictions are worth. */
#include "bench_drafts.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/philox.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct stream {
    int32_t *ids;         /* the plain tokens */
    size_t n_ids, n_seen; /* n_seen: of this run */
    uint64_t accepted, rejected;
};

struct drafts {
    const struct bench_drafts *options;
    struct rod_engine *engine;
    struct stream *streams;
    uint32_t n_streams, V;
    uint32_t n_begun; /* streams that have their first token */
    uint32_t n_ended;
    bool too_few;          /* one ended before all had begun */
    size_t n_counted;      /* tokens while all of them generate */
    double begin_s, end_s; /* of that time */
    struct rod_error err;  /* code 0: none */
    sem_t woken;
};

static void drafts_wake(void *arg) { sem_post(&((struct drafts *)arg)->woken); }

static double drafts_now_s(void) { return 1e-9 * (double)clock_now_ns(); }

static int32_t drafts_id(const struct drafts *d, uint64_t a, uint32_t b) {
    return (int32_t)(philox_uniform(a, b, 77) * d->V);
}

static int drafts_submit(struct drafts *d, uint32_t i, bool plain, double acceptance, struct rod_error *err) {
    const struct bench_drafts *o = d->options;
    struct stream *s = &d->streams[i];
    struct rod_request *r = rod_request_new();
    uint64_t ticket;
    if (!r) return rod_fail_no_memory(err);
    r->user = s;
    r->n_prompt = (size_t)o->bench->contexts[0];
    r->prompt = malloc(r->n_prompt * sizeof *r->prompt);
    r->max_tokens = o->n_tok;
    r->ignore_eos = true;
    r->sampling.temperature = 0;
    if (o->bench->synthetic) r->sampling.repetition_penalty = 1e3f;
    r->never_speculate = plain;
    r->n_prediction = plain ? 0 : s->n_ids;
    r->prediction = plain ? NULL : malloc(s->n_ids * sizeof *r->prediction);
    if (!r->prompt || (r->n_prediction && !r->prediction)) {
        rod_request_free(r);
        return rod_fail_no_memory(err);
    }
    for (size_t k = 0; k < r->n_prompt; k++) r->prompt[k] = drafts_id(d, 1 + i, (uint32_t)k);
    for (size_t k = 0; k < r->n_prediction; k++) {
        const bool right = philox_uniform(1000003u * (i + 1), (uint32_t)k, 5) < acceptance;
        r->prediction[k] = right ? s->ids[k] : (s->ids[k] + 1) % (int32_t)d->V;
    }
    if (plain) s->n_ids = 0;
    *s = (struct stream){.ids = s->ids, .n_ids = s->n_ids};
    const int rc = rod_submit(d->engine, r, &ticket, err);
    if (rc) rod_request_free(r);
    return rc;
}

/* Drafts change no token: a run that has others is a fault, not a figure. */
static void drafts_see(struct drafts *d, struct stream *s, int32_t id, bool plain) {
    if (plain) s->ids[s->n_ids++] = id;
    if (s->ids[s->n_seen++] != id && !d->err.code)
        rod_fail(&d->err, ROD_EINTERNAL, "With drafts a session's token %zu is another one.", s->n_seen);
}

static void drafts_take(struct drafts *d, struct rod_event *e, bool plain, uint32_t *n_left) {
    struct stream *s = e->user;
    if (e->kind == ROD_EVENT_DELTA) {
        if (d->n_begun == d->n_streams && !d->n_ended) d->n_counted += e->n_tokens, d->end_s = drafts_now_s();
        if (!s->n_seen && ++d->n_begun == d->n_streams) d->begin_s = drafts_now_s();
        for (size_t k = 0; k < e->n_tokens && s->n_seen < d->options->n_tok; k++)
            drafts_see(d, s, e->tokens[k].id, plain);
    } else if (e->kind == ROD_EVENT_FINISH || e->kind == ROD_EVENT_ERROR) {
        s->accepted = e->accepted_tok, s->rejected = e->rejected_tok;
        d->too_few |= d->n_begun < d->n_streams;
        d->n_ended++;
        if (e->kind == ROD_EVENT_ERROR && !d->err.code) d->err = e->error;
        --*n_left;
    }
    rod_event_free(e);
}

/* All streams together; tokens a second from the time when all have their first one to that when one has its last. */
static int drafts_run(struct drafts *d, bool plain, double acceptance, struct bench_drafts_row *row,
                      struct rod_error *err) {
    uint32_t n_left = 0;
    d->n_begun = 0, d->n_ended = 0, d->n_counted = 0, d->too_few = false;
    for (uint32_t i = 0; i < d->n_streams; i++, n_left++) {
        const int rc = drafts_submit(d, i, plain, acceptance, err);
        if (rc) return rc;
    }
    while (n_left) {
        sem_wait(&d->woken);
        for (struct rod_event *e; (e = rod_next_event(d->engine));) drafts_take(d, e, plain, &n_left);
    }
    if (d->err.code) {
        *err = d->err;
        return err->code;
    }
    *row = (struct bench_drafts_row){.n_sessions = d->n_streams, .acceptance = acceptance, .plain = plain};
    for (uint32_t i = 0; i < d->n_streams; i++)
        row->accepted += d->streams[i].accepted, row->rejected += d->streams[i].rejected;
    if (!d->n_counted || d->too_few)
        return rod_fail(err, ROD_EINVALID, "--tokens %u is too few: a session ended before all %u generated.",
                        d->options->n_tok, d->n_streams);
    row->tokens_per_s = (double)d->n_counted / (d->end_s - d->begin_s);
    return 0;
}

static int drafts_compare(const void *a, const void *b) {
    const struct bench_drafts_row *x = a, *y = b;
    return (x->tokens_per_s > y->tokens_per_s) - (x->tokens_per_s < y->tokens_per_s);
}

/* The median of a few runs, plain and not in turn, so that both see the same machine. */
static int drafts_measure(struct drafts *d, double acceptance, struct rod_error *err) {
    enum { ROUNDS = 5 };
    const struct bench_drafts *o = d->options;
    struct bench_drafts_row plain[ROUNDS], with[ROUNDS];
    int rc = drafts_run(d, true, 1, &plain[0], err);               /* what is right */
    if (!rc) rc = drafts_run(d, false, acceptance, &with[0], err); /* the engine learns the chances */
    for (int i = 0; !rc && i < ROUNDS; i++) {
        rc = drafts_run(d, true, 1, &plain[i], err);
        if (!rc) rc = drafts_run(d, false, acceptance, &with[i], err);
    }
    if (rc) return rc;
    qsort(plain, ROUNDS, sizeof *plain, drafts_compare);
    qsort(with, ROUNDS, sizeof *with, drafts_compare);
    with[ROUNDS / 2].plain_tokens_per_s = plain[ROUNDS / 2].tokens_per_s;
    if (!o->report(o->arg, rod_engine_info(d->engine), &with[ROUNDS / 2])) return 0;
    return rod_fail(err, ROD_EIO, "cannot keep the results");
}

/* All rows of one acceptance, in an engine of their own: what it learned of another one would be wrong. */
static int drafts_of(const struct bench_drafts *options, double acceptance, uint32_t most, struct rod_error *err) {
    struct drafts d = {.options = options};
    const struct rod_bench_options *b = options->bench;
    const struct rod_engine_config config = {.model_dir = b->synthetic ? NULL : b->model_dir,
                                             .adapter_dir = b->adapter_dir,
                                             .synthetic = b->synthetic,
                                             .device = b->device,
                                             .precision = b->precision,
                                             .weights = b->weights,
                                             .window_dtype = b->window_dtype,
                                             .state_dtype = b->state_dtype,
                                             .deterministic = b->deterministic,
                                             .n_threads = b->n_threads,
                                             .n_slots = most,
                                             .max_queue = most,
                                             .wake = drafts_wake,
                                             .wake_arg = &d,
                                             .progress = b->progress};
    sem_init(&d.woken, 0, 0);
    int rc = rod_engine_open(&config, &d.engine, err);
    if (!rc) {
        d.V = rod_engine_info(d.engine)->vocab_size;
        d.streams = calloc(most, sizeof *d.streams);
        for (uint32_t i = 0; d.streams && i < most; i++)
            if (!(d.streams[i].ids = malloc(options->n_tok * sizeof *d.streams[i].ids))) rc = rod_fail_no_memory(err);
        if (!d.streams) rc = rod_fail_no_memory(err);
    }
    for (size_t i = 0; !rc && i < options->bench->n_batches; i++) {
        d.n_streams = options->bench->batches[i];
        rc = drafts_measure(&d, acceptance, err);
    }
    for (uint32_t i = 0; d.streams && i < most; i++) free(d.streams[i].ids);
    free(d.streams);
    rod_engine_close(d.engine);
    sem_destroy(&d.woken);
    return rc;
}

int bench_drafts(const struct bench_drafts *options, struct rod_error *err) {
    uint32_t most = 1;
    int rc = 0;
    for (size_t i = 0; i < options->bench->n_batches; i++)
        if (options->bench->batches[i] > most) most = options->bench->batches[i];
    for (size_t p = 0; !rc && p < options->n_acceptances; p++)
        rc = drafts_of(options, options->acceptances[p], most, err);
    return rc;
}
