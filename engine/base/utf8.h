/* utf8.h - UTF-8: checks, and characters to bytes and back.
 *
 * Pure functions of their arguments, any thread. Invariant: "text" below is valid UTF-8 unless said otherwise;
 * utf8_check is what makes it so.
 */
#ifndef UTF8_H
#define UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The offset of the first byte of the first broken sequence, as Python's decoder counts it; len when all is valid. */
size_t utf8_check(const char *bytes, size_t len);
bool utf8_is_ascii(const char *bytes, size_t len);

/* Bytes that a sequence beginning with this byte has: 1..4; 0 when no sequence begins so. */
uint32_t utf8_lead_len(unsigned char lead);
/* May this byte follow the first n (1..3) bytes of an unfinished valid sequence? */
bool utf8_may_follow(const unsigned char *seq, uint32_t n, unsigned char next);

/* Makes a text that ends with a zero valid, in place, in so many bytes: a character that was cut vanishes, other broken
 * bytes become U+FFFD. For messages, which are cut to the room that they have. */
void utf8_mend(char *text, size_t room);
/* How many of a text's first n bytes do not end inside a character. */
size_t utf8_complete(const char *text, size_t n);

/* The character at text, its length in *n_bytes. */
uint32_t utf8_decode(const char *text, size_t *n_bytes);
/* Writes a scalar value as 1..4 bytes; returns how many. */
size_t utf8_encode(uint32_t c, char out[4]);

#endif
