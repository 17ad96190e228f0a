/* log.c - see log.h. */
#include "log.h"

#include "buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"debug", "info", "warn", "error"};

enum log_level log_level_of(const char *name) {
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (!strcmp(name, level_names[i])) return (enum log_level)i;
    }
    return LOG_INFO;
}

void log_init(struct log *log, const char *level, const char *format, int fd) {
    *log = (struct log){.level = log_level_of(level), .json = !strcmp(format, "json"), .fd = fd};
}

static void add_time(struct buf *b) {
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    buf_addf(b, "%s.%03dZ", text, (int)(now.tv_nsec / 1000000));
}

static void add_number(struct buf *b, double number) { buf_addf(b, "%.15g", number); }

/* Text values are quoted only where they would not read as one word. */
static void add_word(struct buf *b, const char *text) {
    bool plain = *text != 0;
    for (const char *c = text; *c; c++) plain = plain && *c > ' ' && *c < 0x7f && *c != '"' && *c != '\\' && *c != '=';
    if (plain) {
        buf_puts(b, text);
    } else {
        buf_json_any(b, text, strlen(text));
    }
}

static void add_fields(struct buf *b, bool json, const struct log_field *fields, int n_fields) {
    for (int i = 0; i < n_fields; i++) {
        const struct log_field *f = &fields[i];
        if (json) {
            buf_addf(b, ",\"%s\":", f->key);
        } else {
            buf_addf(b, " %s=", f->key);
        }
        if (f->type == LOG_TRUTH) {
            buf_puts(b, f->number != 0 ? "true" : "false");
        } else if (f->type == LOG_NUMBER) {
            add_number(b, f->number);
        } else if (json) {
            buf_json_any(b, f->text, strlen(f->text));
        } else {
            add_word(b, f->text);
        }
    }
}

void log_line(const struct log *log, enum log_level level, const char *message, const struct log_field *fields,
              int n_fields) {
    if (level < log->level) return;
    struct buf b = {0};
    if (log->json) {
        buf_puts(&b, "{\"time\":\"");
        add_time(&b);
        buf_addf(&b, "\",\"level\":\"%s\",\"message\":", level_names[level]);
        buf_json_any(&b, message, strlen(message));
        add_fields(&b, true, fields, n_fields);
        buf_puts(&b, "}\n");
    } else {
        add_time(&b);
        buf_addf(&b, " %-5s %s", level_names[level], message);
        add_fields(&b, false, fields, n_fields);
        buf_putc(&b, '\n');
    }
    size_t sent = 0;
    while (!b.failed && sent < b.len) {
        ssize_t n = write(log->fd, b.data + sent, b.len - sent);
        if (n <= 0 && errno != EINTR) break; /* nobody reads the log: the server goes on */
        if (n > 0) sent += (size_t)n;
    }
    buf_fini(&b);
}

void log_text(const struct log *log, enum log_level level, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    for (char *c = message; *c; c++) {
        if ((unsigned char)*c < 0x20) *c = ' ';
    }
    log_line(log, level, message, NULL, 0);
}
