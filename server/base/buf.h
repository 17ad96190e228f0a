/* buf.h - bytes that grow, and JSON's spelling of strings and numbers.
 *
 * Ownership: the buffer owns data; buf_take moves it out. Threads: one at a time. Pure. Invariant: len < cap, or both
 * are 0; when memory runs out `failed` stays set and further calls do nothing, so that a caller checks once, at the
 * end. Zeroes are an empty buffer.
 */
#ifndef BUF_H
#define BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t len, cap;
    bool failed;
};

void buf_fini(struct buf *b);
void buf_clear(struct buf *b); /* empty, the memory is kept */
void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_putc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* JSON as json_pack makes it, without blanks. What cannot be made, as of text that is no UTF-8, is `failed`. */
void buf_pack(struct buf *b, const char *format, ...);
void buf_int(struct buf *b, int64_t value);
void buf_json(struct buf *b, const char *text, size_t len); /* "text" with quotes, escaped; text is UTF-8 */
/* Quotes and escapes any bytes, for readers of logs too: bytes that are no character become U+FFFD; characters that are
 * invisible, or that change how their neighbours are shown, are escaped: control and format characters (bidi, zero
 * width, tags), ends of a line. */
void buf_json_any(struct buf *b, const char *bytes, size_t len);
void buf_seen(struct buf *b, const char *bytes, size_t len); /* likewise, without quotes; '"' and '\' as they are */
/* The length of the UTF-8 character that begins at s, of which n > 0 bytes are there; 0 if the bytes are none. */
size_t buf_utf8(const char *s, size_t n);
void buf_logprob(struct buf *b, float value); /* 9 digits; -inf is written as -1e30 */
char *buf_take(struct buf *b, size_t *len);   /* malloc'd, NUL-terminated; NULL if failed */

#endif
