/* info_routes.c - see info_routes.h. */
#include "info_routes.h"
#include "server/base/version.h"
#include "server/openai/openai_put.h"

#include <stdlib.h>
#include <string.h>

#define JSON "application/json"

bool info_routes_loaded(struct http_call *call) {
    if (call->server->engine) return true;
    http_call_refuse(call, 503, "unavailable", "loading", "", "The model is still loading.");
    return false;
}

static void put_model(struct http_call *call, struct buf *body, const char *name) {
    openai_render_model(body, name, call->server->model_name, call->server->adapter, call->server->info);
}

/* All names of the model, the first one first. */
void info_routes_models(struct http_call *call) {
    const struct server *s = call->server;
    if (!info_routes_loaded(call)) return;
    struct buf body = {0};
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    put_model(call, &body, s->model_name);
    const char *more = s->defaults.model_names ? strchr(s->defaults.model_names, ',') : NULL;
    for (; more; more = strchr(more + 1, ',')) {
        char name[sizeof s->model_name];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(more + 1, ","), more + 1);
        buf_putc(&body, ',');
        put_model(call, &body, name);
    }
    buf_puts(&body, "]}");
    http_call_respond(call, 200, JSON, &body);
}

void info_routes_model(struct http_call *call) {
    const struct server *s = call->server;
    if (!info_routes_loaded(call)) return;
    const char *name = call->name;
    if (!openai_model_named(&s->defaults, name)) {
        http_call_invalid(call, 404, "model_not_found", "model", "model '%.100s' is not served here, '%.100s' is.",
                          name, s->model_name);
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
             openai_bool(begins_texts(s)));
    buf_addf(&body, ",\"vocab_size\":%u,\"model_max_length\":", s->info->vocab_size);
    openai_put_number_or_null(&body, (int64_t)s->info->max_prompt_tok);
    buf_puts(&body, ",\"chat_template\":null}");
    http_call_respond(call, 200, JSON, &body);
}

/* The model's name stands for its path, which is not for clients. */
static void put_names(struct buf *body, const struct server *s) {
    buf_puts(body, "{\"model_path\":");
    openai_put_text(body, s->model_name);
    buf_puts(body, ",\"tokenizer_path\":");
    openai_put_text_or_null(body, s->info->has_tokenizer ? s->model_name : NULL);
    buf_puts(body, ",\"served_model_name\":");
    openai_put_text(body, s->model_name);
}

void info_routes_server(struct http_call *call) {
    const struct server *s = call->server;
    if (!info_routes_loaded(call)) return;
    struct buf body = {0};
    put_names(&body, s);
    buf_puts(&body, ",\"version\":");
    openai_put_text(&body, version_string());
    buf_addf(&body,
             ",\"dp_size\":1,\"tp_size\":1,\"max_running_requests\":%u,\"max_prefill_tokens\":%u,\"max_total_tokens\":"
             "null,\"max_req_input_len\":",
             s->info->n_slots, s->info->max_batch_tok);
    openai_put_number_or_null(&body, (int64_t)s->info->max_prompt_tok);
    buf_puts(&body, ",\"device\":");
    openai_put_text(&body, s->info->device);
    buf_puts(&body, ",\"dtype\":");
    openai_put_text(&body, s->info->weight_dtype);
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
    openai_put_text(&body, s->info->arch);
    buf_puts(&body, ",\"architectures\":[\"RodimusForCausalLM\"]}"); /* the name in the published configurations */
    http_call_respond(call, 200, JSON, &body);
}
