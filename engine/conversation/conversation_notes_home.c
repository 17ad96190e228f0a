/* conversation_notes_home.c - see conversation_notes.h: notes as an object of a store, which is replaced as a whole by
 * whoever has read its newest version. */
#include "conversation_notes.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME CONVERSATION_NOTES_FILE
enum { TRIES = 8, FIRST_BYTES = 2048 };

struct notes {
    unsigned char *bytes; /* malloc'd; NULL: no notes */
    size_t n, whole, n_first;
    struct state_disk_version version;
};

static int get_once(const struct state_home *home, struct notes *out, struct rod_error *err) {
    struct state_home_file f;
    *out = (struct notes){0};
    int rc = state_home_open(home, FILE_NAME, NULL, &f, err);
    if (rc) return rc;
    out->version = f.version;
    if (f.version.n_bytes > NOTES_MOST_BYTES) rc = rod_fail(err, ROD_ESTATE, "The notes are too long.");
    if (!rc && !(out->bytes = malloc(f.version.n_bytes + 1))) rc = rod_fail_no_memory(err);
    if (!rc) rc = state_home_get(&f, out->bytes, f.version.n_bytes, &out->n, err);
    state_home_close(&f);
    if (!rc) out->whole = notes_whole(out->bytes, out->n, &out->n_first);
    if (rc) free(out->bytes);
    if (rc) out->bytes = NULL;
    return rc;
}

/* Damage may be of the way: then the second reading has none. Too long ones are as if they were empty. */
static int get(const struct state_home *home, struct notes *out, struct rod_error *err) {
    int rc = get_once(home, out, err);
    if (!rc && out->whole < out->n) {
        free(out->bytes);
        rc = get_once(home, out, err);
    }
    return rc == ROD_ESTATE ? 0 : rc;
}

int notes_home_read(const struct state_home *home, struct rod_notes_seen *seen, void **bytes, size_t *n,
                    struct rod_error *err) {
    struct notes notes;
    *bytes = NULL;
    *n = 0;
    const int rc = get(home, &notes, err);
    if (rc) return rc == ROD_ENOTFOUND ? 0 : rc;
    const bool new = seen->inode != notes.version.inode;
    *seen = (struct rod_notes_seen){.inode = notes.version.inode, .n_bytes = notes.whole};
    if (new &&notes.n_first) *n = notes_records(notes.bytes, notes.whole, notes.n_first);
    if (*n)
        *bytes = notes.bytes;
    else
        free(notes.bytes);
    return 0;
}

int notes_home_read_first(const struct state_home *home, void **first, size_t *n, struct rod_error *err) {
    unsigned char bytes[FIRST_BYTES];
    struct state_disk_version version;
    size_t got = 0;
    const int rc = state_home_peek(home, FILE_NAME, bytes, sizeof bytes, &got, &version, err);
    return rc ? rc : notes_first(bytes, got, first, n, err);
}

static int put(const struct state_home *home, const struct state_bytes *parts, size_t n_parts, const char *replaces,
               struct state_disk_version *version, struct rod_error *err) {
    struct state_disk_item item = {
        .name = FILE_NAME, .parts = parts, .n_parts = n_parts, .only_new = !replaces, .replaces = replaces};
    state_home_write(home, &item, 1);
    *version = item.version;
    if (item.rc) *err = item.err;
    return item.rc;
}

int notes_home_make(const struct state_home *home, const void *first, size_t n_first, struct rod_error *err) {
    unsigned char *record = notes_framed(first, n_first);
    struct state_disk_version version;
    if (!record) return rod_fail_no_memory(err);
    const struct state_bytes parts[] = {{NOTES_MARK, NOTES_MARK_BYTES}, {record, NOTES_FRAME_BYTES + n_first}};
    const int rc = put(home, parts, 2, NULL, &version, err);
    free(record);
    return rc;
}

int notes_home_touch(const struct state_home *home, struct rod_error *err) {
    struct notes notes;
    struct state_disk_version version;
    int rc = get(home, &notes, err);
    if (rc || !notes.bytes) return rc;
    const struct state_bytes all = {notes.bytes, notes.n};
    rc = put(home, &all, 1, notes.version.etag, &version, err);
    free(notes.bytes);
    return rc == ROD_ECONFLICT ? 0 : rc;
}

/* ---- one more record ---- */

struct adding {
    const void *first;
    size_t n_first;
    const unsigned char *record; /* framed */
    size_t n_record;
};

static int put_with(const struct state_home *home, const struct adding *a, const struct notes *old,
                    struct state_disk_version *version, struct notes_grown *grown, struct rod_error *err) {
    unsigned char *first = old->n_first ? NULL : notes_framed(a->first, a->n_first);
    if (!old->n_first && !first) return rod_fail_no_memory(err);
    const size_t from = old->n_first ? notes_newest(old->bytes, old->whole, old->n_first) : 0;
    const struct state_bytes head = {old->bytes, NOTES_MARK_BYTES + old->n_first};
    const struct state_bytes parts[] = {
        first ? (struct state_bytes){NOTES_MARK, NOTES_MARK_BYTES} : head,
        first ? (struct state_bytes){first, NOTES_FRAME_BYTES + a->n_first}
              : (struct state_bytes){old->bytes + from, old->whole - from},
        {a->record, a->n_record},
    };
    grown->now = parts[0].n + parts[1].n + parts[2].n;
    const int rc = put(home, parts, 3, *old->version.etag ? old->version.etag : NULL, version, err);
    free(first);
    return rc;
}

static int add_once(const struct state_home *home, const struct adding *a, bool unsure, struct rod_notes_seen *seen,
                    struct notes_grown *grown, struct rod_error *err) {
    struct notes old;
    struct state_disk_version version = {0};
    int rc = get(home, &old, err);
    if (rc == ROD_ENOTFOUND && seen->inode) return 0; /* it was removed while the answer was made */
    if (rc && rc != ROD_ENOTFOUND) return rc;
    grown->before = old.version.n_bytes;
    if (unsure && old.n_first && notes_have(old.bytes, old.whole, a->record, a->n_record)) {
        grown->now = old.version.n_bytes;
        free(old.bytes);
        return 0;
    }
    const bool known = seen->inode == old.version.inode;
    rc = put_with(home, a, &old, &version, grown, err);
    free(old.bytes);
    if (rc) grown->now = 0;
    if (!rc && known) *seen = (struct rod_notes_seen){.inode = version.inode, .n_bytes = grown->now};
    return rc;
}

int notes_home_add(const struct state_home *home, const struct state_bytes *first, const struct state_bytes *record,
                   struct rod_notes_seen *seen, struct notes_grown *grown, struct rod_error *err) {
    *grown = (struct notes_grown){0};
    if (record->n > CONVERSATION_NOTES_BYTES / 4) return 0; /* one so long is not kept */
    unsigned char *bytes = notes_framed(record->data, record->n);
    if (!bytes) return rod_fail_no_memory(err);
    const struct adding a = {first->data, first->n, bytes, NOTES_FRAME_BYTES + record->n};
    int rc = ROD_ECONFLICT;
    bool unsure = false;
    for (int i = 0; i < TRIES && (rc == ROD_ECONFLICT || rc == ROD_EEXISTS || rc == ROD_EUNSURE); i++) {
        unsure |= rc == ROD_EUNSURE;
        rc = add_once(home, &a, unsure, seen, grown, err);
    }
    free(bytes);
    return rc;
}
