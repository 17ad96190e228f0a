/* session_refusals.c - see session_refusals.h. Open addressing; half of the slots stay empty. */
#include "session_refusals.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 64 };

void session_refusals_init(struct session_refusals *r, const uint8_t key[SIPHASH_KEY_BYTES]) {
    *r = (struct session_refusals){0};
    memcpy(r->key, key, sizeof r->key);
}

void session_refusals_fini(struct session_refusals *r) {
    free(r->slots);
    r->slots = NULL;
    r->n = r->cap = 0;
}

/* Its slot, or the empty slot where it would stand. There is room. */
static struct session_refusal *refusals_slot(const struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES]) {
    uint8_t digest[SIPHASH_BYTES];
    size_t at;
    assert(r->n < r->cap); /* an empty slot ends the search */
    siphash(r->key, name, SESSION_NAME_BYTES, digest);
    memcpy(&at, digest, sizeof at);
    for (at &= r->cap - 1; r->slots[at].taken && memcmp(r->slots[at].name, name, SESSION_NAME_BYTES) != 0;)
        at = (at + 1) & (r->cap - 1);
    return &r->slots[at];
}

/* Keeps the files met by a scan from `scan` on, in so many slots. */
static bool refusals_rehash(struct session_refusals *r, size_t cap, uint64_t scan) {
    const struct session_refusals old = *r;
    struct session_refusal *slots = calloc(cap, sizeof *slots);
    if (!slots) return false;
    r->slots = slots;
    r->cap = cap;
    r->n = 0;
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.slots[i].taken || old.slots[i].scan < scan) continue;
        *refusals_slot(r, old.slots[i].name) = old.slots[i];
        r->n++;
    }
    free(old.slots);
    return true;
}

bool session_refusals_know(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *file_version, uint64_t scan) {
    struct session_refusal *at = r->n ? refusals_slot(r, name) : NULL;
    if (!at || !at->taken) return false;
    at->scan = scan;
    return session_file_version_alike(&at->file_version, file_version);
}

bool session_refusals_add(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                          const struct session_file_version *file_version, uint64_t scan) {
    if (session_refusals_know(r, name, file_version, scan)) return false;
    if (2 * r->n >= r->cap && !refusals_rehash(r, r->cap ? 2 * r->cap : FIRST_CAP, 0)) return true;
    struct session_refusal *at = refusals_slot(r, name);
    r->n += !at->taken;
    *at = (struct session_refusal){.file_version = *file_version, .taken = true, .scan = scan};
    memcpy(at->name, name, sizeof at->name);
    return true;
}

void session_refusals_keep(struct session_refusals *r, uint64_t scan) {
    size_t n = 0;
    for (size_t i = 0; i < r->cap; i++) n += r->slots[i].taken && r->slots[i].scan < scan;
    if (n) refusals_rehash(r, r->cap, scan);
}
