/* traceparent.c - see traceparent.h. */
#include "traceparent.h"

#include <stddef.h>
#include <string.h>

enum { VERSION = 2, TRACE = 32, PARENT = 16, FLAGS = 2, LENGTH = VERSION + 1 + TRACE + 1 + PARENT + 1 + FLAGS };

/* n digits from *at on, not all of them 0 unless that is allowed; *at then is behind them. */
static bool skip_digits(const char **at, size_t n, bool zero) {
    const char *digits = *at;
    if (strspn(digits, "0123456789abcdef") < n) return false;
    *at += n;
    return zero || strspn(digits, "0") < n;
}

static bool skip_dash(const char **at) { return *(*at)++ == '-'; }

static bool is_traceparent(const char *text, size_t n) {
    const char *at = text;
    if (n < LENGTH || !strncmp(text, "ff", VERSION)) return false;
    if (!skip_digits(&at, VERSION, true) || !skip_dash(&at) || !skip_digits(&at, TRACE, false) || !skip_dash(&at) ||
        !skip_digits(&at, PARENT, false) || !skip_dash(&at) || !skip_digits(&at, FLAGS, true))
        return false;
    return n == LENGTH || (strncmp(text, "00", VERSION) != 0 && *at == '-');
}

bool traceparent_read(const char *header, char trace_id[TRACE_ID_BYTES]) {
    static const char blanks[] = " \t";
    trace_id[0] = 0;
    if (!header) return false;
    header += strspn(header, blanks);
    size_t n = strlen(header);
    while (n && strchr(blanks, header[n - 1])) n--;
    if (!is_traceparent(header, n)) return false;
    memcpy(trace_id, header + VERSION + 1, TRACE);
    trace_id[TRACE] = 0;
    return true;
}
