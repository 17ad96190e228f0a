/* cuda_backend.c - the CUDA backend: opens it, owns the slot pool and the graphs. */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a step and of logits where nobody asks for others. A prompt has all rows of a
 * step while no session decodes: so many that reading the weights is little of it. */
enum { MAX_BATCH = 2048, MAX_OUT = 512 };
/* Of a prompt alone (cuda_large_rows). */
enum { N_LARGE = 2 };
static const uint32_t LARGE_BATCH[N_LARGE] = {8192, 4096};

/* ---- slots and workspaces ---- */

static void lay_out_slots(struct backend *be) {
    const struct model_dims *d = &be->d;
    struct cuda_shape *s = &be->shape;
    s->S_layer = (size_t)s->Ep * d->M;
    s->conv_layer = (size_t)s->conv_ring * s->Ep;
    s->keys_layer = (size_t)s->ring_keys * d->Hk * d->P;
    s->values_layer = (size_t)s->ring_keys * d->Hv * d->P;
    s->S_slot = s->S_layer * d->L;
    s->conv_slot = s->conv_layer * d->L;
    s->keys_slot = s->keys_layer * d->L;
    s->values_slot = s->values_layer * d->L;
    cuda_lay_out_deferred(s, d->L, be->n_drafts, cuda_state_defers(s, UINT32_MAX));
    be->info.slot_bytes = (s->S_slot + s->deferred_slot) * 4 + s->conv_slot * cuda_act_bytes(be) +
                          (s->keys_slot + s->values_slot) * cuda_window_bytes(be);
}

/* Before anything is loaded: whether the device could hold so many sessions at all. */
static bool slots_fit(const struct backend *be, uint32_t n_slots, struct rod_error *err) {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    const double gib = 1 << 30, mib = 1 << 20, slot = (double)be->info.slot_bytes, need = ((double)n_slots + 1) * slot;
    if (need <= (double)available) return true;
    if (!n_slots) {
        rod_fail(err, ROD_ENOMEM, "GPU memory: a session takes %.1f MiB, %.1f MiB are free", slot / mib,
                 (double)available / mib);
        return false;
    }
    rod_fail(err, ROD_ENOMEM, "GPU memory: %u slots of %.1f MiB need %.1f GiB, %.1f of %.1f GiB are free", n_slots,
             slot / mib, need / gib, (double)available / gib, (double)total / gib);
    if (err && need > (double)total) memcpy(err->param, "slots", sizeof "slots"); /* another time neither */
    return false;
}

static void set_shape(struct backend *be, enum cuda_dtype dtype) {
    const struct model_dims *d = &be->d;
    be->shape = (struct cuda_shape){.D = d->D,
                                    .E = d->E,
                                    .M = d->M,
                                    .R = d->R,
                                    .K = d->K,
                                    .H = d->H,
                                    .Hk = d->Hk,
                                    .Hv = d->Hv,
                                    .P = d->P,
                                    .F = (d->F + 15) / 16 * 16, /* so each kernel writes all that W_f2 reads */
                                    .V = d->V,
                                    .visible = d->visible,
                                    .rot_dim = d->rot_dim,
                                    .ring_keys = d->plus ? d->visible + CUDA_CHUNK - 1 : 0,
                                    .Ep = (d->E + 31) / 32 * 32,
                                    .conv_ring = d->K + be->n_drafts,
                                    .rot_interleaved = d->rot_interleaved,
                                    .qk_norm = d->qk_norm,
                                    .norm_eps = d->norm_eps,
                                    .k_eps = d->k_eps,
                                    .qk_norm_eps = d->qk_norm_eps,
                                    .dtype = dtype,
                                    .window = be->state.window == DTYPE_FP8 ? CUDA_FP8 : CUDA_STORED};
    lay_out_slots(be);
}

/* What is free, less a reserve for graphs and the driver, but no more than a step has rows and logits for beside a
 * piece of a prompt: a session that runs has a row in every step. */
static int choose_slots(const struct backend *be, const struct backend_config *config, uint32_t *n_slots,
                        struct rod_error *err) {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    const uint64_t reserve = be->device_part ? 1u << 30 : 1u << 29,
                   slot = be->info.slot_bytes + cuda_sample_slot_bytes(be->shape.V, be->n_drafts);
    const uint64_t fit = available > reserve ? (available - reserve) / slot : 0;
    const double session_mib = (double)be->info.slot_bytes / (1 << 20);
    if (fit < 2)
        return rod_fail(err, ROD_ENOMEM, "GPU memory: a session takes %.1f MiB, %.1f MiB are free", session_mib,
                        (double)available / (1 << 20));
    uint32_t rows = (be->info.shared_tok ? be->info.shared_tok : be->info.max_batch_tok) - CUDA_CHUNK;
    if (rows > be->info.max_out) rows = be->info.max_out;
    *n_slots = fit - 1 > rows ? rows : (uint32_t)(fit - 1);
    char line[192];
    int len = snprintf(line, sizeof line, "slots: %u sessions of %.1f MiB", *n_slots, session_mib);
    if (*n_slots == rows)
        snprintf(line + len, sizeof line - (size_t)len,
                 ", as many as one step decodes beside a piece of a prompt; memory would hold %llu",
                 (unsigned long long)(fit - 1));
    else
        snprintf(line + len, sizeof line - (size_t)len, ", all that is free after weights and workspaces");
    if (config->log) config->log(config->log_arg, 1, line);
    return 0;
}

/* Where nobody asked for a number, on devices whose prompts have kernels of their own: others were not measured. Slots
 * and flights that were asked for come first. After the weights. */
static void choose_rows(struct backend *be, const struct backend_config *config) {
    size_t available = 0, total = 0;
    if (config->max_batch_tok || cuda_library_wanted(&be->shape, false)) return;
    cudaMemGetInfo(&available, &total);
    const uint64_t slot = be->info.slot_bytes + cuda_sample_slot_bytes(be->shape.V, be->n_drafts);
    uint64_t reserve = 1u << 30;
    if (config->prompt_share > 0) reserve += cuda_workspaces_bytes(be, config, MAX_BATCH);
    struct cuda_large sizes[N_LARGE];
    for (int i = 0; i < N_LARGE; i++)
        sizes[i] = (struct cuda_large){LARGE_BATCH[i], cuda_workspaces_bytes(be, config, LARGE_BATCH[i])};
    const uint64_t kept = reserve + ((uint64_t)config->n_slots + 1) * slot;
    const uint32_t rows = be->info.max_batch_tok, large = cuda_large_rows(rows, available, kept, sizes, N_LARGE);
    if (large == rows) return;
    be->info.shared_tok = rows;
    be->info.max_batch_tok = large;
}

static int make_slots(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    struct cuda_shape *s = &be->shape;
    uint32_t n_slots = config->n_slots;
    int rc = n_slots ? 0 : choose_slots(be, config, &n_slots, err);
    if (rc) return rc;
    be->info.n_slots = be->shape.n_slots = n_slots;
    const size_t n = (size_t)n_slots + 1, a = cuda_act_bytes(be),
                 w = cuda_window_bytes(be); /* one more for padding rows */
    unsigned char *pool = cuda_take(be, n * be->info.slot_bytes, "the slot pool", err);
    if (!pool && be->device_part) { /* slots that were asked for come before flights */
        if (config->log) config->log(config->log_arg, 1, "prompts beside steps: none, the slots leave them no memory");
        cuda_device_part_close(be);
        pool = cuda_take(be, n * be->info.slot_bytes, "the slot pool", err);
    }
    if (!pool) return err ? err->code : ROD_ENOMEM;
    assert(s->S_slot % 32 == 0 && be->info.slot_bytes % 4 == 0); /* bulk copies want their alignment */
    s->S = (float *)(void *)pool;
    s->keys = pool + n * s->S_slot * 4;
    s->values = (unsigned char *)s->keys + n * s->keys_slot * w;
    s->conv = (unsigned char *)s->values + n * s->values_slot * w;
    s->deferred = (float *)(void *)((unsigned char *)s->conv + n * s->conv_slot * a);
    if (cuda_state_defers(s, UINT32_MAX)) {
        if (!(s->n_deferred = cuda_take(be, n_slots * sizeof *s->n_deferred, "the slot pool", err)))
            return err ? err->code : ROD_ENOMEM;
        cudaMemsetAsync(s->n_deferred, 0, n_slots * sizeof *s->n_deferred, be->stream);
    }
    return cuda_check(cudaMemsetAsync(pool, 0, n * be->info.slot_bytes, be->stream), "clearing the slot pool", err);
}

static void backend_cuda_close(struct backend *be) {
    if (!be) return;
    cudaSetDevice(be->device);
    if (be->stream) cudaStreamSynchronize(be->stream);
    cuda_device_part_close(be);
    cuda_graphs_close(&be->own_graphs);
    cuda_sample_close(be);
    cuda_one_launch_close(be);
    cuda_library_close(be);
    cuda_state_close(be);
    cuda_workspaces_close(be);
    if (be->stream) cudaStreamDestroy(be->stream);
    free(be->layers), free(be);
}

static int refuse_model(const struct model_dims *d, struct rod_error *err) {
    if (d->M > 128)
        return rod_fail(err, ROD_EUNSUPPORTED, "The CUDA backend runs mem_size up to 128; this model has %u.", d->M);
    if (d->K > 8)
        return rod_fail(err, ROD_EUNSUPPORTED, "The CUDA backend runs d_conv up to 8; this model has %u.", d->K);
    if (d->D > 8192)
        return rod_fail(err, ROD_EUNSUPPORTED, "The CUDA backend runs d_model up to 8192; this model has %u.", d->D);
    if (d->R > 128)
        return rod_fail(err, ROD_EUNSUPPORTED,
                        "The CUDA backend runs input_gate_low_rank up to 128; this model has %u.", d->R);
    if (d->plus && (d->P % 8 || d->P > 256))
        return rod_fail(err, ROD_EUNSUPPORTED,
                        "The CUDA backend runs head sizes that are multiples of 8 up to 256; this model has %u.", d->P);
    return 0;
}

static int choose_dtype(const struct model *model, const char *precision, enum cuda_dtype *dtype,
                        struct rod_error *err) {
    if (!precision || !strcmp(precision, "auto")) /* fp32 weights become bf16 on a GPU */
        *dtype = model->weight_dtype == DTYPE_F16 ? CUDA_F16 : CUDA_BF16;
    else if (!strcmp(precision, "fp32"))
        *dtype = CUDA_F32;
    else if (!strcmp(precision, "fp16"))
        *dtype = CUDA_F16;
    else if (!strcmp(precision, "bf16"))
        *dtype = CUDA_BF16;
    else
        return rod_fail(err, ROD_EINVALID, "precision is '%s', it must be auto, fp32, bf16 or fp16.", precision);
    return 0;
}

static const struct backend_ops backend_cuda;

static int choose_formats(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    static const enum dtype act[] = {[CUDA_F32] = DTYPE_F32, [CUDA_BF16] = DTYPE_BF16, [CUDA_F16] = DTYPE_F16};
    struct state_formats there = {.device = "a GPU", .windows = 1u << DTYPE_FP8};
    be->state = state_layout_of(&be->d, act[be->shape.dtype]);
    set_shape(be, be->shape.dtype);
    if (be->d.plus && !cuda_window8_possible(&be->shape)) {
        there.device = be->shape.dtype == CUDA_F32 ? "a GPU in fp32" : "a GPU for heads of this model's form";
        there.windows = 0;
    }
    return state_formats_choose(&there, config, &be->state, err);
}

static int open_parts(struct backend *be, const struct model *model, const struct backend_config *config,
                      struct rod_error *err) {
    const struct model_dims *d = &be->d;
    int rc = cuda_check(cudaSetDevice(be->device), "choosing the device", err);
    if (!rc) rc = cuda_check(cudaStreamCreateWithFlags(&be->stream, cudaStreamNonBlocking), "making a stream", err);
    if (!rc) rc = choose_dtype(model, config->precision, &be->shape.dtype, err);
    const bool fp32 = be->shape.dtype == CUDA_F32;
    if (!rc) rc = weight_quant_check(model, fp32 ? 0 : backend_cuda.formats, fp32 ? "a GPU in fp32" : "a GPU", err);
    if (!rc) rc = choose_formats(be, config, err);
    if (rc) return rc;
    set_shape(be, be->shape.dtype);
    be->fused = cuda_fused_possible(&be->shape);
    be->info.chunk_tok = CUDA_CHUNK;
    be->info.deferred_tok = CUDA_DEFERRED;
    while (be->info.defer_rows < 64 && !cuda_state_defers(&be->shape, be->info.defer_rows + 1)) be->info.defer_rows++;
    if (!slots_fit(be, config->n_slots, err)) return err ? err->code : ROD_ENOMEM;
    const uint32_t least = (config->n_slots ? config->n_slots : 1) + CUDA_CHUNK;
    be->info.max_batch_tok = config->max_batch_tok ? config->max_batch_tok : least > MAX_BATCH ? least : MAX_BATCH;
    if (be->info.max_batch_tok < least)
        return rod_fail_at(err, ROD_EINVALID, "max_batch_tokens",
                           "max_batch_tokens %u is below slots + %d = %u; a full step must have room for a prompt.",
                           be->info.max_batch_tok, CUDA_CHUNK, least);
    const uint32_t outs = config->max_out ? config->max_out : config->n_slots > MAX_OUT ? config->n_slots : MAX_OUT;
    be->info.max_out = outs < be->info.max_batch_tok ? outs : be->info.max_batch_tok;
    if (d->plus && !cuda_window_prepare(&be->shape))
        return rod_fail(err, ROD_EUNSUPPORTED, "Heads of %u dims need more shared memory than this GPU has.", d->P);
    be->decode_window = d->plus && cuda_decode_window_possible(&be->shape);
    be->prompt_window = d->plus && cuda_prompt_window_possible(&be->shape);
    be->scan = cuda_scan_prepare(&be->shape);
    if (!rc) rc = cuda_load(be, model, config, err);
    if (!rc) choose_rows(be, config);
    if (!rc) rc = cuda_workspaces_open(be, config, err);
    if (!rc) rc = cuda_library_open(be, config, err);
    if (!rc) rc = cuda_device_part_open(be, config, err);
    if (!rc) rc = make_slots(be, config, err);
    if (!rc) rc = cuda_sample_open(be, cuda_logit_rows(be, config), err);
    if (!rc) rc = cuda_state_open(be, err);
    if (!rc) rc = cuda_check(cudaStreamSynchronize(be->stream), "setting up", err);
    if (!rc) rc = cuda_one_launch_open(be, config, err);
    if (!rc) rc = cuda_forward_capture(be, err);
    if (!rc) rc = cuda_device_part_capture(be, err);
    return rc;
}

/* "cuda:N", or the first GPU that has what the kernels need (devices.cu). */
static int choose_device(const char *name, int *device, char *text, size_t text_bytes, struct rod_error *err) {
    const bool any = !name || strncmp(name, "cuda:", 5) != 0;
    struct cudaDeviceProp prop;
    int n = 0, rc = cuda_check(cudaGetDeviceCount(&n), "looking for devices", err);
    if (rc) return rc;
    *device = any ? 0 : (int)strtol(name + 5, NULL, 10);
    if (*device >= n) return rod_fail(err, ROD_EINVALID, "device %s: there are %d GPUs", any ? "cuda" : name, n);
    for (;; ++*device) {
        rc = cuda_check(cudaGetDeviceProperties(&prop, *device), "looking at a device", err);
        if (rc) return rc;
        if (prop.major >= 8) break;
        if (!any || *device + 1 == n)
            return rod_fail(err, ROD_EUNSUPPORTED, "cuda:%d (%.40s) has compute capability %d.%d, 8.0 is needed",
                            *device, prop.name, prop.major, prop.minor);
    }
    snprintf(text, text_bytes, "cuda:%d (%.40s)", *device, prop.name);
    return 0;
}

static int backend_cuda_open(const struct model *model, const struct backend_config *config, struct backend **out,
                             struct rod_error *err) {
    struct backend *be = calloc(1, sizeof *be);
    if (be) be->allocations = calloc(CUDA_MOST_ALLOCATIONS, sizeof *be->allocations);
    if (be) be->layers = calloc(model->dims.L, sizeof *be->layers);
    if (!be || !be->allocations || !be->layers) {
        backend_cuda_close(be);
        return rod_fail_no_memory(err);
    }
    be->d = model->dims;
    be->graphs = &be->own_graphs;
    be->fault_step = config->fault_step;
    be->n_drafts = config->no_drafts ? 0 : CUDA_DRAFTS;
    int rc = choose_device(config->device, &be->device, be->info.device, sizeof be->info.device, err);
    if (!rc) rc = refuse_model(&be->d, err);
    if (!rc) rc = open_parts(be, model, config, err);
    if (rc) {
        backend_cuda_close(be);
        return rc;
    }
    assert(be->info.n_slots + CUDA_CHUNK <= be->info.max_batch_tok || !config->n_slots);
    *out = be;
    return 0;
}

static const struct backend_info *backend_cuda_info(const struct backend *be) { return &be->info; }

static void backend_cuda_slot_zero(struct backend *be,
                                   uint32_t slot) { /* an error shows in the next forward: CUDA's are sticky */
    const struct cuda_shape *s = &be->shape;
    assert(slot < be->info.n_slots && !cuda_state_busy(be, slot));
    be->slot_ops[slot] = ++be->n_ops;
    cudaSetDevice(be->device); /* of this thread, here and below */
    cuda_state_forget_deferred(be, slot, be->stream);
    cudaMemsetAsync(s->S + slot * s->S_slot, 0, s->S_slot * 4, be->stream);
    cudaMemsetAsync((unsigned char *)s->conv + slot * s->conv_slot * cuda_act_bytes(be), 0,
                    s->conv_slot * cuda_act_bytes(be), be->stream);
}

/* Copies what is filled of the window's rings. */
static void backend_cuda_slot_copy(struct backend *be, uint32_t from, uint32_t to, uint64_t pos) {
    const struct cuda_shape *s = &be->shape;
    const size_t a = cuda_act_bytes(be), w = cuda_window_bytes(be),
                 n_keys = pos < s->ring_keys ? (size_t)pos : s->ring_keys;
    assert(from < be->info.n_slots && to < be->info.n_slots && from != to);
    assert(!cuda_state_busy(be, from) && !cuda_state_busy(be, to));
    be->slot_ops[from] = be->slot_ops[to] = ++be->n_ops;
    cudaSetDevice(be->device);
    cuda_state_write_back_slot(be, from, be->stream);
    cuda_state_forget_deferred(be, to, be->stream);
    cudaMemcpyAsync(s->S + to * s->S_slot, s->S + from * s->S_slot, s->S_slot * 4, cudaMemcpyDeviceToDevice,
                    be->stream);
    cudaMemcpyAsync((unsigned char *)s->conv + to * s->conv_slot * a,
                    (unsigned char *)s->conv + from * s->conv_slot * a, s->conv_slot * a, cudaMemcpyDeviceToDevice,
                    be->stream);
    if (n_keys == 0) return;
    cudaMemcpy2DAsync((unsigned char *)s->keys + to * s->keys_slot * w, s->keys_layer * w,
                      (unsigned char *)s->keys + from * s->keys_slot * w, s->keys_layer * w, n_keys * s->Hk * s->P * w,
                      be->d.L, cudaMemcpyDeviceToDevice, be->stream);
    cudaMemcpy2DAsync((unsigned char *)s->values + to * s->values_slot * w, s->values_layer * w,
                      (unsigned char *)s->values + from * s->values_slot * w, s->values_layer * w,
                      n_keys * s->Hv * s->P * w, be->d.L, cudaMemcpyDeviceToDevice, be->stream);
}

static int backend_cuda_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                                const float **logits, struct rod_error *err) {
    const int rc = cuda_device_part_switch(be, err);
    return rc ? rc : cuda_step_forward(be, segs, n_segs, logits, err);
}

/* The best of some runs of what `run` enqueues, after two that warm up; in seconds. */
static int best_seconds(struct backend *be, void (*run)(struct backend *be, void *arg), void *arg, const char *doing,
                        double *seconds, struct rod_error *err) {
    enum { RUNS = 12, WARM = 2 };
    cudaEvent_t begin = NULL, end = NULL;
    float best = 1e30f;
    int rc = cuda_check(cudaEventCreate(&begin), doing, err);
    if (!rc) rc = cuda_check(cudaEventCreate(&end), doing, err);
    for (int i = 0; !rc && i < RUNS; i++) {
        float ms = 0;
        cudaEventRecord(begin, be->stream);
        run(be, arg);
        cudaEventRecord(end, be->stream);
        rc = cuda_check(cudaEventSynchronize(end), doing, err);
        if (!rc) rc = cuda_check(cudaEventElapsedTime(&ms, begin, end), doing, err);
        if (i >= WARM && ms < best) best = ms;
    }
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    *seconds = (double)best * 1e-3;
    return rc;
}
static void run_copy(struct backend *be, void *buffers) {
    void **p = buffers;
    cudaMemcpyAsync(p[1], p[0], (size_t)1 << 31, cudaMemcpyDeviceToDevice, be->stream);
}
static void run_product(struct backend *be, void *rows) {
    const struct cuda_normed x = {be->act_d, NULL, 0, 0};
    const struct cuda_matrix *w = &be->layers[0].fc;
    const uint32_t n = *(const uint32_t *)rows;
    if (cuda_library_has(be, w))
        cuda_library_product(be, w, be->act_d, n, be->az);
    else if (be->fused)
        k_prompt_linear(w, &x, n, be->az, w->rows, be->stream);
    else
        k_linear(&(struct cuda_product){.w = w, .x = be->act_d, .y = be->az, .ldy = w->rows}, n, be->stream);
}
/* Bandwidth: copying 2 GiB within the device, read and write counted. Products: a large one by cuBLASLt; where it is
 * not, or in fp32, the first layer's W_fc of as many rows as a step may have, by the kernel that prompts take. Operands
 * hold what the weights do, so nothing is zero. */
static int backend_cuda_ceilings(struct backend *be, double bytes, double *bytes_per_s, double *flop_per_s,
                                 struct rod_error *err) {
    (void)bytes;
    cudaSetDevice(be->device);
    const size_t n = (size_t)1 << 31;
    const struct cuda_matrix *w = &be->layers[0].fc;
    uint32_t rows = be->info.max_batch_tok;
    void *buffers[2] = {NULL, NULL};
    double seconds = 0;
    int rc = cuda_check(cudaMalloc(&buffers[0], n), "taking memory to measure bandwidth", err);
    if (!rc) rc = cuda_check(cudaMalloc(&buffers[1], n), "taking memory to measure bandwidth", err);
    if (!rc) rc = cuda_check(cudaMemsetAsync(buffers[0], 0x3c, n, be->stream), "measuring bandwidth", err);
    if (!rc) rc = best_seconds(be, run_copy, buffers, "measuring bandwidth", &seconds, err);
    *bytes_per_s = 2.0 * (double)n / seconds;
    cudaFree(buffers[0]), cudaFree(buffers[1]);
    if (rc) return rc;
    double flop = 0;
    struct cuda_library *rate = cuda_rate_open(be, &flop);
    if (rate) {
        rc = best_seconds(be, cuda_rate_run, rate, "measuring products", &seconds, err);
        *flop_per_s = flop / seconds;
        cuda_rate_close(rate);
        return rc;
    }
    if (be->fused) { /* whose activations have no padding */
        const size_t all = cuda_activation_bytes(rows, be->shape.D, be->shape.dtype),
                     have = cuda_matrix_bytes(w->rows, w->cols, w->dtype);
        for (size_t at = 0; at < all; at += have)
            cudaMemcpyAsync((char *)be->act_d + at, w->data, all - at < have ? all - at : have,
                            cudaMemcpyDeviceToDevice, be->stream);
    }
    rc = best_seconds(be, run_product, &rows, "measuring products", &seconds, err);
    *flop_per_s = 2.0 * rows * w->rows * w->cols / seconds;
    return rc;
}

static int compare_ms(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int backend_cuda_copy_seconds(struct backend *be, void *host, size_t bytes, double *out_s, double *in_s,
                                     struct rod_error *err) {
    enum { TIMES = 9 };
    const char *doing = "measuring the bus";
    void *memory = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    float ms[2][TIMES];
    cudaSetDevice(be->device);
    int rc = cuda_check(cudaMalloc(&memory, bytes), "taking memory to measure the bus", err);
    if (!rc) rc = cuda_check(cudaEventCreate(&begin), doing, err);
    if (!rc) rc = cuda_check(cudaEventCreate(&end), doing, err);
    for (int i = 0; !rc && i < 2 * TIMES; i++) {
        const bool in = i % 2 == 0; /* first, so that what comes out is no zeros */
        cudaEventRecord(begin, be->stream);
        cudaMemcpyAsync(in ? memory : host, in ? host : memory, bytes,
                        in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, be->stream);
        cudaEventRecord(end, be->stream);
        rc = cuda_check(cudaEventSynchronize(end), doing, err);
        if (!rc) rc = cuda_check(cudaEventElapsedTime(&ms[in][i / 2], begin, end), doing, err);
    }
    for (int in = 0; !rc && in < 2; in++) qsort(ms[in], TIMES, sizeof **ms, compare_ms);
    if (!rc) *out_s = (double)ms[0][TIMES / 2] * 1e-3, *in_s = (double)ms[1][TIMES / 2] * 1e-3;
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    cudaFree(memory);
    return rc;
}

static const struct backend_ops backend_cuda = {
    .name = "cuda",
    .formats = 1u << WEIGHT_FP8 | 1u << WEIGHT_INT8 | 1u << WEIGHT_INT4,
    .open = backend_cuda_open,
    .close = backend_cuda_close,
    .info = backend_cuda_info,
    .slot_zero = backend_cuda_slot_zero,
    .slot_copy = backend_cuda_slot_copy,
    .state_bytes = cuda_state_bytes,
    .slot_save = cuda_state_save,
    .slot_load = cuda_state_load,
    .slot_save_begin = cuda_state_save_begin,
    .slot_load_begin = cuda_state_load_begin,
    .slot_moving = cuda_state_moving,
    .on_moved = cuda_state_on_moved,
    .host_take = cuda_state_host_take,
    .host_give = cuda_state_host_give,
    .forward = backend_cuda_forward,
    .slot_accept = cuda_state_accept,
    .slot_sampling = cuda_sample_slot,
    .slot_mask = cuda_sample_mask,
    .launch = cuda_sample_launch,
    .collect = cuda_sample_collect,
    .flight_begin = cuda_device_part_begin,
    .flight_ended = cuda_device_part_ended,
    .ceilings = backend_cuda_ceilings,
    .copy_seconds = backend_cuda_copy_seconds,
};

extern const struct backend_plugin rodimus_cuda_plugin;
__attribute__((visibility("default")))
const struct backend_plugin rodimus_cuda_plugin = {cuda_devices, cuda_library_note, &backend_cuda};
