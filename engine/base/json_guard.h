/* json_guard.h - a JSON text is read as it is, or the reader says that memory is short.
 *
 * Where jansson finds no memory for the text of a token it goes on without the byte (its issue 362): a string becomes
 * another string, and where the byte was the closing quote jansson writes past its buffer. So a reader opens a guard:
 * memory taken beforehand, from which jansson gets what malloc refuses. A reader that needed the guard throws its
 * result away and reports that memory is short.
 *
 * Ownership: the caller's; a value that jansson made while a guard was short is freed before the guard is closed.
 * Threads: a guard belongs to the thread that opens it; jansson on other threads is not touched.
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

/* Once, before jansson is used: it allocates through these from then on. Without it a guard does nothing. */
void json_guard_install(void);
/* What json_guard_install has jansson call in place of malloc and free. take gives memory after malloc has failed. */
void *json_guard_take(size_t n_bytes);
void json_guard_give(void *p);

/* For reading a text of so many bytes: 0, or -1 without memory. */
int json_guard_open(struct json_guard *guard, size_t text_bytes);
void json_guard_close(struct json_guard *guard);

/* Frees root, and says in *fault that memory is short. NULL. */
json_t *json_guard_fail(json_t *root, json_error_t *fault);
/* json_loadb in a guard: a failure for want of memory always has the code json_error_out_of_memory. */
json_t *json_guard_load(const char *text, size_t len, size_t flags, json_error_t *fault);
/* Whether memory that jansson frees on this thread is wiped first: the text holds secrets. */
void json_guard_wipe(bool wipe);
static inline bool json_guard_was_short(const json_error_t *fault) {
    return json_error_code(fault) == json_error_out_of_memory;
}

#endif
