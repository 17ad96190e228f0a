/* api_cache.c - cache_control of a chat: where the client asks the prefix cache to keep the state, and how long. It
 * stands at the body's top (the end of all messages), in a tool, a message or a part of its content. */
#include "api_fields.h"

#include <stdio.h>
#include <string.h>

enum { SHORT_TTL_S = 5 * 60, LONG_TTL_S = 60 * 60 };

/* The mark of an object, if it has one. field: the object's name with a dot, "" = the body. */
bool api_take_mark(const struct api_fields *p, const char *field, const json_t *object, struct api_cache_mark mark,
                   struct api_cache *out) {
    const json_t *given = json_object_get(object, "cache_control"), *ttl = json_object_get(given, "ttl");
    char param[64];
    if (!given || json_is_null(given)) return true;
    snprintf(param, sizeof param, "%.48scache_control", field);
    const bool lasts = field_is(ttl, "1h"), known_ttl = lasts || !ttl || json_is_null(ttl) || field_is(ttl, "5m");
    if (!field_is(json_object_get(given, "type"), "ephemeral") || !known_ttl)
        return field_bad(p, param, "must be of type ephemeral, with the ttl 5m or 1h");
    if (out->n == API_MAX_CACHE_MARKS) /* of which one it is, the names of Anthropic's API differ */
        return field_bad(p, "cache_control", "stands in more than %d places", API_MAX_CACHE_MARKS);
    mark.ttl_s = lasts ? LONG_TTL_S : SHORT_TTL_S;
    out->marks[out->n++] = mark;
    return true;
}

/* The parts of a content are joined by a line break. */
static bool take_parts(const struct api_fields *p, size_t i, const json_t *content, struct api_cache *out) {
    struct api_cache_mark mark = {.message = i};
    const json_t *part;
    size_t k;
    json_array_foreach(content, k, part) {
        char field[64];
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        mark.len += json_string_length(text) + (k > 0);
        snprintf(field, sizeof field, "messages[%zu].content[%zu].", i, k);
        if (!api_take_mark(p, field, part, mark, out)) return false;
    }
    return true;
}

/* Results of tools were put into another order than the body's: the place is behind all that stand beside each other.
 */
static void move_behind_results(const struct api_request *request, struct api_cache *cache) {
    for (uint32_t i = 0; i < cache->n; i++) {
        struct api_cache_mark *mark = &cache->marks[i];
        if (mark->n_tools || strcmp(request->messages[mark->message].role, "tool") != 0) continue;
        while (mark->message + 1 < request->n_messages && !strcmp(request->messages[mark->message + 1].role, "tool"))
            mark->message++;
        mark->len = request->messages[mark->message].content_len;
    }
}

bool api_end_marks(const struct api_fields *p, const struct api_request *request, struct api_cache *out) {
    const size_t last = request->n_messages - 1;
    const struct api_cache_mark end = {.message = last, .len = request->messages[last].content_len};
    if (!api_take_mark(p, "", p->root, end, out)) return false;
    move_behind_results(request, out);
    return true;
}

bool api_parse_cache(const struct api_fields *p, const struct api_request *request, struct api_cache *out) {
    const json_t *messages = field_get(p, "messages"), *tools = field_get(p, "tools"), *one;
    char field[64];
    size_t i;
    json_array_foreach(tools, i, one) {
        snprintf(field, sizeof field, "tools[%zu].", i);
        if (!api_take_mark(p, field, one, (struct api_cache_mark){.n_tools = i + 1}, out)) return false;
    }
    json_array_foreach(messages, i, one) {
        struct api_cache_mark mark = {.message = i, .len = request->messages[i].content_len};
        snprintf(field, sizeof field, "messages[%zu].", i);
        if (!take_parts(p, i, json_object_get(one, "content"), out) || !api_take_mark(p, field, one, mark, out))
            return false;
    }
    return api_end_marks(p, request, out);
}
