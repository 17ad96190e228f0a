/* verify.c - see verify.h. Comparisons are written so that a NaN on either side fails them. */
#include "engine/base/fail.h"
#include "engine/base/philox.h"
#include "engine/state/state_formats.h"
#include "verify.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t row_argmax(const float *row, uint32_t n) { /* ties to the lower id */
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* ---- running ---- */

void verify_free(struct verify_result *result) {
    if (!result) return;
    golden_free_state(result->layers, result->n_layers);
    free(result->logits);
    free(result->greedy_logits);
    free(result);
}

static int verify_run_prompt(const struct backend_ops *ops, struct backend *be, uint32_t V, const struct golden *g,
                             uint32_t first_tok, uint32_t piece_tok, float *logits, const struct verify_watch *watch,
                             struct rod_error *err) {
    const struct backend_info *info = ops->info(be);
    uint32_t most = info->max_batch_tok < info->max_out ? info->max_batch_tok : info->max_out;
    if (piece_tok == 0 || piece_tok > most) piece_tok = most;
    if (first_tok == 0 || first_tok > most) first_tok = piece_tok;
    ops->slot_zero(be, 0);
    if (watch) rod_progress(&watch->to, watch->what, "tokens", 0, g->T);
    for (uint32_t pos = 0; pos < g->T;) {
        uint32_t n = pos ? piece_tok : first_tok;
        if (n > g->T - pos) n = g->T - pos;
        struct backend_segment segment = {
            .slot = 0, .n_tok = n, .n_out = n, .pos = pos, .tok = g->ids + pos, .prompt = true};
        const float *rows;
        int rc = ops->forward(be, &segment, 1, &rows, err);
        if (rc) return rc;
        memcpy(logits + (size_t)pos * V, rows, (size_t)n * V * sizeof *logits);
        pos += n;
        if (watch) rod_progress(&watch->to, watch->what, "tokens", pos, g->T);
    }
    return 0;
}

/* The reference's own ids are fed, so that one close call does not make every later id another. */
static int verify_run_greedy(const struct backend_ops *ops, struct backend *be, uint32_t V, const struct golden *g,
                             const float *last, float *greedy_logits, struct rod_error *err) {
    if (g->n_greedy == 0) return 0;
    memcpy(greedy_logits, last, V * sizeof *last);
    for (uint32_t i = 0; i + 1 < g->n_greedy; i++) {
        struct backend_segment segment = {.slot = 0, .n_tok = 1, .n_out = 1, .pos = g->T + i, .tok = &g->greedy_ids[i]};
        const float *row;
        int rc = ops->forward(be, &segment, 1, &row, err);
        if (rc) return rc;
        memcpy(greedy_logits + (size_t)(i + 1) * V, row, V * sizeof *row);
    }
    return 0;
}

int verify_run(const struct backend_ops *ops, struct backend *be, const struct model_dims *d, const struct golden *g,
               uint32_t first_tok, uint32_t piece_tok, struct verify_result **out, const struct verify_watch *watch,
               struct rod_error *err) {
    struct verify_result *r = calloc(1, sizeof *r);
    if (r) {
        r->n_layers = d->L;
        r->logits = malloc((size_t)g->T * d->V * sizeof *r->logits);
        r->greedy_logits = malloc((size_t)g->n_greedy * d->V * sizeof *r->greedy_logits);
        r->layers = golden_new_state(d, g->n_keys);
    }
    int rc = r && r->logits && r->greedy_logits && r->layers
                 ? verify_run_prompt(ops, be, d->V, g, first_tok, piece_tok, r->logits, watch, err)
                 : rod_fail_no_memory(err);
    if (!rc) rc = golden_read_slot(ops, be, 0, g->T, r->layers, err);
    if (!rc) rc = verify_run_greedy(ops, be, d->V, g, r->logits + (size_t)(g->T - 1) * d->V, r->greedy_logits, err);
    if (rc) {
        verify_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* ---- a reference where there is no golden file ---- */

/* The CPU backend's facts, for a prompt of random ids. It sums in fp32 and is checked against the golden
 * files, so a GPU is compared with it at full size. */
enum { N_GREEDY = 8 };

/* The prompt's logits and states; then the ids that follow it, each fed back. */
static int verify_run_reference(struct backend *be, const struct model_dims *d, const struct rod_progress_to *progress,
                                struct golden *g, struct rod_error *err) {
    struct verify_result *r;
    const struct verify_watch watch = {*progress, "the CPU's answer"};
    int rc = verify_run(&backend_cpu, be, d, g, 0, 0, &r, &watch, err);
    if (rc) return rc;
    g->logits = r->logits;
    g->layers = r->layers;
    r->logits = NULL, r->layers = NULL;
    verify_free(r);
    const float *row = g->logits + (size_t)(g->T - 1) * d->V;
    for (uint32_t i = 0; !rc && i < N_GREEDY; i++) {
        g->greedy_ids[i] = (int32_t)row_argmax(row, d->V);
        struct backend_segment segment = {.slot = 0, .n_tok = 1, .n_out = 1, .pos = g->T + i, .tok = &g->greedy_ids[i]};
        if (i + 1 < N_GREEDY) rc = backend_cpu.forward(be, &segment, 1, &row, err);
    }
    g->n_greedy = N_GREEDY;
    return rc;
}

static enum weight_format verify_format_of(const struct model *model) {
    struct weight_quant q;
    return weight_quant_of(model, &model->layers[0].fc, &q) ? q.format : WEIGHT_STORED;
}

int verify_reference(const struct model *model, uint32_t n_tok, uint32_t n_threads,
                     const struct rod_progress_to *progress, struct golden **out, struct rod_error *err) {
    const struct model_dims *d = &model->dims;
    struct golden *g = calloc(1, sizeof *g);
    if (g) g->ids = malloc(n_tok * sizeof *g->ids), g->greedy_ids = malloc(N_GREEDY * sizeof *g->greedy_ids);
    if (!g || !g->ids || !g->greedy_ids) {
        golden_close(g);
        return rod_fail_no_memory(err);
    }
    g->T = n_tok;
    g->n_layers = d->L;
    g->n_keys = !d->plus ? 0 : n_tok < d->visible ? n_tok : d->visible;
    for (uint32_t i = 0; i < n_tok; i++) g->ids[i] = (int32_t)(philox_uniform(1, i, 0) * d->V);
    const struct backend_config config = {
        .n_slots = 1,
        .n_threads = n_threads,
        .device = "cpu",
        .precision = verify_format_of(model) == WEIGHT_STORED ? "auto" : "fp32", /* codes as numbers */
        .progress = *progress};
    struct backend *be = NULL;
    int rc = backend_cpu.open(model, &config, &be, err);
    if (!rc) rc = verify_run_reference(be, d, progress, g, err);
    if (be) backend_cpu.close(be);
    if (rc) {
        golden_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

/* ---- comparing ---- */

/* fp32: the vectors were computed in float64, so what is left is fp32 rounding; every id must agree on the CPU (the
 * sets' smallest margin is far above it). A GPU's fp32 has sums of another order and fast exponentials. 16-bit
 * arithmetic: rounding of each operand, 2^-11 or 2^-8, grown through the layers. On a GPU ids may differ where the
 * reference's best two are within a tenth of the logits' deviation. The bound on one element is there because a single
 * wrong value hides in a norm: in fp32 six times the worst of the vectors (2e-5, of S). Against the CPU's
 * fp32 sums a model may be of a published size: some 100 norms and products deep, and wider; of its rows of S, 3,072 in
 * Rodimus-1.4B, one whose gate g^tau is tiny may be off by twice its own size (2.05 seen in bf16) where S as a whole is
 * off by 3 %. Weights in fewer bits: a golden file is of wider ones, so the bounds are of what rounding them does to
 * the vectors' random weights: int8 2.7 %, fp8 11 %, int4 37 %, and ids differ as often as that lets
 * them. The CPU reads the same codes, as numbers in fp32, so against it the bounds are those of the arithmetic. */
struct verify_bounds verify_bounds(enum dtype arithmetic, enum weight_format format, bool gpu, bool against_cpu) {
    static const struct verify_bounds rounded[WEIGHT_N_FORMATS] = {
        [WEIGHT_INT8] = {4e-2, 0.4, 0.2}, [WEIGHT_FP8] = {0.16, 2, 0.6}, [WEIGHT_INT4] = {0.5, 8, 2}};
    if (format != WEIGHT_STORED && !against_cpu) return rounded[format];
    switch (arithmetic) {
    case DTYPE_F32:
        return against_cpu ? (struct verify_bounds){1e-3, 1e-2, 0.1}
               : gpu       ? (struct verify_bounds){1e-4, 1e-3, 0.1}
                           : (struct verify_bounds){1e-5, 1e-4, 0};
    case DTYPE_F16:
        return against_cpu ? (struct verify_bounds){8e-3, 0.3, 0.1} : (struct verify_bounds){2.5e-3, 0.1, 0.1};
    case DTYPE_BF16:
    case DTYPE_FP8:
    case DTYPE_INT8: break;
    }
    return against_cpu ? (struct verify_bounds){6e-2, 4, 0.1} : (struct verify_bounds){1.5e-2, 0.5, 0.1};
}

/* The reference's windows have all bits, so the bounds are of what rounding them does to the golden sets: int8 at
 * most 3.5e-3 of the logits and 6.6e-3 of keys and values, an element of S 6.6e-2; one argmax of 549 was another. fp8
 * rounds keys and values by 2.7e-2, four times as much; on a GPU the golden sets were not read with it yet. */
struct verify_bounds verify_bounds_of_states(struct verify_bounds bounds, const struct state_layout *l) {
    static const struct verify_bounds windows[N_DTYPES] = {
        [DTYPE_INT8] = {1e-2, 0.15, 0.05}, [DTYPE_FP8] = {4e-2, 0.6, 0.2}};
    if (l->window == l->act) return bounds;
    const struct verify_bounds more = windows[l->window];
    return (struct verify_bounds){bounds.rel + more.rel, bounds.max + more.max, bounds.margin + more.margin};
}

struct rod_verify_report *verify_new_report(const struct model_dims *d, struct verify_bounds bounds) {
    struct rod_verify_report *report = calloc(1, sizeof *report);
    if (!report) return NULL;
    report->rows = calloc(ROD_VERIFY_N_MODES * (1 + 4 * (size_t)d->L), sizeof *report->rows);
    if (!report->rows) {
        free(report);
        return NULL;
    }
    report->rel_bound = bounds.rel;
    report->max_bound = bounds.max;
    report->margin = bounds.margin;
    report->passed = true;
    return report;
}

void rod_verify_free(struct rod_verify_report *report) {
    if (!report) return;
    free(report->rows);
    free(report);
}

/* A row of S is a sum over tokens of one number of each k. Of so few tokens all may nearly cancel (in 5 of 34 random
 * models), and what is left is k's rounding: then all of S is one scale. From three tokens on none of 700 did. */
enum { FEW_TOK = 2 };

/* n values in rows that share one scale, their rms: rows of S decay at their own speeds. */
static void verify_compare_values(const float *ref, const float *x, size_t n, size_t row, const char *what, int mode,
                                  struct rod_verify_report *report) {
    double diff2 = 0, ref2 = 0, max_err = 0;
    bool finite = true;
    for (size_t first = 0; first < n; first += row) {
        double row_diff = 0, row_ref2 = 0;
        for (size_t i = first; i < first + row; i++) {
            double r = (double)ref[i], d = (double)x[i] - r;
            finite &= isfinite(d) && isfinite(r);
            diff2 += d * d;
            row_ref2 += r * r;
            if (fabs(d) > row_diff) row_diff = fabs(d);
        }
        ref2 += row_ref2;
        double rms = sqrt(row_ref2 / (double)row);
        double err = row_diff == 0 ? 0 : row_diff / rms; /* a row of zeros: any difference is infinite */
        if (err > max_err) max_err = err;
    }
    assert(n > 0 && n % row == 0);
    struct rod_verify_row *out = &report->rows[report->n_rows++];
    snprintf(out->what, sizeof out->what, "%s", what);
    out->mode = mode;
    out->rel_err = !finite ? NAN : diff2 == 0 ? 0 : sqrt(diff2 / ref2);
    out->max_err = finite ? max_err : NAN;
    out->ok = out->rel_err <= report->rel_bound && out->max_err <= report->max_bound; /* false for NAN */
    if (!out->ok) report->passed = false;
}

static double row_deviation(const float *row, uint32_t n) {
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)row[i], square += (double)row[i] * (double)row[i];
    double mean = sum / n;
    return sqrt(fmax(square / n - mean * mean, 0));
}

/* Whether choosing `chosen` where the reference chose `wanted` is a close call: judged by row, the reference's logits
 * where they are known. */
static bool choice_is_close(const float *row, uint32_t n, uint32_t wanted, uint32_t chosen, double margin) {
    double gap = fabs((double)row[wanted] - (double)row[chosen]);
    return margin > 0 && gap <= margin * row_deviation(row, n);
}

void verify_compare(const struct golden *g, const struct verify_result *r, const struct model_dims *d, int mode,
                    struct rod_verify_report *report) {
    verify_compare_values(g->logits, r->logits, (size_t)g->T * d->V, d->V, "logits", mode, report);
    for (uint32_t i = 0; i < d->L; i++)
        for (uint32_t which = 0; which < (d->plus ? 4 : 2); which++) {
            struct golden_tensor ref = golden_state_tensor(&g->layers[i], d, which);
            struct golden_tensor got = golden_state_tensor(&r->layers[i], d, which);
            char what[32];
            snprintf(what, sizeof what, "state.%u.%s", i, ref.name);
            const bool few = which == 0 && g->T <= FEW_TOK;
            verify_compare_values(ref.values, got.values, ref.n, few ? ref.n : ref.row, what, mode, report);
        }

    struct rod_verify_agreement *a = &report->agreement[mode];
    for (uint32_t t = 0; t < g->T; t++) {
        const float *ref = g->logits + (size_t)t * d->V;
        uint32_t wanted = row_argmax(ref, d->V), chosen = row_argmax(r->logits + (size_t)t * d->V, d->V);
        if (wanted == chosen)
            a->argmax_same++;
        else
            a->argmax_excused += choice_is_close(ref, d->V, wanted, chosen, report->margin);
    }
    for (uint32_t i = 0; i < g->n_greedy; i++) {
        const float *row = r->greedy_logits + (size_t)i * d->V;
        uint32_t wanted = (uint32_t)g->greedy_ids[i], chosen = row_argmax(row, d->V);
        if (wanted == chosen)
            a->greedy_same++;
        else
            a->greedy_excused += choice_is_close(row, d->V, wanted, chosen, report->margin);
    }
    assert(report->n_rows <= ROD_VERIFY_N_MODES * (1 + 4 * (size_t)d->L));
    assert(a->argmax_same + a->argmax_excused <= g->T && a->greedy_same + a->greedy_excused <= g->n_greedy);
    report->n_tok = g->T;
    report->n_greedy = g->n_greedy;
    a->ok = a->argmax_same + a->argmax_excused == g->T && a->greedy_same + a->greedy_excused == g->n_greedy;
    if (!a->ok) report->passed = false;
}

/* ---- all of it ---- */

/* What the arithmetic is done in: fp32 on the CPU whatever the weights' type; on a GPU the precision asked for, or with
 * "auto" the weights' own type, fp32 becoming bf16. */
static enum dtype verify_arithmetic_of(const struct backend_ops *ops, const char *precision,
                                       const struct model *model) {
    if (!strcmp(ops->name, "cpu")) return DTYPE_F32;
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        if (!strcmp(precision, dtype_name(dtype))) return dtype;
    return model->weight_dtype == DTYPE_F32 ? DTYPE_BF16 : model->weight_dtype;
}

static int verify_model(const struct rod_verify_options *o, const struct model *model, struct rod_verify_report **out,
                        struct rod_error *err) {
    const char *precision = o->precision ? o->precision : "auto";
    const struct backend_ops *ops;
    struct golden *golden = NULL;
    struct backend *be = NULL;
    struct backend_config config = {.n_slots = 1,
                                    .n_threads = o->n_threads,
                                    .device = o->device ? o->device : "auto",
                                    .precision = precision,
                                    .window_dtype = o->window_dtype,
                                    .state_dtype = o->state_dtype,
                                    .prompt_products = o->prompt_products,
                                    .deterministic = o->deterministic,
                                    .progress = o->progress};
    int rc = backend_find(config.device, &ops, err);
    if (!rc)
        rc = o->golden_path
                 ? golden_open(o->golden_path, &model->dims, &golden, err)
                 : verify_reference(model, o->n_tok ? o->n_tok : 64, o->n_threads, &o->progress, &golden, err);
    if (!rc) rc = ops->open(model, &config, &be, err);
    struct rod_verify_report *report = NULL;
    if (!rc) {
        enum dtype arithmetic = verify_arithmetic_of(ops, precision, model);
        const struct verify_bounds bounds =
            verify_bounds(arithmetic, verify_format_of(model), strcmp(ops->name, "cpu") != 0, !o->golden_path);
        report = verify_new_report(&model->dims, verify_bounds_of_states(bounds, ops->info(be)->state));
        if (!report) rc = rod_fail_no_memory(err);
        if (report) {
            snprintf(report->model, sizeof report->model, "%s", model->name);
            snprintf(report->device, sizeof report->device, "%s", ops->info(be)->device);
            snprintf(report->precision, sizeof report->precision, "%s", dtype_name(arithmetic));
            state_formats_name(ops->info(be)->state, report->window_dtype, report->state_dtype);
        }
    }
    for (int mode = 0; mode < ROD_VERIFY_N_MODES && !rc; mode++) {
        bool steps = mode == ROD_VERIFY_STEPS;
        struct verify_result *result;
        const struct verify_watch watch = {o->progress, steps ? "single steps" : "prefill"};
        rc = verify_run(ops, be, &model->dims, golden, steps ? 1 : o->first_tok, steps ? 1 : o->piece_tok, &result,
                        &watch, err);
        if (rc) break;
        verify_compare(golden, result, &model->dims, mode, report);
        verify_free(result);
    }
    if (be) ops->close(be);
    golden_close(golden);
    if (rc) {
        rod_verify_free(report);
        return rc;
    }
    *out = report;
    return 0;
}

int rod_verify(const struct rod_verify_options *options, struct rod_verify_report **out, struct rod_error *err) {
    struct model *model;
    if (!options->model_dir == !options->synthetic)
        return rod_fail(err, ROD_EINVALID, "give either a model directory or the name of a synthetic model");
    const struct model_choice choice = {.dir = options->model_dir,
                                        .synthetic = options->synthetic,
                                        .adapter = options->adapter_dir,
                                        .weights = options->weights};
    int rc = model_open_either(&choice, &options->progress, &model, err);
    if (rc) return rc;
    rc = verify_model(options, model, out, err);
    model_close(model);
    return rc;
}
