/* traceparent.c - see traceparent.h. */
#include "traceparent.h"

#include <stdio.h>
#include <string.h>

#define BLANKS " \t"

/* Whether text is digits, not all of them 0. */
static bool is_id(const char *text, size_t n) { return strlen(text) == n && strspn(text, "0") < n; }

bool traceparent_read(const char *header, char trace_id[TRACE_ID_BYTES]) {
    char version[3] = "", parent[17] = "", flags[3] = "";
    int n = 0;
    trace_id[0] = 0;
    if (header)
        sscanf(header + strspn(header, BLANKS), "%2[0-9a-f]-%32[0-9a-f]-%16[0-9a-f]-%2[0-9a-f]%n", version, trace_id,
               parent, flags, &n);
    const char *rest = n ? header + strspn(header, BLANKS) + n : "?";
    const bool ends = !rest[strspn(rest, BLANKS)], goes_on = *rest == '-' && strcmp(version, "00") != 0;
    const bool good = strlen(version) == 2 && strcmp(version, "ff") != 0 && is_id(trace_id, TRACE_ID_BYTES - 1) &&
                      is_id(parent, 16) && strlen(flags) == 2 && (ends || goes_on);
    if (!good) trace_id[0] = 0;
    return good;
}
