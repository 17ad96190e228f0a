/* api_model.c - a model as OpenAI's list of them has it; see api_routes.h. */
#include "api_put.h"
#include "api_routes.h"

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
