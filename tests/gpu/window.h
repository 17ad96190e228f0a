/* window.h - what tests of E9's kernels share: shapes, places in the ring, the rotary twin. */
#ifndef GPU_WINDOW_H
#define GPU_WINDOW_H

#include "broken.h"

enum { LAYERS = 2, CHUNK = 64 };

static inline struct cuda_shape window_shape(uint32_t i, uint32_t visible, uint32_t n_slots, enum cuda_dtype dtype) {
    const struct model_dims d = gpu_dims(i, true);
    struct cuda_shape s = {.H = d.H,
                           .Hk = d.Hk,
                           .Hv = d.Hv,
                           .P = d.P,
                           .visible = visible ? visible : d.visible,
                           .rot_dim = d.rot_dim,
                           .rot_interleaved = d.rot_interleaved,
                           .qk_norm = d.qk_norm,
                           .qk_norm_eps = 1e-5f,
                           .n_slots = n_slots,
                           .dtype = dtype};
    s.ring_keys = s.visible + CHUNK - 1;
    s.keys_layer = (size_t)s.ring_keys * s.Hk * s.P, s.keys_slot = s.keys_layer * LAYERS;
    s.values_layer = (size_t)s.ring_keys * s.Hv * s.P, s.values_slot = s.values_layer * LAYERS;
    return s;
}
/* Where the ring has the key (or value) of a position: elements from the pool's begin. */
static inline size_t key_at(const struct cuda_shape *s, uint32_t slot, uint32_t layer, int64_t pos) {
    return slot * s->keys_slot + layer * s->keys_layer + (size_t)(pos % s->ring_keys) * s->Hk * s->P;
}
static inline size_t value_at(const struct cuda_shape *s, uint32_t slot, uint32_t layer, int64_t pos) {
    return slot * s->values_slot + layer * s->values_layer + (size_t)(pos % s->ring_keys) * s->Hv * s->P;
}

static inline void name_rings(int use, const struct cuda_shape *s) { /* of broken.h */
    OF_SLOTS(use, s->keys, s->n_slots + 1, s->keys_slot, gpu_window_type(s));
    OF_SLOTS(use, s->values, s->n_slots + 1, s->values_slot, gpu_window_type(s));
}
/* Some windows of shapes that have kernels for it are in 8 bits. */
static inline void pick_window(struct cuda_shape *s) {
    if (s->dtype != CUDA_F32 && gpu.k->cuda_window8_possible(s) && gpu_pick(0, 1)) s->window = CUDA_FP8;
}
static inline const char *window_name(const struct cuda_shape *s) { return s->window == CUDA_FP8 ? " in fp8" : ""; }

/* One head of query or key: norm (option), then the pairs rotated. rope: [half][2]. */
static inline void rotate_head(const struct cuda_shape *s, const double *v, const float *norm, const float *rope,
                               float *out) {
    const uint32_t P = s->P, half = s->rot_dim / 2;
    double squares = 0, x[256];
    for (uint32_t p = 0; p < P; p++) squares += v[p] * v[p];
    for (uint32_t p = 0; p < P; p++)
        x[p] = s->qk_norm ? v[p] * (double)norm[p] / sqrt(squares / P + (double)s->qk_norm_eps) : v[p];
    for (uint32_t p = 2 * half; p < P; p++) out[p] = (float)x[p];
    for (uint32_t j = 0; j < half; j++) {
        const uint32_t a = s->rot_interleaved ? 2 * j : j, b = s->rot_interleaved ? 2 * j + 1 : j + half;
        const double c = (double)rope[2 * j], sin = (double)rope[2 * j + 1];
        out[a] = (float)(x[a] * c - x[b] * sin);
        out[b] = (float)(x[b] * c + x[a] * sin);
    }
}

/* Codes of e4m3 are the nearest ones; near the middle of two either is right. */
static inline void check_codes(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double unit = fabs((double)want[i]) / 8 > 0x1p-9 ? fabs((double)want[i]) / 8 : 0x1p-9;
        if (!(fabs((double)got[i] - (double)want[i]) <= 0.51 * unit))
            fail_msg("%s (%s, seed %llu): element %zu of %zu is %.9g, the twin says %.9g before it is rounded", what,
                     gpu.what, (unsigned long long)gpu.seed, i, n, (double)got[i], (double)want[i]);
    }
}
/* What the rows of the list wrote is close to the twin's; everything else is as it was. */
static inline void check_ring(const char *what, const float *got, const float *want, const uint8_t *written, size_t n,
                              double ulp) {
    size_t n_written = 0;
    float *x = host_floats(n), *ref = host_floats(n);
    for (size_t i = 0; i < n; i++) {
        if (written[i]) x[n_written] = got[i], ref[n_written++] = want[i];
        const bool same = !memcmp(&got[i], &want[i], sizeof *got) || (isnan(got[i]) && isnan(want[i]));
        if (!written[i] && !same)
            fail_msg("%s (%s): element %zu of the ring is %g, it was %g and is no row's", what, gpu.what, i,
                     (double)got[i], (double)want[i]);
    }
    if (ulp == gpu_ulp(GPU_E4M3))
        check_codes(what, x, ref, n_written);
    else
        gpu_check(what, x, ref, n_written, 2e-6, ulp);
}

#endif
