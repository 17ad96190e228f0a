/* test_second_order.c - the factor against its definition, and codes against plain rounding by the error that they
 * cost. */
#include "engine/backend/cpu/cpu_team.h"
#include "engine/base/philox.h"
#include "engine/model/weight_quant.h"
#include "engine/tools/second_order.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 200, LD = 208, TOKENS = 333, ROWS = 21, GROUPS = 2 };

static double draw(uint64_t seed, uint64_t at) {
    double sum = -6;
    for (uint32_t k = 0; k < 12; k++) sum += philox_uniform(seed, at, k);
    return sum;
}

/* Inputs whose channels hang together and differ in size, as those of a model do. */
static float *draw_inputs(uint64_t seed) {
    float *x = calloc(TOKENS * LD, sizeof *x);
    for (uint64_t t = 0; t < TOKENS; t++)
        for (uint64_t i = 0; i < N; i++)
            x[t * LD + i] = (float)((draw(seed, t * N + i) + 2 * draw(seed + 1, t * 8 + i % 8)) * (i % 10 ? 1 : 5));
    return x;
}

static float *sum_of(const float *x, uint32_t n_members) {
    float *H = calloc(N * N, sizeof *H);
    for (uint32_t m = 0; m < n_members; m++) second_order_add(H, N, x, LD, TOKENS, m, n_members);
    return H;
}

static void a_factor_is_that_of_the_damped_inverse(void **state) {
    (void)state;
    float *x = draw_inputs(1), *H = sum_of(x, 1), *U = sum_of(x, 3), *work = malloc(N * N * sizeof *work);
    assert_memory_equal(H, U, N * N * sizeof *H); /* whoever shares it out */
    struct team *team = team_open(2);
    assert_true(second_order_factor(U, work, N, team));
    double mean = 0, worst = 0;
    for (int i = 0; i < N; i++) mean += (double)H[i * N + i] / N;
    /* U H U^T is the identity, as H^-1 is U^T U: e_i U H U^T e_j */
    for (int i = 0; i < N; i += 7)
        for (int j = 0; j < N; j += 11) {
            double sum = 0;
            for (int a = i; a < N; a++)
                for (int b = j; b < N; b++) {
                    const double h = (double)H[a < b ? a * N + b : b * N + a] + (a == b ? 0.01 * mean : 0);
                    sum += (double)U[i * N + a] * h * (double)U[j * N + b];
                }
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++) assert_true(U[i * N + j] == 0);
    if (worst > 1e-3) fail_msg("U H U^T is %g away from the identity", worst);
    team_close(team);
    free(x), free(H), free(U), free(work);
}

/* What errors of a row cost: e H e^T. */
static double cost_of(const float *H, const float *w, const uint8_t *codes, const float *scales) {
    double e[N], sum = 0;
    for (int c = 0; c < N; c++) e[c] = (double)w[c] - (double)scales[c / WEIGHT_GROUP] * (codes[c] - WEIGHT_INT4_ZERO);
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++) sum += e[a] * e[b] * (double)H[a < b ? a * N + b : b * N + a];
    return sum;
}

static void codes_cost_less_than_the_nearest_ones_and_hang_on_no_thread(void **state) {
    (void)state;
    float *x = draw_inputs(2), *H = sum_of(x, 1), *U = sum_of(x, 1), *work = malloc(N * N * sizeof *work);
    float w[ROWS * N], left[ROWS * N], scales[3][ROWS * GROUPS];
    uint8_t codes[3][ROWS * N];
    for (uint64_t i = 0; i < ROWS * N; i++) w[i] = (float)(0.02 * draw(3, i));
    struct team *teams[] = {team_open(1), team_open(2)};
    assert_true(second_order_factor(U, work, N, teams[0]));
    for (int t = 0; t < 2; t++) {
        memcpy(left, w, sizeof left);
        second_order_round(U, N, left, ROWS, codes[t], scales[t], teams[t]);
    }
    assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
    assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
    double ours = 0, nearest = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int g = 0; g < GROUPS; g++) {
            const uint32_t n = g ? N - WEIGHT_GROUP : WEIGHT_GROUP;
            const float *group = w + r * N + g * WEIGHT_GROUP;
            scales[2][r * GROUPS + g] = weight_quant_scale(group, NULL, n);
            for (uint32_t i = 0; i < n; i++)
                codes[2][r * N + g * WEIGHT_GROUP + (int)i] = weight_quant_code(group[i], scales[2][r * GROUPS + g]);
        }
        ours += cost_of(H, w + r * N, codes[0] + r * N, scales[0] + r * GROUPS);
        nearest += cost_of(H, w + r * N, codes[2] + r * N, scales[2] + r * GROUPS);
    }
    if (!(ours < 0.4 * nearest)) fail_msg("errors cost %g, those of the nearest codes %g", ours, nearest);
    team_close(teams[0]);
    team_close(teams[1]);
    free(x), free(H), free(U), free(work);
}

static void inputs_that_are_no_numbers_or_none_are_told_apart(void **state) {
    (void)state;
    float *H = calloc(N * N, sizeof *H), *work = malloc(N * N * sizeof *work);
    struct team *team = team_open(1);
    assert_true(second_order_factor(H, work, N, team)); /* no inputs: every column counts the same */
    for (int i = 1; i < N; i++) assert_true(fabsf(H[i * N + i] - H[0]) <= 1e-6f * H[0] && H[i] == 0);
    memset(H, 0, N * N * sizeof *H);
    H[5 * N + 5] = NAN;
    assert_false(second_order_factor(H, work, N, team));
    team_close(team);
    free(H), free(work);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_factor_is_that_of_the_damped_inverse),
        cmocka_unit_test(codes_cost_less_than_the_nearest_ones_and_hang_on_no_thread),
        cmocka_unit_test(inputs_that_are_no_numbers_or_none_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
