/* keep.c - a request that goes on from a state, and one that leaves its state behind; the pool of states. */
#include "core.h"
#include "engine/base/host.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof((struct rod_state *)0)->layout == BACKEND_STATE_ID_BYTES, "a layout is a backend's state_id");

/* Positions stay far from where sums with them would wrap. */
#define MOST_TOK ((uint64_t)1 << 48)

static void *pool_take_from_device(void *arg, size_t bytes) {
    struct rod_engine *e = arg;
    return e->parts.ops->host_take(e->parts.backend, bytes);
}

/* Pinned memory is taken from everybody else, and when the server starts. */
#define MOST_PINNED ((uint64_t)16 << 30)

static size_t keep_state_bytes(const void *arg, uint64_t n_tok) {
    const struct rod_engine *e = arg;
    return e->parts.ops->state_bytes(e->parts.backend, n_tok);
}

struct state_form keep_form(const struct rod_engine *e) {
    struct state_form form = {.layout = e->backend_info.state_id,
                              .V = e->parts.V,
                              .chunk_tok = e->backend_info.chunk_tok,
                              .state_bytes = keep_state_bytes,
                              .arg = e};
    memcpy(form.fingerprint, e->parts.fingerprint, sizeof form.fingerprint);
    return form;
}

int keep_open(struct rod_engine *e, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    if (!ops->slot_save) return 0;
    struct state_pool_config config = {.bytes = e->config.state_host_bytes};
    if (!config.bytes) config.bytes = host_memory_bytes() / 4;
    if (ops->host_take) {
        config.take = pool_take_from_device;
        config.give = ops->host_give;
        config.arg = e;
        if (!e->config.state_host_bytes && config.bytes > MOST_PINNED) config.bytes = MOST_PINNED;
    }
    /* A turn that is read in and another that is read out at least. */
    const size_t state_bytes = ops->state_bytes(e->parts.backend, MOST_TOK), least = state_pool_bytes(2, state_bytes);
    if (config.bytes < least && e->config.state_host_bytes) {
        return rod_fail_at(err, ROD_EINVALID, "state_host_bytes",
                           "state_host_bytes is %zu and must be at least %zu, for two states of %zu.", config.bytes,
                           least, state_bytes);
    }
    /* Its pages are taken as it fills: what cannot fit would end the process later, under load. */
    const uint64_t memory = host_memory_bytes();
    if (config.bytes > memory) {
        return rod_fail_at(err, ROD_ENOMEM, "state_host_bytes",
                           "state_host_bytes is %zu, more than the memory that this process may have, %llu bytes",
                           config.bytes, (unsigned long long)memory);
    }
    if (config.bytes < least) config.bytes = least;
    config.least = least;
    return state_pool_new(&config, &e->states, err);
}

static int keep_check_state(const struct rod_engine *e, const struct rod_request *r, struct rod_error *err) {
    const struct rod_state *s = r->state;
    const struct backend_ops *ops = e->parts.ops;
    if (!ops->slot_save) return rod_fail(err, ROD_EUNSUPPORTED, "This device keeps no states.");
    if (!s) return 0;
    if (memchr(s->layout, 0, sizeof s->layout) == NULL || strcmp(s->layout, e->backend_info.state_id) != 0)
        return rod_fail(err, ROD_ESTATE, "The state has another layout than this server's, which is %s.",
                        e->backend_info.state_id);
    if (s->n_tok > MOST_TOK || s->buffer->n_bytes != ops->state_bytes(e->parts.backend, s->n_tok))
        return rod_fail(err, ROD_ESTATE, "The state is not one of %llu tokens: it has %zu bytes.",
                        (unsigned long long)s->n_tok, s->buffer->n_bytes);
    if (s->pending < -1 || s->pending >= (int64_t)e->parts.V)
        return rod_fail(err, ROD_ESTATE, "The state's pending token %d is outside the vocabulary.", s->pending);
    if (r->n_prompt_logprobs >= 0)
        return rod_fail(err, ROD_EUNSUPPORTED, "A prompt that goes on from a state cannot be scored.");
    return 0;
}

int keep_check(const struct rod_engine *e, const struct rod_request *r, struct rod_error *err) {
    const int rc = r->state || r->keep_state ? keep_check_state(e, r, err) : 0;
    if (rc && err) memcpy(err->param, "state", sizeof "state");
    return rc;
}

int keep_load(struct rod_engine *e, struct active *a, struct rod_error *err) {
    struct rod_state *s = a->request->state;
    assert(s->buffer && a->sched.pos == s->n_tok);
    int rc = move_begin(e, a, MOVE_IN, s->n_tok, s->buffer, err);
    if (rc == ROD_EINVALID) return err->code = ROD_ESTATE;
    if (!rc) s->buffer = NULL; /* the move's; when the slot has it nobody needs it here: a state is large */
    return rc;
}

/* A buffer from the pool, or from the heap where the pool is full: an answer is not lost for want of room, and the log
 * says so. At most one a slot comes from the heap. */
static struct state_buffer *keep_find_room(struct rod_engine *e, size_t n_bytes, struct rod_error *err) {
    struct state_buffer *buffer = state_buffer_new(e->states, n_bytes);
    if (buffer) return buffer;
    uint64_t n_left_out;
    if (log_limit_due(&e->outside_limit, clock_now_ns(), &n_left_out))
        engine_log(e, 2, "all of state_host_bytes is in use: a state of %zu bytes lies outside of it (%llu before it)",
                   n_bytes, (unsigned long long)n_left_out);
    if (!(buffer = state_buffer_new(NULL, n_bytes))) rod_fail_no_memory(err);
    return buffer;
}

int keep_save(struct rod_engine *e, struct active *a, int32_t pending, struct rod_error *err) {
    struct rod_state *s = a->output_state;
    assert(s && !s->buffer && (pending < 0 || a->n_generated > 0));
    s->pending = pending;
    s->n_tok = a->base + a->n_prompt + a->n_generated - (pending >= 0);
    memcpy(s->layout, e->backend_info.state_id, sizeof s->layout);
    struct state_buffer *buffer = keep_find_room(e, e->parts.ops->state_bytes(e->parts.backend, s->n_tok), err);
    if (!buffer) return err->code;
    const int rc = move_begin(e, a, MOVE_OUT, s->n_tok, buffer, err);
    if (rc) state_buffer_release(buffer);
    return rc;
}
