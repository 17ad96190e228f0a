/* api_error.c - the errors of the protocol: making one, and its JSON; see api_error.h. */
#include "api_put.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void api_error_vset(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                    const char *format, va_list args) {
    assert(http >= 400 && http < 600 && *type);
    *e = (struct api_error){.http = http, .type = type, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    vsnprintf(e->message, sizeof e->message, format, args);
    utf8_mend(e->param, sizeof e->param);
    utf8_mend(e->message, sizeof e->message);
}

void api_error_set(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                   const char *format, ...) {
    va_list args;
    va_start(args, format);
    api_error_vset(e, http, type, code, param, format, args);
    va_end(args);
}

void api_error_from(struct api_error *e, const struct rod_error *from) {
    assert(from->code);
    api_error_set(e, (unsigned)rod_code_http(from->code), rod_code_type(from->code), rod_code_openai(from->code),
                  from->param, "%s", from->message);
    if (from->code == ROD_EKEYGRAMMARS) e->retry_s = 1; /* it is not the queue that is full */
    if (from->code == ROD_ENOROOM || from->code == ROD_EIO)
        e->retry_s = 5; /* the engine asks a disk that failed again so often */
}

bool api_error_invalid(struct api_error *e, const char *param, const char *format, ...) {
    va_list args;
    va_start(args, format);
    api_error_vset(e, 400, API_INVALID, "", param, format, args);
    va_end(args);
    return false;
}

bool api_error_field(struct api_error *e, const char *param, const char *format, ...) {
    char fault[sizeof e->message];
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    return api_error_invalid(e, param, "%s%s%.380s.", param, *fault == '[' ? "" : " ", fault);
}

bool api_error_no_memory(struct api_error *e) {
    struct rod_error from = {0};
    rod_fail_no_memory(&from);
    api_error_from(e, &from);
    return false;
}

void api_hide_files(struct api_error *err) {
    snprintf(err->message, sizeof err->message,
             "The state could not be read or written; the reason is in the server's log.");
    err->param[0] = 0;
}

void api_render_error(struct buf *out, const struct api_error *e) {
    buf_puts(out, "{\"error\":{\"message\":");
    api_put_any(out, e->message);
    buf_puts(out, ",\"type\":");
    api_put_text(out, e->type);
    buf_puts(out, ",\"param\":");
    api_put_any_or_null(out, e->param);
    buf_puts(out, ",\"code\":");
    api_put_text_or_null(out, e->code);
    if (e->limit_tok)
        buf_addf(out, ",\"n_prompt_tokens\":%llu,\"limit\":%llu", (unsigned long long)e->n_prompt_tok,
                 (unsigned long long)e->limit_tok);
    api_put_trace(out, e);
    buf_puts(out, "}}");
}
