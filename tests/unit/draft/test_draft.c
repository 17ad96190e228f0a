/* test_draft.c - drafts are what a plain search finds, whatever was forgotten; and are taken while they pay. */
#include "engine/base/philox.h"
#include "engine/draft/draft_lookup.h"
#include "engine/draft/draft_policy.h"
#include "engine/draft/draft_price.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static struct draft_lookup opened(uint64_t n_tok, const int32_t *prediction, size_t n_prediction) {
    struct draft_lookup l;
    struct rod_error err;
    if (draft_lookup_init(&l, n_tok, prediction, n_prediction, &err)) fail_msg("%s", err.message);
    return l;
}

/* How many tokens that end at a and at b agree, up to the bound. */
static uint32_t agree(const int32_t *ids, uint32_t a, uint32_t b) {
    uint32_t n = 0;
    while (n < DRAFT_MOST_MATCH && n < a && ids[a - 1 - n] == ids[b - 1 - n]) n++;
    return n;
}

/* A few tokens, so that looks do not run out, and texts that repeat. */
static void a_draft_is_what_a_plain_search_finds(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    enum { N = 3000 };
    int32_t *ids = malloc(N * sizeof *ids);
    for (uint32_t world = 0; world < 20; world++) {
        struct draft_lookup l = opened(world % 2 ? N : 10, NULL, 0); /* half of them forget */
        const uint32_t n_kinds = 3 + world * 20;
        for (uint32_t n = 0; n < N; n++) {
            const double x = philox_uniform(seed, world * N + n, 0);
            const bool repeats = n > 50 && philox_uniform(seed, world * N + n, 1) < 0.8;
            ids[n] = repeats ? ids[n - 37] : (int32_t)(x * n_kinds);
            draft_lookup_add(&l, ids[n]);
            int32_t got[8];
            const struct draft_found found = draft_lookup_next(&l, 8, got);
            const uint32_t end = n + 1, first = end - l.n; /* what it still has */
            uint32_t longest = 0, looks = 0;
            for (uint32_t at = end - 1; at > first + 1; at--) {
                const uint32_t most = at - first, both = agree(ids, at, end), match = both < most ? both : most;
                if (match >= 2) looks++;
                if (match > longest) longest = match;
            }
            if (looks >= DRAFT_MAX_LOOKS) continue; /* it may have stopped earlier */
            if (longest < 2 ? found.n : found.n_match != longest)
                fail_msg("RODIMUS_TEST_SEED=%llu world %u token %u: a match of %u with %u tokens, not of %u",
                         (unsigned long long)seed, world, n, found.n_match, found.n, longest);
            if (found.predicted) fail_msg("token %u: a prediction was found, but none was given", n);
        }
        draft_lookup_fini(&l);
    }
    free(ids);
}

static void a_text_that_repeats_itself_goes_on_in_its_draft(void **state) {
    (void)state;
    struct draft_lookup l = opened(100, NULL, 0);
    int32_t got[7];
    for (int i = 0; i < 10; i++) draft_lookup_add(&l, i % 2);
    const struct draft_found found = draft_lookup_next(&l, 7, got);
    assert_int_equal(found.n, 7);
    for (int i = 0; i < 7; i++) assert_int_equal(got[i], i % 2);
    draft_lookup_fini(&l);
}

/* Other tokens in it, as many, do not lose the place; what is left out does, until the text is found again. */
static void a_prediction_is_followed_through_changes(void **state) {
    (void)state;
    int32_t prediction[100], got[4];
    for (int i = 0; i < 100; i++) prediction[i] = 1000 + i;
    struct draft_lookup l = opened(300, prediction, 100);
    for (int i = 0; i < 30; i++) draft_lookup_add(&l, i); /* the prompt */
    struct draft_found found = draft_lookup_next(&l, 4, got);
    assert_true(found.predicted && found.n == 4);
    assert_int_equal(got[0], 1000);
    for (int i = 0; i < 40; i++) draft_lookup_generated(&l, i % 10 == 5 ? 7 : 1000 + i);
    found = draft_lookup_next(&l, 4, got);
    assert_int_equal(found.n, 4);
    assert_int_equal(got[0], 1040);
    for (int i = 60; i < 80; i++) draft_lookup_generated(&l, 1000 + i);
    found = draft_lookup_next(&l, 4, got);
    assert_int_equal(got[0], 1080);
    for (int i = 80; i < 100; i++) draft_lookup_generated(&l, 1000 + i);
    found = draft_lookup_next(&l, 4, got);
    assert_int_equal(found.n, 0); /* behind its end */
    draft_lookup_fini(&l);
}

/* For a session's next turn: at most so many, and nothing of the prediction. */
static void the_last_tokens_are_those_of_the_conversation(void **state) {
    (void)state;
    const int32_t prediction[] = {7, 8, 9};
    struct draft_lookup l = opened(100, prediction, 3), none = {0};
    uint32_t n = 50;
    draft_lookup_recent(&l, &n);
    assert_int_equal(n, 0);
    for (int i = 0; i < 20; i++) draft_lookup_add(&l, 100 + i);
    n = 50;
    const int32_t *ids = draft_lookup_recent(&l, &n);
    assert_int_equal(n, 20);
    for (int i = 0; i < 20; i++) assert_int_equal(ids[i], 100 + i);
    n = 5;
    ids = draft_lookup_recent(&l, &n);
    assert_int_equal(n, 5);
    assert_int_equal(ids[0], 115);
    n = 5;
    assert_null(draft_lookup_recent(&none, &n));
    assert_int_equal(n, 0);
    draft_lookup_fini(&l);
}

static void memory_is_bounded_and_a_token_takes_microseconds(void **state) {
    (void)state;
    struct draft_lookup l = opened((uint64_t)1 << 40, NULL, 0);
    enum { N = 300000 };
    struct timespec began, ended;
    int32_t got[7];
    uint64_t n_found = 0;
    assert_int_equal(l.cap, DRAFT_MAX_TOK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    for (uint32_t i = 0; i < N; i++) {
        draft_lookup_generated(&l, (int32_t)(philox_uniform(1, i, 0) * 300));
        n_found += draft_lookup_next(&l, 7, got).n;
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    const double us =
        ((double)(ended.tv_sec - began.tv_sec) * 1e6 + (double)(ended.tv_nsec - began.tv_nsec) * 1e-3) / N;
    printf("note: %.2f us a token, of %u tokens\n", us, l.n);
    assert_true(n_found > 0 && l.n <= DRAFT_MAX_TOK);
    if (us > 50) fail_msg("%.1f us a token", us);
    draft_lookup_fini(&l);
}

/* ---- policy ---- */

static uint32_t taken(double tokens, double ns, double token_ns, const struct draft_chances *own, uint32_t kind) {
    struct draft_chances copy = *own;
    struct draft_chances none = {0};
    struct draft_step step = {tokens, ns, token_ns};
    return draft_count(&copy, &none, kind, 7, &step);
}

static struct draft_chances after(uint32_t n, uint32_t n_right) {
    struct draft_chances c = {0};
    for (uint32_t i = 0; i < n; i++) draft_judge(&c, 2, 7, i < n_right ? 7 : 0);
    return c;
}

static void drafts_are_taken_while_they_pay(void **state) {
    (void)state;
    const struct draft_chances good = after(30, 30), bad = after(30, 0), first = {0};
    if (taken(1, 100, 3, &good, 2) != 7) fail_msg("cheap rows, right drafts: %u", taken(1, 100, 3, &good, 2));
    if (taken(1, 100, 0, &good, 2)) fail_msg("without a price: %u", taken(1, 100, 0, &good, 2));
    if (taken(1, 100, 3, &bad, 2) > 1) fail_msg("wrong drafts: %u", taken(1, 100, 3, &bad, 2));
    if (taken(1, 100, 60, &first, 0)) fail_msg("dear rows, a short match: %u", taken(1, 100, 60, &first, 0));
    /* 64 sessions wait for each row: a row that is a 64th of the step pays only if its draft is right. */
    if (taken(64, 100, 1.5, &first, 0)) fail_msg("in a full step: %u", taken(64, 100, 1.5, &first, 0));
    if (!taken(64, 100, 0.2, &good, 2)) fail_msg("in a full step of cheap rows: none");
}

static void what_does_not_pay_is_tried_again_seldom(void **state) {
    (void)state;
    struct draft_chances own = after(30, 0);
    struct draft_chances all = own;
    uint32_t n_tried = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        struct draft_step step = {1, 100, 30};
        const uint32_t n = draft_count(&own, &all, 2, 7, &step);
        if (n) draft_judge(&own, 2, n, 0);
        n_tried += n;
    }
    if (n_tried < 3 || n_tried > 40) fail_msg("%u tries in 20000 tokens", n_tried);
}

/* Right drafts in a full step of streams: refused by their price, until a try shows another one. */
static void a_price_is_learned_by_trying(void **state) {
    (void)state;
    struct draft_price price = {0};
    struct draft_chances own = after(30, 30), all = own;
    double ns, token_ns;
    uint32_t n_tried = 0, steps = 0;
    draft_price_of(&price, 8, &ns, &token_ns);
    assert_true(ns == 0 && token_ns == 0);
    for (uint32_t i = 0; i < 40; i++) draft_price_learn(&price, 8, 0, 1000000);
    draft_price_learn(&price, 8, 10, 5000000); /* a slow one */
    for (; n_tried < 100 && steps < 1000; steps++) {
        struct draft_step step = {.tokens = 8};
        draft_price_of(&price, 8, &step.ns, &step.token_ns);
        const uint32_t n = draft_count(&own, &all, 2, 7, &step);
        draft_price_learn(&price, 8, n, 1000000 + 10000 * n);
        n_tried += n;
    }
    if (n_tried < 100) fail_msg("%u draft tokens in %u steps", n_tried, steps);
    draft_price_of(&price, 8, &ns, &token_ns);
    if (token_ns > 60000) fail_msg("%g ns a draft token, which takes 10000", token_ns);
}

/* Whatever was counted, chances stay chances. */
static void chances_stay_between_0_and_1(void **state) {
    (void)state;
    struct draft_chances own = {0}, all = {0};
    for (uint32_t i = 0; i < 100000; i++) {
        const uint32_t kind = (uint32_t)(philox_uniform(3, i, 0) * DRAFT_KINDS),
                       n = (uint32_t)(philox_uniform(3, i, 1) * 8),
                       n_right = (uint32_t)(philox_uniform(3, i, 2) * (n + 1));
        draft_judge(i % 2 ? &own : &all, kind, n, n_right);
        const double p = draft_chance(&own, &all, kind);
        if (!(p > 0 && p < 1)) fail_msg("%g after %u", p, i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_what_a_plain_search_finds),
        cmocka_unit_test(a_text_that_repeats_itself_goes_on_in_its_draft),
        cmocka_unit_test(a_prediction_is_followed_through_changes),
        cmocka_unit_test(the_last_tokens_are_those_of_the_conversation),
        cmocka_unit_test(memory_is_bounded_and_a_token_takes_microseconds),
        cmocka_unit_test(drafts_are_taken_while_they_pay),
        cmocka_unit_test(what_does_not_pay_is_tried_again_seldom),
        cmocka_unit_test(a_price_is_learned_by_trying),
        cmocka_unit_test(chances_stay_between_0_and_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
