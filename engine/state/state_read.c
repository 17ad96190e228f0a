/* state_read.c - see state_read.h. */
#include "state_read.h"
#include "engine/base/fail.h"

#include <stdlib.h>

enum { START_BYTES = 64 << 10 }; /* enough for nearly all headers */

int state_read_header(struct state_disk_file *f, const char *file, void **header, size_t *n, struct rod_error *err) {
    size_t cap = START_BYTES;
    unsigned char *bytes = malloc(cap);
    if (!bytes) return rod_fail_no_memory(err);
    uint64_t n_header = 0, n_file;
    int rc = state_disk_get(f, 0, bytes, cap, n, err);
    if (!rc) rc = state_file_measure(bytes, *n, file, &n_header, &n_file, err);
    if (!rc && n_header > cap) {
        unsigned char *more = realloc(bytes, (size_t)n_header);
        if (more) {
            bytes = more;
            rc = state_disk_get(f, 0, bytes, (size_t)n_header, n, err);
        } else {
            rc = rod_fail_no_memory(err);
        }
    }
    if (!rc && *n > n_header) *n = (size_t)n_header;
    if (rc) {
        free(bytes);
        bytes = NULL;
    }
    *header = bytes;
    return rc;
}

int state_read_payload(struct state_disk_file *f, const char *file, const void *header, uint64_t at, size_t n_payload,
                       struct state_pool *pool, struct state_buffer **out, struct rod_error *err) {
    struct state_buffer *buffer = state_buffer_new(pool, n_payload);
    if (!buffer) return rod_fail(err, ROD_ENOROOM, "Host memory has no room for a state of %zu bytes.", n_payload);
    size_t n;
    int rc = state_disk_get(f, at, buffer->bytes, n_payload, &n, err);
    if (!rc && n != n_payload)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: truncated: %zu bytes of payload of %zu", file, n, n_payload);
    if (!rc) rc = state_file_check_payload(header, &(struct state_bytes){buffer->bytes, n_payload}, file, err);
    if (rc) {
        state_buffer_release(buffer);
        return rc;
    }
    *out = buffer;
    return 0;
}
