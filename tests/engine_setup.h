/* engine_setup.h - for tests of the engine: an engine over the fake backend with a collector.
 *
 * setup_on_device: the tests that do not say otherwise run on the device that samples; ON_BOTH runs one on either.
 * setup_close waits for every request and fails if the engine broke a rule of the seam.
 */
#ifndef ENGINE_SETUP_H
#define ENGINE_SETUP_H

#include "collect.h"
#include "fake_backend.h"

enum { V = 4096, EOS = 1 };

static bool setup_on_device;
static bool setup_drafts; /* the backend reads drafts */

/* Set-ups of a test. */
static inline int on_host(void **state) {
    (void)state;
    setup_on_device = false;
    return 0;
}
static inline int on_device(void **state) {
    (void)state;
    setup_on_device = true;
    return 0;
}
#define ON_BOTH(test)                                                                                                  \
    cmocka_unit_test_setup_teardown(test, on_host, NULL), {                                                            \
#test " on a device that samples", test, on_device, NULL, NULL                                                 \
    }

struct setup {
    struct collector c;
    struct backend *be;
};

struct setup_options {
    enum fake_kind kind;
    uint32_t n_slots, max_batch_tok, shared_tok, chunk_tok;
    uint32_t flight_tok, flight_streams; /* flight_streams: 0 = as the engine has it */
    bool tokenizer, gated, measures;
};

static inline void setup_open(struct setup *b, struct setup_options o, struct rod_engine_config config) {
    struct rod_error err;
    collect_init(&b->c, &config);
    const struct backend_ops *ops = setup_drafts      ? setup_on_device ? &fake_draft_device_ops : &fake_draft_ops
                                    : setup_on_device ? &fake_device_ops
                                                      : &fake_ops;
    b->be = fake_open(ops, o.kind, V, o.n_slots ? o.n_slots : 4, o.max_batch_tok ? o.max_batch_tok : 64,
                      o.chunk_tok ? o.chunk_tok : 8);
    b->be->gated = o.gated;
    b->be->info.flight_tok = o.flight_tok;
    b->be->info.shared_tok = o.shared_tok;
    struct engine_parts parts = {
        .ops = ops, .backend = b->be, .V = V, .eos_ids = {EOS}, .n_eos_ids = 1, .measures = o.measures};
    if (o.tokenizer && tokenizer_open("config/models/tales", &parts.tokenizer, &err)) fail_msg("%s", err.message);
    char note[320];
    if (o.tokenizer && chat_open("config/models/tales", parts.tokenizer, &parts.chat, note, sizeof note, &err))
        fail_msg("%s", err.message);
    if (engine_open_parts(&config, &parts, &b->c.engine, &err)) fail_msg("%s", err.message);
    if (o.flight_streams) b->c.engine->sched.config.flight_streams = o.flight_streams;
}

static inline void setup_close(struct setup *b) {
    char fault[sizeof b->be->fault];
    fake_release(b->be);
    atomic_store(&b->be->hold_flights, false);
    fake_end_moves(b->be, true);
    rod_engine_drain(b->c.engine);
    struct rod_stats stats;
    do {
        collect_now(&b->c);
        rod_engine_stats(b->c.engine, &stats);
    } while (stats.running + stats.queued);
    collect_now(&b->c);
    memcpy(fault, b->be->fault, sizeof fault);
    collect_close(&b->c);
    if (fault[0]) fail_msg("the engine broke a rule of backend.h: %s", fault);
}

#define OPTIONS(...) ((struct setup_options){__VA_ARGS__})
#define CONFIG(...)  ((struct rod_engine_config){.max_queue = 1000, __VA_ARGS__})

/* One request in the copy model with the tokenizer of tales: it says text. */
static inline struct rod_request *say(struct setup *b, const char *text, struct answer *a) {
    int32_t *ids;
    size_t n;
    struct rod_error err;
    if (rod_encode(b->c.engine, text, strlen(text), true, &ids, &n, &err)) fail_msg("%s", err.message);
    struct rod_request *r = collect_request(ids, n, a);
    r->max_tokens = 1000;
    free(ids);
    return r;
}

static inline void finish(struct setup *b, struct rod_request *r, struct answer *a) {
    collect_submit(&b->c, r);
    collect_until(&b->c, a, 1);
    if (a->failed) fail_msg("%s", a->end.error.message);
}

#endif
