/* states_header.c - a state at rest as its header tells it, and its bytes. */
#include "states_internal.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { START_BYTES = 64 << 10, PIECE_BYTES = 1 << 20 }; /* START_BYTES: as much as most headers have */

static void put_hexadecimal(const uint8_t *bytes, size_t n, char *text) {
    for (size_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

void states_put_tenant(const struct states *s, const char *tenant, char text[17]) {
    uint8_t hash[SIPHASH_BYTES];
    *text = 0;
    if (!s->has_key) return;
    siphash(s->key, tenant, strlen(tenant), hash);
    put_hexadecimal(hash, 8, text);
}

/* The rest of a long header: by a read of its own. */
static int read_long(const struct state_home *home, const char *file, void *header, size_t n_header,
                     struct rod_error *err) {
    struct state_home_file f;
    size_t n;
    int rc = state_home_open(home, file, NULL, &f, err);
    if (rc) return rc;
    rc = state_home_get(&f, header, n_header, &n, err);
    if (!rc && n < n_header) rc = rod_fail(err, ROD_ESTATE, "%.200s ends in its header", file);
    state_home_close(&f);
    return rc;
}

int states_header_read(const struct state_home *home, const char *file, void **header, struct state_file *state,
                       struct rod_error *err) {
    static const struct state_file_expected any;
    struct state_disk_version version;
    uint64_t n_header = 0, n_file;
    size_t n = 0;
    char *start = malloc(START_BYTES);
    int rc = start ? state_home_peek(home, file, start, START_BYTES, &n, &version, err) : rod_fail_no_memory(err);
    if (!rc) rc = state_file_measure(start, n, file, &n_header, &n_file, err);
    if (!rc && n_header > n) {
        char *grown = realloc(start, n_header);
        rc = grown ? read_long(home, file, grown, n_header, err) : rod_fail_no_memory(err);
        if (grown) start = grown;
    }
    if (!rc) rc = state_file_parse_header(start, n_header, version.n_bytes, file, &any, state, err);
    if (rc) free(start);
    *header = rc ? NULL : start;
    return rc;
}

int states_metadata_read(const struct state_home *home, const char *file, struct session_metadata *metadata,
                         struct rod_error *err) {
    struct state_file state;
    void *header;
    int rc = states_header_read(home, file, &header, &state, err);
    if (!rc) rc = session_file_read_metadata(&state, file, metadata, err);
    free(header);
    return rc;
}

static void take_session(const struct states *s, const struct session_metadata *m, struct rod_state_file *out) {
    struct session_metadata used = *m;
    if (out->used_unix_s > used.used_s) used.used_s = out->used_unix_s; /* a file's time is that of its last use */
    out->used_unix_s = session_last_s(&used);
    const int64_t end_s = session_end_s(&used);
    out->expires_unix_s = end_s == INT64_MAX || out->kind != ROD_STATE_SESSION ? 0 : end_s;
    out->pinned = m->pinned;
    states_put_tenant(s, m->tenant, out->tenant);
}

void states_take_header(const struct states *s, const struct state_home *home, const char *file,
                        struct rod_state_file *out) {
    struct session_metadata metadata;
    struct state_file state;
    struct rod_error err;
    void *header;
    if (states_header_read(home, file, &header, &state, &err)) {
        snprintf(out->fault, sizeof out->fault, "%.*s", (int)sizeof out->fault - 1, err.message);
        return;
    }
    put_hexadecimal(state.fingerprint, sizeof state.fingerprint, out->fingerprint);
    out->n_tok = state.n_tok;
    out->version = state.version;
    const bool session = out->kind == ROD_STATE_SESSION || out->kind == ROD_STATE_KEPT || out->kind == ROD_STATE_BASE;
    if (session && !session_file_read_metadata(&state, file, &metadata, &err)) take_session(s, &metadata, out);
    free(header);
}

int states_copy(const struct state_home *home, const char *file, int (*put)(void *arg, const void *bytes, size_t n),
                void *arg, struct rod_error *err) {
    struct state_home_file f;
    size_t n_read = 0;
    int rc = state_home_open(home, file, NULL, &f, err);
    if (rc) return rc;
    char *piece = malloc(PIECE_BYTES);
    if (!piece) rc = rod_fail_no_memory(err);
    do {
        if (!rc) rc = state_home_get(&f, piece, PIECE_BYTES, &n_read, err);
        if (!rc && put(arg, piece, n_read)) rc = rod_fail(err, ROD_EIO, "cannot write: %s", strerror(errno));
    } while (!rc && n_read == PIECE_BYTES);
    free(piece);
    state_home_close(&f);
    return rc;
}
