/* state_file.h - the format of a session's state at rest: a header, then the slot's bytes as its backend saved them.
 *
 * All numbers are little-endian. n_header is a multiple of 64, so that a payload read to an aligned address is aligned.
 *
 *     at   bytes
 *      0       8  "RODSTATE"
 *      8       4  version of the format: 1, or 2 of a layout whose formats are not the default ones, which servers that
 *                 know only these must not take for damaged
 *     12       4  n_header: the payload's first byte
 *     16       8  n_payload: the file ends with it
 *     24       8  XXH3 (64 bits) of the payload
 *     32      16  the model's fingerprint (model.h)
 *     48       8  n_tok: tokens that the state has read
 *     56       8  token_hash: rolling, of these tokens
 *     64       8  version of the session
 *     72       8  seed of the sampler; its draws are a function of seed and position (philox.h)
 *     80  5 x  4  bytes of each section: layout, pending_text, pending_ids, sampler, meta
 *    100       4  where the payload is: 0 behind this header; 1 at the end of another file (session_store.h), which has
 *                 bytes of its own before it; then this one ends with its header
 *    104          the sections in this order, zeros
 *     -8       8  XXH3 (64 bits) of the header's bytes before it
 *
 * A state has one spelling: what is accepted is byte for byte what the writer makes of it. Every changed bit is refused
 * by one of the two checksums; these guard against accidents, not against forgery.
 *
 * Ownership: nothing here allocates or does I/O; a parsed state points into the bytes that it was parsed from. Threads:
 * pure functions. Invariant: a function reads no byte outside of what it was given.
 */
#ifndef STATE_FILE_H
#define STATE_FILE_H

#include "engine/model/model.h"

#define STATE_FILE_FORMAT            1
#define STATE_FILE_FORMAT_NARROW     2
#define STATE_FILE_FIXED_BYTES       104
#define STATE_FILE_MIN_BYTES         128 /* the smallest header */
#define STATE_FILE_CHECK_BYTES       8
#define STATE_FILE_MAX_LAYOUT        255
#define STATE_FILE_MAX_PENDING_TEXT  255
#define STATE_FILE_MAX_PENDING_BYTES (1u << 20)
#define STATE_FILE_MAX_HEADER_BYTES  (16u << 20)

struct state_bytes {
    const void *data; /* at any address */
    size_t n;
};

struct state_file {
    uint8_t fingerprint[MODEL_FINGERPRINT_BYTES];
    uint64_t n_tok, token_hash, version, seed;
    struct state_bytes layout;       /* text of the backend: dtypes and order of the payload; not "" */
    struct state_bytes pending_text; /* bytes of a character that is not complete yet */
    struct state_bytes pending_ids;  /* int32_t: tokens of the session that the state has not read; state_file_id */
    struct state_bytes sampler;      /* the sampler's state, in a form of its own */
    struct state_bytes meta;         /* metadata of the session, in the form of session_file.h */
    struct state_bytes payload;
    bool apart; /* the payload is in another file: data is NULL, and the header is written with this check */
    uint64_t payload_check; /* XXH3 of the payload, once a header was parsed */
};

/* What this server can load. */
struct state_form {
    uint8_t fingerprint[MODEL_FINGERPRINT_BYTES];
    const char *layout;
    uint32_t V, chunk_tok;
    size_t (*state_bytes)(const void *arg, uint64_t n_tok);
    const void *arg;
};

/* What the reader runs: another fingerprint or layout is refused. NULL accepts any. */
struct state_file_expected {
    const uint8_t *fingerprint; /* [MODEL_FINGERPRINT_BYTES] */
    const char *layout;
};

/* ---- bytes to a state. ROD_ESTATE, naming file and reason, for whatever is refused. ---- */

/* From the fixed part: how many bytes the header and the whole file have. bytes: at least the first
 * STATE_FILE_FIXED_BYTES. */
int state_file_measure(const void *bytes, size_t n_bytes, const char *file, uint64_t *n_header, uint64_t *n_file,
                       struct rod_error *err);
/* Unchecked, from the fixed part and from the STATE_FILE_CHECK_BYTES at the header's end: the session's version, and
 * the header's checksum, which is another one for any other file, as the payload's is in the header. */
uint64_t state_file_peek_version(const void *bytes);
uint64_t state_file_peek_check(const void *header_end);
bool state_file_peek_apart(const void *bytes); /* likewise, from the fixed part */
/* Likewise: it says that it is a state of another format. */
bool state_file_peek_foreign(const void *bytes);
/* bytes: at least the header. n_file: of the whole file; payload.n is filled, payload.data stays NULL. */
int state_file_parse_header(const void *bytes, size_t n_bytes, uint64_t n_file, const char *file,
                            const struct state_file_expected *expected, struct state_file *out, struct rod_error *err);
/* bytes: the whole file, with its payload. */
int state_file_parse(const void *bytes, size_t n_bytes, const char *file, const struct state_file_expected *expected,
                     struct state_file *out, struct rod_error *err);
/* A payload that was read on its own, against the checksum of a header that state_file_parse_header has accepted. */
int state_file_check_payload(const void *header, const struct state_bytes *payload, const char *file,
                             struct rod_error *err);
static inline uint32_t state_file_n_ids(const struct state_file *state) { return (uint32_t)(state->pending_ids.n / 4); }
int32_t state_file_id(const struct state_file *state, uint32_t i);

/* ---- a state to bytes ---- */

/* 0 where a section is longer than the format allows or pending_ids is not whole numbers, or layout is empty. */
size_t state_file_header_bytes(const struct state_file *state);
/* dst [state_file_header_bytes]. Reads the payload for its checksum; the file is dst, then the payload. */
void state_file_write_header(const struct state_file *state, void *dst);

/* ---- token_hash: the hash of no token is 0; the same tokens in pieces give the same hash ---- */
uint64_t state_file_hash_tokens(uint64_t hash, const int32_t *ids, size_t n);

#endif
