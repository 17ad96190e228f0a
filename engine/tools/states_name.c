/* states_name.c - what the names of states say, in a folder and in a store: pure. */
#include "states_internal.h"
#include "engine/conversation/conversation_file.h"
#include "engine/conversation/conversation_notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_DIGITS = 16, MODEL_DIGITS = 32 };

bool states_is_kept(const char *end, uint64_t *version) {
    if (*end != '.' || strspn(end + 1, STATES_HEXADECIMAL) != VERSION_DIGITS) return false;
    *version = strtoull(end + 1, NULL, 16);
    return !strcmp(end + 1 + VERSION_DIGITS, ".kept");
}

static bool digits_then(const char *text, size_t n, char end) {
    return strspn(text, STATES_HEXADECIMAL) == n && text[n] == end;
}

static bool session_kind(const char *rest, struct rod_state_file *out) {
    uint64_t version;
    if (!digits_then(rest, STATES_HALF_DIGITS, '/') ||
        !digits_then(rest + STATES_HALF_DIGITS + 1, STATES_HALF_DIGITS, '.'))
        return false;
    const char *end = rest + 2 * STATES_HALF_DIGITS + 1;
    snprintf(out->tenant, sizeof out->tenant, "%.*s", STATES_HALF_DIGITS, rest);
    out->kind = !strcmp(end, ".state") ? ROD_STATE_SESSION : !strcmp(end, ".lazy") ? ROD_STATE_MARK : ROD_STATE_KEPT;
    return out->kind != ROD_STATE_KEPT || states_is_kept(end, &version);
}

static bool conversation_kind(const char *rest, struct rod_state_file *out) {
    struct conversation_place place;
    if (!digits_then(rest, STATES_HALF_DIGITS, '/') ||
        !digits_then(rest + STATES_HALF_DIGITS + 1, STATES_HALF_DIGITS, '/'))
        return false;
    const char *file = rest + 2 * (STATES_HALF_DIGITS + 1);
    snprintf(out->tenant, sizeof out->tenant, "%.*s", STATES_HALF_DIGITS, rest);
    out->kind = strcmp(file, CONVERSATION_NOTES_FILE) ? ROD_STATE_CONVERSATION : ROD_STATE_NOTES;
    return out->kind == ROD_STATE_NOTES || conversation_file_parse(file, &place);
}

bool states_take_name(const char *name, struct rod_state_file *out) {
    const char *model = name + strlen(STATES_LAYOUT);
    *out = (struct rod_state_file){0};
    if (strncmp(name, STATES_LAYOUT, strlen(STATES_LAYOUT)) != 0 || !digits_then(model, MODEL_DIGITS, '/'))
        return false;
    const char *folder = model + MODEL_DIGITS + 1, *rest = *folder ? folder + 2 : folder,
               *last = strrchr(name, '/') + 1;
    if (!*folder || folder[1] != '/' || !*last || strlen(name) >= sizeof out->name) return false;
    memcpy(out->name, name, strlen(name) + 1);
    snprintf(out->fingerprint, sizeof out->fingerprint, "%.*s", MODEL_DIGITS, model);
    if (*folder == 's') return session_kind(rest, out);
    if (*folder == 'c') return conversation_kind(rest, out);
    out->kind = ROD_STATE_PINNED;
    return *folder == 'p';
}
