/* conversations_jobs.c - see conversations_internal.h: the threads of the jobs, and the answers to their callers. */
#include "conversations_internal.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_S  ((uint64_t)1000000000u)
#define NS_MS ((uint64_t)1000000u)
/* Between two looks for whom it has waited too long; for what its time is over for. */
#define WAITING_LOOK_NS (50 * NS_MS)
#define LOOK_NS         NS_S /* between two looks for what its time is over for */

/* ---- a job ---- */

static int job_write(struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    void *header;
    size_t n_header;
    int rc = !*job->twin ? ROD_ENOTFOUND
             : c->stored ? conversations_store_copy(c, job, err)
                         : conversations_folder_link(c, job, err);
    if (!rc) return 0;
    rc = conversation_file_write(&c->config.form, &job->place, job->buffer, &header, &n_header, err);
    if (rc) return rc;
    const struct state_bytes parts[2] = {{header, n_header}, {job->buffer->bytes, job->buffer->n_bytes}};
    rc = c->stored ? conversations_store_write(c, job, parts, err) : conversations_folder_write(c, job, parts, err);
    free(header);
    return rc;
}

static int job_read(struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    if (c->stored) return conversations_store_read(c, job, err);
    const int rc = conversations_folder_read(c, job, err);
    if (rc && rc != ROD_ENOTFOUND && rc != ROD_EIO) conversations_folder_unlink(c, job);
    return rc;
}

static void job_run(struct conversations *c, struct conversation_job *job) {
    switch (job->work) {
    case CONVERSATION_WRITE: job->rc = job_write(c, job, &job->err); break;
    case CONVERSATION_READ: job->rc = job_read(c, job, &job->err); break;
    case CONVERSATION_UNLINK:
    case CONVERSATION_EXPIRE:
        if (c->stored)
            conversations_store_unlink(c, job);
        else
            conversations_folder_unlink(c, job);
        break;
    case CONVERSATION_LOOK: conversations_store_look(c, job); break;
    case CONVERSATION_NOTE: conversations_store_note(c, job); break;
    case CONVERSATION_SWEEP: conversations_sweep(c, job); break;
    case CONVERSATION_PROBE: conversations_store_probe(c, job); break;
    }
}

/* ---- its end ---- */

static void say_failed_locked(struct conversations *c, const struct conversation_job *job) {
    static const char *const whats[] = {
        [CONVERSATION_WRITE] = "A state of a conversation was not written",
        [CONVERSATION_READ] = "A state of a conversation was not read",
        [CONVERSATION_UNLINK] = "A conversation was not removed",
        [CONVERSATION_LOOK] = "A conversation was not looked for",
        [CONVERSATION_NOTE] = "The notes of a conversation were not written",
        [CONVERSATION_EXPIRE] = "A conversation was not removed",
        [CONVERSATION_SWEEP] = "Conversations were not listed",
        [CONVERSATION_PROBE] = "The store does not answer",
    };
    uint64_t n_left_out = 0;
    if (!job->rc || job->rc == ROD_ENOTFOUND || !log_limit_due(&c->failed, clock_now_ns(), &n_left_out)) return;
    conversations_say(c, 2, "%s: %s (%llu more since the last such line)", whats[job->work], job->err.message,
                      (unsigned long long)n_left_out);
}

/* A state that could not be read is no state: its tokens are read again. */
static void state_over_locked(struct conversations *c, const struct conversation_job *job) {
    const struct conversation *of = conversation_find(c->table, job->dir);
    struct conversation_state *s = conversation_state_find(c->table, of, &job->place);
    const bool writes = job->work == CONVERSATION_WRITE;
    if (writes) c->n_saves += !job->rc, c->n_failures += job->rc != 0;
    if (!writes) c->n_loads += !job->rc;
    if (s && s->file_bytes && (writes || job->rc))
        conversation_state_filed(c->table, s, job->rc ? 0 : s->file_bytes, !job->rc);
}

static void note_change_locked(struct conversations *c, const char *dir) {
    struct conversation *of = conversation_find(c->table, dir);
    if (of) of->changed_ns = clock_now_ns();
}

static void store_answered_locked(struct conversations *c, const struct conversation_job *job) {
    if (job->rc != ROD_EIO && job->rc != ROD_EUNSURE) c->stuck = false;
    if (job->work == CONVERSATION_PROBE) c->has_probe = false;
    if (job->work == CONVERSATION_SWEEP) c->has_sweep = false;
    pthread_cond_broadcast(&c->work[0]); /* another job of the conversation may begin */
}

/* True: somebody takes it. A read always goes to `over`, because the engine owns its buffer. */
static bool job_hand_over_locked(struct conversations *c, struct conversation_job *job) {
    if (job->called) {
        job->done = true;
        pthread_cond_broadcast(&c->called);
        return !job->left;
    }
    if (!job->user && job->work != CONVERSATION_READ) {
        job->ended = true;
        return job->word != NULL;
    }
    list_push_last(&c->over, &job->link);
    atomic_store(&c->has_news, true);
    return true;
}

static void job_end(struct conversations *c, struct conversation_job *job) {
    const bool called = job->called;
    if (job->work == CONVERSATION_WRITE) {
        state_buffer_release(job->buffer);
        job->buffer = NULL;
    }
    pthread_mutex_lock(&c->lock);
    list_remove(&c->going[job->work == CONVERSATION_READ], &job->link);
    if (job->work == CONVERSATION_WRITE) c->waiting_bytes -= job->n_bytes;
    if (job->work == CONVERSATION_WRITE || job->work == CONVERSATION_READ) state_over_locked(c, job);
    if (job->work != CONVERSATION_READ) note_change_locked(c, job->dir);
    say_failed_locked(c, job);
    if (c->stored) store_answered_locked(c, job);
    const bool taken = job_hand_over_locked(c, job);
    pthread_mutex_unlock(&c->lock);
    if (taken && !called) c->config.wake(c->config.arg);
    if (!taken) conversations_job_free(job);
}

/* ---- who waits ---- */

/* The job goes on without its user. Without memory the next look tries again. */
static void tell_late_locked(struct conversations *c, struct conversation_job *job) {
    struct conversation_job *word = conversations_job(job->work, job->dir);
    if (!word) return;
    word->of = job;
    job->word = word;
    word->user = job->user;
    word->rc = ROD_EIO;
    job->user = NULL;
    list_push_last(&c->over, &word->link);
    atomic_store(&c->has_news, true);
    c->stuck = true;
    c->config.wake(c->config.arg);
}

/* Whether somebody waits still. */
static bool look_who_waits_locked(struct conversations *c, const struct list *jobs, uint64_t now_ns) {
    bool waits = false;
    for (struct list_link *l = list_first(jobs); l; l = list_next(jobs, l)) {
        struct conversation_job *job = LIST_OF(l, struct conversation_job, link);
        if (job->user && job->until_ns && job->until_ns <= now_ns) tell_late_locked(c, job);
        waits |= job->user != NULL;
    }
    return waits;
}

/* ---- queues ---- */

static struct conversation_job *job_of(struct list_link *link) { return LIST_OF(link, struct conversation_job, link); }

/* Jobs of one conversation in their order, reads in none. NULL: none may begin. */
static struct conversation_job *next_locked(struct conversations *c, int queue) {
    for (struct list_link *l = list_first(&c->queues[queue]); l; l = list_next(&c->queues[queue], l)) {
        if (!queue && conversations_goes_on_locked(c, job_of(l)->dir)) continue;
        list_remove(&c->queues[queue], l);
        list_push_last(&c->going[queue], l);
        return job_of(l);
    }
    return NULL;
}

/* ---- threads ---- */

struct thread_of {
    struct conversations *c;
    int queue;
};

/* The thread that writes into a folder also looks, once a second, for conversations whose time is over. */
static void wait_locked(struct conversations *c, int queue) {
    if (queue || !c->config.ttl_s || c->stored) {
        pthread_cond_wait(&c->work[queue], &c->lock);
        return;
    }
    const struct timespec until = clock_timespec(clock_now_ns() + LOOK_NS);
    pthread_cond_timedwait(&c->work[queue], &c->lock, &until);
    conversations_expire_locked(c);
}

static void *jobs_thread(void *arg) {
    struct thread_of of = *(struct thread_of *)arg;
    struct conversations *c = of.c;
    free(arg);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct conversation_job *job;
        while (!(job = next_locked(c, of.queue)) && !(c->ends && !c->queues[of.queue].n)) wait_locked(c, of.queue);
        if (!job) break;
        pthread_mutex_unlock(&c->lock);
        job_run(c, job);
        job_end(c, job);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static bool push_own_locked(struct conversations *c, enum conversation_work work) {
    struct conversation_job *job = conversations_job(work, "");
    if (job) conversations_push_locked(c, job);
    return job != NULL;
}

/* Of a store: waits for nothing but time. */
static void *tick_thread(void *arg) {
    struct conversations *c = ((struct thread_of *)arg)->c;
    free(arg);
    pthread_mutex_lock(&c->lock);
    for (uint64_t second_ns = 0; !c->ends || c->queues[0].n + c->queues[1].n + c->going[0].n + c->going[1].n;) {
        const uint64_t now_ns = clock_now_ns();
        bool waits = false;
        for (int i = 0; i < 2; i++) {
            waits |= look_who_waits_locked(c, &c->queues[i], now_ns);
            waits |= look_who_waits_locked(c, &c->going[i], now_ns);
        }
        if (now_ns >= second_ns) {
            second_ns = now_ns + LOOK_NS;
            conversations_expire_locked(c);
            if (c->stuck && !c->has_probe && !c->ends) c->has_probe = push_own_locked(c, CONVERSATION_PROBE);
            if (now_ns >= c->sweep_ns && !c->has_sweep && !c->ends)
                c->has_sweep = push_own_locked(c, CONVERSATION_SWEEP);
        }
        const struct timespec until = clock_timespec(now_ns + (waits || c->ends ? WAITING_LOOK_NS : LOOK_NS));
        pthread_cond_timedwait(&c->tick, &c->lock, &until);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int start_thread(struct conversations *c, void *(*run)(void *arg), int queue, struct rod_error *err) {
    struct thread_of *of = malloc(sizeof *of);
    if (!of) return rod_fail_no_memory(err);
    *of = (struct thread_of){c, queue};
    const int number = pthread_create(&c->threads[c->n_threads], NULL, run, of);
    if (number) {
        free(of);
        return rod_fail(err, ROD_ENOMEM, "A thread for conversations' files does not start: %s", strerror(number));
    }
    c->n_threads++;
    return 0;
}

int conversations_start(struct conversations *c, struct rod_error *err) {
    int rc = c->stored ? start_thread(c, tick_thread, 0, err) : 0;
    for (int i = 0; i < 2 * (c->stored ? CONVERSATIONS_THREADS : 1) && !rc; i++)
        rc = start_thread(c, jobs_thread, i % 2, err);
    return rc;
}

void conversations_stop(struct conversations *c) {
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    for (int queue = 0; queue < 2; queue++) pthread_cond_broadcast(&c->work[queue]);
    pthread_cond_signal(&c->tick);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_threads; i++) pthread_join(c->threads[i], NULL);
}
