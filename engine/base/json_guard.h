/* json_guard.h - a JSON text is read as it is, or memory is said to be short.
 *
 * Where jansson finds no memory for the text of a token it goes on without the byte (its issue 362): a string is
 * another one then, and where the byte was the closing quote it writes past its buffer. So a reader opens a room:
 * memory taken before, out of which comes what malloc refuses while jansson reads. A reader that needed it has its
 * result thrown away, as there is too little memory. Owner: the caller; all that jansson made while a room was open
 * that closes with `true` is freed before. Threads: a room is of the thread that opens it, which has one at a time;
 * jansson on other threads is not touched.
 */
#ifndef JSON_GUARD_H
#define JSON_GUARD_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>

struct json_guard {
    char *bytes; /* NULL = closed */
    size_t n_bytes, n_used;
    bool was_short;
};

/* Once, before jansson is used: it allocates through these from then on. Without it a room does nothing. */
void json_guard_install(void);
/* As malloc after malloc has failed, and free: what json_guard_install has jansson call. */
void *json_guard_take(size_t n_bytes);
void json_guard_give(void *p);

/* For reading a text of so many bytes: 0, or -1 without memory. */
int json_guard_open(struct json_guard *room, size_t text_bytes);
void json_guard_close(struct json_guard *room);

/* json_loadb in a room: what fails for want of memory has the code json_error_out_of_memory, always. */
json_t *json_guard_load(const char *text, size_t len, size_t flags, json_error_t *fault);
/* From now on, or no more: what jansson gives back on this thread is wiped, as the text holds secrets. */
void json_guard_wipe(bool wipe);
static inline bool json_guard_was_short(const json_error_t *fault) {
    return json_error_code(fault) == json_error_out_of_memory;
}

#endif
