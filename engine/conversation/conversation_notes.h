/* conversation_notes.h - the notes of a conversation: records in a file that grows, the first of which says whose the
 * conversation is.
 *
 *   "RODNOTES"   then records: u32 length, u32 check (XXH3 of the bytes, lower half), bytes; little-endian
 *
 * A crash may leave a part of the last record: readers stop before it, and the next writer cuts it off. A writer locks
 * the file (flock), so two servers of one folder never mix their records. In a store all of it is replaced, if it is
 * the version that was read, else that is read and added to. Past CONVERSATION_NOTES_BYTES the older half goes.
 *
 * Ownership: what is read is malloc'd and the caller's. Threads: any. notes_whole is pure.
 */
#ifndef CONVERSATION_NOTES_H
#define CONVERSATION_NOTES_H

#include "engine/rodimus.h"
#include "engine/state/state_home.h"

#define CONVERSATION_NOTES_FILE   "notes"
#define CONVERSATION_NOTES_FORMAT 1
#define CONVERSATION_NOTES_BYTES  ((size_t)16 << 20)
#define CONVERSATION_FIRST_BYTES  1024 /* the first record at most */

#define NOTES_MARK "RODNOTES"
enum { NOTES_MARK_BYTES = 8, NOTES_FRAME_BYTES = 8, NOTES_MOST_BYTES = 2 * CONVERSATION_NOTES_BYTES };

/* ---- bytes; whole, n_first: as notes_whole says, n_first > 0 ---- */
/* How many of these bytes of a file are complete records behind the mark; *n_first: those of the first record. */
size_t notes_whole(const void *bytes, size_t n, size_t *n_first);

unsigned char *notes_framed(const void *record, size_t n); /* malloc'd: the frame and the record */
/* The bytes of the first record, malloc'd. ROD_ESTATE. */
int notes_first(const void *bytes, size_t n_bytes, void **first, size_t *n, struct rod_error *err);
/* All others without checks, to the beginning; returns their length. */
size_t notes_records(void *bytes, size_t whole, size_t n_first);
/* Where those begin that stay when one is added. */
size_t notes_newest(const void *bytes, size_t whole, size_t n_first);
bool notes_have(const void *bytes, size_t whole, const void *record, size_t n); /* record: framed */

/* ---- a file ---- */
/* Makes the file with its first record, unless it is there. ROD_EIO. */
int notes_make(const char *dir, const void *first, size_t n_first, struct rod_error *err);
/* The bytes of the first record. ROD_ENOTFOUND, ROD_ESTATE, ROD_EIO. */
int notes_read_first(const char *dir, void **first, size_t *n, struct rod_error *err);
/* All records but the first, if the file is another than *seen; else, or where it has none, *bytes NULL. */
int notes_read(const char *dir, struct rod_notes_seen *seen, void **bytes, size_t *n, struct rod_error *err);
/* *seen: moved on if it was the file before. ROD_ENOTFOUND; ROD_ESTATE: the file is damaged. */
int notes_add(const char *dir, const void *record, size_t n, struct rod_notes_seen *seen, struct rod_error *err);

/* ---- an object; home: of the conversation, fenced. Errors: the home's ---- */
struct notes_grown { /* bytes of the object; now 0: there are no notes */
    uint64_t before, now;
};
/* ROD_EEXISTS: there is one. */
int notes_home_make(const struct state_home *home, const void *first, size_t n_first, struct rod_error *err);
int notes_home_read_first(const struct state_home *home, void **first, size_t *n, struct rod_error *err);
int notes_home_read(const struct state_home *home, struct rod_notes_seen *seen, void **bytes, size_t *n,
                    struct rod_error *err);
/* Adds a record. Without an object it makes one, unless `seen` knows one: that one was removed meanwhile, and nothing
 * is written. */
int notes_home_add(const struct state_home *home, const struct state_bytes *first, const struct state_bytes *record,
                   struct rod_notes_seen *seen, struct notes_grown *grown, struct rod_error *err);
int notes_home_touch(const struct state_home *home, struct rod_error *err); /* its time is now */

#endif
