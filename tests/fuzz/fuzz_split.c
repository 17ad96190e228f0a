/* fuzz_split.c - what a model says, cut into content and calls: the same parts wherever the text is cut on its way;
 * nothing is lost and nothing is made up. The first byte chooses the cuts. */
#include "server/api/api_tools.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The parts as one text, where a call's name stands between two bytes that are rare. */
static void take(struct buf *out, const struct api_part *part) {
    if (part->kind == API_PART_CALL) {
        if (strcmp(part->name, "f") != 0 && strcmp(part->name, "get_weather") != 0) abort();
        buf_putc(out, '\1');
        buf_puts(out, part->name);
        buf_putc(out, '\2');
        return;
    }
    if (!part->len) abort();
    buf_add(out, part->text, part->len);
}

static void split(const struct api_tools *tools, const char *text, size_t len, size_t step, bool ends,
                  struct buf *out) {
    struct api_split s = {.tools = tools, .tags = {"<tool_call>", "</tool_call>"}};
    struct api_part part;
    size_t n = 0;
    for (size_t at = 0; at < len; at += n) {
        n = len - at < step ? len - at : step;
        api_split_push(&s, text + at, n);
        while (api_split_next(&s, &part)) take(out, &part);
        if (s.held.len > 600 + step) abort(); /* only what may begin a call is held back */
    }
    if (api_split_end(&s, !ends, &part)) take(out, &part);
    if (s.held.failed) abort();
    api_split_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *names[] = {(char *)"f", (char *)"get_weather", (char *)"hidden"};
    bool allowed[] = {true, true, false};
    const struct api_tools tools = {.names = names, .allowed = allowed, .n = 3};
    const struct api_tools none = {0};
    struct buf whole = {0}, cut = {0}, plain = {0};
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    split(&tools, text, size - 1, size, false, &whole);
    split(&tools, text, size - 1, 1 + data[0] % 16, false, &cut);
    if (whole.len != cut.len || (whole.len && memcmp(whole.data, cut.data, whole.len) != 0)) abort();
    if (whole.len > size - 1) abort();
    split(&none, text, size - 1, 1 + data[0] % 16, true, &plain);
    if (plain.len != size - 1 || (plain.len && memcmp(plain.data, text, plain.len) != 0)) abort();
    buf_fini(&whole);
    buf_fini(&cut);
    buf_fini(&plain);
    return 0;
}
