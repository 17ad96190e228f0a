/* log.c - see log.h. */
#include "log.h"

#include "buf.h"
#include "engine/base/clock.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Of a value in a line that would be too long for a pipe: escaped it is up to six times as long, and few are from
 * outside. */
#define CUT_BYTES 200

static const char *const level_names[] = {"debug", "info", "warn", "error"};

enum log_level log_level_of(const char *name) {
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (!strcmp(name, level_names[i])) return (enum log_level)i;
    }
    return LOG_INFO;
}

void log_init(struct log *log, const char *level, const char *format, int fd) {
    *log = (struct log){.level = log_level_of(level), .json = !strcmp(format, "json")};
    pthread_mutex_init(&log->lock, NULL);
    nonblocking_writer_open(&log->out, fd);
}

void log_fini(struct log *log) {
    nonblocking_writer_close(&log->out);
    pthread_mutex_destroy(&log->lock);
}

static void line_add_time(struct buf *b) {
    const uint64_t now_ns = clock_unix_ns();
    const time_t now_s = (time_t)(now_ns / 1000000000u);
    struct tm utc;
    gmtime_r(&now_s, &utc);
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    buf_addf(b, "%s.%03dZ", text, (int)(now_ns / 1000000 % 1000));
}

/* Text values are quoted only where they would not read as one word. */
static void line_add_text(struct buf *b, const char *text, size_t len) {
    bool plain = len != 0;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
    }
    if (plain) {
        buf_add(b, text, len);
    } else {
        buf_json_any(b, text, len);
    }
}

/* A text that is cut ends with a whole character. */
static size_t shown_bytes(const char *text, size_t max_bytes) {
    const size_t n = strnlen(text, max_bytes);
    return n == max_bytes ? utf8_complete(text, n) : n;
}

static void line_add_fields(struct buf *b, bool json, const struct log_field *fields, int n_fields, size_t max_bytes) {
    for (int i = 0; i < n_fields; i++) {
        const struct log_field *f = &fields[i];
        buf_addf(b, json ? ",\"%s\":" : " %s=", f->key);
        if (f->type == LOG_TRUTH) {
            buf_puts(b, f->number != 0 ? "true" : "false");
        } else if (f->type == LOG_NUMBER) {
            buf_addf(b, "%.15g", f->number);
        } else if (json) {
            buf_json_any(b, f->text, shown_bytes(f->text, max_bytes));
        } else {
            line_add_text(b, f->text, shown_bytes(f->text, max_bytes));
        }
    }
}

struct line {
    enum log_level level;
    const char *message;
    const struct log_field *fields;
    int n_fields;
};

static void line_render(struct buf *b, bool json, const struct line *line, size_t max_bytes) {
    buf_clear(b);
    const size_t n = shown_bytes(line->message, max_bytes);
    if (json) {
        buf_puts(b, "{\"time\":\"");
        line_add_time(b);
        buf_addf(b, "\",\"level\":\"%s\",\"message\":", level_names[line->level]);
        buf_json_any(b, line->message, n);
        line_add_fields(b, true, line->fields, line->n_fields, max_bytes);
        buf_puts(b, "}\n");
    } else {
        line_add_time(b);
        buf_addf(b, " %-5s ", level_names[line->level]);
        buf_seen(b, line->message, n);
        line_add_fields(b, false, line->fields, line->n_fields, max_bytes);
        buf_putc(b, '\n');
    }
}

/* Under the lock. Whether the line went out. */
static bool line_put(struct log *log, const struct line *line) {
    struct buf b = {0};
    line_render(&b, log->json, line, SIZE_MAX);
    if (!log->out.is_file && b.len > NONBLOCKING_WRITER_MAX_BYTES) line_render(&b, log->json, line, CUT_BYTES);
    const bool went = !b.failed && nonblocking_writer_put(&log->out, b.data, b.len);
    buf_fini(&b);
    return went;
}

static bool log_report_dropped(struct log *log) {
    char message[80];
    snprintf(message, sizeof message, "Dropped %llu log lines: the reader was too slow.",
             (unsigned long long)log->n_unreported);
    if (!line_put(log, &(struct line){LOG_WARN, message, NULL, 0})) return false;
    log->n_unreported = 0;
    return true;
}

void log_line(struct log *log, enum log_level level, const char *message, const struct log_field *fields,
              int n_fields) {
    assert(level >= LOG_DEBUG && level <= LOG_ERROR && n_fields >= 0);
    if (level < log->level) return;
    pthread_mutex_lock(&log->lock);
    if ((log->n_unreported && !log_report_dropped(log)) ||
        !line_put(log, &(struct line){level, message, fields, n_fields})) {
        log->n_unreported++;
        log->n_dropped++;
    }
    assert(log->n_unreported <= log->n_dropped);
    pthread_mutex_unlock(&log->lock);
}

/* A message of one line. */
static void one_line(char *message, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
static void one_line(char *message, size_t size, const char *format, va_list args) {
    vsnprintf(message, size, format, args);
    utf8_mend(message, size);
    for (char *c = message; *c; c++) {
        if ((unsigned char)*c < 0x20) *c = ' ';
    }
}

void log_text(struct log *log, enum log_level level, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    one_line(message, sizeof message, format, args);
    va_end(args);
    log_line(log, level, message, NULL, 0);
}

void log_failure(struct log *log, const char *program, const char *hint, const char *format, ...) {
    char message[2048];
    va_list args;
    va_start(args, format);
    one_line(message, sizeof message, format, args);
    va_end(args);
    if (log->json) {
        log_line(log, LOG_ERROR, message, NULL, 0);
        return;
    }
    struct buf b = {0};
    buf_addf(&b, "%s: ", program);
    buf_seen(&b, message, strlen(message));
    buf_addf(&b, "\n%s%s", hint, *hint ? "\n" : "");
    pthread_mutex_lock(&log->lock);
    if (!b.failed) nonblocking_writer_put(&log->out, b.data, b.len);
    pthread_mutex_unlock(&log->lock);
    buf_fini(&b);
}
