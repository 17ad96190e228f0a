/* job.h - one piece of work for one answer: a body in, a body out, perhaps on libuv's pool. job.c has its life.
 *
 * Ownership: a job owns its body and its output and frees itself after the answer. Threads: run may be on the pool,
 * where it touches its own job, the engine's any-thread functions and the server's constants.
 */
#ifndef JOB_H
#define JOB_H

#include "http_call.h"
#include "server/api/api_conversation.h"

enum { JOB_REFUSED = 1 }; /* codes of the engine are below 0 */

struct job_page {
    size_t limit;
    char after[API_CONVERSATION_MAX + 1]; /* where it goes on; "" = from the beginning */
    bool rising;                          /* of the items of an input: in their order */
};

struct job {
    struct server *server;
    struct http_call *call;                           /* NULL: the client left, or the job has none */
    uv_loop_t *loop;                                  /* the call's */
    int (*run)(struct job *j, struct rod_error *err); /* 0, the engine's code with err, or JOB_REFUSED with j->err */
    atomic_bool left;                                 /* the client, while the work runs */
    bool failed, idle; /* failed: err is the answer; idle: the work changes nothing, so that without a client it may
                          stay undone */
    char *body;
    size_t body_len;
    struct key *key;          /* NULL without keys. Held */
    struct key_tokens tokens; /* taken from its minute */
    uint64_t n_tok;           /* that were made or read */
    bool counted;             /* among the key's requests in flight though its client has left */
    struct buf out;
    const char *type; /* of out; NULL = JSON */
    struct api_error err;
    struct pool_work work; /* of one on the admin thread uv alone */
    /* of a session */
    char tenant[128], name[API_CONVERSATION_MAX + 1]; /* name: of the path */
    struct job_page page;                             /* of a list */
    uint64_t max_sessions;                            /* of the key; 0 = a quota, as in rod_session_new */
};

/* NULL, after an answer of 500: out of memory. call may be NULL: then nobody gets the answer. */
struct job *job_new(struct server *server, struct http_call *call, int (*run)(struct job *j, struct rod_error *err));
/* With the name in the call's path, which any_name leaves to run to check. NULL after an answer. */
struct job *job_new_named(struct http_call *call, int (*run)(struct job *j, struct rod_error *err), bool any_name);
/* Likewise, with the name of a conversation. */
struct job *job_new_conversation(struct http_call *call, int (*run)(struct job *j, struct rod_error *err));
/* The query's part of a list, whose limit is set and at most so large. of: whose ids stand in after. False after a 400.
 */
bool job_take_page(struct http_call *call, size_t most, const char *of, struct job_page *page);
bool job_take_conversations(struct http_call *call, size_t most, struct job_page *page); /* of a list of these */
/* Answers and frees. wait: it may wait for files, so it runs on the pool; else only where the body is long. */
void job_start(struct job *job, bool wait);
/* The job of a call that uses tokens of its key's minute: made and started. */
void job_start_text(struct http_call *call, int (*run)(struct job *j, struct rod_error *err), bool wait);
void job_gone(struct job *job); /* the client left, or the request is done */
/* Where no count of tokens is known. */
static inline uint64_t job_estimate_tokens(size_t n_bytes) { return (n_bytes + 3) / 4; }

#endif
