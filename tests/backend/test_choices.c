/* test_choices.c - choices of one prompt, which one of them reads for all, on a model: each is what it is alone, to the
 * bit, whatever runs beside it, with more choices than slots, with and without the prefix cache, and when the one that
 * reads is cancelled. On the backend that RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION. */
#include "tests/prefix_setup.h"

#include "engine/core.h"
#include "engine/base/philox.h"

enum { N_CHOICES = 5, N_TOKENS = 10, N_BESIDE = 3 };

static const uint64_t SEED = 11;

static void open_engine(struct collector *c, uint32_t n_slots, uint32_t max_batch_tok, bool cache) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct rod_error err;
    struct rod_engine_config config = {.model_dir = "config/models/tales",
                                       .device = device ? device : "cpu",
                                       .precision = getenv("RODIMUS_TEST_PRECISION"),
                                       .window_dtype = getenv("RODIMUS_TEST_WINDOW"),
                                       .n_slots = n_slots,
                                       .n_threads = 2,
                                       .max_batch_tok = max_batch_tok,
                                       .max_queue = 100,
                                       .state_host_bytes = 512 << 20,
                                       .prefix_cache_bytes = cache ? 256 << 20 : 0};
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
    c->engine->copy_ns = 0; /* every entry pays */
}

/* Choice i of the prompt of so many tokens; penalty: of repetitions, 1 = none. */
static struct rod_request *choice(struct answer *a, size_t n_prompt, uint32_t i, float penalty) {
    int32_t *ids = malloc(n_prompt * sizeof *ids);
    for (size_t k = 0; k < n_prompt; k++) ids[k] = (int32_t)(300 + philox_uniform(SEED + n_prompt, k, 0) * 500);
    struct rod_request *r = request(a, ids, n_prompt, N_TOKENS);
    r->sampling.seed += i;
    r->sampling.repetition_penalty = penalty;
    r->n_logprobs = 20;
    r->same_before = i;
    free(ids);
    return r;
}

static void submit(struct collector *c, struct answer *a, size_t n_prompt, float penalty) {
    struct rod_request *r[N_CHOICES];
    uint64_t tickets[N_CHOICES];
    struct rod_error err;
    for (uint32_t i = 0; i < N_CHOICES; i++) r[i] = choice(&a[i], n_prompt, i, penalty);
    if (rod_submit_all(c->engine, r, N_CHOICES, tickets, &err)) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < N_CHOICES; i++) a[i].ticket = tickets[i];
}

/* What it is where nobody else asks for anything. */
static void alone(struct collector *c, struct answer *a, size_t n_prompt, float penalty) {
    for (uint32_t i = 0; i < N_CHOICES; i++) {
        collect_submit(c, choice(&a[i], n_prompt, i, penalty));
        collect_until(c, &a[i], 1);
    }
}

static void assert_all_same(const struct answer *a, const struct answer *want, const char *what, size_t n_prompt) {
    for (uint32_t i = 0; i < N_CHOICES; i++) {
        char which[128];
        snprintf(which, sizeof which, "%s, choice %u of a prompt of %zu tokens", what, i, n_prompt);
        assert_int_equal(want[i].n_ids, N_TOKENS);
        assert_same(&a[i], &want[i], which);
    }
}

static void free_all(struct answer *a) {
    for (uint32_t i = 0; i < N_CHOICES; i++) collect_free(&a[i]);
}

/* Tokens that all choices read together: where the device draws, each reads what is behind the last chunk itself, and
 * all where the device counts what it reads or where that spares less than four chunks. Choices that wait for a slot
 * may find nobody to share with, unless one has shared before: it keeps the state. */
static uint64_t read_tok(const struct rod_engine *e, uint32_t n_slots, uint64_t n_prompt, float penalty) {
    const uint64_t chunk = e->backend_info.chunk_tok, shared = (n_prompt - 1) / chunk * chunk;
    if (!e->parts.ops->launch) return n_prompt;
    uint64_t n_tok = n_prompt;
    bool kept = false;
    for (uint32_t i = 1; i < N_CHOICES; i++) {
        const bool shares = penalty == 1 && shared * i >= 4 * chunk && (i < n_slots || kept);
        n_tok += shares ? n_prompt - shared : n_prompt;
        kept = kept || shares;
    }
    return n_tok;
}

static void streams_beside(struct collector *c, struct answer *a) {
    int32_t ids[N_BESIDE + 5];
    for (int i = 0; i < N_BESIDE + 5; i++) ids[i] = 400 + i;
    for (int i = 0; i < N_BESIDE; i++) collect_submit(c, request(&a[i], ids + i, 5, 1 << 20));
    for (int i = 0; i < N_BESIDE; i++)
        while (a[i].n_ids < 2) collect_now(c);
}

static void each_is_what_it_is_alone(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 63, 64, 65, 130, 257, 700}; /* around chunks, and beyond the window */
    static const struct {
        uint32_t n_slots, max_batch_tok;
        bool cache, beside;
    } worlds[] = {
        {N_CHOICES, 0, false, false}, {N_CHOICES + N_BESIDE, 128, false, true},
        {2, 0, false, false},         {N_CHOICES + 2, 0, true, false},
        {3, 192, true, false},
    };
    enum { N_LENGTHS = sizeof lengths / sizeof *lengths };
    struct collector lone;
    struct answer(*want)[N_CHOICES] = calloc(N_LENGTHS, sizeof *want);
    open_engine(&lone, 1, 0, false);
    for (size_t k = 0; k < N_LENGTHS; k++) alone(&lone, want[k], lengths[k], 1);
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        struct collector c;
        struct answer a[N_CHOICES], beside[N_BESIDE];
        char what[64];
        open_engine(&c, worlds[w].n_slots, worlds[w].max_batch_tok, worlds[w].cache);
        if (worlds[w].beside) streams_beside(&c, beside);
        for (int again = 0; again <= worlds[w].cache; again++) /* the second time from an entry, some the first time */
            for (size_t k = 0; k < N_LENGTHS; k++) {
                const uint64_t before = stats_of(c.engine).prefill_tok;
                submit(&c, a, lengths[k], 1);
                collect_until(&c, a, N_CHOICES);
                snprintf(what, sizeof what, "world %zu, time %d", w, again + 1);
                assert_all_same(a, want[k], what, lengths[k]);
                const uint64_t read = stats_of(c.engine).prefill_tok - before;
                const bool waits = worlds[w].cache && worlds[w].n_slots < N_CHOICES; /* for an entry, or reads */
                const uint64_t most = waits ? N_CHOICES * lengths[k]
                                            : read_tok(c.engine, worlds[w].n_slots, lengths[k], 1),
                               least = worlds[w].cache ? 0 : read_tok(c.engine, N_CHOICES, lengths[k], 1);
                if (read < least || read > most)
                    fail_msg("%s: %llu tokens read, want %llu to %llu, for a prompt of %zu", what,
                             (unsigned long long)read, (unsigned long long)least, (unsigned long long)most, lengths[k]);
                for (int i = 0; i < 1000 && worlds[w].cache && stats_of(c.engine).slots_used; i++) collect_wait(&c, 1);
                free_all(a);
            }
        for (int i = 0; worlds[w].beside && i < N_BESIDE; i++) {
            rod_cancel(c.engine, beside[i].ticket);
            collect_until(&c, &beside[i], 1);
            collect_free(&beside[i]);
        }
        collect_close(&c);
    }
    for (size_t k = 0; k < N_LENGTHS; k++) free_all(want[k]);
    free(want);
    collect_close(&lone);
}

static void a_penalty_of_repetitions_knows_the_whole_prompt(void **state) {
    (void)state;
    enum { N_PROMPT = 200 };
    for (uint32_t n_slots = 2; n_slots <= N_CHOICES; n_slots += N_CHOICES - 2) {
        struct collector lone, c;
        struct answer want[N_CHOICES], a[N_CHOICES];
        open_engine(&lone, 1, 0, false);
        alone(&lone, want, N_PROMPT, 1.4f);
        open_engine(&c, n_slots, 0, true);
        submit(&c, a, N_PROMPT, 1.4f);
        collect_until(&c, a, N_CHOICES);
        assert_all_same(a, want, "with a penalty", N_PROMPT);
        assert_int_equal(stats_of(c.engine).prefill_tok, read_tok(c.engine, n_slots, N_PROMPT, 1.4f));
        free_all(want), free_all(a);
        collect_close(&lone), collect_close(&c);
    }
}

static void when_the_one_that_reads_is_cancelled_the_others_go_on(void **state) {
    (void)state;
    enum { N_PROMPT = 1000 };
    struct collector lone;
    struct answer want[N_CHOICES], a[N_CHOICES];
    open_engine(&lone, 1, 0, false);
    alone(&lone, want, N_PROMPT, 1);
    for (int at = 0; at < 4; at++) { /* at once, and after so many quarters */
        struct collector c;
        open_engine(&c, at % 2 ? 3 : N_CHOICES, 64 + N_CHOICES, at > 1);
        submit(&c, a, N_PROMPT, 1);
        while (stats_of(c.engine).prefill_tok < (uint64_t)at * N_PROMPT / 4) {}
        rod_cancel(c.engine, a[0].ticket);
        collect_until(&c, a, N_CHOICES);
        for (uint32_t i = 1; i < N_CHOICES; i++) assert_same(&a[i], &want[i], "after its reader left");
        free_all(a);
        collect_close(&c);
    }
    free_all(want);
    collect_close(&lone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_what_it_is_alone),
        cmocka_unit_test(a_penalty_of_repetitions_knows_the_whole_prompt),
        cmocka_unit_test(when_the_one_that_reads_is_cancelled_the_others_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
