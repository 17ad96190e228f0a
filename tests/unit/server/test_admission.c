/* test_admission.c - when a refused client should come again, in a time of our own: against slots and a queue that are
 * played here, where the truth is known. */
#include "server/base/admission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define SECOND 1000000000ull

enum { MAX_SLOTS = 64, STEP_MS = 100 };

/* A server: its slots take from the queue, and a request lasts life_ms. Sampled about once a second. */
struct play {
    struct admission a;
    uint64_t ms, n_left, sampled_ms;
    uint32_t n_slots, queue, life_ms;
    uint64_t ends_ms[MAX_SLOTS]; /* 0: free */
    bool stalled;                /* nothing ends */
};

static void play_step(struct play *p) {
    p->ms += STEP_MS;
    for (uint32_t i = 0; i < p->n_slots; i++) {
        if (p->stalled && p->ends_ms[i]) p->ends_ms[i] += STEP_MS;
        if (p->ends_ms[i] > p->ms) continue;
        p->ends_ms[i] = 0;
        if (!p->queue) continue;
        p->queue--;
        p->n_left++;
        p->ends_ms[i] = p->ms + p->life_ms;
    }
    if (p->ms - p->sampled_ms < 1000) return;
    p->sampled_ms = p->ms;
    admission_sample(&p->a, p->ms * 1000000, p->n_left, p->queue, p->n_slots);
}

static void play_for(struct play *p, double seconds) {
    for (const uint64_t until = p->ms + (uint64_t)(seconds * 1000); p->ms < until;) play_step(p);
}

/* What the next one is told; truth: of requests that are all alike. */
static uint64_t told(const struct play *p) { return admission_retry_s(&p->a, p->queue + 1); }

static double truth(const struct play *p) { return (p->queue + 1) * (p->life_ms * 1e-3) / p->n_slots; }

static void assert_near_the_truth(const struct play *p, const char *where) {
    double is = truth(p), says = (double)told(p);
    if (is > ADMISSION_MAX_S) is = ADMISSION_MAX_S;
    if (is < 1) is = 1;
    if (says < is / 2 - 1 || says > is * 2 + 1)
        fail_msg("%s, at %.1f s: %g s is told, and it takes %g", where, (double)p->ms * 1e-3, says, is);
}

/* A full queue for long, slots whose requests began gap_ms one after the other. */
static void play_steady(uint32_t n_slots, uint32_t queue, uint32_t life_ms, uint32_t gap_ms, const char *where) {
    struct play p = {.ms = 1000000, .n_slots = n_slots, .life_ms = life_ms};
    for (uint32_t i = 0; i < n_slots; i++) p.ends_ms[i] = p.ms + life_ms + (uint64_t)i * gap_ms % life_ms;
    const uint64_t began_ms = p.ms;
    while (p.ms < began_ms + 20ull * life_ms + 60000) {
        p.queue = queue;
        play_step(&p);
        if (p.ms - began_ms > 3ull * life_ms + 3000) assert_near_the_truth(&p, where);
    }
}

static void the_wait_is_the_queue_over_its_drain_rate(void **state) {
    (void)state;
    struct admission a = {0};
    assert_int_equal(admission_retry_s(&a, 1000), 1); /* nothing is known */
    for (uint64_t i = 0; i < 40; i++) admission_sample(&a, (100 + i) * SECOND, 10 * i, 1, 4);
    assert_int_equal(admission_retry_s(&a, 5), 1);
    assert_int_equal(admission_retry_s(&a, 100), 10);
    assert_int_equal(admission_retry_s(&a, 101), 11);
    assert_int_equal(admission_retry_s(&a, 1000000), ADMISSION_MAX_S);
    assert_int_equal(admission_retry_s(&a, 0), 1);
}

static void samples_too_close_are_dropped(void **state) {
    (void)state;
    struct admission a = {0};
    for (uint64_t i = 0; i < 1000; i++)
        admission_sample(&a, SECOND + i * 1000000, i, 1, 4); /* a millisecond apart: 1000 a s */
    assert_int_equal(admission_retry_s(&a, 3000), 3);
}

static void a_counter_that_goes_back_for_a_moment_does_no_harm(void **state) {
    (void)state;
    struct admission a = {0};
    for (uint64_t i = 0; i < 41; i++) admission_sample(&a, (100 + i) * SECOND, 50 + 10 * i - i % 2 * 11, 1, 4);
    assert_in_range(admission_retry_s(&a, 100), 9, 12);
}

static void short_requests_are_told_right(void **state) {
    (void)state;
    play_steady(8, 16, 200, 0, "8 slots, 0.2 s");
    play_steady(4, 40, 1000, 130, "4 slots, 1 s");
    play_steady(64, 1000, 2000, 100, "64 slots, 2 s");
}

static void requests_of_half_a_minute_are_told_right_at_every_moment(void **state) {
    (void)state;
    play_steady(4, 8, 30000, 7500, "4 slots, 30 s, spread");
    play_steady(4, 8, 30000, 0, "4 slots, 30 s, all together");
    play_steady(4, 8, 30000, 1100, "4 slots, 30 s, close after one another");
    play_steady(1, 1, 30000, 0, "1 slot, 30 s");
}

static void slots_that_began_together_are_not_measured_by_their_burst_alone(void **state) {
    (void)state;
    play_steady(16, 16, 60000, 1100, "16 slots, 60 s");
    play_steady(64, 8, 300000, 1100, "64 slots, 300 s");
}

/* 20 requests of 3 s come at once to 2 slots and a queue of 6, which is empty after 12 s. */
static void a_first_full_queue_sends_nobody_away_for_long(void **state) {
    (void)state;
    struct play p = {.ms = 1000000, .n_slots = 2, .life_ms = 3000, .queue = 8};
    play_for(&p, 0.5);
    assert_int_equal(told(&p), 1);
    for (int i = 0; i < 115; i++) {
        play_step(&p);
        assert_in_range(told(&p), 1, 12);
    }
    assert_int_equal(p.queue, 0);
}

static void before_one_has_left_the_wait_grows_with_the_time_that_passes(void **state) {
    (void)state;
    struct play p = {.ms = 1000000, .n_slots = 4, .life_ms = 30000, .queue = 12};
    play_for(&p, 2.5);
    assert_in_range(told(&p), 1, 6);
    uint64_t last = told(&p);
    for (int i = 0; i < 26; i++) {
        play_for(&p, 1);
        if (told(&p) < last || told(&p) > last + 3)
            fail_msg("at %.1f s: %d s is told after %d", (double)p.ms * 1e-3, (int)told(&p), (int)last);
        last = told(&p);
    }
    assert_near_the_truth(&p, "just before the first leave");
}

static void a_queue_that_stands_is_told_bit_by_bit(void **state) {
    (void)state;
    struct play p = {.ms = 1000000, .n_slots = 4, .life_ms = 1000};
    for (int i = 0; i < 300; i++, play_step(&p)) p.queue = 9;
    assert_near_the_truth(&p, "before it stands");
    p.stalled = true;
    uint64_t last = told(&p);
    for (int i = 0; i < 100; i++) {
        play_for(&p, 1);
        if (told(&p) < last || told(&p) > last + 3)
            fail_msg("after %d s: %d s is told after %d", i, (int)told(&p), (int)last);
        last = told(&p);
    }
    assert_int_equal(last, ADMISSION_MAX_S);
    p.stalled = false; /* and it is soon forgotten */
    for (int i = 0; i < 300; i++, play_step(&p)) p.queue = 9;
    assert_in_range(told(&p), 1, 2 * (uint64_t)(truth(&p) + 1));
}

static void requests_that_become_short_are_soon_told_right(void **state) {
    (void)state;
    struct play p = {.ms = 1000000, .n_slots = 4, .life_ms = 30000};
    for (int i = 0; i < 3000; i++, play_step(&p)) p.queue = 8;
    p.life_ms = 1000;
    for (int i = 0; i < 600; i++, play_step(&p)) p.queue = 8;
    assert_near_the_truth(&p, "short after long");
}

static void an_idle_time_counts_for_nothing(void **state) {
    (void)state;
    struct play p = {.ms = 1000000, .n_slots = 4, .life_ms = 30000};
    for (int i = 0; i < 3000; i++, play_step(&p)) p.queue = 8;
    p.queue = 0; /* those who wait leave */
    play_for(&p, 100);
    p.queue = 12;
    play_for(&p, 3);
    assert_int_equal(p.queue, 8);
    assert_near_the_truth(&p, "after a short idle time");
    p.queue = 0;
    play_for(&p, 400);
    p.queue = 12;
    p.life_ms = 1000;
    play_step(&p);
    assert_int_equal(told(&p), 1);
    play_for(&p, 1.5);
    assert_in_range(told(&p), 1, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wait_is_the_queue_over_its_drain_rate),
        cmocka_unit_test(samples_too_close_are_dropped),
        cmocka_unit_test(a_counter_that_goes_back_for_a_moment_does_no_harm),
        cmocka_unit_test(short_requests_are_told_right),
        cmocka_unit_test(requests_of_half_a_minute_are_told_right_at_every_moment),
        cmocka_unit_test(slots_that_began_together_are_not_measured_by_their_burst_alone),
        cmocka_unit_test(a_first_full_queue_sends_nobody_away_for_long),
        cmocka_unit_test(before_one_has_left_the_wait_grows_with_the_time_that_passes),
        cmocka_unit_test(a_queue_that_stands_is_told_bit_by_bit),
        cmocka_unit_test(requests_that_become_short_are_soon_told_right),
        cmocka_unit_test(an_idle_time_counts_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
