/* recall.h - the answers that this server gave in chats, as tokens: a client that sends the whole conversation again
 * sends an answer as text, which may become other tokens, or other bytes, than the model said.
 *
 * An answer is found by all that stood before it: owner, tools and messages, each earlier answer as it was given. It
 * counts as unaltered if its text is equal, and each call by its id has an equal name and arguments that are equal as
 * JSON values, or have members more; a call without an id is compared byte by byte.
 *
 * Ownership: a recall owns its answers. Threads: any; a lock. No I/O and no clock. Invariants: all answers together
 * take at most the budget, those of one tenant a quarter; a tenant's oldest goes first. An answer of one tenant and
 * salt is found by these alone: they are in the hash, whose seed nobody outside knows.
 *
 * Of a conversation with a name it keeps, within the same bounds, which tools stood in its prompts, and what its owner
 * has read of its notes.
 */
#ifndef RECALL_H
#define RECALL_H

#include "engine/rodimus.h"

#define RECALL_BYTES ((size_t)64 << 20) /* of a server: some 60,000 answers of 1 KB */
struct recall;
struct recall *recall_new(size_t budget_bytes, uint64_t seed); /* NULL: no memory */
void recall_close(struct recall *recall);                      /* NULL: nothing */

struct recall_place { /* a place in a conversation: a hash of all before it */
    uint64_t low, high;
};
struct recall_scope {
    const char *tenant, *salt; /* NULL as "" */
    const char *const *tools;  /* [n_tools] definitions in the prompt */
    size_t n_tools;
};

/* Gives each message that is an answer of this server the tokens that the model said: ids, malloc'd, which the caller
 * frees. Returns the place behind all messages. Without memory an answer stays text. */
struct recall_place recall_find(struct recall *recall, const struct recall_scope *scope, struct rod_message *messages,
                                size_t n_messages);

/* The answer at a place that recall_find returned: content and calls as the client got them, and their tokens. */
void recall_put(struct recall *recall, const char *tenant, struct recall_place place, const struct rod_message *answer);

/* The tools of a prompt, a definition a line. True: the name has not had them lately. */
bool recall_put_tools(struct recall *recall, const char *tenant, const char *name, const char *tools, size_t n);
/* What was put before the i-th latest; NULL: there are none, or no memory. malloc'd, with a NUL behind them. */
char *recall_tools(struct recall *recall, const char *tenant, const char *name, size_t i, size_t *n);

/* How far the notes of a name are in the recall. Zeroes: not at all, or something of the tenant had to go since. Who
 * puts it leaves n_dropped alone. */
struct recall_seen {
    uint64_t inode, n_bytes; /* as the engine counts them */
    uint64_t n_dropped;      /* of the tenant, by then */
};
struct recall_seen recall_get_seen(struct recall *recall, const char *tenant, const char *name);
void recall_put_seen(struct recall *recall, const char *tenant, const char *name, const struct recall_seen *seen);

struct recall_counts {
    uint64_t n_answers, bytes;
};
struct recall_counts recall_count(struct recall *recall);

#endif
