/* calls.c - the public calls for requests, events and figures. */
#include "core.h"
#include "engine/state/pinned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

int rod_request_fits(const struct rod_engine *e, const struct rod_request *request, struct rod_error *err) {
    int rc = request_check(request, e->parts.V, e->config.max_prompt_tok, err);
    if (!rc) rc = request->turn ? turn_check(e, request, err) : keep_check(e, request, err);
    if (rc) return rc;
    const char *param = "";
    if (request->n_stop && !e->parts.tokenizer) {
        rc = rod_fail(err, ROD_EUNSUPPORTED,
                      "This model has no tokenizer, so stop strings cannot be found; use stop_token_ids.");
        param = "stop";
    } else if (request->n_prompt_logprobs >= 0 && e->backend_info.max_out < e->backend_info.chunk_tok) {
        rc = rod_fail(err, ROD_EUNSUPPORTED, "This server has too little room for logits to score a prompt.");
        param = "prompt_logprobs";
    }
    if (err) snprintf(err->param, sizeof err->param, "%s", param);
    return rc;
}

int rod_submit_all(struct rod_engine *e, struct rod_request *const *requests, size_t n, uint64_t *tickets,
                   struct rod_error *err) {
    struct submission **submissions = calloc(n, sizeof *submissions);
    size_t n_made = 0;
    int rc = submissions ? 0 : rod_fail_no_memory(err);
    for (size_t i = 0; !rc && n > 1 && i < n; i++)
        if (requests[i]->turn) rc = rod_fail_at(err, ROD_EINVALID, "n", "A session's turn has one answer.");
    while (!rc && n_made < n) {
        struct active *active;
        rc = rod_request_fits(e, requests[n_made], err);
        if (!rc) rc = active_new(e, requests[n_made], &active, err);
        if (!rc) submissions[n_made++] = &active->submission;
    }
    if (!rc) {
        rc = mailbox_push_all(&e->mailbox, submissions, n, tickets, err);
        if (rc) atomic_fetch_add_explicit(&e->counters.rejected, n, memory_order_relaxed);
    }
    for (size_t i = 0; rc && i < n_made; i++) {
        struct active *active = active_of_submission(submissions[i]);
        active->request = NULL;
        active_free(active);
    }
    free(submissions);
    return rc;
}

int rod_submit(struct rod_engine *e, struct rod_request *request, uint64_t *ticket, struct rod_error *err) {
    return rod_submit_all(e, &request, 1, ticket, err);
}

bool rod_queue_fits(const struct rod_engine *e, uint32_t key, uint32_t queue_quota) {
    return mailbox_fits((struct mailbox *)&e->mailbox, key, queue_quota); /* const for the caller; its lock is not */
}

void rod_cancel(struct rod_engine *e, uint64_t ticket) { mailbox_cancel(&e->mailbox, ticket); }

struct rod_event *rod_next_event(struct rod_engine *e) {
    if (!e->taken) e->taken = mailbox_take(&e->mailbox);
    struct event *event = event_of_link(e->taken);
    if (!event) return NULL;
    e->taken = event->link.next;
    return &event->pub;
}

/* ---- figures ---- */

const struct rod_model_info *rod_engine_info(const struct rod_engine *e) { return &e->parts.info; }

static uint64_t counter_get(const atomic_uint_fast64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

bool rod_engine_failed(const struct rod_engine *e) {
    return atomic_load_explicit(&e->counters.device_failed, memory_order_relaxed);
}

void rod_engine_stats(const struct rod_engine *e, struct rod_stats *out) {
    const struct engine_counters *c = &e->counters;
    struct mailbox_counts counts;
    mailbox_count((struct mailbox *)&e->mailbox, &counts); /* const for the caller; its lock is not */
    *out = (struct rod_stats){
        .n_slots = e->backend_info.n_slots,
        .slots_used = (uint32_t)(counter_get(&c->running) + counter_get(&c->left)),
        .running = (uint32_t)counter_get(&c->running),
        .queued = (uint32_t)counts.n_waiting,
        .queued_max = e->config.max_queue,
        .queued_tok = counts.waiting_tok,
        .requests_finished = counter_get(&c->finished),
        .requests_cancelled = counter_get(&c->cancelled),
        .requests_failed = counter_get(&c->failed),
        .requests_rejected = counter_get(&c->rejected),
        .requests_nan = counter_get(&c->nan),
        .prefill_tok = counter_get(&c->prefill_tok),
        .decode_tok = counter_get(&c->decode_tok),
        .flights = counter_get(&c->flights),
        .flight_tok = counter_get(&c->flight_tok),
        .steps = counter_get(&c->steps),
        .last_step_end_ns = counter_get(&c->last_step_end_ns),
        .step_ns_sum = counter_get(&c->step_ns_sum),
        .batch_rows_sum = counter_get(&c->rows_sum),
        .prefix_hits = counter_get(&c->prefix_hits),
        .prefix_tok_saved = counter_get(&c->prefix_tok_saved),
        .prefix_entries = counter_get(&c->prefix_entries),
        .prefix_bytes = counter_get(&c->prefix_bytes),
        .prefix_evicted = counter_get(&c->prefix_evicted),
        .failed = atomic_load_explicit(&c->device_failed, memory_order_relaxed),
    };
    for (int i = 0; i < ROD_DRAFT_N_KINDS; i++) {
        out->drafted[i] = counter_get(&c->drafted[i]);
        out->accepted[i] = counter_get(&c->accepted[i]);
    }
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) out->prefix_misses[i] = counter_get(&c->prefix_misses[i]);
    if (e->sessions) sessions_stats(e->sessions, out);
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) out->prefix_miss_tok[i] = counter_get(&c->prefix_miss_tok[i]);
    if (e->conversations) conversations_stats(e->conversations, out);
    if (e->pinned) {
        const struct pinned_counts pinned = pinned_count(e->pinned);
        out->pinned_prefixes = pinned.n;
        out->pinned_bytes = pinned.bytes;
        out->pinned_used = pinned.n_used;
    }
    uint64_t sum = 0;
    for (int i = 0; i < 20; i++) out->step_ns_bucket[i] = sum += counter_get(&c->bucket[i]);
    sum = 0;
    for (int i = 0; i < ROD_STEP_ROWS_BUCKETS; i++) out->step_rows_bucket[i] = sum += counter_get(&c->rows_bucket[i]);
}
