/* test_engine_state.c - requests that leave their state and others that go on from it, on both kinds of fake device and
 * on tales: the same tokens as without a break, earlier ones never read again, nothing of it after a cancel.
 */
#include "tests/engine_setup.h"

#include "engine/base/philox.h"

static struct rod_request *request(struct answer *a, const int32_t *ids, size_t n, uint32_t max_tokens) {
    struct rod_request *r = collect_request(ids, n, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    r->sampling.temperature = 1;
    r->sampling.seed = 99;
    r->keep_state = true;
    return r;
}

/* Goes on from the state that an answer brought; of other bytes, so that they can be changed. */
static struct rod_state *copy_of(const struct rod_state *s) {
    struct rod_state *copy = rod_state_ref(s);
    copy->buffer = state_buffer_new(NULL, s->buffer->n_bytes);
    memcpy(copy->buffer->bytes, s->buffer->bytes, s->buffer->n_bytes);
    state_buffer_release(s->buffer);
    return copy;
}

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, more[] = {20, 21, 22};

/* One request of 12 tokens, and the same in two requests, for every place of the break, over several engines. */
static void a_break_changes_no_token(void **state) {
    (void)state;
    struct setup b, other;
    struct answer whole;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    setup_open(&other, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    finish(&b, request(&whole, first, 11, 12), &whole);
    assert_int_equal(whole.end.state->n_tok, 11 + 11);
    assert_int_equal(whole.end.state->pending, whole.ids[11]);
    for (uint32_t n = 1; n < 12; n++) {
        struct answer a, z;
        finish(&b, request(&a, first, 11, n), &a);
        collect_assert_ids(&a, whole.ids, n, "before the break");
        assert_int_equal(a.end.state->n_tok, 11 + n - 1);
        assert_int_equal(a.end.state->pending, a.ids[n - 1]);
        const uint64_t before = stats_of(other.c.engine).prefill_tok;
        const unsigned n_prompts = atomic_load(&other.be->n_prompt_segs);
        struct rod_request *r = request(&z, NULL, 0, 12 - n);
        r->state = copy_of(a.end.state);
        finish(&other, r, &z);
        assert_int_equal(atomic_load(&other.be->n_prompt_segs),
                         n_prompts); /* the pending token is read as a drawn one */
        collect_assert_ids(&z, whole.ids + n, 12 - n, "after the break");
        assert_int_equal(stats_of(other.c.engine).prefill_tok - before, 1); /* the pending token alone */
        assert_int_equal(z.end.cached_tok, z.end.prompt_tok - 1);
        collect_free(&a), collect_free(&z);
    }
    for (size_t n = 1; n < 11;
         n++) { /* the prompt in two, inside chunks and at their ends; nothing generated between */
        struct answer a, z;
        finish(&b, request(&a, first, n, 0), &a);
        assert_int_equal(a.end.state->n_tok, n);
        assert_int_equal(a.end.state->pending, -1);
        struct rod_request *r = request(&z, first + n, 11 - n, 12);
        r->state = copy_of(a.end.state);
        finish(&other, r, &z);
        collect_assert_ids(&z, whole.ids, 12, "a prompt in two");
        assert_int_equal(z.end.cached_tok, n);
        collect_free(&a), collect_free(&z);
    }
    assert_int_equal(atomic_load(&other.be->n_loads), 11 + 10);
    collect_free(&whole);
    setup_close(&b), setup_close(&other);
}

/* A second turn with new tokens is what the whole conversation sent at once gives, and its own tokens are all it reads;
 * two that go on from one state do not see each other. */
static void a_turn_reads_its_own_tokens_alone(void **state) {
    (void)state;
    struct setup b;
    struct answer a, whole, turn[2];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    finish(&b, request(&a, first, 11, 5), &a);
    int32_t all[11 + 5 + 3];
    memcpy(all, first, sizeof first);
    memcpy(all + 11, a.ids, 5 * sizeof *all);
    memcpy(all + 16, more, sizeof more);
    finish(&b, request(&whole, all, 19, 6), &whole);
    const uint64_t before = stats_of(b.c.engine).prefill_tok;
    for (int i = 0; i < 2; i++) {
        struct rod_request *r = request(&turn[i], more, 3, 6);
        r->state = rod_state_ref(a.end.state);
        collect_submit(&b.c, r);
    }
    collect_until(&b.c, turn, 2);
    for (int i = 0; i < 2; i++) {
        collect_assert_ids(&turn[i], whole.ids, 6, "a second turn");
        assert_int_equal(turn[i].end.prompt_tok, 19);
        assert_int_equal(turn[i].end.cached_tok, 15); /* the sixteenth was pending */
        assert_int_equal(turn[i].end.state->n_tok, whole.end.state->n_tok);
        collect_free(&turn[i]);
    }
    assert_int_equal(stats_of(b.c.engine).prefill_tok - before, 2 * (1 + 3));
    collect_free(&a), collect_free(&whole);
    setup_close(&b);
}

/* After the end token nothing is pending; after a stop id that is part of the answer that is. */
static void the_end_token_is_not_read(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY), CONFIG());
    struct rod_request *r = request(&a, (const int32_t[]){7, 8, 9}, 3, 100);
    r->ignore_eos = false;
    r->sampling.temperature = 0;
    finish(&b, r, &a);
    assert_int_equal(a.end.stop_id, EOS);
    assert_int_equal(a.end.state->n_tok, 3 + 3);
    assert_int_equal(a.end.state->pending, -1);
    collect_free(&a);
    r = request(&a, (const int32_t[]){7, 8, 9}, 3, 100);
    r->sampling.temperature = 0;
    r->stop_ids = malloc(sizeof *r->stop_ids);
    r->stop_ids[0] = 8;
    r->n_stop_ids = 1;
    r->include_stop = true;
    finish(&b, r, &a);
    assert_int_equal(a.n_ids, 2);
    assert_int_equal(a.end.state->n_tok, 3 + 1);
    assert_int_equal(a.end.state->pending, 8);
    collect_free(&a);
    setup_close(&b);
}

static void a_cancelled_request_leaves_no_state(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .gated = true), CONFIG());
    collect_submit(&b.c, request(&a, first, 11, 1000));
    sem_wait(&b.be->entered);
    rod_cancel(b.c.engine, a.ticket);
    fake_release(b.be);
    collect_until(&b.c, &a, 1);
    assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
    assert_null(a.end.state);
    collect_free(&a);
    assert_int_equal(atomic_load(&b.be->n_saves), 0);
    setup_close(&b);
}

static void foreign_states_are_refused(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z;
    struct rod_error err;
    uint64_t ticket;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    finish(&b, request(&a, first, 11, 5), &a);
    for (int kind = 0; kind < 7; kind++) {
        struct rod_request *r = request(&z, more, 3, 6);
        r->state = copy_of(a.end.state);
        if (kind == 0) snprintf(r->state->layout, sizeof r->state->layout, "another");
        if (kind == 1) memset(r->state->layout, 'x', sizeof r->state->layout);
        if (kind == 2) r->state->buffer->n_bytes--;
        if (kind == 3) r->state->n_tok = UINT64_MAX;
        if (kind == 4) r->state->pending = V;
        if (kind == 5) r->state->pending = -2;
        if (kind == 6) r->n_prompt_logprobs = 0;
        memset(&err, 0, sizeof err);
        assert_int_equal(rod_submit(b.c.engine, r, &ticket, &err), kind == 6 ? ROD_EUNSUPPORTED : ROD_ESTATE);
        assert_string_equal(err.param, "state");
        rod_request_free(r);
        collect_free(&z);
    }
    struct rod_request *r = request(&z, more, 0, 6); /* nothing new and nothing pending */
    r->state = copy_of(a.end.state);
    r->state->pending = -1;
    assert_int_equal(rod_submit(b.c.engine, r, &ticket, &err), ROD_EINVALID);
    assert_string_equal(err.param, "prompt");
    rod_request_free(r);
    collect_free(&z);
    assert_int_equal(atomic_load(&b.be->n_loads), 0);
    r = request(&z, more, 3, 6); /* what the device alone can see fails that request alone */
    r->state = copy_of(a.end.state);
    ((struct fake_state *)r->state->buffer->bytes)->n_said = UINT32_MAX;
    collect_submit(&b.c, r);
    collect_until(&b.c, &z, 1);
    assert_true(z.failed);
    assert_int_equal(z.end.error.code, ROD_ESTATE);
    collect_free(&z);
    r = request(&z, more, 3, 6);
    r->state = copy_of(a.end.state);
    finish(&b, r, &z);
    assert_int_equal(z.n_ids, 6);
    collect_free(&z);
    collect_free(&a);
    setup_close(&b);
}

/* tales, over two engines as after a restart: with seeds, in company, broken anywhere. */
static void tales_goes_on_to_the_bit(void **state) {
    (void)state;
    struct rod_error err;
    struct collector c[2];
    struct rod_engine_config config = {
        .model_dir = "config/models/tales", .device = "cpu", .n_slots = 4, .n_threads = 2, .max_queue = 100};
    for (int i = 0; i < 2; i++) {
        collect_init(&c[i], &config);
        if (rod_engine_open(&config, &c[i].engine, &err)) fail_msg("%s", err.message);
    }
    enum { N = 40, PROMPT = 70 };
    int32_t ids[PROMPT];
    for (size_t i = 0; i < PROMPT; i++) ids[i] = (int32_t)(300 + philox_uniform(5, i, 0) * 200);
    struct answer whole, beside;
    collect_submit(&c[0], request(&whole, ids, PROMPT, N));
    collect_until(&c[0], &whole, 1);
    for (uint32_t n = 1; n < N; n += 6) {
        struct answer a, z;
        collect_submit(&c[0], request(&a, ids, PROMPT, n));
        collect_until(&c[0], &a, 1);
        collect_submit(&c[1], request(&beside, ids + n, 20, N));
        struct rod_request *r = request(&z, NULL, 0, N - n);
        r->state = a.end.state;
        a.end.state = NULL;
        collect_submit(&c[1], r);
        collect_until(&c[1], &z, 1);
        collect_until(&c[1], &beside, 1);
        collect_assert_ids(&z, whole.ids + n, N - n, "tales after a break");
        assert_int_equal(z.end.cached_tok, PROMPT + n - 1);
        assert_int_equal(z.end.state->buffer->n_bytes, whole.end.state->buffer->n_bytes);
        assert_memory_equal(z.end.state->buffer->bytes, whole.end.state->buffer->bytes,
                            whole.end.state->buffer->n_bytes);
        collect_free(&a), collect_free(&z), collect_free(&beside);
    }
    collect_free(&whole);
    collect_close(&c[0]), collect_close(&c[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_break_changes_no_token),   ON_BOTH(a_turn_reads_its_own_tokens_alone),
        ON_BOTH(the_end_token_is_not_read),  ON_BOTH(a_cancelled_request_leaves_no_state),
        ON_BOTH(foreign_states_are_refused), cmocka_unit_test(tales_goes_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
