/* engine.c - an engine is opened from its parts and closed. */
#include "core.h"
#include "engine/base/policy.h"
#include "engine/state/pinned.h"
#include "engine/state/state_formats.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

static void engine_free(struct rod_engine *e) {
    sched_fini(&e->sched);
    sampler_fini(&e->sampler);
    for (int i = 0; i < 2; i++) free(e->steps[i].rows);
    free(e->segs);
    free(e->source_logits);
    for (int i = 0; i < 2; i++) free(e->flights.by_parity[i].rows), free(e->flights.by_parity[i].segs);
    free(e->moves);
    free(e->moving);
    free(e->parked);
    free(e->masks.rows);
    grammar_cache_close(e->grammars);
    grammar_tags_free(e->tags);
    prefix_close(e->prefixes);
    pinned_close(e->pinned);
    sessions_close(e->sessions);
    conversations_close(e->conversations);
    state_pool_close(e->states);
    free(e);
}

static void engine_fill_info(struct rod_engine *e) {
    struct rod_model_info *info = &e->parts.info;
    const struct backend_info *be = &e->backend_info;
    state_formats_name(be->state, info->window_dtype, info->state_dtype);
    snprintf(info->device, sizeof info->device, "%s", be->device);
    snprintf(info->products, sizeof info->products, "%s", be->products);
    info->weight_bytes = be->weight_bytes;
    info->session_bytes = be->slot_bytes;
    info->n_slots = be->n_slots;
    info->max_batch_tok = be->max_batch_tok;
    info->chunk_tok = be->chunk_tok;
    info->max_prompt_tok = e->config.max_prompt_tok;
    info->has_tokenizer = e->parts.tokenizer != NULL;
    info->has_chat = e->parts.chat != NULL;
}

/* Everything that can fail but the thread. */
static int engine_init_parts(struct rod_engine *e, struct rod_error *err) {
    const struct backend_info *be = &e->backend_info;
    if (be->chunk_tok > be->max_batch_tok) {
        return rod_fail_at(err, ROD_EINVALID, "max_batch_tokens",
                           "max_batch_tokens is %u and must be at least the prompt chunk of %u tokens.",
                           be->max_batch_tok, be->chunk_tok);
    }
    const struct sched_config sched = {.n_slots = be->n_slots,
                                       .max_batch_tok = be->max_batch_tok,
                                       .shared_tok = be->shared_tok,
                                       .max_out = be->max_out,
                                       .chunk_tok = be->chunk_tok,
                                       .flight_tok = be->flight_tok,
                                       .flight_streams = POLICY_FLIGHT_STREAMS};
    int rc = sched_init(&e->sched, &sched, err);
    if (!rc) rc = sampler_init(&e->sampler, e->parts.V, err);
    if (rc) return rc;
    for (int i = 0; i < 2; i++) e->steps[i].rows = calloc(be->n_slots, sizeof *e->steps[i].rows);
    e->segs = calloc(be->n_slots, sizeof *e->segs);
    e->source_logits = calloc(e->parts.V, sizeof *e->source_logits);
    e->moves = calloc(be->n_slots, sizeof *e->moves);
    e->moving = calloc(be->n_slots, sizeof *e->moving);
    e->parked = calloc(be->n_slots, sizeof *e->parked);
    e->masks.rows = calloc(be->n_slots, sizeof(struct active *));
    cost_init(&e->flights.cost, be->chunk_tok);
    for (int i = 0; i < 2; i++) {
        struct flight *f = &e->flights.by_parity[i];
        f->rows = calloc(be->n_slots, sizeof *f->rows);
        f->segs = calloc(be->n_slots, sizeof *f->segs);
        if (!f->rows || !f->segs) return rod_fail_no_memory(err);
    }
    if (!e->steps[0].rows || !e->steps[1].rows || !e->segs || !e->source_logits || !e->moves || !e->moving ||
        !e->parked || !e->masks.rows)
        return rod_fail_no_memory(err);
    if (e->parts.tokenizer) rc = grammar_cache_new(e->parts.tokenizer, e->parts.V, &e->grammars, err);
    if (!rc && e->parts.tokenizer) rc = grammar_tags_new(e->parts.tokenizer, e->parts.V, &e->tags, err);
    if (!rc) rc = keep_open(e, err);
    if (!rc) rc = prefix_use_open(e, err);
    if (!rc) rc = turn_open(e, err);
    if (!rc) rc = prefix_use_open_pinned(e, err);
    if (!rc) rc = lane_use_open(e, err);
    e->config.state_dir = NULL; /* the caller's */
    draft_use_open(e);
    if (!rc && e->parts.measures) rc = pace_measure(e, err);
    if (rc) return rc;
    return mailbox_init(&e->mailbox, be->n_slots, e->config.max_queue, e->config.max_queue_tok, err);
}

/* A state has arrived: whatever the engine waits for, it looks. */
static void engine_on_moved(void *arg) {
    struct rod_engine *e = arg;
    mailbox_poke(&e->mailbox);
}

int engine_open_parts(const struct rod_engine_config *config, const struct engine_parts *parts, struct rod_engine **out,
                      struct rod_error *err) {
    struct rod_engine *e = calloc(1, sizeof *e);
    if (!e) return rod_fail_no_memory(err);
    e->config = *config;
    e->config.model_dir = e->config.synthetic = e->config.device = e->config.precision = e->config.weights = NULL;
    e->config.window_dtype = e->config.state_dtype = NULL;
    e->config.adapter_dir = NULL;
    e->parts = *parts;
    e->backend_info = *parts->ops->info(parts->backend);
    e->max_token_bytes = text_max_token_bytes(parts->tokenizer);
    engine_fill_info(e);
    int rc = engine_init_parts(e, err);
    if (rc) {
        engine_free(e);
        return rc;
    }
    if (parts->ops->on_moved) parts->ops->on_moved(parts->backend, engine_on_moved, e);
    if (pthread_create(&e->thread, NULL, loop_thread, e)) {
        if (parts->ops->on_moved) parts->ops->on_moved(parts->backend, NULL, NULL);
        mailbox_fini(&e->mailbox);
        engine_free(e);
        return rod_fail(err, ROD_EINTERNAL, "The engine thread did not start.");
    }
    *out = e;
    return 0;
}

void rod_engine_drain(struct rod_engine *e) {
    mailbox_refuse(&e->mailbox, ROD_EDRAINING);
    if (e->sessions) sessions_flush(e->sessions);
}

uint64_t rod_engine_close(struct rod_engine *e) {
    if (!e) return 0;
    mailbox_stop(&e->mailbox);
    pthread_join(e->thread, NULL);
    for (struct rod_event *event; (event = rod_next_event(e));) rod_event_free(event);
    assert(!e->events.head && !e->sched.n_queued);
    const uint64_t n_lost = sessions_close(e->sessions); /* what it writes has the backend's layout */
    pinned_close(e->pinned);                             /* what its thread reads, too */
    conversations_close(e->conversations);               /* likewise */
    e->conversations = NULL;
    e->sessions = NULL;
    e->pinned = NULL;
    e->parts.ops->close(e->parts.backend);
    move_drop_all(e);
    mailbox_fini(&e->mailbox);
    chat_close(e->parts.chat);
    if (e->parts.tokenizer) tokenizer_close(e->parts.tokenizer);
    engine_free(e);
    return n_lost;
}
