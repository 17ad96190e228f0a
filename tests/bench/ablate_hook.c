/* ablate_hook.c - see ablate_hook.h. Linked into a copy of the CUDA object for the ablation alone. */
#include "tests/bench/ablate_hook.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "kernels/dispatch.h"

#include <assert.h>
#include <stddef.h>

static struct {
    const unsigned char *left_out;
    struct ablate_seen *seen;
    bool launch_runs[CUDA_ONE_LAUNCH_BUCKETS], opened;
} hook;

/* Asks whether a product has kernels of its own, before its sizes are known. */
static bool is_question(const struct dispatch_case *c) { return c->op == DISPATCH_LINEAR && !c->outputs; }

static bool is_wide_scan(enum dispatch_kernel k) { return k >= WIDE_SCAN_4_NARROW && k <= WIDE_SCAN_8; }

static bool is_few(enum dispatch_kernel k) { return k >= FEW_8 && k <= FEW_CODES; }

/* Launchers ask for some capabilities beside the rules, and know no kernel without them. */
static bool can_step_in(const struct dispatch_case *c, enum dispatch_kernel k) {
    if (c->op == DISPATCH_PROMPT_STATE) return is_wide_scan(k);
    if (c->op == DISPATCH_PROMPT_WINDOW) return !c->n_pairs || k == PROMPT_WIDE_1 || k == PROMPT_WIDE_2;
    if (c->op == DISPATCH_DECODE_PRODUCT && c->n_rows <= 8) return is_few(k); /* LINEAR's rules have others */
    if (c->op == DISPATCH_DECODE_PAIR && c->n_rows <= CUDA_FEW_ROWS) return k == FEW_PAIR;
    return true;
}

enum dispatch_kernel __wrap_dispatch_kernel_of(const struct dispatch_case *c);
enum dispatch_kernel __wrap_dispatch_kernel_of(const struct dispatch_case *c) {
    const uint32_t own = dispatch_rule_of(c, NULL), n = dispatch_n_rules();
    uint32_t chosen = hook.left_out ? dispatch_rule_of(c, hook.left_out) : own;
    assert(own < n && n <= ABLATE_MOST_RULES);
    const bool stuck = chosen == n || (chosen != own && !can_step_in(c, dispatch_rule_kernel(chosen)));
    if (stuck) chosen = own;
    if (hook.seen && !is_question(c)) {
        hook.seen->fired[own]++;
        hook.seen->instead[chosen] += chosen != own;
        hook.seen->stuck |= stuck;
    }
    return dispatch_rule_kernel(chosen);
}

/* cuda_one_launch_possible's: a model without a window has no heads. */
static struct cuda_shape launch_shape(const struct backend *be) {
    struct cuda_shape shape = be->shape;
    if (!be->d.plus) shape.H = 0;
    return shape;
}

/* What is asked only when a backend is opened is asked anew: steps that are one launch, and shared memory of the
 * prompts' kernels. */
static void leave_out(struct backend *be, const unsigned char *left_out, struct ablate_seen *seen) {
    const struct cuda_shape shape = launch_shape(be);
    for (uint32_t b = 0; !hook.opened && b < CUDA_ONE_LAUNCH_BUCKETS; b++) hook.launch_runs[b] = be->one_launch.runs[b];
    hook.opened = true;
    hook.left_out = left_out;
    hook.seen = NULL;
    for (uint32_t b = 0; b < CUDA_ONE_LAUNCH_BUCKETS; b++)
        be->one_launch.runs[b] =
            hook.launch_runs[b] && cuda_one_launch_possible(&shape, be->d.L, cuda_bucket_rows(b), false);
    cuda_scan_prepare(&be->shape);
    if (be->prompt_window) cuda_prompt_window_possible(&be->shape);
    hook.seen = seen;
}

static enum cuda_end end_of(const struct ablate_step *step, bool logits) {
    return logits ? CUDA_LOGITS : step->draws ? CUDA_DRAWS : CUDA_GREEDY;
}

static int capture(struct backend *be, const struct ablate_step *s, struct CUgraphExec_st **exec,
                   struct rod_error *err) {
    const struct step st = {.n_rows = s->n_rows,
                            .n_segs = s->n_rows,
                            .n_out = s->n_rows,
                            .single = true,
                            .drafts = s->drafts,
                            .end = end_of(s, false)};
    /* A step of few rows may be one launch, which asked its rule when the backend was opened. */
    const uint32_t b = cuda_bucket_of(s->n_rows);
    const struct cuda_shape shape = launch_shape(be);
    if (!s->drafts && b < CUDA_ONE_LAUNCH_BUCKETS && hook.launch_runs[b])
        cuda_one_launch_possible(&shape, be->d.L, s->n_rows, false);
    int rc = cuda_capture_begin(be, err);
    if (rc) return rc;
    cuda_forward_enqueue(be, &st);
    return cuda_capture_end(be, exec, err);
}

static void drop(struct CUgraphExec_st *exec) {
    struct cuda_graphs graphs = {.steps[0][0] = exec};
    cuda_graphs_close(&graphs);
}

static struct CUgraphExec_st **graph(struct backend *be, const struct ablate_step *s, bool logits) {
    const uint32_t b = cuda_bucket_of(s->n_rows);
    if (b == CUDA_N_BUCKETS || (s->drafts && b >= CUDA_DRAFT_BUCKETS)) return NULL;
    struct CUgraphExec_st **exec =
        s->drafts ? &be->graphs->drafts[end_of(s, logits)][b] : &be->graphs->steps[end_of(s, logits)][b];
    return *exec && cuda_bucket_rows(b) == s->n_rows ? exec : NULL;
}

extern const struct ablate_hook ablate_hook;
__attribute__((visibility("default")))
const struct ablate_hook ablate_hook = {dispatch_n_rules, dispatch_rule_text, leave_out, capture, drop, graph};
