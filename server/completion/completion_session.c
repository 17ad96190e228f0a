/* completion_session.c - a completion that is a turn of a session: what the engine needs of it, and the names of its
 * errors.
 *
 * A response of /v1/responses is a session of its own, named by the response's id, that begins as a fork of the session
 * it continues. So any response can be continued any number of times. */
#include "completion_internal.h"
#include "engine/base/fail.h"
#include "server/call/job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

static char *copy_text(const char *text) { return text ? strdup(text) : NULL; }

/* On the loop thread, where headers can be read. */
bool completion_session_headers(struct completion *c) {
    const struct http_call *call = c->call;
    const char *session = http_header(call->http, c->server->config.session_header);
    const char *key = http_header(call->http, "Idempotency-Key");
    snprintf(c->tenant, sizeof c->tenant, "%s", call->tenant);
    c->max_sessions = call->key ? call->key->max_sessions : 0;
    c->header_session = copy_text(session);
    c->header_key = copy_text(key);
    return (!session || c->header_session) && (!key || c->header_key);
}

/* With an Idempotency-Key the id is made from the key: a repeated request finds the response of the first one. A
 * response that is not stored is not found: its request makes another one. */
static void name_response(struct completion *c) {
    assert(c->kind == API_RESPONSE && !*c->response_id);
    uint64_t id[2] = {0};
    const char *key = c->request.response.store ? c->request.session.idempotency_key : NULL;
    if (key) {
        struct buf text = {0};
        buf_puts(&text, c->tenant);
        buf_putc(&text, '\n'); /* in no name and no key */
        buf_puts(&text, key);
        const XXH128_hash_t hash = XXH3_128bits(text.data, text.len);
        id[0] = hash.high64;
        id[1] = hash.low64;
        buf_fini(&text);
    } else {
        getrandom(id, sizeof id, 0);
    }
    snprintf(c->response_id, sizeof c->response_id, "resp_%016llx%016llx", (unsigned long long)id[0],
             (unsigned long long)id[1]);
}

/* The label is kept with the answer and comes back with a replay: "ID TIME MODEL". */
int completion_session_label(struct completion *c, struct rod_error *err) {
    if (!c->session || !c->session->idempotency_key) return 0;
    assert(c->created_unix_s && !c->session->label);
    struct buf text = {0};
    size_t len;
    buf_addf(&text, "%s %lld %s", c->answer_id, (long long)c->created_unix_s, c->server->model_name);
    c->session->label = buf_take(&text, &len);
    return c->session->label ? 0 : rod_fail_no_memory(err);
}

/* The label comes from a file: a malformed one changes nothing. */
void completion_session_relabel(struct completion *c, const char *label) {
    static const char id_bytes[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-";
    char id[SERVER_ID_BYTES], *end;
    assert(c->of_session);
    const size_t n = strspn(label, id_bytes);
    if (!n || n >= sizeof id || label[n] != ' ' || label[n + 1] < '0' || label[n + 1] > '9') return;
    errno = 0;
    const long long created = strtoll(label + n + 1, &end, 10);
    if (errno || *end != ' ' || !end[1]) return;
    char *model = strdup(end + 1);
    if (!model) {
        c->prefix.failed = true;
        return;
    }
    free(c->model);
    c->model = model;
    c->created_unix_s = created;
    memcpy(id, label, n);
    id[n] = 0;
    memcpy(c->answer_id, id, n + 1);
    if (c->kind == API_RESPONSE) return; /* its id is made from the key */
    buf_clear(&c->prefix);
    api_render_prefix(&c->prefix, c->kind, c->stream, id, created, model, c->server->fingerprint);
}

static bool fill_turn(struct completion *c, struct rod_turn *r) {
    const struct api_session *s = &c->request.session;
    const bool response = c->kind == API_RESPONSE;
    const char *from = response ? c->request.response.previous : NULL;
    /* The answer of a stored response is kept for its id, where its client gives no key. */
    const char *key =
        !s->idempotency_key && response && c->request.response.store ? c->response_id : s->idempotency_key;
    struct buf *kept = &c->request.response.kept;
    size_t len;
    r->tenant = strdup(c->tenant);
    r->session = strdup(response ? c->response_id : s->id);
    r->create = response || s->create;
    r->max_sessions = c->max_sessions;
    r->from = copy_text(from);
    r->has_expected = s->has_expected;
    r->expected_version = s->expected_version;
    r->idempotency_key = copy_text(key);
    const bool wanted = kept->len != 0;
    if (wanted) r->text = buf_take(kept, &len);
    memcpy(r->digest, c->digest, sizeof r->digest);
    return r->tenant && r->session && (r->from || !from) && (r->idempotency_key || !key) && (r->text || !wanted);
}

void completion_session_digest(struct completion *c) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(
        &digest, XXH3_128bits_withSeed(c->body, c->body_len, (XXH64_hash_t)c->kind + (c->is_message ? 16 : 0)));
    memcpy(c->digest, digest.digest, sizeof c->digest);
}

int completion_session_open(struct completion *c, struct rod_error *err) {
    const bool response = c->kind == API_RESPONSE;
    assert(!c->session);
    if (response) name_response(c);
    if (response ? !c->request.response.store && !c->request.response.previous : !c->request.session.id) return 0;
    c->session = calloc(1, sizeof *c->session);
    if (c->session && fill_turn(c, c->session)) return 0;
    return rod_fail_no_memory(err);
}

void completion_session_free(struct rod_turn *r) {
    if (!r) return;
    free(r->tenant);
    free(r->session);
    free(r->from);
    free(r->idempotency_key);
    free(r->label);
    free(r->text);
    free(r->if_empty);
    free(r->if_open);
    free(r->if_known);
    free(r->if_known_open);
    free(r);
}

/* Text that continues a session gets no beginning-of-text token; the first text does. */
int completion_session_encode(struct completion *c, const char *text, size_t len, int32_t **ids, size_t *n_ids,
                              struct rod_error *err) {
    struct rod_turn *r = c->session;
    const struct rod_engine *e = c->server->engine;
    assert(c->kind == API_COMPLETION && r && !r->if_empty);
    int rc = rod_tokenize(e, text, len, true, false, ids, n_ids, err);
    if (rc || c->request.no_begin) return rc;
    rc = rod_encode(e, text, len, true, &r->if_empty, &r->n_if_empty, err);
    if (rc || r->n_if_empty != *n_ids) return rc;
    free(r->if_empty); /* this tokenizer has no beginning-of-text token */
    r->if_empty = NULL;
    r->n_if_empty = 0;
    return 0;
}

/* Names the field of the request for an error of sessions. */
void completion_session_error(const struct completion *c, struct api_error *err, int code) {
    const bool response = c->kind == API_RESPONSE;
    assert(c->of_session);
    if (code == ROD_EIO) http_call_hide_files(c->server, response ? c->response_id : c->request.session.id, err);
    if (response && code == ROD_ENOTFOUND) err->code = "previous_response_not_found";
    const bool of_past = code == ROD_ENOTFOUND || code == ROD_ESTATE; /* what the turn goes on from */
    const char *field = NULL;
    if (code == ROD_EVERSION) field = "expected_version";
    if (of_past) field = response ? "previous_response_id" : "session_id";
    if (code == ROD_EBUSY && !response) field = "session_id";
    if (field) snprintf(err->param, sizeof err->param, "%s", field);
}

/* ---- a response that is not stored ---- */

static void session_run_discard(struct job *j) {
    struct rod_error rod = {0};
    if (rod_session_delete(j->server->engine, j->tenant, j->name, &rod)) job_fail(j, &rod);
}

void completion_session_discard(struct server *s, const char *tenant, const char *id) {
    assert(api_session_id(id) && strlen(tenant) < sizeof((struct job *)NULL)->tenant);
    struct job *j = job_new(s, NULL, session_run_discard);
    if (!j) return;
    snprintf(j->tenant, sizeof j->tenant, "%s", tenant);
    snprintf(j->name, sizeof j->name, "%s", id);
    job_start(j, true);
}
