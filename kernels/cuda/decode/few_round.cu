// few_round.cu - products of at most 8 rows, or 16, k of 2,048, with more tiles of 16 outputs than two blocks a
// multiprocessor have: a block takes several in one go, so that the latency of a block (its start, barriers, inputs,
// outputs) is there once.
#include "few.cuh"

// A block: tiles b, b + gridDim.x ... at most MOST. A warp has its slice of k of every tile, in pieces of CHUNK tiles
// of k, through a ring of its own of RING pieces; its sums go over them at the end.
enum { KT = 128, SLICE = KT / FEW_WARPS, CHUNK = 4, PIECES = SLICE / CHUNK /* of a tile */ };
template <int EIGHTS, int RING> struct few_ring {
    enum {
        TILE = weights<16>::TILE,
        PIECE = CHUNK * TILE,
        OWN = RING * PIECE,         // of a warp
        SUMS = EIGHTS * 8 * FEW_LD, // floats of a tile's slice
        BARS = FEW_WARPS * OWN,
        BYTES = BARS + FEW_WARPS * RING * 8
    };
};
template <class T, int EIGHTS, int MOST, int RING, class Out>
__global__ void __launch_bounds__(FEW_WARPS * 32, 2)
    few_round_kernel(const weights<16> w, const uint32_t *act, uint32_t n_rows, uint32_t n_tiles, bool early, Out out) {
#if __CUDA_ARCH__ >= 900
    using G = few_ring<EIGHTS, RING>;
    static_assert(MOST * EIGHTS <= 4 && MOST * G::SUMS * 4 <= G::OWN, "a thread an output; sums lie in the ring");
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float scales[8 * EIGHTS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, k0 = warp * SLICE;
    const uint32_t own = (n_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x, n_pieces = own * PIECES;
    uint64_t *const bars = (uint64_t *)(smem + G::BARS) + warp * RING;
    unsigned char *const ring = smem + warp * G::OWN;
    const unsigned char *from = w.tiles + ((size_t)blockIdx.x * KT + k0) * G::TILE;
    const size_t next = (size_t)gridDim.x * KT * G::TILE;
    const auto ask = [&](uint32_t piece) { // one lane
        unsigned char *to = ring + piece % RING * G::PIECE;
        bulk_ask(to, from + piece / PIECES * next + piece % PIECES * G::PIECE, G::PIECE, bars + piece % RING, to, NULL,
                 0);
    };
    if (lane == 0)
#pragma unroll
        for (uint32_t i = 0; i < RING; i++)
            if (i < n_pieces) bulk_init(bars + i), ask(i);
    const uint32_t t = threadIdx.x / (128 * EIGHTS), o = (blockIdx.x + t * gridDim.x) * 16 + threadIdx.x % 16,
                   r = threadIdx.x / 16 % (8 * EIGHTS);     // of the tile and the outputs that this thread finishes
    const uint32_t weighed = EIGHTS == 1 ? warp - 8 : warp; // the row that this warp weighs
    const bool finishes = t < own, mine = finishes && r < n_rows, weighs = weighed < n_rows && out.norm.squares;
    typename Out::template column<T, 1> column;
    typename Out::template row<T, 1> row;
    few_scale scale;
    few_tiles<T, SLICE, EIGHTS> tiles;
    if (early) let_next_start();
    if (finishes) out.template load<T>(column, o, mine), out.template early<T>(row, r, o, mine);
    act += k0 * 64 + lane;
    __syncwarp(); // the barriers are there
    wait_for_inputs();
    if (!early) let_next_start();
    tiles.ask(act, KT * 64, SLICE, lane / 4, n_rows);
    if (finishes) out.template late<T>(row, r, o, mine);
    if (weighs) scale.ask(out.norm, weighed);
    const uint32_t at = shared_address(ring) + lane * 16;
    const auto operand = [&](uint32_t at) { return operand_of(w, shared_codes<16>(at), {0, 0}, T()); };
    float acc[MOST][EIGHTS][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++) {
        if (i >= own) break;
#pragma unroll
        for (uint32_t p = 0; p < PIECES; p++) {
            const uint32_t piece = i * PIECES + p;
            await_bulk(bars + piece % RING, piece / RING & 1);
#pragma unroll
            for (uint32_t u = 0; u < CHUNK; u++) {
                const uint4 a = operand(at + piece % RING * G::PIECE + u * G::TILE);
#pragma unroll
                for (int j = 0; j < EIGHTS; j++) mma(acc[i][j], a, tiles.b[p * CHUNK + u][j], T());
            }
            __syncwarp(); // every lane has the piece
            if (lane == 0 && piece + RING < n_pieces) ask(piece + RING);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < MOST; i++) few_leave((float *)ring + i * G::SUMS, acc[i]);
    if (weighs) scale.leave<T>(out.norm, weighed, scales);
    __syncthreads(); // every slice's sums before they are added; the scales
    if (!finishes) return;
    const float *const sums = (const float *)smem + t * G::SUMS + threadIdx.x % 16;
    few_finish<T>(out, column, row, few_output{r, o, mine}, sums, G::OWN / 4, scales);
#endif
}

// blocks: of a multiprocessor.
template <class T, int EIGHTS, int MOST, int RING, class Out>
static void run(uint32_t blocks, const struct cuda_matrix *m, const void *act, uint32_t n_rows, bool early,
                const Out &out, void *stream) {
    const auto kernel = few_round_kernel<T, EIGHTS, MOST, RING, Out>;
    allow_shared(kernel, few_ring<EIGHTS, RING>::BYTES);
    launch(kernel, dim3(blocks * multiprocessors()), dim3(FEW_WARPS * 32), few_ring<EIGHTS, RING>::BYTES, stream,
           weights_of<16>(m), (const uint32_t *)act, n_rows, cuda_pad16(m->rows) / 16, early, out);
}
// W_fc has two tiles for each of two blocks of a multiprocessor, with a convolution at its end. A product with the
// FFN's gate takes one block a multiprocessor with as many bytes on their way.
template <class T, class Out>
static void run_of(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const Out &out,
                   void *stream) {
    if constexpr (!has_taps<Out>) // what dispatch.c has rules for
        if (n_rows > 8) return run<T, 2, 2, 3>(2, w, act, n_rows, early, out, stream);
    if constexpr (ending_of<Out> == DISPATCH_FFN)
        run<T, 1, 4, 4>(1, w, act, n_rows, early, out, stream);
    else
        run<T, 1, 2, 3>(2, w, act, n_rows, early, out, stream);
}
template <class Out>
static void run_any(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const Out &out,
                    void *stream) {
    if (w->dtype == CUDA_F16)
        run_of<__half>(w, act, n_rows, early, out, stream);
    else
        run_of<__nv_bfloat16>(w, act, n_rows, early, out, stream);
}
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_plain &out,
               void *stream) {
    run_any(w, act, n_rows, early, out, stream);
}
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_conv<4> &out,
               void *stream) {
    run_any(w, act, n_rows, early, out, stream);
}
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_conv<8> &out,
               void *stream) {
    run_any(w, act, n_rows, early, out, stream);
}
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_ffn &out,
               void *stream) {
    run_any(w, act, n_rows, early, out, stream);
}
