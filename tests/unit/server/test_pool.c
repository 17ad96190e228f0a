/* test_pool.c - in which order work gets to libuv's threads: queues that alternate, threads that one leaves to the
 * others, work that is cancelled. Work stands still until the test lets it go on, so that the order is known. */
#include "server/base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { THREADS = 3, MANY = 64 };

struct task {
    struct pool_work work;
    struct setup *setup;
    char name;
    bool gone;
};

struct setup {
    uv_loop_t loop;
    struct pool pool;
    struct pool_queue a, b, c;
    struct task tasks[MANY];
    unsigned n_tasks, n_done;
    uv_sem_t go;
    uv_mutex_t lock;
    char begun[MANY + 1], ended[MANY + 1]; /* names, in their order */
};

static void append(char *text, char name) {
    const size_t n = strlen(text);
    text[n] = name;
    text[n + 1] = 0;
}

static void run(void *arg) {
    struct task *t = arg;
    uv_mutex_lock(&t->setup->lock);
    append(t->setup->begun, t->name);
    uv_mutex_unlock(&t->setup->lock);
    uv_sem_wait(&t->setup->go);
}

static void done(void *arg) {
    struct task *t = arg;
    assert_false(t->gone);
    t->gone = true;
    t->setup->n_done++;
    append(t->setup->ended, t->name);
}

static struct task *add(struct setup *b, struct pool_queue *queue, char name) {
    struct task *t = &b->tasks[b->n_tasks++];
    *t = (struct task){.setup = b, .name = name};
    t->work = (struct pool_work){.run = run, .done = done, .arg = t, .n_bytes = 10};
    pool_add(&b->pool, queue, &t->work);
    return t;
}

/* Until so many have begun; longer than that nobody waits for a thread. */
static void wait_begun(struct setup *b, size_t n) {
    size_t begun = 0;
    for (int i = 0; i < 5000 && begun < n; i++) {
        uv_mutex_lock(&b->lock);
        begun = strlen(b->begun);
        uv_mutex_unlock(&b->lock);
        if (begun < n) uv_sleep(1);
    }
    if (begun != n) fail_msg("%zu have begun, not %zu: '%s'", begun, n, b->begun);
}

static unsigned n_ran(const struct setup *b) {
    unsigned n = 0;
    for (unsigned i = 0; i < b->n_tasks; i++) n += b->tasks[i].gone && !b->tasks[i].work.cancelled;
    return n;
}

/* Each that ends lets the next one begin, which is known before the next ends. */
static void end_all(struct setup *b) {
    while (b->pool.n_running) {
        const unsigned before = n_ran(b);
        uv_sem_post(&b->go);
        while (n_ran(b) == before) uv_run(&b->loop, UV_RUN_ONCE);
        wait_begun(b, n_ran(b) + b->pool.n_running);
    }
    while (b->n_done < b->n_tasks) uv_run(&b->loop, UV_RUN_ONCE);
}

static int open_setup(void **state) {
    struct setup *b = calloc(1, sizeof *b);
    char message[256];
    assert_non_null(b);
    assert_int_equal(uv_loop_init(&b->loop), 0);
    if (pool_start(&b->pool, &b->loop, message, sizeof message)) fail_msg("%s", message);
    assert_int_equal(b->pool.n_threads, THREADS);
    uv_sem_init(&b->go, 0);
    uv_mutex_init(&b->lock);
    *state = b;
    return 0;
}

static int close_setup(void **state) {
    struct setup *b = *state;
    assert_int_equal(b->n_done, b->n_tasks);
    assert_int_equal(b->pool.n_bytes + b->a.n_bytes + b->b.n_bytes + b->c.n_bytes, 0);
    assert_int_equal(b->pool.n_running + b->a.n_running + b->b.n_running + b->c.n_running, 0);
    assert_int_equal(b->pool.queues.n, 0);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    uv_sem_destroy(&b->go);
    uv_mutex_destroy(&b->lock);
    free(b);
    return 0;
}

static void one_queue_has_all_threads_and_keeps_its_order(void **state) {
    struct setup *b = *state;
    for (char name = 'p'; name < 'x'; name++) add(b, &b->a, name);
    assert_int_equal(b->a.n_bytes, 80);
    wait_begun(b, THREADS);
    assert_int_equal(b->pool.n_running, THREADS);
    end_all(b);
    assert_memory_equal(b->begun + THREADS, "stuvw", 6); /* the first three begin in any order */
}

static void queues_take_turns(void **state) {
    struct setup *b = *state;
    for (int i = 0; i < 10; i++) add(b, &b->a, 'a');
    for (int i = 0; i < 3; i++) add(b, &b->b, 'b');
    add(b, &b->c, 'c');
    wait_begun(b, THREADS);
    end_all(b);
    assert_string_equal(b->begun, "aaaabcababaaaa");
}

static void one_line_leaves_a_thread_to_the_others(void **state) {
    struct setup *b = *state;
    b->a.n_leaves = b->b.n_leaves = b->c.n_leaves = 1;
    for (int i = 0; i < 6; i++) add(b, &b->a, 'a');
    wait_begun(b, 2);
    assert_int_equal(b->pool.n_running, 2);
    add(b, &b->b, 'b'); /* while both of a go on */
    wait_begun(b, 3);
    assert_string_equal(b->begun, "aab");
    add(b, &b->c, 'c');
    end_all(b);
    assert_int_equal(strlen(b->begun), 8);
    if (b->begun[3] != 'c' && b->begun[4] != 'c') fail_msg("'%s': c waits for more than one of a", b->begun);
}

/* Else it would wait for ever where there is one thread. */
static void a_line_that_leaves_all_threads_still_has_one(void **state) {
    struct setup *b = *state;
    b->a.n_leaves = THREADS;
    for (int i = 0; i < 3; i++) add(b, &b->a, 'a');
    wait_begun(b, 1);
    assert_int_equal(b->pool.n_running, 1);
    end_all(b);
    assert_string_equal(b->begun, "aaa");
}

/* First, last, in the middle, the only one of its queue; done comes for each, later, and none has run. */
static void what_waits_can_be_cancelled(void **state) {
    struct setup *b = *state;
    struct task *t[9];
    for (int i = 0; i < 8; i++) t[i] = add(b, &b->a, (char)('0' + i));
    t[8] = add(b, &b->b, 'b');
    wait_begun(b, THREADS);
    pool_cancel(&t[3]->work);
    pool_cancel(&t[5]->work);
    pool_cancel(&t[7]->work);
    pool_cancel(&t[8]->work);
    assert_int_equal(b->n_done, 0);
    add(b, &b->a, 'x');
    end_all(b);
    assert_int_equal(b->n_done, 10);
    assert_memory_equal(b->begun + THREADS, "46x", 4);
    for (int i = 0; i < 9; i++) assert_true(t[i]->gone);
}

static void what_has_begun_goes_on(void **state) {
    struct setup *b = *state;
    struct task *t = add(b, &b->a, 'a');
    wait_begun(b, 1);
    pool_cancel(&t->work);
    uv_run(&b->loop, UV_RUN_NOWAIT);
    assert_int_equal(b->n_done, 0);
    end_all(b);
}

int main(void) {
    setenv("UV_THREADPOOL_SIZE", "3", 1);
#define ON_A_SETUP(test) cmocka_unit_test_setup_teardown(test, open_setup, close_setup)
    const struct CMUnitTest tests[] = {
        ON_A_SETUP(one_queue_has_all_threads_and_keeps_its_order),
        ON_A_SETUP(queues_take_turns),
        ON_A_SETUP(one_line_leaves_a_thread_to_the_others),
        ON_A_SETUP(a_line_that_leaves_all_threads_still_has_one),
        ON_A_SETUP(what_waits_can_be_cancelled),
        ON_A_SETUP(what_has_begun_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
