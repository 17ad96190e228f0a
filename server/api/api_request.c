/* api_request.c - bodies become requests: what all APIs read alike; see api_fields.h. */
#include "api_fields.h"
#include "api_peers.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields that this version refuses ---- */

static bool refuse_unavailable(const struct api_fields *p) {
    int64_t best_of = 1;
    if (!field_int(p, "best_of", 0, INT32_MAX, &best_of)) return false;
    if (best_of > 1) return field_bad(p, "best_of", "above 1 is not available: use n");
    if (!field_no_tools(p, "functions", "function_call", "is not available: use tools and tool_choice")) return false;
    const json_t *modalities = field_get(p, "modalities"), *one = NULL;
    size_t i = 0;
    json_array_foreach(modalities, i, one) {
        if (!field_is(one, "text")) return field_bad(p, "modalities", "must be text only");
    }
    return true;
}

/* ---- sampling ---- */

/* String i of a list, for *out. An empty one is refused, and one with a NUL unless nul. */
static bool take_string(const struct api_fields *p, const char *name, size_t i, const json_t *item, bool nul,
                        struct api_prompt *out) {
    if (!json_is_string(item)) return field_bad(p, name, "[%zu] must be a string, not %s", i, field_type(item));
    const size_t len = json_string_length(item);
    if (!len) return field_bad(p, name, "[%zu] is empty", i);
    if (!nul && strlen(json_string_value(item)) != len) return field_bad(p, name, "[%zu] has a NUL character", i);
    out->text = field_copy(item, &out->len);
    return out->text || field_no_memory(p);
}

static bool parse_stop(const struct api_fields *p, struct api_request *out) {
    enum { MAX_STOP = 16 };
    const char *name = p->dialect->stop;
    const json_t *value = field_get(p, name);
    const bool one = json_is_string(value);
    if (!value) return true;
    if (!one && !json_is_array(value))
        return field_bad(p, name, "must be a string or an array of strings, not %s", field_type(value));
    const size_t n = one ? 1 : json_array_size(value);
    if (n > MAX_STOP) return field_bad(p, name, "has %zu strings, %d are allowed", n, MAX_STOP);
    out->stop = calloc(n ? n : 1, sizeof *out->stop);
    if (!out->stop) return field_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        struct api_prompt stop;
        if (!take_string(p, name, i, one ? value : json_array_get(value, i), false, &stop)) return false;
        out->stop[i] = stop.text;
        out->n_stop = i + 1;
    }
    return true;
}

static bool parse_bad_words(const struct api_fields *p, struct api_request *out) {
    enum { MAX_WORDS = 512 };
    const json_t *value = field_get(p, "bad_words");
    if (!value) return true;
    if (!json_is_array(value))
        return field_bad(p, "bad_words", "must be an array of strings, not %s", field_type(value));
    const size_t n = json_array_size(value);
    if (n > MAX_WORDS) return field_bad(p, "bad_words", "has %zu strings, %d are allowed", n, MAX_WORDS);
    out->bad_words = calloc(n ? n : 1, sizeof *out->bad_words);
    if (!out->bad_words) return field_no_memory(p);
    for (size_t i = 0; i < n; i++, out->n_bad_words++)
        if (!take_string(p, "bad_words", i, json_array_get(value, i), true, &out->bad_words[i])) return false;
    return true;
}

static bool parse_ids(const struct api_fields *p, const char *name, int32_t **ids, size_t *n) {
    const json_t *value = field_get(p, name);
    if (!value) return true;
    if (!json_is_array(value)) return field_bad(p, name, "must be an array, not %s", field_type(value));
    return field_ids(p, name, value, ids, n);
}

static bool parse_allowed(const struct api_fields *p, struct api_request *out) {
    if (json_array_size(field_get(p, "allowed_token_ids")) > p->defaults->vocab_size)
        return field_bad(p, "allowed_token_ids", "has more entries than the vocabulary of %u", p->defaults->vocab_size);
    return parse_ids(p, "allowed_token_ids", &out->allowed_ids, &out->n_allowed_ids);
}

static bool parse_bias(const struct api_fields *p, struct api_request *out) {
    const json_t *value = field_get(p, "logit_bias");
    if (!value) return true;
    if (!json_is_object(value)) return field_bad(p, "logit_bias", "must be an object, not %s", field_type(value));
    size_t n = json_object_size(value);
    if (!n) return true;
    out->bias = calloc(n, sizeof *out->bias);
    if (!out->bias) return field_no_memory(p);
    const char *key = NULL;
    json_t *number = NULL;
    json_object_foreach((json_t *)value, key, number) {
        char *end = NULL;
        long id = strtol(key, &end, 10);
        bool plain = *key >= '0' && *key <= '9' && (*key != '0' || !key[1]); /* one spelling, so no id comes twice */
        if (!plain || *end || id < 0 || id >= (long)p->defaults->vocab_size) {
            return field_bad(p, "logit_bias", "key '%.40s' is not a token id from 0 to %u", key,
                             p->defaults->vocab_size - 1);
        }
        double bias = json_is_number(number) ? json_number_value(number) : NAN;
        if (!(bias >= -100 && bias <= 100))
            return field_bad(p, "logit_bias", "of %ld must be a number from -100 to 100", id);
        out->bias[out->n_bias++] = (struct rod_bias){(int32_t)id, (float)bias};
    }
    return true;
}

/* What is less than a low above 0 counts as low. */
static bool parse_option(const struct api_fields *p, const struct rod_sampling_option *o, struct rod_sampling *out) {
    void *at = (char *)out + o->offset;
    if (o->whole) {
        int64_t value = *(int32_t *)at;
        const bool ok = field_int(p, o->name, (int64_t)o->low, (int64_t)o->high, &value);
        *(int32_t *)at = (int32_t)value;
        return ok;
    }
    float *value = at;
    if (o->low <= 0) return field_float(p, o->name, o->low, o->above, o->high, value);
    const bool ok = field_float(p, o->name, 0, true, o->high, value);
    if (*value < (float)o->low) *value = (float)o->low;
    return ok;
}

static bool parse_sampling(const struct api_fields *p, struct api_request *out) {
    int64_t seed = 0;
    bool ok = true;
    out->sampling = p->defaults->sampling;
    for (size_t i = 0; ok && i < ROD_N_SAMPLING; i++) ok = parse_option(p, &rod_sampling_options[i], &out->sampling);
    ok = ok && field_int(p, "seed", INT64_MIN, INT64_MAX, &seed) && parse_stop(p, out) &&
         parse_ids(p, "stop_token_ids", &out->stop_ids, &out->n_stop_ids) && parse_bias(p, out) &&
         parse_allowed(p, out) && parse_bad_words(p, out);
    out->has_seed = field_get(p, "seed") != NULL;
    out->sampling.seed = (uint64_t)seed;
    return ok;
}

/* ---- lengths, log-probabilities, stream ---- */

static bool parse_side(const struct api_fields *p, struct api_request *out) {
    const json_t *side = field_get(p, "truncation_side");
    if (!side || field_is(side, "left")) return true;
    out->truncate_end = field_is(side, "right");
    return out->truncate_end || field_bad(p, "truncation_side", "must be left or right");
}

/* Whether the tokenizer's own tokens stand before the prompt; a chat format has tokens of its own. */
static bool parse_begin(const struct api_fields *p, struct api_request *out) {
    bool begin = p->dialect->prompts;
    if (!field_bool(p, "add_special_tokens", &begin)) return false;
    if (begin && !p->dialect->prompts)
        return field_bad(p, "add_special_tokens", "must be false: the chat format has special tokens of its own");
    out->no_begin = !begin;
    return true;
}

/* A completion that makes no token reads or scores its prompt, a session's turn reads its messages. */
static bool parse_max_tokens(const struct api_fields *p, struct api_request *out) {
    const struct api_dialect *d = p->dialect;
    bool named = false;
    out->max_tokens = d->prompts ? 16 : p->defaults->chat_max_tokens;
    out->max_tokens_field = d->max_tokens[0];
    for (const char *const *name = d->max_tokens; *name; name++) {
        const json_t *value = field_get(p, *name);
        const bool may_be_zero = d->choices && (d->prompts || field_get(p, "session_id"));
        if (!field_u32(p, *name, may_be_zero ? 0 : 1, &out->max_tokens)) return false;
        if (value) out->max_tokens_field = api_peers_sent(p, *name);
        named = named || value;
    }
    out->whole_context = d->whole_context && p->defaults->context_tok && !named;
    if (out->whole_context) out->max_tokens = p->defaults->context_tok;
    return true;
}

static bool parse_limits(const struct api_fields *p, struct api_request *out) {
    bool skip_special = true;
    out->n = 1;
    int64_t n = 1, ping_ms = -1;
    bool ok = (!p->dialect->choices || field_int(p, "n", 1, 128, &n)) && parse_max_tokens(p, out);
    ok = ok && field_u32(p, "min_tokens", 0, &out->min_tokens) && field_bool(p, "ignore_eos", &out->ignore_eos) &&
         field_bool(p, "skip_special_tokens", &skip_special) &&
         field_bool(p, "include_stop_str_in_output", &out->include_stop) &&
         field_bool(p, "return_token_ids", &out->return_token_ids) &&
         field_int(p, "sse_ping_ms", 0, 86400000, &ping_ms) &&
         field_int(p, "truncate_prompt_tokens", -1, INT32_MAX, &out->truncate_tok) && parse_side(p, out) &&
         parse_begin(p, out);
    out->n = (uint32_t)n;
    out->ping_ms = ping_ms;
    out->keep_special = !skip_special;
    if (ok && !out->truncate_tok && field_get(p, "truncate_prompt_tokens"))
        return field_bad(p, "truncate_prompt_tokens", "must be -1 or at least 1, not 0");
    if (out->truncate_tok && out->suffix)
        return field_bad(p, "truncate_prompt_tokens", "and suffix exclude each other");
    if (ok && out->min_tokens > out->max_tokens) {
        return field_bad(p, "min_tokens", "is %u, more than %s (%u)", out->min_tokens, out->max_tokens_field,
                         out->max_tokens);
    }
    return ok;
}

/* A completion has one number, a chat a truth and a number. */
static bool parse_scores(const struct api_fields *p, int64_t *n) {
    const json_t *value = field_get(p, "logprobs");
    bool wanted = false;
    if (p->dialect->prompts) return !value || json_is_false(value) || field_int(p, "logprobs", 0, 20, n);
    if (!field_bool(p, "logprobs", &wanted) || !field_int(p, "top_logprobs", 0, 20, n)) return false;
    if (*n > 0 && !wanted) return field_bad(p, "top_logprobs", "must come with logprobs true");
    if (!wanted) *n = -1;
    if (wanted && *n < 0) *n = 0;
    return true;
}

static bool parse_logprobs(const struct api_fields *p, struct api_request *out) {
    int64_t n = -1, n_prompt = -1;
    out->n_logprobs = out->n_prompt_logprobs = -1;
    if (!field_bool(p, "return_tokens_as_token_ids", &out->ids_for_tokens)) return false;
    if (!p->dialect->choices) return true;
    if (!field_bool(p, "echo", &out->echo) || !field_int(p, "prompt_logprobs", 0, 20, &n_prompt)) return false;
    if (!p->dialect->prompts && out->echo) return field_bad(p, "echo", "is for completions, not for chats");
    if (out->echo && out->suffix) return field_bad(p, "echo", "and suffix exclude each other");
    if (!parse_scores(p, &n)) return false;
    out->n_prompt_logprobs = (int32_t)n_prompt;
    out->n_logprobs = (int32_t)n;
    return true;
}

static bool parse_stream(const struct api_fields *p, struct api_request *out) {
    if (!field_bool(p, "stream", &out->stream)) return false;
    const json_t *options = field_get(p, "stream_options");
    if (!options) return true;
    if (!json_is_object(options))
        return field_bad(p, "stream_options", "must be an object, not %s", field_type(options));
    if (!out->stream) return field_bad(p, "stream_options", "must come with stream true");
    struct api_fields inner = {.root = options, .defaults = p->defaults, .err = p->err};
    bool ok = field_bool(&inner, "include_usage", &out->include_usage) &&
              field_bool(&inner, "continuous_usage_stats", &out->continuous_usage);
    if (!ok) snprintf(p->err->param, sizeof p->err->param, "stream_options");
    if (!p->dialect->choices) out->include_usage = out->continuous_usage = false; /* its last event has it */
    return ok;
}

/* ---- whole bodies ---- */

bool api_model_named(const struct api_defaults *d, const char *name) {
    const size_t n = strlen(name);
    if (!strcmp(name, d->model_name)) return true;
    if (name[strcspn(name, ",")]) return false; /* no list is a name */
    for (const char *at = d->model_names; n && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (!strncmp(at, name, n) && (!at[n] || at[n] == ',')) return true;
    }
    return false;
}

/* The last of its names is *. */
static bool model_has_any_name(const struct api_defaults *d) {
    const size_t n = d->model_names ? strlen(d->model_names) : 0;
    return n && d->model_names[n - 1] == '*' && (n == 1 || d->model_names[n - 2] == ',');
}

/* A name that nobody gave the model is a line of text, as those are that somebody may. */
bool api_model_taken(const struct api_defaults *d, const char *name) {
    size_t n = 0;
    if (api_model_named(d, name)) return true;
    while ((unsigned char)name[n] >= ' ' && name[n] != 0x7f) n++;
    return model_has_any_name(d) && n && !name[n] && n <= API_MODEL_NAME_MAX;
}

void api_model_unknown(struct api_error *err, const struct api_defaults *d, const char *name) {
    api_error_set(err, 404, API_INVALID, "model_not_found", "model", "model '%.100s' is not served here, '%.100s' is.",
                  name, d->model_name);
}

bool api_no_hole(const struct api_fields *p) {
    const json_t *suffix = field_get(p, "suffix");
    if (!suffix || (json_is_string(suffix) && !json_string_length(suffix))) return true;
    return field_bad(p, "suffix", "is for completions: a chat has no hole to fill");
}

bool api_check_model(const struct api_fields *p) {
    const json_t *value = field_get(p, "model");
    if (!value) return true;
    if (!json_is_string(value)) return field_bad(p, "model", "must be a string, not %s", field_type(value));
    const char *name = json_string_value(value);
    if (strlen(name) != json_string_length(value)) return field_bad(p, "model", "has a NUL character");
    if (!*name || api_model_taken(p->defaults, name)) return true;
    api_model_unknown(p->err, p->defaults, name);
    return false;
}

static bool parse_grammar(const struct api_fields *p, struct api_request *out) {
    const struct api_dialect *d = p->dialect;
    if ((d->format && !d->format(p, &out->grammar)) || !api_structured_outputs(p, &out->grammar)) return false;
    if (out->grammar.text) out->grammar.param = api_peers_sent(p, out->grammar.param);
    return api_check_tools(p, out);
}

/* The answer has the name that was asked for, where the model was given none like it. */
static bool take_model(const struct api_fields *p, struct api_request *out) {
    const json_t *name = field_get(p, "model");
    size_t len;
    if (!json_string_length(name) || api_model_named(p->defaults, json_string_value(name))) return true;
    out->model = field_copy(name, &len);
    return out->model || field_no_memory(p);
}

/* What holds of every request that is taken, whatever was sent. */
static void check_parsed(const struct api_request *q) {
    assert((q->n_prompts > 0) == (q->n_messages == 0));
    assert(q->n >= 1 && q->min_tokens <= q->max_tokens);
    assert(!q->suffix || (q->n_prompts && !q->echo && !q->truncate_tok));
    assert(q->n_prompts || !q->echo);
    assert(!q->tools.n || q->n_messages);
    assert(!(q->end.generation && q->end.go_on));
    assert(q->stream || (!q->include_usage && !q->continuous_usage));
    assert(q->sampling.repetition_penalty > 0);
}

int api_parse(const struct api_dialect *dialect, const char *body, size_t len, const struct api_defaults *defaults,
              struct api_request *out, struct api_error *err) {
    *out = (struct api_request){0};
    json_t *root = api_load(body, len, err);
    const struct api_fields fields = {root, defaults, err, dialect, &out->ignored}, *p = &fields;
    if (!root) return -1;
    bool ok = !dialect->check || dialect->check(p, out);
    if (ok) {
        ok = api_peers_apply(p, root) && api_check_model(p) && take_model(p, out) && refuse_unavailable(p) &&
             (!dialect->input || dialect->input(p, out)) && parse_sampling(p, out) && parse_grammar(p, out) &&
             parse_limits(p, out) && api_parse_draft(p, out) && parse_logprobs(p, out) && parse_stream(p, out) &&
             api_parse_session(p, &out->session) && (!dialect->again || dialect->again(p, out));
        if (!ok) api_peers_rename(p);
    }
    json_decref(root);
    if (ok)
        check_parsed(out);
    else
        api_request_fini(out);
    return ok ? 0 : -1;
}

void api_request_fini(struct api_request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].text);
        free(r->prompts[i].ids);
    }
    free(r->prompts);
    free(r->suffix);
    api_messages_free(r->messages, r->n_messages);
    api_tools_fini(&r->tools);
    api_session_fini(&r->session);
    free(r->model);
    free(r->answer_id);
    buf_fini(&r->again);
    for (size_t i = 0; i < r->n_stop; i++) free(r->stop[i]);
    free(r->stop);
    free(r->stop_ids);
    free(r->grammar.text);
    free(r->bias);
    free(r->allowed_ids);
    for (size_t i = 0; i < r->n_bad_words; i++) free(r->bad_words[i].text);
    free(r->bad_words);
    free(r->prediction.text);
    free(r->prediction.ids);
    *r = (struct api_request){0};
}
