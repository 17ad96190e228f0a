// swa_prompt_wide.cu - attention of prompts (swa_prompt.cu) on Hopper, one key head: a warpgroup takes a tile of
// queries and a head, tiles of 128 keys, both products as wgmma; one more warpgroup brings keys and values with the
// tensor copy engine, what is not wanted whole with plain copies.
//
// A warpgroup issues the scores of one tile with the outputs of the tile before, and makes weights meanwhile.
#include "swa_prompt.cuh"
#include "kernels/cuda/wgmma.cuh"
#include <algorithm>
#include <cuda.h>

enum {
    KEYS = 128,
    HALF_KEYS = 64,
    ITEMS = 6,
    JOBS = 8
}; // items of a ring: keys or values of a tile; JOBS: more than ITEMS can belong to

template <int P, int GROUPS> struct prompt_wide {
    enum {
        COLUMNS = KEYS * 128,
        ITEM = KEYS * P * 2,
        BYTES = ITEMS * ITEM + 1024,
        THREADS = (GROUPS + 1) * 128
    }; // COLUMNS: bytes of 64 dims
};
struct prompt_maps { // rows of 64 dims of this layer's rings and of the workspace
    CUtensorMap keys, values, work;
};
struct prompt_told { // what the copying warpgroup tells the others of a job
    int32_t row, rows, query, n_tiles;
    uint32_t head, pair;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What a block's warpgroups share beside the ring.
struct prompt_shared {
    uint64_t *full, *empty, *ready;
    prompt_told *told;
};
// The jobs of a block. They come with most keys first; every other round begins at the other end.
struct prompt_jobs {
    uint32_t n_pairs, n_mine; // jobs of pairs, of all blocks; this block's jobs
    __device__ __forceinline__ static uint32_t at(uint32_t round) {
        return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
};
template <int GROUPS> __device__ __forceinline__ prompt_jobs jobs_of(const prompt_window &a) {
    const uint32_t n_pairs = a.prompts.n_pairs * a.shape.H,
                   n_jobs = n_pairs + a.prompts.n_single * (a.shape.H / GROUPS);
    const uint32_t n_rounds = (n_jobs + gridDim.x - 1) / gridDim.x;
    return {n_pairs, n_rounds - (n_rounds && prompt_jobs::at(n_rounds - 1) >= n_jobs)};
}

// ---- the copying warpgroup ----

// Brings keys and values of all jobs into the ring, and tells of each job.
template <class T, int P, int GROUPS>
__device__ __forceinline__ void fetch_jobs(const prompt_window &a, const prompt_maps &maps, const prompt_jobs &jobs,
                                           const prompt_shared &b, uint32_t ring) {
    using G = prompt_wide<P, GROUPS>;
    const cuda_shape &s = a.shape;
    enum { PIECES = P / 8, ROWS = 128 / PIECES };
    const uint32_t tid = threadIdx.x % 128, piece = tid % PIECES, row0 = tid / PIECES;
    uint32_t item = 0;
    for (uint32_t n = 0; n < jobs.n_mine; n++) {
        const uint32_t i = jobs.at(n);
        const bool pair = i < jobs.n_pairs;
        const uint32_t k = pair ? i : i - jobs.n_pairs, heads = pair ? s.H : s.H / GROUPS;
        const prompt_job j = job_at<KEYS>(a, a.prompts.tile[pair ? k / heads : a.prompts.n_pairs + k / heads], pair,
                                          k % heads * (pair ? 1 : GROUPS));
        if (tid == 0) {
            b.told[n % JOBS] = {j.row, j.end - j.row, j.query, j.high / KEYS + 1, j.head, j.pair};
            barrier_arrive(&b.ready[n % JOBS]);
        }
        const int items = pair || GROUPS == 1 ? 2 : 3; // of a tile: keys and the values of one head or two
        uint32_t place = j.place;
        for (int32_t from = 0; from <= j.high; from += KEYS) {
            delay(16);
            asm volatile("bar.sync 3, 128;" ::: "memory"); // no warp is so far behind that a barrier goes round
#pragma unroll 1
            for (int v = 0; v < items; v++, item++) {
                const uint32_t at = ring + item % ITEMS * G::ITEM, head = v ? (j.head + v - 1) % s.Hv : 0;
                uint64_t *const bar = &b.full[item % ITEMS];
                if (item >= ITEMS) barrier_wait(&b.empty[item % ITEMS], item / ITEMS + 1 & 1);
                // Halves of the tile: whole from the ring or the workspace; zeros where nobody sees any; else row
                // by row. What the prompt has beyond its high end may come along, its weights are 0.
                bool plain[2], own[2];
                uint32_t begin[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int32_t x = from + h * HALF_KEYS, end = x + HALF_KEYS;
                    const bool unseen = x > j.high || end <= j.low;
                    begin[h] = place + h * HALF_KEYS;
                    begin[h] -= begin[h] >= s.ring_keys ? s.ring_keys : 0;
                    plain[h] = unseen || (x >= j.begin ? j.row - j.query + end <= j.end
                                                       : end <= j.begin && (!v || x >= j.low) &&
                                                             begin[h] + HALF_KEYS <= s.ring_keys);
                    own[h] = unseen || x >= j.begin;
                    if (own[h]) begin[h] = unseen ? a.n_rows : j.row - j.query + x; // beyond the workspace: zeros
                }
                const bool all_plain = plain[0] && plain[1];
                if (tid == 0) {
                    if (all_plain)
                        barrier_expect(bar, G::ITEM);
                    else if (plain[0] || plain[1])
                        barrier_expect_more(bar, G::ITEM / 2);
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (plain[h])
#pragma unroll
                            for (int c = 0; c < P / 64; c++)
                                copy_box(at + c * G::COLUMNS + h * (HALF_KEYS * 128),
                                         own[h] ? &maps.work
                                         : v    ? &maps.values
                                                : &maps.keys,
                                         (own[h] ? s.H + (v ? s.Hk : 0) + head : head) * P + c * 64, begin[h],
                                         own[h] ? 0 : j.old, bar);
                }
                if (all_plain) continue;
                const prompt_source<T> source = source_of<T>(a, j, v, head);
                const uint32_t to = at + piece / 8 * G::COLUMNS + (piece % 8 ^ row0 % 8) * 16;
#pragma unroll 1
                for (uint32_t r = row0; r < KEYS; r += ROWS) {
                    if (r < HALF_KEYS ? plain[0] : plain[1]) continue;
                    const int32_t x = from + (int32_t)r;
                    ask16(to + r * 128, source_row(source, j, from, place, (int32_t)r, s.ring_keys) + piece * 8,
                          x >= j.low && x <= j.high);
                }
                barrier_arrive_copied(bar);
                delay(16);
                asm volatile("bar.sync 3, 128;" ::: "memory"); // the barrier waits for everyone's copies
                if (tid == 0) barrier_arrive(bar);
            }
            place += KEYS;
            while (place >= s.ring_keys) place -= s.ring_keys;
        }
    }
}

// ---- the warpgroups that attend ----

// The warpgroups issue products one after the other.
template <int GROUPS> __device__ __forceinline__ void wait_to_issue(uint32_t group) {
    delay(16);
    if (GROUPS > 1) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}
template <int GROUPS> __device__ __forceinline__ void let_next_issue(uint32_t group) {
    if (GROUPS > 1) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}
__device__ __forceinline__ void wait_full(const prompt_shared &b, uint32_t x) {
    barrier_wait(&b.full[x % ITEMS], x / ITEMS & 1);
    written_for_wgmma(); // plain copies may be among them
}
// Of job n, as operand A; in_tile: the lane's first row of the tile.
template <class T, int P>
__device__ __forceinline__ void load_queries(uint32_t (&q)[P / 4], const prompt_window &a, const prompt_shared &b,
                                             uint32_t n, uint32_t group, uint32_t in_tile) {
    const cuda_shape &s = a.shape;
    const uint32_t width = (s.H + s.Hk + s.Hv) * P;
    barrier_wait(&b.ready[n % JOBS], n / JOBS & 1);
    const prompt_told &j = b.told[n % JOBS];
    const uint32_t head = j.pair ? j.head : j.head + group, first = (j.pair ? group * PROMPT_TILE : 0) + in_tile;
    const uint32_t *from =
        (const uint32_t *)((const T *)a.work + (size_t)(j.row + first) * width + head * P) + threadIdx.x % 4;
    const uint32_t *from8 = from + 8 * (width / 2);
    const bool have = (int32_t)first < j.rows, have8 = (int32_t)first + 8 < j.rows;
#pragma unroll
    for (int k = 0; k < P / 16; k++) {
        q[4 * k] = have ? from[8 * k] : 0;
        q[4 * k + 1] = have8 ? from8[8 * k] : 0;
        q[4 * k + 2] = have ? from[8 * k + 4] : 0;
        q[4 * k + 3] = have8 ? from8[8 * k + 4] : 0;
    }
}
// The tile's keys are operand b; nobody waits here.
template <class T, int P>
__device__ __forceinline__ void issue_scores(float (&score)[KEYS / 2], const uint32_t (&q)[P / 4], uint64_t b) {
    keep(score);
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < P / 16; d++)
        wgmma<false>(score, make_uint4(q[4 * d], q[4 * d + 1], q[4 * d + 2], q[4 * d + 3]),
                     b + (d / 4 * (KEYS * 128) + d % 4 * 32 >> 4), d > 0, T());
    wgmma_end();
}
// The tile's values are operand b; nobody waits here.
template <class T, int P>
__device__ __forceinline__ void issue_outputs(float (&o)[P / 2], const uint4 (&weight)[KEYS / 16], uint64_t b) {
    keep(o);
    wgmma_begin();
#pragma unroll
    for (int d = 0; d < KEYS / 16; d++) wgmma<true>(o, weight[d], b + (d * 2048 >> 4), true, T());
    wgmma_end();
}
// The lane's two rows: the greatest score so far, the sum of weights, what earlier sums are to be scaled by.
struct prompt_rows {
    float top[2], sum[2], keep_by[2];
};
// Scores become weights, in place. ahead: from the tile's first key to my first query.
__device__ __forceinline__ void weigh(float (&score)[KEYS / 2], prompt_rows &rows, int32_t ahead, int32_t in_tile,
                                      int32_t t, uint32_t visible) {
    if (ahead < KEYS - 1 || ahead + PROMPT_TILE - 1 >= (int32_t)visible) {
#pragma unroll
        for (int x = 0; x < KEYS / 2; x++) {
            const int32_t back = ahead + in_tile + x / 2 % 2 * 8 - (x / 4 * 8 + 2 * t + x % 2);
            if ((uint32_t)back >= visible) score[x] = -INFINITY;
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float m = rows.top[e];
#pragma unroll
        for (int x = 0; x < KEYS / 8; x++) m = fmaxf(m, fmaxf(score[4 * x + 2 * e], score[4 * x + 2 * e + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        if (m - rows.top[e] <= 8.0f) m = rows.top[e]; // weights up to 2^8: the sums need not be scaled
        const float base = m == -INFINITY ? 0 : m;    // no key yet
        rows.keep_by[e] = power(rows.top[e] - base);
        rows.top[e] = m;
        float add = 0;
#pragma unroll
        for (int x = 0; x < KEYS / 8; x++) {
            score[4 * x + 2 * e] = power(score[4 * x + 2 * e] - base);
            score[4 * x + 2 * e + 1] = power(score[4 * x + 2 * e + 1] - base);
            add += score[4 * x + 2 * e] + score[4 * x + 2 * e + 1];
        }
        rows.sum[e] = __fmaf_rn(rows.sum[e], rows.keep_by[e], add);
    }
}
// Weights as operand A.
template <class T> __device__ __forceinline__ void pack(uint4 (&weight)[KEYS / 16], const float (&score)[KEYS / 2]) {
#pragma unroll
    for (int d = 0; d < KEYS / 16; d++)
        weight[d] =
            make_uint4(two(score[8 * d], score[8 * d + 1], T()), two(score[8 * d + 2], score[8 * d + 3], T()),
                       two(score[8 * d + 4], score[8 * d + 5], T()), two(score[8 * d + 6], score[8 * d + 7], T()));
}
// The sums over their weights go to act. rows: those of the job from this tile's first on.
template <class T, int P>
__device__ __forceinline__ void write_outputs(const prompt_window &a, const prompt_told &j, const float (&o)[P / 2],
                                              prompt_rows &of, int32_t rows, uint32_t column, int32_t in_tile) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        of.sum[e] += __shfl_xor_sync(0xffffffffu, of.sum[e], 1);
        of.sum[e] += __shfl_xor_sync(0xffffffffu, of.sum[e], 2);
        const float by = 1.0f / of.sum[e];
        const int32_t r = in_tile + 8 * e;
        if (r < rows) {
            T *act = (T *)a.act + act_at<T>((uint32_t)(j.row + j.rows - rows + r), column, a.shape.H * P);
#pragma unroll
            for (int x = 0; x < P / 8; x++) // eight columns on: the tile's other half, or the next tile
                *(uint32_t *)(act + x / 2 * 128 + x % 2 * 64) =
                    two(o[4 * x + 2 * e] * by, o[4 * x + 2 * e + 1] * by, T());
        }
    }
}
// A warpgroup: its tile of queries, or its head, of all jobs.
template <class T, int P, int GROUPS>
__device__ __forceinline__ void attend_jobs(const prompt_window &a, const prompt_jobs &jobs, const prompt_shared &b,
                                            uint32_t ring, uint32_t group) {
    using G = prompt_wide<P, GROUPS>;
    enum { TILE = PROMPT_TILE };
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const uint32_t g = lane / 4, t = lane % 4, in_tile = warp * 16 + g;
    const uint64_t key_form = swizzled(1024, 0), value_form = swizzled(1024, G::COLUMNS);
    if (group == 1) let_next_issue<GROUPS>(group);
    uint32_t q[P / 4];
    if (jobs.n_mine) load_queries<T, P>(q, a, b, 0, group, in_tile);
    uint32_t first_item = 0; // of the job
    for (uint32_t n = 0; n < jobs.n_mine; n++) {
        const prompt_told &j = b.told[n % JOBS];
        const bool pair = j.pair;
        const uint32_t items = pair || GROUPS == 1 ? 2 : 3, value_item = pair || GROUPS == 1 ? 1 : 1 + group,
                       n_tiles = (uint32_t)j.n_tiles;
        const int32_t query = j.query + (pair ? (int32_t)group * TILE : 0),
                      rows = j.rows - (pair ? (int32_t)group * TILE : 0);
        // Of the block's tiles of keys, those that my queries see.
        const uint32_t low = (uint32_t)max(query + 1 - (int32_t)s.visible, 0) / KEYS,
                       high = (uint32_t)(query + min((int32_t)TILE, rows) - 1) / KEYS;
        auto read = [&](uint32_t x, uint32_t readers) { // both warpgroups say so, or one for both
            if (lane < readers) barrier_arrive(&b.empty[x % ITEMS]);
        };
        auto pass = [&](uint32_t k) { // a tile that only the other warpgroup sees
            wait_to_issue<GROUPS>(group);
            let_next_issue<GROUPS>(group);
            for (uint32_t x = first_item + k * items; x < first_item + k * items + 2; x++) wait_full(b, x), read(x, 1);
        };
        float o[P / 2], score[KEYS / 2];
        prompt_rows of = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
        uint4 weight[KEYS / 16];
#pragma unroll
        for (int k = 0; k < P / 2; k++) o[k] = 0;
        auto scores = [&](uint32_t k) {
            const uint32_t x = first_item + k * items;
            issue_scores<T, P>(score, q, key_form | (ring + x % ITEMS * G::ITEM) >> 4);
        };
        auto outputs = [&](uint32_t k) {
            const uint32_t x = first_item + k * items + value_item;
            issue_outputs<T, P>(o, weight, value_form | (ring + x % ITEMS * G::ITEM) >> 4);
        };
        auto outputs_read = [&](uint32_t k) { read(first_item + k * items + value_item, items - 1); };
        auto weigh_tile = [&](uint32_t k) { // then the tile's values are there
            weigh(score, of, query - (int32_t)k * KEYS, (int32_t)in_tile, (int32_t)t, s.visible);
            keep(score); // before the wait
            wait_full(b, first_item + k * items + value_item);
        };
#pragma unroll 1
        for (uint32_t k = 0; k < low; k++) pass(k);
        wait_full(b, first_item + low * items);
        wait_to_issue<GROUPS>(group);
        scores(low);
        let_next_issue<GROUPS>(group);
        wgmma_wait<0>();
        keep(score);
        read(first_item + low * items, 1);
        weigh_tile(low);
        pack<T>(weight, score);
#pragma unroll 1
        for (uint32_t k = low + 1; k <= high; k++) { // this tile's scores and the last one's outputs at once
            wait_full(b, first_item + k * items);
            wait_to_issue<GROUPS>(group);
            scores(k);
            outputs(k - 1);
            let_next_issue<GROUPS>(group);
            wgmma_wait<1>();
            keep(score);
            read(first_item + k * items, 1);
            weigh_tile(k);
            wgmma_wait<0>();
            keep(o);
            outputs_read(k - 1);
            if (__any_sync(0xffffffffu, of.keep_by[0] != 1.0f || of.keep_by[1] != 1.0f)) {
#pragma unroll
                for (int x = 0; x < P / 2; x++) o[x] *= of.keep_by[x / 2 % 2];
            }
            pack<T>(weight, score);
        }
        outputs(high);
        if (n + 1 < jobs.n_mine) load_queries<T, P>(q, a, b, n + 1, group, in_tile);
        wgmma_wait<0>();
        keep(o);
        outputs_read(high);
#pragma unroll 1
        for (uint32_t k = high + 1; k < n_tiles; k++) pass(k);
        first_item += n_tiles * items;
        write_outputs<T, P>(a, j, o, of, rows, (pair ? j.head : j.head + group) * P + 2 * t, (int32_t)in_tile);
    }
}
#endif

// A block: one warpgroup that copies, GROUPS that attend.
template <class T, int P, int GROUPS>
__global__ void __launch_bounds__(prompt_wide<P, GROUPS>::THREADS)
    prompt_wide_kernel(const __grid_constant__ prompt_window a, const __grid_constant__ prompt_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char shared[];
    __shared__ uint64_t full[ITEMS], empty[ITEMS], ready[JOBS];
    __shared__ prompt_told told[JOBS];
    const prompt_shared b = {full, empty, ready, told};
    const uint32_t group = threadIdx.x / 128;
    const uint32_t ring = (shared_address(shared) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ITEMS; i++) barrier_init(&b.full[i], 1), barrier_init(&b.empty[i], GROUPS * 4);
        for (int i = 0; i < JOBS; i++) barrier_init(&b.ready[i], 1);
        barriers_there();
    }
    __syncthreads(); // the barriers are there
    let_next_start();
    wait_for_inputs();
    const prompt_jobs jobs = jobs_of<GROUPS>(a);
    if (group == GROUPS) {
        if (GROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        fetch_jobs<T, P, GROUPS>(a, maps, jobs, b, ring);
    } else {
        if (GROUPS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        attend_jobs<T, P, GROUPS>(a, jobs, b, ring, group);
    }
#endif
}

// ---- the host's part ----

// [slots][rows][columns] of 16 bit, of which a box takes 64 rows of 64 columns with a swizzle of 128 bytes.
static CUtensorMap rows_map(const void *data, uint64_t columns, uint64_t rows, uint64_t ld, uint64_t slots,
                            uint64_t slot_ld) {
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map = {};
    const cuuint64_t sizes[3] = {columns, rows, slots}, strides[2] = {ld * 2, slot_ld * 2};
    const cuuint32_t box[3] = {64, HALF_KEYS, 1}, steps[3] = {1, 1, 1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, (void *)data, sizes, strides, box, steps,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}
static prompt_maps maps_of(const prompt_window &a) {
    const cuda_shape &s = a.shape;
    const uint64_t width = (uint64_t)(s.H + s.Hk + s.Hv) * s.P, slots = (uint64_t)1 << 31; // as many as there are
    return {rows_map(a.old_keys, (uint64_t)s.Hk * s.P, s.ring_keys, (uint64_t)s.Hk * s.P, slots, a.old_keys_slot),
            rows_map(a.old_values, (uint64_t)s.Hv * s.P, s.ring_keys, (uint64_t)s.Hv * s.P, slots, a.old_values_slot),
            rows_map(a.work, width, a.n_rows, width, 1, width)};
}

bool prompt_wide_possible(const struct cuda_shape *s) { return dispatch_prompt_wide(this_device(), s); }
bool prompt_wide_pairs(const struct cuda_shape *s, uint32_t n_tiles) {
    return dispatch_prompt_pairs(this_device(), s, n_tiles);
}

template <class T, int P, int GROUPS> static bool allow_wide() {
    return allow_shared(prompt_wide_kernel<T, P, GROUPS>, prompt_wide<P, GROUPS>::BYTES);
}
template <class T> static bool allow_wide(uint32_t P) {
    return P == 64 ? allow_wide<T, 64, 1>() && allow_wide<T, 64, 2>()
                   : allow_wide<T, 128, 1>() && allow_wide<T, 128, 2>();
}
bool prompt_wide_prepare(const struct cuda_shape *s) {
    return s->dtype == CUDA_F16 ? allow_wide<__half>(s->P) : allow_wide<__nv_bfloat16>(s->P);
}

template <class T, int P, int GROUPS> static void attend_wide(const prompt_window &a, void *stream) {
    using G = prompt_wide<P, GROUPS>;
    const uint32_t n_jobs = a.prompts.n_pairs * a.shape.H + a.prompts.n_single * (a.shape.H / GROUPS);
    launch(prompt_wide_kernel<T, P, GROUPS>, dim3(std::min(n_jobs, multiprocessors())), dim3(G::THREADS), G::BYTES,
           stream, a, maps_of(a));
}
template <class T, int P> static void attend_wide(const prompt_window &a, void *stream) {
    prompt_kernel_of(a) == PROMPT_WIDE_1 ? attend_wide<T, P, 1>(a, stream) : attend_wide<T, P, 2>(a, stream);
}
template <class T> static void attend_wide(const prompt_window &a, void *stream) {
    a.shape.P == 64 ? attend_wide<T, 64>(a, stream) : attend_wide<T, 128>(a, stream);
}
void prompt_wide_attend(const prompt_window &a, void *stream) {
    a.shape.dtype == CUDA_F16 ? attend_wide<__half>(a, stream) : attend_wide<__nv_bfloat16>(a, stream);
}
