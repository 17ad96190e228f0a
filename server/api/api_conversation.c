/* api_conversation.c - see api_conversation.h. */
#include "api_conversation.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

/* Of Claude Code, its agents apart; Codex, whose session-id is that of all threads of a session; Amp; vibe. */
static const struct {
    const char *name, *part;
} headers[] = {{"X-Claude-Code-Session-Id", "X-Claude-Code-Agent-Id"},
               {"Thread-Id", NULL},
               {"X-Amp-Thread-Id", NULL},
               {"X-Affinity", NULL}};

bool api_conversation_is(const char *name, size_t len) {
    if (!len || len > API_CONVERSATION_MAX || utf8_check(name, len) != len) return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f) return false;
    return true;
}

static void take_name(const char *name, const char *part, char out[API_CONVERSATION_MAX + 1]) {
    char whole[API_CONVERSATION_MAX + 2]; /* one more than a name has, so that what is too long is seen */
    snprintf(whole, sizeof whole, "%s%s%s", name, part ? ":" : "", part ? part : "");
    const bool parts = api_conversation_is(name, strlen(name)) && (!part || api_conversation_is(part, strlen(part)));
    const bool is = parts && api_conversation_is(whole, strlen(whole));
    memcpy(out, is ? whole : "", is ? strlen(whole) + 1 : 1);
}

const char *api_conversation_name(api_header_of *header, const void *from, const char *session_header,
                                  char out[API_CONVERSATION_MAX + 1]) {
    *out = 0;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        const char *name = header(from, headers[i].name);
        if (!name) continue;
        take_name(name, headers[i].part ? header(from, headers[i].part) : NULL, out);
        return headers[i].name;
    }
    const char *name = header(from, session_header);
    if (name) take_name(name, NULL, out);
    return name ? session_header : NULL;
}
