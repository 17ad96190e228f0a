/* gpu.h - for tests of single kernels: memory on the GPU and shared memory that are poisoned before use, random inputs
 * from a printed seed, shapes, comparison with both values.
 *
 * Environment: RODIMUS_TEST_SEED; RODIMUS_TEST_SHAPES = most shapes a test runs (all without it); RODIMUS_TEST_POISON=0
 * leaves memory as it comes, so that compute-sanitizer's initcheck sees what was never written.
 * Who owns what: everything that gpu_* and host_* give lives until gpu_round_end. Threads: one.
 */
#ifndef GPU_H
#define GPU_H

#include "engine/base/half.h"
#include "engine/model/model_internal.h"
#include "kernels/kernels.h"
#include "under_test.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { GPU_MOST = 4096 };
static struct {
    const struct under_test *k;
    void *stream;
    uint64_t seed, random;
    uint32_t n_shapes;   /* 0 = all */
    bool poison, breaks; /* breaks: this test breaks rows (broken.h) */
    const char *running; /* the kernel that came last */
    void *device[GPU_MOST], *host[GPU_MOST];
    uint32_t n_device, n_host;
    char what[256]; /* the round's shape, for messages */
} gpu;

static inline void gpu_expect(const char *error, const char *doing) {
    if (error) fail_msg("%s (%s, seed %llu): %s", doing, gpu.what, (unsigned long long)gpu.seed, error);
}
/* Launches a kernel and waits for it. Under compute-sanitizer (RODIMUS_TEST_SHAPES) shared memory is as it comes. */
static inline void gpu_fill_blocks(void) {
    if (gpu.poison && !gpu.n_shapes) gpu_expect(gpu.k->fill_blocks(gpu.stream), "poisoning shared memory");
}
#define GPU_RUN(kernel, ...)                                                                                           \
    (gpu_fill_blocks(), gpu.running = #kernel, gpu.k->kernel(__VA_ARGS__, gpu.stream),                                 \
     gpu_expect(gpu.k->wait(gpu.stream), "running " #kernel))

/* ---- random numbers ---- */

static inline uint64_t gpu_bits(void) { /* xorshift */
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random;
}
static inline float gpu_uniform(double lo, double hi) {
    return (float)(lo + (hi - lo) * (double)(gpu_bits() >> 11) * 0x1p-53);
}
static inline uint32_t gpu_pick(uint32_t lo, uint32_t hi) { /* lo .. hi */
    return lo + (uint32_t)((gpu_bits() >> 16) % (hi - lo + 1));
}

/* ---- host memory ---- */

static inline void *host_bytes(size_t bytes) {
    void *p = calloc(bytes + 16, 1);
    assert_non_null(p);
    assert_true(gpu.n_host < GPU_MOST);
    return gpu.host[gpu.n_host++] = p;
}
static inline float *host_floats(size_t n) { return host_bytes(n * sizeof(float)); }

/* Of a window in CUDA_FP8 alone: e4m3. */
#define GPU_E4M3 ((enum cuda_dtype)(CUDA_BF16 + 1))
static inline size_t gpu_type_bytes(enum cuda_dtype dtype) { return dtype == CUDA_F32 ? 4 : dtype == GPU_E4M3 ? 1 : 2; }
static inline enum cuda_dtype gpu_window_type(const struct cuda_shape *s) {
    return s->window == CUDA_FP8 ? GPU_E4M3 : s->dtype;
}

/* The nearest value that dtype has, ties to even; infinity beyond the largest. */
static inline float gpu_round(float x, enum cuda_dtype dtype) {
    if (dtype == CUDA_F32 || !isfinite(x) || x == 0) return x;
    if (dtype == GPU_E4M3) return half_e4m3_to_f32(half_f32_to_e4m3(x));
    if (dtype == CUDA_BF16) return half_bf16_to_f32(half_f32_to_bf16(x));
    int e;
    frexpf(x, &e);
    double quantum = ldexp(1.0, e - 11 < -24 ? -24 : e - 11), y = nearbyint((double)x / quantum) * quantum;
    return fabs(y) > 65504 ? copysignf(INFINITY, x) : (float)y;
}
static inline float *host_random(size_t n, double lo, double hi, enum cuda_dtype dtype) {
    float *p = host_floats(n);
    for (size_t i = 0; i < n; i++) p[i] = gpu_round(gpu_uniform(lo, hi), dtype);
    return p;
}
static inline float *host_copy(const float *src, size_t n) { return memcpy(host_floats(n), src, n * sizeof *src); }

/* fp32 values that dtype has <-> their bits. */
static inline uint16_t gpu_half_bits(float x, enum cuda_dtype dtype) {
    uint32_t bits = half_f32_bits(x);
    if (dtype == CUDA_BF16) return half_f32_to_bf16(x);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) return (uint16_t)(sign | (uint32_t)(fabsf(x) * 0x1p24f));
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}
static inline const char *gpu_dtype_name(enum cuda_dtype dtype) {
    return dtype == CUDA_F32 ? "fp32" : dtype == CUDA_F16 ? "fp16" : "bf16";
}

/* ---- device memory ---- */

static inline void *gpu_bytes(size_t bytes) { /* poisoned: NaN in every type */
    void *p = gpu.k->take(bytes ? bytes : 1);
    if (!p) fail_msg("%s: no memory on the GPU for %zu bytes", gpu.what, bytes);
    assert_true(gpu.n_device < GPU_MOST);
    gpu.device[gpu.n_device++] = p;
    if (gpu.poison) gpu_expect(gpu.k->fill(p, 0xff, bytes, gpu.stream), "poisoning memory");
    return p;
}
static inline void *gpu_zeros(size_t bytes) {
    void *p = gpu_bytes(bytes);
    gpu_expect(gpu.k->fill(p, 0, bytes, gpu.stream), "clearing memory");
    return p;
}
static inline void *gpu_copy(const void *src, size_t bytes) {
    void *p = gpu_bytes(bytes);
    gpu_expect(gpu.k->write(p, src, bytes, gpu.stream), "writing to the GPU");
    return p;
}
static inline float *gpu_floats(size_t n) { return gpu_bytes(n * sizeof(float)); }
static inline float *gpu_from(const float *src, size_t n) { return gpu_copy(src, n * sizeof *src); }
static inline float *gpu_fetch(const float *device, size_t n) {
    float *p = host_floats(n);
    gpu_expect(gpu.k->read(p, device, n * sizeof *p, gpu.stream), "reading from the GPU");
    return p;
}
/* src has values of dtype only. */
static inline void *gpu_from_typed(const float *src, size_t n, enum cuda_dtype dtype) {
    if (dtype == CUDA_F32) return gpu_from(src, n);
    uint16_t *bits = malloc(n * 2 + 2);
    uint8_t *codes = (uint8_t *)bits;
    assert_non_null(bits);
    for (size_t i = 0; i < n; i++)
        if (dtype == GPU_E4M3)
            codes[i] = half_f32_to_e4m3(src[i]);
        else
            bits[i] = gpu_half_bits(src[i], dtype);
    void *p = gpu_copy(bits, n * gpu_type_bytes(dtype));
    free(bits);
    return p;
}
static inline float *gpu_fetch_typed(const void *device, size_t n, enum cuda_dtype dtype) {
    if (dtype == CUDA_F32) return gpu_fetch(device, n);
    float *p = host_floats(n);
    if (dtype == GPU_E4M3) {
        uint8_t *codes = (uint8_t *)(void *)p + n * 3; /* widened in place, from the front */
        gpu_expect(gpu.k->read(codes, device, n, gpu.stream), "reading from the GPU");
        for (size_t i = 0; i < n; i++) p[i] = half_e4m3_to_f32(codes[i]);
        return p;
    }
    uint16_t *bits = (uint16_t *)(void *)p + n;
    gpu_expect(gpu.k->read(bits, device, n * 2, gpu.stream), "reading from the GPU");
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, bits + i, 2);
        p[i] = dtype == CUDA_BF16 ? half_bf16_to_f32(h) : half_f16_to_f32(h);
    }
    return p;
}

/* Packed activations, as input and as output: the rows that fill up the last group of 8 stay poisoned. */
static inline void *gpu_act_out(uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype) {
    void *act = gpu_bytes(gpu.k->cuda_activation_bytes(n_rows, cols, dtype));
    gpu.k->pack_act(NULL, n_rows, cols, act, dtype, gpu.stream);
    gpu_expect(gpu.k->wait(gpu.stream), "clearing the padding");
    return act;
}
static inline void *gpu_act(const float *src, uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype) {
    void *act = gpu_act_out(n_rows, cols, dtype);
    gpu.k->pack_act(gpu_from(src, (size_t)n_rows * cols), n_rows, cols, act, dtype, gpu.stream);
    gpu_expect(gpu.k->wait(gpu.stream), "packing activations");
    return act;
}
/* [n_rows][cols]; the padding of the columns must still be zero. By way of the host: initcheck takes what tensor copies
 * have written for unwritten, and unpack_act would read it. */
static inline float *gpu_fetch_act(const void *act, uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype) {
    const uint32_t K = cuda_pad16(cols);
    const size_t n_packed = gpu.k->cuda_activation_bytes(n_rows, cols, dtype);
    float *plain = gpu_floats((size_t)n_rows * K);
    void *packed = host_bytes(n_packed);
    gpu_expect(gpu.k->read(packed, act, n_packed, gpu.stream), "reading activations");
    gpu.k->unpack_act(gpu_copy(packed, n_packed), n_rows, cols, plain, dtype, gpu.stream);
    gpu_expect(gpu.k->wait(gpu.stream), "unpacking activations");
    float *all = gpu_fetch(plain, (size_t)n_rows * K), *p = host_floats((size_t)n_rows * cols);
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(p + (size_t)r * cols, all + (size_t)r * K, cols * sizeof *p);
        for (uint32_t k = cols; k < K; k++)
            if (all[(size_t)r * K + k] != 0)
                fail_msg("%s: padding column %u of row %u is %g, it must stay 0", gpu.what, k, r,
                         (double)all[(size_t)r * K + k]);
    }
    return p;
}
/* W [rows][cols] of dtype's values, packed. */
static inline struct cuda_matrix gpu_matrix(const float *W, uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    struct cuda_matrix m = {.rows = rows, .cols = cols, .dtype = dtype};
    m.data = gpu_zeros(gpu.k->cuda_matrix_bytes(rows, cols, dtype));
    GPU_RUN(k_pack, gpu_from(W, (size_t)rows * cols), CUDA_F32, 0, rows, cols, CUDA_PACK_ROWS, &m);
    return m;
}

static inline void gpu_round_end(void) {
    while (gpu.n_device) gpu.k->give(gpu.device[--gpu.n_device]);
    while (gpu.n_host) free(gpu.host[--gpu.n_host]);
}

/* ---- shapes ---- */

enum { GPU_EDGES = 15 };
/* Of all rounds a third: each number of rows at an edge in one type, another with the next seed, and three between. */
static inline bool gpu_in_third(bool fp32, enum cuda_dtype dtype, uint32_t i) {
    if (i >= 3 * GPU_EDGES) return i < 3 * GPU_EDGES + 3;
    const uint64_t round = gpu.seed % 6 + i % GPU_EDGES * 2;
    return (uint64_t)dtype == (fp32 ? round % 3 : 1 + round / 2 % 2);
}
/* Calls round(n_rows, dtype, i) for every number of rows that lies at an edge, then some between, in all three types;
 * where fewer are asked for, for some of these, none in fp32 where a test has little to do there. breaks: a third. */
static inline void gpu_rounds_in(bool fp32, bool breaks,
                                 void (*round)(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i)) {
    static const uint32_t edges[GPU_EDGES] = {1, 33, 300, 2, 8, 64, 7, 129, 9, 16, 256, 17, 65, 128, 255};
    const uint32_t n_all = 3 * GPU_EDGES + 9;
    const bool some = gpu.n_shapes && gpu.n_shapes < n_all;
    gpu.breaks = breaks;
    for (uint32_t k = 0; k < (some ? gpu.n_shapes / (breaks ? 3 : 1) : n_all);) {
        const uint32_t i = some ? gpu_pick(0, n_all - 1) : k;
        const uint32_t n_rows = i < 3 * GPU_EDGES ? edges[i % GPU_EDGES] : gpu_pick(1, 300);
        const enum cuda_dtype dtype = (enum cuda_dtype)((i + i / GPU_EDGES) % 3); /* all three of a number of rows */
        if (some && !fp32 && dtype == CUDA_F32) continue;
        k++;
        if (!some && breaks && !gpu_in_third(fp32, dtype, i)) continue;
        snprintf(gpu.what, sizeof gpu.what, "%u rows, %s", n_rows, gpu_dtype_name(dtype));
        round(n_rows, dtype, i);
        gpu_round_end();
    }
}
static inline void gpu_rounds_of(bool fp32, void (*round)(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i)) {
    gpu_rounds_in(fp32, false, round);
}
static inline void gpu_rounds(void (*round)(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i)) {
    gpu_rounds_of(true, round);
}
#define GPU_WHAT(...) snprintf(gpu.what + strlen(gpu.what), sizeof gpu.what - strlen(gpu.what), __VA_ARGS__)

/* Sizes of the golden sets and of the published models, one after the other; plus: only those with attention. D, E, F,
 * M, R and the layers are then the test's to change. */
static inline struct model_dims gpu_dims(uint32_t i, bool plus) {
    static const char *const files[] = {
        "tests/vectors/rodimus-plus-options",
        "tests/configs/rodimus-plus-coder-1.6b",
        "tests/vectors/rodimus-plus-small",
        "tests/vectors/rodimus-plus-extremes",
        "tests/configs/rodimus-plus-coder-4b",
        "tests/vectors/rodimus-plus-headdim128",
        "tests/vectors/rodimus-plus-short",
        "tests/vectors/fla-rodimus-plus-small",
        "config/models/tales",
        "config/models/skills",
        "tests/vectors/rodimus-small",
        "tests/vectors/fla-rodimus-small",
        "tests/configs/rodimus-1.4b-base",
    };
    const uint32_t n = sizeof files / sizeof *files;
    struct model_config config;
    struct rod_error err;
    char path[128], json[8192];
    do {
        snprintf(path, sizeof path, "%s/config.json", files[i++ % n]);
        FILE *f = fopen(path, "r");
        if (!f) fail_msg("%s does not open", path);
        size_t len = fread(json, 1, sizeof json, f);
        fclose(f);
        if (model_config_parse(json, len, &config, &err)) fail_msg("%s: %s", path, err.message);
    } while (plus && !config.dims.plus);
    return config.dims;
}
/* Widths of the mixer are multiples of 8 (the layouts round up): half of them odd multiples. */
static inline uint32_t gpu_pick_width(uint32_t most) {
    uint32_t w = gpu_pick(1, most / 8);
    return 8 * (gpu_pick(0, 1) ? w | 1 : w);
}

/* ---- rows of a step ---- */

struct gpu_rows {
    uint32_t n_rows, n_segs, n_slots; /* slots 0 .. n_slots of the pool, the last one for padding */
    int32_t *tok, *slot, *seg_first, *seg_n;
    int64_t *pos;
    struct cuda_rows device;
};
/* n_rows rows in segments of up to most_tok tokens, each with a slot of its own, at positions near the start or beyond
 * 32 bits. Some slots stay unused. */
static inline struct gpu_rows gpu_make_rows(uint32_t n_rows, uint32_t most_tok, uint32_t V) {
    struct gpu_rows s = {.n_rows = n_rows};
    s.tok = host_bytes(n_rows * sizeof *s.tok), s.slot = host_bytes(n_rows * sizeof *s.slot);
    s.seg_first = host_bytes(n_rows * sizeof *s.slot), s.seg_n = host_bytes(n_rows * sizeof *s.slot);
    s.pos = host_bytes(n_rows * sizeof *s.pos);
    for (uint32_t r = 0; r < n_rows; s.n_segs++) {
        uint32_t n = gpu_pick(1, most_tok);
        if (n > n_rows - r) n = n_rows - r;
        s.seg_first[s.n_segs] = (int32_t)r;
        s.seg_n[s.n_segs] = (int32_t)n;
        int64_t pos = gpu_pick(0, 3) == 0 ? 0 : gpu_pick(0, 3) ? gpu_pick(0, 400) : (int64_t)(gpu_bits() >> 30);
        for (uint32_t t = 0; t < n; t++, r++) s.pos[r] = pos + t, s.tok[r] = (int32_t)gpu_pick(0, V - 1);
    }
    s.n_slots = s.n_segs + 3;
    int32_t *order = host_bytes(s.n_slots * sizeof *order);
    for (uint32_t i = 0; i < s.n_slots; i++) order[i] = (int32_t)i;
    for (uint32_t i = s.n_slots - 1; i > 0; i--) {
        uint32_t j = gpu_pick(0, i);
        int32_t kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    for (uint32_t i = 0; i < s.n_segs; i++)
        for (int32_t t = 0; t < s.seg_n[i]; t++) s.slot[s.seg_first[i] + t] = order[i];
    s.device = (struct cuda_rows){gpu_copy(s.tok, n_rows * sizeof *s.tok),
                                  gpu_copy(s.slot, n_rows * sizeof *s.slot),
                                  gpu_copy(s.pos, n_rows * sizeof *s.pos),
                                  gpu_copy(s.seg_first, s.n_segs * sizeof *s.seg_first),
                                  gpu_copy(s.seg_n, s.n_segs * sizeof *s.seg_n),
                                  NULL,
                                  NULL};
    return s;
}
/* Of each row: those of its segment before it, as a step with drafts has it. */
static inline const int32_t *gpu_leads(const struct gpu_rows *rows) {
    int32_t *lead = host_bytes(rows->n_rows * sizeof *lead);
    for (uint32_t g = 0; g < rows->n_segs; g++)
        for (int32_t t = 0; t < rows->seg_n[g]; t++) lead[rows->seg_first[g] + t] = t;
    return gpu_copy(lead, rows->n_rows * sizeof *lead);
}
/* Some of the rows (single tokens) become padding: at the end as in a step's bucket, one before it as of a session that
 * has ended. Row 0 stays. Returns for each row whether it is padding. */
static inline uint8_t *gpu_pad_rows(struct gpu_rows *s) {
    uint8_t *padding = host_bytes(s->n_rows);
    for (uint32_t r = s->n_rows - gpu_pick(0, s->n_rows - 1); r < s->n_rows; r++) padding[r] = 1;
    if (s->n_rows > 1 && gpu_pick(0, 1)) padding[gpu_pick(1, s->n_rows - 1)] = 1;
    for (uint32_t r = 0; r < s->n_rows; r++)
        if (padding[r]) s->slot[r] = (int32_t)s->n_slots, s->pos[r] = 0;
    s->device.slot = gpu_copy(s->slot, s->n_rows * sizeof *s->slot);
    s->device.pos = gpu_copy(s->pos, s->n_rows * sizeof *s->pos);
    return padding;
}

/* The row of a slot's ring that holds the input of the token `back` before position pos. */
static inline size_t conv_place(const struct cuda_shape *s, int64_t pos, uint32_t back) {
    return (size_t)((pos + s->conv_ring - back) % s->conv_ring);
}

/* ---- comparing ---- */

/* What rounding to dtype adds to a result, relative: half a unit in the last place. */
static inline double gpu_ulp(enum cuda_dtype dtype) {
    return dtype == CUDA_F32 ? 0 : dtype == CUDA_F16 ? 0x1p-11 : dtype == GPU_E4M3 ? 0x1p-4 : 0x1p-8;
}
/* ||x - ref|| <= tol ||ref||, and each element within ulp of itself and 30 tol of the root mean square. NaN fails. */
static inline void gpu_check(const char *what, const float *x, const float *ref, size_t n, double tol, double ulp) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)x[i] - (double)ref[i]) * ((double)x[i] - (double)ref[i]);
        norm += (double)ref[i] * (double)ref[i];
    }
    const double rms = sqrt(norm / (double)n), error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    bool good = error <= tol + ulp;
    for (size_t i = 0; i < n; i++) {
        double allowed = 1.01 * ulp * fabs((double)ref[i]) + 30 * tol * rms + 1e-30;
        if (!(fabs((double)x[i] - (double)ref[i]) <= allowed))
            fail_msg("%s (%s, seed %llu): element %zu of %zu is %.9g, the twin says %.9g; allowed %.3g, relative error "
                     "of all %.3g",
                     what, gpu.what, (unsigned long long)gpu.seed, i, n, (double)x[i], (double)ref[i], allowed, error);
    }
    if (!good)
        fail_msg("%s (%s, seed %llu): relative error %.3g > %.3g", what, gpu.what, (unsigned long long)gpu.seed, error,
                 tol + ulp);
}
static inline void gpu_check_same(const char *what, const float *x, const float *ref, size_t n) { /* to the bit */
    for (size_t i = 0; i < n; i++)
        if (memcmp(&x[i], &ref[i], sizeof *x))
            fail_msg("%s (%s, seed %llu): element %zu of %zu is %.9g, want %.9g to the bit", what, gpu.what,
                     (unsigned long long)gpu.seed, i, n, (double)x[i], (double)ref[i]);
}
static inline void gpu_check_equal(const char *what, const float *x, const float *ref, size_t n) { /* -0 is 0 */
    for (size_t i = 0; i < n; i++)
        if (!(x[i] == ref[i]))
            fail_msg("%s (%s, seed %llu): element %zu of %zu is %.9g, want %.9g", what, gpu.what,
                     (unsigned long long)gpu.seed, i, n, (double)x[i], (double)ref[i]);
}
/* Sums of squares of 16 columns each, of the last tile what there is of it. */
static inline float *gpu_square_tiles(const float *x, uint32_t n_rows, uint32_t n) {
    const uint32_t tiles = (n + 15) / 16;
    float *squares = host_floats((size_t)n_rows * tiles);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t t = 0; t < tiles; t++) {
            double sum = 0;
            for (uint32_t i = t * 16; i < n && i < t * 16 + 16; i++)
                sum += (double)x[(size_t)r * n + i] * (double)x[(size_t)r * n + i];
            squares[(size_t)r * tiles + t] = (float)sum;
        }
    return squares;
}
/* What a fused norm reads in a step of n_rows rows: those sums, or fours of them added in order. */
static inline const float *gpu_square_sums(const float *tiles, uint32_t n_rows, uint32_t n) {
    const uint32_t n_tiles = (n + 15) / 16, sums = cuda_square_sums(n_rows, n);
    if (sums == n_tiles) return tiles;
    float *fours = host_floats((size_t)n_rows * sums);
    for (size_t r = 0; r < n_rows; r++)
        for (uint32_t t = 0; t < n_tiles; t++) fours[r * sums + t / 4] += tiles[r * n_tiles + t];
    return fours;
}
/* Memory that a kernel must not touch is as gpu_bytes left it. */
static inline void gpu_check_poison(const char *what, const float *x, size_t n) {
    for (size_t i = 0; gpu.poison && i < n; i++)
        if (half_f32_bits(x[i]) != 0xffffffffu)
            fail_msg("%s (%s): element %zu was written: %g", what, gpu.what, i, (double)x[i]);
}

/* ---- a program ---- */

static inline uint64_t gpu_setting(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}
/* False: no GPU, and said so in one line. */
static inline bool gpu_open(void) {
    char path[4096 + 32];
    ssize_t n = readlink("/proc/self/exe", path, 4096);
    path[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 32, "kernels_under_test.so");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *why = object ? NULL : dlerror();
    if (object) gpu.k = dlsym(object, "kernels_under_test");
    if (!why && !gpu.k) why = "kernels_under_test.so is of another build";
    if (!why) why = gpu.k->open(&gpu.stream);
    if (why) {
        printf("note: skipped, no usable GPU: %s\n", why);
        return false;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    gpu.seed = gpu_setting("RODIMUS_TEST_SEED", (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
    gpu.random = (gpu.seed + 1) * 0x9e3779b97f4a7c15u | 1;
    gpu.n_shapes = (uint32_t)gpu_setting("RODIMUS_TEST_SHAPES", 0);
    gpu.poison = gpu_setting("RODIMUS_TEST_POISON", 1) != 0;
    if (getenv("RODIMUS_TEST_ONLY")) cmocka_set_test_filter(getenv("RODIMUS_TEST_ONLY"));
    printf("note: seed %llu (RODIMUS_TEST_SEED runs the same again)\n", (unsigned long long)gpu.seed);
    return true;
}
/* Whether RODIMUS_TEST_ONLY, if it is set, leaves a test: a run without one would pass. */
static inline bool gpu_has_any(const struct CMUnitTest *tests, size_t n) {
    const char *only = getenv("RODIMUS_TEST_ONLY");
    for (size_t i = 0; i < n; i++)
        if (!only || !fnmatch(only, tests[i].name, 0)) return true;
    printf("RODIMUS_TEST_ONLY=%s: no test has such a name\n", only);
    return false;
}
#define GPU_MAIN(...)                                                                                                  \
    int main(void) {                                                                                                   \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                                               \
        if (!gpu_has_any(tests, sizeof tests / sizeof *tests)) return 1;                                               \
        return gpu_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;                                             \
    }

#endif
