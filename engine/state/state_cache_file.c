/* state_cache_file.c - see state_cache_file.h. */
#include "state_cache_file.h"
#include "engine/base/bytes.h"

#include <string.h>
#include <xxhash.h>

enum { AT_BYTES = 8, AT_INODE = 16, AT_TIME = 24, AT_ETAG = 32, AT_CHECK = AT_ETAG + STATE_DISK_ETAG_BYTES };
_Static_assert(AT_CHECK + 8 == STATE_CACHE_FILE_BYTES, "the check is last");
static const char MAGIC[AT_BYTES] = {'R', 'O', 'D', 'C', 'A', 'C', 'H', '1'};

void state_cache_file_write(const struct state_disk_version *v, unsigned char to[STATE_CACHE_FILE_BYTES]) {
    memset(to, 0, STATE_CACHE_FILE_BYTES);
    memcpy(to, MAGIC, sizeof MAGIC);
    bytes_put(to + AT_BYTES, v->n_bytes, 8);
    bytes_put(to + AT_INODE, v->inode, 8);
    bytes_put(to + AT_TIME, v->mtime_ns, 8);
    memcpy(to + AT_ETAG, v->etag, strnlen(v->etag, STATE_DISK_ETAG_BYTES - 1));
    bytes_put(to + AT_CHECK, XXH3_64bits(to, AT_CHECK), 8);
}

bool state_cache_file_read(const unsigned char *bytes, size_t n, uint64_t n_file, struct state_disk_version *version) {
    unsigned char again[STATE_CACHE_FILE_BYTES];
    if (n < STATE_CACHE_FILE_BYTES || n_file < STATE_CACHE_FILE_BYTES) return false;
    const uint64_t n_bytes = bytes_get(bytes + AT_BYTES, 8);
    struct state_disk_version found = {.inode = bytes_get(bytes + AT_INODE, 8),
                                       .mtime_ns = bytes_get(bytes + AT_TIME, 8),
                                       .n_bytes = n_bytes,
                                       .disk_bytes = n_bytes};
    memcpy(found.etag, bytes + AT_ETAG, STATE_DISK_ETAG_BYTES);
    found.etag[STATE_DISK_ETAG_BYTES - 1] = 0;
    state_cache_file_write(&found, again);
    if (!*found.etag || n_bytes != n_file - STATE_CACHE_FILE_BYTES || memcmp(again, bytes, sizeof again) != 0)
        return false;
    *version = found;
    return true;
}
