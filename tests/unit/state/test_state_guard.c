/* test_state_guard.c - a home that is out of reach: how many calls go through to it, and what forgiving gives back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/base/fail.h"
#include "engine/state/state_guard.h"

#include <string.h>
#include <unistd.h>

struct home {
    unsigned n_calls;
    int rc;
    uint64_t until_ns;
};

static int home_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    struct home *h = arg;
    (void)name, (void)out;
    h->n_calls++;
    return h->rc ? rod_fail(err, h->rc, "It does not answer.") : 0;
}

static void home_hurry(void *arg, uint64_t until_ns) { ((struct home *)arg)->until_ns = until_ns; }

static const struct state_home_calls calls = {.stat = home_stat, .hurry = home_hurry};

struct guarded {
    struct home inner;
    struct state_guard guard;
    struct state_home home;
};

static void begin(struct guarded *g, int rc) {
    g->inner = (struct home){.rc = rc};
    state_guard_init(&g->guard, &(struct state_home){.calls = &calls, .arg = &g->inner, .fenced = true});
    g->home = state_guard_home(&g->guard);
}

/* So many calls of the caller; how many went through. */
static unsigned ask(struct guarded *g, unsigned n, int want) {
    const unsigned before = g->inner.n_calls;
    for (unsigned i = 0; i < n; i++) {
        struct state_disk_version found;
        struct rod_error err;
        const int rc = state_home_stat(&g->home, "x", &found, &err);
        if (rc != want) fail_msg("call %u is %s, want %s", i, rod_code_name(rc), rod_code_name(want));
    }
    return g->inner.n_calls - before;
}

static void after_three_failures_in_a_row_one_call_is_a_trial(void **state) {
    struct guarded g;
    (void)state;
    begin(&g, ROD_EIO);
    assert_int_equal(ask(&g, 2, ROD_EIO), 2);
    assert_false(state_guard_down(&g.guard, NULL));
    g.inner.rc = ROD_ENOTFOUND; /* which is an answer */
    assert_int_equal(ask(&g, 1, ROD_ENOTFOUND), 1);
    g.inner.rc = ROD_EIO;
    assert_int_equal(ask(&g, 2, ROD_EIO), 2);
    assert_false(state_guard_down(&g.guard, NULL));
    assert_int_equal(ask(&g, 10, ROD_EIO), 1);
    struct rod_error why;
    assert_true(state_guard_down(&g.guard, &why));
    assert_string_equal(why.message, "It does not answer.");
    usleep(350000);
    assert_int_equal(ask(&g, 10, ROD_EIO), 1);
    g.inner.rc = 0;
    usleep(350000);
    assert_int_equal(ask(&g, 10, 0), 10);
    state_guard_fini(&g.guard);
}

static void what_is_forgiven_lets_one_call_through_and_no_more_of_a_home_that_is_gone(void **state) {
    struct guarded g;
    (void)state;
    begin(&g, ROD_EIO);
    state_guard_forgive(&g.guard);
    assert_int_equal(ask(&g, 10, ROD_EIO), 3); /* there was nothing to forgive */
    state_guard_forgive(&g.guard);
    assert_false(state_guard_down(&g.guard, NULL));
    assert_int_equal(ask(&g, 10, ROD_EIO), 1);
    assert_true(state_guard_down(&g.guard, NULL));
    state_guard_forgive(&g.guard);
    g.inner.rc = 0; /* it is back */
    assert_int_equal(ask(&g, 10, 0), 10);
    g.inner.rc = ROD_EIO;
    assert_int_equal(ask(&g, 2, ROD_EIO), 2);
    assert_false(state_guard_down(&g.guard, NULL));
    state_guard_fini(&g.guard);
}

static void a_hurry_goes_through(void **state) {
    struct guarded g;
    (void)state;
    begin(&g, 0);
    const struct state_home below = state_home_below(&g.home, "s/");
    state_home_hurry(&below, 7);
    assert_int_equal(g.inner.until_ns, 7);
    state_home_hurry(&below, 0);
    assert_int_equal(g.inner.until_ns, 0);
    state_home_hurry(&(struct state_home){0}, 7); /* there is none */
    state_guard_fini(&g.guard);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_three_failures_in_a_row_one_call_is_a_trial),
        cmocka_unit_test(what_is_forgiven_lets_one_call_through_and_no_more_of_a_home_that_is_gone),
        cmocka_unit_test(a_hurry_goes_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
