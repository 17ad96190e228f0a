/* test_engine_prefix.c - the prefix cache in the engine, on both kinds of fake device: answers are those of an engine
 * without it; what was read once is not read again; nothing crosses tenants. On a model: tests/backend/test_prefix.c.
 */
#include "tests/engine_setup.h"
#include "tests/prefix_setup.h"

enum { CHUNK = 8, MOST = 400 };

static bool moves_always; /* each test runs with copies as moves, and with those of a request that is alone at once */

static void open_with(struct setup *b, struct setup_options o, uint64_t cache_bytes) {
    setup_open(b, o, CONFIG(.prefix_cache_bytes = cache_bytes, .state_host_bytes = 64 << 20));
    b->c.engine->copy_ns = 0; /* every entry pays */
    b->c.engine->moves_always = moves_always;
}

static uint64_t misses(const struct collector *c, enum rod_prefix_miss why) {
    return stats_of(c->engine).prefix_misses[why];
}

/* Tokens that depend on seed and place alone: prompts of one seed are beginnings of each other. */
static void fill(int32_t *ids, size_t from, size_t n, uint64_t seed) {
    for (size_t i = from; i < n; i++) ids[i] = (int32_t)(2 + philox_uniform(seed, i, 0) * (V - 2));
}

/* Until entries on their way have arrived. */
static void settle(struct setup *b) {
    for (int i = 0; i < 1000 && stats_of(b->c.engine).slots_used; i++) collect_wait(&b->c, 1);
}

/* ---- fake devices ---- */

static void what_was_read_is_not_read_again(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[MOST];
    fill(ids, 0, MOST, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    uint64_t before = 0;
    for (size_t n = 20, known = 0; n < 200; n += 7) {
        struct answer a, z;
        finish(&b, request(&a, ids, n, 3), &a);
        finish(&cold, request(&z, ids, n, 3), &z);
        assert_same(&a, &z, "a longer prompt");
        assert_int_equal(a.end.cached_tok, known);
        assert_int_equal(a.end.prompt_tok, n);
        assert_int_equal(z.end.cached_tok, 0);
        const uint64_t read = stats_of(b.c.engine).prefill_tok;
        assert_int_equal(read - before, n - known);
        before = read;
        known = (n - 1) / CHUNK * CHUNK;
        collect_free(&a), collect_free(&z);
    }
    assert_int_equal(stats_of(b.c.engine).prefix_tok_saved + stats_of(b.c.engine).prefill_tok,
                     stats_of(cold.c.engine).prefill_tok);
    assert_int_equal(stats_of(b.c.engine).prefix_hits, 25);
    assert_int_equal(misses(&b.c, ROD_PREFIX_COLD), 1);
    setup_close(&b), setup_close(&cold);
}

/* A conversation sent in full each time: only its new tokens are read, and the last token of an answer if it was cut
 * off by its length. */
static void a_turn_of_a_chat_reads_its_new_tokens_alone(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[MOST];
    size_t n = 30;
    fill(ids, 0, n, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (size_t turn = 0, known = 0; turn < 15; turn++) {
        struct answer a, z;
        const uint32_t max_tokens = 2 + (uint32_t)turn % 9;
        finish(&b, request(&a, ids, n, max_tokens), &a);
        finish(&cold, request(&z, ids, n, max_tokens), &z);
        assert_same(&a, &z, "a turn");
        assert_int_equal(a.end.cached_tok, known);
        memcpy(ids + n, a.ids, a.n_ids * sizeof *ids);
        n += a.n_ids;
        known = n - 1;
        settle(&b);
        fill(ids, n, n + 5, turn);
        n += 5;
        collect_free(&a), collect_free(&z);
    }
    /* An answer that comes back as other tokens: from the end of its prompt. */
    struct answer a;
    const size_t end = n;
    finish(&b, request(&a, ids, n, 20), &a);
    memcpy(ids + n, a.ids, a.n_ids * sizeof *ids);
    collect_free(&a);
    fill(ids, n + 20, n + 25, 7);
    ids[n + 3] ^= 1;
    settle(&b);
    finish(&b, request(&a, ids, n + 25, 1), &a);
    assert_int_equal(a.end.cached_tok, (end - 1) / CHUNK * CHUNK);
    assert_int_equal(misses(&b.c, ROD_PREFIX_RETOKENISED), 1);
    collect_free(&a);
    setup_close(&b), setup_close(&cold);
}

/* Of one token nothing was read: the slot's state is the prompt's, inside a chunk, which going on would not give. */
static void an_answer_of_one_token_leaves_no_state(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[MOST];
    fill(ids, 0, 30, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    struct answer a;
    finish(&b, request(&a, ids, 30, 1), &a);
    ids[30] = a.ids[0];
    collect_free(&a);
    settle(&b);
    fill(ids, 31, 50, 1);
    finish(&b, request(&a, ids, 50, 1), &a);
    assert_int_equal(a.end.cached_tok, 24);
    collect_free(&a);
    setup_close(&b);
}

/* Reading a prompt's tokens costs less than a copy out and in: nothing is kept. */
static void what_does_not_pay_is_not_kept(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[MOST];
    fill(ids, 0, MOST, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    struct answer a;
    finish(&b, request(&a, ids, 5, 2), &a); /* tells how long a token takes */
    collect_free(&a);
    b.c.engine->copy_ns = 1e9;
    for (int i = 0; i < 2; i++) {
        finish(&b, request(&a, ids, MOST, 20), &a);
        assert_int_equal(a.end.cached_tok, 0);
        collect_free(&a);
    }
    assert_int_equal(stats_of(b.c.engine).prefix_entries, 0);
    assert_int_equal(misses(&b.c, ROD_PREFIX_BRANCH), 1);
    setup_close(&b);
}

static void tenants_and_salts_share_nothing(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    static const char *const keys[][2] = {{"", ""}, {"a", ""}, {"b", ""}, {"a", "s"}, {"b", "s"}, {"", "a"}};
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            struct answer a;
            struct rod_request *r = request(&a, ids, 100, 2);
            r->tenant = strdup(keys[i][0]);
            r->cache_salt = strdup(keys[i][1]);
            const uint64_t before = stats_of(b.c.engine).prefill_tok;
            finish(&b, r, &a);
            assert_int_equal(a.end.cached_tok, round ? 96 : 0);
            assert_int_equal(stats_of(b.c.engine).prefill_tok - before, round ? 4 : 100);
            collect_free(&a);
            settle(&b);
        }
    assert_int_equal(misses(&b.c, ROD_PREFIX_SALT), 3);
    assert_int_equal(misses(&b.c, ROD_PREFIX_COLD), 3);
    setup_close(&b);
}

/* A client that asks again goes on from where it left, or from the last of the stops on the way. */
static void a_prompt_that_was_left_goes_on_from_there(void **state) {
    (void)state;
    enum { LONG = 40000, STEP = 512 };
    struct setup b, cold;
    int32_t *ids = malloc(LONG * sizeof *ids);
    assert_non_null(ids);
    fill(ids, 0, LONG, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH, .max_batch_tok = STEP), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH, .max_batch_tok = STEP), CONFIG());
    uint64_t known = 0;
    for (uint64_t left = 5000; left < LONG - 2 * STEP; left += 9000) {
        struct answer a;
        atomic_store(&b.be->gated, true);
        const uint64_t read = stats_of(b.c.engine).prefill_tok;
        collect_submit(&b.c, request(&a, ids, LONG, 3));
        for (uint64_t n = 0; n < 300 && stats_of(b.c.engine).prefill_tok - read + known < left; n++) {
            fake_step(b.be);
            collect_wait(&b.c, 1);
        }
        rod_cancel(b.c.engine, a.ticket);
        fake_release(b.be);
        collect_until(&b.c, &a, 1);
        assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
        assert_int_equal(a.end.cached_tok, known);
        known += (stats_of(b.c.engine).prefill_tok - read) / CHUNK * CHUNK;
        assert_in_range(known, left, left + 4 * STEP);
        collect_free(&a);
        settle(&b);
    }
    struct answer a, z;
    finish(&b, request(&a, ids, LONG, 3), &a);
    finish(&cold, request(&z, ids, LONG, 3), &z);
    assert_same(&a, &z, "what was left");
    assert_int_equal(a.end.cached_tok, known);
    collect_free(&a), collect_free(&z);
    setup_close(&b), setup_close(&cold);
    free(ids);
}

/* A crash of the client's side of the line is not seen: the stops on the way are there all the same. */
static void a_long_prompt_stops_on_its_way(void **state) {
    (void)state;
    enum { LONG = 30000 };
    struct setup b;
    int32_t *ids = malloc(LONG * sizeof *ids);
    assert_non_null(ids);
    fill(ids, 0, LONG, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH, .max_batch_tok = 4096), 32 << 20);
    struct answer a;
    finish(&b, request(&a, ids, LONG, 1), &a);
    collect_free(&a);
    settle(&b);
    for (uint64_t at = 8192; at < LONG; at += 8192) {
        ids[at] ^= 1; /* another prompt from here on */
        finish(&b, request(&a, ids, at + 9, 1), &a);
        assert_int_equal(a.end.cached_tok, at);
        ids[at] ^= 1;
        collect_free(&a);
    }
    setup_close(&b);
    free(ids);
}

/* The second that parts from the first at some place leaves an entry there, and the third finds it. */
static void where_two_prompts_part_the_third_begins(void **state) {
    (void)state;
    struct setup b;
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    for (int i = 0; i < 3; i++) {
        struct answer a;
        int32_t ids[100];
        fill(ids, 0, 45, 1);
        fill(ids, 45, 100, 10 + (uint64_t)i);
        finish(&b, request(&a, ids, 100, 2), &a);
        assert_int_equal(a.end.cached_tok, i == 2 ? 40 : 0);
        collect_free(&a);
        settle(&b);
    }
    assert_int_equal(misses(&b.c, ROD_PREFIX_BRANCH), 1);
    setup_close(&b);
}

/* Where messages end: another first question finds the system prompt. */
static void marks_leave_entries(void **state) {
    (void)state;
    struct setup b;
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    for (int i = 0; i < 2; i++) {
        struct answer a;
        int32_t ids[100];
        fill(ids, 0, 45, 1);
        fill(ids, 45, 100, 10 + (uint64_t)i);
        struct rod_request *r = request(&a, ids, 100, 2);
        r->marks = malloc(sizeof *r->marks);
        r->marks[0] = 45;
        r->n_marks = 1;
        finish(&b, r, &a);
        assert_int_equal(a.end.cached_tok, i ? 40 : 0);
        collect_free(&a);
        settle(&b);
    }
    setup_close(&b);
}

/* Nothing pays here, but the client says where its prompts part: the next question finds the state, and says so. */
static void breakpoints_leave_entries_whatever_they_cost(void **state) {
    (void)state;
    struct setup b;
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    b.c.engine->copy_ns = 1e12;
    struct answer a;
    int32_t ids[100];
    fill(ids, 0, 100, 9);
    finish(&b, request(&a, ids, 100, 2), &a); /* from here on it is known what reading takes */
    collect_free(&a);
    settle(&b);
    const uint64_t before = stats_of(b.c.engine).prefix_entries;
    for (int i = 0; i < 3; i++) {
        fill(ids, 0, 45, 1);
        fill(ids, 45, 100, 10 + (uint64_t)i);
        struct rod_request *r = request(&a, ids, 100, 2);
        r->breakpoints[0] = (struct rod_breakpoint){21, 300000000000};
        r->breakpoints[1] = (struct rod_breakpoint){45, 3600000000000};
        r->breakpoints[2] = (struct rod_breakpoint){7, 300000000000}; /* within the first chunk: nothing */
        r->n_breakpoints = i == 2 ? 0 : 3;
        finish(&b, r, &a);
        assert_int_equal(a.end.cached_tok, i ? 40 : 0);
        assert_int_equal(a.end.created_tok, i ? 0 : 40);
        assert_int_equal(stats_of(b.c.engine).prefix_entries, before + 2);
        collect_free(&a);
        settle(&b);
    }
    setup_close(&b);
}

/* The next turn comes before the state of the last answer is copied: it waits for it, and others do not. A shorter
 * pinned prefix that it sees meanwhile is not used. */
static void a_turn_waits_for_the_copy_of_the_last_answer(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[100];
    fill(ids, 0, 30, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct answer a, next[2], other, z;
    finish(&b, request(&a, ids, 30, 1), &a); /* its end is not kept, so the next one has no stops */
    settle(&b);
    collect_free(&a);
    finish(&cold, request(&z, ids, 30, 10), &z);
    memcpy(ids + 30, z.ids, 10 * sizeof *ids);
    collect_free(&z);
    struct rod_prefix_info pinned;
    struct rod_error err;
    assert_int_equal(
        rod_prefix_pin(b.c.engine, &(struct rod_prefix_new){.id = "p", .ids = ids, .n_ids = 40}, &pinned, &err), 0);
    assert_int_equal(pinned.n_tok, 32);
    settle(&b);
    atomic_store(&b.be->hold_moves, true);
    const unsigned moves = atomic_load(&b.be->n_moves);
    collect_submit(&b.c, request(&a, ids, 30, 10)); /* begins from an entry */
    while (atomic_load(&b.be->n_moves) == moves) collect_wait(&b.c, 1);
    fake_end_moves(b.be, false);
    collect_until(&b.c, &a, 1);
    fill(ids, 40, 50, 2);
    while (atomic_load(&b.be->n_moves) == moves + 1) collect_wait(&b.c, 1);
    for (int i = 0; i < 2; i++) collect_submit(&b.c, request(&next[i], ids, 50, 5));
    finish(&b, request(&other, ids + 20, 7, 5), &other);
    collect_now(&b.c);
    assert_false(next[0].ended || next[1].ended);
    rod_cancel(b.c.engine, next[1].ticket);
    collect_until(&b.c, &next[1], 1);
    assert_int_equal(next[1].end.reason, ROD_FINISH_CANCEL);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &next[0], 1);
    finish(&cold, request(&z, ids, 50, 5), &z);
    assert_same(&next[0], &z, "the next turn");
    assert_int_equal(next[0].end.cached_tok, 39);
    assert_int_equal(stats_of(b.c.engine).pinned_used, 0);
    assert_int_equal(misses(&b.c, ROD_PREFIX_UNFINISHED), 0);
    collect_free(&a), collect_free(&z), collect_free(&next[0]), collect_free(&next[1]), collect_free(&other);
    setup_close(&b), setup_close(&cold);
}

static void choices_of_one_prompt_begin_from_it_together(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 4), 32 << 20);
    struct answer whole[6], again[6];
    for (int round = 0; round < 2; round++) {
        struct answer *answers = round ? again : whole;
        struct rod_request *r[6];
        uint64_t tickets[6];
        struct rod_error err;
        for (size_t i = 0; i < 6; i++) { /* more than slots: keepers too */
            r[i] = request(&answers[i], ids, 100, 5);
            r[i]->sampling.seed += i;
            r[i]->same_before = i;
        }
        const uint64_t before = stats_of(b.c.engine).prefill_tok;
        assert_int_equal(rod_submit_all(b.c.engine, r, 6, tickets, &err), 0);
        collect_until(&b.c, answers, 6);
        settle(&b);
        /* Where the device draws, each reads the 4 tokens behind the last chunk. */
        const uint64_t read = stats_of(b.c.engine).prefill_tok - before, others = setup_on_device ? 5 * 4 : 0;
        assert_int_equal(read, (round ? 4 : 100) + others);
        if (round) assert_int_equal(answers[0].end.cached_tok, 96);
    }
    for (int i = 0; i < 6; i++) {
        assert_same(&again[i], &whole[i], "a choice");
        collect_free(&again[i]), collect_free(&whole[i]);
    }
    setup_close(&b);
}

/* An answer's entry may stand behind the last multiple of a chunk: there the source begins, and there they part. */
static void choices_begin_from_an_answer_that_ended_in_their_last_chunk(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[100];
    fill(ids, 0, 90, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 4), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH, .n_slots = 4), CONFIG());
    struct answer first;
    finish(&b, request(&first, ids, 90, 8), &first);
    assert_int_equal(first.n_ids, 8);
    memcpy(ids + 90, first.ids, 8 * sizeof *ids);
    fill(ids, 98, 100, 2);
    collect_free(&first);
    settle(&b);
    struct answer answers[2][3];
    for (int from_entry = 0; from_entry < 2; from_entry++) {
        struct setup *at = from_entry ? &b : &cold;
        struct rod_request *r[3];
        uint64_t tickets[3];
        struct rod_error err;
        for (size_t i = 0; i < 3; i++) {
            r[i] = request(&answers[from_entry][i], ids, 100, 5);
            r[i]->sampling.seed += i;
            r[i]->same_before = i;
        }
        assert_int_equal(rod_submit_all(at->c.engine, r, 3, tickets, &err), 0);
        collect_until(&at->c, answers[from_entry], 3);
        settle(at);
    }
    assert_int_equal(answers[1][0].end.cached_tok, 97);
    for (int i = 0; i < 3; i++) {
        assert_same(&answers[1][i], &answers[0][i], "a choice");
        collect_free(&answers[0][i]), collect_free(&answers[1][i]);
    }
    setup_close(&b), setup_close(&cold);
}

/* Where they part the one that reads leaves an entry, too: its slot is the copy's meanwhile. Then they begin
 * together, or without it if it is gone. */
static void choices_go_on_when_the_entry_of_their_reader_is_out(void **state) {
    (void)state;
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        struct setup b, cold;
        struct answer a[6], z;
        struct rod_request *r[6];
        uint64_t tickets[6];
        struct rod_error err;
        int32_t ids[100];
        fill(ids, 0, 100, 1);
        open_with(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 4), 32 << 20);
        setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
        atomic_store(&b.be->hold_moves, true);
        for (size_t i = 0; i < 6; i++) {
            r[i] = request(&a[i], ids, 100, 5);
            r[i]->sampling.seed += i;
            r[i]->same_before = i;
        }
        assert_int_equal(rod_submit_all(b.c.engine, r, 6, tickets, &err), 0);
        while (atomic_load(&b.be->n_moves) == 0) collect_wait(&b.c, 1);
        for (int i = 0; i < 20; i++) collect_wait(&b.c, 1);
        collect_now(&b.c);
        for (size_t i = 0; i < 6; i++) assert_int_equal(a[i].n_ids, 0);
        assert_int_equal(stats_of(b.c.engine).prefill_tok, 96);
        if (cancelled) {
            rod_cancel(b.c.engine, tickets[0]);
            collect_until(&b.c, a, 1);
        }
        fake_end_moves(b.be, true);
        collect_until(&b.c, a, 6);
        if (!cancelled) assert_int_equal(stats_of(b.c.engine).prefill_tok, 100 + (setup_on_device ? 5 * 4 : 0));
        for (size_t i = (size_t)cancelled; i < 6; i++) {
            struct rod_request *lone = request(&z, ids, 100, 5);
            lone->sampling.seed += i;
            finish(&cold, lone, &z);
            assert_same(&a[i], &z, "a choice");
            collect_free(&z);
        }
        for (size_t i = 0; i < 6; i++) collect_free(&a[i]);
        setup_close(&b), setup_close(&cold);
    }
}

static void scored_prompts_are_read_whole(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    struct answer a;
    finish(&b, request(&a, ids, 100, 2), &a);
    collect_free(&a);
    settle(&b);
    struct rod_request *r = request(&a, ids, 100, 2);
    r->n_prompt_logprobs = 1;
    finish(&b, r, &a);
    assert_int_equal(a.n_prompt, 99);
    assert_int_equal(a.end.cached_tok, 0);
    assert_int_equal(misses(&b.c, ROD_PREFIX_SCORED), 1);
    collect_free(&a);
    setup_close(&b);
}

/* A penalty counts all tokens of the prompt, also those that were not read. */
static void a_repetition_penalty_knows_the_whole_prompt(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (int i = 0; i < 2; i++) {
        struct answer a, z;
        for (int k = 0; k < 2; k++) {
            struct rod_request *r = request(k ? &z : &a, ids, 100, 30);
            r->sampling.repetition_penalty = 5;
            r->sampling.frequency_penalty = 1;
            finish(k ? &cold : &b, r, k ? &z : &a);
        }
        assert_same(&a, &z, "with a penalty");
        assert_int_equal(a.end.cached_tok, i && !setup_on_device ? 96 : 0);
        collect_free(&a), collect_free(&z);
        settle(&b);
    }
    assert_int_equal(misses(&b.c, ROD_PREFIX_PENALTY), setup_on_device ? 1 : 0);
    setup_close(&b), setup_close(&cold);
}

/* A session keeps its own end: the cache has its beginning at most. */
static void what_a_session_keeps_is_not_kept_twice(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    struct answer a, z;
    struct rod_request *r = request(&a, ids, 100, 5);
    r->keep_state = true;
    r->marks = malloc(sizeof *r->marks);
    r->marks[0] = 45;
    r->n_marks = 1;
    finish(&b, r, &a);
    assert_int_equal(stats_of(b.c.engine).prefix_entries, 1);
    r = request(&z, ids, 20, 5);
    r->state = a.end.state;
    a.end.state = NULL;
    r->keep_state = true;
    finish(&b, r, &z);
    assert_int_equal(z.end.cached_tok, 104);
    assert_int_equal(stats_of(b.c.engine).prefix_entries, 1);
    assert_int_equal(stats_of(b.c.engine).prefix_hits, 0);
    collect_free(&a), collect_free(&z);
    setup_close(&b);
}

static bool asked(void *arg, size_t n_bytes) {
    (void)n_bytes;
    atomic_store((atomic_bool *)arg, true);
    return false;
}

/* The pool is full of what others keep: an entry asks nobody to make room, and takes that of another one at most.
 */
static void an_entry_takes_room_from_entries_alone(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    atomic_bool was_asked = false;
    struct state_buffer *taken[64];
    size_t n_taken = 0;
    state_pool_on_full(b.c.engine->states, asked, &was_asked);
    for (int round = 0; round < 3; round++) {
        struct answer a;
        fill(ids, 0, 100, (uint64_t)round);
        if (round == 1) /* what is left is taken, until the end */
            for (size_t n = 32 << 20; n > 64; n /= 2)
                while (n_taken < 64 && (taken[n_taken] = state_buffer_try(b.c.engine->states, n))) n_taken++;
        finish(&b, request(&a, ids, 100, 1), &a);
        assert_int_equal(a.end.cached_tok, 0);
        assert_int_equal(a.n_ids, 1);
        collect_free(&a);
        settle(&b);
        assert_int_equal(stats_of(b.c.engine).prefix_entries, 1);
        assert_int_equal(stats_of(b.c.engine).prefix_evicted, round);
    }
    assert_false(atomic_load(&was_asked));
    assert_null(state_buffer_try(b.c.engine->states, 1));
    while (n_taken) state_buffer_release(taken[--n_taken]);
    setup_close(&b);
}

static void logits_that_are_no_numbers_spoil_their_entries(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    struct answer a;
    atomic_store(&b.be->nan_token, ids[99]);
    collect_submit(&b.c, request(&a, ids, 100, 5));
    collect_until(&b.c, &a, 1);
    assert_true(a.failed);
    collect_free(&a);
    settle(&b);
    assert_int_equal(stats_of(b.c.engine).prefix_entries, 0);
    atomic_store(&b.be->nan_token, -1);
    finish(&b, request(&a, ids, 100, 5), &a);
    assert_int_equal(a.end.cached_tok, 0);
    collect_free(&a);
    setup_close(&b);
}

/* While an entry is on its way in or out: the request is gone at once, others run, what was saved is good. */
static void a_cancel_during_a_copy(void **state) {
    (void)state;
    struct setup b, cold;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    open_with(&b, OPTIONS(.kind = FAKE_HASH), 32 << 20);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct answer a, other, z;
    finish(&cold, request(&z, ids, 100, 5), &z);
    for (int round = 0; round < 4; round++) {
        atomic_store(&b.be->hold_moves, true);
        const unsigned moves = atomic_load(&b.be->n_moves);
        collect_submit(&b.c, request(&a, ids, 100, 5));
        while (atomic_load(&b.be->n_moves) == moves) collect_wait(&b.c, 1);
        if (round % 2 == 0) { /* out, and in from the second round on */
            rod_cancel(b.c.engine, a.ticket);
            collect_until(&b.c, &a, 1);
            assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
            finish(&b, request(&other, ids + 50, 7, 5), &other); /* too short to be copied */
            collect_free(&other);
        }
        fake_end_moves(b.be, true);
        collect_until(&b.c, &a, 1);
        if (round % 2) assert_same(&a, &z, "after a cancel");
        if (round % 2) assert_int_equal(a.end.cached_tok, 96);
        collect_free(&a);
        settle(&b);
    }
    collect_free(&z);
    setup_close(&b), setup_close(&cold);
}

/* Many at once, of few beginnings, cut and gone on, cancelled; in a budget for few: always the cold answer. */
static void random_loads_get_the_cold_answers(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 5;
    enum { N = 300, AT_ONCE = 12 };
    struct setup b, cold;
    /* room for some twenty: they come and go all the time */
    const uint64_t budget = 20 * (sizeof(struct fake_state) + 10000);
    open_with(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 5), budget);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct answer a[AT_ONCE], z;
    uint64_t n_cancelled = 0;
    for (uint64_t round = 0; round < N / AT_ONCE; round++) {
        struct {
            int32_t ids[MOST];
            size_t n;
            uint32_t max_tokens;
            bool cancel;
        } asked[AT_ONCE];
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint64_t at = round * AT_ONCE + i;
            uint32_t draw = 0;
#define DRAW(n) ((size_t)(philox_uniform(seed, at, draw++) * (double)(n)))
            size_t n = 1 + DRAW(150), part = DRAW(2) ? n : DRAW(n);
            fill(asked[i].ids, 0, part, seed);
            fill(asked[i].ids, part, n, seed + DRAW(4));
            if (DRAW(2)) { /* a conversation that goes on */
                struct answer turn;
                finish(&cold, request(&turn, asked[i].ids, n, 1 + (uint32_t)DRAW(20)), &turn);
                memcpy(asked[i].ids + n, turn.ids, turn.n_ids * sizeof *turn.ids);
                n += turn.n_ids;
                collect_free(&turn);
                const size_t more = 1 + DRAW(30);
                fill(asked[i].ids, n, n + more, seed);
                n += more;
            }
            asked[i].n = n;
            asked[i].max_tokens = 1 + (uint32_t)DRAW(20);
            asked[i].cancel = DRAW(10) == 0;
            collect_submit(&b.c, request(&a[i], asked[i].ids, n, asked[i].max_tokens));
            if (asked[i].cancel) rod_cancel(b.c.engine, a[i].ticket);
#undef DRAW
        }
        collect_until(&b.c, a, AT_ONCE);
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            char what[64];
            snprintf(what, sizeof what, "seed %llu round %llu request %u", (unsigned long long)seed,
                     (unsigned long long)round, i);
            n_cancelled += a[i].end.reason == ROD_FINISH_CANCEL;
            if (a[i].end.reason != ROD_FINISH_CANCEL) {
                finish(&cold, request(&z, asked[i].ids, asked[i].n, asked[i].max_tokens), &z);
                assert_same(&a[i], &z, what);
                collect_free(&z);
            }
            assert_true(stats_of(b.c.engine).prefix_bytes <= budget);
            collect_free(&a[i]);
        }
    }
    const struct rod_stats s = stats_of(b.c.engine);
    if (s.prefix_hits < 20 || s.prefix_evicted < 20 || !n_cancelled)
        fail_msg("seed %llu: %llu hits, %llu evicted, %llu cancelled: too few to tell", (unsigned long long)seed,
                 (unsigned long long)s.prefix_hits, (unsigned long long)s.prefix_evicted,
                 (unsigned long long)n_cancelled);
    setup_close(&b), setup_close(&cold);
}

static void without_a_budget_there_is_no_cache(void **state) {
    (void)state;
    struct setup b;
    int32_t ids[100];
    fill(ids, 0, 100, 1);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    assert_null(b.c.engine->prefixes);
    for (int i = 0; i < 2; i++) {
        struct answer a;
        finish(&b, request(&a, ids, 100, 2), &a);
        assert_int_equal(a.end.cached_tok, 0);
        collect_free(&a);
    }
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) assert_int_equal(misses(&b.c, (enum rod_prefix_miss)i), 0);
    assert_int_equal(atomic_load(&b.be->n_saves), 0);
    setup_close(&b);
}

static int on_host_moving(void **state) {
    moves_always = true;
    return on_host(state);
}
static int on_device_moving(void **state) {
    moves_always = true;
    return on_device(state);
}
static int on_host_alone(void **state) {
    moves_always = false;
    return on_host(state);
}
static int on_device_alone(void **state) {
    moves_always = false;
    return on_device(state);
}

#define MOVING(test)                                                                                                   \
    cmocka_unit_test_setup_teardown(test, on_host_moving, NULL), {                                                     \
#test " on a device that samples", test, on_device_moving, NULL, NULL                                          \
    }
#define MOVING_OR_NOT(test)                                                                                            \
    MOVING(test), {#test " alone", test, on_host_alone, NULL, NULL}, {                                                 \
#test " alone on a device that samples", test, on_device_alone, NULL, NULL                                     \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        MOVING_OR_NOT(what_was_read_is_not_read_again),
        MOVING_OR_NOT(a_turn_of_a_chat_reads_its_new_tokens_alone),
        MOVING_OR_NOT(an_answer_of_one_token_leaves_no_state),
        MOVING_OR_NOT(what_does_not_pay_is_not_kept),
        MOVING_OR_NOT(a_prompt_that_was_left_goes_on_from_there),
        MOVING_OR_NOT(a_long_prompt_stops_on_its_way),
        MOVING_OR_NOT(tenants_and_salts_share_nothing),
        MOVING_OR_NOT(where_two_prompts_part_the_third_begins),
        MOVING_OR_NOT(marks_leave_entries),
        MOVING_OR_NOT(breakpoints_leave_entries_whatever_they_cost),
        MOVING(a_turn_waits_for_the_copy_of_the_last_answer),
        MOVING_OR_NOT(choices_of_one_prompt_begin_from_it_together),
        MOVING_OR_NOT(choices_begin_from_an_answer_that_ended_in_their_last_chunk),
        MOVING(choices_go_on_when_the_entry_of_their_reader_is_out),
        MOVING_OR_NOT(scored_prompts_are_read_whole),
        MOVING_OR_NOT(a_repetition_penalty_knows_the_whole_prompt),
        MOVING_OR_NOT(what_a_session_keeps_is_not_kept_twice),
        MOVING_OR_NOT(an_entry_takes_room_from_entries_alone),
        MOVING_OR_NOT(logits_that_are_no_numbers_spoil_their_entries),
        MOVING(a_cancel_during_a_copy),
        MOVING_OR_NOT(random_loads_get_the_cold_answers),
        MOVING(without_a_budget_there_is_no_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
