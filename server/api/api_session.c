/* api_session.c - the fields of a turn of a session and the fields that exclude one; the bodies of the session
 * routes; the JSON of sessions. */
#include "api_conversation.h"
#include "api_fields.h"
#include "api_put.h"
#include "api_routes.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SALT = 256, MAX_KEY = 255 };

bool api_session_id(const char *id) {
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
    const size_t n = strlen(id);
    return n && n <= API_SESSION_ID_MAX && strspn(id, allowed) == n;
}

static bool refuse_id(const struct api_fields *p, const char *param) {
    return field_bad(p, param, "must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'", API_SESSION_ID_MAX);
}

static bool take_id(const struct api_fields *p, const char *name, char **out) {
    size_t len = 0;
    if (!field_text(p, name, SIZE_MAX, out, &len)) return false;
    return !*out || api_session_id(*out) ? true : refuse_id(p, name);
}

/* A hint of OpenAI's API, so that what is no name is no error. */
static bool take_cache_key(const struct api_fields *p, struct api_session *out) {
    const json_t *key = field_get(p, "prompt_cache_key");
    size_t len;
    if (!json_is_string(key) || !api_conversation_is(json_string_value(key), json_string_length(key))) return true;
    out->conversation = field_copy(key, &len);
    return out->conversation || field_no_memory(p);
}

static bool check_key(const struct api_fields *p, const char *param, const char *key, size_t n) {
    bool plain = n && n <= MAX_KEY;
    for (size_t i = 0; plain && i < n; i++) plain = key[i] >= ' ' && key[i] < 127;
    return plain ? true : field_bad(p, param, "must be 1 to %d printable ASCII characters", MAX_KEY);
}

/* For routers that keep the header Idempotency-Key from the server. */
static bool take_body_key(const struct api_fields *p, struct api_session *out) {
    size_t len = 0;
    if (!field_text(p, "idempotency_key", SIZE_MAX, &out->idempotency_key, &len)) return false;
    return !out->idempotency_key || check_key(p, "idempotency_key", out->idempotency_key, len);
}

bool api_parse_session(const struct api_fields *p, struct api_session *out) {
    int64_t version = 0;
    size_t len = 0;
    assert(!out->id && !out->cache_salt);
    out->has_expected = field_get(p, "expected_version") != NULL;
    const json_t *id = field_get(p, "session_id");
    const bool none =
        json_is_integer(id) && json_integer_value(id) == -1; /* LMDeploy's client sends it for no session */
    bool ok = (none || take_id(p, "session_id", &out->id)) && field_bool(p, "session_create", &out->create) &&
              field_int(p, "expected_version", 0, INT64_MAX, &version) &&
              field_text(p, "cache_salt", MAX_SALT, &out->cache_salt, &len) && take_cache_key(p, out) &&
              take_body_key(p, out);
    out->expected_version = (uint64_t)version;
    return ok;
}

void api_session_fini(struct api_session *s) {
    free(s->id);
    free(s->cache_salt);
    free(s->conversation);
    free(s->idempotency_key);
    free(s->from);
    buf_fini(&s->kept);
    *s = (struct api_session){0};
}

/* Beside the body's session the header leads the request to a server, and names nothing. */
static bool check_header(const struct api_fields *p, const struct api_session *s, const struct api_headers *h) {
    if (!h->session || !s->id || !strcmp(s->id, h->session)) return true;
    return field_bad(p, "session_id", "is '%.60s', but the header %.40s names the session '%.60s'", s->id,
                     h->session_name, h->session);
}

bool api_join_conversation(const struct api_fields *p, struct api_request *q, const struct api_headers *h) {
    struct api_session *s = &q->session;
    const bool turn = s->id && !s->whole, named = h->conversation != NULL;
    if (!turn && !named && q->n_messages) return true; /* as the body says */
    free(s->conversation);
    s->conversation = NULL;
    if (turn || !named || !*h->conversation || !q->n_messages) return true;
    s->conversation = strdup(h->conversation);
    return s->conversation || field_no_memory(p);
}

/* The header alone names a conversation, which has no versions and needs no creation. */
static bool refuse_sessionless(const struct api_fields *p, const char *field, const struct api_headers *h) {
    if (!h->session) return field_bad(p, field, "must come with session_id");
    return field_bad(p, "session_id", "must be in the body beside %s: the header %.40s alone names a conversation",
                     field, h->session_name);
}

bool api_take_key(const struct api_fields *p, struct api_session *s, const char *key) {
    if (!key) return true;
    if (!check_key(p, "Idempotency-Key", key, strlen(key))) return false;
    if (s->idempotency_key) {
        if (!strcmp(s->idempotency_key, key)) return true;
        return field_bad(p, "idempotency_key", "is '%.60s', but the header Idempotency-Key is '%.60s'",
                         s->idempotency_key, key);
    }
    s->idempotency_key = strdup(key);
    return s->idempotency_key ? true : field_no_memory(p);
}

/* What one conversation cannot do. */
static bool check_session_fits(const struct api_fields *p, const struct api_request *q) {
    if (q->n > 1) return field_bad(p, "n", "is %u, but a turn of a session has one answer", q->n);
    if (q->n_prompts > 1)
        return field_bad(p, "prompt", "has %zu prompts, but a turn of a session has one", q->n_prompts);
    if (q->suffix)
        return field_bad(p, "suffix", "is not available in a turn of a session: its text only grows at the end");
    if (q->truncate_tok) return field_bad(p, "truncate_prompt_tokens", "is not available in a turn of a session");
    if (q->n_prompt_logprobs >= 0) return field_bad(p, "prompt_logprobs", "is not available in a turn of a session");
    if (q->echo && q->n_logprobs >= 0)
        return field_bad(p, "logprobs", "with echo is not available in a turn of a session");
    return true;
}

/* The session in the path of a question beside, which the body may name again. */
static bool join_asked(const struct api_fields *p, struct api_request *q, const char *asked) {
    struct api_session *s = &q->session;
    if (!api_session_id(asked)) return refuse_id(p, "id");
    if (s->id && strcmp(s->id, asked) != 0)
        return field_bad(p, "session_id", "is '%.60s', but the path names the session '%.60s'", s->id, asked);
    if (s->create) return field_bad(p, "session_create", "must be false: a question makes no session");
    if (!q->max_tokens) return field_bad(p, q->max_tokens_field, "must be 1 to %d, not 0", INT32_MAX);
    s->beside = true;
    free(s->idempotency_key); /* it says nothing of a question */
    s->idempotency_key = NULL;
    if (!s->id) s->id = strdup(asked);
    return s->id ? true : field_no_memory(p);
}

int api_join_session(struct api_request *q, const struct api_headers *h, struct api_error *err) {
    const struct api_fields p = {.err = err};
    struct api_session *s = &q->session;
    if (h->asked && !join_asked(&p, q, h->asked)) return -1;
    bool ok = check_header(&p, s, h) && api_join_conversation(&p, q, h);
    if (!ok) return -1;
    if (s->id) {
        ok = check_session_fits(&p, q) && (s->beside || api_take_key(&p, s, h->idempotency_key));
    } else if (s->create || s->has_expected) {
        ok = refuse_sessionless(&p, s->create ? "session_create" : "expected_version", h);
    } else if (q->n_messages && !q->max_tokens) {
        ok = field_bad(&p, q->max_tokens_field, "must be 1 to %d, not 0", INT32_MAX);
    } else if (s->conversation) {
        ok = api_take_key(&p, s, h->idempotency_key);
    }
    return ok ? 0 : -1;
}

void api_session_fault(struct api_error *err, int code) {
    const char *field = NULL;
    if (code == ROD_EVERSION) field = "expected_version";
    if (code == ROD_ENOTFOUND || code == ROD_ESTATE || code == ROD_EBUSY) field = "session_id";
    if (field) snprintf(err->param, sizeof err->param, "%s", field);
}

/* ---- the routes of sessions ---- */

static bool parse_fork(const struct api_fields *p, void *of) {
    struct api_session_new *out = of;
    return take_id(p, "id", &out->id);
}

static bool take_keep(const struct api_fields *p, bool *has, uint32_t *out) {
    int64_t keep_turns = 0;
    *has = field_get(p, "keep_turns") != NULL;
    const bool ok = field_int(p, "keep_turns", 0, ROD_MAX_KEPT_TURNS, &keep_turns);
    *out = (uint32_t)keep_turns;
    return ok;
}

static bool parse_new(const struct api_fields *p, void *of) {
    struct api_session_new *out = of;
    int64_t ttl_s = 0;
    out->has_ttl = field_get(p, "ttl_s") != NULL;
    const bool ok = parse_fork(p, of) && take_id(p, "from", &out->from) &&
                    field_int(p, "ttl_s", 0, API_TTL_MAX_S, &ttl_s) && field_bool(p, "pin", &out->pin) &&
                    take_keep(p, &out->has_keep, &out->keep_turns);
    out->ttl_s = (uint64_t)ttl_s;
    return ok;
}

int api_parse_session_new(const char *body, size_t len, bool fork, struct api_session_new *out, struct api_error *err) {
    *out = (struct api_session_new){0};
    if (!len) return 0; /* all of it is optional */
    const int rc = api_read_object(body, len, (struct api_fields){.err = err}, fork ? parse_fork : parse_new, out);
    if (rc) api_session_new_fini(out);
    return rc;
}

static bool parse_change(const struct api_fields *p, void *of) {
    struct rod_session_change *out = of;
    int64_t ttl_s = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)p->root, name, value) {
        if (strcmp(name, "pin") != 0 && strcmp(name, "ttl_s") != 0 && strcmp(name, "keep_turns") != 0) {
            char param[40]; /* of the client's making */
            snprintf(param, sizeof param, "%s", name);
            utf8_mend(param, sizeof param);
            return field_bad(p, param, "cannot be changed: use pin, ttl_s or keep_turns");
        }
    }
    out->has_pin = field_get(p, "pin") != NULL;
    out->has_ttl = field_get(p, "ttl_s") != NULL;
    if (!field_bool(p, "pin", &out->pin) || !field_int(p, "ttl_s", 0, API_TTL_MAX_S, &ttl_s) ||
        !take_keep(p, &out->has_keep, &out->keep_turns))
        return false;
    out->ttl_s = (uint64_t)ttl_s;
    return true;
}

int api_parse_session_change(const char *body, size_t len, struct rod_session_change *out, struct api_error *err) {
    *out = (struct rod_session_change){0};
    return len ? api_read_object(body, len, (struct api_fields){.err = err}, parse_change, out) : 0;
}

static bool parse_rewind(const struct api_fields *p, void *of) {
    struct rod_session_rewind *out = of;
    int64_t turns = 0, version = 0, expected = 0;
    const bool by_version = field_get(p, "version") != NULL;
    out->by_turns = field_get(p, "turns") != NULL;
    out->has_expected = field_get(p, "expected_version") != NULL;
    if (!field_int(p, "turns", 1, INT64_MAX, &turns) || !field_int(p, "version", 0, INT64_MAX, &version) ||
        !field_int(p, "expected_version", 0, INT64_MAX, &expected))
        return false;
    out->turns = (uint64_t)turns;
    out->version = (uint64_t)version;
    out->expected_version = (uint64_t)expected;
    if (out->by_turns && by_version) return field_bad(p, "version", "cannot stand beside turns");
    if (!out->by_turns && !by_version)
        return field_bad(p, "turns", "must say how many turns to go back, or version which one to go back to");
    return true;
}

int api_parse_session_rewind(const char *body, size_t len, struct rod_session_rewind *out, struct api_error *err) {
    *out = (struct rod_session_rewind){0};
    return api_read_object(body, len, (struct api_fields){.err = err}, parse_rewind, out);
}

void api_session_new_fini(struct api_session_new *s) {
    free(s->id);
    free(s->from);
    *s = (struct api_session_new){0};
}

static json_t *session_json(const struct rod_session_info *i) {
    assert(api_session_id(i->id));
    json_t *kept = json_array();
    for (uint32_t n = 0; n < i->n_kept; n++)
        json_array_append_new(kept, json_pack("{s:I,s:I}", "version", i->kept[n].version, "turns", i->kept[n].turns));
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:o,s:b,s:b,s:b,s:s?,s:s?,s:i,s:o}", "object", "session", "id",
                     i->id, "version", i->version, "tokens", i->n_tok, "state_bytes", i->state_bytes, "created_at",
                     i->created_unix_s, "used_at", i->used_unix_s, "expires_at",
                     api_number_or_null((uint64_t)i->expires_unix_s), "pinned", i->pinned, "busy", i->busy, "durable",
                     i->durable, "tier", api_some(i->tier), "parent", api_some(i->parent), "keep_turns",
                     (int)i->keep_turns, "kept", kept);
}

void api_render_session(struct buf *out, const struct rod_session_info *info) {
    buf_pack(out, "o", session_json(info));
}

/* ---- conversations ---- */

static bool parse_finish(const struct api_fields *p, void *of) {
    const json_t *id = field_get(p, "session_id");
    const size_t n = json_string_length(id);
    if (!json_is_string(id) || !api_conversation_is(json_string_value(id), n))
        return field_bad(p, "session_id", "must be the name of a conversation: 1 to %d bytes", API_CONVERSATION_MAX);
    memcpy(of, json_string_value(id), n + 1);
    return true;
}

int api_parse_finish(const char *body, size_t len, char name[API_CONVERSATION_MAX + 1], struct api_error *err) {
    return api_read_object(body, len, (struct api_fields){.err = err}, parse_finish, name);
}

static json_t *conversation_json(const struct rod_conversation_info *i) {
    static_assert((int)ROD_MAX_CONVERSATION == (int)API_CONVERSATION_MAX, "what is a name here is one there");
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:b}", "object", "conversation", "id", i->name, "lanes",
                     (json_int_t)i->n_lanes, "states", (json_int_t)i->n_states, "tokens", i->n_tok, "state_bytes",
                     i->state_bytes, "used_at", i->used_unix_s, "durable", i->durable);
}

void api_render_conversation(struct buf *out, const struct rod_conversation_info *info) {
    buf_pack(out, "o", conversation_json(info));
}

static void render_page(struct buf *out, json_t *list, const char *first, const char *last, bool more) {
    buf_pack(out, "{s:s,s:o,s:b,s:s?,s:s?}", "object", "list", "data", list, "has_more", more, "first_id", first,
             "last_id", last);
}

void api_render_conversations(struct buf *out, const struct rod_conversation_info *infos, size_t n, bool more) {
    json_t *list = json_array();
    bool made = list != NULL;
    for (size_t i = 0; made && i < n; i++) made = !json_array_append_new(list, conversation_json(&infos[i]));
    render_page(out, list, n ? infos[0].name : NULL, n ? infos[n - 1].name : NULL, more);
    if (!made) out->failed = true;
}

void api_render_sessions(struct buf *out, const struct rod_session_info *infos, size_t n, bool more) {
    json_t *list = json_array();
    bool made = list != NULL;
    for (size_t i = 0; made && i < n; i++) made = !json_array_append_new(list, session_json(&infos[i]));
    render_page(out, list, n ? infos[0].id : NULL, n ? infos[n - 1].id : NULL, more);
    if (!made) out->failed = true;
}

void api_render_deleted(struct buf *out, const char *object, const char *id) {
    buf_pack(out, "{s:s,s:s,s:b}", "object", object, "id", id, "deleted", 1);
}
