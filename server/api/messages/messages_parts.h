/* messages_parts.h - the parts of a message's body, for messages_*.c alone: blocks become messages, tools and marks of
 * the cache. Each function is false with an error that names the place as Anthropic does.
 */
#ifndef MESSAGES_PARTS_H
#define MESSAGES_PARTS_H

#include "messages.h"
#include "server/api/api_fields.h"

#include <stdio.h>

struct messages_place { /* of a block: "messages[1].content[0]" */
    const struct api_fields *fields;
    char name[80];
};
static inline struct messages_place messages_place(const struct api_fields *p, const char *array, size_t i) {
    struct messages_place at = {p, ""};
    snprintf(at.name, sizeof at.name, "%.56s[%zu]", array, i);
    return at;
}

static inline bool messages_bad(const struct messages_place *at, const char *what) {
    return field_bad(at->fields, at->name, "%s", what);
}

/* The mark of the cache that a block or a tool has, if it has one. */
static inline bool messages_mark(const struct messages_place *at, const json_t *block, struct api_cache_mark mark,
                                 struct api_cache *out) {
    char field[sizeof at->name + 2];
    snprintf(field, sizeof field, "%s.", at->name);
    return api_take_mark(at->fields, field, block, mark, out);
}

bool messages_mark_tools(const struct api_fields *p, struct api_cache *out); /* the first marks: tools stand first */
/* The tools, with their choice. */
bool messages_take_tools(const struct api_fields *p, struct api_request *out);
/* What the model reads of a tool that a search has found: its definition, or its name if that stands in the head. */
void messages_put_found(const struct api_fields *p, const json_t *name, struct buf *out);
/* The system's text and the messages. */
bool messages_take_blocks(const struct api_fields *p, struct api_request *out);

#endif
