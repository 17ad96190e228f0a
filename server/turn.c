/* turn.c - one completion or chat request, from its body to its last byte.
 *
 * A turn has n choices a prompt; each is one request of the engine and answers with events, which become SSE frames at
 * once or one JSON answer at the end. It is freed when the http request has ended, no choice is open in the engine and
 * no work is on the pool. */
#include "session_routes.h"
#include "turn_internal.h"

#include "server/openai/sse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t ping_ns(const struct turn *t) {
    int64_t ms = t->request.ping_ms >= 0 ? t->request.ping_ms : (int64_t)t->server->config.sse_ping_ms;
    return (uint64_t)ms * 1000000;
}

/* ---- life ---- */

/* What the turn did not use goes back to its key: tokens that were not made, prompts that never got a slot, and all
 * that is only said again. */
static void settle_tokens(struct turn *t) {
    uint64_t used_tok = t->answer_tok;
    if (!t->key || !t->tokens.taken) return;
    for (size_t i = 0; i < t->n_prompts; i++)
        if (t->prompts[i].read) used_tok += t->prompts[i].n_ids;
    key_settle(t->key, &t->tokens, used_tok);
}

static void free_turn(struct turn *t) {
    struct server *s = t->server;
    settle_tokens(t);
    if (t->prev) t->prev->next = t->next;
    if (t->next) t->next->prev = t->prev;
    if (s->turns == t) s->turns = t->next;
    s->n_turns--;
    for (uint32_t i = 0; i < t->n_choices; i++) {
        struct turn_choice *c = &t->choices[i];
        buf_fini(&c->text);
        buf_fini(&c->ids);
        buf_fini(&c->prompt_logprobs);
        openai_logprobs_fini(&c->logprobs);
        free(c->stop_string);
    }
    for (size_t i = 0; i < t->n_prompts; i++) {
        free(t->prompts[i].ids);
        free(t->prompts[i].echo);
        free(t->prompts[i].marks);
    }
    free(t->prompts);
    for (size_t i = 0; i < t->n_bad; i++) free(t->bad[i].ids);
    free(t->bad);
    free(t->choices);
    openai_request_fini(&t->request);
    rod_grammar_close(t->grammar);
    if (t->counted) key_end(t->key, true);
    if (t->key) key_drop(&s->keys, t->key);
    buf_fini(&t->prefix);
    buf_fini(&t->frame);
    free(t->header_session);
    free(t->header_key);
    free(t->model);
    turn_session_free(t->session);
    free(t->body);
    free(t);
}

void turn_maybe_free(struct turn *t) {
    if (!t->call && !t->n_open && !t->working) free_turn(t);
}

static void cancel_all(struct turn *t) {
    for (uint32_t i = 0; i < t->n_choices; i++) {
        if (t->choices[i].open) rod_cancel(t->server->engine, t->choices[i].ticket);
    }
}

void turn_gone(struct turn *t) {
    if (t->over) return;
    t->over = true;
    t->server->metrics.disconnects++;
    cancel_all(t);
    if (t->working) pool_cancel(&t->work); /* unless it has begun */
}

void turn_done(struct turn *t) {
    t->call = NULL;
    if (t->streaming) t->server->metrics.streams--;
    if (t->working) pool_cancel(&t->work);
    if (!t->over) {
        t->over = true;
        cancel_all(t);
    }
    turn_maybe_free(t);
}

bool turn_any_works(const struct server *server) {
    const struct turn *t = server->turns;
    while (t && !t->working) t = t->next;
    return t != NULL;
}

void turn_free_all(struct server *server) {
    while (server->turns) free_turn(server->turns);
}

int turn_log_fields(const struct turn *t, struct log_field *fields, int max) {
    if (max < 10) return 0;
    uint64_t completion = 0;
    int n = 0;
    for (uint32_t i = 0; i < t->n_choices; i++) completion += t->choices[i].completion_tok;
    /* While the pool works on the turn, what it writes must not be read. */
    fields[n++] = log_number("prompt_tokens", t->working ? 0 : (double)t->usage.prompt_tok);
    fields[n++] = log_number("completion_tokens", (double)completion);
    if (t->first_ns) {
        fields[n++] = log_number("ttft_ms", (double)((t->first_ns - t->started_ns) / 10000) / 100);
    }
    if (t->queue_ns) fields[n++] = log_number("queue_ms", (double)(t->queue_ns / 10000) / 100);
    fields[n++] = log_truth("stream", t->stream);
    if (t->slow) fields[n++] = log_words("cut", "slow_client");
    if (!t->working && t->of_session) {
        const char *id = t->kind == OPENAI_RESPONSE ? t->response_id : t->request.session.id;
        fields[n++] = log_words("session", id);
    }
    if (*t->session_id || t->usage.cached_tok) {
        fields[n++] = log_number("cached_tokens", (double)t->usage.cached_tok);
    }
    if (*t->session_id) {
        fields[n++] = log_number("version", (double)t->session_version);
        if (t->replayed) fields[n++] = log_truth("replayed", true);
    }
    return n;
}

/* ---- answers ---- */

static void write_frames(struct turn *t) {
    struct server *s = t->server;
    struct http_request *r = t->call->http;
    if (t->frame.failed && !t->over && !t->streaming) {
        turn_fail_code(t, ROD_ENOMEM, "out of memory");
        return;
    }
    if (t->frame.failed) {
        http_abort(r);
        cancel_all(t);
        t->over = true;
        return;
    }
    if (!t->streaming) {
        t->streaming = true;
        s->metrics.streams++;
        http_add_header(r, "Cache-Control", "no-cache");
        http_add_header(r, "X-Accel-Buffering", "no");
        http_stream_begin(r, SSE_CONTENT_TYPE);
    }
    http_stream_write(r, t->frame.data, t->frame.len);
    buf_clear(&t->frame);
    t->sent_ns = uv_hrtime();
    if (!t->over && http_stream_pending(r) > s->config.stream_buffer_bytes + t->opening_bytes) {
        s->metrics.slow_clients++;
        t->call->outcome = "slow_client";
        t->slow = true;
        t->over = true;
        cancel_all(t);
        http_abort(r);
    }
}

void turn_fail(struct turn *t, const struct openai_error *err) {
    if (t->over || !t->call) return;
    t->over = true;
    cancel_all(t);
    if (!t->streaming) {
        http_call_fail(t->call, err);
        return;
    }
    t->call->outcome = *err->code ? err->code : err->type;
    if (t->kind == OPENAI_RESPONSE) {
        openai_render_response_error(&t->frame, err, &t->sequence);
    } else {
        sse_begin(&t->frame);
        openai_render_error(&t->frame, err);
        sse_end(&t->frame);
        sse_done(&t->frame);
    }
    write_frames(t);
    http_stream_end(t->call->http);
}

void turn_fail_code(struct turn *t, int code, const char *message) {
    struct rod_error from = {0};
    struct openai_error err;
    rod_fail(&from, code, "%s", message);
    openai_error_from(&err, &from);
    turn_fail(t, &err);
}

void turn_end_all(struct server *server) {
    for (struct turn *t = server->turns, *next; t; t = next) {
        next = t->next;
        turn_fail_code(t, ROD_EDRAINING, "the server is shutting down");
    }
}

static struct openai_choice view(const struct turn *t, const struct turn_choice *c) {
    return (struct openai_choice){.index = c->index,
                                  .text = "",
                                  .logprobs = t->request.n_logprobs >= 0 ? &c->logprobs : NULL,
                                  .token_ids = t->request.return_token_ids ? &c->ids : NULL,
                                  .stop_id = -1};
}

static void add_ids(struct buf *out, const int32_t *ids, size_t n_ids) {
    for (size_t i = 0; i < n_ids; i++) {
        if (i) buf_putc(out, ',');
        buf_int(out, ids[i]);
    }
}

/* A choice's opening comes with its first token and does not count it. */
static void push_chunk(struct turn *t, const struct turn_choice *c, const struct openai_choice *choice) {
    struct openai_usage usage = {t->prompts[c->prompt].n_ids, c->role_sent ? c->completion_tok : 0, 0};
    if (*t->session_id) usage = t->usage;
    sse_begin(&t->frame);
    openai_render_chunk(&t->frame, t->kind, &t->prefix, choice, t->request.continuous_usage ? &usage : NULL,
                        t->request.include_usage);
    sse_end(&t->frame);
}

/* What comes before a choice's first token, and leaves together with it: the role of a chat, or the prompt where it is
 * to be said again or was scored. The prompt's ids go with the first chunk of either kind. */
static void push_opening(struct turn *t, struct turn_choice *c) {
    const struct openai_request *q = &t->request;
    const struct turn_prompt *p = &t->prompts[c->prompt];
    if (t->kind == OPENAI_COMPLETION && !q->echo && q->n_prompt_logprobs < 0) return; /* push_delta has the ids */
    struct openai_choice opening = {.index = c->index, .role = t->kind == OPENAI_CHAT, .text = "", .stop_id = -1};
    struct buf prompt_ids = {0};
    if (q->return_token_ids) {
        add_ids(&prompt_ids, p->ids, p->n_ids);
        opening.prompt_ids = &prompt_ids;
    }
    if (p->echo) {
        opening.text = p->echo;
        opening.text_len = p->echo_len;
    }
    if (q->echo && q->n_logprobs >= 0) opening.logprobs = &c->logprobs;
    if (q->n_prompt_logprobs >= 0) opening.prompt_logprobs = &c->prompt_logprobs;
    const size_t before = t->frame.len;
    push_chunk(t, c, &opening);
    t->opening_bytes += t->frame.len - before;
    c->role_sent = true;
    buf_fini(&prompt_ids);
    buf_fini(&c->prompt_logprobs); /* of a long prompt this was much */
    const uint64_t n_chars = c->logprobs.n_chars;
    openai_logprobs_fini(&c->logprobs);
    c->logprobs.n_chars = n_chars;
}

/* The choices of a chat begin together and in order, when the first of them does: clients make their list of choices
 * from that. */
static void push_openings(struct turn *t, struct turn_choice *c) {
    if (t->kind == OPENAI_RESPONSE) {
        const size_t before = t->frame.len;
        turn_response_opening(t);
        t->opening_bytes += t->frame.len - before;
        c->role_sent = true;
        return;
    }
    struct turn_choice *first = t->kind == OPENAI_CHAT ? t->choices : c;
    const uint32_t n = t->kind == OPENAI_CHAT ? t->n_choices : 1;
    for (uint32_t i = 0; i < n; i++) push_opening(t, &first[i]);
}

static void push_delta(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    if (t->kind == OPENAI_RESPONSE) {
        turn_response_delta(t, e->text, e->text_len);
        return;
    }
    struct openai_choice choice = view(t, c);
    struct buf prompt_ids = {0};
    if (!c->role_sent && t->request.return_token_ids) {
        add_ids(&prompt_ids, t->prompts[c->prompt].ids, t->prompts[c->prompt].n_ids);
        choice.prompt_ids = &prompt_ids;
    }
    c->role_sent = true;
    choice.text = e->text;
    choice.text_len = e->text_len;
    bool rich = e->n_tokens && (choice.logprobs || choice.token_ids);
    const size_t before = t->frame.len;
    if (e->text_len || rich || choice.prompt_ids) push_chunk(t, c, &choice);
    if (choice.prompt_ids) t->opening_bytes += t->frame.len - before;
    buf_fini(&prompt_ids);
    openai_logprobs_clear(&c->logprobs);
    buf_clear(&c->ids);
}

static void push_finish(struct turn *t, struct turn_choice *c) {
    struct openai_choice choice = view(t, c);
    choice.logprobs = NULL;
    choice.token_ids = NULL;
    choice.finished = true;
    choice.reason = c->reason;
    choice.stop_string = c->stop_string;
    choice.stop_id = c->stop_id;
    choice.session = turn_session_of(t);
    choice.session_version = t->session_version;
    push_chunk(t, c, &choice);
}

static void end_stream(struct turn *t) {
    if (t->kind == OPENAI_RESPONSE) turn_response_ending(t);
    if (t->request.include_usage) {
        sse_begin(&t->frame);
        openai_render_usage_chunk(&t->frame, &t->prefix, &t->usage);
        sse_end(&t->frame);
    }
    if (t->kind != OPENAI_RESPONSE) sse_done(&t->frame);
    /* The end of a response says all its text again, which tells nothing of how its client reads. */
    t->over = !t->frame.failed;
    write_frames(t);
    http_stream_end(t->call->http);
}

static void answer_whole(struct turn *t) {
    struct openai_choice *choices = calloc(t->n_choices, sizeof *choices);
    struct buf *prompt_ids = calloc(t->n_prompts, sizeof *prompt_ids), out = {0};
    if (choices && prompt_ids) {
        for (size_t i = 0; i < t->n_prompts && t->request.return_token_ids; i++) {
            add_ids(&prompt_ids[i], t->prompts[i].ids, t->prompts[i].n_ids);
        }
        for (uint32_t i = 0; i < t->n_choices; i++) {
            const struct turn_choice *c = &t->choices[i];
            choices[i] = view(t, c);
            choices[i].text = c->text.len ? c->text.data : "";
            choices[i].text_len = c->text.len;
            choices[i].prompt_ids = t->request.return_token_ids ? &prompt_ids[c->prompt] : NULL;
            choices[i].prompt_logprobs = t->request.n_prompt_logprobs >= 0 ? &c->prompt_logprobs : NULL;
            choices[i].finished = true;
            choices[i].reason = c->reason;
            choices[i].stop_string = c->stop_string;
            choices[i].stop_id = c->stop_id;
            choices[i].session = turn_session_of(t);
            choices[i].session_version = t->session_version;
            out.failed = out.failed || c->text.failed;
        }
        if (t->kind == OPENAI_RESPONSE) {
            turn_response_whole(t, &out);
        } else {
            openai_render_answer(&out, t->kind, &t->prefix, choices, t->n_choices, &t->usage);
        }
    }
    if (choices && prompt_ids && !out.failed) {
        t->over = true;
        http_call_respond(t->call, 200, "application/json", &out);
    } else {
        turn_fail_code(t, ROD_ENOMEM, "out of memory");
    }
    for (size_t i = 0; prompt_ids && i < t->n_prompts; i++) buf_fini(&prompt_ids[i]);
    free(prompt_ids);
    free(choices);
    buf_fini(&out);
}

/* ---- events ---- */

/* With the first event of a choice: what its prompt begins with. */
static void begin_prompt(struct turn *t, struct turn_choice *c) {
    const struct openai_request *q = &t->request;
    const struct turn_prompt *p = &t->prompts[c->prompt];
    if (c->prompt_begun || t->over) return;
    c->prompt_begun = true;
    if (q->echo && q->n_logprobs >= 0) openai_logprobs_add_first(&c->logprobs, p->ids[0], &t->server->vocab);
    if (q->n_prompt_logprobs >= 0) openai_prompt_logprobs_add(&c->prompt_logprobs, NULL, &t->server->vocab);
    if (p->echo && !q->stream) buf_add(&c->text, p->echo, p->echo_len);
}

/* The prompt was scored for the more demanding of logprobs and prompt_logprobs; each gets as many as it asks for. */
static void take_prompt(struct turn *t, struct turn_choice *c, struct rod_event *e) {
    const struct openai_request *q = &t->request;
    begin_prompt(t, c);
    if (t->over) return;
    for (size_t i = 0; i < e->n_tokens; i++) {
        struct rod_token *token = &e->tokens[i];
        const uint32_t n_top = token->n_top;
        if (q->n_prompt_logprobs >= 0) {
            token->n_top = n_top < (uint32_t)q->n_prompt_logprobs ? n_top : (uint32_t)q->n_prompt_logprobs;
            openai_prompt_logprobs_add(&c->prompt_logprobs, token, &t->server->vocab);
        }
        if (q->echo && q->n_logprobs >= 0) {
            token->n_top = n_top < (uint32_t)q->n_logprobs ? n_top : (uint32_t)q->n_logprobs;
            openai_logprobs_add(&c->logprobs, t->kind, token, 1, true, &t->server->vocab);
        }
    }
}

static bool named_stop_id(const struct turn *t, int32_t id) {
    for (size_t i = 0; i < t->request.n_stop_ids; i++) {
        if (t->request.stop_ids[i] == id) return true;
    }
    return false;
}

/* Special tokens are in the text where the request wants them, and as the stop that it wants to see. */
static void add_logprobs(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    const struct server *s = t->server;
    if (c->completion_tok == e->n_tokens) c->logprobs.n_part = 0; /* the prompt's text has ended, whole or not */
    for (size_t i = 0; i < e->n_tokens; i++) {
        const struct rod_token *token = &e->tokens[i];
        size_t len = 0;
        bool special = false;
        rod_token_bytes(s->engine, token->id, &len, &special);
        const bool shown = !special || t->request.keep_special || named_stop_id(t, token->id);
        openai_logprobs_add(&c->logprobs, t->kind, token, 1, shown, &s->vocab);
    }
}

static void take_tokens(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    struct server *s = t->server;
    uint64_t now = uv_hrtime();
    c->completion_tok += e->n_tokens;
    if (e->n_tokens) {
        if (!t->first_ns) {
            t->first_ns = now;
            metrics_observe(&s->metrics.ttft, (double)(now - t->started_ns) * 1e-9);
        }
        if (t->key && !e->replayed) {
            t->answer_tok += e->n_tokens;
            t->key->completion_tok += e->n_tokens;
        }
        if (c->last_ns) metrics_observe(&s->metrics.inter_token, (double)(now - c->last_ns) * 1e-9);
        c->last_ns = now;
    }
    if (t->over) return;
    begin_prompt(t, c);
    if (t->request.stream && !c->role_sent) push_openings(t, c);
    if (t->request.n_logprobs >= 0) add_logprobs(t, c, e);
    for (size_t i = 0; t->request.return_token_ids && i < e->n_tokens; i++) {
        if (c->ids.len) buf_putc(&c->ids, ',');
        buf_int(&c->ids, e->tokens[i].id);
    }
    if (t->request.stream) {
        push_delta(t, c, e);
    } else {
        buf_add(&c->text, e->text, e->text_len);
    }
}

/* In the log-probabilities, but neither text nor a token of the usage. */
static void take_end_token(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    begin_prompt(t, c);
    if (t->over) return;
    if (t->request.stream && !c->role_sent) push_openings(t, c);
    openai_logprobs_add(&c->logprobs, t->kind, e->tokens, e->n_tokens, false, &t->server->vocab);
    if (!t->request.stream) return;
    struct openai_choice choice = view(t, c);
    push_chunk(t, c, &choice);
    openai_logprobs_clear(&c->logprobs);
}

static void take_finish(struct turn *t, struct turn_choice *c, struct rod_event *e) {
    struct server *s = t->server;
    take_tokens(t, c, e);
    c->completion_tok = e->completion_tok;
    s->metrics.completion_tok += e->completion_tok;
    c->reason = e->reason;
    c->stop_string = e->stop_string ? strdup(e->stop_string) : NULL;
    c->stop_id = named_stop_id(t, e->stop_id) ? e->stop_id : -1; /* the end token itself is not named */
    t->usage.completion_tok += e->completion_tok;
    if (c->index % t->request.n == 0) t->usage.cached_tok += e->cached_tok;
    if (*e->session) {
        const struct openai_response *r = &t->request.response;
        if (t->kind == OPENAI_RESPONSE && !r->store) session_routes_discard(s, t->tenant, e->session);
        snprintf(t->session_id, sizeof t->session_id, "%s", e->session);
        t->session_version = e->session_version;
        t->replayed = e->replayed;
        t->usage.prompt_tok = e->prompt_tok; /* of the whole conversation */
    }
    if (e->queue_ns > t->queue_ns) t->queue_ns = e->queue_ns;
    metrics_observe(&s->metrics.queue, (double)e->queue_ns * 1e-9);
    if (t->over) return;
    if (e->stop_string && !c->stop_string) {
        turn_fail_code(t, ROD_ENOMEM, "out of memory");
        return;
    }
    if (e->reason == ROD_FINISH_CANCEL) {
        turn_fail_code(t, ROD_EDRAINING, "the request was cancelled by the server");
        return;
    }
    if (t->request.stream && t->kind != OPENAI_RESPONSE) push_finish(t, c);
    if (t->n_open) return;
    metrics_observe(&s->metrics.request, (double)(uv_hrtime() - t->started_ns) * 1e-9);
    t->call->outcome = c->reason == ROD_FINISH_LENGTH ? "length" : "stop";
    if (t->request.stream) {
        end_stream(t);
    } else {
        answer_whole(t);
    }
}

/* The field to name where a request leaves no token to choose. */
static const char *restriction(const struct openai_request *q) {
    if (q->n_allowed_ids) return "allowed_token_ids";
    if (q->n_bias) return "logit_bias";
    if (q->n_bad_words) return "bad_words";
    return q->grammar.text ? q->grammar.param : "";
}

void turn_event(struct rod_event *e) {
    struct turn_choice *c = e->user;
    struct turn *t = c->turn;
    if (e->kind == ROD_EVENT_FINISH || e->kind == ROD_EVENT_ERROR) {
        c->open = false;
        t->n_open--;
        if (e->prefill_ns && !e->replayed) t->prompts[c->prompt].read = true;
    }
    if (e->label) turn_session_relabel(t, e->label);
    if (e->kind == ROD_EVENT_PROMPT) {
        take_prompt(t, c, e);
    } else if (e->kind == ROD_EVENT_END_TOKEN) {
        take_end_token(t, c, e);
    } else if (e->kind == ROD_EVENT_DELTA) {
        take_tokens(t, c, e);
    } else if (e->kind == ROD_EVENT_FINISH) {
        take_finish(t, c, e);
    } else {
        struct openai_error err;
        if (e->error.code == ROD_EINVALID && !e->error.param[0])
            snprintf(e->error.param, sizeof e->error.param, "%s", restriction(&t->request));
        openai_error_from(&err, &e->error);
        if (t->of_session) turn_session_error(t, &err, e->error.code);
        turn_fail(t, &err);
    }
    if (t->call && !t->over && (t->frame.len || t->frame.failed)) write_frames(t);
    rod_event_free(e);
    if (!t->n_open) settle_tokens(t);
    turn_maybe_free(t);
}

void turn_tick(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now = uv_hrtime();
    if (!server->turns) uv_timer_stop(timer);
    for (struct turn *t = server->turns; t; t = t->next) {
        if (t->working) continue; /* the request is still being written on the pool */
        if (!t->n_open || t->over || !t->call || !t->stream) continue;
        uint64_t silence = ping_ns(t);
        if (!silence) continue;
        if (now - t->sent_ns < silence || (t->streaming && http_stream_pending(t->call->http))) continue;
        server->metrics.pings++;
        sse_ping(&t->frame);
        write_frames(t);
    }
}
