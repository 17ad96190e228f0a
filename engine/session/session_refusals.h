/* session_refusals.h - the files of the folder that were refused: each is read, counted and logged once.
 *
 * Ownership: the set is the caller's, its memory its own. Threads: the caller's lock. Pure.
 */
#ifndef SESSION_REFUSALS_H
#define SESSION_REFUSALS_H

#include "engine/base/siphash.h"
#include "engine/session/store/session_metadata.h"

struct session_refusal {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_file_version file_version;
    bool taken;
    uint64_t scan; /* the last one that met it */
};

struct session_refusals {
    uint8_t key[SIPHASH_KEY_BYTES]; /* of the hash */
    struct session_refusal *slots;  /* [cap], a power of two */
    size_t n, cap;
};
void session_refusals_init(struct session_refusals *r, const uint8_t key[SIPHASH_KEY_BYTES]);
void session_refusals_fini(struct session_refusals *r);

/* Whether this version was refused; then this scan has met it. */
bool session_refusals_know(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *file_version, uint64_t scan);
/* True: this version is new. Without memory it is new every time. */
bool session_refusals_add(struct session_refusals *r, const uint8_t name[SESSION_NAME_BYTES],
                          const struct session_file_version *file_version, uint64_t scan);
/* Forgets the files that no scan from this one on has met. */
void session_refusals_keep(struct session_refusals *r, uint64_t scan);

#endif
