/* pool.c - see pool.h. */
#include "pool.h"

#include <assert.h>
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

int pool_start(struct pool *p, uv_loop_t *loop, char *message, size_t size) {
    const unsigned n = n_threads(), n_made = try_threads(n);
    uv_work_t work;
    *p = (struct pool){.loop = loop, .n_threads = n};
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

/* ---- lines ---- */

static bool may_run(const struct pool *p, const struct pool_line *line) {
    return line->n_running + line->n_leaves < p->n_threads || !line->n_running;
}

static void add_line(struct pool *p, struct pool_line *line) {
    line->next = NULL;
    *(p->first ? &p->last->next : &p->first) = line;
    p->last = line;
}

/* before: the line in front of it, or NULL. */
static void remove_line(struct pool *p, struct pool_line *before, struct pool_line *line) {
    *(before ? &before->next : &p->first) = line->next;
    if (p->last == line) p->last = before;
}

/* The next one whose turn it is and that may have one more thread; it goes behind all others, if it still has work. */
static struct pool_work *next_work(struct pool *p) {
    struct pool_line *before = NULL, *line = p->first;
    while (line && !may_run(p, line)) before = line, line = line->next;
    if (!line) return NULL;
    struct pool_work *work = line->first;
    line->first = work->next;
    remove_line(p, before, line);
    if (line->first) add_line(p, line);
    return work;
}

static void on_run(uv_work_t *uv) {
    struct pool_work *work = uv->data;
    if (!work->cancelled) work->run(work->arg);
}

static void on_done(uv_work_t *uv, int status);

static void hand_over(struct pool_work *work) {
    work->waits = false;
    const int rc = uv_queue_work(work->pool->loop, &work->uv, on_run, on_done);
    assert(!rc); /* it fails without a function, and never else */
    (void)rc;
}

static void run_more(struct pool *p) {
    struct pool_work *work;
    while (p->n_running < p->n_threads && (work = next_work(p))) {
        p->n_running++;
        work->line->n_running++;
        hand_over(work);
    }
}

static void on_done(uv_work_t *uv, int status) {
    struct pool_work *work = uv->data;
    struct pool *p = work->pool;
    (void)status;
    if (!work->cancelled) {
        p->n_running--;
        work->line->n_running--;
    }
    p->n_bytes -= work->n_bytes;
    work->line->n_bytes -= work->n_bytes;
    run_more(p);
    work->done(work->arg);
}

void pool_add(struct pool *p, struct pool_line *line, struct pool_work *work) {
    work->pool = p;
    work->line = line;
    work->uv.data = work;
    work->next = NULL;
    work->waits = true;
    p->n_bytes += work->n_bytes;
    line->n_bytes += work->n_bytes;
    if (line->first)
        line->last->next = work;
    else
        add_line(p, line), line->first = work;
    line->last = work;
    run_more(p);
}

/* What libuv has it tries to cancel itself. What waits goes to it at once, beside those that it may have, as it does
 * nothing there: done must come, but not from in here. */
void pool_cancel(struct pool_work *work) {
    struct pool *p = work->pool;
    if (!work->waits) {
        uv_cancel((uv_req_t *)&work->uv);
        return;
    }
    struct pool_line *line = work->line, *line_before = NULL;
    struct pool_work *before = NULL;
    for (struct pool_work *w = line->first; w != work; w = w->next) before = w;
    *(before ? &before->next : &line->first) = work->next;
    if (line->last == work) line->last = before;
    if (!line->first) {
        for (struct pool_line *l = p->first; l != line; l = l->next) line_before = l;
        remove_line(p, line_before, line);
    }
    work->cancelled = true;
    hand_over(work);
}
