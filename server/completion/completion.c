/* completion.c - one completion or chat request, from its body to its last byte.
 *
 * It has n choices a prompt; each is one request of the engine and answers with events, which become SSE frames at
 * once or one JSON answer at the end. It is freed when the http request has ended, no choice is open in the engine and
 * no work is on the pool. */
#include "completion_internal.h"
#include "replies.h"
#include "server/api/sse.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t ping_ns(const struct completion *c) {
    int64_t ms = c->request.ping_ms >= 0 ? c->request.ping_ms : (int64_t)c->server->config.sse_ping_ms;
    return (uint64_t)ms * 1000000;
}

/* ---- life ---- */

/* Gives back to the key what the completion did not use: tokens that were not made, prompts that got no slot, and text
 * that is only repeated. */
static void settle_tokens(struct completion *c) {
    struct completion_account *a = &c->account;
    uint64_t used_tok = a->answer_tok;
    if (!a->key || !a->tokens.taken) return;
    for (size_t i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].read) used_tok += c->prompts[i].shown.n_ids;
    key_settle(a->key, &a->tokens, used_tok);
}

static void free_way(struct completion_way *w) {
    for (size_t i = 0; i < w->n_bad; i++) free(w->bad[i].ids);
    free(w->bad);
    free(w->header_session);
    free(w->header_key);
    free(w->kept.text);
    free(w->kept.lines);
    free(w->asked);
    free(w->body);
}

static void free_prompts(struct completion *c) {
    for (size_t i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].shown.ids);
        free(c->prompts[i].shown.echo);
        free(c->prompts[i].marks);
    }
    free(c->prompts);
}

/* The answer that is kept for the request's key; NULL: it may run again. */
static void end_reply(struct completion *c, struct buf *answer) {
    if (c->repeats) replies_end(c->server->replies, c->way.tenant, c->request.session.idempotency_key, answer);
    c->repeats = false;
}

static void completion_free(struct completion *c) {
    struct server *s = c->server;
    assert(server_on_loop(s));
    assert(!c->call && !c->working);
    settle_tokens(c);
    end_reply(c, NULL);
    list_remove(&s->completions, &c->link);
    for (uint32_t i = 0; c->choices && i < c->answer.n_choices; i++) free(c->choices[i].said.ids);
    answer_fini(&c->answer);
    free(c->choices);
    free_prompts(c);
    free_way(&c->way);
    api_request_fini(&c->request);
    rod_grammar_close(c->grammar);
    buf_fini(&c->notes);
    buf_fini(&c->sent);
    completion_session_free(c->turn.asked);
    completion_session_free(c->turn.again);
    if (c->account.n_counted) key_end(c->account.key, c->account.n_counted);
    if (c->account.key) key_drop(&s->keys, c->account.key);
    free(c);
}

void completion_maybe_free(struct completion *c) {
    if (!c->call && !c->n_open && !c->working) completion_free(c);
}

static void cancel_choices(struct completion *c) {
    for (uint32_t i = 0; i < c->answer.n_choices; i++) {
        if (c->choices[i].open) rod_cancel(c->server->engine, c->choices[i].ticket);
    }
}

void completion_gone(struct completion *c) {
    assert(server_on_loop(c->server) && c->call);
    if (c->over) return;
    c->over = true;
    c->server->metrics.disconnects++;
    cancel_choices(c);
    if (c->working) pool_cancel(&c->way.work); /* work that has begun goes on */
}

void completion_done(struct completion *c) {
    assert(server_on_loop(c->server) && c->call); /* once */
    c->call = NULL;
    assert(!c->streaming || c->server->metrics.streams);
    if (c->streaming) c->server->metrics.streams--;
    if (c->working) pool_cancel(&c->way.work);
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

int completion_log_fields(const struct completion *c, struct log_field fields[COMPLETION_LOG_FIELDS]) {
    uint64_t completion = 0;
    int n = 0;
    const struct answer *a = &c->answer;
    const struct completion_times *t = &c->times;
    for (uint32_t i = 0; i < a->n_choices; i++) completion += a->choices[i].completion_tok;
    /* The pool writes usage and prompts while it works. */
    fields[n++] = log_number("prompt_tokens", c->working ? 0 : (double)a->usage.prompt_tok);
    fields[n++] = log_number("completion_tokens", (double)completion);
    if (t->first_ns) fields[n++] = log_number("ttft_ms", (double)((t->first_ns - t->started_ns) / 10000) / 100);
    if (t->queue_ns) fields[n++] = log_number("queue_ms", (double)(t->queue_ns / 10000) / 100);
    fields[n++] = log_truth("stream", !c->working && c->request.stream);
    if (c->slow) fields[n++] = log_words("cut", "slow_client");
    if (!c->working && c->turn.is) fields[n++] = log_words("session", c->request.session.id);
    if (!c->working && c->request.session.conversation)
        fields[n++] = log_words("conversation", c->request.session.conversation);
    if (a->usage.kept_tools) fields[n++] = log_number("kept_tools", (double)a->usage.kept_tools);
    if (*a->session || a->usage.cached_tok) fields[n++] = log_number("cached_tokens", (double)a->usage.cached_tok);
    if (*a->session) fields[n++] = log_number("version", (double)a->session_version);
    if (c->turn.replayed) fields[n++] = log_truth("replayed", true);
    if (a->usage.accepted_tok || a->usage.rejected_tok) {
        fields[n++] = log_number("accepted_drafts", (double)a->usage.accepted_tok);
        fields[n++] = log_number("rejected_drafts", (double)a->usage.rejected_tok);
    }
    if (!c->working && c->grammar && *rod_grammar_notes(c->grammar)) {
        fields[n++] = log_words("weakened", rod_grammar_notes(c->grammar));
    }
    assert(n <= COMPLETION_LOG_FIELDS);
    return n;
}

/* ---- answers ---- */

static void begin_stream(struct completion *c) {
    if (c->streaming) return;
    c->streaming = true;
    c->server->metrics.streams++;
    http_stream_begin(c->call->http, SSE_CONTENT_TYPE);
}

static void keep_sent(struct completion *c, const struct buf *bytes) {
    if (!c->repeats) return;
    buf_add(&c->sent, bytes->data, bytes->len);
    if (c->sent.len <= REPLY_MAX_BYTES) return;
    end_reply(c, NULL);
    buf_fini(&c->sent);
}

static void write_frames(struct completion *c) {
    assert(c->call && c->request.stream && (!c->working || c->said)); /* notes are no frames */
    struct server *s = c->server;
    struct http_request *r = c->call->http;
    if (c->answer.frame.failed && !c->over && !c->streaming) {
        completion_fail_no_memory(c);
        return;
    }
    if (c->answer.frame.failed) {
        http_abort(r);
        cancel_choices(c);
        c->over = true;
        return;
    }
    begin_stream(c);
    keep_sent(c, &c->answer.frame);
    const size_t pending = http_stream_write(r, c->answer.frame.data, c->answer.frame.len);
    buf_clear(&c->answer.frame);
    c->times.sent_ns = uv_hrtime();
    if (!c->over && pending > s->config.stream_buffer_bytes + c->answer.opening_bytes) {
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
    c->answer.form->error(&c->answer, &shown, c->call->id);
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

static void end_stream(struct completion *c) {
    assert(c->request.stream && !c->n_open && !c->over);
    /* The end may repeat the text, so its size says nothing about how fast the client reads. */
    c->over = !c->answer.frame.failed;
    write_frames(c);
    if (c->over && !c->slow) end_reply(c, &c->sent);
    if (c->streaming) http_stream_end(c->call->http); /* else out of memory before the first frame: 500 */
}

static void answer_whole(struct completion *c) {
    assert(!c->request.stream && !c->streaming && !c->n_open && !c->over);
    struct buf out = {.failed = c->answer.failed};
    c->answer.form->whole(&c->answer, &out);
    if (out.failed) {
        completion_fail_no_memory(c);
    } else {
        c->over = true;
        keep_sent(c, &out);
        end_reply(c, &c->sent);
        http_call_respond(c->call, 200, "application/json", &out);
    }
    buf_fini(&out);
}

/* ---- answers that are repeated ---- */

static void send_again(struct completion *c, const struct buf *answer) {
    c->over = c->turn.replayed = true;
    c->server->metrics.replays++;
    if (c->request.stream) {
        begin_stream(c);
        http_stream_write(c->call->http, answer->data, answer->len);
        http_stream_end(c->call->http);
        return;
    }
    struct buf copy = {0};
    buf_add(&copy, answer->data, answer->len);
    if (copy.failed)
        http_call_no_memory(c->call);
    else
        http_call_respond(c->call, 200, "application/json", &copy);
    buf_fini(&copy);
}

bool completion_repeat(struct completion *c) {
    const struct api_session *s = &c->request.session;
    const struct buf *answer = NULL;
    struct api_error err;
    if (s->id || !s->conversation || !s->idempotency_key || !c->server->replies)
        return false; /* a session keeps its own */
    switch (replies_ask(c->server->replies, c->way.tenant, s->idempotency_key, c->answer.digest, &answer)) {
    case REPLY_NEW: c->repeats = true; return false;
    case REPLY_THERE: send_again(c, answer); return true;
    case REPLY_RUNS:
        api_error_set(&err, 429, "rate_limit", "request_running", "Idempotency-Key",
                      "The request of this idempotency key has not ended.");
        break;
    default: api_error_field(&err, "Idempotency-Key", "was used for another request");
    }
    completion_fail(c, &err);
    return true;
}

/* ---- events ---- */

static struct answer_choice *shown_of(const struct completion_choice *choice) {
    return &choice->completion->answer.choices[choice->index];
}

/* The prompt is about to be read, which may take minutes: a client sees at once that it is. */
static void take_start(struct completion *c, struct answer_choice *shown) {
    assert(c->request.stream);
    if (c->over) return;
    if (!shown->opened) c->answer.form->open(shown);
    if (!c->answer.frame.failed) begin_stream(c); /* perhaps its first frame has text */
}

static void take_prompt(struct completion *c, struct answer_choice *shown, const struct rod_event *e) {
    assert(c->request.echo || c->request.n_prompt_logprobs >= 0);
    for (size_t i = 0; !c->over && i < e->n_tokens; i++) c->answer.form->prompt(shown, &e->tokens[i]);
}

static bool named_stop_id(const struct completion *c, int32_t id) {
    for (size_t i = 0; i < c->request.n_stop_ids; i++) {
        if (c->request.stop_ids[i] == id) return true;
    }
    return false;
}

/* Special tokens are in the text where the request wants them, and as the stop that it wants to see. */
static bool in_text(const struct completion *c, int32_t id) {
    size_t len = 0;
    bool special = false;
    rod_token_bytes(c->server->engine, id, &len, &special);
    return !special || c->request.keep_special || named_stop_id(c, id);
}

/* Scores and ids of tokens. */
static void tell_tokens(struct completion *c, struct answer_choice *shown, const struct rod_event *e) {
    if (shown->completion_tok == e->n_tokens)
        shown->logprobs.n_part = 0; /* the prompt's text has ended, whole or not */
    for (size_t i = 0; i < e->n_tokens; i++)
        c->answer.form->token(shown, &e->tokens[i],
                              in_text(c, e->tokens[i].id) ? ANSWER_TOKEN_SHOWN : ANSWER_TOKEN_HIDDEN);
}

static void count_tokens(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    struct metrics *m = &c->server->metrics;
    const uint64_t now = uv_hrtime();
    if (!e->n_tokens) return;
    shown_of(choice)->completion_tok += e->n_tokens;
    if (!c->times.first_ns) {
        c->times.first_ns = now;
        metrics_observe(&m->ttft, (double)(now - c->times.started_ns) * 1e-9);
    }
    if (c->account.key && !e->replayed) {
        c->account.answer_tok += e->n_tokens;
        c->account.key->completion_tok += e->n_tokens;
    }
    if (choice->last_ns) metrics_observe(&m->inter_token, (double)(now - choice->last_ns) * 1e-9);
    choice->last_ns = now;
}

static void take_tokens(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    const struct api_request *q = &c->request;
    const struct answer_form *form = c->answer.form;
    struct answer_choice *shown = shown_of(choice);
    count_tokens(c, choice, e);
    if (c->over) return;
    completion_recall_take(choice, e);
    if (q->stream && !shown->opened) form->open(shown);
    if (form->token && (q->n_logprobs >= 0 || q->return_token_ids)) tell_tokens(c, shown, e);
    answer_push(shown, e->text, e->text_len);
}

/* The end token has an entry in the log-probabilities, no text, and does not count in the usage. */
static void take_end_token(struct completion *c, struct answer_choice *shown, const struct rod_event *e) {
    if (!c->request.echo || c->request.n_logprobs < 0) return; /* in a stored answer of a file that was made by hand */
    if (c->over) return;
    if (c->request.stream && !shown->opened) c->answer.form->open(shown);
    for (size_t i = 0; i < e->n_tokens; i++) c->answer.form->token(shown, &e->tokens[i], ANSWER_TOKEN_END);
    answer_push(shown, "", 0);
}

/* What the last event of a choice says of it and of its session. */
static void take_sums(struct completion *c, struct completion_choice *choice, const struct rod_event *e) {
    struct answer *a = &c->answer;
    struct answer_choice *shown = shown_of(choice);
    shown->completion_tok = e->completion_tok;
    shown->reason = e->reason;
    shown->stop_string = e->stop_string ? strdup(e->stop_string) : NULL;
    shown->stop_id = named_stop_id(c, e->stop_id) ? e->stop_id : -1; /* the end token itself is not named */
    a->usage.completion_tok += e->completion_tok;
    a->usage.accepted_tok += e->accepted_tok;
    a->usage.rejected_tok += e->rejected_tok;
    if (choice->index % c->request.n == 0) {
        a->usage.cached_tok += e->cached_tok;
        a->usage.created_tok += e->created_tok;
        a->usage.created_long_tok += e->created_long_tok;
    }
    if (*e->session) {
        if (c->request.session.discard) completion_session_discard(c->server, c->way.tenant, e->session);
        snprintf(a->session, sizeof a->session, "%s", e->session);
        a->session_version = e->session_version;
        a->session_unseen = e->session_unseen;
        c->turn.replayed = e->replayed;
        a->usage.prompt_tok = e->prompt_tok; /* of the whole conversation */
    }
    if (e->queue_ns > c->times.queue_ns) c->times.queue_ns = e->queue_ns;
}

/* The text of the choice has ended, and what has to be kept of it is kept. */
static void finish_choice(struct completion *c, struct completion_choice *choice) {
    struct answer_choice *shown = shown_of(choice);
    if (c->request.stream) c->answer.form->finish(shown, !c->n_open);
    if (c->n_open) return;
    metrics_observe(&c->server->metrics.request, (double)(uv_hrtime() - c->times.started_ns) * 1e-9);
    c->call->outcome = shown->reason == ROD_FINISH_LENGTH ? "length" : "stop";
    if (c->request.stream) {
        end_stream(c);
    } else {
        answer_whole(c);
    }
}

static void take_finish(struct completion *c, struct completion_choice *choice, struct rod_event *e) {
    struct metrics *m = &c->server->metrics;
    struct answer_choice *shown = shown_of(choice);
    take_tokens(c, choice, e);
    take_sums(c, choice, e);
    m->completion_tok += e->completion_tok;
    metrics_observe(&m->queue, (double)e->queue_ns * 1e-9);
    if (e->waited_ns > c->way.waited_ns) c->way.waited_ns = e->waited_ns;
    if (c->over) return;
    if (e->stop_string && !shown->stop_string) {
        completion_fail_no_memory(c);
        return;
    }
    if (e->reason == ROD_FINISH_CANCEL) {
        completion_fail_code(c, ROD_EDRAINING, "The server cancelled the request.");
        return;
    }
    answer_end(shown);
    completion_recall_put(choice);
    if (!c->n_open && c->notes.len)
        c->said = choice;
    else
        finish_choice(c, choice);
}

/* ---- notes: a client that has the end of an answer finds it again, whatever becomes of this process ---- */

static void on_notes(void *arg) { completion_notes_write(arg); }

static void on_notes_done(void *arg) {
    struct completion *c = arg;
    assert(c->working && server_on_loop(c->server));
    c->working = false;
    if (c->call && !c->over) finish_choice(c, c->said);
    completion_maybe_free(c);
}

static void begin_notes(struct completion *c) {
    c->working = true;
    c->way.work = (struct pool_work){.run = on_notes, .done = on_notes_done, .arg = c, .n_bytes = c->notes.len};
    server_pool(c->server, c->account.key, &c->way.work);
}

/* The field to name where a request leaves no token to choose. */
static const char *restricting_field(const struct api_request *q) {
    if (q->n_allowed_ids) return "allowed_token_ids";
    if (q->n_bias) return "logit_bias";
    if (q->n_bad_words) return "bad_words";
    return q->grammar.text ? q->grammar.param : "";
}

/* Another server has gone on with the session. True: the answer is made again, or that has failed. */
static bool make_again(struct completion *c) {
    struct rod_error rod = {0};
    struct api_error err;
    c->server->metrics.conflicts++;
    if (!c->turn.again || c->over || !c->call) return false;
    if (!completion_request_again(c, &rod)) return true;
    api_error_from(&err, &rod);
    completion_fail(c, &err);
    return true;
}

void completion_event(struct rod_event *e) {
    struct completion_choice *choice = e->user;
    struct completion *c = choice->completion;
    assert(server_on_loop(c->server) && !c->working);
    assert(choice == &c->choices[choice->index] && choice->index < c->answer.n_choices &&
           choice->prompt < c->n_prompts);
    assert(choice->open && c->n_open &&
           c->n_open <= c->answer.n_choices); /* no event comes after the last one of a choice */
    if (e->kind == ROD_EVENT_FINISH || e->kind == ROD_EVENT_ERROR) {
        choice->open = false;
        c->n_open--;
        if (e->prefill_ns && !e->replayed) c->prompts[choice->prompt].read = true;
    }
    if (e->label) answer_relabel(&c->answer, e->label);
    if (e->kind == ROD_EVENT_START) {
        take_start(c, shown_of(choice));
    } else if (e->kind == ROD_EVENT_PROMPT) {
        take_prompt(c, shown_of(choice), e);
    } else if (e->kind == ROD_EVENT_END_TOKEN) {
        take_end_token(c, shown_of(choice), e);
    } else if (e->kind == ROD_EVENT_DELTA) {
        take_tokens(c, choice, e);
    } else if (e->kind == ROD_EVENT_FINISH) {
        take_finish(c, choice, e);
    } else if (e->error.code != ROD_ECONFLICT || !make_again(c)) {
        struct api_error err;
        if (e->error.code == ROD_EINVALID && !e->error.param[0])
            snprintf(e->error.param, sizeof e->error.param, "%s", restricting_field(&c->request));
        api_error_from(&err, &e->error);
        if (c->turn.is) completion_session_error(c, &err, e->error.code);
        completion_fail(c, &err);
    }
    if (c->call && !c->over && (c->answer.frame.len || c->answer.frame.failed)) write_frames(c);
    rod_event_free(e);
    if (!c->n_open) settle_tokens(c);
    if (c->said && !c->over) begin_notes(c);
    completion_maybe_free(c);
}

/* What opens an answer that is perhaps a replay is not known before it begins. */
static void put_ping(struct completion *c) {
    const bool known = c->answer.form->ping && (!c->way.header_key || c->answer.choices[0].opened);
    if (known)
        c->answer.form->ping(&c->answer);
    else
        buf_puts(&c->answer.frame, SSE_PING);
}

void completion_tick(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now = uv_hrtime();
    if (!server->completions.n) uv_timer_stop(timer);
    for (struct completion *c = completion_first(server); c; c = completion_next(c)) {
        if (c->working) continue; /* the request is still being written on the pool */
        if (!c->n_open || c->over || !c->call || !c->request.stream) continue;
        uint64_t silence = ping_ns(c);
        if (!silence) continue;
        if (now - c->times.sent_ns < silence || (c->streaming && http_stream_pending(c->call->http))) continue;
        server->metrics.pings++;
        put_ping(c);
        write_frames(c);
    }
}
