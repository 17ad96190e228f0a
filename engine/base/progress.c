/* progress.c - reports the progress of loading, measuring or verifying to a callback, if there is one. */
#include "engine/rodimus.h"

void rod_progress(const struct rod_progress_to *to, const char *what, const char *unit, uint64_t done, uint64_t total) {
    if (!to || !to->report) return;
    const struct rod_progress progress = {what, unit, done < total ? done : total, total};
    to->report(to->arg, &progress);
}
