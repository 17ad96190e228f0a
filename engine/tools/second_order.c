/* second_order.c - see second_order.h. */
#include "second_order.h"
#include "engine/backend/cpu/cpu_team.h"
#include "engine/model/weight_quant.h"

#include <math.h>
#include <string.h>

enum { TOKENS_AT_ONCE = 4, LANES = 8, TILE = 32, ROWS_AT_ONCE = 8 };

void second_order_add(float *H, uint32_t n, const float *x, size_t ld, uint32_t n_rows, uint32_t member,
                      uint32_t n_members) {
    uint32_t r = 0;
    for (; r + TOKENS_AT_ONCE <= n_rows; r += TOKENS_AT_ONCE) {
        const float *a = x + r * ld, *b = a + ld, *c = b + ld, *d = c + ld;
        for (uint32_t i = member; i < n; i += n_members) {
            float *h = H + (size_t)i * n;
            for (uint32_t j = i; j < n; j++) h[j] += a[i] * a[j] + b[i] * b[j] + c[i] * c[j] + d[i] * d[j];
        }
    }
    for (; r < n_rows; r++) {
        const float *a = x + r * ld;
        for (uint32_t i = member; i < n; i += n_members)
            for (uint32_t j = i; j < n; j++) H[(size_t)i * n + j] += a[i] * a[j];
    }
}

/* ---- the factor ---- */

struct factoring {
    float *H, *U;
    uint32_t n, j;
    struct team *team;
};

static float dot(const float *a, const float *b, uint32_t n) {
    float lane[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) lane[k] += a[i + k] * b[i + k];
    for (uint32_t k = 0; k < LANES; k++) sum += lane[k];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Column j of R above its diagonal: H = R R^T, R upper. */
static void factor_column(void *arg, uint32_t member) {
    struct factoring *f = arg;
    uint32_t first, last;
    const uint32_t n = f->n, j = f->j, behind = n - j - 1;
    const float *row = f->H + (size_t)j * n;
    team_range(f->team, member, j, &first, &last);
    for (uint32_t i = first; i < last; i++) {
        float *h = f->H + (size_t)i * n;
        h[j] = (h[j] - dot(h + j + 1, row + j + 1, behind)) / row[j];
    }
}

/* R^-1, some columns at a time: row i of U is (e_i - sum over k > i of R[i, k] U[k]) / R[i, i]. */
static void invert_tiles(void *arg, uint32_t member) {
    struct factoring *f = arg;
    const uint32_t n = f->n, n_tiles = (n + TILE - 1) / TILE;
    for (uint32_t t = member; t < n_tiles; t += team_size(f->team)) {
        const uint32_t j0 = t * TILE, m = n - j0 < TILE ? n - j0 : TILE;
        for (uint32_t i = j0 + m; i-- > 0;) {
            const float *r = f->H + (size_t)i * n;
            float sum[TILE] = {0};
            for (uint32_t k = i + 1; k < j0 + m; k++)
                for (uint32_t j = 0; j < m; j++) sum[j] += r[k] * f->U[(size_t)k * n + j0 + j];
            for (uint32_t j = 0; j < m; j++)
                f->U[(size_t)i * n + j0 + j] = ((i == j0 + j ? 1.0f : 0.0f) - sum[j]) / r[i];
        }
        for (uint32_t i = j0 + m; i < n; i++) memset(f->U + (size_t)i * n + j0, 0, m * sizeof *f->U);
    }
}

/* H's upper half becomes R; false: it is not positive. */
static bool factor_upper(struct factoring *f) {
    for (f->j = f->n; f->j-- > 0;) {
        float *row = f->H + (size_t)f->j * f->n;
        const uint32_t behind = f->n - f->j - 1;
        const float pivot = row[f->j] - dot(row + f->j + 1, row + f->j + 1, behind);
        if (!(pivot > 0) || !isfinite(pivot)) return false;
        row[f->j] = sqrtf(pivot);
        team_run(f->team, factor_column, f);
    }
    return true;
}

bool second_order_factor(float *H, float *work, uint32_t n, struct team *team) {
    struct factoring f = {work, H, n, 0, team};
    double mean = 0;
    for (uint32_t i = 0; i < n; i++) mean += (double)H[(size_t)i * n + i] / n;
    if (!isfinite(mean)) return false;
    if (!(mean > 0)) mean = 1; /* no inputs: every column counts the same */
    for (double damping = 0.01; damping < 1e3; damping *= 10) {
        memcpy(work, H, sizeof *H * n * n);
        for (uint32_t i = 0; i < n; i++) work[(size_t)i * n + i] += (float)(damping * mean);
        if (!factor_upper(&f)) continue;
        team_run(team, invert_tiles, &f);
        return true;
    }
    return false;
}

/* ---- rounding ---- */

struct rounding {
    const float *U;
    uint32_t n, n_rows;
    float *w;
    uint8_t *codes;
    float *scales;
    struct team *team;
};

/* An error of column i, when what comes behind it is put right as well as can be, counts 1 / U[i, i]^2. */
static void round_rows(const struct rounding *o, uint32_t first, uint32_t n_rows) {
    const uint32_t n = o->n, groups = (n + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    float importance[WEIGHT_GROUP];
    for (uint32_t c = 0; c < n; c++) {
        const float *u = o->U + (size_t)c * n;
        const uint32_t g = c / WEIGHT_GROUP, m = n - c < WEIGHT_GROUP ? n - c : WEIGHT_GROUP;
        for (uint32_t i = 0; c % WEIGHT_GROUP == 0 && i < m; i++) {
            const float d = o->U[(size_t)(c + i) * n + c + i];
            importance[i] = 1 / (d * d);
        }
        for (uint32_t r = first; r < first + n_rows; r++) {
            float *w = o->w + (size_t)r * n, *scale = &o->scales[(size_t)r * groups + g];
            if (c % WEIGHT_GROUP == 0) *scale = weight_quant_scale(w + c, importance, m);
            const uint8_t code = weight_quant_code(w[c], *scale);
            const float error = (w[c] - *scale * (float)(code - WEIGHT_INT4_ZERO)) / u[c];
            o->codes[(size_t)r * n + c] = code;
            for (uint32_t j = c + 1; j < n; j++) w[j] -= error * u[j];
        }
    }
}

static void round_member(void *arg, uint32_t member) {
    const struct rounding *o = arg;
    const uint32_t n_blocks = (o->n_rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    for (uint32_t b = member; b < n_blocks; b += team_size(o->team)) {
        const uint32_t first = b * ROWS_AT_ONCE, left = o->n_rows - first;
        round_rows(o, first, left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE);
    }
}

void second_order_round(const float *U, uint32_t n, float *w, uint32_t n_rows, uint8_t *codes, float *scales,
                        struct team *team) {
    struct rounding o = {U, n, n_rows, w, codes, scales, team};
    team_run(team, round_member, &o);
}
