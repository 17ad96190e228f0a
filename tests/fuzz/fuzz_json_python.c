/* fuzz_json_python.c - a stranger's text as JSON of a checkpoint: what jansson alone reads is read to the same value,
 * and a text for readers is UTF-8 without NUL. */
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"
#include "engine/base/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_texts(json_t *value) {
    json_t *one;
    size_t i;
    const char *text = json_python_text(value);
    if (text && (strlen(text) != json_string_length(value) || utf8_check(text, strlen(text)) != strlen(text))) abort();
    json_array_foreach(value, i, one) check_texts(one);
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at))
        check_texts(json_object_iter_value(at));
}

/* A message of these bytes, cut anywhere. */
static void check_mend(const uint8_t *data, size_t size) {
    char text[256], kept[256];
    const size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = 0;
    const size_t before = strlen(text), whole = utf8_check(text, before);
    memcpy(kept, text, before + 1);
    utf8_mend(text, before + 1 + (size ? data[0] % (sizeof text - before) : 0));
    const size_t after = strlen(text);
    if (utf8_check(text, after) != after || after >= sizeof text || memcmp(text, kept, whole) != 0) abort();
    if (whole == before && after != before) abort();
    if (utf8_complete(text, after) != after) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    json_error_t fault;
    json_t *python = json_python_load(text, size, JSON_DECODE_ANY, &fault);
    if (!python && (fault.position < 0 || (size_t)fault.position > size)) abort();
    json_t *plain = json_guard_load(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &fault);
    if (plain && python && !json_equal(plain, python)) abort();
    if (plain && !python && !memchr(text, 0, size)) abort();
    if (python) check_texts(python);
    json_decref(plain);
    json_decref(python);
    check_mend(data, size);
    return 0;
}
