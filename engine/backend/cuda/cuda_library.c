/* cuda_library.c - products of prompts by cuBLASLt, where there is no kernel of ours for them (dispatch.h). The library
 * is looked for when it is wanted and never linked; a machine without it has the product of any step.
 *
 * One algorithm a shape of matrix, the heuristic's for HEURISTIC_ROWS rows, without partial sums and workspace, is
 * that of every number of rows: so a row's sums have one order. That is checked when the backend opens; of a shape
 * whose algorithms all break it, or have none, products stay ours. Nothing is timed.
 */
#include "cuda_backend.h"
#include "cuda_lt.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
static_assert((int)LT_OP_T == CUBLAS_OP_T && (int)LT_COMPUTE_32F == CUBLAS_COMPUTE_32F &&
                  (int)LT_COMPUTE_32F_PEDANTIC == CUBLAS_COMPUTE_32F_PEDANTIC && (int)LT_R_32F == CUDA_R_32F &&
                  (int)LT_R_16F == CUDA_R_16F && (int)LT_R_16BF == CUDA_R_16BF &&
                  (int)LT_DESC_TRANSA == CUBLASLT_MATMUL_DESC_TRANSA &&
                  (int)LT_LAYOUT_COLS == CUBLASLT_MATRIX_LAYOUT_COLS &&
                  (int)LT_PREF_WORKSPACE == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
                  (int)LT_PREF_REDUCTIONS == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
                  sizeof(struct lt_algo) == sizeof(cublasLtMatmulAlgo_t) &&
                  sizeof(struct lt_result) == sizeof(cublasLtMatmulHeuristicResult_t),
              "the library's own header");
#endif

#if CUDART_VERSION >= 13000 && CUDART_VERSION < 14000
#define LT_MAJOR 13
#define LT_NAME  "libcublasLt.so.13"
#else
#define LT_MAJOR 12
#define LT_NAME  "libcublasLt.so.12"
#endif

static bool load(struct lt_api *api, char *note, size_t note_bytes) {
    static const char *const names[] = {LT_NAME, "/usr/local/cuda/lib64/" LT_NAME, NULL};
    return cuda_lt_load(api, names, LT_MAJOR, note, note_bytes);
}

void cuda_library_note(char *note, size_t note_bytes) {
    struct lt_api api;
    load(&api, note, note_bytes);
}

/* ---- shapes ---- */

enum { MOST_SHAPES = 8, CANDIDATES = 8, HEURISTIC_ROWS = 512 };
struct shape {
    uint32_t O, K; /* K padded */
    void *desc, *w, *x, *y;
    struct lt_algo algo;
};
struct cuda_library {
    struct lt_api api;
    void *handle;
    void *weights, *rows; /* plain operands of 16 bits, of the product that runs */
    uint32_t n;
    struct shape shape[MOST_SHAPES];
};

static const struct shape *shape_of(const struct cuda_library *lib, const struct cuda_matrix *w) {
    for (uint32_t i = 0; i < lib->n; i++)
        if (lib->shape[i].O == w->rows && lib->shape[i].K == cuda_pad16(w->cols)) return &lib->shape[i];
    return NULL;
}
bool cuda_library_has(const struct backend *be, const struct cuda_matrix *w) {
    return be->library && shape_of(be->library, w);
}

static void drop_shape(const struct cuda_library *lib, struct shape *s) {
    if (s->desc) lib->api.desc_destroy(s->desc);
    if (s->w) lib->api.layout_destroy(s->w);
    if (s->x) lib->api.layout_destroy(s->x);
    if (s->y) lib->api.layout_destroy(s->y);
    *s = (struct shape){0};
}
static void close_library(struct cuda_library *lib) {
    for (uint32_t i = 0; i < lib->n; i++) drop_shape(lib, &lib->shape[i]);
    if (lib->handle) lib->api.destroy(lib->handle);
    free(lib);
}

/* Its column-major terms: y [O x n] = W [K x O] transposed times x [K x n], all rows of ours its columns. */
static bool make_shape(const struct cuda_library *lib, enum cuda_dtype dtype, uint32_t O, uint32_t K, struct shape *s) {
    const struct lt_api *lt = &lib->api;
    const int transposed = LT_OP_T, type = dtype == CUDA_F32 ? LT_R_32F : dtype == CUDA_F16 ? LT_R_16F : LT_R_16BF;
    *s = (struct shape){.O = O, .K = K};
    return !lt->desc_create(&s->desc, dtype == CUDA_F32 ? LT_COMPUTE_32F_PEDANTIC : LT_COMPUTE_32F, LT_R_32F) &&
           !lt->desc_set(s->desc, LT_DESC_TRANSA, &transposed, sizeof transposed) &&
           !lt->layout_create(&s->w, type, K, O, K) && !lt->layout_create(&s->x, type, K, HEURISTIC_ROWS, K) &&
           !lt->layout_create(&s->y, LT_R_32F, O, HEURISTIC_ROWS, O);
}

static int multiply(const struct cuda_library *lib, const struct shape *s, const void *w, const void *x, uint32_t n,
                    float *y, void *stream) {
    const float one = 1, zero = 0;
    const uint64_t cols = n;
    int rc = lib->api.layout_set(s->x, LT_LAYOUT_COLS, &cols, sizeof cols);
    if (!rc) rc = lib->api.layout_set(s->y, LT_LAYOUT_COLS, &cols, sizeof cols);
    if (!rc)
        rc = lib->api.matmul(lib->handle, s->desc, &one, w, s->w, x, s->x, &zero, y, s->y, y, s->y, &s->algo, NULL, 0,
                             stream);
    return rc;
}

void cuda_library_product(struct backend *be, const struct cuda_matrix *w, const void *x, uint32_t n_rows, float *y) {
    struct cuda_library *lib = be->library;
    const struct shape *s = shape_of(lib, w);
    const void *rows = x, *weights = w->data;
    assert(s);
    if (w->dtype != CUDA_F32) {
        k_plain_weights(w, lib->weights, be->stream);
        k_plain_rows(x, n_rows, w->cols, lib->rows, be->stream);
        weights = lib->weights, rows = lib->rows;
    }
    if (multiply(lib, s, weights, rows, n_rows, y, be->stream)) be->library_failed = true;
}

/* ---- the law ---- */

/* What rows are checked with: numbers of the first layer's W_fc in a row, so none is special. */
struct trial {
    const void *x;
    size_t n_numbers, bytes; /* bytes: of a number */
    uint32_t most;
    float *all, *some;           /* on the device: [most][O], [TRIAL_ROWS][O] */
    float *host_all, *host_some; /* [TRIAL_ROWS][O] */
};
enum { TRIAL_ROWS = 640 };

/* Whether n rows from r on have the bits that they have among all. Rows begin on 256 bytes. */
static bool same_alone(struct backend *be, const struct shape *s, const void *w, const struct trial *t, uint32_t n,
                       uint32_t r) {
    const size_t row = (size_t)s->O * sizeof(float);
    cudaMemcpyAsync(t->host_all, t->all + (size_t)r * s->O, n * row, cudaMemcpyDeviceToHost, be->stream);
    cudaMemsetAsync(t->some, 0xff, n * row, be->stream);
    if (multiply(be->library, s, w, (const char *)t->x + r * s->K * t->bytes, n, t->some, be->stream)) return false;
    cudaMemcpyAsync(t->host_some, t->some, n * row, cudaMemcpyDeviceToHost, be->stream);
    return cudaStreamSynchronize(be->stream) == cudaSuccess && memcmp(t->host_some, t->host_all, n * row) == 0;
}

/* Numbers of rows that fill tiles and do not, among the first rows and the last. */
static bool keeps_law(struct backend *be, const struct shape *s, const void *w, const struct trial *t) {
    static const uint32_t counts[] = {1, 2, 8, 9, 64, 72, 200, 512, TRIAL_ROWS}, firsts[] = {0, 8, 64, 120};
    const size_t fit = t->n_numbers / s->K;
    const uint32_t most = fit < t->most ? (uint32_t)fit : t->most;
    if (!most || multiply(be->library, s, w, t->x, most, t->all, be->stream)) return false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most; i++) {
        const uint32_t n = counts[i];
        for (size_t j = 0; j < sizeof firsts / sizeof *firsts; j++)
            if (firsts[j] + n <= most && !same_alone(be, s, w, t, n, firsts[j])) return false;
        if (!same_alone(be, s, w, t, n, (most - n) / 8 * 8)) return false;
    }
    return true;
}

/* The heuristic's algorithms without partial sums and workspace, the fastest first; returned: how many. */
static int candidates_of(const struct cuda_library *lib, const struct shape *s, struct lt_algo algo[CANDIDATES]) {
    const struct lt_api *lt = &lib->api;
    const size_t no_workspace = 0;
    const uint32_t no_reductions = 0;
    struct lt_result results[CANDIDATES];
    void *pref = NULL;
    int n = 0, n_algos = 0;
    if (!lt->pref_create(&pref) && !lt->pref_set(pref, LT_PREF_WORKSPACE, &no_workspace, sizeof no_workspace) &&
        !lt->pref_set(pref, LT_PREF_REDUCTIONS, &no_reductions, sizeof no_reductions) &&
        lt->heuristic(lib->handle, s->desc, s->w, s->x, s->y, s->y, pref, CANDIDATES, results, &n))
        n = 0;
    for (int i = 0; i < n; i++)
        if (!results[i].state && !results[i].workspace) algo[n_algos++] = results[i].algo;
    if (pref) lt->pref_destroy(pref);
    return n_algos;
}
/* The first algorithm that keeps the law. */
static bool choose(struct backend *be, struct shape *s, const void *w, const struct trial *t) {
    struct lt_algo algo[CANDIDATES];
    const int n = candidates_of(be->library, s, algo);
    for (int i = 0; i < n; i++) {
        s->algo = algo[i];
        if (keeps_law(be, s, w, t)) return true;
    }
    return false;
}

/* ---- opening ---- */

/* The matrices of a layer that prompts multiply. */
static uint32_t matrices_of(const struct backend *be, const struct cuda_matrix *m[MOST_SHAPES]) {
    const struct cuda_layer *w = &be->layers[0];
    const struct cuda_matrix *all[] = {&w->fc, &w->in, &w->c0, &w->out, &w->qkv, &w->ao, &w->f1, &w->f2};
    const uint32_t n = be->d.plus ? 8 : 4;
    for (uint32_t i = 0; i < n; i++) m[i] = all[i];
    return n;
}

static bool take_trial(struct backend *be, struct trial *t, size_t most_O) {
    const struct cuda_matrix *fc = &be->layers[0].fc;
    const bool fp32 = fc->dtype == CUDA_F32;
    t->bytes = fp32 ? 4 : 2;
    t->most = be->info.max_batch_tok;
    t->n_numbers = (size_t)cuda_pad16(fc->rows) * cuda_pad16(fc->cols);
    t->x = fc->data;
    if (!fp32) { /* the rows' workspace has them */
        const size_t room = be->library_rows_bytes / 2;
        if (t->n_numbers > room) t->n_numbers = room;
        k_plain_weights(fc, be->library->weights, be->stream);
        cudaMemcpyAsync(be->library->rows, be->library->weights, t->n_numbers * 2, cudaMemcpyDeviceToDevice,
                        be->stream);
        t->x = be->library->rows;
    }
    t->host_all = malloc(TRIAL_ROWS * most_O * sizeof(float));
    t->host_some = malloc(TRIAL_ROWS * most_O * sizeof(float));
    return t->host_all && t->host_some && !cudaMalloc((void **)&t->all, t->most * most_O * sizeof(float)) &&
           !cudaMalloc((void **)&t->some, TRIAL_ROWS * most_O * sizeof(float));
}

/* Shapes that the library may have; false: memory is out. */
static bool try_shapes(struct backend *be, uint32_t *n_refused) {
    const struct cuda_matrix *m[MOST_SHAPES];
    struct cuda_library *lib = be->library;
    struct trial t = {0};
    const uint32_t n = matrices_of(be, m);
    size_t most_O = 0;
    for (uint32_t i = 0; i < n; i++)
        if (m[i]->rows > most_O) most_O = m[i]->rows;
    const bool ok = take_trial(be, &t, most_O);
    for (uint32_t i = 0; ok && i < n; i++) {
        struct shape *s = &lib->shape[lib->n];
        if (shape_of(lib, m[i])) continue;
        if (m[i]->dtype != CUDA_F32) k_plain_weights(m[i], lib->weights, be->stream);
        if (make_shape(lib, be->shape.dtype, m[i]->rows, cuda_pad16(m[i]->cols), s) &&
            choose(be, s, m[i]->dtype == CUDA_F32 ? m[i]->data : lib->weights, &t))
            lib->n++;
        else
            drop_shape(lib, s), ++*n_refused;
    }
    cudaStreamSynchronize(be->stream);
    cudaFree(t.all), cudaFree(t.some), free(t.host_all), free(t.host_some);
    cudaGetLastError(); /* an algorithm that the device refused is no fault of what follows */
    return ok;
}

static int take_operands(struct backend *be, struct rod_error *err) {
    const struct cuda_matrix *m[MOST_SHAPES];
    size_t weights = 0, cols = 0;
    const uint32_t n = matrices_of(be, m);
    if (be->shape.dtype == CUDA_F32) return 0;
    for (uint32_t i = 0; i < n; i++) {
        const size_t bytes = cuda_matrix_bytes(m[i]->rows, m[i]->cols, m[i]->dtype), k = cuda_pad16(m[i]->cols);
        if (bytes > weights) weights = bytes;
        if (k > cols) cols = k;
    }
    be->library_rows_bytes = be->info.max_batch_tok * cols * 2;
    be->library->weights = cuda_take(be, weights, "a workspace", err);
    if (be->library->weights) be->library->rows = cuda_take(be, be->library_rows_bytes, "a workspace", err);
    return be->library->rows ? 0 : err ? err->code : ROD_ENOMEM;
}

static void say(const struct backend_config *config, const char *note, const char *more) {
    char line[192];
    snprintf(line, sizeof line, "products of prompts: %s%s", note, more);
    if (config->log) config->log(config->log_arg, 1, line);
}

int cuda_library_open(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    const char *asked = config->prompt_products ? config->prompt_products : "auto";
    const bool forced = !strcmp(asked, "library"), off = !strcmp(asked, "own");
    char note[96], more[64] = "";
    uint32_t n_refused = 0;
    if (!forced && !off && strcmp(asked, "auto") != 0)
        return rod_fail_at(err, ROD_EINVALID, "prompt_products",
                           "prompt_products is '%s', it must be auto, own or library.", asked);
    if (off || !cuda_library_wanted(&be->shape, forced)) return 0;
    struct cuda_library *lib = be->library = calloc(1, sizeof *lib);
    if (!lib) return rod_fail_no_memory(err);
    int rc = 0;
    const bool loaded = load(&lib->api, note, sizeof note) && !lib->api.create(&lib->handle);
    if (loaded) rc = take_operands(be, forced ? err : NULL);
    if (rc && !forced) rc = 0, be->library->rows = NULL; /* without the workspaces our kernels do */
    const bool has_room = be->shape.dtype == CUDA_F32 || lib->rows;
    const bool tried = !rc && loaded && has_room && try_shapes(be, &n_refused);
    if (!rc && tried && lib->n) {
        if (n_refused) snprintf(more, sizeof more, "; %u shapes have no algorithm that keeps rows apart", n_refused);
        say(config, note, more);
        snprintf(be->info.products, sizeof be->info.products, "%s", note);
        return 0;
    }
    if (!rc && forced)
        rc = rod_fail_at(err, ROD_EUNSUPPORTED, "prompt_products", "prompt_products library: %s does not run here.",
                         note);
    if (!rc)
        say(config, note,
            !loaded ? ": by the kernels of any step"
            : tried ? " keeps rows apart by no algorithm: by the kernels of any step"
                    : " found no memory to be tried: by the kernels of any step");
    cuda_library_close(be);
    return rc;
}

void cuda_library_close(struct backend *be) {
    struct cuda_library *lib = be->library;
    if (!lib) return;
    close_library(lib);
    be->library = NULL;
}

/* ---- its rate ---- */

enum { RATE_SIZE = 8192 };
/* Fills two operands with the embedding's 16 bits, over and over: no value is zero. */
static bool fill_rate(struct backend *be, void *operands) {
    const struct cuda_matrix *w = &be->embed;
    const size_t all = (size_t)2 * RATE_SIZE * RATE_SIZE * 2, have = cuda_matrix_bytes(w->rows, w->cols, w->dtype);
    bool ok = w->format == CUDA_STORED;
    for (size_t at = 0; ok && at < all; at += have)
        ok = !cudaMemcpyAsync((char *)operands + at, w->data, all - at < have ? all - at : have,
                              cudaMemcpyDeviceToDevice, be->stream);
    return ok;
}
/* What it multiplies is in lib->weights: both operands; lib->rows: the result. */
struct cuda_library *cuda_rate_open(struct backend *be, double *flop) {
    char note[96];
    struct lt_algo algo[CANDIDATES];
    struct cuda_library *lib = be->shape.dtype == CUDA_F32 ? NULL : calloc(1, sizeof *lib);
    if (!lib) return NULL;
    const bool loaded = load(&lib->api, note, sizeof note) && !lib->api.create(&lib->handle);
    struct shape *s = &lib->shape[0];
    if (loaded && make_shape(lib, be->shape.dtype, RATE_SIZE, RATE_SIZE, s) && ++lib->n &&
        !cudaMalloc(&lib->weights, (size_t)2 * RATE_SIZE * RATE_SIZE * 2) &&
        !cudaMalloc(&lib->rows, (size_t)RATE_SIZE * RATE_SIZE * sizeof(float)) && fill_rate(be, lib->weights) &&
        candidates_of(lib, s, algo) > 0) {
        s->algo = algo[0];
        *flop = 2.0 * RATE_SIZE * RATE_SIZE * RATE_SIZE;
        if (!multiply(lib, s, lib->weights, (char *)lib->weights + (size_t)RATE_SIZE * RATE_SIZE * 2, RATE_SIZE,
                      lib->rows, be->stream) &&
            !cudaStreamSynchronize(be->stream))
            return lib;
    }
    cuda_rate_close(lib);
    cudaGetLastError();
    return NULL;
}
void cuda_rate_run(struct backend *be, void *rate) {
    struct cuda_library *lib = rate;
    multiply(lib, &lib->shape[0], lib->weights, (char *)lib->weights + (size_t)RATE_SIZE * RATE_SIZE * 2, RATE_SIZE,
             lib->rows, be->stream);
}
void cuda_rate_close(struct cuda_library *lib) {
    cudaFree(lib->weights), cudaFree(lib->rows);
    close_library(lib);
}
