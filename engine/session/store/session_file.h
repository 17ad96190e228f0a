/* session_file.h - a session as a state file: the forms of the sections "sampler" and "meta" of state_file.h.
 *
 *   sampler  for each token of the conversation, in order of id: u32 id, u32 how often it was generated
 *   meta     u8 form, 1; u8 flags: 1 pinned, 2 open, 4 tools, 8 keeps turns; i64 created, used (Unix seconds); u64
 * ttl_s; with flag 4 u64 hash of tools, not 0; with flag 8 u8 how many at most, not 0, u64 turn, u8 n, n x (u64
 * version, u64 turn); three strings, tenant, id and parent, each u8 length, bytes; the rest: the list of answers
 * (session_answer.h)
 *
 * Numbers little-endian. Ownership: what is read is new and the caller's; nothing given is kept. Threads: pure but for
 * malloc. Invariant: a session that is accepted has a snapshot that a turn can begin with; the payload alone is left to
 * its backend to check.
 */
#ifndef SESSION_FILE_H
#define SESSION_FILE_H

#include "session_answer.h"
#include "session_metadata.h"
#include "session_snapshot.h"
#include "engine/state/state_file.h"

#define SESSION_MOST_TOK ((uint64_t)1 << 48) /* sums with positions stay far from overflow */

/* *header, *n_header: malloc'd; the file is these bytes and then the snapshot's state buffer, which is read for its
 * checksum. apart, unless NULL: the state is in another file and has this checksum; the header is the whole file. */
int session_file_write(const struct state_form *form, const struct session_metadata *metadata,
                       const struct session_snapshot *snapshot, const struct session_answers *answers,
                       const uint64_t *apart, void **header, size_t *n_header, struct rod_error *err);

/* The size of that file. */
uint64_t session_file_bytes(const struct state_form *form, const struct session_metadata *metadata,
                            const struct session_snapshot *snapshot, const struct session_answers *answers);

/* From a parsed header: metadata, the snapshot without its state buffer, answers (NULL: none). ROD_ESTATE naming file
 * and reason. */
int session_file_read(const struct state_form *form, const struct state_file *state, const char *file,
                      struct session_metadata *metadata, struct session_snapshot **snapshot,
                      struct session_answers **answers, struct rod_error *err);
/* The metadata alone, of a file of any model and layout. */
int session_file_read_metadata(const struct state_file *state, const char *file, struct session_metadata *metadata,
                               struct rod_error *err);

#endif
