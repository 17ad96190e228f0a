/* job.c - the life of a job (job.h), and the jobs of the text routes: /tokenize, /detokenize and /apply-template, on
 * the pool when the body is long. */
#include "access.h"
#include "job.h"
#include "server/api/api_routes.h"
#include "server/api/messages/messages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void job_fail(struct job *j, const struct rod_error *rod) {
    assert(!j->failed && rod->code);
    j->failed = true;
    api_error_from(&j->err, rod);
    if (rod->code == ROD_EIO) http_call_hide_files(j->server, j->name, &j->err);
}

/* An estimate, where no count is known. */
static uint64_t estimate_tokens(size_t n_bytes) { return (n_bytes + 3) / 4; }

static void put_offsets(struct job *j, const char *text, size_t len, const int32_t *ids, size_t n) {
    buf_puts(&j->out, ",\"offsets\":");
    api_render_offsets(&j->out, text ? text : "", len, ids, n, &j->server->vocab);
}

static void put_tokens(struct job *j, const struct api_tokenize *t, const int32_t *ids, size_t n) {
    const struct server *s = j->server;
    if (t->plain) {
        buf_puts(&j->out, "{\"tokens\":[");
        if (t->pieces)
            api_render_pieces(&j->out, ids, n, &s->vocab);
        else
            api_render_ids(&j->out, ids, n);
        buf_putc(&j->out, ']');
        return;
    }
    buf_addf(&j->out, "{\"count\":%zu,\"max_model_len\":%llu,\"tokens\":[", n,
             (unsigned long long)s->info->max_prompt_tok);
    api_render_ids(&j->out, ids, n);
    buf_puts(&j->out, "],\"token_strs\":");
    for (size_t i = 0; t->token_strs && i < n; i++) {
        buf_putc(&j->out, i ? ',' : '[');
        api_put_token(&j->out, ids[i], false, &s->vocab);
    }
    buf_puts(&j->out, !t->token_strs ? "null" : n ? "]" : "[]");
}

static struct rod_chat chat_of(const struct api_tokenize *t) {
    return (struct rod_chat){.messages = t->messages,
                             .n_messages = t->n_messages,
                             .tools = (const char *const *)t->tools.lines,
                             .n_tools = t->tools.n,
                             .generation = t->end.generation,
                             .go_on = t->end.go_on};
}

static void run_tokenize(struct job *j) {
    const struct server *s = j->server;
    struct api_tokenize t;
    struct rod_error rod = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    j->failed = api_parse_tokenize(j->body, j->body_len, &s->defaults, &t, &j->err) != 0;
    if (j->failed) return;
    int rc = 0;
    if (t.n_messages) {
        const struct rod_chat chat = chat_of(&t);
        rc = rod_chat_encode(s->engine, &chat, &ids, &n, &rod);
        if (!rc && t.offsets) rc = rod_chat_render(s->engine, &chat, &t.text, &t.len, &rod);
    } else if (t.len) {
        rc = rod_tokenize(s->engine, t.text, t.len, t.parse_special, t.add_special, &ids, &n, &rod);
    }
    if (rc) {
        job_fail(j, &rod);
    } else {
        put_tokens(j, &t, ids, n);
        if (t.offsets) put_offsets(j, t.text, t.len, ids, n);
        j->n_tok = n;
        buf_putc(&j->out, '}');
    }
    free(ids);
    api_tokenize_fini(&t);
}

static void run_count_tokens(struct job *j) {
    const struct server *s = j->server;
    struct api_request q;
    struct rod_error rod = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    j->failed = messages_parse_counted(j->body, j->body_len, &s->defaults, &q, &j->err) != 0;
    if (j->failed) return;
    const struct rod_chat chat = {.messages = q.messages,
                                  .n_messages = q.n_messages,
                                  .tools = (const char *const *)q.tools.lines,
                                  .n_tools = q.tools.n,
                                  .generation = q.end.generation,
                                  .go_on = q.end.go_on};
    if (rod_chat_encode(s->engine, &chat, &ids, &n, &rod)) {
        job_fail(j, &rod);
    } else {
        buf_addf(&j->out, "{\"input_tokens\":%zu}", n);
        j->n_tok = n;
    }
    free(ids);
    api_request_fini(&q);
}

static void run_detokenize(struct job *j) {
    const struct server *s = j->server;
    struct rod_error rod = {0};
    struct api_detokenize d;
    size_t len = 0;
    char *text = NULL;
    j->failed = api_parse_detokenize(j->body, j->body_len, &s->defaults, &d, &j->err) != 0;
    if (j->failed) return;
    if (rod_decode(s->engine, d.ids, d.n_ids, d.skip_special, &text, &len, &rod)) {
        job_fail(j, &rod);
    } else {
        buf_puts(&j->out, "{\"prompt\":");
        buf_json(&j->out, text, len);
        buf_puts(&j->out, ",\"content\":"); /* the same for llama.cpp's clients */
        buf_json(&j->out, text, len);
        if (d.offsets) put_offsets(j, text, len, d.ids, d.n_ids);
        j->n_tok = d.n_ids;
        buf_putc(&j->out, '}');
    }
    free(text);
    free(d.ids);
}

static void run_apply_template(struct job *j) {
    const struct server *s = j->server;
    struct api_tokenize t;
    struct rod_error rod = {0};
    char *text = NULL;
    size_t len = 0;
    j->failed = api_parse_template(j->body, j->body_len, &s->defaults, &t, &j->err) != 0;
    if (j->failed) return;
    const struct rod_chat chat = chat_of(&t);
    if (rod_chat_render(s->engine, &chat, &text, &len, &rod)) {
        job_fail(j, &rod);
    } else {
        buf_puts(&j->out, "{\"prompt\":");
        buf_json(&j->out, text, len);
        buf_putc(&j->out, '}');
        j->n_tok = estimate_tokens(len);
    }
    free(text);
    api_tokenize_fini(&t);
}

/* ---- its life ---- */

static void job_run(struct job *j) {
    assert(!j->failed && !j->out.len && j->server->engine);
    j->run(j);
    if (j->failed || !j->out.failed) return;
    j->failed = true;
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

struct job *job_new(struct server *s, struct http_call *call, void (*run)(struct job *j)) {
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
    return j;
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
    if (access_take_tokens(call->key, estimate_tokens(http_body_bytes(call->http)), taken, &err)) return true;
    http_call_fail(call, &err);
    return false;
}

void job_start_text(struct http_call *call, void (*run)(struct job *j), bool wait) {
    struct key_tokens taken = {0};
    if (!key_affords(call, &taken)) return;
    struct job *j = job_new(call->server, call, run);
    if (!j) {
        if (call->key) key_settle(call->key, &taken, 0);
        return;
    }
    snprintf(j->tenant, sizeof j->tenant, "%s", call->tenant);
    j->tokens = taken;
    j->idle = true;
    job_start(j, wait);
}

void job_tokenize(struct http_call *call) { job_start_text(call, run_tokenize, false); }
void job_count_tokens(struct http_call *call) { job_start_text(call, run_count_tokens, false); }
void job_detokenize(struct http_call *call) { job_start_text(call, run_detokenize, false); }
void job_apply_template(struct http_call *call) { job_start_text(call, run_apply_template, false); }

void job_gone(struct job *job) {
    assert(job->call && job->call->job == job && !job->counted);
    job->counted = job->call->counted; /* work that has begun goes on and counts, or a client that leaves and comes
                                          again would run more than its limit */
    job->call->counted = false;
    job->call = NULL;
    job->left = true;
    if (job->idle) pool_cancel(&job->work); /* unless it has begun; on_work_done comes all the same */
}
