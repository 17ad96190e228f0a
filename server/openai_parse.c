/* openai_parse.c - request bodies become structs; see openai.h. */
#include "openai.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parse {
    const json_t *root;
    const struct openai_defaults *defaults;
    struct openai_error *err;
};

static void set_error(struct openai_error *e, unsigned http, const char *type, const char *code, const char *param,
                      const char *format, va_list args) {
    *e = (struct openai_error){.http = http, .type = type, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    vsnprintf(e->message, sizeof e->message, format, args);
}

void openai_error_set(struct openai_error *e, unsigned http, const char *type, const char *code, const char *param,
                      const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(e, http, type, code, param, format, args);
    va_end(args);
}

void openai_error_from(struct openai_error *e, const struct rod_error *from) {
    openai_error_set(e, (unsigned)rod_code_http(from->code), rod_code_type(from->code), rod_code_openai(from->code),
                     from->param, "%s", from->message);
}

/* Fills a 400 that names param; always false, so that callers write `return bad(...)`. */
static bool bad(const struct parse *p, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool bad(const struct parse *p, const char *param, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_error(p->err, 400, "invalid_request_error", "", param, format, args);
    va_end(args);
    return false;
}

static bool no_memory(const struct parse *p) {
    openai_error_set(p->err, 500, "server_error", "out_of_memory", "", "out of memory");
    return false;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

/* The value, or NULL where it is missing or null: for an optional field that is the same. */
static const json_t *get(const struct parse *p, const char *name) {
    const json_t *value = json_object_get(p->root, name);
    return json_is_null(value) ? NULL : value;
}

/* ---- numbers ---- */

static bool as_int(const json_t *value, int64_t *out) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_is_real(value) ? json_real_value(value) : NAN;
    if (!(real > -9e15 && real < 9e15) || trunc(real) != real)
        return false; /* 16.0 is 16; 1.5 and 1e30 are not whole */
    *out = (int64_t)real;
    return true;
}

static bool get_int(const struct parse *p, const char *name, int64_t low, int64_t high, int64_t *out) {
    const json_t *value = get(p, name);
    if (!value) return true;
    if (!json_is_number(value)) return bad(p, name, "%s must be an integer, not %s", name, type_name(value));
    int64_t number = 0;
    if (!as_int(value, &number)) {
        return bad(p, name, "%s must be an integer from %lld to %lld", name, (long long)low, (long long)high);
    }
    if (number < low || number > high) {
        return bad(p, name, "%s is %lld, it must be %lld to %lld", name, (long long)number, (long long)low,
                   (long long)high);
    }
    *out = number;
    return true;
}

static bool get_u32(const struct parse *p, const char *name, int64_t low, uint32_t *out) {
    int64_t number = *out;
    if (!get_int(p, name, low, INT32_MAX, &number)) return false;
    *out = (uint32_t)number;
    return true;
}

/* low_open: the lower bound itself is outside. */
static bool get_float(const struct parse *p, const char *name, double low, bool low_open, double high, float *out) {
    const json_t *value = get(p, name);
    if (!value) return true;
    if (!json_is_number(value)) return bad(p, name, "%s must be a number, not %s", name, type_name(value));
    double number = json_number_value(value);
    if (!(number >= low && number <= high) || (low_open && number == low)) {
        return bad(p, name, "%s is %g, it must be %s %g and at most %g", name, number,
                   low_open ? "more than" : "at least", low, high);
    }
    *out = (float)number;
    if (low_open && *out <= (float)low) return bad(p, name, "%s is %g, which is too small", name, number);
    return true;
}

static bool get_bool(const struct parse *p, const char *name, bool *out) {
    const json_t *value = get(p, name);
    if (!value) return true;
    if (!json_is_boolean(value)) return bad(p, name, "%s must be true or false, not %s", name, type_name(value));
    *out = json_is_true(value);
    return true;
}

/* ---- what this version cannot honour ---- */

/* null, false, "", [] and {} ask for nothing. */
static bool asks(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return false;
    case JSON_STRING: return json_string_length(value) != 0;
    case JSON_ARRAY: return json_array_size(value) != 0;
    case JSON_OBJECT: return json_object_size(value) != 0;
    default: return true;
    }
}

static bool refuse_unavailable(const struct parse *p, enum openai_kind kind) {
    static const char *const fields[] = {"guided_json",
                                         "guided_regex",
                                         "guided_choice",
                                         "guided_grammar",
                                         "use_beam_search",
                                         "tools",
                                         "functions",
                                         "function_call",
                                         "session_id",
                                         "session_create",
                                         "expected_version",
                                         "prompt_embeds",
                                         "audio",
                                         "continue_final_message",
                                         "chat_template",
                                         "logits_processors"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = json_object_get(p->root, fields[i]);
        if (value && asks(value)) return bad(p, fields[i], "%s is not available in this version", fields[i]);
    }
    int64_t best_of = 1;
    if (!get_int(p, "best_of", 0, INT32_MAX, &best_of)) return false;
    if (best_of > 1) return bad(p, "best_of", "best_of greater than 1 is not available; use n");
    const json_t *choice = get(p, "tool_choice");
    const char *named = json_string_value(choice);
    if (choice && (!named || (strcmp(named, "none") != 0 && strcmp(named, "auto") != 0))) {
        return bad(p, "tool_choice", "tool_choice is not available in this version");
    }
    const json_t *modalities = get(p, "modalities"), *one = NULL;
    size_t i = 0;
    json_array_foreach(modalities, i, one) {
        const char *text = json_string_value(one);
        if (!text || strcmp(text, "text") != 0) return bad(p, "modalities", "the only modality is text");
    }
    bool generation = true;
    if (kind == OPENAI_CHAT && !get_bool(p, "add_generation_prompt", &generation)) return false;
    if (!generation) {
        return bad(p, "add_generation_prompt", "add_generation_prompt false is not available in this version");
    }
    return true;
}

/* ---- prompts and messages ---- */

static char *copy_string(const json_t *value, size_t *len) {
    *len = json_string_length(value);
    char *copy = malloc(*len + 1);
    if (copy) memcpy(copy, json_string_value(value), *len + 1);
    return copy;
}

static bool parse_ids(const struct parse *p, const char *param, const json_t *array, int32_t **out, size_t *n_out) {
    size_t n = json_array_size(array);
    int32_t *ids = malloc((n ? n : 1) * sizeof *ids);
    if (!ids) return no_memory(p);
    *out = ids; /* freed with the request */
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        int64_t id = -1;
        if (!as_int(item, &id)) return bad(p, param, "%s[%zu] must be a token id, not %s", param, i, type_name(item));
        if (id < 0 || id >= p->defaults->vocab_size) {
            return bad(p, param, "%s[%zu] is %lld, token ids are 0 to %u", param, i, (long long)id,
                       p->defaults->vocab_size - 1);
        }
        ids[i] = (int32_t)id;
    }
    *n_out = n;
    return true;
}

static bool parse_prompt(const struct parse *p, const char *param, const json_t *value, struct openai_prompt *out) {
    if (json_is_string(value)) {
        out->text = copy_string(value, &out->len);
        if (!out->text) return no_memory(p);
        const bool hole = json_string_length(get(p, "suffix")) > 0; /* which may begin a file */
        return out->len || hole ? true : bad(p, param, "%s is empty: it must have at least one token", param);
    }
    if (!json_array_size(value)) return bad(p, param, "%s is empty: it must have at least one token", param);
    return parse_ids(p, param, value, &out->ids, &out->n_ids);
}

/* A string, an array of strings, an array of ids, or an array of arrays of ids. */
static bool parse_prompts(const struct parse *p, struct openai_request *out) {
    const json_t *value = get(p, "prompt");
    if (!value) return bad(p, "prompt", "prompt is missing");
    if (!json_is_string(value) && !json_is_array(value)) {
        return bad(p, "prompt", "prompt must be a string, an array of strings, or token ids, not %s", type_name(value));
    }
    const json_t *first = json_array_get(value, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(value) : 1;
    out->prompts = calloc(n, sizeof *out->prompts);
    if (!out->prompts) return no_memory(p);
    out->n_prompts = n;
    if (!many) return parse_prompt(p, "prompt", value, &out->prompts[0]);
    for (size_t i = 0; i < n; i++) {
        char param[40];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        const json_t *item = json_array_get(value, i);
        if (json_typeof(item) != json_typeof(first))
            return bad(p, param, "%s: all prompts of a request are of one kind", param);
        if (!parse_prompt(p, param, item, &out->prompts[i])) return false;
    }
    return true;
}

/* An empty suffix asks for nothing: then it is a plain completion. */
static bool parse_suffix(const struct parse *p, struct openai_request *out) {
    const json_t *value = get(p, "suffix");
    if (!value || (json_is_string(value) && !json_string_length(value))) return true;
    if (out->kind == OPENAI_CHAT) return bad(p, "suffix", "suffix belongs to completions, chats have no hole to fill");
    if (!json_is_string(value)) return bad(p, "suffix", "suffix must be a string, not %s", type_name(value));
    for (size_t i = 0; i < out->n_prompts; i++) {
        if (out->prompts[i].ids) return bad(p, "suffix", "suffix needs a prompt of text, not of token ids");
    }
    out->suffix = copy_string(value, &out->suffix_len);
    return out->suffix ? true : no_memory(p);
}

/* Content parts are joined by line breaks, as other servers do for models that know text alone. */
static bool join_parts(const struct parse *p, size_t message, const json_t *parts, struct buf *text) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *content = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        char param[64];
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, i);
        if (json_is_string(part)) {
            content = part;
        } else if (!type || strcmp(type, "text") != 0 || !json_is_string(content)) {
            return bad(p, param, "%s: this model reads parts of type text only", param);
        }
        if (i) buf_putc(text, '\n');
        buf_add(text, json_string_value(content), json_string_length(content));
    }
    return true;
}

/* Names a field of a message. */
static bool bad_in(const struct parse *p, size_t message, const char *field, const char *what) {
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].%s", message, field);
    return bad(p, param, "%s %s", param, what);
}

static bool parse_message(const struct parse *p, size_t i, const json_t *value, struct rod_message *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char param[40];
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!json_is_object(value)) return bad(p, param, "%s must be an object, not %s", param, type_name(value));
    const char *role = json_string_value(json_object_get(value, "role"));
    const json_t *content = json_object_get(value, "content"), *calls = json_object_get(value, "tool_calls");
    if (!role) return bad_in(p, i, "role", "is missing");
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        if (!strcmp(role, roles[r])) out->role = roles[r];
    }
    if (!out->role) return bad_in(p, i, "role", "is none of system, developer, user, assistant, tool");
    if (calls && asks(calls)) return bad_in(p, i, "tool_calls", "is not available in this version");
    struct buf text = {0};
    bool ok = true;
    if (json_is_string(content)) {
        buf_add(&text, json_string_value(content), json_string_length(content));
    } else if (json_is_array(content)) {
        ok = join_parts(p, i, content, &text);
    } else if (content && !json_is_null(content)) {
        ok = bad_in(p, i, "content", "must be a string or an array of parts");
    } else if (strcmp(role, "assistant") != 0) {
        ok = bad_in(p, i, "content", "is missing");
    }
    out->content = ok ? buf_take(&text, &out->content_len) : NULL;
    buf_fini(&text);
    if (ok && !out->content) return no_memory(p);
    return ok;
}

static bool parse_messages(const struct parse *p, struct rod_message **out, size_t *n_out) {
    const json_t *value = get(p, "messages");
    if (!value) return bad(p, "messages", "messages is missing");
    if (!json_is_array(value)) return bad(p, "messages", "messages must be an array, not %s", type_name(value));
    size_t n = json_array_size(value);
    if (!n) return bad(p, "messages", "messages is empty");
    *out = calloc(n, sizeof **out);
    if (!*out) return no_memory(p);
    *n_out = n;
    for (size_t i = 0; i < n; i++) {
        if (!parse_message(p, i, json_array_get(value, i), &(*out)[i])) return false;
    }
    return true;
}

static void free_messages(struct rod_message *messages, size_t n_messages) {
    for (size_t i = 0; i < n_messages; i++) free((char *)messages[i].content);
    free(messages);
}

/* ---- sampling ---- */

static bool parse_stop(const struct parse *p, struct openai_request *out) {
    enum { MAX_STOP = 16 };
    const json_t *value = get(p, "stop");
    if (!value) return true;
    if (!json_is_string(value) && !json_is_array(value)) {
        return bad(p, "stop", "stop must be a string or an array of strings, not %s", type_name(value));
    }
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    if (n > MAX_STOP) return bad(p, "stop", "stop has %zu strings, %d are allowed", n, MAX_STOP);
    out->stop = calloc(n ? n : 1, sizeof *out->stop);
    if (!out->stop) return no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_string(value) ? value : json_array_get(value, i);
        if (!json_is_string(item)) return bad(p, "stop", "stop[%zu] must be a string, not %s", i, type_name(item));
        size_t len = json_string_length(item);
        if (!len) return bad(p, "stop", "stop[%zu] is empty", i);
        if (strlen(json_string_value(item)) != len) return bad(p, "stop", "stop[%zu] contains a NUL character", i);
        out->stop[i] = copy_string(item, &len);
        if (!out->stop[i]) return no_memory(p);
        out->n_stop = i + 1;
    }
    return true;
}

static bool parse_stop_ids(const struct parse *p, struct openai_request *out) {
    const json_t *value = get(p, "stop_token_ids");
    if (!value) return true;
    if (!json_is_array(value))
        return bad(p, "stop_token_ids", "stop_token_ids must be an array, not %s", type_name(value));
    return parse_ids(p, "stop_token_ids", value, &out->stop_ids, &out->n_stop_ids);
}

static bool parse_allowed(const struct parse *p, struct openai_request *out) {
    const json_t *value = get(p, "allowed_token_ids");
    if (!value) return true;
    if (!json_is_array(value))
        return bad(p, "allowed_token_ids", "allowed_token_ids must be an array, not %s", type_name(value));
    if (json_array_size(value) > p->defaults->vocab_size)
        return bad(p, "allowed_token_ids", "allowed_token_ids has more entries than the vocabulary, %u",
                   p->defaults->vocab_size);
    return parse_ids(p, "allowed_token_ids", value, &out->allowed_ids, &out->n_allowed_ids);
}

static bool parse_bad_words(const struct parse *p, struct openai_request *out) {
    enum { MAX_WORDS = 512 };
    const json_t *value = get(p, "bad_words");
    if (!value) return true;
    if (!json_is_array(value))
        return bad(p, "bad_words", "bad_words must be an array of strings, not %s", type_name(value));
    size_t n = json_array_size(value);
    if (n > MAX_WORDS) return bad(p, "bad_words", "bad_words has %zu strings, %d are allowed", n, MAX_WORDS);
    out->bad_words = calloc(n ? n : 1, sizeof *out->bad_words);
    if (!out->bad_words) return no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item))
            return bad(p, "bad_words", "bad_words[%zu] must be a string, not %s", i, type_name(item));
        if (!json_string_length(item)) return bad(p, "bad_words", "bad_words[%zu] is empty", i);
        struct openai_prompt *word = &out->bad_words[i];
        word->text = copy_string(item, &word->len);
        if (!word->text) return no_memory(p);
        out->n_bad_words = i + 1;
    }
    return true;
}

static bool parse_bias(const struct parse *p, struct openai_request *out) {
    const json_t *value = get(p, "logit_bias");
    if (!value) return true;
    if (!json_is_object(value)) return bad(p, "logit_bias", "logit_bias must be an object, not %s", type_name(value));
    size_t n = json_object_size(value);
    if (!n) return true;
    out->bias = calloc(n, sizeof *out->bias);
    if (!out->bias) return no_memory(p);
    const char *key = NULL;
    json_t *number = NULL;
    json_object_foreach((json_t *)value, key, number) {
        char *end = NULL;
        long id = strtol(key, &end, 10);
        bool plain = *key >= '0' && *key <= '9' && (*key != '0' || !key[1]); /* one spelling, so no id comes twice */
        if (!plain || *end || id < 0 || id >= (long)p->defaults->vocab_size) {
            return bad(p, "logit_bias", "logit_bias key '%.40s' is not a token id, these are 0 to %u", key,
                       p->defaults->vocab_size - 1);
        }
        double bias = json_is_number(number) ? json_number_value(number) : NAN;
        if (!(bias >= -100 && bias <= 100))
            return bad(p, "logit_bias", "logit_bias of %ld must be a number from -100 to 100", id);
        out->bias[out->n_bias++] = (struct rod_bias){(int32_t)id, (float)bias};
    }
    return true;
}

static bool parse_sampling(const struct parse *p, struct openai_request *out) {
    struct rod_sampling *s = &out->sampling;
    const struct openai_defaults *d = p->defaults;
    *s = (struct rod_sampling){.temperature = d->temperature,
                               .top_p = d->top_p,
                               .top_k = d->top_k,
                               .min_p = d->min_p,
                               .typical_p = 1,
                               .repetition_penalty = d->repetition_penalty};
    int64_t top_k = s->top_k, seed = 0;
    out->has_seed = get(p, "seed") != NULL;
    bool ok = get_float(p, "temperature", 0, false, 2, &s->temperature) &&
              get_float(p, "top_p", 0, true, 1, &s->top_p) && get_float(p, "min_p", 0, false, 1, &s->min_p) &&
              get_float(p, "typical_p", 0, true, 1, &s->typical_p) &&
              get_float(p, "frequency_penalty", -2, false, 2, &s->frequency_penalty) &&
              get_float(p, "presence_penalty", -2, false, 2, &s->presence_penalty) &&
              get_float(p, "repeat_penalty", 0, true, 1e3, &s->repetition_penalty) &&
              get_float(p, "repetition_penalty", 0, true, 1e3, &s->repetition_penalty) &&
              get_int(p, "top_k", -1, INT32_MAX, &top_k) && get_int(p, "seed", INT64_MIN, INT64_MAX, &seed) &&
              parse_stop(p, out) && parse_stop_ids(p, out) && parse_bias(p, out) && parse_allowed(p, out) &&
              parse_bad_words(p, out);
    if (s->repetition_penalty < 1e-3f) s->repetition_penalty = 1e-3f; /* logits stay finite */
    s->top_k = (int32_t)top_k;
    s->seed = (uint64_t)seed;
    return ok;
}

/* ---- lengths, log-probabilities, stream ---- */

static bool parse_limits(const struct parse *p, struct openai_request *out) {
    bool skip_special = true;
    out->n = 1;
    out->max_tokens = out->kind == OPENAI_CHAT ? p->defaults->chat_max_tokens : 16;
    const int64_t least = out->kind == OPENAI_CHAT; /* a completion of no tokens reads or scores its prompt */
    int64_t n = 1, ping_ms = -1;
    bool ok =
        get_int(p, "n", 1, 128, &n) && get_u32(p, "max_tokens", least, &out->max_tokens) &&
        get_u32(p, "max_completion_tokens", 1, &out->max_tokens) && get_u32(p, "min_tokens", 0, &out->min_tokens) &&
        get_bool(p, "ignore_eos", &out->ignore_eos) && get_bool(p, "skip_special_tokens", &skip_special) &&
        get_bool(p, "include_stop_str_in_output", &out->include_stop) &&
        get_bool(p, "return_token_ids", &out->return_token_ids) && get_int(p, "sse_ping_ms", 0, 86400000, &ping_ms) &&
        get_int(p, "truncate_prompt_tokens", -1, INT32_MAX, &out->truncate_tok);
    out->n = (uint32_t)n;
    out->ping_ms = ping_ms;
    out->keep_special = !skip_special;
    if (ok && !out->truncate_tok && get(p, "truncate_prompt_tokens"))
        return bad(p, "truncate_prompt_tokens", "truncate_prompt_tokens is 0, it must be -1 or at least 1");
    if (out->truncate_tok && out->suffix)
        return bad(p, "truncate_prompt_tokens", "truncate_prompt_tokens would cut the parts of a prompt with a suffix");
    if (ok && out->min_tokens > out->max_tokens) {
        return bad(p, "min_tokens", "min_tokens is %u, more than max_tokens, %u", out->min_tokens, out->max_tokens);
    }
    return ok;
}

static bool parse_logprobs(const struct parse *p, struct openai_request *out) {
    int64_t n = -1, n_prompt = -1;
    bool wanted = false;
    if (!get_bool(p, "echo", &out->echo) || !get_int(p, "prompt_logprobs", 0, 20, &n_prompt)) return false;
    if (out->kind == OPENAI_CHAT && out->echo) return bad(p, "echo", "echo is there for completions, not for chats");
    if (out->kind == OPENAI_CHAT && n_prompt >= 0)
        return bad(p, "prompt_logprobs", "prompt_logprobs is there for completions, not for chats");
    if (out->echo && out->suffix) return bad(p, "echo", "echo and suffix do not go together");
    out->n_prompt_logprobs = (int32_t)n_prompt;
    if (out->kind == OPENAI_COMPLETION) {
        const json_t *value = get(p, "logprobs");
        if (value && !json_is_false(value) && !get_int(p, "logprobs", 0, 20, &n)) return false;
    } else {
        if (!get_bool(p, "logprobs", &wanted) || !get_int(p, "top_logprobs", 0, 20, &n)) return false;
        if (n > 0 && !wanted) return bad(p, "top_logprobs", "top_logprobs needs logprobs to be true");
        if (!wanted) n = -1;
        if (wanted && n < 0) n = 0;
    }
    out->n_logprobs = (int32_t)n;
    return true;
}

static bool parse_stream(const struct parse *p, struct openai_request *out) {
    if (!get_bool(p, "stream", &out->stream)) return false;
    const json_t *options = get(p, "stream_options");
    if (!options) return true;
    if (!json_is_object(options))
        return bad(p, "stream_options", "stream_options must be an object, not %s", type_name(options));
    if (!out->stream) return bad(p, "stream_options", "stream_options needs stream to be true");
    struct parse inner = {options, p->defaults, p->err};
    bool ok = get_bool(&inner, "include_usage", &out->include_usage) &&
              get_bool(&inner, "continuous_usage_stats", &out->continuous_usage);
    if (!ok) snprintf(p->err->param, sizeof p->err->param, "stream_options");
    return ok;
}

/* ---- whole bodies ---- */

static bool check_model(const struct parse *p) {
    const json_t *value = get(p, "model");
    if (!value) return true;
    if (!json_is_string(value)) return bad(p, "model", "model must be a string, not %s", type_name(value));
    const char *name = json_string_value(value);
    if (!*name || !strcmp(name, p->defaults->model_name)) return true;
    openai_error_set(p->err, 404, "invalid_request_error", "model_not_found", "model",
                     "the model '%.100s' is not served here, '%.100s' is", name, p->defaults->model_name);
    return false;
}

static json_t *load(const char *body, size_t len, struct parse *p) {
    json_t *root = openai_load(body, len, p->err);
    p->root = root;
    return root;
}

int openai_parse(enum openai_kind kind, const char *body, size_t len, const struct openai_defaults *defaults,
                 struct openai_request *out, struct openai_error *err) {
    *out = (struct openai_request){.kind = kind};
    struct parse p = {NULL, defaults, err};
    json_t *root = load(body, len, &p);
    if (!root) return -1;
    bool ok = check_model(&p) && refuse_unavailable(&p, kind) &&
              (kind == OPENAI_CHAT ? parse_messages(&p, &out->messages, &out->n_messages) : parse_prompts(&p, out)) &&
              parse_suffix(&p, out) && parse_sampling(&p, out) && openai_parse_grammar(root, &out->grammar, err) &&
              parse_limits(&p, out) && parse_logprobs(&p, out) && parse_stream(&p, out);
    json_decref(root);
    if (!ok) openai_request_fini(out);
    return ok ? 0 : -1;
}

void openai_request_fini(struct openai_request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].text);
        free(r->prompts[i].ids);
    }
    free(r->prompts);
    free(r->suffix);
    free_messages(r->messages, r->n_messages);
    for (size_t i = 0; i < r->n_stop; i++) free(r->stop[i]);
    free(r->stop);
    free(r->stop_ids);
    free(r->grammar.text);
    free(r->bias);
    free(r->allowed_ids);
    for (size_t i = 0; i < r->n_bad_words; i++) free(r->bad_words[i].text);
    free(r->bad_words);
    *r = (struct openai_request){0};
}

static bool parse_text_or_messages(const struct parse *p, struct openai_tokenize *out) {
    const json_t *prompt = get(p, "prompt");
    if (prompt && get(p, "messages")) return bad(p, "messages", "messages and prompt do not go together");
    if (get(p, "messages")) return parse_messages(p, &out->messages, &out->n_messages);
    if (!json_is_string(prompt))
        return bad(p, "prompt", prompt ? "prompt must be a string" : "prompt or messages is needed");
    out->text = copy_string(prompt, &out->len);
    return out->text ? true : no_memory(p);
}

int openai_parse_tokenize(const char *body, size_t len, const struct openai_defaults *defaults,
                          struct openai_tokenize *out, struct openai_error *err) {
    *out = (struct openai_tokenize){.parse_special = true, .add_special = true, .generation = true};
    struct parse p = {NULL, defaults, err};
    json_t *root = load(body, len, &p);
    if (!root) return -1;
    bool ok = check_model(&p) && get_bool(&p, "return_token_strs", &out->token_strs) &&
              get_bool(&p, "return_offsets", &out->offsets) && get_bool(&p, "parse_special", &out->parse_special) &&
              get_bool(&p, "add_special_tokens", &out->add_special) &&
              get_bool(&p, "add_generation_prompt", &out->generation) && parse_text_or_messages(&p, out);
    json_decref(root);
    if (!ok) openai_tokenize_fini(out);
    return ok ? 0 : -1;
}

int openai_parse_template(const char *body, size_t len, const struct openai_defaults *defaults,
                          struct openai_tokenize *out, struct openai_error *err) {
    *out = (struct openai_tokenize){.generation = true};
    struct parse p = {NULL, defaults, err};
    json_t *root = load(body, len, &p);
    if (!root) return -1;
    bool ok = check_model(&p) && get_bool(&p, "add_generation_prompt", &out->generation) &&
              parse_messages(&p, &out->messages, &out->n_messages);
    json_decref(root);
    if (!ok) openai_tokenize_fini(out);
    return ok ? 0 : -1;
}

void openai_tokenize_fini(struct openai_tokenize *t) {
    free(t->text);
    free_messages(t->messages, t->n_messages);
    *t = (struct openai_tokenize){0};
}

int openai_parse_detokenize(const char *body, size_t len, const struct openai_defaults *defaults,
                            struct openai_detokenize *out, struct openai_error *err) {
    struct parse p = {NULL, defaults, err};
    *out = (struct openai_detokenize){0};
    json_t *root = load(body, len, &p);
    if (!root) return -1;
    const json_t *value = get(&p, "tokens");
    bool ok = check_model(&p) && get_bool(&p, "skip_special_tokens", &out->skip_special) &&
              get_bool(&p, "return_offsets", &out->offsets);
    if (ok && !json_is_array(value)) ok = bad(&p, "tokens", "tokens must be an array of token ids");
    ok = ok && parse_ids(&p, "tokens", value, &out->ids, &out->n_ids);
    json_decref(root);
    if (!ok) {
        free(out->ids);
        out->ids = NULL;
    }
    return ok ? 0 : -1;
}
