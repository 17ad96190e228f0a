/* test_tokenizer_cost.c - how long encoding takes, also of texts made to take long. */
#include "tests/tokenizer_setup.h"

#include <time.h>

static char *repeat(const char *unit, size_t len) {
    size_t n = strlen(unit);
    char *s = malloc(len + 1);
    assert_non_null(s);
    for (size_t i = 0; i < len; i++) s[i] = unit[i % n];
    s[len] = 0;
    return s;
}

static double cpu_s(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK 20
#else
#define SLACK 1
#endif

static void encoding_is_fast(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    size_t len, n;
    char *text = read_file(TALES "/heldout.txt", &len), *big = malloc(len * 40);
    for (size_t i = 0; i < 40; i++) memcpy(big + i * len, text, len);
    int32_t *ids;
    struct rod_error err;
    double start = cpu_s();
    assert_int_equal(tokenizer_encode(t, big, len * 40, true, &ids, &n, &err), 0);
    double rate = (double)len * 40 / 1e6 / (cpu_s() - start);
    print_message("note: encode %.1f MB/s of CPU time\n", rate);
    if (rate * SLACK < 5) fail_msg("%.1f MB/s, expected at least 5", rate);
    free(ids);
    free(big);
    free(text);
    tokenizer_close(t);
}

static void pathological_texts_take_linear_time(void **state) {
    (void)state;
    static const char *const units[] = {"a",
                                        "e",
                                        "the",
                                        " ",
                                        "\n",
                                        " \n",
                                        "  \r\n",
                                        "-",
                                        "!?.,;:-()[]{}'\"*&^%$#@~`<>/|",
                                        "'",
                                        "'s",
                                        "<role",
                                        "1",
                                        "aB",
                                        "\xe4\xbd\xa0",
                                        "\xcc\x81\xcc\x96",
                                        "e\xcc\x81",
                                        "\xf0\x9f\x98\x80",
                                        "<s> ",
                                        "  <l>  "};
    const size_t len = 1000000 / 12 * 12;
    for (size_t f = 0; f <= N_FAMILIES; f++) {
        json_t *root = f < N_FAMILIES ? load_family(f) : NULL;
        struct tokenizer *t = root ? parse_object(json_object_get(root, "tokenizer")) : open_tales();
        for (int jit = 1; jit >= (f == N_FAMILIES || f == 1 ? 0 : 1);
             jit--) { /* the interpreter, too, on two of them */
            for (uint32_t k = 0; k < t->split.n_stages; k++) t->split.stage[k].jit = t->split.stage[k].jit && jit;
            for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
                if (SLACK > 1 && (i & 3) != (f & 3)) continue; /* enough under a sanitizer */
                char *text = repeat(units[i], len);
                int32_t *ids;
                size_t n;
                struct rod_error err;
                if (i == 3) text[len - 1] = 'x';
                double start = cpu_s();
                if (tokenizer_encode(t, text, len - len % strlen(units[i]), true, &ids, &n, &err))
                    fail_msg("unit \"%s\": %s", units[i], err.message);
                double s = cpu_s() - start;
                if (s > 2 * SLACK)
                    fail_msg("%s, 1 MB of \"%s\": %.2f s", f < N_FAMILIES ? families[f] : "tales", units[i], s);
                free(ids);
                free(text);
            }
        }
        tokenizer_close(t);
        json_decref(root);
    }
}

static void white_space_of_many_matches_takes_linear_time(void **state) {
    (void)state;
    static const char *const flags[] = {"lstrip", "rstrip"};
    const size_t len = 1000000;
    char *text = repeat(" ", len);
    for (size_t i = 0; i < 2; i++) {
        json_t *root = load_family(7), *tokenizer = json_object_get(root, "tokenizer");
        json_object_set_new(tokenizer, "added_tokens",
                            json_pack("[{s:i,s:s,s:b}]", "id", 1000, "content", " ", flags[i], 1));
        struct tokenizer *t = parse_object(tokenizer);
        struct rod_error err;
        int32_t *ids;
        size_t n;
        double start = cpu_s();
        assert_int_equal(tokenizer_encode(t, text, len, true, &ids, &n, &err), 0);
        double s = cpu_s() - start;
        assert_int_equal(n, len);
        if (s > 2 * SLACK) fail_msg("%s: %.2f s", flags[i], s);
        free(ids);
        tokenizer_close(t);
        json_decref(root);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoding_is_fast),
        cmocka_unit_test(pathological_texts_take_linear_time),
        cmocka_unit_test(white_space_of_many_matches_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
