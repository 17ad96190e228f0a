/* under_test.h - what kernels_under_test.so exports as kernels_under_test: the CUDA kernels as they are in the product,
 * and as much of the CUDA runtime as a test needs, so that the tests themselves are plain C and build without a GPU.
 *
 * Threads: one. Every function that can fail gives NULL or the error's text.
 */
#ifndef UNDER_TEST_H
#define UNDER_TEST_H

#include "kernels/cuda/cuda.h"

/* Each k_* of cuda.h but k_fault; each line is called in a test beside this file: check-rules looks. */
#define UNDER_TEST(X)                                                                                                  \
    X(cuda_matrix_bytes)                                                                                               \
    X(cuda_activation_bytes)                                                                                           \
    X(cuda_window_blocks)                                                                                              \
    X(cuda_window_prepare)                                                                                             \
    X(cuda_codes_bytes)                                                                                                \
    X(cuda_scales_bytes)                                                                                               \
    X(k_pack)                                                                                                          \
    X(k_pack_codes)                                                                                                    \
    X(k_embed)                                                                                                         \
    X(k_add_norm)                                                                                                      \
    X(cuda_linear_splits)                                                                                              \
    X(k_linear)                                                                                                        \
    X(k_linear_pair)                                                                                                   \
    X(k_conv)                                                                                                          \
    X(k_gates)                                                                                                         \
    X(k_gla)                                                                                                           \
    X(k_gla_gates)                                                                                                     \
    X(k_gla_drafts)                                                                                                    \
    X(cuda_state_defers)                                                                                               \
    X(k_write_back)                                                                                                    \
    X(k_rope)                                                                                                          \
    X(k_window)                                                                                                        \
    X(k_window_combine)                                                                                                \
    X(cuda_decode_window_possible)                                                                                     \
    X(cuda_window8_possible)                                                                                           \
    X(cuda_scan_prepare)                                                                                               \
    X(cuda_scan_packed)                                                                                                \
    X(cuda_scan_bytes)                                                                                                 \
    X(k_prompt_conv)                                                                                                   \
    X(k_packed_conv)                                                                                                   \
    X(k_scan)                                                                                                          \
    X(k_decode_window)                                                                                                 \
    X(k_draft_window)                                                                                                  \
    X(cuda_prompt_window_possible)                                                                                     \
    X(cuda_prompt_tiles)                                                                                               \
    X(cuda_prompt_window_bytes)                                                                                        \
    X(k_prompt_window)                                                                                                 \
    X(k_prompt_places)                                                                                                 \
    X(k_prompt_heads)                                                                                                  \
    X(k_ffn_act)                                                                                                       \
    X(k_norm_rows)                                                                                                     \
    X(cuda_fused_possible)                                                                                             \
    X(k_fused_linear)                                                                                                  \
    X(k_fused_conv)                                                                                                    \
    X(k_fused_ffn)                                                                                                     \
    X(k_fused_residual)                                                                                                \
    X(k_fused_linear_pair)                                                                                             \
    X(k_prompt_linear)                                                                                                 \
    X(k_prompt_az)                                                                                                     \
    X(k_prompt_ffn)                                                                                                    \
    X(k_plain_weights)                                                                                                 \
    X(k_plain_rows)                                                                                                    \
    X(k_prompt_residual)                                                                                               \
    X(cuda_conv_pair_possible)                                                                                         \
    X(k_conv_pair)                                                                                                     \
    X(k_gather_rows)                                                                                                   \
    X(cuda_sample_pieces)                                                                                              \
    X(k_admit)                                                                                                         \
    X(k_masks)                                                                                                         \
    X(k_step_rows)                                                                                                     \
    X(k_step_draft_rows)                                                                                               \
    X(k_sample)                                                                                                        \
    X(k_sample_drafts)                                                                                                 \
    X(cuda_one_launch_possible)                                                                                        \
    X(cuda_one_launch_bytes)                                                                                           \
    X(k_one_launch)

struct under_test {
    const char *(*open)(void **stream); /* the first usable GPU */
    void *(*take)(size_t bytes);        /* exactly so many, that memcheck sees what lies beyond; NULL without memory */
    void (*give)(void *p);
    const char *(*fill)(void *p, int byte, size_t bytes, void *stream);
    /* All shared memory becomes NaN: what the next kernel reads there and did not write shows. */
    const char *(*fill_blocks)(void *stream);
    const char *(*write)(void *device, const void *host, size_t bytes, void *stream);
    const char *(*read)(void *host, const void *device, size_t bytes, void *stream);
    const char *(*wait)(void *stream);
    /* plain fp32 [n_rows][cols] on the device <-> packed activations. src NULL: nothing but the padding of the columns
     * is written, with zeros, as the product's workspaces have it. unpack: all cuda_pad16(cols) columns. */
    void (*pack_act)(const float *src, uint32_t n_rows, uint32_t cols, void *act, enum cuda_dtype dtype, void *stream);
    void (*unpack_act)(const void *act, uint32_t n_rows, uint32_t cols, float *dst, enum cuda_dtype dtype,
                       void *stream);
#ifdef __cplusplus
#define UNDER_TEST_X(name) decltype(&::name) name;
#else
#define UNDER_TEST_X(name) __typeof__(name) *name;
#endif
    UNDER_TEST(UNDER_TEST_X)
#undef UNDER_TEST_X
};

#ifdef __cplusplus
extern "C"
#else
extern
#endif
    const struct under_test kernels_under_test;

#endif
