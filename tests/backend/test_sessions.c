/* test_sessions.c - the laws of sessions on tales, to the bit: restored is never interrupted, a turn reads its
 * own tokens alone, forks do not see each other, a cancelled turn changes nothing. On the device that
 * RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION, where a row's bits do not depend on who
 * shares the step. */
#include "tests/sessions_setup.h"

enum { TURNS = 6, TALKS = 3 };
static char *dir;

static struct rod_engine_config config_of(const char *state_dir) {
    const char *device = getenv("RODIMUS_TEST_DEVICE"), *precision = getenv("RODIMUS_TEST_PRECISION");
    return (struct rod_engine_config){.model_dir = "config/models/tales",
                                      .device = device ? device : "cpu",
                                      .precision = precision ? precision : "auto",
                                      .window_dtype = getenv("RODIMUS_TEST_WINDOW"),
                                      .deterministic = true,
                                      .n_slots = 2,
                                      .n_threads = 2,
                                      .max_queue = 100,
                                      .state_dir = state_dir,
                                      .state_host_bytes = 256u << 20};
}

static void begin(struct collector *c, const char *state_dir) {
    struct rod_engine_config config = config_of(state_dir);
    struct rod_error err;
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
}

/* Turn number n of a conversation: of some tokens or none, with seeds, penalties and log-probabilities. */
static struct rod_request *nth_turn(struct answer *a, const char *id, uint32_t n) {
    int32_t ids[100];
    const size_t n_ids = n % 3 == 2 ? 0 : 1 + (size_t)(n * 37 + (unsigned char)id[1]) % 90;
    for (size_t i = 0; i < n_ids; i++) ids[i] = 300 + (id[1] * 31 + (int32_t)(n * 13 + i * 3)) % 1500;
    struct rod_request *r = turn_request(a, id, ids, n_ids, 3 + n * 3 % 11);
    r->sampling.seed = 7 + n;
    r->sampling.frequency_penalty = n % 2 ? 1.5f : 0;
    r->sampling.repetition_penalty = n % 4 == 3 ? 1.3f : 1;
    r->n_logprobs = 1;
    return r;
}

static void assert_same(const struct answer *a, const struct answer *want, const char *what) {
    collect_assert_ids(a, want->ids, want->n_ids, what);
    assert_memory_equal(a->logprobs, want->logprobs, want->n_ids * sizeof *want->logprobs);
    assert_string_equal(a->text, want->text);
    assert_int_equal(a->end.session_version, want->end.session_version);
    assert_int_equal(a->end.prompt_tok, want->end.prompt_tok);
    assert_int_equal(a->end.cached_tok, want->end.cached_tok);
}

static void assert_same_state(struct rod_engine *one, struct rod_engine *other, const char *id, const char *other_id) {
    struct state_file files[2];
    void *bytes[2];
    size_t n[2];
    struct rod_error err;
    const struct state_file_expected any = {NULL, NULL};
    if (rod_session_export(one, "", id, &bytes[0], &n[0], &err)) fail_msg("%s", err.message);
    if (rod_session_export(other, "", other_id, &bytes[1], &n[1], &err)) fail_msg("%s", err.message);
    for (int i = 0; i < 2; i++)
        if (state_file_parse(bytes[i], n[i], "exported", &any, &files[i], &err)) fail_msg("%s", err.message);
    assert_int_equal(files[0].n_tok, files[1].n_tok);
    assert_int_equal(files[0].token_hash, files[1].token_hash);
    assert_int_equal(files[0].sampler.n, files[1].sampler.n);
    assert_memory_equal(files[0].sampler.data, files[1].sampler.data, files[0].sampler.n);
    assert_int_equal(files[0].payload.n, files[1].payload.n);
    assert_memory_equal(files[0].payload.data, files[1].payload.data, files[0].payload.n);
    free(bytes[0]), free(bytes[1]);
}

static const char *const talks[TALKS] = {"t1", "t2", "t3"};

/* Three conversations at once, over a new server for each turn, beside one server that is never interrupted. */
static void restored_is_never_interrupted(void **state) {
    (void)state;
    struct collector c, plain;
    struct answer a[TALKS], want;
    begin(&plain, NULL);
    for (uint32_t n = 0; n < TURNS; n++) {
        uint64_t own_tok = 0;
        begin(&c, dir);
        for (int i = 0; i < TALKS; i++) collect_submit(&c, nth_turn(&a[i], talks[i], n));
        collect_until(&c, a, TALKS);
        for (int i = 0; i < TALKS; i++) {
            turn_ok(&plain, nth_turn(&want, talks[i], n), &want);
            assert_same(&a[i], &want, "after a restart");
            own_tok += a[i].end.prompt_tok - a[i].end.cached_tok;
            collect_free(&a[i]), collect_free(&want);
        }
        assert_int_equal(stats_of(c.engine).prefill_tok, own_tok); /* no earlier token was read again */
        assert_int_equal(stats_of(c.engine).state_loads, n ? TALKS : 0);
        for (int i = 0; i < TALKS; i++) assert_same_state(c.engine, plain.engine, talks[i], talks[i]);
        collect_close(&c);
    }
    collect_close(&plain);
}

static void forks_do_not_see_each_other(void **state) {
    (void)state;
    struct collector c, plain;
    struct answer a, want;
    struct rod_session_info info;
    struct rod_error err;
    begin(&c, dir);
    begin(&plain, NULL);
    for (uint32_t n = 0; n < 2; n++) {
        turn_ok(&c, nth_turn(&a, "t1", n), &a);
        collect_free(&a);
    }
    if (rod_session_create(c.engine, "", &(struct rod_session_new){.id = "fork", .from = "t1"}, &info, &err))
        fail_msg("%s", err.message);
    assert_same_state(c.engine, c.engine, "t1", "fork");
    for (uint32_t n = 0; n < 5; n++) { /* undisturbed: each way of its own, from the first token */
        turn_ok(&plain, nth_turn(&want, "t1", n), &want);
        collect_free(&want);
        struct rod_request *r = nth_turn(&want, n < 2 ? "t1" : "t9", n);
        free(r->turn->session);
        r->turn->session = strdup("fork");
        turn_ok(&plain, r, &want);
        collect_free(&want);
    }
    for (uint32_t n = 2; n < 5; n++) { /* one after the other in one server */
        turn_ok(&c, nth_turn(&a, "t1", n), &a);
        collect_free(&a);
        struct rod_request *r = nth_turn(&a, "t9", n);
        free(r->turn->session);
        r->turn->session = strdup("fork");
        turn_ok(&c, r, &a);
        collect_free(&a);
    }
    assert_same_state(c.engine, plain.engine, "t1", "t1");
    assert_same_state(c.engine, plain.engine, "fork", "fork");
    collect_close(&c), collect_close(&plain);
}

static void a_cancelled_turn_changes_nothing(void **state) {
    (void)state;
    struct collector c;
    struct answer a;
    void *bytes[2];
    size_t n[2];
    struct rod_error err;
    begin(&c, dir);
    turn_ok(&c, nth_turn(&a, "t1", 0), &a);
    collect_free(&a);
    if (rod_session_export(c.engine, "", "t1", &bytes[0], &n[0], &err)) fail_msg("%s", err.message);
    for (int wait = 0; wait < 4; wait++) { /* before its session is there, in its prompt, between its tokens */
        struct rod_request *r = nth_turn(&a, "t1", 1);
        r->max_tokens = 100000;
        collect_submit(&c, r);
        while (wait == 3 && a.n_ids < 5) collect_now(&c);
        usleep((useconds_t)(wait == 1 ? 300 : wait == 2 ? 2000 : 0));
        rod_cancel(c.engine, a.ticket);
        collect_until(&c, &a, 1);
        assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
        collect_free(&a);
        if (rod_session_export(c.engine, "", "t1", &bytes[1], &n[1], &err)) fail_msg("%s", err.message);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], n[0]);
        free(bytes[1]);
    }
    free(bytes[0]);
    collect_close(&c);
}

static int make(void **state) {
    (void)state;
    dir = make_dir();
    return 0;
}
static int unmake(void **state) {
    (void)state;
    remove_dir(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(restored_is_never_interrupted, make, unmake),
        cmocka_unit_test_setup_teardown(forks_do_not_see_each_other, make, unmake),
        cmocka_unit_test_setup_teardown(a_cancelled_turn_changes_nothing, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
