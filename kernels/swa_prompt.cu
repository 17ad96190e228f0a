// swa_prompt.cu - sliding-window attention (E9) of prompts on tensor cores: rotary, attention, then the ring.
//
// A step's queries, keys and values become 16-bit rows of a workspace. Tiles of 64 queries meet tiles of KEYS keys, both cut at
// absolute positions, keys ascending, with the usual running maximum and sum: the order of every sum is a function of the position
// alone, and a tile without a visible key changes no bit. Keys before the prompt come from the ring, its own from the workspace,
// and only afterwards do they go into the ring, so a prompt may be of any length.
#include "wgmma.cuh"
#include <algorithm>

enum { TILE = 64, MOST_P = 256 };

struct prompt_window {
    cuda_shape shape;
    uint32_t layer;
    const int64_t *pos;
    const int32_t *slot;
    cuda_prompts prompts;
    void *work, *act; // work [n_rows][(H + Hk + Hv) P] of 16 bit, queries times log2(e) / sqrt(P)
};

// 2^x.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t two(float x, float y, __half) {
    const __half2 v = __floats2half2_rn(x, y);
    return *(const uint32_t *)&v;
}
__device__ __forceinline__ uint32_t two(float x, float y, __nv_bfloat16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&v;
}
// 16 bytes, or zeros.
__device__ __forceinline__ void copy16(uint32_t shared, const void *global, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- queries, keys and values of the step ----

// A block: a row; a warp a head at a time, lane l dims 4 l .. 4 l + 3 (and + 128).
enum { PREPARE_WARPS = 8 };
template <class T>
__global__ void __launch_bounds__(PREPARE_WARPS * 32)
prompt_prepare_kernel(const __grid_constant__ prompt_window a, const float *qkv, uint32_t splits, size_t split_stride, const float *row_scale,
                      const float2 *turn, const float *q_norm, const float *k_norm) {
    __shared__ __align__(16) float head[PREPARE_WARPS][MOST_P];
    __shared__ float2 turns[MOST_P / 2];
    const cuda_shape &s = a.shape;
    const uint32_t r = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = s.P, half = s.rot_dim / 2;
    const uint32_t n_heads = s.H + s.Hk + s.Hv;
    const float for_q = 1.4426950408889634f * rsqrtf((float)P);
    let_next_start();
    wait_for_inputs();
    for (uint32_t i = threadIdx.x; i < half; i += PREPARE_WARPS * 32) turns[i] = turn[(size_t)r * half + i];
    const float scale = row_scale ? row_scale[r] : 1.0f;
    __syncthreads(); // turns
    for (uint32_t h = warp; h < n_heads; h += PREPARE_WARPS) {
        const float *in = qkv + ((size_t)r * n_heads + h) * P;
        T *out = (T *)a.work + ((size_t)r * n_heads + h) * P;
        const bool is_q = h < s.H, turned = h < s.H + s.Hk;
        float4 x[MOST_P / 128];
        float squares = 0;
#pragma unroll
        for (int i = 0; i < MOST_P / 128; i++) {
            const uint32_t p = 128 * i + 4 * lane;
            x[i] = make_float4(0, 0, 0, 0);
            if (p >= P) continue;
            for (uint32_t j = 0; j < splits; j++) {
                const float4 v = *(const float4 *)(in + j * split_stride + p);
                x[i].x += v.x, x[i].y += v.y, x[i].z += v.z, x[i].w += v.w;
            }
            x[i].x *= scale, x[i].y *= scale, x[i].z *= scale, x[i].w *= scale;
            squares += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
        }
        const float down = turned && s.qk_norm ? rsqrtf(warp_sum(squares) / P + s.qk_norm_eps) : 1.0f;
        __syncwarp(); // the head before is read
#pragma unroll
        for (int i = 0; i < MOST_P / 128; i++) {
            const uint32_t p = 128 * i + 4 * lane;
            if (p >= P) continue;
            if (turned && s.qk_norm) {
                const float4 w = *(const float4 *)((is_q ? q_norm : k_norm) + p);
                x[i].x *= down * w.x, x[i].y *= down * w.y, x[i].z *= down * w.z, x[i].w *= down * w.w;
            }
            *(float4 *)(head[warp] + p) = x[i];
        }
        __syncwarp(); // pairs are read across lanes
#pragma unroll
        for (int i = 0; i < MOST_P / 128; i++) {
            const uint32_t p0 = 128 * i + 4 * lane;
            if (p0 >= P) continue;
            float y[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t p = p0 + e;
                if (turned && p < 2 * half) {
                    const bool second = s.rot_interleaved ? p & 1 : p >= half;
                    const float other = head[warp][s.rot_interleaved ? p ^ 1 : second ? p - half : p + half];
                    const float2 w = turns[s.rot_interleaved ? p / 2 : second ? p - half : p];
                    y[e] = second ? y[e] * w.x + other * w.y : y[e] * w.x - other * w.y;
                }
                if (is_q) y[e] *= for_q;
            }
            *(uint2 *)(out + p0) = make_uint2(two(y[0], y[1], T()), two(y[2], y[3], T()));
        }
    }
}

// ---- what a block works on ----

// Tiles of queries and the keys that they see.
struct prompt_job {
    int32_t first, head;   // the prompt's first row; the first warpgroup's head
    bool pair;             // two tiles of one head, else one tile of as many heads as there are warpgroups
    int64_t begin, end;    // the prompt's positions
    int64_t tile;          // position of the (first) tile of queries
    int64_t low, high;     // positions of the keys that any of them sees
    const void *keys, *values; // of this layer in the session's ring
};
template <class T> __device__ __forceinline__ prompt_job job_at(const prompt_window &a, const cuda_prompt_tile &t, bool pair, uint32_t head) {
    prompt_job j;
    const cuda_shape &s = a.shape;
    const int64_t row_pos = a.pos[t.row];
    const size_t slot = (size_t)a.slot[t.row];
    j.first = t.prompt.row, j.head = (int32_t)head, j.pair = pair;
    j.begin = row_pos - (t.row - t.prompt.row), j.end = j.begin + t.prompt.n;
    j.tile = row_pos / TILE * TILE;
    j.low = max(row_pos + 1 - (int64_t)s.visible, (int64_t)0);
    j.high = min(j.tile + (pair ? 2 * TILE : TILE), j.end) - 1;
    j.keys = (const T *)s.keys + slot * s.keys_slot + a.layer * s.keys_layer;
    j.values = (const T *)s.values + slot * s.values_slot + a.layer * s.values_layer;
    return j;
}
// Rows of keys or values of one tile of positions: where they are.
template <class T> struct prompt_source {
    const T *ring, *own;            // own: the tile's first row in the workspace, if it were all there
    uint32_t ring_ld, own_ld;       // from a row to the next
    uint32_t place, ring_keys;      // the first row's place in the ring
    int32_t from_ring, first, last; // rows before from_ring come from the ring; rows first .. last are wanted
    __device__ __forceinline__ bool wanted(int32_t i) const { return i >= first && i <= last; }
    __device__ __forceinline__ const T *row(int32_t i) const { // of a row that is not wanted: another's
        i = min(max(i, first), last);
        const bool old = i < from_ring;
        uint32_t at = place + i;
        at -= at >= ring_keys ? ring_keys : 0;
        return (old ? ring : own) + (old ? at : (uint32_t)i) * (old ? ring_ld : own_ld); // a ring has fewer than 2^32
    }
    // All rows are wanted and lie `ld` apart from `begin` on.
    __device__ __forceinline__ bool plain(int32_t n, const T *&begin, uint32_t &ld) const {
        const bool old = from_ring == n;
        begin = old ? ring + place * ring_ld : own;
        ld = old ? ring_ld : own_ld;
        return first == 0 && last == n - 1 && (from_ring == 0 || (old && place + n <= ring_keys));
    }
};
template <class T, int KEYS>
__device__ __forceinline__ prompt_source<T> source_at(const prompt_window &a, const prompt_job &j, int64_t tile, uint32_t place, bool values, uint32_t head) {
    const cuda_shape &s = a.shape;
    prompt_source<T> x;
    const uint32_t width = (s.H + s.Hk + s.Hv) * s.P;
    x.ring = (const T *)(values ? j.values : j.keys) + head * s.P;
    x.ring_ld = (values ? s.Hv : s.Hk) * s.P;
    x.own = (const T *)a.work + (j.first + (tile - j.begin)) * (int64_t)width + (s.H + (values ? s.Hk : 0) + head) * s.P;
    x.own_ld = width;
    x.place = place, x.ring_keys = s.ring_keys;
    x.from_ring = (int32_t)max(min(j.begin - tile, (int64_t)KEYS), (int64_t)0);
    x.first = (int32_t)max(j.low - tile, (int64_t)0);
    x.last = (int32_t)min(j.high - tile, (int64_t)KEYS - 1);
    return x;
}

// ---- sm_90: a warpgroup a tile of queries and a head; one more warpgroup copies keys and values ----

template <int P, int KEYS, int GROUPS, int STAGES> struct prompt_wide {
    enum { HALF = KEYS * 128, K_BYTES = KEYS * P * 2, V_BYTES = K_BYTES * GROUPS, STAGE = K_BYTES + V_BYTES, BYTES = STAGES * STAGE + 1024,
           THREADS = (GROUPS + 1) * 128, BLOCKS = GROUPS == 1 ? 2 : 1 };
};

template <class T, int P, int KEYS, int GROUPS, int STAGES>
__global__ void __launch_bounds__(prompt_wide<P, KEYS, GROUPS, STAGES>::THREADS, prompt_wide<P, KEYS, GROUPS, STAGES>::BLOCKS)
prompt_wide_kernel(const __grid_constant__ prompt_window a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = prompt_wide<P, KEYS, GROUPS, STAGES>;
    extern __shared__ unsigned char shared[];
    __shared__ uint64_t full[2][STAGES], empty[2][STAGES]; // of keys, of values
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, group = threadIdx.x / 128;
    const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2 * STAGES; i++) barrier_init(&full[0][i], 128), barrier_init(&empty[0][i], GROUPS * 4);
    __syncthreads(); // the barriers are there
    let_next_start();
    wait_for_inputs();
    const uint32_t n_pairs = a.prompts.n_pairs * s.H, n_jobs = n_pairs + a.prompts.n_single * (s.H / GROUPS);
    auto job = [&](uint32_t i) {
        const bool pair = i < n_pairs;
        const uint32_t k = pair ? i : i - n_pairs, heads = pair ? s.H : s.H / GROUPS;
        return job_at<T>(a, a.prompts.tile[pair ? k / heads : a.prompts.n_pairs + k / heads], pair, k % heads * (pair ? 1 : GROUPS));
    };
    uint32_t it = 0; // tiles of keys so far
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        enum { AHEAD = 2 * STAGES - 3 < 6 ? 2 * STAGES - 3 : 6, PIECES = P / 8, ROWS = 128 / PIECES }; // AHEAD: copies under way
        const uint32_t piece = threadIdx.x % 128 % PIECES, row0 = threadIdx.x % 128 / PIECES;
        const uint32_t to = ring + piece / 8 * G::HALF + row0 * 128 + (piece % 8 ^ row0 % 8) * 16;
        uint32_t item = 0;
        auto next = [&] {
            copies_end();
            copies_wait<AHEAD>();
            if (item >= AHEAD) {
                const uint32_t done = item - AHEAD;
                written_for_wgmma();
                barrier_arrive(&full[done % 2][done / 2 % STAGES]);
            }
            item++;
        };
        auto copy_tile = [&](uint32_t at, const prompt_source<T> &from) {
            const T *begin;
            uint32_t ld;
            if (from.plain(KEYS, begin, ld)) {
                begin += row0 * ld + piece * 8;
#pragma unroll
                for (int k = 0; k < KEYS / ROWS; k++, begin += ROWS * ld) copy16(at + k * ROWS * 128, begin, true);
            } else {
#pragma unroll 1
                for (int k = 0; k < KEYS / ROWS; k++)
                    copy16(at + k * ROWS * 128, from.row(row0 + k * ROWS) + piece * 8, from.wanted(row0 + k * ROWS));
            }
        };
        for (uint32_t i = blockIdx.x; i < n_jobs; i += gridDim.x) {
            const prompt_job j = job(i);
            int64_t tile = j.low / KEYS * KEYS;
            uint32_t place = (uint32_t)(tile % s.ring_keys);
            for (; tile <= j.high; tile += KEYS, it++) {
                const uint32_t stage = it % STAGES, at = to + stage * G::STAGE;
                if (it >= STAGES) barrier_wait(&empty[0][stage], it / STAGES + 1 & 1);
                copy_tile(at, source_at<T, KEYS>(a, j, tile, place, false, 0));
                next();
                if (it >= STAGES) barrier_wait(&empty[1][stage], it / STAGES + 1 & 1);
#pragma unroll
                for (int v = 0; v < GROUPS; v++) {
                    if (v && j.pair) break;
                    copy_tile(at + (v + 1) * G::K_BYTES, source_at<T, KEYS>(a, j, tile, place, true, (j.head + v) % s.Hv));
                }
                next();
                place += KEYS;
                while (place >= s.ring_keys) place -= s.ring_keys;
            }
        }
        copies_wait<0>();
        written_for_wgmma();
        for (uint32_t done = item > AHEAD ? item - AHEAD : 0; done < item; done++) barrier_arrive(&full[done % 2][done / 2 % STAGES]);
    } else {
        if (GROUPS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const uint32_t g = lane / 4, t = lane % 4, width = (s.H + s.Hk + s.Hv) * P;
        const uint64_t key_form = swizzled(1024, 0), value_form = swizzled(1024, G::HALF);
        for (uint32_t i = blockIdx.x; i < n_jobs; i += gridDim.x) {
            const prompt_job j = job(i);
            const uint32_t head = j.pair ? j.head : j.head + group;
            const int64_t mine = j.tile + (j.pair ? group * TILE : 0), all_tiles = j.low / KEYS * KEYS; // my queries; the keys' first tile
            int64_t row[2]; // of the step
            bool have[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int64_t p = mine + warp * 16 + g + 8 * e;
                have[e] = p >= j.begin && p < j.end;
                row[e] = j.first + (p - j.begin);
            }
            uint4 q[P / 16];
            const uint32_t *from[2] = {(const uint32_t *)((const T *)a.work + row[0] * width + head * P) + t,
                                       (const uint32_t *)((const T *)a.work + row[1] * width + head * P) + t};
#pragma unroll
            for (int k = 0; k < P / 16; k++) {
                q[k].x = have[0] ? from[0][8 * k] : 0;
                q[k].y = have[1] ? from[1][8 * k] : 0;
                q[k].z = have[0] ? from[0][8 * k + 4] : 0;
                q[k].w = have[1] ? from[1][8 * k + 4] : 0;
            }
            // Of the block's tiles of keys, those that my queries see.
            const int64_t first_q = max(mine, j.begin), last_q = min(mine + TILE, j.end) - 1;
            const uint32_t n_tiles = (uint32_t)((j.high - all_tiles) / KEYS) + 1;
            const uint32_t low = (uint32_t)((max(first_q + 1 - (int64_t)s.visible, (int64_t)0) - all_tiles) / KEYS);
            const uint32_t high = (uint32_t)((last_q - all_tiles) / KEYS);
            const int32_t from_tile = (int32_t)(mine - all_tiles); // from the first key to my first query
            auto pass = [&](uint32_t k) { // a tile that only the other warpgroup sees
                const uint32_t stage = (it + k) % STAGES, parity = (it + k) / STAGES & 1;
                barrier_wait(&full[0][stage], parity);
                if (lane == 0) barrier_arrive(&empty[0][stage]);
                barrier_wait(&full[1][stage], parity);
                if (lane == 0) barrier_arrive(&empty[1][stage]);
            };
            float o[P / 2], score[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep_by[2];
            uint4 weight[KEYS / 16];
#pragma unroll
            for (int k = 0; k < P / 2; k++) o[k] = 0;
            auto scores = [&](uint32_t k) {
                const uint32_t stage = (it + k) % STAGES;
                barrier_wait(&full[0][stage], (it + k) / STAGES & 1);
                const uint64_t b = key_form | (ring + stage * G::STAGE) >> 4;
                keep(score);
                wgmma_begin();
#pragma unroll
                for (int d = 0; d < P / 16; d++) wgmma<false>(score, q[d], b + (d / 4 * G::HALF + d % 4 * 32 >> 4), d > 0, T());
                wgmma_end();
            };
            auto outputs = [&](uint32_t k) {
                const uint32_t stage = (it + k) % STAGES;
                const uint64_t b = value_form | (ring + stage * G::STAGE + (j.pair ? 1 : 1 + group) * G::K_BYTES) >> 4;
                keep(o);
                wgmma_begin();
#pragma unroll
                for (int d = 0; d < KEYS / 16; d++) wgmma<true>(o, weight[d], b + (d * 2048 >> 4), true, T());
                wgmma_end();
            };
            auto weigh = [&](uint32_t k) { // scores -> weights, in place; then the tile's values are there
                const int32_t ahead = from_tile - (int32_t)k * KEYS; // from the tile's first key to my first query
                if (ahead < KEYS - 1 || ahead + TILE - 1 >= (int32_t)s.visible) {
                    const int32_t mine_at = ahead + warp * 16 + g;
#pragma unroll
                    for (int x = 0; x < KEYS / 2; x++) {
                        const int32_t back = mine_at + x / 2 % 2 * 8 - (x / 4 * 8 + 2 * (int32_t)t + x % 2);
                        if ((uint32_t)back >= s.visible) score[x] = -INFINITY;
                    }
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float m = top[e];
#pragma unroll
                    for (int x = 0; x < KEYS / 8; x++) m = fmaxf(m, fmaxf(score[4 * x + 2 * e], score[4 * x + 2 * e + 1]));
                    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
                    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
                    const float base = m == -INFINITY ? 0 : m; // no key yet
                    keep_by[e] = power(top[e] - base);
                    top[e] = m;
                    float add = 0;
#pragma unroll
                    for (int x = 0; x < KEYS / 8; x++) {
                        score[4 * x + 2 * e] = power(score[4 * x + 2 * e] - base);
                        score[4 * x + 2 * e + 1] = power(score[4 * x + 2 * e + 1] - base);
                        add += score[4 * x + 2 * e] + score[4 * x + 2 * e + 1];
                    }
                    sum[e] = __fmaf_rn(sum[e], keep_by[e], add);
                }
                keep(score); // before the wait
                barrier_wait(&full[1][(it + k) % STAGES], (it + k) / STAGES & 1);
            };
            auto pack = [&] {
#pragma unroll
                for (int d = 0; d < KEYS / 16; d++)
                    weight[d] = make_uint4(two(score[8 * d], score[8 * d + 1], T()), two(score[8 * d + 2], score[8 * d + 3], T()),
                                           two(score[8 * d + 4], score[8 * d + 5], T()), two(score[8 * d + 6], score[8 * d + 7], T()));
            };
#pragma unroll 1
            for (uint32_t k = 0; k < low; k++) pass(k);
            scores(low);
            wgmma_wait<0>();
            keep(score);
            if (lane == 0) barrier_arrive(&empty[0][(it + low) % STAGES]);
            weigh(low);
            pack();
#pragma unroll 1
            for (uint32_t k = low + 1; k <= high; k++) { // this tile's scores and the last one's outputs at once
                scores(k);
                outputs(k - 1);
                wgmma_wait<1>();
                keep(score);
                if (lane == 0) barrier_arrive(&empty[0][(it + k) % STAGES]);
                weigh(k);
                wgmma_wait<0>();
                keep(o);
                if (lane == 0) barrier_arrive(&empty[1][(it + k - 1) % STAGES]);
#pragma unroll
                for (int x = 0; x < P / 2; x++) o[x] *= keep_by[x / 2 % 2];
                pack();
            }
            outputs(high);
            wgmma_wait<0>();
            keep(o);
            if (lane == 0) barrier_arrive(&empty[1][(it + high) % STAGES]);
#pragma unroll 1
            for (uint32_t k = high + 1; k < n_tiles; k++) pass(k);
            it += n_tiles;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
                sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
                const float by = 1.0f / sum[e];
                if (have[e]) {
                    T *act = (T *)a.act + act_at<T>((uint32_t)row[e], head * P + 2 * t, s.H * P);
#pragma unroll
                    for (int x = 0; x < P / 8; x++) // eight columns on: the tile's other half, or the next tile
                        *(uint32_t *)(act + x / 2 * 128 + x % 2 * 64) = two(o[4 * x + 2 * e] * by, o[4 * x + 2 * e + 1] * by, T());
                }
            }
        }
    }
#endif
}

// ---- every shape and device: a block of four warps a tile of queries and a head ----

template <int MOST> struct prompt_any { // heads of up to MOST dims
    enum { LD = MOST + 8, MATRIX = TILE * LD, BYTES = 3 * MATRIX * 2 }; // a stride that spreads the rows over the banks
};

template <class T, int MOST>
__global__ void __launch_bounds__(128) prompt_any_kernel(const __grid_constant__ prompt_window a) {
    enum { LD = prompt_any<MOST>::LD };
    extern __shared__ __align__(16) unsigned char shared[];
    T *const qs = (T *)shared, *const ks = qs + prompt_any<MOST>::MATRIX, *const vs = ks + prompt_any<MOST>::MATRIX;
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, P = s.P, padded = (P + 15) / 16 * 16;
    const uint32_t width = (s.H + s.Hk + s.Hv) * P, head = blockIdx.y, pieces = P / 8;
    let_next_start();
    wait_for_inputs();
    const prompt_job j = job_at<T>(a, a.prompts.tile[blockIdx.x], false, head);
    for (uint32_t i = threadIdx.x; i < 3 * TILE && padded != P; i += 128) *(uint4 *)(qs + i * LD + P) = make_uint4(0, 0, 0, 0);
    for (uint32_t i = threadIdx.x; i < TILE * pieces; i += 128) {
        const uint32_t row = i / pieces, piece = i % pieces;
        const int64_t p = j.tile + row;
        const bool have = p >= j.begin && p < j.end;
        const T *from = (const T *)a.work + (have ? j.first + (p - j.begin) : 0) * (int64_t)width + head * P + piece * 8;
        *(uint4 *)(qs + row * LD + piece * 8) = have ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    }
    float o[MOST / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    int64_t tile = j.low / TILE * TILE;
    uint32_t place = (uint32_t)(tile % s.ring_keys);
    for (; tile <= j.high; tile += TILE) {
        const prompt_source<T> keys = source_at<T, TILE>(a, j, tile, place, false, head % s.Hk),
                               values = source_at<T, TILE>(a, j, tile, place, true, head % s.Hv);
        for (uint32_t i = threadIdx.x; i < TILE * pieces; i += 128) {
            const uint32_t row = i / pieces, piece = i % pieces;
            const bool wanted = keys.wanted(row);
            copy16((uint32_t)__cvta_generic_to_shared(ks + row * LD + piece * 8), keys.row(row) + piece * 8, wanted);
            copy16((uint32_t)__cvta_generic_to_shared(vs + row * LD + piece * 8), values.row(row) + piece * 8, wanted);
        }
        copies_end();
        copies_wait<0>();
        __syncthreads(); // queries, keys, values
        float score[TILE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < MOST / 16; k++) {
            if (16 * k >= P) break;
            const uint32_t *q = (const uint32_t *)(qs + (warp * 16 + g) * LD + 16 * k) + t, *key = (const uint32_t *)(ks + g * LD + 16 * k) + t;
            const uint4 x = make_uint4(q[0], q[8 * LD / 2], q[4], q[8 * LD / 2 + 4]);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) mma(score[n], x, make_uint2(key[n * 8 * LD / 2], key[n * 8 * LD / 2 + 4]), T());
        }
        const int32_t mine = (int32_t)(j.tile - tile) + warp * 16 + g; // from the tile's first key to this lane's first query
        uint4 weight[TILE / 16];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float m = top[e], add = 0;
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    if ((uint32_t)(mine + 8 * e - (8 * n + 2 * (int32_t)t + x)) >= s.visible) score[n][2 * e + x] = -INFINITY;
                    m = fmaxf(m, score[n][2 * e + x]);
                }
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            const float base = m == -INFINITY ? 0 : m, keep = power(top[e] - base); // -inf: no key yet
            top[e] = m;
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                score[n][2 * e] = power(score[n][2 * e] - base);
                score[n][2 * e + 1] = power(score[n][2 * e + 1] - base);
                add += score[n][2 * e] + score[n][2 * e + 1];
            }
            sum[e] = __fmaf_rn(sum[e], keep, add);
#pragma unroll
            for (int n = 0; n < MOST / 8; n++) o[n][2 * e] *= keep, o[n][2 * e + 1] *= keep;
        }
#pragma unroll
        for (int k = 0; k < TILE / 16; k++)
            weight[k] = make_uint4(two(score[2 * k][0], score[2 * k][1], T()), two(score[2 * k][2], score[2 * k][3], T()),
                                   two(score[2 * k + 1][0], score[2 * k + 1][1], T()), two(score[2 * k + 1][2], score[2 * k + 1][3], T()));
#pragma unroll
        for (int n = 0; n < MOST / 8; n++) {
            if (8 * n >= P) break;
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) {
                uint2 v; // keys 16 k + lane % 16, eight dims, turned over
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                             : "=r"(v.x), "=r"(v.y) : "r"((uint32_t)__cvta_generic_to_shared(vs + (16 * k + lane % 16) * LD + 8 * n)));
                mma(o[n], weight[k], v, T());
            }
        }
        __syncthreads(); // nobody reads keys and values any more
        place += TILE;
        while (place >= s.ring_keys) place -= s.ring_keys;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
        const float by = 1.0f / sum[e];
        const int64_t p = j.tile + warp * 16 + g + 8 * e;
        if (p < j.begin || p >= j.end) continue;
#pragma unroll
        for (int n = 0; n < MOST / 8; n++)
            if (8 * n < P)
                *(uint32_t *)((T *)a.act + act_at<T>((uint32_t)(j.first + (p - j.begin)), head * P + 8 * n + 2 * t, (s.H * P + 15) / 16 * 16)) =
                    two(o[n][2 * e] * by, o[n][2 * e + 1] * by, T());
    }
}

// ---- afterwards the step's keys and values go into the rings ----

// A block: the rows of a tile, or a share of them.
enum { KEEP_SHARES = 4, KEEP_THREADS = 256 };
template <class T> __global__ void __launch_bounds__(KEEP_THREADS) prompt_keep_kernel(const __grid_constant__ prompt_window a) {
    const cuda_shape &s = a.shape;
    let_next_start();
    wait_for_inputs();
    const bool pair = blockIdx.x < a.prompts.n_pairs;
    const prompt_job j = job_at<T>(a, a.prompts.tile[blockIdx.x], pair, 0);
    const uint32_t n_keys = s.Hk * s.P / 8, n = (s.Hk + s.Hv) * s.P / 8, row_pieces = (s.H + s.Hk + s.Hv) * s.P / 8; // of 16 bytes
    const int64_t from = max(max(j.tile, j.begin), j.end - (int64_t)s.ring_keys);
    for (int64_t p = from + blockIdx.y; p <= j.high; p += KEEP_SHARES) {
        const uint4 *row = (const uint4 *)a.work + (j.first + (p - j.begin)) * (int64_t)row_pieces + s.H * s.P / 8;
        const size_t place = (size_t)(p % s.ring_keys);
        for (uint32_t i = threadIdx.x; i < n; i += KEEP_THREADS)
            (i < n_keys ? (uint4 *)j.keys + place * n_keys + i : (uint4 *)j.values + place * (n - n_keys) + (i - n_keys))[0] = row[i];
    }
}

// ---- the host's part ----

static int device_attribute(cudaDeviceAttr what) {
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, what, device);
    return value;
}
static bool wide_heads(const struct cuda_shape *s) {
    return s->Hk == 1 && (s->P == 64 || s->P == 128) && s->H % 2 == 0 && device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

template <class F> static bool allow(F *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess;
}
template <class T, int P> static bool allow_wide() {
    return allow(prompt_wide_kernel<T, P, 64, 2, 4>, prompt_wide<P, 64, 2, 4>::BYTES) &&
           allow(prompt_wide_kernel<T, P, 64, 1, 3>, prompt_wide<P, 64, 1, 3>::BYTES);
}
template <class T> static bool allow_all(const struct cuda_shape *s) {
    if (wide_heads(s)) return s->P == 64 ? allow_wide<T, 64>() : allow_wide<T, 128>();
    return s->P <= 64    ? allow(prompt_any_kernel<T, 64>, prompt_any<64>::BYTES)
           : s->P <= 128 ? allow(prompt_any_kernel<T, 128>, prompt_any<128>::BYTES)
                         : allow(prompt_any_kernel<T, 256>, prompt_any<256>::BYTES);
}
bool cuda_prompt_window_possible(const struct cuda_shape *s) {
    if (s->dtype == CUDA_F32 || s->P % 8 || s->P > MOST_P || s->ring_keys < TILE) return false;
    return s->dtype == CUDA_F16 ? allow_all<__half>(s) : allow_all<__nv_bfloat16>(s);
}
size_t cuda_prompt_window_bytes(const struct cuda_shape *s, uint32_t n_rows) { return (size_t)n_rows * (s->H + s->Hk + s->Hv) * s->P * 2; }

static struct cuda_prompts cut_prompts(const struct cuda_prompt *prompt, uint32_t n_prompts, const int64_t *pos, uint32_t visible, bool pairs,
                                       struct cuda_prompt_tile *tile) {
    struct cuda_prompts all = {tile, 0, 0};
    for (int single = !pairs; single < 2; single++) {
        cuda_prompt_tile *const begin = tile + all.n_pairs, *at = begin;
        for (uint32_t i = 0; i < n_prompts; i++) {
            const int64_t p0 = pos[prompt[i].row], p1 = p0 + prompt[i].n;
            for (int64_t p = p0; p < p1;) { // two tiles as long as there are two
                const int64_t next = p / TILE * TILE + TILE;
                const bool pair = pairs && next < p1;
                if (pair != (bool)single) *at++ = {prompt[i], prompt[i].row + (int32_t)(p - p0)};
                p = pair ? next + TILE : next;
            }
        }
        const int64_t most = (int64_t)visible + TILE;
        std::stable_sort(begin, at, [&](const cuda_prompt_tile &x, const cuda_prompt_tile &y) {
            return std::min(pos[x.row], most) > std::min(pos[y.row], most);
        });
        (single ? all.n_single : all.n_pairs) = (uint32_t)(at - begin);
    }
    return all;
}
struct cuda_prompts cuda_prompt_tiles(const struct cuda_shape *s, const struct cuda_prompt *prompt, uint32_t n_prompts, const int64_t *pos,
                                      struct cuda_prompt_tile *tile) {
    if (!wide_heads(s)) return cut_prompts(prompt, n_prompts, pos, s->visible, false, tile);
    const struct cuda_prompts all = cut_prompts(prompt, n_prompts, pos, s->visible, true, tile);
    const uint32_t n_jobs = all.n_pairs * s->H + all.n_single * (s->H / 2);
    // Fewer than the device has multiprocessors: blocks of one warpgroup, two to each.
    return n_jobs < (uint32_t)device_attribute(cudaDevAttrMultiProcessorCount) ? cut_prompts(prompt, n_prompts, pos, s->visible, false, tile) : all;
}

template <class T, int P, int KEYS, int GROUPS, int STAGES> static void attend_wide(const prompt_window &a, void *stream) {
    using G = prompt_wide<P, KEYS, GROUPS, STAGES>;
    const uint32_t n_jobs = a.prompts.n_pairs * a.shape.H + a.prompts.n_single * (a.shape.H / GROUPS);
    const uint32_t n_blocks = G::BLOCKS * (uint32_t)device_attribute(cudaDevAttrMultiProcessorCount);
    launch(prompt_wide_kernel<T, P, KEYS, GROUPS, STAGES>, dim3(std::min(n_jobs, n_blocks)), dim3(G::THREADS), G::BYTES, stream, a);
}
template <class T, int P> static void attend_wide(const prompt_window &a, void *stream) {
    const bool few = !a.prompts.n_pairs && a.prompts.n_single * a.shape.H <= 2 * (uint32_t)device_attribute(cudaDevAttrMultiProcessorCount);
    few ? attend_wide<T, P, 64, 1, 3>(a, stream) : attend_wide<T, P, 64, 2, 4>(a, stream);
}
template <class T, int MOST> static void attend_any(const prompt_window &a, void *stream) {
    launch(prompt_any_kernel<T, MOST>, dim3(a.prompts.n_single, a.shape.H), dim3(128), prompt_any<MOST>::BYTES, stream, a);
}
template <class T> static void prepare(const prompt_window &a, uint32_t n_rows, const float *qkv, uint32_t splits, size_t split_stride,
                                       const float *row_scale, const float *turn, const float *q_norm, const float *k_norm, void *stream) {
    launch(prompt_prepare_kernel<T>, dim3(n_rows), dim3(PREPARE_WARPS * 32), 0, stream, a, qkv, splits, split_stride, row_scale,
           (const float2 *)turn, q_norm, k_norm);
}
template <class T> static void attend(const prompt_window &a, void *stream) {
    const uint32_t P = a.shape.P;
    if (wide_heads(&a.shape)) P == 64 ? attend_wide<T, 64>(a, stream) : attend_wide<T, 128>(a, stream);
    else P <= 64 ? attend_any<T, 64>(a, stream) : P <= 128 ? attend_any<T, 128>(a, stream) : attend_any<T, 256>(a, stream);
}
template <class T> static void keep_in_ring(const prompt_window &a, void *stream) {
    launch(prompt_keep_kernel<T>, dim3(a.prompts.n_pairs + a.prompts.n_single, KEEP_SHARES), dim3(KEEP_THREADS), 0, stream, a);
}

void k_prompt_window(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, uint32_t n_rows,
                     const struct cuda_prompts *prompts, const float *qkv, uint32_t splits, size_t split_stride, const float *row_scale,
                     const float *turn, const float *q_norm, const float *k_norm, void *work, void *act, void *stream) {
    const prompt_window a = {*shape, layer, rows->pos, rows->slot, *prompts, work, act};
    if (prompts->n_pairs + prompts->n_single == 0) return;
    auto all = [&](auto type) {
        using T = decltype(type);
        prepare<T>(a, n_rows, qkv, splits, split_stride, row_scale, turn, q_norm, k_norm, stream);
        attend<T>(a, stream);
        keep_in_ring<T>(a, stream);
    };
    if (shape->dtype == CUDA_F16) all(__half());
    else all(__nv_bfloat16());
}
