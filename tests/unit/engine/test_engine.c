/* test_engine.c - the engine over a fake backend: what a request may ask, how it ends, and what its neighbours notice.
 */
#include "tests/engine_setup.h"

static void fill_ids(int32_t *ids, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) ids[i] = 2 + (int32_t)(philox_uniform(seed, i, 9) * (V - 2));
}

/* What the hash model says greedily, by definition. */
static void expect_greedy(const int32_t *prompt, size_t n_prompt, int32_t *out, size_t n_out) {
    struct backend be = {.kind = FAKE_HASH, .V = V};
    struct fake_slot *s = calloc(1, sizeof *s);
    float row[V];
    for (size_t i = 0; i < n_prompt; i++) s->hash = fake_mix(s->hash, prompt[i]);
    for (size_t k = 0; k < n_out; k++) {
        fake_logits(&be, s, row);
        int32_t best = 0;
        for (int32_t v = 1; v < V; v++) best = row[v] > row[best] ? v : best;
        out[k] = best;
        s->hash = fake_mix(s->hash, best);
    }
    free(s);
}

/* ---- generation ---- */

static void greedy_tokens_are_the_models_and_each_is_reported_once(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (size_t n = 1; n < 200; n = n * 2 + 1) {
        int32_t ids[200], want[30];
        struct answer a;
        fill_ids(ids, n, n);
        expect_greedy(ids, n, want, 30);
        struct rod_request *r = collect_request(ids, n, &a);
        r->max_tokens = 30;
        r->ignore_eos = true;
        finish(&b, r, &a);
        collect_assert_ids(&a, want, 30, "greedy");
        assert_int_equal(a.end.kind, ROD_EVENT_FINISH);
        assert_int_equal(a.end.reason, ROD_FINISH_LENGTH);
        assert_int_equal(a.end.prompt_tok, n);
        assert_int_equal(a.end.stop_id, -1);
        assert_int_equal(a.n_deltas, 30);
        assert_int_equal(a.text_len, 0);
        collect_free(&a);
    }
    setup_close(&b);
}

static void log_probabilities_come_with_each_token_when_asked_for(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    const int32_t ids[2] = {9, 10};
    struct answer a;
    struct rod_request *r = collect_request(ids, 2, &a);
    r->n_logprobs = 5;
    finish(&b, r, &a);
    assert_int_equal(a.n_top, 5);
    assert_int_equal(a.top[0].id, a.ids[0]);
    for (size_t i = 0; i < a.n_ids; i++) assert_true(a.logprobs[i] < 0 && a.logprobs[i] > -20);
    for (int i = 1; i < 5; i++) assert_true(a.top[i].logprob <= a.top[i - 1].logprob);
    assert_true(a.top[0].logprob == a.logprobs[0]);
    collect_free(&a);
    setup_close(&b);
}

/* ---- company ---- */

static void shape(struct rod_request *r, uint64_t seed) {
    r->sampling.seed = seed;
    r->ignore_eos = true;
    r->max_tokens = 1 + (uint32_t)(seed % 40);
    r->sampling.temperature = seed % 3 ? 0.5f + 0.1f * (float)(seed % 9) : 0;
    if (seed % 4 == 1) r->sampling.top_p = 0.9f;
    if (seed % 5 == 1) r->sampling.top_k = 30;
    if (seed % 7 == 1) r->sampling.repetition_penalty = 1.2f;
    if (seed % 6 == 1) r->sampling.frequency_penalty = 0.5f;
    if (seed % 8 == 1) r->n_logprobs = 3;
}

static void every_request_gets_the_same_tokens_alone_and_in_a_crowd(void **state) {
    (void)state;
    enum { N = 120 };
    struct answer *alone = calloc(N, sizeof *alone), *crowd = calloc(N, sizeof *crowd);
    struct setup b;
    int32_t ids[300];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .max_batch_tok = 400), CONFIG());
    for (uint64_t i = 0; i < N; i++) {
        size_t n = 1 + i * 37 % 290;
        fill_ids(ids, n, i);
        struct rod_request *r = collect_request(ids, n, &alone[i]);
        shape(r, i);
        finish(&b, r, &alone[i]);
    }
    setup_close(&b);
    const struct setup_options crowds[] = {{.n_slots = 16, .max_batch_tok = 24},
                                           {.n_slots = 64, .max_batch_tok = 16, .chunk_tok = 16},
                                           {.n_slots = 7, .max_batch_tok = 500, .chunk_tok = 1}};
    for (int k = 0; k < 3; k++) {
        setup_open(&b, crowds[k], CONFIG());
        for (uint64_t i = 0; i < N; i++) {
            size_t n = 1 + i * 37 % 290;
            fill_ids(ids, n, i);
            struct rod_request *r = collect_request(ids, n, &crowd[i]);
            shape(r, i);
            collect_submit(&b.c, r);
        }
        collect_until(&b.c, crowd, N);
        for (uint64_t i = 0; i < N; i++) {
            char what[64];
            snprintf(what, sizeof what, "crowd %d request %d", k, (int)i);
            collect_assert_ids(&crowd[i], alone[i].ids, alone[i].n_ids, what);
            assert_memory_equal(crowd[i].logprobs, alone[i].logprobs, alone[i].n_ids * sizeof(float));
            collect_free(&crowd[i]);
        }
        setup_close(&b);
    }
    for (int i = 0; i < N; i++) collect_free(&alone[i]);
    free(alone);
    free(crowd);
}

static void unseeded_requests_draw_differently(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    const int32_t ids[1] = {5};
    struct answer a[2];
    for (int i = 0; i < 2; i++) {
        struct rod_request *r = collect_request(ids, 1, &a[i]);
        r->sampling.temperature = 2;
        r->ignore_eos = true;
        finish(&b, r, &a[i]);
    }
    assert_memory_not_equal(a[0].ids, a[1].ids, 16 * sizeof(int32_t));
    collect_free(&a[0]);
    collect_free(&a[1]);
    setup_close(&b);
}

struct submit_job {
    struct setup *b;
    struct answer *answers;
    int n;
    pthread_t id;
};

static void *submit_job(void *arg) {
    struct submit_job *job = arg;
    for (int i = 0; i < job->n; i++) {
        const int32_t ids[3] = {2, 3, i};
        struct rod_request *r = collect_request(ids, 3, &job->answers[i]);
        r->ignore_eos = true;
        uint64_t ticket; /* answers[i] belongs to the consumer from here on */
        if (rod_submit(job->b->c.engine, r, &ticket, NULL)) return arg;
        if (i % 4 == 0) rod_cancel(job->b->c.engine, ticket);
        struct rod_stats stats;
        rod_engine_stats(job->b->c.engine, &stats);
    }
    return NULL;
}

static void many_threads_may_submit_and_cancel(void **state) {
    (void)state;
    enum { N_JOBS = 4, N_EACH = 100 };
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 8), CONFIG());
    struct answer *answers = calloc(N_JOBS * N_EACH, sizeof *answers);
    struct submit_job jobs[N_JOBS];
    for (int j = 0; j < N_JOBS; j++) {
        jobs[j] = (struct submit_job){&b, answers + j * N_EACH, N_EACH, 0};
        pthread_create(&jobs[j].id, NULL, submit_job, &jobs[j]);
    }
    struct rod_stats stats;
    do { /* answers are read through events only: the submitting threads own the rest */
        collect_wait(&b.c, 10);
        collect_now(&b.c);
        rod_engine_stats(b.c.engine, &stats);
    } while (stats.requests_finished + stats.requests_cancelled < N_JOBS * N_EACH);
    for (int j = 0; j < N_JOBS; j++) {
        void *failed;
        pthread_join(jobs[j].id, &failed);
        assert_null(failed);
    }
    collect_until(&b.c, answers, N_JOBS * N_EACH);
    int n_cancelled = 0;
    for (int i = 0; i < N_JOBS * N_EACH; i++) {
        assert_false(answers[i].failed);
        n_cancelled += answers[i].end.reason == ROD_FINISH_CANCEL;
        if (answers[i].end.reason != ROD_FINISH_CANCEL) assert_int_equal(answers[i].n_ids, 16);
        collect_free(&answers[i]);
    }
    assert_int_equal(stats.requests_cancelled, n_cancelled);
    free(answers);
    setup_close(&b);
}

/* ---- refusals ---- */

#define REFUSED(want, field, change)                                                                                   \
    do {                                                                                                               \
        struct answer a_;                                                                                              \
        struct rod_request *r = collect_request((const int32_t[]){5, 6, 7}, 3, &a_);                                   \
        struct rod_error err = {0};                                                                                    \
        uint64_t ticket;                                                                                               \
        change;                                                                                                        \
        int rc = rod_submit(b.c.engine, r, &ticket, &err);                                                             \
        if (rc != (want)) fail_msg("%s: %d, want %d (%s)", #change, rc, (int)(want), err.message);                     \
        assert_int_equal(err.code, rc);                                                                                \
        assert_string_equal(err.param, field);                                                                         \
        assert_true(strlen(err.message) > 10);                                                                         \
        rod_request_free(r);                                                                                           \
        collect_free(&a_);                                                                                             \
    } while (0)

static void what_makes_no_sense_is_refused_and_the_field_named(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG(.max_prompt_tok = 3));
    REFUSED(ROD_EINVALID, "prompt", r->n_prompt = 0);
    REFUSED(ROD_EINVALID, "prompt", r->prompt[1] = -1);
    REFUSED(ROD_EINVALID, "prompt", r->prompt[1] = V);
    REFUSED(ROD_EINVALID, "temperature", r->sampling.temperature = -0.1f);
    REFUSED(ROD_EINVALID, "temperature", r->sampling.temperature = NAN);
    REFUSED(ROD_EINVALID, "temperature", r->sampling.temperature = 2.5f);
    REFUSED(ROD_EINVALID, "top_p", r->sampling.top_p = 0);
    REFUSED(ROD_EINVALID, "top_p", r->sampling.top_p = 1.5f);
    REFUSED(ROD_EINVALID, "min_p", r->sampling.min_p = NAN);
    REFUSED(ROD_EINVALID, "typical_p", r->sampling.typical_p = -1);
    REFUSED(ROD_EINVALID, "frequency_penalty", r->sampling.frequency_penalty = 3);
    REFUSED(ROD_EINVALID, "presence_penalty", r->sampling.presence_penalty = -INFINITY);
    REFUSED(ROD_EINVALID, "repetition_penalty", r->sampling.repetition_penalty = 0);
    REFUSED(ROD_EINVALID, "prompt_logprobs", r->n_prompt_logprobs = 21);
    REFUSED(ROD_EINVALID, "allowed_token_ids",
            (r->allowed_ids = calloc(1, 4), r->allowed_ids[0] = V, r->n_allowed_ids = 1));
    REFUSED(ROD_EINVALID, "bad_words", (r->bad = calloc(1, sizeof *r->bad), r->n_bad = 1));
    REFUSED(ROD_EINVALID, "min_tokens", r->min_tokens = 17);
    REFUSED(ROD_EINVALID, "logprobs", r->n_logprobs = 21);
    REFUSED(ROD_EINVALID, "stop", collect_stop(r, ""));
    REFUSED(ROD_EINVALID, "stop", collect_stop(r, "\xff"));
    REFUSED(ROD_EINVALID, "stop", for (int i = 0; i < 65; i++) collect_stop(r, "x"));
    REFUSED(ROD_EINVALID, "stop_token_ids", (r->stop_ids = calloc(1, 4), r->stop_ids[0] = V, r->n_stop_ids = 1));
    REFUSED(ROD_EINVALID, "logit_bias", (r->bias = calloc(1, sizeof *r->bias), r->bias[0].id = -5, r->n_bias = 1));
    REFUSED(ROD_EINVALID, "logit_bias", (r->bias = calloc(1, sizeof *r->bias), r->bias[0].bias = NAN, r->n_bias = 1));
    int32_t four[4] = {5, 6, 7, 8};
    struct answer a;
    struct rod_request *r = collect_request(four, 4, &a);
    struct rod_error err = {0};
    uint64_t ticket;
    assert_int_equal(rod_submit(b.c.engine, r, &ticket, &err), ROD_ETOOLONG);
    assert_string_equal(err.message, "The prompt has 4 tokens and the limit is 3.");
    rod_request_free(r);
    collect_free(&a);
    setup_close(&b);
}

static void without_a_tokenizer_ids_flow_and_text_calls_say_so(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    REFUSED(ROD_EUNSUPPORTED, "stop", collect_stop(r, "x"));
    int32_t *ids;
    size_t n;
    char *text;
    struct rod_error err;
    assert_int_equal(rod_encode(b.c.engine, "a", 1, false, &ids, &n, &err), ROD_EUNSUPPORTED);
    assert_int_equal(rod_decode(b.c.engine, (const int32_t[]){1}, 1, false, &text, &n, &err), ROD_EUNSUPPORTED);
    assert_null(rod_token_bytes(b.c.engine, 1, &n, &(bool){false}));
    assert_false(rod_engine_info(b.c.engine)->has_tokenizer);
    setup_close(&b);
}

static void a_full_queue_refuses_and_a_drained_engine_too(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2, .gated = true), (struct rod_engine_config){.max_queue = 3});
    struct answer a[5];
    for (int i = 0; i < 5; i++) collect_submit(&b.c, collect_request((const int32_t[]){3}, 1, &a[i]));
    REFUSED(ROD_EQUEUEFULL, "", (void)0);
    fake_step(b.be);
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.running + stats.queued, 5);
    assert_int_equal(stats.queued_max, 3);
    assert_int_equal(stats.requests_rejected, 1);
    rod_engine_drain(b.c.engine);
    REFUSED(ROD_EDRAINING, "", (void)0);
    fake_release(b.be);
    collect_until(&b.c, a, 5); /* what was taken is finished */
    for (int i = 0; i < 5; i++) {
        assert_false(a[i].failed);
        collect_free(&a[i]);
    }
    setup_close(&b);
}

/* ---- cancel, time, faults ---- */

static void cancel_frees_the_slot_within_one_step_whatever_the_state(void **state) {
    (void)state;
    if (setup_on_device) return; /* test_engine_ahead.c has it with steps on their way */
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .max_batch_tok = 8, .gated = true), CONFIG());
    int32_t ids[80];
    fill_ids(ids, 80, 1);
    struct answer prefill, queued, decode, next;
    collect_submit(&b.c, collect_request(ids, 80, &prefill));
    fake_step(b.be);
    sem_wait(&b.be->entered); /* the second step of the prompt runs */
    collect_submit(&b.c, collect_request(ids, 1, &queued));
    collect_submit(&b.c, collect_request(ids, 1, &decode));
    rod_cancel(b.c.engine, queued.ticket);
    rod_cancel(b.c.engine, prefill.ticket);
    rod_cancel(b.c.engine, prefill.ticket);
    sem_post(&b.be->gate);
    sem_wait(&b.be->entered); /* the next forward is already the third request's */
    assert_int_equal(atomic_load(&b.be->n_forwards), 3);
    assert_int_equal(b.be->slots[0].pos, 0);
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.running, 1);
    assert_int_equal(stats.queued, 0);
    assert_int_equal(stats.requests_cancelled, 2);
    sem_post(&b.be->gate);
    sem_wait(&b.be->entered);
    collect_until(&b.c, &prefill, 1); /* events of a step come at its end */
    collect_until(&b.c, &queued, 1);
    assert_int_equal(prefill.end.reason, ROD_FINISH_CANCEL);
    assert_int_equal(queued.end.reason, ROD_FINISH_CANCEL);
    collect_submit(&b.c, collect_request(ids, 1, &next));
    rod_cancel(b.c.engine, decode.ticket); /* while its second token is computed */
    sem_post(&b.be->gate);
    sem_wait(&b.be->entered);
    assert_int_equal(b.be->slots[0].pos, 0); /* the slot is the next request's, zeroed */
    assert_int_equal(atomic_load(&b.be->n_forwards), 5);
    fake_release(b.be);
    collect_until(&b.c, &decode, 1);
    assert_int_equal(decode.end.reason, ROD_FINISH_CANCEL);
    assert_int_equal(decode.n_ids, 2);
    collect_until(&b.c, &next, 1);
    assert_int_equal(next.n_ids, 16);
    rod_cancel(b.c.engine, next.ticket); /* ended: ignored */
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.requests_cancelled, 3);
    collect_free(&prefill);
    collect_free(&queued);
    collect_free(&decode);
    collect_free(&next);
    setup_close(&b);
}

static void a_request_that_waits_too_long_for_a_slot_times_out(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .gated = true), CONFIG());
    struct answer first, late;
    collect_submit(&b.c, collect_request((const int32_t[]){3}, 1, &first));
    sem_wait(&b.be->entered);
    struct rod_request *r = collect_request((const int32_t[]){3}, 1, &late);
    r->queue_timeout_ns = 5000000;
    collect_submit(&b.c, r);
    nanosleep(&(struct timespec){0, 10000000}, NULL);
    fake_release(b.be);
    collect_until(&b.c, &late, 1);
    assert_true(late.failed);
    assert_int_equal(late.end.error.code, ROD_ETIMEDOUT);
    assert_non_null(strstr(late.end.error.message, "5 ms"));
    collect_until(&b.c, &first, 1);
    assert_false(first.failed);
    collect_free(&first);
    collect_free(&late);
    setup_close(&b);
}

static void a_request_that_wants_to_know_is_told_when_it_has_a_slot(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1, .gated = true), CONFIG());
    struct answer a[3];
    for (int i = 0; i < 3; i++) {
        struct rod_request *r = collect_request((const int32_t[]){3}, 1, &a[i]);
        r->report_start = i != 2;
        r->max_tokens = 2;
        collect_submit(&b.c, r);
        if (!i) sem_wait(&b.be->entered); /* its first step, whose end the gate holds back */
    }
    while (!a[0].n_starts) {
        collect_now(&b.c);
        if (!a[0].n_starts && !collect_wait(&b.c, 60000)) fail_msg("no start for 60 s");
    }
    assert_int_equal(a[0].n_deltas, 0);
    assert_int_equal(a[1].n_starts, 0); /* it waits for the slot */
    fake_release(b.be);
    collect_until(&b.c, a, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].n_starts, i != 2);
        assert_false(a[i].failed);
        collect_free(&a[i]);
    }
    setup_close(&b);
}

static void a_device_fault_fails_everything_and_later_requests_are_refused(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2, .gated = true), CONFIG());
    struct answer a[4];
    for (int i = 0; i < 4; i++) collect_submit(&b.c, collect_request((const int32_t[]){3}, 1, &a[i]));
    atomic_store(&b.be->fail_at, 3);
    fake_release(b.be);
    collect_until(&b.c, a, 4);
    for (int i = 0; i < 4; i++) {
        assert_true(a[i].failed);
        assert_int_equal(a[i].end.error.code, ROD_EDEVICE);
        assert_non_null(strstr(a[i].end.error.message, "caught fire"));
        collect_free(&a[i]);
    }
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_true(stats.failed);
    assert_int_equal(stats.requests_failed, 4);
    assert_int_equal(stats.running + stats.queued, 0);
    REFUSED(ROD_EDEVICE, "", (void)0);
    setup_close(&b);
}

static void a_logit_that_is_no_number_fails_its_request_alone(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    atomic_store(&b.be->nan_token, 99);
    struct answer a[3];
    const int32_t ids[3] = {5, 99, 7};
    for (int i = 0; i < 3; i++) collect_submit(&b.c, collect_request(&ids[i], 1, &a[i]));
    collect_until(&b.c, a, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(a[i].failed, i == 1);
    assert_int_equal(a[1].end.error.code, ROD_EINTERNAL);
    assert_non_null(strstr(a[1].end.error.message, "not a number"));
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.requests_nan, 1);
    assert_int_equal(stats.requests_failed, 1);
    for (int i = 0; i < 3; i++) collect_free(&a[i]);
    setup_close(&b);
}

static void closing_with_requests_in_flight_frees_everything(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    struct answer a[50];
    for (int i = 0; i < 50; i++) {
        struct rod_request *r = collect_request((const int32_t[]){3, 4}, 2, &a[i]);
        r->max_tokens = 1000000;
        r->ignore_eos = true;
        collect_submit(&b.c, r);
    }
    collect_wait(&b.c, 1000);
    collect_close(&b.c); /* the address sanitizer counts the memory */
    for (int i = 0; i < 50; i++) collect_free(&a[i]);
}

/* ---- figures ---- */

static void figures_count_tokens_steps_and_at_most_one_wake_a_step(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 8), CONFIG());
    struct answer a[8];
    int32_t ids[20];
    fill_ids(ids, 20, 4);
    for (int i = 0; i < 8; i++) {
        struct rod_request *r = collect_request(ids, 20, &a[i]);
        r->ignore_eos = true;
        collect_submit(&b.c, r);
    }
    collect_until(&b.c, a, 8);
    struct rod_stats stats;
    do rod_engine_stats(b.c.engine, &stats);
    while (stats.steps < atomic_load(&b.be->n_forwards)); /* the step's own figures come after its events */
    assert_int_equal(stats.prefill_tok, 8 * 20);
    assert_int_equal(stats.decode_tok, 8 * 15); /* the last token is not fed */
    assert_int_equal(stats.requests_finished, 8);
    assert_int_equal(stats.slots_used + stats.running + stats.queued, 0);
    assert_int_equal(stats.n_slots, 8);
    assert_int_equal(stats.step_ns_bucket[19], stats.steps);
    assert_true(stats.batch_rows_sum >= stats.steps && stats.step_ns_sum > 0 && stats.last_step_end_ns > 0);
    assert_true(atomic_load(&b.c.n_wakes) <= stats.steps);
    for (int i = 0; i < 8; i++) collect_free(&a[i]);
    setup_close(&b);
}

static void an_idle_engine_uses_no_processor_time(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct answer a;
    finish(&b, collect_request((const int32_t[]){3}, 1, &a), &a);
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    int64_t used_ns = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
    if (used_ns > 20000000) fail_msg("%lld ns of processor time in 200 ms", (long long)used_ns);
    collect_free(&a);
    setup_close(&b);
}

static void two_engines_work_side_by_side(void **state) {
    (void)state;
    struct setup b[2];
    struct answer a[2];
    int32_t want[16];
    const int32_t ids[2] = {11, 12};
    expect_greedy(ids, 2, want, 16);
    for (int i = 0; i < 2; i++) setup_open(&b[i], OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (int i = 0; i < 2; i++) {
        struct rod_request *r = collect_request(ids, 2, &a[i]);
        r->ignore_eos = true;
        collect_submit(&b[i].c, r);
    }
    for (int i = 0; i < 2; i++) {
        collect_until(&b[i].c, &a[i], 1);
        collect_assert_ids(&a[i], want, 16, "engine");
        collect_free(&a[i]);
        setup_close(&b[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_are_the_models_and_each_is_reported_once),
        cmocka_unit_test(log_probabilities_come_with_each_token_when_asked_for),
        cmocka_unit_test(every_request_gets_the_same_tokens_alone_and_in_a_crowd),
        cmocka_unit_test(unseeded_requests_draw_differently),
        cmocka_unit_test(many_threads_may_submit_and_cancel),
        cmocka_unit_test(what_makes_no_sense_is_refused_and_the_field_named),
        cmocka_unit_test(without_a_tokenizer_ids_flow_and_text_calls_say_so),
        cmocka_unit_test(a_full_queue_refuses_and_a_drained_engine_too),
        cmocka_unit_test(cancel_frees_the_slot_within_one_step_whatever_the_state),
        cmocka_unit_test(a_request_that_waits_too_long_for_a_slot_times_out),
        cmocka_unit_test(a_request_that_wants_to_know_is_told_when_it_has_a_slot),
        cmocka_unit_test(a_device_fault_fails_everything_and_later_requests_are_refused),
        cmocka_unit_test(a_logit_that_is_no_number_fails_its_request_alone),
        cmocka_unit_test(closing_with_requests_in_flight_frees_everything),
        cmocka_unit_test(figures_count_tokens_steps_and_at_most_one_wake_a_step),
        cmocka_unit_test(an_idle_engine_uses_no_processor_time),
        cmocka_unit_test(two_engines_work_side_by_side),
    };
    int failed = cmocka_run_group_tests_name("host sampling", tests, NULL, NULL);
    setup_on_device = true;
    return failed + cmocka_run_group_tests_name("device sampling", tests, NULL, NULL);
}
