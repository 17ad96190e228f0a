/* session_store.h - sessions in a folder: one state file each, named as session_locate.h says.
 *
 * NAME.state is the session's file. A fork has its metadata and answers there and its state in NAME.base, a second name
 * of the file of the session that it was forked from: that one's later turns put new files in the old one's place, so
 * these bytes stay as they are. A base without a file that needs it is nobody's. The first turn of a fork writes it
 * whole.
 *
 * Ownership: nothing is kept between calls. Threads: any; whoever writes or removes a session's file has its lease.
 * Invariant: a read gives one committed version, whole, of the session that was asked for.
 */
#ifndef SESSION_STORE_H
#define SESSION_STORE_H

#include "session_file.h"
#include "session_names.h"
#include "engine/state/state_disk.h"

enum { SESSION_DIR_BYTES = 1024, SESSION_FILE_NAME_BYTES = 2 * SESSION_NAME_BYTES + 8 };

struct session_store {
    char dir[SESSION_DIR_BYTES];
    const struct session_form *form;
    struct session_names *names;
    struct state_pool *pool;
};

/* Beside its blocks a file has an inode, and an entry in the folder. */
enum { SESSION_ENTRY_BYTES = 320, SESSION_BLOCK_BYTES = 4096 };
/* What a file of n_bytes will take of the disk, as far as one knows before it is written. */
static inline uint64_t session_store_disk_bytes(uint64_t n_bytes) {
    return (n_bytes + SESSION_BLOCK_BYTES - 1) / SESSION_BLOCK_BYTES * SESSION_BLOCK_BYTES + SESSION_ENTRY_BYTES;
}

char *session_store_name(const uint8_t name[SESSION_NAME_BYTES], char text[SESSION_FILE_NAME_BYTES]);
/* The reverse; false: it is no session's file. */
bool session_store_parse_name(const char *file, uint8_t name[SESSION_NAME_BYTES]);

/* From its first bytes. ROD_ENOTFOUND: there is none. */
int session_store_stat(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       struct session_file_version *file_version, struct rod_error *err);

/* Inode, time and size alone; the file is not opened. */
int session_store_glance(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         struct session_file_version *file_version, struct rod_error *err);

/* The metadata of its header, whatever its name is. Errors as session_store_read. */
int session_store_read_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err);
/* The same of a file of any model and layout; the store needs no form. */
int session_store_peek_metadata(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                                struct session_metadata *metadata, struct rod_error *err);

struct session_read {
    struct session_metadata metadata;
    struct session_file_version file_version;
    struct session_snapshot *snapshot; /* its state buffer only where it was asked for */
    struct session_answers *answers;
};
/* ROD_ENOTFOUND; ROD_ESTATE: damaged, foreign, or another session's; ROD_ENOROOM: for its state buffer. */
int session_store_read(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], bool with_state,
                       struct session_read *out, struct rod_error *err);
void session_read_fini(struct session_read *read);
/* The same from a file's bytes. file: for messages. Its state buffer is in no pool, or in the store's. */
int session_store_parse(const struct session_store *store, const void *bytes, size_t n, const char *file,
                        struct session_read *out, struct rod_error *err);

struct session_write {
    const uint8_t *name; /* [SESSION_NAME_BYTES] */
    const struct session_metadata *metadata;
    const struct session_snapshot *snapshot;
    const struct session_answers *answers;
    bool apart; /* session_store_link: its state is in its base, which has this check */
    uint64_t payload_check;
    struct session_file_version file_version; /* afterwards: of the new file; before, where it is apart: of its base */
    int rc;                                   /* 0 before */
    bool in_place; /* rc or not, the file is there; with rc, it may not outlive a power cut */
    struct rod_error err;
};
/* The new session's state is that of another's file, whose file_version is given: it becomes apart, for good when this
 * returns. Nonzero: that cannot be, and it is written whole. There is no file of the new session. */
int session_store_link(const struct session_store *store, const uint8_t from[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct session_write *write,
                       struct rod_error *err);
/* All of them whose rc is 0, each well or badly for itself; synced when it returns. */
void session_store_write(const struct session_store *store, struct session_write *writes, size_t n);
int session_store_remove(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                         struct rod_error *err);
/* The file's bytes, as they would be written. */
int session_store_export(const struct session_store *store, const struct session_write *write, void **bytes, size_t *n,
                         struct rod_error *err);

/* Calls found for each session's file in the folder. */
int session_store_list(const struct session_store *store,
                       void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg,
                       struct rod_error *err);

/* Calls found for each base that no file needs, as a look at both says. */
void session_store_list_left(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES]), void *arg);
/* By whoever has the lease: removes the base, if it is still so. */
void session_store_remove_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES]);

/* It is used: its file has this time from now on, if there is one and it can be done. Without a lease. */
void session_store_touch(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], int64_t now_s);

#endif
