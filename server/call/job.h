/* job.h - one piece of work for one answer: a body in, a body out, perhaps on libuv's pool. job.c has its life.
 *
 * Ownership: a job owns its body and its output and frees itself after the answer. Threads: run may be on the pool,
 * where it touches its own job, the engine's any-thread functions and the server's constants.
 */
#ifndef JOB_H
#define JOB_H

#include "http_call.h"

struct job {
    struct server *server;
    struct http_call *call; /* NULL: the client left, or the job has none */
    uv_loop_t *loop;        /* the call's */
    void (*run)(struct job *j);
    atomic_bool left;  /* the client, while the work runs */
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
    char tenant[128], name[API_SESSION_ID_MAX + 1]; /* name: of the path */
    char after[API_SESSION_ID_MAX + 1];             /* of a list: where it goes on; "" = from the beginning */
    size_t limit;
    bool rising;           /* of the items of an input: in their order */
    uint64_t max_sessions; /* of the key; 0 = a quota, as in rod_session_new */
};

/* NULL, after an answer of 500: out of memory. call may be NULL: then nobody gets the answer. */
struct job *job_new(struct server *server, struct http_call *call, void (*run)(struct job *j));
/* Answers and frees. wait: it may wait for files, so it runs on the pool; else only where the body is long. */
void job_start(struct job *job, bool wait);
/* The job of a call that uses tokens of its key's minute: made and started. */
void job_start_text(struct http_call *call, void (*run)(struct job *j), bool wait);
void job_fail(struct job *job, const struct rod_error *rod);
void job_gone(struct job *job); /* the client left, or the request is done */

/* ---- the text routes, on the pool when long ---- */
void job_tokenize(struct http_call *call);
void job_count_tokens(struct http_call *call); /* of /v1/messages */
void job_detokenize(struct http_call *call);
void job_apply_template(struct http_call *call);

#endif
