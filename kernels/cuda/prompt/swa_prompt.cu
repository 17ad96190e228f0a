// swa_prompt.cu - sliding-window attention (E9) of prompts on tensor cores: rotary, attention, then the ring.
//
// A step's queries, keys and values become 16-bit rows of a workspace. Tiles of 64 queries meet tiles of keys that are
// cut at absolute positions, keys ascending, with the usual running maximum and sum: the order of every sum is a
// function of the position alone, and a tile without a visible key changes no bit. Keys before the prompt come from the
// ring, its own from the workspace. A key goes into the ring at once where the place holds none that the prompt sees,
// else after the attention, so a prompt may be of any length.
#include "swa_prompt.cuh"
#include <algorithm>

// Units of up to 64 rows: first two of each pair, then one of each single tile.
struct prompt_unit {
    int32_t row, n, first, end; // its rows of the step; the prompt's
};
static __device__ __forceinline__ prompt_unit unit_at(const prompt_window &a, uint32_t i) {
    const bool pair = i < 2 * a.prompts.n_pairs;
    const cuda_prompt_tile t = a.prompts.tile[pair ? i / 2 : i - a.prompts.n_pairs];
    prompt_unit u;
    u.row = t.row + (pair && i % 2 ? PROMPT_TILE : 0), u.first = t.prompt.row, u.end = t.prompt.row + t.prompt.n;
    u.n = min(u.end - u.row, (int32_t)PROMPT_TILE);
    return u;
}
static uint32_t n_units(const prompt_window &a) { return 2 * a.prompts.n_pairs + a.prompts.n_single; }

// Where a row's key and value go in the ring, and when.
enum prompt_keep { PROMPT_NEVER, PROMPT_BEFORE, PROMPT_AFTER };
struct prompt_place {
    prompt_keep keep;
    uint32_t slot, place;
    size_t key, value; // elements from the pools' begins
};
static __device__ __forceinline__ prompt_place place_of(const prompt_window &a, const prompt_unit &u, int32_t row) {
    const cuda_shape &s = a.shape;
    const int64_t pos = a.pos[row];
    const uint32_t since = (uint32_t)(row - u.first);
    const int64_t begin = pos - since,
                  old = pos - (int64_t)s.ring_keys * (since / s.ring_keys + 1); // what the place holds before the step
    const uint32_t slot = (uint32_t)a.slot[row], place = (uint32_t)(pos % s.ring_keys);
    prompt_place x;
    x.slot = slot, x.place = place;
    x.keep = (uint32_t)(u.end - row) > s.ring_keys ? PROMPT_NEVER
             : old < 0 || old + s.visible <= begin ? PROMPT_BEFORE
                                                   : PROMPT_AFTER;
    x.key = slot * s.keys_slot + a.layer * s.keys_layer + (size_t)place * s.Hk * s.P;
    x.value = slot * s.values_slot + a.layer * s.values_layer + (size_t)place * s.Hv * s.P;
    return x;
}
// Head h (after the queries' heads) of a row in the ring.
template <class kept>
static __device__ __forceinline__ kept *kept_at(const cuda_shape &s, const prompt_place &x, uint32_t h) {
    return h < s.H + s.Hk ? (kept *)s.keys + x.key + (h - s.H) * s.P
                          : (kept *)s.values + x.value + (h - s.H - s.Hk) * s.P;
}

// ---- queries, keys and values of the step ----

// Of a query no codes are made.
template <class F> static __device__ __forceinline__ four_numbers<typename F::act> four_of(const float4 &x, bool is_q) {
    using T = typename F::act;
    return is_q ? four_numbers<T>(x, window16<T>()) : four_numbers<T>(x, F());
}

// The sum of the partial products whose first is x, scaled.
static __device__ __forceinline__ void sum_up(float4 &x, const cuda_heads &in, const float *at, float scale) {
#pragma unroll 1
    for (uint32_t j = 1; j < in.qkv.n; j++) {
        const float4 v = *(const float4 *)(at + j * in.qkv.stride);
        x.x += v.x, x.y += v.y, x.z += v.z, x.w += v.w;
    }
    x.x *= scale, x.y *= scale, x.z *= scale, x.w *= scale;
}
static __device__ __forceinline__ float squares(const float4 &x) {
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}
static __device__ __forceinline__ void times(float4 &x, float by, const float4 &w) {
    x.x *= by * w.x, x.y *= by * w.y, x.z *= by * w.z, x.w *= by * w.w;
}

// Heads of 8 LANES dims whose halves are rotated with each other. A warp takes heads of a row two or four at a time, as
// many warps share it as there are in `y` of the block; of its head a lane has dims 4 l .. 4 l + 3 of either half.
// BATCH: heads that a lane has under way.
enum { HALVES_WARPS = 4 };
template <class F, int LANES>
__global__ void __launch_bounds__(HALVES_WARPS * 32, 7)
    prompt_halves_kernel(const __grid_constant__ prompt_window a, const __grid_constant__ cuda_heads in) {
    using T = typename F::act;
    enum { P = 8 * LANES, HEADS = 32 / LANES, BATCH = 3 };
    const cuda_shape &s = a.shape;
    const uint32_t lane = threadIdx.x % LANES, n_heads = s.H + s.Hk + s.Hv, step = HEADS * blockDim.y;
    let_next_start();
    wait_for_inputs();
    const prompt_unit u = unit_at(a, blockIdx.x);
    const int32_t row = u.row + (int32_t)(blockIdx.y * blockDim.z + threadIdx.z);
    if (row >= u.row + u.n) return;
    const float scale = in.row_scale ? in.row_scale[row] : 1.0f;
    float4 rope[2];
#pragma unroll
    for (int i = 0; i < 2; i++) rope[i] = *((const float4 *)(in.rope + (size_t)row * P) + 2 * lane + i);
    prompt_place place;
    const float *from = in.qkv.at + (size_t)row * n_heads * P + 4 * lane;
    T *to = (T *)a.work + (size_t)row * n_heads * P + 4 * lane;
    const uint32_t first_head = threadIdx.y * HEADS + threadIdx.x / LANES;
    for (uint32_t h0 = first_head; h0 < (n_heads + HEADS - 1) / HEADS * HEADS; h0 += BATCH * step) {
        float4 x[BATCH][2];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                x[b][i] = h0 + b * step < n_heads ? *(const float4 *)(from + (h0 + b * step) * P + i * (P / 2))
                                                  : make_float4(0, 0, 0, 0);
        if (h0 == first_head) place = place_of(a, u, row); // while they are on their way
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t h = h0 + b * step;
            const bool rotated = h < s.H + s.Hk;
            float4 first = x[b][0], second = x[b][1];
            if (h < n_heads) sum_up(first, in, from + h * P, scale), sum_up(second, in, from + h * P + P / 2, scale);
            if (s.qk_norm) {
                float sum = squares(first) + squares(second);
#pragma unroll
                for (int i = LANES / 2; i; i >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, i);
                const float4 *w = (const float4 *)(h < s.H ? in.q_norm : in.k_norm) + lane;
                const float down = rsqrtf(sum / P + s.qk_norm_eps);
                if (rotated) times(first, down, w[0]), times(second, down, w[P / 8]);
            }
            if (rotated) {
                const float4 f = first, g = second;
                const float by = h < s.H ? for_query(P) : 1.0f;
                const float2 t[4] = {
                    {rope[0].x, rope[0].y}, {rope[0].z, rope[0].w}, {rope[1].x, rope[1].y}, {rope[1].z, rope[1].w}};
                first.x = rotated_first(f.x, g.x, t[0]) * by, second.x = rotated_second(f.x, g.x, t[0]) * by;
                first.y = rotated_first(f.y, g.y, t[1]) * by, second.y = rotated_second(f.y, g.y, t[1]) * by;
                first.z = rotated_first(f.z, g.z, t[2]) * by, second.z = rotated_second(f.z, g.z, t[2]) * by;
                first.w = rotated_first(f.w, g.w, t[3]) * by, second.w = rotated_second(f.w, g.w, t[3]) * by;
            }
            if (h >= n_heads) continue;
            const bool is_q = sizeof(typename F::kept) == 1 && h < s.H;
            const four_numbers<T> y0 = four_of<F>(first, is_q), y1 = four_of<F>(second, is_q);
            *(uint2 *)(to + h * P) = y0.work, *(uint2 *)(to + h * P + P / 2) = y1.work;
            if (h >= s.H && place.keep == PROMPT_BEFORE) {
                typename F::kept *kept = kept_at<typename F::kept>(s, place, h) + 4 * lane;
                y0.keep(kept), y1.keep(kept + P / 2);
            }
        }
    }
}

// Any shape. A block: a row; a warp a head at a time, lane l dims 4 l .. 4 l + 3 (and + 128).
enum { PREPARE_WARPS = 8 };
template <class F>
__global__ void __launch_bounds__(PREPARE_WARPS * 32)
    prompt_prepare_kernel(const __grid_constant__ prompt_window a, const __grid_constant__ cuda_heads in) {
    using T = typename F::act;
    using kept_type = typename F::kept;
    __shared__ __align__(16) float head[PREPARE_WARPS][PROMPT_MOST_P];
    __shared__ float2 ropes[PROMPT_MOST_P / 2];
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = s.P, half = s.rot_dim / 2,
                   n_heads = s.H + s.Hk + s.Hv;
    let_next_start();
    wait_for_inputs();
    const prompt_unit u = unit_at(a, blockIdx.x);
    const int32_t row = u.row + (int32_t)blockIdx.y;
    if (row >= u.row + u.n) return;
    for (uint32_t i = threadIdx.x; i < half; i += PREPARE_WARPS * 32)
        ropes[i] = ((const float2 *)in.rope)[(size_t)row * half + i];
    const float scale = in.row_scale ? in.row_scale[row] : 1.0f;
    const prompt_place place = place_of(a, u, row);
    __syncthreads(); // ropes
    for (uint32_t h = warp; h < n_heads; h += PREPARE_WARPS) {
        const float *from = in.qkv.at + ((size_t)row * n_heads + h) * P;
        T *out = (T *)a.work + ((size_t)row * n_heads + h) * P;
        kept_type *kept = h >= s.H ? kept_at<kept_type>(s, place, h) : NULL;
        const bool is_q = h < s.H, rotated = h < s.H + s.Hk;
        float4 x[PROMPT_MOST_P / 128];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PROMPT_MOST_P / 128; i++) {
            const uint32_t p = 128 * i + 4 * lane;
            x[i] = p < P ? *(const float4 *)(from + p) : make_float4(0, 0, 0, 0);
            if (p < P) sum_up(x[i], in, from + p, scale);
            sum += squares(x[i]);
        }
        const float down = rotated && s.qk_norm ? rsqrtf(warp_sum(sum) / P + s.qk_norm_eps) : 1.0f;
        __syncwarp(); // the head before is read
#pragma unroll
        for (int i = 0; i < PROMPT_MOST_P / 128; i++) {
            const uint32_t p = 128 * i + 4 * lane;
            if (p >= P) continue;
            if (rotated && s.qk_norm) times(x[i], down, *(const float4 *)((is_q ? in.q_norm : in.k_norm) + p));
            *(float4 *)(head[warp] + p) = x[i];
        }
        __syncwarp(); // pairs are read across lanes
#pragma unroll
        for (int i = 0; i < PROMPT_MOST_P / 128; i++) {
            const uint32_t p0 = 128 * i + 4 * lane;
            if (p0 >= P) continue;
            float y[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t p = p0 + e;
                if (rotated && p < 2 * half) {
                    const bool second = s.rot_interleaved ? p & 1 : p >= half;
                    const float other = head[warp][s.rot_interleaved ? p ^ 1 : second ? p - half : p + half];
                    const float2 w = ropes[s.rot_interleaved ? p / 2 : second ? p - half : p];
                    y[e] = second ? y[e] * w.x + other * w.y : y[e] * w.x - other * w.y;
                }
                if (is_q) y[e] *= for_query(P);
            }
            const four_numbers<T> all = four_of<F>(make_float4(y[0], y[1], y[2], y[3]), is_q);
            *(uint2 *)(out + p0) = all.work;
            if (!is_q && place.keep == PROMPT_BEFORE) all.keep(kept + p0);
        }
    }
}

// Where the rows' keys and values go in the rings before the attention: slot and place, -1: nowhere yet.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    prompt_places_kernel(const __grid_constant__ prompt_window a, int2 *__restrict__ places) {
    let_next_start();
    wait_for_inputs();
    const prompt_unit u = unit_at(a, blockIdx.x);
    if ((int32_t)threadIdx.x >= u.n) return;
    const int32_t row = u.row + (int32_t)threadIdx.x;
    const prompt_place x = place_of(a, u, row);
    places[row] = make_int2((int32_t)x.slot, x.keep == PROMPT_BEFORE ? (int32_t)x.place : -1);
}

// ---- of a window in 8 bits, what its prompts see of it, in 16 ----

// A block: some keys before a prompt, which it finds by the prompt's first tile; the threads their pieces of 16 codes.
enum { COPY_KEYS = 16, COPY_THREADS = 256 };
template <class T>
__global__ void __launch_bounds__(COPY_THREADS) prompt_copy_kernel(const __grid_constant__ prompt_window a) {
    const cuda_shape &s = a.shape;
    let_next_start();
    wait_for_inputs();
    const cuda_prompt_tile tile = a.prompts.tile[blockIdx.x];
    if (tile.row != tile.prompt.row) return;
    const int64_t begin = a.pos[tile.row], oldest = max(begin + 1 - (int64_t)s.visible, (int64_t)0),
                  first = oldest + blockIdx.y * COPY_KEYS;
    const uint32_t n = (uint32_t)min(max(begin - first, (int64_t)0), (int64_t)COPY_KEYS), key = s.Hk * s.P / 16,
                   row = (s.Hk + s.Hv) * s.P / 16, slot = (uint32_t)a.slot[tile.row], copy = (uint32_t)tile.copy;
    const e4m3 *keys = (const e4m3 *)s.keys + slot * s.keys_slot + a.layer * s.keys_layer,
               *values = (const e4m3 *)s.values + slot * s.values_slot + a.layer * s.values_layer;
    T *to_keys = (T *)a.old_keys + copy * a.old_keys_slot, *to_values = (T *)a.old_values + copy * a.old_values_slot;
    for (uint32_t i = threadIdx.x; i < n * row; i += COPY_THREADS) {
        const size_t place = (size_t)((uint64_t)(first + i / row) % s.ring_keys);
        const uint32_t piece = i % row;
        const bool is_key = piece < key;
        const size_t at = is_key ? place * s.Hk * s.P + piece * 16 : place * s.Hv * s.P + (piece - key) * 16;
        const uint4 codes = *(const uint4 *)((is_key ? keys : values) + at);
        uint4 *to = (uint4 *)((is_key ? to_keys : to_values) + at);
        to[0] = eight_numbers<T>(make_uint2(codes.x, codes.y)), to[1] = eight_numbers<T>(make_uint2(codes.z, codes.w));
    }
}

// ---- afterwards, what could not go into the rings before ----

// A block: some rows of a unit, the threads their pieces of 8 numbers, AHEAD at once.
enum { KEEP_ROWS = 4, KEEP_THREADS = 256 };
template <class T> static __device__ __forceinline__ void keep_eight(const uint4 &x, T *to, T) { *(uint4 *)to = x; }
template <class T> static __device__ __forceinline__ void keep_eight(const uint4 &x, e4m3 *to, T) {
    *(uint2 *)to = eight_codes<T>(x);
}
template <class F>
__global__ void __launch_bounds__(KEEP_THREADS) prompt_keep_kernel(const __grid_constant__ prompt_window a) {
    using T = typename F::act;
    using kept = typename F::kept;
    enum { AHEAD = 5 };
    const cuda_shape &s = a.shape;
    const uint32_t n = (s.Hk + s.Hv) * s.P / 8, width = (s.H + s.Hk + s.Hv) * s.P;
    let_next_start();
    wait_for_inputs();
    const prompt_unit u = unit_at(a, blockIdx.x);
    const int32_t row0 = u.row + (int32_t)blockIdx.y * KEEP_ROWS;
    const uint32_t rows = (uint32_t)max(min(u.row + u.n - row0, (int32_t)KEEP_ROWS), 0);
    __shared__ prompt_place place[KEEP_ROWS];
    if (threadIdx.x < rows) place[threadIdx.x] = place_of(a, u, row0 + (int32_t)threadIdx.x);
    __syncthreads(); // places
    for (uint32_t i0 = threadIdx.x; i0 < rows * n; i0 += AHEAD * KEEP_THREADS) {
        uint4 x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const uint32_t i = i0 + k * KEEP_THREADS, r = i / n;
            if (i < rows * n && place[r].keep == PROMPT_AFTER)
                x[k] = *(const uint4 *)((const T *)a.work + (row0 + r) * (size_t)width + s.H * s.P + (i - r * n) * 8);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const uint32_t i = i0 + k * KEEP_THREADS, r = i / n, at = (i - r * n) * 8;
            if (i < rows * n && place[r].keep == PROMPT_AFTER)
                keep_eight(x[k],
                           at < s.Hk * s.P ? (kept *)s.keys + place[r].key + at
                                           : (kept *)s.values + place[r].value + (at - s.Hk * s.P),
                           T());
        }
    }
}

// ---- the host's part ----

bool cuda_prompt_window_possible(const struct cuda_shape *s) {
    if (!dispatch_prompt_window(s)) return false;
    return prompt_wide_possible(s) ? prompt_wide_prepare(s) : prompt_any_prepare(s);
}
size_t cuda_prompt_window_bytes(const struct cuda_shape *s, uint32_t n_rows) {
    const size_t copy = s->window == CUDA_FP8 ? (size_t)s->ring_keys * (s->Hk + s->Hv) * s->P * 2 : 0;
    return (size_t)(prompt_copies_in(*s, n_rows, NULL) - (char *)NULL) + CUDA_WINDOW_COPIES * copy;
}
// Where keys and values before the prompts are in 16 bits.
static void find_old(prompt_window &a) {
    const cuda_shape &s = a.shape;
    if (s.window == CUDA_FP8) {
        a.old_keys_slot = (size_t)s.ring_keys * s.Hk * s.P, a.old_values_slot = (size_t)s.ring_keys * s.Hv * s.P;
        a.old_keys = prompt_copies_in(s, a.n_rows, a.work);
        a.old_values = (uint16_t *)a.old_keys + CUDA_WINDOW_COPIES * a.old_keys_slot;
    } else {
        a.old_keys_slot = s.keys_slot, a.old_values_slot = s.values_slot;
        a.old_keys = (uint16_t *)s.keys + a.layer * s.keys_layer;
        a.old_values = (uint16_t *)s.values + a.layer * s.values_layer;
    }
}

// Whether some key can go into its ring only after the attention: the newest one whose place a key of the prompt takes
// is seen.
static bool keeps_last(const struct cuda_shape *s, int64_t begin, int64_t n) {
    const int64_t old = n > (int64_t)s->ring_keys ? begin - 1 : begin + n - 1 - (int64_t)s->ring_keys;
    return old >= 0 && old + (int64_t)s->visible > begin;
}
static struct cuda_prompts cut_prompts(const struct cuda_shape *s, const struct cuda_prompt *prompt, uint32_t n_prompts,
                                       const int64_t *pos, bool pairs, struct cuda_prompt_tile *tile) {
    struct cuda_prompts all = {tile, 0, 0, false, false};
    assert(s->window != CUDA_FP8 || n_prompts <= CUDA_WINDOW_COPIES);
    for (int single = !pairs; single < 2; single++) {
        cuda_prompt_tile *const begin = tile + all.n_pairs, *at = begin;
        for (uint32_t i = 0; i < n_prompts; i++)
            for (int32_t r = 0; r < prompt[i].n;) { // two tiles as long as there are two
                const bool pair = pairs && r + PROMPT_TILE < prompt[i].n;
                if (pair != (bool)single) *at++ = {prompt[i], prompt[i].row + r, (int32_t)i};
                r += pair ? 2 * PROMPT_TILE : PROMPT_TILE;
            }
        const int64_t most = (int64_t)s->visible + PROMPT_TILE;
        std::stable_sort(begin, at, [&](const cuda_prompt_tile &x, const cuda_prompt_tile &y) {
            return std::min(pos[x.row], most) > std::min(pos[y.row], most);
        });
        (single ? all.n_single : all.n_pairs) = (uint32_t)(at - begin);
    }
    for (uint32_t i = 0; i < n_prompts; i++)
        all.keeps_last |= keeps_last(s, pos[prompt[i].row], prompt[i].n), all.sees_old |= pos[prompt[i].row] > 0;
    return all;
}
struct cuda_prompts cuda_prompt_tiles(const struct cuda_shape *s, const struct cuda_prompt *prompt, uint32_t n_prompts,
                                      const int64_t *pos, struct cuda_prompt_tile *tile) {
    uint32_t n_tiles = 0;
    for (uint32_t i = 0; i < n_prompts; i++) n_tiles += (uint32_t)(prompt[i].n + PROMPT_TILE - 1) / PROMPT_TILE;
    return cut_prompts(s, prompt, n_prompts, pos, prompt_wide_possible(s) && prompt_wide_pairs(s, n_tiles), tile);
}

template <class F> static void prepare(const prompt_window &a, const cuda_heads &in, void *stream) {
    const uint32_t P = a.shape.P;
    if ((P != 64 && P != 128) || a.shape.rot_dim != P || a.shape.rot_interleaved) {
        launch(prompt_prepare_kernel<F>, dim3(n_units(a), PROMPT_TILE), dim3(PREPARE_WARPS * 32), 0, stream, a, in);
        return;
    }
    const uint32_t row_warps = a.n_rows > 3000   ? 1
                               : a.n_rows > 1500 ? 2
                                                 : 4,
                   rows = HALVES_WARPS / row_warps; // of a block
    launch(P == 64 ? prompt_halves_kernel<F, 8> : prompt_halves_kernel<F, 16>, dim3(n_units(a), PROMPT_TILE / rows),
           dim3(32, row_warps, rows), 0, stream, a, in);
}
template <class T> static void copy_old(const prompt_window &a, void *stream) {
    const uint32_t n_tiles = a.prompts.n_pairs + a.prompts.n_single;
    if (a.shape.window == CUDA_FP8 && a.prompts.sees_old)
        launch(prompt_copy_kernel<T>, dim3(n_tiles, (a.shape.visible + COPY_KEYS - 1) / COPY_KEYS), dim3(COPY_THREADS),
               0, stream, a);
}
template <class F> static void keep_in_ring(const prompt_window &a, void *stream) {
    if (a.prompts.keeps_last)
        launch(prompt_keep_kernel<F>, dim3(n_units(a), PROMPT_TILE / KEEP_ROWS), dim3(KEEP_THREADS), 0, stream, a);
}
static void attend(const prompt_window &a, void *stream) {
    const enum dispatch_kernel kernel = prompt_kernel_of(a);
    kernel == PROMPT_WIDE_1 || kernel == PROMPT_WIDE_2 ? prompt_wide_attend(a, stream) : prompt_any_attend(a, stream);
}

void k_prompt_window(const struct cuda_prompt_window *p, void *stream) {
    prompt_window a = {p->shape, p->layer, p->n_rows, p->rows.pos, p->rows.slot, p->prompts, p->work, p->act};
    if (n_units(a) == 0) return;
    find_old(a);
    const cuda_heads &heads = p->heads;
    assert(dispatch_prompt_window(&a.shape) && a.n_rows > 0 && on_16_bytes(a.work, a.act, heads.qkv.at, heads.rope));
    assert(!heads.qkv.at || (heads.qkv.n > 0 && heads.qkv.stride % 4 == 0)); // four columns at once
    auto all = [&](auto format) {
        using F = decltype(format);
        if (p->heads.qkv.at) prepare<F>(a, p->heads, stream);
        copy_old<typename F::act>(a, stream);
        attend(a, stream);
        keep_in_ring<F>(a, stream);
    };
    FOR_WINDOW(a.shape, all(F()));
}

void k_prompt_places(const struct cuda_shape *shape, const struct cuda_rows *rows, uint32_t n_rows,
                     const struct cuda_prompts *prompts, void *work, void *stream) {
    const prompt_window a = {*shape, 0, n_rows, rows->pos, rows->slot, *prompts, work, NULL};
    if (n_units(a) == 0) return;
    launch(prompt_places_kernel<PROMPT_TILE>, dim3(n_units(a)), dim3(PROMPT_TILE), 0, stream, a,
           prompt_places_in(*shape, n_rows, work));
}
