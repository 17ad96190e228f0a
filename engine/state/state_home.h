/* state_home.h - where states lie at rest: one set of calls over a folder, or over an object store.
 *
 * A folder's servers fence each other by leases (session_lease.h). A fenced home has none: a write or removal says
 * which version it replaces, and loses with ROD_ECONFLICT where another server's came first. There is nothing to watch
 * in it and nothing to scan at a start, and a file has one name.
 *
 * Errors of all calls: ROD_ENOTFOUND; ROD_EIO: disk or store is full, slow, refuses or is gone; ROD_ECONFLICT: another
 * version is there, or none; ROD_EUNSURE: a store did not say within its time whether a write or removal was done.
 * No call of a fenced home waits for longer than the store's time.
 *
 * Ownership: a home borrows what arg points to; copies of a home are the same place. Threads: any, each call stands
 * alone. Invariant: a file is the old version or the new one, whole.
 */
#ifndef STATE_HOME_H
#define STATE_HOME_H

#include "state_disk.h"

enum { STATE_HOME_MAX_BELOW = 96, STATE_HOME_MAX_NAME = STATE_HOME_MAX_BELOW + STATE_DISK_MAX_NAME };

/* A file that is open to be read in order: one version, whatever is written meanwhile. */
struct state_home_file {
    struct state_disk_version version;
    bool unchanged; /* it has the known version: there is nothing to read and to close */
    /* the home's: */
    const struct state_home_calls *calls;
    void *reader;
    struct state_disk_file disk;
    uint64_t at;
};

/* What a home does; names are joined with `below` already. The calls of the same name below say what each means. An
 * etag is "" where none is meant. */
struct state_home_calls {
    int (*open)(void *arg, const char *name, const char *known_etag, struct state_home_file *out,
                struct rod_error *err);
    int (*get)(struct state_home_file *file, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err);
    void (*close)(struct state_home_file *file);
    int (*peek)(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                struct state_disk_version *version, struct rod_error *err);
    int (*stat)(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err);
    void (*write)(void *arg, struct state_disk_item *items, size_t n);
    int (*copy)(void *arg, const char *name, const char *known_etag, const char *second, struct rod_error *err);
    int (*remove)(void *arg, const char *name, const char *known_etag, struct rod_error *err);
    void (*drop)(void *arg, const char *name);
    void (*touch)(void *arg, const char *name, int64_t unix_s); /* NULL: a file's time is that of its writing */
    int (*list)(void *arg, const char *prefix, const char *after,
                void (*found)(void *arg, const char *name, const struct state_disk_version *version), void *found_arg,
                bool *more, struct rod_error *err); /* after, found: names as open takes them */
    void (*hurry)(void *arg, uint64_t until_ns);    /* NULL: its calls wait for nobody */
};

struct state_home {
    const struct state_home_calls *calls; /* NULL: there is no home */
    void *arg;
    bool fenced;
    char below[STATE_HOME_MAX_BELOW]; /* "" or "FOLDER/.../", before each name; "" in a folder */
};

/* dir is the caller's, and stays. */
struct state_home state_home_folder(const char *dir);
/* For messages: "state_dir DIR", or "the store". */
void state_home_label(const struct state_home *home, char *text, size_t n_text);
/* A fenced home, deeper. more: "FOLDER/". */
struct state_home state_home_below(const struct state_home *home, const char *more);

/* From now on calls of this thread begin no wait that ends later, of clock_now_ns; 0: they take the home's time again.
 * A body that moves has its own time behind that. */
void state_home_hurry(const struct state_home *home, uint64_t until_ns);

/* known: NULL or a version with an etag; a file that has it still is not read: out->unchanged. ROD_ESTATE: no regular
 * file. A store that fails behind having said which version is there leaves it in out->version, else an etag "". */
int state_home_open(const struct state_home *home, const char *name, const struct state_disk_version *known,
                    struct state_home_file *out, struct rod_error *err);
/* The next bytes; *n_read: fewer only at the end. A store's body that ends before its length is ROD_EIO. */
int state_home_get(struct state_home_file *file, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err);
/* Goes on behind so many bytes: forward, or in a folder anywhere. */
void state_home_seek(struct state_home_file *file, uint64_t at);
void state_home_close(struct state_home_file *file);
/* The first bytes alone, and the version. */
int state_home_peek(const struct state_home *home, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                    struct state_disk_version *version, struct rod_error *err);
int state_home_stat(const struct state_home *home, const char *name, struct state_disk_version *out,
                    struct rod_error *err);

/* state_disk_write_all, where the items of a store go at the same time. `only_new`: ROD_EEXISTS where there is one, in
 * a fenced home too. `replaces`: ROD_ECONFLICT where another version is there, or none. Neither: whatever is there. */
void state_home_write(const struct state_home *home, struct state_disk_item *items, size_t n);

/* A second file with these bytes, in the place of whatever has the name: a link in a folder, a copy in a store. known:
 * NULL or the version that is meant. ROD_EUNSUPPORTED: the file system gives that file no more names. */
int state_home_copy(const struct state_home *home, const char *name, const struct state_disk_version *known,
                    const char *second, struct rod_error *err);
/* known: NULL or the version that is meant. */
int state_home_remove(const struct state_home *home, const char *name, const struct state_disk_version *known,
                      struct rod_error *err);
/* Removes a file that nobody needs. */
void state_home_drop(const struct state_home *home, const char *name);
/* Sets the time of a folder's file. */
void state_home_touch(const struct state_home *home, const char *name, int64_t unix_s);

/* Calls found for the names that begin with prefix. A store gives a page, in order, of those after a name ("" = from
 * the beginning): *more. A folder gives all in no order, with version NULL. */
int state_home_list(const struct state_home *home, const char *prefix, const char *after,
                    void (*found)(void *arg, const char *name, const struct state_disk_version *version), void *arg,
                    bool *more, struct rod_error *err);

#endif
