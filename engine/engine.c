/* engine.c - the public calls: open from parts, close, submit, cancel, events, text, figures. The loop is
 * engine_step.c. */
#include "engine_internal.h"
#include "engine/text/fim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t rod_step_bounds_ns[20] = {100000,      200000,      500000,      1000000,      2000000,
                                         5000000,     10000000,    20000000,    50000000,     100000000,
                                         200000000,   500000000,   1000000000,  2000000000,   5000000000,
                                         10000000000, 20000000000, 50000000000, 100000000000, UINT64_MAX};

const uint64_t rod_step_bounds_rows[ROD_STEP_ROWS_BUCKETS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, UINT64_MAX};

void engine_log(const struct rod_engine *e, int level, const char *format, ...) {
    if (!e->config.log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    e->config.log(e->config.log_arg, level, line);
}

/* ---- open and close ---- */

static void engine_free(struct rod_engine *e) {
    sched_fini(&e->sched);
    sampler_fini(&e->sampler);
    for (int i = 0; i < 2; i++) free(e->steps[i].rows);
    free(e->segs);
    free(e->kept_logits);
    free(e->moves);
    free(e->moving);
    grammar_cache_close(e->grammars);
    prefix_close(e->prefixes);
    sessions_close(e->sessions);
    state_pool_close(e->states);
    free(e);
}

static void fill_info(struct rod_engine *e) {
    struct rod_model_info *info = &e->parts.info;
    const struct backend_info *be = &e->backend_info;
    snprintf(info->device, sizeof info->device, "%s", be->device);
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
static int init_parts(struct rod_engine *e, struct rod_error *err) {
    const struct backend_info *be = &e->backend_info;
    if (be->chunk_tok > be->max_batch_tok) {
        rod_fail(err, ROD_EINVALID, "max_batch_tokens is %u and must be at least the prompt chunk of %u tokens.",
                 be->max_batch_tok, be->chunk_tok);
        if (err) memcpy(err->param, "max_batch_tokens", sizeof "max_batch_tokens");
        return ROD_EINVALID;
    }
    const struct sched_config sched = {be->n_slots, be->max_batch_tok, be->max_out, be->chunk_tok};
    int rc = sched_init(&e->sched, &sched, err);
    if (!rc) rc = sampler_init(&e->sampler, e->parts.V, err);
    if (rc) return rc;
    for (int i = 0; i < 2; i++) e->steps[i].rows = calloc(be->n_slots, sizeof *e->steps[i].rows);
    e->segs = calloc(be->n_slots, sizeof *e->segs);
    e->kept_logits = calloc(e->parts.V, sizeof *e->kept_logits);
    e->moves = calloc(be->n_slots, sizeof *e->moves);
    e->moving = calloc(be->n_slots, sizeof *e->moving);
    if (!e->steps[0].rows || !e->steps[1].rows || !e->segs || !e->kept_logits || !e->moves || !e->moving)
        return rod_fail(err, ROD_ENOMEM, "No memory for the rows of %u slots.", be->n_slots);
    if (e->parts.tokenizer) rc = grammar_cache_new(e->parts.tokenizer, e->parts.V, &e->grammars, err);
    if (!rc) rc = engine_state_open(e, err);
    if (!rc) rc = engine_prefix_open(e, err);
    if (!rc) rc = engine_session_open(e, err);
    if (rc) return rc;
    return mailbox_init(&e->mailbox, be->n_slots, e->config.max_queue, e->config.max_queue_tok, err);
}

/* A state has arrived: whatever the engine waits for, it looks. */
static void moved(void *arg) {
    struct rod_engine *e = arg;
    mailbox_poke(&e->mailbox);
}

int engine_open_parts(const struct rod_engine_config *config, const struct engine_parts *parts, struct rod_engine **out,
                      struct rod_error *err) {
    struct rod_engine *e = calloc(1, sizeof *e);
    if (!e) return rod_fail(err, ROD_ENOMEM, "No memory for the engine.");
    e->config = *config;
    e->config.model_dir = e->config.synthetic = e->config.device = e->config.precision = NULL;
    e->parts = *parts;
    e->backend_info = *parts->ops->info(parts->backend);
    e->max_token_bytes = text_max_token_bytes(parts->tokenizer);
    fill_info(e);
    int rc = init_parts(e, err);
    if (rc) {
        engine_free(e);
        return rc;
    }
    if (parts->ops->on_moved) parts->ops->on_moved(parts->backend, moved, e);
    if (pthread_create(&e->thread, NULL, engine_thread, e)) {
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
    const uint64_t n_lost = sessions_close(e->sessions); /* what it writes has the backend's layout */
    e->sessions = NULL;
    e->parts.ops->close(e->parts.backend);
    engine_move_drop(e);
    mailbox_fini(&e->mailbox);
    chat_close(e->parts.chat);
    if (e->parts.tokenizer) tokenizer_close(e->parts.tokenizer);
    engine_free(e);
    return n_lost;
}

/* ---- requests ---- */

int rod_request_fits(const struct rod_engine *e, const struct rod_request *request, struct rod_error *err) {
    int rc = request_check(request, e->parts.V, e->config.max_prompt_tok, err);
    if (!rc) rc = request->turn ? engine_session_check(e, request, err) : engine_state_check(e, request, err);
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
    struct mail **mails = calloc(n, sizeof *mails);
    size_t n_made = 0;
    int rc = mails ? 0 : rod_fail(err, ROD_ENOMEM, "No memory for %zu requests.", n);
    for (size_t i = 0; !rc && n > 1 && i < n; i++)
        if (requests[i]->turn) {
            rc = rod_fail(err, ROD_EINVALID, "A session's turn has one answer.");
            if (err) memcpy(err->param, "n", sizeof "n");
        }
    while (!rc && n_made < n) {
        struct work *work;
        rc = rod_request_fits(e, requests[n_made], err);
        if (!rc) rc = work_new(e, requests[n_made], &work, err);
        if (!rc) mails[n_made++] = &work->mail;
    }
    if (!rc) {
        rc = mailbox_push_all(&e->mailbox, mails, n, tickets, err);
        if (rc) atomic_fetch_add_explicit(&e->counters.rejected, n, memory_order_relaxed);
    }
    for (size_t i = 0; rc && i < n_made; i++) {
        struct work *work = work_of_mail(mails[i]);
        work->request = NULL;
        work_free(work);
    }
    free(mails);
    return rc;
}

int rod_submit(struct rod_engine *e, struct rod_request *request, uint64_t *ticket, struct rod_error *err) {
    return rod_submit_all(e, &request, 1, ticket, err);
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

static uint64_t get(const atomic_uint_fast64_t *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }

bool rod_engine_failed(const struct rod_engine *e) {
    return atomic_load_explicit(&e->counters.device_failed, memory_order_relaxed);
}

void rod_engine_stats(const struct rod_engine *e, struct rod_stats *out) {
    const struct engine_counters *c = &e->counters;
    struct mailbox_counts counts;
    mailbox_count((struct mailbox *)&e->mailbox, &counts); /* const for the caller; its lock is not */
    *out = (struct rod_stats){
        .n_slots = e->backend_info.n_slots,
        .slots_used = (uint32_t)(get(&c->running) + get(&c->left)),
        .running = (uint32_t)get(&c->running),
        .queued = (uint32_t)counts.n_waiting,
        .queued_max = e->config.max_queue,
        .queued_tok = counts.waiting_tok,
        .requests_finished = get(&c->finished),
        .requests_cancelled = get(&c->cancelled),
        .requests_failed = get(&c->failed),
        .requests_rejected = get(&c->rejected),
        .requests_nan = get(&c->nan),
        .prefill_tok = get(&c->prefill_tok),
        .decode_tok = get(&c->decode_tok),
        .steps = get(&c->steps),
        .last_step_end_ns = get(&c->last_step_end_ns),
        .step_ns_sum = get(&c->step_ns_sum),
        .batch_rows_sum = get(&c->rows_sum),
        .prefix_hits = get(&c->prefix_hits),
        .prefix_tok_saved = get(&c->prefix_tok_saved),
        .prefix_entries = get(&c->prefix_entries),
        .prefix_bytes = get(&c->prefix_bytes),
        .prefix_evicted = get(&c->prefix_evicted),
        .failed = atomic_load_explicit(&c->device_failed, memory_order_relaxed),
    };
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) out->prefix_misses[i] = get(&c->prefix_misses[i]);
    if (e->sessions) sessions_stats(e->sessions, out);
    uint64_t sum = 0;
    for (int i = 0; i < 20; i++) out->step_ns_bucket[i] = sum += get(&c->bucket[i]);
    sum = 0;
    for (int i = 0; i < ROD_STEP_ROWS_BUCKETS; i++) out->step_rows_bucket[i] = sum += get(&c->rows_bucket[i]);
}

/* ---- text ---- */

static int need_tokenizer(const struct rod_engine *e, struct rod_error *err) {
    if (e->parts.tokenizer) return 0;
    return rod_fail(err, ROD_EUNSUPPORTED, "This model has no tokenizer.json: it takes and gives token ids only.");
}

int rod_encode(const struct rod_engine *e, const char *text, size_t len, bool special, int32_t **ids, size_t *n_ids,
               struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    return rc ? rc : tokenizer_encode(e->parts.tokenizer, text, len, special, ids, n_ids, err);
}

int rod_decode(const struct rod_engine *e, const int32_t *ids, size_t n_ids, bool skip_special, char **text,
               size_t *len, struct rod_error *err) {
    const struct tokenizer *t = e->parts.tokenizer;
    int rc = need_tokenizer(e, err);
    if (rc) return rc;
    size_t cap = 16;
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0;
        bool special;
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->parts.V)
            return rod_fail(err, ROD_EINVALID, "Token id %d is outside the vocabulary of %u tokens.", ids[i],
                            e->parts.V);
        if (tokenizer_bytes(t, ids[i], &n, &special)) cap += n * 3 + 16;
    }
    char *buf = malloc(cap + 1);
    if (!buf) return rod_fail(err, ROD_ENOMEM, "No memory for the text of %zu tokens.", n_ids);
    struct detok detok = {0};
    size_t n = 0;
    for (size_t i = 0; i < n_ids; i++) {
        size_t token_len;
        bool special;
        if (tokenizer_bytes(t, ids[i], &token_len, &special)) n += detok_push(&detok, t, ids[i], skip_special, buf + n);
    }
    n += detok_flush(&detok, buf + n);
    buf[n] = 0;
    *text = buf;
    *len = n;
    return 0;
}

const char *rod_token_bytes(const struct rod_engine *e, int32_t id, size_t *len, bool *special) {
    return e->parts.tokenizer ? tokenizer_bytes(e->parts.tokenizer, id, len, special) : NULL;
}

int rod_tokenize(const struct rod_engine *e, const char *text, size_t len, bool special, bool begin, int32_t **ids,
                 size_t *n_ids, struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    if (rc) return rc;
    const struct tokenizer_piece piece = {text, len, special};
    if (!begin) return tokenizer_encode_pieces(e->parts.tokenizer, &piece, 1, ids, n_ids, err);
    return tokenizer_encode(e->parts.tokenizer, text, len, special, ids, n_ids, err);
}

int rod_grammar_open(const struct rod_engine *e, enum rod_grammar_kind kind, const char *text, size_t len,
                     struct rod_grammar **out, struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    return rc ? rc : grammar_cache_open(e->grammars, kind, text, len, out, err);
}

int rod_chat_encode(const struct rod_engine *e, const struct rod_message *messages, size_t n_messages, bool generation,
                    int32_t **ids, size_t *n_ids, struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    return rc ? rc : chat_encode(e->parts.chat, e->parts.tokenizer, messages, n_messages, generation, ids, n_ids, err);
}

void rod_chat_marks(const struct rod_engine *e, const struct rod_message *messages, size_t n_messages,
                    const int32_t *ids, size_t n_ids, size_t **marks, size_t *n_marks) {
    chat_marks(e->parts.chat, e->parts.tokenizer, messages, n_messages, ids, n_ids, marks, n_marks);
}

int rod_chat_encode_turn(const struct rod_engine *e, const struct rod_message *messages, size_t n_messages,
                         bool generation, struct rod_turn *turn, int32_t **ids, size_t *n_ids, struct rod_error *err) {
    const struct chat *c = e->parts.chat;
    const struct tokenizer *t = e->parts.tokenizer;
    int rc = need_tokenizer(e, err);
    if (!rc) rc = chat_encode_more(c, t, messages, n_messages, generation, false, ids, n_ids, err);
    if (rc) return rc;
    if (chat_begins(c))
        rc = chat_encode(c, t, messages, n_messages, generation, &turn->if_empty, &turn->n_if_empty, err);
    if (!rc && chat_closes(c))
        rc = chat_encode_more(c, t, messages, n_messages, generation, true, &turn->if_open, &turn->n_if_open, err);
    turn->leaves_open = generation;
    if (!rc) return 0;
    free(*ids);
    *ids = NULL;
    return rc;
}

int rod_chat_render(const struct rod_engine *e, const struct rod_message *messages, size_t n_messages, bool generation,
                    char **text, size_t *len, struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    return rc ? rc : chat_render(e->parts.chat, messages, n_messages, generation, text, len, err);
}

int rod_fim_encode(const struct rod_engine *e, const char *before, size_t n_before, const char *after, size_t n_after,
                   int32_t **ids, size_t *n_ids, struct rod_error *err) {
    int rc = need_tokenizer(e, err);
    return rc ? rc : fim_encode(e->parts.tokenizer, before, n_before, after, n_after, ids, n_ids, err);
}
