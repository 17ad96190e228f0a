/* text.h - a request's tokens become text: detokenised, scanned for stop strings, held back where that is undecided.
 *
 * Ownership: a text belongs to a request; buf holds text that is not released yet. Threads: the engine thread after
 * init. Invariants: released text is valid UTF-8 in whole characters, and never the beginning of a stop string that
 * may still complete; nothing is allocated after init.
 */
#ifndef TEXT_H
#define TEXT_H

#include "stops.h"
#include "tokenizer.h"

struct text {
    const struct tokenizer *tokenizer; /* NULL: there is no text, ids only */
    struct detok detok;
    struct stops stops;
    bool skip_special, include_stop;
    char *buf;
    size_t cap;          /* of buf */
    size_t n_buf, n_out; /* buf[0..n_out) was released by the last push or flush, the rest is held */
};

/* The longest token in bytes, once a tokenizer. */
size_t text_max_token_bytes(const struct tokenizer *tokenizer);

/* max_token_bytes: of text_max_token_bytes. The request's stop strings must outlive it. */
int text_init(struct text *t, const struct tokenizer *tokenizer, size_t max_token_bytes,
              const struct rod_request *request, struct rod_error *err);
void text_fini(struct text *t);
/* Most bytes that a push or flush releases. */
size_t text_cap(const struct text *t, size_t max_token_bytes);

/* Reads one token; scan: look for stop strings, none of which spans text that was not looked at. Returns the index of
 * the stop string that it completed, or -1; then buf[0..n_out) is what may be sent. After a match nothing more may be
 * pushed. */
int text_push(struct text *t, int32_t id, bool skip_special, bool scan);
/* The end: releases held text. drop_part: a character that the end cuts is left out, not replaced by U+FFFD. */
int text_flush(struct text *t, bool scan, bool drop_part);

#endif
