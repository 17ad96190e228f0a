// conv_pair.cu - decode steps of more than 8 rows on Hopper: the convolution (E2) and the products that read what it
// leaves, in one kernel.
//
// A block: one of the 16 slices of k, NT eights of rows, some tiles of 16 outputs, a warp each. Its weights come by
// bulk copies and the older taps into registers before the inputs are ready; the slice's channels are convolved
// straight into shared memory as the products' operand. A cluster of four blocks adds a quarter's slices.
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/epilogue.cuh"

enum {
    PAIR_SLICES = 16,
    PAIR_QUARTER = 4,
    PAIR_TAPS = 4,
    PAIR_MATRIX = 144,
    PAIR_LD = 20
}; // 8 rows of 16 bytes and a gap; partial sums of a row: strides without bank conflicts

struct pair_half {
    const uint4 *w;
    float *y;
    size_t ldy, stride;
    uint32_t tiles, O;
}; // y: [4][n_rows][ldy]
struct pair_job : cuda_conv {
    uint32_t KT, most_k;         // k-tiles of the longest slice
    uint32_t splits, most_tiles; // of the outputs
    pair_half in, c0;            // of s, of a
};
static __host__ __device__ uint32_t pair_weights(uint32_t most_k,
                                                 uint32_t NT) { // bytes of a warp's weights, and of its sums later
    const uint32_t weights = most_k * 512, sums = NT * 8 * PAIR_LD * 4;
    return weights > sums ? weights : sums;
}
static uint32_t pair_smem(uint32_t tiles, uint32_t most_k, uint32_t NT) {
    return tiles * (pair_weights(most_k, NT) + 8) + 2 * NT * most_k * 2 * PAIR_MATRIX;
}

#if __CUDA_ARCH__ >= 900
// A quarter's slices, which the cluster's blocks have, to the outputs of one row of four.
template <int NT>
__device__ __forceinline__ void pair_finish(const pair_job &job, const unsigned char *smem, uint32_t bytes,
                                            uint32_t tile0, uint32_t tiles, uint32_t row0) {
    const uint32_t slice = blockIdx.x % PAIR_SLICES, rank = slice % PAIR_QUARTER;
    const uint32_t parts = shared_address(smem);
    for (uint32_t v = threadIdx.x; v < tiles * NT * 8; v += blockDim.x) { // of four rows one
        const uint32_t local = v / (NT * 8), quad = v % 4, r = v / 4 % (NT * 2) * 4 + rank,
                       o = (tile0 + local < job.in.tiles ? tile0 + local : tile0 + local - job.in.tiles) * 16 +
                           quad * 4;
        const bool is_in = tile0 + local < job.in.tiles;
        const pair_half &p = is_in ? job.in : job.c0;
        if (row0 + r >= job.n_rows || o >= p.O) continue;
        const uint32_t at = parts + local * bytes + (r * PAIR_LD + quad * 4) * 4;
        float4 x[PAIR_QUARTER];
#pragma unroll
        for (int j = 0; j < PAIR_QUARTER; j++)
            asm volatile(
                "{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %4, %5;\nld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [a];\n}"
                : "=f"(x[j].x), "=f"(x[j].y), "=f"(x[j].z), "=f"(x[j].w)
                : "r"(at), "r"(j));
        float sum[4] = {((x[0].x + x[1].x) + x[2].x) + x[3].x, ((x[0].y + x[1].y) + x[2].y) + x[3].y,
                        ((x[0].z + x[1].z) + x[2].z) + x[3].z, ((x[0].w + x[1].w) + x[2].w) + x[3].w};
        float *y = p.y + slice / PAIR_QUARTER * p.stride + (row0 + r) * p.ldy + o;
        if (p.ldy % 4 == 0 && p.stride % 4 == 0 && o + 4 <= p.O)
            store_floats(y, sum);
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (o + i < p.O) y[i] = sum[i];
    }
}
#endif

// A warp convolves a row. TILES: of 16 outputs a block, at most. DRAFTS: as conv_rows_kernel's.
template <int NT, int TILES> constexpr int PAIR_WARPS = NT * 8 > TILES ? NT * 8 : TILES;
template <class T, int NT, int TILES, bool DRAFTS>
__global__ void __launch_bounds__(PAIR_WARPS<NT, TILES> * 32, PAIR_WARPS<NT, TILES> <= 12 && NT <= 3 ? 2 : 1)
    conv_pair_kernel(const __grid_constant__ pair_job job) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char smem[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, KT = job.KT;
    const uint32_t slice = blockIdx.x % PAIR_SLICES, group = blockIdx.x / PAIR_SLICES, split = group % job.splits;
    const uint32_t row0 = group / job.splits * (NT * 8), k0 = KT * slice / PAIR_SLICES,
                   n_k = KT * (slice + 1) / PAIR_SLICES - k0;
    const uint32_t all = job.in.tiles + job.c0.tiles, tile0 = all * split / job.splits,
                   tiles = all * (split + 1) / job.splits - tile0;
    const uint32_t bytes = pair_weights(job.most_k, NT);
    unsigned char *weights = smem + warp * bytes, *operand_s = smem + job.most_tiles * bytes,
                  *operand_a = operand_s + NT * job.most_k * 2 * PAIR_MATRIX;
    uint64_t *bars = (uint64_t *)(operand_a + NT * job.most_k * 2 * PAIR_MATRIX);
    const auto half_of = [&](uint32_t tile) -> const pair_half & { return tile < job.in.tiles ? job.in : job.c0; };
    const auto tile_in = [&](uint32_t tile) { return tile < job.in.tiles ? tile : tile - job.in.tiles; };
    if (warp < tiles && lane == 0)
        bulk_load(weights, half_of(tile0 + warp).w + ((size_t)tile_in(tile0 + warp) * KT + k0) * 32, n_k * 512,
                  bars + warp);
    let_next_start();
    // A lane: eight channels.
    const uint32_t e = k0 * 16 + lane * 8, K = job.shape.K, ring = job.shape.conv_ring, Ep = job.shape.Ep;
    const bool mine = lane < 2 * n_k;
    float weight[PAIR_TAPS][8], bias[8];
#pragma unroll
    for (uint32_t j = 0; j < PAIR_TAPS; j++) {
#pragma unroll
        for (int i = 0; i < 8; i++) weight[j][i] = 0;
        if (mine && j + K >= PAIR_TAPS) load_floats(weight[j], job.w + e + (size_t)(j + K - PAIR_TAPS) * Ep);
    }
    if (mine) load_floats(bias, job.bias + e);
    narrow<8> tap[PAIR_TAPS]; // before the newest, oldest first and ending at tap[PAIR_TAPS - 2]; written a step ago
    T *to = NULL;             // the newest one's place, NULL: no row
    const uint32_t row = row0 + warp;
    if (mine && warp < NT * 8 && row < job.n_rows) {
        const uint32_t place = (uint32_t)(job.rows.pos[row] % ring);
        T *tail = (T *)job.shape.conv + (size_t)(uint32_t)job.rows.slot[row] * job.shape.conv_slot +
                  job.layer * job.shape.conv_layer + e;
        to = tail + (size_t)place * Ep;
#pragma unroll
        for (uint32_t j = 1; j < PAIR_TAPS; j++) {
            tap[PAIR_TAPS - 1 - j] = narrow<8>{};
            const uint32_t before = place >= j ? place - j : place + ring - j; // (place - j) mod ring
            if (j < K) tap[PAIR_TAPS - 1 - j] = *(const narrow<8> *)(tail + (size_t)before * Ep);
        }
    }
    __syncwarp(); // the barrier is there
    wait_for_inputs();
    if (to) {
        const float *az = job.az + (size_t)row * 2 * Ep + e;
        float a[8], sum[8];
        load_floats(a, az);
        if (DRAFTS) taps_of_step<T, PAIR_TAPS>(tap, job.rows.lead[row], K, az, Ep);
        conv_eight<T, PAIR_TAPS>(sum, weight, tap, a, bias);
        const narrow<8> stored = narrowed<T>(a);
        const uint32_t at =
            (warp / 8 * job.most_k * 2 + lane) * PAIR_MATRIX + warp % 8 * 16; // k-tile lane / 2, its half lane % 2
        *(narrow<8> *)(operand_s + at) = narrowed<T>(sum);
        *(narrow<8> *)(operand_a + at) = stored;
        if (split == 0) {
            store_floats(job.s + (size_t)row * Ep + e, sum);
            *(narrow<8> *)to = stored;
        }
    }
    __syncthreads(); // the operands
    if (warp < tiles) {
        await_bulk(bars + warp);
        const unsigned char *operand = (tile0 + warp < job.in.tiles ? operand_s : operand_a) + lane * 4;
        float acc[NT][4] = {};
#pragma unroll 4
        for (uint32_t k = 0; k < n_k; k++) {
            const uint4 w = ((const uint4 *)weights)[k * 32 + lane];
#pragma unroll
            for (int j = 0; j < NT; j++) {
                const uint32_t *p = (const uint32_t *)(operand + (j * job.most_k + k) * (2 * PAIR_MATRIX));
                mma(acc[j], w, make_uint2(p[0], p[PAIR_MATRIX / 4]), T());
            }
        }
        __syncwarp(); // all lanes have read the weights
        float *part = (float *)weights + lane % 4 * 2 * PAIR_LD + lane / 4;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[(j * 8 + i % 2) * PAIR_LD + i / 2 * 8] = acc[j][i];
    }
    delay(16);
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); // the quarter's slices
    delay(16);
    pair_finish<NT>(job, smem, bytes, tile0, tiles, row0);
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::
                     : "memory"); // nobody reads this block's sums any more
#endif
}

// ---- launcher ----

// E: a lane of a warp for every eight channels of a slice.
bool cuda_conv_pair_possible(const struct cuda_shape *shape) { return dispatch_conv_pair(this_device(), shape); }
static enum dispatch_kernel kernel_of(enum dispatch_op op, const struct cuda_shape *shape, uint32_t n_rows) {
    dispatch_case c = {};
    c.op = op, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = n_rows, c.shape = shape;
    return dispatch_kernel_of(&c);
}
bool cuda_conv_pair_runs(const struct cuda_shape *shape, uint32_t n_rows, bool drafts) {
    const enum dispatch_kernel kernel = kernel_of(drafts ? DISPATCH_DRAFT_CONV : DISPATCH_DECODE_CONV, shape, n_rows);
    return kernel == CONV_PAIR_1 || kernel == CONV_PAIR_3;
}

template <class T, int NT, int TILES> static void pair_launch(pair_job job, void *stream) {
    const uint32_t tiles = job.in.tiles + job.c0.tiles;
    job.splits = (tiles + TILES - 1) / TILES, job.most_tiles = (tiles + job.splits - 1) / job.splits;
    const uint32_t warps = job.most_tiles > NT * 8 ? job.most_tiles : NT * 8,
                   smem = pair_smem(job.most_tiles, job.most_k, NT);
    const auto kernel = job.rows.lead ? conv_pair_kernel<T, NT, TILES, true> : conv_pair_kernel<T, NT, TILES, false>;
    allow_shared(kernel, smem);
    launch_clusters(PAIR_QUARTER, kernel, dim3((job.n_rows + NT * 8 - 1) / (NT * 8) * job.splits * PAIR_SLICES),
                    dim3(warps * 32), smem, stream, job);
}
// Measured on an H200: of at most 48 rows, more blocks of fewer rows each; of 128, blocks of so many outputs that
// none of the published models' rows is convolved twice, and of so many rows that all are under way at once (30
// clusters of four with a multiprocessor a block).
template <class T> static void pair_choose(const pair_job &job, void *stream) {
    const enum dispatch_kernel kernel = kernel_of(DISPATCH_CONV_PAIR, &job.shape, job.n_rows);
    if (kernel == CONV_PAIR_1)
        pair_launch<T, 1, 9>(job, stream);
    else
        pair_launch<T, 3, 18>(job, stream);
}

static pair_half pair_half_of(const struct cuda_product *p) {
    return {(const uint4 *)p->w->data, p->y, p->ldy, p->stride, cuda_pad16(p->w->rows) / 16, p->w->rows};
}
void k_conv_pair(const struct cuda_conv *c, const struct cuda_product *in, const struct cuda_product *c0,
                 void *stream) {
    assert(c->n_rows > 0 && cuda_conv_pair_possible(&c->shape) && c->shape.K <= c->shape.conv_ring && !c->row_scale);
    assert(in->w->cols == c->shape.E && c0->w->cols == c->shape.E && in->w->format == CUDA_STORED);
    assert(in->ldy >= in->w->rows && c0->ldy >= c0->w->rows && on_16_bytes(c->az, c->w, c->bias, c->s));
    const uint32_t KT = c->shape.E / 16;
    const pair_job job = {*c, KT, (KT + PAIR_SLICES - 1) / PAIR_SLICES, 0, 0, pair_half_of(in), pair_half_of(c0)};
    if (c->shape.dtype == CUDA_F16)
        pair_choose<__half>(job, stream);
    else
        pair_choose<__nv_bfloat16>(job, stream);
}
