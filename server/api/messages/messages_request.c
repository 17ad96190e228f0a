/* messages_request.c - the body of a message: its fields; see messages.h, and messages_parts.h for what it holds.
 * What both APIs name alike, and fields of this server, are read as a chat's. */
#include "messages_parts.h"

#include <stdio.h>
#include <string.h>

/* ---- fields that have another name, or no place in a message ---- */

/* The model does not think apart: an answer has no such blocks. */
static bool check_thinking(const struct api_fields *p) {
    const json_t *thinking = field_get(p, "thinking"), *type = json_object_get(thinking, "type");
    if (!thinking || field_is(type, "disabled")) return true;
    if (!field_is(type, "adaptive") && !field_is(type, "enabled"))
        return field_bad(p, "thinking", "must be of type adaptive, enabled or disabled");
    field_ignore(p, API_IGNORED_THINKING);
    return true;
}

/* {"edits": [{"type": "clear_thinking_20251015", ...}]}: no history has thinking that the model reads. */
static bool check_edits(const struct api_fields *p) {
    const json_t *management = field_get(p, "context_management"), *edits = json_object_get(management, "edits"), *edit;
    static const char clear[] = "clear_thinking_";
    char name[64];
    size_t i;
    if (!management) return true;
    if (!json_is_object(management) || (edits && !json_is_null(edits) && !json_is_array(edits)))
        return field_bad(p, "context_management", "must be an object with an array edits");
    json_array_foreach(edits, i, edit) {
        const char *type = json_string_value(json_object_get(edit, "type"));
        if (type && !strncmp(type, clear, sizeof clear - 1)) continue;
        snprintf(name, sizeof name, "context_management.edits[%zu]", i);
        return field_bad(p, name, "must be of type clear_thinking: this server edits nothing else");
    }
    if (json_array_size(edits)) field_ignore(p, API_IGNORED_CONTEXT_MANAGEMENT);
    return true;
}

static bool refuse_fields(const struct api_fields *p) {
    static const char *const renamed[][2] = {{"stop", "stop_sequences"},
                                             {"max_completion_tokens", "max_tokens"},
                                             {"response_format", "output_config.format"}};
    static const char *const fields[] = {"n",
                                         "n_cmpl",
                                         "logprobs",
                                         "top_logprobs",
                                         "prompt_logprobs",
                                         "echo",
                                         "return_token_ids",
                                         "functions",
                                         "suffix",
                                         "mcp_servers",
                                         "container",
                                         "stream_options",
                                         "tool_calls",
                                         "function_call",
                                         "add_generation_prompt",
                                         "continue_final_message"};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        if (field_get(p, renamed[i][0]))
            return field_bad(p, renamed[i][0], "is named %s in /v1/messages", renamed[i][1]);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = field_get(p, fields[i]);
        if (value && field_asks(value)) return field_bad(p, fields[i], "is not available in /v1/messages");
    }
    const json_t *stop = field_get(p, "stop_sequences");
    if (stop && !json_is_array(stop))
        return field_bad(p, "stop_sequences", "must be an array of strings, not %s", field_type(stop));
    const json_t *metadata = field_get(p, "metadata"), *tier = field_get(p, "service_tier");
    if (metadata && !json_is_object(metadata))
        return field_bad(p, "metadata", "must be an object, not %s", field_type(metadata));
    if (tier && !field_is(tier, "auto") && !field_is(tier, "standard_only"))
        return field_bad(p, "service_tier", "must be auto or standard_only");
    return check_thinking(p) && check_edits(p) && api_no_hole(p);
}

/* ---- the whole ---- */

/* A message of the assistant at the end is the beginning of the answer. */
static bool take_end(const struct api_fields *p, struct api_request *out) {
    const struct rod_message *last = &out->messages[out->n_messages - 1];
    if (!api_parse_end(p, out->messages, out->n_messages, &out->end)) return false;
    if (!strcmp(last->role, "assistant") && !last->n_calls) out->end = (struct api_chat_end){.go_on = true};
    return true;
}

/* output_config.format {"type": "json_schema", "schema": ...}, or the same in its older place. */
static bool read_format(const struct api_fields *p, struct api_grammar *out) {
    const json_t *config = field_get(p, "output_config"), *older = field_get(p, "output_format");
    if (config && !json_is_object(config))
        return field_bad(p, "output_config", "must be an object, not %s", field_type(config));
    const json_t *newer = json_object_get(config, "format"), *format = newer && !json_is_null(newer) ? newer : older;
    const char *name = format != newer ? "output_format" : "output_config.format";
    if (!format) return true;
    if (older && !json_equal(older, format))
        return field_bad(p, "output_format", "is another place of output_config.format, which has another value");
    const json_t *schema = json_object_get(format, "schema");
    if (!field_is(json_object_get(format, "type"), "json_schema") || !json_is_object(schema))
        return field_bad(p, name, "must be of type json_schema, with a schema");
    return api_take_grammar(p, ROD_GRAMMAR_JSON_SCHEMA, name, schema, out);
}

/* All that is Anthropic's, before what other APIs have too: an error names the first fault in this order. */
static bool read_all(const struct api_fields *p, struct api_request *out) {
    return messages_mark_tools(p, &out->cache) && messages_take_blocks(p, out) && read_format(p, &out->grammar) &&
           messages_take_tools(p, out) && take_end(p, out) && api_end_marks(p, out, &out->cache);
}

static bool check_counted(const struct api_fields *p, struct api_request *out) {
    int64_t max_tokens = 1;
    return refuse_fields(p) && field_int(p, "max_tokens", 1, INT32_MAX, &max_tokens) && read_all(p, out);
}

static bool check_message(const struct api_fields *p, struct api_request *out) {
    int64_t max_tokens = 1;
    return refuse_fields(p) && field_int(p, "max_tokens", 1, INT32_MAX, &max_tokens) &&
           (field_get(p, "max_tokens") || field_bad(p, "max_tokens", "is missing")) && read_all(p, out);
}

static const struct api_dialect of_messages = {
    .choices = true, .stop = "stop_sequences", .max_tokens = {"max_tokens"}, .check = check_message};

int messages_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                   struct api_error *err) {
    return api_parse(&of_messages, body, len, defaults, out, err);
}

int messages_parse_counted(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                           struct api_error *err) {
    struct api_dialect counted = of_messages;
    counted.check = check_counted;
    return api_parse(&counted, body, len, defaults, out, err);
}
