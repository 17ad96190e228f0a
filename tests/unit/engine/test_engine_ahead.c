/* test_engine_ahead.c - the engine over a device that samples: what is on its way when, and what becomes of it. */
#include "tests/engine_setup.h"

static struct rod_request *request(struct answer *a, int32_t first, uint32_t max_tokens) {
    const int32_t ids[3] = {first, 3, 4};
    struct rod_request *r = collect_request(ids, 3, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    return r;
}

/* What a request gets when it has the engine for itself. */
static void alone(int32_t first, uint32_t max_tokens, struct answer *a) {
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    finish(&b, request(a, first, max_tokens), a);
    setup_close(&b);
}

/* Waits at a collect; how many steps are on their way there. */
static unsigned flying(struct setup *b) {
    sem_wait(&b->be->entered);
    return atomic_load(&b->be->n_forwards) - atomic_load(&b->be->n_collects);
}
static void pass(struct setup *b) { sem_post(&b->be->gate); }

static void the_next_step_is_launched_before_the_last_one_is_seen(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .gated = true), CONFIG());
    collect_submit(&b.c, request(&a, 2, 8));
    for (unsigned k = 1; k <= 8; k++) {
        unsigned n = flying(&b); /* the last token's step has no follower */
        if (n != (k < 8 ? 2 : 1)) fail_msg("%u steps on their way at collect %u", n, k);
        assert_int_equal(atomic_load(&b.be->n_collects), k - 1);
        collect_now(&b.c);
        assert_true(a.n_ids < k); /* nothing of a step is told before it is collected */
        pass(&b);
    }
    collect_until(&b.c, &a, 1);
    assert_int_equal(a.n_ids, 8);
    assert_int_equal(atomic_load(&b.be->n_forwards), 8);
    assert_int_equal(atomic_load(&b.be->n_masked), 0);
    collect_free(&a);
    setup_close(&b);
}

static void a_row_that_ended_on_the_device_is_masked_in_the_step_ahead(void **state) {
    (void)state;
    struct setup b;
    struct answer said, other;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY), CONFIG());
    collect_submit(&b.c, collect_request((const int32_t[]){7, 8, 9}, 3, &said)); /* 7 8 9 and the end token */
    collect_submit(&b.c, request(&other, 20, 40));
    collect_until(&b.c, &said, 1);
    collect_until(&b.c, &other, 1);
    collect_assert_ids(&said, (const int32_t[]){7, 8, 9}, 3, "copy");
    assert_int_equal(said.end.stop_id, EOS);
    assert_int_equal(other.n_ids, 40);
    assert_int_equal(atomic_load(&b.be->n_masked), 1);
    for (int i = 0; i < 4; i++)
        if (b.be->slots[i].n_prompt == 3 && b.be->slots[i].said[0] == 7)
            assert_int_equal(b.be->slots[i].pos, 3 + 3); /* what comes after the end token was not read */
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.decode_tok, 3 + 39);
    collect_free(&said);
    collect_free(&other);
    setup_close(&b);
}

static void a_cancel_with_two_steps_on_their_way_frees_the_slot_for_the_next_plan(void **state) {
    (void)state;
    struct setup b;
    struct answer gone, next, want;
    alone(50, 6, &want);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .gated = true), CONFIG());
    collect_submit(&b.c, request(&gone, 2, 1000));
    assert_int_equal(flying(&b), 2);
    pass(&b);
    assert_int_equal(flying(&b), 2);
    collect_submit(&b.c, request(&next, 50, 6));
    rod_cancel(b.c.engine, gone.ticket);
    pass(&b);                        /* the second step is seen; the third is on its way */
    assert_int_equal(flying(&b), 2); /* and behind it the first of the next request */
    assert_int_equal(atomic_load(&b.be->n_forwards), 4);
    assert_int_equal(b.be->slots[0].pos, 3);
    fake_release(b.be);
    collect_until(&b.c, &gone, 1);
    collect_until(&b.c, &next, 1);
    assert_int_equal(gone.end.reason, ROD_FINISH_CANCEL);
    assert_int_equal(gone.n_ids, 2);
    collect_assert_ids(&next, want.ids, want.n_ids, "in the slot of a cancelled request");
    collect_free(&gone);
    collect_free(&next);
    collect_free(&want);
    setup_close(&b);
}

static void a_request_joins_the_step_planned_next(void **state) {
    (void)state;
    struct setup b;
    struct answer first, second, want;
    alone(60, 5, &want);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .gated = true), CONFIG());
    collect_submit(&b.c, request(&first, 2, 50));
    assert_int_equal(flying(&b), 2);
    collect_submit(&b.c, request(&second, 60, 5));
    pass(&b);
    assert_int_equal(flying(&b), 2);
    uint32_t n_read = 0;
    for (int i = 0; i < 4; i++) n_read += b.be->slots[i].n_prompt == 3 && b.be->slots[i].said[0] == 60;
    assert_int_equal(n_read, 1); /* by the third step */
    assert_int_equal(atomic_load(&b.be->n_forwards), 3);
    fake_release(b.be);
    collect_until(&b.c, &second, 1);
    collect_assert_ids(&second, want.ids, want.n_ids, "joined");
    collect_until(&b.c, &first, 1);
    collect_free(&first);
    collect_free(&second);
    collect_free(&want);
    setup_close(&b);
}

static void a_fault_of_a_step_on_its_way_fails_everything(void **state) {
    (void)state;
    struct setup b;
    struct answer a[3];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2, .gated = true), CONFIG());
    for (int i = 0; i < 3; i++) collect_submit(&b.c, request(&a[i], 2 + i, 100));
    atomic_store(&b.be->fail_collect_at, 3);
    fake_release(b.be);
    collect_until(&b.c, a, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(a[i].failed);
        assert_int_equal(a[i].end.error.code, ROD_EDEVICE);
        collect_free(&a[i]);
    }
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_true(stats.failed);
    assert_int_equal(stats.running + stats.queued, 0);
    setup_close(&b);
}

/* The only request is cancelled while the step that fails is on its way: nobody gets the error, the owner must know. */
static void a_fault_that_no_request_hears_of_is_known_to_the_owner(void **state) {
    (void)state;
    struct setup b;
    struct answer gone;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .gated = true), CONFIG());
    collect_submit(&b.c, request(&gone, 2, 1000));
    assert_int_equal(flying(&b), 2);
    assert_false(rod_engine_failed(b.c.engine));
    rod_cancel(b.c.engine, gone.ticket);
    atomic_store(&b.be->fail_collect_at, 2);
    fake_release(b.be);
    collect_until(&b.c, &gone, 1);
    assert_false(gone.failed);
    assert_int_equal(gone.end.reason, ROD_FINISH_CANCEL);
    while (!rod_engine_failed(b.c.engine)) assert_true(collect_wait(&b.c, 10000)); /* by a wake without an event */
    collect_free(&gone);
    setup_close(&b);
}

static void rows_with_stop_strings_are_never_ahead(void **state) {
    (void)state;
    struct setup b;
    struct answer stops, other;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true, .gated = true, .max_batch_tok = 256), CONFIG());
    struct rod_request *r = say(&b, "One day, a little fox went out. The end of it was far.", &stops);
    collect_stop(r, "The end");
    collect_submit(&b.c, r);
    collect_submit(&b.c, request(&other, 60, 60));
    unsigned n_ahead = 0;
    for (unsigned k = 1; !other.ended; k++) {
        const unsigned n = flying(&b);
        collect_now(&b.c); /* its end is told before the next step is planned */
        if (!stops.ended && n != 1) fail_msg("%u steps on their way at collect %u with a stop string", n, k);
        n_ahead += n == 2;
        pass(&b);
        if (k > 50) fake_release(b.be);
        if (k > 50) collect_until(&b.c, &other, 1);
    }
    assert_true(n_ahead > 5); /* alone again, the other one is ahead again */
    assert_string_equal(stops.stop_string, "The end");
    assert_string_equal(stops.text, "One day, a little fox went out. ");
    assert_int_equal(other.n_ids, 60);
    collect_free(&stops);
    collect_free(&other);
    setup_close(&b);
}

static void none_is_launched_behind_a_large_step(void **state) {
    (void)state;
    enum { N = 500 }; /* 192, 192 and 116 of a prompt alone */
    struct setup b;
    struct answer a, other, want, want_other;
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = 2 + i % 60;
    alone(60, 3, &want_other);
    for (int large = 0; large < 2; large++) {
        struct answer *got = large ? &a : &want;
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .max_batch_tok = 192, .shared_tok = large ? 32 : 0, .gated = large),
                   CONFIG());
        struct rod_request *r = collect_request(ids, N, got);
        r->ignore_eos = true;
        r->max_tokens = 3;
        collect_submit(&b.c, r);
        if (large) {
            assert_int_equal(flying(&b), 1);
            collect_submit(&b.c, request(&other, 60, 3)); /* is in the next, and a small one */
            pass(&b);
            assert_int_equal(flying(&b), 2);
            fake_release(b.be);
            collect_until(&b.c, &other, 1);
            collect_assert_ids(&other, want_other.ids, want_other.n_ids, "beside a long prompt");
            collect_free(&other);
        }
        collect_until(&b.c, got, 1);
        assert_int_equal(got->n_ids, 3);
        setup_close(&b);
    }
    collect_assert_ids(&a, want.ids, want.n_ids, "in large steps");
    collect_free(&a), collect_free(&want), collect_free(&want_other);
}

static void a_broken_row_ends_alone_while_its_next_step_is_on_its_way(void **state) {
    (void)state;
    struct setup b;
    struct answer bad, good, want;
    alone(70, 30, &want);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    atomic_store(&b.be->nan_token, 99);
    collect_submit(&b.c, collect_request((const int32_t[]){99}, 1, &bad));
    collect_submit(&b.c, request(&good, 70, 30));
    collect_until(&b.c, &bad, 1);
    collect_until(&b.c, &good, 1);
    assert_true(bad.failed);
    assert_int_equal(bad.end.error.code, ROD_EINTERNAL);
    collect_assert_ids(&good, want.ids, want.n_ids, "beside a broken row");
    collect_free(&bad);
    collect_free(&good);
    collect_free(&want);
    setup_close(&b);
}

static void closing_with_two_steps_on_their_way_frees_everything(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .gated = true), CONFIG());
    collect_submit(&b.c, request(&a, 2, 1000000));
    assert_int_equal(flying(&b), 2);
    fake_release(b.be);
    collect_close(&b.c); /* the address sanitizer counts the memory */
    collect_free(&a);
}

static void a_measured_device_has_a_pace_before_the_first_request_and_answers_as_any(void **state) {
    (void)state;
    struct setup b;
    struct answer want[3], got[3];
    for (int i = 0; i < 3; i++) alone(2 + 20 * i, 20, &want[i]);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 5, .measures = true), CONFIG());
    /* prompts of 8 and 32 of 64 tokens, steps of 1, 2, 4 and 5 streams, each twice; before these a step of prompts */
    assert_int_equal(atomic_load(&b.be->n_launches), 2 * (2 + 4) + 1);
    const struct prefill_budget *p = &b.c.engine->sched.budget[SITE_DEVICE];
    assert_int_equal(p->prompt.n_most, 32);
    for (int i = 0; i < 4; i++) assert_true(p->stream_ns[i] > 0 && p->guessed >> i & 1);
    for (int i = 0; i < 3; i++) collect_submit(&b.c, request(&got[i], 2 + 20 * i, 20));
    for (int i = 0; i < 3; i++) {
        collect_until(&b.c, &got[i], 1);
        collect_assert_ids(&got[i], want[i].ids, want[i].n_ids, "measured");
        collect_free(&got[i]);
        collect_free(&want[i]);
    }
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.decode_tok, 3 * 19); /* no figure counts what was measured */
    setup_close(&b);
}
static void a_device_that_fails_as_it_is_measured_opens_no_engine(void **state) {
    (void)state;
    struct rod_error err;
    struct rod_engine *engine = NULL;
    const struct rod_engine_config config = CONFIG();
    struct backend *be = fake_open(&fake_device_ops, FAKE_HASH, V, 4, 64, 8);
    atomic_store(&be->fail_at, 3);
    const struct engine_parts parts = {.ops = &fake_device_ops, .backend = be, .V = V, .measures = true};
    assert_int_equal(engine_open_parts(&config, &parts, &engine, &err), ROD_EDEVICE);
    fake_close(be);
}

int main(void) {
    setup_on_device = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_step_is_launched_before_the_last_one_is_seen),
        cmocka_unit_test(a_row_that_ended_on_the_device_is_masked_in_the_step_ahead),
        cmocka_unit_test(a_cancel_with_two_steps_on_their_way_frees_the_slot_for_the_next_plan),
        cmocka_unit_test(a_request_joins_the_step_planned_next),
        cmocka_unit_test(a_fault_of_a_step_on_its_way_fails_everything),
        cmocka_unit_test(a_fault_that_no_request_hears_of_is_known_to_the_owner),
        cmocka_unit_test(rows_with_stop_strings_are_never_ahead),
        cmocka_unit_test(none_is_launched_behind_a_large_step),
        cmocka_unit_test(a_broken_row_ends_alone_while_its_next_step_is_on_its_way),
        cmocka_unit_test(closing_with_two_steps_on_their_way_frees_everything),
        cmocka_unit_test(a_measured_device_has_a_pace_before_the_first_request_and_answers_as_any),
        cmocka_unit_test(a_device_that_fails_as_it_is_measured_opens_no_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
