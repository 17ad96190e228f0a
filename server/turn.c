/* turn.c - one completion or chat request, from its body to its last byte.
 *
 * A turn has n choices a prompt; each is one request of the engine and answers with events, which become SSE frames at
 * once or one JSON answer at the end. It is freed when the http request has ended, no choice is open in the engine and
 * no work is on the pool. */
#include "server.h"
#include "sse.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TRIM_BYTES ((size_t)1 << 20)

struct turn_choice {
    struct turn *turn;
    uint32_t index, prompt;
    uint64_t ticket, last_ns; /* last_ns: of the last delivery, 0 before the first */
    bool open, role_sent;     /* open: the engine will send more */
    struct buf text;          /* without streaming: all so far */
    struct openai_logprobs logprobs;
    struct buf ids; /* token ids as text, if asked for */
    uint64_t completion_tok;
    enum rod_finish reason;
    char *stop_string;
    int32_t stop_id;
};

struct turn_prompt {
    int32_t *ids;
    size_t n_ids;
};

struct turn {
    struct server *server;
    struct exchange *exchange; /* NULL when the http request has ended */
    struct turn *prev, *next;
    enum openai_kind kind;
    struct openai_request request;
    struct openai_error err;
    bool has_err;
    char *body;
    size_t body_len;
    uv_work_t work;
    struct turn_prompt *prompts;
    size_t n_prompts;
    struct rod_grammar *grammar; /* NULL = any text */
    struct turn_choice *choices;
    uint32_t n_choices, n_open;
    bool working, left, over, streaming, stream, slow; /* over: answered; streaming: the stream has begun; slow: cut */
    struct buf prefix, frame;
    struct openai_usage usage;
    uint64_t started_ns, sent_ns, first_ns, queue_ns;
};

static uint64_t ping_ns(const struct turn *t) {
    int64_t ms = t->request.ping_ms >= 0 ? t->request.ping_ms : (int64_t)t->server->config.sse_ping_ms;
    return (uint64_t)ms * 1000000;
}

/* ---- life ---- */

static void free_turn(struct turn *t) {
    struct server *s = t->server;
    if (t->prev) t->prev->next = t->next;
    if (t->next) t->next->prev = t->prev;
    if (s->turns == t) s->turns = t->next;
    s->n_turns--;
    for (uint32_t i = 0; i < t->n_choices; i++) {
        struct turn_choice *c = &t->choices[i];
        buf_fini(&c->text);
        buf_fini(&c->ids);
        openai_logprobs_fini(&c->logprobs);
        free(c->stop_string);
    }
    for (size_t i = 0; i < t->n_prompts; i++) free(t->prompts[i].ids);
    free(t->prompts);
    free(t->choices);
    openai_request_fini(&t->request);
    rod_grammar_close(t->grammar);
    buf_fini(&t->prefix);
    buf_fini(&t->frame);
    free(t->body);
    free(t);
}

static void maybe_free(struct turn *t) {
    if (!t->exchange && !t->n_open && !t->working) free_turn(t);
}

static void cancel_all(struct turn *t) {
    for (uint32_t i = 0; i < t->n_choices; i++) {
        if (t->choices[i].open) rod_cancel(t->server->engine, t->choices[i].ticket);
    }
}

void turn_gone(struct turn *t) {
    t->left = true;
    if (t->over) return;
    t->over = true;
    t->server->metrics.disconnects++;
    cancel_all(t);
}

void turn_done(struct turn *t) {
    t->exchange = NULL;
    if (t->streaming) t->server->metrics.streams--;
    if (!t->over) {
        t->over = true;
        cancel_all(t);
    }
    maybe_free(t);
}

void turn_free_all(struct server *server) {
    while (server->turns) free_turn(server->turns);
}

uint64_t turn_oldest_ns(const struct server *server) {
    uint64_t oldest = 0;
    for (const struct turn *t = server->turns; t; t = t->next)
        oldest = t->started_ns; /* new ones come in at the head */
    return oldest;
}

int turn_log_fields(const struct turn *t, struct log_field *fields, int max) {
    if (max < 5) return 0;
    uint64_t completion = 0;
    int n = 0;
    for (uint32_t i = 0; i < t->n_choices; i++) completion += t->choices[i].completion_tok;
    /* While the pool works on the turn, what it writes must not be read. */
    fields[n++] = (struct log_field){"prompt_tokens", NULL, t->working ? 0 : (double)t->usage.prompt_tok};
    fields[n++] = (struct log_field){"completion_tokens", NULL, (double)completion};
    if (t->first_ns) {
        fields[n++] = (struct log_field){"ttft_ms", NULL, (double)((t->first_ns - t->started_ns) / 10000) / 100};
    }
    fields[n++] = (struct log_field){"stream", t->stream ? "true" : "false", 0};
    if (t->slow) fields[n++] = (struct log_field){"cut", "slow_client", 0};
    return n;
}

/* ---- answers ---- */

static void write_frames(struct turn *t) {
    struct server *s = t->server;
    struct http_request *r = t->exchange->http;
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
    if (!t->over && http_stream_pending(r) > s->config.stream_buffer_bytes) {
        s->metrics.slow_clients++;
        t->slow = true;
        t->over = true;
        cancel_all(t);
        http_abort(r);
    }
}

/* Before the first byte a real status; after it an error event. */
static void fail(struct turn *t, const struct openai_error *err) {
    if (t->over || !t->exchange) return;
    t->over = true;
    cancel_all(t);
    if (!t->streaming) {
        routes_fail(t->exchange, err);
        return;
    }
    sse_begin(&t->frame);
    openai_render_error(&t->frame, err);
    sse_end(&t->frame);
    sse_done(&t->frame);
    write_frames(t);
    http_stream_end(t->exchange->http);
}

static void fail_code(struct turn *t, int code, const char *message) {
    struct rod_error from = {0};
    struct openai_error err;
    rod_fail(&from, code, "%s", message);
    openai_error_from(&err, &from);
    fail(t, &err);
}

void turn_end_all(struct server *server) {
    for (struct turn *t = server->turns, *next; t; t = next) {
        next = t->next;
        fail_code(t, ROD_EDRAINING, "the server is shutting down");
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

static void push_chunk(struct turn *t, const struct turn_choice *c, const struct openai_choice *choice) {
    const struct openai_usage usage = {t->prompts[c->prompt].n_ids, c->completion_tok, 0};
    sse_begin(&t->frame);
    openai_render_chunk(&t->frame, t->kind, &t->prefix, choice, t->request.continuous_usage ? &usage : NULL,
                        t->request.include_usage);
    sse_end(&t->frame);
}

/* The first chunk of a chat names the role; it leaves together with the first token. The prompt's ids go with the
 * first chunk of either kind. */
static void push_delta(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    struct openai_choice choice = view(t, c);
    struct buf prompt_ids = {0};
    bool first = !c->role_sent;
    if (first && t->request.return_token_ids) {
        add_ids(&prompt_ids, t->prompts[c->prompt].ids, t->prompts[c->prompt].n_ids);
        choice.prompt_ids = &prompt_ids;
    }
    if (first && t->kind == OPENAI_CHAT) {
        struct openai_choice opening = {
            .index = c->index, .role = true, .stop_id = -1, .prompt_ids = choice.prompt_ids};
        push_chunk(t, c, &opening);
        choice.prompt_ids = NULL;
    }
    c->role_sent = true;
    choice.text = e->text;
    choice.text_len = e->text_len;
    bool rich = e->n_tokens && (choice.logprobs || choice.token_ids);
    if (e->text_len || rich || choice.prompt_ids) push_chunk(t, c, &choice);
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
    push_chunk(t, c, &choice);
}

static void end_stream(struct turn *t) {
    if (t->request.include_usage) {
        sse_begin(&t->frame);
        openai_render_usage_chunk(&t->frame, &t->prefix, &t->usage);
        sse_end(&t->frame);
    }
    sse_done(&t->frame);
    write_frames(t);
    t->over = true;
    http_stream_end(t->exchange->http);
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
            choices[i].finished = true;
            choices[i].reason = c->reason;
            choices[i].stop_string = c->stop_string;
            choices[i].stop_id = c->stop_id;
            out.failed = out.failed || c->text.failed || c->logprobs.tokens.failed;
        }
        openai_render_answer(&out, t->kind, &t->prefix, choices, t->n_choices, &t->usage);
    }
    if (choices && prompt_ids && !out.failed) {
        t->over = true;
        routes_respond(t->exchange, 200, "application/json", &out);
    } else {
        fail_code(t, ROD_ENOMEM, "out of memory");
    }
    for (size_t i = 0; prompt_ids && i < t->n_prompts; i++) buf_fini(&prompt_ids[i]);
    free(prompt_ids);
    free(choices);
    buf_fini(&out);
}

/* ---- events ---- */

static void take_tokens(struct turn *t, struct turn_choice *c, const struct rod_event *e) {
    struct server *s = t->server;
    uint64_t now = uv_hrtime();
    c->completion_tok += e->n_tokens;
    if (e->n_tokens) {
        if (!t->first_ns) {
            t->first_ns = now;
            metrics_observe(&s->metrics.ttft, (double)(now - t->started_ns) * 1e-9);
        }
        if (c->last_ns) metrics_observe(&s->metrics.inter_token, (double)(now - c->last_ns) * 1e-9);
        c->last_ns = now;
    }
    if (t->over) return;
    if (t->request.n_logprobs >= 0) openai_logprobs_add(&c->logprobs, t->kind, e->tokens, e->n_tokens, &s->vocab);
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

static bool named_stop_id(const struct turn *t, int32_t id) {
    for (size_t i = 0; i < t->request.n_stop_ids; i++) {
        if (t->request.stop_ids[i] == id) return true;
    }
    return false;
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
    if (e->queue_ns > t->queue_ns) t->queue_ns = e->queue_ns;
    metrics_observe(&s->metrics.queue, (double)e->queue_ns * 1e-9);
    if (t->over) return;
    if (e->reason == ROD_FINISH_CANCEL) {
        fail_code(t, ROD_EDRAINING, "the request was cancelled by the server");
        return;
    }
    if (t->request.stream) push_finish(t, c);
    if (t->n_open) return;
    metrics_observe(&s->metrics.request, (double)(uv_hrtime() - t->started_ns) * 1e-9);
    if (t->request.stream) {
        end_stream(t);
    } else {
        answer_whole(t);
    }
}

void turn_event(struct rod_event *e) {
    struct turn_choice *c = e->user;
    struct turn *t = c->turn;
    if (e->kind != ROD_EVENT_DELTA) {
        c->open = false;
        t->n_open--;
    }
    if (e->kind == ROD_EVENT_DELTA) {
        take_tokens(t, c, e);
    } else if (e->kind == ROD_EVENT_FINISH) {
        take_finish(t, c, e);
    } else {
        struct openai_error err;
        openai_error_from(&err, &e->error);
        fail(t, &err);
    }
    if (t->exchange && !t->over && t->frame.len) write_frames(t);
    rod_event_free(e);
    maybe_free(t);
}

void turn_tick(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now = uv_hrtime();
    if (!server->turns) uv_timer_stop(timer);
    for (struct turn *t = server->turns; t; t = t->next) {
        if (t->working) continue; /* the request is still being written on the pool */
        if (!t->n_open || t->over || !t->exchange || !t->stream) continue;
        uint64_t silence = ping_ns(t);
        if (!silence) continue;
        if (now - t->sent_ns < silence || (t->streaming && http_stream_pending(t->exchange->http))) continue;
        server->metrics.pings++;
        sse_ping(&t->frame);
        write_frames(t);
    }
}

/* ---- the way in ---- */

/* Prompt i as token ids; text that is encoded is dropped at once, it may be long. */
static int encode(struct turn *t, size_t i, struct rod_error *err) {
    struct server *s = t->server;
    struct openai_request *q = &t->request;
    struct turn_prompt *p = &t->prompts[i];
    if (t->kind == OPENAI_CHAT)
        return rod_chat_encode(s->engine, q->messages, q->n_messages, true, &p->ids, &p->n_ids, err);
    struct openai_prompt *from = &q->prompts[i];
    if (from->ids) {
        p->ids = from->ids;
        p->n_ids = from->n_ids;
        from->ids = NULL;
        return 0;
    }
    int rc = q->suffix
                 ? rod_fim_encode(s->engine, from->text, from->len, q->suffix, q->suffix_len, &p->ids, &p->n_ids, err)
                 : rod_encode(s->engine, from->text, from->len, true, &p->ids, &p->n_ids, err);
    free(from->text);
    from->text = NULL;
    return rc;
}

/* Parses and encodes; on the pool when the body is long. Touches nothing but the turn and what is constant. */
/* Compiles what the text must look like; the error names the field. */
static int open_grammar(struct turn *t, struct rod_error *err) {
    const struct openai_grammar *g = &t->request.grammar;
    struct rod_error fault = {0};
    if (!g->text) return 0;
    int rc = rod_grammar_open(t->server->engine, g->kind, g->text, g->len, &t->grammar, &fault);
    if (rc == ROD_EINVALID) rod_fail(err, rc, "%s %s", g->param, fault.message);
    if (rc && rc != ROD_EINVALID) *err = fault;
    if (rc) snprintf(err->param, sizeof err->param, "%s", g->param);
    return rc;
}

static void prepare(struct turn *t) {
    struct server *s = t->server;
    struct rod_error rod = {0};
    t->has_err = openai_parse(t->kind, t->body, t->body_len, &s->defaults, &t->request, &t->err) != 0;
    free(t->body);
    t->body = NULL;
    if (t->has_err) return;
    struct openai_request *q = &t->request;
    t->n_prompts = t->kind == OPENAI_CHAT ? 1 : q->n_prompts;
    t->prompts = calloc(t->n_prompts, sizeof *t->prompts);
    int rc = t->prompts ? open_grammar(t, &rod) : rod_fail(&rod, ROD_ENOMEM, "out of memory");
    if (!t->prompts) t->n_prompts = 0;
    for (size_t i = 0; !rc && i < t->n_prompts; i++) {
        rc = encode(t, i, &rod);
        t->usage.prompt_tok += t->prompts[i].n_ids;
    }
    if (!rc) return;
    t->has_err = true;
    const char *field = t->kind == OPENAI_CHAT ? "messages" : "prompt";
    if (!rod.param[0] && rod_code_http(rod.code) == 400) snprintf(rod.param, sizeof rod.param, "%s", field);
    openai_error_from(&t->err, &rod);
}

/* What the engine could never take, so that the client need not try again. */
static bool fits(struct turn *t) {
    struct server *s = t->server;
    for (size_t i = 0; i < t->n_prompts; i++) {
        uint64_t n = t->prompts[i].n_ids, limit = s->info->max_prompt_tok;
        if (!limit || n <= limit) continue;
        const char *param = t->kind == OPENAI_CHAT ? "messages" : "prompt";
        openai_error_set(&t->err, 400, "invalid_request_error", "context_length_exceeded", param,
                         "the prompt has %llu tokens, the limit is %llu", (unsigned long long)n,
                         (unsigned long long)limit);
        t->err.n_prompt_tok = n;
        t->err.limit_tok = limit;
        return false;
    }
    uint64_t wanted = (uint64_t)t->n_prompts * t->request.n, most = s->info->n_slots + s->config.max_queue_requests;
    if (wanted <= most) return true;
    openai_error_set(&t->err, 400, "invalid_request_error", "", t->request.n > 1 ? "n" : "prompt",
                     "%llu choices were asked for, this server takes at most %llu at a time",
                     (unsigned long long)wanted, (unsigned long long)most);
    return false;
}

static void *copy(const void *from, size_t bytes, bool *ok) {
    if (!bytes) return NULL;
    void *to = malloc(bytes);
    if (to) {
        memcpy(to, from, bytes);
    } else {
        *ok = false;
    }
    return to;
}

static struct rod_request *engine_request(struct turn *t, struct turn_choice *c) {
    const struct openai_request *q = &t->request;
    const struct turn_prompt *p = &t->prompts[c->prompt];
    struct rod_request *r = rod_request_new();
    if (!r) return NULL;
    bool ok = true;
    snprintf(r->id, sizeof r->id, "%s", t->exchange->id);
    r->prompt = copy(p->ids, p->n_ids * sizeof *p->ids, &ok);
    r->n_prompt = p->n_ids;
    r->sampling = q->sampling;
    r->sampling.seed += c->index; /* so that choices differ */
    r->bias = copy(q->bias, q->n_bias * sizeof *q->bias, &ok);
    r->n_bias = q->n_bias;
    r->stop_ids = copy(q->stop_ids, q->n_stop_ids * sizeof *q->stop_ids, &ok);
    r->n_stop_ids = q->n_stop_ids;
    r->stop = q->n_stop ? calloc(q->n_stop, sizeof *r->stop) : NULL;
    for (size_t i = 0; r->stop && ok && i < q->n_stop; i++) {
        r->stop[i] = copy(q->stop[i], strlen(q->stop[i]) + 1, &ok);
        r->n_stop = i + 1;
    }
    r->max_tokens = q->max_tokens;
    r->min_tokens = q->min_tokens;
    r->ignore_eos = q->ignore_eos;
    r->include_stop = q->include_stop;
    r->keep_special = q->keep_special;
    r->n_logprobs = q->n_logprobs;
    r->grammar = rod_grammar_share(t->grammar);
    r->queue_timeout_ns = t->server->config.request_timeout_ms * 1000000;
    r->user = c;
    if (ok && (r->stop || !q->n_stop)) return r;
    rod_request_free(r);
    return NULL;
}

static void submit(struct turn *t) {
    struct server *s = t->server;
    t->stream = t->request.stream;
    if (!s->info->has_tokenizer) t->request.return_token_ids = true; /* there is no text to answer with */
    if (t->has_err || !fits(t)) {
        fail(t, &t->err);
        return;
    }
    uint32_t n = (uint32_t)(t->n_prompts * t->request.n);
    t->choices = calloc(n, sizeof *t->choices);
    if (!t->choices) {
        fail_code(t, ROD_ENOMEM, "out of memory");
        return;
    }
    t->n_choices = n;
    if (!t->request.has_seed) getrandom(&t->request.sampling.seed, sizeof t->request.sampling.seed, 0);
    openai_render_prefix(&t->prefix, t->kind, t->stream, t->exchange->id, (int64_t)time(NULL), s->model_name);
    s->metrics.prompt_tok += t->usage.prompt_tok;
    for (uint32_t i = 0; i < n; i++) {
        struct turn_choice *c = &t->choices[i];
        *c = (struct turn_choice){.turn = t, .index = i, .prompt = i / t->request.n, .stop_id = -1};
        struct rod_error rod = {0};
        struct rod_request *r = engine_request(t, c);
        int rc = r ? rod_submit(s->engine, r, &c->ticket, &rod) : rod_fail(&rod, ROD_ENOMEM, "out of memory");
        if (rc) {
            rod_request_free(r);
            openai_error_from(&t->err, &rod);
            fail(t, &t->err);
            return;
        }
        c->open = true;
        t->n_open++;
    }
    if (!uv_is_active((uv_handle_t *)&s->tick)) uv_timer_start(&s->tick, turn_tick, 100, 100);
}

static void on_work(uv_work_t *work) {
    struct turn *t = work->data;
    size_t bytes = t->body_len;
    prepare(t);
    if (bytes > TRIM_BYTES) malloc_trim(0); /* what JSON took for a moment would stay with this thread's heap */
}

static void on_work_done(uv_work_t *work, int status) {
    struct turn *t = work->data;
    (void)status;
    t->working = false;
    if (t->exchange && !t->left) submit(t);
    maybe_free(t);
}

/* A grammar may take long to compile, however short its text. */
static bool may_have_grammar(const struct turn *t) {
    return t->body && (memmem(t->body, t->body_len, "response_format", 15) ||
                       memmem(t->body, t->body_len, "structured_outputs", 18));
}

void turn_start(struct exchange *x, enum openai_kind kind) {
    struct server *s = x->server;
    struct turn *t = calloc(1, sizeof *t);
    if (!t) {
        struct openai_error err;
        openai_error_set(&err, 500, "server_error", "out_of_memory", "", "out of memory");
        routes_fail(x, &err);
        return;
    }
    t->server = s;
    t->exchange = x;
    x->turn = t;
    t->kind = kind;
    t->next = s->turns;
    if (t->next) t->next->prev = t;
    s->turns = t;
    s->n_turns++;
    t->started_ns = t->sent_ns = http_started_ns(x->http);
    t->body = http_take_body(x->http, &t->body_len);
    t->work.data = t;
    const bool slow = t->body_len > SERVER_INLINE_BYTES || may_have_grammar(t);
    if (slow && uv_queue_work(s->loop, &t->work, on_work, on_work_done) == 0) {
        t->working = true;
        return;
    }
    prepare(t);
    submit(t);
}
