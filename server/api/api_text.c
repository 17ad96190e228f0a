/* api_text.c - the bodies of /tokenize, /detokenize and /apply-template; see api_routes.h. */
#include "api_fields.h"
#include "api_routes.h"

#include <stdlib.h>
#include <string.h>

static json_t *load_object(const char *body, size_t len, struct api_fields *p) {
    json_t *root = api_load(body, len, p->err);
    p->root = root;
    return root;
}

static bool parse_chat(const struct api_fields *p, struct api_tokenize *out) {
    return api_messages(p, "messages", NULL, &out->messages, &out->n_messages) &&
           api_parse_tools(p, false, &out->tools) && api_parse_end(p, out->messages, out->n_messages, &out->end);
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
    if (!api_parse_tools(p, false, &out->tools) || !api_parse_end(p, NULL, 0, &out->end)) return false;
    if (out->tools.n) return field_bad(p, "tools", "must come with messages");
    out->text = field_copy(prompt, &out->len);
    return out->text ? true : field_no_memory(p);
}

int api_parse_tokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err) {
    *out = (struct api_tokenize){.parse_special = true, .add_special = true};
    struct api_fields p = {.defaults = defaults, .err = err};
    json_t *root = load_object(body, len, &p);
    if (!root) return -1;
    bool ok = api_check_model(&p) && field_bool(&p, "return_token_strs", &out->token_strs) &&
              field_bool(&p, "return_offsets", &out->offsets) && field_bool(&p, "parse_special", &out->parse_special) &&
              field_bool(&p, "add_special_tokens", &out->add_special) && parse_plain(&p, out) &&
              parse_text_or_messages(&p, out);
    json_decref(root);
    if (!ok) api_tokenize_fini(out);
    return ok ? 0 : -1;
}

int api_parse_template(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err) {
    *out = (struct api_tokenize){0};
    struct api_fields p = {.defaults = defaults, .err = err};
    json_t *root = load_object(body, len, &p);
    if (!root) return -1;
    bool ok = api_check_model(&p) && parse_chat(&p, out);
    json_decref(root);
    if (!ok) api_tokenize_fini(out);
    return ok ? 0 : -1;
}

void api_tokenize_fini(struct api_tokenize *t) {
    free(t->text);
    api_messages_free(t->messages, t->n_messages);
    api_tools_fini(&t->tools);
    *t = (struct api_tokenize){0};
}

int api_parse_detokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_detokenize *out,
                         struct api_error *err) {
    struct api_fields p = {.defaults = defaults, .err = err};
    *out = (struct api_detokenize){0};
    json_t *root = load_object(body, len, &p);
    if (!root) return -1;
    const json_t *value = field_get(&p, "tokens");
    bool ok = api_check_model(&p) && field_bool(&p, "skip_special_tokens", &out->skip_special) &&
              field_bool(&p, "return_offsets", &out->offsets);
    if (ok && !json_is_array(value)) ok = field_bad(&p, "tokens", "must be an array of token ids");
    ok = ok && field_ids(&p, "tokens", value, &out->ids, &out->n_ids);
    json_decref(root);
    if (!ok) {
        free(out->ids);
        out->ids = NULL;
    }
    return ok ? 0 : -1;
}
