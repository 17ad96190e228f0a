// prompt_conv.cu - the convolution (E2) of prompts, rows in parallel.
#include "scan.cuh"

__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// A warp: a run of rows by 256 channels, lane l channels 4 l .. and 128 + 4 l .., down the rows with the taps in registers; all loads under way
// at once. Its packed results go through shared memory, eight rows at a time, so that they leave in whole lines.
enum { CONV_CHANNELS = 256, CONV_OCTET = 144 }; // bytes between eights of channels in shared memory: other banks
template <class T> struct alignas(8) four { T x[4]; };
template <class T, int MOST_K, bool ALL, int RUN>
__global__ void __launch_bounds__(128)
prompt_conv_kernel(cuda_shape shape, uint32_t layer, cuda_rows rows, uint32_t n_rows, const float *az, const float *row_scale, const float *w,
                   const float *bias, float *s, T *s_act, T *a_act) {
    __shared__ __align__(16) unsigned char packed[4][2][CONV_CHANNELS / 8 * CONV_OCTET];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, K = shape.K, E = shape.E, Ep = shape.Ep, Ek = (E + 15) / 16 * 16;
    const uint32_t e0 = blockIdx.x * CONV_CHANNELS, r0 = (blockIdx.y * 4 + warp) * RUN;
    let_next_start();
    if (r0 >= n_rows) {
        wait_for_inputs();
        return;
    }
    // lane l knows of row r0 + l whether it begins a segment and whether it is alone in its piece
    bool begins = false, alone = false;
    if (lane < RUN && r0 + lane < n_rows) {
        const uint32_t r = r0 + lane, place = (uint32_t)(rows.pos[r] % PIECE);
        const int32_t slot = rows.slot[r];
        begins = r == 0 || rows.slot[r - 1] != slot;
        alone = (begins || place == 0) && (place == PIECE - 1 || r + 1 == n_rows || rows.slot[r + 1] != slot);
    }
    const uint32_t starts = __ballot_sync(0xffffffffu, begins), exact = __ballot_sync(0xffffffffu, ALL || alone);
    const uint32_t e[2] = {e0 + lane * 4, e0 + 128 + lane * 4};
    const bool mine[2] = {e[0] < E, e[1] < E}; // E is a multiple of 8
    float4 weight[MOST_K][2], b[2]; // by distance: weight[d] that of the tap d tokens before
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
        for (uint32_t d = 0; d < MOST_K; d++) weight[d][h] = mine[h] && d < K ? *(const float4 *)(w + (size_t)(K - 1 - d) * Ep + e[h]) : make_float4(0, 0, 0, 0);
        b[h] = mine[h] ? *(const float4 *)(bias + e[h]) : make_float4(0, 0, 0, 0);
        if (K < 8) b[h].x += 0.0f, b[h].y += 0.0f, b[h].z += 0.0f, b[h].w += 0.0f; // as conv_sum, which adds taps of weight 0
    }
    wait_for_inputs();
    auto input = [&](uint32_t r, uint32_t h) { return *(const float4 *)(az + (size_t)r * 2 * Ep + e[h]); };
    auto times = [&](float4 x, float by) { return make_float4(x.x * by, x.y * by, x.z * by, x.w * by); };
    float4 tap[MOST_K][2]; // tap[d]: d rows before, rounded as a later step would read it
    auto rounded = [](float4 x) { return make_float4(to_float(from_float<T>(x.x)), to_float(from_float<T>(x.y)), to_float(from_float<T>(x.z)), to_float(from_float<T>(x.w))); };
    auto from_tail = [&](uint32_t r, uint32_t d, uint32_t h) { // the token d before row r's, which came in an earlier step
        const T *tail = (const T *)shape.conv + rows.slot[r] * shape.conv_slot + layer * shape.conv_layer;
        const four<T> old = *(const four<T> *)(tail + (size_t)((rows.pos[r] + K - d) % K) * Ep + e[h]);
        return make_float4(to_float(old.x[0]), to_float(old.x[1]), to_float(old.x[2]), to_float(old.x[3]));
    };
#pragma unroll
    for (uint32_t d = 1; d < MOST_K; d++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++)
            tap[d][h] = !mine[h] || d >= K ? make_float4(0, 0, 0, 0)
                        : r0 < d || rows.slot[r0 - d] != rows.slot[r0]
                            ? from_tail(r0, d, h) // a slot's rows are neighbours
                            : rounded(times(input(r0 - d, h), row_scale ? row_scale[r0 - d] : 1.0f));
#pragma unroll
    for (uint32_t from = 0; from < RUN; from += 8) {
        float4 a[8][2];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) a[i][h] = mine[h] && r0 + from + i < n_rows ? input(r0 + from + i, h) : make_float4(0, 0, 0, 0);
        if (from) __syncwarp(); // the results before have left
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t r = r0 + from + i;
            if (r >= n_rows) break;
            if ((starts >> (from + i) & 1) && from + i > 0)
#pragma unroll
                for (uint32_t d = 1; d < MOST_K; d++)
#pragma unroll
                    for (uint32_t h = 0; h < 2; h++)
                        if (d < K && mine[h]) tap[d][h] = from_tail(r, d, h);
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                const float4 x = row_scale ? times(a[i][h], row_scale[r]) : a[i][h];
                float4 y = b[h];
#pragma unroll
                for (uint32_t d = MOST_K - 1; d < MOST_K; d--) {
                    if (d >= K) continue;
                    const float4 v = d ? tap[d][h] : x;
                    y.x = __fmaf_rn(weight[d][h].x, v.x, y.x), y.y = __fmaf_rn(weight[d][h].y, v.y, y.y);
                    y.z = __fmaf_rn(weight[d][h].z, v.z, y.z), y.w = __fmaf_rn(weight[d][h].w, v.w, y.w);
                }
                if (exact >> (from + i) & 1) { // as a decode step
                    y = make_float4(silu(y.x), silu(y.y), silu(y.z), silu(y.w));
                    if (mine[h]) *(float4 *)(s + (size_t)r * Ep + e[h]) = y;
                } else
                    y = make_float4(quick_silu(y.x), quick_silu(y.y), quick_silu(y.z), quick_silu(y.w));
                const four<T> now = {{from_float<T>(x.x), from_float<T>(x.y), from_float<T>(x.z), from_float<T>(x.w)}},
                              out = {{from_float<T>(y.x), from_float<T>(y.y), from_float<T>(y.z), from_float<T>(y.w)}};
                const uint32_t at = (h * 16 + lane / 2) * CONV_OCTET + i * 16 + lane % 2 * 8;
                *(four<T> *)(packed[warp][0] + at) = out, *(four<T> *)(packed[warp][1] + at) = now;
#pragma unroll
                for (uint32_t d = MOST_K - 1; d > 1; d--) tap[d][h] = tap[d - 1][h];
                if (MOST_K > 1) tap[1][h] = make_float4(to_float(now.x[0]), to_float(now.x[1]), to_float(now.x[2]), to_float(now.x[3]));
            }
        }
        __syncwarp(); // eight rows
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t octet = i * 4 + lane / 8, r = r0 + from + lane % 8;
            if (r < n_rows && e0 + octet * 8 < E) {
                const size_t to = act_at<T>(r, e0 + octet * 8, Ek);
                *(uint4 *)(s_act + to) = *(const uint4 *)(packed[warp][0] + octet * CONV_OCTET + lane % 8 * 16);
                *(uint4 *)(a_act + to) = *(const uint4 *)(packed[warp][1] + octet * CONV_OCTET + lane % 8 * 16);
            }
        }
    }
}

template <int MOST_K, bool ALL, int RUN>
static void prompt_conv(const cuda_shape *shape, uint32_t layer, const cuda_rows *rows, uint32_t n_rows, const float *az, const float *row_scale,
                        const float *w, const float *bias, float *s, void *s_act, void *a_act, void *stream) {
    const dim3 grid((shape->E + CONV_CHANNELS - 1) / CONV_CHANNELS, (n_rows + 4 * RUN - 1) / (4 * RUN));
    FOR_16_BIT(shape->dtype, (launch(prompt_conv_kernel<T, MOST_K, ALL, RUN>, grid, dim3(128), 0, stream, *shape, layer, *rows, n_rows, az, row_scale, w,
                                     bias, s, (T *)s_act, (T *)a_act)));
}
void k_prompt_conv(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_rows, const float *az,
                   const float *row_scale, const float *w, const float *bias, float *s, void *s_act, void *a_act, void *stream) {
#define CONV(MOST_K, ALL, RUN) prompt_conv<MOST_K, ALL, RUN>(shape, layer, rows, n_rows, az, row_scale, w, bias, s, s_act, a_act, stream)
    const bool all = !wide_scan_possible(shape);
    if (shape->K > 4) {
        if (all) CONV(8, true, 8);
        else CONV(8, false, 8);
    } else if (all) CONV(4, true, 8);
    else if (n_rows < 1024) CONV(4, false, 8);
    else CONV(4, false, 16);
}
