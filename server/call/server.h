/* server.h - the server, as all files of `rodimus serve` share it.
 *
 * Ownership: cmd_serve.c owns the server and the engine; routes.c owns calls; completions and jobs own themselves.
 * Threads: the loop thread, with two exceptions. The way in of a completion (completion_open.c) and the work of a job
 * run on libuv's pool and touch their own completion or job, the engine's any-thread functions and the server's
 * constants (engine, info, defaults, config). The admin thread (admin.c) has a listener and calls of its own, and
 * touches only members that are atomic, constant or locked: engine, info, model_name, metrics, keys, log, the flags.
 * Invariants: engine is set once, after info and model_name; leaving comes before draining.
 */
#ifndef SERVER_H
#define SERVER_H

#include "server/base/admission.h"
#include "server/settings/config.h"
#include "server/http/http.h"
#include "server/settings/keys.h"
#include "server/base/loading.h"
#include "server/base/log.h"
#include "metrics.h"
#include "server/api/answer.h"
#include "server/api/request.h"
#include "server/base/pool.h"

#include "engine/base/list.h"
#include "engine/rodimus.h"

#include <stdatomic.h>
#include <uv.h>

#define SERVER_ID_BYTES 64
/* Above this many bytes a body is parsed and encoded on the thread pool, so that the loop does not stall: 16 KB of text
 * are some milliseconds. */
#define SERVER_INLINE_BYTES 16384
/* Of bodies that wait for the pool: seconds of its work. More gets 503. */
#define SERVER_POOL_BYTES ((size_t)256 << 20)

struct completion;
struct recall;
struct replies;

struct server {
    uv_loop_t *loop;
    uv_thread_t thread; /* of the loop */
    struct http *http;
    uv_loop_t *admin_loop;             /* of the admin thread; NULL without one */
    struct rod_engine *_Atomic engine; /* NULL while loading; set after info and model_name */
    const struct rod_model_info *info; /* likewise */
    struct rod_store *_Atomic store;   /* of states; NULL: none, or not open yet */
    struct config config;
    struct log log;
    atomic_uint_fast64_t hidden_ns, n_hidden; /* of http_call_hide_files: its last line, and those left out since */
    struct metrics metrics;
    struct keys keys;
    struct admission admission;
    struct loading loading;
    struct api_defaults defaults;
    struct api_stored stored; /* but for the tenant */
    struct api_vocab vocab;
    char model_name[128], adapter[128]; /* adapter "": none */
    char fingerprint[16];               /* of what computes the answers: "fp_..." */
    struct list completions;            /* in progress, the newest first */
    struct recall *recall;              /* answers as tokens; NULL: none are kept */
    struct replies *replies;            /* answers of idempotency keys in conversations; NULL: no memory */
    atomic_size_t n_jobs;
    struct pool pool;
    struct pool_queue queue; /* of work that is no key's */
    uv_timer_t tick;         /* pings; runs while there are completions */
    /* leaving: not ready any more; draining: and no requests are taken; cut: nor waited for; failed: a device fault,
     * the process will end */
    atomic_bool leaving, draining, cut, failed;
    _Atomic uint64_t beat_ns, busy_since_ns; /* the loop's last sign of life; since when there has been a completion */
};

/* For assertions: whether this is the loop thread. */
static inline bool server_on_loop(const struct server *s) {
    const uv_thread_t self = uv_thread_self();
    return uv_thread_equal(&s->thread, &self);
}

/* Where there are several keys each leaves a thread to the others: a long text of one must not keep the short work of
 * another waiting. */
static inline void server_pool(struct server *s, struct key *key, struct pool_work *work) {
    struct pool_queue *queue = key ? &key->queue : &s->queue;
    queue->n_leaves = s->keys.n > 1;
    pool_add(&s->pool, queue, work);
}

/* ---- the description, made from openapi.yaml at build time ---- */
extern const char openapi_json[];
extern const size_t openapi_json_len;
/* Made from playground.html by page_embed.py. */
extern const char page_html[], page_policy[];
extern const size_t page_html_len;

#endif
