// one_launch.cu - a decode step of 1, 2, 4 or 8 rows as one launch: the kernels of decode.cu, state.cu and
// swa_decode.cu as stages of blocks that stay, so that weights come all the time (one_launch.cuh). The order of every
// sum is those kernels'.
//
// Blocks wait for each other, so all must be resident: the launch is cooperative, which refuses otherwise. Words are
// written over a layer later. A block comes to a layer's W_fc only when every word of the layer before has been read:
// each has units of W_fc, each unit of it reads all of the residual, and so on back through every stage.
#include "kernels/cuda/decode/one_launch_state.cuh"
#include "kernels/cuda/decode/one_launch_window.cuh"

// ---- what a warp reads of a product's input ----

// Partial sums of squares of a row, four a lane, while they are few; the rest comes later.
struct step_squares {
    const uint2 *words; // of the row, NULL: this warp weighs none
    uint32_t n;
    float four[4];
};
// Tiles [k0, k0 + n) of an act of all rows -> where lane t's two words of (tile, row) lie together: [n][R][4]. With
// them comes the first of what the warp weighs.
template <int R>
__device__ __forceinline__ void read_slice(const step_block<R> &b, const uint2 *act, uint32_t k0, uint32_t n,
                                           uint32_t epoch, const wait_note &note, step_squares &squares, uint2 *to) {
    constexpr int N = R >= 4 ? 8 : 2 * R; // a slice of 16 tiles in one go, of 8 rows in two
    const uint2 *from = act + ((size_t)k0 * R * 4 + b.lane) * 2, *from_squares = squares.words + b.lane * 4;
    const uint32_t pieces = n * R * 4;
    uint32_t i0 = 0;
    do {
        await_pieces<N + 2>(
            epoch, note,
            [&](int i) {
                if (i < N) return i0 + b.lane + 32 * i < pieces;
                return i0 == 0 && squares.words && b.lane * 4 + (i - N) * 2 < squares.n;
            },
            [&](int i) { return i < N ? from + i0 * 2 + 64 * i : from_squares + (i - N) * 2; },
            [&](int i, uint32_t first, uint32_t second) {
                const uint32_t piece = i0 + b.lane + 32 * i;
                if (i >= N && i0 == 0)
                    squares.four[(i - N) * 2] = __uint_as_float(first),
                                           squares.four[(i - N) * 2 + 1] = __uint_as_float(second);
                else if (i < N && piece < pieces)
                    to[piece] = make_uint2(first, second);
            });
        i0 += 32 * N;
    } while (i0 < pieces);
    __syncwarp(); // other lanes read it
}
// The row's sum of squares, as row_total adds.
template <int R>
__device__ __forceinline__ float weigh(const step_block<R> &b, const step_squares &squares, uint32_t epoch,
                                       const wait_note &note) {
    float sum = four_sum(squares.four);
#pragma unroll 1
    for (uint32_t i0 = 128; i0 < squares.n; i0 += 128) {
        float more[4];
        await_pieces<2>(
            epoch, note, [&](int i) { return i0 + b.lane * 4 + i * 2 < squares.n; },
            [&](int i) { return squares.words + i0 + b.lane * 4 + i * 2; },
            [&](int i, uint32_t first, uint32_t second) {
                more[i * 2] = __uint_as_float(first), more[i * 2 + 1] = __uint_as_float(second);
            });
        sum += four_sum(more);
    }
    return neighbours_sum<32>(sum);
}

// ---- a slice of a unit ----

// acc += weights of n tiles, the next ones of this warp's ring, times the rows at `in`. One row with a window: half a
// place at a time, as that kernel's registers would go to local memory.
template <class T, bool PLUS, int R>
__device__ __forceinline__ void multiply(const step_block<R> &b, float (&acc)[4], uint32_t n, const uint2 *in,
                                         ring_reader &ring, const wait_note &note) {
    constexpr int TILES_EACH = place_tiles(R), EACH = PLUS && R == 1 ? TILES_EACH / 2 : TILES_EACH,
                  LAST = TILES_EACH - EACH; // the half that is read last
    const uint32_t g = b.lane / 4, t = b.lane % 4;
    uint64_t *full = b.full(b.warp), *empty = b.empty(b.warp);
    const unsigned char *places = b.ring(b.warp);
#pragma unroll 1
    for (uint32_t k = 0; k < n; k += TILES_EACH) {
        const uint32_t some = min(n - k, TILES_EACH);
        const uint4 *w = (const uint4 *)(places + ring.at * place_bytes(R)) + b.lane;
        uint4 x[EACH];
        uint2 y[TILES_EACH];
#pragma unroll
        for (int u = 0; u < TILES_EACH; u++)
            y[u] = g < R && u < some ? in[((k + u) * R + g) * 4 + t] : make_uint2(0, 0);
        ring_await(full + ring.at, ring.parity, note);
#pragma unroll
        for (int u = 0; u < EACH; u++) x[u] = load_place(w + min((uint32_t)u, some - 1) * 32);
        if constexpr (LAST) {
#pragma unroll
            for (int u = 0; u < EACH; u++) mma(acc, x[u], y[u], T());
#pragma unroll
            for (int u = 0; u < EACH; u++) x[u] = load_place(w + min((uint32_t)(LAST + u), some - 1) * 32);
        }
        mma(acc, x[0], y[LAST], T());
        __syncwarp(); // the place is read
        if (b.lane < RING_READERS) ring_release(empty + ring.at);
        if (++ring.at == b.a.places) ring.at = 0, ring.parity ^= 1;
#pragma unroll
        for (int u = 1; u < EACH; u++) mma(acc, x[u], y[LAST + u], T()); // beyond n: zeros
    }
}

// ---- what becomes of outputs ----

// What a thread asks for before the product: it has output o of row r of a unit, 16 neighbours a tile.
template <class T> struct step_output {
    uint32_t unit, tile, r, o;
    bool mine;
    out_conv<4>::column<T, 1> column;
    out_conv<4>::row<T, 1> row;
    float norm; // the next norm's weight
};
template <class T, int R>
__device__ __forceinline__ out_conv<4> conv_of(const step_block<R> &b, const cuda_step_layer &w, uint32_t layer) {
    out_conv<4> conv = {};
    conv.shape = b.a.shape, conv.layer = layer, conv.w = w.conv, conv.bias = w.conv_b;
    conv.rows.pos = b.pos(), conv.rows.slot = b.slot();
    return conv;
}
// The norm whose operand a product of the residual makes; NULL: none, the last one is the head's.
template <bool PLUS, int R>
__device__ __forceinline__ const float *next_norm(const step_block<R> &b, const product &p) {
    const cuda_step_layer *w = b.layers() + p.layer;
    if (p.kind == W_AO) return w->ffn_norm;
    if (PLUS && p.kind == W_OUT) return w->attn_norm;
    return p.layer + 1 < b.a.n_layers ? w[1].mixer_norm : NULL;
}
template <class T, bool PLUS, int R>
__device__ __forceinline__ void ask_output(const step_block<R> &b, const product &p, step_output<T> &x) {
    if (p.kind == W_FC) {
        const out_conv<4> conv = conv_of<T>(b, b.layers()[p.layer], p.layer);
        conv.load<T>(x.column, x.o, x.mine), conv.early<T>(x.row, x.r, x.o, x.mine);
    } else if (p.is_residual()) {
        const float *w = next_norm<PLUS>(b, p);
        x.norm = w && x.mine ? w[x.o] : 0.0f;
    }
}
// A column of the residual as the next norm's operand, or itself where the head's comes; by whole warps.
template <class T, int R>
__device__ __forceinline__ void give_residual(const step_block<R> &b, uint32_t set, const step_output<T> &x, float out,
                                              bool last, uint32_t epoch) {
    const float square[1] = {out * out};
    float squares[1] = {square[0]};
    const float sum = tile_sum_of(squares, false);
    const uint32_t pair = pair_of<T>(weighted<T>(out, x.norm));
    if (!x.mine) return;
    if (x.o % 16 == 0) give_float(b.a.words.squares[set] + (size_t)x.r * (b.a.shape.D / 16) + x.o / 16, sum, epoch);
    const size_t at = (size_t)(x.o / 16) * R + x.r;
    if (last)
        give_float(b.a.words.x + at * 16 + x.o % 16, out, epoch);
    else if (x.o % 2 == 0)
        give_word(b.a.words.normed[set] + at * 8 + act_slot(x.o % 16 / 2), pair, epoch);
}
template <class T, bool PLUS, int R>
__device__ __forceinline__ void give_output(const step_block<R> &b, const product &p, step_output<T> &x, float v,
                                            float scale, float *residual) {
    const cuda_shape &s = b.a.shape;
    const step_words &to = b.a.words;
    const uint32_t epoch = b.made(p.layer);
    delay(256);
    if (p.kind == W_FC) { // E1, E2: a, then from column Ep on z
        v *= scale;
        const out_conv<4> conv = conv_of<T>(b, b.layers()[p.layer], p.layer);
        const bool is_a = x.mine && x.o < s.E;
        float sum = 0;
        if (is_a) {
            sum = conv.convolved<T>(x.column, x.row, v);
            *x.row.to = from_float<T>(v);
        }
        const uint32_t from_s = pair_of<T>(sum), from_a = pair_of<T>(v);
        if (!x.mine) return;
        uint2 *az = to.az + (size_t)x.r * 3 * s.Ep + x.o; // z lies behind a
        give_float(az, v, epoch);
        if (!is_a) return;
        give_float(az + 2 * s.Ep, sum, epoch);
        const size_t at = ((size_t)(x.o / 16) * R + x.r) * 8 + act_slot(x.o % 16 / 2);
        if (x.o % 2 == 0) give_word(to.s + at, from_s, epoch), give_word(to.a + at, from_a, epoch);
    } else if (p.kind == W_SMALL) {
        const uint32_t in_tiles = tiles_of(4 * s.M), n = 4 * s.M + s.R,
                       i = x.tile < in_tiles ? x.o : 4 * s.M + x.o - in_tiles * 16;
        if (x.mine && i < (x.tile < in_tiles ? 4 * s.M : n))
            give_float(to.gates + ((size_t)x.r * 4 + x.unit % 4) * n + i, v, epoch);
    } else if (p.is_residual()) {
        const float out = x.mine ? add_scaled(*residual, scale, v) : 0.0f;
        if (x.mine && p.kind != W_AO) *residual = out; // the two-hop residual
        give_residual(b,
                      p.kind == W_OUT  ? 0
                      : p.kind == W_AO ? 1
                                       : 2,
                      x, out, p.kind != W_AO && !next_norm<PLUS>(b, p), epoch);
    } else if (p.kind == W_QKV) {
        const uint32_t width = (2 * s.H + 1) * s.P;
        if (x.mine && x.o < width) give_float(to.qkv + (size_t)x.r * width + x.o, v * scale, epoch);
    } else if (p.kind == W_F1) { // eight rows of a2, eight of g2
        v *= scale;
        const uint32_t pair = pair_of<T>(ffn_gate(v, __shfl_xor_sync(0xffffffffu, v, 8)));
        const uint32_t f = x.tile * 8 + x.o % 8;
        if (x.mine && x.o % 16 < 8 && x.o % 2 == 0)
            give_word(to.ffn + ((size_t)(f / 16) * R + x.r) * 8 + act_slot(f % 16 / 2), pair, epoch);
    } else if (x.mine && x.o < s.V)
        b.a.logits[(size_t)x.r * s.V + x.o] = v;
}

// ---- a product's stage ----

// What its units read: act and squares with their epoch.
struct product_in {
    const uint2 *act, *squares;
    uint32_t n_squares, n, epoch; // n: columns of the norm
    bool weighted;
};
template <bool PLUS, int R> __device__ __forceinline__ product_in input_of(const step_block<R> &b, const product &p) {
    const step_words &w = b.a.words;
    const cuda_shape &s = b.a.shape;
    const uint32_t made = b.made(p.layer), last = PLUS ? 2 : 0;
    switch (p.kind) {
    case W_FC: return {w.normed[last], w.squares[last], s.D / 16, s.D, made - 1, true};
    case W_SMALL: return {NULL, NULL, 0, 0, made, false}; // two operands
    case W_OUT: return {w.o, w.o_sums, s.Ep / 32, s.E, made, false};
    case W_QKV: return {w.normed[0], w.squares[0], s.D / 16, s.D, made, true};
    case W_AO: return {w.heads, NULL, 0, 0, made, false};
    case W_F1: return {w.normed[1], w.squares[1], s.D / 16, s.D, made, true};
    case W_F2: return {w.ffn, NULL, 0, 0, made, false};
    default: return {NULL, w.squares[last], s.D / 16, s.D, made - 1, false};
    }
}
template <class T, int R>
__device__ __forceinline__ float scale_of(const product_in &in, float total, const cuda_shape &s) {
    return norm_scale<T>(row_norm{NULL, in.n_squares, in.n, s.norm_eps, in.weighted, false}, total);
}

// The last norm: x -> each warp's slice of the head's operand.
template <class T, bool PLUS, int R>
__device__ __forceinline__ void read_head(const step_block<R> &b, const product &p, uint32_t k0, uint32_t n,
                                          float *scales, uint2 *slice) {
    const product_in in = input_of<PLUS>(b, p);
    const wait_note note = b.note(p.layer, W_HEAD);
    if (b.warp < R) {
        step_squares squares = {in.squares + (size_t)b.warp * in.n_squares, in.n_squares, {0, 0, 0, 0}};
        read_slice(b, (const uint2 *)NULL, 0, 0, in.epoch, note, squares, (uint2 *)NULL);
        const float scale = scale_of<T, R>(in, weigh(b, squares, in.epoch, note), b.a.shape);
        if (b.lane == 0) scales[b.warp] = scale;
    }
    barrier_of(STEP_ALL, STEP_WARPS * 32); // the scales
    uint32_t *to = (uint32_t *)slice;
    const uint2 *from = b.a.words.x + ((size_t)k0 * R * 8 + b.lane) * 2;
    for (uint32_t i0 = 0; i0 < n * R * 8; i0 += 128)
        await_pieces<4>(
            in.epoch, note, [&](int i) { return i0 + b.lane + 32 * i < n * R * 8; },
            [&](int i) { return from + i0 * 2 + 64 * i; },
            [&](int i, uint32_t first, uint32_t second) {
                const uint32_t piece = i0 + b.lane + 32 * i, pair = piece % 8, r = piece / 8 % R, tile = piece / 8 / R;
                if (piece >= n * R * 8) return;
                const uint32_t k = (k0 + tile) * 16 + pair * 2;
                const float y[1] = {normed(__uint_as_float(first), scales[r], b.a.norm_f[k])},
                            y_two[1] = {normed(__uint_as_float(second), scales[r], b.a.norm_f[k + 1])};
                to[(tile * R + r) * 8 + act_slot(pair)] =
                    narrowed<T, 1>(y).word[0] | (uint32_t)narrowed<T, 1>(y_two).word[0] << 16;
            });
    __syncwarp(); // other lanes read it
}

template <class T, bool PLUS, int R>
__device__ __forceinline__ void product_stage(const step_block<R> &b, const product &p, stage_parities &parities) {
    constexpr uint32_t UNITS = R >= 4 ? 1 : 4 / R, LD = R == 1 ? 16 : (uint32_t)DISPATCH_FEW_LD,
                       PART = STEP_WARPS * R * LD; // units at a time; floats of one
    const step_args &a = b.a;
    const uint32_t first = p.first(), warp = b.warp, g = b.lane / 4, t = b.lane % 4;
    if (first >= p.n_units) return;
    const uint32_t n_mine = (p.n_units - first + n_blocks_now() - 1) / n_blocks_now();
    uint32_t k0 = slice_begin(p.KT, warp), n = slice_begin(p.KT, warp + 1) - k0;
    const product_in in = input_of<PLUS>(b, p);
    const wait_note note = b.note(p.layer, p.kind);
    uint2 *slice = (uint2 *)b.scratch() + (size_t)warp * a.at.slice_tiles * R * 4;
    float *parts = (float *)(b.smem + b.a.at.part), *scales = b.scales(parities.scales);
    step_squares squares = {NULL, 0, {0, 0, 0, 0}};
    if (in.squares && p.kind != W_HEAD && warp >= 8 && warp - 8 < R)
        squares.words = in.squares + (size_t)(warp - 8) * in.n_squares, squares.n = in.n_squares;
    const uint32_t thread_unit = threadIdx.x / (16 * R); // of the outputs
    const bool finishes = thread_unit < UNITS;
#pragma unroll 1
    for (uint32_t u0 = 0; u0 < n_mine; u0 += UNITS, parities.part ^= 1) {
        step_output<T> out;
        out.unit = first + (u0 + thread_unit) * n_blocks_now();
        out.tile = p.kind == W_SMALL ? out.unit / 4 : out.unit;
        out.r = threadIdx.x / 16 % R, out.o = out.tile * 16 + threadIdx.x % 16;
        out.mine = finishes && u0 + thread_unit < n_mine;
        if (finishes) ask_output<T, PLUS>(b, p, out);
        if (u0 == 0 && p.kind == W_HEAD)
            read_head<T, PLUS>(b, p, k0, n, scales, slice);
        else if (u0 == 0 && p.kind != W_SMALL)
            read_slice(b, in.act, k0, n, in.epoch, note, squares, slice);
        float *part = parts + parities.part * UNITS * PART + warp * R * LD;
#pragma unroll 1
        for (uint32_t i = 0; i < UNITS && u0 + i < n_mine; i++, part += PART) {
            const uint32_t unit = first + (u0 + i) * n_blocks_now();
            float *to = part;
            if (p.kind == W_SMALL) { // two operands; a quarter of the warps
                if (!p.wants(unit, warp)) continue;
                const bool is_in = unit / 4 < tiles_of(4 * a.shape.M);
                const uint32_t own = p.slice_of(unit, warp);
                k0 = slice_begin(p.KT, own), n = slice_begin(p.KT, own + 1) - k0;
                to = parts + parities.part * UNITS * PART + i * PART + own * R * LD;
                read_slice(b, is_in ? a.words.s : a.words.a, k0, n, b.made(p.layer), note, squares, slice);
            }
            float acc[4] = {};
            multiply<T, PLUS>(b, acc, n, slice, parities.ring, note);
            if (2 * t < R) to[2 * t * LD + g] = acc[0], to[2 * t * LD + g + 8] = acc[2];
            if (2 * t + 1 < R) to[(2 * t + 1) * LD + g] = acc[1], to[(2 * t + 1) * LD + g + 8] = acc[3];
            __syncwarp(); // the slice is read
        }
        if (u0 == 0 && squares.words) {
            const float scale = scale_of<T, R>(in, weigh(b, squares, in.epoch, note), a.shape);
            if (b.lane == 0) scales[warp - 8] = scale;
        }
        barrier_of(STEP_ALL, STEP_WARPS * 32); // every slice's sum before they are added; the scales
        if (!finishes) continue;
        const float *sums = parts + parities.part * UNITS * PART + thread_unit * PART + out.r * LD + threadIdx.x % 16;
        float sum;
        if (p.kind == W_SMALL) {
            const float *q = sums + out.unit % 4 * 4 * R * LD;
            sum = ((q[0] + q[R * LD]) + q[2 * R * LD]) + q[3 * R * LD];
        } else
            sum = canonical_sum(sums, R * LD);
        give_output<T, PLUS>(b, p, out, sum, in.squares ? scales[out.r] : 1.0f,
                             b.residual() + ((u0 + thread_unit) * R + out.r) * 16 + threadIdx.x % 16);
    }
    parities.scales ^= 1;
}

// What the outputs of the next W_fc will read: taps, biases, the rows before; and the norm's weights of the W_out
// before it.
template <class T, bool PLUS, int R>
__device__ __forceinline__ void conv_ahead(const step_block<R> &b, const product &p) {
    if (b.warp < STEP_AHEAD) return;
    const cuda_shape &s = b.a.shape;
    product q = p;
    while (q.next<PLUS>(b.a) && q.kind != W_FC) {}
    if (q.kind != W_FC) return;
    const cuda_step_layer &w = b.layers()[q.layer];
    const uint32_t lines = s.K + 1 + R * (s.K - 1), n_units = (q.n_units + n_blocks_now() - 1) / n_blocks_now();
    for (uint32_t i = STEP_WARPS * 32 - 1 - threadIdx.x; i < n_units * lines; i += (STEP_WARPS - STEP_AHEAD) * 32) {
        const uint32_t o = (q.first() + i / lines * n_blocks_now()) * 16, line = i % lines;
        if (o >= s.E) continue; // z
        if (line <= s.K) {
            bring_near(line < s.K ? w.conv + (size_t)line * s.Ep + o : w.conv_b + o);
            continue;
        }
        const uint32_t r = (line - s.K - 1) / (s.K - 1), back = (line - s.K - 1) % (s.K - 1) + 1,
                       place = (uint32_t)((b.pos()[r] + s.conv_ring - back) % s.conv_ring);
        bring_near((const T *)s.conv + (size_t)(uint32_t)b.slot()[r] * s.conv_slot + q.layer * s.conv_layer +
                   (size_t)place * s.Ep + o);
    }
    if (threadIdx.x == STEP_AHEAD * 32 && blockIdx.x < s.D / 16) bring_near(w.mixer_norm + blockIdx.x * 16);
}

// The embeddings: the residual's columns that are this block's, and the first norm's operand.
template <class T, bool PLUS, int R> __device__ __forceinline__ void begin_residual(const step_block<R> &b) {
    const uint32_t D = b.a.shape.D, tiles = D / 16,
                   mine = blockIdx.x < tiles ? (tiles - blockIdx.x + n_blocks_now() - 1) / n_blocks_now() : 0;
    for (uint32_t i = threadIdx.x; i < (mine * R * 16 + 31) / 32 * 32; i += STEP_WARPS * 32) {
        step_output<T> x;
        x.r = i / 16 % R, x.tile = blockIdx.x + i / (16 * R) * n_blocks_now(), x.o = x.tile * 16 + i % 16;
        x.mine = i < mine * R * 16;
        const float out = x.mine ? b.a.x[(size_t)x.r * D + x.o] : 0.0f;
        x.norm = x.mine ? b.layers()->mixer_norm[x.o] : 0.0f;
        if (x.mine) b.residual()[i] = out;
        give_residual(b, PLUS ? 2 : 0, x, out, false, b.base);
    }
}

// ---- the kernel ----

template <class F, int R, int P> // F: the window's format; P: of a head, 0: no window and no FFN
__global__ void __launch_bounds__(STEP_THREADS, 1) one_launch_kernel(const __grid_constant__ step_args a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using T = typename F::act;
    constexpr bool PLUS = P > 0;
    extern __shared__ __align__(128) unsigned char smem[];
    const step_block<R> b(a, smem);
    if (b.warp < STEP_WARPS && b.lane == 0) {
        for (uint32_t i = 0; i < a.places; i++)
            ring_barrier_init(b.full(b.warp) + i), ring_barrier_init(b.empty(b.warp) + i, RING_READERS);
        ring_barriers_there();
    }
    if (threadIdx.x == 0) {
        barrier_there(STEP_ALL, STEP_WARPS * 32);
        for (uint32_t half = 0; half < 2; half++) barrier_there(STEP_HALF + half, STEP_WARPS * 16);
        barrier_there(STEP_ORDER, STEP_WARPS * 32);
    }
    const uint32_t *from = (const uint32_t *)a.layers;
    uint32_t *layers = (uint32_t *)(smem + a.at.layers);
    for (uint32_t i = threadIdx.x; i < a.n_layers * sizeof(cuda_step_layer) / 4; i += STEP_THREADS) layers[i] = from[i];
    if (threadIdx.x < R)
        b.pos()[threadIdx.x] = a.rows.pos[threadIdx.x], b.slot()[threadIdx.x] = a.rows.slot[threadIdx.x];
    if constexpr (PLUS && R == 1) begin_window<F, P>(b);
    __syncthreads(); // the barriers, layers and rows
    if (b.warp >= STEP_WARPS) {
        fetch_weights<PLUS>(b);
        return;
    }
    begin_residual<T, PLUS>(b);
    {
        product p;
        p.size(a);
        keep_product(b, p);
        keep_parities(b, stage_parities{});
    }
    bool more;
    do {
        {
            const product p = kept_product(b);
            if constexpr (PLUS)
                if (p.kind == W_QKV) norms_near<F, P>(b, p.layer);
            if (p.kind == W_SMALL) state_ahead(b, p.layer);
            if (p.kind == W_OUT) {
                conv_ahead<T, PLUS>(b, p);
                state_stage<T>(b, p.layer);
            }
            if constexpr (PLUS)
                if (p.kind == W_AO) {
                    window_stage<F, P>(b, p.layer);
                    combine_stage<T, P>(b, kept_product(b).layer);
                }
        }
        {
            stage_parities parities = kept_parities(b);
            product_stage<T, PLUS>(b, kept_product(b), parities);
            __syncwarp();
            keep_parities(b, parities);
        }
        product p = kept_product(b);
        more = p.template next<PLUS>(a);
        __syncwarp();
        keep_product(b, p);
    } while (more);
    if (threadIdx.x == 0) a.epochs[blockIdx.x] = b.base + a.n_layers;
#endif
}

// ---- launcher ----

// Words, and where each kind begins; all of 8 rows. Returned: how many.
static size_t lay_out(const cuda_shape &s, uint2 *at, step_words *w, uint32_t **epochs) {
    const size_t R = CUDA_ONE_LAUNCH_ROWS, begin = 0, D = s.D, width = (2 * s.H + 1) * (size_t)s.P,
                 ranges = s.H ? (s.visible + RANGE - 1) / RANGE : 0;
    size_t n = begin;
    const auto take = [&](uint2 **p, size_t words) { *p = at ? at + n : NULL, n += (words + 1) / 2 * 2; };
    for (int i = 0; i < 3; i++) take(&w->normed[i], D / 2 * R), take(&w->squares[i], D / 16 * R);
    take(&w->s, cuda_pad16(s.E) / 2 * R), take(&w->a, cuda_pad16(s.E) / 2 * R);
    take(&w->az, R * 3 * s.Ep), take(&w->gates, R * 4 * (4 * s.M + s.R));
    take(&w->o, cuda_pad16(s.E) / 2 * R), take(&w->o_sums, s.Ep / 32 * R);
    take(&w->qkv, R * width), take(&w->part, R * ranges * s.H * s.P), take(&w->part_ml, R * ranges * s.H * 2);
    take(&w->heads, (size_t)s.H * s.P / 2 * R), take(&w->ffn, cuda_pad16(s.F) / 2 * R), take(&w->x, D * R);
    uint2 *last;
    take(&last, 1024); // of blocks
    *epochs = (uint32_t *)last;
    return n;
}
size_t cuda_one_launch_bytes(const struct cuda_shape *shape) {
    step_words w;
    uint32_t *epochs;
    return lay_out(*shape, NULL, &w, &epochs) * sizeof(uint2);
}

using step_kernel = void (*)(step_args);
template <class F, int P> static step_kernel kernel_of_rows(uint32_t n_rows) {
    return n_rows == 1   ? one_launch_kernel<F, 1, P>
           : n_rows == 2 ? one_launch_kernel<F, 2, P>
           : n_rows == 4 ? one_launch_kernel<F, 4, P>
                         : one_launch_kernel<F, 8, P>;
}
static step_kernel kernel_of(const cuda_shape &s, uint32_t n_rows) {
    if (s.H == 0)
        return s.dtype == CUDA_F16 ? kernel_of_rows<window16<__half>, 0>(n_rows)
                                   : kernel_of_rows<window16<__nv_bfloat16>, 0>(n_rows);
    step_kernel kernel = NULL;
    if (s.window == CUDA_FP8)
        FOR_16_BIT(s.dtype,
                   (kernel = s.P == 64 ? one_launch_kernel<window8<T>, 1, 64> : one_launch_kernel<window8<T>, 1, 128>));
    else
        FOR_16_BIT(s.dtype, (kernel = s.P == 64 ? kernel_of_rows<window16<T>, 64>(n_rows)
                                                : kernel_of_rows<window16<T>, 128>(n_rows)));
    return kernel;
}
// Each has units of W_fc.
static uint32_t blocks_of(const cuda_shape &s) { return std::min(multiprocessors(), s.Ep / 8); }
// Places of a ring that shared memory has room for; 0: too few.
static uint32_t places_of(const cuda_shape &s, uint32_t n_layers, uint32_t n_rows, uint32_t n_blocks) {
    for (uint32_t n = STEP_MOST_PLACES; n >= 2; n--)
        if (step_places(s, n_rows, n_layers, n_blocks, n).bytes <= DISPATCH_MOST_SHARED) return n;
    return 0;
}

bool cuda_one_launch_possible(const struct cuda_shape *shape, uint32_t n_layers, uint32_t n_rows, bool asked) {
    const uint32_t blocks = blocks_of(*shape), places = places_of(*shape, n_layers, n_rows, blocks);
    dispatch_case c = {};
    c.op = DISPATCH_DECODE_STEP, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = n_rows, c.shape = shape;
    c.forced = asked;
    if (dispatch_kernel_of(&c) != ONE_LAUNCH || !places || blocks > 1024) return false;
    const step_kernel kernel = kernel_of(*shape, n_rows);
    const size_t bytes = step_places(*shape, n_rows, n_layers, blocks, places).bytes;
    int resident = 0, device = 0, cooperative = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
    return cooperative && allow_shared(kernel, bytes) &&
           cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, STEP_THREADS, bytes) == cudaSuccess &&
           resident > 0;
}

void k_one_launch(const struct cuda_one_launch_step *step, uint32_t n_rows, void *stream) {
    const cuda_shape &s = step->shape;
    assert(n_rows > 0 && n_rows <= CUDA_ONE_LAUNCH_ROWS && (n_rows & (n_rows - 1)) == 0 && step->n_layers > 0);
    assert(on_16_bytes(step->words, step->head, step->x, s.S));
    const uint32_t blocks = blocks_of(s), places = places_of(s, step->n_layers, n_rows, blocks);
    const step_places at(s, n_rows, step->n_layers, blocks, places);
    step_args args = {s,       step->rows, step->n_layers, places,       at,           step->layers, step->norm_f,
                      step->x, step->rope, step->head,     step->logits, step_words{}, NULL,         step->note};
    lay_out(s, (uint2 *)step->words, &args.words, &args.epochs);
    launch_cooperative(kernel_of(s, n_rows), dim3(blocks), dim3(STEP_THREADS), at.bytes, stream, args);
}
