/* lives_text.h - texts for random lives: a vocabulary for any number of ids, so that any model can be held to a
 * grammar, and the grammars that its requests ask for. Each may go on for long and has an end. */
#ifndef LIVES_TEXT_H
#define LIVES_TEXT_H

#include "engine/core.h"
#include "engine/base/philox.h"
#include "tests/byte_letters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the vocabulary ---- */

static const char text_letters[] = "0123456789abcdeglmnorstu";
static const char text_single[] = "0123456789abcdeglmnorstu{}[]\":,<>/_ \n"; /* those and the pieces of one byte */
static const char *const text_pieces[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          ":",
                                          ",",
                                          "<",
                                          ">",
                                          "/",
                                          "_",
                                          " ",
                                          "\n",
                                          "}}\n",
                                          "l>",
                                          "><",
                                          ">\n",
                                          "\": ",
                                          "{\"name\": \"",
                                          "\"}",
                                          "{\"",
                                          "tool",
                                          "_call>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "1,<"};
enum { TEXT_N_LETTERS = sizeof text_letters - 1, TEXT_N_PIECES = sizeof text_pieces / sizeof *text_pieces };
enum { TEXT_FIRST_PIECE = 2 + TEXT_N_LETTERS, TEXT_TAG = TEXT_FIRST_PIECE + 23 /* "<tool_call>" */ };

/* Two ids that stand for ends, a letter each, pieces of calls, then words: some letters, and their number in letters.
 */
static inline void text_word(uint32_t V, uint32_t id, char *word) {
    const uint32_t n_some = 1 + (uint32_t)(philox_uniform(V, id, 20) * 4);
    size_t n = 0;
    for (uint32_t i = 0; i < n_some; i++)
        word[n++] = text_letters[(uint32_t)(philox_uniform(V, id, 21 + i) * TEXT_N_LETTERS)];
    for (uint32_t i = 0; i < (V < 10000 ? 3 : 4); i++, id /= TEXT_N_LETTERS)
        word[n++] = text_letters[id % TEXT_N_LETTERS];
    word[n] = 0;
}

static inline int text_tokenizer(uint32_t V, struct tokenizer **out, struct rod_error *err) {
    static const char head[] =
        "{\"added_tokens\": [{\"id\": 0, \"content\": \"[begin]\", \"special\": true}, {\"id\": 1, \"content\": "
        "\"[end]\", "
        "\"special\": true}], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
        "true}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {";
    const size_t room = sizeof head + (size_t)(V + 256) * 64;
    char *json = malloc(room), word[16];
    if (!json) return rod_fail_no_memory(err);
    size_t n = sizeof head - 1;
    memcpy(json, head, n);
    for (uint32_t id = 2; id < V; id++) {
        const char *bytes = word;
        if (id < TEXT_FIRST_PIECE)
            word[0] = text_letters[id - 2], word[1] = 0;
        else if (id < TEXT_FIRST_PIECE + TEXT_N_PIECES)
            bytes = text_pieces[id - TEXT_FIRST_PIECE];
        else
            text_word(V, id, word);
        n += (size_t)snprintf(json + n, room - n, "%s\"", id > 2 ? "," : "");
        n += put_byte_letters(json + n, bytes, strlen(bytes));
        n += (size_t)snprintf(json + n, room - n, "\":%u", id);
    }
    for (uint32_t byte = 0, id = V; byte < 256;
         byte++) { /* a tokenizer has all bytes: the others where no id is drawn */
        if (byte && strchr(text_single, (int)byte)) continue;
        n += (size_t)snprintf(json + n, room - n, ",\"");
        n += put_byte_letters(json + n, (const char[]){(char)byte}, 1);
        n += (size_t)snprintf(json + n, room - n, "\":%u", id++);
    }
    n += (size_t)snprintf(json + n, room - n, "}}}");
    const int rc = tokenizer_parse(json, n, NULL, 0, out, err);
    free(json);
    return rc;
}

/* ---- the grammars ---- */

struct text_form {
    enum rod_grammar_kind kind;
    const char *text, *open; /* open: behind that tag, each time it comes; NULL: from the start */
};
#define TEXT_TOOLS                                                                                                     \
    "\"many\":true,\"open\":\"<tool_call>\",\"close\":\"</tool_call>\",\"tools\":[{\"name\":\"get\",\"parameters\":{"  \
    "\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},"                \
    "\"required\":[\"n\"]}},{\"name\":\"set\"}]}"
static const struct text_form text_forms[] = {
    {ROD_GRAMMAR_REGEX, "[a-e0-9 ]{5,200}[0-9]+", NULL},
    {ROD_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":"
     "40},"
     "\"n\":{\"type\":\"integer\"}},\"required\":[\"name\"],\"additionalProperties\":false}}",
     NULL},
    {ROD_GRAMMAR_CALLS, "{" TEXT_TOOLS, NULL},
    {ROD_GRAMMAR_REGEX, "[^x]*", NULL},
    {ROD_GRAMMAR_CALLS, "{\"lazy\":true," TEXT_TOOLS, "<tool_call>"},
    {ROD_GRAMMAR_REGEX, "[0-9]{2,5}[a-e]{1,3},", ">"}};
enum { TEXT_N_FORMS = sizeof text_forms / sizeof *text_forms };

static inline int text_open_forms(const struct rod_engine *engine, struct rod_grammar *form[TEXT_N_FORMS],
                                  struct rod_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < TEXT_N_FORMS; i++)
        rc = rod_grammar_open(engine, 0, 0, text_forms[i].kind, text_forms[i].text, strlen(text_forms[i].text),
                              &form[i], err);
    return rc;
}

/* How many of the tokens the grammar allows, one after the other; n: all. Only while the engine has none of its. */
static inline size_t text_allowed(const struct rod_engine *engine, const struct rod_grammar *form, const int32_t *ids,
                                  size_t n) {
    struct grammar_gate gate;
    struct rod_error err;
    size_t k = 0;
    grammar_gate_init(&gate, grammar_of(form), NULL, false);
    for (; k < n; k++) {
        size_t len = 0;
        bool special = false;
        const char *bytes = tokenizer_bytes(engine->parts.tokenizer, ids[k], &len, &special);
        if (!bytes || special || !len || grammar_gate_push(&gate, bytes, len, &err)) break;
    }
    grammar_gate_fini(&gate);
    return k;
}

#endif
