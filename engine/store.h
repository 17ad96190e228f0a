/* store.h - an object store as engines use it (rod_store_open): a fenced home of states.
 *
 * Ownership: who opened it closes it, behind all engines. Threads: any.
 */
#ifndef STORE_H
#define STORE_H

#include "engine/state/state_home.h"

struct rod_store {
    struct state_home home; /* fenced; everything in it is below what an engine adds: version of the layout, model */
};

#endif
