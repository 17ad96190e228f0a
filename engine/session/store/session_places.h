/* session_places.h - the earlier turns of a session that it can go back to: which of them are kept.
 *
 * They thin out by powers of two: of more than the session may keep that one goes whose distance from the end is the
 * most for the largest power of two that divides its turn's number. So the last turns are there, further back every
 * second, fourth, eighth ..., and the beginning.
 *
 * Pure. Invariants: places stand in order, of versions and of turns below the session's own; a session that keeps none
 * has none, and counts no turns.
 */
#ifndef SESSION_PLACES_H
#define SESSION_PLACES_H

#include "session_metadata.h"

#include <stddef.h>

/* The session keeps at most so many from now on; 0 = none. */
void session_places_keep(struct session_metadata *metadata, uint32_t most);
/* A turn makes the next version; the one before becomes a place where it can be kept. */
void session_places_end_turn(struct session_metadata *metadata, bool kept);
/* The place that goes first: the last turn's when there is no other. There is one. */
size_t session_places_victim(const struct session_metadata *metadata);
void session_places_drop(struct session_metadata *metadata, size_t at);
/* A place of this version; n_kept where there is none. */
size_t session_places_find(const struct session_metadata *metadata, uint64_t version);
/* The place of this turn, of this version, or the nearest one, the earlier of two; n_kept where there is none at all.
 */
size_t session_places_nearest(const struct session_metadata *metadata, bool by_turn, uint64_t value);
/* Back to a place, which is the next version: it and later places go. */
void session_places_go_back(struct session_metadata *metadata, size_t at);
/* They all go. */
void session_places_forget(struct session_metadata *metadata);
/* The list is one that a session can have. */
bool session_places_ok(const struct session_metadata *metadata);

#endif
