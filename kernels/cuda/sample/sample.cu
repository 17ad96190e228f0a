// sample.cu - from rows of logits to tokens.
//
// A probability is an integer here: 2^40 for the largest logit, fewer for the others. Sums of integers are the same in
// any order, so shared counters may be added to as threads come, and a draw still is a function of its row alone.
#include "sample.cuh"
#include <cfloat>

enum {
    PIECE = 2048,
    PIECE_THREADS = 256,
    PICK_THREADS = 1024,
    WARPS = PICK_THREADS / 32,
    BINS = PICK_THREADS,
    LIST = PICK_THREADS,
    DRAWN_STATUS = 24 // bits of cuda_piece.drawn that are the token's
};
static_assert(CUDA_SAMPLE_MAX_V <= 1 << DRAWN_STATUS, "a token leaves room for its status");

// ---- order: larger is more wanted; equal logits in order of id ----

__device__ __forceinline__ uint32_t ordered(float x) {
    uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f)); // -0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t o) {
    return __uint_as_float(o & 0x80000000u ? o & 0x7fffffffu : ~o);
}
__device__ __forceinline__ u64 key_of(float x, uint32_t id) { return (u64)ordered(x) << 32 | (0xffffffffu - id); }
__device__ __forceinline__ uint32_t id_of(u64 key) { return 0xffffffffu - (uint32_t)key; }
__device__ __forceinline__ float logit_of(u64 key) { return from_ordered((uint32_t)(key >> 32)); }

__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, x, i);
        x = other > x ? other : x;
    }
    return x;
}
__device__ __forceinline__ u64 warp_total(u64 x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ u64 warp_scan(u64 x) { // inclusive
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        u64 before = __shfl_up_sync(0xffffffffu, x, i);
        if ((threadIdx.x & 31) >= i) x += before;
    }
    return x;
}

// ---- a row after mask, bias, bans and penalties: the same operations in the same order as on the CPU, so the same
// bits. DRAFTS: and after the draft tokens before it in the step, as if these had been drawn ----

template <bool DRAFTS> struct adjusted_row {
    const float *logits, *bias;   // bias, marks: NULL where the row has none
    const uint32_t *marks, *mask; // mask: NULL where all tokens may come
    float repetition, frequency, presence;
    bool banned, may_end, penalised, plain; // plain: nothing changes
    uint32_t V, n_drafts;
    const int32_t *drafts; // [n_drafts]

    __device__ adjusted_row(const cuda_sampler &s, const cuda_sampling &sp, uint32_t slot, const float *row,
                            const cuda_rows &rows, uint32_t r)
        : logits(row), V(s.V), n_drafts(DRAFTS ? (uint32_t)rows.lead[r] : 0), drafts(rows.tok + r + 1 - n_drafts) {
        const size_t mask_at = ((size_t)slot * s.mask_rows + n_drafts) * CUDA_MASK_WORDS(V);
        banned = sp.n_generated + n_drafts < sp.min_tokens;
        penalised = sp.penalised;
        bias = sp.biased ? s.bias + (size_t)slot * V : NULL;
        mask = sp.constrained >> n_drafts & 1 ? s.masks + mask_at : NULL;
        may_end = sp.may_end >> n_drafts & 1;
        marks = banned || penalised || mask ? s.marks + (size_t)slot * V : NULL;
        repetition = sp.repetition_penalty, frequency = sp.frequency_penalty, presence = sp.presence_penalty;
        plain = !bias && !marks;
    }
    __device__ float operator()(float v, uint32_t i) const {
        const uint32_t mark = marks ? marks[i] : 0;
        uint32_t n = mark & MARK_COUNT;
        bool seen = mark & MARK_SEEN;
        if (DRAFTS && penalised)
#pragma unroll 1
            for (uint32_t k = 0; k < n_drafts; k++)
                if ((uint32_t)drafts[k] == i) seen = true, n++;
        if (mask && !(mark & MARK_END ? may_end : mask[i / 32] >> (i % 32) & 1)) v = -INFINITY;
        if (bias) v = __fadd_rn(v, bias[i]);
        if (banned && mark & MARK_END) v = -INFINITY;
        if (!penalised || !seen) return v;
        v = v > 0 ? __fdiv_rn(v, repetition) : __fmul_rn(v, repetition);
        return n ? __fsub_rn(v, __fadd_rn(__fmul_rn((float)n, frequency), presence)) : v;
    }
};

// ---- first kernel: pieces of a row ----

uint32_t cuda_sample_pieces(uint32_t V) { return (V + PIECE - 1) / PIECE; }

template <bool DRAFTS>
__global__ void __launch_bounds__(PIECE_THREADS)
    pieces_kernel(cuda_sampler s, cuda_rows rows, const int32_t *out, const float *logits, cuda_piece *pieces) {
    __shared__ float shared[32];
    __shared__ cuda_piece warps[PIECE_THREADS / 32];
    let_next_start();
    wait_for_inputs();
    const uint32_t first = blockIdx.x * PIECE + threadIdx.x;
    const float *logits_here = logits + (size_t)blockIdx.y * s.V;
    float raw[PIECE / PIECE_THREADS];
#pragma unroll
    for (int j = 0; j < PIECE / PIECE_THREADS; j++) { // all loads first, a row's or a padding row's
        const uint32_t i = first + j * PIECE_THREADS;
        raw[j] = i < s.V ? logits_here[i] : 0.0f;
    }
    const uint32_t r = (uint32_t)out[blockIdx.y], slot = (uint32_t)rows.slot[r];
    if (slot >= s.n_slots) return;
    const adjusted_row<DRAFTS> row(s, s.slots[slot], slot, logits_here, rows, r);
    const bool logprobs = s.slots[slot].n_logprobs >= 0;
    cuda_piece mine = {0, 0, INFINITY, 0, 0, 0};
    float zero = 0;
    if (first < s.V) { // ids ascend, so an equal logit that comes later is no better
        float best = row.plain ? raw[0] : row(raw[0], first), raw_best = raw[0];
        uint32_t id = first, raw_id = first;
        mine.low = best, zero = raw[0] * 0.0f;
#pragma unroll
        for (int j = 1; j < PIECE / PIECE_THREADS; j++) {
            const uint32_t i = first + j * PIECE_THREADS;
            if (i >= s.V) break;
            const float v = row.plain ? raw[j] : row(raw[j], i);
            if (v > best) best = v, id = i;
            if (raw[j] > raw_best) raw_best = raw[j], raw_id = i;
            mine.low = fminf(mine.low, v);
            zero += raw[j] * 0.0f; // stays 0 unless one is infinite or not a number
        }
        mine.best = key_of(best, id);
        mine.raw_best = key_of(raw_best, raw_id);
    }
    mine.broken = __any_sync(0xffffffffu, !(zero == 0));
    mine.best = warp_max(mine.best);
    mine.raw_best = warp_max(mine.raw_best);
#pragma unroll
    for (int i = 16; i; i >>= 1) mine.low = fminf(mine.low, __shfl_xor_sync(0xffffffffu, mine.low, i));
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads(); // the warps' results before they are merged
    if (threadIdx.x && !logprobs) return;
    mine = warps[0];
    for (uint32_t w = 1; w < PIECE_THREADS / 32; w++) {
        mine.best = warps[w].best > mine.best ? warps[w].best : mine.best;
        mine.raw_best = warps[w].raw_best > mine.raw_best ? warps[w].raw_best : mine.raw_best;
        mine.low = fminf(mine.low, warps[w].low);
        mine.broken |= warps[w].broken;
    }
    if (logprobs) { // the same for the whole block
        const float max = logit_of(mine.raw_best);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < PIECE / PIECE_THREADS; j++)
            sum += first + j * PIECE_THREADS < s.V ? expf(raw[j] - max) : 0.0f;
        mine.raw_sum = block_sum(sum, shared);
    }
    if (threadIdx.x == 0) pieces[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = mine;
}

// ---- the blocks that share a row: a cluster, or one block ----

struct team {
    uint32_t n, rank;
    // Everything before it, of all blocks, comes before everything after it.
    __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
        if (n > 1) {
            delay(16);
            asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
            delay(16);
            return;
        }
#endif
        __syncthreads();
    }
    // p: in this block's shared memory; the value that lies there in another's.
    __device__ uint32_t of(uint32_t from, const uint32_t *p) const {
#if __CUDA_ARCH__ >= 900
        if (n > 1) {
            uint32_t v;
            asm volatile("{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %1, %2;\nld.shared::cluster.u32 %0, [a];\n}"
                         : "=r"(v)
                         : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(from)
                         : "memory");
            return v;
        }
#endif
        return *p;
    }
    __device__ u64 of(uint32_t from, const u64 *p) const {
#if __CUDA_ARCH__ >= 900
        if (n > 1) {
            u64 v;
            asm volatile("{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %1, %2;\nld.shared::cluster.u64 %0, [a];\n}"
                         : "=l"(v)
                         : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(from)
                         : "memory");
            return v;
        }
#endif
        return *p;
    }
};

// ---- second kernel: a block, or a cluster, takes a row's pieces, and its logits again where it draws ----

struct pick_shared {
    uint32_t lo[BINS], hi[BINS]; // 64-bit counters in halves: shared memory adds 32 bits at a time
    u64 list[LIST], weight[LIST], warps[WARPS], found, before, mine[3]; // mine: sums that the team adds
    double reals[WARPS];
    uint32_t bin, n_list;
};

__device__ __forceinline__ void add64(uint32_t *lo, uint32_t *hi, u64 v) {
    const uint32_t low = (uint32_t)v, old = atomicAdd(lo, low), high = (uint32_t)(v >> 32) + (old + low < old);
    if (high) atomicAdd(hi, high);
}

// The largest over the block; all threads have it.
__device__ u64 block_max(u64 x, pick_shared &sh) {
    x = warp_max(x);
    __syncthreads(); // everyone has read the last result
    if ((threadIdx.x & 31) == 0) sh.warps[threadIdx.x / 32] = x;
    __syncthreads(); // the warps' results
    return warp_max(sh.warps[threadIdx.x & 31]);
}
// The sum over the block, and what the warps before this one have.
__device__ u64 block_total(u64 x, pick_shared &sh, u64 *warps_before) {
    x = warp_total(x);
    __syncthreads(); // everyone has read the last result
    if ((threadIdx.x & 31) == 0) sh.warps[threadIdx.x / 32] = x;
    __syncthreads(); // the warps' sums
    const u64 upto = warp_scan(sh.warps[threadIdx.x & 31]);
    const uint32_t w = threadIdx.x / 32;
    *warps_before = w ? __shfl_sync(0xffffffffu, upto, w - 1) : 0;
    return __shfl_sync(0xffffffffu, upto, 31);
}
__device__ double block_total(double x, pick_shared &sh) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    __syncthreads(); // everyone has read the last result
    if ((threadIdx.x & 31) == 0) sh.reals[threadIdx.x / 32] = x;
    __syncthreads(); // the warps' sums
    double sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) sum += sh.reals[w];
    return sum;
}

// Elements are shared out over the team's warps in runs of equal length, a multiple of 32.
__device__ __forceinline__ uint32_t run_len(uint32_t n, uint32_t n_blocks) {
    return (n + n_blocks * PICK_THREADS - 1) / (n_blocks * PICK_THREADS) * 32;
}

// visit(id, logit) for [first, first + n), each warp its run in order of id.
template <class Row, class Visit>
__device__ __forceinline__ void scan(const team &t, const Row &row, uint32_t first, uint32_t n, Visit visit) {
    const uint32_t len = run_len(n, t.n), begin = (t.rank * WARPS + threadIdx.x / 32) * len,
                   end = begin + len < n ? begin + len : n;
    uint32_t i = begin + (threadIdx.x & 31);
    for (; i + 7 * 32 < end; i += 8 * 32) {
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = row.logits[first + i + j * 32]; // all loads first
#pragma unroll
        for (int j = 0; j < 8; j++) visit(first + i + j * 32, row.plain ? v[j] : row(v[j], first + i + j * 32));
    }
    for (; i < end; i += 32) {
        const float v = row.logits[first + i];
        visit(first + i, row.plain ? v : row(v, first + i));
    }
}

// What the filters left, and what a token weighs.
struct draw_state {
    float max, scale, scale_e, bins_per_y; // scale: of the exponent to base 2, scale_e: to base e
    u64 cut;                               // kept: key >= cut
    float cut_logit;
    uint32_t cut_id;
    bool typical;
    double mean; // of y_e over what was kept before typical_p
    u64 typical_cut;

    __device__ void raise(u64 key) {
        if (key > cut) cut = key, cut_logit = logit_of(key), cut_id = id_of(key);
    }
    __device__ float y(float x) const { return (max - x) * scale; } // how far below the best, in powers of two
    __device__ float y_e(float x) const { return (max - x) * scale_e; }
    __device__ float distance(float x) const { return (float)fabs((double)y_e(x) - mean); }
    __device__ u64 mass(float x) const {
        float e;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - max) * scale));
        const uint32_t bits = __float_as_uint(e);
        u64 fixed = (u64)((bits & 0x7fffffu) | 0x800000u) << 17;
        asm("shr.u64 %0, %1, %2;" : "=l"(fixed) : "l"(fixed), "r"(127 - (bits >> 23))); // shifts beyond 63 give 0
        return fixed;
    }
    __device__ u64 typical_key(float x, uint32_t i) const {
        return (u64)~ordered(distance(x)) << 32 | (0xffffffffu - i);
    }
    __device__ bool keeps(float x, uint32_t i) const {
        if (!(x > cut_logit) && !(x == cut_logit && i <= cut_id)) return false;
        return !typical || typical_key(x, i) >= typical_cut;
    }
    __device__ u64 kept_mass(float x, uint32_t i) const { return keeps(x, i) ? mass(x) : 0; }
};

// In which counter is the target, counted from the first? Sets sh.bin and sh.before; the sum of all. The target is at
// least 1.
template <class Target> __device__ u64 find_bin(const team &t, pick_shared &sh, Target target_of) {
    t.sync(); // all has been added
    u64 here = 0;
    for (uint32_t i = 0; i < t.n; i++) here += (u64)t.of(i, &sh.hi[threadIdx.x]) << 32 | t.of(i, &sh.lo[threadIdx.x]);
    u64 before, total = block_total(here, sh, &before);
    before += warp_scan(here) - here;
    const u64 target = target_of(total);
    if (before < target && target <= before + here) sh.bin = threadIdx.x, sh.before = before;
    __syncthreads(); // the bin is known
    return total;
}
__device__ __forceinline__ void clear_bins(const team &t, pick_shared &sh) {
    t.sync(); // the counters have been read
    sh.lo[threadIdx.x] = sh.hi[threadIdx.x] = 0;
    __syncthreads(); // and are clear
}

// The threshold (of order) of the shortest run of most wanted tokens that weighs `fraction` of all, or `count` tokens
// (fraction 0). 0: there are fewer. Two passes over the row: weights by bins, which order the tokens as `order` does;
// then the one bin that matters, whose few tokens are compared with each other. A bin with too many is divided by the
// bits of their order until they are few. place: ascends with order, 0 .. BINS.
template <class Row, class Order, class Place>
__device__ u64 select(const team &t, pick_shared &sh, const Row &row, const draw_state &d, double fraction, u64 count,
                      Order order, Place place) {
    clear_bins(t, sh);
    scan(t, row, 0, row.V, [&](uint32_t i, float x) {
        const u64 mass = d.kept_mass(x, i);
        if (!mass) return;
        const uint32_t bin = (uint32_t)fminf(place(x), BINS - 1);
        add64(&sh.lo[bin], &sh.hi[bin], fraction > 0 ? mass : 1);
    });
    u64 target = count;
    const u64 total = find_bin(t, sh, [&](u64 all) {
        if (fraction > 0) {
            target = (u64)ceil(fraction * (double)all);
            target = target < 1 ? 1 : target > all ? all : target;
        }
        return target;
    });
    if (target > total) return 0;
    const float bin_begin = (float)sh.bin, bin_end = sh.bin == BINS - 1 ? INFINITY : bin_begin + 1;
    u64 remain = target - sh.before, prefix = 0;
    int shift = 64; // the bits of order above it are prefix
    const auto in_reach = [&](uint32_t i, float x) {
        const float at = place(x);
        return at >= bin_begin && at < bin_end && d.kept_mass(x, i) && (shift == 64 || order(x, i) >> shift == prefix);
    };
    uint32_t n_list = 0;
    for (;;) {
        t.sync(); // the lists have been read
        if (threadIdx.x == 0) sh.n_list = 0;
        __syncthreads(); // and are empty
        scan(t, row, 0, row.V, [&](uint32_t i, float x) {
            if (!in_reach(i, x)) return;
            const uint32_t at = atomicAdd(&sh.n_list, 1);
            if (at < LIST) sh.list[at] = order(x, i), sh.weight[at] = fraction > 0 ? d.mass(x) : 1;
        });
        t.sync();                            // the lists are complete
        uint32_t from = 0, at = threadIdx.x; // this thread's element of all lists, one after the other
        for (n_list = 0; n_list <= LIST && from < t.n; from++) n_list += t.of(from, &sh.n_list);
        if (n_list <= LIST) {
            u64 element = 0, weight = 0;
            for (from = 0; threadIdx.x < n_list; from++) {
                const uint32_t n = t.of(from, &sh.n_list);
                if (at < n) break;
                at -= n;
            }
            if (threadIdx.x < n_list) element = t.of(from, &sh.list[at]), weight = t.of(from, &sh.weight[at]);
            t.sync(); // and have been read
            if (threadIdx.x < n_list) sh.list[threadIdx.x] = element, sh.weight[threadIdx.x] = weight;
            __syncthreads(); // every block has them all
            break;
        }
        const int bits = shift < 10 ? shift : 10, next = shift - bits;
        clear_bins(t, sh);
        scan(t, row, 0, row.V, [&](uint32_t i, float x) {
            if (!in_reach(i, x)) return;
            const uint32_t digit = (uint32_t)(~order(x, i) >> next) & ((1u << bits) - 1);
            add64(&sh.lo[digit], &sh.hi[digit], fraction > 0 ? d.mass(x) : 1);
        });
        find_bin(t, sh, [&](u64) { return remain; });
        remain -= sh.before;
        prefix = (shift == 64 ? 0 : prefix << bits) | (((1u << bits) - 1) - sh.bin);
        shift = next;
    }
    if (threadIdx.x < n_list) {
        const u64 me = sh.list[threadIdx.x];
        u64 before = 0;
        for (uint32_t j = 0; j < n_list; j++) before += sh.list[j] > me ? sh.weight[j] : 0;
        if (before < remain && remain <= before + sh.weight[threadIdx.x]) sh.found = me;
    }
    __syncthreads(); // found
    return sh.found;
}

__device__ double uniform(uint64_t seed, uint64_t position) { // philox, draw 0: engine/base/philox.c
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32),
             c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (double)(((u64)c0 << 32 | c1) >> 11) * 0x1p-53;
}

template <class Row>
__device__ void filter(const team &t, pick_shared &sh, const Row &row, const cuda_sampling &sp, draw_state &d) {
    const auto order = [&](float x, uint32_t i) { return key_of(x, i); };
    const auto place = [&](float x) { return d.y(x) * d.bins_per_y; };
    if (sp.top_k > 0) d.raise(select(t, sh, row, d, 0, (u64)sp.top_k, order, place));
    if (sp.min_logit > -INFINITY) d.raise((u64)ordered(__fadd_rn(d.max, sp.min_logit)) << 32);
    if (sp.top_p < 1) d.raise(select(t, sh, row, d, (double)sp.top_p, 0, order, place));
    if (sp.typical_p < 1) {                      // |-log p - entropy| is |y_e - the mean of y_e|
        u64 mass = 0, high = 0, low = 0, unused; // of integers, again: y_e in 2^-26, the products in two parts
        scan(t, row, 0, row.V, [&](uint32_t i, float x) {
            const u64 m = d.kept_mass(x, i);
            if (!m) return;
            const u64 y = (u64)(d.y_e(x) * 67108864.0f), product = m * y;
            mass += m;
            high += product >> 40 | __umul64hi(m, y) << 24;
            low += product & ((1ull << 40) - 1);
        });
        mass = block_total(mass, sh, &unused);
        high = block_total(high, sh, &unused);
        low = block_total(low, sh, &unused);
        if (threadIdx.x == 0) sh.mine[0] = mass, sh.mine[1] = high, sh.mine[2] = low;
        t.sync(); // every block's sums
        mass = high = low = 0;
        for (uint32_t i = 0; i < t.n; i++)
            mass += t.of(i, &sh.mine[0]), high += t.of(i, &sh.mine[1]), low += t.of(i, &sh.mine[2]);
        d.mean = ((double)high * 0x1p40 + (double)low) / (double)mass * 0x1p-26;
        d.typical_cut = select(
            t, sh, row, d, (double)sp.typical_p, 0, [&](float x, uint32_t i) { return d.typical_key(x, i); },
            [&](float x) { return d.distance(x) * (BINS / 32); });
        d.typical = true;
    }
}

// The first token in order of id at which the sum of masses exceeds u of all: down through runs of runs.
template <class Row>
__device__ uint32_t draw(const team &t, pick_shared &sh, const Row &row, const draw_state &d, double u) {
    u64 mass = 0, before;
    scan(t, row, 0, row.V, [&](uint32_t i, float x) { mass += d.kept_mass(x, i); });
    const u64 block = block_total(mass, sh, &before);
    t.sync(); // the sums of typical_p have been read
    if (threadIdx.x == 0) sh.mine[0] = block, sh.n_list = WARPS;
    mass = warp_total(mass);
    t.sync(); // every block's sum
    u64 total = 0, blocks_before = 0;
    for (uint32_t i = 0; i < t.n; i++) {
        if (i == t.rank) blocks_before = total;
        total += t.of(i, &sh.mine[0]);
    }
    u64 target = (u64)(u * (double)total);
    if (target >= total) target = total - 1;
    before += blocks_before;
    if ((threadIdx.x & 31) == 0 && before <= target && target < before + mass) // this warp has it
        sh.n_list = threadIdx.x / 32, sh.before = before;
    t.sync(); // one block's warp has said so
    uint32_t owner = 0;
    while (t.of(owner, &sh.n_list) == WARPS) owner++;
    uint32_t first = (owner * WARPS + t.of(owner, &sh.n_list)) * run_len(row.V, t.n), n = row.V - first;
    if (n > run_len(row.V, t.n)) n = run_len(row.V, t.n);
    target -= t.of(owner, &sh.before);
    t.sync(); // and everyone knows: the first block goes on alone
    // The others end: the first one counts the token in the row's marks when it has it, and a block that read the row
    // after that would find another sum, so no run, and go on from a run that is none.
    if (t.rank) return 0;

    const team alone = {1, 0};
    mass = 0;
    scan(alone, row, first, n, [&](uint32_t i, float x) { mass += d.kept_mass(x, i); });
    block_total(mass, sh, &before);
    mass = warp_total(mass);
    if ((threadIdx.x & 31) == 0 && before <= target && target < before + mass)
        sh.bin = threadIdx.x / 32, sh.before = before;
    __syncthreads(); // the run is known
    const uint32_t len = run_len(n, 1), begin = sh.bin * len;
    target -= sh.before;
    first += begin, n = n - begin < len ? n - begin : len;
    __syncthreads(); // and has been read
    if (threadIdx.x < 32) {
        for (uint32_t i = 0; i < n; i += 32) {
            const uint32_t id = first + i + threadIdx.x;
            u64 mass = 0;
            if (i + threadIdx.x < n) mass = d.kept_mass(row(row.logits[id], id), id);
            const u64 upto = warp_scan(mass);
            const uint32_t hit = __ballot_sync(0xffffffffu, upto > target);
            if (hit) {
                if (threadIdx.x == 0) sh.bin = first + i + __ffs(hit) - 1;
                break;
            }
            target -= __shfl_sync(0xffffffffu, upto, 31);
        }
    }
    __syncthreads(); // the token is known
    return sh.bin;
}

// The n most likely tokens, one after the other: the best of the pieces, then that piece without it. sh.list: the
// pieces' best.
__device__ void top_logprobs(pick_shared &sh, const float *logits, uint32_t V, uint32_t n_pieces, uint32_t n,
                             double lse, cuda_token *token) {
    for (uint32_t k = 0; k < n; k++) {
        const u64 best = block_max(threadIdx.x < n_pieces ? sh.list[threadIdx.x] : 0, sh);
        const uint32_t piece = id_of(best) / PIECE;
        u64 next = 0;
        for (uint32_t i = piece * PIECE + threadIdx.x; i < (piece + 1) * PIECE && i < V; i += PICK_THREADS) {
            const u64 key = key_of(logits[i], i);
            if (key < best && key > next) next = key;
        }
        next = block_max(next, sh);
        if (threadIdx.x == 0) {
            sh.list[piece] = next;
            token->top_id[k] = (int32_t)id_of(best);
            token->top_logprob[k] = (float)((double)logit_of(best) - lse);
        }
        __syncthreads(); // the list before it is read again
    }
}

// What a drawn token changes in its slot, and says of it; whether it ends the slot. n_generated: before it.
__device__ __forceinline__ bool take_token(const cuda_sampler &s, uint32_t slot, const cuda_sampling &sp,
                                           uint32_t n_generated, uint32_t id, uint32_t status, cuda_token *token) {
    cuda_sampling *state = &s.slots[slot];
    bool ended = status != 0, waits = false;
    if (status == 0) {
        uint32_t *mark = s.marks + (size_t)slot * s.V + id;
        state->last = (int32_t)id;
        if (*mark & MARK_END) {
            ended = true;
        } else {
            waits = *mark & MARK_WAIT;
            if (sp.penalised) *mark = (*mark | MARK_SEEN) + 1;
            state->n_generated = n_generated + 1;
            ended = n_generated + 1 == sp.max_tokens;
        }
    }
    state->ended = ended || waits; // a row that names its token goes on
    token->status = (uint8_t)status;
    token->ended = ended;
    token->waits = waits;
    token->masked = 0;
    return ended;
}

// DRAFTS: what becomes of the token is accept_kernel's.
template <bool DRAFTS>
__global__ void __launch_bounds__(PICK_THREADS)
    pick_kernel(cuda_sampler s, cuda_rows rows, const int32_t *out, const float *logits, cuda_piece *pieces,
                uint32_t n_pieces, uint32_t n_blocks) {
    __shared__ pick_shared sh;
    let_next_start();
    wait_for_inputs();
    const team t = {n_blocks, blockIdx.x % n_blocks};
    const uint32_t o = blockIdx.x / n_blocks, r = (uint32_t)out[o], slot = (uint32_t)rows.slot[r], thread = threadIdx.x;
    cuda_token *token = s.tokens[(*s.n_parts - 1) % CUDA_STEP_PARTS] + o;
    if (slot >= s.n_slots) {
        if (thread == 0 && t.rank == 0) token->masked = 1;
        return;
    }
    const cuda_sampling sp = s.slots[slot];
    cuda_piece mine = {0, 0, INFINITY, 0, 0, 0};
    if (thread < n_pieces) mine = pieces[(size_t)o * n_pieces + thread];
    const adjusted_row<DRAFTS> row(s, sp, slot, logits + (size_t)o * s.V, rows, r);
    const u64 best = block_max(mine.best, sh);
    const bool broken = __syncthreads_or(mine.broken);
    const float max = logit_of(best);
    const uint32_t status = broken               ? CUDA_TOKEN_NAN
                            : !(max > -INFINITY) ? CUDA_TOKEN_FORBIDDEN
                            : !(max < INFINITY)  ? CUDA_TOKEN_INFINITE
                                                 : 0;

    double lse = 0;
    uint32_t n_top = 0;
    if (status == 0 && sp.n_logprobs >= 0 && t.rank == 0) {
        const float raw_max = logit_of(block_max(mine.raw_best, sh));
        lse =
            (double)raw_max +
            log(block_total(
                thread < n_pieces ? (double)mine.raw_sum * exp((double)logit_of(mine.raw_best) - (double)raw_max) : 0.0,
                sh));
        n_top = (uint32_t)sp.n_logprobs < s.V ? (uint32_t)sp.n_logprobs : s.V;
        sh.list[thread] = mine.raw_best;
        __syncthreads(); // the list is complete
        top_logprobs(sh, row.logits, s.V, n_pieces, n_top, lse, token);
    }
    uint32_t id = id_of(best);
    if (status == 0 && sp.temperature > 0) {
        const float scale = fminf(__fdiv_rn(1.0f, sp.temperature), 1e30f);
        draw_state d = {max, scale * 1.4426950408889634f, scale, 0, 0, -INFINITY, 0xffffffffu, false, 0, 0};
        const float low = -logit_of(block_max(thread < n_pieces ? key_of(-mine.low, 0) : 0, sh)),
                    range = fminf(d.y(low), 41.0f);
        d.bins_per_y = range > 1e-30f ? BINS / range : 0; // as many bins as tokens that differ allow; a number
        filter(t, sh, row, sp, d);
        id = draw(t, sh, row, d, uniform(sp.seed, (uint64_t)rows.pos[r] + 1));
    }
    if (thread || t.rank) return;
    token->id = (int32_t)id;
    token->logprob = sp.n_logprobs >= 0 && status == 0 ? (float)((double)row.logits[id] - lse) : 0.0f;
    token->n_top = (uint8_t)n_top;
    if (DRAFTS)
        pieces[(size_t)o * n_pieces].drawn = id | status << DRAWN_STATUS;
    else
        take_token(s, slot, sp, sp.n_generated, id, status, token);
}

// A thread a segment: its rows in order, as steps of their own would have been. Behind a token that is not the next
// row's, or an end, the rows are masked. A slot that waits goes on, as the next row names its token.
__global__ void accept_kernel(cuda_sampler s, cuda_rows rows, uint32_t n_rows, const cuda_piece *pieces,
                              uint32_t n_pieces) {
    wait_for_inputs();
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
    if (first >= n_rows || rows.lead[first]) return;
    const uint32_t slot = (uint32_t)rows.slot[first];
    cuda_token *tokens = s.tokens[(*s.n_parts - 1) % CUDA_STEP_PARTS];
    bool goes_on = slot < s.n_slots;
    for (uint32_t r = first; r < n_rows && (r == first || rows.lead[r]); r++) {
        if (r > first && goes_on) goes_on = s.slots[slot].last == rows.tok[r];
        if (!goes_on) {
            tokens[r].masked = 1;
            continue;
        }
        const uint32_t drawn = pieces[(size_t)r * n_pieces].drawn;
        goes_on = !take_token(s, slot, s.slots[slot], s.slots[slot].n_generated, drawn & ((1u << DRAWN_STATUS) - 1),
                              drawn >> DRAWN_STATUS, &tokens[r]);
    }
}

template <bool DRAFTS>
static void sample(const struct cuda_sampler *s, const struct cuda_rows *rows, const int32_t *out, uint32_t n_out,
                   bool draws, const float *logits, void *stream) {
    const uint32_t n_pieces = cuda_sample_pieces(s->V);
    assert(n_out > 0 && n_out <= CUDA_GRID_Z && s->V > 0 && s->V <= CUDA_SAMPLE_MAX_V && (!DRAFTS || rows->lead));
    dispatch_case c = {};
    c.op = DISPATCH_SAMPLE, c.device = this_device(), c.n_rows = n_out, c.draws = draws;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c);
    const uint32_t n_blocks = kernel == PICK_8 ? 8 : kernel == PICK_2 ? 2 : 1;
    launch(pieces_kernel<DRAFTS>, dim3(n_pieces, n_out), dim3(PIECE_THREADS), 0, stream, *s, *rows, out, logits,
           s->pieces);
    launch_clusters(n_blocks, pick_kernel<DRAFTS>, dim3(n_out * n_blocks), dim3(PICK_THREADS), 0, stream, *s, *rows,
                    out, logits, s->pieces, n_pieces, n_blocks);
    if (DRAFTS)
        launch(accept_kernel, dim3((n_out + 31) / 32), dim3(32), 0, stream, *s, *rows, n_out,
               (const cuda_piece *)s->pieces, n_pieces);
}
void k_sample(const struct cuda_sampler *s, const struct cuda_rows *rows, const int32_t *out, uint32_t n_out,
              bool draws, const float *logits, void *stream) {
    sample<false>(s, rows, out, n_out, draws, logits, stream);
}
void k_sample_drafts(const struct cuda_sampler *s, const struct cuda_rows *rows, const int32_t *out, uint32_t n_out,
                     bool draws, const float *logits, void *stream) {
    sample<true>(s, rows, out, n_out, draws, logits, stream);
}
