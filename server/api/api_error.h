/* api_error.h - an error that a client is shown, before any API gives it its form.
 *
 * Ownership: an error owns nothing. Threads: any. Invariants: a 4xx or 5xx; param is the client's field, "" = of none.
 */
#ifndef API_ERROR_H
#define API_ERROR_H

#include "server/base/buf.h"

#include "engine/rodimus.h"

#include <stdarg.h>

struct api_error {
    unsigned http;
    const char *type, *code; /* static; code "" = null */
    char param[64];          /* "" = null */
    char message[448];
    uint64_t n_prompt_tok, limit_tok; /* of a prompt that is too long; 0 = not shown */
    uint64_t retry_s;                 /* when to come again; 0 = the server says */
    const char *trace_id;             /* hexadecimal digits; NULL or "" = not shown */
};
#define API_INVALID "invalid_request_error" /* the type of most */
void api_error_vset(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                    const char *format, va_list args) __attribute__((format(printf, 6, 0)));
void api_error_set(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
/* The functions below are always false, so that a parser can return them. A 400, of no field with param "". */
bool api_error_invalid(struct api_error *e, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A 400 whose sentence begins with the field: "must be true or false" or "[3] is empty" of param stop is the message
 * "stop must be true or false." or "stop[3] is empty." */
bool api_error_field(struct api_error *e, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool api_error_no_memory(struct api_error *e);
void api_error_from(struct api_error *e, const struct rod_error *from);
/* Replaces the message of a fault of files: their paths are not for clients. */
void api_hide_files(struct api_error *err);
void api_render_error(struct buf *out, const struct api_error *e); /* {"error": {...}} */

#endif
