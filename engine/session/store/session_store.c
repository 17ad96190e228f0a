/* session_store.c - see session_store.h. */
#include "session_store.h"
#include "engine/base/fail.h"
#include "engine/state/state_read.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_END ".state"
#define BASE_END ".base"
enum { MOST_WRITES = 64 };

static char *store_file_name(const uint8_t name[SESSION_NAME_BYTES], const char *end,
                             char text[SESSION_FILE_NAME_BYTES]) {
    for (int i = 0; i < SESSION_NAME_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", name[i]);
    memcpy(text + 2 * SESSION_NAME_BYTES, end, strlen(end) + 1);
    return text;
}

char *session_store_name(const uint8_t name[SESSION_NAME_BYTES], char text[SESSION_FILE_NAME_BYTES]) {
    return store_file_name(name, FILE_END, text);
}

static bool store_parse_name(const char *file, const char *end, uint8_t name[SESSION_NAME_BYTES]) {
    char text[SESSION_FILE_NAME_BYTES];
    for (int i = 0; i < SESSION_NAME_BYTES; i++) {
        const char two[3] = {file[2 * i], file[2 * i] ? file[2 * i + 1] : 0, 0};
        if (strspn(two, "0123456789abcdef") != 2) return false;
        name[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return !strcmp(store_file_name(name, end, text), file);
}

bool session_store_parse_name(const char *file, uint8_t name[SESSION_NAME_BYTES]) {
    return store_parse_name(file, FILE_END, name);
}

/* header: all of it, n bytes; a shorter one is refused by its reader. */
static struct session_file_version store_file_version(const struct state_disk_version *s, const void *header,
                                                      size_t n) {
    struct session_file_version file_version = {.inode = s->inode,
                                                .mtime_ns = s->mtime_ns,
                                                .n_bytes = s->n_bytes,
                                                .disk_bytes = s->disk_bytes + SESSION_ENTRY_BYTES};
    if (n < STATE_FILE_MIN_BYTES) return file_version;
    file_version.version = state_file_peek_version(header);
    file_version.check = state_file_peek_check((const unsigned char *)header + n - STATE_FILE_CHECK_BYTES);
    return file_version;
}

int session_store_stat(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       struct session_file_version *file_version, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    unsigned char start[STATE_FILE_FIXED_BYTES], check[STATE_FILE_CHECK_BYTES];
    struct state_disk_file f;
    size_t n;
    uint64_t n_header, n_file;
    int rc = state_disk_open(store->dir, session_store_name(name, text), &f, err);
    if (rc) return rc;
    *file_version = store_file_version(&f.version, NULL, 0);
    rc = state_disk_get(&f, 0, start, sizeof start, &n, err);
    if (!rc && !state_file_measure(start, n, text, &n_header, &n_file, NULL)) { /* else its reader says what it is */
        rc = state_disk_get(&f, n_header - sizeof check, check, sizeof check, &n, err);
        file_version->version = state_file_peek_version(start);
        if (!rc && n == sizeof check) file_version->check = state_file_peek_check(check);
    }
    state_disk_close(&f);
    return rc;
}

int session_store_glance(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         struct session_file_version *file_version, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version found;
    const int rc = state_disk_stat(store->dir, session_store_name(name, text), &found, err);
    if (!rc) *file_version = store_file_version(&found, NULL, 0);
    return rc;
}

void session_store_touch(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], int64_t now_s) {
    char text[SESSION_FILE_NAME_BYTES];
    state_disk_touch(store->dir, session_store_name(name, text), now_s);
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
    struct state_disk_file base;
    int rc = state_disk_open(store->dir, store_file_name(name, BASE_END, text), &base, err);
    if (rc == ROD_ENOTFOUND)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: the file of its state, %.150s, is missing", file, text);
    if (rc) return rc;
    out->file_version.base_inode = base.version.inode;
    out->file_version.base_bytes = base.version.disk_bytes + SESSION_ENTRY_BYTES; /* as the source's file counts */
    if (base.version.n_bytes < n_payload)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: truncated: the file has %llu bytes, the state %zu", text,
                      (unsigned long long)base.version.n_bytes, n_payload);
    if (!rc && with_state)
        rc = state_read_payload(&base, text, header, base.version.n_bytes - n_payload, n_payload, store->pool,
                                &out->snapshot->buffer, err);
    state_disk_close(&base);
    return rc;
}

/* name NULL: whatever its name is, and then its header alone. */
static int store_read_open(const struct session_store *store, struct state_disk_file *f, const char *file,
                           const uint8_t name[SESSION_NAME_BYTES], bool with_state, struct session_read *out,
                           struct rod_error *err) {
    void *header = NULL;
    size_t n_header = 0;
    struct state_file state;
    const struct state_file_expected here = store_expected(store);
    out->file_version = store_file_version(&f->version, NULL, 0); /* also of what has no header: it is looked at once */
    int rc = state_read_header(f, file, &header, &n_header, err);
    if (rc) return rc;
    out->file_version = store_file_version(&f->version, header, n_header);
    rc = state_file_parse_header(header, n_header, f->version.n_bytes, file, &here, &state, err);
    if (!rc) rc = session_file_read(store->form, &state, file, &out->metadata, &out->snapshot, &out->answers, err);
    if (!rc && session_file_version_used_s(&out->file_version) > out->metadata.used_s)
        out->metadata.used_s = session_file_version_used_s(&out->file_version);
    if (!rc && name && !session_names_fit(store->names, out->metadata.tenant, out->metadata.id, name))
        rc = rod_fail(err, ROD_ESTATE, "%.150s: the header names another session", file);
    if (!rc && state.apart && name)
        rc = store_read_base(store, file, name, with_state, header, state.payload.n, out, err);
    else if (!rc && with_state && state.n_tok) /* a device may have states of no bytes: they are states all the same */
        rc = state_read_payload(f, file, header, n_header, state.payload.n, store->pool, &out->snapshot->buffer, err);
    free(header);
    return rc;
}

/* The file that was read is not the session's any more: a turn ended between the reads of a fork's two files. */
static bool store_has_changed(const struct session_store *store, const char *file,
                              const struct session_file_version *read) {
    struct state_disk_version now;
    return state_disk_stat(store->dir, file, &now, NULL) || now.inode != read->inode ||
           now.mtime_ns != read->mtime_ns || now.n_bytes != read->n_bytes;
}

int session_store_read(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], bool with_state,
                       struct session_read *out, struct rod_error *err) {
    enum { TRIES = 100 };
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_file f;
    int rc = 0;
    for (int i = 0; i < TRIES; i++) {
        *out = (struct session_read){0};
        rc = state_disk_open(store->dir, session_store_name(name, text), &f, err);
        if (rc) return rc;
        rc = store_read_open(store, &f, text, name, with_state, out, err);
        state_disk_close(&f);
        if (rc) session_read_fini(out);
        if (rc != ROD_ESTATE || !store_has_changed(store, text, &out->file_version)) break;
    }
    return rc;
}

int session_store_read_any(const struct session_store *store, const char *file, struct session_read *out,
                           struct rod_error *err) {
    struct state_disk_file f;
    *out = (struct session_read){0};
    int rc = state_disk_open(store->dir, file, &f, err);
    if (rc) return rc;
    rc = store_read_open(store, &f, file, NULL, true, out, err);
    state_disk_close(&f);
    if (rc) session_read_fini(out);
    return rc;
}

int session_store_read_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_file f;
    struct session_read read = {0};
    int rc = state_disk_open(store->dir, session_store_name(name, text), &f, err);
    if (rc) return rc;
    rc = store_read_open(store, &f, text, NULL, false, &read, err);
    state_disk_close(&f);
    *metadata = read.metadata;
    session_read_fini(&read);
    return rc;
}

int session_store_peek_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_file f;
    struct state_file state;
    const struct state_file_expected any = {0};
    void *header = NULL;
    size_t n_header = 0;
    int rc = state_disk_open(store->dir, session_store_name(name, text), &f, err);
    if (rc) return rc;
    rc = state_read_header(&f, text, &header, &n_header, err);
    if (!rc) rc = state_file_parse_header(header, n_header, f.version.n_bytes, text, &any, &state, err);
    if (!rc) rc = session_file_read_metadata(&state, text, metadata, err);
    free(header);
    state_disk_close(&f);
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
    state_disk_drop(store->dir, store_file_name(name, BASE_END, text));
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
            .name = session_store_name(w->name, names[n_items]), .parts = parts[n_items], .n_parts = 2};
        of[n_items++] = w;
    }
    state_disk_write_all(store->dir, items, n_items);
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
                         struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    const int rc = state_disk_remove(store->dir, session_store_name(name, text), err);
    if (!rc) store_drop_base(store, name); /* else the file may still need it */
    return rc;
}

/* ---- forks ---- */

/* A file's header; the sections of *state point nowhere afterwards. */
static int store_open_header(const struct session_store *store, const char *file, struct state_file *state,
                             struct session_file_version *file_version, struct rod_error *err) {
    const struct state_file_expected here = store_expected(store);
    struct state_disk_file f;
    void *header = NULL;
    size_t n_header = 0;
    int rc = state_disk_open(store->dir, file, &f, err);
    if (rc) return rc;
    rc = state_read_header(&f, file, &header, &n_header, err);
    if (!rc) rc = state_file_parse_header(header, n_header, f.version.n_bytes, file, &here, state, err);
    if (!rc) *file_version = store_file_version(&f.version, header, n_header);
    free(header);
    state_disk_close(&f);
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
    int rc = store_open_header(store, session_store_name(from, source), &state, &found, err);
    if (!rc && !session_file_version_same(&found, file_version)) rc = store_other_version(source, err);
    if (!rc && !state.payload.n) rc = rod_fail(err, ROD_EUNSUPPORTED, "%.150s has no state to share", source);
    if (rc) return rc;
    store_file_name(w->name, BASE_END, base);
    rc = state_disk_link(store->dir, state.apart ? store_file_name(from, BASE_END, source) : source, base, err);
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
    struct state_disk_file f;
    size_t n = 0;
    const int rc = state_disk_open(store->dir, session_store_name(name, text), &f, NULL);
    if (rc) return rc != ROD_ENOTFOUND;
    const bool unread = state_disk_get(&f, 0, start, sizeof start, &n, NULL) != 0;
    state_disk_close(&f);
    uint64_t n_header, n_file;
    return unread || state_file_measure(start, n, text, &n_header, &n_file, NULL) || state_file_peek_apart(start);
}

void session_store_list_left(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg) {
    DIR *list = opendir(store->dir);
    if (!list) return;
    uint8_t name[SESSION_NAME_BYTES];
    for (struct dirent *entry; (entry = readdir(list));)
        if (store_parse_name(entry->d_name, BASE_END, name) && !store_base_needed(store, name)) found(arg, name);
    closedir(list);
}

void session_store_remove_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]) {
    if (!store_base_needed(store, name)) store_drop_base(store, name);
}

int session_store_list(const struct session_store *store,
                       void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg,
                       struct rod_error *err) {
    DIR *list = opendir(store->dir);
    if (!list) return rod_fail(err, ROD_EIO, "cannot open state_dir %.300s: %s", store->dir, strerror(errno));
    uint8_t name[SESSION_NAME_BYTES];
    for (struct dirent *entry; (entry = readdir(list));)
        if (store_parse_name(entry->d_name, FILE_END, name)) found(arg, name);
    closedir(list);
    return 0;
}
