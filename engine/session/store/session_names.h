/* session_names.h - the names of sessions' files, and the folder's key that they are made with.
 *
 * A name is a hash of tenant and id under a key that lies in the folder itself, `names.key`: the first server makes it,
 * all others read it. In a fenced home (state_home.h) its first half is a hash of the tenant alone. Without the key
 * nobody can choose ids whose files would have one name. Earlier versions took a hash without a key; such a file keeps
 * its name as long as it lives (session_locate.h).
 *
 * Ownership: the folder owns the key; the struct has a copy. Threads: any; functions that end in _locked want the lock.
 * Invariants: once known, the key does not change; a folder that shows another one is refused.
 */
#ifndef SESSION_NAMES_H
#define SESSION_NAMES_H

#include "session_metadata.h"
#include "engine/base/siphash.h"
#include "engine/state/state_home.h"

#include <pthread.h>

#define SESSION_NAMES_FILE "names.key"

struct session_names {
    pthread_mutex_t lock;
    bool known;
    bool halves;              /* half a name is the tenant's, so that a store lists a tenant's sessions */
    uint64_t inode, mtime_ns; /* of the key's file as it was read */
    uint8_t key[SIPHASH_KEY_BYTES];
};
void session_names_init(struct session_names *names);
void session_names_fini(struct session_names *names);

/* Reads the folder's key. ROD_ENOTFOUND: there is none; ROD_ESTATE: damaged; ROD_EIO: unreadable, or another key than
 * the known one. */
int session_names_read_key_locked(struct session_names *names, const struct state_home *home, struct rod_error *err);
/* Makes the key's file, with the known key or a new one, unless another server was faster; then reads it. */
int session_names_make_key_locked(struct session_names *names, const struct state_home *home, struct rod_error *err);
/* The key is known. 0: the folder has it. A key that has gone is put back: *restored. ROD_EIO: the folder has another
 * key, or the key cannot be read or put back. */
int session_names_keep_locked(struct session_names *names, const struct state_home *home, bool *restored,
                              struct rod_error *err);
/* session_names_keep_locked, which takes the lock; 0 where no key is known. */
int session_names_keep(struct session_names *names, const struct state_home *home, bool *restored,
                       struct rod_error *err);

/* Of a store: what its key is now. A key that has gone is put back: *restored. *other: the store has another one, or a
 * damaged one, so names are not those of its other servers. Nonzero: it does not say. Waits for the store without the
 * lock but to put the key back. */
int session_names_look(struct session_names *names, const struct state_home *home, bool *restored, bool *other,
                       struct rod_error *err);

/* Zeros while no key is known. */
void session_names_name(struct session_names *names, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES]);
/* The half that all names of a tenant's sessions have, where names have halves. */
void session_names_tenant(struct session_names *names, const char *tenant, uint8_t half[SESSION_NAME_HALF_BYTES]);
/* The name that earlier versions gave. */
void session_names_earlier(const char *tenant, const char *id, uint8_t name[SESSION_NAME_BYTES]);
/* Whether a file of this name may be that session's. */
bool session_names_fit(struct session_names *names, const char *tenant, const char *id,
                       const uint8_t name[SESSION_NAME_BYTES]);

#endif
