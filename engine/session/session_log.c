/* session_log.c - see session_internal.h. */
#include "session_internal.h"

#include <stdarg.h>
#include <stdio.h>

void session_log(const struct sessions *s, int level, const char *format, ...) {
    if (!s->config.log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    s->config.log(s->config.arg, level, line);
}

void session_log_trouble(struct sessions *s, enum session_trouble trouble, const char *format, ...) {
    uint64_t n_left_out = 0;
    assert(trouble < SESSION_N_TROUBLES);
    session_lock(s);
    /* the last words before the end are always logged */
    const bool due = s->closing || log_limit_due(&s->limits[trouble], clock_now_ns(), &n_left_out);
    session_unlock(s);
    if (!due) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const int level = trouble == SESSION_REFUSED || trouble == SESSION_REPLACED ? 2 : 3;
    if (n_left_out)
        session_log(s, level, "%s (and %llu times like this since it was last logged)", line,
                    (unsigned long long)n_left_out);
    else
        session_log(s, level, "%s", line);
}
