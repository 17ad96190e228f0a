/* ablate_hook.h - what the ablation needs of the CUDA object: its own copy of it asks this file's hook in place of
 * dispatch_kernel_of (the linker's --wrap), so that rules can be left out and counted. Threads: one.
 */
#ifndef ABLATE_HOOK_H
#define ABLATE_HOOK_H

#include "engine/backend/backend.h"

struct CUgraphExec_st;

enum { ABLATE_MOST_RULES = 160 };

/* What launchers asked for, counted by rule. */
struct ablate_seen {
    uint32_t fired[ABLATE_MOST_RULES];   /* the first that fits of all */
    uint32_t instead[ABLATE_MOST_RULES]; /* the first that fits in place of one that is left out */
    bool stuck; /* no other rule fits, or none whose kernel the launcher can take: the rule ran nevertheless */
};

/* A decode step of n_rows rows, a bucket's: with drafts, drawn or greedy. */
struct ablate_step {
    uint32_t n_rows;
    bool drafts, draws;
};

struct ablate_hook {
    uint32_t (*n_rules)(void);
    struct dispatch_text (*rule)(uint32_t i);
    /* From now on, for launches and captures; left_out: as dispatch_rule_of's, kept; seen: to count in, or NULL. */
    void (*leave_out)(struct backend *be, const unsigned char *left_out, struct ablate_seen *seen);
    /* The step's graph as things are now. */
    int (*capture)(struct backend *be, const struct ablate_step *step, struct CUgraphExec_st **exec,
                   struct rod_error *err);
    void (*drop)(struct CUgraphExec_st *exec);
    /* Where the backend has the step's graph; logits: the one whose step ends with logits. NULL: it has none. */
    struct CUgraphExec_st **(*graph)(struct backend *be, const struct ablate_step *step, bool logits);
};

#endif
