// prompt_heads.cu - q, k, v of prompts: their product's sums become rotated heads in 16 bits, the rows that
// swa_prompt.cu's attention reads, and go into the rings where that may be before it. A tile is one head of 128 dims: a
// warpgroup has either half of it, so each gives the other its sums of 16 of 32 rows, and rotates the other 16 itself.
#include "prompt_linear.cuh"
#include "kernels/cuda/prompt/swa_prompt.cuh"

struct out_heads {
    row_norm norm;
    cuda_shape shape;
    uint32_t layer, n_rows;
    const float2 *rope; // [n_rows][64]
    const int2 *place;  // k_prompt_places
    void *work;
};
enum { HEAD = 128, HEAD_ROWS = 16, HEAD_BOX = HEAD_ROWS * 128 }; // a box: 64 of a head's dims of 16 rows

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ __forceinline__ void sync_warpgroups() { // both of a block
    delay(16);
    asm volatile("bar.sync 3, 256;" ::: "memory");
    delay(16);
}
// A thread's part of a head's 32 rows.
struct head_place {
    uint32_t head, first; // the first of the 32 rows
    bool rotated;
    // Rows and columns of the step's of box b of the warpgroup.
    __device__ __forceinline__ uint32_t row(const broad_place &my, uint32_t b) const {
        return first + (rotated ? my.wg : b) * HEAD_ROWS;
    }
    __device__ __forceinline__ uint32_t column(const broad_place &my, uint32_t b) const {
        return (rotated ? b : my.wg) * (HEAD / 2);
    }
};
// Cosines and sines of the 16 rows that the warpgroup rotates: of row 8 i + 2 t + e and dim g + 8 h, [i][h][e].
static __device__ __forceinline__ void fetch_rope(float2 (&rope)[8], const broad_place &my, const out_heads &out,
                                                  uint32_t first) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t row = first + my.wg * HEAD_ROWS + j / 4 * 8 + my.lane % 4 * 2 + j % 2;
        rope[j] = __ldg(out.rope + (size_t)min(row, out.n_rows - 1) * (HEAD / 2) + my.warp * 16 + my.lane / 4 +
                        j / 2 % 2 * 8);
    }
}
static __device__ __forceinline__ void fetch_places(int2 (&place)[2], const broad_place &my, const out_heads &out,
                                                    const head_place &at) {
#pragma unroll
    for (int b = 0; b < 2; b++) {
        const uint32_t row = at.row(my, b) + (my.warp * 32 + my.lane) / 8;
        place[b] = row < out.n_rows ? __ldg(out.place + row) : make_int2(0, -1);
    }
}
// What lies in the warpgroup's boxes into the rings: a thread, 16 bytes of a row of each.
template <class T>
static __device__ __forceinline__ void leave_in_ring(const int2 (&place)[2], const broad_place &my,
                                                     const out_heads &out, const head_place &at, uint32_t boxes) {
    const cuda_shape &s = out.shape;
    const uint32_t r = (my.warp * 32 + my.lane) / 8, piece = my.lane % 8;
    const bool key = at.head < s.H + s.Hk;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (place[b].y < 0) continue;
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(boxes + b * HEAD_BOX + r * 128 + (piece ^ r % 8) * 16)
                     : "memory");
        const uint32_t slot = (uint32_t)place[b].x, in_ring = (uint32_t)place[b].y,
                       column = at.column(my, b) + piece * 8;
        const size_t to =
            (key ? slot * s.keys_slot + out.layer * s.keys_layer + ((size_t)in_ring * s.Hk + at.head - s.H) * HEAD
                 : slot * s.values_slot + out.layer * s.values_layer +
                       ((size_t)in_ring * s.Hv + at.head - s.H - s.Hk) * HEAD) +
            column;
        void *const ring = key ? s.keys : s.values;
        if (s.window == CUDA_FP8)
            *(uint2 *)((e4m3 *)ring + to) = eight_codes<T>(x);
        else
            *(uint4 *)((T *)ring + to) = x;
    }
}
// What the ring will hold of them.
static __device__ __forceinline__ void as_codes(float (&x)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = float(from_float<e4m3>(x[j]));
}
// The warpgroup's own half of the 16 rows that it rotates, and the other's; [i][h][e] as in fetch_rope. Warpgroup 0 has
// the first dims of the pairs.
template <class T>
static __device__ __forceinline__ void rotate_rows(const float (&own)[8], const float (&other)[8],
                                                   const float2 (&rope)[8], const broad_place &my, float by, bool codes,
                                                   uint32_t (&own_bits)[4], uint32_t (&other_bits)[4]) {
    float x[2][8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 back =
            make_float2(rope[j].x, -rope[j].y); // the second dim as the first of a rotation back: its bits
        x[0][j] = rotated_first(own[j], other[j], my.wg ? back : rope[j]) * by;
        x[1][j] = rotated_second(own[j], other[j], my.wg ? back : rope[j]) * by;
    }
    if (codes) as_codes(x[0]), as_codes(x[1]);
#pragma unroll
    for (int m = 0; m < 4; m++) { // matrix m: rows 8 (m % 2), dims 8 (m / 2) of the warp's 16
        const int j = m % 2 * 4 + m / 2 * 2;
        own_bits[m] = pair_of<T>(x[0][j], x[0][j + 1]), other_bits[m] = pair_of<T>(x[1][j], x[1][j + 1]);
    }
}

// The sums of rows that the other warpgroup rotates go to it, and its come here: 16 bytes a thread, twice.
static __device__ __forceinline__ void exchange(const float (&given)[8], float (&got)[8], const broad_place &my,
                                                uint32_t mine, uint32_t theirs) {
    const uint32_t at = (my.warp * 32 + my.lane) * 16;
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * 2048 + at), "f"(given[i * 4]),
                     "f"(given[i * 4 + 1]), "f"(given[i * 4 + 2]), "f"(given[i * 4 + 3])
                     : "memory");
    sync_warpgroups();
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(got[i * 4]), "=f"(got[i * 4 + 1]), "=f"(got[i * 4 + 2]), "=f"(got[i * 4 + 3])
                     : "r"(theirs + i * 2048 + at)
                     : "memory");
}

template <class T, class G>
__device__ __forceinline__ void leave(const float (&acc)[G::N / 2], broad_place &my, const broad_maps &maps,
                                      const out_heads &out) {
    static_assert(G::MW == 2, "a head is 128 outputs");
    const cuda_shape &s = out.shape;
    head_place at = {my.o / HEAD, my.row0, my.o / HEAD < s.H + s.Hk};
    const bool kept = at.head >= s.H, codes = kept && s.window == CUDA_FP8;
    const float by = at.head < s.H ? for_query(HEAD) : 1.0f;
    // Of 16,384 bytes the boxes, then what the warpgroups give each other; of either what leaves and what comes next.
    const uint32_t mine = shared_address(my.out), theirs = my.wg ? mine - G::OUT : mine + G::OUT, m = my.lane / 8,
                   line = (m % 2 * 8 + my.lane % 8) * 128;
    const auto piece_at = [&](uint32_t piece) { return line + (piece ^ my.lane % 8) * 16; };
    float2 rope[8];
    int2 place[2];
    if (at.rotated) fetch_rope(rope, my, out, at.first), sync_warpgroups(); // the last head's sums are read
    if (kept) fetch_places(place, my, out, at);
#pragma unroll
    for (int c = 0; c < G::N / 32; c++) {
        if (c * 32 >= my.rows) break;
        at.first = my.row0 + c * 32;
        const uint32_t boxes = mine + my.parity * 4096;
        float2 scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++) scale[i] = my.scale_of(c * 32 + i * 8);
        float v[2][8]; // rows of warpgroup 0 and 1 to rotate, [i][h][e]
#pragma unroll
        for (int j = 0; j < 16; j++) v[j / 8][j % 8] = acc[c * 16 + j] * (j % 2 ? scale[j / 4].y : scale[j / 4].x);
        if (my.elected) wait_left<1>();
        if (at.rotated) {
            float own[8], given[8], other[8];
#pragma unroll
            for (int j = 0; j < 8; j++) own[j] = my.wg ? v[1][j] : v[0][j], given[j] = my.wg ? v[0][j] : v[1][j];
            exchange(given, other, my, mine + 8192 + my.parity * 4096, theirs + 8192 + my.parity * 4096);
            uint32_t own_bits[4], other_bits[4];
            rotate_rows<T>(own, other, rope, my, by, codes, own_bits, other_bits);
            if (c * 32 + 32 < my.rows) fetch_rope(rope, my, out, at.first + 32);
            const uint32_t to = boxes + piece_at(my.warp * 2 + m / 2);
            store_matrices(to + my.wg * HEAD_BOX, own_bits), store_matrices(to + (my.wg ^ 1) * HEAD_BOX, other_bits);
        } else {
            my.sync(); // these boxes are free
            if (codes) as_codes(v[0]), as_codes(v[1]);
            uint32_t low[4], high[4]; // dims g and g + 8
#pragma unroll
            for (int i = 0; i < 4; i++)
                low[i] = pair_of<T>(v[i / 2][i % 2 * 4], v[i / 2][i % 2 * 4 + 1]),
                high[i] = pair_of<T>(v[i / 2][i % 2 * 4 + 2], v[i / 2][i % 2 * 4 + 3]);
            const uint32_t to = boxes + m / 2 * HEAD_BOX;
            store_matrices(to + piece_at(my.warp * 2), low), store_matrices(to + piece_at(my.warp * 2 + 1), high);
        }
        written_for_wgmma();
        my.sync();
        if (my.elected) {
#pragma unroll
            for (int b = 0; b < 2; b++)
                leave_rows(my.out + my.parity * 4096 + b * HEAD_BOX, &maps.act, at.head * HEAD + at.column(my, b),
                           at.row(my, b));
            leave_together();
        }
        if (kept) {
            leave_in_ring<T>(place, my, out, at, boxes);
            at.first += 32;
            if (c * 32 + 32 < my.rows) fetch_places(place, my, out, at);
        }
        my.parity ^= 1;
    }
}
#endif

template <class G> static void map_outputs(broad_maps &maps, const out_heads &out, uint32_t n_rows) {
    const cuda_shape &s = out.shape;
    const cuuint64_t width = (cuuint64_t)(s.H + s.Hk + s.Hv) * HEAD, sizes[2] = {width, n_rows},
                     strides[1] = {width * 2};
    const cuuint32_t box[2] = {HEAD / 2, HEAD_ROWS}, steps[2] = {1, 1};
    tensor_map_encoder()(&maps.act, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, out.work, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
template <class T, int BITS> static void choose_heads(const broad_job<out_heads> &job) {
    switch (broad_of(job.in.w, job.n_rows)) {
    case BROAD_2_256: return launch_broad<T, BITS, 2, 256>(job);
    case BROAD_2_128: return launch_broad<T, BITS, 2, 128>(job);
    default: return launch_broad<T, BITS, 2, 64>(job);
    }
}

bool cuda_prompt_heads_runs(const struct cuda_shape *s, const struct cuda_matrix *w, uint32_t n_rows) {
    if (!cuda_fused_possible(s) || s->P != HEAD || s->rot_dim != HEAD || s->rot_interleaved || s->qk_norm) return false;
    const enum dispatch_kernel kernel = broad_of(w, n_rows);
    return kernel == BROAD_2_256 || kernel == BROAD_2_128 || kernel == BROAD_2_64;
}
void k_prompt_heads(const struct cuda_shape *shape, uint32_t layer, const struct cuda_matrix *w,
                    const struct cuda_normed *in, uint32_t n_rows, const float *rope, void *work, void *stream) {
    assert(n_rows > 0 && w->rows == (shape->H + shape->Hk + shape->Hv) * shape->P);
    assert(shape->P == HEAD && w->dtype == shape->dtype && on_16_bytes(w->data, in->act, rope, work));
    const out_heads out = {
        broad_norm(in), *shape, layer, n_rows, (const float2 *)rope, prompt_places_in(*shape, n_rows, work), work};
    const broad_job<out_heads> job = {{w, in->act}, out, cuda_pad16(w->cols) / 16, n_rows, (cudaStream_t)stream};
    if (w->dtype == CUDA_F16)
        FOR_BITS(w, (choose_heads<__half, BITS>(job)));
    else
        FOR_BITS(w, (choose_heads<__nv_bfloat16, BITS>(job)));
}
