/* states_convert.c - a session's file in other formats, as a new file. */
#include "states_internal.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/session/store/session_file.h"
#include "engine/state/state_convert.h"
#include "engine/state/state_disk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int convert_choose(const char *field, const char *asked, unsigned there, enum dtype *type,
                          struct rod_error *err) {
    if (!asked || !*asked) return 0;
    for (int i = 0; i < N_DTYPES; i++)
        if (there >> i & 1 && !strcmp(asked, dtype_name((enum dtype)i))) {
            *type = (enum dtype)i;
            return 0;
        }
    return rod_fail_at(err, ROD_EINVALID, field, "%s: no such state is in \"%.20s\".", field, asked);
}

/* What is not asked for stays, but a window of the activations' type goes with them. */
static int convert_target(const struct rod_states_formats *o, const struct state_layout *from, struct state_layout *to,
                          struct rod_error *err) {
    enum { WIDE = 1 << DTYPE_F32 | 1 << DTYPE_F16 | 1 << DTYPE_BF16 };
    *to = *from;
    int rc = convert_choose("activations", o->activations, WIDE, &to->act, err);
    if (from->window == from->act) to->window = to->act;
    const unsigned windows = 1u << to->act | (from->visible && from->P % 4 == 0 ? 1 << DTYPE_FP8 | 1 << DTYPE_INT8 : 0);
    if (o->window_dtype && !strcmp(o->window_dtype, "auto"))
        to->window = to->act;
    else if (!rc)
        rc = convert_choose("window_dtype", o->window_dtype, windows, &to->window, err);
    if (!rc) rc = convert_choose("state_dtype", o->state_dtype, 1 << DTYPE_F32 | 1 << DTYPE_BF16, &to->S, err);
    return rc;
}

static int convert_write(const char *file, const void *header, size_t n_header, const struct state_bytes *payload,
                         struct rod_error *err) {
    struct state_disk_part *part;
    struct state_disk_version version;
    struct stat any;
    const char *slash = strrchr(file, '/');
    char *dir = slash ? strndup(file, slash == file ? 1 : (size_t)(slash - file)) : strdup(".");
    if (!dir) return rod_fail_no_memory(err);
    int rc = lstat(file, &any) == 0
                 ? rod_fail(err, ROD_EEXISTS, "%.200s is there already", file) /* a pipe, a link too */
                 : state_disk_part_begin(dir, slash ? slash + 1 : file, &part, err);
    free(dir);
    if (rc) return rc;
    rc = state_disk_part_put(part, header, n_header, err);
    if (!rc) rc = state_disk_part_put(part, payload->data, payload->n, err);
    const int ended = state_disk_part_end(part, !rc, &version, rc ? NULL : err);
    return rc ? rc : ended;
}

/* state gets other formats: its layout and payload are changed, and what they were stays the caller's. */
static int convert_state(const struct rod_states_formats *o, const char *file, struct state_file *state, char *id,
                         void **payload, struct rod_error *err) {
    struct state_layout from, to;
    struct session_metadata metadata;
    if (session_file_read_metadata(state, file, &metadata, NULL))
        return rod_fail(err, ROD_ESTATE,
                        "%.150s: no session: pinned prefixes and conversations are read again by a server of the other "
                        "formats",
                        file);
    if (!state_layout_parse(state->layout.data, state->layout.n, &from))
        return rod_fail(err, ROD_ESTATE, "%.150s: this version does not know its layout", file);
    int rc = convert_target(o, &from, &to, err);
    if (!rc && state->n_tok) rc = state_check(&from, state->n_tok, state->payload.data, state->payload.n, err);
    if (rc) return rc;
    const size_t n = state->n_tok ? state_bytes_at(&to, state->n_tok) : 0;
    if (!(*payload = malloc(n + 1))) return rod_fail_no_memory(err);
    if (n) rc = state_convert(&from, &to, state->n_tok, state->payload.data, *payload, err);
    state_layout_id(&to, id);
    state->layout = (struct state_bytes){id, strlen(id)};
    state->payload = (struct state_bytes){*payload, n};
    return rc;
}

static int convert_read(const char *file, struct file_bytes *bytes, struct rod_error *err) {
    const enum file_verdict verdict = file_read(file, FILE_REGULAR_ONLY, (size_t)1 << 40, bytes);
    if (verdict == FILE_READ) return 0;
    return rod_fail(err, verdict == FILE_NO_MEMORY ? ROD_ENOMEM : ROD_EIO, "%.200s cannot be read: %s", file,
                    verdict == FILE_IRREGULAR ? "no regular file" : strerror(bytes->number));
}

/* A fork's state is the end of the file beside its own, SESSION.base for SESSION.state. */
static int convert_read_base(const char *file, const struct file_bytes *bytes, struct file_bytes *base,
                             struct state_file *state, struct rod_error *err) {
    static const struct state_file_expected any;
    static const char own[] = ".state", beside[] = ".base";
    const size_t n = strlen(file), n_own = sizeof own - 1;
    int rc = state_file_parse_header(bytes->data, bytes->n, bytes->n, file, &any, state, err);
    if (!rc && (n <= n_own || strcmp(file + n - n_own, own) != 0))
        rc = rod_fail(err, ROD_ESTATE, "%.200s: its state is in another file; a server gives both as one", file);
    char *path = rc ? NULL : malloc(n + sizeof beside);
    if (!rc && !path) rc = rod_fail_no_memory(err);
    if (rc) return rc;
    memcpy(path, file, n - n_own);
    memcpy(path + n - n_own, beside, sizeof beside);
    rc = convert_read(path, base, err);
    if (!rc && base->n < state->payload.n) rc = rod_fail(err, ROD_ESTATE, "%.200s: too short", path);
    if (!rc) {
        state->payload.data = base->data + (base->n - state->payload.n);
        state->apart = false;
        rc = state_file_check_payload(bytes->data, &state->payload, path, err);
    }
    free(path);
    return rc;
}

static int convert_parse(const char *file, const struct file_bytes *bytes, struct file_bytes *base,
                         struct state_file *state, struct rod_error *err) {
    static const struct state_file_expected any;
    const bool apart = bytes->n >= STATE_FILE_FIXED_BYTES && state_file_peek_apart(bytes->data);
    return apart ? convert_read_base(file, bytes, base, state, err)
                 : state_file_parse(bytes->data, bytes->n, file, &any, state, err);
}

int rod_states_convert(const char *from, const char *to, const struct rod_states_formats *formats,
                       struct rod_error *err) {
    struct file_bytes bytes = {0}, base = {0};
    struct state_file state;
    char id[BACKEND_STATE_ID_BYTES];
    void *payload = NULL, *header = NULL;
    int rc = convert_read(from, &bytes, err);
    if (!rc) rc = convert_parse(from, &bytes, &base, &state, err);
    if (!rc) rc = convert_state(formats, from, &state, id, &payload, err);
    const size_t n_header = rc ? 0 : state_file_header_bytes(&state);
    if (!rc && !n_header) rc = rod_fail(err, ROD_ESTATE, "%.200s: too large a header", from);
    if (!rc && !(header = malloc(n_header))) rc = rod_fail_no_memory(err);
    if (!rc) {
        state_file_write_header(&state, header);
        rc = convert_write(to, header, n_header, &state.payload, err);
    }
    free(header);
    free(payload);
    file_wipe(&base);
    file_wipe(&bytes);
    return rc;
}
