/* completion.c - one completion or chat request, from its body to its last byte.
 *
 * It has n choices a prompt; each is one request of the engine and answers with events, which become SSE frames at
 * once or one JSON answer at the end. It is freed when the http request has ended, no choice is open in the engine and
 * no work is on the pool. */
#include "completion_internal.h"

#include "server/api/sse.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t ping_ns(const struct completion *c) {
    int64_t ms = c->request.ping_ms >= 0 ? c->request.ping_ms : (int64_t)c->server->config.sse_ping_ms;
    return (uint64_t)ms * 1000000;
}

/* Its stream has events with names, and one choice. */
static bool has_events(const struct completion *c) { return c->kind == API_RESPONSE || c->is_message; }

/* ---- life ---- */

/* Gives back to the key what the completion did not use: tokens that were not made, prompts that got no slot, and text
 * that is only repeated. */
static void settle_tokens(struct completion *c) {
    uint64_t used_tok = c->answer_tok;
    if (!c->key || !c->tokens.taken) return;
    for (size_t i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].read) used_tok += c->prompts[i].n_ids;
    key_settle(c->key, &c->tokens, used_tok);
}

static void completion_free(struct completion *c) {
    struct server *s = c->server;
    assert(server_on_loop(s));
    assert(!c->call && !c->working);
    settle_tokens(c);
    list_remove(&s->completions, &c->link);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct completion_choice *choice = &c->choices[i];
        buf_fini(&choice->text);
        buf_fini(&choice->ids);
        buf_fini(&choice->prompt_logprobs);
        api_logprobs_fini(&choice->logprobs);
        completion_items_free(choice);
        api_split_fini(&choice->split);
        free(choice->stop_string);
    }
    for (size_t i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].ids);
        free(c->prompts[i].echo);
        free(c->prompts[i].marks);
    }
    free(c->prompts);
    for (size_t i = 0; i < c->n_bad; i++) free(c->bad[i].ids);
    free(c->bad);
    free(c->choices);
    api_request_fini(&c->request);
    rod_grammar_close(c->grammar);
    if (c->n_counted) key_end(c->key, c->n_counted);
    if (c->key) key_drop(&s->keys, c->key);
    buf_fini(&c->prefix);
    buf_fini(&c->frame);
    free(c->header_session);
    free(c->header_key);
    free(c->model);
    completion_session_free(c->session);
    free(c->body);
    free(c);
}

void completion_maybe_free(struct completion *c) {
    if (!c->call && !c->n_open && !c->working) completion_free(c);
}

static void cancel_choices(struct completion *c) {
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (c->choices[i].open) rod_cancel(c->server->engine, c->choices[i].ticket);
    }
}

void completion_gone(struct completion *c) {
    assert(server_on_loop(c->server) && c->call);
    if (c->over) return;
    c->over = true;
    c->server->metrics.disconnects++;
    cancel_choices(c);
    if (c->working) pool_cancel(&c->work); /* work that has begun goes on */
}

void completion_done(struct completion *c) {
    assert(server_on_loop(c->server) && c->call); /* once */
    c->call = NULL;
    assert(!c->streaming || c->server->metrics.streams);
    if (c->streaming) c->server->metrics.streams--;
    if (c->working) pool_cancel(&c->work);
    if (!c->over) {
        c->over = true;
        cancel_choices(c);
    }
    completion_maybe_free(c);
}

bool completion_any_works(const struct server *server) {
    const struct completion *c = completion_first(server);
    while (c && !c->working) c = completion_next(c);
    return c != NULL;
}

void completion_free_all(struct server *server) {
    while (server->completions.n) completion_free(completion_first(server));
}

int completion_log_fields(const struct completion *c, struct log_field *fields, int max) {
    assert(max >= 13); /* all that follow */
    uint64_t completion = 0;
    int n = 0;
    for (uint32_t i = 0; i < c->n_choices; i++) completion += c->choices[i].completion_tok;
    /* The pool writes usage and prompts while it works. */
    fields[n++] = log_number("prompt_tokens", c->working ? 0 : (double)c->usage.prompt_tok);
    fields[n++] = log_number("completion_tokens", (double)completion);
    if (c->first_ns) {
        fields[n++] = log_number("ttft_ms", (double)((c->first_ns - c->started_ns) / 10000) / 100);
    }
    if (c->queue_ns) fields[n++] = log_number("queue_ms", (double)(c->queue_ns / 10000) / 100);
    fields[n++] = log_truth("stream", c->stream);
    if (c->slow) fields[n++] = log_words("cut", "slow_client");
    if (!c->working && c->of_session) {
        const char *id = c->kind == API_RESPONSE ? c->response_id : c->request.session.id;
        fields[n++] = log_words("session", id);
    }
    if (*c->session_id || c->usage.cached_tok) {
        fields[n++] = log_number("cached_tokens", (double)c->usage.cached_tok);
    }
    if (*c->session_id) {
        fields[n++] = log_number("version", (double)c->session_version);
        if (c->replayed) fields[n++] = log_truth("replayed", true);
    }
    if (c->usage.accepted_tok || c->usage.rejected_tok) {
        fields[n++] = log_number("accepted_drafts", (double)c->usage.accepted_tok);
        fields[n++] = log_number("rejected_drafts", (double)c->usage.rejected_tok);
    }
    if (!c->working && c->grammar && *rod_grammar_notes(c->grammar)) {
        fields[n++] = log_words("weakened", rod_grammar_notes(c->grammar));
    }
    return n;
}

/* ---- answers ---- */

static void write_frames(struct completion *c) {
    assert(c->call && c->stream && !c->working);
    struct server *s = c->server;
    struct http_request *r = c->call->http;
    if (c->frame.failed && !c->over && !c->streaming) {
        completion_fail_no_memory(c);
        return;
    }
    if (c->frame.failed) {
        http_abort(r);
        cancel_choices(c);
        c->over = true;
        return;
    }
    if (!c->streaming) {
        c->streaming = true;
        s->metrics.streams++;
        http_add_header(r, "Cache-Control", "no-cache");
        http_add_header(r, "X-Accel-Buffering", "no");
        http_stream_begin(r, SSE_CONTENT_TYPE);
    }
    http_stream_write(r, c->frame.data, c->frame.len);
    buf_clear(&c->frame);
    c->sent_ns = uv_hrtime();
    if (!c->over && http_stream_pending(r) > s->config.stream_buffer_bytes + c->opening_bytes) {
        s->metrics.slow_clients++;
        c->call->outcome = "slow_client";
        c->slow = true;
        c->over = true;
        cancel_choices(c);
        http_abort(r);
    }
}

void completion_fail(struct completion *c, const struct api_error *err) {
    if (c->over || !c->call) return;
    c->over = true;
    cancel_choices(c);
    if (!c->streaming) {
        http_call_fail(c->call, err);
        return;
    }
    const struct api_error shown = http_call_traced(c->call, err);
    c->call->outcome = *err->code ? err->code : err->type;
    if (c->kind == API_RESPONSE) {
        api_render_response_error(&c->frame, &shown, &c->sequence);
    } else if (c->is_message) {
        completion_message_error(c, &shown);
    } else {
        sse_begin(&c->frame);
        api_render_error(&c->frame, &shown);
        sse_end(&c->frame);
        sse_done(&c->frame);
    }
    write_frames(c);
    http_stream_end(c->call->http);
}

void completion_fail_code(struct completion *c, int code, const char *message) {
    struct rod_error from = {0};
    struct api_error err;
    rod_fail(&from, code, "%s", message);
    api_error_from(&err, &from);
    completion_fail(c, &err);
}

void completion_fail_no_memory(struct completion *c) {
    struct api_error err;
    api_error_no_memory(&err);
    completion_fail(c, &err);
}

void completion_end_all(struct server *server) {
    for (struct completion *c = completion_first(server), *next; c; c = next) {
        next = completion_next(c);
        completion_fail_code(c, ROD_EDRAINING, "The server is shutting down.");
    }
}

static struct api_choice choice_view(const struct completion *c, const struct completion_choice *choice) {
    return (struct api_choice){.index = choice->index,
                               .text = "",
                               .logprobs = c->request.n_logprobs >= 0 ? &choice->logprobs : NULL,
                               .token_ids = c->request.return_token_ids ? &choice->ids : NULL,
                               .stop_id = -1};
}

/* The opening of a choice leaves together with its first token: the role of a chat, or the prompt where it is echoed or
 * was scored. The prompt's ids go with the first chunk of either kind. */
static void push_opening(struct completion *c, struct completion_choice *choice) {
    assert(c->kind != API_RESPONSE && !choice->role_sent);
    const struct api_request *q = &c->request;
    const struct completion_prompt *p = &c->prompts[choice->prompt];
    if (c->kind == API_COMPLETION && !q->echo && q->n_prompt_logprobs < 0) return; /* push_delta has the ids */
    struct api_choice opening = {.index = choice->index, .role = c->kind == API_CHAT, .text = "", .stop_id = -1};
    opening.no_text = q->tools.n && q->tools.choice != API_TOOLS_AUTO; /* there will be calls alone */
    struct buf prompt_ids = {0};
    if (q->return_token_ids) {
        api_render_ids(&prompt_ids, p->ids, p->n_ids);
        opening.prompt_ids = &prompt_ids;
    }
    if (p->echo) {
        opening.text = p->echo;
        opening.text_len = p->echo_len;
    }
    if (q->echo && q->n_logprobs >= 0) opening.logprobs = &choice->logprobs;
    if (q->n_prompt_logprobs >= 0) opening.prompt_logprobs = &choice->prompt_logprobs;
    const size_t before = c->frame.len;
    completion_push_chunk(c, choice, &opening);
    c->opening_bytes += c->frame.len - before;
    choice->role_sent = true;
    buf_fini(&prompt_ids);
    buf_fini(&choice->prompt_logprobs); /* it may be long */
    const uint64_t n_chars = choice->logprobs.n_chars;
    api_logprobs_fini(&choice->logprobs);
    choice->logprobs.n_chars = n_chars;
}

/* The choices of a chat begin together and in order, with the first token of any: clients make their list of choices
 * from these chunks. */
static void push_openings(struct completion *c, struct completion_choice *choice) {
    if (has_events(c)) {
        const size_t before = c->frame.len;
        if (c->is_message)
            completion_message_opening(c);
        else
            completion_response_opening(c);
        c->opening_bytes += c->frame.len - before;
        choice->role_sent = true;
        return;
    }
    struct completion_choice *first = c->kind == API_CHAT ? c->choices : choice;
    const uint32_t n = c->kind == API_CHAT ? c->n_choices : 1;
    for (uint32_t i = 0; i < n; i++) push_opening(c, &first[i]);
}

static void push_delta(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    struct api_choice shown = choice_view(c, choice);
    struct buf prompt_ids = {0};
    if (!choice->role_sent && c->request.return_token_ids) {
        api_render_ids(&prompt_ids, c->prompts[choice->prompt].ids, c->prompts[choice->prompt].n_ids);
        shown.prompt_ids = &prompt_ids;
    }
    choice->role_sent = true;
    const size_t before = c->frame.len;
    const bool opens = shown.prompt_ids != NULL;
    if (c->request.tools.n) {
        completion_calls_push(choice, e->text, e->text_len, &shown);
    } else {
        shown.text = e->text;
        shown.text_len = e->text_len;
    }
    bool rich = e->n_tokens && (shown.logprobs || shown.token_ids);
    if (shown.text_len || rich || shown.prompt_ids) completion_push_chunk(c, choice, &shown);
    if (opens) c->opening_bytes += c->frame.len - before;
    buf_fini(&prompt_ids);
    api_logprobs_clear(&choice->logprobs);
    buf_clear(&choice->ids);
}

static void push_finish(struct completion *c, struct completion_choice *choice) {
    struct api_choice shown = choice_view(c, choice);
    shown.logprobs = NULL;
    shown.token_ids = NULL;
    shown.finished = true;
    shown.reason = choice->reason;
    shown.called = completion_called(c, choice);
    shown.stop_string = choice->stop_string;
    shown.stop_id = choice->stop_id;
    shown.session = completion_session_of(c);
    shown.session_version = c->session_version;
    completion_push_chunk(c, choice, &shown);
}

static void end_stream(struct completion *c) {
    assert(c->stream && !c->n_open && !c->over);
    if (c->kind == API_RESPONSE) completion_response_ending(c);
    if (c->is_message) completion_message_ending(c);
    if (c->request.include_usage) {
        sse_begin(&c->frame);
        api_render_usage_chunk(&c->frame, &c->prefix, &c->usage);
        sse_end(&c->frame);
    }
    if (!has_events(c)) sse_done(&c->frame);
    /* The end of a response repeats its text, so its size says nothing about how fast the client reads. */
    c->over = !c->frame.failed;
    write_frames(c);
    if (c->streaming) http_stream_end(c->call->http); /* else out of memory before the first frame: 500 */
}

/* A finished choice of a whole answer. Its calls are to be freed. */
static struct api_choice choice_whole(const struct completion *c, const struct completion_choice *choice,
                                      const struct buf *prompt_ids) {
    struct api_choice shown = choice_view(c, choice);
    if (choice->text.len) shown.text = choice->text.data;
    shown.text_len = choice->text.len;
    shown.prompt_ids = c->request.return_token_ids ? &prompt_ids[choice->prompt] : NULL;
    shown.prompt_logprobs = c->request.n_prompt_logprobs >= 0 ? &choice->prompt_logprobs : NULL;
    shown.finished = true;
    shown.reason = choice->reason;
    shown.stop_string = choice->stop_string;
    shown.stop_id = choice->stop_id;
    shown.session = completion_session_of(c);
    shown.session_version = c->session_version;
    shown.n_calls = choice->n_items;
    shown.calls = completion_calls_view(choice);
    shown.no_text = (shown.n_calls || choice->split.cut_head) && !shown.text_len;
    shown.called = completion_called(c, choice);
    return shown;
}

static void render_whole(struct completion *c, struct buf *out) {
    struct api_choice *choices = calloc(c->n_choices, sizeof *choices);
    struct buf *prompt_ids = calloc(c->n_prompts, sizeof *prompt_ids);
    const bool memory = choices && prompt_ids;
    if (!memory) out->failed = true;
    for (size_t i = 0; memory && i < c->n_prompts && c->request.return_token_ids; i++)
        api_render_ids(&prompt_ids[i], c->prompts[i].ids, c->prompts[i].n_ids);
    for (uint32_t i = 0; memory && i < c->n_choices; i++) {
        choices[i] = choice_whole(c, &c->choices[i], prompt_ids);
        if (c->choices[i].text.failed || (choices[i].n_calls && !choices[i].calls)) out->failed = true;
    }
    if (!out->failed && c->is_message)
        completion_message_whole(c, &choices[0], out);
    else if (!out->failed)
        api_render_answer(out, c->kind, &c->prefix, choices, c->n_choices, &c->usage);
    for (size_t i = 0; prompt_ids && i < c->n_prompts; i++) buf_fini(&prompt_ids[i]);
    for (uint32_t i = 0; memory && i < c->n_choices; i++) free((struct api_call *)choices[i].calls);
    free(prompt_ids);
    free(choices);
}

static void answer_whole(struct completion *c) {
    assert(!c->stream && !c->streaming && !c->n_open && !c->over);
    struct buf out = {0};
    if (c->kind == API_RESPONSE)
        completion_response_whole(c, &out);
    else
        render_whole(c, &out);
    if (out.failed) {
        completion_fail_no_memory(c);
    } else {
        c->over = true;
        http_call_respond(c->call, 200, "application/json", &out);
    }
    buf_fini(&out);
}

/* ---- events ---- */

/* Puts the beginning of the prompt into the answer, at the first event of a choice. */
static void begin_prompt(struct completion *c, struct completion_choice *choice) {
    const struct api_request *q = &c->request;
    const struct completion_prompt *p = &c->prompts[choice->prompt];
    if (choice->prompt_begun || c->over) return;
    assert(p->n_ids || c->of_session); /* a session's turn may have nothing new to read */
    choice->prompt_begun = true;
    if (q->echo && q->n_logprobs >= 0) api_logprobs_add_first(&choice->logprobs, p->ids[0], &c->vocab);
    if (q->n_prompt_logprobs >= 0) api_prompt_logprobs_add(&choice->prompt_logprobs, NULL, &c->vocab);
    if (p->echo && !q->stream) buf_add(&choice->text, p->echo, p->echo_len);
}

/* The prompt was scored for the more demanding of logprobs and prompt_logprobs; each gets as many as it asks for. */
static void take_prompt(struct completion *c, struct completion_choice *choice, struct rod_event *e) {
    const struct api_request *q = &c->request;
    assert(q->echo || q->n_prompt_logprobs >= 0);
    begin_prompt(c, choice);
    if (c->over) return;
    for (size_t i = 0; i < e->n_tokens; i++) {
        struct rod_token *token = &e->tokens[i];
        const uint32_t n_top = token->n_top;
        if (q->n_prompt_logprobs >= 0) {
            token->n_top = n_top < (uint32_t)q->n_prompt_logprobs ? n_top : (uint32_t)q->n_prompt_logprobs;
            api_prompt_logprobs_add(&choice->prompt_logprobs, token, &c->vocab);
        }
        if (q->echo && q->n_logprobs >= 0) {
            token->n_top = n_top < (uint32_t)q->n_logprobs ? n_top : (uint32_t)q->n_logprobs;
            api_logprobs_add(&choice->logprobs, c->kind, token, 1, true, &c->vocab);
        }
    }
}

static bool named_stop_id(const struct completion *c, int32_t id) {
    for (size_t i = 0; i < c->request.n_stop_ids; i++) {
        if (c->request.stop_ids[i] == id) return true;
    }
    return false;
}

/* Special tokens are in the text where the request wants them, and as the stop that it wants to see. */
static void take_logprobs(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    const struct server *s = c->server;
    if (choice->completion_tok == e->n_tokens)
        choice->logprobs.n_part = 0; /* the prompt's text has ended, whole or not */
    for (size_t i = 0; i < e->n_tokens; i++) {
        const struct rod_token *token = &e->tokens[i];
        size_t len = 0;
        bool special = false;
        rod_token_bytes(s->engine, token->id, &len, &special);
        const bool shown = !special || c->request.keep_special || named_stop_id(c, token->id);
        api_logprobs_add(&choice->logprobs, c->kind, token, 1, shown, &c->vocab);
    }
}

static void take_tokens(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    struct server *s = c->server;
    uint64_t now = uv_hrtime();
    choice->completion_tok += e->n_tokens;
    if (e->n_tokens) {
        if (!c->first_ns) {
            c->first_ns = now;
            metrics_observe(&s->metrics.ttft, (double)(now - c->started_ns) * 1e-9);
        }
        if (c->key && !e->replayed) {
            c->answer_tok += e->n_tokens;
            c->key->completion_tok += e->n_tokens;
        }
        if (choice->last_ns) metrics_observe(&s->metrics.inter_token, (double)(now - choice->last_ns) * 1e-9);
        choice->last_ns = now;
    }
    if (c->over) return;
    begin_prompt(c, choice);
    if (c->request.stream && !choice->role_sent) push_openings(c, choice);
    if (c->request.n_logprobs >= 0) take_logprobs(c, choice, e);
    for (size_t i = 0; c->request.return_token_ids && i < e->n_tokens; i++) {
        if (choice->ids.len) buf_putc(&choice->ids, ',');
        buf_int(&choice->ids, e->tokens[i].id);
    }
    if (c->request.stream && !has_events(c)) {
        push_delta(c, choice, e);
    } else if (c->request.tools.n) {
        completion_calls_push(choice, e->text, e->text_len, NULL);
    } else if (c->kind == API_RESPONSE) {
        completion_response_text(c, e->text, e->text_len);
    } else if (c->is_message && c->request.stream) {
        completion_message_text(c, e->text, e->text_len);
    } else {
        buf_add(&choice->text, e->text, e->text_len);
    }
}

/* The end token has an entry in the log-probabilities, no text, and does not count in the usage. */
static void take_end_token(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    if (!c->request.echo || c->request.n_logprobs < 0) return; /* in a stored answer of a file that was made by hand */
    begin_prompt(c, choice);
    if (c->over) return;
    if (c->request.stream && !choice->role_sent) push_openings(c, choice);
    api_logprobs_add(&choice->logprobs, c->kind, e->tokens, e->n_tokens, false, &c->vocab);
    if (!c->request.stream) return;
    struct api_choice shown = choice_view(c, choice);
    completion_push_chunk(c, choice, &shown);
    api_logprobs_clear(&choice->logprobs);
}

static void take_finish(struct completion *c, struct completion_choice *choice, struct rod_event *e) {
    struct server *s = c->server;
    take_tokens(c, choice, e);
    choice->completion_tok = e->completion_tok;
    s->metrics.completion_tok += e->completion_tok;
    choice->reason = e->reason;
    choice->stop_string = e->stop_string ? strdup(e->stop_string) : NULL;
    choice->stop_id = named_stop_id(c, e->stop_id) ? e->stop_id : -1; /* the end token itself is not named */
    c->usage.completion_tok += e->completion_tok;
    c->usage.accepted_tok += e->accepted_tok;
    c->usage.rejected_tok += e->rejected_tok;
    if (choice->index % c->request.n == 0) {
        c->usage.cached_tok += e->cached_tok;
        c->usage.created_tok += e->created_tok;
        c->usage.created_long_tok += e->created_long_tok;
    }
    if (*e->session) {
        const struct api_response *r = &c->request.response;
        if (c->kind == API_RESPONSE && !r->store) completion_session_discard(s, c->tenant, e->session);
        snprintf(c->session_id, sizeof c->session_id, "%s", e->session);
        c->session_version = e->session_version;
        c->replayed = e->replayed;
        c->usage.prompt_tok = e->prompt_tok; /* of the whole conversation */
    }
    if (e->queue_ns > c->queue_ns) c->queue_ns = e->queue_ns;
    metrics_observe(&s->metrics.queue, (double)e->queue_ns * 1e-9);
    if (c->over) return;
    if (e->stop_string && !choice->stop_string) {
        completion_fail_no_memory(c);
        return;
    }
    if (e->reason == ROD_FINISH_CANCEL) {
        completion_fail_code(c, ROD_EDRAINING, "The server cancelled the request.");
        return;
    }
    if (c->request.tools.n) completion_calls_end(choice);
    if (c->request.stream && !has_events(c)) push_finish(c, choice);
    if (c->n_open) return;
    metrics_observe(&s->metrics.request, (double)(uv_hrtime() - c->started_ns) * 1e-9);
    c->call->outcome = choice->reason == ROD_FINISH_LENGTH ? "length" : "stop";
    if (c->request.stream) {
        end_stream(c);
    } else {
        answer_whole(c);
    }
}

/* The field to name where a request leaves no token to choose. */
static const char *restricting_field(const struct api_request *q) {
    if (q->n_allowed_ids) return "allowed_token_ids";
    if (q->n_bias) return "logit_bias";
    if (q->n_bad_words) return "bad_words";
    return q->grammar.text ? q->grammar.param : "";
}

void completion_event(struct rod_event *e) {
    struct completion_choice *choice = e->user;
    struct completion *c = choice->completion;
    assert(server_on_loop(c->server) && !c->working);
    assert(choice == &c->choices[choice->index] && choice->index < c->n_choices && choice->prompt < c->n_prompts);
    assert(choice->open && c->n_open && c->n_open <= c->n_choices); /* no event comes after the last one of a choice */
    if (e->kind == ROD_EVENT_FINISH || e->kind == ROD_EVENT_ERROR) {
        choice->open = false;
        c->n_open--;
        if (e->prefill_ns && !e->replayed) c->prompts[choice->prompt].read = true;
    }
    if (e->label) completion_session_relabel(c, e->label);
    if (e->kind == ROD_EVENT_PROMPT) {
        take_prompt(c, choice, e);
    } else if (e->kind == ROD_EVENT_END_TOKEN) {
        take_end_token(c, choice, e);
    } else if (e->kind == ROD_EVENT_DELTA) {
        take_tokens(c, choice, e);
    } else if (e->kind == ROD_EVENT_FINISH) {
        take_finish(c, choice, e);
    } else {
        struct api_error err;
        if (e->error.code == ROD_EINVALID && !e->error.param[0])
            snprintf(e->error.param, sizeof e->error.param, "%s", restricting_field(&c->request));
        api_error_from(&err, &e->error);
        if (c->of_session) completion_session_error(c, &err, e->error.code);
        completion_fail(c, &err);
    }
    if (c->call && !c->over && (c->frame.len || c->frame.failed)) write_frames(c);
    rod_event_free(e);
    if (!c->n_open) settle_tokens(c);
    completion_maybe_free(c);
}

void completion_tick(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now = uv_hrtime();
    if (!server->completions.n) uv_timer_stop(timer);
    for (struct completion *c = completion_first(server); c; c = completion_next(c)) {
        if (c->working) continue; /* the request is still being written on the pool */
        if (!c->n_open || c->over || !c->call || !c->stream) continue;
        uint64_t silence = ping_ns(c);
        if (!silence) continue;
        if (now - c->sent_ns < silence || (c->streaming && http_stream_pending(c->call->http))) continue;
        server->metrics.pings++;
        sse_ping(&c->frame);
        write_frames(c);
    }
}
