/* responses_kept.c - what a stored response keeps of its request, and what is shown of that again; see responses.h.
 *
 *   {the fields that the answer repeats}
 *   {"input": as it was sent}
 *
 * A line each, as JSON. They come back from a file, which somebody may have written by hand: they are read as bodies
 * are. */
#include "responses.h"
#include "responses_parts.h"
#include "server/api/api_put.h"
#include "server/api/api_routes.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- to text ---- */

/* Nonzero: there is no room. */
static int keep_bytes(const char *bytes, size_t n, void *out) {
    struct buf *kept = out;
    if (n > ROD_MAX_TURN_TEXT - kept->len) return -1;
    buf_add(kept, bytes, n);
    return kept->failed ? -1 : 0;
}

bool responses_keep(const struct api_fields *p, struct api_request *q) {
    static const char between[] = "}\n{\"input\":";
    struct buf *kept = &q->session.kept;
    assert(!q->session.discard && q->again.len && !kept->len);
    const bool fits = !keep_bytes("{", 1, kept) && !keep_bytes(q->again.data, q->again.len, kept) &&
                      !keep_bytes(between, sizeof between - 1, kept) &&
                      !json_dump_callback(field_get(p, "input"), keep_bytes, kept, JSON_COMPACT | JSON_ENCODE_ANY) &&
                      !keep_bytes("}", 1, kept);
    if (kept->failed) return field_no_memory(p);
    if (!fits) buf_fini(kept);
    return true;
}

/* ---- from text ---- */

static bool kept_echo(const char *line, size_t len, struct responses_kept *out, struct api_error *err) {
    json_t *root = api_load(line, len, err);
    if (!root) return false;
    const struct api_fields p = {.root = root, .err = err};
    const bool ok = responses_take_tools(&p, out->input, &out->tools);
    json_decref(root);
    if (!ok) return false;
    buf_add(&out->echo, line + 1, len - 2);
    return out->echo.failed ? api_error_no_memory(err) : true;
}

/* A text is a user's message. */
static bool kept_input(const char *line, size_t len, struct responses_kept *out, struct api_error *err) {
    json_t *root = api_load(line, len, err);
    if (!root) return false;
    json_t *input = json_object_get(root, "input");
    out->input =
        json_is_string(input) ? json_pack("[{s:s,s:O}]", "role", "user", "content", input) : json_incref(input);
    json_decref(root);
    return input && !out->input ? api_error_no_memory(err) : true;
}

/* Items of the input may bring tools, which the model has read. */
static bool brings_tools(const char *line, size_t len) {
    static const char added[] = "additional_tools", found[] = "tool_search_output";
    return memmem(line, len, added, sizeof added - 1) || memmem(line, len, found, sizeof found - 1);
}

int responses_parse_kept(const char *text, size_t len, bool input, struct responses_kept *out, struct api_error *err) {
    struct rod_error damaged;
    const char *end = memchr(text, '\n', len);
    const size_t n = end ? (size_t)(end - text) : len;
    *out = (struct responses_kept){0};
    const bool whole = end && n > 2 && text[0] == '{' && text[n - 1] == '}';
    if (whole && !input) input = brings_tools(end + 1, len - n - 1);
    if (whole && (!input || kept_input(end + 1, len - n - 1, out, err)) && kept_echo(text, n, out, err)) return 0;
    responses_kept_fini(out);
    if (whole && err->http >= 500) return -1; /* out of memory */
    rod_fail(&damaged, ROD_ESTATE, "The texts that are kept of the response are damaged.");
    api_error_from(err, &damaged);
    return -1;
}

void responses_kept_fini(struct responses_kept *k) {
    buf_fini(&k->echo);
    api_tools_fini(&k->tools);
    json_decref(k->input);
    *k = (struct responses_kept){0};
}

/* ---- the items of the input ---- */

enum { ITEM_ID_BYTES = API_SESSION_ID_MAX + 32 };

/* "": a kind that is shown as it was sent. */
static const char *item_type(const json_t *item) {
    static const char *const types[] = {"message", "function_call", "function_call_output", "reasoning"};
    const json_t *type = json_object_get(item, "type");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (field_is(type, types[i])) return types[i];
    return json_is_string(type) ? "" : "message";
}

/* Of its place: what the client sent has no id, or perhaps one that another item has too. */
static void item_id(const char *response, const json_t *item, size_t i, char id[ITEM_ID_BYTES]) {
    const char *type = item_type(item), *at = strchr(response, '_');
    const char *kind = !strcmp(type, "function_call")          ? "fc"
                       : !strcmp(type, "function_call_output") ? "fco"
                       : !strcmp(type, "reasoning")            ? "rs"
                       : *type                                 ? "msg"
                                                               : "item";
    snprintf(id, ITEM_ID_BYTES, "%s_%.*s_in%zu", kind, API_SESSION_ID_MAX, at ? at + 1 : response, i);
}

/* What is no string is "". */
static void put_string(struct buf *out, const json_t *value) {
    buf_json(out, json_is_string(value) ? json_string_value(value) : "", json_string_length(value));
}

static void put_member(struct buf *out, const char *name, const json_t *value) {
    buf_addf(out, ",\"%s\":", name);
    put_string(out, value);
}

static void put_json(struct buf *out, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        buf_puts(out, text);
    else
        out->failed = true;
    free(text);
}

/* A string is one part; a part is a string, an object with a text, or shown as it was sent. */
static void put_parts(struct buf *out, const json_t *content, bool said) {
    const size_t n = json_is_string(content) ? 1 : json_array_size(content);
    buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_is_string(content) ? content : json_array_get(content, i);
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        api_put_comma(out, i);
        if (!json_is_string(text)) {
            put_json(out, part);
            continue;
        }
        buf_puts(out, said ? "{\"type\":\"output_text\"" : "{\"type\":\"input_text\"");
        put_member(out, "text", text);
        buf_puts(out, said ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
    }
    buf_putc(out, ']');
}

static void put_arguments(struct buf *out, const json_t *arguments) {
    struct buf line = {0};
    buf_puts(out, ",\"arguments\":");
    if (json_is_object(arguments)) {
        api_put_line(&line, arguments); /* as the model has read them */
        buf_json(out, line.len ? line.data : "", line.len);
    } else {
        put_string(out, arguments);
    }
    if (line.failed) out->failed = true;
    buf_fini(&line);
}

/* The item that was sent, with the id of its place. */
static void put_other(struct buf *out, const char *id, const json_t *item) {
    json_t *shown = json_copy((json_t *)item);
    if (!shown || json_object_set_new(shown, "id", json_string(id)))
        out->failed = true;
    else
        put_json(out, shown);
    json_decref(shown);
}

static void put_item(struct buf *out, const char *id, const json_t *item) {
    const char *type = item_type(item);
    if (!*type) {
        put_other(out, id, item);
        return;
    }
    buf_addf(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"completed\"", id, type);
    if (!strcmp(type, "message")) {
        const json_t *role = json_object_get(item, "role");
        put_member(out, "role", role);
        buf_puts(out, ",\"content\":");
        put_parts(out, json_object_get(item, "content"), field_is(role, "assistant"));
    } else if (!strcmp(type, "function_call")) {
        put_member(out, "call_id", json_object_get(item, "call_id"));
        put_member(out, "name", json_object_get(item, "name"));
        if (json_string_length(json_object_get(item, "namespace")))
            put_member(out, "namespace", json_object_get(item, "namespace"));
        put_arguments(out, json_object_get(item, "arguments"));
    } else if (!strcmp(type, "function_call_output")) {
        const json_t *output = json_object_get(item, "output");
        put_member(out, "call_id", json_object_get(item, "call_id"));
        buf_puts(out, ",\"output\":");
        if (json_is_array(output))
            put_parts(out, output, false);
        else
            put_string(out, output);
    } else {
        buf_puts(out, ",\"summary\":[]"); /* the model has not read it */
    }
    buf_putc(out, '}');
}

/* How many items stand before the page; SIZE_MAX: `after` names no item. */
static size_t items_before(const char *response, const json_t *input, const struct responses_page *page) {
    const size_t n = json_array_size(input);
    char id[ITEM_ID_BYTES];
    if (!page->after) return 0;
    for (size_t i = 0; i < n; i++) {
        item_id(response, json_array_get(input, i), i, id);
        if (!strcmp(id, page->after)) return page->rising ? i + 1 : n - i;
    }
    return SIZE_MAX;
}

bool responses_render_input_items(struct buf *out, const char *response, const json_t *input,
                                  const struct responses_page *page, struct api_error *err) {
    const size_t n = json_array_size(input), before = items_before(response, input, page);
    assert(page->limit);
    if (before == SIZE_MAX) return api_error_field(err, "after", "is no item of this response's input");
    const size_t some = page->limit < n - before ? page->limit : n - before;
    char id[ITEM_ID_BYTES] = "", first[ITEM_ID_BYTES] = "";
    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t k = 0; k < some; k++) {
        const size_t i = page->rising ? before + k : n - 1 - before - k;
        const json_t *item = json_array_get(input, i);
        item_id(response, item, i, id);
        if (!k) memcpy(first, id, sizeof first);
        api_put_comma(out, k);
        put_item(out, id, item);
    }
    buf_addf(out, "],\"first_id\":\"%s\",\"last_id\":\"%s\",\"has_more\":%s}", first, id, api_bool(before + some < n));
    return true;
}
