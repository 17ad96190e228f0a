/* schema_reads.c - whether the grammar of a schema accepts texts, for tests of many schemas. A line of JSON in,
 * {"schema", "texts"} or {"arguments" of a tool, "texts"}; a line out: {"fault"} or {"notes", "reads": [whether each
 * text matches]}. */
#include "engine/grammar/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reads(struct grammar *g, const char *before, const char *text, const char *behind) {
    struct grammar_walk w;
    struct rod_error err;
    grammar_walk_init(&w, g);
    const bool out = !grammar_walk_push(&w, before, strlen(before), &err) &&
                     !grammar_walk_push(&w, text, strlen(text), &err) &&
                     !grammar_walk_push(&w, behind, strlen(behind), &err) && grammar_walk_accepts(&w);
    grammar_walk_fini(&w);
    return out;
}

static json_t *answer(const json_t *asked) {
    const json_t *schema = json_object_get(asked, "schema"), *arguments = json_object_get(asked, "arguments"), *one;
    json_t *calls = schema ? NULL
                           : json_pack("{s:s, s:s, s:[{s:s, s:O}]}", "open", "<c>", "close", "</c>", "tools", "name",
                                       "f", "parameters", arguments);
    char *text = json_dumps(schema ? schema : calls, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *before = schema ? "" : "<c>\n{\"name\": \"f\", \"arguments\": ", *behind = schema ? "" : "}\n</c>";
    struct rod_error err = {0};
    struct grammar *g = NULL;
    json_t *list = json_array();
    size_t i;
    if (!text || !list) abort();
    const int rc = grammar_compile(schema ? ROD_GRAMMAR_JSON_SCHEMA : ROD_GRAMMAR_CALLS, text, strlen(text), &g, &err);
    free(text);
    json_decref(calls);
    if (rc) {
        json_decref(list);
        return json_pack("{s:s}", "fault", err.message);
    }
    json_array_foreach(json_object_get(asked, "texts"), i, one)
        json_array_append_new(list, json_boolean(reads(g, before, json_string_value(one), behind)));
    json_t *out = json_pack("{s:s, s:o}", "notes", grammar_notes(g), "reads", list);
    grammar_free(g);
    return out;
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
