/* utf8.c - see utf8.h; what Unicode says of characters is in engine/text/unicode_text.c. */
#include "utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool utf8_is_ascii(const char *bytes, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t w;
        memcpy(&w, bytes + i, 8);
        if (w & UINT64_C(0x8080808080808080)) return false;
    }
    for (; i < len; i++)
        if ((unsigned char)bytes[i] >= 0x80) return false;
    return true;
}

uint32_t utf8_lead_len(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf5 ? 4 : 0;
}

bool utf8_may_follow(const unsigned char *seq, uint32_t n, unsigned char next) {
    assert(n >= 1 && n < 4);
    if ((next & 0xc0) != 0x80) return false;
    if (n > 1) return true;
    switch (seq[0]) { /* second bytes: no overlong forms, no surrogates, nothing past U+10FFFF */
    case 0xe0: return next >= 0xa0;
    case 0xed: return next < 0xa0;
    case 0xf0: return next >= 0x90;
    case 0xf4: return next < 0x90;
    default: return true;
    }
}

size_t utf8_check(const char *bytes, size_t len) {
    const unsigned char *p = (const unsigned char *)bytes;
    size_t i = 0;
    while (i < len) {
        if (p[i] < 0x80) {
            uint64_t w;
            if (i + 8 <= len && (memcpy(&w, p + i, 8), !(w & UINT64_C(0x8080808080808080))))
                i += 8;
            else
                i++;
            continue;
        }
        uint32_t n = utf8_lead_len(p[i]);
        if (!n || n > len - i) return i;
        for (uint32_t k = 1; k < n; k++)
            if (!utf8_may_follow(p + i, k, p[i + k])) return i;
        i += n;
    }
    return len;
}

void utf8_mend(char *text, size_t room) {
    static const char replacement[] = "\xef\xbf\xbd";
    unsigned char *p = (unsigned char *)text;
    size_t len = strlen(text), i = utf8_check(text, len);
    assert(len < room);
    while (i < len) {
        const uint32_t want = utf8_lead_len(p[i]);
        size_t n = 1, put = want ? 0 : 3;                                              /* of n broken bytes */
        while (want && n < want && utf8_may_follow(p + i, (uint32_t)n, p[i + n])) n++; /* not the zero at the end */
        while (!want && (p[i + n] & 0xc0) == 0x80) n++;
        if (n == want) {
            i += n;
            continue;
        }
        if (i + put >= room) put = 0, n = len - i;
        size_t rest = len - i - n;
        if (rest >= room - i - put) rest = room - i - put - 1;
        memmove(p + i + put, p + i + n, rest);
        memcpy(p + i, replacement, put);
        i += put;
        len = i + rest;
        p[len] = 0;
    }
}

size_t utf8_complete(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    for (uint32_t back = 1; back < 4 && back <= n; back++) {
        const uint32_t want = utf8_lead_len(p[n - back]);
        if (want > back) return n - back;
        if (want) break;
    }
    return n;
}

uint32_t utf8_decode(const char *text, size_t *n_bytes) {
    const unsigned char *p = (const unsigned char *)text;
    uint32_t n = utf8_lead_len(p[0]);
    *n_bytes = n ? n : 1;
    switch (n) {
    case 2: return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    case 3: return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    case 4:
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 |
               (p[3] & 0x3f);
    default: return p[0];
    }
}

size_t utf8_encode(uint32_t c, char out[4]) {
    assert(c <= 0x10ffff);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
