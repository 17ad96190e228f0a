// swa_drafts.cu - E9 of a step with drafts, on any device: keys and values of a session are read once for all its rows,
// a token's and its drafts'. Each row has the ranges, tiles and sums of swa_decode.cu, to the bit.
//
// Once a window is full, a row's ranges begin one key later than those of the row before it. So a block takes a range
// of the first row, and with it the same range of the others, in two heads: up to 128 + 7 keys, which lie in shared
// memory (values) and registers (keys). Scores are made for all keys and rows at once; a warp then weighs a row's
// range, a lane two keys of each tile, as eight warps do in swa_decode.cu; last, a thread adds up a few values of a
// head for half of the rows: it goes through the keys once, with the sums of two tiles under way in each row.
//
// Keys and values of the step's own rows are made by each block that sees them, and go into the ring, where no kernel
// reads them in this step.
#include "swa_decode.cuh"
#include <algorithm>

enum {
    DRAFT_HEADS = 2,
    MOST = CUDA_DRAFTS + 1,
    TASKS = MOST * DRAFT_HEADS, // rows and heads
    STAGED = RANGE + MOST,      // keys: one more than there may be
    HALF = MOST / 2,            // rows of a thread at most
    EIGHTS = WARPS + TILES      // of keys that a thread goes through, in two tiles at a time
};
static_assert((int)CUDA_DRAFT_WINDOW_ROWS == (int)THREADS, "a thread a row of the list");
static_assert(TASKS % 8 == 0 && TILES == 2 && HALF == 4, "two halves of the rows, two tiles a warp");

// Rows of a session that follow each other in the list.
struct draft_rows {
    uint32_t r, at, n, slot; // the first one, of the step and of the list; how many
    uint32_t newest;         // keys that the first one sees before its own
    uint32_t oldest_at;      // the place in the ring of the oldest
    uint32_t lead;           // rows of the step, and of the session, before it
};
template <class F, int P> struct draft_shared {
    using parts = tile_parts<F, P, DRAFT_HEADS>;
    uint4 values[STAGED][parts::VALUE_BYTES / 16];
    uint4 queries[TASKS * 2 * parts::Q_ROW]; // each followed by what rounding took off
    float weights[TASKS][STAGED];            // scores at first
    uint4 new_keys[MOST][parts::KEY_BYTES / 16];
    float2 scales[TASKS][EIGHTS]; // of what a thread has summed, when it ends a tile: first tile's, second tile's
    draft_rows sessions[CUDA_DRAFT_WINDOW_ROWS];
    uint32_t first[CUDA_DRAFT_WINDOW_ROWS + 1]; // ranges of the rows before, as swa_decode_many.cu counts them
    uint32_t begins[WARPS + 1], warp_ranges[WARPS];
};

// A range of a session's rows. Key i of it is the key b RANGE + i of the first row's window, or a later one.
struct draft_range : draft_rows {
    uint32_t b, spare; // spare: rows of which each sees one key more than the row before it
    __device__ __forceinline__ uint32_t seen(uint32_t row) const { return newest + 1 + min(row, spare); }
    __device__ __forceinline__ uint32_t shift(uint32_t row) const { return row - min(row, spare); }
    __device__ __forceinline__ bool has(uint32_t row) const { return seen(row) > b * RANGE; }
    // Keys of it that lie in the ring; the step's own behind them; all.
    __device__ __forceinline__ uint32_t old() const {
        const uint32_t fresh = newest > lead ? newest - lead : 0;
        return min(fresh > b * RANGE ? fresh - b * RANGE : 0, RANGE + shift(n - 1));
    }
    __device__ __forceinline__ uint32_t all() const {
        const uint32_t end = newest + n;
        return min(end > b * RANGE ? end - b * RANGE : 0, RANGE + shift(n - 1));
    }
};

// The list's rows, by sessions. By the whole block; the result: how many ranges there are.
template <class F, int P>
__device__ __forceinline__ uint32_t find_sessions(const decode_window &a, uint32_t n_list, draft_shared<F, P> &sh) {
    const cuda_shape &s = a.shape;
    const uint32_t at = threadIdx.x, warp = at / 32, lane = at % 32;
    draft_rows x = {};
    uint64_t pos = 0;
    if (at < n_list) {
        x.r = a.list ? (uint32_t)a.list[at] : at, x.at = at, x.slot = (uint32_t)a.rows.slot[x.r];
        x.lead = (uint32_t)a.rows.lead[x.r], pos = (uint64_t)a.rows.pos[x.r];
    }
    const bool begins = at == 0 || at >= n_list || x.lead == 0;
    const uint32_t of_warp = __ballot_sync(0xffffffffu, begins);
    if (lane == 0) sh.begins[warp] = of_warp;
    if (at == 0) sh.begins[WARPS] = 1;
    __syncthreads(); // where sessions begin
    uint32_t own = 0;
    if (at < n_list && begins && x.slot != s.n_slots) {
        const uint64_t behind = ((uint64_t)sh.begins[warp + 1] << 32 | of_warp) >> lane >> 1;
        x.n = min((uint32_t)__ffsll((long long)behind), (uint32_t)MOST);
        x.newest = (uint32_t)min(pos + 1, (uint64_t)s.visible) - 1;
        const uint32_t newest_at = (uint32_t)(pos % s.ring_keys);
        x.oldest_at = newest_at >= x.newest ? newest_at - x.newest : newest_at + s.ring_keys - x.newest;
        own = (uint32_t)(min(pos + x.n, (uint64_t)s.visible) - 1) / RANGE + 1;
    }
    sh.sessions[at] = x;
    uint32_t all;
    sh.first[at] = sum_before(own, sh.warp_ranges, all);
    if (at == 0) sh.first[THREADS] = all;
    return all;
}

// Queries of the rows; keys and values of the step's rows that are in the range. By the whole block.
template <class F, int P>
__device__ __forceinline__ void make_inputs(const decode_window &a, const draft_range &of, uint32_t h0,
                                            typename F::kept *keys, typename F::kept *values, draft_shared<F, P> &sh) {
    using query_type = typename F::query;
    using kept = typename F::kept;
    constexpr int Q_ROW = draft_shared<F, P>::parts::Q_ROW;
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_queries = of.n * DRAFT_HEADS, old = of.old(),
                   n_new = of.all() - old;
    float *head = &sh.weights[0][0] + warp * P; // scores come after a barrier
#pragma unroll 1
    for (uint32_t job = warp; job < n_queries + 2 * n_new; job += WARPS) {
        const bool query = job < n_queries;
        const uint32_t i = query ? 0 : (job - n_queries) % n_new,
                       at = of.b * RANGE + old + i, // of the first row's keys
            row = query ? of.r + job / DRAFT_HEADS : of.r + at - of.newest;
        // The ring takes a row's from the blocks that have its newest key.
        const bool own = !query && at >= of.newest && (of.seen(at - of.newest) - 1) / RANGE == of.b;
        const uint32_t place = of.oldest_at + at < s.ring_keys ? of.oldest_at + at : of.oldest_at + at - s.ring_keys;
        if (job < n_queries + n_new) {
            float x[P / 32];
            rotated_head<P>(a, row, query ? h0 + job % DRAFT_HEADS : s.H, query ? a.q_norm : a.k_norm, head, x);
            query_type *high = (query_type *)(sh.queries + 2 * job * Q_ROW);
#pragma unroll
            for (int k = 0; k < P / 32; k++) {
                const uint32_t p = lane + 32 * k;
                if (query) {
                    query_type low;
                    high[p] = two_parts(F::query_of(x[k]), low);
                    high[Q_ROW * 8 + p] = low;
                } else {
                    const kept y = from_float<kept>(x[k]);
                    ((kept *)sh.new_keys[i])[p] = y;
                    if (own && h0 == 0) keys[place * P + p] = y;
                }
            }
            __syncwarp(); // all have read the head
        } else {
            float x[DRAFT_HEADS * P / 32];
            column_sums<P>(a, row, (s.H + 1 + h0) * P, x);
#pragma unroll
            for (int k = 0; k < DRAFT_HEADS * P / 32; k++) {
                const kept y = from_float<kept>(x[k]);
                ((kept *)sh.values[old + i])[lane + 32 * k] = y;
                if (own) values[place * (s.H * P) + h0 * P + lane + 32 * k] = y;
            }
        }
    }
}

// Scores of a warp's keys with all rows: of eight keys three times, those of the last time the first warp's alone.
// key: of lane (g, t) the pieces t, t + 4 ... of key g.
template <class F, int P>
__device__ __forceinline__ void make_scores(const draft_range &of, uint4 (&key)[3][draft_shared<F, P>::parts::KEY],
                                            draft_shared<F, P> &sh) {
    constexpr int Q_ROW = draft_shared<F, P>::parts::Q_ROW, KEY = draft_shared<F, P>::parts::KEY;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, old = of.old(),
                   all = of.all();
#pragma unroll
    for (int u = 0; u < 3; u++) {
        const uint32_t i0 = (warp + u * WARPS) * TILE, i = i0 + g;
        if (i0 >= all) break;
        if (i >= old && i < all)
#pragma unroll
            for (int k = 0; k < KEY; k++) key[u][k] = sh.new_keys[i - old][4 * k + t];
#pragma unroll
        for (uint32_t task = 0; task < TASKS; task += 8) {
            if (task >= of.n * DRAFT_HEADS) break;
            // Queries are rows of the product in pairs of high and low part, keys its columns; the rows and columns of
            // a product do not know of each other, and a lane gives the dims that swa_decode.cu's gives.
            float score[4] = {};
#pragma unroll
            for (int k = 0; k < KEY; k++)
                score_piece<F>(score, key[u][k], k, sh.queries + (2 * task + g) * Q_ROW,
                               sh.queries + (2 * task + g + 8) * Q_ROW);
#pragma unroll
            for (int e = 0; e < 4; e++) score[e] += __shfl_xor_sync(0xffffffffu, score[e], 4);
            if (g % 2 == 0) {
                *(float2 *)&sh.weights[task + g / 2][i0 + 2 * t] = make_float2(score[0], score[1]);
                *(float2 *)&sh.weights[task + g / 2 + 4][i0 + 2 * t] = make_float2(score[2], score[3]);
            }
        }
    }
}

// Scores -> weights, in their place, and what the sums are scaled by. A warp: a row and head; lanes (g, t): what warp g
// of swa_decode.cu's block has of it. at: of the first row's result in part_ml.
template <class F, int P>
__device__ __forceinline__ void make_weights(const decode_window &a, const draft_range &of, size_t at, size_t row_size,
                                             draft_shared<F, P> &sh) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
#pragma unroll 1
    for (uint32_t task = warp; task < of.n * DRAFT_HEADS; task += WARPS) {
        const uint32_t row = task / DRAFT_HEADS;
        if (!of.has(row)) continue;
        float *mine = sh.weights[task] + of.shift(row) + g * TILE + 2 * t, top = -INFINITY, sum = 0, keep;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float score[2] = {mine[tile * STEP], mine[tile * STEP + 1]}, w[2];
            weigh_keys(score, of.b * RANGE + tile * STEP + g * TILE + 2 * t, of.seen(row), scale, top, sum, w, keep);
            mine[tile * STEP] = w[0], mine[tile * STEP + 1] = w[1];
        }
        float m = top; // of all eight warps, as fold_warps has it
#pragma unroll
        for (int i = 4; i < 32; i <<= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, i));
        const float f = power(__fsub_rn(top, m));
        float total = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            total = __fmaf_rn(__shfl_sync(0xffffffffu, f, 4 * i), __shfl_sync(0xffffffffu, sum, 4 * i), total);
        if (t == 0) sh.scales[task][g + 1].x = keep, sh.scales[task][g + 2].y = f;
        if (lane == 0) a.part_ml[at + row * row_size + task % DRAFT_HEADS] = make_float2(m, total);
    }
}

// A thread's sums of N values of a head for rows row0 .. row0 + EACH - 1: those of the first tile of one warp of
// swa_decode.cu's block, of the second tile of the warp before it, of all warps before that.
// SHIFTED: row e's tiles begin e keys behind row0's, else where row0's do. HIDES: a row may not see all keys of the
// range; what it does not see adds zeros in swa_decode.cu, so it adds nothing here, but makes a -0 a 0. keys: the
// first key of row0's tiles; limit: of each row, from there on, the keys that it sees.
template <class F, int P, int EACH, int N, bool SHIFTED, bool HIDES>
__device__ __forceinline__ void add_values(const draft_shared<F, P> &sh, uint32_t keys, uint32_t column,
                                           const uint32_t (&task)[EACH], const uint32_t (&limit)[EACH],
                                           float (&all)[EACH][N]) {
    struct alignas(4 * EACH) weights {
        float of[EACH];
    };
    using kept = typename F::kept;
    using sums = typename F::template sums<N>;
    using values = typename sums::piece::type;
    sums first[EACH], second[EACH];
    float ended[EACH][N] = {};
    // Four keys from i on, of a tile that ends where key `end` of these would be; ends(e): what then becomes of row e.
    const auto add_four = [&](sums(&sum)[EACH], uint32_t i, int k0, const auto &ends) {
        weights w[EACH]; // of EACH keys: keys is a multiple of as many
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const values bits = *(const values *)((const kept *)sh.values[keys + i + k] + column);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (k % EACH == 0) w[e] = *(const weights *)&sh.weights[task[e]][keys + i + k];
                if (k0 + k == (SHIFTED ? e : 0)) ends(e);
                if (HIDES && i + k >= limit[e]) continue;
                sum[e].add(F::weight_of(w[e].of[k % EACH]), bits);
            }
        }
    };
#pragma unroll 1
    for (uint32_t o = 0; o < (SHIFTED ? EIGHTS : EIGHTS - 1); o++) {
        const auto end_first = [&](int e) {
            const bool hid = HIDES && limit[e] < TILE * o + (SHIFTED ? e : 0);
#pragma unroll
            for (int d = 0; d < N; d++) ended[e][d] = first[e].end(d, hid);
#pragma unroll
            for (int d = 0; d < N; d++) first[e].begin(d, 0, 0);
        };
        const auto end_second = [&](int e) {
            const float2 scale = sh.scales[task[e]][o];
            const bool hid = HIDES && limit[e] < STEP - TILE + TILE * o + (SHIFTED ? e : 0);
#pragma unroll
            for (int d = 0; d < N; d++)
                if (o > 1) all[e][d] = __fmaf_rn(scale.y, second[e].end(d, hid), all[e][d]);
#pragma unroll
            for (int d = 0; d < N; d++) second[e].begin(d, ended[e][d], scale.x);
        };
        if (o < EIGHTS - 1) add_four(first, TILE * o, 0, end_first); // the last time what ends a tile is in it
        if (o < EIGHTS - 2) add_four(first, TILE * o + 4, 4, end_first);
        if (o > 0) add_four(second, STEP - TILE + TILE * o, 0, end_second);
        if (o > 0 && o < EIGHTS - 1) add_four(second, STEP - TILE + TILE * o + 4, 4, end_second);
    }
#pragma unroll
    for (int e = 0; e < EACH && !SHIFTED; e++) {
        const float f = sh.scales[task[e]][EIGHTS - 1].y;
        const bool hid = HIDES && limit[e] < RANGE;
#pragma unroll
        for (int d = 0; d < N; d++) all[e][d] = __fmaf_rn(f, second[e].end(d, hid), all[e][d]);
    }
}

// The rows whose tiles begin where the first row's do, or (SHIFTED) each a key behind the row before. at: of the first
// row's result in part. EACH: half of the rows at least. N: so few that all threads have a part, but a weight that is
// read must serve four values where it is one of many rows'.
template <class F, int P, int EACH, int N, bool SHIFTED>
__device__ __forceinline__ void sum_values(const decode_window &a, const draft_range &of, size_t at, size_t row_size,
                                           const draft_shared<F, P> &sh) {
    constexpr uint32_t LANES = DRAFT_HEADS * P / N;
    const uint32_t half = threadIdx.x / LANES, column = threadIdx.x % LANES * N;
    if (half > 1) return;
    const uint32_t same = of.spare == 0 && of.n > 1 ? 0 : min(of.n, of.spare + 1), // rows that are not shifted
        from = SHIFTED ? same : 0, to = SHIFTED ? of.n : same, row0 = half * EACH + (SHIFTED ? of.spare : 0),
                   keys = SHIFTED ? half * EACH : 0;
    if (row0 >= to || row0 + EACH <= from) return;
    uint32_t task[EACH], limit[EACH];
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++) {
        const uint32_t row = min(row0 + e, of.n - 1), sees = of.seen(row) + of.shift(row) - keys;
        task[e] = row * DRAFT_HEADS + column / P;
        limit[e] = sees > of.b * RANGE ? sees - of.b * RANGE : 0;
    }
    float all[EACH][N] = {};
    if (of.seen(0) < (of.b + 1) * RANGE)
        add_values<F, P, EACH, N, SHIFTED, true>(sh, keys, column, task, limit, all);
    else
        add_values<F, P, EACH, N, SHIFTED, false>(sh, keys, column, task, limit, all);
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++) {
        const uint32_t row = row0 + e;
        if (row - from < to - from && of.has(row))
#pragma unroll
            for (int d = 0; d < N; d += 2)
                *(float2 *)(a.part + (at + row * row_size) * P + column + d) = make_float2(all[e][d], all[e][d + 1]);
    }
}
template <class F, int P, int EACH, int N>
__device__ __forceinline__ void sum_values(const decode_window &a, const draft_range &of, size_t at, size_t row_size,
                                           const draft_shared<F, P> &sh) {
    sum_values<F, P, EACH, N, false>(a, of, at, row_size, sh);
    sum_values<F, P, EACH, N, true>(a, of, at, row_size, sh);
}

// A block: two heads; of all ranges of the list's sessions every `runs`th one.
template <class F, int P>
__global__ void __launch_bounds__(THREADS, 2)
    draft_window_kernel(const __grid_constant__ decode_window a, uint32_t n_list, uint32_t runs) {
    extern __shared__ __align__(16) unsigned char shared[];
    draft_shared<F, P> &sh = *(draft_shared<F, P> *)shared;
    using kept = typename F::kept;
    constexpr int KEY = draft_shared<F, P>::parts::KEY;
    constexpr uint32_t PIECES = draft_shared<F, P>::parts::VALUE_BYTES / 16;
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                   pairs = s.H / DRAFT_HEADS, h0 = blockIdx.x % pairs * DRAFT_HEADS, run = blockIdx.x / pairs;
    const uint32_t n_all = find_sessions<F, P>(a, n_list, sh); // a step's rows may be read early
    __syncthreads();                                           // the sessions
    bool early = true;
    for (uint32_t q = run; q < n_all; q += runs) {
        uint32_t at = 0;
        for (uint32_t step = THREADS; step; step >>= 1)
            if (at + step < n_list && sh.first[at + step] <= q) at += step;
        draft_range of;
        (draft_rows &)of = sh.sessions[at];
        of.b = q - sh.first[at], of.spare = s.visible - 1 - of.newest;
        kept *keys = (kept *)s.keys + (size_t)of.slot * s.keys_slot + a.layer * s.keys_layer,
             *values = (kept *)s.values + (size_t)of.slot * s.values_slot + a.layer * s.values_layer;
        const uint32_t old = of.old();
        const auto place = [&](uint32_t i) {
            const uint32_t x = of.oldest_at + of.b * RANGE + i;
            return x < s.ring_keys ? x : x - s.ring_keys;
        };
        uint4 key[3][KEY];
#pragma unroll
        for (int u = 0; u < 3; u++) {
            const uint32_t i = (warp + u * WARPS) * TILE + g;
#pragma unroll
            for (int k = 0; k < KEY; k++)
                key[u][k] = stream16((const uint4 *)(keys + place(i) * P) + 4 * k + t, i < old);
        }
        for (uint32_t i = threadIdx.x / PIECES; i < old; i += THREADS / PIECES)
            ask16(&sh.values[i][threadIdx.x % PIECES],
                  values + (size_t)place(i) * (s.H * P) + h0 * P + threadIdx.x % PIECES * (16 / sizeof(kept)), true);
        asked();
        if (early) {
            early = false;
            wait_for_inputs();
            let_next_start();
        }
        make_inputs<F, P>(a, of, h0, keys, values, sh);
        __syncthreads(); // queries, the step's own keys
        make_scores<F, P>(of, key, sh);
        __syncthreads(); // scores
        const size_t row_size = (size_t)a.n_ranges * s.H, to = at * row_size + of.b * s.H + h0;
        make_weights<F, P>(a, of, to, row_size, sh);
        await_all_but<0>();
        __syncthreads(); // weights, and all threads' values
        if (of.n <= 2)
            sum_values<F, P, 1, 2>(a, of, to, row_size, sh);
        else if (of.n <= 4)
            sum_values<F, P, 2, 2>(a, of, to, row_size, sh);
        else
            sum_values<F, P, HALF, 4>(a, of, to, row_size, sh);
        __syncthreads(); // everyone is through with the range
    }
    if (early) wait_for_inputs();
}

// ---- launcher ----

template <class F, int P> static void draft_window(const decode_window &a, uint32_t n_list, void *stream) {
    const auto kernel = draft_window_kernel<F, P>;
    const uint32_t pairs = a.shape.H / DRAFT_HEADS,
                   runs = std::min(dispatch_draft_runs(this_device(), &a.shape), n_list * a.n_ranges);
    allow_shared(kernel, sizeof(draft_shared<F, P>));
    launch(kernel, dim3(pairs * runs), dim3(THREADS), sizeof(draft_shared<F, P>), stream, a, n_list, runs);
}
void k_draft_window(const struct cuda_window *window, void *stream) {
    assert(window->n_list <= CUDA_DRAFT_WINDOW_ROWS && window->rows.lead);
    const decode_window a = decode_window_of(window, true);
    FOR_WINDOW(a.shape, a.shape.P == 64 ? draft_window<F, 64>(a, window->n_list, stream)
                                        : draft_window<F, 128>(a, window->n_list, stream));
    decode_combine(a, window->n_list, stream);
}
