/* test_formats.c - what weights and windows in fewer bits cost on a real device, by the held-out tales:
 * RODIMUS_TEST_DEVICE names it, the CPU without it. The first 6,000 tokens; all of them with RODIMUS_TEST_FULL=1. */
#include "tests/held_out.h"

#include <string.h>

enum { SOME_TOKENS = 6000 };

struct format {
    const char *weights, *window; /* window NULL: in the activations' type */
    double bound;
};

static double perplexity_in(const char *dir, const struct format *format, const int32_t *ids, size_t n) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct model *model;
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.dir = dir, .weights = format->weights}, NULL, &model, &err))
        fail_msg("%s", err.message);
    const struct backend_config config = {.device = device ? device : "cpu", .window_dtype = format->window};
    const double p = perplexity(model, config, ids, n);
    model_close(model);
    return p;
}

static void check_formats(const char *dir, const struct format *formats, size_t n_formats) {
    size_t n;
    int32_t *ids = held_out_ids(dir, &n);
    if (!getenv("RODIMUS_TEST_FULL") && n > SOME_TOKENS) n = SOME_TOKENS;
    const double want = perplexity_in(dir, &(struct format){.weights = "auto"}, ids, n);
    for (size_t f = 0; f < n_formats; f++) {
        const char *window = formats[f].window ? formats[f].window : "auto";
        const double got = perplexity_in(dir, &formats[f], ids, n);
        printf("note: %s, perplexity of %zu tokens: as stored %.4f, weights %s, window %s %.4f (%+.4f %%)\n", dir, n,
               want, formats[f].weights, window, got, 100 * (got / want - 1));
        if (!(fabs(got / want - 1) <= formats[f].bound))
            fail_msg("%s in %s, window %s has %.6f, as stored %.6f", dir, formats[f].weights, window, got, want);
    }
    free(ids);
}

static void held_out_text_is_nearly_as_likely_in_8_bits_and_less_likely_by_at_most_12_percent_in_int4(void **state) {
    (void)state;
    static const struct format formats[] = {{"int8", NULL, 0.003}, {"int4", NULL, 0.12}, {"fp8", NULL, 0.003}};
    const size_t n = getenv("RODIMUS_TEST_DEVICE") ? 3 : 2; /* the CPU has no fp8 */
    check_formats("config/models/tales", formats, n);
    check_formats("config/models/skills", formats, n);
}

static void held_out_text_is_as_likely_with_a_window_in_8_bits(void **state) {
    (void)state;
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const struct format format = {"auto", device && strcmp(device, "cpu") ? "fp8" : "int8", 0.001};
    check_formats("config/models/tales", &format, 1);
    check_formats("config/models/skills", &format, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_out_text_is_nearly_as_likely_in_8_bits_and_less_likely_by_at_most_12_percent_in_int4),
        cmocka_unit_test(held_out_text_is_as_likely_with_a_window_in_8_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
