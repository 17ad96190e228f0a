// decode.cu - the products of a decode step of at most 8 rows: a block brings the weights of 16 outputs into shared memory before its
// inputs are ready, makes its operand from the residual stream (norm included) and finishes its outputs (convolution, residual,
// FFN gate). A layer is ten dependent kernels so, not fifteen. Hopper only: the other devices take the kernels of many rows.
#include "common.cuh"

enum { FEW_WARPS = 16, FEW_LD = 20, FEW_SMEM = 227 << 10 }; // a warp a slice of k; [slice][row][FEW_LD] partial sums: a stride without bank conflicts

// ---- weights by the bulk copy engine ----

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// One thread: `bytes` from global into shared memory; bar (one word, this thread's) completes when they are there.
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
    if (bytes == 0) return;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
                 : "memory");
#endif
}
__device__ __forceinline__ void await_bulk(uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(shared_address(bar))
                 : "memory");
#endif
}

// ---- where the operand comes from ----

struct few_act { // packed activations
    const uint32_t *act;
    uint32_t KT;
    template <class T> struct loader {
        const uint32_t *p;
        bool mine;
        __device__ loader(const few_act &in, uint32_t n_rows, uint32_t lane) : p(in.act + lane), mine(lane / 4 < n_rows) {}
        __device__ void ready() {}
        __device__ uint2 operator()(uint32_t k) const {
            return mine ? make_uint2(p[(size_t)k * 64], p[(size_t)k * 64 + 32]) : make_uint2(0, 0);
        }
    };
};

template <class T> __device__ __forceinline__ uint32_t two(float a, float b) {
    T v[2] = {from_float<T>(a), from_float<T>(b)};
    return *(const uint32_t *)v;
}

struct few_norm { // RMSNorm of fp32 rows, whose squares are summed by tiles of 16 already
    const float *x, *squares, *w;
    float eps;
    uint32_t D;
    template <class T> struct loader {
        const few_norm &in;
        const float *row, *w;
        uint32_t n_rows, lane;
        float scale;
        bool mine;
        __device__ loader(const few_norm &norm, uint32_t rows, uint32_t lane)
            : in(norm), row(norm.x + (size_t)(lane / 4) * norm.D + 2 * (lane % 4)), w(norm.w + 2 * (lane % 4)), n_rows(rows), lane(lane),
              scale(0), mine(lane / 4 < rows) {}
        __device__ void ready() {
#pragma unroll
            for (uint32_t r = 0; r < 8; r++)
                if (r < n_rows) {
                    float all = rms_scale(row_total(in.squares + (size_t)r * (in.D / 16), in.D / 16), in.D, in.eps);
                    if (r == lane / 4) scale = all;
                }
        }
        __device__ uint2 operator()(uint32_t k) const {
            if (!mine) return make_uint2(0, 0);
            const float2 a = *(const float2 *)(row + k * 16), b = *(const float2 *)(row + k * 16 + 8);
            const float2 wa = *(const float2 *)(w + k * 16), wb = *(const float2 *)(w + k * 16 + 8);
            return make_uint2(two<T>(normed(a.x, scale, wa.x), normed(a.y, scale, wa.y)), two<T>(normed(b.x, scale, wb.x), normed(b.y, scale, wb.y)));
        }
    };
};

// ---- what becomes of an output: (tile, o of 16, row), called by 128 threads, a half-warp a row; mine: the row is one ----

struct few_plain {
    float *y;
    size_t ldy;
    uint32_t O;
    struct state {};
    template <class T> __device__ void early(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void late(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void finish(state &, uint32_t tile, uint32_t o, uint32_t r, bool mine, float v) const {
        if (mine && tile * 16 + o < O) y[r * ldy + tile * 16 + o] = v;
    }
};

struct few_residual { // y = base + scale * v, and the squares of this tile
    const float *base, *row_sums;
    uint32_t n_sums, sum_n, D;
    float eps;
    float *y, *squares;
    struct state { float base, scale; };
    template <class T> __device__ void early(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void late(state &st, uint32_t tile, uint32_t o, uint32_t r, bool mine) const {
        st.base = mine ? base[(size_t)r * D + tile * 16 + o] : 0.0f;
        st.scale = 1.0f;
        if (!row_sums) return;
        const uint32_t first = r & ~1u, last = first + 1; // the rows of this warp
        const bool any = __any_sync(0xffffffffu, mine);
        if (!any) return;
        float one = row_total(row_sums + (size_t)first * n_sums, n_sums), other = 0;
        if (__all_sync(0xffffffffu, mine)) other = row_total(row_sums + (size_t)last * n_sums, n_sums);
        st.scale = rms_scale(r & 1 ? other : one, sum_n, eps);
    }
    template <class T> __device__ void finish(state &st, uint32_t tile, uint32_t o, uint32_t r, bool mine, float v) const {
        const float out = add_scaled(st.base, st.scale, v), square = tile_sum(mine ? out * out : 0.0f);
        if (mine) y[(size_t)r * D + tile * 16 + o] = out;
        if (mine && o == 0) squares[(size_t)r * (D / 16) + tile] = square;
    }
};

struct few_conv { // E1, E2: tiles of a, then from column Ep on of z
    cuda_shape shape;
    uint32_t layer;
    cuda_rows rows;
    const float *w, *bias;
    float *az, *s;
    void *s_act, *a_act;
    struct state { float tap[8], weight[8], bias; uint32_t slot, place; };
    template <class T> __device__ T *tail(const state &st, uint32_t e) const {
        return (T *)shape.conv + (size_t)st.slot * shape.conv_slot + layer * shape.conv_layer + e;
    }
    template <class T> __device__ void early(state &st, uint32_t tile, uint32_t o, uint32_t r, bool mine) const { // the tail was written a step ago
        const uint32_t e = tile * 16 + o;
        if (!mine || e >= shape.E) return;
        st.slot = (uint32_t)rows.slot[r];
        st.place = (uint32_t)(rows.pos[r] % shape.K);
        st.bias = bias[e];
        conv_taps(st.weight, st.tap, w + e, tail<T>(st, e), shape.K, shape.Ep, st.place);
    }
    template <class T> __device__ void late(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void finish(state &st, uint32_t tile, uint32_t o, uint32_t r, bool mine, float v) const {
        const uint32_t e = tile * 16 + o;
        if (!mine) return;
        az[(size_t)r * 2 * shape.Ep + e] = v;
        if (e >= shape.E) return;
        const float sum = conv_sum(st.weight, st.tap, v, st.bias);
        const T stored = from_float<T>(v);
        s[(size_t)r * shape.Ep + e] = sum;
        ((T *)s_act)[act_at<T>(r, e, shape.E)] = from_float<T>(sum);
        ((T *)a_act)[act_at<T>(r, e, shape.E)] = stored;
        tail<T>(st, e)[(size_t)st.place * shape.Ep] = stored;
    }
};

struct few_ffn { // E10: eight rows of a2, eight of g2
    void *act;
    uint32_t F;
    struct state {};
    template <class T> __device__ void early(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void late(state &, uint32_t, uint32_t, uint32_t, bool) const {}
    template <class T> __device__ void finish(state &, uint32_t tile, uint32_t o, uint32_t r, bool mine, float v) const {
        const float gate = __shfl_xor_sync(0xffffffffu, v, 8);
        if (mine && o < 8) ((T *)act)[act_at<T>(r, tile * 8 + o, (F + 15) / 16 * 16)] = from_float<T>(ffn_gate(v, gate));
    }
};

// ---- the kernel ----

// A block: a tile of 16 outputs, whole. GROUP operands are in flight at a time. EARLY: the next kernel may start before the inputs are ready.
template <class T, int GROUP, bool EARLY, class In, class Out>
__global__ void __launch_bounds__(FEW_WARPS * 32)
few_kernel(const uint4 *w, uint32_t KT, uint32_t n_rows, In in, Out out) {
    extern __shared__ __align__(128) unsigned char smem[];
    float *part = (float *)(smem + (size_t)KT * 512);
    uint64_t *bars = (uint64_t *)(part + FEW_WARPS * 8 * FEW_LD);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, tile = blockIdx.x;
    const uint32_t k0 = KT * warp / FEW_WARPS, k1 = KT * (warp + 1) / FEW_WARPS;
    const uint4 *a = (const uint4 *)smem + (size_t)k0 * 32 + lane;
    if (lane == 0) bulk_load(smem + (size_t)k0 * 512, w + ((size_t)tile * KT + k0) * 32, (k1 - k0) * 512, bars + warp);
    const uint32_t o = threadIdx.x % 16, r = threadIdx.x / 16; // of the outputs, threads 0 to 127
    const bool mine = r < n_rows;
    typename Out::state state;
    if (EARLY) let_next_start();
    if (warp < 4) out.template early<T>(state, tile, o, r, mine);
    __syncwarp(); // the barrier is there
    wait_for_inputs();
    if (!EARLY) let_next_start();
    typename In::template loader<T> load(in, n_rows, lane);
    if (warp < 4) out.template late<T>(state, tile, o, r, mine);
    load.ready();
    float acc[4] = {};
    for (uint32_t k = k0; k < k1; k += GROUP) {
        uint2 b[GROUP];
#pragma unroll
        for (int u = 0; u < GROUP; u++)
            if (k + u < k1) b[u] = load(k + u);
        if (k == k0) await_bulk(bars + warp);
#pragma unroll
        for (int u = 0; u < GROUP; u++)
            if (k + u < k1) mma(acc, a[(size_t)(k - k0 + u) * 32], b[u], T());
    }
    float *mine_part = part + warp * 8 * FEW_LD;
    mine_part[2 * t * FEW_LD + g] = acc[0];
    mine_part[(2 * t + 1) * FEW_LD + g] = acc[1];
    mine_part[2 * t * FEW_LD + g + 8] = acc[2];
    mine_part[(2 * t + 1) * FEW_LD + g + 8] = acc[3];
    __syncthreads(); // every slice's sum before they are added
    if (warp < 4) out.template finish<T>(state, tile, o, r, mine, canonical_sum(part + r * FEW_LD + o, 8 * FEW_LD));
}

static size_t few_smem(uint32_t KT) { return (size_t)KT * 512 + FEW_WARPS * (8 * FEW_LD * sizeof(float) + 8); }

template <class T, bool EARLY, class In, class Out>
static void few_launch(const struct cuda_matrix *w, uint32_t n_rows, const In &in, const Out &out, void *stream) {
    const uint32_t KT = cuda_pad16(w->cols) / 16;
    auto kernel = KT <= 8 * FEW_WARPS ? few_kernel<T, 8, EARLY, In, Out> : few_kernel<T, 16, EARLY, In, Out>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)few_smem(KT));
    launch(kernel, dim3(cuda_pad16(w->rows) / 16), dim3(FEW_WARPS * 32), few_smem(KT), stream, (const uint4 *)w->data, KT, n_rows, in, out);
}
#define FEW(w, early, ...)                                                                  \
    do {                                                                                    \
        if ((w)->dtype == CUDA_F16) few_launch<__half, early>(w, n_rows, __VA_ARGS__);      \
        else few_launch<__nv_bfloat16, early>(w, n_rows, __VA_ARGS__);                      \
    } while (0)

// Two products of the same k with operands of their own. A block: a tile, a quarter of k, a warp a slice; out: [4][n_rows][ldy].
struct few_part { const uint4 *w; const uint32_t *act; float *y; size_t ldy, quarter_stride; uint32_t tiles, O; };
template <class T>
__global__ void __launch_bounds__(128)
few_pair_kernel(few_part one, few_part two, uint32_t KT, uint32_t n_rows) {
    __shared__ float part[4][8][FEW_LD];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = blockIdx.y * 4 + warp;
    const bool second = blockIdx.x >= one.tiles;
    const few_part p = second ? two : one;
    const uint32_t tile = second ? blockIdx.x - one.tiles : blockIdx.x, k0 = KT * slice / 16, n = KT * (slice + 1) / 16 - k0;
    const uint4 *w = p.w + ((size_t)tile * KT + k0) * 32 + lane;
    const uint32_t *act = p.act + (size_t)k0 * 64 + lane;
    uint4 a[16];
#pragma unroll
    for (int u = 0; u < 16; u++)
        if (u < n) a[u] = w[(size_t)u * 32];
    let_next_start();
    wait_for_inputs();
    float acc[4] = {};
    for (uint32_t k = 0; k < n; k += 16) {
        uint2 b[16];
#pragma unroll
        for (int u = 0; u < 16; u++)
            if (k + u < n) b[u] = g < n_rows ? make_uint2(act[(size_t)(k + u) * 64], act[(size_t)(k + u) * 64 + 32]) : make_uint2(0, 0);
#pragma unroll
        for (int u = 0; u < 16; u++)
            if (k + u < n) {
                mma(acc, a[u], b[u], T());
                if (k + u + 16 < n) a[u] = w[(size_t)(k + u + 16) * 32];
            }
    }
    part[warp][2 * t][g] = acc[0];
    part[warp][2 * t + 1][g] = acc[1];
    part[warp][2 * t][g + 8] = acc[2];
    part[warp][2 * t + 1][g + 8] = acc[3];
    __syncthreads(); // the four slices
    const uint32_t o = threadIdx.x % 16, r = threadIdx.x / 16;
    if (r < n_rows && tile * 16 + o < p.O)
        p.y[blockIdx.y * p.quarter_stride + r * p.ldy + tile * 16 + o] = ((part[0][r][o] + part[1][r][o]) + part[2][r][o]) + part[3][r][o];
}

// ---- launchers ----

bool cuda_few_possible(const struct cuda_shape *shape) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9 && shape->dtype != CUDA_F32 && shape->D % 16 == 0 && shape->E % 16 == 0 && shape->F % 8 == 0 &&
           shape->H * shape->P % 16 == 0 && few_smem(cuda_pad16(shape->D) / 16) <= FEW_SMEM && few_smem(cuda_pad16(shape->E) / 16) <= FEW_SMEM &&
           few_smem(cuda_pad16(shape->F) / 16) <= FEW_SMEM && few_smem(cuda_pad16(shape->H * shape->P) / 16) <= FEW_SMEM;
}

static few_norm norm_of(const struct cuda_residual *in) { return few_norm{in->x, in->squares, in->norm, in->eps, in->D}; }

void k_few_linear(const struct cuda_matrix *w, const struct cuda_residual *in, uint32_t n_rows, float *y, size_t ldy, void *stream) {
    FEW(w, true, norm_of(in), few_plain{y, ldy, w->rows}, stream);
}

void k_few_conv(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, const struct cuda_matrix *w,
                const struct cuda_residual *in, const float *conv, const float *bias, uint32_t n_rows, float *az, float *s, void *s_act,
                void *a_act, void *stream) {
    FEW(w, false, norm_of(in), few_conv{*shape, layer, *rows, conv, bias, az, s, s_act, a_act}, stream);
}

void k_few_ffn(const struct cuda_matrix *w, const struct cuda_residual *in, uint32_t n_rows, void *act, void *stream) {
    FEW(w, true, norm_of(in), few_ffn{act, w->rows / 2}, stream);
}

void k_few_residual(const struct cuda_matrix *w, const void *act, const float *base, const float *row_sums, uint32_t n_sums, uint32_t sum_n,
                    float eps, uint32_t n_rows, float *y, float *squares, void *stream) {
    FEW(w, true, few_act{(const uint32_t *)act, cuda_pad16(w->cols) / 16}, few_residual{base, row_sums, n_sums, sum_n, w->rows, eps, y, squares}, stream);
}

void k_few_linear_pair(const struct cuda_matrix *w1, const void *x1, float *y1, size_t ldy1, size_t split_stride1, const struct cuda_matrix *w2,
                       const void *x2, float *y2, size_t ldy2, size_t split_stride2, uint32_t n_rows, void *stream) {
    const uint32_t KT = cuda_pad16(w1->cols) / 16;
    const few_part one = {(const uint4 *)w1->data, (const uint32_t *)x1, y1, ldy1, split_stride1, cuda_pad16(w1->rows) / 16, w1->rows};
    const few_part two = {(const uint4 *)w2->data, (const uint32_t *)x2, y2, ldy2, split_stride2, cuda_pad16(w2->rows) / 16, w2->rows};
    const dim3 grid(one.tiles + two.tiles, 4);
    if (w1->dtype == CUDA_F16) launch(few_pair_kernel<__half>, grid, dim3(128), 0, stream, one, two, KT, n_rows);
    else launch(few_pair_kernel<__nv_bfloat16>, grid, dim3(128), 0, stream, one, two, KT, n_rows);
}
