/* conversation_file.c - see conversation_file.h. */
#include "conversation_file.h"
#include "engine/base/fail.h"
#include "engine/state/state_read.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_END ".state"
static const char kinds[] = "hpqa"; /* q: a prompt with an answer before its end */

static char letter_of(const struct conversation_place *p) {
    if (p->kind == CONVERSATION_HEAD) return kinds[0];
    return p->kind == CONVERSATION_ANSWER ? kinds[3] : kinds[p->generated ? 2 : 1];
}

void conversation_file_name(const struct conversation_place *p, char name[CONVERSATION_NAME_BYTES]) {
    const int n = snprintf(name, CONVERSATION_NAME_BYTES,
                           "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 "-%" PRIu32 "-%" PRIu64 "-%c" FILE_END, p->lane,
                           p->tokens.high, p->tokens.low, p->turn, p->n_tok, letter_of(p));
    assert(n > 0 && n < CONVERSATION_NAME_BYTES);
}

bool conversation_file_parse(const char *name, struct conversation_place *out) {
    char kind = 0, again[CONVERSATION_NAME_BYTES];
    *out = (struct conversation_place){0};
    if (strlen(name) >= CONVERSATION_NAME_BYTES) return false;
    if (sscanf(name, "%16" SCNx64 "-%16" SCNx64 "%16" SCNx64 "-%" SCNu32 "-%" SCNu64 "-%c", &out->lane,
               &out->tokens.high, &out->tokens.low, &out->turn, &out->n_tok, &kind) != 6)
        return false;
    const char *at = memchr(kinds, kind, sizeof kinds - 1);
    if (!at || !out->n_tok) return false;
    out->kind = *at == 'h' ? CONVERSATION_HEAD : *at == 'a' ? CONVERSATION_ANSWER : CONVERSATION_PROMPT;
    out->generated = at >= kinds + 2;
    conversation_file_name(out, again);
    return !strcmp(again, name);
}

/* With a payload to come. */
static struct state_file file_of(const struct state_form *form, const struct conversation_place *place,
                                 char name[CONVERSATION_NAME_BYTES]) {
    conversation_file_name(place, name);
    struct state_file state = {.n_tok = place->n_tok,
                               .token_hash = place->tokens.low,
                               .layout = {form->layout, strlen(form->layout)},
                               .meta = {name, strlen(name)}};
    memcpy(state.fingerprint, form->fingerprint, sizeof state.fingerprint);
    return state;
}

uint64_t conversation_file_bytes(const struct state_form *form, const struct conversation_place *place) {
    char name[CONVERSATION_NAME_BYTES];
    const struct state_file state = file_of(form, place, name);
    return state_file_header_bytes(&state) + form->state_bytes(form->arg, place->n_tok);
}

int conversation_file_write(const struct state_form *form, const struct conversation_place *place,
                            const struct state_buffer *buffer, void **header, size_t *n_header, struct rod_error *err) {
    char name[CONVERSATION_NAME_BYTES];
    struct state_file state = file_of(form, place, name);
    state.payload = (struct state_bytes){buffer->bytes, buffer->n_bytes};
    *n_header = state_file_header_bytes(&state);
    *header = *n_header ? malloc(*n_header) : NULL;
    if (!*header) return rod_fail_no_memory(err);
    state_file_write_header(&state, *header);
    return 0;
}

int conversation_file_check(const struct state_form *form, const struct state_file *state, const char *name,
                            const struct conversation_place *place, struct rod_error *err) {
    const char *fault = NULL;
    if (state->meta.n != strlen(name) || memcmp(state->meta.data, name, state->meta.n) != 0)
        fault = "is another conversation's state";
    else if (state->n_tok != place->n_tok || state->token_hash != place->tokens.low)
        fault = "has read other tokens than its name says";
    else if (state->version || state->seed || state->pending_text.n || state->pending_ids.n || state->sampler.n)
        fault = "has parts of a session";
    else if (state->apart || state->payload.n != form->state_bytes(form->arg, state->n_tok))
        fault = "has no whole state";
    return fault ? rod_fail(err, ROD_ESTATE, "%.150s: the file %s.", name, fault) : 0;
}

int conversation_file_read(const struct state_form *form, const struct state_home *home,
                           const struct conversation_place *place, const struct state_buffer *buffer,
                           struct state_disk_version *version, struct rod_error *err) {
    const struct state_file_expected here = {form->fingerprint, form->layout};
    char name[CONVERSATION_NAME_BYTES];
    struct state_home_file f;
    struct state_file state;
    void *header = NULL;
    size_t n = 0, got = 0;
    conversation_file_name(place, name);
    int rc = state_home_open(home, name, NULL, &f, err);
    if (rc) return rc;
    if (version) *version = f.version;
    rc = state_read_header(&f, name, &header, &n, err);
    if (!rc) rc = state_file_parse_header(header, n, f.version.n_bytes, name, &here, &state, err);
    if (!rc) rc = conversation_file_check(form, &state, name, place, err);
    if (!rc && state.payload.n != buffer->n_bytes)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: a state of %zu bytes", name, state.payload.n);
    if (!rc) rc = state_home_get(&f, buffer->bytes, buffer->n_bytes, &got, err);
    if (!rc) rc = state_file_check_payload(header, &(struct state_bytes){buffer->bytes, got}, name, err);
    state_home_close(&f);
    free(header);
    return rc;
}
