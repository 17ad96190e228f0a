/* api_put.h - JSON values that several answers have. Pure; any thread. */
#ifndef API_PUT_H
#define API_PUT_H

#include "request.h"

#include <jansson.h>
#include <string.h>

static inline void api_put_text(struct buf *out, const char *text) { buf_json(out, text, strlen(text)); }

/* NULL and "" are null. */
static inline void api_put_text_or_null(struct buf *out, const char *text) {
    if (text && *text) {
        api_put_text(out, text);
    } else {
        buf_puts(out, "null");
    }
}

/* What a client sent, cut at some byte, or a path: perhaps no UTF-8. */
static inline void api_put_any(struct buf *out, const char *text) { buf_json_any(out, text, strlen(text)); }
static inline void api_put_any_or_null(struct buf *out, const char *text) {
    if (*text) {
        api_put_any(out, text);
    } else {
        buf_puts(out, "null");
    }
}

/* For json_pack, null: "s?" of "", "o" of 0. */
static inline const char *api_some(const char *text) { return *text ? text : NULL; }
static inline json_t *api_number_or_null(uint64_t number) {
    return number ? json_integer((json_int_t)number) : json_null();
}

/* A last member of an error. */
static inline void api_put_trace(struct buf *out, const struct api_error *e) {
    if (e->trace_id && *e->trace_id) buf_addf(out, ",\"trace_id\":\"%s\"", e->trace_id);
}

/* ,"session":{"id":...,"version":...}, or nothing where id is NULL. unseen: "durable":false, too. */
static inline void api_put_session(struct buf *out, const char *id, uint64_t version, bool unseen) {
    if (!id) return;
    buf_puts(out, ",\"session\":{\"id\":");
    api_put_text(out, id);
    buf_puts(out, ",\"version\":");
    buf_int(out, (int64_t)version);
    buf_puts(out, unseen ? ",\"durable\":false}" : "}");
}

static inline const char *api_bool(bool value) { return value ? "true" : "false"; }

/* Before element i of an array. */
static inline void api_put_comma(struct buf *out, size_t i) {
    if (i) buf_putc(out, ',');
}

/* 1,2,3 */
static inline void api_put_ids(struct buf *out, const int32_t *ids, size_t n_ids) {
    for (size_t i = 0; i < n_ids; i++) {
        api_put_comma(out, i);
        buf_int(out, ids[i]);
    }
}

/* What memory ran out for is cut short, and so would be the answer around it. */
static inline void api_put_part(struct buf *out, const struct buf *part) {
    if (part->failed) out->failed = true;
    buf_add(out, part->data, part->len);
}

/* "name":[fragment] */
static inline void api_put_fragment(struct buf *out, const char *name, const struct buf *fragment) {
    buf_addf(out, "\"%s\":[", name);
    api_put_part(out, fragment);
    buf_putc(out, ']');
}

#endif
