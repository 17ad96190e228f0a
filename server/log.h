/* log.h - one line an event on stderr, as text or as JSON.
 *
 * Lines hold no prompt and no answer text. Control characters of outside values are escaped, so that a request cannot
 * forge a line. Threads: log_line from any thread (a line is one write).
 */
#ifndef LOG_H
#define LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    _Atomic enum log_level level; /* lines below it are dropped; may change while others log */
    bool json;
    int fd;
};

/* A value of a line: text, or a number when text is NULL. */
struct log_field {
    const char *key;
    const char *text;
    double number;
};

void log_init(struct log *log, const char *level, const char *format, int fd);
enum log_level log_level_of(const char *name); /* LOG_INFO for no level's name */
void log_line(const struct log *log, enum log_level level, const char *message, const struct log_field *fields,
              int n_fields);
void log_text(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
