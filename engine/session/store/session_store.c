/* session_store.c - see session_store.h. */
#include "session_store.h"
#include "engine/base/fail.h"
#include "engine/state/state_read.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_END ".state"
#define BASE_END ".base"
enum { MOST_WRITES = 64 };

char *session_store_file(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], const char *end,
                         char text[SESSION_FILE_NAME_BYTES]) {
    char *at = text;
    for (int i = 0; i < SESSION_NAME_BYTES; i++, at += 2) {
        if (i == SESSION_NAME_HALF_BYTES && store->home.fenced) *at++ = '/';
        snprintf(at, 3, "%02x", name[i]);
    }
    snprintf(at, (size_t)(text + SESSION_FILE_NAME_BYTES - at), "%s", end);
    return text;
}

char *session_store_name(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         char text[SESSION_FILE_NAME_BYTES]) {
    return session_store_file(store, name, FILE_END, text);
}

const char *session_store_parse_file(const struct session_store *store, const char *file,
                                     uint8_t name[SESSION_NAME_BYTES]) {
    for (int i = 0; i < SESSION_NAME_BYTES; i++, file += 2) {
        if (i == SESSION_NAME_HALF_BYTES && store->home.fenced && *file++ != '/') return NULL;
        const char two[3] = {file[0], file[0] ? file[1] : 0, 0};
        if (strspn(two, "0123456789abcdef") != 2) return NULL;
        name[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return file;
}

static bool store_parse_name(const struct session_store *store, const char *file, const char *end,
                             uint8_t name[SESSION_NAME_BYTES]) {
    const char *rest = session_store_parse_file(store, file, name);
    return rest && !strcmp(rest, end);
}

bool session_store_parse_name(const struct session_store *store, const char *file, uint8_t name[SESSION_NAME_BYTES]) {
    return store_parse_name(store, file, FILE_END, name);
}

/* header: all of it, n bytes; a shorter one is refused by its reader. */
static struct session_file_version store_file_version(const struct state_disk_version *s, const void *header,
                                                      size_t n) {
    struct session_file_version file_version = {.inode = s->inode,
                                                .mtime_ns = s->mtime_ns,
                                                .n_bytes = s->n_bytes,
                                                .disk_bytes = s->disk_bytes + SESSION_ENTRY_BYTES};
    static_assert(sizeof file_version.etag == sizeof s->etag, "one is the other");
    memcpy(file_version.etag, s->etag, sizeof s->etag);
    if (n < STATE_FILE_MIN_BYTES) return file_version;
    file_version.version = state_file_peek_version(header);
    file_version.check = state_file_peek_check((const unsigned char *)header + n - STATE_FILE_CHECK_BYTES);
    return file_version;
}

int session_store_stat(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       struct session_file_version *file_version, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    unsigned char start[STATE_FILE_FIXED_BYTES], check[STATE_FILE_CHECK_BYTES];
    struct state_home_file f;
    size_t n;
    uint64_t n_header, n_file;
    if (store->home.fenced) return session_store_glance(store, name, file_version, err);
    int rc = state_home_open(&store->home, session_store_name(store, name, text), NULL, &f, err);
    if (rc) return rc;
    *file_version = store_file_version(&f.version, NULL, 0);
    rc = state_home_get(&f, start, sizeof start, &n, err);
    if (!rc && !state_file_measure(start, n, text, &n_header, &n_file, NULL)) { /* else its reader says what it is */
        state_home_seek(&f, n_header - sizeof check);
        rc = state_home_get(&f, check, sizeof check, &n, err);
        file_version->version = state_file_peek_version(start);
        if (!rc && n == sizeof check) file_version->check = state_file_peek_check(check);
    }
    state_home_close(&f);
    return rc;
}

int session_store_glance(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         struct session_file_version *file_version, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version found;
    const int rc = state_home_stat(&store->home, session_store_name(store, name, text), &found, err);
    if (!rc) *file_version = store_file_version(&found, NULL, 0);
    return rc;
}

void session_store_touch(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], int64_t now_s) {
    char text[SESSION_FILE_NAME_BYTES];
    state_home_touch(&store->home, session_store_name(store, name, text), now_s);
}

/* ---- reading ---- */

static struct state_file_expected store_expected(const struct session_store *store) {
    return (struct state_file_expected){store->form->fingerprint, store->form->layout};
}

void session_read_fini(struct session_read *r) {
    session_snapshot_release(r->snapshot);
    session_answers_release(r->answers);
    r->snapshot = NULL;
    r->answers = NULL;
}

/* A state that is apart is the end of the base. header: the one that has its check. */
static int store_read_base(const struct session_store *store, const char *file, const uint8_t name[SESSION_NAME_BYTES],
                           bool with_state, const void *header, size_t n_payload, struct session_read *out,
                           struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_home_file base;
    int rc = state_home_open(&store->home, session_store_file(store, name, BASE_END, text), NULL, &base, err);
    if (rc == ROD_ENOTFOUND)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: the file of its state, %.150s, is missing", file, text);
    if (rc) return rc;
    out->file_version.base_inode = base.version.inode;
    out->file_version.base_bytes = base.version.disk_bytes + SESSION_ENTRY_BYTES; /* as the source's file counts */
    if (base.version.n_bytes < n_payload)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: truncated: the file has %llu bytes, the state %zu", text,
                      (unsigned long long)base.version.n_bytes, n_payload);
    if (!rc && with_state) {
        state_home_seek(&base, base.version.n_bytes - n_payload);
        rc = state_read_payload(&base, text, header, n_payload, store->pool, &out->snapshot->buffer, err);
    }
    state_home_close(&base);
    return rc;
}

/* f: open behind the header, NULL: the state is not wanted. name NULL: whatever its name is, with its state in it. */
static int store_read_parts(const struct session_store *store, struct state_home_file *f,
                            const struct state_disk_version *version, const char *file,
                            const uint8_t name[SESSION_NAME_BYTES], const struct state_bytes *header,
                            struct session_read *out, struct rod_error *err) {
    struct state_file state;
    const struct state_file_expected here = store_expected(store);
    out->file_version = store_file_version(version, header->data, header->n);
    int rc = state_file_parse_header(header->data, header->n, version->n_bytes, file, &here, &state, err);
    if (!rc) rc = session_file_read(store->form, &state, file, &out->metadata, &out->snapshot, &out->answers, err);
    if (!rc && !store->home.fenced && session_file_version_used_s(&out->file_version) > out->metadata.used_s)
        out->metadata.used_s = session_file_version_used_s(&out->file_version);
    if (!rc && name && !session_names_fit(store->names, out->metadata.tenant, out->metadata.id, name))
        rc = rod_fail(err, ROD_ESTATE, "%.150s: the header names another session", file);
    if (!rc && state.apart && name)
        return store_read_base(store, file, name, f, header->data, state.payload.n, out, err);
    if (!rc && f && state.n_tok) { /* a device may have states of no bytes: they are states all the same */
        rc = state_read_payload(f, file, header->data, state.payload.n, store->pool, &out->snapshot->buffer, err);
        out->changed = rc == ROD_ESTATE;
    }
    return rc;
}

/* A header tells whether it is complete. What has none may be of another format. */
static bool store_has_changed_header(const struct session_store *store, const char *file,
                                     const struct state_disk_version *version, const struct state_bytes *header) {
    const struct state_file_expected any = {0};
    unsigned char start[STATE_FILE_FIXED_BYTES];
    struct state_disk_version now;
    struct state_file state;
    size_t n;
    if (header->data)
        return state_file_parse_header(header->data, header->n, version->n_bytes, file, &any, &state, NULL) != 0;
    return state_home_peek(&store->home, file, start, sizeof start, &n, &now, NULL) || n < sizeof start ||
           !state_file_peek_foreign(start);
}

/* known: NULL, or an object's version that need not be read again. */
static int store_read_file(const struct session_store *store, const char *file, const uint8_t name[SESSION_NAME_BYTES],
                           bool with_state, const struct state_disk_version *known, struct session_read *out,
                           struct rod_error *err) {
    struct state_home_file f = {0};
    struct state_bytes header = {0};
    void *bytes = NULL;
    *out = (struct session_read){0};
    int rc = with_state ? state_home_open(&store->home, file, known, &f, err) : 0;
    if (rc) out->file_version = store_file_version(&f.version, NULL, 0);
    if (rc) return rc;
    out->unchanged = f.unchanged;
    if (f.unchanged) return 0;
    rc = with_state ? state_read_header(&f, file, &bytes, &header.n, err)
                    : state_peek_header(&store->home, file, &bytes, &header.n, &f.version, err);
    header.data = bytes;
    if (!rc)
        rc = store_read_parts(store, with_state ? &f : NULL, &f.version, file, name, &header, out, err);
    else /* what has no header is looked at once, too */
        out->file_version = store_file_version(&f.version, NULL, 0);
    if (rc == ROD_ESTATE && store->home.fenced && !out->changed)
        out->changed = store_has_changed_header(store, file, &f.version, &header);
    free(bytes);
    if (with_state) state_home_close(&f);
    if (rc) session_read_fini(out);
    return rc;
}

/* The file that was read is not the session's any more: a turn ended between the reads of a fork's two files. */
static bool store_has_changed(const struct session_store *store, const char *file,
                              const struct session_file_version *read) {
    struct state_disk_version now;
    return state_home_stat(&store->home, file, &now, NULL) || now.inode != read->inode ||
           now.mtime_ns != read->mtime_ns || now.n_bytes != read->n_bytes;
}

int session_store_read(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], bool with_state,
                       struct session_read *out, struct rod_error *err) {
    enum { TRIES = 100 };
    char text[SESSION_FILE_NAME_BYTES];
    int rc = 0;
    session_store_name(store, name, text);
    for (int i = 0; i < TRIES; i++) {
        rc = store_read_file(store, text, name, with_state, NULL, out, err);
        if (rc != ROD_ESTATE || (store->home.fenced && (i || !out->changed))) break;
        if (!store->home.fenced && !store_has_changed(store, text, &out->file_version)) break;
    }
    return rc;
}

int session_store_read_new(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *known, struct session_read *out, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version = {0};
    assert(store->home.fenced);
    memcpy(version.etag, known->etag, sizeof version.etag);
    session_store_name(store, name, text);
    const int rc = store_read_file(store, text, name, true, &version, out, err);
    const bool again = rc == ROD_ESTATE && out->changed; /* on the way, perhaps */
    return again ? store_read_file(store, text, name, true, &version, out, err) : rc;
}

int session_store_read_any(const struct session_store *store, const char *file, struct session_read *out,
                           struct rod_error *err) {
    return store_read_file(store, file, NULL, true, NULL, out, err);
}

int session_store_read_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct session_read read;
    const int rc = store_read_file(store, session_store_name(store, name, text), NULL, false, NULL, &read, err);
    *metadata = read.metadata;
    session_read_fini(&read);
    return rc;
}

/* A file's header; the sections of *state point into *header. */
static int store_peek(const struct session_store *store, const char *file, const struct state_file_expected *expected,
                      struct state_file *state, void **header, struct session_file_version *file_version,
                      struct rod_error *err) {
    size_t n_header = 0;
    struct state_disk_version version;
    int rc = state_peek_header(&store->home, file, header, &n_header, &version, err);
    if (!rc) rc = state_file_parse_header(*header, n_header, version.n_bytes, file, expected, state, err);
    if (!rc) *file_version = store_file_version(&version, *header, n_header);
    return rc;
}

int session_store_peek_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_file state;
    struct session_file_version version;
    const struct state_file_expected any = {0};
    void *header = NULL;
    int rc = store_peek(store, session_store_name(store, name, text), &any, &state, &header, &version, err);
    if (!rc) rc = session_file_read_metadata(&state, text, metadata, err);
    free(header);
    return rc;
}

int session_store_parse(const struct session_store *store, const void *bytes, size_t n, const char *file,
                        struct session_read *out, struct rod_error *err) {
    struct state_file state;
    const struct state_file_expected here = store_expected(store);
    *out = (struct session_read){0};
    int rc = state_file_parse(bytes, n, file, &here, &state, err);
    if (!rc) rc = session_file_read(store->form, &state, file, &out->metadata, &out->snapshot, &out->answers, err);
    if (rc || !state.n_tok) return rc;
    out->snapshot->buffer = state_buffer_new(store->pool, state.payload.n);
    if (out->snapshot->buffer) {
        if (state.payload.n) memcpy(out->snapshot->buffer->bytes, state.payload.data, state.payload.n);
        return 0;
    }
    session_read_fini(out);
    return rod_fail(err, ROD_ENOROOM, "Host memory has no room for a state of %zu bytes.", state.payload.n);
}

/* ---- writing ---- */

static int store_render(const struct session_store *store, const struct session_write *w, struct state_bytes parts[2],
                        struct rod_error *err) {
    void *header = NULL;
    size_t n_header = 0;
    const int rc = session_file_write(store->form, w->metadata, w->snapshot, w->answers,
                                      w->apart ? &w->payload_check : NULL, &header, &n_header, err);
    assert(!rc == (header != NULL));
    parts[0] = (struct state_bytes){header, n_header};
    parts[1] = (struct state_bytes){NULL, 0};
    if (w->snapshot->buffer && !w->apart)
        parts[1] = (struct state_bytes){w->snapshot->buffer->bytes, session_snapshot_bytes(w->snapshot)};
    return rc;
}

/* The session's file is complete, or was not made: it needs no base. */
static void store_drop_base(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]) {
    char text[SESSION_FILE_NAME_BYTES];
    if (!store->home.fenced) state_home_drop(&store->home, session_store_file(store, name, BASE_END, text));
}

static void store_finish_write(const struct session_store *store, struct session_write *w,
                               const struct state_disk_item *item, const struct state_bytes *header) {
    const struct session_file_version base = w->file_version;
    assert(!w->rc && (item->in_place || item->rc)); /* a write that is reported is in place */
    w->rc = item->rc;
    w->in_place = item->in_place;
    w->err = item->err;
    w->file_version = store_file_version(&item->version, header->data, header->n);
    if (w->apart) {
        w->file_version.base_inode = base.base_inode;
        w->file_version.base_bytes = base.base_bytes;
    }
    if (w->apart ? !w->in_place : !w->rc) store_drop_base(store, w->name);
    if (w->rc == ROD_EEXISTS || w->rc == ROD_ECONFLICT || (w->rc == ROD_ENOTFOUND && w->replaces))
        w->rc = rod_fail(&w->err, ROD_ECONFLICT,
                         "Another server changed session %.64s in between. Nothing of this request is kept: repeat it.",
                         w->metadata->id);
}

static void store_write_batch(const struct session_store *store, struct session_write *writes, size_t n) {
    char names[MOST_WRITES][SESSION_FILE_NAME_BYTES];
    struct state_bytes parts[MOST_WRITES][2];
    struct state_disk_item items[MOST_WRITES];
    struct session_write *of[MOST_WRITES];
    size_t n_items = 0;
    assert(n <= MOST_WRITES);
    for (size_t i = 0; i < n; i++) {
        struct session_write *w = &writes[i];
        if (!w->rc) w->rc = store_render(store, w, parts[n_items], &w->err);
        if (w->rc && w->apart) store_drop_base(store, w->name);
        if (w->rc) continue;
        items[n_items] = (struct state_disk_item){
            .name = session_store_name(store, w->name, names[n_items]), .parts = parts[n_items], .n_parts = 2};
        if (store->home.fenced && w->replaces) {
            items[n_items].only_new = !w->replaces->n_bytes;
            items[n_items].replaces = w->replaces->etag;
        }
        of[n_items++] = w;
    }
    state_home_write(&store->home, items, n_items);
    for (size_t i = 0; i < n_items; i++) {
        store_finish_write(store, of[i], &items[i], &parts[i][0]);
        free((void *)(uintptr_t)parts[i][0].data);
    }
}

void session_store_write(const struct session_store *store, struct session_write *writes, size_t n) {
    for (size_t i = 0; i < n; i += MOST_WRITES)
        store_write_batch(store, writes + i, n - i < MOST_WRITES ? n - i : MOST_WRITES);
}

int session_store_export(const struct session_store *store, const struct session_write *w, void **bytes, size_t *n,
                         struct rod_error *err) {
    struct state_bytes parts[2];
    int rc = store_render(store, w, parts, err);
    if (rc) return rc;
    unsigned char *all = malloc(parts[0].n + parts[1].n);
    if (all) {
        memcpy(all, parts[0].data, parts[0].n);
        if (parts[1].n) memcpy(all + parts[0].n, parts[1].data, parts[1].n);
        *bytes = all;
        *n = parts[0].n + parts[1].n;
    } else {
        rc = rod_fail_no_memory(err);
    }
    free((void *)(uintptr_t)parts[0].data);
    return rc;
}

int session_store_remove(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         const struct session_file_version *known, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version = {0};
    if (known) memcpy(version.etag, known->etag, sizeof version.etag);
    int rc = state_home_remove(&store->home, session_store_name(store, name, text), &version, err);
    if (rc == ROD_ECONFLICT)
        rc = rod_fail(err, rc, "Another server changed the session in between: repeat the request.");
    if (!rc) store_drop_base(store, name); /* else the file may still need it */
    return rc;
}

/* ---- forks ---- */

/* The sections of *state point nowhere afterwards. */
static int store_open_header(const struct session_store *store, const char *file, struct state_file *state,
                             struct session_file_version *file_version, struct rod_error *err) {
    const struct state_file_expected here = store_expected(store);
    void *header = NULL;
    const int rc = store_peek(store, file, &here, state, &header, file_version, err);
    free(header);
    return rc;
}

static int store_other_version(const char *file, struct rod_error *err) {
    return rod_fail(err, ROD_EVERSION, "%.150s has another version by now", file);
}

/* The source may have its next turn, or be removed, between any two lines. So the file that the new name stands for is
 * checked at the end: any file with the right check is right. */
int session_store_link(const struct session_store *store, const uint8_t from[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct session_write *w,
                       struct rod_error *err) {
    char source[SESSION_FILE_NAME_BYTES], base[SESSION_FILE_NAME_BYTES];
    struct state_file state, linked;
    struct session_file_version found, of_base;
    if (store->home.fenced) return rod_fail(err, ROD_EUNSUPPORTED, "an object has one name");
    int rc = store_open_header(store, session_store_name(store, from, source), &state, &found, err);
    if (!rc && !session_file_version_same(&found, file_version)) rc = store_other_version(source, err);
    if (!rc && !state.payload.n) rc = rod_fail(err, ROD_EUNSUPPORTED, "%.150s has no state to share", source);
    if (rc) return rc;
    session_store_file(store, w->name, BASE_END, base);
    if (state.apart) session_store_file(store, from, BASE_END, source);
    rc = state_home_copy(&store->home, source, NULL, base, err);
    if (rc) return rc;
    rc = store_open_header(store, base, &linked, &of_base, err);
    if (!rc && (linked.apart || linked.payload.n != state.payload.n || linked.payload_check != state.payload_check ||
                linked.payload.n != session_snapshot_bytes(w->snapshot)))
        rc = store_other_version(source, err);
    if (rc) {
        store_drop_base(store, w->name);
        return rc;
    }
    assert(!w->apart && of_base.inode);
    w->apart = true;
    w->payload_check = state.payload_check;
    w->file_version = (struct session_file_version){.base_inode = of_base.inode, .base_bytes = of_base.disk_bytes};
    return 0;
}

/* The session's file is there and needs the base, or cannot be read now. */
static bool store_base_needed(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]) {
    char text[SESSION_FILE_NAME_BYTES];
    unsigned char start[STATE_FILE_FIXED_BYTES];
    struct state_disk_version version;
    size_t n = 0;
    const int rc =
        state_home_peek(&store->home, session_store_name(store, name, text), start, sizeof start, &n, &version, NULL);
    uint64_t n_header, n_file;
    if (rc) return rc != ROD_ENOTFOUND;
    return state_file_measure(start, n, text, &n_header, &n_file, NULL) || state_file_peek_apart(start);
}

/* ---- lists ---- */

struct store_found {
    const struct session_store *store;
    const char *end;
    void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]);
    void *arg;
};

static void store_found_file(void *arg, const char *file, const struct state_disk_version *version) {
    const struct store_found *f = arg;
    uint8_t name[SESSION_NAME_BYTES];
    (void)version;
    if (store_parse_name(f->store, file, f->end, name)) f->found(f->arg, name);
}

static void store_found_left(void *arg, const char *file, const struct state_disk_version *version) {
    const struct store_found *f = arg;
    uint8_t name[SESSION_NAME_BYTES];
    (void)version;
    if (store_parse_name(f->store, file, f->end, name) && !store_base_needed(f->store, name)) f->found(f->arg, name);
}

void session_store_list_left(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg) {
    struct store_found bases = {store, BASE_END, found, arg};
    bool more;
    state_home_list(&store->home, "", "", store_found_left, &bases, &more, NULL);
}

void session_store_remove_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]) {
    if (!store_base_needed(store, name)) store_drop_base(store, name);
}

/* Of a fenced home its first page, which has one if there is any. */
int session_store_list(const struct session_store *store,
                       void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg,
                       struct rod_error *err) {
    struct store_found files = {store, FILE_END, found, arg};
    bool more;
    return state_home_list(&store->home, "", "", store_found_file, &files, &more, err);
}
