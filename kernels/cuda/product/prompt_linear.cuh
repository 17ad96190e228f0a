// prompt_linear.cuh - products of prompts' rows in 16 bit on Hopper, in an order of their own: one fp32 accumulator
// over all of k, tiles of 16 ascending, whatever the number of rows. Each multiprocessor runs one block that takes one
// tile after the other: one or two warpgroups of consumers with 64 outputs each; of one more, one thread feeds the ring
// and the other warps make the scales of the rows' norms.
//
// A warpgroup finishes its sums where wgmma left them, 32 rows at a time: warp w, lane (g, t) has outputs 16 w + g and
// + 8 of rows 8 i + 2 t and + 1. What is added to them comes through the ring behind the tile's last products, and what
// they become leaves by the tensor copy engine, while the next tile's products go on.
#pragma once
#include "wide.cuh"

// A tile: 64 MW outputs and N rows.
template <int BITS_, int MW_, int N_> struct broad {
    using weights_of_stage = stage_weights<BITS_, MW_ * 4, MW_ == 1 ? 8 : 4, true>;
    enum {
        BITS = BITS_,
        MW = MW_,
        N = N_,
        SK = MW == 1 ? 8 : 4, // of k, in tiles, a stage
        W_STAGE = weights_of_stage::BYTES,
        X_STAGE = N / 8 * SK * 256,
        COPIED = W_STAGE + X_STAGE,
        LEAST = MW * 8192,                                                // 32 fp32 rows
        STAGE = ((COPIED > LEAST ? COPIED : LEAST) + 1023) / 1024 * 1024, // as wgmma's swizzle wants it
        OUT = 16384,                                                      // bytes of a warpgroup for what leaves
        PACK_ROWS = N < 64 ? N : 64,                                      // of packed outputs, at a time
        BASE_ROWS = STAGE >= MW * 64 * 64 * 4 && N >= 64 ? 64 : 32,
        BASE_BOX = BASE_ROWS * 128,
        BASE_STAGE = MW * 2 * BASE_BOX, // of fp32 rows, by 32 columns
        MOST = ((227 << 10) - MW * OUT - 2560) / STAGE,
        STAGES = MOST < 16 ? MOST : 16,
        RING = STAGES * STAGE,
        BYTES = RING + MW * OUT,
        THREADS = MW * 128 + 128,
        GROUP = 2048 / N
    }; // GROUP: row blocks that alternate for their weights
    static_assert(BASE_STAGE <= STAGE, "a stage holds rows of the stream");
};
struct broad_maps {
    CUtensorMap w, scales, x, base, y, act, more;
};              // scales: of codes; more: z
struct out_az { // W_fc: a, and from output Ep on z, each packed
    row_norm norm;
    void *a, *z;
    uint32_t E, Ep;
};
struct broad_order {
    uint32_t KT, n_rows, row_blocks, blocks;
}; // of the tiles; blocks of outputs

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The weights of the stage at `at`, of the warp's row of tiles.
template <class G, class T, int SK>
__device__ __forceinline__ void load_stage(uint4 (&a)[SK], const weights<G::BITS> &w, uint32_t at, uint32_t row) {
    G::weights_of_stage::template operands<0, SK>(a, w, at, row, 0, T());
}
template <int SK> __device__ __forceinline__ void hold(uint4 (&a)[SK]) { // read until, or there from, here
#pragma unroll
    for (int j = 0; j < SK; j++) asm volatile("" : "+r"(a[j].x), "+r"(a[j].y), "+r"(a[j].z), "+r"(a[j].w)::"memory");
}
__device__ __forceinline__ void copy_rows(void *dst, const CUtensorMap *map, uint32_t column, uint32_t row,
                                          uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                 "%3}], [%4];" ::"r"(shared_address(dst)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(b))
                 : "memory");
}
// Out of shared memory. What lies beyond the tensor stays.
__device__ __forceinline__ void leave_rows(const void *from, const CUtensorMap *map, uint32_t column, uint32_t row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(column), "r"(row), "r"(shared_address(from))
                 : "memory");
}
__device__ __forceinline__ void leave_tiles(const void *from, const CUtensorMap *map, uint32_t k, uint32_t row) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(0), "r"(k), "r"(row), "r"(shared_address(from))
                 : "memory");
}
__device__ __forceinline__ void leave_together() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LATEST>
__device__ __forceinline__ void wait_left() { // what this thread let leave, but the latest, has been read
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATEST) : "memory");
}
// Four matrices of 8 columns (registers' lanes g) by 8 rows (t, in pairs) as rows of 16 bytes; lane l has the address
// of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t at, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
template <class T> __device__ __forceinline__ uint32_t pair_of(float low, float high) {
    const T x[2] = {from_float<T>(low), from_float<T>(high)};
    uint32_t bits;
    memcpy(&bits, x, 4);
    return bits;
}
__device__ __forceinline__ float shared_float(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ void shared_store(uint32_t at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

// The scales of n rows from row0 on: four lanes a row; fours of sums, then a butterfly. Scales of the tile's other
// rows, up to `all`, are 0: what these rows become leaves too, as far as a tile of eight rows of the step reaches.
template <class T>
__device__ __forceinline__ void broad_scales(float *scales, const row_norm &norm, uint32_t row0, uint32_t n,
                                             uint32_t all, uint32_t warp, uint32_t n_warps) {
    enum { U = 2 };
    const uint32_t lane = threadIdx.x % 32, quarters = (norm.n_sums + 3) / 4;
#pragma unroll 1
    for (uint32_t r = n + warp * 32 + lane; r < all; r += n_warps * 32) scales[r] = 0;
#pragma unroll 1
    for (uint32_t first = warp * 8 * U; first < n; first += n_warps * 8 * U) {
        const float *part[U];
        float sum[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const uint32_t r = first + u * 8 + lane / 4;
            part[u] = r < n ? norm.squares + (size_t)(row0 + r) * norm.n_sums : NULL, sum[u] = 0;
        }
#pragma unroll 2
        for (uint32_t i = lane % 4; i < (quarters + 3) / 4 * 4; i += 4) {
            float x[U][4];
#pragma unroll
            for (int u = 0; u < U; u++) load_four(x[u], part[u], i * 4, norm.n_sums);
#pragma unroll
            for (int u = 0; u < U; u++) sum[u] += four_sum(x[u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            sum[u] = neighbours_sum<4>(sum[u]);
            if (part[u] && lane % 4 == 0) scales[first + u * 8 + lane / 4] = norm_scale<T>(norm, sum[u]);
        }
    }
}

// A warpgroup's part of finishing a tile.
struct broad_place {
    uint32_t row0, rows, o;       // the tile's; the first output of the warpgroup
    uint32_t warp, lane, wg, bar; // of the warpgroup, named barrier
    bool elected, norms;          // one thread of the warpgroup lets things leave
    const float *scales;          // of the tile's rows
    unsigned char *out;           // broad::OUT bytes
    uint32_t parity;              // which half of them
    __device__ __forceinline__ void sync() const {
        delay(16);
        asm volatile("bar.sync %0, 128;" ::"r"(bar) : "memory");
        delay(16);
    }
    __device__ __forceinline__ float2 scale_of(int r) const {
        return norms ? *(const float2 *)(scales + r + lane % 4 * 2) : make_float2(1.0f, 1.0f);
    }
    // Where in rows of 32 fp32 columns with wgmma's swizzle this lane's value of row 2 t + e and output g + 8 h lies.
    __device__ __forceinline__ uint32_t swizzled(int e, int h) const {
        const uint32_t r = lane % 4 * 2 + e, piece = warp % 2 * 4 + lane / 16 + h * 2;
        return r * 128 + (piece ^ r) * 16 + lane / 4 % 4 * 4;
    }
};
// Tile t: of a group of row blocks all outputs, and there its row blocks one after the other.
template <class G>
__device__ __forceinline__ void broad_tile(const broad_order &order, uint32_t t, uint32_t &row0, uint32_t &block) {
    const uint32_t per = G::GROUP * order.blocks, g = t / per, rest = t - g * per,
                   size = min((uint32_t)G::GROUP, order.row_blocks - g * G::GROUP);
    block = rest / size;
    row0 = (g * G::GROUP + rest - block * size) * G::N;
}

// One thread: the block's tiles through the ring.
template <class G, bool residual>
__device__ __forceinline__ void broad_feed(unsigned char *ring, uint64_t *full, uint64_t *empty, const broad_maps &maps,
                                           const weights<G::BITS> &w, const broad_order &order) {
    using S = typename G::weights_of_stage;
    enum { SK = G::SK, STAGES = G::STAGES, MW = G::MW, NB = G::N, SENDER = MW * 4 };
    const uint32_t steps = (order.KT + SK - 1) / SK;
    uint32_t s = 0, phase = 0; // stage, and which of its rounds
    const auto advance = [&] {
        if (++s == STAGES) s = 0, phase ^= 1;
    };
    uint64_t often, once;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(often));
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;"
                 : "=l"(once)); // evict_normal would halve the rate of copies
    uint32_t row0, block, n_ready = min((uint32_t)STAGES, steps), n_free = STAGES;
    broad_tile<G>(order, blockIdx.x, row0, block);
    const auto fetch = [&](uint32_t stage, uint32_t k) { // its weights
        unsigned char *at = ring + stage * G::STAGE;
        barrier_expect(full + stage, S::coming(w, G::COPIED));
        copy_box(at, &maps.w, k, block * SENDER, full + stage, once);
        if (G::BITS < 16) copy_box(at + S::TILES, &maps.scales, k >> w.per, block * SENDER, full + stage, once);
    };
    for (uint32_t i = 0; i < n_ready; i++) fetch(i, i * SK);
    wait_for_inputs(); // x is complete
    const auto take = [&] {
        if (n_free)
            n_free--;
        else
            barrier_wait(empty + s, phase ^ 1);
    };
#pragma unroll 1
    for (uint32_t t = blockIdx.x; t < order.blocks * order.row_blocks; t += gridDim.x) {
        broad_tile<G>(order, t, row0, block);
#pragma unroll 1
        for (uint32_t k = 0; k < order.KT; k += SK, advance()) {
            take();
            if (n_ready)
                n_ready--;
            else
                fetch(s, k);
            copy_box(ring + s * G::STAGE + G::W_STAGE, &maps.x, k, row0 / 8, full + s, often);
        }
        if constexpr (residual) {
            const uint32_t end = min(row0 + NB, order.n_rows);
#pragma unroll 1
            for (uint32_t r = row0; r < end; r += G::BASE_ROWS, advance()) {
                take();
                barrier_expect(full + s, G::BASE_STAGE);
#pragma unroll
                for (int i = 0; i < MW * 2; i++)
                    copy_rows(ring + s * G::STAGE + i * G::BASE_BOX, &maps.base, block * MW * 64 + i * 32, r, full + s);
            }
        }
    }
}

// leave<T, G>(acc, my, maps, out): what a tile's sums become, but the stream (add_base).

// Sums as rows of y.
template <class T, class G>
__device__ __forceinline__ void leave(const float (&acc)[G::N / 2], broad_place &my, const broad_maps &maps,
                                      const out_plain &) {
    enum { NB = G::N };
    const uint32_t at = shared_address(my.out) + my.warp / 2 * 4096;
    const uint32_t to[4] = {my.swizzled(0, 0), my.swizzled(1, 0), my.swizzled(0, 1), my.swizzled(1, 1)};
#pragma unroll
    for (int c = 0; c < NB / 32; c++) {
        if (c * 32 >= my.rows) break;
        if (my.elected) wait_left<1>();
        my.sync(); // this half is free
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 scale = my.scale_of(c * 32 + i * 8);
#pragma unroll
            for (int e = 0; e < 4; e++)
                shared_store(at + my.parity * 8192 + i * 1024 + to[e],
                             acc[c * 16 + i * 4 + e] * (e % 2 ? scale.y : scale.x));
        }
        written_for_wgmma();
        my.sync();
        if (my.elected) {
            const unsigned char *from = my.out + my.parity * 8192;
            leave_rows(from, &maps.y, my.o, my.row0 + c * 32),
                leave_rows(from + 4096, &maps.y, my.o + 32, my.row0 + c * 32);
            leave_together();
        }
        my.parity ^= 1;
    }
}

// a and z, packed.
template <class T, class G>
__device__ __forceinline__ void leave(const float (&acc)[G::N / 2], broad_place &my, const broad_maps &maps,
                                      const out_az &out) {
    enum { NB = G::N };
    enum { ROWS = G::PACK_ROWS };
    const uint32_t matrix =
        shared_address(my.out) + my.warp / 2 * (ROWS * 64) + my.lane / 8 * 512 + my.warp % 2 * 256 + my.lane % 8 * 16;
#pragma unroll
    for (int c = 0; c < NB / 32; c++) {
        if (c * 32 >= my.rows) break;
        const uint32_t to = matrix + my.parity * (ROWS * 128) + c * 32 % ROWS * 64;
        if (c * 32 % ROWS == 0) {
            if (my.elected) wait_left<1>();
            my.sync(); // this half is free
        }
        uint32_t low[4], high[4]; // outputs g and g + 8
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 scale = my.scale_of(c * 32 + i * 8);
            const float *v = acc + c * 16 + i * 4;
            low[i] = pair_of<T>(v[0] * scale.x, v[1] * scale.y), high[i] = pair_of<T>(v[2] * scale.x, v[3] * scale.y);
        }
        store_matrices(to, low), store_matrices(to + 128, high);
        if ((c * 32 + 32) % ROWS && c * 32 + 32 < my.rows) continue;
        written_for_wgmma();
        my.sync();
        if (my.elected) {
#pragma unroll
            for (int half = 0; half < 2; half++) { // 32 outputs are all of a or all of z
                const uint32_t o = my.o + half * 32;
                const bool is_z = o >= out.Ep;
                leave_tiles(my.out + my.parity * (ROWS * 128) + half * (ROWS * 64), is_z ? &maps.more : &maps.act,
                            (is_z ? o - out.Ep : o) / 16, (my.row0 + c * 32 / ROWS * ROWS) / 8);
            }
            leave_together();
        }
        my.parity ^= 1;
    }
}

// The FFN's gate: outputs g are a2, g + 8 g2. Beyond F zeros, whatever the row holds: the next product reads them,
// times 0.
template <class T, class G>
__device__ __forceinline__ void leave(const float (&acc)[G::N / 2], broad_place &my, const broad_maps &maps,
                                      const out_ffn &out) {
    enum { NB = G::N };
    const bool there = my.o / 2 + my.warp * 8 < out.F;
    const uint32_t matrix = shared_address(my.out) + my.lane / 8 * 512 + my.warp * 128 + my.lane % 8 * 16;
    if (my.elected) wait_left<0>();
    my.sync(); // the last tile's outputs have left
#pragma unroll
    for (int c = 0; c < NB / 32; c++) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 scale = my.scale_of(c * 32 + i * 8);
            const float *v = acc + c * 16 + i * 4;
            x[i] = there
                       ? pair_of<T>(ffn_gate(v[0] * scale.x, v[2] * scale.x), ffn_gate(v[1] * scale.y, v[3] * scale.y))
                       : 0;
        }
        store_matrices(matrix + c * 2048, x);
    }
    written_for_wgmma();
    my.sync();
    if (my.elected) leave_tiles(my.out, &maps.act, my.o / 32, my.row0 / 8), leave_together();
}

// Three warps: the scales of the rows of the block's tiles, one tile after the other.
template <class T, class G>
__device__ __forceinline__ void broad_scale_rows(float (*scales)[G::N], uint64_t *scaled, uint64_t *used,
                                                 const row_norm &norm, const broad_order &order, uint32_t warp) {
    wait_for_inputs();
    uint32_t n = 0;
#pragma unroll 1
    for (uint32_t t = blockIdx.x; t < order.blocks * order.row_blocks; t += gridDim.x, n++) {
        uint32_t row0, block;
        broad_tile<G>(order, t, row0, block);
        if (n >= 2) barrier_wait(used + n % 2, (n / 2 - 1) & 1);
        broad_scales<T>(scales[n % 2], norm, row0, min((uint32_t)G::N, order.n_rows - row0), G::N, warp, 3);
        barrier_arrive(scaled + n % 2);
    }
}

// What a lane has of 32 rows of the next product's operand: squares, outputs g and g + 8.
struct broad_left {
    float square[8];
    uint32_t low[4], high[4];
};
// The sums of rows 32 c and on, scaled, to the stream at `base`; the new stream's squares and its outputs g and g + 8
// of the next product's operand.
template <class T, int NB>
__device__ __forceinline__ void add_base(const float (&acc)[NB / 2], const broad_place &my, int c, uint32_t base,
                                         const uint32_t (&to)[4], const float (&w)[2], bool leaves, broad_left &left) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 scale = my.scale_of(c * 32 + i * 8);
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[e] =
                add_scaled(shared_float(base + i * 1024 + to[e]), e % 2 ? scale.y : scale.x, acc[c * 16 + i * 4 + e]);
            if (leaves) shared_store(base + i * 1024 + to[e], v[e]);
        }
        left.square[i * 2] = __fmaf_rn(v[2], v[2], v[0] * v[0]);
        left.square[i * 2 + 1] = __fmaf_rn(v[3], v[3], v[1] * v[1]);
        left.low[i] = pair_of<T>(weighted<T>(v[0], w[0]), weighted<T>(v[1], w[0]));
        left.high[i] = pair_of<T>(weighted<T>(v[2], w[1]), weighted<T>(v[3], w[1]));
    }
}

// 32 rows of the next product's operand, and their squares: these are summed over g until lane g has those of rows
// 8 (g / 2) + 2 t + g % 2.
__device__ __forceinline__ void leave_packed(const broad_place &my, uint32_t to, float *parts, broad_left &left) {
    float(&square)[8] = left.square;
    store_matrices(to, left.low), store_matrices(to + 128, left.high);
#pragma unroll
    for (int half = 4; half; half >>= 1)
#pragma unroll
        for (int j = 0; j < half; j++) {
            const bool upper = my.lane & half * 4;
            const float given = upper ? square[j] : square[j + half], kept = upper ? square[j + half] : square[j];
            square[j] = kept + __shfl_xor_sync(0xffffffffu, given, half * 4);
        }
    parts[my.warp * 32 + my.lane / 8 * 8 + my.lane % 4 * 2 + my.lane / 4 % 2] = square[0];
}

// A row's squares of the warpgroup.
__device__ __forceinline__ float sum_of_warps(const float *part) {
    return ((part[0] + part[32]) + part[64]) + part[96];
}

// One thread: the block's barriers.
template <class G>
__device__ __forceinline__ void broad_barriers(uint64_t *full, uint64_t *empty, uint64_t *scaled, uint64_t *used) {
    for (int i = 0; i < G::STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, G::MW * 4);
    for (int i = 0; i < 2; i++) barrier_init(scaled + i, 96), barrier_init(used + i, G::MW * 4);
    barriers_there();
}

// The elected thread gives stages of the stream back when what left of them has been read: one, or what it still has.
template <int STAGES> __device__ __forceinline__ void give_one_back(uint64_t *empty, uint32_t (&held)[2]) {
    wait_left<1>();
    if (held[0] < STAGES) barrier_arrive(empty + held[0]);
    held[0] = held[1], held[1] = STAGES;
}
template <int STAGES> __device__ __forceinline__ void give_all_back(uint64_t *empty, const uint32_t (&held)[2]) {
    wait_left<0>();
    for (int i = 0; i < 2; i++)
        if (held[i] < STAGES) barrier_arrive(empty + held[i]);
}

// The next stage of a block's ring to be read, in which of its rounds.
template <class G> struct broad_ring {
    unsigned char *ring;
    uint64_t *full, *empty;
    uint32_t s, phase;
    __device__ __forceinline__ void advance() {
        if (++s == G::STAGES) s = 0, phase ^= 1;
    }
};
// A tile's sums to the stream, which comes through the ring, and to the next product's operand.
template <class T, class G, int N>
__device__ __forceinline__ void leave_residual(const float (&acc)[N], broad_place &my, const broad_maps &maps,
                                               const out_residual &out, broad_ring<G> &at) {
    enum { NB = 2 * N, STAGES = G::STAGES };
    enum { EACH = G::BASE_ROWS / 32 };
    const uint32_t o = my.o + my.warp * 16 + my.lane / 4, box = (my.wg * 2 + my.warp / 2) * G::BASE_BOX;
    const uint32_t to[4] = {my.swizzled(0, 0), my.swizzled(1, 0), my.swizzled(0, 1), my.swizzled(1, 1)};
    const bool packs = out.w != NULL, leaves = out.y != NULL;
    const float norm_w[2] = {packs && o < out.D ? out.w[o] : 0.0f, packs && o + 8 < out.D ? out.w[o + 8] : 0.0f};
    float *const parts = (float *)(my.out + 8192); // [2][4 warps][32 rows]
    const uint32_t matrix = shared_address(my.out) + my.lane / 8 * 1024 + my.warp * 256 + my.lane % 8 * 16;
    // Stages that the elected thread still has: until what left before the latest, the latest.
    uint32_t held[2] = {STAGES, STAGES};
#pragma unroll
    for (int c = 0; c < NB / 32; c++) {
        if (c * 32 >= my.rows) break;
        if (my.elected) give_one_back<STAGES>(at.empty, held);
        my.sync(); // this half is free
        if (c % EACH == 0) barrier_wait(at.full + at.s, at.phase);
        unsigned char *const stage = at.ring + at.s * G::STAGE + c % EACH * 4096;
        const uint32_t base = shared_address(stage) + box;
        broad_left left;
        add_base<T, NB>(acc, my, c, base, to, norm_w, leaves, left);
        if (packs) leave_packed(my, matrix + my.parity * 4096, parts + my.parity * 128, left);
        written_for_wgmma();
        my.sync();
        if (my.elected) {
            const unsigned char *from = stage + my.wg * 2 * G::BASE_BOX;
            const uint32_t r = my.row0 + c * 32;
            if (leaves) leave_rows(from, &maps.y, my.o, r), leave_rows(from + G::BASE_BOX, &maps.y, my.o + 32, r);
            if (packs) leave_tiles(my.out + my.parity * 4096, &maps.act, my.o / 16, r / 8);
            leave_together();
        }
        if (packs && my.warp == 0 && c * 32 + my.lane < my.rows && my.o < out.D) {
            out.squares[(size_t)(my.row0 + c * 32 + my.lane) * ((out.D + 63) / 64) + my.o / 64] =
                sum_of_warps(parts + my.parity * 128 + my.lane);
        }
        my.parity ^= 1;
        if (c % EACH == EACH - 1 || c * 32 + 32 >= my.rows) {
            if (my.elected)
                held[1] = at.s;
            else if (my.lane == 0)
                barrier_arrive(at.empty + at.s);
            at.advance();
        }
    }
    if (my.elected) give_all_back<STAGES>(at.empty, held);
}
#endif

template <class T, int BITS, int MW, int NB, class Out>
__global__ void __launch_bounds__(broad<BITS, MW, NB>::THREADS, 1)
    broad_kernel(const __grid_constant__ broad_maps maps, const __grid_constant__ weights<BITS> w,
                 const broad_order order, const __grid_constant__ Out out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = broad<BITS, MW, NB>;
    enum { SK = G::SK, STAGES = G::STAGES, N = NB / 2, SENDER = MW * 4 };
    constexpr bool residual = std::is_same<Out, out_residual>::value;
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ uint64_t full[STAGES], empty[STAGES], scaled[2], used[2];
    __shared__ float scales[2][NB]; // of a tile and the next
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = (order.KT + SK - 1) / SK,
                   n_tiles = order.blocks * order.row_blocks, step = gridDim.x;
    const bool norms = out.norm.squares != NULL;
    if (threadIdx.x == 0) broad_barriers<G>(full, empty, scaled, used);
    __syncthreads(); // the barriers are there
    let_next_start();
    broad_ring<G> at = {ring, full, empty, 0, 0};
    if (warp >= SENDER) {
        if (MW == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == SENDER * 32)
            broad_feed<G, residual>(ring, full, empty, maps, w, order);
        else if (norms && warp > SENDER)
            broad_scale_rows<T, G>(scales, scaled, used, out.norm, order, warp - SENDER - 1);
        __syncwarp();
    } else {
        if (MW == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        broad_place my = {};
        my.wg = warp / 4, my.warp = warp % 4, my.lane = lane, my.bar = 1 + my.wg, my.elected = threadIdx.x % 128 == 0,
        my.norms = norms;
        my.out = ring + G::RING + my.wg * G::OUT;
        float acc[N];
#pragma unroll
        for (int i = 0; i < N; i++) acc[i] = 0;
        // wgmma's description of x in shared memory: no swizzle, 128 bytes to the next 8 of k, a stage's tiles to the
        // next 8 rows
        const uint64_t b0 = ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(SK * 256 >> 4) << 32) |
                            (shared_address(ring + G::W_STAGE) & 0x3ffff) >> 4;
        const uint32_t a0 = shared_address(ring);
        uint4 a[2][SK];
        uint32_t last = 0, n = 0; // the stage before; tiles so far
        // The products of stage s with the weights `now`; when those of the stage before are done, the next stage's
        // weights to `next`.
        const auto multiply = [&](uint4(&now)[SK], uint4(&next)[SK], bool first, bool more) {
            const uint64_t b = b0 + at.s * (G::STAGE >> 4);
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < SK; j++) wgmma<false>(acc, now[j], b + j * (256 >> 4), j || !first, T());
            wgmma_end();
            wgmma_wait<1>();
            hold(next);
            if (!first && lane == 0) barrier_arrive(empty + last);
            last = at.s;
            at.advance();
            if (more) {
                barrier_wait(full + at.s, at.phase);
                load_stage<G, T>(next, w, a0 + at.s * G::STAGE, warp);
                hold(next);
            }
        };
        for (uint32_t t = blockIdx.x; t < n_tiles; t += step, n++) {
            barrier_wait(full + at.s, at.phase);
            load_stage<G, T>(a[0], w, a0 + at.s * G::STAGE, warp);
            hold(a[0]);
            uint32_t k = 0;
#pragma unroll 1
            for (; k + 1 < steps; k += 2) {
                multiply(a[0], a[1], k == 0, true);
                multiply(a[1], a[0], false, k + 2 < steps);
            }
            if (k < steps) multiply(a[0], a[1], k == 0, false);
            wgmma_wait<0>();
            hold(a[0]), hold(a[1]);
#pragma unroll
            for (int i = 0; i < N; i++) asm volatile("" : "+f"(acc[i])::"memory"); // read after the wait
            if (lane == 0) barrier_arrive(empty + last);
            uint32_t block;
            broad_tile<G>(order, t, my.row0, block);
            my.rows = min((uint32_t)NB, order.n_rows - my.row0), my.o = (block * MW + my.wg) * 64,
            my.scales = scales[n % 2];
            wait_for_inputs();
            if (norms) barrier_wait(scaled + n % 2, n / 2 & 1);
            if constexpr (residual)
                leave_residual<T, G>(acc, my, maps, out, at);
            else
                leave<T, G>(acc, my, maps, out);
            __syncwarp();
            if (norms && lane == 0) barrier_arrive(used + n % 2);
        }
        if (my.elected) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
#endif
}

// Rows of fp32, `columns` of them used; a box takes `rows` by 32, with wgmma's swizzle.
static CUtensorMap rows_map(const float *data, uint32_t columns, size_t ld, uint32_t n_rows, uint32_t rows) {
    CUtensorMap map = {};
    const cuuint64_t sizes[2] = {columns, n_rows}, strides[1] = {ld * 4};
    const cuuint32_t box[2] = {32, rows}, steps[2] = {1, 1};
    tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)data, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

template <class G> static void map_outputs(broad_maps &maps, const out_plain &out, uint32_t n_rows) {
    maps.y = rows_map(out.y, out.O, out.ldy, n_rows, 32);
}
template <class G> static void map_outputs(broad_maps &maps, const out_residual &out, uint32_t n_rows) {
    maps.base = rows_map(out.base, out.D, out.D, n_rows, G::BASE_ROWS);
    if (out.y) maps.y = rows_map(out.y, out.D, out.D, n_rows, 32);
    if (out.w) maps.act = tile_map(out.act, 64, out.D / 16, (n_rows + 7) / 8, 4, 4);
}
template <class G> static void map_outputs(broad_maps &maps, const out_ffn &out, uint32_t n_rows) {
    maps.act = tile_map(out.act, 64, cuda_pad16(out.F) / 16, (n_rows + 7) / 8, 2, G::N / 8);
}
template <class G> static void map_outputs(broad_maps &maps, const out_az &out, uint32_t n_rows) {
    maps.act = tile_map(out.a, 64, out.E / 16, (n_rows + 7) / 8, 2, G::PACK_ROWS / 8),
    maps.more = tile_map(out.z, 64, out.E / 16, (n_rows + 7) / 8, 2, G::PACK_ROWS / 8);
}

template <class Out> struct broad_job {
    wide_operands in;
    Out out;
    uint32_t KT, n_rows;
    cudaStream_t stream;
};
template <class T, int BITS, int MW, int NB, class Out> static void launch_broad(const broad_job<Out> &job) {
    using G = broad<BITS, MW, NB>;
    const struct cuda_matrix *m = job.in.w;
    const wide_part part = wide_part_of<typename G::weights_of_stage>(job.in, job.KT, job.n_rows, NB / 8);
    const weights<BITS> w = weights_of<BITS>(m);
    broad_maps maps = {};
    maps.w = part.w, maps.x = part.x, maps.scales = part.scales;
    map_outputs<G>(maps, job.out, job.n_rows);
    const broad_order order = {job.KT, job.n_rows, (job.n_rows + NB - 1) / NB, (part.tiles + MW * 4 - 1) / (MW * 4)};
    const uint32_t all = order.blocks * order.row_blocks, rounds = (all + multiprocessors() - 1) / multiprocessors();
    const auto kernel = broad_kernel<T, BITS, MW, NB, Out>;
    allow_shared(kernel, G::BYTES);
    launch(kernel, dim3((all + rounds - 1) / rounds), dim3(G::THREADS), G::BYTES, job.stream, maps, w, order, job.out);
}
// dispatch.h's.
static inline enum dispatch_kernel broad_of(const struct cuda_matrix *w, uint32_t n_rows) {
    dispatch_case c = {};
    c.op = DISPATCH_PROMPT_PRODUCT, c.device = this_device(), c.dtype = w->dtype, c.n_rows = n_rows;
    c.outputs = w->rows, c.k_tiles = cuda_pad16(w->cols) / 16;
    return dispatch_kernel_of(&c);
}
static inline row_norm broad_norm(const struct cuda_normed *in) {
    return row_norm{in->squares, cuda_prompt_sums(in->D), in->D, in->eps, true, false};
}
