/* pinned_file.h - a pinned prefix as a state file (state_file.h). Version and seed are 0, the other sections empty.
 *
 *   pending_ids  the tokens that the state has read, all of them
 *   meta         "PREFIX", u8 form, 1; u8 0; i64 created (Unix seconds); the rest: the id
 *
 * Ownership: what is read is new and the caller's. Threads: pure but for malloc. Invariant: a prefix that is accepted
 * is one that a prompt can go on from; its payload alone is left to be read.
 */
#ifndef PINNED_FILE_H
#define PINNED_FILE_H

#include "state_buffer.h"
#include "state_file.h"

enum { PINNED_MAX_ID = 128, PINNED_MAX_TOK = STATE_FILE_MAX_PENDING_BYTES / 4 };

struct pinned_prefix {
    char id[PINNED_MAX_ID + 1];
    int64_t created_unix_s;
    struct state_buffer *buffer;
    size_t n_tok;
    int32_t ids[]; /* [n_tok] */
};

/* [A-Za-z0-9._-]{1,128}, not beginning with ".", without ".tmp-", which files that are being written have. */
bool pinned_is_id(const char *id);
/* Without a buffer. NULL: no memory. */
struct pinned_prefix *pinned_prefix_new(const char *id, const int32_t *ids, size_t n_tok);
void pinned_prefix_free(struct pinned_prefix *p); /* NULL: nothing */

/* *header, *n_header: malloc'd; the file is these bytes and then the buffer's. */
int pinned_file_write(const struct state_form *form, const struct pinned_prefix *p, void **header, size_t *n_header,
                      struct rod_error *err);
/* From a parsed header, without a buffer. ROD_ESTATE naming file and reason. */
int pinned_file_read(const struct state_form *form, const struct state_file *state, const char *file,
                     struct pinned_prefix **out, struct rod_error *err);

#endif
