/* responses_custom.c - the text of a custom tool's call, while it comes; see responses_parts.h. */
#include "responses_parts.h"

#include <string.h>

/* The first byte of the string's content; 0: it has not come yet. */
static size_t begin_of(const char *text, size_t len) {
    const char *colon = len ? memchr(text, ':', len) : NULL;
    const char *quote = colon ? memchr(colon, '"', len - (size_t)(colon - text)) : NULL;
    return quote ? (size_t)(quote - text) + 1 : 0;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The number of "\\uXXXX" at text, -1 without one. */
static int32_t unit_at(const char *text, size_t len) {
    int32_t unit = 0;
    if (len < 6 || text[0] != '\\' || text[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const int digit = hex_digit(text[i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static void put_code(struct buf *out, int32_t code) {
    if (code < 0x80) {
        buf_putc(out, (char)code);
        return;
    }
    if (code < 0x800) {
        buf_putc(out, (char)(0xc0 | code >> 6));
    } else {
        if (code < 0x10000) {
            buf_putc(out, (char)(0xe0 | code >> 12));
        } else {
            buf_putc(out, (char)(0xf0 | code >> 18));
            buf_putc(out, (char)(0x80 | (code >> 12 & 0x3f)));
        }
        buf_putc(out, (char)(0x80 | (code >> 6 & 0x3f)));
    }
    buf_putc(out, (char)(0x80 | (code & 0x3f)));
}

/* One half of a pair of surrogates is no character. Returns the bytes read; 0: more have to come. */
static size_t put_unit(struct buf *out, const char *text, size_t len) {
    enum { REPLACEMENT = 0xfffd };
    const int32_t high = unit_at(text, len);
    if (len < 6) return 0;
    if (high < 0xd800 || high > 0xdfff) {
        put_code(out, high < 0 ? REPLACEMENT : high);
        return 6;
    }
    if (len < 12 && high < 0xdc00) return 0;
    const int32_t low = unit_at(text + 6, len - 6);
    const bool pair = high < 0xdc00 && low >= 0xdc00 && low <= 0xdfff;
    put_code(out, pair ? 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00) : REPLACEMENT);
    return pair ? 12 : 6;
}

/* What stands behind a backslash. */
static size_t put_escape(struct buf *out, const char *text, size_t len) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    if (len < 2) return 0;
    if (text[1] == 'u') return put_unit(out, text, len);
    const char *known = memchr(from, text[1], sizeof from - 1);
    buf_putc(out, known ? to[known - from] : text[1]);
    return 2;
}

size_t responses_custom_input(const char *text, size_t len, size_t from, struct buf *out) {
    size_t at = from ? from : begin_of(text, len);
    if (!at) return 0;
    while (at < len && text[at] != '"') {
        size_t n = 1;
        if (text[at] == '\\')
            n = put_escape(out, text + at, len - at);
        else
            buf_putc(out, text[at]);
        if (!n) break;
        at += n;
    }
    return at;
}
