/* engine_state.c - a request that goes on from a state, and one that leaves its state behind. */
#include "engine_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static_assert(sizeof((struct rod_state *)0)->layout == BACKEND_STATE_ID_BYTES, "a layout is a backend's state_id");

/* Positions stay far from where sums with them would wrap. */
#define MOST_TOK ((uint64_t)1 << 48)

void rod_state_free(struct rod_state *state) {
    if (!state) return;
    state_image_release(state->image);
    free(state);
}

struct rod_state *rod_state_share(const struct rod_state *state) {
    struct rod_state *share = malloc(sizeof *share);
    if (!share) return NULL;
    *share = *state;
    state_image_share(share->image);
    return share;
}

int engine_state_open(struct rod_engine *e, struct rod_error *err) {
    if (!e->parts.ops->slot_save) return 0;
    struct state_pool_config config = {.bytes = e->config.state_host_bytes};
    if (!config.bytes) config.bytes = (size_t)sysconf(_SC_PHYS_PAGES) / 4 * (size_t)sysconf(_SC_PAGESIZE);
    return state_pool_new(&config, &e->states, err);
}

static int check_state(const struct rod_engine *e, const struct rod_request *r, struct rod_error *err) {
    const struct rod_state *s = r->state;
    const struct backend_ops *ops = e->parts.ops;
    if (!ops->slot_save) return rod_fail(err, ROD_EUNSUPPORTED, "This device keeps no states.");
    if (!s) return 0;
    if (memchr(s->layout, 0, sizeof s->layout) == NULL || strcmp(s->layout, e->backend_info.state_id) != 0)
        return rod_fail(err, ROD_ESTATE, "The state has another layout than this server's, which is %s.",
                        e->backend_info.state_id);
    if (s->n_tok > MOST_TOK || s->image->n_bytes != ops->state_bytes(e->parts.backend, s->n_tok))
        return rod_fail(err, ROD_ESTATE, "The state is not one of %llu tokens: it has %zu bytes.",
                        (unsigned long long)s->n_tok, s->image->n_bytes);
    if (s->pending < -1 || s->pending >= (int64_t)e->parts.V)
        return rod_fail(err, ROD_ESTATE, "The state's pending token %d is outside the vocabulary.", s->pending);
    if (r->n_prompt_logprobs >= 0)
        return rod_fail(err, ROD_EUNSUPPORTED, "A prompt that goes on from a state cannot be scored.");
    return 0;
}

int engine_state_check(const struct rod_engine *e, const struct rod_request *r, struct rod_error *err) {
    const int rc = r->state || r->keep_state ? check_state(e, r, err) : 0;
    if (rc && err) memcpy(err->param, "state", sizeof "state");
    return rc;
}

int engine_state_prompt(struct work *w, struct rod_error *err) {
    const struct rod_request *r = w->request;
    const struct rod_state *s = r->state;
    w->prompt = r->prompt;
    w->n_prompt = r->n_prompt;
    w->base = s ? s->n_tok : 0;
    if (!s || s->pending < 0) return 0;
    w->own_prompt = malloc((r->n_prompt + 1) * sizeof *w->own_prompt);
    if (!w->own_prompt) return rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    w->own_prompt[0] = s->pending;
    if (r->n_prompt) memcpy(w->own_prompt + 1, r->prompt, r->n_prompt * sizeof *w->own_prompt);
    w->prompt = w->own_prompt;
    w->n_prompt = r->n_prompt + 1;
    return 0;
}

int engine_state_load(struct rod_engine *e, struct work *w, struct rod_error *err) {
    struct rod_state *s = w->request->state;
    int rc =
        e->parts.ops->slot_load(e->parts.backend, w->sched.slot, s->n_tok, s->image->bytes, s->image->n_bytes, err);
    state_image_release(s->image); /* the slot has it; a state is large */
    s->image = NULL;
    if (rc == ROD_EINVALID) rc = err->code = ROD_ESTATE;
    return rc;
}

int engine_state_keep(struct rod_engine *e, struct work *w, int32_t pending, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    struct rod_state *s = calloc(1, sizeof *s);
    if (!s) return rod_fail(err, ROD_ENOMEM, "No memory to keep the state.");
    s->pending = pending;
    s->n_tok = w->base + w->n_prompt + w->n_generated - (pending >= 0);
    const size_t n_bytes = ops->state_bytes(e->parts.backend, s->n_tok);
    s->image = state_image_new(e->states, n_bytes);
    memcpy(s->layout, e->backend_info.state_id, sizeof s->layout);
    const int rc = s->image ? ops->slot_save(e->parts.backend, w->sched.slot, s->n_tok, s->image->bytes, n_bytes, err)
                            : rod_fail(err, ROD_ENOMEM, "No memory to keep a state of %zu bytes.", n_bytes);
    if (rc) {
        rod_state_free(s);
        return rc;
    }
    w->end->pub.state = s;
    return 0;
}
