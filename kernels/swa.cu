// swa.cu - sliding-window shared-key attention of single tokens (E9): rotary and the ring, blocks of 64 keys, their combination.
#include "common.cuh"

// A warp a head: queries, keys, then values.
enum { ROPE_WARPS = 4, ROPE_MOST_P = 256 };
template <class T>
__global__ void __launch_bounds__(ROPE_WARPS * 32)
rope_kernel(cuda_shape shape, uint32_t layer, cuda_rows rows, const int32_t *list, const float *qkv, uint32_t splits,
            size_t split_stride, const float2 *turn, const float *q_norm, const float *k_norm, float *q) {
    __shared__ float head[ROPE_WARPS][ROPE_MOST_P];
    const uint32_t r = (uint32_t)list[blockIdx.x], warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = shape.P;
    const uint32_t half = shape.rot_dim / 2, h = blockIdx.y * ROPE_WARPS + warp, n_heads = shape.H + shape.Hk + shape.Hv;
    const size_t at = (size_t)(rows.pos[r] % shape.ring_keys), slot = (size_t)rows.slot[r];
    let_next_start();
    wait_for_inputs();
    if (h >= n_heads) return;
    const float *in = qkv + (size_t)r * n_heads * P + h * P;
    float squares = 0;
    for (uint32_t p = lane; p < P; p += 32) {
        float v = 0;
        for (uint32_t i = 0; i < splits; i++) v += in[i * split_stride + p];
        head[warp][p] = v;
        squares += v * v;
    }
    if (h >= shape.H + shape.Hk) {
        T *value = (T *)shape.values + slot * shape.values_slot + layer * shape.values_layer + at * shape.Hv * P + (h - shape.H - shape.Hk) * P;
        for (uint32_t p = lane; p < P; p += 32) value[p] = from_float<T>(head[warp][p]);
        return;
    }
    const bool is_q = h < shape.H;
    if (shape.qk_norm) {
        float scale = rsqrtf(warp_sum(squares) / P + shape.qk_norm_eps);
        for (uint32_t p = lane; p < P; p += 32) head[warp][p] *= scale * (is_q ? q_norm[p] : k_norm[p]);
    }
    __syncwarp(); // pairs are read across lanes
    T *key = (T *)shape.keys + slot * shape.keys_slot + layer * shape.keys_layer + at * shape.Hk * P;
    for (uint32_t p = lane; p < P; p += 32) {
        float v = head[warp][p];
        if (p < 2 * half) {
            uint32_t i = shape.rot_interleaved ? p / 2 : p % half;
            bool second = shape.rot_interleaved ? p & 1 : p >= half;
            float other = head[warp][shape.rot_interleaved ? p ^ 1 : second ? p - half : p + half];
            float2 w = turn[(size_t)r * half + i];
            v = second ? v * w.x + other * w.y : v * w.x - other * w.y;
        }
        if (is_q) q[(size_t)r * shape.H * P + h * P + p] = v;
        else key[(h - shape.H) * P + p] = from_float<T>(v);
    }
}

void k_rope(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, const int32_t *list, uint32_t n_list,
            const float *qkv, uint32_t splits, size_t split_stride, const float *turn, const float *q_norm,
            const float *k_norm, float *q, void *stream) {
    dim3 grid(n_list, (shape->H + shape->Hk + shape->Hv + ROPE_WARPS - 1) / ROPE_WARPS);
    FOR_DTYPE(shape->dtype, (launch(rope_kernel<T>, grid, dim3(ROPE_WARPS * 32), 0, stream, *shape, layer, *rows, list, qkv, splits,
                                    split_stride, (const float2 *)turn, q_norm, k_norm, q)));
}

// A block: one row, 32 keys, up to 4 heads, 128 threads. Keys and values are copied to shared memory asynchronously, so
// that they are all on their way at once and cost no registers. Scores: four threads a key, each a quarter of the dims in
// chunks of 16 bytes. Values: a thread a chunk of 16 bytes and every n-th key; the key groups are added in order.
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

static __host__ __device__ uint32_t key_row_bytes(uint32_t P, uint32_t size) { // a stride that spreads neighbouring keys over the banks
    return P * size + (P * size % 128 == 0 ? 64 : 0);
}
__device__ __forceinline__ void copy_async(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global));
}
__device__ __forceinline__ void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void await_async() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// PT = P when the heads are of a common size (the divisions below become shifts), else 0.
template <class T, int PT>
__global__ void __launch_bounds__(WINDOW_THREADS)
window_kernel(cuda_shape shape, uint32_t layer, cuda_rows rows, const int32_t *list, bool single, const float *q, float *part, float *part_ml) {
    extern __shared__ __align__(16) unsigned char smem[];
    constexpr uint32_t N = chunk<T>::N;
    const uint32_t P = PT ? PT : shape.P, h0 = blockIdx.y * WINDOW_HEADS, block = blockIdx.z;
    const uint32_t nh = PT ? WINDOW_HEADS : min((uint32_t)WINDOW_HEADS, shape.H - h0);
    const uint32_t row_bytes = key_row_bytes(P, sizeof(T)), chunks = nh * P / N, per_row = P / N;
    unsigned char *key_tile = smem;                                       // [32][row_bytes]
    uint4 *value_tile = (uint4 *)(smem + WINDOW_KEYS * row_bytes);        // [32][chunks]
    float *qs = (float *)(value_tile + WINDOW_KEYS * chunks);             // [4][P]
    float *weights = qs + WINDOW_HEADS * P;                               // [4][32]
    float *sums = (float *)value_tile;                                    // [groups][nh P], when the values are used up
    let_next_start();
    if (!single) wait_for_inputs();
    const uint32_t r = (uint32_t)list[blockIdx.x];
    const int64_t pos = rows.pos[r], oldest = pos + 1 > shape.visible ? pos + 1 - shape.visible : 0;
    const int64_t left = pos + 1 - oldest - (int64_t)block * WINDOW_KEYS;
    float *ml = part_ml + (((size_t)blockIdx.x * gridDim.z + block) * shape.H + h0) * 2;
    if (left <= 0) { // fewer keys than blocks
        wait_for_inputs(); // what is written here is read by the kernel before the last one
        if (threadIdx.x < nh) ml[threadIdx.x * 2] = -INFINITY, ml[threadIdx.x * 2 + 1] = 0;
        return;
    }
    const uint32_t n = left < WINDOW_KEYS ? (uint32_t)left : WINDOW_KEYS, from = (uint32_t)((oldest + (int64_t)block * WINDOW_KEYS) % shape.ring_keys);
    const size_t slot = (size_t)rows.slot[r], ld_k = (size_t)shape.Hk * P, ld_v = (size_t)shape.Hv * P;
    const T *keys = (const T *)shape.keys + slot * shape.keys_slot + layer * shape.keys_layer;
    const T *values = (const T *)shape.values + slot * shape.values_slot + layer * shape.values_layer;
    auto place = [&](uint32_t j) { uint32_t at = from + j; return (size_t)(at < shape.ring_keys ? at : at - shape.ring_keys); };
    auto stage_keys = [&](uint32_t hk, uint32_t lo, uint32_t hi) {
        for (uint32_t i = lo * per_row + threadIdx.x; i < hi * per_row; i += WINDOW_THREADS) {
            uint32_t j = i / per_row, d = i % per_row;
            copy_async(key_tile + j * row_bytes + d * 16, (const uint4 *)(keys + place(j) * ld_k + (size_t)hk * P) + d);
        }
        commit_async();
    };
    auto stage_values = [&](uint32_t lo, uint32_t hi) {
        for (uint32_t i = lo * chunks + threadIdx.x; i < hi * chunks; i += WINDOW_THREADS) {
            uint32_t j = i / chunks, c = i % chunks, head = c / per_row;
            copy_async(value_tile + i, (const uint4 *)(values + place(j) * ld_v + (size_t)((h0 + head) % shape.Hv) * P) + c % per_row);
        }
        commit_async();
    };
    uint32_t staged = h0 % shape.Hk;
    const bool has_own = left <= WINDOW_KEYS; // the token's own key, the last one, was written just now
    const uint32_t n_old = has_own ? n - 1 : n;
    stage_keys(staged, 0, n_old);
    stage_values(0, n_old);
    if (single) wait_for_inputs();
    if (has_own) {
        stage_keys(staged, n_old, n);
        stage_values(n_old, n);
    }
    for (uint32_t i = threadIdx.x; i < nh * P; i += WINDOW_THREADS) qs[i] = q[(size_t)r * shape.H * P + h0 * P + i];
    await_async<1>(); // all but the last group, which is values
    __syncthreads(); // keys and q
    const float scale = rsqrtf((float)P);
    const uint32_t key = threadIdx.x / 4, quarter = threadIdx.x % 4;
    for (uint32_t h = 0; h < nh; h++) {
        const uint32_t hk = (h0 + h) % shape.Hk;
        if (hk != staged) {
            __syncthreads(); // the last tile is read
            stage_keys(hk, 0, n);
            await_async<0>();
            __syncthreads(); // the tile is whole
            staged = hk;
        }
        float sum = 0;
        if (key < n)
            for (uint32_t d = quarter; d < per_row; d += 4) {
                float k[N];
                ((const chunk<T> *)(key_tile + key * row_bytes + d * 16))->to_floats(k);
                const float4 *qd = (const float4 *)(qs + h * P + d * N);
#pragma unroll
                for (uint32_t i = 0; i < N / 4; i++) {
                    float4 x = qd[i];
                    sum += k[4 * i] * x.x;
                    sum += k[4 * i + 1] * x.y;
                    sum += k[4 * i + 2] * x.z;
                    sum += k[4 * i + 3] * x.w;
                }
            }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (quarter == 0) weights[h * WINDOW_KEYS + key] = key < n ? sum * scale : -INFINITY;
    }
    __syncthreads(); // all scores
    if (threadIdx.x / 32 < nh) { // a warp a head
        const uint32_t h = threadIdx.x / 32, lane = threadIdx.x % 32;
        float x = weights[h * WINDOW_KEYS + lane], top = x;
#pragma unroll
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        x = expf(x - top);
        weights[h * WINDOW_KEYS + lane] = x;
        float total = warp_sum(x);
        if (lane == 0) ml[h * 2] = top, ml[h * 2 + 1] = total;
    }
    await_async<0>();
    __syncthreads(); // weights and values
    const uint32_t groups = WINDOW_THREADS / chunks ? WINDOW_THREADS / chunks : 1, c = threadIdx.x % chunks, group = threadIdx.x / chunks;
    float acc[N] = {};
    if (group < groups) {
        const float *weight = weights + c / per_row * WINDOW_KEYS;
#pragma unroll 4
        for (uint32_t j = group; j < n; j += groups) {
            float f[N], w = weight[j];
            ((const chunk<T> *)(value_tile + j * chunks + c))->to_floats(f);
#pragma unroll
            for (int d = 0; d < N; d++) acc[d] += w * f[d];
        }
    }
    __syncthreads(); // the values are used up: their place holds the groups' sums now
    if (group < groups)
#pragma unroll
        for (int d = 0; d < N; d++) sums[group * nh * P + c * N + d] = acc[d];
    __syncthreads(); // the groups' sums
    float *out = part + ((size_t)blockIdx.x * gridDim.z + block) * shape.H * P + h0 * P;
    for (uint32_t i = threadIdx.x; i < nh * P; i += WINDOW_THREADS) {
        float sum = 0;
        for (uint32_t g = 0; g < groups; g++) sum += sums[g * nh * P + i];
        out[i] = sum;
    }
}

uint32_t cuda_window_blocks(const struct cuda_shape *shape) { return (shape->visible + WINDOW_KEYS - 1) / WINDOW_KEYS; }

static size_t window_smem(const struct cuda_shape *shape) {
    const uint32_t size = shape->dtype == CUDA_F32 ? 4 : 2, nh = shape->H < WINDOW_HEADS ? shape->H : WINDOW_HEADS;
    const size_t values = (size_t)WINDOW_KEYS * nh * shape->P * size, sums = WINDOW_THREADS * 16 / size * 4; /* groups * nh * P floats at most */
    return WINDOW_KEYS * key_row_bytes(shape->P, size) + (values > sums ? values : sums) + 4 * (size_t)WINDOW_HEADS * (shape->P + WINDOW_KEYS);
}

template <class T> static auto window_kernel_for(const struct cuda_shape *shape) -> decltype(&window_kernel<T, 0>) {
    if (shape->H % WINDOW_HEADS == 0 && shape->P == 128) return window_kernel<T, 128>;
    if (shape->H % WINDOW_HEADS == 0 && shape->P == 64) return window_kernel<T, 64>;
    return window_kernel<T, 0>;
}

bool cuda_window_prepare(const struct cuda_shape *shape) {
    cudaError_t rc = cudaErrorInvalidValue;
    FOR_DTYPE(shape->dtype, (rc = cudaFuncSetAttribute(window_kernel_for<T>(shape), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       (int)window_smem(shape))));
    return rc == cudaSuccess;
}

void k_window(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, const int32_t *list, uint32_t n_list,
              bool single, const float *q, float *part, float *part_ml, void *stream) {
    dim3 grid(n_list, (shape->H + WINDOW_HEADS - 1) / WINDOW_HEADS, cuda_window_blocks(shape));
    FOR_DTYPE(shape->dtype, (launch(window_kernel_for<T>(shape), grid, dim3(WINDOW_THREADS), window_smem(shape), stream, *shape, layer,
                                    *rows, list, single, q, part, part_ml)));
}

// A block: 128 outputs of one row. The heads' weights of the blocks are made once by the first warps.
enum { COMBINE_THREADS = 128 };
template <class T>
__global__ void __launch_bounds__(COMBINE_THREADS)
window_combine_kernel(cuda_shape shape, const int32_t *list, uint32_t n_blocks, const float *part, const float *part_ml, T *act) {
    extern __shared__ float weight[]; // [heads of this block][n_blocks]
    __shared__ float scale[COMBINE_THREADS];
    const uint32_t n = shape.H * shape.P, K = (n + 15) / 16 * 16, i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
    const uint32_t h0 = blockIdx.y * COMBINE_THREADS / shape.P, last = min(n, (blockIdx.y + 1) * COMBINE_THREADS) - 1, nh = last / shape.P - h0 + 1;
    let_next_start();
    wait_for_inputs();
    for (uint32_t g = threadIdx.x / 32; g < nh; g += COMBINE_THREADS / 32) {
        const float2 *ml = (const float2 *)part_ml + (size_t)blockIdx.x * n_blocks * shape.H + h0 + g;
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
    const float *mine = part + (size_t)blockIdx.x * n_blocks * n + i;
    float sum = 0;
#pragma unroll 8
    for (uint32_t b = 0; b < n_blocks; b++) {
        float w = weight[g * n_blocks + b];
        if (w != 0) sum += w * mine[(size_t)b * n];
    }
    act[act_at<T>((uint32_t)list[blockIdx.x], i, K)] = from_float<T>(sum * scale[g]);
}

void k_window_combine(const struct cuda_shape *shape, const int32_t *list, uint32_t n_list, const float *part, const float *part_ml,
                      void *act, void *stream) {
    const uint32_t n_blocks = cuda_window_blocks(shape), heads = COMBINE_THREADS / shape->P + 2;
    FOR_DTYPE(shape->dtype, (launch(window_combine_kernel<T>, dim3(n_list, (shape->H * shape->P + COMBINE_THREADS - 1) / COMBINE_THREADS),
                                    dim3(COMBINE_THREADS), (size_t)heads * n_blocks * sizeof(float), stream, *shape, list, n_blocks, part,
                                    part_ml, (T *)act)));
}
