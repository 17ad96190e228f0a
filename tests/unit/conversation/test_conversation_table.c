/* test_conversation_table.c - which states of conversations stay, and whose go for the budget; names of files. */
#include "engine/conversation/conversation_notes.h"
#include "engine/conversation/conversation_table.h"
#include "engine/base/philox.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { BYTES = 1000, MOST_FILES = 4096 };

/* Files as a folder would have them. */
struct folder {
    char files[MOST_FILES][CONVERSATION_DIR_BYTES + 1 + CONVERSATION_NAME_BYTES];
    size_t n, n_forgotten;
};

static void folder_remove(void *arg, const char *dir, const char *file) {
    struct folder *f = arg;
    const size_t n_dir = strlen(dir);
    for (size_t i = f->n; i-- > 0;) {
        if (strncmp(f->files[i], dir, n_dir) != 0 || f->files[i][n_dir] != '/' ||
            (*file && strcmp(f->files[i] + n_dir + 1, file) != 0))
            continue;
        memmove(f->files[i], f->files[--f->n], sizeof f->files[i]);
    }
}
static void folder_forget(void *arg, uint64_t tokens_low) {
    (void)tokens_low;
    ((struct folder *)arg)->n_forgotten++;
}
static atomic_uint_fast64_t file_bytes; /* as the table says */

static struct conversation_table *open_table(struct folder *f, uint64_t budget_bytes) {
    *f = (struct folder){.n = 0};
    const struct conversation_table_config config = {.budget_bytes = budget_bytes,
                                                     .file_bytes = &file_bytes,
                                                     .max_conversations = 100,
                                                     .remove = folder_remove,
                                                     .forget = folder_forget,
                                                     .arg = f};
    struct conversation_table *t = conversation_table_new(&config);
    assert_non_null(t);
    return t;
}

static struct conversation_place place(uint64_t lane, uint32_t turn, uint64_t n_tok, enum conversation_kind kind) {
    return (struct conversation_place){.lane = lane,
                                       .tokens = {lane * 1000003 + n_tok * 7, n_tok},
                                       .n_tok = n_tok,
                                       .turn = turn,
                                       .kind = kind,
                                       .generated = kind == CONVERSATION_ANSWER};
}

/* Like the engine: false without room. */
static bool keep(struct conversation_table *t, struct folder *f, const char *tenant, const char *name,
                 const struct conversation_place *p, int64_t now_s) {
    char dir[CONVERSATION_DIR_BYTES];
    snprintf(dir, sizeof dir, "%s-%s", tenant, name);
    struct conversation *c = conversation_get(t, dir, tenant, name, now_s);
    struct conversation_state *s = conversation_state_add(t, c, p);
    conversation_state_in_memory(t, p);
    const bool fits = conversation_room(t, s->of, BYTES);
    if (fits && !s->file_bytes) {
        s->of->made = true;
        conversation_state_filed(t, s, BYTES, true);
        const int n = snprintf(f->files[f->n], sizeof f->files[f->n], "%s/", s->of->dir);
        conversation_file_name(&s->place, f->files[f->n++] + n);
    }
    conversation_thin(t, s->of, p->lane);
    return fits;
}

static bool has_turn(const struct folder *f, uint32_t turn) {
    for (size_t i = 0; i < f->n; i++) {
        struct conversation_place p;
        assert_true(conversation_file_parse(strchr(f->files[i], '/') + 1, &p));
        if (p.turn == turn && p.kind == CONVERSATION_ANSWER) return true;
    }
    return false;
}

static void a_turn_to_go_back_to_is_near_and_few_stay(void **state) {
    (void)state;
    struct folder f;
    struct conversation_table *t = open_table(&f, 1 << 30);
    for (uint32_t turn = 1; turn <= 200; turn++)
        for (uint32_t step = 0; step < 3; step++) { /* a call, its result, the end */
            const uint64_t n = turn * 1000 + step * 100;
            const struct conversation_place prompt = place(1, turn, n, CONVERSATION_PROMPT),
                                            answer = place(1, turn, n + 50, CONVERSATION_ANSWER);
            assert_true(keep(t, &f, "a", "x", &prompt, turn) && keep(t, &f, "a", "x", &answer, turn));
            if (f.n > 30) fail_msg("turn %u: %zu states", turn, f.n);
            if (step < 2) continue;
            for (uint32_t back = 1; back < turn;
                 back++) { /* an edit of the text behind it reads at most as many turns */
                uint32_t near = back;
                while (near && !has_turn(&f, near)) near--;
                const uint32_t read = back - near, from_end = turn - back;
                if (read > back / 2 && 2 * read > from_end + 2)
                    fail_msg("turn %u: back to %u, the nearest is %u", turn, back, near);
            }
        }
    assert_int_equal(conversation_count(t).n_file, f.n);
    assert_int_equal(conversation_count(t).file_bytes, f.n * BYTES);
    assert_int_equal(conversation_count(t).n_lanes, 1);
    conversation_table_close(t);
}

static void a_tenants_oldest_lane_goes_for_its_own_states(void **state) {
    (void)state;
    struct folder f;
    struct conversation_table *t = open_table(&f, 40 * BYTES);
    struct conversation_place others = place(9, 1, 640, CONVERSATION_PROMPT);
    assert_true(keep(t, &f, "b", "mine", &others, 0));
    for (uint32_t i = 0; i < 60; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%u", i);
        const struct conversation_place p = place(100 + i, 1, 64 * (i + 1), CONVERSATION_PROMPT);
        assert_true(keep(t, &f, "a", name, &p, 1 + (int64_t)i));
    }
    assert_int_equal(f.n, 40);
    struct conversation_place found;
    assert_int_equal(conversation_places(t, "b", 9, 0, 1000, &found, 1), 1);
    assert_int_equal(conversation_places(t, "a", 9, 0, 1000, &found, 1), 0); /* another tenant's */
    assert_int_equal(conversation_places(t, "a", 159, 0, 10000, &found, 1), 1);
    assert_int_equal(conversation_places(t, "a", 101, 0, 10000, &found, 1), 0);
    conversation_expire(t, 55);
    assert_int_equal(f.n, 6); /* those used at 55 to 60 */
    conversation_table_close(t);
}

static void equal_tokens_are_a_state_of_each_and_one_entry(void **state) {
    (void)state;
    struct folder f;
    struct conversation_table *t = open_table(&f, 1 << 30);
    const struct conversation_place p = place(1, 1, 640, CONVERSATION_PROMPT),
                                    longer = place(1, 2, 704, CONVERSATION_PROMPT);
    struct conversation_place found[4];
    assert_true(keep(t, &f, "a", "x", &p, 1) && keep(t, &f, "a", "y", &p, 2) && keep(t, &f, "a", "y", &longer, 3));
    assert_int_equal(f.n, 3);
    assert_int_equal(conversation_places(t, "a", 1, 0, 1000, found, 4), 2);
    struct conversation *x = conversation_find(t, "a-x"), *y = conversation_find(t, "a-y");
    assert_ptr_equal(conversation_state_ready(t, x, &p)->of, x);
    assert_ptr_equal(conversation_state_ready(t, y, &p)->of, y);
    assert_ptr_equal(conversation_state_twin(t, conversation_state_find(t, x, &p))->of, y);
    assert_null(conversation_state_twin(t, conversation_state_find(t, y, &longer)));
    conversation_remove(t, y);
    assert_int_equal(f.n_forgotten, 1); /* the longer one's: the other is x's still */
    assert_int_equal(conversation_places(t, "a", 1, 0, 1000, found, 4), 1);
    conversation_remove(t, x);
    assert_int_equal(f.n_forgotten, 2);
    assert_int_equal(f.n, 0);
    conversation_table_close(t);
}

static void counts_follow_any_life(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 5;
    struct folder f;
    struct conversation_table *t = open_table(&f, 60 * BYTES);
    static const char *const tenants[] = {"a", "b", "c"};
    for (uint64_t at = 0; at < 20000; at++) {
        uint32_t draw = 0;
#define DRAW(n) ((uint32_t)(philox_uniform(seed, at, draw++) * (double)(n)))
        const char *tenant = tenants[DRAW(3)];
        char name[16], dir[CONVERSATION_DIR_BYTES];
        snprintf(name, sizeof name, "n%u", DRAW(8));
        snprintf(dir, sizeof dir, "%s-%s", tenant, name);
        const uint64_t lane = 1 + DRAW(12), n_tok = 64 * (1 + (uint64_t)DRAW(50));
        const uint32_t turn = DRAW(20), is_answer = DRAW(2);
        const struct conversation_place p =
            place(lane, turn, n_tok, is_answer ? CONVERSATION_ANSWER : CONVERSATION_PROMPT);
        struct conversation *c = conversation_find(t, dir);
        switch (DRAW(10)) {
        case 0:
            if (c) conversation_remove(t, c);
            break;
        case 1: conversation_state_gone(t, p.tokens.low); break;
        case 2:
            if (c) conversation_set_notes(t, c, c->made ? DRAW(3000) : 0);
            break;
        default: keep(t, &f, tenant, name, &p, (int64_t)at);
        }
        uint64_t bytes = 0, n = 0;
        for (struct conversation *k = conversation_first(t); k; k = conversation_after(t, k)) {
            bytes += k->file_bytes;
            n += *k->name != 0;
        }
        const struct conversation_counts counts = conversation_count(t);
        assert_int_equal(atomic_load(&file_bytes), bytes);
        if (counts.n_file != f.n || counts.file_bytes != bytes || counts.n_conversations != n)
            fail_msg("seed %llu, %llu: %llu files of %zu, %llu bytes of %llu, %llu conversations of %llu",
                     (unsigned long long)seed, (unsigned long long)at, (unsigned long long)counts.n_file, f.n,
                     (unsigned long long)counts.file_bytes, (unsigned long long)bytes,
                     (unsigned long long)counts.n_conversations, (unsigned long long)n);
    }
#undef DRAW
    conversation_table_close(t);
}

static void names_of_files_are_read_as_they_were_written(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        struct conversation_place p, again;
        char name[CONVERSATION_NAME_BYTES];
        p = place(i * 0x123456789abcdef, (uint32_t)i, i + 1, (enum conversation_kind)(i % 3));
        conversation_file_name(&p, name);
        assert_true(conversation_file_parse(name, &again));
        assert_memory_equal(&p.tokens, &again.tokens, sizeof p.tokens);
        assert_int_equal(p.lane, again.lane);
        assert_int_equal(p.n_tok, again.n_tok);
        for (size_t at = 0; name[at]; at++) { /* another byte is another name, or none */
            const char was = name[at];
            name[at] = (char)('0' + (was + 1) % 70);
            char written[CONVERSATION_NAME_BYTES];
            if (conversation_file_parse(name, &again)) {
                conversation_file_name(&again, written);
                assert_string_equal(written, name);
            }
            name[at] = was;
        }
    }
}

static void a_part_of_a_record_is_not_read(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-notes-XXXXXX", path[64];
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    void *bytes;
    size_t n;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/notes", dir);
    assert_int_equal(notes_make(dir, "whose", 5, &err), 0);
    assert_int_equal(notes_add(dir, "one", 3, &seen, &err), 0);
    FILE *file = fopen(path, "ab"); /* as a crash leaves it */
    assert_non_null(file);
    fwrite("\x09\0\0\0\x01\x02\x03\x04tw", 1, 10, file);
    fclose(file);
    assert_int_equal(notes_read(dir, &seen, &bytes, &n, &err), 0);
    assert_int_equal(n, 7);
    assert_memory_equal(bytes, "\x03\0\0\0one", 7);
    free(bytes);
    assert_int_equal(notes_add(dir, "two", 3, &seen, &err), 0);
    seen = (struct rod_notes_seen){0};
    assert_int_equal(notes_read(dir, &seen, &bytes, &n, &err), 0);
    assert_int_equal(n, 14);
    assert_memory_equal(bytes, "\x03\0\0\0one\x03\0\0\0two", 14);
    free(bytes);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(notes_read(dir, &seen, &bytes, &n, &err), 0);
    assert_int_equal(notes_add(dir, "three", 5, &seen, &err), ROD_ESTATE);
    remove(path);
    remove(dir);
}

static size_t records_in(const size_t *ends, size_t whole) {
    size_t n = 0;
    while (ends[n + 1] < whole) n++; /* all but the first */
    return n;
}

/* Whatever byte is another one, and wherever the bytes end: what comes before is read, and nothing else. */
static void notes_are_read_up_to_their_damage(void **state) {
    (void)state;
    enum { N = 6 };
    unsigned char whole[512];
    size_t ends[N + 1], n = NOTES_MARK_BYTES, n_first;
    memcpy(whole, NOTES_MARK, n);
    for (int i = 0; i < N; ends[++i] = n) {
        char text[64];
        const size_t len =
            (size_t)snprintf(text, sizeof text, "record %d %.*s", i, i * 5, "................................");
        unsigned char *record = notes_framed(text, len);
        if (!i) ends[0] = n;
        memcpy(whole + n, record, NOTES_FRAME_BYTES + len);
        n += NOTES_FRAME_BYTES + len;
        free(record);
    }
    for (size_t cut = 0; cut <= n; cut++)
        for (size_t flip = 0; flip <= cut; flip++) { /* flip = cut: none */
            unsigned char *bytes = malloc(cut + !cut);
            memcpy(bytes, whole, cut);
            if (flip < cut) bytes[flip] ^= (unsigned char)(1 + flip % 255);
            size_t want = 0;
            for (int i = 0; i <= N; i++)
                if (ends[i] <= cut && ends[i] <= flip) want = ends[i];
            const size_t got = notes_whole(bytes, cut, &n_first);
            if (got != want) fail_msg("%zu bytes, byte %zu is another: %zu are whole, want %zu", cut, flip, got, want);
            assert_int_equal(n_first, want > ends[0] ? ends[1] - ends[0] : 0);
            if (n_first)
                assert_int_equal(notes_records(bytes, got, n_first), got - ends[1] - 4 * records_in(ends, got));
            free(bytes);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_to_go_back_to_is_near_and_few_stay),
        cmocka_unit_test(a_tenants_oldest_lane_goes_for_its_own_states),
        cmocka_unit_test(equal_tokens_are_a_state_of_each_and_one_entry),
        cmocka_unit_test(counts_follow_any_life),
        cmocka_unit_test(names_of_files_are_read_as_they_were_written),
        cmocka_unit_test(a_part_of_a_record_is_not_read),
        cmocka_unit_test(notes_are_read_up_to_their_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
