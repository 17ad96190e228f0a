/* state_read.h - a state file from its home into memory: its header in one block, its payload in a state buffer.
 *
 * Ownership: what is read is the caller's. Threads: any. Errors name the file: ROD_ESTATE where it is at fault,
 * ROD_EIO, ROD_ENOMEM, and ROD_ENOROOM where the pool has no buffer for the payload.
 */
#ifndef STATE_READ_H
#define STATE_READ_H

#include "state_buffer.h"
#include "state_home.h"

/* *header: malloc'd, its n bytes. What the file holds is not looked at but for the header's length. The payload is
 * next.
 */
int state_read_header(struct state_home_file *f, const char *file, void **header, size_t *n, struct rod_error *err);
/* Likewise, of a file that is not read further. */
int state_peek_header(const struct state_home *home, const char *file, void **header, size_t *n,
                      struct state_disk_version *version, struct rod_error *err);
/* What is next in f; header: the one that has its check. */
int state_read_payload(struct state_home_file *f, const char *file, const void *header, size_t n_payload,
                       struct state_pool *pool, struct state_buffer **out, struct rod_error *err);

#endif
