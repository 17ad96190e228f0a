/* state_read.h - a state file from the disk into memory: its header in one block, its payload in a state buffer.
 *
 * Ownership: what is read is the caller's. Threads: any. Errors name the file: ROD_ESTATE where it is at fault,
 * ROD_EIO, ROD_ENOMEM, and ROD_ENOROOM where the pool has no buffer for the payload.
 */
#ifndef STATE_READ_H
#define STATE_READ_H

#include "state_buffer.h"
#include "state_disk.h"

/* *header: malloc'd, its n bytes. What the file holds is not looked at but for the header's length. */
int state_read_header(struct state_disk_file *f, const char *file, void **header, size_t *n, struct rod_error *err);
/* at: where in f the payload begins; header: the one that has its check. */
int state_read_payload(struct state_disk_file *f, const char *file, const void *header, uint64_t at, size_t n_payload,
                       struct state_pool *pool, struct state_buffer **out, struct rod_error *err);

#endif
