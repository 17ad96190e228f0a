/* turn_session.c - a turn of a session: what the engine is told of it, and the names of what went wrong with it.
 *
 * A response of /v1/responses is a session of its own, named by the response's id, that begins as a fork of the one it
 * goes on from. So any response may be gone on from, any number of times. */
#include "turn_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

/* On the loop thread, where headers can be read. */
bool turn_session_headers(struct turn *t) {
    const struct http_call *call = t->call;
    const char *session = http_header(call->http, t->server->config.session_header);
    const char *key = http_header(call->http, "Idempotency-Key");
    snprintf(t->tenant, sizeof t->tenant, "%s", call->tenant);
    t->max_sessions = call->key ? call->key->max_sessions : 0;
    t->header_session = copy(session);
    t->header_key = copy(key);
    return (!session || t->header_session) && (!key || t->header_key);
}

/* With an idempotency key the same id again, so that a repeated request finds the response that the first one made. One
 * that is not stored is not found again: its request makes another one. */
static void name_response(struct turn *t) {
    uint64_t id[2] = {0};
    const char *key = t->request.response.store ? t->request.session.idempotency_key : NULL;
    if (key) {
        struct buf text = {0};
        buf_puts(&text, t->tenant);
        buf_putc(&text, '\n'); /* in no name and no key */
        buf_puts(&text, key);
        const XXH128_hash_t hash = XXH3_128bits(text.data, text.len);
        id[0] = hash.high64;
        id[1] = hash.low64;
        buf_fini(&text);
    } else {
        getrandom(id, sizeof id, 0);
    }
    snprintf(t->response_id, sizeof t->response_id, "resp_%016llx%016llx", (unsigned long long)id[0],
             (unsigned long long)id[1]);
}

/* What an answer has of its own beside its events: "ID TIME MODEL". */
int turn_session_label(struct turn *t, struct rod_error *err) {
    if (!t->session || !t->session->idempotency_key) return 0;
    struct buf text = {0};
    size_t len;
    buf_addf(&text, "%s %lld %s", t->kind == OPENAI_RESPONSE ? t->response_id : t->call->id,
             (long long)t->created_unix_s, t->server->model_name);
    t->session->label = buf_take(&text, &len);
    return t->session->label ? 0 : rod_fail(err, ROD_ENOMEM, "out of memory");
}

/* It comes from a file: what is no label changes nothing. */
void turn_session_relabel(struct turn *t, const char *label) {
    static const char id_bytes[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-";
    char id[SERVER_ID_BYTES], *end;
    const size_t n = strspn(label, id_bytes);
    if (!n || n >= sizeof id || label[n] != ' ' || label[n + 1] < '0' || label[n + 1] > '9') return;
    errno = 0;
    const long long created = strtoll(label + n + 1, &end, 10);
    if (errno || *end != ' ' || !end[1]) return;
    char *model = strdup(end + 1);
    if (!model) {
        t->prefix.failed = true;
        return;
    }
    free(t->model);
    t->model = model;
    t->created_unix_s = created;
    memcpy(id, label, n);
    id[n] = 0;
    if (t->kind == OPENAI_RESPONSE) return; /* its id is made from the key */
    buf_clear(&t->prefix);
    openai_render_prefix(&t->prefix, t->kind, t->stream, id, created, model);
}

static bool fill(struct turn *t, struct rod_turn *r) {
    const struct openai_session *s = &t->request.session;
    const bool response = t->kind == OPENAI_RESPONSE;
    const char *from = response ? t->request.response.previous : NULL;
    r->tenant = strdup(t->tenant);
    r->session = strdup(response ? t->response_id : s->id);
    r->create = response || s->create;
    r->max_sessions = t->max_sessions;
    r->from = copy(from);
    r->has_expected = s->has_expected;
    r->expected_version = s->expected_version;
    r->idempotency_key = copy(s->idempotency_key);
    memcpy(r->digest, t->digest, sizeof r->digest);
    return r->tenant && r->session && (r->from || !from) && (r->idempotency_key || !s->idempotency_key);
}

void turn_session_digest(struct turn *t) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_withSeed(t->body, t->body_len, (XXH64_hash_t)t->kind));
    memcpy(t->digest, digest.digest, sizeof t->digest);
}

int turn_session_open(struct turn *t, struct rod_error *err) {
    const bool response = t->kind == OPENAI_RESPONSE;
    if (response) name_response(t);
    if (response ? !t->request.response.store && !t->request.response.previous : !t->request.session.id) return 0;
    t->session = calloc(1, sizeof *t->session);
    if (t->session && fill(t, t->session)) return 0;
    return rod_fail(err, ROD_ENOMEM, "out of memory");
}

void turn_session_free(struct rod_turn *r) {
    if (!r) return;
    free(r->tenant);
    free(r->session);
    free(r->from);
    free(r->idempotency_key);
    free(r->label);
    free(r->if_empty);
    free(r->if_open);
    free(r);
}

/* Text that goes on gets no beginning from the tokenizer's files; text that begins does. */
int turn_session_encode(struct turn *t, const char *text, size_t len, int32_t **ids, size_t *n_ids,
                        struct rod_error *err) {
    struct rod_turn *r = t->session;
    const struct rod_engine *e = t->server->engine;
    int rc = rod_tokenize(e, text, len, true, false, ids, n_ids, err);
    if (!rc) rc = rod_encode(e, text, len, true, &r->if_empty, &r->n_if_empty, err);
    if (rc || r->n_if_empty != *n_ids) return rc;
    free(r->if_empty); /* there is no beginning */
    r->if_empty = NULL;
    r->n_if_empty = 0;
    return 0;
}

/* The request's own words for what the engine says of sessions. */
void turn_session_error(const struct turn *t, struct openai_error *err, int code) {
    const bool response = t->kind == OPENAI_RESPONSE;
    if (code == ROD_EIO) {
        log_text(&t->server->log, LOG_ERROR, "session %s: %s", response ? t->response_id : t->request.session.id,
                 err->message);
        openai_hide_files(err);
    }
    if (response && code == ROD_ENOTFOUND) err->code = "previous_response_not_found";
    const bool of_past = code == ROD_ENOTFOUND || code == ROD_ESTATE; /* what the turn goes on from */
    const char *field = NULL;
    if (code == ROD_EVERSION) field = "expected_version";
    if (of_past) field = response ? "previous_response_id" : "session_id";
    if (code == ROD_EBUSY && !response) field = "session_id";
    if (field) snprintf(err->param, sizeof err->param, "%s", field);
}
