/* session_answer.h - the finished answers of a session by their idempotency keys, as bytes that go into its file.
 *
 * A body is an answer's events in order, written while it is generated and read when the key comes again, or when the
 * answer is looked at (rod_session_answer). A list holds
 * the last turns' keys: each with a version, the digest of the request, and a body. Old bodies make room for new ones;
 * a key without its body is still known, so that its turn does not run a second time.
 *
 * All numbers little-endian. A body: perhaps a label (u8 16, u32 n, text), then events, the last of which is the
 * finish: u8 kind: DELTA, END_TOKEN: u32 n_text, text, i32 id, f32 logprob, u32 n_top, n_top x (i32 id, f32 logprob)
 *            FINISH: u32 n_text, text, u8 reason, i32 stop_id, u8 flags, u32 n_stop, stop string,
 *                    u64 prompt_tok, cached_tok, completion_tok,
 *                    with flag 2 u64 created_tok, created_long_tok, accepted_tok, rejected_tok
 * Flags: 1 a stop string; 2 these counts. A turn's text is an END_TOKEN of no token, before the answer's events:
 * earlier versions read it, and show it to nobody.
 *
 * A list: records, the oldest first:
 *   u32 bytes of the rest, u64 version, 16 digest, u32 n_key, key, body
 *
 * Ownership: a writer owns its buffer; lists are counted and never change. Threads: any; only lists are shared.
 * Invariant: a body may come from outside: no byte beyond the given ones is read.
 */
#ifndef SESSION_ANSWER_H
#define SESSION_ANSWER_H

#include "engine/sched/request.h"

#include <stdatomic.h>

#define SESSION_ANSWER_MAX_KEY    255u
#define SESSION_ANSWER_MAX_TOP    20u
#define SESSION_ANSWER_MAX_LABEL  1023u
#define SESSION_ANSWER_BODY_BYTES (8u << 20)   /* a longer answer is not kept, its key is */
#define SESSION_ANSWER_LIST_BYTES (256u << 10) /* of all bodies but the newest */
#define SESSION_ANSWER_LIST_N     256u         /* keys */

/* ---- writing a body ---- */

struct session_answer {
    char *bytes;
    size_t n, cap;
    bool too_long; /* nothing more is kept */
};
/* Before the events. Nonzero: out of memory. */
int session_answer_label(struct session_answer *answer, const char *label);
/* The turn's text, likewise; behind the label. */
int session_answer_text(struct session_answer *answer, const char *text);
/* Appends a DELTA, END_TOKEN or FINISH. Nonzero: out of memory. */
int session_answer_add(struct session_answer *answer, const struct rod_event *event);
void session_answer_free(struct session_answer *answer);

/* ---- reading a body ---- */

/* The whole body is well formed, and ends with a FINISH. */
bool session_answer_check(const void *body, size_t n);
/* The events of a body that session_answer_check accepts, in order, appended. On failure none is. */
int session_answer_events(const void *body, size_t n, struct mailbox_events *events, struct rod_error *err);

/* ---- lists ---- */

struct session_answers {
    atomic_uint refs;
    size_t n;
    unsigned char bytes[];
};
struct session_answers *session_answers_ref(struct session_answers *answers); /* NULL is the empty list */
void session_answers_release(struct session_answers *answers);
/* From bytes of outside: ROD_ESTATE where they are malformed. *out NULL: the list is empty. */
int session_answers_parse(const void *bytes, size_t n, struct session_answers **out, struct rod_error *err);

struct session_answer_found {
    uint64_t version;
    const uint8_t *digest; /* [16] */
    const void *body;      /* n 0: no longer kept */
    size_t n;
};
/* What is left of it: without a body its version and digest alone. */
int session_answer_read(const struct session_answer_found *found, struct rod_answer *out, struct rod_error *err);
/* The oldest. */
bool session_answers_first(const struct session_answers *answers, struct session_answer_found *out);
/* The newest of this key. */
bool session_answers_find(const struct session_answers *answers, const char *key, struct session_answer_found *out);
/* A new list with one record more. NULL without memory. */
struct session_answers *session_answers_add(const struct session_answers *answers, const char *key,
                                            const uint8_t digest[16], uint64_t version,
                                            const struct session_answer *answer);

/* A new list in which turns behind this version are known and their answers are not: the session went back to it. NULL
 * without memory. */
struct session_answers *session_answers_go_back(const struct session_answers *answers, uint64_t version);

#endif
