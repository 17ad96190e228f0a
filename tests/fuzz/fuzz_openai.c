/* Any body of any client: the parsers take it or refuse it with a 4xx that has a message, and what they took keeps the
 * promises that the engine relies on. The first byte chooses the route. */
#include "server/openai.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct openai_defaults defaults = {.model_name = "m",
                                                .vocab_size = 64,
                                                .temperature = 1,
                                                .top_p = 1,
                                                .repetition_penalty = 1,
                                                .top_k = -1,
                                                .chat_max_tokens = 10};

static void check_error(const struct openai_error *err) {
    struct buf out = {0};
    if (err->http < 400 || err->http > 499 || !err->message[0]) abort();
    openai_render_error(&out, err);
    buf_fini(&out);
}

static void check_request(const struct openai_request *r) {
    const struct rod_sampling *s = &r->sampling;
    if (!(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->repetition_penalty > 0))
        abort();
    if (r->n < 1 || r->n > 128 || r->max_tokens < (r->kind == OPENAI_CHAT) || r->min_tokens > r->max_tokens ||
        r->n_logprobs > 20 || r->n_prompt_logprobs > 20)
        abort();
    if (r->kind == OPENAI_CHAT ? !r->n_messages : !r->n_prompts) abort();
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct openai_prompt *p = &r->prompts[i];
        if (p->ids ? p->n_ids == 0 : p->len == 0) abort();
        for (size_t k = 0; k < p->n_ids; k++) {
            if (p->ids[k] < 0 || p->ids[k] >= 64) abort();
        }
    }
    for (size_t i = 0; i < r->n_messages; i++) {
        if (!r->messages[i].role || r->messages[i].content[r->messages[i].content_len]) abort();
    }
    for (size_t i = 0; i < r->n_bias; i++) {
        if (r->bias[i].id < 0 || r->bias[i].id >= 64 || !(r->bias[i].bias >= -100 && r->bias[i].bias <= 100)) abort();
    }
    for (size_t i = 0; i < r->n_stop; i++) {
        if (!r->stop[i] || !r->stop[i][0]) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *body = (const char *)data + 1;
    struct openai_error err = {0};
    struct openai_request request;
    struct openai_tokenize tokenize;
    struct openai_detokenize detokenize;
    int rc = 0;
    switch (data[0] & 3) {
    case 0:
    case 1:
        rc = openai_parse(data[0] & 1 ? OPENAI_CHAT : OPENAI_COMPLETION, body, size - 1, &defaults, &request, &err);
        if (!rc) check_request(&request);
        if (!rc) openai_request_fini(&request);
        break;
    case 2:
        rc = openai_parse_tokenize(body, size - 1, &defaults, &tokenize, &err);
        if (!rc) openai_tokenize_fini(&tokenize);
        break;
    default: rc = openai_parse_detokenize(body, size - 1, &defaults, &detokenize, &err); free(detokenize.ids);
    }
    if (rc) check_error(&err);
    return 0;
}
