/* test_prefix.c - law 3 on a model: an answer that begins from an entry is the cold one, and one that begins from
 * an answer goes on as a session does; to the bit. On the backend that RODIMUS_TEST_DEVICE names, the CPU without it,
 * in RODIMUS_TEST_PRECISION. */
#include "tests/prefix_setup.h"
#include "tests/test_folder.h"

#include "engine/core.h"
#include "engine/base/philox.h"

static struct rod_request *tale(struct answer *a, const int32_t *ids, size_t n, uint32_t max_tokens) {
    struct rod_request *r = request(a, ids, n, max_tokens);
    r->n_logprobs = 20;
    return r;
}

/* Two engines: c[0] has a prefix cache, in which each entry pays, and reads in small pieces; c[1] has none. */
static void open_both(struct collector c[2], bool deterministic) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct rod_error err;
    for (int i = 0; i < 2; i++) {
        struct rod_engine_config config = {.model_dir = "config/models/tales",
                                           .device = device ? device : "cpu",
                                           .precision = getenv("RODIMUS_TEST_PRECISION"),
                                           .window_dtype = getenv("RODIMUS_TEST_WINDOW"),
                                           .n_slots = 4,
                                           .n_threads = 2,
                                           .max_queue = 100,
                                           .max_batch_tok = i ? 0 : 192,
                                           .deterministic = deterministic,
                                           .state_host_bytes = 512 << 20,
                                           .prefix_cache_bytes = i ? 0 : 256 << 20};
        collect_init(&c[i], &config);
        if (rod_engine_open(&config, &c[i].engine, &err)) fail_msg("%s", err.message);
    }
    c[0].engine->copy_ns = 0;
}

/* Law 3: prompts that begin from an entry that was read as a prompt, at random lengths and partings, with loads
 * beside them, give what they give cold: tokens, log-probabilities and the 20 best, to the bit. */
static void tales_answers_as_if_it_had_read_all(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 3;
    struct collector c[2];
    open_both(c, true); /* keeps no answers: all is read as a prompt */
    enum { LONGEST = 700, N = 24 };
    int32_t ids[LONGEST];
    for (uint64_t at = 0; at < N; at++) {
        uint32_t draw = 0;
#define DRAW(n) ((size_t)(philox_uniform(seed, at, draw++) * (double)(n)))
        const size_t n = 65 + DRAW(LONGEST - 65), part = DRAW(n);
        for (size_t i = 0; i < LONGEST; i++) /* those beside it may be longer */
            ids[i] = (int32_t)(300 + philox_uniform(seed + (i < part ? 0 : 1 + DRAW(3)), i, 0) * 300);
        struct answer a, z, beside[2];
        for (int i = 0; i < 2; i++) collect_submit(&c[0], tale(&beside[i], ids + 10 + i, 40 + DRAW(100), 10));
        collect_submit(&c[0], tale(&a, ids, n, 6));
        collect_until(&c[0], &a, 1);
        collect_until(&c[0], beside, 2);
        collect_submit(&c[1], tale(&z, ids, n, 6));
        collect_until(&c[1], &z, 1);
        char what[64];
        snprintf(what, sizeof what, "seed %llu: %zu tokens, %llu cached", (unsigned long long)seed, n,
                 (unsigned long long)a.end.cached_tok);
        assert_int_equal(a.end.cached_tok % 64, 0);
        assert_same(&a, &z, what);
        collect_free(&a), collect_free(&z), collect_free(&beside[0]), collect_free(&beside[1]);
#undef DRAW
    }
    if (stats_of(c[0].engine).prefix_hits < N / 4)
        fail_msg("%llu hits", (unsigned long long)stats_of(c[0].engine).prefix_hits);
    collect_close(&c[0]), collect_close(&c[1]);
}

/* Likewise with pinned prefixes, which every tenant's prompts go on from; some are made while an answer is kept whose
 * state is not that of reading it. */
static void tales_goes_on_from_a_pinned_prefix_as_if_it_had_read_it(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 4;
    struct rod_error err;
    struct collector c[2];
    open_both(c, false);
    enum { LONGEST = 700, N = 16 };
    int32_t ids[LONGEST + 100];
    for (uint64_t at = 0; at < N; at++) {
        uint32_t draw = 0;
#define DRAW(n) ((size_t)(philox_uniform(seed, at, draw++) * (double)(n)))
        const size_t n = 65 + DRAW(LONGEST - 65), more = 1 + DRAW(99);
        for (size_t i = 0; i < LONGEST + 100; i++)
            ids[i] = (int32_t)(300 + philox_uniform(seed + 1 + (i < 64 ? 0 : at), i, 0) * 300);
        struct answer a, z, kept;
        size_t n_prompt = n;
        if (at % 2) { /* what is pinned begins with an answer */
            collect_submit(&c[0], tale(&kept, ids, 64 + n % 64, 70));
            collect_until(&c[0], &kept, 1);
            memcpy(ids + 64 + n % 64, kept.ids, kept.n_ids * sizeof *ids);
            n_prompt = 64 + n % 64 + kept.n_ids + 64;
            collect_free(&kept);
        }
        struct rod_prefix_info info;
        const struct rod_prefix_new wanted = {.id = "demo", .ids = ids, .n_ids = n_prompt};
        if (rod_prefix_pin(c[0].engine, &wanted, &info, &err)) fail_msg("%s", err.message);
        assert_int_equal(info.n_tok, (n_prompt - 1) / 64 * 64);
        const uint64_t used_before = stats_of(c[0].engine).pinned_used;
        struct rod_request *r = tale(&a, ids, n_prompt + more, 6);
        r->tenant = strdup("somebody");
        collect_submit(&c[0], r);
        collect_until(&c[0], &a, 1);
        const uint64_t n_used = stats_of(c[0].engine).pinned_used - used_before;
        collect_submit(&c[1], tale(&z, ids, n_prompt + more, 6));
        collect_until(&c[1], &z, 1);
        char what[80];
        snprintf(what, sizeof what, "seed %llu, %llu: %zu tokens pinned of %zu", (unsigned long long)seed,
                 (unsigned long long)at, (size_t)info.n_tok, n_prompt + more);
        if (a.end.cached_tok != info.n_tok || n_used != 1)
            fail_msg("%s: %llu cached, counted %llu times", what, (unsigned long long)a.end.cached_tok,
                     (unsigned long long)n_used);
        assert_same(&a, &z, what);
        collect_free(&a), collect_free(&z);
#undef DRAW
    }
    collect_close(&c[0]), collect_close(&c[1]);
}

/* An answer's state is the one that generated it: the next turn goes on as the same conversation does in a session. */
static void tales_goes_on_from_its_own_answer(void **state) {
    (void)state;
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct rod_error err;
    struct collector c;
    struct rod_engine_config config = {.model_dir = "config/models/tales",
                                       .device = device ? device : "cpu",
                                       .precision = getenv("RODIMUS_TEST_PRECISION"),
                                       .window_dtype = getenv("RODIMUS_TEST_WINDOW"),
                                       .n_slots = 2,
                                       .n_threads = 2,
                                       .max_queue = 100,
                                       .state_host_bytes = 512 << 20,
                                       .prefix_cache_bytes = 256 << 20};
    collect_init(&c, &config);
    if (rod_engine_open(&config, &c.engine, &err)) fail_msg("%s", err.message);
    c.engine->copy_ns = 0;
    enum { PROMPT = 90, MORE = 50 };
    int32_t ids[1000];
    for (size_t i = 0; i < PROMPT; i++) ids[i] = (int32_t)(300 + philox_uniform(5, i, 0) * 200);
    struct rod_state *session = NULL;
    for (size_t turn = 0, n = PROMPT, known = 0; turn < 6; turn++) {
        struct answer a, z;
        struct rod_request *r = tale(&z, ids + known, n - known, 20); /* a session beside it: the new tokens alone */
        r->state = session;
        r->keep_state = true;
        if (session && session->pending >= 0) { /* it is in the new tokens of the other one */
            memmove(r->prompt, r->prompt + 1, --r->n_prompt * sizeof *r->prompt);
        }
        r->cache_salt = strdup("session");
        collect_submit(&c, r);
        collect_until(&c, &z, 1);
        session = z.end.state;
        z.end.state = NULL;
        collect_submit(&c, tale(&a, ids, n, 20));
        collect_until(&c, &a, 1);
        assert_same(&a, &z, "a conversation sent in full, beside a session");
        assert_int_equal(a.end.cached_tok, known);
        memcpy(ids + n, a.ids, a.n_ids * sizeof *ids);
        known = n + a.n_ids - 1;
        n += a.n_ids;
        for (size_t i = 0; i < MORE; i++, n++) ids[n] = (int32_t)(300 + philox_uniform(6, n, 0) * 200);
        for (int i = 0; i < 1000 && stats_of(c.engine).slots_used; i++) collect_wait(&c, 1);
        collect_free(&a), collect_free(&z);
    }
    rod_state_free(session);
    collect_close(&c);
}

/* A conversation whose engine is closed and opened between its requests, behind either kind of state in files: at the
 * end of an answer as the session that took the same turns; where it was read as a prompt, as cold. */
static void tales_goes_on_from_files_as_if_never_closed(void **state) {
    (void)state;
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 5;
    struct rod_error err;
    struct collector c, cold;
    struct rod_engine_config config = {.model_dir = "config/models/tales",
                                       .device = device ? device : "cpu",
                                       .precision = getenv("RODIMUS_TEST_PRECISION"),
                                       .window_dtype = getenv("RODIMUS_TEST_WINDOW"),
                                       .n_slots = 2,
                                       .n_threads = 2,
                                       .max_queue = 100,
                                       .state_host_bytes = 512 << 20};
    collect_init(&cold, &config);
    if (rod_engine_open(&config, &cold.engine, &err)) fail_msg("%s", err.message);
    config.prefix_cache_bytes = 256 << 20;
    config.state_dir = make_dir();
    enum { TURNS = 8, MOST = 2000, HEAD = 70, FIRST = 30 };
    int32_t ids[MOST];
    for (int answered = 0; answered < 2; answered++) { /* with requests of one token no answer's state is kept */
        struct rod_state *session = NULL;
        size_t n = HEAD + FIRST, known = 0;
        for (size_t i = 0; i < MOST; i++) ids[i] = (int32_t)(300 + philox_uniform(seed, i, 0) * 200);
        for (int turn = 0; turn < TURNS; turn++) {
            const uint32_t max_tokens = answered ? 2 + (uint32_t)(philox_uniform(seed, (uint64_t)turn, 1) * 40) : 1;
            struct answer a, z;
            collect_init(&c, &config);
            if (rod_engine_open(&config, &c.engine, &err)) fail_msg("%s", err.message);
            struct rod_request *r = tale(&a, ids, n, max_tokens);
            r->marks = malloc(3 * sizeof *r->marks);
            r->marks[0] = HEAD;
            r->marks[1] = HEAD + FIRST;
            r->marks[2] = n;
            r->n_marks = 2 + (turn > 0);
            r->has_head = true;
            r->n_user_texts = 1 + (uint32_t)turn;
            r->conversation = strdup(answered ? "answered" : "read");
            collect_submit(&c, r);
            collect_until(&c, &a, 1);
            r = tale(&z, answered ? ids + known : ids, answered ? n - known : n, max_tokens);
            if (answered) {
                r->state = session;
                r->keep_state = true;
                if (session && session->pending >= 0)
                    memmove(r->prompt, r->prompt + 1, --r->n_prompt * sizeof *r->prompt);
            }
            collect_submit(&cold, r);
            collect_until(&cold, &z, 1);
            session = z.end.state;
            z.end.state = NULL;
            char what[80];
            snprintf(what, sizeof what, "seed %llu, %s, turn %d of %zu tokens", (unsigned long long)seed,
                     answered ? "answered" : "read", turn, n);
            assert_same(&a, &z, what);
            assert_int_equal(a.end.cached_tok, turn || !answered ? known : 64); /* the other one's head */
            memcpy(ids + n, a.ids, a.n_ids * sizeof *ids);
            known = answered ? n + a.n_ids - 1 : (n - 1) / 64 * 64;
            n += a.n_ids + 1 + (size_t)(philox_uniform(seed, (uint64_t)turn, 2) * 100);
            collect_free(&a), collect_free(&z);
            collect_close(&c);
        }
        rod_state_free(session);
    }
    collect_close(&cold);
    remove_dir((char *)(uintptr_t)config.state_dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tales_goes_on_from_files_as_if_never_closed),
        cmocka_unit_test(tales_answers_as_if_it_had_read_all),
        cmocka_unit_test(tales_goes_on_from_a_pinned_prefix_as_if_it_had_read_it),
        cmocka_unit_test(tales_goes_on_from_its_own_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
