/* mixer.h - for tests of the recurrent layer: shapes, inputs, the twin of E4, E6 and E7 over a step's rows. The pool
 * has two layers and slots that no row uses: what a kernel must not touch is compared to the bit. */
#ifndef GPU_MIXER_H
#define GPU_MIXER_H

#include "broken.h"

enum { LAYERS = 2 };

static inline struct cuda_shape mixer_shape(uint32_t i, uint32_t most_width, enum cuda_dtype dtype) {
    const struct model_dims d = gpu_dims(i, false);
    struct cuda_shape s = {.E = gpu_pick_width(most_width),
                           .M = d.M,
                           .R = d.R,
                           .K = d.K,
                           .k_eps = d.k_eps,
                           .norm_eps = d.norm_eps,
                           .dtype = dtype};
    if (gpu_pick(0, 1)) s.M = gpu_pick(0, 1) ? gpu_pick(2, 16) * 8 : gpu_pick(16, 128);
    if (gpu_pick(0, 1)) s.R = gpu_pick(1, 64);
    if (gpu_pick(0, 2) == 0) s.K = gpu_pick(2, 8);
    s.Ep = (s.E + 31) / 32 * 32;
    s.S_layer = (size_t)s.Ep * s.M, s.S_slot = s.S_layer * LAYERS;
    s.conv_ring = s.K + gpu_pick(0, CUDA_DRAFTS);
    s.conv_layer = (size_t)s.conv_ring * s.Ep, s.conv_slot = s.conv_layer * LAYERS;
    return s;
}

struct mixer_inputs {
    float *q, *k, *log_alpha, *c0, *c1, *c1_b, *az, *s, *residual, *act_norm;
};

static inline struct mixer_inputs random_inputs(const struct cuda_shape *shape, uint32_t n_rows) {
    const size_t n = n_rows, M = shape->M, E = shape->E, R = shape->R, Ep = shape->Ep;
    struct mixer_inputs x = {.q = host_random(n * M, -0.3, 0.3, CUDA_F32),
                             .k = host_random(n * M, -0.5, 0.5, CUDA_F32),
                             .log_alpha = host_floats(n * M),
                             .c0 = host_random(n * R, -1, 1, CUDA_F32),
                             .c1 = host_random(E * R, -0.5, 0.5, CUDA_F32),
                             .c1_b = host_random(E, -1, 1, CUDA_F32),
                             .az = host_random(n * 2 * Ep, -2, 2, CUDA_F32),
                             .s = host_random(n * Ep, -1, 2, CUDA_F32),
                             .residual = host_random(E, 0.5, 1.5, CUDA_F32),
                             .act_norm = host_random(E, 0.5, 1.5, CUDA_F32)};
    for (size_t i = 0; i < n * M; i++) { /* slow forgetting, fast, and all at once */
        uint32_t kind = gpu_pick(0, 9);
        x.log_alpha[i] = kind == 0 ? gpu_uniform(-90, -20) : kind < 4 ? gpu_uniform(-1e-5, 0) : gpu_uniform(-2, 0);
    }
    return x;
}

/* Carries S on in double and gives what leaves: o gated (before the norm's weight) [n_rows][E]. */
static inline void mixer_twin(const struct cuda_shape *shape, const struct gpu_rows *rows, uint32_t layer,
                              const struct mixer_inputs *x, float *pool, float *out) {
    const uint32_t M = shape->M, E = shape->E, R = shape->R, Ep = shape->Ep;
    double *S = host_bytes((size_t)M * E * sizeof *S);
    float *u = host_floats(E), *o = host_floats(E);
    for (uint32_t g = 0; g < rows->n_segs; g++) {
        const size_t first = (size_t)rows->seg_first[g];
        float *tiles = pool + (size_t)rows->slot[first] * shape->S_slot + layer * shape->S_layer;
        for (uint32_t e = 0; e < E; e++)
            for (uint32_t m = 0; m < M; m++)
                S[(size_t)m * E + e] = (double)tiles[((size_t)(e / 32) * M + m) * 32 + e % 32];
        for (size_t r = first; r < first + (size_t)rows->seg_n[g]; r++) {
            const float *a = x->az + r * 2 * Ep, *z = a + Ep;
            for (uint32_t e = 0; e < E; e++) {
                double c = (double)x->c1_b[e];
                for (uint32_t j = 0; j < R; j++) c += (double)x->c1[(size_t)e * R + j] * (double)x->c0[r * R + j];
                u[e] = (float)((double)a[e] / (1 + exp(-c)));
            }
            ref_gla(M, E, 1, &(struct cpu_token){x->q + r * M, x->k + r * M, x->log_alpha + r * M, u, o}, S);
            for (uint32_t e = 0; e < E; e++)
                out[r * E + e] = (float)(((double)o[e] + (double)x->residual[e] * (double)x->s[r * Ep + e]) *
                                         (double)z[e] / (1 + exp(-(double)z[e])));
        }
        for (uint32_t e = 0; e < E; e++)
            for (uint32_t m = 0; m < M; m++)
                tiles[((size_t)(e / 32) * M + m) * 32 + e % 32] = (float)S[(size_t)m * E + e];
    }
}

/* Slots and layers that a step has no row for are as before, to the bit; the others as the twin's, channels < E. */
static inline void check_states(const struct cuda_shape *shape, const struct gpu_rows *rows, uint32_t layer,
                                const float *got, const float *want, double tol) {
    uint8_t *used = host_bytes(rows->n_slots + 1);
    for (uint32_t r = 0; r < rows->n_rows; r++) used[rows->slot[r]] = 1;
    float *x = host_floats(shape->S_layer), *ref = host_floats(shape->S_layer);
    for (uint32_t slot = 0; slot <= rows->n_slots; slot++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            const size_t at = slot * shape->S_slot + l * shape->S_layer;
            if (!used[slot] || l != layer) {
                gpu_check_same("a state that no row reads", got + at, want + at, shape->S_layer);
                continue;
            }
            size_t n = 0;
            for (uint32_t e = 0; e < shape->E; e++)
                for (uint32_t m = 0; m < shape->M; m++, n++) {
                    size_t i = at + ((size_t)(e / 32) * shape->M + m) * 32 + e % 32;
                    x[n] = got[i], ref[n] = want[i];
                }
            gpu_check("state", x, ref, n, tol, 0);
        }
}

#endif
