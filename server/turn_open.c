/* turn_open.c - the way into a turn: a body becomes a parsed request, prompts as tokens, and requests of the engine. */
#include "access.h"
#include "turn_internal.h"
#include "engine/base/json_guard.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TRIM_BYTES ((size_t)1 << 20)
/* Some 40 bytes of JSON each. */
#define MAX_PROMPT_SCORES (1u << 21)
/* Of prompts, said again in every choice. */
#define MAX_REPEATED_BYTES (64u << 20)

/* bad_words as a model would say them: as they are, and after a space. */
static int encode_bad_words(struct turn *t, struct rod_error *err) {
    const struct openai_request *q = &t->request;
    if (!q->n_bad_words) return 0;
    int rc = 0;
    t->bad = calloc(2 * q->n_bad_words, sizeof *t->bad);
    if (!t->bad) return rod_fail(err, ROD_ENOMEM, "out of memory");
    for (size_t i = 0; !rc && i < 2 * q->n_bad_words; i++) {
        const struct openai_prompt *word = &q->bad_words[i / 2];
        if (i % 2 && word->text[0] == ' ') continue;
        struct buf text = {0};
        if (i % 2) buf_putc(&text, ' ');
        buf_add(&text, word->text, word->len);
        struct rod_ids *ids = &t->bad[t->n_bad];
        rc = text.failed ? rod_fail(err, ROD_ENOMEM, "out of memory")
                         : rod_encode(t->server->engine, text.data, text.len, false, &ids->ids, &ids->n_ids, err);
        t->n_bad += !rc;
        buf_fini(&text);
    }
    if (rc && err && !err->param[0] && rod_code_http(rc) == 400) snprintf(err->param, sizeof err->param, "bad_words");
    return rc;
}

/* The last tokens of a prompt, where the client wants it cut rather than refused. */
static void truncate_prompt(const struct turn *t, struct turn_prompt *p) {
    const int64_t wanted = t->request.truncate_tok;
    const uint64_t most = wanted < 0 ? t->server->info->max_prompt_tok : (uint64_t)wanted;
    if (!most || p->n_ids <= most) return;
    memmove(p->ids, p->ids + (p->n_ids - most), most * sizeof *p->ids);
    p->n_marks = 0; /* they were places in the whole prompt */
    p->n_ids = most;
}

static int encode_chat(struct turn *t, struct turn_prompt *p, struct rod_error *err) {
    const struct rod_engine *e = t->server->engine;
    const struct openai_request *q = &t->request;
    if (t->session) /* without tokens to generate its messages are read, and the next ones come after them */
        return rod_chat_encode_turn(e, q->messages, q->n_messages, q->max_tokens > 0, t->session, &p->ids, &p->n_ids,
                                    err);
    int rc = rod_chat_encode(e, q->messages, q->n_messages, true, &p->ids, &p->n_ids, err);
    if (!rc) rod_chat_marks(e, q->messages, q->n_messages, p->ids, p->n_ids, &p->marks, &p->n_marks);
    return rc;
}

/* Prompt i as token ids; text that is encoded is dropped at once, it may be long. */
static int encode(struct turn *t, size_t i, struct rod_error *err) {
    struct server *s = t->server;
    struct openai_request *q = &t->request;
    struct turn_prompt *p = &t->prompts[i];
    if (t->kind != OPENAI_COMPLETION) return encode_chat(t, p, err);
    struct openai_prompt *from = &q->prompts[i];
    if (from->ids) {
        p->ids = from->ids;
        p->n_ids = from->n_ids;
        from->ids = NULL;
        return 0;
    }
    int rc;
    if (t->session) {
        rc = turn_session_encode(t, from->text, from->len, &p->ids, &p->n_ids, err);
    } else if (q->suffix) {
        rc = rod_fim_encode(s->engine, from->text, from->len, q->suffix, q->suffix_len, &p->ids, &p->n_ids, err);
    } else {
        rc = rod_encode(s->engine, from->text, from->len, true, &p->ids, &p->n_ids, err);
    }
    free(from->text);
    from->text = NULL;
    return rc;
}

/* Compiles what the text must look like; the error names the field. */
static int open_grammar(struct turn *t, struct rod_error *err) {
    const struct openai_grammar *g = &t->request.grammar;
    struct rod_error fault = {0};
    if (!g->text) return 0;
    struct json_guard room; /* a schema is JSON, which the engine reads */
    int rc = json_guard_open(&room, g->len) ? ROD_ENOMEM : 0;
    if (!rc) rc = rod_grammar_open(t->server->engine, g->kind, g->text, g->len, &t->grammar, &fault);
    if (rc && room.was_short) rc = ROD_ENOMEM; /* else the schema was read, and what was read of it is freed */
    json_guard_close(&room);
    if (rc == ROD_ENOMEM) rod_fail(&fault, rc, "out of memory");
    if (rc == ROD_EINVALID) rod_fail(err, rc, "%s %s", g->param, fault.message);
    if (rc && rc != ROD_EINVALID) *err = fault;
    if (rc) snprintf(err->param, sizeof err->param, "%s", g->param);
    return rc;
}

/* What is read. */
static const char *field_of(const struct turn *t) {
    return t->kind == OPENAI_COMPLETION ? "prompt" : t->kind == OPENAI_CHAT ? "messages" : "input";
}

/* Parses and encodes; on the pool when the body is long. Touches nothing but the turn and what is constant. */
static void prepare(struct turn *t) {
    struct server *s = t->server;
    struct rod_error rod = {0};
    const struct openai_headers headers = {s->config.session_header, t->header_session, t->header_key};
    t->has_err = openai_parse(t->kind, t->body, t->body_len, &s->defaults, &t->request, &t->err) ||
                 openai_join_session(&t->request, &headers, &t->err);
    turn_session_digest(t);
    free(t->body);
    t->body = NULL;
    if (t->has_err) return;
    struct openai_request *q = &t->request;
    t->n_prompts = t->kind == OPENAI_COMPLETION ? q->n_prompts : 1;
    t->prompts = calloc(t->n_prompts, sizeof *t->prompts);
    int rc = t->prompts ? open_grammar(t, &rod) : rod_fail(&rod, ROD_ENOMEM, "out of memory");
    if (!rc) rc = turn_session_open(t, &rod);
    if (!t->prompts) t->n_prompts = 0;
    for (size_t i = 0; !rc && i < t->n_prompts; i++) {
        struct turn_prompt *p = &t->prompts[i];
        rc = encode(t, i, &rod);
        if (rc) break;
        truncate_prompt(t, p);
        t->usage.prompt_tok += p->n_ids;
        if (q->echo && s->info->has_tokenizer)
            rc = rod_decode(s->engine, p->ids, p->n_ids, false, &p->echo, &p->echo_len, &rod);
    }
    if (!rc) rc = encode_bad_words(t, &rod);
    if (!rc) return;
    t->has_err = true;
    const char *field = field_of(t);
    if (t->kind == OPENAI_RESPONSE && !strncmp(rod.param, "messages", 8)) rod.param[0] = 0;
    if (!rod.param[0] && rod_code_http(rod.code) == 400) snprintf(rod.param, sizeof rod.param, "%s", field);
    openai_error_from(&t->err, &rod);
}

/* Entries of log-probabilities that the answer has for its prompts, those of the tokens themselves too. */
static uint64_t prompt_scores(const struct turn *t) {
    const struct openai_request *q = &t->request;
    const int32_t echoed = q->echo && q->n_logprobs >= 0 ? q->n_logprobs + 1 : 0;
    return t->usage.prompt_tok * q->n * (uint64_t)(echoed + q->n_prompt_logprobs + 1);
}

/* About how many bytes the answer has of its prompts. In one choice that is no more than the client sent. */
static uint64_t repeated_bytes(const struct turn *t) {
    const struct openai_request *q = &t->request;
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->n_prompts; i++)
        bytes += t->prompts[i].echo_len + (q->return_token_ids ? t->prompts[i].n_ids * 7 : 0);
    return q->n > 1 && (t->kind == OPENAI_COMPLETION || q->stream) ? bytes * q->n : 0;
}

/* What the engine could never take, so that the client need not try again. */
static bool fits(struct turn *t) {
    struct server *s = t->server;
    for (size_t i = 0; i < t->n_prompts; i++) {
        uint64_t n = t->prompts[i].n_ids, limit = s->info->max_prompt_tok;
        if (!limit || n <= limit) continue;
        const char *param = field_of(t);
        openai_error_set(&t->err, 400, "invalid_request_error", "context_length_exceeded", param,
                         "the prompt has %llu tokens, the limit is %llu", (unsigned long long)n,
                         (unsigned long long)limit);
        t->err.n_prompt_tok = n;
        t->err.limit_tok = limit;
        return false;
    }
    const uint64_t n_scores = prompt_scores(t);
    if (n_scores > MAX_PROMPT_SCORES) {
        openai_error_set(&t->err, 400, "invalid_request_error", "",
                         t->request.n_prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
                         "the prompts of all choices have %llu log-probabilities together, the limit is %u",
                         (unsigned long long)n_scores, MAX_PROMPT_SCORES);
        return false;
    }
    const uint64_t n_repeated = repeated_bytes(t);
    if (n_repeated > MAX_REPEATED_BYTES) {
        openai_error_set(&t->err, 400, "invalid_request_error", "", t->request.echo ? "echo" : "return_token_ids",
                         "the prompts have some %llu bytes when they are said again in all choices, the limit is %u",
                         (unsigned long long)n_repeated, MAX_REPEATED_BYTES);
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
    snprintf(r->id, sizeof r->id, "%s", t->call->id);
    r->prompt = copy(p->ids, p->n_ids * sizeof *p->ids, &ok);
    r->n_prompt = p->n_ids;
    r->tenant = copy(t->tenant, strlen(t->tenant) + 1, &ok);
    if (q->session.cache_salt) r->cache_salt = copy(q->session.cache_salt, strlen(q->session.cache_salt) + 1, &ok);
    r->marks = copy(p->marks, p->n_marks * sizeof *p->marks, &ok);
    r->n_marks = p->n_marks;
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
    r->allowed_ids = copy(q->allowed_ids, q->n_allowed_ids * sizeof *q->allowed_ids, &ok);
    r->n_allowed_ids = q->n_allowed_ids;
    r->bad = t->n_bad ? calloc(t->n_bad, sizeof *r->bad) : NULL;
    for (size_t i = 0; r->bad && ok && i < t->n_bad; i++) {
        r->bad[i].ids = copy(t->bad[i].ids, t->bad[i].n_ids * sizeof *t->bad[i].ids, &ok);
        r->bad[i].n_ids = t->bad[i].n_ids;
        r->n_bad = i + 1;
    }
    r->same_before = c->index % q->n;
    r->max_tokens = q->max_tokens;
    r->min_tokens = q->min_tokens;
    r->ignore_eos = q->ignore_eos;
    r->include_stop = q->include_stop;
    r->keep_special = q->keep_special;
    r->n_logprobs = q->n_logprobs;
    r->n_prompt_logprobs = q->n_prompt_logprobs;
    r->report_end = q->echo && q->n_logprobs >= 0; /* who scores takes the last entry for a generated one */
    if (q->echo && q->n_logprobs > r->n_prompt_logprobs) r->n_prompt_logprobs = q->n_logprobs;
    r->grammar = rod_grammar_share(t->grammar);
    if (t->key) {
        r->key = t->key->index;
        r->weight = t->key->priority;
    }
    r->queue_timeout_ns = t->server->config.request_timeout_ms * 1000000;
    r->user = c;
    r->turn = t->session; /* a turn of a session has one choice */
    t->session = NULL;
    if (ok && (r->stop || !q->n_stop) && (r->bad || !t->n_bad)) return r;
    rod_request_free(r);
    return NULL;
}

/* All choices at once, so that those of one prompt can share its reading. */
static int submit_all(struct turn *t, struct rod_error *err) {
    struct rod_request **requests = calloc(t->n_choices, sizeof *requests);
    uint64_t *tickets = calloc(t->n_choices, sizeof *tickets);
    int rc = requests && tickets ? 0 : rod_fail(err, ROD_ENOMEM, "out of memory");
    for (uint32_t i = 0; !rc && i < t->n_choices; i++) {
        struct turn_choice *c = &t->choices[i];
        *c = (struct turn_choice){.turn = t, .index = i, .prompt = i / t->request.n, .stop_id = -1};
        requests[i] = engine_request(t, c);
        if (!requests[i]) rc = rod_fail(err, ROD_ENOMEM, "out of memory");
        /* All have the same lists, which may be long: gigabytes in a hundred copies, for a refusal. */
        if (!rc && !i && t->n_choices > 1) rc = rod_request_fits(t->server->engine, requests[i], err);
    }
    if (!rc) rc = rod_submit_all(t->server->engine, requests, t->n_choices, tickets, err);
    for (uint32_t i = 0; i < t->n_choices; i++) {
        if (rc && requests) rod_request_free(requests[i]);
        if (rc) continue;
        t->choices[i].ticket = tickets[i];
        t->choices[i].open = true;
        t->n_open++;
    }
    free(requests);
    free(tickets);
    return rc;
}

/* All that the turn may use is taken from the key's minute now, or a hundred that come together would pass it a
 * hundred times. */
static bool key_affords(struct turn *t) {
    const uint64_t n_choices = (uint64_t)t->n_prompts * t->request.n, most = n_choices * t->request.max_tokens;
    const uint64_t wait_s = t->key ? key_take(t->key, t->usage.prompt_tok + most, uv_hrtime(), &t->tokens) : 0;
    if (wait_s) access_key_spent(&t->err, t->key, wait_s);
    return !wait_s;
}

/* Of what the engine does not take, nothing is counted. */
static void settle(struct turn *t, bool taken) {
    if (taken) t->server->metrics.prompt_tok += t->usage.prompt_tok;
    if (taken && t->key) t->key->prompt_tok += t->usage.prompt_tok;
    if (!taken && t->key) key_settle(t->key, &t->tokens, 0);
}

static void submit(struct turn *t) {
    struct server *s = t->server;
    t->stream = t->request.stream;
    if (!s->info->has_tokenizer) t->request.return_token_ids = true; /* there is no text to answer with */
    if (t->has_err || !fits(t) || !key_affords(t)) {
        turn_fail(t, &t->err);
        return;
    }
    uint32_t n = (uint32_t)(t->n_prompts * t->request.n);
    t->choices = calloc(n, sizeof *t->choices);
    if (!t->choices) {
        settle(t, false);
        turn_fail_code(t, ROD_ENOMEM, "out of memory");
        return;
    }
    t->n_choices = n;
    if (!t->request.has_seed) getrandom(&t->request.sampling.seed, sizeof t->request.sampling.seed, 0);
    t->created_unix_s = (int64_t)time(NULL);
    t->of_session = t->session != NULL;
    if (t->kind != OPENAI_RESPONSE)
        openai_render_prefix(&t->prefix, t->kind, t->stream, t->call->id, t->created_unix_s, s->model_name);
    struct rod_error rod = {0};
    int rc = turn_session_label(t, &rod);
    if (!rc) rc = submit_all(t, &rod);
    settle(t, !rc);
    if (rc) {
        openai_error_from(&t->err, &rod);
        turn_fail(t, &t->err);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&s->tick)) uv_timer_start(&s->tick, turn_tick, 100, 100);
}

static void on_work(void *arg) {
    struct turn *t = arg;
    size_t bytes = t->body_len;
    prepare(t);
    if (bytes > TRIM_BYTES) malloc_trim(0); /* what JSON took for a moment would stay with this thread's heap */
}

static void on_work_done(void *arg) {
    struct turn *t = arg;
    t->working = false;
    if (t->call && !t->over) submit(t); /* over: the client left, or the drain has answered */
    turn_maybe_free(t);
}

/* A grammar may take long to compile, however short its text. */
static bool may_have_grammar(const struct turn *t) {
    return t->body &&
           (memmem(t->body, t->body_len, "response_format", 15) || memmem(t->body, t->body_len, "\"format\"", 8) ||
            memmem(t->body, t->body_len, "structured_outputs", 18));
}

void turn_start(struct http_call *call, enum openai_kind kind) {
    struct server *s = call->server;
    struct turn *t = calloc(1, sizeof *t);
    if (!t) {
        struct openai_error err;
        openai_error_set(&err, 500, "server_error", "out_of_memory", "", "out of memory");
        http_call_fail(call, &err);
        return;
    }
    t->server = s;
    t->call = call;
    call->turn = t;
    t->kind = kind;
    t->key = call->key;
    if (t->key) key_hold(t->key);
    t->counted = call->counted;
    call->counted = false;
    t->next = s->turns;
    if (t->next) t->next->prev = t;
    s->turns = t;
    t->started_ns = t->sent_ns = http_started_ns(call->http);
    if (!s->n_turns++) s->busy_since_ns = t->started_ns;
    t->body = http_take_body(call->http, &t->body_len);
    if (!turn_session_headers(t)) {
        turn_fail_code(t, ROD_ENOMEM, "out of memory");
        return;
    }
    if (t->body_len > SERVER_INLINE_BYTES || may_have_grammar(t)) {
        t->working = true;
        t->work = (struct pool_work){.run = on_work, .done = on_work_done, .arg = t, .n_bytes = t->body_len};
        server_pool(s, t->key, &t->work);
        return;
    }
    prepare(t);
    submit(t);
}
