/* fuzz_store.c - what lies in a store, whoever wrote it: the first byte says whether the others are an object's name, a
 * lazy turn's mark or the key of names. What is accepted is what the writer makes. */
#include "engine/base/fail.h"
#include "engine/session/store/session_mark_text.h"
#include "engine/session/store/session_store.h"
#include "engine/tools/states_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_hexadecimal(const char *text, size_t n) {
    if (strspn(text, STATES_HEXADECIMAL) != n || text[n]) abort();
}

/* rodimus states takes it, below the prefix. */
static void whole_name(const char *text) {
    struct rod_state_file file;
    if (!states_take_name(text, &file)) return;
    if (strcmp(file.name, text) != 0) abort();
    check_hexadecimal(file.fingerprint, sizeof file.fingerprint - 1);
    check_hexadecimal(file.tenant, file.kind == ROD_STATE_PINNED ? 0 : sizeof file.tenant - 1);
    if (file.kind == ROD_STATE_PART || file.kind == ROD_STATE_BASE) abort();
}

/* A server takes it, below its model. */
static void own_name(const char *text) {
    const struct session_store store = {.home = {.fenced = true}};
    uint8_t name[SESSION_NAME_BYTES];
    uint64_t version;
    char again[SESSION_FILE_NAME_BYTES];
    const char *end = session_store_parse_file(&store, text, name);
    if (end && (end != text + 2 * SESSION_NAME_BYTES + 1 ||
                strncmp(session_store_file(&store, name, "", again), text, (size_t)(end - text)) != 0))
        abort();
    if (session_store_parse_name(&store, text, name) && strcmp(session_store_name(&store, name, again), text) != 0)
        abort();
    if (session_store_parse_kept(&store, text, name, &version) && strlen(text) >= sizeof again) abort();
}

static void mark(const char *text, size_t n) {
    struct session_mark mark;
    char again[SESSION_MARK_BYTES + 1];
    session_mark_parse("0123456789abcdef", text, n, &mark);
    if (!mark.there) abort();
    if (!mark.version && !mark.ours) return;
    session_mark_write(text + strlen("rodimus lazy 1 "), mark.version, again);
    if (n != SESSION_MARK_BYTES || memcmp(again, text, n) != 0 || mark.ours != !!strstr(text, " 0123456789abcdef "))
        abort();
}

struct bytes {
    const char *bytes;
    size_t n;
};
static int peek(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                struct state_disk_version *version, struct rod_error *err) {
    const struct bytes *b = arg;
    (void)err, (void)name;
    *n_read = b->n < n_bytes ? b->n : n_bytes;
    *version = (struct state_disk_version){.n_bytes = b->n};
    memcpy(dst, b->bytes, *n_read);
    return 0;
}

static void key(const char *text, size_t n) {
    static const struct state_home_calls calls = {.peek = peek};
    struct bytes bytes = {text, n};
    const struct state_home home = {.calls = &calls, .arg = &bytes, .fenced = true};
    struct session_names names;
    struct rod_error err = {0};
    char hexadecimal[2 * SIPHASH_KEY_BYTES + 1];
    session_names_init(&names);
    pthread_mutex_lock(&names.lock);
    const int rc = session_names_read_key_locked(&names, &home, &err);
    pthread_mutex_unlock(&names.lock);
    if (rc ? rc != ROD_ESTATE || !err.message[0] : n < sizeof hexadecimal) abort();
    for (size_t i = 0; i < SIPHASH_KEY_BYTES; i++) snprintf(hexadecimal + 2 * i, 3, "%02x", names.key[i]);
    if (!rc && !strstr(text, hexadecimal)) abort();
    session_names_fini(&names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char *bytes = calloc(1, size);
    memcpy(bytes, data + 1, size - 1);
    switch (data[0]) {
    case 'n':
        whole_name(bytes);
        own_name(bytes);
        break;
    case 'm': mark(bytes, size - 1); break;
    case 'k': key(bytes, size - 1); break;
    default: break;
    }
    free(bytes);
    return 0;
}
