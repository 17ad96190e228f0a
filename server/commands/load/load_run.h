/* load_run.h - the load itself: requests planned from a seed, sent over N connections, measured.
 *
 * What it is: load_run sends every request of a plan to a server's /v1/completions, streaming, and fills a result.
 * Ownership: the plan and its strings stay the caller's; the result owns its samples until load_result_fini.
 * Threads: load_run owns a libuv loop of its own and runs on the calling thread until all requests ended.
 * Invariant: request i has the same prompt, output length and due time whatever the number of streams or the timing, so
 * that two runs with one seed ask the same; n_ok + n_failed = n_requests when load_run returned 0.
 */
#ifndef LOAD_RUN_H
#define LOAD_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/rodimus.h"

struct load_plan {
    const char *host; /* name or address */
    const char *port;
    const char *path;    /* before /v1/completions: "" or "/prefix" */
    const char *api_key; /* NULL = none */
    const char *model;   /* NULL = the server's */
    uint32_t n_streams;  /* connections = most requests in flight */
    uint32_t n_requests;
    uint32_t prompt_min_tok, prompt_max_tok; /* uniform */
    uint32_t output_min_tok, output_max_tok;
    uint32_t vocab;   /* prompts are ids below this ... */
    const char *text; /* ... or pieces of this text, 4 bytes a token, if not NULL */
    size_t n_text;
    double rate; /* Poisson arrivals a second; 0 = closed loop: a stream asks again when answered */
    double temperature;
    uint64_t seed;
    uint64_t timeout_ms; /* of one request */
    bool stop_at_eos;    /* else ignore_eos is sent, so that output lengths are as planned */
};

struct load_samples {
    double *ms;
    size_t n, cap;
};

enum { LOAD_REASONS_MAX = 16 };
struct load_reason {
    char text[192];
    uint64_t n;
};

struct load_result {
    uint64_t n_ok, n_failed;
    uint64_t prompt_tok, output_tok; /* as the server counts them, of requests that succeeded */
    uint64_t wall_ns;
    struct load_samples first_token; /* from due (Poisson) or sent (closed loop) to the first text */
    struct load_samples inter_token; /* between chunks with text of one stream */
    struct load_samples per_token;   /* of each request: first to last chunk, by its tokens less one */
    struct load_samples end_to_end;
    struct load_reason reasons[LOAD_REASONS_MAX]; /* of failures; the last takes what does not fit */
    size_t n_reasons;
};

/* 0, or ROD_EIO (no such host), ROD_ENOMEM with err filled. Failed requests are no error: they are counted. */
int load_run(const struct load_plan *plan, struct load_result *result, struct rod_error *err);
void load_result_fini(struct load_result *result);

/* The value that fraction q (0..1] of the samples do not exceed (nearest rank), NAN without samples. Sorts them. */
double load_percentile(struct load_samples *samples, double q);
double load_mean(const struct load_samples *samples);
int load_sample(struct load_samples *samples, double ms); /* 0 or ROD_ENOMEM */

#endif
