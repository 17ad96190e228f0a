/* load_stats.c - samples and what is reported of them; see load_run.h. */
#include "load_run.h"

#include "engine/rodimus.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

int load_sample(struct load_samples *samples, double ms) {
    if (samples->n == samples->cap) {
        size_t cap = samples->cap > 0 ? samples->cap * 2 : 256;
        double *grown = realloc(samples->ms, cap * sizeof *grown);
        if (grown == NULL) return ROD_ENOMEM;
        samples->ms = grown;
        samples->cap = cap;
    }
    assert(samples->n < samples->cap);
    samples->ms[samples->n++] = ms;
    return 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_percentile(struct load_samples *samples, double q) {
    assert(q > 0 && q <= 1);
    if (samples->n == 0) return (double)NAN;
    qsort(samples->ms, samples->n, sizeof *samples->ms, by_value);
    size_t rank = (size_t)ceil(q * (double)samples->n);
    if (rank < 1) rank = 1;
    if (rank > samples->n) rank = samples->n;
    return samples->ms[rank - 1];
}

double load_mean(const struct load_samples *samples) {
    double sum = 0;
    for (size_t i = 0; i < samples->n; i++) sum += samples->ms[i];
    return samples->n > 0 ? sum / (double)samples->n : (double)NAN;
}

void load_result_fini(struct load_result *result) {
    free(result->first_token.ms);
    free(result->inter_token.ms);
    free(result->per_token.ms);
    free(result->end_to_end.ms);
}
