/* vocabulary_tokenizer.h - a tokenizer of the vocabulary of vocabulary.h, for engines of synthetic models. */
#ifndef VOCABULARY_TOKENIZER_H
#define VOCABULARY_TOKENIZER_H

#include "engine/text/tokenizer.h"
#include "tests/bench/vocabulary.h"
#include "tests/byte_letters.h"

#include <stdio.h>

static int make_tokenizer(struct tokenizer **out, struct rod_error *err) {
    static const char head[] =
        "{\"added_tokens\": [], \"normalizer\": null, \"post_processor\": null, \"pre_tokenizer\": "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": "
        "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {";
    struct token *tokens = make_vocabulary();
    const size_t room = sizeof head + VOCABULARY * (size_t)(2 * sizeof tokens->bytes + 24);
    char *json = malloc(room);
    if (!json) exit(1);
    size_t n = sizeof head - 1;
    memcpy(json, head, n);
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        if (i) json[n++] = ',';
        json[n++] = '"';
        n += put_byte_letters(json + n, tokens[i].bytes, tokens[i].len);
        n += (size_t)snprintf(json + n, room - n, "\":%u", i);
    }
    n += (size_t)snprintf(json + n, room - n, "}}}");
    const int rc = tokenizer_parse(json, n, NULL, 0, out, err);
    free(json);
    free(tokens);
    return rc;
}

#endif
