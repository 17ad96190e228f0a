// pack.cu - weights into the tiles of operand A, as numbers or as codes of 8 or 4 bits (weights.cuh).
#include "kernels/cuda/weights.cuh"

size_t cuda_matrix_bytes(uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    return (size_t)cuda_pad16(rows) * cuda_pad16(cols) * (dtype == CUDA_F32 ? 4 : 2);
}

template <class S, class T>
__global__ void pack_kernel(const S *src, uint32_t row0, uint32_t rows, uint32_t cols, uint32_t pack, T *dst) {
    const uint32_t K = (cols + 15) / 16 * 16;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)rows * cols;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t o = (uint32_t)(i / cols), k = (uint32_t)(i % cols);
        o += row0;
        if (pack != CUDA_PACK_ROWS) o = o / 8 * 16 + o % 8 + (pack == CUDA_PACK_SECOND_EIGHTS ? 8 : 0);
        dst[weight_at<T>(o, k, K)] = from_float<T>(to_float(src[i]));
    }
}

// Every row has its place in the packed matrix.
static bool are_placed(uint32_t row0, uint32_t rows, enum cuda_pack pack, const struct cuda_matrix *dst) {
    return rows > 0 && row0 + rows <= cuda_pad16(dst->rows) / (pack == CUDA_PACK_ROWS ? 1 : 2);
}
void k_pack(const void *src, enum cuda_dtype src_dtype, uint32_t row0, uint32_t rows, uint32_t cols,
            enum cuda_pack pack, const struct cuda_matrix *dst, void *stream) {
    assert(cuda_pad16(cols) == cuda_pad16(dst->cols) && dst->format == CUDA_STORED &&
           are_placed(row0, rows, pack, dst));
    cudaStream_t st = (cudaStream_t)stream;
    if (src_dtype == CUDA_F32)
        FOR_DTYPE(dst->dtype, (pack_kernel<float, T><<<1024, 256, 0, st>>>((const float *)src, row0, rows, cols,
                                                                           (uint32_t)pack, (T *)dst->data)));
    else if (src_dtype == CUDA_F16)
        FOR_DTYPE(dst->dtype, (pack_kernel<__half, T><<<1024, 256, 0, st>>>((const __half *)src, row0, rows, cols,
                                                                            (uint32_t)pack, (T *)dst->data)));
    else
        FOR_DTYPE(dst->dtype, (pack_kernel<__nv_bfloat16, T><<<1024, 256, 0, st>>>(
                                  (const __nv_bfloat16 *)src, row0, rows, cols, (uint32_t)pack, (T *)dst->data)));
}

// ---- codes ----

static uint32_t bits_of(const struct cuda_matrix *m) {
    return m->format == CUDA_INT4 ? 4 : m->format == CUDA_STORED ? 16 : 8;
}
size_t cuda_codes_bytes(const struct cuda_matrix *m) {
    return (size_t)cuda_pad16(m->rows) * cuda_pad16(m->cols) * bits_of(m) / 8;
}
size_t cuda_scales_bytes(const struct cuda_matrix *m) {
    return (size_t)cuda_pad16(m->rows) * groups_of(m) * sizeof(uint32_t);
}

struct pack_job { // rows of codes as k_pack_codes has them
    const uint8_t *codes, *zeros;
    const float *scales;
    uint32_t row0, rows, cols, groups, per, pack;
    bool fp8, int4;
    uint32_t *tiles, *to_scales;
};
__device__ __forceinline__ uint32_t packed_row(const pack_job &job, uint32_t row) {
    const uint32_t o = job.row0 + row;
    return job.pack == CUDA_PACK_ROWS ? o : o / 8 * 16 + o % 8 + (job.pack == CUDA_PACK_SECOND_EIGHTS ? 8 : 0);
}
__device__ __forceinline__ uint32_t zero_of(const pack_job &job, uint32_t row, uint32_t group) {
    return job.zeros ? job.zeros[(size_t)row * job.groups + group] : 8;
}

// A thread: a row's codes of a tile. A word of 4 bits is two rows'. What lies beyond the columns is a weight of 0.
__global__ void pack_codes_kernel(const pack_job job) {
    const uint32_t KT = (job.cols + 15) / 16;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)job.rows * KT;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t row = (uint32_t)(i / KT), kt = (uint32_t)(i % KT), o = packed_row(job, row);
        const uint8_t *from = job.codes + (size_t)row * job.cols;
        const uint32_t nothing = job.int4 ? zero_of(job, row, kt >> job.per) : 0;
        const auto code = [&](uint32_t column) -> uint32_t {
            const uint32_t k = kt * 16 + column, c = k < job.cols ? from[k] : nothing;
            return job.fp8 || job.int4 || c < 128 ? c : 128 | (256 - c); // int8: its size and a sign
        };
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t a = code(2 * t), b = code(2 * t + 8), c = code(2 * t + 1), d = code(2 * t + 9);
            const size_t lane = ((size_t)(o / 16) * KT + kt) * 32 + o % 8 * 4 + t;
            if (job.int4)
                atomicOr(job.tiles + lane, (a | b << 8 | c << 16 | d << 24) << (o & 8 ? 4 : 0));
            else
                job.tiles[lane * 2 + (o & 8 ? 1 : 0)] = a | b << 8 | c << 16 | d << 24;
        }
    }
}

// `factor`: what weights.cuh puts into the scale.
template <class T> __global__ void pack_scales_kernel(const pack_job job, float factor, float fraction) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)job.rows * job.groups;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t row = (uint32_t)(i / job.groups), group = (uint32_t)(i % job.groups), o = packed_row(job, row);
        const T scale = from_float<T>(job.scales[i] * factor),
                above = job.int4 ? from_float<T>(-(1.0f + (float)zero_of(job, row, group) * fraction)) : scale;
        uint16_t low, high;
        memcpy(&low, &scale, 2), memcpy(&high, &above, 2);
        job.to_scales[((size_t)(o / 16) * job.groups + group) * 16 + o % 16] = (uint32_t)high << 16 | low;
    }
}

void k_pack_codes(const uint8_t *codes, const float *scales, const uint8_t *zeros, uint32_t row0, uint32_t rows,
                  enum cuda_pack pack, const struct cuda_matrix *dst, void *stream) {
    assert(dst->dtype != CUDA_F32 && dst->format != CUDA_STORED && are_placed(row0, rows, pack, dst));
    const bool half = dst->dtype == CUDA_F16, fp8 = dst->format == CUDA_FP8;
    const pack_job job = {codes,
                          zeros,
                          scales,
                          row0,
                          rows,
                          dst->cols,
                          groups_of(dst),
                          dst->grouped ? 3u : 31u,
                          (uint32_t)pack,
                          fp8,
                          dst->format == CUDA_INT4,
                          (uint32_t *)dst->data,
                          dst->scales};
    const float steps = half ? 1024.0f : 128.0f, factor = !fp8 ? steps : half ? 0x1p8f : 0x1p120f;
    pack_codes_kernel<<<1024, 256, 0, (cudaStream_t)stream>>>(job);
    if (half)
        pack_scales_kernel<__half><<<256, 256, 0, (cudaStream_t)stream>>>(job, factor, 1 / steps);
    else
        pack_scales_kernel<__nv_bfloat16><<<256, 256, 0, (cudaStream_t)stream>>>(job, factor, 1 / steps);
}
