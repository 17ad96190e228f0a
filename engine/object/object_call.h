/* object_call.h - a call: attempts of one request within its time, until the store has said something that counts.
 *
 * Ownership: a call holds a channel and its bytes in flight from begin to end. Threads: a call is one thread's.
 */
#ifndef OBJECT_CALL_H
#define OBJECT_CALL_H

#include "object_pool.h"
#include "object_seconds.h"
#include "engine/base/log_limit.h"

#include <pthread.h>
#include <stdatomic.h>

enum object_counter { OBJECT_CONFLICTS, OBJECT_FAILURES, OBJECT_RETRIES, OBJECT_IN, OBJECT_OUT, OBJECT_COUNTERS };

struct object_store {
    struct object_url url;
    struct object_line line;
    struct object_pool *pool;
    char encryption[32];
    char *credentials_file;
    uint64_t time_ns;
    pthread_key_t until; /* of each thread: when its calls end at the latest; NULL: in their own time */
    void (*log)(void *arg, int level, const char *line);
    void *log_arg;
    atomic_bool delete_asks; /* DELETE with If-Match does what it says */
    atomic_bool bare_etags;  /* PUT wants If-Match without quotes */
    atomic_uint_fast64_t n_requests[OBJECT_KINDS], counters[OBJECT_COUNTERS];
    struct object_seconds seconds[ROD_STORE_N_WORKS];

    pthread_mutex_t lock; /* of what follows */
    struct object_credentials *credentials;
    uint64_t renewed_ns; /* tried to be */
    uint32_t n_failed;   /* the last so many calls */
    struct rod_error why;
    struct log_limit failing; /* the log says so */
    bool told;                /* and not yet that it is over */
};

void object_store_say(struct object_store *store, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

struct object_call {
    struct object_store *store;
    struct object_ask ask;
    struct object_body body;
    struct object_pace pace;
    struct object_channel *channel;
    bool is_lent;     /* the channel is another call's */
    uint64_t n_bytes; /* taken from the pool */
    uint64_t began_ns;
    bool is_stream, was_renewed;
    bool maybe_done; /* an attempt came to its end unseen, and may have been done */
    bool is_silent;  /* and the store itself did not answer it: it may be done later still */
    enum object_verdict verdict;
};

/* channel: of another call, between its attempts; NULL: one of the pool. body: of PUT, else NULL. */
int object_call_begin(struct object_call *call, struct object_store *store, const struct object_ask *ask,
                      const struct object_body *body, uint64_t time_ns, struct object_channel *channel,
                      struct rod_error *err);
void object_call_end(struct object_call *call);
/* One exchange. 0: the verdict is DONE, MISSING or LOST, and the answer's headers are there, also its body but for a
 * stream. Else err, and the verdict is AGAIN or REFUSED. */
int object_call_attempt(struct object_call *call, struct rod_error *err);
/* Of this thread's hurry; 0: none. */
uint64_t object_call_until(const struct object_store *store);
/* Waits for the next attempt; false: it would begin too late. */
bool object_call_again(struct object_call *call);
/* All attempts. Result as of object_call_attempt. */
int object_call_run(struct object_call *call, struct rod_error *err);
/* How the call has ended, for health. */
int object_call_note(struct object_store *store, int rc, const struct rod_error *err);

/* For the probe (object_store.c). mark: [OBJECT_MARK_BYTES], or NULL. */
int object_store_head_mark(struct object_store *store, const char *key, struct object_version *version, char *mark,
                           struct rod_error *err);
/* With If-Match, whether the store knows it or not; etag "": without. */
int object_store_delete_if(struct object_store *store, const char *key, const char *etag, struct rod_error *err);

static inline const struct object_answer *object_call_answer(const struct object_call *call) {
    return &call->channel->exchange.answer;
}

#endif
