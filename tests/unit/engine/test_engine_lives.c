/* test_engine_lives.c - clients of every kind at once, in random lives: prompts of few beginnings, choices of one
 * prompt, scored prompts, conversations by states and by sessions; with stop strings, grammars, bans and deadlines;
 * cancelled at any moment, with states that move slowly and logits that are no numbers. Whoever ends has what an engine
 * gives that has nobody else and keeps nothing; and when all have ended, every slot is free and every byte of the
 * states' pool belongs to somebody. Over the fake device, of both kinds, in every second life with drafts, in half of
 * the lives step by step, so that much happens between two steps. RODIMUS_TEST_SOAK=1: a hundred times as many lives.
 */
#include "tests/sessions_folder.h"

enum { N_CLIENTS = 14, N_SESSIONS = 4, MOST_CHOICES = 12, MOST_IDS = 2000, NAN_ID = 77 };
#ifdef __SANITIZE_THREAD__
enum { N_LIVES = 120 };
#else
enum { N_LIVES = 400 };
#endif

enum kind { PLAIN, CHOICES, SCORED, CONVERSATION, TURN, N_KINDS };

/* All tokens that were read, and those that are pending. */
struct talk {
    int32_t ids[MOST_IDS];
    size_t n;
    bool goes_on;            /* the last one is pending: nothing new need be said */
    struct rod_state *state; /* of a CONVERSATION */
};

struct client {
    enum kind kind;
    uint64_t seed; /* of this life */
    size_t n_before, n_new;
    uint32_t n, n_cancelled;
    bool busy, timed, scored;
    struct talk *talk, own;
    struct answer a[MOST_CHOICES];
};

struct lives {
    struct setup b, cold;
    struct rod_grammar *grammar, *cold_grammar;
    struct client client[N_CLIENTS];
    struct talk talk[N_SESSIONS];
    int32_t said[700]; /* [n_said] a prompt and its answer: others begin with it */
    size_t n_said;
    bool taken[N_SESSIONS], faulty, stepwise, drafts; /* faulty: the device fails, or will */
    uint64_t seed, n_drawn, n_begun, n_asked, n_cancelled, n_failed, n_late;
    atomic_uint n_outside;
};

static uint32_t pick(struct lives *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 3) * (double)n);
}

static void count_line(void *arg, int level, const char *line) {
    struct lives *l = arg;
    if (level == 2 && strstr(line, "outside of it")) atomic_fetch_add(&l->n_outside, 1);
}

/* ---- what is asked ---- */

#define DRAW(n) ((uint32_t)(philox_uniform(c->seed, draw++, 4) * (double)(n)))

/* New tokens behind the talk's. A few beginnings that are the same for many. */
static void say_more(struct client *c) {
    uint32_t draw = 100;
    struct talk *t = c->talk;
    c->n_before = t->n;
    const uint32_t long_tok = c->kind == CHOICES && DRAW(4) == 0 ? 320 : 150;
    c->n_new = t->n && t->goes_on && DRAW(3) == 0 ? 0 : 1 + DRAW(t->n ? 30 : long_tok);
    const uint32_t family = DRAW(3), same = DRAW(2) ? 1000 : DRAW(150);
    for (uint32_t i = 0; i < c->n_new; i++) {
        const uint64_t of = i < same ? family : c->seed;
        t->ids[t->n] = 100 + (int32_t)(philox_uniform(of, t->n, 9) * 3000);
        t->n++;
    }
    if (c->n_new && DRAW(25) == 0) t->ids[t->n - 1] = NAN_ID;
}

/* Choice i of what the client asks, with the tokens [from, n) of its talk. */
static struct rod_request *ask(const struct client *c, struct answer *a, size_t from, uint32_t i,
                               struct rod_grammar *grammar) {
    uint32_t draw = 200;
    struct rod_request *r = collect_request(c->talk->ids + from, c->n_before + c->n_new - from, a);
    r->sampling.temperature = DRAW(3) ? 1 : 0;
    r->sampling.seed = c->seed + i;
    r->sampling.top_p = DRAW(2) ? 0.5f : 1;
    r->max_tokens = 1 + DRAW(25);
    r->min_tokens = DRAW(4) ? 0 : DRAW(r->max_tokens);
    r->n_logprobs = (int32_t)DRAW(4) - 1;
    r->n_stop_ids = DRAW(300);
    r->stop_ids = calloc(r->n_stop_ids + 1, sizeof *r->stop_ids);
    for (size_t k = 0; k < r->n_stop_ids; k++) r->stop_ids[k] = (int32_t)(2 + DRAW(V - 2));
    r->include_stop = DRAW(2);
    const uint32_t more = c->kind == CONVERSATION || c->kind == TURN ? 4 + DRAW(4) : DRAW(8);
    if (more == 0) {
        collect_stop(r, "e"), collect_stop(r, "the ");
    } else if (more == 1) {
        r->sampling.frequency_penalty = 1;
    } else if (more == 2) {
        r->sampling.repetition_penalty = 1.3f;
    } else if (more == 3) {
        r->grammar = rod_grammar_ref(grammar);
        if (DRAW(2)) r->grammar_open = strdup("e"), r->grammar_again = DRAW(2);
    } else if (more == 4) {
        r->n_allowed_ids = 60;
        r->allowed_ids = calloc(r->n_allowed_ids, sizeof *r->allowed_ids);
        for (size_t k = 0; k < r->n_allowed_ids; k++) r->allowed_ids[k] = (int32_t)DRAW(V);
    } else if (more == 5) {
        r->n_bias = 20;
        r->bias = calloc(r->n_bias, sizeof *r->bias);
        for (size_t k = 0; k < r->n_bias; k++) r->bias[k] = (struct rod_bias){(int32_t)DRAW(V), 4};
    }
    if (c->scored) r->n_prompt_logprobs = (int32_t)DRAW(3);
    return r;
}

/* What it will say is its prediction, now and then another token: so drafts are right, wrong and over its end. */
static void predict(struct lives *l, const struct client *c, struct rod_request *r, uint32_t i) {
    struct answer alone;
    if (!l->drafts || pick(l, 3) == 0) return;
    collect_submit(&l->cold.c, ask(c, &alone, 0, i, l->cold_grammar));
    collect_until(&l->cold.c, &alone, 1);
    r->n_prediction = alone.n_ids + pick(l, 5);
    r->prediction = calloc(r->n_prediction + 1, sizeof *r->prediction);
    const uint32_t one_in = 2 + pick(l, 12);
    for (size_t k = 0; k < r->n_prediction; k++)
        r->prediction[k] = k < alone.n_ids && pick(l, one_in) ? alone.ids[k] : (int32_t)pick(l, V);
    collect_free(&alone);
}

static void begin(struct lives *l, struct client *c) {
    struct rod_error err;
    uint64_t tickets[MOST_CHOICES];
    struct rod_request *r[MOST_CHOICES];
    *c = (struct client){.seed = l->seed * 1000003 + l->n_begun++, .own = c->own, .busy = true, .n = 1};
    c->kind = (enum kind)pick(l, N_KINDS);
    c->talk = &c->own;
    uint32_t number = pick(l, N_SESSIONS);
    if (c->kind == TURN && l->taken[number]) c->kind = CONVERSATION;
    if (c->kind == TURN) c->talk = &l->talk[number], l->taken[number] = true;
    if ((c->kind != TURN && c->kind != CONVERSATION) || c->talk->n > MOST_IDS - 300) {
        rod_state_free(c->talk->state);
        *c->talk = (struct talk){0};
        if (c->kind == TURN) {
            char id[] = {'s', (char)('0' + number), 0};
            if (rod_session_delete(l->b.c.engine, "", id, &err)) fail_msg("%s: %s", id, err.message);
        }
    }
    if (c->kind == CHOICES && pick(l, 2)) memcpy(c->talk->ids, l->said, (c->talk->n = l->n_said) * sizeof *l->said);
    say_more(c);
    if (c->kind <= SCORED) c->n_new += c->n_before, c->n_before = 0;
    if (c->kind == CHOICES) c->n = 2 + pick(l, MOST_CHOICES - 1);
    c->scored = c->kind == SCORED || (c->kind == CHOICES && pick(l, 6) == 0);
    const uint32_t key = pick(l, 3), weight = pick(l, 4);
    const bool one_key = pick(l, 8);
    const bool goes_on = c->kind == TURN || c->talk->state;
    c->timed = pick(l, 12) == 0;
    for (uint32_t i = 0; i < c->n; i++) {
        r[i] = ask(c, &c->a[i], goes_on ? c->n_before : 0, i, l->grammar);
        r[i]->same_before = i;
        predict(l, c, r[i], i);
        r[i]->key = one_key ? key : pick(l, 3);
        r[i]->weight = weight;
        if (c->timed) r[i]->queue_timeout_ns = 1 + pick(l, 3000000);
        if (c->kind == CONVERSATION) {
            r[i]->keep_state = true;
            if (c->talk->state) r[i]->state = rod_state_ref(c->talk->state);
        } else if (c->kind == TURN) {
            r[i]->turn = calloc(1, sizeof *r[i]->turn);
            r[i]->turn->tenant = strdup("");
            r[i]->turn->session = strdup("s0");
            r[i]->turn->session[1] = (char)('0' + number);
            r[i]->turn->create = true;
        }
    }
    if (rod_submit_all(l->b.c.engine, r, c->n, tickets, &err)) {
        if (!l->faulty || err.code != ROD_EDEVICE) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < c->n; i++) {
            rod_request_free(r[i]);
            collect_free(&c->a[i]);
        }
        c->talk->n = c->n_before;
        c->busy = false;
        return;
    }
    for (uint32_t i = 0; i < c->n; i++) c->a[i].ticket = tickets[i];
}

/* ---- what came of it ---- */

static void assert_as_alone(struct lives *l, const struct client *c, uint32_t i) {
    struct answer want;
    const struct answer *a = &c->a[i];
    char what[96];
    snprintf(what, sizeof what, "seed %llu: life %llu of kind %d, choice %u", (unsigned long long)l->seed,
             (unsigned long long)(c->seed - l->seed * 1000003), (int)c->kind, i);
    collect_submit(&l->cold.c, ask(c, &want, 0, i, l->cold_grammar));
    collect_until(&l->cold.c, &want, 1);
    if (a->failed != want.failed || (a->failed && a->end.error.code != want.end.error.code))
        fail_msg("%s: %s, alone %s", what, a->failed ? a->end.error.message : "well",
                 want.failed ? want.end.error.message : "well");
    if (a->failed) l->n_failed++;
    if (!a->failed) collect_assert_ids(a, want.ids, want.n_ids, what);
    if (!a->failed && a->end.reason != want.end.reason)
        fail_msg("%s: ends as %d, alone as %d", what, (int)a->end.reason, (int)want.end.reason);
    for (size_t k = 0; !a->failed && k < a->n_ids; k++)
        if (memcmp(&a->logprobs[k], &want.logprobs[k], sizeof *a->logprobs))
            fail_msg("%s: log-probability %zu is %.9g, alone %.9g", what, k, (double)a->logprobs[k],
                     (double)want.logprobs[k]);
    if (!a->failed && c->kind <= SCORED && strcmp(a->text, want.text))
        fail_msg("%s: \"%s\", alone \"%s\"", what, a->text, want.text);
    if (!a->failed && a->n_prompt != want.n_prompt) fail_msg("%s: another number of scores", what);
    for (size_t k = 0; !a->failed && k < a->n_prompt; k++)
        if (a->prompt[k].id != want.prompt[k].id || a->prompt[k].rank != want.prompt[k].rank)
            fail_msg("%s: token %zu of the prompt has rank %u, alone %u", what, k, a->prompt[k].rank,
                     want.prompt[k].rank);
    if (!a->failed && a->end.prompt_tok != want.end.prompt_tok)
        fail_msg("%s: a prompt of %llu tokens, alone %llu", what, (unsigned long long)a->end.prompt_tok,
                 (unsigned long long)want.end.prompt_tok);
    collect_free(&want);
}

/* False: it is not over. */
static bool end(struct lives *l, struct client *c) {
    for (uint32_t i = 0; i < c->n; i++)
        if (!c->a[i].ended) return false;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct answer *a = &c->a[i];
        if (!a->failed && a->end.reason == ROD_FINISH_CANCEL) {
            assert_true(c->n_cancelled > 0);
            l->n_cancelled++;
        } else if (a->failed && a->end.error.code == ROD_ETIMEDOUT) {
            assert_true(c->timed);
            l->n_late++;
        } else if (a->failed && l->faulty && a->end.error.code == ROD_EDEVICE) {
            l->n_failed++;
        } else {
            assert_as_alone(l, c, i);
        }
    }
    struct talk *t = c->talk;
    struct answer *a = &c->a[0];
    const bool well = !a->failed && a->end.reason != ROD_FINISH_CANCEL;
    if (!well) { /* as if it had not been */
        t->n = c->n_before;
    } else {
        t->goes_on = a->end.reason == ROD_FINISH_LENGTH ||
                     (a->end.stop_id >= 0 && a->n_ids && a->ids[a->n_ids - 1] == a->end.stop_id);
        for (size_t k = 0; k < a->n_ids; k++) t->ids[t->n++] = a->ids[k];
        if (c->kind == CHOICES && t->n <= sizeof l->said / sizeof *l->said)
            memcpy(l->said, t->ids, (l->n_said = t->n) * sizeof *l->said);
        if (c->kind == CONVERSATION) {
            assert_non_null(a->end.state);
            rod_state_free(t->state);
            t->state = a->end.state;
            a->end.state = NULL;
        }
    }
    if (c->kind == TURN) l->taken[t - l->talk] = false;
    for (uint32_t i = 0; i < c->n; i++) collect_free(&c->a[i]);
    l->n_asked += c->n;
    c->busy = false;
    return true;
}

/* ---- a world ---- */

static void open_worlds(struct lives *l) {
    const size_t state = state_pool_bytes(1, sizeof(struct fake_state));
    struct rod_engine_config config = CONFIG(.session_lazy = true, .state_dir = dir, .log = count_line, .log_arg = l);
    config.state_host_bytes = (6 + pick(l, 40)) * state;
    config.prefix_cache_bytes = pick(l, 4) ? (2 + pick(l, 20)) * state : 0;
    const uint32_t n_slots = 1 + pick(l, 8);
    l->drafts = setup_drafts;
    setup_open(&l->b,
               OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .n_slots = n_slots, .max_batch_tok = 16 + pick(l, 80),
                       .shared_tok = pick(l, 2) ? 16 : 0, .flight_tok = pick(l, 3) ? 8 + pick(l, 120) : 0,
                       .flight_streams = 1 + pick(l, 2)),
               config);
    setup_drafts = false;
    setup_open(&l->cold, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    l->b.c.engine->drafts_always = pick(l, 2);
    l->b.c.engine->moves_always = pick(l, 2);
    l->stepwise = pick(l, 2);
    atomic_store(&l->b.be->gated, l->stepwise);
    atomic_store(&l->b.be->nan_token, NAN_ID);
    atomic_store(&l->cold.be->nan_token, NAN_ID);
    struct rod_error err;
    const char *regex = "[a-z ]{1,60}\\.";
    if (rod_grammar_open(l->b.c.engine, 0, 0, ROD_GRAMMAR_REGEX, regex, strlen(regex), &l->grammar, &err) ||
        rod_grammar_open(l->cold.c.engine, 0, 0, ROD_GRAMMAR_REGEX, regex, strlen(regex), &l->cold_grammar, &err))
        fail_msg("%s", err.message);
}

static void assert_all_is_given_back(struct lives *l) {
    const size_t state = state_pool_bytes(1, sizeof(struct fake_state));
    for (int i = 0; i < N_CLIENTS; i++) {
        rod_state_free(l->client[i].own.state);
        l->client[i].own.state = NULL;
    }
    struct rod_stats s;
    for (int ms = 0;; ms++, usleep(1000)) { /* the last moves, and sessions that are being written */
        s = stats_of(l->b.c.engine);
        const uint64_t owned = (s.sessions_host + s.prefix_entries) * state;
        const bool tight = !atomic_load(&l->n_outside); /* else some of them lie elsewhere */
        if (!s.slots_used && !s.running && !s.queued &&
            (tight ? s.state_host_bytes == owned : s.state_host_bytes <= owned))
            return;
        if (ms > 10000)
            fail_msg("seed %llu: %u slots in use, %u running, %u in the queue; %llu bytes of states, %llu sessions and "
                     "%llu entries of %zu",
                     (unsigned long long)l->seed, s.slots_used, s.running, s.queued,
                     (unsigned long long)s.state_host_bytes, (unsigned long long)s.sessions_host,
                     (unsigned long long)s.prefix_entries, state);
    }
}

/* Where it goes step by step, at most three; else all that are made in a moment. */
static void let_steps_pass(struct lives *l) {
    for (uint32_t n = pick(l, 4); l->stepwise && n > 0; n--) {
        if (sem_trywait(&l->b.be->entered))
            usleep(50);
        else
            sem_post(&l->b.be->gate);
    }
    if (!l->stepwise) collect_wait(&l->b.c, 1);
}

/* A moment: clients end, begin and cancel, states arrive. */
static bool tick(struct lives *l, bool begins) {
    bool any = false;
    for (int i = 0; i < N_CLIENTS; i++) {
        struct client *c = &l->client[i];
        if (c->busy && end(l, c)) continue;
        if (!c->busy && begins && pick(l, 3)) begin(l, c);
        if (c->busy && pick(l, 200) == 0) {
            rod_cancel(l->b.c.engine, c->a[pick(l, c->n)].ticket);
            c->n_cancelled++;
        }
        any |= c->busy;
    }
    if (pick(l, 10) == 0) atomic_store(&l->b.be->hold_moves, pick(l, 2) == 0);
    if (pick(l, 4) == 0) fake_end_moves(l->b.be, false);
    if (pick(l, 5) == 0) atomic_store(&l->b.be->hold_flights, pick(l, 3) == 0);
    let_steps_pass(l);
    collect_now(&l->b.c);
    return any;
}

static struct lives *open_lives(bool on_device, uint64_t number) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    struct lives *l = calloc(1, sizeof *l);
    l->seed = (given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL)) + number;
    make_folder(NULL);
    setup_on_device = on_device;
    open_worlds(l);
    return l;
}

static void close_lives(struct lives *l) {
    for (int i = 0; i < N_CLIENTS; i++) {
        rod_state_free(l->client[i].own.state);
        for (uint32_t k = 0; l->client[i].busy && k < l->client[i].n; k++) collect_free(&l->client[i].a[k]);
    }
    rod_grammar_close(l->grammar), rod_grammar_close(l->cold_grammar);
    setup_close(&l->cold);
    free(l);
    remove_folder(NULL);
}

static void each_has_what_it_has_alone(bool on_device, uint64_t number) {
    struct lives *l = open_lives(on_device, number);
    while (tick(l, l->n_begun < N_LIVES) || l->n_begun < N_LIVES) {}
    fake_release(l->b.be);
    fake_end_moves(l->b.be, true);
    atomic_store(&l->b.be->hold_flights, false);
    assert_all_is_given_back(l);
    const struct rod_stats s = stats_of(l->b.c.engine);
    printf("note: seed %llu%s: %llu cancelled, %llu failed, %llu late, %llu hits, %u states moved, %llu of %llu draft "
           "tokens right, %u masks behind drafts, %llu flights\n",
           (unsigned long long)l->seed, on_device ? ", on the device" : "", (unsigned long long)l->n_cancelled,
           (unsigned long long)l->n_failed, (unsigned long long)l->n_late, (unsigned long long)s.prefix_hits,
           atomic_load(&l->b.be->n_moves), (unsigned long long)s.accepted[ROD_DRAFT_PREDICTION],
           (unsigned long long)s.drafted[ROD_DRAFT_PREDICTION], atomic_load(&l->b.be->n_draft_masks),
           (unsigned long long)s.flights);
    assert_true(!l->drafts || s.accepted[ROD_DRAFT_PREDICTION] > 0);
    assert_int_equal(s.requests_finished + s.requests_cancelled + s.requests_failed, l->n_asked);
    assert_int_equal(s.requests_cancelled, l->n_cancelled);
    assert_int_equal(s.queued_tok, 0);
    setup_close(&l->b);
    close_lives(l);
}

/* Whatever goes on, a fault tells everyone, and nothing is left that runs or waits. */
static void a_fault_ends_all(bool on_device, uint64_t number) {
    struct lives *l = open_lives(on_device, number);
    for (uint32_t n = 20 + pick(l, 100); n > 0; n--) tick(l, true);
    l->faulty = true;
    const uint32_t how = pick(l, 3);
    if (how == 0) atomic_store(&l->b.be->fail_moves, true);
    if (how == 1 && on_device)
        atomic_store(&l->b.be->fail_collect_at, atomic_load(&l->b.be->n_collects) + 2 + pick(l, 8));
    if (how != 1 || !on_device) atomic_store(&l->b.be->fail_at, atomic_load(&l->b.be->n_forwards) + 2 + pick(l, 8));
    while (tick(l, !rod_engine_failed(l->b.c.engine))) {}
    const struct rod_stats s = stats_of(l->b.c.engine);
    assert_int_equal(s.running + s.queued, 0);
    setup_close(&l->b);
    close_lives(l);
}

/* Nor does an engine that is closed in the middle of it wait for anything, or leave something behind. */
static void a_close_ends_all(bool on_device, uint64_t number) {
    struct lives *l = open_lives(on_device, number);
    for (uint32_t n = 20 + pick(l, 100); n > 0; n--) tick(l, true);
    fake_release(l->b.be);
    atomic_store(&l->b.be->hold_flights, false);
    collect_close(&l->b.c);
    close_lives(l);
}

static void many(void (*life)(bool on_device, uint64_t number), bool on_device) {
    const uint64_t n = getenv("RODIMUS_TEST_SOAK") ? 100 : 1;
    for (uint64_t i = 0; i < 2 * n; i++) {
        setup_drafts = i % 2;
        life(on_device, i);
    }
}

#define IN_BOTH_KINDS(life)                                                                                            \
    static void life##_where_a_device_gives_logits(void **state) {                                                     \
        (void)state;                                                                                                   \
        many(life, false);                                                                                             \
    }                                                                                                                  \
    static void life##_where_a_device_samples(void **state) {                                                          \
        (void)state;                                                                                                   \
        many(life, true);                                                                                              \
    }
IN_BOTH_KINDS(each_has_what_it_has_alone)
IN_BOTH_KINDS(a_fault_ends_all)
IN_BOTH_KINDS(a_close_ends_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_what_it_has_alone_where_a_device_gives_logits),
        cmocka_unit_test(each_has_what_it_has_alone_where_a_device_samples),
        cmocka_unit_test(a_fault_ends_all_where_a_device_gives_logits),
        cmocka_unit_test(a_fault_ends_all_where_a_device_samples),
        cmocka_unit_test(a_close_ends_all_where_a_device_gives_logits),
        cmocka_unit_test(a_close_ends_all_where_a_device_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
