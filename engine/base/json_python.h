/* json_python.h - the JSON of a checkpoint's files as the program that wrote them reads it: Python's json module.
 *
 * jansson refuses what Python writes and reads: integers beyond 64 bits, numbers beyond a double, NaN and Infinity, a
 * surrogate alone, NUL in a key. Here they are values, so that a key that nobody reads ends no start, and the reader of
 * a key that is read can name it. What they become:
 *   an integer beyond 64 bits      the nearest real
 *   Infinity, -Infinity, NaN       a real that no range of a reader holds; json_python_number says which
 *   a number beyond a double       Infinity or -Infinity, as in Python
 *   a surrogate alone              its three bytes in a string or key, which are no UTF-8
 *   NUL                            itself, in a string or key: take lengths, or json_python_text
 * Everything else is as jansson reads it, with JSON_ALLOW_NUL; a NUL byte outside a string is refused.
 *
 * Ownership: the caller's. Threads: any; pure.
 */
#ifndef JSON_PYTHON_H
#define JSON_PYTHON_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>

/* flags: JSON_REJECT_DUPLICATES, JSON_DECODE_INT_AS_REAL, JSON_DECODE_ANY. On failure NULL: the fault's line and
 * position are those of the text; without memory json_guard_was_short is true of it. */
json_t *json_python_load(const char *text, size_t len, size_t flags, json_error_t *fault);

/* The string that a reader may compare, print and cut: NULL where it is none, has a NUL or is not UTF-8. */
const char *json_python_text(const json_t *value);
/* The bytes of a string or key as a C string that a terminal may have: control characters, NUL and surrogates alone as
 * \uXXXX, and a backslash as two where no two strings may look the same. Writes n_dst bytes at most, the last piece
 * complete or not there, and returns how long all of it is, like snprintf. */
size_t json_python_spell(const char *bytes, size_t n, bool distinct, char *dst, size_t n_dst);
/* For readers that keep strings of root: takes root over, and what is spelled out dies with it. NULL: no memory. */
json_t *json_python_keeper(json_t *root);
/* The bytes themselves, or spelled out and distinct, as no reader looks for them. NULL: no memory. */
const char *json_python_keep(json_t *keeper, const char *bytes, size_t n);
/* "Infinity", "-Infinity", "NaN"; NULL: an ordinary value. */
const char *json_python_number(const json_t *value);

#endif
