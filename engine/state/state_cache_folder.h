/* state_cache_folder.h - copies of states as files of a folder: made, found, checked, and removed by their last use.
 *
 * The folder is the index, and nothing else is remembered: several servers may share it, and each file may be removed,
 * cut or changed by anybody at any time. A copy is a whole state file (state_file.h) behind its version
 * (state_cache_file.h). A folder that takes no files costs copies, never a call; one that is gone is made again.
 *
 * Ownership: a copy that is open or being made is the caller's. Threads: any. Invariant: a copy that is checked, or has
 * its name, has the bytes of its version.
 */
#ifndef STATE_CACHE_FOLDER_H
#define STATE_CACHE_FOLDER_H

#include "state_disk.h"

#include <pthread.h>

enum { CACHE_FILE_NAME_BYTES = 40 };

struct cache_folder {
    char *dir;
    uint64_t of; /* hash of whose states these are */
    uint64_t max_bytes;
    void (*log)(void *arg, int level, const char *line);
    void *log_arg;
    pthread_mutex_t lock;
    uint64_t bytes;     /* of copies, when the folder was looked at, and what changed since */
    uint64_t writing;   /* of copies that have no name yet */
    uint64_t looked_ns; /* when */
    bool looking;
    bool failed; /* the last write */
    uint64_t failed_ns;
};

struct state_cache_config;
int cache_folder_init(struct cache_folder *folder, const struct state_cache_config *config, struct rod_error *err);
void cache_folder_fini(struct cache_folder *folder);
uint64_t cache_folder_bytes(struct cache_folder *folder);
/* Removes copies that nobody used for a day, if that was not looked for within the hour. */
void cache_folder_tidy(struct cache_folder *folder);

/* The file of an object. */
void cache_folder_name(const struct cache_folder *folder, const char *name, char file[CACHE_FILE_NAME_BYTES]);
void cache_folder_drop(struct cache_folder *folder, const char *file);

/* ---- a copy is made ---- */
struct cache_part {
    struct state_disk_part *part; /* NULL: none is made */
    const char *file;             /* the caller's */
    uint64_t n_bytes, n_disk;
};
void cache_part_begin(struct cache_folder *folder, const char *file, const struct state_disk_version *version,
                      struct cache_part *out);
void cache_part_put(struct cache_folder *folder, struct cache_part *part, const void *bytes, size_t n);
/* It gets its name, if all bytes came. checks: and if they are a state file. */
void cache_part_end(struct cache_folder *folder, struct cache_part *part, bool whole, bool checks);

/* ---- a copy is read ---- */
/* The copy's version; its bytes are not looked at. Who does not close out drops it. */
bool cache_copy_open(struct cache_folder *folder, const char *file, struct state_disk_file *out,
                     struct state_disk_version *version);
/* True: it is complete, and used now. */
bool cache_copy_check(const struct state_disk_file *copy, const struct state_disk_version *version);
int cache_copy_get(struct state_disk_file *copy, uint64_t at, void *dst, size_t n_bytes, struct rod_error *err);

#endif
