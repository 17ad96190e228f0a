/* unicode_text.c - spaces and NFC. NFC comes from utf8proc, whose version is the machine's. The canonical
 * order of marks is sorted here, because utf8proc orders a run of marks by swapping neighbours, which is quadratic in
 * the length of a hostile run. */
#include "unicode.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool unicode_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
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

bool unicode_nfc(const char *text, size_t len, char **out, size_t *n_out) {
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
