/* loading.c - see loading.h. */
#include "loading.h"

#include <stdio.h>
#include <string.h>

void loading_begin(struct loading *l, uint64_t now_ns) {
    *l = (struct loading){.began_ns = now_ns, .reported_ns = now_ns};
    pthread_mutex_init(&l->lock, NULL);
}

void loading_report(struct loading *l, const struct rod_progress *at, uint64_t now_ns) {
    pthread_mutex_lock(&l->lock);
    if (strncmp(l->what, at->what, sizeof l->what - 1) != 0) {
        snprintf(l->what, sizeof l->what, "%s", at->what);
        l->began_ns = now_ns;
    }
    l->done = at->done;
    l->total = at->total;
    l->reported_ns = now_ns;
    pthread_mutex_unlock(&l->lock);
}

/* Under the lock. */
static double loading_left_ns(const struct loading *l, uint64_t now_ns) {
    const double lasted = (double)(now_ns - l->began_ns);
    if (l->done >= l->total) return (double)(now_ns - l->reported_ns); /* of what is not counted */
    if (!l->done) return lasted;
    return lasted / (double)l->done * (double)(l->total - l->done);
}

uint64_t loading_retry_s(struct loading *l, uint64_t now_ns) {
    pthread_mutex_lock(&l->lock);
    const double seconds = loading_left_ns(l, now_ns) * 1e-9;
    pthread_mutex_unlock(&l->lock);
    return seconds >= LOADING_MAX_S ? LOADING_MAX_S : seconds <= 1 ? 1 : (uint64_t)(seconds + 0.999);
}
