/* model_synthetic.c - random bf16 weights of a published shape, for benchmarks without a checkpoint.
 *
 * Every value is a function of seed, tensor and index alone (a hash of the three picks one of 4,096 equally likely
 * points of a normal distribution), so any number of threads fills the same bytes. 4,096 points are more than bf16
 * tells apart over most of the range, and the table of a tensor stays in the first-level cache: that makes it fast.
 */
#include "engine/base/fail.h"
#include "engine/base/half.h"
#include "engine/base/host.h"
#include "model_internal.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_POINTS    4096
#define ALIGN_BYTES 64
#define TASK_ELEMS  (1u << 20) /* a multiple of 4, the values of one hash */
#define MAX_THREADS 64

#define PLUS_CODER                                                                                                     \
    "\"block_type\": \"rodimus_plus\", \"vocab_size\": 126464, \"bos_token_id\": 126080, \"eos_token_id\": 126081, "   \
    "\"mixer_cfg\": {\"normalize_epsilon\": 1e-5}, "

static const struct {
    const char *name, *config;
} shapes[] = {
    {"rodimus-1.4b", "{\"block_type\": \"rodimus\", \"vocab_size\": 126464, \"bos_token_id\": 126080, "
                     "\"eos_token_id\": 126081, \"d_model\": 2048, \"n_layer\": 48, \"tie_word_embeddings\": true}"},
    {"rodimus-plus-1.6b", "{" PLUS_CODER "\"d_model\": 2048, \"n_layer\": 24, \"tie_word_embeddings\": true, "
                          "\"attn_cfg\": {\"num_heads\": 16, \"num_heads_k\": 1, \"window_size\": 4096}}"},
    {"rodimus-plus-1.6b-w1024", "{" PLUS_CODER "\"d_model\": 2048, \"n_layer\": 24, \"tie_word_embeddings\": true, "
                                "\"attn_cfg\": {\"num_heads\": 16, \"num_heads_k\": 1, \"window_size\": 2046}}"},
    {"rodimus-plus-4b", "{" PLUS_CODER "\"d_model\": 3072, \"n_layer\": 32, \"tie_word_embeddings\": false, "
                        "\"attn_cfg\": {\"num_heads\": 24, \"num_heads_k\": 1, \"window_size\": 4096}}"},
    {"tales", "{\"vocab_size\": 4096, \"bos_token_id\": 0, \"eos_token_id\": 1, \"d_model\": 256, \"n_layer\": 6, "
              "\"tie_word_embeddings\": true, "
              "\"attn_cfg\": {\"num_heads\": 4, \"num_heads_k\": 1, \"window_size\": 512}}"},
};

/* One anonymous mapping holds every weight. */
struct synthetic {
    struct model_storage base;
    unsigned char *map;
    size_t n_bytes;
};

/* ---- values ---- */

static uint64_t hash_mix(uint64_t x) { /* a bijection whose output bits all depend on all input bits */
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* The middle of each of N_POINTS equally likely slices of a standard normal: the point x with P(X < x) = (i + 1/2) / N,
 * found by halving. */
static void fill_normal(float *points) {
    for (uint32_t i = 0; i < N_POINTS; i++) {
        double want = (i + 0.5) / N_POINTS, lo = -6, hi = 6;
        for (int step = 0; step < 48; step++) {
            double x = (lo + hi) / 2;
            if (erfc(-x / sqrt(2.0)) / 2 < want)
                lo = x;
            else
                hi = x;
        }
        points[i] = (float)lo;
    }
}

struct spread {
    float mean, deviation;
};

/* How a tensor (or the second half of one: the mem gates' biases) is spread. */
static struct spread spread_of(const struct model_piece *p, bool second_half) {
    switch (p->init) {
    case INIT_NORM: return (struct spread){1.0f, 0.2f};
    case INIT_CONV: return (struct spread){0.0f, 0.5f};
    case INIT_GATE_BIAS: return (struct spread){second_half ? 0.0f : -1.5f, 0.8f}; /* softplus half: slow forgetting */
    case INIT_BIAS: return (struct spread){0.0f, 0.3f};
    case INIT_EMBED: return (struct spread){0.0f, 0.6f};
    case INIT_PROJECTION: break;
    }
    return (struct spread){0.0f, (float)(1.0 / sqrt((double)p->cols))};
}

/* ---- filling ---- */

struct task {
    uint16_t *dst;
    uint64_t first, n; /* elements of the tensor */
    uint64_t key;      /* of the tensor */
    struct spread spread;
};

struct filler {
    const float *points;
    struct task *tasks;
    size_t n_tasks, cap_tasks;
    uint64_t seed, n_pieces;
    struct model *model;
    unsigned char *map;
    size_t n_bytes; /* laid out so far */
    size_t next;    /* the next task; atomic */
    const struct rod_progress_to *progress;
};

static void filler_run_task(const struct task *task, const float *points) {
    uint16_t table[N_POINTS];
    for (uint32_t i = 0; i < N_POINTS; i++)
        table[i] = half_f32_to_bf16(task->spread.mean + task->spread.deviation * points[i]);
    uint64_t i = 0;
    for (; i + 4 <= task->n; i += 4) {
        uint64_t bits = hash_mix(task->key + (task->first + i) / 4);
        for (uint32_t j = 0; j < 4; j++) task->dst[i + j] = table[bits >> (16 * j + 4) & (N_POINTS - 1)];
    }
    uint64_t bits = hash_mix(task->key + (task->first + i) / 4);
    for (uint32_t j = 0; i < task->n; i++, j++) task->dst[i] = table[bits >> (16 * j + 4) & (N_POINTS - 1)];
}

static void *filler_thread(void *arg) {
    struct filler *f = arg;
    size_t i;
    while ((i = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED)) < f->n_tasks)
        filler_run_task(&f->tasks[i], f->points);
    return NULL;
}

static void filler_run(struct filler *f) {
    const int n = (int)host_cpus();
    pthread_t threads[MAX_THREADS];
    int started = 0;
    while (started < n - 1 && started < MAX_THREADS && !pthread_create(&threads[started], NULL, filler_thread, f))
        started++;
    size_t i; /* this thread works too, and alone if no other could start */
    while ((i = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED)) < f->n_tasks) {
        rod_progress(f->progress, "drawing weights", "B", i * (f->n_bytes / f->n_tasks), f->n_bytes);
        filler_run_task(&f->tasks[i], f->points);
    }
    for (int t = 0; t < started; t++) pthread_join(threads[t], NULL);
    rod_progress(f->progress, "drawing weights", "B", f->n_bytes, f->n_bytes);
}

/* ---- layout ---- */

static int filler_measure_piece(void *arg, const struct model_piece *piece) {
    struct filler *f = arg;
    size_t n = (size_t)piece->rows * piece->cols;
    f->n_bytes += (n * 2 + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    f->cap_tasks += n / TASK_ELEMS + 3;
    return 0;
}

static void filler_add_tasks(struct filler *f, uint16_t *dst, uint64_t first, uint64_t end, struct spread spread) {
    for (; first < end; first += TASK_ELEMS) {
        uint64_t n = end - first < TASK_ELEMS ? end - first : TASK_ELEMS;
        assert(f->n_tasks < f->cap_tasks);
        f->tasks[f->n_tasks++] = (struct task){dst + first, first, n, hash_mix(f->seed + (f->n_pieces << 40)), spread};
    }
}

static int filler_place_piece(void *arg, const struct model_piece *piece) {
    struct filler *f = arg;
    uint64_t n = (uint64_t)piece->rows * piece->cols;
    uint16_t *dst = (uint16_t *)(void *)(f->map + f->n_bytes);
    uint64_t half = piece->init == INIT_GATE_BIAS ? n / 2 : n;
    f->n_pieces++;
    filler_add_tasks(f, dst, 0, half, spread_of(piece, false));
    filler_add_tasks(f, dst, half, n, spread_of(piece, true));
    f->n_bytes += (size_t)(n * 2 + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    model_piece_bind(f->model, piece, dst, DTYPE_BF16);
    return 0;
}

static void close_synthetic(struct model_storage *storage) {
    struct synthetic *s = (struct synthetic *)(void *)storage;
    if (s->map) munmap(s->map, s->n_bytes);
    free(s);
}

static int synthetic_build(struct model *model, struct synthetic *s, uint64_t seed,
                           const struct rod_progress_to *progress, struct rod_error *err) {
    float points[N_POINTS];
    struct filler f = {.points = points, .seed = hash_mix(seed), .model = model, .progress = progress};
    model_plan(&model->dims, false, filler_measure_piece, &f);
    model->layers = calloc(model->dims.L, sizeof *model->layers);
    f.tasks = malloc(f.cap_tasks * sizeof *f.tasks);
    void *map = mmap(NULL, f.n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!model->layers || !f.tasks || map == MAP_FAILED) {
        free(f.tasks);
        if (map != MAP_FAILED) munmap(map, f.n_bytes);
        return rod_fail_no_memory(err);
    }
    s->map = f.map = map;
    s->n_bytes = f.n_bytes;
    madvise(map, f.n_bytes, MADV_HUGEPAGE); /* fewer page faults; if refused, only slower */
    fill_normal(points);
    f.n_bytes = 0;
    model_plan(&model->dims, false, filler_place_piece, &f);
    assert(f.n_bytes == s->n_bytes); /* what was measured was laid out */
    filler_run(&f);
    free(f.tasks);
    mprotect(map, s->n_bytes, PROT_READ); /* weights are immutable, as a mapped file's */
    return 0;
}

int model_synthetic(const char *name, uint64_t seed, const struct rod_progress_to *progress, struct model **out,
                    struct rod_error *err) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(name, shapes[i].name)) return model_synthetic_of(name, shapes[i].config, seed, progress, out, err);
    return rod_fail_at(err, ROD_EINVALID, "synthetic",
                       "unknown synthetic model %.80s: rodimus-1.4b, rodimus-plus-1.6b, rodimus-plus-1.6b-w1024, "
                       "rodimus-plus-4b and tales are known",
                       name);
}

int model_synthetic_of(const char *name, const char *json, uint64_t seed, const struct rod_progress_to *progress,
                       struct model **out, struct rod_error *err) {
    struct model *model = model_new();
    struct synthetic *s = calloc(1, sizeof *s);
    if (!model || !s) {
        free(s);
        model_close(model);
        return rod_fail_no_memory(err);
    }
    s->base.close = close_synthetic;
    model->priv = s;
    struct model_config config;
    int rc = model_config_parse(json, strlen(json), &config, err);
    model->dims = config.dims;
    if (!rc) rc = synthetic_build(model, s, seed, progress, err);
    if (rc) {
        model_close(model);
        return rc;
    }
    model_tie_head(model);
    model_take_ends(model, MODEL_ENDS_CONFIG, &config.ends);
    model->weight_dtype = DTYPE_BF16;
    snprintf(model->name, sizeof model->name, "%s", name);
    snprintf(model->layout, sizeof model->layout, "synthetic");
    model_fingerprint_add(model, name, json, strlen(json));
    model_fingerprint_add(model, "seed", &seed, sizeof seed);
    *out = model;
    return 0;
}
