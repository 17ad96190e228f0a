/* conversations_queue.c - see conversations_internal.h: jobs, their queues, and callers that wait for one. */
#include "conversations_internal.h"
#include "engine/base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_MS ((uint64_t)1000000u)
/* Of a store: a user's patience, with a second for so many bytes that wait or move, and at most. */
#define PATIENCE_NS      (3000 * NS_MS)
#define PATIENCE_BPS     ((uint64_t)64 << 20)
#define MOST_PATIENCE_NS (10000 * NS_MS)

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

uint64_t conversations_until_locked(const struct conversations *c, uint64_t n_bytes) {
    if (!c->stored) return 0;
    const uint64_t most_ns = PATIENCE_NS + (c->waiting_bytes + n_bytes) / (PATIENCE_BPS / 1000) * NS_MS;
    if (c->patience_ns) return clock_now_ns() + c->patience_ns;
    return clock_now_ns() + (most_ns < MOST_PATIENCE_NS ? most_ns : MOST_PATIENCE_NS);
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
