/* state_cache.h - a folder as the cache of a fenced home: copies of states that were read or written.
 *
 * A file is opened with one question, a conditional read. While the home says that the copy's version is the newest,
 * the copy is read; else the home's bytes go to the caller, and into a new copy. So nobody reads what was removed. A
 * write goes to the home first. All else is the home's alone. The folder: state_cache_folder.h.
 *
 * Ownership: the cache borrows the home's arg, and outlives the home that it gives. Threads: any. Invariant: a caller
 * gets the bytes and the errors that it gets without a cache.
 */
#ifndef STATE_CACHE_H
#define STATE_CACHE_H

#include "state_home.h"

struct state_cache;

struct state_cache_config {
    const struct state_home *home; /* fenced, and not below */
    const char *dir;               /* made if it is not there */
    const char *of;                /* the store's name: copies of another one are others */
    uint64_t max_bytes; /* of the disk, of which a twentieth stays free; 0: no limit. The least recently used go */
    void (*log)(void *arg, int level, const char *line); /* any thread; may be NULL */
    void *log_arg;
};
/* ROD_ENOMEM. A folder at fault is none. */
int state_cache_open(const struct state_cache_config *config, struct state_cache **out, struct rod_error *err);
void state_cache_close(struct state_cache *cache); /* NULL: nothing; no file of its home is open */
struct state_home state_cache_home(struct state_cache *cache);

struct state_cache_counts {
    uint64_t hits, misses; /* files that were read from here, and from the home */
    uint64_t bytes;        /* in the folder, as last seen */
};
void state_cache_count(struct state_cache *cache, struct state_cache_counts *out);

#endif
