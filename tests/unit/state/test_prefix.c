/* test_prefix.c - the index of the prefix cache: what is found, for whom, why not, what goes first; and all of it, in
 * random orders, against a model that looks at everything each time. */
#include "engine/base/philox.h"
#include "engine/state/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CHUNK = 4, MINUTE = 60 };
static const uint64_t s_ns = 1000000000;
static const struct prefix_key nobody = {"", ""};

static struct prefix *make(uint64_t budget_bytes, uint32_t n_hashes) {
    struct prefix *p;
    const struct prefix_config config = {
        .budget_bytes = budget_bytes, .chunk_tok = CHUNK, .seed = 7, .n_hashes = n_hashes};
    assert_int_equal(prefix_new(&config, &p, NULL), 0);
    return p;
}

static struct state_buffer *buffer_of(size_t n_bytes, uint32_t mark) {
    struct state_buffer *i = state_buffer_new(NULL, n_bytes);
    assert_non_null(i);
    memcpy(i->bytes, &mark, sizeof mark);
    return i;
}

static bool keep(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, size_t bytes,
                 uint32_t mark, uint64_t now_ns) {
    struct prefix_entry *e = prefix_reserve(p, key, ids, n, &(struct prefix_new_entry){n % CHUNK, bytes, 0, 0}, now_ns);
    if (e) prefix_fill(p, e, buffer_of(bytes, mark));
    return e != NULL;
}

/* What is found: its mark, or 0. */
static uint32_t find(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t now_ns,
                     struct prefix_found *f) {
    uint32_t mark = 0;
    prefix_find(p, key, ids, n, now_ns, f);
    assert_int_equal(f->buffer != NULL, f->n_tok != 0);
    if (f->buffer) memcpy(&mark, f->buffer->bytes, sizeof mark);
    state_buffer_release(f->buffer);
    return mark;
}

static const int32_t tok[64] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44};

#define REASON(p, key, ids, n, want)                                                                                   \
    do {                                                                                                               \
        struct prefix_found why;                                                                                       \
        find(p, key, ids, n, 0, &why);                                                                                 \
        if (why.complete || why.reason != (want))                                                                      \
            fail_msg("line %d: \"%s\", want \"%s\"", __LINE__,                                                         \
                     why.complete ? "complete" : rod_prefix_miss_name(why.reason), rod_prefix_miss_name(want));        \
    } while (0)

static void the_longest_beginning_is_found(void **state) {
    (void)state;
    struct prefix *p = make(1 << 20, 0);
    struct prefix_found f;
    assert_true(keep(p, &nobody, tok, 8, 100, 1, 0));
    assert_true(keep(p, &nobody, tok, 16, 100, 2, 0));
    assert_true(keep(p, &nobody, tok, 18, 100, 3, 0));  /* with an answer: any length */
    assert_false(keep(p, &nobody, tok, 16, 100, 4, 0)); /* there is one */
    assert_false(keep(p, &nobody, tok, 3, 100, 4, 0));  /* below a chunk */
    const struct {
        size_t n, want_tok;
        uint32_t want;
    } cases[] = {{40, 18, 3}, {19, 18, 3}, {18, 16, 2}, {17, 16, 2}, {16, 8, 1}, {9, 8, 1}, {8, 0, 0}, {1, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(find(p, &nobody, tok, cases[i].n, 0, &f), cases[i].want);
        assert_int_equal(f.n_tok, cases[i].want_tok);
        assert_int_equal(f.generated, cases[i].want == 3);
    }
    int32_t other[40];
    memcpy(other, tok, sizeof other);
    other[17] = 99;
    assert_int_equal(find(p, &nobody, other, 40, 0, &f), 2);
    other[7] = 99;
    assert_int_equal(find(p, &nobody, other, 40, 0, &f), 0);
    prefix_close(p);
}

static void nothing_is_found_across_tenants_and_salts(void **state) {
    (void)state;
    const struct prefix_key keys[] = {{"", ""}, {"a", ""}, {"", "a"}, {"b", ""}, {"b", "a"}, {"a", "b"}, {"ab", ""}};
    const size_t n = sizeof keys / sizeof *keys;
    for (uint32_t n_hashes = 0; n_hashes < 3; n_hashes++) { /* also where all hashes are alike */
        struct prefix *p = make(1 << 20, n_hashes);
        struct prefix_found f;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++) assert_int_equal(find(p, &keys[j], tok, 20, 0, &f), j < i ? j + 1 : 0);
            assert_true(keep(p, &keys[i], tok, 8, 100, (uint32_t)i + 1, 0));
        }
        prefix_close(p);
    }
    struct prefix *p = make(1 << 20, 0);
    assert_true(keep(p, &(struct prefix_key){NULL, NULL}, tok, 8, 100, 1, 0));
    struct prefix_found f;
    assert_int_equal(find(p, &nobody, tok, 20, 0, &f), 1);
    prefix_close(p);
}

static void a_miss_says_why(void **state) {
    (void)state;
    struct prefix *p = make(1 << 20, 0);
    const struct prefix_key salted = {"", "x"}, other = {"b", "x"};
    struct prefix_found f;
    REASON(p, &nobody, tok, 4, ROD_PREFIX_TOO_SHORT);
    REASON(p, &nobody, tok, 5, ROD_PREFIX_COLD);
    prefix_note(p, &nobody, tok, 18, 18);
    REASON(p, &salted, tok, 18, ROD_PREFIX_SALT);
    REASON(p, &other, tok, 18, ROD_PREFIX_COLD); /* of other tenants nothing is told, not even that */
    REASON(p, &nobody, tok, 30, ROD_PREFIX_BRANCH);
    find(p, &nobody, tok, 30, 0, &f);
    assert_int_equal(f.branch_tok, 16);

    struct prefix_entry *e = prefix_reserve(p, &nobody, tok, 16, &(struct prefix_new_entry){false, 100, 0, 0}, 0);
    assert_non_null(e);
    assert_null(prefix_reserve(p, &nobody, tok, 16, &(struct prefix_new_entry){false, 100, 0, 0}, 0)); /* on its way */
    REASON(p, &nobody, tok, 30, ROD_PREFIX_UNFINISHED);
    prefix_drop(p, e);
    REASON(p, &nobody, tok, 30, ROD_PREFIX_BRANCH);
    assert_true(keep(p, &nobody, tok, 16, 100, 1, 0));
    find(p, &nobody, tok, 30, 0, &f);
    assert_true(f.complete);
    assert_int_equal(f.branch_tok, 0);

    assert_true(prefix_evict(p, 0));
    assert_false(prefix_evict(p, 0));
    REASON(p, &nobody, tok, 30, ROD_PREFIX_EVICTED);
    assert_true(keep(p, &nobody, tok, 16, 100, 1, 0));
    find(p, &nobody, tok, 30, 0, &f);
    assert_true(f.complete);
    prefix_close(p);
}

/* Prompts of every length, answers of every length, other tokens at every place of the answer. */
static void an_answer_that_comes_back_as_other_tokens_is_retokenised(void **state) {
    (void)state;
    for (size_t n_prompt = 5; n_prompt < 14; n_prompt++)
        for (size_t n = n_prompt + 1; n < n_prompt + 11; n++)
            for (size_t at = n_prompt - 1; at < n + 3; at++) {
                struct prefix *p = make(1 << 20, 0);
                struct prefix_found f;
                int32_t next[40];
                assert_true(keep(p, &nobody, tok, (n_prompt - 1) / CHUNK * CHUNK, 100, 1, 0));
                prefix_note(p, &nobody, tok, n_prompt, n_prompt);
                prefix_note(p, &nobody, tok, n_prompt, n);
                assert_true(keep(p, &nobody, tok, n, 100, 2, 0));
                memcpy(next, tok, sizeof next);
                next[at] = 999;
                const uint32_t mark = find(p, &nobody, next, 40, 0, &f);
                const bool lost = at >= n_prompt && at < n, want_end = at >= n;
                if (mark != (want_end                               ? 2
                             : at >= (n_prompt - 1) / CHUNK * CHUNK ? 1
                                                                    : 0) ||
                    (!f.complete && f.reason == ROD_PREFIX_RETOKENISED) != lost)
                    fail_msg("prompt %zu, answer to %zu, change at %zu: found %u, %s", n_prompt, n, at, mark,
                             f.complete ? "complete" : rod_prefix_miss_name(f.reason));
                prefix_close(p);
            }
}

/* Two hold: the third takes the place of the one that was used least recently. */
static void what_was_not_used_goes_first(void **state) {
    (void)state;
    struct prefix *p = make(2900, 0);
    struct prefix_found f;
    int32_t a[3][12];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 12; k++) a[i][k] = 100 * i + k;
    assert_true(keep(p, &nobody, a[0], 8, 1000, 1, 0));
    assert_true(keep(p, &nobody, a[1], 8, 1000, 2, s_ns));
    assert_int_equal(find(p, &nobody, a[0], 12, 300 * s_ns, &f), 1);
    assert_true(keep(p, &nobody, a[2], 8, 1000, 3, 301 * s_ns));
    assert_int_equal(find(p, &nobody, a[0], 12, 301 * s_ns, &f), 1);
    assert_int_equal(find(p, &nobody, a[1], 12, 301 * s_ns, &f), 0);
    assert_int_equal(f.reason, ROD_PREFIX_EVICTED);
    assert_int_equal(find(p, &nobody, a[2], 12, 301 * s_ns, &f), 3);
    prefix_close(p);
}

/* Of equal age: the one that saves less; a long one beats younger short ones, and they are refused. */
static void what_saves_little_goes_first(void **state) {
    (void)state;
    struct prefix *p = make(2900, 0);
    struct prefix_found f;
    int32_t a[3][40];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 40; k++) a[i][k] = 100 * i + k;
    assert_true(keep(p, &nobody, a[0], 32, 1000, 1, 0));
    assert_true(keep(p, &nobody, a[1], 8, 1000, 2, 0));
    assert_true(keep(p, &nobody, a[2], 16, 1000, 3, 0));
    assert_int_equal(find(p, &nobody, a[0], 40, 0, &f), 1);
    assert_int_equal(find(p, &nobody, a[1], 40, 0, &f), 0);
    assert_false(keep(p, &nobody, a[1], 8, 1000, 4, 30 * s_ns)); /* 16 tokens a half minute old are worth more than 8 */
    assert_true(keep(p, &nobody, a[1], 8, 1000, 4, 300 * s_ns));
    assert_int_equal(find(p, &nobody, a[2], 40, 300 * s_ns, &f), 0);
    assert_int_equal(find(p, &nobody, a[0], 40, 300 * s_ns, &f), 1);
    assert_false(keep(p, &nobody, a[2], 16, 4000, 5, 300 * s_ns)); /* larger than all */
    assert_int_equal(prefix_count(p).n_entries, 2);
    prefix_close(p);
}

/* One conversation in a budget of one: the longer takes the place of the shorter. */
static void a_conversation_outgrows_its_own_entry(void **state) {
    (void)state;
    struct prefix *p = make(1600, 0);
    struct prefix_found f;
    for (uint32_t n = 4; n <= 36; n += 4) {
        assert_true(keep(p, &nobody, tok, n, 1000, n, 0));
        assert_int_equal(find(p, &nobody, tok, n + 1, 0, &f), n);
        assert_int_equal(prefix_count(p).n_entries, 1);
    }
    assert_int_equal(prefix_count(p).n_evicted, 8);
    prefix_close(p);
}

/* What is being saved does not go, and its room is taken. */
static void room_is_kept_for_what_is_on_its_way(void **state) {
    (void)state;
    struct prefix *p = make(1600, 0);
    struct prefix_entry *e = prefix_reserve(p, &nobody, tok, 8, &(struct prefix_new_entry){false, 1000, 0, 0}, 0);
    assert_non_null(e);
    assert_null(prefix_reserve(p, &nobody, tok, 16, &(struct prefix_new_entry){false, 1000, 0, 0}, 1000 * s_ns));
    assert_false(prefix_evict(p, 0));
    prefix_fill(p, e, buffer_of(1000, 1));
    assert_true(keep(p, &nobody, tok, 16, 1000, 2, 1000 * s_ns));
    prefix_close(p);
    p = make(1600, 0); /* closing gives back what is reserved too */
    assert_non_null(prefix_reserve(p, &nobody, tok, 8, &(struct prefix_new_entry){false, 1000, 0, 0}, 0));
    prefix_close(p);
    prefix_close(NULL);
}

/* Beginnings of a prompt, also one on its way, and nothing else. */
static void what_is_forgotten_goes(void **state) {
    (void)state;
    struct prefix *p = make(1 << 20, 0);
    struct prefix_found f;
    const struct prefix_key other = {"b", ""};
    assert_true(keep(p, &nobody, tok, 8, 100, 1, 0));
    assert_true(keep(p, &nobody, tok, 30, 100, 2, 0));
    assert_true(keep(p, &other, tok, 8, 100, 3, 0));
    struct prefix_entry *e = prefix_reserve(p, &nobody, tok, 16, &(struct prefix_new_entry){false, 100, 0, 0}, 0);
    assert_non_null(e);
    prefix_forget(p, &nobody, tok, 20);
    assert_int_equal(find(p, &nobody, tok, 20, 0, &f), 0);
    assert_int_equal(find(p, &nobody, tok, 40, 0, &f), 2);
    assert_int_equal(find(p, &other, tok, 20, 0, &f), 3);
    prefix_fill(p, e, buffer_of(100, 4));
    assert_int_equal(find(p, &nobody, tok, 20, 0, &f), 0);
    assert_int_equal(prefix_count(p).n_entries, 2);
    prefix_close(p);
}

static void a_buffer_outlives_its_entry(void **state) {
    (void)state;
    struct prefix *p = make(1 << 20, 0);
    struct prefix_found f;
    assert_true(keep(p, &nobody, tok, 8, 100, 77, 0));
    prefix_find(p, &nobody, tok, 20, 0, &f);
    assert_true(prefix_evict(p, 0));
    assert_int_equal(prefix_count(p).bytes, 0);
    prefix_close(p);
    uint32_t mark;
    memcpy(&mark, f.buffer->bytes, sizeof mark);
    assert_int_equal(mark, 77);
    state_buffer_release(f.buffer);
}

/* ---- where to stop ---- */

/* ---- held entries ---- */

static bool hold(struct prefix *p, const struct prefix_key *key, int32_t first, size_t bytes, uint64_t hold_s,
                 uint64_t now_s) {
    const int32_t ids[2 * CHUNK] = {first};
    const struct prefix_new_entry wanted = {false, bytes, hold_s * s_ns, 0};
    struct prefix_entry *e = prefix_reserve(p, key, ids, hold_s ? CHUNK : 2 * CHUNK, &wanted, now_s * s_ns);
    if (e) prefix_fill(p, e, buffer_of(bytes, (uint32_t)first));
    return e != NULL;
}

static bool is_there(struct prefix *p, const struct prefix_key *key, int32_t first) {
    const int32_t ids[3 * CHUNK] = {first};
    struct prefix_found f;
    return find(p, key, ids, sizeof ids / sizeof *ids, 0, &f) == (uint32_t)first;
}

/* Four entries fit beside the held one, which is worth half of each of them. */
static void a_held_entry_stays_until_its_time_is_over(void **state) {
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct prefix *p = make(8 * 10000, 0);
        assert_true(hold(p, &nobody, 1, 5000, 5 * MINUTE, 0));
        if (!held) prefix_hold(p, &nobody, (const int32_t[CHUNK]){1}, CHUNK, 60 * MINUTE * s_ns, 0);
        for (int32_t i = 2; i < 30; i++) assert_true(hold(p, &nobody, i, 10000, 0, 4 * MINUTE));
        assert_true(is_there(p, &nobody, 1));
        for (int32_t i = 30; i < 60; i++) assert_true(hold(p, &nobody, i, 10000, 0, 6 * MINUTE));
        assert_int_equal(is_there(p, &nobody, 1), !held);
        prefix_close(p);
    }
}

/* Whatever it asks for: what others read is kept in the rest, and its own last holds are those that count. */
static void a_tenant_holds_a_quarter_of_the_cache_at_most(void **state) {
    (void)state;
    const struct prefix_key greedy = {"greedy", ""};
    struct prefix *p = make(8 * 10500, 0);
    for (int32_t i = 1; i < 20; i++) assert_true(hold(p, &greedy, i, 10000, 60 * MINUTE, (uint64_t)i));
    for (int32_t i = 20; i < 40; i++) assert_true(hold(p, &nobody, i, 10000, 0, 5 * MINUTE + (uint64_t)i));
    for (int32_t i = 1; i < 20; i++) assert_int_equal(is_there(p, &greedy, i), i >= 18);
    for (int32_t i = 35; i < 40; i++) assert_true(is_there(p, &nobody, i));
    assert_false(hold(p, &greedy, 50, 40000, 60 * MINUTE, 6 * MINUTE)); /* more than a quarter: worth what others are */
    for (int32_t i = 60; i < 80; i++) assert_true(hold(p, &nobody, i, 10000, 0, 20 * MINUTE));
    assert_true(is_there(p, &greedy, 19));
    prefix_close(p);
}

/* An entry that nobody holds never takes the place of one that is held. */
static void a_cache_of_held_entries_refuses_others(void **state) {
    (void)state;
    struct prefix *p = make(4 * 10500, 0);
    const struct prefix_key keys[] = {{"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}};
    for (int32_t i = 0; i < 4; i++) assert_true(hold(p, &keys[i], i + 1, 10000, 5 * MINUTE, 0));
    assert_false(hold(p, &nobody, 9, 10000, 0, MINUTE));
    assert_true(hold(p, &nobody, 9, 10000, 5 * MINUTE, MINUTE)); /* but a held one takes that of the least worth */
    for (int32_t i = 0; i < 4; i++) assert_int_equal(is_there(p, &keys[i], i + 1), i > 0);
    assert_true(hold(p, &nobody, 10, 10000, 0, 7 * MINUTE));
    prefix_close(p);
}

static void assert_stops(const struct prefix_reading *r, const uint64_t *want, uint32_t n_want) {
    uint64_t stops[PREFIX_MAX_STOPS];
    const uint32_t n = prefix_stops(r, stops);
    bool ok = n == n_want;
    for (uint32_t i = 0; ok && i < n; i++) ok = stops[i] == want[i];
    if (ok) return;
    for (uint32_t i = 0; i < n; i++) print_error("stop %u: %llu\n", i, (unsigned long long)stops[i]);
    fail_msg("%u stops, want %u", n, n_want);
}

#define STOPS(reading, ...)                                                                                            \
    assert_stops(&(struct prefix_reading){reading, .chunk_tok = 64}, (const uint64_t[]){__VA_ARGS__},                  \
                 sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
#define READ(...) __VA_ARGS__

static void prompts_stop_where_a_entry_pays(void **state) {
    (void)state;
    const size_t marks[] = {200, 700, 1500, 1990};
    uint64_t none[PREFIX_MAX_STOPS];
    assert_int_equal(prefix_stops(&(struct prefix_reading){.n_tok = 64, .chunk_tok = 64}, none), 0);
    assert_int_equal(prefix_stops(&(struct prefix_reading){.n_tok = 1, .chunk_tok = 64}, none), 0);
    assert_int_equal(prefix_stops(&(struct prefix_reading){.from_tok = 1984, .n_tok = 2000, .chunk_tok = 64}, none), 0);
    assert_int_equal(prefix_stops(&(struct prefix_reading){.n_tok = 2000, .pays_tok = 993, .chunk_tok = 64}, none), 0);
    assert_int_equal(prefix_stops(
                         &(struct prefix_reading){
                             .n_tok = 2000, .pays_tok = UINT64_MAX / 2, .marks = marks, .n_marks = 4, .chunk_tok = 64},
                         none),
                     0);
    STOPS(READ(.n_tok = 65), 64);
    STOPS(READ(.n_tok = 2000), 1984);
    STOPS(READ(.n_tok = 2048), 1984); /* one token at least stays */
    STOPS(READ(.n_tok = 2000, .branch_tok = 640), 640, 1984);
    STOPS(READ(.n_tok = 2000, .branch_tok = 1984), 1984);
    STOPS(READ(.n_tok = 2000, .marks = marks, .n_marks = 4), 192, 640, 1472, 1984);
    STOPS(READ(.n_tok = 2000, .marks = marks, .n_marks = 4, .pays_tok = 96), 192, 1984);
    STOPS(READ(.n_tok = 2000, .marks = marks, .n_marks = 4, .pays_tok = 60), 192, 1472, 1984);
    STOPS(READ(.n_tok = 2000, .marks = marks, .n_marks = 4, .pays_tok = 97), 1984);
    STOPS(READ(.n_tok = 2000, .pays_tok = 992), 1984);
    STOPS(READ(.from_tok = 650, .n_tok = 2000, .marks = marks, .n_marks = 4), 1472, 1984);
    const uint64_t wanted[] = {1500, 70, 640, 30}; /* the last is within the first chunk */
    STOPS(READ(.n_tok = 2000, .pays_tok = UINT64_MAX / 2, .wanted_tok = wanted, .n_wanted = 4), 64, 640, 1472);
    STOPS(READ(.from_tok = 640, .n_tok = 1500, .pays_tok = 900, .wanted_tok = wanted, .n_wanted = 4), 1472);
    STOPS(READ(.n_tok = 2000, .marks = marks, .n_marks = 1, .wanted_tok = wanted, .n_wanted = 1), 192, 1472, 1984);
}

static void stops_keep_their_distance_whatever_is_asked(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 11;
    for (uint32_t round = 0; round < 20000; round++) {
        size_t marks[20];
        uint32_t draw = 0;
        struct prefix_reading r = {.chunk_tok = 64, .marks = marks};
        r.n_tok = (uint64_t)(philox_uniform(seed, round, draw++) * 3000) + 1;
        r.from_tok = (uint64_t)(philox_uniform(seed, round, draw++) * (double)r.n_tok);
        r.branch_tok = (uint64_t)(philox_uniform(seed, round, draw++) * 3000) / 64 * 64;
        r.pays_tok = (uint64_t)(philox_uniform(seed, round, draw++) * 300);
        r.n_marks = (size_t)(philox_uniform(seed, round, draw++) * 20);
        for (size_t i = 0; i < r.n_marks; i++)
            marks[i] = (i ? marks[i - 1] : 0) + (size_t)(philox_uniform(seed, round, draw++) * 200);
        uint64_t stops[PREFIX_MAX_STOPS], before = r.from_tok;
        const uint32_t n = prefix_stops(&r, stops);
        for (uint32_t i = 0; i < n; before = stops[i++])
            if (stops[i] % 64 || stops[i] >= r.n_tok || stops[i] <= before || stops[i] - before < 2 * r.pays_tok)
                fail_msg("seed %llu round %u: stop %llu after %llu", (unsigned long long)seed, round,
                         (unsigned long long)stops[i], (unsigned long long)before);
        const uint64_t end = (r.n_tok - 1) / 64 * 64;
        if (end > r.from_tok && end - r.from_tok >= 2 * r.pays_tok) assert_true(n && stops[n - 1] == end);
    }
}

/* ---- against a model ---- */

enum { MOST = 64, LONGEST = 48 };

struct naive {
    struct naive_entry {
        struct prefix_key key;
        int32_t ids[LONGEST];
        size_t n;
        uint64_t bytes, used_ns, number;
        uint32_t mark;
        struct prefix_entry *reserved; /* NULL: filled */
    } e[MOST];
    uint32_t n;
    uint64_t budget, number, own_bytes;
};

static bool begins(const struct naive_entry *a, const struct prefix_key *key, const int32_t *ids, size_t n) {
    return a->n <= n && !strcmp(a->key.tenant, key->tenant) && !strcmp(a->key.salt, key->salt) &&
           !memcmp(a->ids, ids, a->n * sizeof *ids);
}

static int naive_longest(const struct naive *v, const struct prefix_key *key, const int32_t *ids, size_t n, bool all,
                         const bool *gone) {
    int best = -1;
    for (uint32_t i = 0; i < v->n; i++) {
        if ((!all && v->e[i].reserved) || (gone && gone[i]) || !begins(&v->e[i], key, ids, n)) continue;
        if (best < 0 || v->e[i].n > v->e[best].n) best = (int)i;
    }
    return best;
}

static int naive_up(const struct naive *v, uint32_t i) {
    return naive_longest(v, &v->e[i].key, v->e[i].ids, v->e[i].n - 1, true, NULL);
}

static double naive_worth(const struct naive *v, uint32_t i, int new_up, uint64_t now_ns) {
    const struct naive_entry *e = &v->e[i];
    uint32_t below = (int)i == new_up;
    for (uint32_t k = 0; k < v->n; k++) below += naive_up(v, k) == (int)i;
    const int up = naive_up(v, i);
    const double saved = (double)(e->n - (up < 0 ? 0 : v->e[up].n));
    const double w = saved / (double)e->bytes / ((double)(now_ns - e->used_ns) + 60e9);
    return below == 1 ? w / 4 : w;
}

static int naive_least(const struct naive *v, int new_up, uint64_t now_ns, const bool *gone) {
    int best = -1;
    double least = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->e[i].reserved || (gone && gone[i])) continue;
        const double w = naive_worth(v, i, new_up, now_ns);
        if (best >= 0 && (w > least || (w == least && v->e[i].number > v->e[best].number))) continue;
        best = (int)i;
        least = w;
    }
    return best;
}

static uint64_t naive_bytes(const struct naive *v) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < v->n; i++) sum += v->e[i].bytes;
    return sum;
}

static void naive_remove(struct naive *v, uint32_t i) { v->e[i] = v->e[--v->n]; }

/* Whether it is taken; then it is the last. */
static bool naive_reserve(struct naive *v, const struct prefix_key *key, const int32_t *ids, size_t n,
                          size_t buffer_bytes, uint64_t now_ns) {
    const int up = naive_longest(v, key, ids, n, true, NULL);
    if (n < CHUNK || (up >= 0 && v->e[up].n == n)) return false;
    struct naive_entry new_one = {.key = *key, .n = n, .used_ns = now_ns, .number = v->number};
    memcpy(new_one.ids, ids, n * sizeof *ids);
    new_one.bytes = v->own_bytes + n * sizeof *ids + strlen(key->tenant) + strlen(key->salt) + 2 + buffer_bytes;
    if (new_one.bytes > v->budget) return false;
    bool gone[MOST] = {false};
    uint64_t kept = naive_bytes(v);
    while (kept + new_one.bytes > v->budget) {
        const int i = naive_least(v, up, now_ns, gone);
        if (i < 0) return false;
        gone[i] = true;
        const int below = naive_longest(v, key, ids, n, true, gone);
        const double saved = (double)(n - (below < 0 ? 0 : v->e[below].n));
        if (saved / (double)new_one.bytes / (0.0 + 60e9) < naive_worth(v, (uint32_t)i, up, now_ns)) return false;
        kept -= v->e[i].bytes;
    }
    for (uint32_t i = v->n; i-- > 0;)
        if (gone[i]) naive_remove(v, i);
    v->number++;
    assert_true(v->n < MOST);
    v->e[v->n++] = new_one;
    return true;
}

static struct naive_entry *pick_reserved(struct naive *v, uint32_t from) {
    for (uint32_t i = 0; i < v->n; i++)
        if (v->e[(from + i) % v->n].reserved) return &v->e[(from + i) % v->n];
    return NULL;
}

static void it_does_what_a_naive_model_does(void **state) {
    (void)state;
    static const struct prefix_key keys[] = {{"", ""}, {"a", ""}, {"a", "s"}};
    const uint64_t first = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 1;
    uint64_t hits = 0, refused = 0, evictions = 0;
    for (uint64_t seed = first; seed < first + 60; seed++) {
        const uint32_t n_hashes = seed % 3 ? 0 : (uint32_t)(seed % 7) + 1;
        struct naive v = {.budget = 3000 + seed % 5 * 1500};
        struct prefix *p = make(v.budget, n_hashes);
        assert_true(keep(p, &keys[0], tok, CHUNK, 100, 0, 0));
        v.own_bytes = prefix_count(p).bytes - 100 - CHUNK * sizeof(int32_t) - 2;
        assert_true(prefix_evict(p, 0));
        uint64_t now_ns = 0;
        uint32_t mark = 0;
        for (uint64_t op = 0; op < 1500; op++) {
            uint32_t draw = 0;
#define DRAW(n) ((uint32_t)(philox_uniform(seed, op, draw++) * (n)))
            now_ns += DRAW(4) ? DRAW(5) * s_ns : DRAW(300) * s_ns;
            const struct prefix_key *key = &keys[DRAW(3)];
            int32_t ids[LONGEST];
            const size_t n = 1 + DRAW(LONGEST - 1);
            uint32_t same = DRAW(5) ? DRAW(LONGEST) : 0; /* beginnings that many share */
            for (uint32_t i = 0; i < LONGEST; i++) ids[i] = i < same ? 1 : (int32_t)DRAW(2);
            const uint32_t kind = DRAW(10);
            if (kind < 4) {
                struct prefix_found f;
                const uint32_t got = find(p, key, ids, n, now_ns, &f);
                const int want = naive_longest(&v, key, ids, n - 1, false, NULL);
                if (f.n_tok != (want < 0 ? 0 : v.e[want].n) || got != (want < 0 ? 0 : v.e[want].mark))
                    fail_msg("seed %llu op %llu: found %llu tokens, want %d", (unsigned long long)seed,
                             (unsigned long long)op, (unsigned long long)f.n_tok, want < 0 ? 0 : (int)v.e[want].n);
                if (want >= 0) v.e[want].used_ns = now_ns, hits++;
                if (f.branch_tok && (f.branch_tok % CHUNK || f.branch_tok >= n || f.branch_tok <= f.n_tok))
                    fail_msg("seed %llu: a branch at %llu of %zu", (unsigned long long)seed,
                             (unsigned long long)f.branch_tok, n);
                prefix_note(p, key, ids, n, n);
            } else if (kind < 8) {
                const size_t bytes = 100 + DRAW(4) * 200;
                struct prefix_entry *e =
                    prefix_reserve(p, key, ids, n, &(struct prefix_new_entry){false, bytes, 0, 0}, now_ns);
                const uint32_t before = v.n;
                if (naive_reserve(&v, key, ids, n, bytes, now_ns) != (e != NULL))
                    fail_msg("seed %llu op %llu: %s", (unsigned long long)seed, (unsigned long long)op,
                             e ? "kept, and not worth it" : "refused, and worth it");
                refused += !e;
                if (!e) continue;
                evictions += v.n <= before;
                v.e[v.n - 1].mark = ++mark;
                if (DRAW(4))
                    prefix_fill(p, e, buffer_of(bytes, mark));
                else
                    v.e[v.n - 1].reserved = e;
            } else if (kind == 8) {
                struct naive_entry *r = v.n ? pick_reserved(&v, DRAW(v.n)) : NULL;
                if (!r) continue;
                if (DRAW(2)) {
                    prefix_drop(p, r->reserved);
                    naive_remove(&v, (uint32_t)(r - v.e));
                } else {
                    prefix_fill(p, r->reserved, buffer_of(100, r->mark));
                    r->reserved = NULL;
                }
            } else if (DRAW(4) == 0) {
                const int i = naive_least(&v, -1, now_ns, NULL);
                assert_int_equal(prefix_evict(p, now_ns), i >= 0);
                if (i >= 0) naive_remove(&v, (uint32_t)i);
            }
            if (prefix_count(p).n_entries != v.n || prefix_count(p).bytes != naive_bytes(&v) ||
                prefix_count(p).bytes > v.budget)
                fail_msg("seed %llu op %llu: %llu entries with %llu bytes, want %u with %llu", (unsigned long long)seed,
                         (unsigned long long)op, (unsigned long long)prefix_count(p).n_entries,
                         (unsigned long long)prefix_count(p).bytes, v.n, (unsigned long long)naive_bytes(&v));
#undef DRAW
        }
        prefix_close(p);
    }
    assert_true(hits > 1000 && refused > 1000 && evictions > 1000); /* the test met what it is about */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_beginning_is_found),
        cmocka_unit_test(nothing_is_found_across_tenants_and_salts),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(an_answer_that_comes_back_as_other_tokens_is_retokenised),
        cmocka_unit_test(what_was_not_used_goes_first),
        cmocka_unit_test(what_saves_little_goes_first),
        cmocka_unit_test(a_conversation_outgrows_its_own_entry),
        cmocka_unit_test(room_is_kept_for_what_is_on_its_way),
        cmocka_unit_test(what_is_forgotten_goes),
        cmocka_unit_test(a_buffer_outlives_its_entry),
        cmocka_unit_test(a_held_entry_stays_until_its_time_is_over),
        cmocka_unit_test(a_tenant_holds_a_quarter_of_the_cache_at_most),
        cmocka_unit_test(a_cache_of_held_entries_refuses_others),
        cmocka_unit_test(prompts_stop_where_a_entry_pays),
        cmocka_unit_test(stops_keep_their_distance_whatever_is_asked),
        cmocka_unit_test(it_does_what_a_naive_model_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
