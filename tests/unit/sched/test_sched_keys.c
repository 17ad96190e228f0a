/* test_sched_keys.c - keys that share the slots, in virtual time: what each is served, by its weight. */
#include "engine/base/philox.h"
#include "tests/sched_setup.h"

static struct sched_req request_of(uint32_t key, uint32_t weight, uint64_t n_prompt) {
    return (struct sched_req){.n_prompt = n_prompt, .key = key, .weight = weight};
}

/* Runs until r has had n_out tokens or, where it never decodes, is read; then takes it out. */
static void serve_whole(struct sched *s, struct sched_req *r, uint64_t n_out) {
    struct sched_row rows[MAX_SLOTS];
    uint32_t n;
    while (r->n_out < n_out) run_step(s, rows, &n);
    sched_remove(s, r);
}

static void a_flood_of_one_key_does_not_delay_another(void **state) {
    (void)state;
    enum { N = 200 };
    struct sched s;
    make(&s, 1, 64, 64, 8);
    struct sched_req flood[N], one;
    for (int i = 0; i < N; i++) {
        flood[i] = request_of(1, 0, 5);
        sched_submit(&s, &flood[i], 0);
    }
    int next = 0;
    for (int round = 0; round < 20; round++) { /* the other key asks again as soon as it has its answer */
        one = request_of(2, 0, 5);
        sched_submit(&s, &one, 0);
        int before = next;
        for (;;) {
            struct sched_req *r = sched_admit(&s, 0);
            assert_non_null(r);
            serve_whole(&s, r, 4);
            if (r == &one) break;
            assert_ptr_equal(r, &flood[next]); /* within a key: first come, first served */
            next++;
        }
        if (next - before > 1) fail_msg("round %d: %d of the flood went before", round, next - before);
    }
    assert_true(next >= 19); /* and the flood goes on */
    assert_int_equal(s.n_queued, N - next);
    for (struct sched_req *r; (r = sched_next(&s));) sched_remove(&s, r);
    assert_int_equal(s.n_queued, 0);
    sched_fini(&s);
}

static void keys_get_tokens_by_their_weights_whatever_their_requests_are_like(void **state) {
    (void)state;
    enum { KEYS = 3, EACH = 8 };
    static const uint32_t weights[KEYS] = {1, 2, 4};
    struct sched s;
    make(&s, 6, 512, 64, 8);
    struct sched_req reqs[KEYS][EACH];
    uint64_t want[KEYS][EACH], served[KEYS] = {0};
    const uint64_t seed = 20261122;
    uint64_t draw = 0;
    struct sched_row rows[MAX_SLOTS];
    for (int step = 0; step < 60000; step++) {
        for (uint32_t k = 0; k < KEYS; k++) { /* all keys always have requests waiting; key 0 has long ones */
            for (int i = 0; i < EACH; i++) {
                struct sched_req *r = &reqs[k][i];
                if (step && r->state != SCHED_NONE) continue;
                *r = request_of(k, weights[k], 1 + (uint64_t)(philox_uniform(seed, draw++, 0) * (k ? 40 : 400)));
                want[k][i] = 1 + (uint64_t)(philox_uniform(seed, draw++, 0) * (k ? 20 : 200));
                sched_submit(&s, r, (uint64_t)step);
            }
        }
        while (sched_admit(&s, (uint64_t)step)) {}
        uint32_t n;
        run_step(&s, rows, &n);
        for (uint32_t i = 0; i < n; i++)
            served[rows[i].req->key] += rows[i].n_tok * (rows[i].pos < rows[i].req->n_prompt ? 1 : 2);
        for (uint32_t k = 0; k < KEYS; k++)
            for (int i = 0; i < EACH; i++)
                if (reqs[k][i].state == SCHED_DECODE && reqs[k][i].n_out >= want[k][i]) sched_remove(&s, &reqs[k][i]);
    }
    for (uint32_t k = 1; k < KEYS; k++) {
        double ratio = (double)served[k] / (double)served[0];
        if (ratio < 0.9 * weights[k] || ratio > 1.1 * weights[k])
            fail_msg("weight %u: %llu tokens, weight 1: %llu (seed %llu)", weights[k], (unsigned long long)served[k],
                     (unsigned long long)served[0], (unsigned long long)seed);
    }
    sched_fini(&s);
}

static void a_key_that_was_away_has_saved_up_nothing(void **state) {
    (void)state;
    enum { N = 60 };
    struct sched s;
    make(&s, 1, 64, 64, 8);
    struct sched_req r, a[N], b[N];
    for (int i = 0; i < 50; i++) { /* key 1 alone, for long */
        r = request_of(1, 0, 8);
        sched_submit(&s, &r, 0);
        assert_ptr_equal(sched_admit(&s, 0), &r);
        serve_whole(&s, &r, 10);
    }
    for (int i = 0; i < N; i++) {
        a[i] = request_of(1, 0, 8);
        b[i] = request_of(2, 0, 8);
        sched_submit(&s, &a[i], 0);
        sched_submit(&s, &b[i], 0);
    }
    int n_b = 0;
    for (int i = 0; i < 20; i++) {
        struct sched_req *next = sched_admit(&s, 0);
        n_b += next->key == 2;
        serve_whole(&s, next, 10);
    }
    if (n_b < 9 || n_b > 11) fail_msg("the key that came back got %d of 20", n_b);
    for (struct sched_req *q; (q = sched_next(&s));) sched_remove(&s, q);
    sched_fini(&s);
}

static void requests_of_every_key_expire(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 64, 64, 8);
    struct sched_req r[4];
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = request_of(i, 0, 5);
        r[i].deadline_ns = 100 * (4 - i);
        sched_submit(&s, &r[i], 0);
    }
    for (uint32_t i = 4; i-- > 0;) {
        assert_null(sched_expire(&s, r[i].deadline_ns - 1));
        assert_ptr_equal(sched_expire(&s, r[i].deadline_ns), &r[i]);
    }
    assert_int_equal(s.n_queued, 0);
    assert_null(sched_admit(&s, 1000));
    sched_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_of_one_key_does_not_delay_another),
        cmocka_unit_test(keys_get_tokens_by_their_weights_whatever_their_requests_are_like),
        cmocka_unit_test(a_key_that_was_away_has_saved_up_nothing),
        cmocka_unit_test(requests_of_every_key_expire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
