/* api_text.c - the bodies of /tokenize, /detokenize and /apply-template, and the tokens in their answers; see
 * api_routes.h. */
#include "api_fields.h"
#include "api_put.h"
#include "api_routes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool parse_chat(const struct api_fields *p, struct api_tokenize *out) {
    return api_messages(p, &out->messages, &out->n_messages) && api_parse_tools(p, &out->tools) &&
           api_parse_end(p, out->messages, out->n_messages, &out->end);
}

/* llama.cpp's names. Its clients leave out what they do not ask for, so content has other defaults than prompt. */
static bool parse_plain(const struct api_fields *p, struct api_tokenize *out) {
    const json_t *content = field_get(p, "content"), *newer = field_get(p, "add_special_tokens");
    bool add_special = content && !newer ? false : out->add_special;
    if (!field_bool(p, "with_pieces", &out->pieces)) return false;
    out->plain = content || out->pieces;
    if (content && (field_get(p, "prompt") || field_get(p, "messages")))
        return field_bad(p, "content", "and %s exclude each other", field_get(p, "prompt") ? "prompt" : "messages");
    if (out->plain && (out->token_strs || out->offsets))
        return field_bad(p, out->offsets ? "return_offsets" : "return_token_strs", "and %s exclude each other",
                         content ? "content" : "with_pieces");
    if (!field_bool(p, "add_special", &add_special)) return false;
    if (newer && add_special != out->add_special)
        return field_bad(p, "add_special",
                         "is another name of add_special_tokens, which the request has with another value");
    out->add_special = add_special;
    return true;
}

static bool parse_text_or_messages(const struct api_fields *p, struct api_tokenize *out) {
    const char *name = field_get(p, "content") ? "content" : "prompt";
    const json_t *prompt = field_get(p, name);
    if (prompt && field_get(p, "messages")) return field_bad(p, "messages", "and prompt exclude each other");
    if (field_get(p, "messages")) return parse_chat(p, out);
    if (!json_is_string(prompt)) return field_bad(p, name, prompt ? "must be a string" : "or messages is missing");
    if (!api_parse_tools(p, &out->tools) || !api_parse_end(p, NULL, 0, &out->end)) return false;
    if (out->tools.n) return field_bad(p, "tools", "must come with messages");
    out->text = field_copy(prompt, &out->len);
    return out->text ? true : field_no_memory(p);
}

static bool parse_tokenize(const struct api_fields *p, void *of) {
    struct api_tokenize *out = of;
    return api_check_model(p) && field_bool(p, "return_token_strs", &out->token_strs) &&
           field_bool(p, "return_offsets", &out->offsets) && field_bool(p, "parse_special", &out->parse_special) &&
           field_bool(p, "add_special_tokens", &out->add_special) && parse_plain(p, out) &&
           parse_text_or_messages(p, out);
}

int api_parse_tokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err) {
    *out = (struct api_tokenize){.parse_special = true, .add_special = true};
    const int rc =
        api_read_object(body, len, (struct api_fields){.defaults = defaults, .err = err}, parse_tokenize, out);
    if (rc) api_tokenize_fini(out);
    return rc;
}

static bool parse_template(const struct api_fields *p, void *out) { return api_check_model(p) && parse_chat(p, out); }

int api_parse_template(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err) {
    *out = (struct api_tokenize){0};
    const int rc =
        api_read_object(body, len, (struct api_fields){.defaults = defaults, .err = err}, parse_template, out);
    if (rc) api_tokenize_fini(out);
    return rc;
}

void api_tokenize_fini(struct api_tokenize *t) {
    free(t->text);
    api_messages_free(t->messages, t->n_messages);
    api_tools_fini(&t->tools);
    *t = (struct api_tokenize){0};
}

static bool parse_detokenize(const struct api_fields *p, void *of) {
    struct api_detokenize *out = of;
    const json_t *value = field_get(p, "tokens");
    if (!api_check_model(p) || !field_bool(p, "skip_special_tokens", &out->skip_special) ||
        !field_bool(p, "return_offsets", &out->offsets))
        return false;
    if (!json_is_array(value)) return field_bad(p, "tokens", "must be an array of token ids");
    return field_ids(p, "tokens", value, &out->ids, &out->n_ids);
}

int api_parse_detokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_detokenize *out,
                         struct api_error *err) {
    *out = (struct api_detokenize){0};
    const struct api_fields p = {.defaults = defaults, .err = err};
    const int rc = api_read_object(body, len, p, parse_detokenize, out);
    if (!rc) return 0;
    free(out->ids);
    out->ids = NULL;
    return -1;
}

/* ---- tokens ---- */

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
