/* serve_stall.c - see serve.h: a thread that ends the process after a stall (stall_exit_s), so that whatever runs the
 * process starts another. It waits for nobody: the engine's thread may hang in a driver, the loop in a file, and a
 * thread that writes to the log, too. So the process ends here, without a clean-up that would wait for them. */
#include "serve.h"

#include <assert.h>
#include <time.h>
#include <unistd.h>

#define STALL_EXIT_STATUS 3
#define LOOK_NS           250000000ull
/* So long the log may take for the last line. */
#define SAY_LOOKS 100
#define SAY_NS    10000000

static void stall_say(void *arg) {
    struct serve_stall *stall = arg;
    log_text(stall->log, LOG_ERROR,
             "stall_exit_s: no step has ended for %llu s though work waits; exiting with status %d.",
             (unsigned long long)stall->seconds, STALL_EXIT_STATUS);
    stall->said = true;
}

static void stall_exit(struct serve_stall *stall, uint64_t stalled_ns) {
    const struct timespec pause = {0, SAY_NS};
    uv_thread_t thread;
    stall->seconds = stalled_ns / 1000000000;
    if (!uv_thread_create(&thread, stall_say, stall)) {
        for (int i = 0; i < SAY_LOOKS && !stall->said; i++) nanosleep(&pause, NULL);
        if (stall->said) uv_thread_join(&thread);
    }
    _exit(STALL_EXIT_STATUS);
}

/* Where this thread did not run either, the process stood still as a whole (SIGSTOP, a debugger, a machine that is
 * suspended), and no part of it hangs: such time does not count. */
static void stall_watch(void *arg) {
    struct service *v = arg;
    struct serve_stall *stall = &v->stall;
    const uint64_t limit_ns = v->server.config.stall_exit_s * 1000000000;
    uint64_t looked_ns = uv_hrtime(), stood_ns = 0;
    uv_mutex_lock(&stall->lock);
    while (!stall->over) {
        uv_cond_timedwait(&stall->wake, &stall->lock, LOOK_NS);
        const uint64_t now = uv_hrtime(), gap_ns = now - looked_ns, stalled_ns = routes_stalled_ns(&v->server);
        looked_ns = now;
        if (gap_ns > 2 * LOOK_NS)
            stood_ns += gap_ns - LOOK_NS;
        else if (stalled_ns < 2 * LOOK_NS)
            stood_ns = 0; /* a step has ended since */
        if (stalled_ns >= limit_ns + stood_ns) stall_exit(stall, stalled_ns - stood_ns);
    }
    uv_mutex_unlock(&stall->lock);
}

int serve_stall_open(struct service *v) {
    struct serve_stall *stall = &v->stall;
    assert(!stall->watches);
    if (!v->server.config.stall_exit_s) return 0;
    stall->log = &v->server.log;
    if (uv_mutex_init(&stall->lock)) return -1;
    if (uv_cond_init(&stall->wake)) {
        uv_mutex_destroy(&stall->lock);
        return -1;
    }
    stall->watches = !uv_thread_create(&stall->thread, stall_watch, v);
    if (stall->watches) return 0;
    uv_cond_destroy(&stall->wake);
    uv_mutex_destroy(&stall->lock);
    return -1;
}

void serve_stall_close(struct service *v) {
    struct serve_stall *stall = &v->stall;
    if (!stall->watches) return;
    uv_mutex_lock(&stall->lock);
    stall->over = true;
    uv_cond_signal(&stall->wake);
    uv_mutex_unlock(&stall->lock);
    uv_thread_join(&stall->thread);
    uv_cond_destroy(&stall->wake);
    uv_mutex_destroy(&stall->lock);
    stall->watches = false;
}
