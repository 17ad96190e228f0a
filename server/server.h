/* server.h - what the files of `rodimus serve` share: the server, and an exchange (a request with its route and id).
 *
 * Who owns what: cmd_serve.c owns the server and the engine; routes.c owns exchanges; turn.c owns turns.
 * Threads: all on the loop thread, but prepare in turn_open.c and the work of a job, which run on libuv's pool and
 * touch only their own turn or job, the engine's any-thread functions and the server's constants (engine, info,
 * defaults, config); and the admin thread (admin.c), which has a listener and exchanges of its own and of the server
 * touches only what is atomic, constant or locked: engine, info, model_name, metrics, keys, log, the flags.
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
#include "server/openai/openai.h"
#include "server/base/pool.h"

#include "engine/rodimus.h"

#include <stdatomic.h>
#include <uv.h>

#define SERVER_ID_BYTES 64
/* Above this many bytes a body is parsed and encoded on the thread pool, so that the loop does not stall: 16 KB of text
 * are some milliseconds. */
#define SERVER_INLINE_BYTES 16384
/* So much may wait for it: seconds of its work. Who comes then gets 503. */
#define SERVER_POOL_BYTES ((size_t)256 << 20)

struct turn;

struct server {
    uv_loop_t *loop;
    struct http *http;
    uv_loop_t *admin_loop;             /* of the admin thread; NULL without one */
    struct rod_engine *_Atomic engine; /* NULL while loading; set after info and model_name */
    const struct rod_model_info *info; /* likewise */
    struct config config;
    struct log log;
    struct metrics metrics;
    struct keys keys;
    struct admission admission;
    struct loading loading;
    struct openai_defaults defaults;
    struct openai_vocab vocab;
    char model_name[128];
    struct turn *turns; /* all in progress */
    size_t n_turns;
    atomic_size_t n_jobs;
    struct pool pool;
    struct pool_queue queue; /* of work that is no key's */
    uv_timer_t tick;         /* pings; runs while there are turns */
    /* leaving: not ready any more; draining: and no requests are taken; failed: a device fault, the process will end */
    atomic_bool leaving, draining, failed;
    _Atomic uint64_t beat_ns, busy_since_ns; /* the loop's last sign of life; since when there has been a turn */
};

/* A long text of one key must not keep the short work of another waiting, so where there are several keys each leaves a
 * thread to the others. */
static inline void server_pool(struct server *s, struct key *key, struct pool_work *work) {
    struct pool_queue *queue = key ? &key->queue : &s->queue;
    queue->n_leaves = s->keys.n > 1;
    pool_add(&s->pool, queue, work);
}

struct http_call { /* one HTTP request; the user pointer of its http_request */
    struct server *server;
    struct http_request *http;
    char id[SERVER_ID_BYTES]; /* of the client, or made here; in X-Request-Id and in logs */
    uv_loop_t *loop;          /* where it is answered: the main one, or the admin thread's */
    unsigned route;
    struct turn *turn;   /* of a completion, or NULL */
    struct job *job;     /* of work on the thread pool, or NULL */
    struct key *key;     /* whose request it is; NULL without keys. Held until done */
    bool counted, aside; /* counted: among the key's requests in flight; aside: on the admin thread */
    const char *outcome; /* for the log: static text, NULL = nothing to say beyond the status */
    char tenant[72];     /* whose sessions it sees */
};

/* ---- routes.c ---- */
struct http_handlers routes_handlers(struct server *server);
struct http_handlers routes_aside_handlers(struct server *server); /* of the admin thread's listener */
void routes_respond(struct http_call *x, unsigned status, const char *content_type,
                    struct buf *body); /* empties body */
void routes_fail(struct http_call *x, const struct openai_error *err);
/* NULL when requests are taken, else why not: "loading", "draining", "failed", "stalled". Any thread. */
const char *routes_unready(const struct server *server);

/* Whose sessions a request sees: a name of its API key, "" without keys. */
const char *routes_tenant(const struct http_call *x);
/* What the path has in the place of its name; false: it does not fit, or the route has none. */
bool routes_name(const struct http_call *x, char *name, size_t size);
/* ---- access.c: who may call, from where ---- */
bool access_allowed(struct http_call *x, bool admin); /* else 401 is the answer. Sets x->key */
void access_key_spent(struct openai_error *err, const struct key *key, uint64_t wait_s); /* no tokens left: 429 */
bool access_state(struct http_call *x);         /* beside the former, for states; else 403. Sets x->tenant */
void access_forget(struct http_request *r);     /* the key that it brought, when it has been compared */
void access_cors(struct http_call *x);          /* headers for a page of another origin */
bool access_preflight(struct http_call *x);     /* it was a browser's question and is answered */
bool access_foreign(const struct http_call *x); /* a page sent it, neither this server's own nor of a listed origin */

/* ---- reload.c: SIGHUP ---- */
struct http_tls;
void reload_settings(struct server *s, struct http_tls *tls, int argc, char **argv); /* tls: NULL = the port is plain */
void reload_warn(struct server *s, const struct http_tls *tls); /* what is taken over, though it should be otherwise */

/* ---- admin.c: the second listener ---- */
struct admin;
int admin_open(struct server *server, struct admin **out, char *message, size_t size); /* results as of http_open */
uint16_t admin_port(const struct admin *admin);
void admin_close(struct admin *admin); /* NULL is fine; ends its thread */

/* ---- turn.c, turn_open.c: a completion from its body to its last byte ---- */
void turn_start(struct http_call *x, enum openai_kind kind);
void turn_event(struct rod_event *event);         /* takes the event */
void turn_gone(struct turn *turn);                /* the client left: its choices are cancelled */
void turn_done(struct turn *turn);                /* the http request ends; the exchange dies after this */
void turn_tick(uv_timer_t *timer);                /* pings; the timer's data is the server */
void turn_end_all(struct server *server);         /* the drain's time is over: an error to each */
bool turn_any_works(const struct server *server); /* on the pool */
void turn_free_all(struct server *server);        /* after the engine is closed */
int turn_log_fields(const struct turn *turn, struct log_field *fields, int max);

/* ---- job.c: /tokenize, /detokenize and /apply-template, on the pool when long ---- */
void job_tokenize(struct http_call *x);
void job_detokenize(struct http_call *x);
void job_apply_template(struct http_call *x);
void job_gone(struct job *job);

/* ---- session_routes.c: the routes of sessions, on the pool ---- */
void session_routes_create(struct http_call *x);
void session_routes_list(struct http_call *x);
void session_routes_get(struct http_call *x);
void session_routes_change(struct http_call *x);
void session_routes_delete(struct http_call *x);
void session_routes_delete_response(struct http_call *x);
void session_routes_fork(struct http_call *x);
void session_routes_export(struct http_call *x);
void session_routes_import(struct http_call *x);
size_t session_routes_state_max(const struct server *server); /* bytes of the largest state that is taken */
void session_routes_discard(struct server *server, const char *tenant, const char *id); /* nobody waits for it */

/* ---- the description, made from openapi.yaml at build time ---- */
extern const char openapi_json[];
extern const size_t openapi_json_len;
/* Made from playground.html by page_embed.py. */
extern const char page_html[], page_policy[];
extern const size_t page_html_len;

#endif
