// scan_wide.cu - k_scan on Hopper: every product by wgmma with 64 channels of E as its rows, so that S and u leave one
// product in the registers of the next one's first operand.
//
// wide_scores_kernel makes, once a piece, what all channels share: q exp(b), k exp(b_C - b), A, exp(b_C) and c0,
// rounded to tf32 and in the order of wgmma's second operand, so that a block of wide_scan_kernel fetches a piece with
// a few bulk copies. That kernel's block owns 64 channels of a segment, or 32 (half of each product's rows are empty
// then), and walks over its pieces: one warpgroup makes u of the next piece, one carries S on and makes o, one reads
// the piece before out, three warps fetch and one takes away. a, z, s and the read-out are packed activations; pieces
// that begin with a tile of eight rows go by the tensor copy engine. Equations: scan.cu.
#include "scan_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A lane has channels e and e + 1, rows g and g + 8 of a product; with 32 channels only e, and rows g + 8 are zeros.
template <int CH> struct wide_types {
    using word = uint32_t; // its channels of a packed row
    using four = float4;   // its values of two tokens
};
template <> struct wide_types<32> {
    using word = uint16_t;
    using four = float2;
};
__device__ __forceinline__ float4 operand_of_four(const float4 &x) { return x; }
__device__ __forceinline__ float4 operand_of_four(const float2 &x) { // rows g + 8: whatever is there, nobody reads them
    float4 a;
    a.x = x.x, a.z = x.y;
    asm volatile("" : "=f"(a.y), "=f"(a.w));
    return a;
}

// Makes u of the next piece.
template <class T, int RS, int CH>
__device__ __forceinline__ void make_u(const wide_place &p, const wide_barriers &b, const cuda_state &in) {
    const uint32_t R = in.shape.R, E = in.shape.E;
    using mem = wide_memory<RS, CH>;
    using word = typename wide_types<CH>::word;
    using four = typename wide_types<CH>::four;
    constexpr uint32_t RP = RS * 8, LOW_STAGES = mem::LOW_STAGES;
    float4 c1[RS]; // W_c1 as first operand, times what makes exp(-x) a power of 2
    float bias[2];
#pragma unroll
    for (uint32_t x = 0; x < RS; x++) {
        float v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t j = x * 8 + p.lane % 4 + i / 2 * 4;
            v[i] = (CH == 64 || i % 2 == 0) && p.mine && j < R
                       ? tf32(in.c1[(size_t)(p.e + i % 2) * R + j] * -1.44269504f)
                       : 0.0f;
        }
        c1[x] = make_float4(v[0], v[1], v[2], v[3]);
    }
    bias[0] = p.mine ? in.c1_b[p.e] * -1.44269504f : 0.0f;
    bias[1] = CH == 64 && p.mine ? in.c1_b[p.e + 1] * -1.44269504f : 0.0f;
    wait_for_inputs();
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t stage = it % LOW_STAGES, shift = (p.first + lo) % 8;
        const unsigned char *at = p.memory + mem::LOWS + stage * mem::LOW_STAGE;
        barrier_wait(b.low_full + stage, it / LOW_STAGES & 1);
        if (it >= mem::U_STAGES) barrier_wait(b.u_empty + it % mem::U_STAGES, (it / mem::U_STAGES - 1) & 1);
        const bool part = n < PIECE || p.e0 + CH > E;
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            float u[EIGHTS * 4];
            uint32_t a[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
#pragma unroll
            for (uint32_t k = 0; k < RS; k++) in_registers(c1[k]);
            wgmma_begin();
#pragma unroll
            for (uint32_t k = 0; k < RS; k++)
                wgmma_tf32(u, c1[k], operand(at + mem::LOW + x * RP * 32 + k * 256, 128, RP * 32), k > 0);
            wgmma_end();
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                a[i] = *(const word *)(at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16 + p.in_tile);
                if (part) a[i] = p.mine && (x + i / 2) * 8 + p.pair + i % 2 < n ? a[i] : 0;
            }
            wgmma_wait<0>();
            keep(u);
            four *to = (four *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + (p.warp * 8 + x) * 32 + p.lane;
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                float v[4];
#pragma unroll
                for (uint32_t j = 0; j < CH / 16; j++) {
                    const float in_a = j < 2 ? first_of<T>(a[2 * i + j]) : second_of<T>(a[2 * i + j - 2]);
                    v[j] = tf32_for_product(in_a * inverse(1.0f + exp2_fast(u[4 * i + j] + bias[j / 2])));
                }
                if constexpr (CH == 64)
                    to[i * 32] = make_float4(v[0], v[2], v[1], v[3]);
                else
                    to[i * 32] = make_float2(v[0], v[1]);
            }
        }
        barrier_arrive(b.low_empty + stage);
        barrier_arrive(b.u_full + it % mem::U_STAGES);
    }
}
// Carries S on and makes o.
template <int RS, int CH>
__device__ __forceinline__ void carry_state(const wide_place &p, const wide_barriers &b, float *S_all, uint32_t M,
                                            uint32_t Ep) {
    using mem = wide_memory<RS, CH>;
    using four = typename wide_types<CH>::four;
    constexpr uint32_t STAGES = mem::STAGES;
    // S was last written a step ago, so it comes before the inputs are ready
    float S[32], o[32], o_late[16];
    float *S_mine = S_all + (size_t)(p.e / 32) * M * 32 + p.e % 32;
    const bool in_state = p.e < Ep;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        float2 x = make_float2(0, 0);
        if (in_state && m < M) x = CH == 64 ? *(const float2 *)(S_mine + m * 32) : make_float2(S_mine[m * 32], 0);
        S[i / 2 * 4 + i % 2] = x.x, S[i / 2 * 4 + i % 2 + 2] = x.y;
    }
    wait_for_inputs();
    float4 f[8];                                       // S as first operand
    auto start = [&](uint32_t stage, uint32_t phase) { // S as it is before a piece, then what its tokens leave of it
        const float *decay_from = (const float *)(p.memory + stage * mem::STAGE + mem::DECAY) + p.pair;
        barrier_wait(b.full + stage, phase & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) {
            if constexpr (CH == 64)
                f[x] = make_float4(tf32_for_product(S[4 * x]), tf32_for_product(S[4 * x + 2]),
                                   tf32_for_product(S[4 * x + 1]), tf32_for_product(S[4 * x + 3]));
            else
                f[x] = operand_of_four(make_float2(tf32_for_product(S[4 * x]), tf32_for_product(S[4 * x + 1])));
            const float2 decay = *(const float2 *)(decay_from + x * 8);
            S[4 * x] *= decay.x, S[4 * x + 1] *= decay.y;
            if (CH == 64) S[4 * x + 2] *= decay.x, S[4 * x + 3] *= decay.y;
        }
    };
    if (p.begin < p.end) start(0, 0);
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0, stage = 0, phase = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const unsigned char *at = p.memory + stage * mem::STAGE;
        const four *u_from =
            (const four *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        float4 u[8];
        barrier_wait(b.u_full + it % mem::U_STAGES, it / mem::U_STAGES & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) u[x] = operand_of_four(u_from[x * 32]);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) in_registers(f[x]), in_registers(u[x]);
        barrier_arrive(b.u_empty + it % mem::U_STAGES);
        keep(S);
        wgmma_begin();
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) wgmma_tf32(S, u[x], operand(at + mem::K + x * GROUP_K * 4, 1024, 128), true);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) wgmma_tf32(o, f[x], operand(at + mem::Q + x * 256, 128, GROUP_Q * 4), x > 0);
        wgmma_end();
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            wgmma_tf32(o, u[x], operand(at + mem::EARLY + x * 256, 128, GROUP_A * 4), true);
#pragma unroll
        for (uint32_t x = 4; x < 8; x++)
            wgmma_tf32(o_late, u[x], operand(at + mem::LATE + (x - 4) * 256, 128, GROUP_A * 4), x > 4);
        wgmma_end();
        wgmma_wait<1>(); // S, while the last of o is made
        keep(S);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) in_registers(f[x]);
        const uint32_t done = stage;
        if (++stage == STAGES) stage = 0, phase++;
        if (lo + n < p.end) start(stage, phase);
        wgmma_wait<0>();
        keep(o), keep(o_late);
        barrier_arrive(b.empty + done);
        if (it >= 2) barrier_wait(b.o_empty + it % 2, (it / 2 - 1) & 1);
        four *to = (four *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
#pragma unroll
        for (uint32_t x = 0; x < 16; x++) o[16 + x] += o_late[x];
#pragma unroll
        for (uint32_t x = 0; x < 8; x++)
            if constexpr (CH == 64)
                to[x * 32] = make_float4(o[4 * x], o[4 * x + 1], o[4 * x + 2], o[4 * x + 3]);
            else
                to[x * 32] = make_float2(o[4 * x], o[4 * x + 1]);
        barrier_arrive(b.o_full + it % 2);
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        if (p.begin < p.end && in_state && m < M) {
            if constexpr (CH == 64)
                *(float2 *)(S_mine + m * 32) = make_float2(S[i / 2 * 4 + i % 2], S[i / 2 * 4 + i % 2 + 2]);
            else
                S_mine[m * 32] = S[i / 2 * 4 + i % 2];
        }
    }
}
// Reads the piece before out: gates, sums of squares, W_o's operand in the place of s.
template <class T, int RS, int CH>
__device__ __forceinline__ void read_out(const wide_place &p, const wide_barriers &b, const cuda_state &in) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    const float residual[2] = {p.mine ? in.residual[p.e] : 0.0f, p.mine ? in.residual[p.e + 1] : 0.0f},
                norm[2] = {p.mine ? in.act_norm[p.e] : 0.0f, p.mine ? in.act_norm[p.e + 1] : 0.0f};
    wait_for_inputs();
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t shift = (p.first + lo) % 8, stage = it % GATE_STAGES;
        const float4 *o_from = (const float4 *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        unsigned char *const at = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.in_tile;
        unsigned char *const squares = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.warp * 256 +
                                       p.pair * 4; // of eight tokens, in the place of their z
        barrier_wait(b.gate_full + stage, it / GATE_STAGES & 1);
        barrier_wait(b.o_full + it % 2, it / 2 & 1);
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            uint32_t z[EIGHTS * 2], s[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
            float4 o[EIGHTS];
            float gate[EIGHTS * 4], square[EIGHTS * 2];
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                const unsigned char *from = at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16;
                z[i] = *(const uint32_t *)from, s[i] = *(const uint32_t *)(from + mem::S_ROWS);
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) o[i] = o_from[(x + i) * 32];
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 4; i++) {
                const float v = i % 2 ? second_of<T>(z[i / 2]) : first_of<T>(z[i / 2]);
                gate[i] = v * inverse(1.0f + exp2_fast(v * -1.44269504f));
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                float o0 = __fmaf_rn(residual[0], first_of<T>(s[i]), i % 2 ? o[i / 2].y : o[i / 2].x) * gate[2 * i],
                      o1 =
                          __fmaf_rn(residual[1], second_of<T>(s[i]), i % 2 ? o[i / 2].w : o[i / 2].z) * gate[2 * i + 1];
                o0 = p.mine ? o0 : 0, o1 = p.mine ? o1 : 0; // columns that pad E stay 0, whatever the state holds
                const uint32_t t = shift + p.pair + i % 2;
                square[i] = __fmaf_rn(o0, o0, o1 * o1);
                *(uint32_t *)(at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16 + mem::S_ROWS) =
                    word_of(o0 * norm[0], o1 * norm[1], T()); // in the place of s
            }
            // sums over the warp's channels: lanes halve the tokens that they sum for, until each has one
            static_assert(EIGHTS == 4, "of eight sums a lane");
            halve<4, 16>(square, p.lane), halve<2, 8>(square, p.lane), halve<1, 4>(square, p.lane);
            __syncwarp(); // all have read z
            *(float *)(squares + (x + p.lane / 16 * 2 + p.lane / 8 % 2) * mem::TILE + p.lane / 4 % 2 * 4) = square[0];
        }
        barrier_arrive(b.o_empty + it % 2);
        written_for_wgmma(); // for the copy engine
        barrier_arrive(b.act_full + stage);
    }
}
// Likewise with one channel a lane. A pair of lanes has two channels as one lane has with 64, and a warp the first,
// third, fifth and seventh or the others of the pairs of a tile of 16: so squares are summed in the same order.
template <class T, int RS, int CH>
__device__ __forceinline__ void read_out_narrow(const wide_place &p, const wide_barriers &b, const cuda_state &in) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    const bool second = p.lane / 4 % 2; // of the pair
    const uint32_t e = p.e - second;    // the pair's first, and where it lies
    const float residual = p.mine ? in.residual[p.e] : 0.0f,
                norm[2] = {p.mine ? in.act_norm[e] : 0.0f, p.mine ? in.act_norm[e + 1] : 0.0f};
    wait_for_inputs();
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t shift = (p.first + lo) % 8, stage = it % GATE_STAGES;
        const float2 *o_from = (const float2 *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        unsigned char *const at = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.in_tile;
        float *const squares =
            (float *)(p.memory + mem::GATES + stage * mem::GATE_STAGE + mem::SQUARES) + p.warp * PIECE;
        barrier_wait(b.gate_full + stage, it / GATE_STAGES & 1);
        barrier_wait(b.o_full + it % 2, it / 2 & 1);
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            uint16_t z[EIGHTS * 2], s[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
            float o[EIGHTS * 2], square[EIGHTS];
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                const unsigned char *from = at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16;
                z[i] = *(const uint16_t *)from, s[i] = *(const uint16_t *)(from + mem::S_ROWS);
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                const float2 from = o_from[(x + i) * 32];
                o[2 * i] = from.x, o[2 * i + 1] = from.y;
            }
            __syncwarp(); // all have read s, which two lanes write
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const float v = first_of<T>(z[i]);
                o[i] = __fmaf_rn(residual, first_of<T>(s[i]), o[i]) * (v * inverse(1.0f + exp2_fast(v * -1.44269504f)));
                o[i] = p.mine ? o[i] : 0; // columns that pad E stay 0, whatever the state holds
            }
            // the first lane of a pair takes tokens of the first four sums, the second the others, of both channels
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                const float mine = second ? o[EIGHTS + i] : o[i],
                            other = __shfl_xor_sync(0xffffffffu, second ? o[i] : o[EIGHTS + i], 4),
                            o0 = second ? other : mine, o1 = second ? mine : other;
                const uint32_t t = shift + p.pair + i % 2;
                square[i] = __fmaf_rn(o0, o0, o1 * o1);
                *(uint32_t *)(at - second * 2 + (x + second * (EIGHTS / 2) + i / 2 + t / 8) * mem::TILE + t % 8 * 16 +
                              mem::S_ROWS) = word_of(o0 * norm[0], o1 * norm[1], T());
            }
            static_assert(EIGHTS == 4, "of four sums a lane");
            halve<2, 16>(square, p.lane), halve<1, 8>(square, p.lane);
            squares[(x + second * 2 + p.lane / 16) * 8 + p.pair + p.lane / 8 % 2] = square[0];
        }
        barrier_arrive(b.o_empty + it % 2);
        written_for_wgmma(); // for the copy engine
        barrier_arrive(b.act_full + stage);
    }
}
#endif

// Threads: warps 0 to 3 make u, 4 to 7 carry the state, 8 to 11 read out, 12 to 14 fetch what these three work on, 15
// takes away what was read out.
template <class T, int RS, int CH>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_scan_kernel(const __grid_constant__ cuda_scan x, const __grid_constant__ wide_work work,
                     const __grid_constant__ wide_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using mem = wide_memory<RS, CH>;
    extern __shared__ __align__(128) float4 scan_shared[];
    unsigned char *memory = (unsigned char *)scan_shared;
    const cuda_shape &shape = x.io.shape;
    const wide_barriers b = barriers_of<RS, CH>(memory);
    const uint32_t M = shape.M, E = shape.E, Ep = shape.Ep, Ek = (E + 15) / 16 * 16, tid = threadIdx.x, lane = tid % 32,
                   warp = tid / 32 % 4;
    const uint32_t e0 = blockIdx.x * CH, row = lane / 4, pair = lane % 4 * 2,
                   e = CH == 64 ? e0 + warp * 16 + row * 2                                   // channels e and e + 1
                                : e0 + warp / 2 * 16 + row / 2 * 4 + warp % 2 * 2 + row % 2; // channel e
    const scan_segment seg = segment_at(x.io.rows, blockIdx.y);
    const uint32_t first = seg.first, n_tok = seg.n_tok;
    const int64_t pos = seg.pos;
    const uint32_t begin = piece_length(pos, 0, n_tok) == 1 ? 1 : 0,
                   end = n_tok > 1 && n_tok - 1 >= begin && (pos + n_tok - 1) % PIECE == 0 ? n_tok - 1 : n_tok;
    const uint32_t in_tile = (e - e0) / 16 * 256 + e % 16 / 8 * 128 + e % 8 * 2; // where e lies
    const wide_place p = {memory, first, begin, end, pos, lane, warp, pair, e0, e, in_tile, e < E};
    let_next_start();
    if (tid == 0) make_barriers<RS, CH>(b);
    float *S_all = shape.S + seg.slot * shape.S_slot + x.io.layer * shape.S_layer;
    auto alone = [&](uint32_t t) { // before and after the others
        const uint32_t at = e0 + tid % CH;
        one_token<T, CH, 256 / CH>(x, first + t, e0, S_all + (size_t)(at / 32) * M * 32 + at % 32, 32, (float *)memory);
        __syncthreads(); // S; and the memory is free
    };
    if (begin) {
        wait_for_inputs();
        alone(0);
    }
    // A piece that is not whole leaves some of a stage as it was, and zeros times that must be zeros.
    const uint32_t n_first = begin < end ? piece_length(pos, begin, end) : PIECE;
    if (begin < end && (n_first < PIECE || ((pos + end) % PIECE && end - begin < 3 * PIECE)))
        for (uint32_t i = tid; i < mem::U / 16; i += WIDE_THREADS) ((float4 *)memory)[i] = make_float4(0, 0, 0, 0);
    written_for_wgmma();
    __syncthreads(); // barriers, zeros

    const uint32_t role = __shfl_sync(0xffffffffu, tid / 128, 0); // the compiler sees that a warp has one
    // Registers go to the warps of the state and the read-out until all have done: who has no work waits for that, or
    // it would take them back too early.
    if (role == 3) {
        fewer_registers<40>();
        const wide_width width = {Ek, e0 / 16 + CH / 16 <= Ek / 16 ? CH / 16 : Ek / 16 - e0 / 16};
        wait_for_inputs();
        if (warp == 0)
            fetch_scores<RS, CH>(p, b, work);
        else if (warp == 1)
            fetch_low<T, RS, CH>(p, width, b, work, x, maps);
        else if (warp == 2)
            fetch_gates<T, RS, CH>(p, width, b, x, maps);
        else
            take_away<T, RS, CH>(p, width, b, maps, x.io);
        all_meet();
        more_registers<128>();
    } else if (role == 0) {
        make_u<T, RS, CH>(p, b, x.io);
        keep_tail<T>(x, seg, e0, CH, 128); // while others have a piece to go
        all_meet();
    } else if (role == 2) {
        more_registers<152>();
        if constexpr (CH == 64)
            read_out<T, RS, CH>(p, b, x.io);
        else
            read_out_narrow<T, RS, CH>(p, b, x.io);
        all_meet();
        fewer_registers<128>();
    } else {
        more_registers<184>();
        carry_state<RS, CH>(p, b, S_all, M, Ep);
        all_meet(); // S is written; and all is fetched and read
        fewer_registers<128>();
    }
    if (end < n_tok) alone(end);
#endif
}

// ---- launching ----

bool wide_scan_possible(const cuda_shape *shape) { return dispatch_wide_scan(this_device(), shape); }
template <int RS, int CH> static bool allow_wide_scan(const cuda_shape *shape) {
    bool ready = false;
    FOR_16_BIT(shape->dtype, (ready = allow_shared(wide_scan_kernel<T, RS, CH>, wide_memory<RS, CH>::TOTAL)));
    return ready;
}
bool wide_scan_prepare(const cuda_shape *shape) {
    return wide_pad_R(shape) == 32 ? allow_wide_scan<4, 64>(shape) && allow_wide_scan<4, 32>(shape)
                                   : allow_wide_scan<8, 64>(shape);
}
size_t wide_scan_bytes(const cuda_shape *shape, uint32_t n_rows) {
    return (size_t)n_rows * (GROUP_Q + GROUP_K + 2 * GROUP_A + WIDE_M + 8 * wide_pad_R(shape)) * sizeof(float);
}
static CUtensorMap tiles_map(const void *data, uint32_t Ek, uint32_t n_rows, uint32_t channels) {
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map = {};
    const cuuint64_t sizes[3] = {64, Ek / 16, (n_rows + 7) / 8}, strides[2] = {256, (cuuint64_t)16 * Ek};
    const cuuint32_t box[3] = {64, channels / 16, 8}, steps[3] = {1, 1, 1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)data, sizes, strides, box, steps,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}
template <int RS, int CH> static void launch_wide_scan(const cuda_scan &x, const wide_work &work, void *stream) {
    const cuda_shape *shape = &x.io.shape;
    const dim3 channels((shape->Ep + CH - 1) / CH, x.n_segs);
    const uint32_t Ek = cuda_pad16(shape->E), n_rows = x.n_rows;
    const wide_maps maps = {tiles_map(x.a_act, Ek, n_rows, CH), tiles_map(x.z_act, Ek, n_rows, CH),
                            tiles_map(x.s_act, Ek, n_rows, CH), tiles_map(x.io.act, Ek, n_rows, CH)};
    FOR_16_BIT(shape->dtype, (launch(wide_scan_kernel<T, RS, CH>, channels, dim3(WIDE_THREADS),
                                     wide_memory<RS, CH>::TOTAL, stream, x, work, maps)));
}
void wide_scan(const cuda_scan &x, void *stream) {
    const cuda_shape *shape = &x.io.shape;
    assert(x.a_act && x.z_act && x.s_act && on_16_bytes(x.a_act, x.z_act, x.s_act, x.io.act));
    const wide_work parts = wide_parts(x.n_rows, wide_pad_R(shape), x.work);
    launch_wide_scores(x, parts, stream);
    if (wide_pad_R(shape) == 64) return launch_wide_scan<8, 64>(x, parts, stream);
    const bool narrow = scan_kernel_of(shape, x.most_tok, x.n_segs) == WIDE_SCAN_4_NARROW;
    narrow ? launch_wide_scan<4, 32>(x, parts, stream) : launch_wide_scan<4, 64>(x, parts, stream);
}
