/* sessions_folder.h - for tests of sessions in a folder: engines over the fake device that share the test's folder, and
 * conversations whose turns are the same wherever they run. */
#ifndef SESSIONS_FOLDER_H
#define SESSIONS_FOLDER_H

#include "sessions_setup.h"

static char *dir; /* of the test that runs */

static inline void begin_with(struct setup *b, struct rod_engine_config config) {
    config.state_dir = dir;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    setup_open(b, OPTIONS(.kind = FAKE_HASH), config);
}
#define BEGIN(b) begin_with(b, CONFIG())

static inline void begin_in_memory(struct setup *b) {
    setup_open(b, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = 64u << 20));
}

/* Turn number n of a conversation that is another one for each id: with penalties, seeds and log-probabilities. */
static inline struct rod_request *nth_turn(struct answer *a, const char *id, uint32_t n) {
    int32_t ids[16];
    const size_t n_ids = n % 3 == 2 ? 0 : 1 + (size_t)(n * 7 + (unsigned char)id[0]) % 15;
    for (size_t i = 0; i < n_ids; i++) ids[i] = 100 + (id[0] * 31 + id[1] * 7 + (int32_t)(n * 13 + i * 3)) % 1000;
    struct rod_request *r = turn_request(a, id, ids, n_ids, 3 + n % 5);
    r->sampling.temperature = 1;
    r->sampling.seed = 7 + n;
    r->sampling.frequency_penalty = n % 2 ? 1.5f : 0;
    r->sampling.repetition_penalty = n % 4 == 3 ? 1.3f : 1;
    r->n_logprobs = 1;
    return r;
}

static inline void assert_same(const struct answer *a, const struct answer *want, const char *what) {
    if (want->failed) fail_msg("%s: the undisturbed turn failed: %s", what, want->end.error.message);
    collect_assert_ids(a, want->ids, want->n_ids, what);
    assert_memory_equal(a->logprobs, want->logprobs, want->n_ids * sizeof *want->logprobs);
    assert_int_equal(a->end.session_version, want->end.session_version);
    assert_int_equal(a->end.prompt_tok, want->end.prompt_tok);
    assert_int_equal(a->end.cached_tok, want->end.cached_tok);
}

static inline void wait_for(bool (*good)(struct setup *b), struct setup *b, const char *what) {
    for (int ms = 0; !good(b); ms += 10) {
        if (ms > 10000) fail_msg("after 10 s: %s", what);
        usleep(10000);
    }
}

static inline int make_folder(void **state) {
    (void)state;
    setup_on_device = false;
    dir = make_dir();
    return 0;
}
static inline int remove_folder(void **state) {
    (void)state;
    remove_dir(dir);
    return 0;
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif
