/* verify.h - a backend against a golden file, in parts that tests call one by one; rod_verify is all of them.
 *
 * Ownership: a result owns its buffers. Threads: one.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include "engine/backend/backend.h"
#include "golden.h"

/* A backend's results for a golden file's prompt. */
struct verify_result {
    uint32_t n_layers;
    float *logits;               /* [T,V] */
    struct golden_layer *layers; /* [L], after the prompt */
    float *greedy_logits;        /* [n_greedy,V]: row i chooses the id of greedy_ids[i]; the ids before it were fed */
};

/* Progress of a run, and the run's name. */
struct verify_watch {
    struct rod_progress_to to;
    const char *what;
};

/* Reads the prompt into slot 0 in pieces: the first of first_tok, the others of piece_tok (0, or more than a forward
 * takes: as large as it takes), then the greedy ids one by one. */
int verify_run(const struct backend_ops *ops, struct backend *be, const struct model_dims *dims,
               const struct golden *golden, uint32_t first_tok, uint32_t piece_tok, struct verify_result **out,
               const struct verify_watch *watch, struct rod_error *err);
void verify_free(struct verify_result *result);
/* What a golden file would hold, computed by the CPU backend: a prompt of n_tok random ids, the same for one model. */
int verify_reference(const struct model *model, uint32_t n_tok, uint32_t n_threads,
                     const struct rod_progress_to *progress, struct golden **out, struct rod_error *err);

/* Largest differences that pass; verify.c has the reasons. */
struct verify_bounds {
    double rel, max, margin;
};
struct verify_bounds verify_bounds(enum dtype arithmetic, enum weight_format format, bool gpu, bool against_cpu);

/* Fills the report's rows and agreement of one mode (rows has room for 1 + 4 L more) and clears report->passed on any
 * difference beyond its bounds; a NaN is one. */
void verify_compare(const struct golden *golden, const struct verify_result *result, const struct model_dims *dims,
                    int mode, struct rod_verify_report *report);
/* A report without rows yet, passed; NULL without memory. */
struct rod_verify_report *verify_new_report(const struct model_dims *dims, struct verify_bounds bounds);

#endif
