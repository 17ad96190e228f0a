/* mailbox.c - two short critical sections: one for what goes in, one for what comes out. */
#include "mailbox.h"

#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int mailbox_init(struct mailbox *m, uint32_t n_slots, uint32_t max_queue, uint64_t max_queue_tok,
                 struct rod_error *err) {
    *m = (struct mailbox){.n_slots = n_slots, .max_queue = max_queue, .max_queue_tok = max_queue_tok};
    /* Tickets count up, so a table as large as the live submissions has chains of one; beyond 65,536 chains just grow.
     */
    m->n_table = 64;
    while (m->n_table < 65536 && m->n_table < (uint64_t)n_slots + max_queue) m->n_table *= 2;
    assert((m->n_table & (m->n_table - 1)) == 0);
    m->table = calloc(m->n_table, sizeof(struct submission *));
    if (!m->table) return rod_fail_no_memory(err);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->out_lock, NULL);
    clock_init_condition(&m->filled);
    return 0;
}

void mailbox_fini(struct mailbox *m) {
    assert(m->n_live == 0 && m->n_waiting == 0 && m->waiting_tok == 0);
    assert(!m->cancels); /* a retired submission is in no list */
    free(m->table);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->out_lock);
    pthread_cond_destroy(&m->filled);
}

static struct submission **mailbox_bucket(struct mailbox *m, uint64_t ticket) {
    return &m->table[ticket & (m->n_table - 1)];
}

/* Whether a key that has `mine` of `all` leaves others something of the limit. */
static bool mailbox_leaves_some(uint64_t mine, uint64_t all, uint64_t max, uint64_t quota) {
    return all <= max && (!quota || mine <= quota * (max - all));
}

/* Whether one more submission may take place number `place` of the queue and tokens beside waiting_tok, where `key`
 * says what its key has. A key's first place needs only a free one. */
static int mailbox_check_quota(const struct mailbox *m, const struct submission *s, const struct mailbox_key *key,
                               uint64_t place, uint64_t waiting_tok, struct rod_error *err) {
    const uint64_t mine = (key->n_places < place ? key->n_places : place) + 1; /* others find slots, perhaps its own */
    if (mine > 1 && !mailbox_leaves_some(mine, place + 1, m->max_queue, s->quota))
        return rod_fail(err, ROD_EQUEUEFULL, "This key has its share of the queue: %llu of %u places.",
                        (unsigned long long)mine - 1, m->max_queue);
    if (m->max_queue_tok &&
        !mailbox_leaves_some(key->tok + s->n_tok, waiting_tok + s->n_tok, m->max_queue_tok, s->quota))
        return rod_fail(err, ROD_EQUEUEFULL, "This key has its share of the queue: %llu of %llu prompt tokens.",
                        (unsigned long long)key->tok, (unsigned long long)m->max_queue_tok);
    return 0;
}

/* Whether it fits behind `live` others of which the prompts of those that wait have waiting_tok. */
static int mailbox_check(const struct mailbox *m, const struct submission *s, uint64_t live, uint64_t waiting_tok,
                         struct rod_error *err) {
    if (live < m->n_slots) return 0; /* a request with a free slot takes no place of the queue */
    if (live - m->n_slots >= m->max_queue)
        return rod_fail(err, ROD_EQUEUEFULL, "The queue is full: %u requests run and %u wait.", m->n_slots,
                        m->max_queue);
    if (m->max_queue_tok && waiting_tok + s->n_tok > m->max_queue_tok)
        return rod_fail(err, ROD_EQUEUEFULL, "The queue is full: %llu prompt tokens wait and the limit is %llu.",
                        (unsigned long long)waiting_tok, (unsigned long long)m->max_queue_tok);
    return s->quota ? mailbox_check_quota(m, s, &m->keys[s->key], live - m->n_slots, waiting_tok, err) : 0;
}

/* All of them or none; their keys have them while they are looked at. */
static int mailbox_check_admission(struct mailbox *m, struct submission *const *submissions, size_t n,
                                   struct rod_error *err) {
    if (m->refusal == ROD_EDEVICE)
        return rod_fail(err, ROD_EDEVICE, "The device failed; this server takes no requests.");
    if (m->refusal) return rod_fail(err, m->refusal, "The server is shutting down and takes no new requests.");
    uint64_t waiting_tok = m->waiting_tok;
    size_t i = 0;
    int rc = 0;
    for (; !rc && i < n; i++) {
        const struct submission *s = submissions[i];
        rc = mailbox_check(m, s, m->n_live + i, waiting_tok, err);
        const uint64_t waits_tok = m->n_live + i < m->n_slots ? 0 : s->n_tok;
        m->keys[s->key].n_places++;
        m->keys[s->key].tok += waits_tok;
        waiting_tok += waits_tok;
    }
    while (i--) {
        m->keys[submissions[i]->key].n_places--;
        m->keys[submissions[i]->key].tok -= m->n_live + i < m->n_slots ? 0 : submissions[i]->n_tok;
    }
    return rc;
}

bool mailbox_fits(struct mailbox *m, uint32_t key, uint32_t quota) {
    struct submission one = {.key = key, .quota = quota}, *all[] = {&one};
    pthread_mutex_lock(&m->lock);
    const bool fits = !mailbox_check_admission(m, all, 1, NULL);
    pthread_mutex_unlock(&m->lock);
    return fits;
}

static void mailbox_push(struct mailbox *m, struct submission *submission) {
    submission->next = submission->cancel_next = submission->cancel_prev = NULL;
    submission->cancelled = submission->cancel_listed = submission->started = submission->in_slot = false;
    assert(m->n_live < (uint64_t)m->n_slots + m->max_queue && m->n_waiting <= m->n_live);
    assert(!m->head == !m->tail);
    submission->ticket = ++m->last_ticket;
    struct submission **bucket = mailbox_bucket(m, submission->ticket);
    submission->chain = *bucket;
    *bucket = submission;
    m->n_live++;
    m->n_waiting++;
    m->waiting_tok += submission->n_tok;
    m->keys[submission->key].n_places++;
    m->keys[submission->key].tok += submission->n_tok;
    if (m->tail)
        m->tail->next = submission;
    else
        m->head = submission;
    m->tail = submission;
}

int mailbox_push_all(struct mailbox *m, struct submission *const *submissions, size_t n, uint64_t *tickets,
                     struct rod_error *err) {
    pthread_mutex_lock(&m->lock);
    int rc = mailbox_check_admission(m, submissions, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        mailbox_push(m, submissions[i]);
        tickets[i] = submissions[i]->ticket;
    }
    if (!rc) pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mailbox_cancel(struct mailbox *m, uint64_t ticket) {
    pthread_mutex_lock(&m->lock);
    struct submission *submission = *mailbox_bucket(m, ticket);
    while (submission && submission->ticket != ticket) submission = submission->chain;
    if (submission && !submission->cancelled) {
        assert(!submission->cancel_listed && !submission->cancel_prev);
        submission->cancelled = submission->cancel_listed = true;
        submission->cancel_next = m->cancels;
        if (m->cancels) m->cancels->cancel_prev = submission;
        m->cancels = submission;
        pthread_cond_signal(&m->filled);
    }
    pthread_mutex_unlock(&m->lock);
}

void mailbox_refuse(struct mailbox *m, int code) {
    pthread_mutex_lock(&m->lock);
    assert(code == ROD_EDRAINING || code == ROD_EDEVICE);
    if (m->refusal != ROD_EDEVICE) m->refusal = code;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_stop(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    if (!m->refusal) m->refusal = ROD_EDRAINING;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_poke(struct mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->poked = true;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_return(struct mailbox *m, struct submission *submission) {
    pthread_mutex_lock(&m->lock);
    assert(!m->returns == !m->returns_tail);
    submission->next = NULL;
    if (m->returns_tail)
        m->returns_tail->next = submission;
    else
        m->returns = submission;
    m->returns_tail = submission;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

static bool mailbox_is_empty(const struct mailbox *m) {
    return !m->head && !m->cancels && !m->returns && !m->stop && !m->poked;
}

void mailbox_wait(struct mailbox *m, uint64_t ns) {
    const struct timespec until = clock_timespec(clock_now_ns() + ns);
    pthread_mutex_lock(&m->lock);
    while (mailbox_is_empty(m) && pthread_cond_timedwait(&m->filled, &m->lock, &until) != ETIMEDOUT) {}
    pthread_mutex_unlock(&m->lock);
}

void mailbox_pop(struct mailbox *m, bool wait, struct mailbox_batch *batch) {
    pthread_mutex_lock(&m->lock);
    while (wait && mailbox_is_empty(m)) pthread_cond_wait(&m->filled, &m->lock);
    m->poked = false;
    *batch = (struct mailbox_batch){m->head, m->cancels, m->returns, m->stop};
    m->head = m->tail = m->cancels = m->returns = m->returns_tail = NULL;
    for (struct submission *c = batch->cancels; c; c = c->cancel_next) c->cancel_listed = false;
    pthread_mutex_unlock(&m->lock);
}

static void mailbox_leave_queue(struct mailbox *m, struct submission *submission) {
    if (submission->started) return;
    struct mailbox_key *key = &m->keys[submission->key];
    assert(m->n_waiting > 0 && m->waiting_tok >= submission->n_tok && key->tok >= submission->n_tok);
    submission->started = true;
    m->n_waiting--;
    m->waiting_tok -= submission->n_tok;
    key->tok -= submission->n_tok;
}

static void mailbox_leave_place(struct mailbox *m, const struct submission *submission) {
    if (submission->in_slot) return;
    assert(m->keys[submission->key].n_places > 0);
    m->keys[submission->key].n_places--;
}

void mailbox_started(struct mailbox *m, struct submission *submission) {
    pthread_mutex_lock(&m->lock);
    mailbox_leave_queue(m, submission);
    mailbox_leave_place(m, submission);
    submission->in_slot = true;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_left(struct mailbox *m, struct submission *submission) {
    pthread_mutex_lock(&m->lock);
    if (submission->in_slot) m->keys[submission->key].n_places++;
    submission->in_slot = false;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_retire(struct mailbox *m, struct submission *submission) {
    pthread_mutex_lock(&m->lock);
    struct submission **at = mailbox_bucket(m, submission->ticket);
    while (*at != submission) at = &(*at)->chain;
    *at = submission->chain;
    if (submission->cancel_listed) { /* cancelled in the moment when it ended by itself */
        assert(submission->cancelled);
        assert(submission->cancel_prev ? submission->cancel_prev->cancel_next == submission : m->cancels == submission);
        if (submission->cancel_prev)
            submission->cancel_prev->cancel_next = submission->cancel_next;
        else
            m->cancels = submission->cancel_next;
        if (submission->cancel_next) submission->cancel_next->cancel_prev = submission->cancel_prev;
    }
    mailbox_leave_queue(m, submission);
    mailbox_leave_place(m, submission);
    assert(m->n_live > m->n_waiting);
    m->n_live--;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_append(struct mailbox_events *events, struct mailbox_event *event) {
    assert(!events->head == !events->tail);
    event->next = NULL;
    if (events->tail)
        events->tail->next = event;
    else
        events->head = event;
    events->tail = event;
}

void mailbox_post(struct mailbox *m, struct mailbox_events *events) {
    if (!events->head) return;
    pthread_mutex_lock(&m->out_lock);
    assert(!m->out.head == !m->out.tail);
    if (m->out.tail)
        m->out.tail->next = events->head;
    else
        m->out.head = events->head;
    m->out.tail = events->tail;
    pthread_mutex_unlock(&m->out_lock);
    *events = (struct mailbox_events){0};
}

struct mailbox_event *mailbox_take(struct mailbox *m) {
    pthread_mutex_lock(&m->out_lock);
    struct mailbox_event *head = m->out.head;
    m->out = (struct mailbox_events){0};
    pthread_mutex_unlock(&m->out_lock);
    return head;
}

void mailbox_count(struct mailbox *m, struct mailbox_counts *out) {
    pthread_mutex_lock(&m->lock);
    *out = (struct mailbox_counts){m->n_live, m->n_waiting, m->waiting_tok};
    pthread_mutex_unlock(&m->lock);
}
