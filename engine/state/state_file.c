/* state_file.c - see state_file.h. The bytes come from outside: every number is checked before it is used. */
#include "state_file.h"
#include "engine/base/bytes.h"
#include "state_layout.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { N_SECTIONS = 5, ALIGN_BYTES = 64 };
enum { /* where the fields of the fixed part are */
       AT_FORMAT = 8,
       AT_N_HEADER = 12,
       AT_N_PAYLOAD = 16,
       AT_PAYLOAD_CHECK = 24,
       AT_FINGERPRINT = 32,
       AT_N_TOK = 48,
       AT_TOKEN_HASH = 56,
       AT_VERSION = 64,
       AT_SEED = 72,
       AT_SECTIONS = 80,
       AT_PLACE = 100
};
enum { BEHIND, APART }; /* places of a payload */
static const char MAGIC[8] = {'R', 'O', 'D', 'S', 'T', 'A', 'T', 'E'};

static const struct {
    const char *name;
    size_t offset; /* of the struct state_bytes in struct state_file */
    uint32_t min, max;
} sections[N_SECTIONS] = {
    {"layout", offsetof(struct state_file, layout), 1, STATE_FILE_MAX_LAYOUT},
    {"pending text", offsetof(struct state_file, pending_text), 0, STATE_FILE_MAX_PENDING_TEXT},
    {"pending tokens", offsetof(struct state_file, pending_ids), 0, STATE_FILE_MAX_PENDING_BYTES},
    {"sampler", offsetof(struct state_file, sampler), 0, STATE_FILE_MAX_HEADER_BYTES},
    {"meta", offsetof(struct state_file, meta), 0, STATE_FILE_MAX_HEADER_BYTES},
};

static const struct state_bytes *state_section_of(const struct state_file *state, int i) {
    return (const struct state_bytes *)(const void *)((const char *)state + sections[i].offset);
}

/* Bytes of a header whose sections have so many; 0: more than is allowed. */
static size_t header_bytes(uint64_t n_sections) {
    uint64_t n = STATE_FILE_FIXED_BYTES + n_sections + STATE_FILE_CHECK_BYTES;
    n = (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return n <= STATE_FILE_MAX_HEADER_BYTES ? (size_t)n : 0;
}

static uint32_t format_of(const struct state_bytes *layout) {
    struct state_layout l;
    const bool narrow = state_layout_parse(layout->data, layout->n, &l) && state_layout_is_narrow(&l);
    return narrow ? STATE_FILE_FORMAT_NARROW : STATE_FILE_FORMAT;
}

/* ---- bytes to a state ---- */

static bool format_is_known(uint64_t format) {
    return format == STATE_FILE_FORMAT || format == STATE_FILE_FORMAT_NARROW;
}

int state_file_measure(const void *bytes, size_t n_bytes, const char *file, uint64_t *n_header, uint64_t *n_file,
                       struct rod_error *err) {
    const unsigned char *b = bytes;
    if (n_bytes < STATE_FILE_FIXED_BYTES)
        return rod_fail(err, ROD_ESTATE, "%.150s: too short: %zu bytes, a state file has at least %d", file, n_bytes,
                        STATE_FILE_MIN_BYTES);
    if (memcmp(b, MAGIC, sizeof MAGIC))
        return rod_fail(err, ROD_ESTATE, "%.150s: bad magic: this is not a state file", file);
    uint64_t format = bytes_get(b + AT_FORMAT, 4);
    if (!format_is_known(format))
        return rod_fail(err, ROD_ESTATE, "%.150s: unknown version %llu of the format, %d and %d are supported", file,
                        (unsigned long long)format, STATE_FILE_FORMAT, STATE_FILE_FORMAT_NARROW);
    uint64_t header = bytes_get(b + AT_N_HEADER, 4), payload = bytes_get(b + AT_N_PAYLOAD, 8);
    if (header < STATE_FILE_MIN_BYTES || header > STATE_FILE_MAX_HEADER_BYTES || header % ALIGN_BYTES)
        return rod_fail(err, ROD_ESTATE, "%.150s: damaged header: its length is %llu bytes", file,
                        (unsigned long long)header);
    if (payload > UINT64_MAX / 2)
        return rod_fail(err, ROD_ESTATE, "%.150s: damaged header: its payload length is %llu bytes", file,
                        (unsigned long long)payload);
    *n_header = header;
    *n_file = state_file_peek_apart(b) ? header : header + payload;
    return 0;
}

bool state_file_peek_apart(const void *bytes) { return bytes_get((const unsigned char *)bytes + AT_PLACE, 4) == APART; }

bool state_file_peek_foreign(const void *bytes) {
    return !memcmp(bytes, MAGIC, sizeof MAGIC) &&
           !format_is_known(bytes_get((const unsigned char *)bytes + AT_FORMAT, 4));
}

uint64_t state_file_peek_version(const void *bytes) { return bytes_get((const unsigned char *)bytes + AT_VERSION, 8); }

uint64_t state_file_peek_check(const void *header_end) { return bytes_get(header_end, STATE_FILE_CHECK_BYTES); }

static bool bytes_are_zero(const unsigned char *b, uint64_t n) {
    unsigned char any = 0;
    for (uint64_t i = 0; i < n; i++) any |= b[i];
    return !any;
}

/* The checksum is good: what is wrong from here on was written so. */
static int state_parse_sections(const unsigned char *b, uint64_t n_header, const char *file, struct state_file *out,
                                struct rod_error *err) {
    uint64_t at = STATE_FILE_FIXED_BYTES, end = n_header - STATE_FILE_CHECK_BYTES;
    for (int i = 0; i < N_SECTIONS; i++) {
        uint64_t n = bytes_get(b + AT_SECTIONS + 4 * i, 4);
        if (n < sections[i].min || n > sections[i].max || n > end - at)
            return rod_fail(err, ROD_ESTATE, "%.150s: malformed header: section %s has an invalid length, %llu bytes",
                            file, sections[i].name, (unsigned long long)n);
        *(struct state_bytes *)(void *)((char *)out + sections[i].offset) = (struct state_bytes){b + at, (size_t)n};
        at += n;
        assert(at <= end);
    }
    if (out->pending_ids.n % 4)
        return rod_fail(err, ROD_ESTATE,
                        "%.150s: malformed header: section pending tokens has %zu bytes, not a multiple of 4", file,
                        out->pending_ids.n);
    if (header_bytes(at - STATE_FILE_FIXED_BYTES) != n_header || !bytes_are_zero(b + at, end - at) ||
        bytes_get(b + AT_PLACE, 4) > APART)
        return rod_fail(err, ROD_ESTATE, "%.150s: malformed header: unused bytes behind the last section", file);
    if (format_of(&out->layout) != bytes_get(b + AT_FORMAT, 4))
        return rod_fail(err, ROD_ESTATE, "%.150s: malformed header: its version has other layouts", file);
    return 0;
}

static int state_refuse_layout(const struct state_bytes *layout, const char *here, const char *file,
                               struct rod_error *err) {
    struct state_layout theirs, ours;
    if (state_layout_parse(layout->data, layout->n, &theirs) && state_layout_parse(here, strlen(here), &ours) &&
        state_layout_same_sizes(&theirs, &ours))
        return rod_fail(err, ROD_ESTATE,
                        "%.150s: other formats: the state has S in %s, activations in %s and a window in %s, here they "
                        "are %s, %s and %s; `rodimus states convert` makes one of the other",
                        file, dtype_name(theirs.S), dtype_name(theirs.act), dtype_name(theirs.window),
                        dtype_name(ours.S), dtype_name(ours.act), dtype_name(ours.window));
    char text[81];
    const size_t n = layout->n < sizeof text ? layout->n : sizeof text - 1;
    for (size_t i = 0; i < n; i++) {
        const char c = ((const char *)layout->data)[i];
        text[i] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    text[n] = 0;
    return rod_fail(err, ROD_ESTATE, "%.150s: other layout: the state is laid out as %s, here it is %.80s", file, text,
                    here);
}

static int state_check_expected(const struct state_file *state, const struct state_file_expected *expected,
                                const char *file, struct rod_error *err) {
    if (expected->fingerprint && memcmp(state->fingerprint, expected->fingerprint, MODEL_FINGERPRINT_BYTES)) {
        char theirs[2 * MODEL_FINGERPRINT_BYTES + 1], ours[2 * MODEL_FINGERPRINT_BYTES + 1];
        return rod_fail(err, ROD_ESTATE, "%.150s: foreign fingerprint: a state of model %s, this is model %s", file,
                        model_render_fingerprint(state->fingerprint, theirs),
                        model_render_fingerprint(expected->fingerprint, ours));
    }
    const bool other = expected->layout && (state->layout.n != strlen(expected->layout) ||
                                            memcmp(state->layout.data, expected->layout, state->layout.n) != 0);
    return other ? state_refuse_layout(&state->layout, expected->layout, file, err) : 0;
}

int state_file_parse_header(const void *bytes, size_t n_bytes, uint64_t n_file, const char *file,
                            const struct state_file_expected *expected, struct state_file *out, struct rod_error *err) {
    const unsigned char *b = bytes;
    *out = (struct state_file){0};
    uint64_t n_header, n_total;
    int rc = state_file_measure(b, n_bytes, file, &n_header, &n_total, err);
    if (rc) return rc;
    if (n_file < n_total || n_bytes < n_header)
        return rod_fail(err, ROD_ESTATE, "%.150s: too short: %llu bytes, its header calls for %llu", file,
                        (unsigned long long)(n_file < n_total ? n_file : n_bytes), (unsigned long long)n_total);
    if (n_file > n_total)
        return rod_fail(err, ROD_ESTATE, "%.150s: too long: %llu bytes, its header calls for %llu", file,
                        (unsigned long long)n_file, (unsigned long long)n_total);
    uint64_t end = n_header - STATE_FILE_CHECK_BYTES;
    if (XXH3_64bits(b, (size_t)end) != bytes_get(b + end, STATE_FILE_CHECK_BYTES))
        return rod_fail(err, ROD_ESTATE, "%.150s: bad checksum: the header has changed", file);
    struct state_file state = {.n_tok = bytes_get(b + AT_N_TOK, 8),
                               .token_hash = bytes_get(b + AT_TOKEN_HASH, 8),
                               .version = bytes_get(b + AT_VERSION, 8),
                               .seed = bytes_get(b + AT_SEED, 8),
                               .payload = {NULL, (size_t)bytes_get(b + AT_N_PAYLOAD, 8)},
                               .apart = state_file_peek_apart(b),
                               .payload_check = bytes_get(b + AT_PAYLOAD_CHECK, 8)};
    memcpy(state.fingerprint, b + AT_FINGERPRINT, MODEL_FINGERPRINT_BYTES);
    if ((rc = state_parse_sections(b, n_header, file, &state, err))) return rc;
    if ((rc = state_check_expected(&state, expected, file, err))) return rc;
    *out = state;
    return 0;
}

int state_file_parse(const void *bytes, size_t n_bytes, const char *file, const struct state_file_expected *expected,
                     struct state_file *out, struct rod_error *err) {
    const unsigned char *b = bytes;
    int rc = state_file_parse_header(b, n_bytes, n_bytes, file, expected, out, err);
    if (!rc && out->apart) rc = rod_fail(err, ROD_ESTATE, "%.150s: the payload is in another file", file);
    if (rc) {
        *out = (struct state_file){0};
        return rc;
    }
    assert(out->payload.n < n_bytes);
    out->payload.data = b + (n_bytes - out->payload.n);
    rc = state_file_check_payload(b, &out->payload, file, err);
    if (rc) *out = (struct state_file){0};
    return rc;
}

int state_file_check_payload(const void *header, const struct state_bytes *payload, const char *file,
                             struct rod_error *err) {
    const unsigned char *b = header;
    if (XXH3_64bits(payload->data, payload->n) == bytes_get(b + AT_PAYLOAD_CHECK, 8)) return 0;
    return rod_fail(err, ROD_ESTATE, "%.150s: bad checksum: the payload has changed", file);
}

int32_t state_file_id(const struct state_file *state, uint32_t i) {
    assert(i < state_file_n_ids(state));
    return (int32_t)(uint32_t)bytes_get((const unsigned char *)state->pending_ids.data + 4 * (size_t)i, 4);
}

/* ---- a state to bytes ---- */

size_t state_file_header_bytes(const struct state_file *state) {
    uint64_t n = 0;
    for (int i = 0; i < N_SECTIONS; i++) {
        const struct state_bytes *section = state_section_of(state, i);
        if (section->n < sections[i].min || section->n > sections[i].max) return 0;
        n += section->n;
    }
    return state->pending_ids.n % 4 ? 0 : header_bytes(n);
}

void state_file_write_header(const struct state_file *state, void *dst) {
    unsigned char *b = dst;
    size_t n = state_file_header_bytes(state), at = STATE_FILE_FIXED_BYTES;
    assert(n >= STATE_FILE_MIN_BYTES && n % ALIGN_BYTES == 0);
    memset(b, 0, n);
    memcpy(b, MAGIC, sizeof MAGIC);
    bytes_put(b + AT_FORMAT, format_of(&state->layout), 4);
    bytes_put(b + AT_N_HEADER, n, 4);
    bytes_put(b + AT_N_PAYLOAD, state->payload.n, 8);
    bytes_put(b + AT_PAYLOAD_CHECK,
              state->apart ? state->payload_check : XXH3_64bits(state->payload.data, state->payload.n), 8);
    bytes_put(b + AT_PLACE, state->apart ? APART : BEHIND, 4);
    memcpy(b + AT_FINGERPRINT, state->fingerprint, MODEL_FINGERPRINT_BYTES);
    bytes_put(b + AT_N_TOK, state->n_tok, 8);
    bytes_put(b + AT_TOKEN_HASH, state->token_hash, 8);
    bytes_put(b + AT_VERSION, state->version, 8);
    bytes_put(b + AT_SEED, state->seed, 8);
    for (int i = 0; i < N_SECTIONS; i++) {
        const struct state_bytes *section = state_section_of(state, i);
        bytes_put(b + AT_SECTIONS + 4 * i, section->n, 4);
        if (section->n) memcpy(b + at, section->data, section->n);
        at += section->n;
    }
    assert(at <= n - STATE_FILE_CHECK_BYTES);
    bytes_put(b + n - STATE_FILE_CHECK_BYTES, XXH3_64bits(b, n - STATE_FILE_CHECK_BYTES), STATE_FILE_CHECK_BYTES);
}

/* ---- tokens ---- */

uint64_t state_file_hash_tokens(uint64_t hash, const int32_t *ids, size_t n) {
    unsigned char link[12];
    for (size_t i = 0; i < n; i++) {
        bytes_put(link, hash, 8);
        bytes_put(link + 8, (uint32_t)ids[i], 4);
        hash = XXH3_64bits(link, sizeof link);
    }
    return hash;
}
