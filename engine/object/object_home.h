/* object_home.h - an object store as a home of states (state_home.h): fenced, each file an object.
 *
 * Names are keys below the store's prefix. A version's inode is a hash of the ETag, its time the store's.
 * Ownership: the store is the caller's and outlives the home and what was opened in it. Threads: any.
 */
#ifndef OBJECT_HOME_H
#define OBJECT_HOME_H

#include "object_store.h"

#include "engine/state/state_home.h"

struct state_home object_home(struct object_store *store);

#endif
