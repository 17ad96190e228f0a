/* cpu_ring.c - a position's key and value into a session's window. Pure. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

void cpu_window_encode(const float *x, uint32_t n, int8_t *codes, size_t stride, float *scale) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) { /* as integers, magnitudes are in order, infinity and NaN on top */
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    float most;
    memcpy(&most, &top, sizeof most);
    const bool finite = top < 0x7f800000u, some = finite && most >= 1e-30f; /* below, 127 / most could overflow */
    const float up = some ? 127.0f / most : 0;
    for (uint32_t i = 0; i < n; i++) codes[i * stride] = some ? (int8_t)((x[i] * up + magic) - magic) : 0;
    *scale = finite ? (some ? most / 127.0f : 0) : NAN;
}

static void ring_put_floats(const struct cpu_window *ring, size_t r, const float *k, const float *v) {
    const size_t nk = (size_t)ring->heads.Hk * ring->heads.P, nv = (size_t)ring->heads.Hv * ring->heads.P;
    float *kt = ring->kt + r / CPU_PANEL * nk * CPU_PANEL + r % CPU_PANEL;
    for (size_t i = 0; i < nk; i++) kt[i * CPU_PANEL] = k[i];
    memcpy(ring->v + r * nv, v, nv * sizeof *v);
}

static void ring_put_codes(const struct cpu_window *ring, size_t r, const float *k, const float *v) {
    const size_t P = ring->heads.P, Hk = ring->heads.Hk, Hv = ring->heads.Hv;
    for (size_t h = 0; h < Hk; h++) {
        const size_t panel = r / CPU_PANEL * Hk + h;
        cpu_window_encode(k + h * P, (uint32_t)P, ring->kt8 + panel * P * CPU_PANEL + r % CPU_PANEL, CPU_PANEL,
                          ring->k_scale + panel * CPU_PANEL + r % CPU_PANEL);
    }
    for (size_t h = 0; h < Hv; h++)
        cpu_window_encode(v + h * P, (uint32_t)P, ring->v8 + (r * Hv + h) * P, 1, ring->v_scale + h * ring->n_keys + r);
}

void cpu_window_put(const struct cpu_window *ring, uint64_t pos, const float *k, const float *v) {
    const size_t r = (size_t)(pos % ring->n_keys);
    if (ring->kt8)
        ring_put_codes(ring, r, k, v);
    else
        ring_put_floats(ring, r, k, v);
}
