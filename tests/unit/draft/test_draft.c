/* test_draft.c - drafts are what a plain search finds, whatever was forgotten; and are taken while they pay. */
#include "engine/base/philox.h"
#include "engine/draft/draft_lookup.h"
#include "engine/draft/draft_policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static uint64_t seed_of_run(void) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    return given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
}

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
    const uint64_t seed = seed_of_run();
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

/* A source with a name in it every few tokens, and the same text with another name: tokens of it that the draft did not
 * say. */
static uint32_t tokens_not_drafted(uint64_t seed, uint32_t world, bool predicted, uint32_t *n_text) {
    enum { N = 600 };
    int32_t source[N], text[2 * N];
    const uint32_t n_name = 1 + world % 5, n_other = 1 + world / 5 % 5;
    uint32_t n_source = 0, until_name = 3;
    *n_text = 0;
    for (uint32_t i = 0; n_source + n_name < N; i++) {
        if (until_name--) {
            source[n_source++] = text[(*n_text)++] = (int32_t)(10000 + i); /* each once: none agrees by chance */
            continue;
        }
        for (uint32_t k = 0; k < n_name; k++) source[n_source++] = (int32_t)(2000 + k);
        for (uint32_t k = 0; k < n_other; k++) text[(*n_text)++] = (int32_t)(3000 + k);
        until_name = 3 + (uint32_t)(philox_uniform(seed, world * N + i, 1) * 20);
    }
    struct draft_lookup l = opened(4 * N, source, predicted ? n_source : 0);
    for (uint32_t i = 0; i < n_source && !predicted; i++) draft_lookup_add(&l, source[i]);
    draft_lookup_add(&l, 5000); /* the wish has both names */
    for (uint32_t k = 0; k < n_name; k++) draft_lookup_add(&l, (int32_t)(2000 + k));
    draft_lookup_add(&l, 5001);
    for (uint32_t k = 0; k < n_other; k++) draft_lookup_add(&l, (int32_t)(3000 + k));
    draft_lookup_add(&l, 5002);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < *n_text; i++) {
        int32_t got[1];
        wrong += draft_lookup_next(&l, 1, got).n == 0 || got[0] != text[i];
        draft_lookup_generated(&l, text[i]);
    }
    draft_lookup_fini(&l);
    return wrong;
}

static void a_name_that_is_replaced_is_drafted_from_its_second_place_on(void **state) {
    (void)state;
    const uint64_t seed = seed_of_run();
    for (uint32_t world = 0; world < 100; world++) {
        uint32_t n_text;
        const uint32_t wrong = tokens_not_drafted(seed, world, world % 2, &n_text);
        /* the first pair, the first name, and a pair or two until text and source are seen to meet again */
        if (wrong > 14)
            fail_msg("RODIMUS_TEST_SEED=%llu world %u: %u of %u tokens were not drafted, of 14 at most",
                     (unsigned long long)seed, world, wrong, n_text);
    }
}

static void what_is_left_out_or_put_in_is_too(void **state) {
    (void)state;
    int32_t source[120], text[120], got[8];
    uint32_t n = 0;
    for (int i = 0; i < 120; i++) source[i] = i % 20 == 10 ? 500 : i % 20 == 15 ? 600 : 1000 + i;
    for (int i = 0; i < 100; i++) {
        if (source[i] == 600) text[n++] = 601; /* before it */
        if (source[i] != 500) text[n++] = source[i];
    }
    struct draft_lookup l = opened(400, source, 120);
    for (uint32_t i = 0; i < n; i++) {
        const struct draft_found found = draft_lookup_next(&l, 8, got);
        for (uint32_t k = 0; i >= 20 && k < 8 && i + k < n; k++)
            if (k >= found.n || got[k] != text[i + k])
                fail_msg("token %u: the draft's number %u of %u is %d, not %d", i, k, found.n, got[k], text[i + k]);
        draft_lookup_generated(&l, text[i]);
    }
    draft_lookup_fini(&l);
}

/* What was left out first and is replaced later is drafted replaced; what is put in is not put in again where the text
 * itself goes on. */
static void changes_that_change_are_learned_anew(void **state) {
    (void)state;
    int32_t source[240], got[3];
    for (int i = 0; i < 240; i++) source[i] = i % 20 == 10 ? 7 : 1000 + i;
    struct draft_lookup l = opened(500, source, 240);
    uint32_t n_wrong = 0;
    for (int i = 0; i < 240; i++) {
        const int32_t id = source[i] == 7 ? 8 : source[i];
        if (i == 10) continue; /* left out */
        n_wrong += draft_lookup_next(&l, 1, got).n == 0 || got[0] != id;
        draft_lookup_generated(&l, id);
    }
    if (n_wrong > 6) fail_msg("%u tokens were not drafted, of 6 at most", n_wrong);
    draft_lookup_fini(&l);
    static const int32_t prompt[] = {1, 2, 3, 7, 40, 41, 42, 43, 99},
                         text[] = {1, 2, 3, 6, 7, 40, 41, 42, 43, 90, 91, 92, 93, 94, 3, 6};
    l = opened(100, NULL, 0);
    for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++) draft_lookup_add(&l, prompt[i]);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) draft_lookup_generated(&l, text[i]);
    assert_int_equal(draft_lookup_next(&l, 3, got).n, 3);
    assert_int_equal(got[0], 7);
    assert_int_equal(got[1], 40);
    draft_lookup_fini(&l);
}

/* Where the source stands after all, it is drafted again. */
static void a_change_that_was_not_made_again_is_forgotten(void **state) {
    (void)state;
    int32_t source[100], got[2];
    for (int i = 0; i < 100; i++) source[i] = i % 20 == 10 ? 500 : 1000 + i;
    struct draft_lookup l = opened(300, source, 100);
    for (int i = 0; i < 30; i++) draft_lookup_generated(&l, i == 10 ? 600 : source[i]);
    assert_int_equal(draft_lookup_next(&l, 2, got).n, 2);
    assert_int_equal(got[0], 600);
    for (int i = 30; i < 50; i++) draft_lookup_generated(&l, source[i]);
    assert_int_equal(draft_lookup_next(&l, 2, got).n, 2);
    assert_int_equal(got[0], 500);
    draft_lookup_fini(&l);
}

/* Texts of few tokens, which part and meet everywhere, in a lookup that forgets. */
static void drafts_are_tokens_of_the_text_whatever_it_says(void **state) {
    (void)state;
    const uint64_t seed = seed_of_run();
    for (uint32_t world = 0; world < 60; world++) {
        int32_t prediction[200];
        const int kinds = 2 + (int)(world % 7);
        for (uint32_t i = 0; i < 200; i++) prediction[i] = (int32_t)(philox_uniform(seed, world * 1000 + i, 0) * kinds);
        struct draft_lookup l = opened(world % 3 ? 10 : 500, prediction, world % 4 * 60);
        for (uint32_t i = 0; i < 3000; i++) {
            int32_t got[7];
            const struct draft_found found = draft_lookup_next(&l, 1 + i % 7, got);
            for (uint32_t k = 0; k < found.n; k++)
                if (got[k] < 0 || got[k] >= kinds)
                    fail_msg("RODIMUS_TEST_SEED=%llu world %u: token %d of a draft", (unsigned long long)seed, world,
                             got[k]);
            const bool follows = found.n && philox_uniform(seed, world * 5000 + i, 2) < 0.7;
            draft_lookup_generated(&l, follows ? got[0] : (int32_t)(philox_uniform(seed, world * 5000 + i, 1) * kinds));
            for (uint32_t e = 0; e < l.follow.n_edits; e++)
                for (uint32_t k = 0; k < DRAFT_EDIT_TOK; k++)
                    if ((k < l.follow.edits[e].n_from && l.follow.edits[e].from[k] < 0) ||
                        (k < l.follow.edits[e].n_to && l.follow.edits[e].to[k] < 0))
                        fail_msg("RODIMUS_TEST_SEED=%llu world %u: an edit goes over a source's end",
                                 (unsigned long long)seed, world);
            if (l.follow.at != DRAFT_NOWHERE && l.ids[l.follow.at] < 0)
                fail_msg("RODIMUS_TEST_SEED=%llu world %u: a source's end is followed", (unsigned long long)seed,
                         world);
        }
        draft_lookup_fini(&l);
    }
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

static const double STEP_NS = 1e6;

/* Steps of so many streams without drafts, begun ahead, and with 1, 2, 7 and 56 drafts. */
static struct draft_price known_price(uint32_t streams, double token_ns, double fixed_ns) {
    static const uint32_t drafts[] = {1, 2, 7, 56};
    struct draft_price p = {0};
    for (int i = 0; i < 8; i++) {
        draft_price_learn(&p, streams, 0, true, (uint64_t)STEP_NS);
        draft_price_learn(&p, streams, 0, false, (uint64_t)(STEP_NS + fixed_ns));
    }
    for (int k = 0; k < 4; k++)
        draft_price_learn(&p, streams, drafts[k], false, (uint64_t)(STEP_NS + fixed_ns + token_ns * drafts[k]));
    return p;
}

/* Of a draft of 7 by each of so many streams. */
static uint32_t taken(uint32_t streams, double token_ns, double fixed_ns, double chance) {
    const struct draft_price price = known_price(streams, token_ns, fixed_ns);
    const struct draft_offer offer = {1, chance, chance, 7};
    struct draft_offers offers = {0};
    for (uint32_t i = 0; i < streams; i++) draft_offer_add(&offers, &offer);
    const double plain = draft_price_plain(&price, streams, true);
    return draft_offer_taken(&offer, draft_offers_settle(&offers, &price, streams, UINT32_MAX, plain));
}

static void drafts_are_taken_while_they_pay(void **state) {
    (void)state;
    const struct {
        uint32_t streams;
        double token_ns, fixed_ns, chance;
        uint32_t least, most;
    } cases[] = {
        {1, 0.03 * STEP_NS, 0, 0.95, 7, 7},
        {1, 0.03 * STEP_NS, 0, 0.03, 0, 0},
        {1, 0.60 * STEP_NS, 0, 0.25, 0, 0},
        {8, 0.01 * STEP_NS, 0.3 * STEP_NS, 0.9, 4, 7},
        {8, 0.01 * STEP_NS, 0.3 * STEP_NS, 0.2, 0, 0}, /* the wait alone takes more than they give */
        {64, 0.015 * STEP_NS, 0, 0.25, 0, 0},          /* a row is a 64th of the step, and seldom right */
        {64, 0.002 * STEP_NS, 0, 0.9, 4, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t n = taken(cases[i].streams, cases[i].token_ns, cases[i].fixed_ns, cases[i].chance);
        if (n < cases[i].least || n > cases[i].most)
            fail_msg("case %zu: %u draft tokens, not %u to %u", i, n, cases[i].least, cases[i].most);
    }
    const struct draft_price none = {0};
    const struct draft_offer offer = {1, 0.9, 0.9, 7};
    struct draft_offers offers = {0};
    draft_offer_add(&offers, &offer);
    assert_true(draft_price_plain(&none, 1, true) == 0);
    assert_int_equal(draft_offers_settle(&offers, &none, 1, UINT32_MAX, 0), DRAFT_CLASSES);
}

static void surer_drafts_are_taken_first(void **state) {
    (void)state;
    const struct draft_price price = known_price(8, 0.01 * STEP_NS, 0.02 * STEP_NS);
    const struct draft_offer sure = {1, 0.95, 0.95, 7}, unsure = {1, 0.06, 0.06, 7};
    struct draft_offers offers = {0};
    for (int i = 0; i < 4; i++) draft_offer_add(&offers, &sure), draft_offer_add(&offers, &unsure);
    const uint32_t class = draft_offers_settle(&offers, &price, 8, UINT32_MAX, draft_price_plain(&price, 8, true));
    const uint32_t n_sure = draft_offer_taken(&sure, class), n_unsure = draft_offer_taken(&unsure, class);
    if (n_sure < 4 || n_unsure > 0) fail_msg("%u of the sure draft, %u of the unsure one", n_sure, n_unsure);
}

/* Eight streams of which one repeats itself: the others are not to wait for it. */
static void drafts_of_one_stream_do_not_slow_many(void **state) {
    (void)state;
    const struct draft_price price = known_price(8, 0.005 * STEP_NS, 0.5 * STEP_NS);
    const struct draft_offer sure = {1, 0.98, 0.98, 7};
    const double plain = draft_price_plain(&price, 8, true);
    struct draft_offers one = {0}, all = {0};
    draft_offer_add(&one, &sure);
    for (int i = 0; i < 8; i++) draft_offer_add(&all, &sure);
    const uint32_t n_one = draft_offer_taken(&sure, draft_offers_settle(&one, &price, 8, UINT32_MAX, plain)),
                   n_all = draft_offer_taken(&sure, draft_offers_settle(&all, &price, 8, UINT32_MAX, plain));
    if (n_one > 0 || n_all < 6) fail_msg("%u of one stream, %u of each of eight", n_one, n_all);
}

/* Room for less than a token of each: what is counted as gained and paid is what the step will have. */
static void a_step_without_room_for_all_drafts_takes_what_fits(void **state) {
    (void)state;
    const struct draft_price price = known_price(8, 0.005 * STEP_NS, 0.1 * STEP_NS);
    const struct draft_offer sure = {1, 0.98, 0.98, 7};
    const double plain = draft_price_plain(&price, 8, true);
    struct draft_offers all = {0};
    for (int i = 0; i < 8; i++) draft_offer_add(&all, &sure);
    const uint32_t none = draft_offers_settle(&all, &price, 8, 0, plain),
                   one = draft_offers_settle(&all, &price, 8, 1, plain),
                   eight = draft_offers_settle(&all, &price, 8, 8, plain);
    /* one token does not pay for what eight streams wait for it; eight do */
    if (none != DRAFT_CLASSES || one != DRAFT_CLASSES || eight == DRAFT_CLASSES)
        fail_msg("from class %u on of room for none, %u for one, %u for eight", none, one, eight);
}

static void room_is_shared_by_all_that_offer(void **state) {
    (void)state;
    static const uint32_t cases[][4] = {/* offers, tokens, room, each */
                                        {32, 224, 32, 1},
                                        {32, 224, 31, 1},
                                        {16, 112, 48, 3},
                                        {3, 21, 10, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t n = draft_offer_most(cases[i][0], cases[i][1], cases[i][2]);
        if (n != cases[i][3]) fail_msg("case %zu: %u tokens each, not %u", i, n, cases[i][3]);
    }
    assert_true(draft_offer_most(8, 56, 56) >= 7);
    assert_true(draft_offer_most(0, 0, 0) >= 7);
}

static void prices_lie_between_those_measured(void **state) {
    (void)state;
    const double token_ns = 0.02 * STEP_NS, fixed_ns = 0.1 * STEP_NS;
    const struct draft_price price = known_price(8, token_ns, fixed_ns);
    const double plain = draft_price_plain(&price, 8, true);
    for (int d = 0; d <= 80; d++) {
        const double ns = draft_price_of(&price, 8, d, plain), is = STEP_NS + fixed_ns + token_ns * d;
        if (fabs(ns - is) > 0.1 * is) fail_msg("%d drafts: %g ns, not %g", d, ns, is);
    }
}

static void a_plain_time_is_measured_again_after_many_steps_with_drafts(void **state) {
    (void)state;
    struct draft_price price = known_price(4, 1000, 0);
    for (int i = 0; i < 300; i++) draft_price_learn(&price, 4, 3, false, (uint64_t)STEP_NS);
    assert_true(draft_price_plain(&price, 4, true) == 0);
    draft_price_learn(&price, 4, 0, true, (uint64_t)(STEP_NS / 2));
    draft_price_learn(&price, 4, 0, true, (uint64_t)(STEP_NS / 2));
    const double plain = draft_price_plain(&price, 4, true);
    if (plain > 0.7 * STEP_NS) fail_msg("%g ns, not some %g", plain, STEP_NS / 2);
}

/* What drafts really give and take. */
struct machine {
    uint32_t streams;
    double wait, jump, token; /* in plain steps: behind a step; of any drafts; of each */
    double right;             /* of a draft token of the kind that text has */
    double stalls;            /* how many steps in one take 8 plain ones more: the machine did something else */
    uint32_t seed;
};

/* How many times as many tokens as steps without drafts give in this time, by steps that are planned as draft_use.c
 * plans them. */
static double lived(const struct machine *m, uint32_t n_steps) {
    struct draft_price price = {0};
    struct draft_chances all = {0}, own[256] = {{{{0, 0}}, {0}, {0}}};
    struct draft_account account = {0};
    struct draft_tries tries = {0};
    double time = 0, tokens = 0;
    bool late = false;
    for (uint32_t step = 0; step < n_steps; step++) {
        const double plain = draft_price_plain(&price, m->streams, true);
        struct draft_offers offers = {0};
        struct draft_offer offer[256];
        uint32_t n_drafts = 0, n_right = 0;
        for (uint32_t i = 0; i < m->streams; i++) {
            const double p = draft_chance(&own[i], &all, 0);
            const bool found = philox_uniform(m->seed * 100000 + step, i, 11) < 0.5;
            offer[i] = (struct draft_offer){1, p, p, found ? 7 : 0};
            draft_offer_add(&offers, &offer[i]);
        }
        uint32_t class = draft_offers_settle(&offers, &price, m->streams, UINT32_MAX, plain);
        if (class < DRAFT_CLASSES)
            tries.n = 0;
        else if (plain > 0 && draft_account_rich(&account))
            class = draft_offers_try(&offers, &tries);
        for (uint32_t i = 0; i < m->streams && draft_account_allows(&account); i++) {
            uint32_t n = draft_offer_taken(&offer[i], class), right = 0;
            if (!n) n = offer[i].n && draft_try(&own[i], 0);
            if (n) draft_tried(&own[i], 0);
            while (right < n && philox_uniform(m->seed * 100000 + step, i, 20 + right) < m->right) right++;
            draft_judge(&own[i], 0, n, right);
            draft_judge(&all, 0, n, right);
            n_drafts += n, n_right += right;
        }
        const bool behind = late || n_drafts;
        const double noise = 0.9 + 0.2 * philox_uniform(m->seed * 100000 + step, 0, 12);
        const double stall = philox_uniform(m->seed * 100000 + step, 0, 13) < m->stalls ? 8 : 0;
        const double took = stall + noise * (1 + behind * m->wait + (n_drafts > 0) * m->jump + m->token * n_drafts);
        const double counted = draft_price_learn(&price, m->streams, n_drafts, !behind, (uint64_t)(took * STEP_NS));
        if (plain > 0 && behind)
            draft_account_drafted(&account, plain * (m->streams + n_right) / m->streams, counted, plain);
        else if (plain > 0)
            draft_account_plain(&account);
        late = n_drafts > 0;
        time += took, tokens += m->streams + n_right;
    }
    return tokens / time / m->streams * (1 + 8 * m->stalls);
}

static void text_that_repeats_nothing_loses_less_than_1_percent(void **state) {
    (void)state;
    const uint32_t streams[] = {1, 8, 64, 256};
    const struct machine costs[] = {
        {0, 0.02, 0, 0.01, 0, 0, 0}, {0, 0.05, 0.3, 0.01, 0, 0, 0}, {0, 0.3, 0.3, 0.03, 0, 0, 0}};
    const double rights[] = {0, 0.02, 0.05, 0.1};
    for (int s = 0; s < 4; s++)
        for (int c = 0; c < 3; c++)
            for (int r = 0; r < 4; r++) {
                struct machine m = costs[c];
                m.streams = streams[s], m.right = rights[r];
                const double times = lived(&m, 4000);
                if (times < 0.99)
                    fail_msg("%u streams, wait %g, jump %g, token %g, %g right: %.4f times", m.streams, m.wait, m.jump,
                             m.token, m.right, times);
            }
}

static void text_that_repeats_itself_gains(void **state) {
    (void)state;
    const struct machine one = {1, 0.02, 0, 0.01, 0.75, 0, 0}, eight = {8, 0.05, 0.2, 0.01, 0.75, 0, 0},
                         many = {64, 0.05, 0.1, 0.002, 0.75, 0, 0};
    const double times[] = {lived(&one, 4000), lived(&eight, 4000), lived(&many, 4000)};
    printf("note: %.2f, %.2f, %.2f times at 1, 8, 64 streams\n", times[0], times[1], times[2]);
    if (times[0] < 1.8 || times[1] < 1.3 || times[2] < 1.2) fail_msg("%.2f, %.2f, %.2f", times[0], times[1], times[2]);
}

/* Unless they come at the beginning, when nothing is known. */
static void steps_that_stall_do_not_end_drafts(void **state) {
    (void)state;
    uint32_t n_ended = 0;
    for (uint32_t seed = 0; seed < 200; seed++) {
        const struct machine m = {1, 0, 0, 0.2, 0.9, 0.03, seed};
        n_ended += lived(&m, 1600) < 1.2;
    }
    if (n_ended > 8) fail_msg("drafts of %u lives of 200 gave little: at most 8", n_ended);
}

static void what_does_not_pay_is_tried_again_seldom(void **state) {
    (void)state;
    struct draft_chances own = {0};
    uint32_t n_tried = 0;
    for (uint32_t i = 0; i < 30; i++) draft_judge(&own, 2, 7, 0);
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t n = draft_try(&own, 2);
        if (n) draft_judge(&own, 2, n, 0), draft_tried(&own, 2);
        n_tried += n;
    }
    if (n_tried < 3 || n_tried > 40) fail_msg("%u tries in 20000 tokens", n_tried);
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

/* A prompt of any length leaves a prediction of any length, or its first half of the memory, for the answer. */
static void a_long_prompt_does_not_displace_a_prediction(void **state) {
    (void)state;
    static const uint32_t predicted[] = {40, 5000, 16384, 100000};
    for (size_t c = 0; c < sizeof predicted / sizeof *predicted; c++) {
        int32_t *ids = malloc(predicted[c] * sizeof *ids);
        struct draft_lookup l;
        assert_non_null(ids);
        for (uint32_t i = 0; i < predicted[c]; i++) ids[i] = (int32_t)(1000000 + i);
        assert_int_equal(draft_lookup_init(&l, 1000000, ids, predicted[c], NULL), 0);
        for (uint32_t i = draft_lookup_prompt(&l); i > 0; i--) draft_lookup_add(&l, (int32_t)i);
        for (uint32_t i = 0; i < 30; i++) {
            int32_t next[4];
            const struct draft_found found = draft_lookup_next(&l, 4, next);
            if (!found.predicted || found.n < 4 || next[0] != ids[i])
                fail_msg("prediction of %u, token %u of the answer: %u found", predicted[c], i, found.n);
            draft_lookup_generated(&l, ids[i]);
        }
        draft_lookup_fini(&l);
        free(ids);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_what_a_plain_search_finds),
        cmocka_unit_test(a_text_that_repeats_itself_goes_on_in_its_draft),
        cmocka_unit_test(a_prediction_is_followed_through_changes),
        cmocka_unit_test(a_name_that_is_replaced_is_drafted_from_its_second_place_on),
        cmocka_unit_test(what_is_left_out_or_put_in_is_too),
        cmocka_unit_test(changes_that_change_are_learned_anew),
        cmocka_unit_test(a_change_that_was_not_made_again_is_forgotten),
        cmocka_unit_test(drafts_are_tokens_of_the_text_whatever_it_says),
        cmocka_unit_test(the_last_tokens_are_those_of_the_conversation),
        cmocka_unit_test(memory_is_bounded_and_a_token_takes_microseconds),
        cmocka_unit_test(drafts_are_taken_while_they_pay),
        cmocka_unit_test(surer_drafts_are_taken_first),
        cmocka_unit_test(drafts_of_one_stream_do_not_slow_many),
        cmocka_unit_test(a_step_without_room_for_all_drafts_takes_what_fits),
        cmocka_unit_test(room_is_shared_by_all_that_offer),
        cmocka_unit_test(a_long_prompt_does_not_displace_a_prediction),
        cmocka_unit_test(prices_lie_between_those_measured),
        cmocka_unit_test(a_plain_time_is_measured_again_after_many_steps_with_drafts),
        cmocka_unit_test(text_that_repeats_nothing_loses_less_than_1_percent),
        cmocka_unit_test(text_that_repeats_itself_gains),
        cmocka_unit_test(steps_that_stall_do_not_end_drafts),
        cmocka_unit_test(what_does_not_pay_is_tried_again_seldom),
        cmocka_unit_test(chances_stay_between_0_and_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
