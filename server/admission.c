/* admission.c - see admission.h. */
#include "admission.h"

void admission_sample(struct admission *a, uint64_t now_ns, uint64_t n_left) {
    const struct admission_sample *last = &a->samples[(a->at + ADMISSION_SAMPLES - 1) % ADMISSION_SAMPLES];
    if (a->n && now_ns - last->ns < 500000000u) return;
    a->samples[a->at] = (struct admission_sample){now_ns, n_left};
    a->at = (a->at + 1) % ADMISSION_SAMPLES;
    if (a->n < ADMISSION_SAMPLES) a->n++;
}

uint64_t admission_retry_s(const struct admission *a, uint64_t n_queued) {
    if (!n_queued || a->n < 2) return 1;
    const struct admission_sample *last = &a->samples[(a->at + ADMISSION_SAMPLES - 1) % ADMISSION_SAMPLES];
    const struct admission_sample *first = &a->samples[(a->at + ADMISSION_SAMPLES - a->n) % ADMISSION_SAMPLES];
    const uint64_t left = last->n_left - first->n_left;
    if (last->n_left <= first->n_left) return ADMISSION_MAX_S; /* nothing moves */
    const double seconds = (double)n_queued * (double)(last->ns - first->ns) * 1e-9 / (double)left;
    return seconds >= ADMISSION_MAX_S ? ADMISSION_MAX_S : seconds <= 1 ? 1 : (uint64_t)(seconds + 0.999);
}
