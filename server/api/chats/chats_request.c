/* chats_request.c - the body of a chat: messages and tools. */
#include "chats.h"
#include "server/api/api_fields.h"

static bool read_input(const struct api_fields *p, struct api_request *out) {
    if (!api_messages(p, &out->messages, &out->n_messages) || !api_parse_tools(p, &out->tools) ||
        !api_parse_end(p, out->messages, out->n_messages, &out->end) || !api_parse_cache(p, out, &out->cache))
        return false;
    return api_no_hole(p);
}

int chats_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                struct api_error *err) {
    static const struct api_dialect dialect = {.choices = true,
                                               .stop = "stop",
                                               .max_tokens = {"max_tokens", "max_completion_tokens"},
                                               .input = read_input,
                                               .format = api_response_format};
    return api_parse(&dialect, body, len, defaults, out, err);
}
