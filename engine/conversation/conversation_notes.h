/* conversation_notes.h - the notes of a conversation: records in a file that grows, the first of which says whose the
 * conversation is.
 *
 *   "RODNOTES"   then records: u32 length, u32 check (XXH3 of the bytes, lower half), bytes; little-endian
 *
 * A crash may leave a part of the last record: readers stop before it, and the next writer cuts it off. A writer locks
 * the file (flock), so two servers of one folder never mix their records. Past CONVERSATION_NOTES_BYTES the older half
 * goes.
 *
 * Ownership: what is read is malloc'd and the caller's. Threads: any. notes_whole is pure.
 */
#ifndef CONVERSATION_NOTES_H
#define CONVERSATION_NOTES_H

#include "engine/rodimus.h"

#define CONVERSATION_NOTES_FILE  "notes"
#define CONVERSATION_NOTES_BYTES ((size_t)16 << 20)
#define CONVERSATION_FIRST_BYTES 1024 /* the first record at most */

/* How many of these bytes of a file are complete records behind the mark; *n_first: those of the first record. */
size_t notes_whole(const void *bytes, size_t n, size_t *n_first);

/* Makes the file with its first record, unless it is there. ROD_EIO. */
int notes_make(const char *dir, const void *first, size_t n_first, struct rod_error *err);
/* The bytes of the first record. ROD_ENOTFOUND, ROD_ESTATE, ROD_EIO. */
int notes_read_first(const char *dir, void **first, size_t *n, struct rod_error *err);
/* All records but the first, if the file is another than *seen; else, or where it has none, *bytes NULL. */
int notes_read(const char *dir, struct rod_notes_seen *seen, void **bytes, size_t *n, struct rod_error *err);
/* *seen: moved on if it was the file before. ROD_ENOTFOUND; ROD_ESTATE: the file is damaged. */
int notes_add(const char *dir, const void *record, size_t n, struct rod_notes_seen *seen, struct rod_error *err);

#endif
