// swa.cu - sliding-window attention (E9) of any shape, a row at a time: rotary and the ring, blocks of 32 keys, their
// combination. Decode steps of the common shapes take swa_decode.cu.
#include "kernels/cuda/common.cuh"

// A warp a head: queries, keys, then values.
enum { ROPE_WARPS = 4, ROPE_MOST_P = 256 };
template <class T> __global__ void __launch_bounds__(ROPE_WARPS * 32) rope_kernel(cuda_window a) {
    const cuda_shape &shape = a.shape;
    const cuda_heads &heads = a.heads;
    __shared__ float head[ROPE_WARPS][ROPE_MOST_P];
    const uint32_t r = (uint32_t)a.list[blockIdx.x], warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = shape.P;
    const uint32_t half = shape.rot_dim / 2, h = blockIdx.y * ROPE_WARPS + warp,
                   n_heads = shape.H + shape.Hk + shape.Hv;
    const size_t at = (size_t)(a.rows.pos[r] % shape.ring_keys), slot = (size_t)a.rows.slot[r];
    let_next_start();
    wait_for_inputs();
    if (h >= n_heads) return;
    const float *in = heads.qkv.at + (size_t)r * n_heads * P + h * P;
    const float scale = heads.row_scale ? heads.row_scale[r] : 1.0f;
    float squares = 0;
    for (uint32_t p = lane; p < P; p += 32) {
        float v = 0;
        for (uint32_t i = 0; i < heads.qkv.n; i++) v += in[i * heads.qkv.stride + p];
        v *= scale;
        head[warp][p] = v;
        squares += v * v;
    }
    if (h >= shape.H + shape.Hk) {
        T *value = (T *)shape.values + slot * shape.values_slot + a.layer * shape.values_layer + at * shape.Hv * P +
                   (h - shape.H - shape.Hk) * P;
        for (uint32_t p = lane; p < P; p += 32) value[p] = from_float<T>(head[warp][p]);
        return;
    }
    const bool is_q = h < shape.H;
    if (shape.qk_norm) {
        float down = rsqrtf(warp_sum(squares) / P + shape.qk_norm_eps);
        for (uint32_t p = lane; p < P; p += 32) head[warp][p] *= down * (is_q ? heads.q_norm[p] : heads.k_norm[p]);
    }
    __syncwarp(); // pairs are read across lanes
    T *key = (T *)shape.keys + slot * shape.keys_slot + a.layer * shape.keys_layer + at * shape.Hk * P;
    for (uint32_t p = lane; p < P; p += 32) {
        float v = head[warp][p];
        if (p < 2 * half) {
            uint32_t i = shape.rot_interleaved ? p / 2 : p % half;
            bool second = shape.rot_interleaved ? p & 1 : p >= half;
            float other = head[warp][shape.rot_interleaved ? p ^ 1 : second ? p - half : p + half];
            float2 w = ((const float2 *)heads.rope)[(size_t)r * half + i];
            v = second ? v * w.x + other * w.y : v * w.x - other * w.y;
        }
        if (is_q)
            a.q[(size_t)r * shape.H * P + h * P + p] = v;
        else
            key[(h - shape.H) * P + p] = from_float<T>(v);
    }
}

void k_rope(const struct cuda_window *a, void *stream) {
    const struct cuda_shape *shape = &a->shape;
    assert(a->n_list > 0 && a->list && a->q && shape->P <= ROPE_MOST_P && shape->rot_dim <= shape->P);
    assert(a->heads.qkv.n > 0 && (!shape->qk_norm || (a->heads.q_norm && a->heads.k_norm)));
    const dim3 grid(a->n_list, (shape->H + shape->Hk + shape->Hv + ROPE_WARPS - 1) / ROPE_WARPS);
    FOR_DTYPE(shape->dtype, (launch(rope_kernel<T>, grid, dim3(ROPE_WARPS * 32), 0, stream, *a)));
}

// A block: one row, up to 4 heads, 128 threads, some blocks of 32 keys one after the other. Keys and values are copied
// to shared memory asynchronously, the next block's while this one is used. Scores: four threads a key, each a quarter
// of the dims in chunks of 16 bytes. Values: a thread a chunk of 16 bytes and every n-th key; the key groups are added
// in order. Each 32 keys give a partial result of their own, so how many a block takes changes no bit.
enum { WINDOW_THREADS = 128, WINDOW_KEYS = 32, WINDOW_HEADS = 4 };
template <class T> struct chunk { // 16 bytes
    static constexpr int N = 16 / sizeof(T);
    uint4 bits;
    __device__ void to_floats(float (&f)[N]) const {
        const T *p = (const T *)&bits;
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = to_float(p[i]);
    }
};

static __host__ __device__ uint32_t
key_row_bytes(uint32_t P, uint32_t size) { // a stride that spreads neighbouring keys over the banks
    return P * size + (P * size % 128 == 0 ? 64 : 0);
}
// Scores of a key with up to four heads, a quarter of its dims.
template <class T, int PT>
__device__ __forceinline__ void window_scores(float (&score)[WINDOW_HEADS], const unsigned char *key_row,
                                              const float *qs, uint32_t P, uint32_t nh) {
    constexpr uint32_t N = chunk<T>::N;
    const uint32_t quarter = threadIdx.x % 4, per_row = P / N;
    for (uint32_t d = quarter; d < per_row; d += 4) {
        float k[N];
        ((const chunk<T> *)(key_row + d * 16))->to_floats(k);
#pragma unroll
        for (int h = 0; h < WINDOW_HEADS; h++)
            if (h < nh) {
                const float4 *qd = (const float4 *)(qs + h * P + d * N);
#pragma unroll
                for (uint32_t i = 0; i < N / 4; i++) {
                    float4 x = qd[i];
                    score[h] += k[4 * i] * x.x;
                    score[h] += k[4 * i + 1] * x.y;
                    score[h] += k[4 * i + 2] * x.z;
                    score[h] += k[4 * i + 3] * x.w;
                }
            }
    }
}
// The score of one head's own key.
template <class T>
__device__ __forceinline__ float window_score(const chunk<T> *k_row, const float *q, uint32_t per_row) {
    constexpr uint32_t N = chunk<T>::N;
    float score = 0;
    for (uint32_t d = threadIdx.x % 4; d < per_row; d += 4) {
        float k[N];
        k_row[d].to_floats(k);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) score += k[i] * q[d * N + i];
    }
    return score;
}
// A chunk of the values of keys group, group + groups ..., by their weights. values: a chunk of key 0, `chunks` apart.
template <class T, int N>
__device__ __forceinline__ void window_values(float (&acc)[N], const float *weight, const uint4 *values, uint32_t group,
                                              uint32_t n, uint32_t groups, uint32_t chunks) {
#pragma unroll 4
    for (uint32_t j = group; j < n; j += groups) {
        float f[N], w = weight[j];
        ((const chunk<T> *)(values + j * chunks))->to_floats(f);
#pragma unroll
        for (int d = 0; d < N; d++) acc[d] += w * f[d];
    }
}
// A head's scores of a block of keys become weights, by a warp; ml: their maximum and sum.
__device__ __forceinline__ void window_weigh(float *weights, float *ml) {
    const uint32_t h = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = weights[h * WINDOW_KEYS + lane], top = x;
#pragma unroll
    for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
    x = expf(x - top);
    weights[h * WINDOW_KEYS + lane] = x;
    float total = warp_sum(x);
    if (lane == 0) ml[h * 2] = top, ml[h * 2 + 1] = total;
}
// The groups' sums of n numbers each, in order.
__device__ __forceinline__ void window_fold(float *out, const float *sums, uint32_t n, uint32_t groups) {
    for (uint32_t i = threadIdx.x; i < n; i += WINDOW_THREADS) {
        float sum = 0;
        for (uint32_t g = 0; g < groups; g++) sum += sums[g * n + i];
        out[i] = sum;
    }
}
// PT = P when the heads are of a common size (the divisions below become shifts), else 0.
template <class T, int PT>
__global__ void __launch_bounds__(WINDOW_THREADS) window_kernel(cuda_window a, uint32_t n_blocks, uint32_t per_block) {
    const cuda_shape &shape = a.shape;
    extern __shared__ __align__(16) unsigned char smem[];
    constexpr uint32_t N = chunk<T>::N;
    const uint32_t P = PT ? PT : shape.P, h0 = blockIdx.x * WINDOW_HEADS;
    const uint32_t nh = PT ? WINDOW_HEADS : min((uint32_t)WINDOW_HEADS, shape.H - h0);
    const uint32_t row_bytes = key_row_bytes(P, sizeof(T)), chunks = nh * P / N, per_row = P / N;
    const uint32_t groups = WINDOW_THREADS / chunks ? WINDOW_THREADS / chunks : 1;
    const uint32_t stage_bytes = WINDOW_KEYS * (row_bytes + chunks * 16);
    float *qs = (float *)(smem + 2 * stage_bytes);      // [4][P]; before it two stages of keys and values
    float *weights = qs + WINDOW_HEADS * P;             // [4][32]
    float *sums = weights + WINDOW_HEADS * WINDOW_KEYS; // [groups][nh P]
    let_next_start();
    wait_for_inputs();
    const uint32_t r = (uint32_t)a.list[blockIdx.y];
    const int64_t pos = a.rows.pos[r], oldest = pos + 1 > shape.visible ? pos + 1 - shape.visible : 0;
    const uint32_t n_all = (uint32_t)(pos + 1 - oldest), first = blockIdx.z * per_block,
                   last = min(first + per_block, n_blocks);
    const size_t slot = (size_t)a.rows.slot[r], ld_k = (size_t)shape.Hk * P, ld_v = (size_t)shape.Hv * P;
    const T *keys = (const T *)shape.keys + slot * shape.keys_slot + a.layer * shape.keys_layer;
    const T *values = (const T *)shape.values + slot * shape.values_slot + a.layer * shape.values_layer;
    const uint32_t oldest_at = (uint32_t)(oldest % shape.ring_keys);
    auto place = [&](uint32_t j) {
        uint32_t at = oldest_at + j;
        return (size_t)(at < shape.ring_keys ? at : at - shape.ring_keys);
    };
    auto stage_keys = [&](unsigned char *tile, uint32_t hk, uint32_t j0, uint32_t n) {
        for (uint32_t i = threadIdx.x; i < n * per_row; i += WINDOW_THREADS) {
            uint32_t j = i / per_row, d = i % per_row;
            ask16(tile + j * row_bytes + d * 16, (const uint4 *)(keys + place(j0 + j) * ld_k + (size_t)hk * P) + d);
        }
    };
    auto stage_values = [&](uint4 *tile, uint32_t j0, uint32_t n) {
        for (uint32_t i = threadIdx.x; i < n * chunks; i += WINDOW_THREADS) {
            uint32_t j = i / chunks, c = i % chunks, head = c / per_row;
            ask16(tile + i,
                  (const uint4 *)(values + place(j0 + j) * ld_v + (size_t)((h0 + head) % shape.Hv) * P) + c % per_row);
        }
    };
    auto keys_of = [&](uint32_t b) { return smem + (b & 1) * stage_bytes; };
    auto values_of = [&](uint32_t b) { return (uint4 *)(keys_of(b) + WINDOW_KEYS * row_bytes); };
    auto n_of = [&](uint32_t b) {
        return n_all > b * WINDOW_KEYS ? min(n_all - b * WINDOW_KEYS, (uint32_t)WINDOW_KEYS) : 0u;
    };
    const uint32_t hk0 = h0 % shape.Hk;
    auto stage = [&](uint32_t b) {
        stage_keys(keys_of(b), hk0, b * WINDOW_KEYS, n_of(b));
        stage_values(values_of(b), b * WINDOW_KEYS, n_of(b));
    };
    stage(first);
    asked();
    for (uint32_t i = threadIdx.x; i < nh * P; i += WINDOW_THREADS) qs[i] = a.q[(size_t)r * shape.H * P + h0 * P + i];
    const float scale = rsqrtf((float)P);
    const uint32_t key = threadIdx.x / 4, quarter = threadIdx.x % 4, c = threadIdx.x % chunks,
                   group = threadIdx.x / chunks;
    for (uint32_t b = first; b < last; b++) {
        const uint32_t n = n_of(b);
        float *ml = a.part_ml + (((size_t)blockIdx.y * n_blocks + b) * shape.H + h0) * 2;
        if (n == 0) { // fewer keys than blocks
            if (threadIdx.x < nh) ml[threadIdx.x * 2] = -INFINITY, ml[threadIdx.x * 2 + 1] = 0;
            continue;
        }
        if (b + 1 < last) stage(b + 1);
        asked(); // maybe empty, so that all but the newest group are this block's
        await_all_but<1>();
        __syncthreads(); // keys, values and q; everyone has left the last block
        const uint4 *value_tile = values_of(b);
        float score[WINDOW_HEADS] = {};
        if (shape.Hk == 1) {
            if (key < n) window_scores<T, PT>(score, keys_of(b) + key * row_bytes, qs, P, nh);
        } else { // heads with keys of their own: read from the ring
#pragma unroll
            for (int h = 0; h < WINDOW_HEADS; h++)
                if (h < nh && key < n) {
                    const chunk<T> *k_row = (const chunk<T> *)(keys + place(b * WINDOW_KEYS + key) * ld_k +
                                                               (size_t)((h0 + h) % shape.Hk) * P);
                    score[h] = window_score<T>(k_row, qs + h * P, per_row);
                }
        }
#pragma unroll
        for (int h = 0; h < WINDOW_HEADS; h++) {
            score[h] += __shfl_xor_sync(0xffffffffu, score[h], 1);
            score[h] += __shfl_xor_sync(0xffffffffu, score[h], 2);
            if (h < nh && quarter == 0) weights[h * WINDOW_KEYS + key] = key < n ? score[h] * scale : -INFINITY;
        }
        __syncthreads(); // all scores
        if (threadIdx.x / 32 < nh) window_weigh(weights, ml);
        __syncthreads(); // weights
        if (group < groups) {
            const float *weight = weights + c / per_row * WINDOW_KEYS;
            float acc[N] = {};
            window_values<T>(acc, weight, value_tile + c, group, n, groups, chunks);
#pragma unroll
            for (int d = 0; d < N; d++) sums[group * nh * P + c * N + d] = acc[d];
        }
        __syncthreads(); // the groups' sums; this block's stage is free
        window_fold(a.part + ((size_t)blockIdx.y * n_blocks + b) * shape.H * P + h0 * P, sums, nh * P, groups);
    }
}

uint32_t cuda_window_blocks(const struct cuda_shape *shape) { return (shape->visible + WINDOW_KEYS - 1) / WINDOW_KEYS; }

static size_t window_smem(const struct cuda_shape *shape) {
    const uint32_t size = shape->dtype == CUDA_F32 ? 4 : 2, nh = shape->H < WINDOW_HEADS ? shape->H : WINDOW_HEADS;
    const uint32_t chunks = nh * shape->P * size / 16, groups = WINDOW_THREADS / chunks ? WINDOW_THREADS / chunks : 1;
    return 2 * (size_t)WINDOW_KEYS * (key_row_bytes(shape->P, size) + chunks * 16) +
           4 * ((size_t)WINDOW_HEADS * (shape->P + WINDOW_KEYS) + (size_t)groups * nh * shape->P);
}

template <class T> static auto window_kernel_for(const struct cuda_shape *shape) -> decltype(&window_kernel<T, 0>) {
    if (shape->H % WINDOW_HEADS == 0 && shape->P == 128) return window_kernel<T, 128>;
    if (shape->H % WINDOW_HEADS == 0 && shape->P == 64) return window_kernel<T, 64>;
    return window_kernel<T, 0>;
}

bool cuda_window_prepare(const struct cuda_shape *shape) {
    bool allowed = false;
    const uint32_t nh = shape->H < WINDOW_HEADS ? shape->H : WINDOW_HEADS;
    if (nh * shape->P * (shape->dtype == CUDA_F32 ? 4 : 2) / 16 > WINDOW_THREADS)
        return false; /* a thread a chunk of the values */
    FOR_DTYPE(shape->dtype, (allowed = allow_shared(window_kernel_for<T>(shape), window_smem(shape))));
    return allowed;
}

void k_window(const struct cuda_window *a, void *stream) {
    const struct cuda_shape *shape = &a->shape;
    assert(a->n_list > 0 && a->n_list <= CUDA_GRID_Z && a->list && a->q && shape->ring_keys >= shape->visible);
    assert(shape->P % (shape->dtype == CUDA_F32 ? 4 : 8) == 0 && on_16_bytes(shape->keys, shape->values, a->part));
    const uint32_t n_list = a->n_list, n_blocks = cuda_window_blocks(shape),
                   head_groups = (shape->H + WINDOW_HEADS - 1) / WINDOW_HEADS;
    uint32_t per_block =
        n_list * head_groups * n_blocks / 528; /* four blocks a multiprocessor of an H200; longer runs overlap better */
    per_block = per_block < 1 ? 1 : per_block > 16 ? 16 : per_block;
    /* head groups first: together they read whole rows of values, neighbours in memory at the same time */
    dim3 grid(head_groups, n_list, (n_blocks + per_block - 1) / per_block);
    FOR_DTYPE(shape->dtype, (launch(window_kernel_for<T>(shape), grid, dim3(WINDOW_THREADS), window_smem(shape), stream,
                                    *a, n_blocks, per_block)));
}

// A block: 128 outputs of one row. The heads' weights of the blocks are made once by the first warps.
enum { COMBINE_THREADS = 128 };
template <class T>
__global__ void __launch_bounds__(COMBINE_THREADS) window_combine_kernel(cuda_window a, uint32_t n_blocks) {
    const cuda_shape &shape = a.shape;
    extern __shared__ float weight[]; // [heads of this block][n_blocks]
    __shared__ float scale[COMBINE_THREADS];
    const uint32_t n = shape.H * shape.P, K = (n + 15) / 16 * 16, i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    const uint32_t h0 = blockIdx.y * COMBINE_THREADS / shape.P, last = min(n, (blockIdx.y + 1) * COMBINE_THREADS) - 1,
                   nh = last / shape.P - h0 + 1;
    let_next_start();
    wait_for_inputs();
    for (uint32_t g = threadIdx.x / 32; g < nh; g += COMBINE_THREADS / 32) {
        const float2 *ml = (const float2 *)a.part_ml + (size_t)blockIdx.x * n_blocks * shape.H + h0 + g;
        const uint32_t lane = threadIdx.x % 32;
        float top = -INFINITY, total = 0;
        for (uint32_t b = lane; b < n_blocks; b += 32) top = fmaxf(top, ml[(size_t)b * shape.H].x);
#pragma unroll
        for (int j = 16; j; j >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, j));
        for (uint32_t b = lane; b < n_blocks; b += 32) {
            float2 v = ml[(size_t)b * shape.H];
            float w = v.y > 0 ? expf(v.x - top) : 0.0f; // a block without keys left its part unwritten
            weight[g * n_blocks + b] = w;
            total += w * v.y;
        }
        total = warp_sum(total);
        if (lane == 0) scale[g] = 1.0f / total;
    }
    __syncthreads(); // weights of the blocks
    if (i >= n) return;
    const uint32_t g = i / shape.P - h0;
    const float *mine = a.part + (size_t)blockIdx.x * n_blocks * n + i;
    float sum = 0;
#pragma unroll 8
    for (uint32_t b = 0; b < n_blocks; b++) {
        float w = weight[g * n_blocks + b];
        if (w != 0) sum += w * mine[(size_t)b * n];
    }
    ((T *)a.act)[act_at<T>((uint32_t)a.list[blockIdx.x], i, K)] = from_float<T>(sum * scale[g]);
}

void k_window_combine(const struct cuda_window *a, void *stream) {
    const struct cuda_shape *shape = &a->shape;
    assert(a->n_list > 0 && a->list && a->act && a->part && a->part_ml);
    const uint32_t n_blocks = cuda_window_blocks(shape), heads = COMBINE_THREADS / shape->P + 2;
    const dim3 grid(a->n_list, (shape->H * shape->P + COMBINE_THREADS - 1) / COMBINE_THREADS);
    FOR_DTYPE(shape->dtype, (launch(window_combine_kernel<T>, grid, dim3(COMBINE_THREADS),
                                    (size_t)heads * n_blocks * sizeof(float), stream, *a, n_blocks)));
}
