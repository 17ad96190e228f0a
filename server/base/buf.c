/* buf.c - see buf.h. */
#include "buf.h"

#include "engine/base/utf8.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void buf_fini(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b) { b->len = 0; }

/* Memory for len more bytes and the NUL that buf_take adds. */
static bool buf_reserve(struct buf *b, size_t len) {
    if (b->failed) return false;
    if (b->cap - b->len > len) return true;
    size_t cap = b->cap ? b->cap : 128;
    while (cap - b->len <= len) {
        if (cap > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *grown = realloc(b->data, cap);
    if (!grown) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *bytes, size_t len) {
    if (!len || !buf_reserve(b, len)) return;
    assert(b->len + len < b->cap);
    memcpy(b->data + b->len, bytes, len);
    b->len += len;
}

void buf_puts(struct buf *b, const char *text) { buf_add(b, text, strlen(text)); }

void buf_putc(struct buf *b, char c) { buf_add(b, &c, 1); }

void buf_addf(struct buf *b, const char *format, ...) {
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        buf_add(b, small, (size_t)n);
    } else if (buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

static int add_json(const char *bytes, size_t len, void *b) {
    buf_add(b, bytes, len);
    return 0;
}

void buf_pack(struct buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    json_t *value = json_vpack_ex(NULL, 0, format, args);
    va_end(args);
    if (!value || json_dump_callback(value, add_json, b, JSON_COMPACT)) b->failed = true;
    json_decref(value);
}

void buf_int(struct buf *b, int64_t value) {
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (value < 0) digits[--at] = '-';
    buf_add(b, digits + at, sizeof digits - at);
}

static void buf_add_escaped(struct buf *b, const char *text, size_t len) {
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        buf_add(b, text + from, i - from);
        from = i + 1;
        switch (c) {
        case '"': buf_add(b, "\\\"", 2); break;
        case '\\': buf_add(b, "\\\\", 2); break;
        case '\n': buf_add(b, "\\n", 2); break;
        case '\r': buf_add(b, "\\r", 2); break;
        case '\t': buf_add(b, "\\t", 2); break;
        default: buf_addf(b, "\\u%04x", c); break;
        }
    }
    buf_add(b, text + from, len - from);
}

void buf_json(struct buf *b, const char *text, size_t len) {
    if (!buf_reserve(b, len + 2)) return;
    buf_putc(b, '"');
    buf_add_escaped(b, text, len);
    buf_putc(b, '"');
}

size_t buf_utf8(const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    const uint32_t len = utf8_lead_len(*p);
    if (!len || len > n) return 0;
    for (uint32_t i = 1; i < len; i++)
        if (!utf8_may_follow(p, i, p[i])) return 0;
    return len;
}

/* What a terminal or a viewer of logs obeys instead of showing it: escape sequences and their short forms from U+0080
 * on, ends of lines beyond ASCII, orders to write from right to left, and all that has no width. */
static bool is_invisible(utf8proc_int32_t code) {
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return utf8proc_get_property(code)->ignorable;
    }
}

static void buf_add_code(struct buf *b, uint32_t code) {
    if (code < 0x10000) {
        buf_addf(b, "\\u%04x", code);
    } else {
        buf_addf(b, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    }
}

/* quoted: as part of a JSON string. */
static void buf_add_seen(struct buf *b, const char *bytes, size_t len, bool quoted) {
    for (size_t i = 0, n; i < len; i += n) {
        utf8proc_int32_t code = -1;
        n = buf_utf8(bytes + i, len - i);
        if (n > 1) utf8proc_iterate((const utf8proc_uint8_t *)bytes + i, (utf8proc_ssize_t)n, &code);
        if (!n) {
            buf_puts(b, "\xef\xbf\xbd");
            for (n = 1; i + n < len && ((unsigned char)bytes[i + n] & 0xc0) == 0x80;) n++;
        } else if (n > 1 && is_invisible(code)) {
            buf_add_code(b, (uint32_t)code);
        } else if (quoted || (n == 1 && bytes[i] != '"' && bytes[i] != '\\')) {
            buf_add_escaped(b, bytes + i, n);
        } else {
            buf_add(b, bytes + i, n);
        }
    }
}

void buf_json_any(struct buf *b, const char *bytes, size_t len) {
    buf_putc(b, '"');
    buf_add_seen(b, bytes, len, true);
    buf_putc(b, '"');
}

void buf_seen(struct buf *b, const char *bytes, size_t len) { buf_add_seen(b, bytes, len, false); }

void buf_logprob(struct buf *b, float value) {
    if (value > -1e30f) {
        buf_addf(b, "%.9g", (double)value);
    } else {
        buf_puts(b, "-1e30"); /* JSON has no infinity */
    }
}

char *buf_take(struct buf *b, size_t *len) {
    if (!buf_reserve(b, 0)) {
        buf_fini(b);
        return NULL;
    }
    assert(!b->failed && b->len < b->cap);
    b->data[b->len] = 0;
    char *data = b->data;
    if (len) *len = b->len;
    *b = (struct buf){0};
    return data;
}
