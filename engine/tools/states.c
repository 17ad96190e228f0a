/* states.c - the calls of states at rest; what lies in a folder, file by file, and how one is removed beside servers.
 *
 * A file counts as what its name says, and its header says the rest. Whoever removes a file of a session has the
 * session's lease, as a server would, and looks again: one that was used meanwhile stays. */
#include "states_internal.h"
#include "engine/store.h"
#include "engine/base/fail.h"
#include "engine/conversation/conversation_notes.h"
#include "engine/conversation/conversations.h"
#include "engine/session/store/session_file.h"
#include "engine/session/store/session_lease.h"
#include "engine/session/store/session_names.h"
#include "engine/session/store/session_places.h"
#include "engine/state/state_home.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIXES "prefixes"
#define PART     ".tmp-"
enum { PATH_BYTES = 2048, NAME_DIGITS = 2 * SESSION_NAME_BYTES };
enum { SESSION_BYTES = NAME_DIGITS + sizeof ".state" };

const char *rod_state_kind_name(enum rod_state_kind kind) {
    static const char *const names[] = {
#define X(name, text) text,
        ROD_STATE_KINDS(X)
#undef X
    };
    assert((unsigned)kind < sizeof names / sizeof *names);
    return names[kind];
}

struct states_folder { /* the top one, of pinned prefixes, or of a conversation */
    const struct states *states;
    const char *below;     /* "", "prefixes", "conversations/HASH" */
    char path[PATH_BYTES]; /* the folder's */
    char tenant[17];       /* of a conversation */
    int64_t used_unix_s;   /* of a conversation: of the newest of its files */
};

static int states_open(struct states *s, const struct rod_states_place *place, struct rod_error *err) {
    struct session_names names;
    struct rod_error key_err;
    DIR *dir = opendir(place->dir);
    if (!dir) return rod_fail(err, ROD_EIO, "state_dir: cannot open %.300s: %s", place->dir, strerror(errno));
    closedir(dir);
    *s = (struct states){.dir = place->dir};
    session_names_init(&names);
    pthread_mutex_lock(&names.lock);
    const struct state_home home = state_home_folder(s->dir);
    s->has_key = !session_names_read_key_locked(&names, &home, &key_err);
    pthread_mutex_unlock(&names.lock);
    memcpy(s->key, names.key, sizeof s->key);
    session_names_fini(&names);
    return 0;
}

static int folder_open(const struct states *s, const char *below, struct states_folder *f, struct rod_error *err) {
    *f = (struct states_folder){.states = s, .below = below};
    const int n = snprintf(f->path, sizeof f->path, "%s%s%s", s->dir, *below ? "/" : "", below);
    return n > 0 && n < PATH_BYTES ? 0 : rod_fail(err, ROD_EINVALID, "state_dir makes too long a path");
}

static struct state_home home_of(const struct states_folder *f) { return state_home_folder(f->path); }

/* ---- one file ---- */

static bool ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && !strcmp(text + n - n_end, end);
}

/* What stands behind the session's name; "": it is no file of a session. */
static const char *session_end(const char *file) {
    return strspn(file, STATES_HEXADECIMAL) == NAME_DIGITS ? file + NAME_DIGITS : "";
}

/* False: it is no state, nor anything of one. */
static bool kind_of(const struct states_folder *f, const char *file, enum rod_state_kind *kind) {
    struct conversation_place place;
    uint64_t version;
    const char *end = session_end(file);
    const bool top = !*f->below, pinned = !strcmp(f->below, PREFIXES);
    if (strstr(file, PART))
        *kind = ROD_STATE_PART;
    else if (pinned && ends_in(file, ".prefix"))
        *kind = ROD_STATE_PINNED;
    else if (top && !strcmp(end, ".state"))
        *kind = ROD_STATE_SESSION;
    else if (top && states_is_kept(end, &version))
        *kind = ROD_STATE_KEPT;
    else if (top && !strcmp(end, ".base"))
        *kind = ROD_STATE_BASE;
    else if (!top && !pinned && conversation_file_parse(file, &place))
        *kind = ROD_STATE_CONVERSATION;
    else if (!top && !pinned && !strcmp(file, CONVERSATION_NOTES_FILE))
        *kind = ROD_STATE_NOTES;
    else
        return false;
    return true;
}

/* Nothing needs it: a state that is apart without its session, an earlier turn that the session does not list. What
 * cannot be read needs everything. */
static bool is_left(const struct states_folder *f, const char *file, const struct rod_state_file *out) {
    const struct state_home home = home_of(f);
    struct session_metadata metadata;
    struct state_file state;
    void *header;
    char owner[SESSION_BYTES];
    uint64_t version;
    if (out->kind == ROD_STATE_PART) return true;
    if (out->kind != ROD_STATE_BASE && out->kind != ROD_STATE_KEPT) return false;
    snprintf(owner, sizeof owner, "%.*s.state", NAME_DIGITS, file);
    if (out->kind == ROD_STATE_BASE) {
        const int rc = states_header_read(&home, owner, &header, &state, NULL);
        if (!rc) free(header);
        return rc ? rc == ROD_ENOTFOUND : !state.apart;
    }
    const int rc = states_metadata_read(&home, owner, &metadata, NULL);
    if (rc || !states_is_kept(session_end(file), &version)) return rc == ROD_ENOTFOUND;
    return session_places_find(&metadata, version) == metadata.n_kept;
}

/* ROD_ENOTFOUND: it is none, or gone. */
static int file_look(const struct states_folder *f, const char *file, struct rod_state_file *out,
                     struct rod_error *err) {
    const struct state_home home = home_of(f);
    struct state_disk_version version;
    enum rod_state_kind kind;
    if (!kind_of(f, file, &kind)) return rod_fail(err, ROD_ENOTFOUND, "%.200s is no state.", file);
    const int rc = kind == ROD_STATE_PART ? state_disk_stat_part(f->path, file, &version, err)
                                          : state_home_stat(&home, file, &version, err);
    if (rc) return rc;
    *out = (struct rod_state_file){.kind = kind,
                                   .n_bytes = version.n_bytes,
                                   .inode = version.inode,
                                   .mtime_ns = version.mtime_ns,
                                   .used_unix_s = (int64_t)(version.mtime_ns / 1000000000u)};
    snprintf(out->name, sizeof out->name, "%s%s%s", f->below, *f->below ? "/" : "", file);
    if (kind != ROD_STATE_PART && kind != ROD_STATE_NOTES) states_take_header(f->states, &home, file, out);
    if (*f->tenant) memcpy(out->tenant, f->tenant, sizeof out->tenant);
    if (f->used_unix_s > out->used_unix_s) out->used_unix_s = f->used_unix_s;
    out->left = is_left(f, file, out);
    return 0;
}

/* ---- all ---- */

struct walk {
    struct states_folder *folder;
    void (*found)(void *arg, const struct rod_state_file *file);
    void *arg;
    struct rod_error *err;
    int rc; /* of the first folder that is there and cannot be read */
};

static DIR *walk_open(struct walk *w, const char *path) {
    DIR *list = opendir(path);
    if (!list && errno != ENOENT && !w->rc)
        w->rc = rod_fail(w->err, ROD_EIO, "state_dir: cannot open %.300s: %s", path, strerror(errno));
    return list;
}

static void walk_file(const struct walk *w, const char *file) {
    struct rod_state_file out;
    if (!file_look(w->folder, file, &out, NULL)) w->found(w->arg, &out); /* else it is none, or went meanwhile */
}

static void walk_folder(struct walk *w) {
    DIR *list = walk_open(w, w->folder->path);
    if (!list) return;
    for (struct dirent *d; (d = readdir(list));) walk_file(w, d->d_name);
    closedir(list);
}

/* Whose it is, and when it was used. */
static void conversation_learn(struct states_folder *f) {
    const struct state_home home = home_of(f);
    struct state_disk_version version;
    void *first;
    size_t n;
    DIR *list = opendir(f->path);
    for (struct dirent *d; list && (d = readdir(list));) {
        if (*d->d_name == '.' || state_home_stat(&home, d->d_name, &version, NULL)) continue;
        const int64_t used_s = (int64_t)(version.mtime_ns / 1000000000u);
        if (used_s > f->used_unix_s) f->used_unix_s = used_s;
    }
    if (list) closedir(list);
    if (notes_read_first(f->path, &first, &n, NULL)) return;
    if (memchr(first, 0, n)) states_put_tenant(f->states, first, f->tenant); /* tenant, 0, name */
    free(first);
}

static void walk_conversations(const struct states *s, struct walk *w) {
    char path[PATH_BYTES], below[NAME_MAX + sizeof CONVERSATIONS_FOLDER + 1];
    snprintf(path, sizeof path, "%s/" CONVERSATIONS_FOLDER, s->dir);
    DIR *list = walk_open(w, path);
    if (!list) return;
    for (struct dirent *d; (d = readdir(list));) {
        struct states_folder f;
        snprintf(below, sizeof below, CONVERSATIONS_FOLDER "/%s", d->d_name);
        if (*d->d_name == '.' || folder_open(s, below, &f, NULL)) continue;
        conversation_learn(&f);
        w->folder = &f;
        walk_folder(w);
    }
    closedir(list);
}

int rod_states_list(const struct rod_states_place *place, void (*found)(void *arg, const struct rod_state_file *file),
                    void *arg, struct rod_error *err) {
    struct states s;
    struct states_folder top, prefixes;
    if (place->store) return states_store_list(&place->store->home, found, arg, err);
    int rc = states_open(&s, place, err);
    if (!rc) rc = folder_open(&s, "", &top, err);
    if (!rc) rc = folder_open(&s, PREFIXES, &prefixes, err);
    if (rc) return rc;
    struct walk w = {.folder = &top, .found = found, .arg = arg, .err = err};
    walk_folder(&w);
    w.folder = &prefixes;
    walk_folder(&w);
    walk_conversations(&s, &w);
    return w.rc;
}

/* ---- by name ---- */

struct named {
    struct states states;
    struct states_folder folder;
    char below[NAME_MAX + sizeof CONVERSATIONS_FOLDER + 1];
    const char *file; /* part of the name */
};

static int named_open(struct named *n, const struct rod_states_place *place, const char *name, struct rod_error *err) {
    const char *slash = strrchr(name, '/');
    const size_t n_below = slash ? (size_t)(slash - name) : 0, n_start = strlen(CONVERSATIONS_FOLDER "/");
    if (n_below >= sizeof n->below || strstr(name, ".."))
        return rod_fail(err, ROD_ENOTFOUND, "%.200s is no state.", name);
    memcpy(n->below, name, n_below);
    n->below[n_below] = 0;
    n->file = slash ? slash + 1 : name;
    const bool conversation = n_below > n_start && !strncmp(name, CONVERSATIONS_FOLDER "/", n_start) &&
                              !memchr(name + n_start, '/', n_below - n_start);
    if (*n->below && strcmp(n->below, PREFIXES) != 0 && !conversation)
        return rod_fail(err, ROD_ENOTFOUND, "%.200s is no state.", name);
    int rc = states_open(&n->states, place, err);
    if (!rc) rc = folder_open(&n->states, n->below, &n->folder, err);
    if (!rc && conversation) conversation_learn(&n->folder);
    return rc;
}

int rod_states_look(const struct rod_states_place *place, const char *name, struct rod_state_file *out,
                    struct rod_error *err) {
    struct named n;
    if (place->store) return states_store_look(&place->store->home, name, out, err);
    const int rc = named_open(&n, place, name, err);
    return rc ? rc : file_look(&n.folder, n.file, out, err);
}

int rod_states_get(const struct rod_states_place *place, const char *name,
                   int (*put)(void *arg, const void *bytes, size_t n), void *arg, struct rod_error *err) {
    struct named n;
    struct rod_state_file look;
    int rc = rod_states_look(place, name, &look, err);
    if (rc || place->store) return rc ? rc : states_copy(&place->store->home, name, put, arg, err);
    if (look.kind == ROD_STATE_PART) return rod_fail(err, ROD_EINVALID, "%.200s is part of a file.", name);
    rc = named_open(&n, place, name, err);
    if (rc) return rc;
    const struct state_home home = home_of(&n.folder);
    return states_copy(&home, n.file, put, arg, err);
}

/* ---- removing ---- */

/* What the session leaves: its lease is held, its file is gone. */
static void drop_rest(const struct states_folder *f, const char *session) {
    const struct state_home home = home_of(f);
    DIR *list = opendir(f->path);
    for (struct dirent *d; list && (d = readdir(list));) {
        enum rod_state_kind kind;
        if (strncmp(d->d_name, session, NAME_DIGITS) != 0 || !kind_of(f, d->d_name, &kind)) continue;
        if (kind == ROD_STATE_KEPT || kind == ROD_STATE_BASE) state_home_drop(&home, d->d_name);
    }
    if (list) closedir(list);
}

static int remove_seen(const struct states_folder *f, const char *file, const struct rod_state_file *seen,
                       struct rod_error *err) {
    const struct state_home home = home_of(f);
    struct rod_state_file now;
    int rc = file_look(f, file, &now, err);
    if (rc) return rc;
    if (now.inode != seen->inode || now.mtime_ns != seen->mtime_ns || now.n_bytes != seen->n_bytes ||
        now.left != seen->left)
        return rod_fail(err, ROD_ECONFLICT, "%.200s has been used meanwhile.", seen->name);
    if (now.kind == ROD_STATE_BASE && !now.left)
        return rod_fail(err, ROD_EBUSY, "%.200s has the state of a session.", seen->name);
    if (now.kind == ROD_STATE_PART) return state_disk_remove_part(f->path, file, err);
    rc = state_home_remove(&home, file, NULL, err);
    if (!rc && now.kind == ROD_STATE_SESSION) drop_rest(f, file);
    if (!rc && (now.kind == ROD_STATE_CONVERSATION || now.kind == ROD_STATE_NOTES))
        rmdir(f->path); /* goes if it is empty */
    return rc;
}

int rod_states_remove(const struct rod_states_place *place, const struct rod_state_file *seen, struct rod_error *err) {
    struct named n;
    char session[SESSION_BYTES];
    if (place->store) return states_store_remove(&place->store->home, seen, err);
    int rc = named_open(&n, place, seen->name, err), lease;
    if (rc) return rc;
    if (seen->kind != ROD_STATE_SESSION && seen->kind != ROD_STATE_KEPT && seen->kind != ROD_STATE_BASE)
        return remove_seen(&n.folder, n.file, seen, err);
    snprintf(session, sizeof session, "%.*s.state", NAME_DIGITS, n.file);
    rc = session_lease_take(n.states.dir, session, &lease, err);
    if (rc) return rc;
    rc = remove_seen(&n.folder, n.file, seen, err);
    session_lease_end(n.states.dir, session, lease);
    return rc;
}
