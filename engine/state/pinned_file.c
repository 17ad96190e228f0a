/* pinned_file.c - see pinned_file.h. */
#include "pinned_file.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

#define MARK "PREFIX\1" /* and its NUL */
enum { META_FIXED = sizeof MARK + 8, ID_BYTES = 4 };

bool pinned_is_id(const char *id) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(id);
    return n && n <= PINNED_MAX_ID && *id != '.' && strspn(id, allowed) == n && !strstr(id, ".tmp-");
}

struct pinned_prefix *pinned_prefix_new(const char *id, const int32_t *ids, size_t n_tok) {
    struct pinned_prefix *p = calloc(1, sizeof *p + n_tok * sizeof *ids);
    if (!p) return NULL;
    memcpy(p->id, id, strlen(id) + 1);
    p->n_tok = n_tok;
    if (ids) memcpy(p->ids, ids, n_tok * sizeof *ids);
    return p;
}

void pinned_prefix_free(struct pinned_prefix *p) {
    if (!p) return;
    state_buffer_release(p->buffer);
    free(p);
}

int pinned_file_write(const struct state_form *form, const struct pinned_prefix *p, void **header, size_t *n_header,
                      struct rod_error *err) {
    unsigned char meta[META_FIXED + PINNED_MAX_ID] = MARK;
    const size_t n_id = strlen(p->id);
    bytes_put(meta + sizeof MARK, (uint64_t)p->created_unix_s, 8);
    memcpy(meta + META_FIXED, p->id, n_id);
    unsigned char *ids = malloc(p->n_tok * ID_BYTES);
    if (!ids) return rod_fail_no_memory(err);
    for (size_t i = 0; i < p->n_tok; i++) bytes_put(ids + i * ID_BYTES, (uint32_t)p->ids[i], ID_BYTES);
    struct state_file state = {.n_tok = p->n_tok,
                               .token_hash = state_file_hash_tokens(0, p->ids, p->n_tok),
                               .layout = {form->layout, strlen(form->layout)},
                               .pending_ids = {ids, p->n_tok * ID_BYTES},
                               .meta = {meta, META_FIXED + n_id},
                               .payload = {p->buffer->bytes, p->buffer->n_bytes}};
    memcpy(state.fingerprint, form->fingerprint, sizeof state.fingerprint);
    *n_header = state_file_header_bytes(&state);
    *header = *n_header ? malloc(*n_header) : NULL;
    if (*header) state_file_write_header(&state, *header);
    free(ids);
    return *header ? 0 : rod_fail_no_memory(err);
}

/* NULL: it is a prefix's. */
static const char *file_fault(const struct state_form *form, const struct state_file *state) {
    const unsigned char *meta = state->meta.data;
    if (state->meta.n <= META_FIXED || memcmp(meta, MARK, sizeof MARK) != 0) return "is not the file of a prefix";
    if (state->meta.n > META_FIXED + PINNED_MAX_ID) return "has an id that is too long";
    if (state->version || state->seed || state->pending_text.n || state->sampler.n) return "has parts of a session";
    if (!state->n_tok || state->n_tok % form->chunk_tok) return "ends between two chunks of a prompt";
    if (state->n_tok != state_file_n_ids(state)) return "has another number of tokens than its state";
    if (state->apart || state->payload.n != form->state_bytes(form->arg, state->n_tok)) return "has no whole state";
    return NULL;
}

int pinned_file_read(const struct state_form *form, const struct state_file *state, const char *file,
                     struct pinned_prefix **out, struct rod_error *err) {
    char id[PINNED_MAX_ID + 1] = "";
    const char *fault = file_fault(form, state);
    if (!fault) memcpy(id, (const char *)state->meta.data + META_FIXED, state->meta.n - META_FIXED);
    if (!fault && (strlen(id) != state->meta.n - META_FIXED || !pinned_is_id(id))) fault = "has a malformed id";
    if (fault) return rod_fail(err, ROD_ESTATE, "%.180s: the file %s.", file, fault);
    struct pinned_prefix *p = pinned_prefix_new(id, NULL, (size_t)state->n_tok);
    if (!p) return rod_fail_no_memory(err);
    p->created_unix_s = (int64_t)bytes_get((const unsigned char *)state->meta.data + sizeof MARK, 8);
    for (size_t i = 0; i < p->n_tok && !fault; i++) {
        p->ids[i] = state_file_id(state, (uint32_t)i);
        if (p->ids[i] < 0 || (uint32_t)p->ids[i] >= form->V) fault = "has a token that is outside the vocabulary";
    }
    if (!fault && state_file_hash_tokens(0, p->ids, p->n_tok) != state->token_hash)
        fault = "has other tokens than its state has read";
    if (!fault) {
        *out = p;
        return 0;
    }
    pinned_prefix_free(p);
    return rod_fail(err, ROD_ESTATE, "%.180s: the file %s.", file, fault);
}
