/* pool.c - see pool.h. */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT = 4, MOST = 1024 }; /* libuv's own */

static unsigned n_threads(void) {
    const char *text = getenv("UV_THREADPOOL_SIZE");
    const long n = text ? strtol(text, NULL, 10) : DEFAULT;
    return n < 1 ? 1 : n > MOST ? MOST : (unsigned)n;
}

static void wait_for_all(void *arg) { uv_sem_wait(arg); }

/* How many threads of n there may be beside those that there are. */
static unsigned try_threads(unsigned n) {
    uv_thread_t threads[MOST];
    uv_sem_t all;
    unsigned n_made = 0;
    if (uv_sem_init(&all, 0)) return 0;
    while (n_made < n && !uv_thread_create(&threads[n_made], wait_for_all, &all)) n_made++;
    for (unsigned i = 0; i < n_made; i++) uv_sem_post(&all);
    for (unsigned i = 0; i < n_made; i++) uv_thread_join(&threads[i]);
    uv_sem_destroy(&all);
    return n_made;
}

static void nothing(uv_work_t *work) { (void)work; }

int pool_start(uv_loop_t *loop, char *message, size_t size) {
    const unsigned n = n_threads(), n_made = try_threads(n);
    uv_work_t work;
    if (n_made == n && !uv_queue_work(loop, &work, nothing, NULL)) {
        uv_run(loop, UV_RUN_DEFAULT);
        return 0;
    }
    snprintf(
        message, size,
        "%u of the %u threads for long requests (UV_THREADPOOL_SIZE) start: is there a limit of threads (ulimit -u, "
        "TasksMax, the container's pids)?",
        n_made, n);
    return -1;
}
