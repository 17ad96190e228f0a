/* session_store.h - sessions in a folder: one state file each, named as session_locate.h says.
 *
 * NAME.state is the session's file. A fork has its metadata and answers there and its state in NAME.base, a hard link
 * to its source's file: the source's later turns put new files in the old one's place, so these bytes stay. A base that
 * no file needs is left over. The first turn of a fork writes a whole file. NAME.VERSION.kept is the state of an
 * earlier turn, the session's file or base of that time, under one more name; the session's file lists those that
 * count.
 *
 * Ownership: nothing is kept between calls. Threads: any; whoever writes or removes a session's file has its lease.
 * Invariant: a read gives one committed version, whole, of the session that was asked for.
 */
#ifndef SESSION_STORE_H
#define SESSION_STORE_H

#include "session_file.h"
#include "session_names.h"
#include "engine/state/state_home.h"

enum { SESSION_FILE_NAME_BYTES = 2 * SESSION_NAME_BYTES + 28 };

struct session_store {
    struct state_home home;
    const struct state_form *form;
    struct session_names *names;
    struct state_pool *pool;
};

/* Beside its blocks a file takes an inode and a directory entry. */
enum { SESSION_ENTRY_BYTES = 320, SESSION_BLOCK_BYTES = 4096 };
/* An estimate, before it is written, of what a file of n_bytes will take of the disk. */
static inline uint64_t session_store_disk_bytes(uint64_t n_bytes) {
    return (n_bytes + SESSION_BLOCK_BYTES - 1) / SESSION_BLOCK_BYTES * SESSION_BLOCK_BYTES + SESSION_ENTRY_BYTES;
}

char *session_store_name(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         char text[SESSION_FILE_NAME_BYTES]);
/* The reverse; false: not the name of a session's file. */
bool session_store_parse_name(const struct session_store *store, const char *file, uint8_t name[SESSION_NAME_BYTES]);
/* Of any file of a session, which ends so: in a fenced home the halves of the name have "/" between them. */
char *session_store_file(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], const char *end,
                         char text[SESSION_FILE_NAME_BYTES]);
/* The reverse; the end, or NULL. */
const char *session_store_parse_file(const struct session_store *store, const char *file,
                                     uint8_t name[SESSION_NAME_BYTES]);

/* From its first bytes. ROD_ENOTFOUND: there is none. */
int session_store_stat(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       struct session_file_version *file_version, struct rod_error *err);

/* Inode, time and size alone; the file is not opened. */
int session_store_glance(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         struct session_file_version *file_version, struct rod_error *err);

/* The metadata of its header, whatever its name is. Errors as session_store_read. */
int session_store_read_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err);
/* The metadata of a file of any model and layout; the store needs no form. */
int session_store_peek_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err);

struct session_read {
    struct session_metadata metadata;
    struct session_file_version file_version;
    struct session_snapshot *snapshot; /* its state buffer only with_state */
    struct session_answers *answers;
    bool unchanged; /* of session_store_read_new: it is the known version, and nothing was read */
    bool changed;   /* of a fenced home with ROD_ESTATE: these are not the bytes that were written, read twice */
};
/* ROD_ENOTFOUND; ROD_ESTATE: damaged, foreign, or another session's; ROD_ENOROOM: for its state buffer. */
int session_store_read(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], bool with_state,
                       struct session_read *out, struct rod_error *err);
/* Likewise with its state, of a fenced home: unless it is the known version (etag ""; none) still. One round trip. */
int session_store_read_new(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *known, struct session_read *out, struct rod_error *err);
/* Likewise of any file, whatever its name is; its state is in it. */
int session_store_read_any(const struct session_store *store, const char *file, struct session_read *out,
                           struct rod_error *err);
void session_read_fini(struct session_read *read);
/* Reads a session from a file's bytes. file: for messages. Its state buffer is in no pool, or in the store's. */
int session_store_parse(const struct session_store *store, const void *bytes, size_t n, const char *file,
                        struct session_read *out, struct rod_error *err);

struct session_write {
    const uint8_t *name; /* [SESSION_NAME_BYTES] */
    const struct session_metadata *metadata;
    const struct session_snapshot *snapshot;
    const struct session_answers *answers;
    /* Of a fenced home: ROD_ECONFLICT unless this is there, n_bytes 0: none is; NULL: whatever is there. */
    const struct session_file_version *replaces;
    bool apart; /* session_store_link: its state is in its base, which has this check */
    uint64_t payload_check;
    struct session_file_version file_version; /* afterwards: of the new file; before, where it is apart: of its base */
    int rc;                                   /* 0 before */
    bool in_place; /* the file has its name, whatever rc is; with rc, a power cut may undo that */
    struct rod_error err;
};
/* A fork takes its state from the file of this version: the write becomes apart, and its base is on the disk when this
 * returns. Nonzero: no link can be made, so the fork is written whole. There is no file of the fork yet. */
int session_store_link(const struct session_store *store, const uint8_t from[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct session_write *write,
                       struct rod_error *err);
/* Writes the files whose rc is 0, and syncs them. Each has its own outcome. */
void session_store_write(const struct session_store *store, struct session_write *writes, size_t n);
/* known: NULL or, of a fenced home, ROD_ECONFLICT unless this is there. */
int session_store_remove(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         const struct session_file_version *known, struct rod_error *err);
/* The bytes of the file that would be written. */
int session_store_export(const struct session_store *store, const struct session_write *write, void **bytes, size_t *n,
                         struct rod_error *err);

/* Calls found for each session's file in the folder. */
int session_store_list(const struct session_store *store,
                       void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg,
                       struct rod_error *err);

/* Calls found for each base that no file needs. */
void session_store_list_left(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg);
/* By the holder of the lease: removes the base if no file needs it. */
void session_store_remove_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]);

/* ---- kept turns: session_store_kept.c ---- */

/* By the holder of the lease: the session's file, of this version, gets its name as a kept one. */
int session_store_keep(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct rod_error *err);
/* The session as it was, with its state. Errors as session_store_read. */
int session_store_read_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], uint64_t version,
                            struct session_read *out, struct rod_error *err);
/* Inode and sizes alone. */
int session_store_glance_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                              uint64_t version, struct session_file_version *file_version);
void session_store_drop_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version);
/* Of a file's name: false where it is none of a kept turn. */
bool session_store_parse_kept(const struct session_store *store, const char *file, uint8_t name[SESSION_NAME_BYTES],
                              uint64_t *version);
/* Calls found for each kept file in the folder. */
void session_store_list_kept(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES], uint64_t version),
                             void *arg);
/* By the holder of the lease: the session's file does not list it; what cannot be read counts as listing it. */
bool session_store_kept_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version);

/* Sets the time of the file, if there is one. Needs no lease. */
void session_store_touch(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], int64_t now_s);

#endif
