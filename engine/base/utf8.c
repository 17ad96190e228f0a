/* utf8.c - see utf8.h. NFC comes from utf8proc, whose version is the machine's. The canonical order of marks is sorted
 * here, because utf8proc orders a run of marks by swapping neighbours, which is quadratic in the length of a hostile
 * run. */
#include "utf8.h"
#include "unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

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

size_t utf8_whole(const char *text, size_t n) {
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

bool utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool utf8_is_word(uint32_t c) {
    static const char names[] = "LuLlLtLmLoMnMcMeNdNlPc";
    uint32_t category = unicode_category(c);
    for (size_t i = 0; i < sizeof names - 1; i += 2)
        if (category == ((uint32_t)names[i] << 8 | (uint32_t)names[i + 1])) return true;
    /* the joiners, and the letters in circles and squares, which are symbols by category but Alphabetic */
    return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

/* Stable by construction: the position is part of the key. */
static int nfc_by_class(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts each run of marks (combining class not 0) of c[0..n) by class; keys has room for n. */
static void nfc_order(int32_t *c, size_t n, uint64_t *keys) {
    for (size_t i = 0; i < n;) {
        size_t m = 0;
        bool sorted = true;
        for (; i + m < n; m++) {
            uint64_t class = (uint64_t)utf8proc_get_property(c[i + m])->combining_class;
            if (!class) break;
            /* class in the top 8 bits, place in the run in the middle 32, the character in the low 24 */
            keys[m] = class << 56 | (uint64_t)(uint32_t)m << 24 | (uint64_t)(uint32_t)c[i + m];
            if (m && keys[m] < keys[m - 1]) sorted = false;
        }
        if (!sorted) {
            qsort(keys, m, sizeof *keys, nfc_by_class);
            for (size_t k = 0; k < m; k++) c[i + k] = (int32_t)(keys[k] & 0xffffff);
        }
        i += m + 1;
    }
}

bool utf8_nfc(const char *text, size_t len, char **out, size_t *n_out) {
    /* The longest canonical decomposition of a character of b bytes has at most 2 b scalars (4 from 3 bytes at most).
     */
    size_t cap = len * 2 + 8, n = 0;
    int32_t *c = cap <= SIZE_MAX / 8 ? malloc(cap * sizeof *c) : NULL;
    uint64_t *keys = c ? malloc(cap * sizeof *keys) : NULL;
    char *bytes = keys ? malloc(cap * 4 + 1) : NULL;
    bool done = false;
    if (!bytes) goto end;
    for (size_t i = 0, step; i < len; i += step) {
        int bound = 0;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((int32_t)utf8_decode(text + i, &step), c + n, (utf8proc_ssize_t)(cap - n),
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
        if (got < 0 || (size_t)got > cap - n) goto end;
        n += (size_t)got;
    }
    assert(n <= cap);
    nfc_order(c, n, keys);
    size_t w = 0;
    for (size_t i = 0, past; i < n; i = past) { /* up to the next U+11A7: utf8proc takes it for a final consonant */
        for (past = i + 1; past < n && c[past] != 0x11a7; past++) continue;
        utf8proc_ssize_t got =
            utf8proc_normalize_utf32(c + i, (utf8proc_ssize_t)(past - i), UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (got < 0) goto end;
        for (size_t k = i; k < i + (size_t)got; k++) w += utf8_encode((uint32_t)c[k], bytes + w);
    }
    assert(w <= cap * 4);
    bytes[w] = 0;
    *out = bytes;
    *n_out = w;
    done = true;
end:
    if (!done) free(bytes);
    free(keys);
    free(c);
    return done;
}
