/* session_locate.h - under which name a session's file lies in the folder, or will lie.
 *
 *   The file of a session is the one under the key's name (session_names.h); where there is none, the one under the
 *   earlier name; where there is neither, the file will be made under the key's name.
 *
 * The holder of the lease of an earlier name therefore looks again, as the file may have gone meanwhile.
 * Ownership: nothing is kept. Threads: any.
 */
#ifndef SESSION_LOCATE_H
#define SESSION_LOCATE_H

#include "session_store.h"

/* Finds the folder's key, or makes one where there is none and no file was named with one. ROD_ESTATE: the key is
 * damaged, unreadable, or missing where a file was named with it; ROD_EIO: the key cannot be made now; a later search
 * for a name tries again. */
int session_locate_key(struct session_names *names, const struct state_home *home, struct rod_error *err);

/* The name of a session's file, there or to be made. ROD_EIO. */
int session_locate_name(const struct session_store *store, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES], struct rod_error *err);

/* A file of this name is its session's by the earlier name, and there is one by the key, which counts. */
bool session_locate_superseded(const struct session_store *store, const char *tenant, const char *id,
                               const uint8_t name[SESSION_NAME_BYTES]);

#endif
