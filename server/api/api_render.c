/* api_render.c - structs become JSON; see request.h. Streams run through here for every token, so it writes text. */
#include "api_put.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const id_prefix[] = {"cmpl-", "chatcmpl-"};

/* ---- tokens and log-probabilities ---- */

static bool utf8_complete(const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t len = buf_utf8(bytes + i, n - i);
        if (!len) return false;
        i += len;
    }
    return true;
}

static void put_token(struct buf *out, int32_t id, bool as_id, const struct api_vocab *vocab) {
    size_t n = 0;
    const char *bytes = as_id ? NULL : vocab->bytes(vocab->arg, id, &n);
    if (!bytes) {
        buf_addf(out, "\"token_id:%d\"", id);
    } else if (utf8_complete(bytes, n)) {
        buf_json(out, bytes, n);
    } else {
        buf_puts(out, "\"bytes:");
        for (size_t i = 0; i < n; i++) buf_addf(out, "\\\\x%02x", (unsigned char)bytes[i]);
        buf_putc(out, '"');
    }
}

void api_render_token(struct buf *out, int32_t id, const struct api_vocab *vocab) { put_token(out, id, false, vocab); }

void api_render_ids(struct buf *out, const int32_t *ids, size_t n_ids) {
    for (size_t i = 0; i < n_ids; i++) {
        api_put_comma(out, i);
        buf_int(out, ids[i]);
    }
}

void api_render_pieces(struct buf *out, const int32_t *ids, size_t n_ids, const struct api_vocab *vocab) {
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0, at = 0;
        const char *bytes = vocab->bytes(vocab->arg, ids[i], &n);
        if (!bytes) n = 0;
        while (at < n && buf_utf8(bytes + at, n - at)) at += buf_utf8(bytes + at, n - at);
        api_put_comma(out, i);
        buf_addf(out, "{\"id\":%d,\"piece\":", ids[i]);
        if (at == n)
            buf_json(out, n ? bytes : "", n);
        else
            for (size_t k = 0; k < n; k++) buf_addf(out, "%c%u", k ? ',' : '[', (unsigned char)bytes[k]);
        buf_puts(out, at == n ? "}" : "]}");
    }
}

/* Where in text the token's bytes begin, from at on; a token that is not there may be one that is not shown. */
void api_render_offsets(struct buf *out, const char *text, size_t len, const int32_t *ids, size_t n_ids,
                        const struct api_vocab *vocab) {
    const size_t mark = out->len;
    size_t at = 0, n_chars = 0; /* bytes of text passed, and characters begun in them */
    buf_putc(out, '[');
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0;
        const char *bytes = vocab->bytes(vocab->arg, ids[i], &n);
        if (!bytes || n > len - at || memcmp(bytes, text + at, n) != 0) n = 0;
        const bool inside = n && ((unsigned char)text[at] & 0xc0) == 0x80;
        const size_t begin = n_chars - inside;
        for (size_t k = 0; k < n; k++) n_chars += ((unsigned char)text[at + k] & 0xc0) != 0x80;
        at += n;
        assert(at <= len && begin <= n_chars);
        api_put_comma(out, i);
        buf_putc(out, '[');
        buf_int(out, (int64_t)begin);
        buf_putc(out, ',');
        buf_int(out, (int64_t)n_chars);
        buf_putc(out, ']');
    }
    buf_putc(out, ']');
    if (at == len || out->failed) return;
    out->len = mark; /* the tokens are not this text */
    buf_puts(out, "null");
}

/* {"token":..,"logprob":..,"bytes":[..] with the brace left open. */
static void put_chat_token(struct buf *out, int32_t id, float logprob, const struct api_vocab *vocab) {
    size_t n = 0;
    const char *bytes = vocab->bytes(vocab->arg, id, &n);
    buf_puts(out, "{\"token\":");
    put_token(out, id, vocab->as_ids, vocab);
    buf_puts(out, ",\"logprob\":");
    buf_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":");
    if (!bytes) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        api_put_comma(out, i);
        buf_int(out, (unsigned char)bytes[i]);
    }
    buf_putc(out, ']');
}

static void add_chat(struct api_logprobs *l, const struct rod_token *t, const struct api_vocab *vocab) {
    struct buf *out = &l->tokens;
    if (out->len) buf_putc(out, ',');
    put_chat_token(out, t->id, t->logprob, vocab);
    buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        api_put_comma(out, i);
        put_chat_token(out, t->top[i].id, t->top[i].logprob, vocab);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* The byte is of the character that is not whole yet; behind its second byte any two of a tail would do. */
static bool of_part(const struct api_logprobs *l, char byte) {
    char whole[4] = {'\x80', '\x80', '\x80', '\x80'};
    memcpy(whole, l->part, l->n_part);
    if (l->n_part) whole[l->n_part] = byte;
    return l->n_part && buf_utf8(whole, sizeof whole) > l->n_part;
}

/* Counts characters as the text has them: bytes that cannot become a character are one, which ends at the first byte
 * that does not continue it. */
static void count_chars(struct api_logprobs *l, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        const bool inside = of_part(l, bytes[i]);
        if (!inside) {
            l->n_chars++;
            l->n_part = 0;
        }
        assert(l->n_part < sizeof l->part);
        if (inside || (byte >= 0xc2 && byte <= 0xf4)) l->part[l->n_part++] = bytes[i];
        if (l->n_part && buf_utf8(l->part, l->n_part)) l->n_part = 0;
    }
}

/* What every token has in the legacy object of parallel arrays: its text and where that begins. */
static void add_place(struct api_logprobs *l, int32_t id, bool shown, const struct api_vocab *vocab) {
    if (l->tokens.len) {
        buf_putc(&l->tokens, ',');
        buf_putc(&l->values, ',');
        buf_putc(&l->tops, ',');
        buf_putc(&l->offsets, ',');
    }
    put_token(&l->tokens, id, vocab->as_ids, vocab);
    size_t n = 0;
    const char *bytes = vocab->bytes(vocab->arg, id, &n);
    if (!bytes || !shown) n = 0;
    const bool inside = n && of_part(l, bytes[0]);
    buf_int(&l->offsets, (int64_t)(l->n_chars - inside));
    count_chars(l, bytes, n);
}

void api_logprobs_add_first(struct api_logprobs *l, int32_t id, const struct api_vocab *vocab) {
    add_place(l, id, true, vocab);
    buf_puts(&l->values, "null");
    buf_puts(&l->tops, "null");
}

/* The sampled token is in the top list even when it is not among the best. */
static void add_legacy(struct api_logprobs *l, const struct rod_token *t, bool shown, const struct api_vocab *vocab) {
    add_place(l, t->id, shown, vocab);
    buf_logprob(&l->values, t->logprob);
    buf_putc(&l->tops, '{');
    bool seen = false;
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i) buf_putc(&l->tops, ',');
        put_token(&l->tops, t->top[i].id, vocab->as_ids, vocab);
        buf_putc(&l->tops, ':');
        buf_logprob(&l->tops, t->top[i].logprob);
        seen = seen || t->top[i].id == t->id;
    }
    if (!seen) {
        if (t->n_top) buf_putc(&l->tops, ',');
        put_token(&l->tops, t->id, vocab->as_ids, vocab);
        buf_putc(&l->tops, ':');
        buf_logprob(&l->tops, t->logprob);
    }
    buf_putc(&l->tops, '}');
}

static void put_ranked(struct buf *out, int32_t id, float logprob, uint32_t rank, const struct api_vocab *vocab) {
    buf_putc(out, '"');
    buf_int(out, id);
    buf_puts(out, "\":{\"logprob\":");
    buf_logprob(out, logprob);
    buf_puts(out, ",\"rank\":");
    buf_int(out, rank);
    buf_puts(out, ",\"decoded_token\":");
    api_render_token(out, id, vocab);
    buf_putc(out, '}');
}

void api_prompt_logprobs_add(struct buf *out, const struct rod_token *t, const struct api_vocab *vocab) {
    if (out->len) buf_putc(out, ',');
    if (!t) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    put_ranked(out, t->id, t->logprob, t->rank, vocab);
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (t->top[i].id == t->id) continue;
        buf_putc(out, ',');
        put_ranked(out, t->top[i].id, t->top[i].logprob, i + 1, vocab);
    }
    buf_putc(out, '}');
}

void api_logprobs_add(struct api_logprobs *l, enum api_kind kind, const struct rod_token *tokens, size_t n_tokens,
                      bool shown, const struct api_vocab *vocab) {
    for (size_t i = 0; i < n_tokens; i++) {
        if (kind == API_CHAT) {
            add_chat(l, &tokens[i], vocab);
        } else {
            add_legacy(l, &tokens[i], shown, vocab);
        }
    }
}

void api_logprobs_clear(struct api_logprobs *l) {
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
}

void api_logprobs_fini(struct api_logprobs *l) {
    buf_fini(&l->tokens);
    buf_fini(&l->values);
    buf_fini(&l->tops);
    buf_fini(&l->offsets);
}

/* What memory ran out for is cut short, and so would be the answer around it. */
static void put_part(struct buf *out, const struct buf *part) {
    if (part->failed) out->failed = true;
    buf_add(out, part->data, part->len);
}

static void put_fragment(struct buf *out, const char *name, const struct buf *fragment) {
    buf_addf(out, "\"%s\":[", name);
    put_part(out, fragment);
    buf_putc(out, ']');
}

static void put_logprobs(struct buf *out, enum api_kind kind, const struct api_logprobs *l) {
    buf_puts(out, ",\"logprobs\":");
    if (!l) {
        buf_puts(out, "null");
    } else if (kind == API_CHAT) {
        buf_putc(out, '{');
        put_fragment(out, "content", &l->tokens);
        buf_puts(out, ",\"refusal\":null}");
    } else {
        buf_putc(out, '{');
        put_fragment(out, "tokens", &l->tokens);
        buf_putc(out, ',');
        put_fragment(out, "token_logprobs", &l->values);
        buf_putc(out, ',');
        put_fragment(out, "top_logprobs", &l->tops);
        buf_putc(out, ',');
        put_fragment(out, "text_offset", &l->offsets);
        buf_putc(out, '}');
    }
}

/* ---- choices ---- */

static void put_usage(struct buf *out, const struct api_usage *u) {
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

/* Completions have what is the prompt's in the choice (each may have another prompt), chats beside the choices. */
static void put_ids(struct buf *out, enum api_kind kind, const struct api_choice *c) {
    if (c->prompt_ids && kind == API_COMPLETION) {
        buf_putc(out, ',');
        put_fragment(out, "prompt_token_ids", c->prompt_ids);
    }
    if (c->prompt_logprobs && kind == API_COMPLETION) {
        buf_putc(out, ',');
        put_fragment(out, "prompt_logprobs", c->prompt_logprobs);
    }
    if (c->token_ids) {
        buf_putc(out, ',');
        put_fragment(out, "token_ids", c->token_ids);
    }
}

static void put_chat_prompt(struct buf *out, enum api_kind kind, const struct api_choice *c) {
    if (kind != API_CHAT) return;
    if (c->prompt_ids) {
        buf_putc(out, ',');
        put_fragment(out, "prompt_token_ids", c->prompt_ids);
    }
    if (c->prompt_logprobs) {
        buf_putc(out, ',');
        put_fragment(out, "prompt_logprobs", c->prompt_logprobs);
    }
}

static void put_finish(struct buf *out, const struct api_choice *c) {
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

void api_render_prefix(struct buf *out, enum api_kind kind, bool stream, const char *request_id, int64_t created_unix_s,
                       const char *model, const char *fingerprint) {
    assert(kind < sizeof id_prefix / sizeof *id_prefix); /* a response has no prefix */
    buf_addf(out, "{\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", id_prefix[kind], request_id,
             kind == API_COMPLETION ? "text_completion"
             : stream               ? "chat.completion.chunk"
                                    : "chat.completion",
             (long long)created_unix_s);
    api_put_text(out, model);
    buf_puts(out, ",\"system_fingerprint\":");
    api_put_text(out, fingerprint);
    buf_putc(out, ',');
}

static void put_content(struct buf *out, const struct api_choice *c) {
    buf_puts(out, "\"content\":");
    if (c->no_text)
        buf_puts(out, "null");
    else
        buf_json(out, c->text, c->text_len);
}

/* ,"tool_calls":[...], or nothing; index tells the pieces of a stream apart. */
static void put_calls(struct buf *out, const struct api_choice *c, bool indexed) {
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct api_call *call = &c->calls[i];
        buf_puts(out, i ? ",{" : "\"tool_calls\":[{");
        if (indexed) buf_addf(out, "\"index\":%u,", call->index);
        if (call->id) buf_addf(out, "\"id\":\"%s\",\"type\":\"function\",", call->id);
        buf_puts(out, "\"function\":{");
        if (call->name) {
            buf_puts(out, "\"name\":");
            api_put_text(out, call->name);
            buf_putc(out, ',');
        }
        buf_puts(out, "\"arguments\":");
        buf_json(out, call->arguments, call->len);
        buf_puts(out, "}}");
    }
    if (c->n_calls) buf_putc(out, ']');
}

static void put_delta(struct buf *out, const struct api_choice *c) {
    buf_puts(out, ",\"delta\":{");
    if (c->role) buf_puts(out, "\"role\":\"assistant\",");
    if (c->n_calls)
        put_calls(out, c, true);
    else if (!c->finished)
        put_content(out, c);
    buf_putc(out, '}');
}

static void put_message(struct buf *out, const struct api_choice *c) {
    buf_puts(out, ",\"message\":{\"role\":\"assistant\",");
    put_content(out, c);
    buf_puts(out, ",\"refusal\":null");
    if (c->n_calls) buf_putc(out, ',');
    put_calls(out, c, false);
    buf_putc(out, '}');
}

void api_render_chunk(struct buf *out, enum api_kind kind, const struct buf *prefix, const struct api_choice *c,
                      const struct api_usage *usage, bool null_usage) {
    assert(kind != API_RESPONSE && (!c->role || kind == API_CHAT));
    assert((!c->role && !c->n_calls) || !c->finished);
    put_part(out, prefix);
    buf_puts(out, "\"choices\":[{\"index\":");
    buf_int(out, c->index);
    if (kind == API_COMPLETION) {
        buf_puts(out, ",\"text\":");
        buf_json(out, c->text, c->text_len);
    } else {
        put_delta(out, c);
    }
    put_logprobs(out, kind, c->logprobs);
    put_ids(out, kind, c);
    put_finish(out, c);
    buf_putc(out, ']');
    put_chat_prompt(out, kind, c);
    api_render_session_of(out, c->session, c->session_version);
    if (usage) {
        buf_putc(out, ',');
        put_usage(out, usage);
    } else if (null_usage) {
        buf_puts(out, ",\"usage\":null");
    }
    buf_putc(out, '}');
}

void api_render_usage_chunk(struct buf *out, const struct buf *prefix, const struct api_usage *usage) {
    put_part(out, prefix);
    buf_puts(out, "\"choices\":[],");
    put_usage(out, usage);
    buf_putc(out, '}');
}

void api_render_answer(struct buf *out, enum api_kind kind, const struct buf *prefix, const struct api_choice *choices,
                       size_t n_choices, const struct api_usage *usage) {
    assert(kind != API_RESPONSE && n_choices);
    put_part(out, prefix);
    buf_puts(out, "\"choices\":[");
    for (size_t i = 0; i < n_choices; i++) {
        const struct api_choice *c = &choices[i];
        buf_puts(out, i ? ",{\"index\":" : "{\"index\":");
        buf_int(out, c->index);
        if (kind == API_COMPLETION) {
            buf_puts(out, ",\"text\":");
            buf_json(out, c->text, c->text_len);
        } else {
            put_message(out, c);
        }
        put_logprobs(out, kind, c->logprobs);
        put_ids(out, kind, c);
        put_finish(out, c);
    }
    buf_putc(out, ']');
    put_chat_prompt(out, kind, &choices[0]);
    api_render_session_of(out, choices[0].session, choices[0].session_version);
    buf_putc(out, ',');
    put_usage(out, usage);
    buf_putc(out, '}');
}

void api_render_model(struct buf *out, const char *name, const char *root, const char *adapter,
                      const struct rod_model_info *info) {
    buf_puts(out, "{\"id\":");
    api_put_text(out, name);
    buf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"rodimus\",\"root\":",
             (long long)info->created_unix_s);
    api_put_text(out, root);
    buf_puts(out, ",\"adapter\":");
    api_put_text_or_null(out, *adapter ? adapter : NULL);
    buf_addf(out, ",\"parent\":null,\"max_model_len\":%llu,\"session_bytes\":%llu,\"arch\":",
             (unsigned long long)info->max_prompt_tok, (unsigned long long)info->session_bytes);
    api_put_text(out, info->arch);
    buf_puts(out, ",\"dtype\":");
    api_put_text(out, info->weight_dtype);
    buf_puts(out, ",\"weights\":");
    api_put_text(out, info->weights);
    buf_addf(out, ",\"weight_bytes\":%llu", (unsigned long long)info->weight_bytes);
    buf_addf(out, ",\"n_params\":%llu,\"vocab_size\":%u,\"context_length\":null,\"window\":",
             (unsigned long long)info->n_params, info->vocab_size);
    api_put_number_or_null(out, info->window_tok);
    buf_addf(out, ",\"slots\":%u,\"chat\":%s}", info->n_slots, api_bool(info->has_chat));
}
