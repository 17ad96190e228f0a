/* pool.c - see pool.h. */
#include "pool.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_DEFAULT = 4, THREADS_MAX = 1024 }; /* libuv's own */

static unsigned n_threads(void) {
    const char *text = getenv("UV_THREADPOOL_SIZE");
    const long n = text ? strtol(text, NULL, 10) : THREADS_DEFAULT;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (unsigned)n;
}

static void wait_for_all(void *arg) { uv_sem_wait(arg); }

/* Starts n threads and joins them; returns how many the system allowed. */
static unsigned try_threads(unsigned n) {
    uv_thread_t threads[THREADS_MAX];
    uv_sem_t all;
    unsigned n_made = 0;
    if (uv_sem_init(&all, 0)) return 0;
    while (n_made < n && !uv_thread_create(&threads[n_made], wait_for_all, &all)) n_made++;
    for (unsigned i = 0; i < n_made; i++) uv_sem_post(&all);
    for (unsigned i = 0; i < n_made; i++) uv_thread_join(&threads[i]);
    uv_sem_destroy(&all);
    assert(n_made <= n);
    return n_made;
}

static void run_nothing(uv_work_t *work) { (void)work; }

int pool_start(struct pool *p, uv_loop_t *loop, char *message, size_t size) {
    const unsigned n = n_threads(), n_made = try_threads(n);
    uv_work_t work;
    *p = (struct pool){.loop = loop, .thread = pthread_self(), .n_threads = n};
    list_init(&p->queues);
    if (n_made == n && !uv_queue_work(loop, &work, run_nothing, NULL)) {
        uv_run(loop, UV_RUN_DEFAULT);
        return 0;
    }
    snprintf(
        message, size,
        "Only %u of %u threads for long requests (UV_THREADPOOL_SIZE) started: check the limit of threads (ulimit -u, "
        "TasksMax, the container's pids).",
        n_made, n);
    return -1;
}

/* ---- queues ---- */

static bool queue_may_run(const struct pool *p, const struct pool_queue *queue) {
    return queue->n_running + queue->n_leaves < p->n_threads || !queue->n_running;
}

/* A queue is among those of the pool while it has work that waits. */
static void queue_check(const struct pool_queue *queue) {
    assert((queue->link.next != NULL) == (queue->waiting.n != 0));
}

/* The next work, of the first queue that may have one more thread; this queue goes behind all others, if it still has
 * work. */
static struct pool_work *pool_next_work(struct pool *p) {
    struct list_link *at = list_first(&p->queues);
    while (at && !queue_may_run(p, LIST_OF(at, struct pool_queue, link))) at = list_next(&p->queues, at);
    if (!at) return NULL;
    struct pool_queue *queue = LIST_OF(at, struct pool_queue, link);
    queue_check(queue);
    struct pool_work *work = LIST_OF(list_first(&queue->waiting), struct pool_work, link);
    assert(work->pool == p && work->queue == queue && !work->cancelled);
    list_remove(&queue->waiting, &work->link);
    list_remove(&p->queues, &queue->link);
    if (queue->waiting.n) list_push_last(&p->queues, &queue->link);
    return work;
}

static void on_run(uv_work_t *uv) {
    struct pool_work *work = uv->data;
    if (!work->cancelled) work->run(work->arg);
}

static void on_done(uv_work_t *uv, int status);

static void pool_hand_over(struct pool_work *work) {
    assert(!work->link.next);
    const int rc = uv_queue_work(work->pool->loop, &work->uv, on_run, on_done);
    assert(!rc); /* it fails without a function, and never else */
    (void)rc;
}

static void pool_run_more(struct pool *p) {
    struct pool_work *work;
    while (p->n_running < p->n_threads && (work = pool_next_work(p))) {
        p->n_running++;
        work->queue->n_running++;
        pool_hand_over(work);
    }
    assert(p->n_running <= p->n_threads);
}

static void on_done(uv_work_t *uv, int status) {
    struct pool_work *work = uv->data;
    struct pool *p = work->pool;
    (void)status;
    if (!work->cancelled) {
        assert(p->n_running && work->queue->n_running && work->queue->n_running <= p->n_running);
        p->n_running--;
        work->queue->n_running--;
    }
    assert(work->queue->n_bytes >= work->n_bytes && p->n_bytes >= work->queue->n_bytes);
    p->n_bytes -= work->n_bytes;
    work->queue->n_bytes -= work->n_bytes;
    pool_run_more(p);
    work->done(work->arg);
}

void pool_add(struct pool *p, struct pool_queue *queue, struct pool_work *work) {
    assert(pthread_equal(p->thread, pthread_self()));
    assert(!work->link.next && !work->cancelled);
    work->pool = p;
    work->queue = queue;
    work->uv.data = work;
    p->n_bytes += work->n_bytes;
    queue->n_bytes += work->n_bytes;
    if (!queue->waiting.ends.next) list_init(&queue->waiting); /* zero at first */
    if (!queue->waiting.n) list_push_last(&p->queues, &queue->link);
    list_push_last(&queue->waiting, &work->link);
    queue_check(queue);
    pool_run_more(p);
}

/* What libuv has it tries to cancel itself. What waits goes to it at once, beside those that it may have, as it does
 * nothing there: done must come, but not from in here. */
void pool_cancel(struct pool_work *work) {
    struct pool *p = work->pool;
    struct pool_queue *queue = work->queue;
    assert(pthread_equal(p->thread, pthread_self()));
    if (!work->link.next) {
        uv_cancel((uv_req_t *)&work->uv);
        return;
    }
    list_remove(&queue->waiting, &work->link);
    if (!queue->waiting.n) list_remove(&p->queues, &queue->link);
    queue_check(queue);
    work->cancelled = true;
    pool_hand_over(work);
}
