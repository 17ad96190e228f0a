// plain.cu - operands of a product in plain rows, for a library that knows no tiles of ours: weights, whatever their
// format, as the 16-bit numbers that every kernel multiplies (weights.cuh), and packed activations. fp32 is plain
// already.
#include "kernels/cuda/weights.cuh"

enum { WARPS = 8, TILES = 4 }; // a warp: 16 rows by four tiles of k, 128 bytes a row

// [rows padded to 16][K]. Through shared memory: a lane has four words of a tile, a row's are 16 bytes apart.
template <class T, int BITS>
__global__ void plain_weights_kernel(const weights<BITS> w, uint32_t tiles, uint32_t KT, uint4 *to) {
    __shared__ uint32_t room[WARPS][16][TILES * 8 + 4];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t across = (KT + TILES - 1) / TILES, i = blockIdx.x * WARPS + warp;
    let_next_start();
    if (i >= tiles * across) return;
    const uint32_t tile = i / across, k0 = i % across * TILES, n = min((uint32_t)TILES, KT - k0);
    const unsigned char *from = w.tiles + ((size_t)tile * KT + k0) * weights<BITS>::TILE + lane * BITS;
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
        if (j >= n) break;
        lane_codes<BITS> codes;
        memcpy(&codes, __builtin_assume_aligned(from + j * weights<BITS>::TILE, BITS), BITS);
        uint32_t s[2] = {0, 0};
        if (BITS < 16) {
            const uint32_t *scales = w.scales + ((size_t)tile * w.groups + ((k0 + j) >> w.per)) * 16 + g;
            s[0] = scales[0], s[1] = scales[8];
        }
        const uint4 a = operand_of(w, codes, s, T());
        room[warp][g][j * 8 + t] = a.x, room[warp][g + 8][j * 8 + t] = a.y;
        room[warp][g][j * 8 + t + 4] = a.z, room[warp][g + 8][j * 8 + t + 4] = a.w;
    }
    __syncwarp();
    wait_for_inputs(); // nobody reads what the product before this one was of
#pragma unroll
    for (uint32_t r = lane / 8; r < 16; r += 4) {
        const uint32_t piece = lane % 8; // 16 bytes
        if (piece < 2 * n)
            to[((size_t)tile * 16 + r) * KT * 2 + k0 * 2 + piece] = *(const uint4 *)&room[warp][r][piece * 4];
    }
}

// A warp: a tile of eight rows by 32 columns: 512 bytes in a row are read, 64 a row written.
__global__ void plain_rows_kernel(const uint4 *act, uint32_t n_rows, uint32_t KT, uint4 *to) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = (KT + 1) / 2,
                   i = blockIdx.x * WARPS + warp, row = i / across * 8 + lane % 8, piece = i % across * 4 + lane / 8;
    let_next_start();
    wait_for_inputs();
    if (row < n_rows && piece < KT * 2)
        to[(size_t)row * KT * 2 + piece] = act[((size_t)(row / 8) * KT * 2 + piece) * 8 + lane % 8];
}

bool cuda_library_wanted(const struct cuda_shape *shape, bool forced) {
    dispatch_case c = {};
    c.op = DISPATCH_PROMPT_BY, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = 1, c.forced = forced;
    return dispatch_kernel_of(&c) == LIBRARY;
}

static uint32_t blocks_for(uint32_t warps) { return (warps + WARPS - 1) / WARPS; }

void k_plain_weights(const struct cuda_matrix *w, void *to, void *stream) {
    assert(w->dtype != CUDA_F32 && w->rows > 0 && w->cols > 0 && on_16_bytes(w->data, to));
    const uint32_t KT = cuda_pad16(w->cols) / 16, tiles = cuda_pad16(w->rows) / 16;
    const dim3 grid(blocks_for(tiles * ((KT + TILES - 1) / TILES)));
    FOR_BITS(w, {
        const auto from = weights_of<BITS>(w);
        if (w->dtype == CUDA_F16)
            launch(plain_weights_kernel<__half, BITS>, grid, dim3(WARPS * 32), 0, stream, from, tiles, KT, (uint4 *)to);
        else
            launch(plain_weights_kernel<__nv_bfloat16, BITS>, grid, dim3(WARPS * 32), 0, stream, from, tiles, KT,
                   (uint4 *)to);
    });
}

void k_plain_rows(const void *act, uint32_t n_rows, uint32_t cols, void *to, void *stream) {
    assert(n_rows > 0 && cols > 0 && on_16_bytes(act, to));
    const uint32_t KT = cuda_pad16(cols) / 16;
    launch(plain_rows_kernel, dim3(blocks_for((n_rows + 7) / 8 * ((KT + 1) / 2))), dim3(WARPS * 32), 0, stream,
           (const uint4 *)act, n_rows, KT, (uint4 *)to);
}
