/* text.c - detokeniser and stop strings in a row. */
#include "text.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FLUSH_BYTES = 16 }; /* more than detok_flush appends */

size_t text_max_token_bytes(const struct tokenizer *tokenizer) {
    size_t max = 0;
    for (uint32_t id = 0; tokenizer && id < tokenizer_n_ids(tokenizer); id++) {
        size_t len = 0;
        bool special;
        if (tokenizer_bytes(tokenizer, (int32_t)id, &len, &special) && len > max) max = len;
    }
    return max;
}

/* A broken byte becomes three, and detok_push wants 16 more. */
static size_t text_push_bytes(size_t max_token_bytes) { return max_token_bytes * 3 + 16; }

size_t text_cap(const struct text *t, size_t max_token_bytes) {
    return stops_max_len(&t->stops) + text_push_bytes(max_token_bytes) + FLUSH_BYTES;
}

int text_init(struct text *t, const struct tokenizer *tokenizer, size_t max_token_bytes,
              const struct rod_request *request, struct rod_error *err) {
    *t = (struct text){
        .tokenizer = tokenizer, .skip_special = !request->keep_special, .include_stop = request->include_stop};
    if (!tokenizer) return 0;
    int rc = stops_init(&t->stops, request->stop, request->n_stop, err);
    if (rc) return rc;
    t->cap = text_cap(t, max_token_bytes);
    t->buf = malloc(t->cap);
    if (t->buf) return 0;
    stops_fini(&t->stops);
    return rod_fail_no_memory(err);
}

void text_fini(struct text *t) {
    stops_fini(&t->stops);
    free(t->buf);
    t->buf = NULL;
}

/* Drops what the last call released; what was held moves to the front. */
static void text_drop_released(struct text *t) {
    assert(t->n_out <= t->n_buf);
    if (t->n_out == 0) return;
    memmove(t->buf, t->buf + t->n_out, t->n_buf - t->n_out);
    t->n_buf -= t->n_out;
    t->n_out = 0;
}

static int text_scan_new(struct text *t, size_t n_new, bool scan) {
    size_t n_before = t->n_buf, n_read = n_new, n_held = 0;
    t->n_buf += n_new;
    assert(t->n_buf <= t->cap);
    int match = scan ? stops_scan(&t->stops, t->buf + n_before, n_new, &n_read, &n_held) : -1;
    if (!scan) stops_reset(&t->stops);
    if (match >= 0) {
        size_t end = n_before + n_read;
        assert(end <= t->n_buf && end >= t->stops.strings[match].len);
        t->n_buf = t->n_out = t->include_stop ? end : end - t->stops.strings[match].len;
    } else {
        assert(n_held <= t->n_buf);
        t->n_out = t->n_buf - n_held;
    }
    return match;
}

int text_push(struct text *t, int32_t id, bool skip_special, bool scan) {
    if (!t->tokenizer) return -1;
    text_drop_released(t);
    size_t n_new = 0;
    if ((uint32_t)id < tokenizer_n_ids(t->tokenizer)) /* a padded vocabulary has rows without a token */
        n_new = detok_push(&t->detok, t->tokenizer, id, skip_special, t->buf + t->n_buf);
    return text_scan_new(t, n_new, scan);
}

int text_flush(struct text *t, bool scan, bool drop_part) {
    if (!t->tokenizer) return -1;
    text_drop_released(t);
    if (drop_part) t->detok = (struct detok){0};
    int match = text_scan_new(t, detok_flush(&t->detok, t->buf + t->n_buf), scan);
    if (match < 0) t->n_out = t->n_buf; /* no more text comes that could complete a stop string */
    return match;
}
