/* json_guard.c - see json_guard.h. */
#include "json_guard.h"

#include <assert.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The only variables beside main.c's: jansson calls its allocation functions without an argument of the caller. One
 * pair a thread: open_guard is set while a guard is open, wipes while a text with secrets is read. */
static _Thread_local struct json_guard *open_guard;
static _Thread_local bool wipes;

/* The text of a token grows by doubling, from 16 bytes, and jansson must not fail at that. Most else that it asks for
 * is no power of two, and may fail: that ends the reading soon, so the memory lasts. */
void *json_guard_take(size_t n_bytes) {
    struct json_guard *guard = open_guard;
    if (!guard) return NULL;
    guard->was_short = true;
    assert(guard->n_used <= guard->n_bytes);
    const bool is_text = n_bytes >= 32 && !(n_bytes & (n_bytes - 1));
    if (!is_text || guard->n_bytes - guard->n_used < n_bytes) return NULL;
    void *p = guard->bytes + guard->n_used;
    guard->n_used += n_bytes;
    return p;
}

void json_guard_give(void *p) {
    const struct json_guard *guard = open_guard;
    const uintptr_t at = (uintptr_t)p;
    if (guard && at >= (uintptr_t)guard->bytes && at < (uintptr_t)guard->bytes + guard->n_bytes) return;
    if (wipes && p) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

static void *json_guard_allocate(size_t n_bytes) {
    void *p = malloc(n_bytes);
    return p ? p : json_guard_take(n_bytes);
}

void json_guard_wipe(bool wipe) { wipes = wipe; }

void json_guard_install(void) { json_set_alloc_funcs(json_guard_allocate, json_guard_give); }

/* The buffer of a token's text ends below 2 (len + 2) bytes, and those before it are as long together: 4 (len + 2).
 * What else may be a power of two: a string of 29 bytes or more takes as much again for its value, 32 for its node and
 * its part of a table; 8 bytes to each of the text are enough. Nothing of it is touched before it is needed. */
int json_guard_open(struct json_guard *guard, size_t text_bytes) {
    *guard = (struct json_guard){0};
    if (text_bytes > SIZE_MAX / 32) return -1;
    guard->n_bytes = 12 * text_bytes + 4096;
    guard->bytes = malloc(guard->n_bytes);
    if (!guard->bytes) return -1;
    open_guard = guard;
    return 0;
}

void json_guard_close(struct json_guard *guard) {
    if (!guard->bytes) return;
    assert(guard->n_used <= guard->n_bytes);
    open_guard = NULL;
    if (wipes) explicit_bzero(guard->bytes, guard->n_used);
    free(guard->bytes);
    guard->bytes = NULL;
}

json_t *json_guard_fail(json_t *root, json_error_t *fault) {
    json_decref(root);
    *fault = (json_error_t){.line = -1, .column = -1};
    snprintf(fault->text, sizeof fault->text, "out of memory");
    fault->text[sizeof fault->text - 1] = (char)json_error_out_of_memory;
    return NULL;
}

json_t *json_guard_load(const char *text, size_t len, size_t flags, json_error_t *fault) {
    struct json_guard guard;
    if (json_guard_open(&guard, len)) return json_guard_fail(NULL, fault);
    json_t *root = json_loadb(text, len, flags, fault);
    if (guard.was_short) root = json_guard_fail(root, fault);
    json_guard_close(&guard);
    return root;
}
