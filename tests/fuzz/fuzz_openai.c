/* fuzz_openai.c - any body of any client: the parsers take it or refuse it with a 4xx that has a message, and what they
 * took keeps the promises that the engine relies on. The first byte chooses the route. */
#include "server/api/api_conversation.h"
#include "server/api/api_routes.h"
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/messages/messages.h"
#include "server/api/responses/responses.h"
#include "server/api/responses/responses_parts.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is kept of a response whose id is short. */
static json_t *stored_items(void *arg, const char *tenant, const char *id, bool input, struct api_error *err) {
    (void)arg;
    (void)tenant;
    if (strlen(id) > 8) {
        api_error_set(err, 404, API_INVALID, "", "", "There is none.");
        return NULL;
    }
    if (input) return json_pack("[{s:s,s:s,s:s}]", "id", "msg_1_in0", "role", "user", "content", "a");
    return json_pack("[{s:s,s:s,s:[]},{s:s,s:s,s:s,s:s,s:s}]", "id", "msg_1", "role", "assistant", "content", "id",
                     "fc_1_1", "type", "function_call", "call_id", "a", "name", "b", "arguments", "{}");
}
static struct api_stored stored = {.items = stored_items, .tenant = "t", .may_wait = true};

static const struct api_defaults defaults = {.model_name = "m",
                                             .vocab_size = 64,
                                             .chat_max_tokens = 10,
                                             .context_tok = 100,
                                             .sampling = ROD_SAMPLING_NEUTRAL,
                                             .stored = &stored};

static void check_error(const struct api_error *err) {
    struct buf out = {0};
    if (err->http < 400 || err->http > 499 || !err->message[0]) abort();
    api_render_error(&out, err);
    buf_fini(&out);
}

/* Each definition is one line of JSON, and so is the grammar of the calls. */
static void check_tools(const struct api_request *r) {
    static const struct rod_call_tags tags = {"<tool_call>", "</tool_call>"};
    struct api_grammar grammar;
    size_t n_allowed = 0;
    for (size_t i = 0; i < r->tools.n; i++) {
        const char *line = r->tools.lines[i], *name = r->tools.names[i];
        json_t *again = json_loads(line, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        if (!again || strchr(line, '\n') || !*name || strlen(name) > API_TOOL_NAME_MAX) abort();
        json_decref(again);
        n_allowed += r->tools.allowed[i];
    }
    if (!r->tools.n) return;
    if (!n_allowed || !api_tools_grammar(r, &tags, &grammar)) abort();
    json_t *again = json_loadb(grammar.text, grammar.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!again) abort();
    json_decref(again);
    free(grammar.text);
}

static void check_request(const struct answer_form *form, const struct api_request *r) {
    const struct rod_sampling *s = &r->sampling;
    if (!(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->repetition_penalty > 0))
        abort();
    const struct api_session *session = &r->session;
    const bool said = form != &completions_form, response = form == &responses_form;
    if (r->n < 1 || r->n > 128 || r->max_tokens < (said && (response || !session->id)) ||
        r->min_tokens > r->max_tokens || r->n_logprobs > 20 || r->n_prompt_logprobs > 20)
        abort();
    if (said ? !r->n_messages : !r->n_prompts) abort();
    if (response ? !r->answer_id || !r->again.len || r->n != 1 || !session->id != (session->discard && !session->from)
        : session->id ? !api_session_id(session->id) || r->n > 1 || r->n_prompts > 1 || r->n_prompt_logprobs >= 0
                      : session->create || session->has_expected)
        abort();
    if (session->from && !api_session_id(session->from)) abort();
    const char *name = session->conversation;
    if (name && (session->id || !said || !api_conversation_is(name, strlen(name)))) abort();
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct api_prompt *p = &r->prompts[i];
        if (p->ids ? p->n_ids == 0 : p->len == 0) abort();
        for (size_t k = 0; k < p->n_ids; k++) {
            if (p->ids[k] < 0 || p->ids[k] >= 64) abort();
        }
    }
    for (size_t i = 0; i < r->n_messages; i++) {
        if (!r->messages[i].role || r->messages[i].content[r->messages[i].content_len]) abort();
    }
    check_tools(r);
    if (r->cache.n > API_MAX_CACHE_MARKS) abort();
    for (uint32_t i = 0; i < r->cache.n; i++) {
        const struct api_cache_mark *m = &r->cache.marks[i];
        if (m->message >= r->n_messages || m->len > r->messages[m->message].content_len || !m->ttl_s) abort();
        if (m->n_tools && r->tools.n && m->n_tools > r->tools.n) abort();
    }
    if (r->end.go_on &&
        (r->end.generation || !r->n_messages || strcmp(r->messages[r->n_messages - 1].role, "assistant") != 0))
        abort();
    for (size_t i = 0; i < r->n_bias; i++) {
        if (r->bias[i].id < 0 || r->bias[i].id >= 64 || !(r->bias[i].bias >= -100 && r->bias[i].bias <= 100)) abort();
    }
    for (size_t i = 0; i < r->n_stop; i++) {
        if (!r->stop[i] || !r->stop[i][0]) abort();
    }
}

/* What the answer says again is JSON. */
static void check_echo(const struct api_request *r) {
    struct buf out = {0};
    buf_putc(&out, '{');
    buf_add(&out, r->again.data, r->again.len);
    buf_putc(&out, '}');
    json_t *again = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!again) abort();
    json_decref(again);
    buf_fini(&out);
}

/* Its items are a list, of which each item is found again. */
static void check_kept(const struct responses_kept *kept) {
    struct api_error err = {0};
    const size_t n = json_array_size(kept->input);
    const char *after = NULL;
    json_t *list = NULL;
    for (size_t i = 0; i <= n && i < 4; i++) {
        struct buf out = {0};
        const struct responses_page page = {1, true, after};
        if (!responses_render_input_items(&out, "resp_0", kept->input, &page, &err)) abort();
        json_decref(list);
        list = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        buf_fini(&out);
        if (!list || json_array_size(json_object_get(list, "data")) != (i < n)) abort();
        after = json_string_value(json_object_get(list, "last_id"));
        if (i < n && !*after) abort();
    }
    json_decref(list);
}

/* Any text that somebody put into a file. */
static int kept(const char *text, size_t len, struct api_error *err) {
    struct responses_kept k;
    const int rc = responses_parse_kept(text, len, len % 2, &k, err);
    if (!rc) check_kept(&k);
    responses_kept_fini(&k);
    return rc;
}

/* What is kept of a request is its echo, its tools and its input. */
static void check_keeps(const struct api_request *r) {
    const struct api_session *own = &r->session;
    struct api_error err = {0};
    struct responses_kept k;
    if (own->discard != !own->kept.len && r->again.len < ROD_MAX_TURN_TEXT / 2) abort();
    if (!own->kept.len) return;
    if (responses_parse_kept(own->kept.data, own->kept.len, true, &k, &err)) abort();
    if (k.echo.len != r->again.len || memcmp(k.echo.data, r->again.data, k.echo.len) || k.tools.n != r->tools.n)
        abort();
    if (!json_array_size(k.input)) abort();
    check_kept(&k);
    responses_kept_fini(&k);
}

static int request(const struct answer_form *form, bool header, const char *body, size_t len, struct api_error *err) {
    static const struct api_headers none = {"X-Session-Id", NULL, NULL, "t", NULL, NULL},
                                    both = {"X-Session-Id", "s", "k", "t", NULL, "c"};
    static const struct api_headers asked = {"X-Session-Id", "s", "k", "t", "s", "c"};
    struct api_request r;
    if (form->parse(body, len, &defaults, &r, err)) return -1;
    if (form == &chats_form && len % 3 == 0) { /* a question beside a session */
        const int fault = form->join(&r, &asked, err);
        if (!fault && (!r.session.beside || r.session.idempotency_key || !r.max_tokens)) abort();
        api_request_fini(&r);
        return fault;
    }
    int rc = form->join(&r, header ? &both : &none, err);
    if (!rc) check_request(form, &r);
    if (!rc && form == &responses_form) check_echo(&r);
    if (!rc && form == &responses_form) check_keeps(&r);
    api_request_fini(&r);
    return rc;
}

/* What Anthropic's parser takes is a chat, and its faults have Anthropic's form. */
static int message(bool counting, const char *body, size_t len, struct api_error *err) {
    struct api_request r;
    struct buf out = {0};
    if ((counting ? messages_parse_counted : messages_parse)(body, len, &defaults, &r, err)) {
        messages_form.refuse(&out, err, "id");
        json_t *fault = json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL);
        if (!fault) abort();
        json_decref(fault);
        buf_fini(&out);
        return -1;
    }
    if (r.n != 1 || r.n_logprobs >= 0 || r.return_token_ids || r.include_usage) abort();
    const struct api_headers none = {"X-Session-Id", NULL, NULL, "t", NULL, NULL};
    int rc = messages_form.join(&r, &none, err);
    if (!rc) check_request(&messages_form, &r);
    api_request_fini(&r);
    return rc;
}

static int session(bool fork, const char *body, size_t len, struct api_error *err) {
    struct api_session_new s;
    struct rod_session_change change;
    struct api_error fault = {0};
    if (api_parse_session_change(body, len, &change, &fault) && (fault.http != 400 || !*fault.message)) abort();
    if (api_parse_session_new(body, len, fork, &s, err)) return -1;
    if ((s.id && !api_session_id(s.id)) || (s.from && !api_session_id(s.from)) || (fork && s.from)) abort();
    api_session_new_fini(&s);
    return 0;
}

/* In two pieces it is the same text as in one. */
/* A regular expression that a grammar of Lark became is complete, as one that a client sends has to be. */
static void lark(const char *text, size_t len) {
    struct buf out = {0};
    if (responses_lark(text, len, &out) && !out.failed && !responses_regex_whole(out.data, out.len)) abort();
    buf_fini(&out);
}

static void custom_input(const char *text, size_t len) {
    struct buf whole = {0}, pieces = {0};
    const size_t half = len / 2, end = responses_custom_input(text, len, 0, &whole);
    const size_t first = responses_custom_input(text, half, 0, &pieces);
    if (first > half || end > len || responses_custom_input(text, len, first, &pieces) != end) abort();
    if (whole.len != pieces.len || (whole.len && memcmp(whole.data, pieces.data, whole.len) != 0)) abort();
    buf_fini(&whole);
    buf_fini(&pieces);
}

/* A line "Name: value" each, as they come. */
static const char *header_of(const void *lines, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = lines; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, name, n) && at[n] == ':') return at + n + 1;
    return NULL;
}

/* What is no name is no error, and every name is one. */
static void names(const char *lines, size_t len) {
    char name[API_CONVERSATION_MAX + 1], *copy = malloc(len + 1);
    if (!copy) abort();
    memcpy(copy, lines, len);
    copy[len] = 0;
    if (api_conversation_name(header_of, copy, "X-Session-Id", name)) {
        if (*name && !api_conversation_is(name, strlen(name))) abort();
    } else if (*name) {
        abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *body = (const char *)data + 1;
    struct api_error err = {0};
    struct api_tokenize tokenize;
    struct api_detokenize detokenize;
    const size_t len = size - 1;
    int rc = 0;
    if (data[0] == 'r') {
        rc = request(&responses_form, false, body, len, &err);
    } else if (data[0] == 'm' || data[0] == 'c') {
        rc = message(data[0] == 'c', body, len, &err);
    } else if (data[0] == 'n') {
        names(body, len);
    } else if (data[0] == 'i') {
        custom_input(body, len);
    } else if (data[0] == 'l') {
        lark(body, len);
    } else if (data[0] == 'k') {
        rc = kept(body, len, &err);
    } else if (data[0] == 's' || data[0] == 'f') {
        rc = session(data[0] == 'f', body, len, &err);
    } else if ((data[0] & 3) < 2) {
        rc = request(data[0] & 1 ? &chats_form : &completions_form, (data[0] & 4) != 0, body, len, &err);
    } else if ((data[0] & 3) == 2) {
        rc = api_parse_tokenize(body, len, &defaults, &tokenize, &err);
        if (!rc) api_tokenize_fini(&tokenize);
    } else {
        rc = api_parse_detokenize(body, len, &defaults, &detokenize, &err);
        free(detokenize.ids);
    }
    if (rc) check_error(&err);
    return 0;
}
