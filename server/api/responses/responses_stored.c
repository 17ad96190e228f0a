/* responses_stored.c - the parts of a body that stored responses have: item_reference items of the input, and the calls
 * that its outputs answer; see responses_parts.h.
 *
 * The id of an item has the number of its response: msg_0f..., fc_0f..._1, msg_0f..._in2 of resp_0f... */
#include "responses_parts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Of one body: each response is a look into a file, and a short reference may stand for a long item. */
#define MAX_LOOKS 2048
#define MAX_BYTES ((size_t)32 << 20)

struct looks { /* of a body, so far; consecutive items are often one response's */
    const struct api_fields *fields;
    char response[API_SESSION_ID_MAX + 1];
    bool input;
    json_t *items;
    size_t n, n_bytes;
};

static bool wait_elsewhere(const struct api_fields *p) {
    struct api_stored *stored = p->defaults->stored;
    stored->waits = !stored->may_wait;
    *p->err = (struct api_error){0};
    return stored->waits;
}

/* {"type": "item_reference", "id"}, whose type may be left out. */
static bool is_reference(const json_t *item) {
    const json_t *type = json_object_get(item, "type");
    if (type && !json_is_null(type)) return field_is(type, "item_reference");
    return json_is_string(json_object_get(item, "id")) && !json_object_get(item, "role") &&
           !json_object_get(item, "content");
}

/* ---- an item by its id ---- */

/* OpenAI's words. */
static bool unknown_item(const struct api_fields *p, const char *id) {
    api_error_set(
        p->err, 404, API_INVALID, "", "input",
        "Item with id '%.128s' not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input.",
        id);
    return false;
}

/* The response of an item's id, and whether the item is of its input. False: no response has such an item. */
static bool response_of(const char *id, char response[API_SESSION_ID_MAX + 1], bool *input) {
    const char *number = strchr(id, '_');
    if (!number) return false;
    const size_t n = strcspn(number + 1, "_");
    const int len = snprintf(response, API_SESSION_ID_MAX + 1, "resp_%.*s", (int)n, number + 1);
    *input = !strncmp(number + 1 + n, "_in", 3);
    return n && n <= API_SESSION_ID_MAX && len <= API_SESSION_ID_MAX && api_session_id(response);
}

/* Its items are there, or the error says why. */
static bool look(struct looks *l, const char *response, bool input) {
    const struct api_stored *stored = l->fields->defaults->stored;
    if (l->items && input == l->input && !strcmp(response, l->response)) return true;
    json_decref(l->items);
    l->items = NULL;
    if (l->n++ == MAX_LOOKS) return field_bad(l->fields, "input", "names items of more than %d responses", MAX_LOOKS);
    l->items = stored->items(stored->arg, stored->tenant, response, input, l->fields->err);
    l->input = input;
    snprintf(l->response, sizeof l->response, "%s", response);
    return l->items != NULL;
}

static bool take_reference(struct looks *l, json_t *array, size_t i, const char *id) {
    const struct api_fields *p = l->fields;
    char response[API_SESSION_ID_MAX + 1];
    bool input;
    json_t *item;
    size_t k;
    if (!response_of(id, response, &input)) return unknown_item(p, id);
    if (!look(l, response, input)) return p->err->http == 404 ? unknown_item(p, id) : false;
    json_array_foreach(l->items, k, item) {
        if (!field_is(json_object_get(item, "id"), id)) continue;
        l->n_bytes += json_dumpb(item, NULL, 0, 0);
        if (l->n_bytes > MAX_BYTES) return field_bad(p, "input", "names items of more than %zu bytes", MAX_BYTES);
        return !json_array_set(array, i, item) || field_no_memory(p);
    }
    return unknown_item(p, id);
}

static bool resolve_one(struct looks *l, json_t *array, size_t i) {
    const json_t *id = json_object_get(json_array_get(array, i), "id");
    char param[48];
    snprintf(param, sizeof param, "input[%zu].id", i);
    if (!json_string_length(id) || field_has_nul(id))
        return field_bad(l->fields, param, "must be the id of an item: a string that is not empty, without a NUL");
    if (!l->fields->defaults->stored) return unknown_item(l->fields, json_string_value(id));
    return !wait_elsewhere(l->fields) && take_reference(l, array, i, json_string_value(id));
}

bool responses_resolve(const struct api_fields *p) {
    json_t *input = (json_t *)field_get(p, "input"); /* the body is this parser's */
    struct looks looks = {.fields = p};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(input); i++)
        if (is_reference(json_array_get(input, i))) ok = resolve_one(&looks, input, i);
    json_decref(looks.items);
    return ok;
}

/* ---- the calls of the response that a turn goes on from ---- */

static bool is_output(const json_t *item) {
    const char *type = json_string_value(json_object_get(item, "type"));
    return type && (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output") ||
                    !strcmp(type, "tool_search_output"));
}

bool responses_take_before(const struct api_fields *p, json_t **out) {
    const json_t *input = field_get(p, "input"), *from = field_get(p, "previous_response_id"), *item;
    const struct api_stored *stored = p->defaults->stored;
    struct api_error unknown;
    size_t i, n = 0;
    *out = NULL;
    json_array_foreach(input, i, item) n += is_output(item);
    if (n < 2 || !from || !stored) return true; /* one output needs no order */
    if (wait_elsewhere(p)) return false;
    *out = stored->items(stored->arg, stored->tenant, json_string_value(from), false, &unknown);
    return true;
}
