/* test_scoring.c - prompts scored by the engine, on tales: the same bits in chunks and in one piece, the
 * numbers of a computation in float64 (each model of config/models); and one prompt read once for many requests, with
 * the same bits as read by each. On the backend that RODIMUS_TEST_DEVICE names, the CPU without it.
 */
#include "tests/collect.h"
#include "tests/each_model.h"

#include "engine/backend/backend.h"
#include "engine/model/model.h"

#include <jansson.h>

#define TALES "config/models/tales"
enum { V = 4096, N = 700, TOP = 4 }; /* N: longer than the window */

static const char *device(void) {
    const char *name = getenv("RODIMUS_TEST_DEVICE");
    return name ? name : "cpu";
}
static bool on_cpu(void) { return strcmp(device(), "cpu") == 0; }

static void open_engine_of(struct collector *c, const char *model, uint32_t n_slots, uint32_t max_batch_tok) {
    struct rod_error err;
    struct rod_engine_config config = {
        .model_dir = model, .device = device(), .n_slots = n_slots, .max_batch_tok = max_batch_tok, .max_queue = 100};
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
}
static void open_engine(struct collector *c, uint32_t n_slots, uint32_t max_batch_tok) {
    open_engine_of(c, TALES, n_slots, max_batch_tok);
}

static void ids_of(int32_t *ids, size_t n, uint32_t seed) {
    uint32_t x = seed * 2654435769u + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % V);
    }
}

static struct rod_request *scored(const int32_t *ids, size_t n, struct answer *a) {
    struct rod_request *r = collect_request(ids, n, a);
    r->n_prompt_logprobs = TOP;
    r->ignore_eos = true;
    return r;
}

/* One forward with all rows of logits. */
static void in_one_piece(const int32_t *ids, struct answer_token *out) {
    struct rod_error err;
    struct model *model;
    const struct backend_ops *ops;
    struct backend *be;
    struct sampler sampler;
    const float *logits;
    const struct backend_config config = {
        .n_slots = 1, .max_batch_tok = N, .max_out = N, .device = device(), .precision = "auto"};
    const struct backend_segment seg = {.n_tok = N, .n_out = N, .tok = ids, .prompt = true};
    if (backend_find(device(), &ops, &err) || model_open(TALES, NULL, NULL, &model, &err) ||
        ops->open(model, &config, &be, &err) || sampler_init(&sampler, V, &err))
        fail_msg("%s", err.message);
    ops->slot_zero(be, 0);
    if (ops->forward(be, &seg, 1, &logits, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i + 1 < N; i++) {
        struct sampler_output o;
        out[i] = (struct answer_token){0};
        if (sampler_score(&sampler, logits + i * V, ids[i + 1], TOP, &o, &out[i].rank, &err))
            fail_msg("%s", err.message);
        out[i].id = o.id;
        out[i].logprob = o.logprob;
        out[i].n_top = o.n_top;
        memcpy(out[i].top, o.top, sizeof *o.top * o.n_top);
    }
    sampler_fini(&sampler);
    ops->close(be);
    model_close(model);
}

static void assert_scores(const struct answer *a, const struct answer_token *want, const char *what) {
    if (a->failed) fail_msg("%s: %s", what, a->end.error.message);
    assert_int_equal(a->n_prompt, N - 1);
    for (size_t i = 0; i + 1 < N; i++)
        if (memcmp(&a->prompt[i], &want[i], sizeof *want))
            fail_msg("%s: token %zu: %.9g rank %u, in one piece %.9g rank %u", what, i, (double)a->prompt[i].logprob,
                     a->prompt[i].rank, (double)want[i].logprob, want[i].rank);
}

static void scoring_in_chunks_gives_the_bits_of_one_piece(void **state) {
    (void)state;
    int32_t ids[N], other[200];
    struct answer_token *want = calloc(N, sizeof *want);
    ids_of(ids, N, 1);
    ids_of(other, 200, 2);
    in_one_piece(ids, want);
    const struct { uint32_t n_slots, max_batch_tok; } shapes[] = {{1, 65}, {1, 0}, {4, 80}, {4, 300}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct collector c;
        struct answer a[4];
        open_engine(&c, shapes[s].n_slots, shapes[s].max_batch_tok);
        for (size_t i = 0; i < 4; i++) /* beside one that decodes, one that reads and one that is scored as well */
            collect_submit(&c, i % 2 ? collect_request(other, i == 1 ? 3 : 200, &a[i]) : scored(ids, N, &a[i]));
        collect_until(&c, a, 4);
        assert_scores(&a[0], want, "the first");
        assert_scores(&a[2], want, "the second");
        for (size_t i = 0; i < 4; i++) collect_free(&a[i]);
        collect_close(&c);
    }
    free(want);
}

static void check_scores_of(const char *model) {
    char path[256];
    json_error_t where;
    snprintf(path, sizeof path, "%s/generation_cases.json", model);
    json_t *cases = json_load_file(path, 0, &where), *one;
    if (!cases) fail_msg("%s: %s", path, where.text);
    struct collector c;
    open_engine_of(&c, model, 2, 0);
    size_t i, n_scored = 0;
    double worst = 0;
    json_array_foreach(cases, i, one) {
        const json_t *j = json_object_get(one, "prompt_ids"), *logprobs = json_object_get(one, "prompt_logprobs");
        const size_t n = json_array_size(j);
        int32_t *ids = calloc(n, sizeof *ids);
        for (size_t k = 0; k < n; k++) ids[k] = (int32_t)json_integer_value(json_array_get(j, k));
        struct answer a;
        collect_submit(&c, scored(ids, n, &a));
        collect_until(&c, &a, 1);
        assert_int_equal(a.n_prompt, n - 1);
        for (size_t k = 1; k < n; k++, n_scored++) {
            const double d = fabs((double)a.prompt[k - 1].logprob - json_number_value(json_array_get(logprobs, k)));
            if (d > worst) worst = d;
        }
        collect_free(&a);
        free(ids);
    }
    printf("note: %s: %zu tokens of prompts: log-probabilities off by at most %.2g\n", model, n_scored, worst);
    assert_true(n_scored > 20 && worst < (on_cpu() ? 2e-4 : 0.2));
    collect_close(&c);
    json_decref(cases);
}

static void the_scores_are_those_of_a_computation_in_float64(void **state) {
    (void)state;
    each_model_with("generation_cases.json", check_scores_of);
}

static void a_prompt_read_once_gives_the_bits_of_one_read_by_each(void **state) {
    (void)state;
    enum { N_SAME = 3 };
    const size_t lengths[] = {1, 63, 64, 130, N};
    int32_t ids[N];
    ids_of(ids, N, 3);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct collector c;
        struct answer a[N_SAME], alone[N_SAME];
        struct rod_request *r[N_SAME];
        uint64_t tickets[N_SAME];
        struct rod_error err;
        struct rod_stats stats;
        open_engine(&c, N_SAME, 0);
        for (int together = 1; together >= 0; together--) {
            struct answer *out = together ? a : alone;
            for (size_t i = 0; i < N_SAME; i++) {
                r[i] = collect_request(ids, lengths[l], &out[i]);
                r[i]->sampling.temperature = 1;
                r[i]->sampling.seed = i;
                r[i]->n_logprobs = TOP;
                r[i]->ignore_eos = true;
                r[i]->max_tokens = 12;
                r[i]->same_before = i;
                if (together) continue;
                collect_submit(&c, r[i]);
                collect_until(&c, &out[i], 1);
            }
            if (together && rod_submit_all(c.engine, r, N_SAME, tickets, &err)) fail_msg("%s", err.message);
            collect_until(&c, out, N_SAME);
            rod_engine_stats(c.engine, &stats);
            if (on_cpu()) assert_int_equal(stats.prefill_tok, lengths[l] * (together ? 1 : 1 + N_SAME));
        }
        for (size_t i = 0; i < N_SAME; i++) {
            collect_assert_ids(&a[i], alone[i].ids, alone[i].n_ids, "together");
            assert_int_equal(a[i].n_ids, 12);
            assert_memory_equal(a[i].logprobs, alone[i].logprobs, 12 * sizeof(float));
            collect_free(&a[i]);
            collect_free(&alone[i]);
        }
        collect_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scoring_in_chunks_gives_the_bits_of_one_piece),
        cmocka_unit_test(the_scores_are_those_of_a_computation_in_float64),
        cmocka_unit_test(a_prompt_read_once_gives_the_bits_of_one_read_by_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
