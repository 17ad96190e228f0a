/* log.h - one line an event on stderr, as text or as JSON.
 *
 * Lines hold no prompt and no answer text. Control characters of outside values are escaped, so that a request cannot
 * forge a line. Threads: log_line from any thread (a line is one write).
 */
#ifndef LOG_H
#define LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    _Atomic enum log_level level; /* lines below it are dropped; may change while others log */
    bool json;
    int fd;
};

/* A value of a line, made by one of the functions below. */
struct log_field {
    const char *key;
    enum { LOG_WORDS, LOG_NUMBER, LOG_TRUTH } type;
    const char *text;
    double number; /* of LOG_TRUTH: 0 or 1 */
};

static inline struct log_field log_words(const char *key, const char *text) {
    return (struct log_field){key, LOG_WORDS, text, 0};
}

static inline struct log_field log_number(const char *key, double number) {
    return (struct log_field){key, LOG_NUMBER, NULL, number};
}

static inline struct log_field log_truth(const char *key, bool truth) {
    return (struct log_field){key, LOG_TRUTH, NULL, truth};
}

void log_init(struct log *log, const char *level, const char *format, int fd);
enum log_level log_level_of(const char *name); /* LOG_INFO for no level's name */
void log_line(const struct log *log, enum log_level level, const char *message, const struct log_field *fields,
              int n_fields);
void log_text(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
