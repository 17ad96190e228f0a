/* session_file.c - see session_file.h. */
#include "session_file.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"
#include "session_places.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORM = 1,
    FLAG_PINNED = 1,
    FLAG_OPEN = 2,
    FLAG_TOOLS = 4,
    FLAG_KEEPS = 8,
    META_FIXED = 2 + 3 * 8,
    TOOLS_BYTES = 8,
    KEEPS_BYTES = 1 + 8 + 1, /* and the places */
    PLACE_BYTES = 2 * 8,
    SEEN_BYTES = 8
};

/* ---- to bytes ---- */

static unsigned char *file_put_text(unsigned char *to, const char *text) {
    const size_t n = strlen(text);
    assert(n <= UINT8_MAX); /* the length takes one byte */
    to = bytes_put(to, n, 1);
    memcpy(to, text, n);
    return to + n;
}

static size_t file_keeps_bytes(const struct session_metadata *f) {
    return f->keep ? KEEPS_BYTES + f->n_kept * PLACE_BYTES : 0;
}

static unsigned char *file_put_keeps(unsigned char *to, const struct session_metadata *f) {
    to = bytes_put(bytes_put(bytes_put(to, f->keep, 1), f->turn, 8), f->n_kept, 1);
    for (uint32_t i = 0; i < f->n_kept; i++) to = bytes_put(bytes_put(to, f->kept[i].version, 8), f->kept[i].turn, 8);
    return to;
}

static size_t file_write_meta(const struct session_metadata *f, const struct session_answers *answers,
                              unsigned char *meta) {
    unsigned char *to = bytes_put(meta, FORM, 1);
    to = bytes_put(to,
                   (f->pinned ? FLAG_PINNED : 0u) | (f->open ? FLAG_OPEN : 0u) | (f->tools ? FLAG_TOOLS : 0u) |
                       (f->keep ? FLAG_KEEPS : 0u),
                   1);
    to = bytes_put(to, (uint64_t)f->created_s, 8);
    to = bytes_put(to, (uint64_t)f->used_s, 8);
    to = bytes_put(to, f->ttl_s, 8);
    if (f->tools) to = bytes_put(to, f->tools, TOOLS_BYTES);
    if (f->keep) to = file_put_keeps(to, f);
    to = file_put_text(to, f->tenant);
    to = file_put_text(to, f->id);
    to = file_put_text(to, f->parent);
    if (answers) memcpy(to, answers->bytes, answers->n);
    return (size_t)(to - meta) + (answers ? answers->n : 0);
}

int session_file_write(const struct state_form *form, const struct session_metadata *f,
                       const struct session_snapshot *p, const struct session_answers *answers, const uint64_t *apart,
                       void **header, size_t *n_header, struct rod_error *err) {
    const size_t n_seen = p->n_seen * SEEN_BYTES;
    const size_t n_meta = META_FIXED + TOOLS_BYTES + file_keeps_bytes(f) + sizeof f->tenant + sizeof f->id +
                          sizeof f->parent + (answers ? answers->n : 0);
    unsigned char *seen = malloc(n_seen + n_meta), *meta = seen + n_seen, pending[4];
    void *bytes = NULL;
    int rc = seen ? 0 : rod_fail_no_memory(err);
    if (!rc) {
        for (size_t i = 0; i < p->n_seen; i++)
            bytes_put(bytes_put(seen + i * SEEN_BYTES, (uint32_t)p->seen[i].id, 4), p->seen[i].n_generated, 4);
        bytes_put(pending, (uint32_t)p->pending, 4);
        struct state_file state = {.n_tok = p->n_tok,
                                   .token_hash = p->token_hash,
                                   .version = f->version,
                                   .seed = p->seed,
                                   .layout = {form->layout, strlen(form->layout)},
                                   .pending_text = {p->held, p->n_held},
                                   .pending_ids = {pending, p->pending >= 0 ? sizeof pending : 0},
                                   .sampler = {seen, n_seen},
                                   .meta = {meta, file_write_meta(f, answers, meta)},
                                   .payload = {p->buffer ? p->buffer->bytes : NULL, session_snapshot_bytes(p)}};
        state.apart = apart != NULL;
        state.payload_check = apart ? *apart : 0;
        memcpy(state.fingerprint, form->fingerprint, sizeof state.fingerprint);
        *n_header = state_file_header_bytes(&state);
        if (!*n_header)
            rc = rod_fail(err, ROD_ESTATE, "Session %s is too large for a state file's header.", f->id);
        else if (!(bytes = malloc(*n_header)))
            rc = rod_fail_no_memory(err);
        else
            state_file_write_header(&state, bytes);
    }
    free(seen);
    assert(rc ? !bytes : bytes != NULL);
    *header = bytes;
    return rc;
}

uint64_t session_file_bytes(const struct state_form *form, const struct session_metadata *f,
                            const struct session_snapshot *p, const struct session_answers *answers) {
    const size_t n_meta = META_FIXED + (f->tools ? TOOLS_BYTES : 0u) + file_keeps_bytes(f) + 3 + strlen(f->tenant) +
                          strlen(f->id) + strlen(f->parent) + (answers ? answers->n : 0);
    const struct state_file state = {.layout = {form->layout, strlen(form->layout)},
                                     .pending_text = {p->held, p->n_held},
                                     .pending_ids = {NULL, p->pending >= 0 ? 4 : 0},
                                     .sampler = {NULL, p->n_seen * SEEN_BYTES},
                                     .meta = {NULL, n_meta}};
    return (uint64_t)state_file_header_bytes(&state) + session_snapshot_bytes(p);
}

/* ---- from bytes ---- */

static int file_malformed(const char *file, const char *what, struct rod_error *err) {
    return rod_fail(err, ROD_ESTATE, "%.150s: malformed header: %s", file, what);
}

static bool file_get_text(const unsigned char **at, const unsigned char *end, char *text, size_t max) {
    if (*at == end) return false;
    const size_t n = *(*at)++;
    if (n > max || (size_t)(end - *at) < n || memchr(*at, 0, n)) return false;
    memcpy(text, *at, n);
    text[n] = 0;
    *at += n;
    return true;
}

/* *at moves behind it. */
static bool file_get_keeps(const unsigned char **at, const unsigned char *end, struct session_metadata *f) {
    if (end - *at < KEEPS_BYTES) return false;
    f->keep = (uint32_t)bytes_get(*at, 1);
    f->turn = bytes_get(*at + 1, 8);
    f->n_kept = (uint32_t)bytes_get(*at + 9, 1);
    *at += KEEPS_BYTES;
    if (!f->keep || f->n_kept > SESSION_MAX_KEPT || end - *at < f->n_kept * PLACE_BYTES) return false;
    for (uint32_t i = 0; i < f->n_kept; i++, *at += PLACE_BYTES)
        f->kept[i] = (struct session_place){bytes_get(*at, 8), bytes_get(*at + 8, 8)};
    return session_places_ok(f);
}

static int file_read_meta(const struct state_file *state, const char *file, struct session_metadata *f,
                          struct session_answers **answers, struct rod_error *err) {
    const unsigned char *at = state->meta.data, *end = at + state->meta.n;
    if (state->meta.n < META_FIXED || at[0] != FORM || at[1] >= 2 * FLAG_KEEPS)
        return file_malformed(file, "unknown form of session metadata", err);
    f->pinned = at[1] & FLAG_PINNED;
    f->open = at[1] & FLAG_OPEN;
    f->created_s = (int64_t)bytes_get(at + 2, 8);
    f->used_s = (int64_t)bytes_get(at + 10, 8);
    f->ttl_s = bytes_get(at + 18, 8);
    const bool tools = at[1] & FLAG_TOOLS, keeps = at[1] & FLAG_KEEPS;
    at += META_FIXED;
    if (tools && end - at >= TOOLS_BYTES) {
        f->tools = bytes_get(at, TOOLS_BYTES);
        at += TOOLS_BYTES;
    }
    if ((keeps && !file_get_keeps(&at, end, f)) || tools != (f->tools != 0) || f->version >= INT64_MAX ||
        f->created_s < 0 || f->used_s < 0 || !file_get_text(&at, end, f->tenant, SESSION_MAX_TENANT) ||
        !file_get_text(&at, end, f->id, SESSION_MAX_ID) || !file_get_text(&at, end, f->parent, SESSION_MAX_ID) ||
        !session_id_ok(f->id) || (*f->parent && !session_id_ok(f->parent)))
        return file_malformed(file, "malformed session metadata", err);
    struct rod_error fault;
    const int rc = session_answers_parse(at, (size_t)(end - at), answers, &fault);
    return rc ? rod_fail(err, rc, "%.150s: malformed header: %s", file, fault.message) : 0;
}

int session_file_read_metadata(const struct state_file *state, const char *file, struct session_metadata *f,
                               struct rod_error *err) {
    struct session_answers *answers = NULL;
    *f =
        (struct session_metadata){.version = state->version, .n_tok = state->n_tok, .pending = state_file_n_ids(state)};
    const int rc = file_read_meta(state, file, f, &answers, err);
    if (!rc) session_answers_release(answers);
    return rc;
}

/* The detokeniser continues behind these bytes, and has room for one character. */
static bool file_begins_character(const unsigned char *bytes, size_t n) {
    if (n && n >= utf8_lead_len(bytes[0])) return false;
    for (uint32_t i = 1; i < n; i++)
        if (!utf8_may_follow(bytes, i, bytes[i])) return false;
    return true;
}

static int file_read_snapshot(const struct state_form *form, const struct state_file *state, const char *file,
                              struct session_snapshot **out, struct rod_error *err) {
    const size_t want =
        state->n_tok && state->n_tok <= SESSION_MOST_TOK ? form->state_bytes(form->arg, state->n_tok) : 0;
    if (state->n_tok > SESSION_MOST_TOK || state->payload.n != want)
        return rod_fail(err, ROD_ESTATE,
                        "%.150s: malformed header: payload has %zu bytes, a state at position %llu has %zu", file,
                        state->payload.n, (unsigned long long)state->n_tok, want);
    const uint32_t n_pending = state_file_n_ids(state);
    const int32_t pending = n_pending ? state_file_id(state, 0) : -1;
    if (n_pending > 1 || pending < -1 || pending >= (int64_t)form->V || (n_pending && pending < 0))
        return file_malformed(file, "pending token outside the vocabulary", err);
    struct session_snapshot *p = NULL;
    if (state->pending_text.n >= sizeof p->held || state->sampler.n % SEEN_BYTES)
        return file_malformed(file, "impossible length of a section", err);
    if (!file_begins_character(state->pending_text.data, state->pending_text.n))
        return file_malformed(file, "pending text does not begin a character", err);
    p = session_snapshot_new(state->sampler.n / SEEN_BYTES);
    if (!p) return rod_fail_no_memory(err);
    p->n_tok = state->n_tok;
    p->token_hash = state->token_hash;
    p->seed = state->seed;
    p->pending = pending;
    p->n_held = (uint32_t)state->pending_text.n;
    if (p->n_held) memcpy(p->held, state->pending_text.data, p->n_held);
    const unsigned char *at = state->sampler.data;
    int64_t last = -1;
    for (size_t i = 0; i < p->n_seen; i++, at += SEEN_BYTES) {
        const uint64_t id = bytes_get(at, 4);
        if ((int64_t)id <= last || id >= form->V) {
            session_snapshot_release(p);
            return file_malformed(file, "generated ids unordered or outside the vocabulary", err);
        }
        p->seen[i] = (struct session_seen){(int32_t)id, (uint32_t)bytes_get(at + 4, 4)};
        last = (int64_t)id;
    }
    assert(!p->buffer && p->n_held < sizeof p->held);
    *out = p;
    return 0;
}

int session_file_read(const struct state_form *form, const struct state_file *state, const char *file,
                      struct session_metadata *f, struct session_snapshot **snapshot, struct session_answers **answers,
                      struct rod_error *err) {
    *f = (struct session_metadata){.version = state->version,
                                   .n_tok = state->n_tok,
                                   .pending = state_file_n_ids(state) != 0,
                                   .state_bytes = (uint64_t)state->payload.n};
    *snapshot = NULL;
    *answers = NULL;
    int rc = file_read_meta(state, file, f, answers, err);
    if (!rc) rc = file_read_snapshot(form, state, file, snapshot, err);
    if (rc) {
        session_answers_release(*answers);
        *answers = NULL;
    }
    return rc;
}
