// scan_wide.cu - k_scan on Hopper: every product by wgmma with 64 channels of E as its rows, so that S and u leave one
// product in the registers of the next one's first operand.
//
// wide_scores_kernel makes, once a piece, what all channels share: q exp(b), k exp(b_C - b), A, exp(b_C) and c0,
// rounded to tf32 and in the order of wgmma's second operand, so that a block of wide_scan_kernel fetches a piece with
// a few bulk copies. That kernel's block owns 64 channels of a segment and walks over its pieces: one warpgroup makes u
// of the next piece, one carries S on and makes o, one reads the piece before out, three warps fetch and one takes
// away. a, z, s and the read-out are packed activations; pieces that begin with a tile of eight rows go by the tensor
// copy engine. Equations: scan.cu.
#include "scan_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A lane has channels e and e + 1, rows g and g + 8 of a product.

// Makes u of the next piece.
template <class T, int RS>
__device__ __forceinline__ void make_u(const wide_place &p, const wide_barriers &b, const cuda_state &in) {
    const uint32_t R = in.shape.R, E = in.shape.E;
    using mem = wide_memory<RS>;
    constexpr uint32_t RP = RS * 8, LOW_STAGES = mem::LOW_STAGES;
    float4 c1[RS]; // W_c1 as first operand, times what makes exp(-x) a power of 2
    float bias[2];
#pragma unroll
    for (uint32_t x = 0; x < RS; x++) {
        float v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t j = x * 8 + p.lane % 4 + i / 2 * 4;
            v[i] = p.mine && j < R ? tf32(in.c1[(size_t)(p.e + i % 2) * R + j] * -1.44269504f) : 0.0f;
        }
        c1[x] = make_float4(v[0], v[1], v[2], v[3]);
    }
    bias[0] = p.mine ? in.c1_b[p.e] * -1.44269504f : 0.0f;
    bias[1] = p.mine ? in.c1_b[p.e + 1] * -1.44269504f : 0.0f;
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
                a[i] = *(const uint32_t *)(at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16 + p.in_tile);
                if (part) a[i] = p.mine && (x + i / 2) * 8 + p.pair + i % 2 < n ? a[i] : 0;
            }
            wgmma_wait<0>();
            keep(u);
            float4 *to =
                (float4 *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + (p.warp * 8 + x) * 32 + p.lane;
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                float v[4];
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const float in_a = j < 2 ? first_of<T>(a[2 * i + j]) : second_of<T>(a[2 * i + j - 2]);
                    v[j] = tf32_for_product(in_a * inverse(1.0f + exp2_fast(u[4 * i + j] + bias[j / 2])));
                }
                to[i * 32] = make_float4(v[0], v[2], v[1], v[3]);
            }
        }
        barrier_arrive(b.low_empty + stage);
        barrier_arrive(b.u_full + it % mem::U_STAGES);
    }
}
// Carries S on and makes o.
template <int RS>
__device__ __forceinline__ void carry_state(const wide_place &p, const wide_barriers &b, float *S_all, uint32_t M,
                                            uint32_t Ep) {
    using mem = wide_memory<RS>;
    constexpr uint32_t STAGES = mem::STAGES;
    // S was last written a step ago, so it comes before the inputs are ready
    float S[32], o[32], o_late[16];
    float *S_mine = S_all + (size_t)(p.e / 32) * M * 32 + p.e % 32;
    const bool in_state = p.e < Ep;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        float2 x = make_float2(0, 0);
        if (in_state && m < M) x = *(const float2 *)(S_mine + m * 32);
        S[i / 2 * 4 + i % 2] = x.x, S[i / 2 * 4 + i % 2 + 2] = x.y;
    }
    wait_for_inputs();
    float4 f[8];                                       // S as first operand
    auto start = [&](uint32_t stage, uint32_t phase) { // S as it is before a piece, then what its tokens leave of it
        const float *decay_from = (const float *)(p.memory + stage * mem::STAGE + mem::DECAY) + p.pair;
        barrier_wait(b.full + stage, phase & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) {
            f[x] = make_float4(tf32_for_product(S[4 * x]), tf32_for_product(S[4 * x + 2]),
                               tf32_for_product(S[4 * x + 1]), tf32_for_product(S[4 * x + 3]));
            const float2 decay = *(const float2 *)(decay_from + x * 8);
            S[4 * x] *= decay.x, S[4 * x + 1] *= decay.y;
            S[4 * x + 2] *= decay.x, S[4 * x + 3] *= decay.y;
        }
    };
    if (p.begin < p.end) start(0, 0);
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0, stage = 0, phase = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const unsigned char *at = p.memory + stage * mem::STAGE;
        const float4 *u_from =
            (const float4 *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        float4 u[8];
        barrier_wait(b.u_full + it % mem::U_STAGES, it / mem::U_STAGES & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) u[x] = u_from[x * 32];
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
        float4 *to = (float4 *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
#pragma unroll
        for (uint32_t x = 0; x < 16; x++) o[16 + x] += o_late[x];
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) to[x * 32] = make_float4(o[4 * x], o[4 * x + 1], o[4 * x + 2], o[4 * x + 3]);
        barrier_arrive(b.o_full + it % 2);
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        if (p.begin < p.end && in_state && m < M)
            *(float2 *)(S_mine + m * 32) = make_float2(S[i / 2 * 4 + i % 2], S[i / 2 * 4 + i % 2 + 2]);
    }
}
// Reads the piece before out: gates, sums of squares, W_o's operand in the place of s.
template <class T, int RS>
__device__ __forceinline__ void read_out(const wide_place &p, const wide_barriers &b, const cuda_state &in) {
    using mem = wide_memory<RS>;
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
#endif

// Threads: warps 0 to 3 make u, 4 to 7 carry the state, 8 to 11 read out, 12 to 14 fetch what these three work on, 15
// takes away what was read out.
template <class T, int RS>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_scan_kernel(const __grid_constant__ cuda_scan x, const __grid_constant__ wide_work work,
                     const __grid_constant__ wide_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using mem = wide_memory<RS>;
    extern __shared__ __align__(128) float4 scan_shared[];
    unsigned char *memory = (unsigned char *)scan_shared;
    const cuda_shape &shape = x.io.shape;
    const wide_barriers b = barriers_of<RS>(memory);
    const uint32_t M = shape.M, E = shape.E, Ep = shape.Ep, Ek = (E + 15) / 16 * 16, tid = threadIdx.x, lane = tid % 32,
                   warp = tid / 32 % 4;
    const uint32_t e0 = blockIdx.x * CH, row = lane / 4, pair = lane % 4 * 2,
                   e = e0 + warp * 16 + row * 2; // channels e and e + 1
    const scan_segment seg = segment_at(x.io.rows, blockIdx.y);
    const uint32_t first = seg.first, n_tok = seg.n_tok;
    const int64_t pos = seg.pos;
    const uint32_t begin = piece_length(pos, 0, n_tok) == 1 ? 1 : 0,
                   end = n_tok > 1 && n_tok - 1 >= begin && (pos + n_tok - 1) % PIECE == 0 ? n_tok - 1 : n_tok;
    const uint32_t in_tile = (e - e0) / 16 * 256 + e % 16 / 8 * 128 + e % 8 * 2; // where e lies
    const wide_place p = {memory, first, begin, end, pos, lane, warp, pair, e0, e, in_tile, e < E};
    let_next_start();
    if (tid == 0) make_barriers<RS>(b);
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
            fetch_scores<RS>(p, b, work);
        else if (warp == 1)
            fetch_low<T, RS>(p, width, b, work, x, maps);
        else if (warp == 2)
            fetch_gates<T, RS>(p, width, b, x, maps);
        else
            take_away<T, RS>(p, width, b, maps, x.io);
        all_meet();
        more_registers<128>();
    } else if (role == 0) {
        make_u<T, RS>(p, b, x.io);
        keep_tail<T>(x, seg, e0, CH, 128); // while others have a piece to go
        all_meet();
    } else if (role == 2) {
        more_registers<152>();
        read_out<T, RS>(p, b, x.io);
        all_meet();
        fewer_registers<128>();
    } else {
        more_registers<184>();
        carry_state<RS>(p, b, S_all, M, Ep);
        all_meet(); // S is written; and all is fetched and read
        fewer_registers<128>();
    }
    if (end < n_tok) alone(end);
#endif
}

// ---- launching ----

#define FOR_STEPS_OF_R(shape, call)                                                                                    \
    do {                                                                                                               \
        if (wide_pad_R(shape) == 32) {                                                                                 \
            constexpr int RS = 4;                                                                                      \
            call;                                                                                                      \
        } else {                                                                                                       \
            constexpr int RS = 8;                                                                                      \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)

bool wide_scan_possible(const cuda_shape *shape) { return dispatch_wide_scan(this_device(), shape); }
bool wide_scan_prepare(const cuda_shape *shape) {
    bool ready = false;
    FOR_16_BIT(shape->dtype,
               FOR_STEPS_OF_R(shape, (ready = allow_shared(wide_scan_kernel<T, RS>, wide_memory<RS>::TOTAL))));
    return ready;
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
static void launch_wide_scan(const cuda_scan &x, const wide_work &work, void *stream) {
    const cuda_shape *shape = &x.io.shape;
    const dim3 channels((shape->Ep + CH - 1) / CH, x.n_segs);
    const uint32_t Ek = cuda_pad16(shape->E), n_rows = x.n_rows;
    const wide_maps maps = {tiles_map(x.a_act, Ek, n_rows, CH), tiles_map(x.z_act, Ek, n_rows, CH),
                            tiles_map(x.s_act, Ek, n_rows, CH), tiles_map(x.io.act, Ek, n_rows, CH)};
    FOR_16_BIT(shape->dtype, FOR_STEPS_OF_R(shape, (launch(wide_scan_kernel<T, RS>, channels, dim3(WIDE_THREADS),
                                                           wide_memory<RS>::TOTAL, stream, x, work, maps))));
}
void wide_scan(const cuda_scan &x, void *stream) {
    assert(x.a_act && x.z_act && x.s_act && on_16_bytes(x.a_act, x.z_act, x.s_act, x.io.act));
    const wide_work parts = wide_parts(x.n_rows, wide_pad_R(&x.io.shape), x.work);
    launch_wide_scores(x, parts, stream);
    launch_wide_scan(x, parts, stream);
}
