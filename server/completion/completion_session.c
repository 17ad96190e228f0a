/* completion_session.c - a completion that is a turn of a session: what the engine needs of it, and the names of its
 * errors. */
#include "completion_internal.h"
#include "engine/base/fail.h"
#include "server/call/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *copy_text(const char *text) { return text ? strdup(text) : NULL; }

static const char *header_of(const void *http, const char *name) { return http_header(http, name); }

/* On the loop thread, where headers can be read. */
bool completion_session_headers(struct completion *c) {
    const struct http_call *call = c->call;
    const char *session = http_header(call->http, c->server->config.session_header);
    const char *key = http_header(call->http, "Idempotency-Key");
    c->way.name_header =
        api_conversation_name(header_of, call->http, c->server->config.session_header, c->way.header_name);
    snprintf(c->way.tenant, sizeof c->way.tenant, "%s", call->tenant);
    c->account.max_sessions = call->key ? call->key->max_sessions : 0;
    c->way.header_session = copy_text(session);
    c->way.header_key = copy_text(key);
    if (call->name_len && !(c->way.asked = strndup(call->name, call->name_len))) return false;
    return (!session || c->way.header_session) && (!key || c->way.header_key);
}

/* Whether a name of a header may be a session's: a turn's header leads it to a server, and is looked at elsewhere. */
static bool may_be_session(const struct completion *c, const char *name) {
    const struct api_session *s = &c->request.session;
    return name && !c->way.failed && (!s->id || s->whole) && api_session_id(name);
}

bool completion_session_waits(const struct completion *c) {
    return may_be_session(c, c->way.header_session) || may_be_session(c, c->way.header_name);
}

/* A conversation is a cache: what its folder cannot say now is no reason to refuse it. */
static bool unknown(struct completion *c, const char *name, const struct rod_error *rod) {
    struct api_error err;
    api_error_from(&err, rod);
    http_call_hide_files(c->server, name, &err);
    c->server->metrics.names_unknown++;
    return true;
}

static bool check_name(struct completion *c, const char *header, const char *name) {
    struct rod_error rod = {0};
    if (!may_be_session(c, name)) return true;
    const int rc = rod_session_known(c->server->engine, c->way.tenant, name, &c->way.waited_ns, &rod);
    if (rc == ROD_ENOTFOUND) return true;
    if (rc == ROD_EIO) return unknown(c, name, &rod);
    if (rc && rc != ROD_ESTATE) {
        api_error_from(&c->way.err, &rod);
        return false;
    }
    api_error_set(&c->way.err, 412, API_INVALID, "session_of_turns", "session_id",
                  "The header %.40s names the session %s, which has turns: put session_id into the body for the next "
                  "one. The header alone is for conversations that are sent whole.",
                  header, name);
    return false;
}

bool completion_session_check(struct completion *c) {
    const struct completion_way *w = &c->way;
    const bool same = w->header_session && !strcmp(w->header_session, w->header_name);
    return check_name(c, c->server->config.session_header, w->header_session) &&
           (same || check_name(c, w->name_header, w->header_name));
}

int completion_session_label(struct completion *c, struct rod_error *err) {
    struct rod_turn *r = c->turn.asked;
    if (!r || !r->idempotency_key) return 0;
    assert(!r->label);
    r->label = answer_label(&c->answer);
    return r->label ? 0 : rod_fail_no_memory(err);
}

static bool fill_turn(struct completion *c, struct rod_turn *r) {
    struct api_session *s = &c->request.session;
    const bool kept = s->kept.len != 0;
    size_t len;
    r->tenant = strdup(c->way.tenant);
    r->session = strdup(s->id);
    r->create = s->create;
    r->whole = s->whole;
    r->beside = s->beside;
    r->max_sessions = c->account.max_sessions;
    r->from = copy_text(s->from);
    r->has_expected = s->has_expected;
    r->expected_version = s->expected_version;
    r->idempotency_key = copy_text(s->idempotency_key);
    if (kept) r->text = buf_take(&s->kept, &len);
    memcpy(r->digest, c->answer.digest, sizeof r->digest);
    return r->tenant && r->session && (r->from || !s->from) && (r->idempotency_key || !s->idempotency_key) &&
           (r->text || !kept);
}

int completion_session_open(struct completion *c, struct rod_error *err) {
    assert(!c->turn.asked);
    if (!c->request.session.id) return 0;
    c->turn.asked = calloc(1, sizeof *c->turn.asked);
    if (c->turn.asked && fill_turn(c, c->turn.asked)) return 0;
    return rod_fail_no_memory(err);
}

static bool copy_ids(int32_t **to, const int32_t *from, size_t n) {
    if (!from) return true;
    *to = malloc((n ? n : 1) * sizeof **to);
    if (*to) memcpy(*to, from, n * sizeof **to);
    return *to != NULL;
}

static bool copy_texts(struct rod_turn *to, const struct rod_turn *from) {
    to->tenant = copy_text(from->tenant);
    to->session = copy_text(from->session);
    to->from = copy_text(from->from);
    to->idempotency_key = copy_text(from->idempotency_key);
    to->text = copy_text(from->text);
    return to->tenant && to->session && (to->from || !from->from) && (to->text || !from->text) &&
           (to->idempotency_key || !from->idempotency_key);
}

struct rod_turn *completion_session_copy(const struct rod_turn *from) {
    struct rod_turn *to = malloc(sizeof *to);
    if (!to) return NULL;
    *to = *from;
    to->label = NULL;
    to->if_empty = to->if_open = to->if_known = to->if_known_open = NULL;
    if (copy_texts(to, from) && copy_ids(&to->if_empty, from->if_empty, from->n_if_empty) &&
        copy_ids(&to->if_open, from->if_open, from->n_if_open) &&
        copy_ids(&to->if_known, from->if_known, from->n_if_known) &&
        copy_ids(&to->if_known_open, from->if_known_open, from->n_if_known_open))
        return to;
    completion_session_free(to);
    return NULL;
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
    struct rod_turn *r = c->turn.asked;
    const struct rod_engine *e = c->server->engine;
    assert(r && !r->if_empty);
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
    assert(c->turn.is);
    if (code == ROD_EIO) http_call_hide_files(c->server, c->request.session.id, err);
    if (code == ROD_ECONFLICT)
        snprintf(
            err->message, sizeof err->message,
            "Another server has gone on with the session, so this answer is no part of it. Send the request again, "
            "with its Idempotency-Key if it has one: an answer that was kept for it comes again.");
    c->answer.form->session_fault(err, code);
    if (c->request.session.beside && !strcmp(err->param, "session_id")) err->param[0] = 0; /* it is in the path */
}

/* ---- a session that nobody may go on from ---- */

static int session_run_discard(struct job *j, struct rod_error *err) {
    return rod_session_delete(j->server->engine, j->tenant, j->name, err);
}

void completion_session_discard(struct server *s, const char *tenant, const char *id) {
    assert(api_session_id(id) && strlen(tenant) < sizeof((struct job *)NULL)->tenant);
    struct job *j = job_new(s, NULL, session_run_discard);
    if (!j) return;
    snprintf(j->tenant, sizeof j->tenant, "%s", tenant);
    snprintf(j->name, sizeof j->name, "%s", id);
    job_start(j, true);
}
