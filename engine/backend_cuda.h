/* backend_cuda.h - what the CUDA backend's files share: opening and slots (backend_cuda.c), the weights
 * (backend_cuda_load.c), a step (backend_cuda_forward.c).
 *
 * They are compiled into rodimus_cuda.so, with the kernels; engine/backend.c loads it.
 * Who owns what: struct backend owns all device memory, pinned memory, the stream and the graphs. Threads: one at a
 * time.
 */
#ifndef BACKEND_CUDA_H
#define BACKEND_CUDA_H

#include "backend.h"
#include "kernels/cuda.h"
#include "model.h"

struct cuda_layer {
    struct cuda_matrix fc, in, c0, out, qkv, ao, f1,
        f2; /* in: q, k, gate, tau stacked; fc: a rows, then z from row Ep */
    float *mixer_norm, *conv, *conv_b, *residual, *c1, *c1_b, *g_b, *t_b, *act_norm; /* conv [K, Ep], c1 [E, R] */
    float *attn_norm, *q_norm, *k_norm, *ffn_norm;
};

enum { CUDA_N_BUCKETS = 10 }; /* 1, 2, 4 ... 512 rows */

struct backend {
    struct backend_info info;
    struct model_dims d;
    struct cuda_shape shape;
    bool few; /* steps of few rows have kernels of their own here */
    int device;
    struct CUstream_st *stream; /* a cudaStream_t */
    struct cuda_layer *layers;
    struct cuda_matrix embed, lm_head;
    float *embed_norm, *norm_f;
    double *inv_freq;

    /* Of a step: the rows, in one block of pinned memory and its copy on the device. list: rows by phase of their
     * segment (pieces between multiples of the chunk); out: rows whose logits are wanted. */
    struct cuda_rows host, rows;
    int32_t *host_list, *list, *host_out, *out;
    void *host_block, *block;
    size_t block_bytes;

    /* Workspaces, fp32 but the activations (act_*). */
    float *x, *y, *squares, *row_scale, *az, *s, *in, *c0_part, *q, *k, *log_alpha, *c0, *sums, *d_part, *qkv, *aq,
        *part, *part_ml, *f1, *gathered, *turn, *logits;
    void *act_d, *act_e, *act_a, *act_q, *act_f;
    float *host_logits;

    struct CUgraphExec_st *graphs[CUDA_N_BUCKETS]; /* cudaGraphExec_t */
    uint64_t fault_step, n_steps;                  /* backend_config.fault_step */
    void **allocations;
    size_t n_allocations;
};

int forward_cuda(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                 struct rod_error *err);
/* Captures the decode steps of every bucket up to n_slots rows. */
int forward_cuda_capture(struct backend *be, struct rod_error *err);
/* Uploads and packs every weight. */
int load_cuda(struct backend *be, const struct model *model, const struct backend_config *config,
              struct rod_error *err);
/* Device memory that lives as long as the backend; NULL with what was asked for and what is free. */
void *cuda_take(struct backend *be, size_t bytes, const char *what, struct rod_error *err);
/* rc: a cudaError_t. 0, or ROD_EDEVICE with what was being done. */
int cuda_check(int rc, const char *doing, struct rod_error *err);

#endif
