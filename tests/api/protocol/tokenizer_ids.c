/* tokenizer_ids.c - what a tokenizer.json makes of texts, for the comparison with the reference implementation. A line
 * of JSON in, {"tokenizer", "texts"}; a line out: {"fault"} or {"ids": [[...] of each text]}. */
#include "engine/text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *ids_of(const struct tokenizer *t, const json_t *text) {
    struct rod_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids, &n, &err))
        return json_string(err.message);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return list;
}

static json_t *answer(const json_t *asked) {
    char *text = json_dumps(json_object_get(asked, "tokenizer"), JSON_COMPACT);
    struct rod_error err = {0};
    struct tokenizer *t = NULL;
    json_t *list = json_array(), *one;
    size_t i;
    if (!text || !list) abort();
    const int rc = tokenizer_parse(text, strlen(text), NULL, 0, &t, &err);
    free(text);
    if (rc) {
        json_decref(list);
        return json_pack("{s:s}", "fault", err.message);
    }
    json_array_foreach(json_object_get(asked, "texts"), i, one) json_array_append_new(list, ids_of(t, one));
    tokenizer_close(t);
    return json_pack("{s:o}", "ids", list);
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        json_t *asked = json_loads(line, JSON_ALLOW_NUL, NULL), *out = asked ? answer(asked) : NULL;
        char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;
        if (!text) abort();
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(asked);
    }
    free(line);
}
