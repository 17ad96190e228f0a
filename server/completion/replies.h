/* replies.h - answers in conversations that came with an Idempotency-Key, as they went out: a client that repeats its
 * request gets the same bytes, and nothing runs again.
 *
 * Ownership: replies own their bytes. Threads: one. No I/O and no clock. Invariants: all together take at most the
 * budget, those of one tenant a quarter; a tenant's oldest goes first. Here alone, so they end with the server.
 */
#ifndef REPLIES_H
#define REPLIES_H

#include "server/base/buf.h"

#define REPLY_MAX_BYTES ((size_t)1 << 20)  /* a longer answer is not kept */
#define REPLIES_BYTES   ((size_t)16 << 20) /* of a server */
struct replies;
struct replies *replies_new(size_t budget_bytes); /* NULL: no memory */
void replies_close(struct replies *replies);      /* NULL: nothing */

enum reply_is {
    REPLY_NEW,   /* the key is taken until replies_end */
    REPLY_RUNS,  /* the request of this key has not ended */
    REPLY_OTHER, /* the key was another request's */
    REPLY_THERE  /* *out is the answer, the replies' until the next call */
};
enum reply_is replies_ask(struct replies *replies, const char *tenant, const char *key, const uint8_t digest[16],
                          const struct buf **out);
/* The answer of a key that was new; NULL, or one that failed: there is none to repeat. */
void replies_end(struct replies *replies, const char *tenant, const char *key, struct buf *answer); /* empties it */

#endif
