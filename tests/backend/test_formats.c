/* test_formats.c - what weights in fewer bits cost on a real device, by the held-out tales: RODIMUS_TEST_DEVICE names
 * it, the CPU without it. The first 6,000 tokens; all of them with RODIMUS_TEST_FULL=1. */
#include "tests/held_out.h"

enum { SOME_TOKENS = 6000 };

static double perplexity_in(const char *dir, const char *weights, const int32_t *ids, size_t n) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct model *model;
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.dir = dir, .weights = weights}, NULL, &model, &err))
        fail_msg("%s", err.message);
    const double p = perplexity(model, device ? device : "cpu", "auto", ids, n);
    model_close(model);
    return p;
}

static void held_out_text_is_nearly_as_likely_in_8_bits_and_less_likely_by_at_most_12_percent_in_int4(void **state) {
    (void)state;
    static const char *const dirs[] = {"config/models/tales", "config/models/skills"};
    static const struct {
        const char *weights;
        double bound;
    } formats[] = {{"int8", 0.003}, {"int4", 0.12}, {"fp8", 0.003}};
    const size_t n_formats = getenv("RODIMUS_TEST_DEVICE") ? 3 : 2; /* the CPU has no fp8 */
    for (size_t d = 0; d < sizeof dirs / sizeof *dirs; d++) {
        size_t n;
        int32_t *ids = held_out_ids(dirs[d], &n);
        if (!getenv("RODIMUS_TEST_FULL") && n > SOME_TOKENS) n = SOME_TOKENS;
        const double want = perplexity_in(dirs[d], "auto", ids, n);
        for (size_t f = 0; f < n_formats; f++) {
            const double got = perplexity_in(dirs[d], formats[f].weights, ids, n);
            printf("note: %s, perplexity of %zu tokens: 16 bit %.4f, %s %.4f (%+.3f %%)\n", dirs[d], n, want,
                   formats[f].weights, got, 100 * (got / want - 1));
            if (!(fabs(got / want - 1) <= formats[f].bound))
                fail_msg("%s in %s has %.6f, in 16 bit %.6f", dirs[d], formats[f].weights, got, want);
        }
        free(ids);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_out_text_is_nearly_as_likely_in_8_bits_and_less_likely_by_at_most_12_percent_in_int4)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
