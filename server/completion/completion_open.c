/* completion_open.c - the way into a completion: a body becomes a parsed request, prompts as tokens, and requests of
 * the engine. */
#include "server/call/access.h"
#include "completion_internal.h"
#include "engine/base/fail.h"
#include "engine/base/json_guard.h"
#include "server/api/api_peers.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TRIM_BYTES ((size_t)1 << 20)
/* Some 40 bytes of JSON each. */
#define MAX_PROMPT_SCORES (1u << 21)
/* Of prompts, repeated in every choice. */
#define MAX_REPEATED_BYTES (64u << 20)

/* bad_words as a model would say them: as they are, and after a space. */
static int encode_bad_words(struct completion *c, struct rod_error *err) {
    const struct api_request *q = &c->request;
    if (!q->n_bad_words) return 0;
    assert(!c->bad && !c->n_bad);
    int rc = 0;
    c->bad = calloc(2 * q->n_bad_words, sizeof *c->bad);
    if (!c->bad) return rod_fail_no_memory(err);
    for (size_t i = 0; !rc && i < 2 * q->n_bad_words; i++) {
        const struct api_prompt *word = &q->bad_words[i / 2];
        if (i % 2 && word->text[0] == ' ') continue;
        struct buf text = {0};
        if (i % 2) buf_putc(&text, ' ');
        buf_add(&text, word->text, word->len);
        struct rod_ids *ids = &c->bad[c->n_bad];
        rc = text.failed ? rod_fail_no_memory(err)
                         : rod_encode(c->server->engine, text.data, text.len, false, &ids->ids, &ids->n_ids, err);
        c->n_bad += !rc;
        buf_fini(&text);
    }
    if (rc && err && !err->param[0] && rod_code_http(rc) == 400) snprintf(err->param, sizeof err->param, "bad_words");
    return rc;
}

static int encode_prediction(struct completion *c, struct rod_error *err) {
    struct api_prompt *p = &c->request.prediction;
    if (!p->text || !p->len || !c->server->info->has_tokenizer) return 0;
    return rod_encode(c->server->engine, p->text, p->len, false, &p->ids, &p->n_ids, err);
}

/* The last or first tokens of a prompt, where the client wants it cut rather than refused. */
static void truncate_prompt(const struct completion *c, struct completion_prompt *p) {
    const int64_t wanted = c->request.truncate_tok;
    const uint64_t most = wanted < 0 ? c->server->info->max_prompt_tok : (uint64_t)wanted;
    if (!most || p->n_ids <= most) return;
    if (!c->request.truncate_end) memmove(p->ids, p->ids + (p->n_ids - most), most * sizeof *p->ids);
    p->n_marks = p->n_breakpoints = 0; /* they were places in the whole prompt */
    p->n_ids = most;
}

static int encode_chat(struct completion *c, struct completion_prompt *p, struct rod_error *err) {
    const struct rod_engine *e = c->server->engine;
    const struct api_request *q = &c->request;
    struct rod_chat chat = {.messages = q->messages,
                            .n_messages = q->n_messages,
                            .tools = (const char *const *)q->tools.lines,
                            .n_tools = q->tools.n,
                            .generation = q->end.generation,
                            .go_on = q->end.go_on};
    if (c->session) {
        chat.generation = chat.generation && q->max_tokens > 0; /* else the messages are read, for the next ones */
        return rod_chat_encode_turn(e, &chat, c->session, &p->ids, &p->n_ids, err);
    }
    int rc = rod_chat_encode(e, &chat, &p->ids, &p->n_ids, err);
    if (rc) return rc;
    rod_chat_marks(e, &chat, p->ids, p->n_ids, &p->marks, &p->n_marks);
    completion_cache_places(c, p);
    return 0;
}

/* Prompt i as token ids. Frees its text at once: it may be long. */
static int encode_prompt(struct completion *c, size_t i, struct rod_error *err) {
    struct server *s = c->server;
    struct api_request *q = &c->request;
    struct completion_prompt *p = &c->prompts[i];
    assert(i < c->n_prompts && !p->ids);
    if (c->kind != API_COMPLETION) return encode_chat(c, p, err);
    struct api_prompt *from = &q->prompts[i];
    if (from->ids) {
        p->ids = from->ids;
        p->n_ids = from->n_ids;
        from->ids = NULL;
        return 0;
    }
    int rc;
    if (c->session) {
        rc = completion_session_encode(c, from->text, from->len, &p->ids, &p->n_ids, err);
    } else if (q->suffix) {
        rc = rod_fim_encode(s->engine, from->text, from->len, q->suffix, q->suffix_len, &p->ids, &p->n_ids, err);
    } else {
        rc = rod_tokenize(s->engine, from->text, from->len, true, !q->no_begin, &p->ids, &p->n_ids, err);
    }
    free(from->text);
    from->text = NULL;
    return rc;
}

/* Compiles the grammar of the answer. An error names the field. */
static int open_grammar(struct completion *c, struct rod_error *err) {
    const struct api_grammar *g = &c->request.grammar;
    struct rod_error fault = {0};
    if (!g->text) return 0;
    struct json_guard guard; /* a schema is JSON, which the engine reads */
    int rc = json_guard_open(&guard, g->len) ? ROD_ENOMEM : 0;
    if (!rc)
        rc = rod_grammar_open_for(c->server->engine, c->key ? c->key->index : 0, c->queue_share, g->kind, g->text,
                                  g->len, &c->grammar, &fault);
    if (rc && guard.was_short) rc = ROD_ENOMEM; /* the schema may have been read before memory ran out; it is freed */
    json_guard_close(&guard);
    if (rc == ROD_ENOMEM) rod_fail_no_memory(&fault);
    if (rc == ROD_EINVALID) rod_fail(err, rc, "%s %.400s.", g->param, fault.message);
    if (rc && rc != ROD_EINVALID) *err = fault;
    if (rc) snprintf(err->param, sizeof err->param, "%s", g->param);
    return rc;
}

/* The beginning of an answer is text, so calls that are forced come whole behind it, and where a format holds for the
 * text no call comes any more. */
static int open_grammars(struct completion *c, struct rod_error *err) {
    const struct api_request *q = &c->request;
    const struct rod_message *last = q->n_messages ? &q->messages[q->n_messages - 1] : NULL;
    int rc = open_grammar(c, err);
    if (rc) return rc;
    const bool of_text = !q->tools.n || q->tools.choice == API_TOOLS_AUTO;
    if (c->grammar && of_text && q->end.go_on && last->content_len) c->begun = last;
    if (!q->tools.n) return 0;
    struct rod_grammar *content = c->grammar; /* it was checked: the grammar of calls takes it in */
    c->grammar = NULL;
    rc = completion_calls_open(c, err);
    if (!rc) rc = open_grammar(c, err);
    if (!rc && c->begun) {
        rod_grammar_close(c->grammar);
        c->grammar = rod_grammar_ref(content);
    }
    rod_grammar_close(content);
    return rc;
}

/* The field of the input. */
static const char *input_field(const struct completion *c) {
    return c->kind == API_COMPLETION ? "prompt" : c->kind == API_CHAT ? "messages" : "input";
}

/* Parses and encodes; on the pool when the body is long. Touches the completion and constants of the server only. */
static void completion_prepare(struct completion *c) {
    struct server *s = c->server;
    assert(!c->prompts && !c->choices && !c->has_err && !c->session);
    struct rod_error rod = {0};
    const struct api_headers headers = {s->config.session_header, c->header_session, c->header_key};
    c->has_err = (c->is_message ? messages_parse(c->body, c->body_len, false, &s->defaults, &c->request, &c->err)
                                : api_parse(c->kind, c->body, c->body_len, &s->defaults, &c->request, &c->err)) ||
                 api_join_session(&c->request, &headers, &c->err);
    completion_session_digest(c);
    free(c->body);
    c->body = NULL;
    if (c->has_err) return;
    struct api_request *q = &c->request;
    c->n_prompts = c->kind == API_COMPLETION ? q->n_prompts : 1;
    c->prompts = calloc(c->n_prompts, sizeof *c->prompts);
    int rc = c->prompts ? open_grammars(c, &rod) : rod_fail_no_memory(&rod);
    if (!rc) rc = completion_session_open(c, &rod);
    if (!c->prompts) c->n_prompts = 0;
    for (size_t i = 0; !rc && i < c->n_prompts; i++) {
        struct completion_prompt *p = &c->prompts[i];
        rc = encode_prompt(c, i, &rod);
        if (rc) break;
        truncate_prompt(c, p);
        c->usage.prompt_tok += p->n_ids;
        if (q->echo && s->info->has_tokenizer)
            rc = rod_decode(s->engine, p->ids, p->n_ids, false, &p->echo, &p->echo_len, &rod);
    }
    if (!rc) rc = encode_bad_words(c, &rod);
    if (!rc) rc = encode_prediction(c, &rod);
    if (!rc) return;
    c->has_err = true;
    const char *field = input_field(c);
    if (c->kind == API_RESPONSE && !strncmp(rod.param, "messages", 8)) rod.param[0] = 0;
    if (!rod.param[0] && rod_code_http(rod.code) == 400) snprintf(rod.param, sizeof rod.param, "%s", field);
    api_error_from(&c->err, &rod);
}

/* Entries of log-probabilities that the answer has for its prompts, those of the tokens themselves too. */
static uint64_t prompt_scores(const struct completion *c) {
    const struct api_request *q = &c->request;
    const int32_t echoed = q->echo && q->n_logprobs >= 0 ? q->n_logprobs + 1 : 0;
    return c->usage.prompt_tok * q->n * (uint64_t)(echoed + q->n_prompt_logprobs + 1);
}

/* About how many bytes the answer has of its prompts. In one choice that is no more than the client sent. */
static uint64_t repeated_bytes(const struct completion *c) {
    const struct api_request *q = &c->request;
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_prompts; i++)
        bytes += c->prompts[i].echo_len + (q->return_token_ids ? c->prompts[i].n_ids * 7 : 0);
    return q->n > 1 && (c->kind == API_COMPLETION || q->stream) ? bytes * q->n : 0;
}

/* Those of a request come at once: they must find room in an empty server, and their key must be allowed so many. */
static bool choices_fit(struct completion *c) {
    const struct server *s = c->server;
    const uint64_t wanted = (uint64_t)c->n_prompts * c->request.n, queue = s->config.max_queue_requests;
    const uint64_t share = c->queue_share, of_key = c->key ? c->key->max_requests : 0;
    const uint64_t places = share ? (queue > 1 ? share * queue / (share + 1) : queue) : queue;
    const bool key_limits = of_key && of_key < s->info->n_slots + places;
    const uint64_t most = key_limits ? of_key : s->info->n_slots + places;
    if (wanted <= most) return true;
    api_error_field(&c->err, c->request.n > 1 ? "n" : "prompt", "asks for %llu choices, the limit%s is %llu",
                    (unsigned long long)wanted, key_limits ? " of this key" : "", (unsigned long long)most);
    return false;
}

/* Checks the limits that no later try can pass. */
static bool completion_fits(struct completion *c) {
    struct server *s = c->server;
    for (size_t i = 0; i < c->n_prompts; i++) {
        uint64_t n = c->prompts[i].n_ids, limit = s->info->max_prompt_tok;
        if (!limit || n <= limit) continue;
        const char *param = input_field(c);
        api_error_set(&c->err, 400, API_INVALID, "context_length_exceeded", param,
                      "The prompt has %llu tokens, the limit is %llu.", (unsigned long long)n,
                      (unsigned long long)limit);
        c->err.n_prompt_tok = n;
        c->err.limit_tok = limit;
        return false;
    }
    const uint64_t n_scores = prompt_scores(c);
    if (n_scores > MAX_PROMPT_SCORES) {
        api_error_field(&c->err, c->request.n_prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
                        "asks for %llu log-probabilities of prompts in all choices, the limit is %u",
                        (unsigned long long)n_scores, MAX_PROMPT_SCORES);
        return false;
    }
    const uint64_t n_repeated = repeated_bytes(c);
    if (n_repeated > MAX_REPEATED_BYTES) {
        api_error_field(&c->err, c->request.echo ? "echo" : "return_token_ids",
                        "of the prompts takes about %llu bytes in all choices, the limit is %u",
                        (unsigned long long)n_repeated, MAX_REPEATED_BYTES);
        return false;
    }
    return choices_fit(c);
}

static void *copy_bytes(const void *from, size_t bytes, bool *ok) {
    if (!bytes) return NULL;
    void *to = malloc(bytes);
    if (to) {
        memcpy(to, from, bytes);
    } else {
        *ok = false;
    }
    return to;
}

static struct rod_request *engine_request(struct completion *c, struct completion_choice *choice) {
    const struct api_request *q = &c->request;
    const struct completion_prompt *p = &c->prompts[choice->prompt];
    assert(choice->prompt < c->n_prompts);
    assert(!c->session || c->n_choices == 1); /* a session takes one request at a time */
    assert(!c->session || (q->n_prompt_logprobs < 0 && !q->suffix && !q->truncate_tok));
    struct rod_request *r = rod_request_new();
    if (!r) return NULL;
    bool ok = true;
    snprintf(r->id, sizeof r->id, "%s", c->call->id);
    r->prompt = copy_bytes(p->ids, p->n_ids * sizeof *p->ids, &ok);
    r->n_prompt = p->n_ids;
    r->tenant = copy_bytes(c->tenant, strlen(c->tenant) + 1, &ok);
    if (q->session.cache_salt)
        r->cache_salt = copy_bytes(q->session.cache_salt, strlen(q->session.cache_salt) + 1, &ok);
    r->marks = copy_bytes(p->marks, p->n_marks * sizeof *p->marks, &ok);
    r->n_marks = p->n_marks;
    memcpy(r->breakpoints, p->breakpoints, sizeof r->breakpoints);
    r->n_breakpoints = p->n_breakpoints;
    r->sampling = q->sampling;
    r->sampling.seed += choice->index; /* so that choices differ */
    r->bias = copy_bytes(q->bias, q->n_bias * sizeof *q->bias, &ok);
    r->n_bias = q->n_bias;
    r->stop_ids = copy_bytes(q->stop_ids, q->n_stop_ids * sizeof *q->stop_ids, &ok);
    r->n_stop_ids = q->n_stop_ids;
    r->stop = q->n_stop ? calloc(q->n_stop, sizeof *r->stop) : NULL;
    for (size_t i = 0; r->stop && ok && i < q->n_stop; i++) {
        r->stop[i] = copy_bytes(q->stop[i], strlen(q->stop[i]) + 1, &ok);
        r->n_stop = i + 1;
    }
    r->allowed_ids = copy_bytes(q->allowed_ids, q->n_allowed_ids * sizeof *q->allowed_ids, &ok);
    r->n_allowed_ids = q->n_allowed_ids;
    r->bad = c->n_bad ? calloc(c->n_bad, sizeof *r->bad) : NULL;
    for (size_t i = 0; r->bad && ok && i < c->n_bad; i++) {
        r->bad[i].ids = copy_bytes(c->bad[i].ids, c->bad[i].n_ids * sizeof *c->bad[i].ids, &ok);
        r->bad[i].n_ids = c->bad[i].n_ids;
        r->n_bad = i + 1;
    }
    r->never_speculate = q->never_speculate;
    r->prediction = copy_bytes(q->prediction.ids, q->prediction.n_ids * sizeof *q->prediction.ids, &ok);
    r->n_prediction = q->prediction.n_ids;
    r->same_before = choice->index % q->n;
    r->max_tokens = q->max_tokens;
    r->min_tokens = q->min_tokens;
    r->ignore_eos = q->ignore_eos;
    r->include_stop = q->include_stop;
    r->keep_special = q->keep_special;
    r->n_logprobs = q->n_logprobs;
    r->n_prompt_logprobs = q->n_prompt_logprobs;
    r->report_end = q->echo && q->n_logprobs >= 0; /* a client that scores takes the last entry for a generated token */
    if (q->echo && q->n_logprobs > r->n_prompt_logprobs) r->n_prompt_logprobs = q->n_logprobs;
    r->grammar = rod_grammar_ref(c->grammar);
    if (c->lazy) r->grammar_open = copy_bytes(c->tags.open, strlen(c->tags.open) + 1, &ok);
    if (c->begun) r->grammar_begun = copy_bytes(c->begun->content, c->begun->content_len, &ok);
    r->n_grammar_begun = c->begun ? c->begun->content_len : 0;
    r->grammar_again = c->lazy && api_tools_again(q);
    if (c->key) {
        r->key = c->key->index;
        r->weight = c->key->priority;
        r->queue_quota = c->queue_share;
    }
    r->queue_timeout_ns = c->server->config.request_timeout_ms * 1000000;
    r->user = choice;
    r->turn = c->session; /* a turn of a session has one choice */
    c->session = NULL;
    if (ok && (r->stop || !q->n_stop) && (r->bad || !c->n_bad)) return r;
    rod_request_free(r);
    return NULL;
}

/* Submits all choices at once, so that those of one prompt share its prefill. */
static int submit_all(struct completion *c, struct rod_error *err) {
    assert(!c->n_open && c->n_choices == c->n_prompts * c->request.n);
    struct rod_request **requests = calloc(c->n_choices, sizeof *requests);
    uint64_t *tickets = calloc(c->n_choices, sizeof *tickets);
    int rc = requests && tickets ? 0 : rod_fail_no_memory(err);
    for (uint32_t i = 0; !rc && i < c->n_choices; i++) {
        struct completion_choice *choice = &c->choices[i];
        *choice = (struct completion_choice){.completion = c, .index = i, .prompt = i / c->request.n, .stop_id = -1};
        completion_calls_begin(c, choice);
        requests[i] = engine_request(c, choice);
        if (!requests[i]) rc = rod_fail_no_memory(err);
        /* all choices have the same lists, which may be long: check one before copying a hundred */
        if (!rc && !i && c->n_choices > 1) rc = rod_request_fits(c->server->engine, requests[i], err);
    }
    if (!rc) rc = rod_submit_all(c->server->engine, requests, c->n_choices, tickets, err);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (rc && requests) rod_request_free(requests[i]);
        if (rc) continue;
        c->choices[i].ticket = tickets[i];
        c->choices[i].open = true;
        c->n_open++;
    }
    assert(c->n_open == (rc ? 0 : c->n_choices)); /* all or none */
    free(requests);
    free(tickets);
    return rc;
}

/* Takes all that the completion may use from the key's minute: of a hundred requests that come together each would find
 * the minute whole. */
static bool key_affords(struct completion *c) {
    const uint64_t n_choices = (uint64_t)c->n_prompts * c->request.n, most = n_choices * c->request.max_tokens;
    assert(!c->tokens.taken);
    return access_take_tokens(c->key, c->usage.prompt_tok + most, &c->tokens, &c->err);
}

/* Each choice takes a slot, and so counts as a request; the first one has counted since the headers. */
static bool key_allows(struct completion *c) {
    const uint32_t more = (uint32_t)(c->n_prompts * c->request.n) - 1;
    if (!c->n_counted || !more) return true;
    if (!key_add(c->key, more)) {
        access_key_busy(&c->err, c->key);
        return false;
    }
    c->n_counted += more;
    return true;
}

/* A request that the engine refuses counts nowhere. */
static void account_prompt(struct completion *c, bool taken) {
    if (taken) c->server->metrics.prompt_tok += c->usage.prompt_tok;
    if (taken && c->key) c->key->prompt_tok += c->usage.prompt_tok;
    if (!taken && c->key) key_settle(c->key, &c->tokens, 0);
}

static void completion_submit(struct completion *c) {
    struct server *s = c->server;
    assert(server_on_loop(s));
    assert(c->call && !c->over && !c->working && !c->choices);
    c->stream = c->request.stream;
    if (!s->info->has_tokenizer) c->request.return_token_ids = true; /* there is no text to answer with */
    if (c->has_err || !completion_fits(c) || !key_allows(c) || !key_affords(c)) {
        completion_fail(c, &c->err);
        return;
    }
    uint32_t n = (uint32_t)(c->n_prompts * c->request.n);
    c->choices = calloc(n, sizeof *c->choices);
    if (!c->choices) {
        account_prompt(c, false);
        completion_fail_no_memory(c);
        return;
    }
    c->n_choices = n;
    if (!c->request.has_seed) getrandom(&c->request.sampling.seed, sizeof c->request.sampling.seed, 0);
    c->created_unix_s = (int64_t)time(NULL);
    c->of_session = c->session != NULL;
    /* As its label has it, so that a repeated request gets the same ids of calls. */
    snprintf(c->answer_id, sizeof c->answer_id, "%s", c->kind == API_RESPONSE ? c->response_id : c->call->id);
    c->vocab = s->vocab;
    c->vocab.as_ids = c->request.ids_for_tokens;
    if (c->kind != API_RESPONSE)
        api_render_prefix(&c->prefix, c->kind, c->stream, c->call->id, c->created_unix_s, s->model_name,
                          s->fingerprint);
    struct rod_error rod = {0};
    int rc = completion_session_label(c, &rod);
    if (!rc) rc = submit_all(c, &rod);
    account_prompt(c, !rc);
    if (rc) {
        api_error_from(&c->err, &rod);
        completion_fail(c, &c->err);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&s->tick)) uv_timer_start(&s->tick, completion_tick, 100, 100);
}

static void completion_on_work(void *arg) {
    struct completion *c = arg;
    assert(c->working && !server_on_loop(c->server));
    size_t bytes = c->body_len;
    completion_prepare(c);
    if (bytes > TRIM_BYTES) malloc_trim(0); /* else the memory of the JSON stays with the heap of this thread */
}

static void completion_on_work_done(void *arg) {
    struct completion *c = arg;
    assert(c->working && server_on_loop(c->server));
    c->working = false;
    if (c->call && !c->over) completion_submit(c); /* over: the client left, or the drain has answered */
    completion_maybe_free(c);
}

/* A grammar may take long to compile, however short its text. */
static bool may_have_grammar(const struct completion *c) {
    return c->body &&
           (memmem(c->body, c->body_len, "response_format", 15) || memmem(c->body, c->body_len, "\"format\"", 8) ||
            memmem(c->body, c->body_len, "structured_outputs", 18) || memmem(c->body, c->body_len, "\"tools\"", 7) ||
            memmem(c->body, c->body_len, "output_config", 13) || memmem(c->body, c->body_len, "output_format", 13) ||
            api_peers_may_constrain(c->body, c->body_len));
}

void completion_start(struct http_call *call, enum api_kind kind) {
    struct server *s = call->server;
    assert(server_on_loop(s) && !call->on_admin);
    assert(!call->completion && !call->job);
    assert(call->counted == (call->key != NULL));
    struct completion *c = calloc(1, sizeof *c);
    if (!c) {
        http_call_no_memory(call);
        return;
    }
    c->server = s;
    c->call = call;
    call->completion = c;
    c->kind = kind;
    c->is_message = call->anthropic;
    c->key = call->key;
    if (c->key) key_hold(c->key);
    c->queue_share = keys_queue_share(&s->keys, c->key);
    c->n_counted = call->counted;
    call->counted = false;
    list_push_first(&s->completions, &c->link);
    c->started_ns = c->sent_ns = http_started_ns(call->http);
    if (s->completions.n == 1) s->busy_since_ns = c->started_ns;
    c->body = http_take_body(call->http, &c->body_len);
    if (!completion_session_headers(c)) {
        completion_fail_no_memory(c);
        return;
    }
    if (c->body_len > SERVER_INLINE_BYTES || may_have_grammar(c)) {
        c->working = true;
        c->work = (struct pool_work){
            .run = completion_on_work, .done = completion_on_work_done, .arg = c, .n_bytes = c->body_len};
        server_pool(s, c->key, &c->work);
        return;
    }
    completion_prepare(c);
    completion_submit(c);
}
