/* quantise.c - a checkpoint of 16 bits as a directory of fewer (model_write.h): rounded weight by weight, or with the
 * inputs that a text gives (second_order.h).
 *
 * The text runs through the CPU backend once for as many layers as sums of inputs fit into SUM_BYTES. */
#include "second_order.h"
#include "tools.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/model/model.h"
#include "engine/model/model_write.h"
#include "engine/text/tokenizer.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SUM_BYTES      (1ull << 30)
#define MAX_TEXT_BYTES (64u << 20)

#define W(field) offsetof(struct model_layer, field)
/* Products with inputs of their own. */
static const size_t inputs[] = {W(fc), W(out_proj), W(q), W(ao), W(f1), W(f2)};
#undef W
enum { N_INPUTS = sizeof inputs / sizeof *inputs };

struct quantise {
    const struct rod_quantise_options *options;
    struct model *model; /* as it is stored, and the format that is asked for */
    struct team *team;
    int32_t *ids;
    size_t n_ids;
    float *sums[N_INPUTS]; /* of layers [first_layer, last_layer): H of each, one after another */
    uint32_t first_layer, last_layer, n_layers_at_once;
    const float *factored; /* the H that has become its U */
    float *work;           /* [n, n] of the widest input */
    float *rows;
    size_t rows_size;
};

static const struct weight *weight_at(const struct quantise *z, uint32_t layer, size_t offset) {
    return (const struct weight *)(const void *)((const char *)&z->model->layers[layer] + offset);
}

static size_t sum_size(const struct quantise *z, uint32_t input) {
    const size_t cols = weight_at(z, 0, inputs[input])->cols;
    return cols * cols;
}

static uint32_t input_of(size_t offset) {
    static const size_t same[] = {offsetof(struct model_layer, k), offsetof(struct model_layer, v)};
    if (offset == same[0] || offset == same[1]) offset = offsetof(struct model_layer, q);
    uint32_t i = 0;
    while (inputs[i] != offset) i++;
    assert(i < N_INPUTS);
    return i;
}

/* ---- a text's inputs ---- */

static void take_input(void *arg, uint32_t member, uint32_t n_members, uint32_t layer, size_t weight, const float *x,
                       size_t ld, uint32_t n_rows) {
    struct quantise *z = arg;
    if (layer < z->first_layer || layer >= z->last_layer) return;
    const uint32_t input = input_of(weight);
    second_order_add(z->sums[input] + sum_size(z, input) * (layer - z->first_layer), weight_at(z, 0, weight)->cols, x,
                     ld, n_rows, member, n_members);
}

static int run_text(struct quantise *z, struct rod_error *err) {
    const enum weight_format format = z->model->weights;
    const struct backend_config config = {
        .n_slots = 1, .n_threads = z->options->n_threads, .device = "cpu", .precision = "auto"};
    struct backend *be;
    z->model->weights = WEIGHT_STORED; /* inputs as the weights of 16 bits give them */
    int rc = backend_cpu.open(z->model, &config, &be, err);
    z->model->weights = format;
    if (rc) return rc;
    be->watch = (struct cpu_watch){take_input, z};
    const struct backend_info *info = backend_cpu.info(be);
    const uint32_t most = info->max_batch_tok / info->chunk_tok * info->chunk_tok;
    backend_cpu.slot_zero(be, 0);
    for (size_t pos = 0; pos < z->n_ids && !rc; pos += most) {
        const uint32_t n = z->n_ids - pos < most ? (uint32_t)(z->n_ids - pos) : most;
        const struct backend_segment seg = {.n_tok = n, .pos = pos, .tok = z->ids + pos, .prompt = true};
        const float *logits;
        rod_progress(&z->options->progress, "reading the text", "tokens", pos, z->n_ids);
        rc = backend_cpu.forward(be, &seg, 1, &logits, err);
    }
    backend_cpu.close(be);
    return rc;
}

/* Sums of the layers from this one on. */
static int collect(struct quantise *z, uint32_t layer, struct rod_error *err) {
    z->first_layer = layer;
    z->last_layer = layer + z->n_layers_at_once < z->model->dims.L ? layer + z->n_layers_at_once : z->model->dims.L;
    z->factored = NULL;
    for (uint32_t i = 0; i < N_INPUTS; i++)
        if (z->sums[i]) memset(z->sums[i], 0, sizeof(float) * sum_size(z, i) * z->n_layers_at_once);
    return run_text(z, err);
}

static int make_sums(struct quantise *z, struct rod_error *err) {
    size_t all = 0, widest = 0;
    for (uint32_t i = 0; i < N_INPUTS; i++) {
        all += sum_size(z, i);
        if (sum_size(z, i) > widest) widest = sum_size(z, i);
    }
    z->n_layers_at_once = (uint32_t)(SUM_BYTES / (all * sizeof(float)));
    if (z->n_layers_at_once < 1) z->n_layers_at_once = 1;
    if (z->n_layers_at_once > z->model->dims.L) z->n_layers_at_once = z->model->dims.L;
    z->work = malloc(sizeof(float) * widest);
    bool whole = z->work;
    for (uint32_t i = 0; i < N_INPUTS; i++)
        if (sum_size(z, i)) {
            z->sums[i] = malloc(sizeof(float) * sum_size(z, i) * z->n_layers_at_once);
            whole = whole && z->sums[i];
        }
    return whole ? 0 : rod_fail_no_memory(err);
}

static int read_text(struct quantise *z, struct rod_error *err) {
    const char *path = z->options->calibrate, *slash = strrchr(path, '/');
    struct file_bytes text;
    struct tokenizer *tokenizer;
    int rc = tokenizer_open(z->options->model_dir, &tokenizer, err);
    if (rc) return rc;
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    rc = dir ? file_load(dir, slash ? slash + 1 : path, MAX_TEXT_BYTES, &text, err) : rod_fail_no_memory(err);
    free(dir);
    if (!rc) {
        rc = tokenizer_encode(tokenizer, text.data, text.n, false, &z->ids, &z->n_ids, err);
        file_wipe(&text);
    }
    tokenizer_close(tokenizer);
    if (!rc && !z->n_ids) rc = rod_fail_at(err, ROD_EINVALID, "calibrate", "calibrate: %.300s has no tokens.", path);
    if (!rc && z->n_ids > z->options->n_tok) z->n_ids = z->options->n_tok;
    return rc;
}

/* ---- rows ---- */

static int fill_rounded(void *arg, const struct weight *w, const struct weight_quant *q, uint32_t first, uint32_t n,
                        uint8_t *codes, float *scales, struct rod_error *err) {
    (void)arg, (void)err;
    for (uint32_t r = 0; r < n; r++)
        weight_quant_row(w, q, first + r, codes + (size_t)r * w->cols,
                         scales + (size_t)r * weight_quant_groups(q, w->cols), NULL);
    return 0;
}

/* The factor for this weight's inputs: those of q, k and v are the same, and each is made once. */
static int take_factor(struct quantise *z, const struct weight *w, const float **U, struct rod_error *err) {
    const size_t at = (size_t)((const char *)w - (const char *)z->model->layers);
    const uint32_t layer = (uint32_t)(at / sizeof(struct model_layer)),
                   input = input_of(at % sizeof(struct model_layer));
    int rc = layer < z->last_layer && layer >= z->first_layer ? 0 : collect(z, layer, err);
    if (rc) return rc;
    float *H = z->sums[input] + sum_size(z, input) * (layer - z->first_layer);
    *U = H;
    if (z->factored == H) return 0;
    if (!second_order_factor(H, z->work, w->cols, z->team))
        return rod_fail(err, ROD_EMODEL, "layer %u: the text's inputs are no finite numbers.", layer);
    z->factored = H;
    return 0;
}

static int fill_calibrated(void *arg, const struct weight *w, const struct weight_quant *q, uint32_t first, uint32_t n,
                           uint8_t *codes, float *scales, struct rod_error *err) {
    struct quantise *z = arg;
    if (w == &z->model->lm_head || q->format != WEIGHT_INT4) return fill_rounded(z, w, q, first, n, codes, scales, err);
    const float *U;
    int rc = take_factor(z, w, &U, err);
    if (rc) return rc;
    const size_t size = (size_t)n * w->cols;
    if (size > z->rows_size) {
        free(z->rows);
        z->rows = malloc(size * sizeof *z->rows);
        z->rows_size = z->rows ? size : 0;
        if (!z->rows) return rod_fail_no_memory(err);
    }
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t row = first + r;
        const struct weight_part *part = &w->part[row >= w->part[0].rows];
        weight_part_to_f32(part, (size_t)(part == w->part ? row : row - w->part[0].rows) * w->cols, w->cols,
                           z->rows + (size_t)r * w->cols);
    }
    second_order_round(U, w->cols, z->rows, n, codes, scales, z->team);
    return 0;
}

/* Codes are of the format that was asked for, or stand beside such: opening refuses others. */
static int check_wide(const struct model *model, struct rod_error *err) {
    const struct weight *w;
    for (size_t i = 0; (w = model_product(model, i)); i++)
        for (uint32_t p = 0; p < w->n_parts; p++)
            if (w->part[p].codes)
                return rod_fail(err, ROD_EUNSUPPORTED, "%.120s is quantised already, in %s: begin from its 16 bits.",
                                model->name, weight_format_name(model->weights));
    return 0;
}

int rod_quantise(const struct rod_quantise_options *options, struct rod_error *err) {
    const struct model_choice choice = {.dir = options->model_dir, .weights = options->weights};
    struct quantise z = {.options = options};
    int rc = model_open_either(&choice, &options->progress, &z.model, err);
    if (rc) return rc;
    const bool calibrated = options->calibrate && *options->calibrate;
    if (z.model->weights == WEIGHT_STORED)
        rc = rod_fail_at(err, ROD_EINVALID, "weights", "weights is auto; fp8, int8 or int4 is needed.");
    else if (calibrated && z.model->weights != WEIGHT_INT4)
        rc = rod_fail_at(err, ROD_EINVALID, "calibrate", "calibrate is for int4: 8 bits lose next to nothing without.");
    if (!rc) rc = check_wide(z.model, err);
    if (!rc && !(z.team = team_open(options->n_threads))) rc = rod_fail_no_memory(err);
    if (!rc && calibrated) rc = read_text(&z, err);
    if (!rc && calibrated) rc = make_sums(&z, err);
    const struct model_rows rows = {calibrated ? fill_calibrated : fill_rounded, &z};
    if (!rc) rc = model_write(z.model, options->model_dir, options->out_dir, &rows, &options->progress, err);
    for (uint32_t i = 0; i < N_INPUTS; i++) free(z.sums[i]);
    free(z.work);
    free(z.rows);
    free(z.ids);
    if (z.team) team_close(z.team);
    model_close(z.model);
    return rc;
}
