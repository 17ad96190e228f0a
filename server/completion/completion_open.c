/* completion_open.c - the way into a completion: a body becomes a parsed request, prompts as tokens, and requests of
 * the engine. */
#include "server/call/access.h"
#include "completion_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

#define TRIM_BYTES ((size_t)1 << 20)
/* Some 40 bytes of JSON each. */
#define MAX_PROMPT_SCORES (1u << 21)
/* Of prompts, repeated in every choice. */
#define MAX_REPEATED_BYTES (64u << 20)

/* bad_words as a model would say them: as they are, and after a space. */
static int encode_bad_words(struct completion *c, struct rod_error *err) {
    const struct api_request *q = &c->request;
    if (!q->n_bad_words) return 0;
    assert(!c->way.bad && !c->way.n_bad);
    int rc = 0;
    c->way.bad = calloc(2 * q->n_bad_words, sizeof *c->way.bad);
    if (!c->way.bad) return rod_fail_no_memory(err);
    for (size_t i = 0; !rc && i < 2 * q->n_bad_words; i++) {
        const struct api_prompt *word = &q->bad_words[i / 2];
        if (i % 2 && word->text[0] == ' ') continue;
        struct buf text = {0};
        if (i % 2) buf_putc(&text, ' ');
        buf_add(&text, word->text, word->len);
        struct rod_ids *ids = &c->way.bad[c->way.n_bad];
        rc = text.failed ? rod_fail_no_memory(err)
                         : rod_encode(c->server->engine, text.data, text.len, false, &ids->ids, &ids->n_ids, err);
        c->way.n_bad += !rc;
        buf_fini(&text);
    }
    if (rc && err && !err->param[0] && rod_code_http(rc) == 400) snprintf(err->param, sizeof err->param, "bad_words");
    return rc;
}

/* Tools that are kept in the prompt may not be called: the beginning of a call's tag does not come, which other tokens
 * may spell, and then it is text. */
static int forbid_calls(struct completion *c, struct rod_error *err) {
    struct rod_call_tags tags;
    if (!c->way.kept.n || !rod_chat_call_tags(c->server->engine, &tags)) return 0;
    struct rod_ids *bad = realloc(c->way.bad, (c->way.n_bad + 1) * sizeof *bad);
    if (!bad) return rod_fail_no_memory(err);
    c->way.bad = bad;
    bad += c->way.n_bad;
    *bad = (struct rod_ids){0};
    const int rc = rod_encode(c->server->engine, tags.open, strlen(tags.open), true, &bad->ids, &bad->n_ids, err);
    if (rc) return rc;
    c->way.n_bad++;
    if (bad->n_ids > 2) bad->n_ids = 2;
    return 0;
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
    if (!most || p->shown.n_ids <= most) return;
    if (!c->request.truncate_end)
        memmove(p->shown.ids, p->shown.ids + (p->shown.n_ids - most), most * sizeof *p->shown.ids);
    p->n_marks = p->n_breakpoints = 0; /* they were places in the whole prompt */
    p->shown.n_ids = most;
}

static int encode_chat(struct completion *c, struct completion_prompt *p, struct rod_error *err) {
    const struct rod_engine *e = c->server->engine;
    const struct api_request *q = &c->request;
    struct rod_chat chat = {
        .messages = q->messages, .n_messages = q->n_messages, .generation = q->end.generation, .go_on = q->end.go_on};
    const bool whole = !c->turn.asked || q->session.whole;
    if (whole) completion_recall_find(c);
    chat.tools = completion_head(c, &chat.n_tools);
    if (!whole) {
        chat.generation = chat.generation && q->max_tokens > 0; /* else the messages are read, for the next ones */
        return rod_chat_encode_turn(e, &chat, c->turn.asked, &p->shown.ids, &p->shown.n_ids, err);
    }
    int rc = c->turn.asked ? rod_chat_encode_first(e, &chat, c->turn.asked, &p->shown.ids, &p->shown.n_ids, err)
                           : rod_chat_encode(e, &chat, &p->shown.ids, &p->shown.n_ids, err);
    if (rc) return rc;
    rod_chat_marks(e, &chat, p->shown.ids, p->shown.n_ids, &p->marks, &p->n_marks);
    completion_cache_places(c, p);
    return 0;
}

/* Prompt i as token ids. Frees its text at once: it may be long. */
static int encode_prompt(struct completion *c, size_t i, struct rod_error *err) {
    struct server *s = c->server;
    struct api_request *q = &c->request;
    struct completion_prompt *p = &c->prompts[i];
    assert(i < c->n_prompts && !p->shown.ids);
    if (!q->n_prompts) return encode_chat(c, p, err);
    struct api_prompt *from = &q->prompts[i];
    if (from->ids) {
        p->shown.ids = from->ids;
        p->shown.n_ids = from->n_ids;
        from->ids = NULL;
        return 0;
    }
    int rc;
    if (c->turn.asked) {
        rc = completion_session_encode(c, from->text, from->len, &p->shown.ids, &p->shown.n_ids, err);
    } else if (q->suffix) {
        rc = rod_fim_encode(s->engine, from->text, from->len, q->suffix, q->suffix_len, &p->shown.ids, &p->shown.n_ids,
                            err);
    } else {
        rc = rod_tokenize(s->engine, from->text, from->len, true, !q->no_begin, &p->shown.ids, &p->shown.n_ids, err);
    }
    free(from->text);
    from->text = NULL;
    return rc;
}

/* The digest is kept with the answer: a body of another API is another request. */
static void digest_body(struct completion *c) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_withSeed(c->way.body, c->way.body_len, c->answer.form->number));
    memcpy(c->answer.digest, digest.digest, sizeof c->answer.digest);
}

static void parse_body(struct completion *c) {
    struct server *s = c->server;
    struct completion_way *w = &c->way;
    struct api_stored stored = s->stored;
    struct api_defaults defaults = s->defaults;
    assert(!w->is_parsed && !w->failed);
    stored.tenant = w->tenant;
    stored.may_wait = c->working;
    defaults.stored = &stored;
    const struct api_headers headers = {s->config.session_header,
                                        w->header_session,
                                        w->header_key,
                                        w->tenant,
                                        w->asked,
                                        w->name_header ? w->header_name : NULL};
    w->failed = c->answer.form->parse(w->body, w->body_len, &defaults, &c->request, &w->err);
    if (stored.waits) { /* on the pool, from the beginning */
        w->failed = false;
        return;
    }
    w->failed = w->failed || c->answer.form->join(&c->request, &headers, &w->err);
    w->is_parsed = true;
    digest_body(c);
    free(w->body);
    w->body = NULL;
}

/* An error of the engine names the field that holds the input; of messages it knows the name that chats have. */
static void fail_way(struct completion *c, struct rod_error *rod) {
    const char *input = c->answer.form->input;
    if (!strncmp(rod->param, "messages", 8) && strcmp(input, "messages") != 0) rod->param[0] = 0;
    if (!rod->param[0] && rod_code_http(rod->code) == 400) snprintf(rod->param, sizeof rod->param, "%s", input);
    c->way.failed = true;
    api_error_from(&c->way.err, rod);
}

static void compile_grammar(struct completion *c) {
    struct rod_error rod = {0};
    if (c->way.failed || (!c->request.grammar.text && !c->request.tools.n)) return;
    if (completion_grammar_open(c, &rod)) fail_way(c, &rod);
}

static int encode_all(struct completion *c, struct rod_error *err) {
    const struct server *s = c->server;
    const struct api_request *q = &c->request;
    const size_t n = q->n_prompts ? q->n_prompts : 1;
    c->prompts = calloc(n, sizeof *c->prompts);
    if (!c->prompts) return rod_fail_no_memory(err);
    c->n_prompts = n;
    int rc = completion_session_open(c, err);
    for (size_t i = 0; !rc && i < n; i++) {
        struct completion_prompt *p = &c->prompts[i];
        struct answer_prompt *shown = &p->shown;
        rc = encode_prompt(c, i, err);
        if (rc) break;
        truncate_prompt(c, p);
        c->answer.usage.prompt_tok += shown->n_ids;
        if (q->echo && s->info->has_tokenizer)
            rc = rod_decode(s->engine, shown->ids, shown->n_ids, false, &shown->echo, &shown->echo_len, err);
    }
    if (!rc) rc = encode_bad_words(c, err);
    if (!rc) rc = forbid_calls(c, err);
    return rc ? rc : encode_prediction(c, err);
}

static void encode_input(struct completion *c) {
    struct rod_error rod = {0};
    assert(!c->prompts && !c->choices && !c->turn.asked);
    if (!c->way.failed && encode_all(c, &rod)) fail_way(c, &rod);
}

/* Entries of log-probabilities that the answer has for its prompts, those of the tokens themselves too. */
static uint64_t prompt_scores(const struct completion *c) {
    const struct api_request *q = &c->request;
    const int32_t echoed = q->echo && q->n_logprobs >= 0 ? q->n_logprobs + 1 : 0;
    return c->answer.usage.prompt_tok * q->n * (uint64_t)(echoed + q->n_prompt_logprobs + 1);
}

/* About how many bytes the answer has of its prompts. In one choice that is no more than the client sent. */
static uint64_t repeated_bytes(const struct completion *c) {
    const struct api_request *q = &c->request;
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_prompts; i++)
        bytes += c->prompts[i].shown.echo_len + (q->return_token_ids ? c->prompts[i].shown.n_ids * 7 : 0);
    return q->n > 1 && (q->n_prompts || q->stream) ? bytes * q->n : 0;
}

/* All choices of a request come at once: they must find room in an empty server, and their key must be allowed so many.
 */
static bool choices_fit(struct completion *c) {
    const struct server *s = c->server;
    const uint64_t wanted = (uint64_t)c->n_prompts * c->request.n, queue = s->config.max_queue_requests;
    const uint64_t share = c->account.queue_share, of_key = c->account.key ? c->account.key->max_requests : 0;
    const uint64_t places = share ? (queue > 1 ? share * queue / (share + 1) : queue) : queue;
    const bool key_limits = of_key && of_key < s->info->n_slots + places;
    const uint64_t most = key_limits ? of_key : s->info->n_slots + places;
    if (wanted <= most) return true;
    api_error_field(&c->way.err, c->request.n > 1 ? "n" : "prompt", "asks for %llu choices, the limit%s is %llu",
                    (unsigned long long)wanted, key_limits ? " of this key" : "", (unsigned long long)most);
    return false;
}

/* Checks the limits that no later try can pass. */
static bool completion_fits(struct completion *c) {
    struct server *s = c->server;
    for (size_t i = 0; i < c->n_prompts; i++) {
        uint64_t n = c->prompts[i].shown.n_ids, limit = s->info->max_prompt_tok;
        if (!limit || n <= limit) continue;
        const char *param = c->answer.form->input;
        api_error_set(&c->way.err, 400, API_INVALID, "context_length_exceeded", param,
                      "The prompt has %llu tokens, the limit is %llu.", (unsigned long long)n,
                      (unsigned long long)limit);
        c->way.err.n_prompt_tok = n;
        c->way.err.limit_tok = limit;
        return false;
    }
    const uint64_t n_scores = prompt_scores(c);
    if (n_scores > MAX_PROMPT_SCORES) {
        api_error_field(&c->way.err, c->request.n_prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
                        "asks for %llu log-probabilities of prompts in all choices, the limit is %u",
                        (unsigned long long)n_scores, MAX_PROMPT_SCORES);
        return false;
    }
    const uint64_t n_repeated = repeated_bytes(c);
    if (n_repeated > MAX_REPEATED_BYTES) {
        api_error_field(&c->way.err, c->request.echo ? "echo" : "return_token_ids",
                        "of the prompts takes about %llu bytes in all choices, the limit is %u",
                        (unsigned long long)n_repeated, MAX_REPEATED_BYTES);
        return false;
    }
    return choices_fit(c);
}

/* An answer that nobody has limited gets what its prompt leaves. */
static void limit_to_context(struct completion *c) {
    struct api_request *q = &c->request;
    const uint64_t used = c->answer.usage.prompt_tok;
    if (!q->whole_context) return;
    const uint32_t left = used < q->max_tokens ? (uint32_t)(q->max_tokens - used) : 1;
    q->max_tokens = left > q->min_tokens ? left : q->min_tokens;
}

/* Takes all that the completion may use from the key's minute: of a hundred requests that come together each would find
 * the minute whole. One without a limit takes what chats do, as no minute has a context. */
static bool key_affords(struct completion *c) {
    const struct api_request *q = &c->request;
    const uint32_t each = q->whole_context ? c->server->defaults.chat_max_tokens : q->max_tokens;
    const uint64_t n_choices = (uint64_t)c->n_prompts * q->n, most = n_choices * each;
    assert(!c->account.tokens.taken);
    return access_take_tokens(c->account.key, c->answer.usage.prompt_tok + most, &c->account.tokens, &c->way.err);
}

/* Each choice takes a slot, and so counts as a request; the first one has counted since the headers. */
static bool key_allows(struct completion *c) {
    const uint32_t more = (uint32_t)(c->n_prompts * c->request.n) - 1;
    if (!c->account.n_counted || !more) return true;
    if (!key_add(c->account.key, more)) {
        access_key_busy(&c->way.err, c->account.key);
        return false;
    }
    c->account.n_counted += more;
    return true;
}

/* A request that the engine refuses counts nowhere. */
static void account_prompt(struct completion *c, bool taken) {
    if (taken) c->server->metrics.prompt_tok += c->answer.usage.prompt_tok;
    if (taken && c->account.key) c->account.key->prompt_tok += c->answer.usage.prompt_tok;
    if (!taken && c->account.key) key_settle(c->account.key, &c->account.tokens, 0);
}

/* An operator reads in the log of each part once, and counts it in the metrics. */
static void note_ignored(struct server *s, uint32_t ignored) {
    for (int i = 0; i < API_N_IGNORED; i++) {
        if (!(ignored >> i & 1) || s->metrics.ignored[i]++) continue;
        log_text(&s->log, LOG_INFO,
                 "A request had %s, which this server reads and leaves out; "
                 "rodimus_request_parts_ignored_total counts such requests.",
                 api_ignored_names[i]);
    }
}

static void completion_submit(struct completion *c) {
    struct server *s = c->server;
    assert(server_on_loop(s));
    assert(c->call && !c->over && !c->working && !c->choices);
    if (!c->way.failed) note_ignored(s, c->request.ignored);
    if (!s->info->has_tokenizer) c->request.return_token_ids = true; /* there is no text to answer with */
    limit_to_context(c);
    if (!c->way.failed && completion_repeat(c)) return;
    if (c->way.failed || !completion_fits(c) || !key_allows(c) || !key_affords(c)) {
        completion_fail(c, &c->way.err);
        return;
    }
    uint32_t n = (uint32_t)(c->n_prompts * c->request.n);
    c->choices = calloc(n, sizeof *c->choices);
    if (!c->choices || !answer_begin(&c->answer, n)) {
        account_prompt(c, false);
        completion_fail_no_memory(c);
        return;
    }
    if (!c->request.has_seed) getrandom(&c->request.sampling.seed, sizeof c->request.sampling.seed, 0);
    c->turn.is = c->turn.asked != NULL;
    /* Its label has the id, so that a repeated request gets the same ids of calls. */
    snprintf(c->answer.id, sizeof c->answer.id, "%s", c->request.answer_id ? c->request.answer_id : c->call->id);
    c->answer.created_unix_s = (int64_t)time(NULL);
    c->answer.vocab = s->vocab;
    c->answer.vocab.as_ids = c->request.ids_for_tokens;
    struct rod_error rod = {0};
    int rc = completion_session_label(c, &rod);
    if (!rc) rc = completion_request_submit(c, &rod);
    account_prompt(c, !rc);
    if (rc) {
        api_error_from(&c->way.err, &rod);
        completion_fail(c, &c->way.err);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&s->tick)) uv_timer_start(&s->tick, completion_tick, 100, 100);
}

/* ---- where the work is done: a short body on the loop, but its grammar; a long one on the pool ---- */

static bool is_long(const struct completion *c) { return c->way.body_len > SERVER_INLINE_BYTES; }

/* Touches the completion and constants of the server only. */
static void completion_on_work(void *arg) {
    struct completion *c = arg;
    assert(c->working && !server_on_loop(c->server));
    if (!c->way.is_parsed) parse_body(c);
    if (!c->way.failed) c->way.failed = !completion_session_check(c);
    completion_notes_open(c);
    compile_grammar(c);
    if (!is_long(c)) return;
    encode_input(c);
    if (c->way.body_len > TRIM_BYTES)
        malloc_trim(0); /* else the memory of the JSON stays with the heap of this thread */
}

static void completion_on_work_done(void *arg) {
    struct completion *c = arg;
    assert(c->working && server_on_loop(c->server));
    c->working = false;
    if (c->call && !c->over) { /* over: the client left, or the drain has answered */
        if (!is_long(c)) encode_input(c);
        completion_submit(c);
    }
    completion_maybe_free(c);
}

static void work_on_pool(struct completion *c) {
    c->working = true;
    c->way.work = (struct pool_work){
        .run = completion_on_work, .done = completion_on_work_done, .arg = c, .n_bytes = c->way.body_len};
    server_pool(c->server, c->account.key, &c->way.work);
}

/* A body is parsed before anyone knows whether it asks for a grammar. */
static void begin_work(struct completion *c) {
    if (!is_long(c)) parse_body(c);
    const bool unread = !c->way.is_parsed, compiles = !c->way.failed && (c->request.grammar.text || c->request.tools.n);
    if (unread || compiles || completion_session_waits(c) || completion_notes_wait(c)) {
        work_on_pool(c);
    } else {
        encode_input(c);
        completion_submit(c);
    }
}

void completion_start(struct http_call *call, const struct answer_form *form) {
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
    c->answer = (struct answer){
        .form = form, .request = &c->request, .served_model = s->model_name, .fingerprint = s->fingerprint};
    c->account.key = call->key;
    if (call->key) key_hold(call->key);
    c->account.queue_share = keys_queue_share(&s->keys, call->key);
    c->account.n_counted = call->counted;
    call->counted = false;
    list_push_first(&s->completions, &c->link);
    c->times.started_ns = c->times.sent_ns = http_started_ns(call->http);
    if (s->completions.n == 1) s->busy_since_ns = c->times.started_ns;
    c->way.body = http_take_body(call->http, &c->way.body_len);
    if (completion_session_headers(c))
        begin_work(c);
    else
        completion_fail_no_memory(c);
}
