/* stops.h - finds the first stop string in a text that comes in pieces.
 *
 * One Knuth-Morris-Pratt automaton a string, so a byte costs O(1) a string whatever its shape. The match that ends
 * first wins; of several that end at one byte, the longest: the result does not depend on how the text is cut into
 * pieces. Ownership: the strings stay the caller's and outlive the automata. Threads: the owner's. Pure. Invariant:
 * text that may be the beginning of a stop string is held back until that is decided.
 */
#ifndef STOPS_H
#define STOPS_H

#include "engine/rodimus.h"

struct stops_string {
    const char *text;
    size_t len, at;
    uint32_t *fail;
}; /* at: bytes matched so far */

struct stops {
    struct stops_string *strings;
    size_t n;
};

/* strings: n non-empty NUL-terminated strings (n may be 0). */
int stops_init(struct stops *stops, char *const *strings, size_t n, struct rod_error *err);
void stops_fini(struct stops *stops);
size_t stops_max_len(const struct stops *stops);

/* Reads the bytes text[0..len) that follow all read before. Returns the index of the string matched, with *n_read the
 * bytes read up to its end; or -1 with *n_held how many of the last bytes (of earlier pieces too) must be held back. */
int stops_scan(struct stops *stops, const char *text, size_t len, size_t *n_read, size_t *n_held);

/* Text came that was not scanned: no string may span it. */
void stops_reset(struct stops *stops);

#endif
