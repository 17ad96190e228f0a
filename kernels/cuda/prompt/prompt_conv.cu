// prompt_conv.cu - the convolution (E2) of prompts, rows in parallel.
#include "scan.cuh"
#include <type_traits>

// Of eight channels, weight[d] that of the tap d tokens before. w: [K][Ep] at the first of them.
template <int MOST_K>
__device__ __forceinline__ void weights_by_distance(float (&weight)[MOST_K][8], const float *w, uint32_t K, uint32_t Ep,
                                                    bool mine) {
#pragma unroll
    for (uint32_t d = 0; d < MOST_K; d++) {
        const float4 *at = (const float4 *)(w + (size_t)(K - 1 - d) * Ep);
        const float4 x = mine && d < K ? at[0] : make_float4(0, 0, 0, 0),
                     y = mine && d < K ? at[1] : make_float4(0, 0, 0, 0);
        weight[d][0] = x.x, weight[d][1] = x.y, weight[d][2] = x.z, weight[d][3] = x.w, weight[d][4] = y.x,
        weight[d][5] = y.y, weight[d][6] = y.z, weight[d][7] = y.w;
    }
}

// A warp: 32 rows by 32 channels, lane (row of eight, eight channels), all its rows' inputs under way at once. Taps
// come from the lanes of earlier rows, as 16-bit pairs, or from the slot's tail. s or z_act may be NULL.
enum { TILES = 4 };
template <class T, int MOST_K>
__global__ void __launch_bounds__(256, MOST_K == 4 ? 2 : 1) prompt_conv_kernel(cuda_conv c) {
    const cuda_shape &shape = c.shape;
    const cuda_rows &rows = c.rows;
    const uint32_t lane = threadIdx.x % 32, in_tile = lane / 4, K = shape.K, Ep = shape.Ep,
                   Ek = (shape.E + 15) / 16 * 16;
    const uint32_t e = (blockIdx.x * 8 + threadIdx.x / 32) * 32 + lane % 4 * 8, from = blockIdx.y * TILES * 8 + in_tile;
    const bool mine = e < shape.E; // E is a multiple of 8
    let_next_start();
    int32_t slot[TILES + 1]; // of the rows from - 8, from, from + 8, ...
#pragma unroll
    for (int i = 0; i <= TILES; i++)
        slot[i] = from + 8 * i >= 8 && from + 8 * i - 8 < c.n_rows ? rows.slot[from + 8 * i - 8] : -1;
    float weight[MOST_K][8], b[8];
    weights_by_distance(weight, c.w + e, K, Ep, mine);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) b[i] = mine ? c.bias[e + i] : 0.0f;
    wait_for_inputs();
    float4 a[TILES + 1][2];
#pragma unroll
    for (int i = 0; i <= TILES; i++) {
        const bool there = mine && slot[i] >= 0 && (i > 0 || in_tile + K > 8);
        const float4 *at = (const float4 *)(c.az + (size_t)(from + 8 * i - 8) * 2 * Ep + e);
        a[i][0] = there ? at[0] : make_float4(0, 0, 0, 0), a[i][1] = there ? at[1] : make_float4(0, 0, 0, 0);
    }
    T before[8]; // the inputs of the eight rows before, as a later step would read them
#pragma unroll
    for (int tile = 0; tile <= TILES; tile++) {
        const uint32_t r = from + 8 * tile - 8;
        const bool there = slot[tile] >= 0;
        float x[8] = {a[tile][0].x, a[tile][0].y, a[tile][0].z, a[tile][0].w,
                      a[tile][1].x, a[tile][1].y, a[tile][1].z, a[tile][1].w};
        T now[8];
        const float scale = c.row_scale && there ? c.row_scale[r] : 1.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= scale, now[i] = from_float<T>(x[i]);
        if (c.z_act && tile > 0 && there && mine) {
            const float4 *at = (const float4 *)(c.az + (size_t)r * 2 * Ep + Ep + e), y = at[0], z = at[1];
            const float v[8] = {y.x, y.y, y.z, y.w, z.x, z.y, z.z, z.w};
            uint4 packed_z;
#pragma unroll
            for (int i = 0; i < 8; i++) ((T *)&packed_z)[i] = from_float<T>(v[i] * scale);
            *(uint4 *)((T *)c.z_act + act_at<T>(r, e, Ek)) = packed_z;
        }
        if (tile > 0) {
            float sum[8];
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = K < 8 ? b[i] + 0.0f : b[i]; // as conv_sum, which adds taps of weight 0
#pragma unroll
            for (uint32_t d = MOST_K - 1; d > 0; d--) {
                if (d >= K) continue;
                const bool same_tile = in_tile + d < 8; // where the lane that reads mine is
                uint32_t pair[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const T y = same_tile ? now[2 * i] : before[2 * i],
                            z = same_tile ? now[2 * i + 1] : before[2 * i + 1];
                    const uint32_t mine2 = *(const uint16_t *)&y | (uint32_t) * (const uint16_t *)&z << 16;
                    pair[i] = __shfl_sync(0xffffffffu, mine2, (lane - 4 * d) % 32);
                }
                const int32_t its_slot =
                    __shfl_sync(0xffffffffu, same_tile ? slot[tile] : slot[tile - 1], (lane - 4 * d) % 32);
                if (there && mine &&
                    its_slot != slot[tile]) { // a slot's rows are neighbours: that token came in an earlier step
                    const uint32_t place = (uint32_t)((rows.pos[r] + shape.conv_ring - d) % shape.conv_ring);
                    const uint4 old = *(const uint4 *)((const T *)shape.conv + slot[tile] * shape.conv_slot +
                                                       c.layer * shape.conv_layer + e + (size_t)place * Ep);
                    pair[0] = old.x, pair[1] = old.y, pair[2] = old.z, pair[3] = old.w;
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const uint16_t bits = (uint16_t)(pair[i / 2] >> 16 * (i % 2));
                    sum[i] = __fmaf_rn(weight[d][i], to_float(*(const T *)&bits), sum[i]);
                }
            }
            if (there && mine) {
#pragma unroll
                for (int i = 0; i < 8; i++) sum[i] = silu(__fmaf_rn(weight[0][i], x[i], sum[i]));
                if (c.s) {
                    float4 *to = (float4 *)(c.s + (size_t)r * Ep + e);
                    to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]),
                    to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
                }
                uint4 packed_s, packed_a;
#pragma unroll
                for (int i = 0; i < 8; i++) ((T *)&packed_s)[i] = from_float<T>(sum[i]), ((T *)&packed_a)[i] = now[i];
                *(uint4 *)((T *)c.s_act + act_at<T>(r, e, Ek)) = packed_s;
                *(uint4 *)((T *)c.a_act + act_at<T>(r, e, Ek)) = packed_a;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) before[i] = now[i];
    }
}

// Eight neighbours of 16 bits.
template <class T> __device__ __forceinline__ void widen(float (&x)[8], const uint4 &bits) {
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (std::is_same<T, __nv_bfloat16>::value) { // one instruction each
            x[2 * i] = __uint_as_float(word[i] << 16), x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
        } else {
            T pair[2];
            memcpy(pair, &word[i], 4);
            x[2 * i] = to_float(pair[0]), x[2 * i + 1] = to_float(pair[1]);
        }
}
// The taps of row r, some of which came in an earlier step.
template <class T, int MOST_K>
__device__ __forceinline__ void packed_taps(uint4 (&tap)[MOST_K], const cuda_conv &c, uint32_t r, uint32_t e,
                                            const T *at, const ptrdiff_t (&back)[MOST_K], uint32_t K) {
    const cuda_shape &shape = c.shape;
    const cuda_rows &rows = c.rows;
    const int32_t slot = rows.slot[r];
    const int64_t pos = rows.pos[r];
#pragma unroll
    for (uint32_t d = 1; d < MOST_K; d++) {
        const uint32_t place = (uint32_t)((pos + shape.conv_ring - d) % shape.conv_ring);
        const T *from = d <= r && rows.slot[r - d] == slot
                            ? at + back[d]
                            : (const T *)shape.conv + slot * shape.conv_slot + c.layer * shape.conv_layer + e +
                                  (size_t)place * shape.Ep;
        tap[d] = d < K ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    }
}

// From packed rows: a lane asks for its taps itself, most of them from the first-level cache. Its instructions take as
// long as its bytes, so they are few: the tap d tokens before a row of eight lies a fixed way off, whether a row's taps
// are all of the step is known before, and what is the row's own is asked for an eight ahead. EXACT: K is MOST_K.
template <class T, int MOST_K, bool EXACT, int EIGHTS = TILES>
__global__ void __launch_bounds__(256, MOST_K == 4 ? 3 : 2) packed_conv_kernel(cuda_conv c) {
    const cuda_shape &shape = c.shape;
    const cuda_rows &rows = c.rows;
    const uint32_t n_rows = c.n_rows;
    const uint32_t lane = threadIdx.x % 32, in_tile = lane / 4, K = EXACT ? MOST_K : shape.K, Ep = shape.Ep,
                   Ek = (shape.E + 15) / 16 * 16;
    const uint32_t e = (blockIdx.x * 8 + threadIdx.x / 32) * 32 + lane % 4 * 8,
                   from = blockIdx.y * EIGHTS * 8 + in_tile;
    let_next_start();
    if (e >= shape.E) return; // E is a multiple of 8
    float weight[MOST_K][8], b[8];
    weights_by_distance(weight, c.w + e, K, Ep, true);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        b[i] = K < 8 ? c.bias[e + i] + 0.0f : c.bias[e + i]; // as conv_sum, which adds taps of weight 0
    uint32_t whole = 0; // rows whose taps are all rows of the step: a slot's rows are neighbours
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        const uint32_t r = from + i * 8;
        if (r < n_rows && r + 1 >= K && rows.slot[r] == rows.slot[r + 1 - K]) whole |= 1u << i;
    }
    const uint32_t panel = Ek * 8; // from a row to that eight rows later
    ptrdiff_t back[MOST_K];        // from a row to that d before
#pragma unroll
    for (int d = 0; d < MOST_K; d++) back[d] = in_tile >= d ? -8 * d : 64 - 8 * d - (ptrdiff_t)panel;
    const T *at = (const T *)c.a_act + act_at<T>(from, e, Ek);
    T *to = (T *)c.s_act + act_at<T>(from, e, Ek);
    wait_for_inputs();
    const uint32_t end = min(n_rows, from - in_tile + EIGHTS * 8);
    uint4 newest = from < end ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (uint32_t r = from; r < end; r += 8, at += panel, to += panel, whole >>= 1) {
        uint4 tap[MOST_K]; // by distance
        tap[0] = newest;
        if (whole & 1) {
#pragma unroll
            for (int d = 1; d < MOST_K; d++) tap[d] = d < K ? *(const uint4 *)(at + back[d]) : make_uint4(0, 0, 0, 0);
        } else // some of them came in an earlier step
            packed_taps<T, MOST_K>(tap, c, r, e, at, back, K);
        if (r + 8 < end) newest = *(const uint4 *)(at + panel);
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = b[i];
#pragma unroll
        for (int d = MOST_K - 1; d >= 0; d--) { // those beyond K are 0, and so are their weights: no bit changes
            float x[8];
            widen<T>(x, tap[d]);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = __fmaf_rn(weight[d][i], x[i], sum[i]);
        }
        uint4 out;
#pragma unroll
        for (int i = 0; i < 8; i++) ((T *)&out)[i] = from_float<T>(silu(sum[i]));
        *(uint4 *)to = out;
    }
}

static dim3 conv_grid(const struct cuda_conv *c) {
    return dim3((c->shape.E + 255) / 256, (c->n_rows + 8 * TILES - 1) / (8 * TILES));
}
static bool are_rows(const cuda_conv &c) {
    const cuda_shape &s = c.shape;
    return c.n_rows > 0 && s.dtype != CUDA_F32 && s.E % 8 == 0 && s.K <= 8 && s.K <= s.conv_ring;
}
void k_prompt_conv(const struct cuda_conv *conv, void *stream) {
    cuda_conv c = *conv;
    assert(are_rows(c) && on_16_bytes(c.az, c.w, c.s, c.s_act, c.a_act, c.z_act));
    if (wide_scan_possible(&c.shape))
        c.s = NULL;
    else
        c.z_act = NULL;
#define CONV(MOST_K)                                                                                                   \
    FOR_16_BIT(c.shape.dtype, (launch(prompt_conv_kernel<T, MOST_K>, conv_grid(&c), dim3(256), 0, stream, c)))
    if (c.shape.K <= 4)
        CONV(4);
    else
        CONV(8);
#undef CONV
}
void k_packed_conv(const struct cuda_conv *c, void *stream) {
    assert(are_rows(*c) && on_16_bytes(c->w, c->s_act, c->a_act) && c->s_act != c->a_act);
#define CONV(...)                                                                                                      \
    FOR_16_BIT(c->shape.dtype, (launch(packed_conv_kernel<T, __VA_ARGS__>, conv_grid(c), dim3(256), 0, stream, *c)))
    if (c->shape.K == 4)
        CONV(4, true);
    else if (c->shape.K < 4)
        CONV(4, false);
    else
        CONV(8, false);
#undef CONV
}
