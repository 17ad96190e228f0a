/* ref.c - the twins: each operation as the equations write it, in double, one loop per sum. */
#include "kernels.h"

#include <math.h>

static double ref_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double ref_silu(double x) { return x * ref_sigmoid(x); }
static double ref_softplus(double x) { return fmax(x, 0.0) + log1p(exp(-fabs(x))); }

void ref_linear(const float *W, uint32_t rows, uint32_t cols, const float *x, float *y) {
    for (uint32_t o = 0; o < rows; o++) {
        double sum = 0;
        for (uint32_t c = 0; c < cols; c++) sum += (double)W[(size_t)o * cols + c] * (double)x[c];
        y[o] = (float)sum;
    }
}

/* In fp32, as its bits are the kernels'. */
void ref_encode(const float *x, uint32_t n, int16_t *codes, float *scale, int32_t *sum) {
    float most = 0;
    *sum = 0;
    for (uint32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    if (most < 1e-30f) most = 0;
    for (uint32_t i = 0; i < n; i++) {
        codes[i] = most > 0 ? (int16_t)rintf(x[i] * (32767.0f / most)) : 0;
        *sum += codes[i];
    }
    *scale = most / 32767.0f;
}

void ref_window_encode(const float *x, uint32_t n, int8_t *codes, float *scale) {
    float most = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) finite = finite && isfinite(x[i]), most = fmaxf(most, fabsf(x[i]));
    const bool some = finite && most >= 1e-30f;
    for (uint32_t i = 0; i < n; i++) codes[i] = some ? (int8_t)rintf(x[i] * (127.0f / most)) : 0;
    *scale = finite ? (some ? most / 127.0f : 0) : NAN;
}

void ref_quant_linear(const struct ref_quant *w, const float *x, const float *base, float *y) {
    for (uint32_t o = 0; o < w->rows; o++) {
        const uint8_t *code = w->codes + (size_t)o * w->cols;
        y[o] = 0;
        for (uint32_t c = 0, block = 0; c < w->cols; c += CPU_BLOCK, block++) {
            const uint32_t n = w->cols - c < CPU_BLOCK ? w->cols - c : CPU_BLOCK;
            const size_t at = (size_t)o * w->n_scales + (w->n_scales > 1 ? block : 0);
            const int64_t zero = !w->int4 ? 0 : w->zeros ? w->zeros[at] : 8;
            int16_t x_code[CPU_BLOCK];
            float x_scale;
            int32_t x_sum;
            int64_t sum = 0;
            ref_encode(x + c, n, x_code, &x_scale, &x_sum);
            for (uint32_t i = 0; i < n; i++) sum += ((w->int4 ? code[c + i] : (int8_t)code[c + i]) - zero) * x_code[i];
            const float scale = w->scales[at] * x_scale;
            y[o] = y[o] + (float)sum * scale;
        }
        if (base) y[o] = base[o] + y[o];
    }
}

void ref_rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *y) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double scale = 1.0 / sqrt(sum / n + (double)eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * (double)w[i] * scale);
}

void ref_conv_silu(const float *const *tap, uint32_t K, const float *w, size_t ldw, const float *bias, uint32_t E,
                   float *s) {
    for (uint32_t e = 0; e < E; e++) {
        double sum = (double)bias[e];
        for (uint32_t j = 0; j < K; j++) sum += (double)w[j * ldw + e] * (double)tap[j][e];
        s[e] = (float)ref_silu(sum);
    }
}

void ref_gates(uint32_t M, float k_eps, const struct cpu_gates *row) {
    double norm = 0;
    for (uint32_t m = 0; m < M; m++) norm += (double)row->k[m] * (double)row->k[m];
    norm = fmax(sqrt(norm), (double)k_eps);
    for (uint32_t m = 0; m < M; m++) {
        double g = ref_softplus((double)row->g[m] + (double)row->g_b[m]);
        double tau = ref_sigmoid((double)row->t[m] + (double)row->t_b[m]);
        row->q[m] = (float)((double)row->q[m] / sqrt((double)M));
        row->k[m] = (float)(pow(g, tau) * (double)row->k[m] / norm);
        row->log_alpha[m] = (float)(-g * tau);
    }
}

void ref_gla(uint32_t M, uint32_t E, uint32_t n, const struct cpu_token *tok, double *S) {
    for (uint32_t t = 0; t < n; t++) {
        const float *q = tok->q + t * M, *k = tok->k + t * M, *log_alpha = tok->log_alpha + t * M;
        for (uint32_t e = 0; e < E; e++) {
            double sum = 0;
            for (uint32_t m = 0; m < M; m++) {
                double *s = &S[(size_t)m * E + e];
                *s = exp((double)log_alpha[m]) * *s + (double)k[m] * (double)tok->u[(size_t)t * E + e];
                sum += (double)q[m] * *s;
            }
            tok->o[(size_t)t * E + e] = (float)sum;
        }
    }
}

static double ref_score(size_t P, const float *q, const float *k) {
    double sum = 0;
    for (size_t p = 0; p < P; p++) sum += (double)q[p] * (double)k[p];
    return sum / sqrt((double)P);
}

/* Dims in blocks, so that a score is computed once a block and not once a dim. */
enum { REF_DIMS = 64 };

void ref_window(const struct cpu_heads *heads, uint32_t n, const float *q, const float *k, const float *v, float *out) {
    const size_t P = heads->P, Hk = heads->Hk, Hv = heads->Hv;
    for (uint32_t h = 0; h < heads->H; h++) {
        const float *qh = q + h * P, *kh = k + h % Hk * P, *vh = v + h % Hv * P;
        double top = -INFINITY;
        for (uint32_t j = 0; j < n; j++) top = fmax(top, ref_score(P, qh, kh + j * Hk * P));
        for (size_t p0 = 0; p0 < P; p0 += REF_DIMS) {
            const size_t p1 = p0 + REF_DIMS < P ? p0 + REF_DIMS : P;
            double sum[REF_DIMS] = {0}, total = 0;
            for (uint32_t j = 0; j < n; j++) {
                double weight = exp(ref_score(P, qh, kh + j * Hk * P) - top);
                total += weight;
                for (size_t p = p0; p < p1; p++) sum[p - p0] += weight * (double)vh[j * Hv * P + p];
            }
            for (size_t p = p0; p < p1; p++) out[h * P + p] = (float)(sum[p - p0] / total);
        }
    }
}
