/* admission.c - see admission.h. */
#include "admission.h"

#include <assert.h>

void admission_sample(struct admission *a, uint64_t now_ns, uint64_t n_left, uint32_t n_queued, uint32_t n_slots) {
    const struct admission_mark seen = a->seen;
    const bool queued = a->queued;
    if (seen.ns && now_ns - seen.ns < 500000000u) return;
    assert(now_ns >= seen.ns && a->moved_ns <= a->clock.ns && a->at < ADMISSION_MARKS);
    if (n_left < seen.n_left) n_left = seen.n_left; /* summed from counters that are not read at once */
    if (!n_queued && now_ns - a->queue_ns > ADMISSION_MAX_S * 1000000000ull) *a = (struct admission){0};
    a->seen = (struct admission_mark){now_ns, n_left};
    a->queued = n_queued > 0;
    a->n_slots = n_slots;
    if (!n_queued) return;
    a->queue_ns = now_ns;
    if (!queued) return; /* since when is not known */
    a->clock.ns += now_ns - seen.ns;
    if (n_left == seen.n_left) return;
    a->clock.n_left += n_left - seen.n_left;
    a->moved_ns = a->clock.ns;
    /* Marks this far apart span some turnovers of the slots: else requests that began together and end one after the
     * other would be measured while they end, and not while they run. */
    const struct admission_mark *newest = &a->marks[(a->at + ADMISSION_MARKS - 1) % ADMISSION_MARKS];
    if ((a->clock.n_left - newest->n_left) * 4 < n_slots) return;
    a->marks[a->at] = a->clock;
    a->at = (a->at + 1) % ADMISSION_MARKS;
}

uint64_t admission_retry_s(const struct admission *a, uint64_t n_queued) {
    if (!a->n_slots) return 1;
    const struct admission_mark *oldest = &a->marks[a->at];
    const uint64_t left = a->clock.n_left - oldest->n_left; /* 0: none ever, as the newest marks have more */
    const double measured_ns = left ? (double)(a->moved_ns - oldest->ns) / (double)left : 0;
    const double least_ns = (double)(a->clock.ns - a->moved_ns) / a->n_slots;
    const double seconds = (double)n_queued * (measured_ns > least_ns ? measured_ns : least_ns) * 1e-9;
    return seconds >= ADMISSION_MAX_S ? ADMISSION_MAX_S : seconds <= 1 ? 1 : (uint64_t)(seconds + 0.999);
}
