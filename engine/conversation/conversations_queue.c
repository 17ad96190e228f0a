/* conversations_queue.c - see conversations_internal.h: jobs, their queues, and callers that wait for one. */
#include "conversations_internal.h"
#include "engine/base/clock.h"
#include "engine/base/store_wait.h"
#include "engine/base/test_hooks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_MS ((uint64_t)1000000u)
/* Of a store: a user's patience, with a second for so many bytes that wait or move, and at most. */
#define PATIENCE_NS  (3000 * NS_MS)
#define PATIENCE_BPS ((uint64_t)64 << 20)

void conversations_say(const struct conversations *c, int level, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->config.log) c->config.log(c->config.arg, level, line);
}

struct conversation_job *conversations_job(enum conversation_work work, const char *dir) {
    struct conversation_job *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    job->work = work;
    snprintf(job->dir, sizeof job->dir, "%s", dir);
    return job;
}

void conversations_job_free(struct conversation_job *job) {
    free(job->whose);
    free(job->bytes);
    free(job);
}

/* ---- queues ---- */

void conversations_expire_locked(struct conversations *c) {
    if (c->config.ttl_s) conversation_expire(c->table, clock_unix_s() - (int64_t)c->config.ttl_s);
    if (c->n_forgotten) c->config.wake(c->config.arg);
}

void conversations_push_locked(struct conversations *c, struct conversation_job *job) {
    const int queue = job->work == CONVERSATION_READ;
    list_push_last(&c->queues[queue], &job->link);
    if (job->work == CONVERSATION_WRITE) c->waiting_bytes += job->n_bytes = job->buffer->n_bytes;
    pthread_cond_signal(&c->work[queue]);
    if (job->until_ns) pthread_cond_signal(&c->tick);
}

static struct conversation_job *job_of(struct list_link *link) { return LIST_OF(link, struct conversation_job, link); }

static bool has_dir(const struct list *jobs, const char *dir) {
    for (struct list_link *l = list_first(jobs); l; l = list_next(jobs, l))
        if (*dir && !strcmp(job_of(l)->dir, dir)) return true;
    return false;
}

bool conversations_goes_on_locked(const struct conversations *c, const char *dir) { return has_dir(&c->going[0], dir); }

bool conversations_busy_locked(const struct conversations *c, const char *dir) {
    return has_dir(&c->queues[0], dir) || has_dir(&c->going[0], dir);
}

static bool removes(const struct conversation_job *job, const char *dir, const char *file) {
    return (job->work == CONVERSATION_UNLINK || job->work == CONVERSATION_EXPIRE) && !strcmp(job->dir, dir) &&
           !strcmp(job->file, file);
}

bool conversations_removes_locked(const struct conversations *c, const char *dir, const char *file) {
    const struct list *const lists[] = {&c->queues[0], &c->going[0]};
    for (int i = 0; i < 2; i++)
        for (struct list_link *l = list_first(lists[i]); l; l = list_next(lists[i], l))
            if (removes(job_of(l), dir, file)) return true;
    return false;
}

/* ---- callers that wait ---- */

static uint64_t patience_ns(uint64_t own_ns, uint64_t of_tests_ns, uint64_t waited_ns) {
    const uint64_t left_ns = store_wait_left_ns(waited_ns, of_tests_ns ? of_tests_ns : STORE_WAIT_MOST_NS);
    return left_ns < own_ns || of_tests_ns ? left_ns : own_ns;
}

uint64_t conversations_patience_ns(uint64_t waited_ns) {
    return patience_ns(PATIENCE_NS, test_hooks_patience_ms() * NS_MS, waited_ns);
}

bool conversations_waits_locked(const struct conversations *c, uint64_t waited_ns) {
    return !c->stored || (!c->stuck && patience_ns(PATIENCE_NS, c->patience_ns, waited_ns));
}

uint64_t conversations_until_locked(const struct conversations *c, uint64_t n_bytes, uint64_t waited_ns) {
    const uint64_t own_ns = PATIENCE_NS + (c->waiting_bytes + n_bytes) / (PATIENCE_BPS / 1000) * NS_MS;
    return c->stored ? clock_now_ns() + patience_ns(own_ns, c->patience_ns, waited_ns) : 0;
}

void conversations_ask(struct conversations *c, struct conversation_job *job) {
    job->called = true;
    pthread_mutex_lock(&c->lock);
    conversations_push_locked(c, job);
    pthread_mutex_unlock(&c->lock);
}

bool conversations_await(struct conversations *c, struct conversation_job *job, uint64_t until_ns) {
    const struct timespec until = clock_timespec(until_ns);
    pthread_mutex_lock(&c->lock);
    while (until_ns && !job->done)
        if (pthread_cond_timedwait(&c->called, &c->lock, &until)) break;
    const bool done = job->done;
    if (!done) job->left = true;
    if (!done && until_ns) c->stuck = true;
    pthread_mutex_unlock(&c->lock);
    return done;
}
