/* text_routes.c - see side_routes.h. */
#include "side_routes.h"
#include "engine/base/fail.h"
#include "server/api/api_choice.h"
#include "server/api/api_put.h"
#include "server/api/api_routes.h"
#include "server/api/messages/messages.h"
#include "server/api/responses/responses.h"
#include "server/completion/completion.h"
#include "server/completion/recall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- /tokenize, /detokenize, /apply-template ---- */

static struct rod_chat chat_of_text(const struct api_tokenize *t) {
    return (struct rod_chat){.messages = t->messages,
                             .n_messages = t->n_messages,
                             .tools = (const char *const *)t->tools.lines,
                             .n_tools = t->tools.n_head,
                             .generation = t->end.generation,
                             .go_on = t->end.go_on};
}

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
            api_put_ids(&j->out, ids, n);
        buf_putc(&j->out, ']');
        return;
    }
    buf_addf(&j->out, "{\"count\":%zu,\"max_model_len\":%llu,\"tokens\":[", n,
             (unsigned long long)s->info->max_prompt_tok);
    api_put_ids(&j->out, ids, n);
    buf_puts(&j->out, "],\"token_strs\":");
    for (size_t i = 0; t->token_strs && i < n; i++) {
        buf_putc(&j->out, i ? ',' : '[');
        api_put_token(&j->out, ids[i], false, &s->vocab);
    }
    buf_puts(&j->out, !t->token_strs ? "null" : n ? "]" : "[]");
}

int text_routes_tokenize(struct job *j, struct rod_error *err) {
    const struct server *s = j->server;
    struct api_tokenize t;
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = 0;
    if (api_parse_tokenize(j->body, j->body_len, &s->defaults, &t, &j->err)) return JOB_REFUSED;
    if (t.n_messages) {
        const struct rod_chat chat = chat_of_text(&t);
        rc = rod_chat_encode(s->engine, &chat, &ids, &n, err);
        if (!rc && t.offsets) rc = rod_chat_render(s->engine, &chat, &t.text, &t.len, err);
    } else if (t.len) {
        rc = rod_tokenize(s->engine, t.text, t.len, t.parse_special, t.add_special, &ids, &n, err);
    }
    if (!rc) {
        put_tokens(j, &t, ids, n);
        if (t.offsets) put_offsets(j, t.text, t.len, ids, n);
        j->n_tok = n;
        buf_putc(&j->out, '}');
    }
    free(ids);
    api_tokenize_fini(&t);
    return rc;
}

int text_routes_detokenize(struct job *j, struct rod_error *err) {
    const struct server *s = j->server;
    struct api_detokenize d;
    size_t len = 0;
    char *text = NULL;
    if (api_parse_detokenize(j->body, j->body_len, &s->defaults, &d, &j->err)) return JOB_REFUSED;
    const int rc = rod_decode(s->engine, d.ids, d.n_ids, d.skip_special, &text, &len, err);
    if (!rc) {
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
    return rc;
}

int text_routes_apply_template(struct job *j, struct rod_error *err) {
    const struct server *s = j->server;
    struct api_tokenize t;
    char *text = NULL;
    size_t len = 0;
    if (api_parse_template(j->body, j->body_len, &s->defaults, &t, &j->err)) return JOB_REFUSED;
    const struct rod_chat chat = chat_of_text(&t);
    const int rc = rod_chat_render(s->engine, &chat, &text, &len, err);
    if (!rc) {
        buf_puts(&j->out, "{\"prompt\":");
        buf_json(&j->out, text, len);
        buf_putc(&j->out, '}');
        j->n_tok = job_estimate_tokens(len);
    }
    free(text);
    api_tokenize_fini(&t);
    return rc;
}

/* ---- how many tokens an answer's request would have ---- */

/* Of the whole conversation, as usage has it when the request is answered. */
static int count_turn(const struct job *j, const char *from, const struct rod_chat *chat, uint64_t *n,
                      struct rod_error *err) {
    struct rod_session_info before;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = rod_session_get(j->server->engine, j->tenant, from, &before, err);
    if (rc == ROD_ENOTFOUND) snprintf(err->param, sizeof err->param, "previous_response_id");
    struct rod_turn *turn = rc ? NULL : calloc(1, sizeof *turn);
    if (!rc && !turn) rc = rod_fail_no_memory(err);
    if (!rc) rc = rod_chat_encode_turn(j->server->engine, chat, turn, &ids, &n_ids, err);
    if (!rc) *n = rod_turn_tokens(turn, &before, n_ids);
    completion_session_free(turn);
    free(ids);
    return rc;
}

/* Earlier answers as the tokens that were said, which the request would read. */
static void recall_answers(const struct job *j, struct api_request *q) {
    const struct recall_scope scope = {.tenant = j->tenant,
                                       .salt = q->session.cache_salt,
                                       .tools = (const char *const *)q->tools.lines,
                                       .n_tools = q->tools.n_head};
    if (j->server->recall && q->n_messages && q->end.generation)
        recall_find(j->server->recall, &scope, q->messages, q->n_messages);
}

static int count(struct job *j, struct api_request *q, struct rod_error *err) {
    const struct rod_chat chat = {.messages = q->messages,
                                  .n_messages = q->n_messages,
                                  .tools = (const char *const *)q->tools.lines,
                                  .n_tools = q->tools.n_head,
                                  .generation = q->end.generation,
                                  .go_on = q->end.go_on};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (q->session.from) return count_turn(j, q->session.from, &chat, &j->n_tok, err);
    recall_answers(j, q);
    const int rc = rod_chat_encode(j->server->engine, &chat, &ids, &n_ids, err);
    j->n_tok = rc ? 0 : n_ids;
    free(ids);
    return rc;
}

int text_routes_count_message(struct job *j, struct rod_error *err) {
    struct api_request q;
    if (messages_parse_counted(j->body, j->body_len, &j->server->defaults, &q, &j->err)) return JOB_REFUSED;
    const int rc = count(j, &q, err);
    if (!rc) buf_addf(&j->out, "{\"input_tokens\":%llu}", (unsigned long long)j->n_tok);
    api_request_fini(&q);
    return rc;
}

int text_routes_count_response(struct job *j, struct rod_error *err) {
    struct api_request q;
    const char *body = j->body ? j->body : "";
    struct api_stored stored = j->server->stored;
    struct api_defaults defaults = j->server->defaults;
    stored.tenant = j->tenant;
    stored.may_wait = true;
    defaults.stored = &stored;
    if (responses_parse(body, j->body_len, &defaults, &q, &j->err)) return JOB_REFUSED;
    int rc = count(j, &q, err);
    if (!rc)
        buf_addf(&j->out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%llu}", (unsigned long long)j->n_tok);
    else if (!strncmp(err->param, "messages", 8))
        snprintf(err->param, sizeof err->param, "input");
    if (rc == ROD_ENOTFOUND) {
        api_error_from(&j->err, err);
        j->err.code = "previous_response_not_found";
        rc = JOB_REFUSED;
    }
    api_request_fini(&q);
    return rc;
}
