/* test_ahead.c - the engine on a GPU at a published size: what its thread costs beside a step, and that a stream drawn
 * on the device is the same alone and in a crowd whose members end, are cancelled and come anew. */
#include "tests/collect.h"

#include "engine/base/philox.h"

enum { N_CROWD = 64, N_TOKENS = 120 };

static void open_engine(struct collector *c) {
    struct rod_error err;
    struct rod_engine_config config = {
        .synthetic = "rodimus-plus-1.6b", .device = "cuda", .n_slots = N_CROWD, .max_queue = 1000};
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
}

static struct rod_request *request(uint64_t i, uint32_t max_tokens, struct answer *a) {
    int32_t ids[200];
    const size_t n = 1 + (size_t)(philox_uniform(i, 0, 7) * 150);
    for (size_t k = 0; k < n; k++) ids[k] = 10 + (int32_t)(philox_uniform(i, k, 3) * 100000);
    struct rod_request *r = collect_request(ids, n, a);
    r->max_tokens = max_tokens;
    r->ignore_eos = true;
    r->sampling.seed = i;
    r->sampling.temperature = i % 4 ? 0.6f + 0.1f * (float)(i % 7) : 0;
    if (i % 3 == 1) r->sampling.top_p = 0.9f;
    if (i % 5 == 1) r->sampling.top_k = 40;
    if (i % 6 == 1) r->sampling.repetition_penalty = 1.3f;
    if (i % 7 == 1) r->n_logprobs = 2;
    return r;
}

static double process_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The whole process: the engine thread, the driver's, and this one, which takes the events. */
static void host_time(struct collector *c, uint32_t n_streams) {
    struct answer a[N_CROWD];
    for (uint32_t i = 0; i < n_streams; i++) {
        struct rod_request *r = request(8 * i, 4 * N_TOKENS, &a[i]);
        r->never_speculate = true; /* a step that expects drafts is waited for: the next one begins behind the host */
        collect_submit(c, r);
    }
    do {
        collect_wait(c, 1000);
        collect_now(c);
    } while (a[n_streams - 1].n_ids < 20); /* all prompts are read */
    struct rod_stats begin, end;
    rod_engine_stats(c->engine, &begin);
    const double cpu = process_s();
    while (a[0].n_ids < 4 * N_TOKENS - 20) {
        collect_wait(c, 1000);
        collect_now(c);
    }
    rod_engine_stats(c->engine, &end);
    const double used = process_s() - cpu, steps = (double)(end.steps - begin.steps),
                 step = 1e-9 * (double)(end.step_ns_sum - begin.step_ns_sum) / steps;
    printf("note: %u streams: %.3f ms a step, the host works %.1f %% of it\n", n_streams, 1e3 * step,
           100 * used / steps / step);
    collect_until(c, a, n_streams); /* the next test has the engine to itself */
    for (uint32_t i = 0; i < n_streams; i++) collect_free(&a[i]);
    if (used / steps > 0.15 * step) fail_msg("more than 15 %%");
}

static void the_host_is_off_the_critical_path(void **state) {
    struct collector *c = *state;
    host_time(c, 1);
    host_time(c, 8);
    host_time(c, 64);
}

static void a_stream_drawn_on_the_device_is_the_same_alone_and_in_a_crowd(void **state) {
    struct collector *c = *state;
    enum { N = 100, N_ALONE = 6 };
    struct answer crowd[N], alone;
    for (uint64_t i = 0; i < N; i++)
        collect_submit(c, request(i, i < N_ALONE ? N_TOKENS : 1 + (uint32_t)(i * 7 % 90), &crowd[i]));
    for (uint64_t i = N_ALONE; i < N; i += 9) {
        collect_wait(c, 1000);
        collect_now(c);
        rod_cancel(c->engine, crowd[i].ticket);
    }
    collect_until(c, crowd, N);
    for (uint64_t i = 0; i < N_ALONE; i++) {
        collect_submit(c, request(i, N_TOKENS, &alone));
        collect_until(c, &alone, 1);
        char what[32];
        snprintf(what, sizeof what, "stream %d", (int)i);
        collect_assert_ids(&crowd[i], alone.ids, alone.n_ids, what);
        collect_free(&alone);
    }
    for (uint64_t i = 0; i < N; i++) {
        assert_false(crowd[i].failed);
        collect_free(&crowd[i]);
    }
}

static int set_up(void **state) {
    struct collector *c = calloc(1, sizeof *c);
    open_engine(c);
    *state = c;
    return 0;
}
static int tear_down(void **state) {
    collect_close(*state);
    free(*state);
    return 0;
}

int main(void) {
    char lines[1][128];
    bool cuda = false;
    for (size_t i = 0, n = rod_devices(lines, 1); i < n; i++) cuda = strncmp(lines[i], "cuda:", 5) == 0;
    if (!cuda) {
        printf("note: skipped, no usable GPU\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_is_off_the_critical_path),
        cmocka_unit_test(a_stream_drawn_on_the_device_is_the_same_alone_and_in_a_crowd),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
