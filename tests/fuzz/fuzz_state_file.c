/* fuzz_state_file.c - a state file of a stranger: as it is, and sealed anew, so that what stands behind the checksums
 * is reached. What is accepted has its parts inside the file and is what the writer makes of it, also as the file of a
 * pinned prefix and as the start of a cached copy. */
#include "engine/state/pinned_file.h"
#include "engine/state/state_cache_file.h"
#include "engine/state/state_convert.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_u64(unsigned char *to, uint64_t x) {
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(x >> (8 * i));
}

static void check_inside(struct state_bytes part, const unsigned char *bytes, size_t n) {
    size_t at = (size_t)((const unsigned char *)part.data - bytes);
    if (at > n || part.n > n - at) abort();
}

/* A state has one spelling. */
static void check_header(const struct state_file *state, const unsigned char *bytes, size_t n_header) {
    unsigned char *header = malloc(n_header);
    if (!header) abort();
    state_file_write_header(state, header);
    if (memcmp(header, bytes, n_header)) abort();
    free(header);
}

static size_t bytes_of(const void *arg, uint64_t n_tok) {
    (void)n_tok;
    return *(const size_t *)arg;
}

/* A prefix has one spelling, too. */
static void check_pinned(const struct state_file *state, const unsigned char *bytes) {
    char layout[STATE_FILE_MAX_LAYOUT + 1] = "";
    memcpy(layout, state->layout.data, state->layout.n);
    if (strlen(layout) != state->layout.n) return; /* nobody's */
    struct state_form form = {
        .layout = layout, .V = 1000, .chunk_tok = 1, .state_bytes = bytes_of, .arg = &state->payload.n};
    memcpy(form.fingerprint, state->fingerprint, sizeof form.fingerprint);
    struct pinned_prefix *prefix;
    struct rod_error err = {0};
    if (pinned_file_read(&form, state, "fuzzed", &prefix, &err)) {
        if (!err.message[0]) abort();
        return;
    }
    void *header;
    size_t n_header;
    struct state_buffer buffer = {.bytes = (void *)(uintptr_t)state->payload.data, .n_bytes = state->payload.n};
    prefix->buffer = &buffer;
    if (pinned_file_write(&form, prefix, &header, &n_header, NULL)) abort();
    if (n_header != state_file_header_bytes(state) || memcmp(header, bytes, n_header)) abort();
    free(header);
    prefix->buffer = NULL;
    pinned_prefix_free(prefix);
}

/* A state of any layout that has its bytes is one in the widest formats, too. */
static void check_converted(const struct state_file *state) {
    struct state_layout l, wide;
    char id[BACKEND_STATE_ID_BYTES];
    if (!state_layout_parse(state->layout.data, state->layout.n, &l)) return;
    state_layout_id(&l, id);
    if (strlen(id) != state->layout.n || memcmp(id, state->layout.data, state->layout.n)) abort();
    if (state_check(&l, state->n_tok, state->payload.data, state->payload.n, NULL)) return;
    wide = l;
    wide.S = wide.act = wide.window = DTYPE_F32;
    unsigned char *to = malloc(state_bytes_at(&wide, state->n_tok) + 1);
    if (!to || state_convert(&l, &wide, state->n_tok, state->payload.data, to, NULL)) abort();
    free(to);
}

static void check(const unsigned char *bytes, size_t n) {
    static const uint8_t ours[MODEL_FINGERPRINT_BYTES] = "fuzzed model 00";
    static const struct state_file_expected here = {ours, "fuzzed layout"}, any = {NULL, NULL};
    struct state_file state;
    struct rod_error err = {0};
    if (state_file_parse(bytes, n, "fuzzed", &here, &state, &err) && !err.message[0]) abort();
    if (state_file_parse(bytes, n, "fuzzed", &any, &state, NULL)) {
        if (state.payload.data || state.layout.data) abort();
        if (state_file_parse_header(bytes, n, n, "fuzzed", &any, &state, NULL) || !state.apart) return;
        if (state.payload.data || state_file_header_bytes(&state) != n) abort(); /* the header is all there is */
        check_header(&state, bytes, n);
        return;
    }
    check_inside(state.layout, bytes, n);
    check_inside(state.pending_text, bytes, n);
    check_inside(state.pending_ids, bytes, n);
    check_inside(state.sampler, bytes, n);
    check_inside(state.meta, bytes, n);
    check_inside(state.payload, bytes, n);
    for (uint32_t i = 0; i < state_file_n_ids(&state); i++) state_file_id(&state, i);
    size_t n_header = state_file_header_bytes(&state);
    if (!n_header || n_header + state.payload.n != n) abort();
    check_header(&state, bytes, n_header);
    check_pinned(&state, bytes);
    check_converted(&state);
}

/* Also a copy's start in a cache: as it is, and sealed. */
static void check_cached(const uint8_t *data, size_t size) {
    unsigned char start[STATE_CACHE_FILE_BYTES], again[STATE_CACHE_FILE_BYTES];
    struct state_disk_version version;
    state_cache_file_read(data, size, size, &version);
    if (size < sizeof start) return;
    memcpy(start, data, sizeof start);
    memcpy(start, "RODCACH1", 8);
    put_u64(start + sizeof start - 8, XXH3_64bits(start, sizeof start - 8));
    const uint64_t n_file = (uint64_t)start[8] + sizeof start;
    if (!state_cache_file_read(start, sizeof start, n_file, &version)) return;
    state_cache_file_write(&version, again);
    if (memcmp(start, again, sizeof start) || !version.etag[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    check_cached(data, size);
    if (size < STATE_FILE_MIN_BYTES) return 0;
    unsigned char *file = malloc(size);
    if (!file) abort();
    memcpy(file, data, size);
    memcpy(file, "RODSTATE\1\0\0\0", 12);
    uint32_t n_header = (uint32_t)(file[12] | file[13] << 8);
    if (n_header > size || n_header < STATE_FILE_MIN_BYTES) n_header = STATE_FILE_MIN_BYTES;
    file[12] = (unsigned char)n_header, file[13] = (unsigned char)(n_header >> 8), file[14] = file[15] = 0;
    put_u64(file + 16, size - n_header);
    put_u64(file + 24, XXH3_64bits(file + n_header, size - n_header));
    put_u64(file + n_header - 8, XXH3_64bits(file, n_header - 8));
    check(file, size);
    file[100] = 1, file[101] = file[102] = file[103] = 0; /* the payload is elsewhere */
    put_u64(file + n_header - 8, XXH3_64bits(file, n_header - 8));
    check(file, n_header);
    free(file);
    return 0;
}
