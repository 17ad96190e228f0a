/* info_routes.c - see info_routes.h. */
#include "info_routes.h"
#include "server/api/api_routes.h"
#include "server/base/version.h"
#include "server/api/api_put.h"

#include <stdlib.h>
#include <string.h>

#define JSON "application/json"

bool info_routes_loaded(struct http_call *call) {
    if (call->server->engine) return true;
    http_call_refuse(call, 503, "unavailable", "loading", "", "The model is still loading.");
    return false;
}

static void put_model(struct http_call *call, struct buf *body, const char *name) {
    if (call->form->model)
        call->form->model(body, name, call->server->info->created_unix_s);
    else
        api_render_model(body, name, call->server->model_name, call->server->adapter, call->server->info);
}

/* The i-th name of the model; false: it has no more. */
static bool model_name(const struct server *s, size_t i, char name[sizeof s->model_name]) {
    const char *at = s->defaults.model_names && i ? s->defaults.model_names : s->model_name;
    for (; i && at; i--) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    if (at) snprintf(name, sizeof s->model_name, "%.*s", (int)strcspn(at, ","), at);
    return at != NULL;
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
    if (!info_routes_loaded(call)) return;
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
    if (!info_routes_loaded(call)) return;
    const char *name = call->name;
    if (!api_model_named(&s->defaults, name)) {
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
static void put_special(struct buf *out, const char *name, const struct server *s, int32_t id) {
    size_t n = 0, at = 0;
    bool special = false;
    const char *bytes = id >= 0 ? rod_token_bytes(s->engine, id, &n, &special) : NULL;
    while (bytes && at < n && buf_utf8(bytes + at, n - at)) at += buf_utf8(bytes + at, n - at);
    buf_addf(out, "\"%s\":", name);
    if (bytes && at == n)
        buf_json(out, bytes, n);
    else
        buf_puts(out, "null");
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
    if (!info_routes_loaded(call)) return;
    if (!s->info->has_tokenizer) {
        http_call_invalid(call, 404, "not_found", "", "The model has no tokenizer.");
        return;
    }
    struct buf body = {0};
    buf_puts(&body, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",");
    put_special(&body, "bos_token", s, s->info->bos_id);
    buf_putc(&body, ',');
    put_special(&body, "eos_token", s, s->info->eos_id);
    buf_addf(&body, ",\"pad_token\":null,\"unk_token\":null,\"add_bos_token\":%s,\"add_eos_token\":false",
             api_bool(begins_texts(s)));
    buf_addf(&body, ",\"vocab_size\":%u,\"model_max_length\":", s->info->vocab_size);
    api_put_number_or_null(&body, (int64_t)s->info->max_prompt_tok);
    buf_puts(&body, ",\"chat_template\":null}");
    http_call_respond(call, 200, JSON, &body);
}

/* The model's name stands for its path, which is not for clients. */
static void put_names(struct buf *body, const struct server *s) {
    buf_puts(body, "{\"model_path\":");
    api_put_text(body, s->model_name);
    buf_puts(body, ",\"tokenizer_path\":");
    api_put_text_or_null(body, s->info->has_tokenizer ? s->model_name : NULL);
    buf_puts(body, ",\"served_model_name\":");
    api_put_text(body, s->model_name);
}

void info_routes_server(struct http_call *call) {
    const struct server *s = call->server;
    if (!info_routes_loaded(call)) return;
    struct buf body = {0};
    put_names(&body, s);
    buf_puts(&body, ",\"version\":");
    api_put_text(&body, version_string());
    buf_addf(&body,
             ",\"dp_size\":1,\"tp_size\":1,\"max_running_requests\":%u,\"max_prefill_tokens\":%u,\"max_total_tokens\":"
             "null,\"max_req_input_len\":",
             s->info->n_slots, s->info->max_batch_tok);
    api_put_number_or_null(&body, (int64_t)s->info->max_prompt_tok);
    buf_puts(&body, ",\"device\":");
    api_put_text(&body, s->info->device);
    buf_puts(&body, ",\"dtype\":");
    api_put_text(&body, s->info->weight_dtype);
    buf_putc(&body, '}');
    http_call_respond(call, 200, JSON, &body);
}

void info_routes_model_facts(struct http_call *call) {
    const struct server *s = call->server;
    if (!info_routes_loaded(call)) return;
    struct buf body = {0};
    put_names(&body, s);
    buf_puts(&body, ",\"is_generation\":true,\"has_image_understanding\":false,\"has_audio_understanding\":false,"
                    "\"preferred_sampling_params\":null,\"weight_version\":\"default\",\"model_type\":");
    api_put_text(&body, s->info->arch);
    buf_puts(&body, ",\"architectures\":[\"RodimusForCausalLM\"]}"); /* the name in the published configurations */
    http_call_respond(call, 200, JSON, &body);
}
