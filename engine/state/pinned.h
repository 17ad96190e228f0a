/* pinned.h - the pinned prefixes: states of beginnings of prompts that an operator has given ids, for every tenant.
 *
 * A pinned prefix is the state that reading its tokens as a prompt gives, at a multiple of the chunk: what goes on from
 * it has the bits of reading everything. It is there until it is removed, whatever else needs memory. All of them
 * together take budget_bytes at most.
 *
 * With a folder, or a store, each is a file of it, HASH-ID.prefix; HASH is of the model and the layout, so servers of
 * different models share a folder. A thread looks at the folder: what another server writes or removes there is here a
 * second later, or half a minute where the folder's time does not tell (network file systems, stores). A file that is
 * damaged is left where it is, and named once in the log.
 *
 * Ownership: the set owns its prefixes and a reference to each one's buffer. Threads: any. pinned_find waits for no
 * file.
 */
#ifndef PINNED_H
#define PINNED_H

#include "pinned_file.h"
#include "state_home.h"

enum { PINNED_MAX = 64 };

struct pinned_config {
    const char *state_dir;         /* the folder is "prefixes" in it; NULL or "": there is none */
    const struct state_home *home; /* a fenced one, instead of state_dir; NULL: none. Its names begin with "p/" */
    struct state_form form;        /* its layout outlives the set */
    struct state_pool *pool;       /* of the states that are read from files */
    uint64_t budget_bytes;
    void (*log)(void *arg, int level, const char *line);
    void *arg;
};

struct pinned;

/* Reads the folder. */
int pinned_open(const struct pinned_config *config, struct pinned **out, struct rod_error *err);
void pinned_close(struct pinned *p); /* NULL: nothing */

/* The longest prefix that ids begin with and that is longer than `than` and leaves one token to read: *buffer is the
 * caller's reference, *n_tok its tokens. False: no such prefix. */
bool pinned_find(struct pinned *p, const int32_t *ids, size_t n, uint64_t than, struct state_buffer **buffer,
                 uint64_t *n_tok);
/* A prompt goes on from the prefix of n_tok tokens that was found: counts it. */
void pinned_use(struct pinned *p, const int32_t *ids, uint64_t n_tok);

/* Whether id is one; n, unless 0: whether a prefix of n tokens would fit. ROD_EINVALID. */
int pinned_check(struct pinned *p, const char *id, size_t n, struct rod_error *err);
/* The state after all n tokens, a multiple of the chunk, gets this id, in the place of one that has it. Its file is on
 * the disk when this returns. ROD_EINVALID: there are too many; ROD_EIO. */
int pinned_put(struct pinned *p, const char *id, const int32_t *ids, size_t n, struct state_buffer *buffer,
               struct rod_prefix_info *out, struct rod_error *err);
int pinned_get(struct pinned *p, const char *id, struct rod_prefix_info *out, struct rod_error *err);
/* *infos: malloc'd, in order of id. */
int pinned_list(struct pinned *p, struct rod_prefix_info **infos, size_t *n, struct rod_error *err);
int pinned_remove(struct pinned *p, const char *id, struct rod_error *err);

struct pinned_counts {
    uint64_t n, bytes, n_used;
};
struct pinned_counts pinned_count(struct pinned *p);

#endif
