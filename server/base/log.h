/* log.h - one line an event on stderr, as text or as JSON.
 *
 * Lines hold no prompt and no answer text. Characters that are invisible, or that change how other text is shown, are
 * escaped in messages and values, so a request can neither forge a line nor hide in one. Nobody has to read the log: a
 * line that a full pipe does not take is dropped and counted, and the next line that goes out follows one that says how
 * many were dropped. To a pipe goes at most a page: longer values are cut. Ownership: the descriptor is the caller's.
 * Threads: log_line from any thread (a line is one write); init and fini before and after all others.
 */
#ifndef LOG_H
#define LOG_H

#include "nonblocking_writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    _Atomic enum log_level level; /* lines below it are dropped; may change while others log */
    bool json;
    _Atomic uint64_t n_dropped; /* lines, since the start */
    pthread_mutex_t lock;       /* over what follows */
    struct nonblocking_writer out;
    uint64_t n_unreported; /* dropped lines that no line has counted yet */
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
void log_fini(struct log *log);
enum log_level log_level_of(const char *name); /* LOG_INFO for no level's name */
void log_line(struct log *log, enum log_level level, const char *message, const struct log_field *fields, int n_fields);
void log_text(struct log *log, enum log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* What ends the start: in a JSON log a line of level error, else "program: message" and a line with hint ("" = none).
 */
void log_failure(struct log *log, const char *program, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
