/* broken.h - one broken row breaks nobody: a kernel runs again with NaN in all that belongs to one row or session, and
 * what belongs to the others has the same bits.
 *
 * A round says who has which row (broken_rows_of), what memory of the GPU the kernel reads and writes (OF_*) and runs
 * it by `while (broken_again()) GPU_RUN(...)`: once as a rule; in broken_rounds once as it is and RUNS times with
 * another session broken, all memory that was named as it was before. Memory that belongs to nobody, and the padding of
 * packed columns in every row, must not change at all: the next product reads the padding, times 0, and 0 * NaN is NaN.
 * Nothing is said of padding rows and of rows behind the step's last; where these break, they break nobody either.
 */
#ifndef GPU_BROKEN_H
#define GPU_BROKEN_H

#include "gpu.h"

enum { WORK = 0, READ = 1, WRITTEN = 2 }; /* WORK: only as it was before; READ | WRITTEN: in place */

struct broken_field {
    const char *name;
    const void *at;
    int use;
    size_t bytes, part, unit; /* of all; of a part (partial products); of what a row or a slot has */
    uint32_t n;               /* rows or slots */
    uint32_t cols, padded;    /* of packed activations, and with their padding; 0: of none */
    enum cuda_dtype dtype;    /* of an element */
    const int32_t *list;      /* on the host: unit i belongs to row list[i]; NULL: to row i */
    bool of_slots;            /* unit i is slot i's */
    unsigned char *before, *clean, *now;
};
static struct {
    struct broken_field field[32];
    uint32_t n_fields, n_rows, row;
    const int32_t *slot; /* of each row, on the host; NULL: each row is a session of its own */
    int32_t padding, session;
    int run;
} broken;

/* slot: [n_rows] or NULL; padding: the slot of padding rows, -1: there is none. Forgets what was named before. */
static inline void broken_rows_of(uint32_t n_rows, const int32_t *slot, int32_t padding) {
    broken.n_rows = n_rows, broken.slot = slot, broken.padding = padding;
    broken.n_fields = 0, broken.run = 0;
}
static inline void broken_add(struct broken_field f) {
    if (!gpu.breaks || !f.at || !f.bytes || !f.unit) return;
    assert_true(broken.n_fields < sizeof broken.field / sizeof *broken.field);
    broken.field[broken.n_fields++] = f;
}
static inline void broken_add_parts(int use, const char *name, const void *at, size_t parts, size_t stride, uint32_t n,
                                    size_t cols, const int32_t *list) {
    broken_add((struct broken_field){.name = name,
                                     .at = at,
                                     .use = use,
                                     .bytes = parts * stride * sizeof(float),
                                     .part = stride * sizeof(float),
                                     .unit = cols * sizeof(float),
                                     .n = n,
                                     .list = list});
}
static inline void broken_add_act(int use, const char *name, const void *at, uint32_t n, uint32_t cols,
                                  enum cuda_dtype dtype) {
    const size_t bytes = gpu.k->cuda_activation_bytes(n, cols, dtype);
    broken_add((struct broken_field){.name = name,
                                     .at = at,
                                     .use = use,
                                     .bytes = bytes,
                                     .part = bytes,
                                     .unit = cuda_pad16(cols) * sizeof(float), /* of fp32 */
                                     .n = n,
                                     .cols = cols,
                                     .padded = cuda_pad16(cols),
                                     .dtype = dtype});
}
static inline void broken_add_slots(int use, const char *name, const void *at, uint32_t n, size_t unit,
                                    enum cuda_dtype dtype) {
    broken_add((struct broken_field){.name = name,
                                     .at = at,
                                     .use = use,
                                     .bytes = n * unit,
                                     .part = n * unit,
                                     .unit = unit,
                                     .n = n,
                                     .dtype = dtype,
                                     .of_slots = true});
}
/* fp32 [n][cols]; [parts][n][cols], `stride` floats from a part to the next; rows list[0..n) of a step. */
#define OF_ROWS(use, at, n, cols)                 broken_add_parts(use, #at, at, 1, (size_t)(n) * (cols), n, cols, NULL)
#define OF_PARTS(use, at, parts, stride, n, cols) broken_add_parts(use, #at, at, parts, stride, n, cols, NULL)
#define OF_LIST(use, at, list, n, cols)           broken_add_parts(use, #at, at, 1, (size_t)(n) * (cols), n, cols, list)
#define OF_ACT(use, at, n, cols, dtype)           broken_add_act(use, #at, at, n, cols, dtype)
/* [n] slots of so many elements; a word of 4 bytes is one of CUDA_F32. */
#define OF_SLOTS(use, at, n, elements, dtype)                                                                          \
    broken_add_slots(use, #at, at, n, (size_t)(elements)*gpu_type_bytes(dtype), dtype)
#define OF_NOBODY(at, all_bytes) broken_add_parts(WORK, #at, at, 1, (all_bytes) / sizeof(float), 0, 1, NULL)

/* Bytes that lie together and belong to one session. */
enum { NOBODY = -2, BEHIND = -3 }; /* BEHIND: of a row behind the step's last, in its tile of 8 */
struct broken_run {
    int32_t session;
    uint32_t row, column;
    bool padding; /* of the columns */
    size_t len;
};
static inline struct broken_run broken_run_at(const struct broken_field *f, size_t at) {
    const size_t size = gpu_type_bytes(f->dtype), in_part = at % f->part;
    struct broken_run x;
    if (f->padded && size == 2) { /* tiles of 8 rows and 16 columns, each two matrices of rows of 16 bytes */
        const size_t tiles = (size_t)f->padded * 16;
        x.row = (uint32_t)(at / tiles * 8 + at % 128 / 16);
        x.column = (uint32_t)(at % tiles / 256 * 16 + at % 256 / 128 * 8 + at % 16 / 2);
        x.len = 16 - at % 16;
    } else {
        x.row = (uint32_t)(in_part / f->unit);
        x.column = (uint32_t)(in_part % f->unit / size);
        x.len = f->unit - in_part % f->unit;
        if (x.len > f->part - in_part) x.len = f->part - in_part;
    }
    x.padding = f->padded && x.column >= f->cols;
    if (f->padded && !x.padding && x.len > (f->cols - x.column) * size) x.len = (f->cols - x.column) * size;
    if (x.row >= f->n)
        x.session = f->padded ? BEHIND : NOBODY;
    else if (f->of_slots)
        x.session = (int32_t)x.row;
    else {
        const int32_t row = f->list ? f->list[x.row] : (int32_t)x.row;
        x.session = broken.slot ? broken.slot[row] : row;
    }
    return x;
}
static inline double broken_value(const struct broken_field *f, const unsigned char *bytes) {
    uint32_t bits = 0;
    memcpy(&bits, bytes, gpu_type_bytes(f->dtype));
    return (double)(f->dtype == CUDA_F32   ? half_bits_to_f32(bits)
                    : f->dtype == CUDA_F16 ? half_f16_to_f32((uint16_t)bits)
                    : f->dtype == GPU_E4M3 ? half_e4m3_to_f32((uint8_t)bits)
                                           : half_bf16_to_f32((uint16_t)bits));
}
static inline void broken_compare(const struct broken_field *f) {
    const size_t size = gpu_type_bytes(f->dtype);
    for (size_t at = 0, len; at < f->bytes; at += len) {
        const struct broken_run x = broken_run_at(f, at);
        len = x.len;
        if (!x.padding && (x.session == broken.session || x.session == broken.padding || x.session == BEHIND)) continue;
        if (!memcmp(f->clean + at, f->now + at, len)) continue;
        size_t i = 0;
        while (!memcmp(f->clean + at + i, f->now + at + i, size)) i += size;
        fail_msg(
            "%s (%s, seed %llu): row %u (session %d) is broken, and %s of %s %u (session %d) has %.9g in %s %zu of "
            "part %zu, %.9g without that",
            gpu.running, gpu.what, (unsigned long long)gpu.seed, broken.row, broken.session, f->name,
            f->of_slots ? "slot" : "row", x.row, x.session, broken_value(f, f->now + at + i),
            x.padding ? "padding column" : "column", x.column + i / size, at / f->part,
            broken_value(f, f->clean + at + i));
    }
}
static inline void broken_fetch(const struct broken_field *f, unsigned char **to) {
    if (!*to) *to = host_bytes(f->bytes);
    gpu_expect(gpu.k->read(*to, f->at, f->bytes, gpu.stream), "reading what a kernel left");
}
/* All memory as before the first run; what is read of the broken session: NaN. */
static inline void broken_prepare(struct broken_field *f) {
    const unsigned char *bytes = f->before;
    if (f->use & READ) {
        if (!f->now) f->now = host_bytes(f->bytes);
        bytes = memcpy(f->now, f->before, f->bytes);
        for (size_t at = 0, len; at < f->bytes; at += len) {
            const struct broken_run x = broken_run_at(f, at);
            len = x.len;
            if (x.session == broken.session && !x.padding) memset(f->now + at, 0xff, len);
        }
    }
    gpu_expect(gpu.k->write((void *)(uintptr_t)f->at, bytes, f->bytes, gpu.stream), "breaking a row");
}

static inline bool broken_again(void) {
    enum { RUNS = 3 };
    const int run = broken.run++;
    if (!gpu.breaks) return run == 0;
    for (uint32_t i = 0; i < broken.n_fields; i++) {
        struct broken_field *f = &broken.field[i];
        if (run == 0)
            broken_fetch(f, &f->before);
        else if (f->use & WRITTEN) {
            broken_fetch(f, run == 1 ? &f->clean : &f->now);
            if (run > 1) broken_compare(f);
        }
    }
    if (run == 0) return true;
    broken.row = run == 1 && gpu_pick(0, 1) ? 0 : run == 1 ? broken.n_rows - 1 : gpu_pick(0, broken.n_rows - 1);
    broken.session = broken.slot ? broken.slot[broken.row] : (int32_t)broken.row;
    for (uint32_t i = 0; i < broken.n_fields && run <= RUNS; i++) broken_prepare(&broken.field[i]);
    return run <= RUNS;
}

/* A third of gpu_rounds_of's rounds, each with broken rows. */
static inline void broken_rounds(bool fp32, void (*round)(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i)) {
    if (gpu.poison) gpu_rounds_in(fp32, true, round); /* else memory that nobody wrote would be read back */
}

#endif
