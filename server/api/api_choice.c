/* api_choice.c - see api_choice.h. Streams run through here for every token, so it writes text. */
#include "api_choice.h"
#include "api_put.h"
#include "api_routes.h"
#include "sse.h"

#include <assert.h>
#include <string.h>

struct api_choice api_choice_next(struct answer_choice *c) {
    const struct api_request *q = c->answer->request;
    struct api_choice shown = {.index = c->index, .text = "", .stop_id = -1};
    if (c->fresh) {
        shown.logprobs = q->n_logprobs >= 0 ? &c->logprobs : NULL;
        shown.token_ids = q->return_token_ids ? &c->ids : NULL;
    }
    c->fresh = c->due = false;
    return shown;
}

struct api_choice api_choice_finish(const struct answer_choice *c) {
    return (struct api_choice){.index = c->index,
                               .text = "",
                               .called = answer_called(c),
                               .finished = true,
                               .reason = c->reason,
                               .stop_string = c->stop_string,
                               .stop_id = c->stop_id,
                               .session = answer_session(c->answer),
                               .session_version = c->answer->session_version};
}

struct api_choice api_choice_whole(const struct answer_choice *c) {
    const struct api_request *q = c->answer->request;
    struct api_choice shown = api_choice_finish(c);
    shown.logprobs = q->n_logprobs >= 0 ? &c->logprobs : NULL;
    shown.token_ids = q->return_token_ids ? &c->ids : NULL;
    shown.prompt_logprobs = q->n_prompt_logprobs >= 0 ? &c->prompt_logprobs : NULL;
    return shown;
}

const struct api_usage *api_choice_usage(const struct answer_choice *c, bool opening, struct api_usage *usage) {
    const struct answer *a = c->answer;
    if (!a->request->continuous_usage) return NULL;
    *usage = (struct api_usage){.prompt_tok = c->prompt->n_ids, .completion_tok = opening ? 0 : c->completion_tok};
    if (*a->session) *usage = a->usage;
    return usage;
}

/* ---- parts of JSON ---- */

/* What memory ran out for is cut short, and so would be the answer around it. */
void api_put_part(struct buf *out, const struct buf *part) {
    if (part->failed) out->failed = true;
    buf_add(out, part->data, part->len);
}

void api_put_fragment(struct buf *out, const char *name, const struct buf *fragment) {
    buf_addf(out, "\"%s\":[", name);
    api_put_part(out, fragment);
    buf_putc(out, ']');
}

void api_put_usage(struct buf *out, const struct api_usage *u) {
    buf_puts(out, "\"usage\":{\"prompt_tokens\":");
    buf_int(out, (int64_t)u->prompt_tok);
    buf_puts(out, ",\"completion_tokens\":");
    buf_int(out, (int64_t)u->completion_tok);
    buf_puts(out, ",\"total_tokens\":");
    buf_int(out, (int64_t)(u->prompt_tok + u->completion_tok));
    buf_puts(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    buf_int(out, (int64_t)u->cached_tok);
    if (u->created_tok) {
        buf_puts(out, ",\"cache_creation_tokens\":");
        buf_int(out, (int64_t)u->created_tok);
    }
    buf_putc(out, '}');
    if (u->accepted_tok || u->rejected_tok) {
        buf_puts(out, ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":");
        buf_int(out, (int64_t)u->accepted_tok);
        buf_puts(out, ",\"rejected_prediction_tokens\":");
        buf_int(out, (int64_t)u->rejected_tok);
        buf_putc(out, '}');
    }
    buf_putc(out, '}');
}

void api_put_token_ids(struct buf *out, const struct api_choice *c) {
    if (!c->token_ids) return;
    buf_putc(out, ',');
    api_put_fragment(out, "token_ids", c->token_ids);
}

void api_put_prompt(struct buf *out, const struct api_choice *c) {
    if (c->prompt_ids) {
        buf_putc(out, ',');
        api_put_fragment(out, "prompt_token_ids", c->prompt_ids);
    }
    if (c->prompt_logprobs) {
        buf_putc(out, ',');
        api_put_fragment(out, "prompt_logprobs", c->prompt_logprobs);
    }
}

void api_put_finish(struct buf *out, const struct api_choice *c) {
    if (!c->finished) {
        buf_puts(out, ",\"finish_reason\":null,\"stop_reason\":null}");
        return;
    }
    buf_addf(out, ",\"finish_reason\":\"%s\"",
             c->reason == ROD_FINISH_LENGTH ? "length"
             : c->called                    ? "tool_calls"
                                            : "stop");
    buf_puts(out, ",\"stop_reason\":");
    if (c->stop_string) {
        api_put_text(out, c->stop_string);
    } else if (c->stop_id >= 0) {
        buf_int(out, c->stop_id);
    } else {
        buf_puts(out, "null");
    }
    buf_putc(out, '}');
}

void api_render_session_of(struct buf *out, const char *id, uint64_t version) {
    if (!id) return;
    buf_puts(out, ",\"session\":{\"id\":");
    api_put_text(out, id);
    buf_puts(out, ",\"version\":");
    buf_int(out, (int64_t)version);
    buf_putc(out, '}');
}

void api_put_head(struct buf *out, const char *id_prefix, const char *object, const struct answer *a) {
    buf_addf(out, "{\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id_prefix, a->id, object,
             (long long)a->created_unix_s);
    api_put_text(out, answer_model(a));
    buf_puts(out, ",\"system_fingerprint\":");
    api_put_text(out, a->fingerprint);
    buf_putc(out, ',');
}

void api_put_chunk_end(struct buf *out, const struct api_choice *c, const struct api_usage *usage, bool null_usage) {
    api_render_session_of(out, c->session, c->session_version);
    if (usage) {
        buf_putc(out, ',');
        api_put_usage(out, usage);
    } else if (null_usage) {
        buf_puts(out, ",\"usage\":null");
    }
    buf_putc(out, '}');
}

void api_render_usage_chunk(struct buf *out, const struct buf *head, const struct api_usage *usage) {
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[],");
    api_put_usage(out, usage);
    buf_putc(out, '}');
}

void api_refuse(struct buf *out, const struct api_error *e, const char *request_id) {
    (void)request_id;
    api_render_error(out, e);
}

void api_choice_error(struct answer *a, const struct api_error *e, const char *request_id) {
    (void)request_id;
    sse_begin(&a->frame);
    api_render_error(&a->frame, e);
    sse_end(&a->frame);
}
