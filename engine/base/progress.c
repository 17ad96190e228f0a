/* progress.c - tells whoever wants to know how far something is. */
#include "engine/rodimus.h"

void rod_progress(const struct rod_progress_to *to, const char *what, const char *unit, uint64_t done, uint64_t total) {
    if (!to || !to->report) return;
    const struct rod_progress progress = {what, unit, done < total ? done : total, total};
    to->report(to->arg, &progress);
}
