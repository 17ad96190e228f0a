/* info_routes.c - see side_routes.h. */
#include "side_routes.h"
#include "server/base/version.h"
#include "server/api/api_put.h"

#include <stdlib.h>
#include <string.h>

/* A model as its form's list has it, else as OpenAI's. */
static void put_model(struct http_call *call, struct buf *body, const char *name) {
    const struct server *s = call->server;
    const struct rod_model_info *i = s->info;
    if (call->form->model) {
        call->form->model(body, name, i->created_unix_s);
        return;
    }
    buf_pack(body, "{s:s,s:s,s:I,s:s,s:s,s:s?,s:n,s:I,s:I,s:s,s:s,s:s,s:s?,s:s?,s:I,s:I,s:i,s:n,s:o,s:i,s:b}", "id",
             name, "object", "model", "created", i->created_unix_s, "owned_by", "rodimus", "root", s->model_name,
             "adapter", api_some(s->adapter), "parent", "max_model_len", i->max_prompt_tok, "session_bytes",
             i->session_bytes, "arch", i->arch, "dtype", i->weight_dtype, "weights", i->weights, "window_dtype",
             api_some(i->window_dtype), "state_dtype", api_some(i->state_dtype), "weight_bytes", i->weight_bytes,
             "n_params", i->n_params, "vocab_size", (int)i->vocab_size, "context_length", "window",
             api_number_or_null(i->window_tok), "slots", (int)i->n_slots, "chat", i->has_chat);
}

/* The i-th name of the model; false: it has no more. */
static bool model_name(const struct server *s, size_t i, char name[sizeof s->model_name]) {
    const char *at = s->defaults.model_names && i ? s->defaults.model_names : s->model_name;
    for (; i && at; i--) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    if (at) snprintf(name, sizeof s->model_name, "%.*s", (int)strcspn(at, ","), at);
    return at && strcmp(at, "*") != 0; /* which stands for the names that it has not */
}

/* A list with pages: of the names behind after_id and before before_id, the first ones, or the last ones where
 * before_id is given. */
static bool choose_page(struct http_call *call, size_t *first, size_t *end) {
    enum { PAGE = 20, MAX_PAGE = 1000 };
    const char *after = http_query(call->http, "after_id"), *before = http_query(call->http, "before_id");
    char name[sizeof call->server->model_name];
    size_t limit = PAGE;
    if (!http_call_limit(call, MAX_PAGE, &limit)) return false;
    for (size_t i = *first; i < *end && model_name(call->server, i, name); i++) {
        if (after && !strcmp(name, after)) *first = i + 1;
        if (before && !strcmp(name, before)) *end = i;
    }
    if (*end > *first + limit && before) *first = *end - limit;
    if (*end > *first + limit) *end = *first + limit;
    return true;
}

static void put_model_list(struct http_call *call, size_t first, size_t end, size_t n, struct buf *body) {
    char name[sizeof call->server->model_name];
    const bool paged = call->form->model != NULL;
    buf_puts(body, paged ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (size_t i = first; i < end && model_name(call->server, i, name); i++) {
        if (i > first) buf_putc(body, ',');
        put_model(call, body, name);
    }
    buf_putc(body, ']');
    if (paged) {
        const bool back = http_query(call->http, "before_id") != NULL;
        buf_addf(body, ",\"has_more\":%s,\"first_id\":", api_bool(back ? first > 0 : end < n));
        api_put_text_or_null(body, first < end && model_name(call->server, first, name) ? name : NULL);
        buf_puts(body, ",\"last_id\":");
        api_put_text_or_null(body, first < end && model_name(call->server, end - 1, name) ? name : NULL);
    }
    buf_putc(body, '}');
}

/* All names of the model, the first one first. */
void info_routes_models(struct http_call *call) {
    char name[sizeof call->server->model_name];
    struct buf body = {0};
    size_t n = 0, first = 0;
    while (model_name(call->server, n, name)) n++;
    size_t end = n;
    if (call->form->model && !choose_page(call, &first, &end)) return;
    put_model_list(call, first, end, n, &body);
    http_call_respond(call, 200, JSON, &body);
}

void info_routes_model(struct http_call *call) {
    const struct server *s = call->server;
    const char *name = call->name;
    if (!api_model_taken(&s->defaults, name)) {
        struct api_error err;
        api_model_unknown(&err, &s->defaults, name);
        http_call_fail(call, &err);
        return;
    }
    struct buf body = {0};
    put_model(call, &body, name);
    http_call_respond(call, 200, JSON, &body);
}

/* A token as its text; null where there is none, or no text that JSON could hold. */
static json_t *special_json(const struct server *s, int32_t id) {
    size_t n = 0;
    bool special = false;
    const char *bytes = id >= 0 ? rod_token_bytes(s->engine, id, &n, &special) : NULL;
    json_t *text = bytes ? json_stringn(bytes, n) : NULL;
    return text ? text : json_null();
}

/* Whether the tokenizer puts its first token in front of a text. */
static bool begins_texts(const struct server *s) {
    int32_t *ids = NULL;
    size_t n = 0;
    const bool begins = !rod_encode(s->engine, "a", 1, true, &ids, &n, NULL) && n && ids[0] == s->info->bos_id;
    free(ids);
    return begins;
}

/* Of tokenizer_config.json what clients read. The chat format is no Jinja template: /apply-template renders it. */
void info_routes_tokenizer(struct http_call *call) {
    const struct server *s = call->server;
    if (!s->info->has_tokenizer) {
        http_call_invalid(call, 404, "not_found", "", "The model has no tokenizer.");
        return;
    }
    struct buf body = {0};
    buf_pack(&body, "{s:s,s:o,s:o,s:n,s:n,s:b,s:b,s:i,s:o,s:n}", "tokenizer_class", "PreTrainedTokenizerFast",
             "bos_token", special_json(s, s->info->bos_id), "eos_token", special_json(s, s->info->eos_id), "pad_token",
             "unk_token", "add_bos_token", begins_texts(s), "add_eos_token", 0, "vocab_size", (int)s->info->vocab_size,
             "model_max_length", api_number_or_null(s->info->max_prompt_tok), "chat_template");
    http_call_respond(call, 200, JSON, &body);
}

/* The model's name stands for its path, which is not for clients, like the store's bucket. */
void info_routes_server(struct http_call *call) {
    const struct server *s = call->server;
    struct buf body = {0};
    const struct config *c = &s->config;
    buf_pack(&body, "{s:s,s:s?,s:s,s:s,s:i,s:i,s:i,s:i,s:n,s:o,s:s,s:s,s:s?,s:s?,s:s?}", "model_path", s->model_name,
             "tokenizer_path", s->info->has_tokenizer ? s->model_name : NULL, "served_model_name", s->model_name,
             "version", version_string(), "dp_size", 1, "tp_size", 1, "max_running_requests", (int)s->info->n_slots,
             "max_prefill_tokens", (int)s->info->max_batch_tok, "max_total_tokens", "max_req_input_len",
             api_number_or_null(s->info->max_prompt_tok), "device", s->info->device, "dtype", s->info->weight_dtype,
             "window_dtype", api_some(s->info->window_dtype), "state_dtype", api_some(s->info->state_dtype),
             "state_url", *c->state_url ? "s3" : NULL);
    http_call_respond(call, 200, JSON, &body);
}

/* architectures: the name in the published configurations. */
void info_routes_model_facts(struct http_call *call) {
    const struct server *s = call->server;
    struct buf body = {0};
    buf_pack(&body, "{s:s,s:s?,s:s,s:b,s:b,s:b,s:n,s:s,s:s,s:[s]}", "model_path", s->model_name, "tokenizer_path",
             s->info->has_tokenizer ? s->model_name : NULL, "served_model_name", s->model_name, "is_generation", 1,
             "has_image_understanding", 0, "has_audio_understanding", 0, "preferred_sampling_params", "weight_version",
             "default", "model_type", s->info->arch, "architectures", "RodimusForCausalLM");
    http_call_respond(call, 200, JSON, &body);
}
