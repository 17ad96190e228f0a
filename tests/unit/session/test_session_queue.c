/* test_session_queue.c - wait queues and jobs: which turn is next, and where a turn is at each stage. Without threads.
 */
#include "engine/session/session_internal.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { N = 40 };
struct fixture {
    struct sessions s;
    struct rod_turn ask; /* of all turns */
    struct session_turn turns[N];
};

static struct session *add(struct fixture *f, const char *id) {
    struct session *x = session_table_add(&f->s.table, "", id);
    assert_non_null(x);
    return x;
}

static void begin(struct fixture *f) {
    *f = (struct fixture){.s = {.n_threads = 4}};
    for (int i = 0; i < N; i++) f->turns[i].ask = &f->ask;
    pthread_mutex_init(&f->s.lock, NULL);
    pthread_cond_init(&f->s.work, NULL);
    pthread_cond_init(&f->s.keep, NULL);
    list_init(&f->s.jobs);
    list_init(&f->s.writes);
    list_init(&f->s.waiting);
    assert_int_equal(session_table_init(&f->s.table, NULL), 0);
    session_lock(&f->s);
}

static void end(struct fixture *f) {
    session_unlock(&f->s);
    session_table_fini(&f->s.table);
    pthread_mutex_destroy(&f->s.lock);
    pthread_cond_destroy(&f->s.work);
    pthread_cond_destroy(&f->s.keep);
}

static void the_turns_of_a_session_run_in_order_of_arrival(void **state) {
    (void)state;
    struct fixture f;
    struct session_turn *taken[SESSIONS_BATCH];
    begin(&f);
    struct session *x = add(&f, "a");
    for (int i = 0; i < 3; i++) session_queue_add_locked(&f.s, x, &f.turns[i]);
    assert_int_equal(f.s.waiting.n, 3);
    assert_true(session_busy(x));
    for (int i = 0; i < 3; i++) {
        session_queue_start_locked(&f.s, x);
        assert_int_equal(x->hold, SESSION_TURN);
        assert_int_equal(session_queue_take_turns_locked(&f.s, taken), 1);
        assert_ptr_equal(taken[0], &f.turns[i]);
        assert_int_equal(taken[0]->stage, SESSION_STAGE_OPEN);
        assert_int_equal(x->queue.n, 2 - i);
        x->hold = SESSION_FREE;
    }
    assert_int_equal(f.s.waiting.n, 0);
    end(&f);
}

static void a_turn_that_is_tried_again_holds_its_session(void **state) {
    (void)state;
    struct fixture f;
    struct session_turn *taken[SESSIONS_BATCH];
    begin(&f);
    struct session *x = add(&f, "a");
    session_queue_add_locked(&f.s, x, &f.turns[0]);
    session_queue_start_locked(&f.s, x);
    assert_int_equal(session_queue_take_turns_locked(&f.s, taken), 1);
    session_queue_retry_locked(&f.s, taken[0], 7);
    assert_int_equal(f.turns[0].stage, SESSION_STAGE_RETRY);
    assert_int_equal(f.s.waiting.n, 1);
    assert_int_equal(f.s.jobs.n, 0);
    assert_int_equal(x->hold, SESSION_TURN);
    session_queue_reopen_locked(&f.s, taken[0]);
    assert_int_equal(f.s.waiting.n, 0);
    assert_int_equal(session_queue_take_turns_locked(&f.s, taken), 1);
    session_queue_retry_locked(&f.s, taken[0], 8);
    f.turns[0].rc = ROD_ETIMEDOUT;
    session_queue_fail_locked(&f.s, taken[0]);
    assert_int_equal(session_queue_take_turns_locked(&f.s, taken), 1);
    assert_int_equal(taken[0]->stage, SESSION_STAGE_END);
    assert_ptr_equal(taken[0]->session, x); /* it still has to give it back */
    x->hold = SESSION_FREE;
    end(&f);
}

static void a_turn_that_never_held_its_session_ends_without_it(void **state) {
    (void)state;
    struct fixture f;
    begin(&f);
    struct session *x = add(&f, "a");
    for (int i = 0; i < 2; i++) session_queue_add_locked(&f.s, x, &f.turns[i]);
    f.turns[0].rc = ROD_ETIMEDOUT;
    session_queue_fail_locked(&f.s, &f.turns[0]);
    assert_null(f.turns[0].session);
    assert_int_equal(f.turns[0].stage, SESSION_STAGE_END);
    session_queue_remove_locked(&f.s, &f.turns[1]); /* cancelled: no job at all */
    assert_true(session_idle(x));
    assert_int_equal(f.s.jobs.n, 1);
    assert_int_equal(f.s.waiting.n, 0);
    end(&f);
}

/* N ends, an open in the middle: ends are taken together up to a thread's share and the batch, an open alone. */
static void ends_are_taken_together_and_openings_alone(void **state) {
    (void)state;
    struct fixture f;
    struct session_turn *taken[SESSIONS_BATCH];
    begin(&f);
    struct session *x = add(&f, "a");
    size_t n_taken = 0, n_opened = 0;
    for (int i = 0; i < N; i++)
        if (i == N / 2) {
            session_queue_add_locked(&f.s, x, &f.turns[i]);
            session_queue_start_locked(&f.s, x);
        } else {
            session_queue_end_locked(&f.s, &f.turns[i]);
        }
    while (f.s.jobs.n) {
        const size_t share = f.s.jobs.n / 4 + 1, n = session_queue_take_turns_locked(&f.s, taken);
        assert_in_range(n, 1, share);
        for (size_t i = 0; i < n; i++) assert_ptr_equal(taken[i], &f.turns[n_taken++]);
        n_opened += taken[0]->stage == SESSION_STAGE_OPEN;
        assert_true(taken[0]->stage == SESSION_STAGE_END || n == 1);
    }
    assert_int_equal(n_taken, N);
    assert_int_equal(n_opened, 1);
    x->hold = SESSION_FREE;
    end(&f);
}

static void dirty_sessions_are_written_in_order_and_held_meanwhile(void **state) {
    (void)state;
    struct fixture f;
    struct session *taken[SESSIONS_BATCH], *x[SESSIONS_BATCH + 3];
    begin(&f);
    for (int i = 0; i < SESSIONS_BATCH + 3; i++) {
        x[i] = add(&f, (char[]){(char)('a' + i), 0});
        const struct session_metadata m = x[i]->metadata;
        session_table_set(&f.s.table, x[i], &m, session_snapshot_new(0), NULL);
        session_table_set_dirty(&f.s.table, x[i], true);
        session_queue_write_locked(&f.s, x[i]);
        assert_int_equal(x[i]->hold, SESSION_WRITE);
    }
    assert_true(session_folder_writing_locked(&f.s));
    assert_int_equal(session_queue_take_writes_locked(&f.s, taken), SESSIONS_BATCH);
    for (int i = 0; i < SESSIONS_BATCH; i++) assert_ptr_equal(taken[i], x[i]);
    assert_int_equal(session_queue_take_writes_locked(&f.s, taken), 3);
    assert_int_equal(session_queue_take_writes_locked(&f.s, taken), 0);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_turns_of_a_session_run_in_order_of_arrival),
        cmocka_unit_test(a_turn_that_is_tried_again_holds_its_session),
        cmocka_unit_test(a_turn_that_never_held_its_session_ends_without_it),
        cmocka_unit_test(ends_are_taken_together_and_openings_alone),
        cmocka_unit_test(dirty_sessions_are_written_in_order_and_held_meanwhile),
    };
    return cmocka_run_group_tests_name("session_queue", tests, NULL, NULL);
}
