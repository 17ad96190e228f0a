/* state_read.c - see state_read.h. */
#include "state_read.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { START_BYTES = 64 << 10 }; /* enough for nearly all headers */

/* A header begins in bytes [n]: room for n_header. */
static int read_grow(unsigned char **bytes, uint64_t n_header, size_t cap, struct rod_error *err) {
    if (n_header <= cap) return 0;
    unsigned char *more = realloc(*bytes, (size_t)n_header);
    if (!more) return rod_fail_no_memory(err);
    *bytes = more;
    return 0;
}

static int read_end(int rc, unsigned char *bytes, void **header) {
    if (rc) free(bytes);
    *header = rc ? NULL : bytes;
    return rc;
}

int state_read_header(struct state_home_file *f, const char *file, void **header, size_t *n, struct rod_error *err) {
    enum { CAP = 4096 };
    uint64_t n_header = 0, n_file;
    size_t n_more = 0;
    unsigned char *bytes = malloc(CAP);
    if (!bytes) return rod_fail_no_memory(err);
    int rc = state_home_get(f, bytes, STATE_FILE_FIXED_BYTES, n, err);
    if (!rc) rc = state_file_measure(bytes, *n, file, &n_header, &n_file, err);
    if (!rc) rc = read_grow(&bytes, n_header, CAP, err);
    if (!rc) rc = state_home_get(f, bytes + *n, (size_t)n_header - *n, &n_more, err);
    *n += n_more;
    return read_end(rc, bytes, header);
}

int state_peek_header(const struct state_home *home, const char *file, void **header, size_t *n,
                      struct state_disk_version *version, struct rod_error *err) {
    uint64_t n_header = 0, n_file;
    size_t cap = START_BYTES;
    unsigned char *bytes = malloc(cap);
    if (!bytes) return rod_fail_no_memory(err);
    int rc;
    do { /* a longer one is read again, and may be another one by then */
        rc = read_grow(&bytes, n_header, cap, err);
        if (n_header > cap) cap = (size_t)n_header;
        if (!rc) rc = state_home_peek(home, file, bytes, cap, n, version, err);
        if (!rc) rc = state_file_measure(bytes, *n, file, &n_header, &n_file, err);
    } while (!rc && n_header > cap);
    if (!rc && *n > n_header) *n = (size_t)n_header;
    return read_end(rc, bytes, header);
}

int state_read_payload(struct state_home_file *f, const char *file, const void *header, size_t n_payload,
                       struct state_pool *pool, struct state_buffer **out, struct rod_error *err) {
    struct state_buffer *buffer = state_buffer_new(pool, n_payload);
    if (!buffer) return rod_fail(err, ROD_ENOROOM, "Host memory has no room for a state of %zu bytes.", n_payload);
    size_t n;
    int rc = state_home_get(f, buffer->bytes, n_payload, &n, err);
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
