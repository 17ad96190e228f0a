/* session_refusals.c - see session_refusals.h. Open addressing; half of the places stay empty. */
#include "session_refusals.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

void session_refusals_init(struct session_refusals *r, const uint8_t key[SIPHASH_KEY_BYTES]) {
    *r = (struct session_refusals){0};
    memcpy(r->key, key, sizeof r->key);
}

void session_refusals_fini(struct session_refusals *r) {
    free(r->places);
    r->places = NULL;
    r->n = r->room = 0;
}

/* Its place, or the empty one where it would stand. There is room. */
static struct session_refusal *place_of(const struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES]) {
    uint8_t digest[SIPHASH_BYTES];
    size_t at;
    siphash(r->key, name, SESSION_NAME_BYTES, digest);
    memcpy(&at, digest, sizeof at);
    for (at &= r->room - 1; r->places[at].taken && memcmp(r->places[at].name, name, SESSION_NAME_BYTES) != 0;)
        at = (at + 1) & (r->room - 1);
    return &r->places[at];
}

/* Those of a scan from `scan` on, in so many places. */
static bool move(struct session_refusals *r, size_t room, uint64_t scan) {
    const struct session_refusals old = *r;
    struct session_refusal *places = calloc(room, sizeof *places);
    if (!places) return false;
    r->places = places;
    r->room = room;
    r->n = 0;
    for (size_t i = 0; i < old.room; i++) {
        if (!old.places[i].taken || old.places[i].scan < scan) continue;
        *place_of(r, old.places[i].name) = old.places[i];
        r->n++;
    }
    free(old.places);
    return true;
}

bool session_refusals_know(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *file_version, uint64_t scan) {
    struct session_refusal *at = r->n ? place_of(r, name) : NULL;
    if (!at || !at->taken) return false;
    at->scan = scan;
    return session_file_version_alike(&at->file_version, file_version);
}

bool session_refusals_add(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                          const struct session_file_version *file_version, uint64_t scan) {
    if (session_refusals_know(r, name, file_version, scan)) return false;
    if (2 * r->n >= r->room && !move(r, r->room ? 2 * r->room : FIRST_ROOM, 0)) return true;
    struct session_refusal *at = place_of(r, name);
    r->n += !at->taken;
    *at = (struct session_refusal){.file_version = *file_version, .taken = true, .scan = scan};
    memcpy(at->name, name, sizeof at->name);
    return true;
}

void session_refusals_keep(struct session_refusals *r, uint64_t scan) {
    size_t n = 0;
    for (size_t i = 0; i < r->room; i++) n += r->places[i].taken && r->places[i].scan < scan;
    if (n) move(r, r->room, scan);
}
