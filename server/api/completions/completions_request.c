/* completions_request.c - the body of a completion: prompts of text or token ids. */
#include "completions.h"
#include "server/api/api_fields.h"

#include <stdio.h>
#include <stdlib.h>

static bool parse_prompt(const struct api_fields *p, const char *param, const json_t *value, struct api_prompt *out) {
    if (json_is_string(value)) {
        out->text = field_copy(value, &out->len);
        if (!out->text) return field_no_memory(p);
        const bool hole = json_string_length(field_get(p, "suffix")) > 0; /* which may begin a file */
        return out->len || hole ? true : field_bad(p, param, "is empty; at least one token is required");
    }
    if (!json_array_size(value)) return field_bad(p, param, "is empty; at least one token is required");
    return field_ids(p, param, value, &out->ids, &out->n_ids);
}

/* A string, an array of strings, an array of ids, or an array of arrays of ids. */
static bool parse_prompts(const struct api_fields *p, struct api_request *out) {
    const json_t *value = field_get(p, "prompt");
    if (!value) return field_bad(p, "prompt", "is missing");
    if (!json_is_string(value) && !json_is_array(value)) {
        return field_bad(p, "prompt", "must be a string, an array of strings, or token ids, not %s", field_type(value));
    }
    const json_t *first = json_array_get(value, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(value) : 1;
    out->prompts = calloc(n, sizeof *out->prompts);
    if (!out->prompts) return field_no_memory(p);
    out->n_prompts = n;
    if (!many) return parse_prompt(p, "prompt", value, &out->prompts[0]);
    for (size_t i = 0; i < n; i++) {
        char param[40];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        const json_t *item = json_array_get(value, i);
        if (json_typeof(item) != json_typeof(first))
            return field_bad(p, param, "must be of the same kind as the first prompt");
        if (!parse_prompt(p, param, item, &out->prompts[i])) return false;
    }
    return true;
}

/* An empty suffix asks for nothing: then it is a plain completion. */
static bool parse_suffix(const struct api_fields *p, struct api_request *out) {
    const json_t *value = field_get(p, "suffix");
    if (!value || (json_is_string(value) && !json_string_length(value))) return true;
    if (!json_is_string(value)) return field_bad(p, "suffix", "must be a string, not %s", field_type(value));
    for (size_t i = 0; i < out->n_prompts; i++) {
        if (out->prompts[i].ids) return field_bad(p, "suffix", "must come with a prompt of text, not of token ids");
    }
    out->suffix = field_copy(value, &out->suffix_len);
    return out->suffix ? true : field_no_memory(p);
}

static bool read_input(const struct api_fields *p, struct api_request *out) {
    const json_t *go_on = field_get(p, "continue_final_message");
    if (!field_no_tools(p, "tools", "tool_choice", "is for chats, not for completions")) return false;
    if (go_on && field_asks(go_on)) return field_bad(p, "continue_final_message", "is for chats");
    return parse_prompts(p, out) && parse_suffix(p, out);
}

int completions_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                      struct api_error *err) {
    static const struct api_dialect dialect = {.prompts = true,
                                               .choices = true,
                                               .stop = "stop",
                                               .max_tokens = {"max_tokens", "max_completion_tokens"},
                                               .input = read_input,
                                               .format = api_response_format};
    return api_parse(&dialect, body, len, defaults, out, err);
}
