/* keys.h - API keys with their names, limits and counts.
 *
 * Ownership: keys owns the list; a key lives while it is listed or a request holds it (key_hold, key_drop), so that a
 * request outlives the reload that removes its key. Time is an argument.
 * Threads: the loop thread, but keys_any, keys_is_admin, keys_open_to and keys_each, which any thread may call.
 * Invariant: how long a comparison takes depends on what the client sent and on how many keys there are, not on what
 * the keys are; what is longer than a key may be is not compared, or strangers could keep the loop busy.
 */
#ifndef KEYS_H
#define KEYS_H

#include "options.h"
#include "server/base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KEYS_MAX = 1000, KEYS_SECRET_MAX = 256 }; /* below the engine's ROD_MAX_KEYS; bytes of a key */

struct key {
    char name[48], *secret;
    bool named;                 /* by the operator, not by its place */
    uint32_t index;             /* of its quota in the engine: 1 to KEYS_MAX, nobody else's */
    uint32_t priority;          /* 1..100: of slots that several keys want, one of priority 2 gets twice as many */
    uint64_t max_requests;      /* in flight; 0 = no limit */
    uint64_t tokens_per_minute; /* prompt and answer together; 0 = no limit */
    uint64_t max_sessions;      /* that there are at once; 0 = a quota of the setting of this name */
    double level_tok; /* what it may still take at level_ns; below 0 behind a request beyond a whole minute's */
    uint64_t level_ns;
    uint32_t era; /* counts the changes of tokens_per_minute */
    uint32_t n_holders;
    size_t body_bytes;       /* of its bodies that come in */
    struct pool_queue queue; /* of its work for the pool */
    _Atomic uint64_t n_requests, requests_total, rejected_total, prompt_tok, completion_tok,
        text_tok; /* n_: in flight */
};

/* Tokens that a request has taken from its key's minute, before they are used. Zero at first. */
struct key_tokens {
    uint64_t n_tok;
    uint32_t era;
    bool taken;
};

struct keys {
    pthread_mutex_t lock; /* over list, n and admin */
    struct key **list;
    size_t n;
    char *admin; /* "" = none */
    bool used[KEYS_MAX + 1];
};

/* From the settings api_keys, api_key_file and admin_key. A line of the file: KEY [name=NAME] [requests=N]
 * [tokens_per_minute=N] [sessions=N] [priority=N]; empty lines and those that begin with # are skipped. 0, or -1 with
 * the message, which names file and line and never a key. */
int keys_open(struct keys *k, const struct option_list *listed, const char *path, const char *admin,
              struct option_error *err);
/* keys_open again; keys that keep their names keep their counts and quotas. Where there are keys some must be left, and
 * so with the admin key. On an error nothing has changed. */
int keys_reload(struct keys *k, const struct option_list *listed, const char *path, const char *admin,
                struct option_error *err);
void keys_fini(struct keys *k);

bool keys_any(struct keys *k);                        /* there are some, beside the admin key */
bool keys_open_to(struct keys *k, const char *given); /* given (may be NULL) is a key, or there are none */
bool keys_is_admin(struct keys *k, const char *given, bool *needed); /* needed: there is an admin key */
struct key *keys_find(struct keys *k, const char *given);            /* NULL = none, or there are no keys */
void keys_each(struct keys *k, void (*each)(void *arg, const struct key *key), void *arg); /* under the lock */

void key_hold(struct key *key);
void key_drop(struct keys *k, struct key *key);

/* One more request in flight; then n more choices of it, as each takes a slot. false: beyond its limit of them. */
bool key_begin(struct key *key);
bool key_add(struct key *key, uint32_t n);
void key_end(struct key *key, uint32_t n);
/* What waits of the key has at most so many times what it leaves free of the queue; 0: it is the only one. */
uint32_t keys_queue_share(const struct keys *k, const struct key *key);
/* Takes what a request may use at most from this minute's tokens. 0, or the seconds until that may succeed. What is
 * more than a whole minute's passes when the minute is untouched, and the next one waits the longer. */
uint64_t key_take(struct key *key, uint64_t n_tok, uint64_t now_ns, struct key_tokens *out);
/* The seconds until any token is left, 0 = now. A refusal counts, nothing is taken. */
uint64_t key_closed_s(struct key *key, uint64_t now_ns);
/* Once what is used is known: the rest goes back. A second call does nothing. */
void key_settle(struct key *key, struct key_tokens *taken, uint64_t used_tok);

#endif
