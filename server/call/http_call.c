/* http_call.c - see http_call.h: answers, errors, and when to come again. */
#include "http_call.h"
#include "engine/base/log_limit.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void http_call_respond(struct http_call *call, unsigned status, const char *content_type, struct buf *body) {
    assert(!http_status(call->http)); /* one answer */
    if (body->failed) {
        buf_fini(body);
        http_call_no_memory(call);
        return;
    }
    if (call->server->leaving) http_close_after(call->http);
    http_respond_buf(call->http, status, content_type, body);
}

/* A full queue: the time until it is empty at its recent rate, so that not all clients come back to the first free
 * place. A model that is loading: the rest of its loading. */
void http_call_retry_after(struct http_call *call, unsigned status, const char *code, uint64_t known_s) {
    struct server *s = call->server;
    assert(status == 429 || status == 503);
    assert(call->on_admin || server_on_loop(s)); /* admission is the loop's */
    uint64_t seconds = known_s ? known_s : 1;
    if (status == 429 && !known_s && s->engine && !call->on_admin) {
        struct rod_stats stats;
        rod_engine_stats(s->engine, &stats);
        if (stats.queued) seconds = admission_retry_s(&s->admission, (uint64_t)stats.queued + 1);
    }
    if (status == 503 && !strcmp(code, "loading")) seconds = loading_retry_s(&s->loading, uv_hrtime());
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seconds);
    http_add_header(call->http, "Retry-After", text);
}

struct api_error http_call_traced(const struct http_call *call, const struct api_error *err) {
    struct api_error shown = *err;
    shown.trace_id = call->trace_id;
    return shown;
}

void http_call_fail(struct http_call *call, const struct api_error *err) {
    assert(!http_status(call->http));
    assert(err->http >= 400 && err->http < 600);
    const struct api_error shown = http_call_traced(call, err);
    struct buf body = {0};
    call->form->refuse(&body, &shown, call->id);
    if (err->http == 401) http_add_header(call->http, "WWW-Authenticate", "Bearer");
    if (err->http == 429 || err->http == 503) http_call_retry_after(call, err->http, err->code, err->retry_s);
    if (call->key && (!strcmp(err->code, "key_sessions") || !strcmp(err->code, "key_grammars")))
        call->key->rejected_total++;
    if (!call->outcome) call->outcome = *err->code ? err->code : err->type;
    if (err->http == 408)
        http_add_header(call->http, "x-should-retry", "false"); /* SDKs would retry it, in the same queue */
    if (call->server->leaving) http_close_after(call->http);
    http_respond(call->http, err->http, "application/json", body.failed ? "{}" : body.data, body.failed ? 2 : body.len);
    buf_fini(&body);
}

void http_call_refuse(struct http_call *call, unsigned status, const char *type, const char *code, const char *param,
                      const char *format, ...) {
    struct api_error err;
    va_list args;
    va_start(args, format);
    api_error_vset(&err, status, type, code, param, format, args);
    va_end(args);
    http_call_fail(call, &err);
}

void http_call_no_memory(struct http_call *call) {
    struct api_error err;
    api_error_no_memory(&err);
    http_call_fail(call, &err);
}

/* While a disk or store fails, each turn would have a line: one in LOG_LIMIT_NS. */
static bool hide_due(struct server *s, uint64_t *n_left_out) {
    const uint64_t now_ns = uv_hrtime();
    uint64_t last_ns = atomic_load(&s->hidden_ns);
    if ((last_ns && now_ns - last_ns < LOG_LIMIT_NS) ||
        !atomic_compare_exchange_strong(&s->hidden_ns, &last_ns, now_ns)) {
        atomic_fetch_add(&s->n_hidden, 1);
        return false;
    }
    *n_left_out = atomic_exchange(&s->n_hidden, 0);
    return true;
}

void http_call_hide_files(struct server *s, const char *name, struct api_error *err) {
    uint64_t n_left_out;
    if (hide_due(s, &n_left_out))
        log_text(&s->log, LOG_ERROR, "state of %s: %s (and %llu times like this since it was last logged)", name,
                 err->message, (unsigned long long)n_left_out);
    api_hide_files(err);
}

bool http_call_name(const struct http_call *call, char *name, size_t size) {
    if (!call->name_len || call->name_len >= size) return false;
    memcpy(name, call->name, call->name_len);
    name[call->name_len] = 0;
    return true;
}

bool http_call_limit(struct http_call *call, size_t most, size_t *n) {
    const char *text = http_query(call->http, "limit");
    if (!text) return true;
    const bool digits = *text && strlen(text) < 6 && strspn(text, "0123456789") == strlen(text);
    const size_t limit = digits ? strtoul(text, NULL, 10) : 0;
    if (limit && limit <= most) {
        *n = limit;
        return true;
    }
    http_call_invalid(call, 400, "", "limit", "limit must be 1 to %zu.", most);
    return false;
}
