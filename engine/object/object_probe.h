/* object_probe.h - whether a store does what commits rely on: asked of it at the start, not believed.
 *
 * Of several writers of one key one wins; a stale condition loses; a read and a list see the last write; metadata
 * stays; a version that is known is not sent again. How ETags are spelled in a condition, and whether DELETE has one,
 * is learned. Objects of the probe lie below "probe/" and are removed.
 */
#ifndef OBJECT_PROBE_H
#define OBJECT_PROBE_H

#include "object_store.h"

/* ROD_EUNSUPPORTED: says what the store did. ROD_EIO and others: it could not be asked. */
int object_probe(struct object_store *store, struct rod_error *err);

#endif
