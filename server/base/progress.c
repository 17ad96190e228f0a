/* progress.c - see progress.h. No escape sequences: a line is rewritten with \r and erased with spaces. */
#include "progress.h"

#include "engine/base/clock.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TERMINAL_EVERY_NS 100000000ull
#define PLAIN_FIRST_NS    2000000000ull
#define PLAIN_EVERY_NS    4000000000ull

/* ---- pure ---- */

static const char *scale_of(double bytes, double *scale) {
    *scale = bytes >= 1e9 ? 1e9 : bytes >= 1e6 ? 1e6 : 1e3;
    return bytes >= 1e9 ? "GB" : bytes >= 1e6 ? "MB" : "kB";
}

static void add_time_left(char *text, size_t size, double left_s) {
    size_t n = strlen(text);
    if (!(left_s < 360000)) return; /* days are no useful guess */
    const unsigned long s = (unsigned long)ceil(left_s);
    if (s < 60)
        snprintf(text + n, size - n, ", %lu s left", s ? s : 1);
    else if (s < 3600)
        snprintf(text + n, size - n, ", %lu min %lu s left", s / 60, s % 60);
    else
        snprintf(text + n, size - n, ", %lu h %lu min left", s / 3600, s / 60 % 60);
}

char *progress_render(const struct rod_progress *at, double elapsed_s, char text[PROGRESS_TEXT_BYTES]) {
    const size_t size = PROGRESS_TEXT_BYTES;
    const double done = (double)at->done, total = (double)at->total;
    const bool moving = at->done > 0 && elapsed_s > 0;
    if (strcmp(at->unit, "B") != 0) {
        snprintf(text, size, "%.47s: %llu of %llu %.15s", at->what, (unsigned long long)at->done,
                 (unsigned long long)at->total, at->unit);
    } else {
        double scale;
        const char *unit = scale_of(total, &scale);
        snprintf(text, size, "%.47s: %.1f of %.1f %s", at->what, done / scale, total / scale, unit);
        if (moving) {
            const size_t n = strlen(text);
            unit = scale_of(done / elapsed_s, &scale);
            snprintf(text + n, size - n, ", %.1f %s/s", done / elapsed_s / scale, unit);
        }
    }
    if (moving && at->done < at->total) add_time_left(text, size, (total - done) / done * elapsed_s);
    return text;
}

bool progress_due(struct progress *p, const struct rod_progress *at, uint64_t now_ns) {
    if (strncmp(p->what, at->what, sizeof p->what - 1) != 0 || at->done < p->done) {
        snprintf(p->what, sizeof p->what, "%s", at->what);
        p->began_ns = now_ns;
        p->is_reported = false;
    }
    p->done = at->done;
    if (at->done >= at->total) return false;
    const uint64_t every = p->tty ? TERMINAL_EVERY_NS : PLAIN_EVERY_NS;
    if (p->is_reported ? now_ns - p->reported_ns < every : !p->tty && now_ns - p->began_ns < PLAIN_FIRST_NS)
        return false;
    p->is_reported = true;
    p->reported_ns = now_ns;
    return true;
}

/* ---- the terminal ---- */

static void terminal_write(const char *text, size_t n) {
    ssize_t written = write(STDERR_FILENO, text, n);
    (void)written; /* the work goes on without a terminal */
}

/* A line that wraps could not be rewritten. */
static size_t terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2) return 79;
    return size.ws_col - 1u;
}

static void progress_show(struct progress *p, const char *text) {
    char line[2 * PROGRESS_TEXT_BYTES];
    const size_t len = strlen(text), most = terminal_columns(), n = len < most ? len : most;
    size_t used = 0;
    line[used++] = '\r';
    memcpy(line + used, text, n);
    used += n;
    for (size_t i = n; i < p->n_shown && i < most; i++) line[used++] = ' ';
    for (size_t i = n; i < p->n_shown && i < most; i++) line[used++] = '\b';
    terminal_write(line, used);
    assert(n <= most && used <= sizeof line);
    p->n_shown = n;
}

void progress_hide(struct progress *p) {
    if (!p->n_shown) return;
    progress_show(p, "");
    p->n_shown = 0;
    p->is_reported = false;
}

static void progress_report(void *arg, const struct rod_progress *at) {
    struct progress *p = arg;
    const uint64_t now = clock_now_ns();
    const bool due = progress_due(p, at, now);
    if (at->done >= at->total) progress_hide(p);
    if (!due) return;
    char text[PROGRESS_TEXT_BYTES];
    progress_render(at, (double)(now - p->began_ns) * 1e-9, text);
    if (p->tty)
        progress_show(p, text);
    else if (p->line)
        p->line(p->arg, text);
    else
        fprintf(stderr, "%s: %s\n", p->name, text);
}

/* Installed for one signal (SA_RESETHAND): when it returns, the raised one ends the process by default. */
static void on_signal_end_line(int number) {
    terminal_write("\n", 1);
    raise(number);
}

static void replace_handlers(void (*from)(int), void (*to)(int)) {
    static const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        struct sigaction now, next = {.sa_handler = to, .sa_flags = to == SIG_DFL ? 0 : (int)SA_RESETHAND};
        if (!sigaction(numbers[i], NULL, &now) && now.sa_handler == from) sigaction(numbers[i], &next, NULL);
    }
}

void progress_open(struct progress *p, const char *name) {
    *p = (struct progress){.name = name, .tty = isatty(STDERR_FILENO)};
    if (p->tty) replace_handlers(SIG_DFL, on_signal_end_line);
}

void progress_open_lines(struct progress *p, void (*line)(void *arg, const char *text), void *arg) {
    *p = (struct progress){.line = line, .arg = arg};
}

struct rod_progress_to progress_to(struct progress *p) {
    return (struct rod_progress_to){progress_report, p};
}

void progress_close(struct progress *p) {
    progress_hide(p);
    if (p->tty) replace_handlers(on_signal_end_line, SIG_DFL);
}
