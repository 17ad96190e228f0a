// one_launch.cuh - what the parts of a decode step as one launch share (one_launch.cu): its arguments, the order of its
// products, a block's shared memory, and how weights come to a block.
//
// All layers of a step of R rows are one launch of a block a multiprocessor. A block has 16 warps, each with a slice of
// k of every product, and four that fetch: each warp's weights come through a ring of places of its own, in the order
// in which it will want them, across stages and layers. What a stage makes goes to all blocks as words (exchange.cuh).
#pragma once
#include "kernels/cuda/decode/exchange.cuh"
#include "kernels/cuda/epilogue.cuh"

enum {
    STEP_WARPS = 16,
    STEP_FETCHING = 4,                       // warps
    STEP_RINGS = STEP_WARPS / STEP_FETCHING, // of each
    STEP_THREADS = (STEP_WARPS + STEP_FETCHING) * 32,
    STEP_MOST_PLACES = 8,
    STEP_HEADS_P = 256, // dims of the heads of a unit of the window
    STEP_AHEAD = 12,    // the first of the warps that ask for what later stages read
    STEP_ALL = 1,       // barriers: of the 16 warps, of each half of them, of the first half before the second goes on
    STEP_HALF = 2,
    STEP_ORDER = 4,
#ifdef ROD_KERNEL_RACECHECK // all lanes write a warp's words, the same: it takes this for a race
    STEP_KEPT_LANES = 32,
#else
    STEP_KEPT_LANES = 1,
#endif
    STEP_KEPT = 12, // words
    STEP_KEPT_BYTES = STEP_WARPS * STEP_KEPT_LANES * STEP_KEPT * 4
};

// Tiles of 16 x 16 in a place of a ring.
__host__ __device__ constexpr uint32_t place_tiles(uint32_t n_rows) { return n_rows == 1 ? 8 : 4; }
__host__ __device__ constexpr uint32_t place_bytes(uint32_t n_rows) { return place_tiles(n_rows) * 512; }
// Places that a fetching warp has on their way at most: more would queue in front of the words (measured).
__host__ __device__ constexpr uint32_t places_flying(bool plus, uint32_t n_rows) {
    return (plus || n_rows > 1 ? 32 : 24) / place_tiles(n_rows);
}
// Of a vector of K: tiles of 16; of a warp's slice.
__host__ __device__ __forceinline__ uint32_t tiles_of(uint32_t n) { return (n + 15) / 16; }
__host__ __device__ __forceinline__ uint32_t slice_begin(uint32_t KT, uint32_t slice) {
    return KT * slice / STEP_WARPS;
}
// Shared memory: offsets in bytes.
struct step_places {
    uint32_t ring, scratch, part, layers, full, empty, pos, slot, scales, residual, keep, bytes, slice_tiles;
    __host__ __device__ step_places(const cuda_shape &s, uint32_t R, uint32_t n_layers, uint32_t n_blocks,
                                    uint32_t places) {
        const uint32_t units = R >= 4 ? 1 : 4 / R, ld = R == 1 ? 16 : (uint32_t)DISPATCH_FEW_LD;
        slice_tiles = slice_tiles_of(s);
        ring = 0;
        scratch = ring + STEP_WARPS * places * place_bytes(R);
        part = scratch + scratch_bytes(s, R);
        layers = part + 2 * units * STEP_WARPS * R * ld * 4;
        full = layers + n_layers * (uint32_t)sizeof(cuda_step_layer);
        empty = full + STEP_WARPS * places * 8;
        pos = empty + STEP_WARPS * places * 8;
        slot = pos + R * 8;
        scales = slot + R * 4;
        residual = (scales + 2 * R * 4 + 15) / 16 * 16;
        keep = residual + (tiles_of(s.D) + n_blocks - 1) / n_blocks * R * 64;
        bytes = keep + (R == 1 && s.H ? (uint32_t)KEEP_BYTES : (uint32_t)STEP_KEPT_BYTES);
    }
    // Of a warp's slice of an act; of the state's stage; of the window's.
    static __host__ __device__ uint32_t slice_tiles_of(const cuda_shape &s) {
        uint32_t most = s.D > s.E ? s.D : s.E;
        if (s.H && s.H * s.P > most) most = s.H * s.P;
        if (s.H && s.F > most) most = s.F;
        return (tiles_of(most) + STEP_WARPS - 1) / STEP_WARPS;
    }
    static __host__ __device__ uint32_t scratch_bytes(const cuda_shape &s, uint32_t R) {
        uint32_t most = STEP_WARPS * slice_tiles_of(s) * R * 32;
        const uint32_t state = STATE_FLOATS(R) * 4, window = s.H ? (R == 1 ? 1 : 2) * WINDOW_BYTES : 0;
        if (state > most) most = state;
        most += panel_bytes(s, R);
        return ((window > most ? window : most) + 127) / 128 * 128;
    }
    // Of one row a panel of S lies at the end of the scratch memory.
    static __host__ __device__ uint32_t panel_bytes(const cuda_shape &s, uint32_t R) { return R == 1 ? s.M * 128 : 0; }
    static __host__ __device__ uint32_t STATE_FLOATS(uint32_t R) { return 576 + R * (4 + 1 + 1 + 16) * 32; }
    enum { KEEP_BYTES = STEP_KEPT_BYTES + 64 + 512 + 3 * 512 };
    enum { WINDOW_BYTES = 4 * 20 * 16 + 256 + 512 + 8 * 256 * 4 + 8 * 2 * 8 + 256 }; // at least window_scratch
};

// Words of one kind each. Act: [k / 16][row][8], the columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of mma's lane t beside
// each other. squares, o_sums: [row][sums]. az: [row][3][Ep], a, z, s. gates: [row][4][4 M + R]. part: [row][range][H
// P], part_ml: [row][range][H][2]. x: [k / 16][row][16].
struct step_words {
    uint2 *normed[3], *squares[3]; // after W_o, W_ao, W_f2
    uint2 *s, *a, *az, *gates, *o, *o_sums, *qkv, *part, *part_ml, *heads, *ffn, *x;
};
struct step_args {
    cuda_shape shape;
    cuda_rows rows;
    uint32_t n_layers, places; // of a ring
    step_places at;
    const cuda_step_layer *layers;
    const float *norm_f, *x, *rope;
    const void *head;
    float *logits;
    step_words words;
    uint32_t *epochs; // [block] the last one that has been
    uint32_t *note;
};

// Where columns 2 pair and 2 pair + 1 of a tile of an act lie among its eight words.
__device__ __forceinline__ uint32_t act_slot(uint32_t pair) { return (pair & 3) * 2 + (pair >> 2); }

// ---- the products of a step, in order ----

enum product_kind { W_FC, W_SMALL, W_OUT, W_QKV, W_AO, W_F1, W_F2, W_HEAD };

// A unit is a tile of 16 outputs, whole; of W_in and W_c0 a quarter of k of one. Units go round the blocks; those of
// the residual's products always to the same block, which keeps its columns of the residual.
struct product {
    uint32_t layer = 0, begin = 0, KT, n_units; // begin: the block that begins
    product_kind kind = W_FC;
    __device__ __forceinline__ void size(const step_args &a) {
        const cuda_shape &s = a.shape;
        const uint32_t D = tiles_of(s.D), E = tiles_of(s.E), HP = tiles_of(s.H * s.P), F = tiles_of(s.F);
        switch (kind) {
        case W_FC: KT = D, n_units = s.Ep / 8; break;
        case W_SMALL: KT = E, n_units = 4 * (tiles_of(4 * s.M) + tiles_of(s.R)); break;
        case W_OUT: KT = E, n_units = D; break;
        case W_QKV: KT = D, n_units = tiles_of((2 * s.H + 1) * s.P); break;
        case W_AO: KT = HP, n_units = D; break;
        case W_F1: KT = D, n_units = 2 * F; break;
        case W_F2: KT = F, n_units = D; break;
        default: KT = D, n_units = tiles_of(s.V); break;
        }
    }
    __device__ __forceinline__ bool is_residual() const { return kind == W_OUT || kind == W_AO || kind == W_F2; }
    __device__ __forceinline__ uint32_t first() const {
        return is_residual() || blockIdx.x >= begin ? blockIdx.x - (is_residual() ? 0 : begin)
                                                    : blockIdx.x + n_blocks_now() - begin;
    }
    template <bool PLUS> __device__ __forceinline__ bool next(const step_args &a) { // false: that was the last
        if (kind == W_HEAD) return false;
        if (!is_residual()) begin = (begin + n_units) % n_blocks_now();
        if (kind == (PLUS ? W_F2 : W_OUT))
            layer++, kind = layer < a.n_layers ? W_FC : W_HEAD;
        else
            kind = product_kind(kind + 1);
        size(a);
        return true;
    }
    // The weights of a slice of a unit.
    __device__ __forceinline__ const unsigned char *weights(const step_args &a, const cuda_step_layer *layers,
                                                            uint32_t unit, uint32_t k0) const {
        const cuda_step_layer &l = layers[layer];
        const void *w;
        uint32_t tile = kind == W_SMALL ? unit / 4 : unit;
        switch (kind) {
        case W_FC: w = l.fc; break;
        case W_SMALL:
            w = l.in;
            if (tile >= tiles_of(4 * a.shape.M)) w = l.c0, tile -= tiles_of(4 * a.shape.M);
            break;
        case W_OUT: w = l.out; break;
        case W_QKV: w = l.qkv; break;
        case W_AO: w = l.ao; break;
        case W_F1: w = l.f1; break;
        case W_F2: w = l.f2; break;
        default: w = a.head; break;
        }
        return (const unsigned char *)w + ((size_t)tile * KT + k0) * 512;
    }
    // A quarter of k is four warps', of each fetching warp one: four rings of one would be behind the others.
    __device__ __forceinline__ bool wants(uint32_t unit, uint32_t warp) const {
        return kind != W_SMALL || unit % 4 == warp % 4;
    }
    __device__ __forceinline__ uint32_t slice_of(uint32_t unit, uint32_t warp) const {
        return kind != W_SMALL ? warp : unit % 4 * 4 + warp / 4;
    }
};

// ---- a block ----

// One row: its window, and how many units of it are the block's: a range and some heads each. They go round the blocks.
// A range that is the newest key alone is no unit. Made once a step.
struct window_own {
    uint32_t n_units, n, newest, newest_at, oldest_at, n_ranges, n_whole;
    __device__ __forceinline__ void unit(const cuda_shape &s, uint32_t i, uint32_t &range, uint32_t &h0) const {
        const uint32_t u = blockIdx.x + i * n_blocks_now(), groups = s.H * s.P / STEP_HEADS_P;
        range = u / groups, h0 = u % groups * (STEP_HEADS_P / s.P);
    }
};
// A block of a step of R rows.
template <int R> struct step_block {
    const step_args &a;
    unsigned char *smem;
    const uint32_t warp, lane; // warp: by a shuffle, so that the compiler sees that a warp has one
    const uint32_t base;       // the epoch of the residual before the first layer
    __device__ __forceinline__ step_block(const step_args &args, unsigned char *shared)
        : a(args), smem(shared), warp(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)), lane(threadIdx.x % 32),
          base(args.epochs[blockIdx.x] + 1) {}
    __device__ __forceinline__ const cuda_step_layer *layers() const {
        return (const cuda_step_layer *)(smem + a.at.layers);
    }
    __device__ __forceinline__ uint64_t *full(uint32_t ring) const {
        return (uint64_t *)(smem + a.at.full) + ring * a.places;
    }
    __device__ __forceinline__ uint64_t *empty(uint32_t ring) const {
        return (uint64_t *)(smem + a.at.empty) + ring * a.places;
    }
    __device__ __forceinline__ unsigned char *ring(uint32_t ring) const {
        return smem + a.at.ring + ring * a.places * place_bytes(R);
    }
    __device__ __forceinline__ int64_t *pos() const { return (int64_t *)(smem + a.at.pos); }
    __device__ __forceinline__ int32_t *slot() const { return (int32_t *)(smem + a.at.slot); }
    __device__ __forceinline__ float *scales(uint32_t set) const { return (float *)(smem + a.at.scales) + set * R; }
    __device__ __forceinline__ float *residual() const { return (float *)(smem + a.at.residual); }
    __device__ __forceinline__ float *scratch() const { return (float *)(smem + a.at.scratch); }
    __device__ __forceinline__ float *panel() const {
        return (float *)(smem + a.at.part - step_places::panel_bytes(a.shape, R));
    }
    __device__ __forceinline__ uint32_t *kept() const {
        return (uint32_t *)(smem + a.at.keep) + (warp * STEP_KEPT_LANES + lane % STEP_KEPT_LANES) * STEP_KEPT;
    }
    __device__ __forceinline__ window_own *own() const { return (window_own *)(smem + a.at.keep + STEP_KEPT_BYTES); }
    __device__ __forceinline__ float2 *own_rope() const { return (float2 *)(smem + a.at.keep + STEP_KEPT_BYTES + 64); }
    __device__ __forceinline__ float *own_norm() const {
        return (float *)(smem + a.at.keep + STEP_KEPT_BYTES + 64 + 512);
    }
    __device__ __forceinline__ bool is_padding(uint32_t r) const { return (uint32_t)slot()[r] == a.shape.n_slots; }
    // What layer makes has this epoch; the residual before a layer that of the layer before.
    __device__ __forceinline__ uint32_t made(uint32_t layer) const { return base + layer + 1; }
    __device__ __forceinline__ wait_note note(uint32_t layer, uint32_t stage) const {
        return {a.note, layer * 16 + stage};
    }
};

// ---- where a warp is, in shared memory: registers that are not used for a while would go to local memory, which is
// behind the weights ----

struct ring_reader {
    uint32_t at = 0, parity = 0;
};
// Where a warp is that is ahead of those that finish outputs: of two places each, the next one. A warp without tiles of
// k waits for no input, so this goes on from stage to stage.
struct stage_parities {
    ring_reader ring;
    uint32_t part = 0, scales = 0;
};

__device__ __forceinline__ uint32_t kept_word(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared_address(at)) : "memory");
    return x;
}
__device__ __forceinline__ void keep_word(uint32_t *at, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(x) : "memory");
}
template <int R> __device__ __forceinline__ product kept_product(const step_block<R> &b) {
    product p;
    const uint32_t *at = b.kept();
    p.layer = kept_word(at), p.begin = kept_word(at + 1), p.KT = kept_word(at + 2), p.n_units = kept_word(at + 3),
    p.kind = product_kind(kept_word(at + 4));
    return p;
}
template <int R> __device__ __forceinline__ void keep_product(const step_block<R> &b, const product &p) {
    uint32_t *at = b.kept();
    keep_word(at, p.layer), keep_word(at + 1, p.begin), keep_word(at + 2, p.KT), keep_word(at + 3, p.n_units),
        keep_word(at + 4, p.kind);
}
template <int R> __device__ __forceinline__ stage_parities kept_parities(const step_block<R> &b) {
    stage_parities t;
    const uint32_t *at = b.kept() + 5;
    t.ring.at = kept_word(at), t.ring.parity = kept_word(at + 1), t.part = kept_word(at + 2),
    t.scales = kept_word(at + 3);
    return t;
}
template <int R> __device__ __forceinline__ void keep_parities(const step_block<R> &b, const stage_parities &t) {
    uint32_t *at = b.kept() + 5;
    keep_word(at, t.ring.at), keep_word(at + 1, t.ring.parity), keep_word(at + 2, t.part), keep_word(at + 3, t.scales);
}

// ---- fetching ----

// A ring's places, in the order in which they are wanted.
template <bool PLUS, int R> struct places_to_come {
    product of;
    uint32_t unit, k, k1; // tiles [k, k1) of the warp's slice of the unit are still to come
    bool any = true;
    uint32_t n_window;   // places of the window: of each unit of it keys and values
    uint32_t window = 0; // of them are still to come, before those tiles
    __device__ __forceinline__ void begin_unit(uint32_t warp) {
        const uint32_t slice = of.slice_of(unit, warp);
        k = slice_begin(of.KT, slice), k1 = slice_begin(of.KT, slice + 1);
    }
    __device__ __forceinline__ void begin(const step_args &a, uint32_t warp, uint32_t n) {
        n_window = n;
        of.size(a), unit = of.first(), begin_unit(warp);
        find(a, warp);
    }
    __device__ __forceinline__ void find(const step_args &a, uint32_t warp) { // from (unit, k) on
        while (any && !window && (unit >= of.n_units || k == k1 || !of.wants(unit, warp))) {
            if (unit < of.n_units)
                unit += n_blocks_now();
            else if ((any = of.next<PLUS>(a))) {
                unit = of.first();
                if (PLUS && R == 1 && of.kind == W_AO) window = n_window;
            }
            begin_unit(warp);
        }
    }
    __device__ __forceinline__ uint32_t tiles() const { return min(k1 - k, place_tiles(R)); }
    __device__ __forceinline__ void taken(const step_args &a, uint32_t warp) {
        if (window)
            window--;
        else
            k += tiles();
        find(a, warp);
    }
};

// A warp's tile of unit place / 2 of the window: its eight keys, or of each the values of the unit's heads.
template <int R>
__device__ __forceinline__ void fetch_window(const step_block<R> &b, uint32_t layer, uint32_t warp, uint32_t place,
                                             unsigned char *to, uint64_t *full, uint64_t policy) {
    const cuda_shape &s = b.a.shape;
    const window_own &own = *b.own();
    uint32_t range, h0;
    own.unit(s, place / 2, range, h0);
    const uint32_t j = (range * STEP_WARPS + warp) * 8, n = j < own.newest ? min(own.newest - j, 8u) : 0,
                   ring = s.ring_keys, at = own.oldest_at + j < ring ? own.oldest_at + j : own.oldest_at + j - ring;
    const uint32_t size = s.window == CUDA_FP8 ? 1 : 2; // of a number
    if (place % 2 == 0) {
        const unsigned char *keys =
            (const unsigned char *)s.keys + ((size_t)b.slot()[0] * s.keys_slot + layer * s.keys_layer) * size;
        const uint32_t row = s.P * size, some = min(n, ring - at);
        ring_expect(n * row, full);
        if (some) ring_copy(to, keys + (size_t)at * row, some * row, full, policy);
        if (some < n) ring_copy(to + some * row, keys, (n - some) * row, full, policy);
    } else {
        const unsigned char *values = (const unsigned char *)s.values +
                                      ((size_t)b.slot()[0] * s.values_slot + layer * s.values_layer + h0 * s.P) * size;
        const uint32_t bytes = STEP_HEADS_P * size;
        ring_expect(n * bytes, full);
        for (uint32_t i = 0; i < n; i++)
            ring_copy(to + i * bytes, values + (size_t)(at + i < ring ? at + i : at + i - ring) * s.H * s.P * size,
                      bytes, full, policy);
    }
}

// By one of the fetching warps, a lane a ring. Of all rings the one that is least far goes first, and so many
// places are on their way at a time. Places of W_in and W_c0, which few rings have, do not count, and go before the
// others' next ones.
template <bool PLUS, int R> __device__ __forceinline__ void fetch_weights(const step_block<R> &block) {
    const step_args &a = block.a;
    const bool is = block.lane < STEP_RINGS;
    const uint32_t warp = (block.warp - STEP_WARPS) * STEP_RINGS + block.lane % STEP_RINGS; // whose ring it is
    uint64_t *full = block.full(warp), *empty = block.empty(warp);
    unsigned char *ring = block.ring(warp);
    const uint64_t policy = ring_policy();
    places_to_come<PLUS, R> next;
    next.begin(a, warp, PLUS && R == 1 ? 2 * block.own()->n_units : 0);
    uint32_t far = 0, asked = 0, landed = 0, ask_at = 0, land_at = 0, land_parity = 0, free_parity = 1;
    patience p;
    for (;;) {
        const bool more = is && next.any;
        if (!__any_sync(0xffffffffu, more)) break;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (is && landed < asked && ring_passed(full + land_at, land_parity)) {
                landed++;
                if (++land_at == a.places) land_at = 0, land_parity ^= 1;
            }
        const bool want =
            more && asked - landed < a.places && (asked < a.places || ring_passed(empty + ask_at, free_parity));
        const uint32_t order = 2 * far + (next.of.kind != W_SMALL);
        const uint32_t least = __reduce_min_sync(0xffffffffu, want ? order : ~0u),
                       flying = __reduce_add_sync(0xffffffffu, is ? asked - landed : 0u),
                       ready = __ballot_sync(0xffffffffu, want && order == least);
#ifdef ROD_KERNEL_RACECHECK // it does not know which lane asks for a copy: all wait for the place
        for (uint32_t i = 0; i < STEP_RINGS; i++) {
            const uint32_t at = __shfl_sync(0xffffffffu, ask_at, i), parity = __shfl_sync(0xffffffffu, free_parity, i);
            const bool again = __shfl_sync(0xffffffffu, asked >= a.places, i);
            if ((ready >> i & 1) && again)
                ring_await(block.empty(warp - block.lane % STEP_RINGS + i) + at, parity, block.note(0, 15));
        }
        __syncwarp();
#endif
        if ((ready >> block.lane & 1) && flying + __popc(ready & ((1u << block.lane) - 1)) < places_flying(PLUS, R)) {
            delay(1024);
            if (PLUS && R == 1 && next.window)
                fetch_window(block, next.of.layer, warp, next.n_window - next.window, ring + ask_at * place_bytes(R),
                             full + ask_at, policy);
            else
                ring_fetch(ring + ask_at * place_bytes(R), next.of.weights(a, block.layers(), next.unit, next.k),
                           next.tiles() * 512, full + ask_at, policy);
            far += next.of.kind != W_SMALL;
            next.taken(a, warp);
            asked++;
            if (++ask_at == a.places) ask_at = 0, free_parity ^= 1;
            p = patience{};
        } else {
            p.spend(block.note(next.of.layer, 15));
        }
        __syncwarp();
    }
}
