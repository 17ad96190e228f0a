/* bench_drafts.h - tokens a second with drafts of which a known share is right, beside those without drafts. */
#ifndef BENCH_DRAFTS_H
#define BENCH_DRAFTS_H

#include "engine/tools/tools.h"

struct bench_drafts_row {
    uint32_t n_sessions;
    bool plain;
    double acceptance; /* that a draft token is the plain run's */
    double tokens_per_s, plain_tokens_per_s;
    uint64_t accepted, rejected; /* of all sessions */
};

struct bench_drafts {
    const struct rod_bench_options *bench; /* its first context is what a session has read before */
    uint32_t n_tok;                        /* that a session generates */
    const double *acceptances;
    size_t n_acceptances;
    int (*report)(void *arg, const struct rod_model_info *info, const struct bench_drafts_row *row);
    void *arg;
};
int bench_drafts(const struct bench_drafts *options, struct rod_error *err);

#endif
