// epilogue.cuh - what becomes of a product's outputs in a decode step: the scale of the norm before it, convolution,
// residual and operand of the next norm, FFN gate. One text for the kernel of few rows (decode.cu) and that of many
// (wide.cu), so that a row's bits do not depend on the batch.
//
// A thread has N neighbouring outputs o .. o + N - 1 of a row, N = 1 or 4, o a multiple of N; the 16 / N threads of a
// tile of 16 outputs are neighbouring lanes, and so are, with N = 4, the 16 of 64 outputs. Of each functor:
//   load(column, o, mine)       what all rows share
//   early(row, r, o, mine)      what the step before left; may be called before the inputs are ready
//   late(row, r, o, mine)       what the kernels before left
//   taps_of_step(row, output)   of a functor with taps: those that rows before it in the step have
//   finish(column, row, r, o, mine, v, scale)   by whole warps; v: the product's sums; scale: that of the row's norm
// mine: the row is one, and o an output (plain: looks at o itself).
#pragma once
#include "common.cuh"

// ---- N neighbours at once ----

// N is 1 or a multiple of 4.
template <int N> __device__ __forceinline__ void load_floats(float (&v)[N], const float *p) {
    if (N == 1) v[0] = *p;
#pragma unroll
    for (int i = 0; i + 3 < N; i += 4) {
        const float4 x = *(const float4 *)(p + i);
        v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    }
}
template <int N> __device__ __forceinline__ void store_floats(float *p, const float (&v)[N]) {
    if (N == 1) *p = v[0];
#pragma unroll
    for (int i = 0; i + 3 < N; i += 4) *(float4 *)(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}
// N neighbours of 16 bits, as they lie in memory.
template <int N> struct narrow;
template <> struct narrow<1> { uint16_t word[1]; };
template <> struct alignas(8) narrow<4> { uint32_t word[2]; };
template <> struct alignas(16) narrow<8> { uint32_t word[4]; };
template <class T, int N> __device__ __forceinline__ float widened(const narrow<N> &x, int i) {
    const uint16_t bits = N == 1 ? x.word[0] : x.word[N == 1 ? 0 : i / 2] >> (i % 2 * 16);
    T value;
    memcpy(&value, &bits, 2);
    return to_float(value);
}
template <class T, int N> __device__ __forceinline__ narrow<N> narrowed(const float (&v)[N]) {
    T value[N];
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = from_float<T>(v[i]);
    narrow<N> x;
    memcpy(&x, value, sizeof x);
    return x;
}
template <class T, int N> __device__ __forceinline__ void store_narrow(void *p, size_t at, const narrow<N> &x) {
    *(narrow<N> *)((T *)p + at) = x;
}
// Sum over the 16 columns of a tile: tile_sum's butterfly. N = 4 and fours: over four tiles, right in the first lane of
// their 16. All lanes of the warp call it.
template <int N> __device__ __forceinline__ float tile_sum_of(float (&x)[N], bool fours) {
#pragma unroll
    for (int i = 8; i >= N; i >>= 1)
#pragma unroll
        for (int j = 0; j < N; j++) x[j] += __shfl_xor_sync(0xffffffffu, x[j], i / N);
    if (N == 1) return x[0];
    float tile[4];
    tile[0] = (x[0] + x[2 % N]) + (x[1 % N] + x[3 % N]);
    if (!fours) return tile[0];
#pragma unroll
    for (int j = 1; j < 4; j++) tile[j] = __shfl_down_sync(0xffffffffu, tile[0], j * 4);
    return four_sum(tile);
}

// ---- the norm before a product ----

struct row_norm {
    const float *squares; // [n_rows][n_sums], NULL: no norm
    uint32_t n_sums, n;
    float eps;
    bool weighted; // the operand is weighted<T>
    bool fours;    // of four partial sums each (cuda_square_sums)
};
static inline row_norm norm_of_sums(const struct cuda_row_sums &x) {
    return row_norm{x.squares, x.n_sums, x.n, x.eps, false, false};
}
template <class T> __device__ __forceinline__ float norm_scale(const row_norm &norm, float total) {
    const float scale = rms_scale(total, norm.n, norm.eps);
    return norm.weighted ? scale_of_weighted<T>(scale) : scale;
}

// ---- the functors ----

struct out_plain {
    row_norm norm;
    float *y;
    size_t ldy;
    uint32_t O;
    template <class T, int N> struct column {};
    template <class T, int N> struct row {};
    template <class T, int N> __device__ void load(column<T, N> &, uint32_t, bool) const {}
    template <class T, int N> __device__ void early(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N> __device__ void late(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N>
    __device__ void finish(const column<T, N> &, const row<T, N> &, uint32_t r, uint32_t o, bool mine, float (&v)[N],
                           float scale) const {
        float *to = y + r * ldy + o;
        if (!mine || o >= O) return;
        if (norm.squares)
#pragma unroll
            for (int i = 0; i < N; i++) v[i] *= scale;
        if (N == 1 || (o + N <= O && ldy % N == 0 && (size_t)y % 16 == 0))
            store_floats(to, v);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                if (o + i < O) to[i] = v[i];
    }
};

struct out_residual { // y = base + scale * v; of the norm that comes next: y * w packed, and the squares
                      // (cuda_square_sums)
    row_norm norm;
    const float *base, *w;
    uint32_t D;
    bool fours; // squares are of 64 columns
    float *y, *squares;
    void *act;
    template <class T, int N> struct column { float w[N]; };
    template <class T, int N> struct row { float base[N]; };
    template <class T, int N> __device__ void load(column<T, N> &c, uint32_t o, bool mine) const {
        if (w && mine) load_floats(c.w, w + o);
    }
    template <class T, int N> __device__ void early(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N> __device__ void late(row<T, N> &x, uint32_t r, uint32_t o, bool mine) const {
        if (mine) load_floats(x.base, base + (size_t)r * D + o);
    }
    template <class T, int N>
    __device__ void finish(const column<T, N> &c, const row<T, N> &x, uint32_t r, uint32_t o, bool mine, float (&v)[N],
                           float scale) const {
        float out[N], square[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = mine ? add_scaled(x.base[i], scale, v[i]) : 0.0f, square[i] = out[i] * out[i];
        const float sum = tile_sum_of(square, fours);
        if (!mine) return;
        if (y) store_floats(y + (size_t)r * D + o, out);
        if (!w) return;
        if (!fours && o % 16 == 0) squares[(size_t)r * (D / 16) + o / 16] = sum;
        if (fours && o % 64 == 0) squares[(size_t)r * ((D + 63) / 64) + o / 64] = sum;
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = weighted<T>(out[i], c.w[i]);
        store_narrow<T>(act, act_at<T>(r, o, D), narrowed<T>(out));
    }
};

// Four neighbours at once; something leaves.
static inline bool is_residual(const struct cuda_residual *r) {
    return r->w->rows % 16 == 0 && on_16_bytes(r->base, r->y, r->next_norm, r->act) && (r->y || r->next_norm) &&
           (!r->next_norm || (r->act && r->squares)) && (!r->sums.squares || r->sums.n_sums > 0);
}
static inline out_residual residual_of(const struct cuda_residual *r, bool fours) {
    return {norm_of_sums(r->sums), r->base, r->next_norm, r->w->rows, fours, r->y, r->squares, r->act};
}

template <int MOST_K> struct out_conv : cuda_conv { // E1, E2: a, then from column Ep on z. Of few rows only: N = 1
    row_norm norm;
    template <class T, int N> struct column { float weight[MOST_K], bias; };
    template <class T, int N> struct row { // taps before the newest, oldest first and ending at tap[MOST_K - 2]
        T tap[MOST_K - 1], *to;
        uint32_t lead; // of them are the step's own rows
    };
    template <class T, int N> __device__ void load(column<T, N> &c, uint32_t o, bool mine) const {
        const bool used = mine && o < shape.E;
        c.bias = used ? bias[o] : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < MOST_K; j++)
            c.weight[j] = used && j + shape.K >= MOST_K ? w[o + (size_t)(j + shape.K - MOST_K) * shape.Ep] : 0.0f;
    }
    template <class T, int N> __device__ void early(row<T, N> &x, uint32_t r, uint32_t o, bool mine) const {
        const bool used = mine && o < shape.E;
        const uint32_t K = shape.K, ring = shape.conv_ring, place = used ? (uint32_t)(rows.pos[r] % ring) : 0;
        const T *from = used ? (const T *)shape.conv + (size_t)(uint32_t)rows.slot[r] * shape.conv_slot +
                                   layer * shape.conv_layer + o
                             : NULL;
        x.to = (T *)from + (size_t)place * shape.Ep;
        x.lead = used && rows.lead ? (uint32_t)rows.lead[r] : 0;
#pragma unroll
        for (uint32_t j = 1; j < MOST_K; j++) {
            const uint32_t before = place >= j ? place - j : place + ring - j; // (place - j) mod ring
            x.tap[MOST_K - 1 - j] = used && j < K ? from[(size_t)before * shape.Ep] : from_float<T>(0.0f);
        }
    }
    // In a step with drafts: what the rows before it in its session's segment have, as a later step would read it.
    // output(j): the scaled output of the row so many before.
    template <class T, class Output> __device__ void taps_of_step(row<T, 1> &x, Output output) const {
#pragma unroll
        for (uint32_t j = 1; j < MOST_K; j++)
            if (j <= x.lead && j < shape.K) x.tap[MOST_K - 1 - j] = from_float<T>(output(j));
    }
    template <class T> __device__ float convolved(const column<T, 1> &c, const row<T, 1> &x, float a) const {
        float weight[8], tap[8];
#pragma unroll
        for (int j = 0; j < 8; j++) { // conv_sum takes eight taps: the missing ones are 0
            weight[j] = j + MOST_K >= 8 ? c.weight[(j + MOST_K) % 8 % MOST_K] : 0.0f;
            tap[j] = j + MOST_K >= 8 && j < 7 ? to_float(x.tap[(j + MOST_K) % 8 % (MOST_K - 1)]) : 0.0f;
        }
        return conv_sum(weight, tap, a, c.bias);
    }
    template <class T, int N> __device__ void late(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N>
    __device__ void finish(const column<T, N> &c, const row<T, N> &x, uint32_t r, uint32_t o, bool mine, float (&v)[N],
                           float scale) const {
        static_assert(N == 1, "conv_rows is for more");
        if (!mine) return;
        v[0] *= scale;
        az[(size_t)r * 2 * shape.Ep + o] = v[0];
        if (o >= shape.E) return;
        const T stored = from_float<T>(v[0]);
        const float sum = convolved<T>(c, x, v[0]);
        s[(size_t)r * shape.Ep + o] = sum;
        ((T *)s_act)[act_at<T>(r, o, shape.E)] = from_float<T>(sum);
        ((T *)a_act)[act_at<T>(r, o, shape.E)] = stored;
        *x.to = stored;
    }
};

struct out_ffn { // E10: eight rows of a2, eight of g2
    row_norm norm;
    void *act;
    uint32_t F;
    template <class T, int N> struct column {};
    template <class T, int N> struct row {};
    template <class T, int N> __device__ void load(column<T, N> &, uint32_t, bool) const {}
    template <class T, int N> __device__ void early(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N> __device__ void late(row<T, N> &, uint32_t, uint32_t, bool) const {}
    template <class T, int N>
    __device__ void finish(const column<T, N> &, const row<T, N> &, uint32_t r, uint32_t o, bool mine, float (&v)[N],
                           float scale) const {
        float out[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] *= scale;
            out[i] = ffn_gate(v[i], __shfl_xor_sync(0xffffffffu, v[i], 8 / N));
        }
        if (mine && o % 16 < 8)
            store_narrow<T>(act, act_at<T>(r, o / 16 * 8 + o % 8, (F + 15) / 16 * 16), narrowed<T>(out));
    }
};

// ---- wide.cu: products of more than 8 rows in 16 bit on Hopper ----

struct wide_operands {
    const struct cuda_matrix *w;
    const void *x;
}; // packed weights and activations
// Two products: of the same k, their weights kept alike.
void wide_pair(const cuda_product &one, const cuda_product &two, uint32_t n_rows, void *stream); // two.w NULL: one
void wide_product(const wide_operands &in, const out_plain &out, uint32_t n_rows, void *stream);
void wide_product(const wide_operands &in, const out_residual &out, uint32_t n_rows, void *stream);
void wide_product(const wide_operands &in, const out_ffn &out, uint32_t n_rows, void *stream);

// E2 at eight channels, to conv_sum's bits: taps before the newest, oldest first and ending at tap[MOST_K - 2].
template <class T, int MOST_K>
__device__ __forceinline__ void conv_eight(float (&sum)[8], const float (&weight)[MOST_K][8],
                                           const narrow<8> (&tap)[MOST_K], const float (&newest)[8],
                                           const float (&bias)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float all[8], old[8];
#pragma unroll
        for (int j = 0; j < 8; j++) { // those that are none are 0
            const int at = (j + MOST_K) % 8 % MOST_K;
            all[j] = j + MOST_K >= 8 ? weight[at][i] : 0.0f;
            old[j] = j + MOST_K >= 8 && j < 7 ? widened<T>(tap[at], i) : 0.0f;
        }
        sum[i] = conv_sum(all, old, newest[i], bias[i]);
    }
}
// In a step with drafts: of the taps before row r's newest those that the rows before it in its session's segment have,
// `lead` of them, as a later step would read them; az: at row r and the first of eight channels.
template <class T, int MOST_K>
__device__ __forceinline__ void taps_of_step(narrow<8> (&tap)[MOST_K], uint32_t lead, uint32_t K, const float *az,
                                             uint32_t Ep) {
#pragma unroll
    for (uint32_t j = 1; j < MOST_K; j++)
        if (j <= lead && j < K) {
            float a[8];
            load_floats(a, az - (size_t)j * 2 * Ep);
            tap[MOST_K - 1 - j] = narrowed<T>(a);
        }
}
// E2 of single tokens in 16 bit after W_fc's product, as k_conv (mixer.cu). az is scaled.
void conv_rows(const cuda_conv &conv, void *stream);
