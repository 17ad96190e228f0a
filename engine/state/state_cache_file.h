/* state_cache_file.h - the start of a cached file: which version of an object the bytes behind it are. Little-endian.
 *
 *     at   bytes
 *      0       8  "RODCACH1"
 *      8       8  bytes of the object, which is the rest of the file
 *     16       8  the version's inode
 *     24       8  the version's time in ns
 *     32      64  the version's ETag, then zeros
 *     96       8  XXH3 (64 bits) of the bytes before
 *
 * Threads: pure functions. Invariant: what is accepted is byte for byte what the writer makes of it.
 */
#ifndef STATE_CACHE_FILE_H
#define STATE_CACHE_FILE_H

#include "state_disk.h"

enum { STATE_CACHE_FILE_BYTES = 104 };

void state_cache_file_write(const struct state_disk_version *version, unsigned char to[STATE_CACHE_FILE_BYTES]);
/* n_file: of the whole file. False: it is no such file, or another length. */
bool state_cache_file_read(const unsigned char *bytes, size_t n, uint64_t n_file, struct state_disk_version *version);

#endif
