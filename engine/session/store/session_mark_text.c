/* session_mark_text.c - see session_mark_text.h. */
#include "session_mark_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK_BEGIN "rodimus lazy 1 "
enum { VERSION_DIGITS = 16 };
static_assert(SESSION_MARK_BYTES == sizeof MARK_BEGIN - 1 + SESSION_SERVER_DIGITS + 1 + VERSION_DIGITS + 1,
              "as written");

void session_mark_write(const char *server_id, uint64_t version, char text[SESSION_MARK_BYTES + 1]) {
    const int n = snprintf(text, SESSION_MARK_BYTES + 1, MARK_BEGIN "%.*s %016" PRIx64 "\n", SESSION_SERVER_DIGITS,
                           server_id, version);
    assert(n == SESSION_MARK_BYTES);
    (void)n;
}

void session_mark_parse(const char *server_id, const char *text, size_t n, struct session_mark *mark) {
    char again[SESSION_MARK_BYTES + 1];
    *mark = (struct session_mark){.there = true};
    if (n != SESSION_MARK_BYTES || strncmp(text, MARK_BEGIN, sizeof MARK_BEGIN - 1) != 0) return;
    const char *server = text + sizeof MARK_BEGIN - 1, *digits = server + SESSION_SERVER_DIGITS + 1;
    if (strspn(digits, "0123456789abcdef") != VERSION_DIGITS || memchr(server, 0, SESSION_SERVER_DIGITS)) return;
    const uint64_t version = strtoull(digits, NULL, 16);
    session_mark_write(server, version, again);
    if (memcmp(again, text, SESSION_MARK_BYTES) != 0) return;
    mark->version = version;
    mark->ours = !memcmp(server, server_id, SESSION_SERVER_DIGITS);
}
