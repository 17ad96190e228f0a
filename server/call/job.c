/* job.c - see job.h: the life of a job. */
#include "access.h"
#include "job.h"
#include "server/api/api_routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void job_fail(struct job *j, const struct rod_error *rod) {
    assert(rod->code);
    api_error_from(&j->err, rod);
    if (rod->code == ROD_EIO) http_call_hide_files(j->server, j->name, &j->err);
}

static void job_run(struct job *j) {
    struct rod_error err = {0};
    assert(!j->failed && !j->out.len && j->server->engine);
    const int rc = j->run(j, &err);
    j->failed = rc || j->out.failed;
    if (rc && rc != JOB_REFUSED)
        job_fail(j, &err);
    else if (!rc && j->out.failed)
        api_error_no_memory(&j->err);
}

static void job_finish(struct job *j) {
    assert((j->loop == j->server->loop) == server_on_loop(j->server));
    assert(!j->call || j->call->job == j);
    assert(!j->counted || (j->key && !j->call)); /* else the call counts itself */
    if (j->call) {
        j->call->job = NULL;
        if (j->failed) {
            http_call_fail(j->call, &j->err);
        } else {
            http_call_respond(j->call, 200, j->type ? j->type : "application/json", &j->out);
        }
    }
    if (j->key) {
        key_settle(j->key, &j->tokens, j->n_tok);
        j->key->text_tok += j->n_tok;
        if (j->counted) key_end(j->key, 1);
        key_drop(&j->server->keys, j->key);
    }
    assert(j->server->n_jobs);
    j->server->n_jobs--;
    buf_fini(&j->out);
    free(j->body);
    free(j);
}

static void job_on_work(void *arg) { job_run(arg); }
static void job_on_work_done(void *arg) { job_finish(arg); }

/* The pool's queues belong to the loop thread: jobs of the admin thread go to libuv. */
static void job_on_admin_work(uv_work_t *request) { job_run(request->data); }
static void job_on_admin_work_done(uv_work_t *request, int status) {
    (void)status;
    job_finish(request->data);
}

struct job *job_new(struct server *s, struct http_call *call, int (*run)(struct job *j, struct rod_error *err)) {
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        if (call) http_call_no_memory(call);
        return NULL;
    }
    *j = (struct job){.server = s, .call = call, .loop = call ? call->loop : s->loop, .run = run};
    s->n_jobs++;
    j->work = (struct pool_work){.run = job_on_work, .done = job_on_work_done, .arg = j};
    if (!call) return j;
    assert(!call->job && !call->completion);
    call->job = j;
    j->key = call->key;
    if (j->key) key_hold(j->key);
    j->work.n_bytes = http_body_bytes(call->http);
    j->body = http_take_body(call->http, &j->body_len);
    snprintf(j->tenant, sizeof j->tenant, "%s", call->tenant);
    j->max_sessions = call->key ? call->key->max_sessions : 0;
    return j;
}

struct job *job_new_named(struct http_call *call, int (*run)(struct job *j, struct rod_error *err), bool any_name) {
    char name[API_SESSION_ID_MAX + 1];
    if (!http_call_name(call, name, sizeof name) || (!any_name && !api_session_id(name))) {
        http_call_invalid(call, 400, "", "id", "id must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'.",
                          API_SESSION_ID_MAX);
        return NULL;
    }
    struct job *j = job_new(call->server, call, run);
    if (j) memcpy(j->name, name, sizeof name);
    return j;
}

struct job *job_new_conversation(struct http_call *call, int (*run)(struct job *j, struct rod_error *err)) {
    char name[API_CONVERSATION_MAX + 1];
    if (!http_call_name(call, name, sizeof name) || !api_conversation_is(name, strlen(name))) {
        http_call_invalid(call, 400, "", "id", "id must be the name of a conversation: 1 to %d bytes.",
                          API_CONVERSATION_MAX);
        return NULL;
    }
    struct job *j = job_new(call->server, call, run);
    if (j) memcpy(j->name, name, sizeof name);
    return j;
}

bool job_take_conversations(struct http_call *call, size_t most, struct job_page *page) {
    const char *after = http_query(call->http, "after");
    if (!http_call_limit(call, most, &page->limit)) return false;
    if (after && !api_conversation_is(after, strlen(after))) {
        http_call_invalid(call, 400, "", "after", "after must be the name of a conversation.");
        return false;
    }
    snprintf(page->after, sizeof page->after, "%s", after ? after : "");
    return true;
}

bool job_take_page(struct http_call *call, size_t most, const char *of, struct job_page *page) {
    const char *after = http_query(call->http, "after");
    if (!http_call_limit(call, most, &page->limit)) return false;
    if (after && !api_session_id(after)) {
        http_call_invalid(call, 400, "", "after", "after must be the id of %s.", of);
        return false;
    }
    snprintf(page->after, sizeof page->after, "%s", after ? after : "");
    return true;
}

void job_start(struct job *j, bool wait) {
    assert(j->loop != j->server->loop || server_on_loop(j->server));
    assert(!j->idle || j->call); /* an idle job has a client */
    const bool is_long = wait || j->body_len > SERVER_INLINE_BYTES;
    if (is_long && j->loop == j->server->loop) {
        server_pool(j->server, j->key, &j->work);
        return;
    }
    j->work.uv.data = j;
    if (is_long && uv_queue_work(j->loop, &j->work.uv, job_on_admin_work, job_on_admin_work_done) == 0) return;
    job_run(j);
    job_finish(j);
}

/* The number of tokens is known when the job is done; until then the bytes stand for them. */
static bool key_affords(struct http_call *call, struct key_tokens *taken) {
    struct api_error err;
    if (access_take_tokens(call->key, job_estimate_tokens(http_body_bytes(call->http)), taken, &err)) return true;
    http_call_fail(call, &err);
    return false;
}

void job_start_text(struct http_call *call, int (*run)(struct job *j, struct rod_error *err), bool wait) {
    struct key_tokens taken = {0};
    if (!key_affords(call, &taken)) return;
    struct job *j = job_new(call->server, call, run);
    if (!j) {
        if (call->key) key_settle(call->key, &taken, 0);
        return;
    }
    j->tokens = taken;
    j->idle = true;
    job_start(j, wait);
}

void job_gone(struct job *job) {
    assert(job->call && job->call->job == job && !job->counted);
    job->counted = job->call->counted; /* work that has begun goes on and counts, or a client that leaves and comes
                                          again would run more than its limit */
    job->call->counted = false;
    job->call = NULL;
    job->left = true;
    if (job->idle) pool_cancel(&job->work); /* unless it has begun; on_work_done comes all the same */
}
