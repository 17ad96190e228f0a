/* fuzz_load_http.c - any answer of any server: the load generator's parsers take it in two pieces and keep within their
 * limits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/commands/load/load_http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_event(void *arg, const char *data, size_t n) {
    struct load_chunk chunk;
    (void)arg;
    if (data[n] != '\0') abort();
    if (load_chunk_parse(data, n, &chunk) == 0 && strlen(chunk.message) >= sizeof chunk.message) abort();
}

static void on_body(void *arg, const char *bytes, size_t n) { load_sse_feed(arg, bytes, n, on_event, NULL); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct load_http *http = malloc(sizeof *http);
    struct load_sse sse;
    if (http == NULL) return 0;
    load_http_init(http);
    load_sse_init(&sse);
    size_t cut = size > 0 ? data[0] % (size + 1) : 0, used = 0;
    if (load_http_feed(http, (const char *)data, cut, &used, on_body, &sse) == 0 && used == cut)
        load_http_feed(http, (const char *)data + cut, size - cut, &used, on_body, &sse);
    load_http_eof(http);
    load_sse_fini(&sse);
    free(http);
    return 0;
}
