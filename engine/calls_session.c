/* calls_session.c - the public calls of sessions. */
#include "core.h"
#include "engine/base/fail.h"
#include "engine/base/store_wait.h"

static int calls_need_sessions(const struct rod_engine *e, struct rod_error *err) {
    return e->sessions ? 0 : rod_fail(err, ROD_EUNSUPPORTED, "This device keeps no states, so there are no sessions.");
}

int rod_session_create(struct rod_engine *e, const char *tenant, const struct rod_session_new *made,
                       struct rod_session_info *out, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_create(e->sessions, tenant, made, out, err);
}

int rod_session_get(struct rod_engine *e, const char *tenant, const char *id, struct rod_session_info *out,
                    struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_get(e->sessions, tenant, id, out, err);
}

int rod_session_known(struct rod_engine *e, const char *tenant, const char *id, uint64_t *waited_ns,
                      struct rod_error *err) {
    struct rod_session_info info;
    const uint64_t began_ns = clock_now_ns(), wait_ns = conversations_patience_ns(*waited_ns);
    if (e->home.calls && !wait_ns) return rod_fail(err, ROD_EIO, "The store has let this request wait too long.");
    state_home_hurry(&e->home, began_ns + wait_ns);
    const int rc = rod_session_get(e, tenant, id, &info, err);
    state_home_hurry(&e->home, 0);
    if (e->home.calls) *waited_ns = store_wait_add(*waited_ns, clock_now_ns() - began_ns, rc == ROD_EIO);
    return rc;
}

int rod_session_change(struct rod_engine *e, const char *tenant, const char *id,
                       const struct rod_session_change *change, struct rod_session_info *out, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_change(e->sessions, tenant, id, change, out, err);
}

int rod_session_rewind(struct rod_engine *e, const char *tenant, const char *id, const struct rod_session_rewind *to,
                       struct rod_session_info *out, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_rewind(e->sessions, tenant, id, to, out, err);
}

int rod_session_list(struct rod_engine *e, const char *tenant, const char *after, size_t limit,
                     struct rod_session_info **infos, size_t *n, bool *more, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_list(e->sessions, tenant, after, limit, infos, n, more, err);
}

int rod_session_delete(struct rod_engine *e, const char *tenant, const char *id, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_delete(e->sessions, tenant, id, err);
}

int rod_session_answer(struct rod_engine *e, const char *tenant, const char *id, struct rod_answer *out,
                       struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_answer(e->sessions, tenant, id, out, err);
}

int rod_session_export(struct rod_engine *e, const char *tenant, const char *id, void **bytes, size_t *n,
                       struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_export(e->sessions, tenant, id, bytes, n, err);
}

int rod_session_import(struct rod_engine *e, const char *tenant, const char *id, const void *bytes, size_t n,
                       struct rod_session_info *out, struct rod_error *err) {
    const int rc = calls_need_sessions(e, err);
    return rc ? rc : sessions_import(e->sessions, tenant, id, bytes, n, out, err);
}
