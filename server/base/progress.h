/* progress.h - how far loading, measuring or verifying is: on a terminal one line on stderr that is rewritten and at
 * last erased, elsewhere a plain line every few seconds, and none for what takes less than two.
 *
 * Threads: a progress belongs to the thread that works. Invariant: between calls the terminal's line is complete, and a
 * signal that ends the process leaves the cursor on a new one.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "engine/rodimus.h"

enum { PROGRESS_TEXT_BYTES = 160 };

struct progress {
    const char *name; /* begins a plain line: "rodimus bench" */
    bool tty;
    void (*line)(void *arg, const char *text); /* takes the plain lines instead of stderr; or NULL */
    void *arg;
    char what[48]; /* the phase; "" before the first */
    uint64_t done, began_ns, reported_ns;
    bool is_reported;
    size_t n_shown; /* columns that are to be erased */
};

/* On stderr. name outlives it. On a terminal SIGINT and SIGTERM, where they are not ignored, first end the line. */
void progress_open(struct progress *p, const char *name);
/* Plain lines alone, to line. */
void progress_open_lines(struct progress *p, void (*line)(void *arg, const char *text), void *arg);
struct rod_progress_to progress_to(struct progress *p);
/* Before something else is written to the terminal; the next report shows it again. */
void progress_hide(struct progress *p);
/* Erases the line, and signals are again as they were by default. */
void progress_close(struct progress *p);

/* ---- pure ---- */

/* "reading weights: 1.3 of 3.3 GB, 1.2 GB/s, 2 s left". elapsed_s: since the phase was at 0. Returns text. */
char *progress_render(const struct rod_progress *at, double elapsed_s, char text[PROGRESS_TEXT_BYTES]);
/* Whether this report is shown; keeps the phase and the times in p. */
bool progress_due(struct progress *p, const struct rod_progress *at, uint64_t now_ns);

#endif
