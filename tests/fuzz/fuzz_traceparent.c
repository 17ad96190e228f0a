/* fuzz_traceparent.c - the header of a trace: what is taken is what the standard's grammar takes, written here in
 * another way; the id is part of the header. */
#include "server/base/traceparent.h"

#include <regex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { GRAMMAR, SHORTEST, NEVER, N_PATTERNS };

static bool matches(int which, const char *text) {
    static const char *const patterns[N_PATTERNS] = {
        "^[ \t]*(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}|"
        "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}-.*)[ \t]*$",
        "^[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}[ \t]*$",
        "^[ \t]*(ff|00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}-|..-0{32}|..-.{32}-0{16})",
    };
    static regex_t compiled[N_PATTERNS];
    static bool ready[N_PATTERNS];
    if (!ready[which] && regcomp(&compiled[which], patterns[which], REG_EXTENDED | REG_NOSUB)) abort();
    ready[which] = true;
    return !regexec(&compiled[which], text, 0, NULL, 0);
}

static bool is_traceparent(const char *text) {
    return (matches(GRAMMAR, text) || matches(SHORTEST, text)) && !matches(NEVER, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), id[TRACE_ID_BYTES];
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = 0;
    memset(id, 'x', sizeof id);
    const bool taken = traceparent_read(text, id);
    if (taken != is_traceparent(text)) abort();
    if (taken ? strlen(id) != TRACE_ID_BYTES - 1 || !strstr(text, id) : id[0]) abort();
    free(text);
    return 0;
}
