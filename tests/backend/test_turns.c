/* test_turns.c - conversations that leave their slots after each turn and come back, through the whole engine on a real
 * backend, beside others: the same tokens, log-probabilities and states as without a break, and as alone. On the
 * backend that RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION; --deterministic, as the law
 * asks where steps of different sizes are compared. */
#include "tests/collect.h"

#include "engine/base/philox.h"
#include "engine/state/state_buffer.h"

static const char *const models[] = {"config/models/tales", "tests/vectors/rodimus-plus-small",
                                     "tests/vectors/rodimus-plus-short", "tests/vectors/rodimus-small"};
#define N_MODELS (sizeof models / sizeof *models)

static uint64_t draw_number;
static uint32_t draw(uint32_t n) { return (uint32_t)(philox_uniform(61, draw_number++, 0) * n); }

static void open_engine(struct collector *c, const char *model, uint32_t n_slots) {
    struct rod_error err;
    const char *device = getenv("RODIMUS_TEST_DEVICE"), *precision = getenv("RODIMUS_TEST_PRECISION");
    struct rod_engine_config config = {.model_dir = model,
                                       .device = device ? device : "cpu",
                                       .precision = precision ? precision : "auto",
                                       .window_dtype =
                                           strstr(model, "rodimus-small") ? NULL : getenv("RODIMUS_TEST_WINDOW"),
                                       .deterministic = true,
                                       .n_slots = n_slots,
                                       .n_threads = 2,
                                       .max_queue = 1000};
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s: %s", model, err.message);
}

/* One turn of a conversation; how it is asked for is the same whenever it is made. */
struct turn {
    int32_t ids[100];
    uint32_t n_ids, max_tokens;
    float temperature;
    bool ignore_eos, on_host; /* on_host: the host must see its logits */
};

static struct turn make_turn(uint32_t V) {
    struct turn t = {.n_ids = 1 + draw(draw(3) ? 20 : 100), .max_tokens = draw(8) ? 1 + draw(24) : 0};
    for (uint32_t i = 0; i < t.n_ids; i++) t.ids[i] = (int32_t)draw(V);
    t.temperature = draw(2) ? 0.9f : 0;
    t.ignore_eos = draw(2);
    t.on_host = draw(5) == 0;
    return t;
}

static struct rod_request *request_of(const struct turn *t, struct rod_state *from, struct answer *a) {
    struct rod_request *r = collect_request(t->ids, t->n_ids, a);
    r->max_tokens = t->max_tokens;
    r->sampling.temperature = t->temperature;
    r->sampling.seed = 4711;
    r->ignore_eos = t->ignore_eos;
    r->n_logprobs = 0;
    r->keep_state = true;
    r->state = from ? rod_state_ref(from) : NULL;
    if (t->on_host) {
        r->bad = calloc(1, sizeof *r->bad);
        r->bad[0].ids = malloc(sizeof *r->bad[0].ids);
        r->bad[0].ids[0] = 3;
        r->bad[0].n_ids = 1;
        r->n_bad = 1;
    }
    return r;
}

static void expect_same(const struct answer *got, const struct answer *want, const char *what) {
    collect_assert_ids(got, want->ids, want->n_ids, what);
    for (size_t i = 0; i < want->n_ids; i++)
        if (memcmp(&got->logprobs[i], &want->logprobs[i], sizeof *got->logprobs))
            fail_msg("%s: token %zu has %.9g, want %.9g", what, i, (double)got->logprobs[i], (double)want->logprobs[i]);
    const struct rod_state *a = got->end.state, *b = want->end.state;
    assert_int_equal(a->n_tok, b->n_tok);
    assert_int_equal(a->pending, b->pending);
    assert_int_equal(a->buffer->n_bytes, b->buffer->n_bytes);
    if (memcmp(a->buffer->bytes, b->buffer->bytes, b->buffer->n_bytes)) fail_msg("%s: another state at the end", what);
}

static struct turn endless(uint32_t V) {
    struct turn t = make_turn(V);
    t.max_tokens = UINT32_MAX;
    t.ignore_eos = true;
    t.on_host = false;
    return t;
}

/* More conversations than slots, turn after turn, beside streams that never end, some turns cancelled at some moment
 * and asked for again: as each of them alone. */
static void conversations_in_few_slots_are_as_alone(void **state) {
    (void)state;
    enum { CONVERSATIONS = 14, TURNS = 5, SLOTS = 6, STREAMS = 3 };
    for (size_t m = 0; m < N_MODELS; m++) {
        struct collector alone, busy;
        struct answer streams[STREAMS];
        static struct turn turns[CONVERSATIONS][TURNS];
        static struct answer want[CONVERSATIONS][TURNS], got[CONVERSATIONS];
        struct rod_state *at[CONVERSATIONS] = {NULL};
        open_engine(&alone, models[m], 1), open_engine(&busy, models[m], SLOTS);
        const uint32_t V = rod_engine_info(alone.engine)->vocab_size;
        for (int i = 0; i < CONVERSATIONS; i++)
            for (int t = 0; t < TURNS; t++) {
                turns[i][t] = make_turn(V);
                collect_submit(&alone, request_of(&turns[i][t], t ? want[i][t - 1].end.state : NULL, &want[i][t]));
                collect_until(&alone, &want[i][t], 1);
            }
        for (int i = 0; i < STREAMS; i++) {
            const struct turn t = endless(V);
            collect_submit(&busy, request_of(&t, NULL, &streams[i]));
        }
        for (int t = 0; t < TURNS; t++)
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < CONVERSATIONS; i++) collect_submit(&busy, request_of(&turns[i][t], at[i], &got[i]));
                for (int i = 0; i < CONVERSATIONS && !round; i++) {
                    collect_wait(&busy, draw(4));
                    collect_now(&busy);
                    rod_cancel(busy.engine, got[i].ticket);
                }
                collect_until(&busy, got, CONVERSATIONS);
                for (int i = 0; i < CONVERSATIONS; i++) {
                    char what[80];
                    snprintf(what, sizeof what, "%.40s: turn %d of conversation %d", models[m], t, i);
                    if (round) {
                        expect_same(&got[i], &want[i][t], what);
                        rod_state_free(at[i]);
                        at[i] = got[i].end.state;
                        got[i].end.state = NULL;
                    }
                    collect_free(&got[i]);
                }
            }
        for (int i = 0; i < STREAMS; i++) rod_cancel(busy.engine, streams[i].ticket);
        collect_until(&busy, streams, STREAMS);
        for (int i = 0; i < STREAMS; i++) collect_free(&streams[i]);
        for (int i = 0; i < CONVERSATIONS; i++) {
            rod_state_free(at[i]);
            for (int t = 0; t < TURNS; t++) collect_free(&want[i][t]);
        }
        collect_close(&alone), collect_close(&busy);
    }
}

/* One answer, and the same in pieces, each going on from what the last one left in another slot and beside streams. */
static void an_answer_in_pieces_is_the_answer(void **state) {
    (void)state;
    enum { TOKENS = 60, STREAMS = 3 };
    for (size_t m = 0; m < N_MODELS; m++) {
        struct collector c;
        struct answer whole, streams[STREAMS];
        open_engine(&c, models[m], STREAMS + 2);
        const uint32_t V = rod_engine_info(c.engine)->vocab_size;
        for (int i = 0; i < STREAMS; i++) {
            const struct turn t = endless(V);
            collect_submit(&c, request_of(&t, NULL, &streams[i]));
        }
        for (int k = 0; k < 4; k++) {
            struct turn t = make_turn(V);
            t.max_tokens = TOKENS, t.ignore_eos = true, t.on_host = k == 3;
            collect_submit(&c, request_of(&t, NULL, &whole));
            collect_until(&c, &whole, 1);
            struct rod_state *at = NULL;
            for (uint32_t done = 0, n; done < TOKENS; done += n) {
                struct answer piece;
                n = 1 + draw(20);
                if (n > TOKENS - done) n = TOKENS - done;
                t.max_tokens = n;
                collect_submit(&c, request_of(&t, at, &piece));
                collect_until(&c, &piece, 1);
                collect_assert_ids(&piece, whole.ids + done, n, models[m]);
                assert_memory_equal(piece.logprobs, whole.logprobs + done, n * sizeof *piece.logprobs);
                assert_int_equal(piece.end.cached_tok, at ? at->n_tok : 0);
                rod_state_free(at);
                at = piece.end.state;
                piece.end.state = NULL;
                collect_free(&piece);
                t.n_ids = 0;
            }
            assert_memory_equal(at->buffer->bytes, whole.end.state->buffer->bytes, at->buffer->n_bytes);
            rod_state_free(at);
            collect_free(&whole);
        }
        for (int i = 0; i < STREAMS; i++) rod_cancel(c.engine, streams[i].ticket);
        collect_until(&c, streams, STREAMS);
        for (int i = 0; i < STREAMS; i++) collect_free(&streams[i]);
        collect_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_in_few_slots_are_as_alone),
        cmocka_unit_test(an_answer_in_pieces_is_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
