/* session_names.h - under which name a session's file lies in the folder.
 *
 * The name is a hash of tenant and id under a key that lies in the folder itself, `names.key`: made once, by whichever
 * server comes first, and read by all. Without the key nobody can choose ids whose files would have one name. Earlier
 * versions took a hash without a key; a file of theirs keeps its name as long as it lives, for all servers:
 *
 *   a session's file is the one under the key's name; where there is none, the one under the earlier name; where there
 *   is neither, it will be made under the key's name.
 *
 * So whoever holds the lease of an earlier name looks again, as the file may have gone meanwhile. Who owns what:
 * nothing is kept but the key. Threads: any.
 */
#ifndef SESSION_NAMES_H
#define SESSION_NAMES_H

#include "session_table.h"

#include <pthread.h>

struct session_store;

struct session_names {
    pthread_mutex_t lock;
    bool known;
    uint64_t inode, mtime_ns; /* of the key's file as it was read */
    uint8_t key[SIPHASH_KEY_BYTES];
};
void session_names_init(struct session_names *names);
void session_names_fini(struct session_names *names);
/* The folder's key, made where there is none and no file was named with one. ROD_ESTATE: it is damaged, or cannot be
 * read, or a file was named with one that is not there; ROD_EIO: it cannot be made now, and will be when a session asks
 * for its name. Once it is known: session_names_keep. */
int session_names_open(struct session_names *names, const char *dir, struct rod_error *err);
/* Where the key is known: 0: the folder has it. One that has gone is put back: *restored. ROD_EIO: the folder has
 * another, or it cannot be read or put back. Where it is not known: 0. */
int session_names_keep(struct session_names *names, const char *dir, bool *restored, struct rod_error *err);

void session_names_name(struct session_names *names, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES]); /* zeros while no key is known */
void session_names_earlier(const char *tenant, const char *id, uint8_t name[SESSION_NAME_BYTES]);
/* Whether a file of this name may be that session's. */
bool session_names_fit(struct session_names *names, const char *tenant, const char *id,
                       const uint8_t name[SESSION_NAME_BYTES]);

/* A file of this name is its session's by the earlier name, and there is one by the key: that one counts. */
bool session_names_superseded(const struct session_store *store, const char *tenant, const char *id,
                              const uint8_t name[SESSION_NAME_BYTES]);

/* The name of its file, there or to be made. ROD_EIO. */
int session_names_find(const struct session_store *store, const char *tenant, const char *id,
                       uint8_t name[SESSION_NAME_BYTES], struct rod_error *err);

#endif
