/* test_mailbox.c - limits, tickets and order; several submitting threads against one engine thread and one consumer. */
#include "engine/sched/mailbox.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct mailbox make(uint32_t n_slots, uint32_t max_queue, uint64_t max_queue_tok) {
    struct mailbox m;
    assert_int_equal(mailbox_init(&m, n_slots, max_queue, max_queue_tok, NULL), 0);
    return m;
}

static int push(struct mailbox *m, struct submission *submission, uint64_t *ticket, struct rod_error *err) {
    return mailbox_push_all(m, &submission, 1, ticket, err);
}

static void requests_beyond_slots_and_queue_are_refused_until_one_ends(void **state) {
    (void)state;
    struct mailbox m = make(2, 3, 0);
    struct submission submission[6] = {0};
    uint64_t ticket;
    struct rod_error err;
    for (int i = 0; i < 5; i++) assert_int_equal(push(&m, &submission[i], &ticket, &err), 0);
    assert_int_equal(push(&m, &submission[5], &ticket, &err), ROD_EQUEUEFULL);
    assert_non_null(strstr(err.message, "3 wait"));
    mailbox_retire(&m, &submission[0]);
    assert_int_equal(push(&m, &submission[5], &ticket, &err), 0);
    for (int i = 1; i < 6; i++) mailbox_retire(&m, &submission[i]);
    mailbox_fini(&m);
}

static void waiting_prompt_tokens_are_limited_but_not_those_that_find_a_slot(void **state) {
    (void)state;
    struct mailbox m = make(1, 10, 100);
    struct submission a = {.n_tok = 5000}, b = {.n_tok = 60}, c = {.n_tok = 41}, d = {.n_tok = 40};
    uint64_t ticket;
    assert_int_equal(push(&m, &a, &ticket, NULL), 0);
    mailbox_started(&m, &a);
    assert_int_equal(push(&m, &b, &ticket, NULL), 0);
    assert_int_equal(push(&m, &c, &ticket, NULL), ROD_EQUEUEFULL);
    assert_int_equal(push(&m, &d, &ticket, NULL), 0);
    struct mailbox_counts counts;
    mailbox_count(&m, &counts);
    assert_int_equal(counts.n_live, 3);
    assert_int_equal(counts.n_waiting, 2);
    assert_int_equal(counts.waiting_tok, 100);
    mailbox_retire(&m, &a);
    mailbox_retire(&m, &b);
    mailbox_retire(&m, &d);
    mailbox_count(&m, &counts);
    assert_int_equal(counts.n_live + counts.n_waiting + counts.waiting_tok, 0);
    mailbox_fini(&m);
}

static void a_cancel_arrives_once_with_or_after_its_mail_and_never_for_ended_ones(void **state) {
    (void)state;
    struct mailbox m = make(4, 4, 0);
    struct submission a = {0}, b = {0}, c = {0};
    uint64_t ta, tb, tc;
    assert_int_equal(push(&m, &a, &ta, NULL), 0);
    assert_int_equal(push(&m, &b, &tb, NULL), 0);
    assert_int_equal(push(&m, &c, &tc, NULL), 0);
    assert_true(ta != tb && tb != tc);
    mailbox_cancel(&m, tb);
    mailbox_cancel(&m, tb);
    mailbox_cancel(&m, 12345);
    struct mailbox_batch batch;
    mailbox_pop(&m, true, &batch);
    assert_ptr_equal(batch.submits, &a);
    assert_ptr_equal(a.next, &b);
    assert_ptr_equal(b.next, &c);
    assert_ptr_equal(batch.cancels, &b);
    assert_null(b.cancel_next);
    mailbox_cancel(&m, tb);
    mailbox_cancel(&m, ta);
    mailbox_cancel(&m, tc);
    mailbox_retire(&m, &a); /* ended by itself while its cancel was on the way */
    mailbox_retire(&m, &b);
    mailbox_cancel(&m, ta);
    mailbox_pop(&m, false, &batch);
    assert_null(batch.submits);
    assert_ptr_equal(batch.cancels, &c);
    assert_null(c.cancel_next);
    mailbox_retire(&m, &c);
    mailbox_fini(&m);
}

static void what_was_given_away_comes_back_in_order(void **state) {
    (void)state;
    struct mailbox m = make(4, 4, 0);
    struct submission a = {0}, b = {0};
    uint64_t ta, tb;
    struct mailbox_batch batch;
    assert_int_equal(push(&m, &a, &ta, NULL), 0);
    assert_int_equal(push(&m, &b, &tb, NULL), 0);
    mailbox_pop(&m, true, &batch);
    assert_null(batch.returns);
    mailbox_return(&m, &b);
    mailbox_return(&m, &a);
    mailbox_cancel(&m, tb);
    mailbox_pop(&m, true, &batch); /* does not wait */
    assert_null(batch.submits);
    assert_ptr_equal(batch.returns, &b);
    assert_ptr_equal(b.next, &a);
    assert_null(a.next);
    assert_ptr_equal(batch.cancels, &b);
    mailbox_pop(&m, false, &batch);
    assert_null(batch.returns);
    mailbox_retire(&m, &a), mailbox_retire(&m, &b);
    mailbox_fini(&m);
}

/* How many of a key are taken, one by one or all at once. */
static size_t taken(struct mailbox *m, struct submission *of, size_t n, bool together) {
    struct submission *all[100];
    uint64_t tickets[100];
    for (size_t i = 0; i < n; i++) all[i] = &of[i];
    if (together) return mailbox_push_all(m, all, n, tickets, NULL) ? 0 : n;
    for (size_t i = 0; i < n; i++)
        if (mailbox_push_all(m, &all[i], 1, tickets, NULL)) return i;
    return n;
}

static void fill(struct submission *of, size_t n, uint32_t key, uint32_t quota, uint64_t n_tok) {
    for (size_t i = 0; i < n; i++) of[i] = (struct submission){.key = key, .quota = quota, .n_tok = n_tok};
}

/* Whatever a key sends, however late and however much at once, another one finds places. */
static void a_key_leaves_places_of_the_queue_to_others(void **state) {
    (void)state;
    static struct submission flood[100], one[100];
    for (int together = 0; together < 2; together++) {
        struct mailbox m = make(4, 64, 0);
        struct rod_error err;
        uint64_t ticket;
        fill(flood, 100, 1, 4, 10), fill(one, 100, 2, 4, 10);
        size_t n = 55; /* the slots, and four fifths of the queue */
        if (together) {
            assert_int_equal(taken(&m, flood, 56, true), 0);
            assert_int_equal(taken(&m, flood, 55, true), 55);
        } else {
            assert_int_equal(taken(&m, flood, 78, false), 55);
        }
        assert_false(mailbox_fits(&m, 1, 4));
        assert_true(mailbox_fits(&m, 2, 4));
        assert_int_equal(push(&m, &flood[n], &ticket, &err), ROD_EQUEUEFULL);
        assert_non_null(strstr(err.message, "This key has its share of the queue: 51 of 64 places."));
        for (size_t i = 0; i < 4; i++) mailbox_started(&m, &flood[i]); /* the others wait still */
        assert_int_equal(push(&m, &flood[n], &ticket, &err), ROD_EQUEUEFULL);
        assert_int_equal(taken(&m, one, 100, false), 10);
        mailbox_retire(&m, &flood[0]); /* a slot is free: it is for whoever waits, and a place is the flood's again */
        mailbox_started(&m, &flood[4]);
        for (size_t i = 1; i < n; i++) mailbox_retire(&m, &flood[i]);
        for (size_t i = 0; i < 10; i++) mailbox_retire(&m, &one[i]);
        assert_int_equal(taken(&m, flood, 100, false), 55);
        for (size_t i = 0; i < n; i++) mailbox_retire(&m, &flood[i]);
        mailbox_fini(&m);
    }
}

static void a_key_leaves_prompt_tokens_of_the_queue_to_others(void **state) {
    (void)state;
    struct mailbox m = make(1, 100, 1000);
    static struct submission first, flood[100], one[1];
    fill(&first, 1, 3, 4, 5000), fill(flood, 100, 1, 4, 100), fill(one, 1, 2, 4, 100);
    assert_int_equal(taken(&m, &first, 1, false), 1);
    mailbox_started(&m, &first);
    assert_int_equal(taken(&m, flood, 100, false), 8);
    assert_int_equal(taken(&m, one, 1, false), 1);
    mailbox_retire(&m, &first), mailbox_retire(&m, one);
    for (size_t i = 0; i < 8; i++) mailbox_retire(&m, &flood[i]);
    mailbox_fini(&m);
}

/* A turn whose session is being kept has no slot, and takes a place until that is done. */
static void what_left_its_slot_and_lives_on_counts_to_its_key(void **state) {
    (void)state;
    struct mailbox m = make(1, 10, 0);
    static struct submission flood[20], one[2];
    fill(flood, 20, 1, 4, 0), fill(one, 2, 2, 4, 0);
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(taken(&m, &flood[i], 1, false), 1);
        mailbox_started(&m, &flood[i]);
        mailbox_left(&m, &flood[i]);
    }
    assert_int_equal(taken(&m, &flood[9], 1, false), 0);
    assert_int_equal(taken(&m, one, 1, false), 1);
    for (size_t i = 0; i < 9; i++) mailbox_retire(&m, &flood[i]);
    mailbox_retire(&m, one);
    mailbox_fini(&m);
}

static void a_key_alone_has_the_whole_queue(void **state) {
    (void)state;
    struct mailbox m = make(4, 64, 0);
    static struct submission all[100];
    fill(all, 100, 1, 0, 10);
    assert_int_equal(taken(&m, all, 100, false), 68);
    for (size_t i = 0; i < 68; i++) mailbox_retire(&m, &all[i]);
    mailbox_fini(&m);
}

static void after_drain_or_fault_pushes_are_refused_by_name(void **state) {
    (void)state;
    struct mailbox m = make(1, 1, 0);
    struct submission a = {0};
    uint64_t ticket;
    mailbox_refuse(&m, ROD_EDRAINING);
    assert_int_equal(push(&m, &a, &ticket, NULL), ROD_EDRAINING);
    mailbox_refuse(&m, ROD_EDEVICE);
    mailbox_refuse(&m, ROD_EDRAINING);
    assert_int_equal(push(&m, &a, &ticket, NULL), ROD_EDEVICE);
    mailbox_fini(&m);
}

static void events_come_out_in_the_order_posted(void **state) {
    (void)state;
    struct mailbox m = make(1, 1, 0);
    struct mailbox_event e[5];
    struct mailbox_events list = {0};
    assert_null(mailbox_take(&m));
    for (int i = 0; i < 5; i++) {
        mailbox_append(&list, &e[i]);
        if (i == 2) mailbox_post(&m, &list);
    }
    mailbox_post(&m, &list);
    mailbox_post(&m, &list); /* empty */
    struct mailbox_event *at = mailbox_take(&m);
    for (int i = 0; i < 5; i++, at = at->next) assert_ptr_equal(at, &e[i]);
    assert_null(at);
    assert_null(mailbox_take(&m));
    mailbox_fini(&m);
}

/* ---- many threads (the real test runs under TSan) ---- */

enum { N_THREADS = 4, N_EACH = 3000 };
struct letter {
    struct submission submission;
    struct mailbox_event event;
    int thread, number;
    bool was_cancelled;
};
struct shared {
    struct mailbox m;
    atomic_int n_refused;
};
struct submitter {
    struct shared *shared;
    int thread;
    pthread_t id;
};

static void *submit_many(void *arg) {
    struct submitter *s = arg;
    for (int i = 0; i < N_EACH; i++) {
        struct letter *l = calloc(1, sizeof *l);
        l->thread = s->thread;
        l->number = i;
        l->submission.n_tok = 3;
        uint64_t ticket;
        while (push(&s->shared->m, &l->submission, &ticket, NULL)) {
            atomic_fetch_add(&s->shared->n_refused, 1);
            sched_yield();
        }
        if (i % 3 == 0) mailbox_cancel(&s->shared->m, ticket);
    }
    return NULL;
}

static void *serve_all(void *arg) {
    struct shared *shared = arg;
    struct letter *live[64];
    int n_live = 0, n_done = 0;
    while (n_done < N_THREADS * N_EACH) {
        struct mailbox_batch batch;
        mailbox_pop(&shared->m, n_live == 0, &batch);
        for (struct submission *m = batch.submits, *next; m; m = next) {
            next = m->next;
            live[n_live++] = (struct letter *)(void *)m;
            mailbox_started(&shared->m, m);
        }
        for (struct submission *m = batch.cancels; m; m = m->cancel_next)
            ((struct letter *)(void *)m)->was_cancelled = true;
        struct mailbox_events out = {0};
        int keep = 0;
        for (int i = 0; i < n_live; i++) {
            if (!live[i]->was_cancelled && i % 2) {
                live[keep++] = live[i];
                continue;
            }
            mailbox_retire(&shared->m, &live[i]->submission);
            mailbox_append(&out, &live[i]->event);
            n_done++;
        }
        n_live = keep;
        mailbox_post(&shared->m, &out);
    }
    return NULL;
}

static void many_threads_submit_and_cancel_and_nothing_is_lost(void **state) {
    (void)state;
    struct shared shared = {.m = make(4, 28, 0)};
    struct submitter s[N_THREADS];
    pthread_t server;
    pthread_create(&server, NULL, serve_all, &shared);
    for (int i = 0; i < N_THREADS; i++) {
        s[i] = (struct submitter){.shared = &shared, .thread = i};
        pthread_create(&s[i].id, NULL, submit_many, &s[i]);
    }
    bool *seen = calloc(N_THREADS * N_EACH, sizeof *seen);
    for (int n = 0; n < N_THREADS * N_EACH;) {
        struct mailbox_event *e = mailbox_take(&shared.m);
        if (!e) sched_yield();
        while (e) {
            struct letter *l = (struct letter *)(void *)((char *)e - offsetof(struct letter, event));
            e = e->next;
            int id = l->thread * N_EACH + l->number;
            assert_false(seen[id]);
            seen[id] = true;
            free(l);
            n++;
        }
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(s[i].id, NULL);
    pthread_join(server, NULL);
    free(seen);
    mailbox_fini(&shared.m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_beyond_slots_and_queue_are_refused_until_one_ends),
        cmocka_unit_test(waiting_prompt_tokens_are_limited_but_not_those_that_find_a_slot),
        cmocka_unit_test(a_cancel_arrives_once_with_or_after_its_mail_and_never_for_ended_ones),
        cmocka_unit_test(what_was_given_away_comes_back_in_order),
        cmocka_unit_test(a_key_leaves_places_of_the_queue_to_others),
        cmocka_unit_test(a_key_leaves_prompt_tokens_of_the_queue_to_others),
        cmocka_unit_test(what_left_its_slot_and_lives_on_counts_to_its_key),
        cmocka_unit_test(a_key_alone_has_the_whole_queue),
        cmocka_unit_test(after_drain_or_fault_pushes_are_refused_by_name),
        cmocka_unit_test(events_come_out_in_the_order_posted),
        cmocka_unit_test(many_threads_submit_and_cancel_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
