/* tokenizer_detok.c - ids to text, as they come. Bytes that are not UTF-8 become U+FFFD, one for each longest beginning
 * of a valid sequence (the Unicode standard's practice, and what Python's "replace" does), so that the text is the same
 * however the bytes were cut into tokens. */
#include "tokenizer_parts.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <string.h>

static size_t detok_replace(struct detok *d, char *dst) {
    d->n_held = 0;
    memcpy(dst, "\xef\xbf\xbd", 3);
    return 3;
}

size_t detok_push(struct detok *d, const struct tokenizer *t, int32_t id, bool skip_special, char *dst) {
    size_t len, n = 0;
    bool special;
    const char *bytes = tokenizer_bytes(t, id, &len, &special);
    if (!bytes || (special && skip_special)) return 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char b = (unsigned char)bytes[i];
        assert(d->n_held < sizeof d->held);
        if (d->n_held) {
            if (utf8_may_follow(d->held, d->n_held, b)) {
                d->held[d->n_held++] = b;
                if (d->n_held == utf8_lead_len(d->held[0])) {
                    memcpy(dst + n, d->held, d->n_held);
                    n += d->n_held;
                    d->n_held = 0;
                }
                continue;
            }
            n += detok_replace(d, dst + n); /* and b begins anew */
        }
        uint32_t want = utf8_lead_len(b);
        if (want == 1)
            dst[n++] = (char)b;
        else if (!want)
            n += detok_replace(d, dst + n);
        else
            d->held[d->n_held++] = b;
    }
    return n;
}

size_t detok_flush(struct detok *d, char *dst) { return d->n_held ? detok_replace(d, dst) : 0; }
