/* bench.c - decode and prefill of a backend against what the machine can do, measured in the same run.
 *
 * A decode step must read the weights once and, for each session, read and write S and read the visible window: its
 * bytes over the measured read bandwidth are one floor. Its products are the other: FLOP over the measured rate of a
 * matrix product whose operands stay in cache. The ceiling is the larger floor. On a CPU reading and steps alternate,
 * and a row has the median of both.
 * Tokens are pseudo-random ids, states are those that such tokens leave: nothing is timed on zeros. One session reads
 * the context and the others get a copy of its state, where the backend copies slots. Where the device
 * samples, decode runs as the engine runs it: the next step is launched before the last one is collected, and reads the
 * token that the last one drew (greedily).
 */
#include "bench_ceiling.h"
#include "tools.h"
#include "engine/base/fail.h"
#include "engine/backend/backend.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"
#include "engine/state/state_formats.h"
#include "engine/backend/cpu/cpu_team.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of steps, then half as long of reading, but not for minutes. Steps that are much shorter seldom find a cache that
 * reading filled. */
static const double TURN_S = 0.05, MOST_READING_S = 1;
enum { MIN_STEPS = 5, MAX_STEPS = 100000, ROUND_STEPS = 4, WARM_STEPS = ROUND_STEPS };

static double bench_now_s(void) { return 1e-9 * (double)clock_now_ns(); }
static double bench_thread_s(void) { return 1e-9 * (double)clock_read_ns(CLOCK_THREAD_CPUTIME_ID); }

static int32_t bench_token_at(uint32_t vocab, uint64_t seed) { /* splitmix64 */
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int32_t)((x ^ x >> 31) % vocab);
}

static uint64_t resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    int n = fscanf(f, "%lu %lu", &total, &resident);
    fclose(f);
    return n == 2 ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGE_SIZE) : 0;
}

/* ---- what a step must move and do ---- */

/* Multiply-adds of all matrices for one token; the head only where logits are wanted. */
static double matrix_flop(const struct model_dims *d, bool head) {
    double layer = 2.0 * d->D * d->E + 4.0 * d->E * d->M + 2.0 * d->E * d->R + (double)d->E * d->D;
    if (d->plus) layer += (double)d->D * d->P * (2.0 * d->H + d->Hk + d->Hv) + 3.0 * d->D * d->F;
    return 2 * (layer * d->L + (head ? (double)d->D * d->V : 0));
}

static double recurrence_flop(const struct model_dims *d, double keys) { /* decay, update, read; scores and values */
    return d->L * (5.0 * d->M * d->E + 4.0 * keys * d->H * d->P);
}

/* One session in one step: S is read and written, the rest read. */
static double state_bytes(const struct state_layout *l, double keys) {
    const double S = (double)dtype_bytes(l->S) * l->M * l->E, conv = (double)dtype_bytes(l->act) * l->K * l->E;
    const double head = (double)dtype_bytes(l->window) * l->P + (double)state_scale_bytes(l->window);
    return l->L * (2 * S + conv + keys * head * (l->Hk + l->Hv));
}

/* Of these, what a decode step of so many sessions does not move: it writes S at one token of a few, and of the others
 * what changes S, in fp32, which those up to the next writing read. */
static double bench_unwritten_bytes(const struct model_dims *d, const struct backend_info *info, uint32_t batch) {
    const double n = info->deferred_tok, token = 4.0 * (d->E + 2.0 * d->M);
    if (!info->deferred_tok || batch <= info->defer_rows) return 0;
    return d->L * (4.0 * d->M * d->E * n / (n + 1) - token * (n / (n + 1) + n / 2));
}

/* ---- rows ---- */

struct bench {
    const struct rod_bench_options *options;
    const struct backend_ops *ops;
    struct backend *be;
    struct team *team; /* for the ceilings */
    const struct model *model;
    double flop_per_s, read_bytes_per_s; /* the latter 0: measured for each row */
    int32_t *ids;
    double *times;
    struct bench_reader *reader; /* of a row on a CPU */
    double *rates, between_s;    /* of its reads; of steps since the last of them */
    double read_s, read_cpu_s;   /* what the row's reads took, which are no part of its steps */
    size_t n_rates;
    struct backend_segment *segs;
    uint64_t *pos;
};

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bench_median(double *x, size_t n) {
    assert(n > 0 && n <= MAX_STEPS);
    qsort(x, n, sizeof *x, compare_times);
    return x[n / 2];
}

/* So many bytes are what the row's steps touch. */
static int bench_reads_begin(struct bench *b, double bytes, struct rod_error *err) {
    b->between_s = b->read_s = b->read_cpu_s = 0, b->n_rates = 0;
    if (b->read_bytes_per_s > 0) return 0;
    b->reader = bench_reader_open(b->team, bytes);
    return b->reader ? 0 : rod_fail_no_memory(err);
}

static void bench_reads_read(struct bench *b, double at_least_s) {
    const double begin = bench_now_s(), cpu_begin = bench_thread_s();
    while (b->n_rates < MAX_STEPS && (!b->n_rates || bench_now_s() - begin < at_least_s))
        b->rates[b->n_rates++] = bench_reader_rate(b->reader);
    b->read_s += bench_now_s() - begin;
    b->read_cpu_s += bench_thread_s() - cpu_begin;
}

/* After a step of so many seconds. */
static void bench_reads_step(struct bench *b, double s) {
    if (!b->reader || (b->between_s += s) < TURN_S) return;
    bench_reads_read(b, fmin(b->between_s / 2, MOST_READING_S));
    b->between_s = 0;
}

/* Bytes a second that reading reached. */
static double bench_reads_end(struct bench *b) {
    if (!b->reader) return b->read_bytes_per_s;
    if (!b->n_rates) bench_reads_read(b, 0);
    bench_reader_close(b->reader);
    b->reader = NULL;
    return bench_median(b->rates, b->n_rates);
}

/* Reads n_tok more tokens into a slot, in steps as large as fit. */
static int bench_read_tokens(struct bench *b, uint32_t slot, uint64_t n_tok, struct rod_error *err) {
    const struct backend_info *info = b->ops->info(b->be);
    uint32_t most = info->max_batch_tok / info->chunk_tok * info->chunk_tok;
    const float *logits;
    while (n_tok > 0) {
        uint32_t n = (uint32_t)(n_tok < most ? n_tok : most);
        uint64_t to_border = info->chunk_tok - b->pos[slot] % info->chunk_tok;
        if (to_border != info->chunk_tok && n > to_border) n = (uint32_t)to_border;
        for (uint32_t i = 0; i < n; i++)
            b->ids[i] = bench_token_at(b->model->dims.V, b->pos[slot] + i + 1000003u * slot);
        struct backend_segment seg = {slot, n, n == n_tok, b->pos[slot], b->ids, true};
        int rc = b->ops->forward(b->be, &seg, 1, &logits, err);
        if (rc) return rc;
        b->pos[slot] += n;
        assert(n <= n_tok && n > 0);
        n_tok -= n;
    }
    return 0;
}

/* A step's, of so many sessions, each of which sees so many keys. */
static double bench_step_bytes(const struct bench *b, double sessions, double keys) {
    return (double)model_step_bytes(b->model) + sessions * state_bytes(b->ops->info(b->be)->state, keys);
}

/* Rows of a step of the prompts of so many sessions, as the scheduler has them (sched_step_tok). */
static uint32_t bench_step_tok(const struct bench *b, double sessions) {
    const struct backend_info *info = b->ops->info(b->be);
    return sessions > 1 && info->shared_tok ? info->shared_tok : info->max_batch_tok;
}

/* Steps that prompts of so many tokens take, each of which reads the weights; the sessions of one of them. */
static double bench_prompt_steps(const struct bench *b, double tokens, double sessions) {
    return ceil(tokens / bench_step_tok(b, sessions));
}
static double bench_prompt_sessions(const struct bench *b, double tokens, double sessions) {
    return fmax(1, sessions / bench_prompt_steps(b, tokens, sessions));
}

static void bench_fill_row(struct bench *b, struct rod_bench_row *row, size_t n_times, double tokens, double keys,
                           double heads) {
    const struct model_dims *d = &b->model->dims;
    const struct backend_info *info = b->ops->info(b->be);
    const double n_steps = row->prefill ? bench_prompt_steps(b, tokens, row->batch) : 1;
    const double median = bench_median(b->times, n_times);
    row->ms = 1e3 * median;
    row->ms_low = 1e3 * b->times[0];
    row->ms_high = 1e3 * b->times[n_times - 1];
    row->tokens_per_s = tokens / median;
    row->flop = tokens * (matrix_flop(d, false) + recurrence_flop(d, keys)) + heads * 2.0 * d->D * d->V;
    row->bytes =
        n_steps * bench_step_bytes(b, row->prefill ? bench_prompt_sessions(b, tokens, row->batch) : row->batch, keys);
    row->moved_bytes = row->bytes - (row->prefill ? 0 : row->batch * bench_unwritten_bytes(d, info, row->batch));
    row->read_bytes_per_s = bench_reads_end(b);
    row->flop_per_s = b->flop_per_s;
    row->ceiling = tokens / fmax(row->bytes / row->read_bytes_per_s, row->flop / row->flop_per_s);
    row->fraction = row->tokens_per_s / row->ceiling;
    row->moved_fraction =
        row->tokens_per_s / tokens * fmax(row->moved_bytes / row->read_bytes_per_s, row->flop / row->flop_per_s);
    row->resident_bytes = resident_bytes();
    snprintf(row->model, sizeof row->model, "%s", b->model->name);
    snprintf(row->device, sizeof row->device, "%s", info->device);
    const char *precision = b->options->precision;
    const bool own = !precision || !strcmp(precision, "auto");
    snprintf(row->weights, sizeof row->weights, "%s", model_weights_name(b->model));
    snprintf(row->dtype, sizeof row->dtype, "%s", own ? dtype_name(b->model->weight_dtype) : precision);
    state_formats_name(info->state, row->window_dtype, row->state_dtype);
}

/* The times of complete steps, and what the thread and the bus had to do. */
struct decode_times {
    size_t n;
    double begin, cpu_begin, wall, cpu;
};

static bool bench_decode_goes_on(const struct bench *b, int step, struct decode_times *t) {
    const double now = bench_now_s() - b->read_s, cpu = bench_thread_s() - b->read_cpu_s;
    if (step == WARM_STEPS) t->begin = now, t->cpu_begin = cpu;
    if (t->n < MAX_STEPS && (step <= WARM_STEPS || t->n < MIN_STEPS || now - t->begin <= b->options->seconds))
        return true;
    t->wall = now - t->begin;
    t->cpu = cpu - t->cpu_begin;
    return false;
}

/* A session stays at its context, within a round of a few positions: a step may do at some of them what it leaves at
 * others (on a GPU a state is written at every fourth), and sessions that began together alternate at it only if they
 * move. */
static uint64_t bench_position(const struct bench *b, uint32_t i, int step) {
    return b->pos[i] + (uint64_t)step % ROUND_STEPS;
}

static int bench_decode_by_device(struct bench *b, uint32_t batch, struct decode_times *times, struct rod_error *err) {
    const struct rod_sampling greedy = rod_sampling_greedy();
    const struct backend_sampling sampling = {.sampling = &greedy, .max_tokens = UINT32_MAX, .n_logprobs = -1};
    const struct backend_token *tokens;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < batch; i++) {
        b->ids[i] = bench_token_at(b->model->dims.V, 1000003u * i);
        b->segs[i] = (struct backend_segment){i, 1, 1, bench_position(b, i, 0), &b->ids[i], false};
        rc = b->ops->slot_sampling(b->be, i, &sampling, err);
    }
    if (!rc) rc = b->ops->launch(b->be, b->segs, batch, err);
    for (uint32_t i = 0; i < batch; i++) b->segs[i].tok = NULL;
    double last = bench_now_s();
    for (int step = 0; !rc && bench_decode_goes_on(b, step, times); step++) {
        for (uint32_t i = 0; i < batch; i++) b->segs[i].pos = bench_position(b, i, step + 1);
        rc = b->ops->launch(b->be, b->segs, batch, err);
        if (!rc) rc = b->ops->collect(b->be, &tokens, err);
        for (uint32_t i = 0; !rc && i < batch; i++)
            if (tokens[i].masked || tokens[i].status != SAMPLER_OK)
                rc = rod_fail(err, ROD_EINTERNAL, "session %u gives no token", i);
        if ((step + 1) % ROUND_STEPS) continue; /* a round's mean, as its steps differ */
        double now = bench_now_s();
        if (step >= WARM_STEPS) b->times[times->n++] = (now - last) / ROUND_STEPS;
        last = now;
    }
    return rc ? rc : b->ops->collect(b->be, &tokens, err);
}

/* Tokens of the host, with drafts behind each none of which is accepted: a step as the engine has it, which waits for
 * it before it knows the next one. */
static int bench_verify(struct bench *b, uint32_t batch, uint32_t drafts, struct decode_times *times,
                        struct rod_error *err) {
    const uint32_t n = 1 + drafts;
    const struct rod_sampling greedy = rod_sampling_greedy();
    const struct backend_sampling sampling = {.sampling = &greedy, .max_tokens = UINT32_MAX, .n_logprobs = -1};
    const struct backend_token *tokens;
    const float *logits;
    int rc = 0;
    for (uint32_t i = 0; !rc && b->ops->launch && i < batch; i++) rc = b->ops->slot_sampling(b->be, i, &sampling, err);
    for (int step = 0; !rc && bench_decode_goes_on(b, step, times); step++) {
        for (uint32_t i = 0; i < batch; i++) {
            for (uint32_t t = 0; t < n; t++)
                b->ids[i * n + t] = bench_token_at(b->model->dims.V, (uint64_t)step * n + t + 1000003u * i);
            b->segs[i] = (struct backend_segment){i, n, n, bench_position(b, i, step), &b->ids[i * n], false};
        }
        double t = bench_now_s();
        if (!b->ops->launch)
            rc = b->ops->forward(b->be, b->segs, batch, &logits, err);
        else if (!(rc = b->ops->launch(b->be, b->segs, batch, err)))
            rc = b->ops->collect(b->be, &tokens, err);
        t = bench_now_s() - t;
        if (step >= WARM_STEPS) b->times[times->n++] = t;
        bench_reads_step(b, t);
    }
    return rc;
}

/* drafts: NULL, steps of single tokens ahead. */
static int bench_measure_decode(struct bench *b, uint32_t batch, uint64_t context, const uint32_t *drafts,
                                struct rod_bench_row *row, struct rod_error *err) {
    const struct model_dims *d = &b->model->dims;
    struct decode_times times = {0};
    for (uint32_t i = 0; i < batch; i++) {
        if (i && b->ops->slot_copy) {
            b->ops->slot_copy(b->be, 0, i, b->pos[0]);
            b->pos[i] = b->pos[0];
            continue;
        }
        b->ops->slot_zero(b->be, i);
        b->pos[i] = 0;
        int rc = bench_read_tokens(b, i, context, err);
        if (rc) return rc;
    }
    const uint32_t n = 1 + (drafts ? *drafts : 0);
    const double keys = d->plus ? fmin((double)context + 1, d->visible) : 0;
    int rc = bench_reads_begin(b, bench_step_bytes(b, batch, keys), err);
    if (!rc)
        rc = drafts || !b->ops->launch ? bench_verify(b, batch, n - 1, &times, err)
                                       : bench_decode_by_device(b, batch, &times, err);
    if (rc) return rc;
    *row = (struct rod_bench_row){.batch = batch,
                                  .verify = drafts,
                                  .drafts = n - 1,
                                  .context = context,
                                  .host_cpu = times.cpu / times.wall,
                                  .host_bytes = (double)b->ops->info(b->be)->host_bytes};
    bench_fill_row(b, row, times.n, (double)batch * n, keys, (double)batch * n);
    return 0;
}

/* Reads a prompt of n_tok tokens into each of the first slots, as many of them in a step as fit. */
static int bench_read_packed(struct bench *b, uint32_t n_slots, uint64_t n_tok, struct rod_error *err) {
    const struct backend_info *info = b->ops->info(b->be);
    const float *logits;
    const uint32_t step_tok = bench_step_tok(b, n_slots);
    uint64_t pos = 0; /* in the prompt of the first slot that is not through */
    for (uint32_t slot = 0; slot < n_slots;) {
        uint32_t n_segs = 0, n_rows = 0, n_out = 0;
        while (slot < n_slots && n_out < info->max_out) {
            const uint32_t rows_left = step_tok - n_rows;
            const uint64_t left = n_tok - pos;
            const uint32_t n = left <= rows_left ? (uint32_t)left : rows_left / info->chunk_tok * info->chunk_tok;
            if (!n) break;
            for (uint32_t i = 0; i < n; i++)
                b->ids[n_rows + i] = bench_token_at(b->model->dims.V, pos + i + 1000003u * slot);
            b->segs[n_segs++] = (struct backend_segment){slot, n, n == left, pos, b->ids + n_rows, true};
            n_rows += n, n_out += n == left, pos += n;
            if (n != left) break;
            slot++, pos = 0;
        }
        int rc = b->ops->forward(b->be, b->segs, n_segs, &logits, err);
        if (rc) return rc;
    }
    return 0;
}

static int bench_measure_prefill(struct bench *b, uint32_t batch, uint64_t prompt, struct rod_bench_row *row,
                                 struct rod_error *err) {
    const struct model_dims *d = &b->model->dims;
    const double w = d->plus ? fmin((double)prompt, d->visible) : 0;
    const double keys = w * (1 - w / (2 * (double)prompt)); /* seen on average */
    size_t n = 0;
    const double sessions = bench_prompt_sessions(b, (double)prompt * batch, batch);
    int rc = bench_reads_begin(b, bench_step_bytes(b, sessions, keys), err);
    const double begin = bench_now_s();
    while (!rc && n < MAX_STEPS && (n < MIN_STEPS || bench_now_s() - b->read_s - begin < b->options->seconds)) {
        for (uint32_t i = 0; i < batch; i++) b->ops->slot_zero(b->be, i);
        double t = bench_now_s();
        rc = bench_read_packed(b, batch, prompt, err);
        t = bench_now_s() - t;
        b->times[n++] = t;
        bench_reads_step(b, t);
        if (b->times[0] > 30) break; /* a length of minutes is measured once */
    }
    if (rc) return rc;
    *row = (struct rod_bench_row){.prefill = true, .batch = batch, .context = prompt};
    bench_fill_row(b, row, n, (double)prompt * batch, keys, batch);
    return 0;
}

static int bench_run_rows(struct bench *b, int (*report)(void *arg, const struct rod_bench_row *row), void *arg,
                          struct rod_error *err) {
    const struct rod_bench_options *o = b->options;
    struct rod_bench_row row;
    const size_t n_drafts = o->n_drafts ? o->n_drafts : 1;
    const uint64_t n_rows =
        (uint64_t)o->n_contexts * o->n_batches * n_drafts + (o->n_packed ? o->n_packed : 1) * o->n_prompts;
    uint64_t done = 0;
    int rc = 0;
    rod_progress(&o->progress, "measuring", "rows", 0, n_rows);
    for (size_t c = 0; !rc && c < o->n_contexts; c++)
        for (size_t i = 0; !rc && i < o->n_batches * n_drafts; i++) {
            const uint32_t *drafts = o->n_drafts ? &o->drafts[i % n_drafts] : NULL;
            rc = bench_measure_decode(b, o->batches[i / n_drafts], o->contexts[c], drafts, &row, err);
            if (!rc && !(rc = report(arg, &row))) rod_progress(&o->progress, "measuring", "rows", ++done, n_rows);
        }
    const uint32_t one = 1, *packed = o->n_packed ? o->packed : &one;
    for (size_t k = 0; !rc && k < (o->n_packed ? o->n_packed : 1); k++)
        for (size_t i = 0; !rc && i < o->n_prompts; i++)
            if (!(rc = bench_measure_prefill(b, packed[k], o->prompts[i], &row, err)) && !(rc = report(arg, &row)))
                rod_progress(&o->progress, "measuring", "rows", ++done, n_rows);
    return rc;
}

int rod_bench(const struct rod_bench_options *options, int (*report)(void *arg, const struct rod_bench_row *row),
              void *arg, struct rod_error *err) {
    struct model *model = NULL;
    struct bench b = {.options = options};
    uint32_t most = 1;
    for (size_t i = 0; i < options->n_batches; i++) {
        if (options->batches[i] == 0)
            return rod_fail(err, ROD_EINVALID, "--batches: a step of 0 sessions is nothing to measure.");
        if (options->batches[i] > most) most = options->batches[i];
    }
    for (size_t i = 0; i < options->n_packed; i++) {
        if (options->packed[i] == 0) return rod_fail(err, ROD_EINVALID, "--packed: 0 prompts are nothing to measure.");
        if (options->packed[i] > most) most = options->packed[i];
    }
    uint32_t rows = most;
    for (size_t i = 0; i < options->n_drafts; i++) {
        if (options->drafts[i] > BACKEND_MAX_DRAFTS)
            return rod_fail(err, ROD_EINVALID, "%u drafts are more than a step has behind a token: at most %d",
                            options->drafts[i], BACKEND_MAX_DRAFTS);
        if (most * (1 + options->drafts[i]) > rows) rows = most * (1 + options->drafts[i]);
    }
    for (size_t i = 0; i < options->n_prompts; i++)
        if (options->prompts[i] == 0) return rod_fail(err, ROD_EINVALID, "a prompt of 0 tokens has nothing to measure");
    const struct model_choice choice = {.dir = options->model_dir,
                                        .synthetic = options->synthetic,
                                        .adapter = options->adapter_dir,
                                        .weights = options->weights};
    int rc = model_open_either(&choice, &options->progress, &model, err);
    if (!rc) rc = backend_find(options->device ? options->device : "auto", &b.ops, err);
    struct backend_config config = {.n_slots = most,
                                    .n_threads = options->n_threads,
                                    .max_out = rows,
                                    .device = options->device,
                                    .deterministic = options->deterministic,
                                    .precision = options->precision ? options->precision : "auto",
                                    .window_dtype = options->window_dtype,
                                    .state_dtype = options->state_dtype,
                                    .decode_kernel = options->decode_kernel,
                                    .prompt_products = options->prompt_products,
                                    .progress = options->progress};
    if (!rc && rows < 192 && !b.ops->ceilings) config.max_batch_tok = 256;
    if (!rc) rc = b.ops->open(model, &config, &b.be, err);
    if (!rc && (rows > b.ops->info(b.be)->max_out || (options->n_drafts && !b.ops->slot_accept)))
        rc = rod_fail(err, ROD_EINVALID, "%u rows with their drafts are more than a step has: at most %u", rows,
                      b.ops->slot_accept ? b.ops->info(b.be)->max_out : most);
    if (!rc) {
        b.model = model;
        b.team = team_open(options->n_threads);
        b.ids = calloc(b.ops->info(b.be)->max_batch_tok, sizeof *b.ids);
        b.times = calloc(MAX_STEPS, sizeof *b.times);
        b.rates = calloc(MAX_STEPS, sizeof *b.rates);
        b.segs = calloc(most, sizeof *b.segs);
        b.pos = calloc(most, sizeof *b.pos);
        if (!b.team || !b.ids || !b.times || !b.rates || !b.segs || !b.pos)
            rc = rod_fail_no_memory(err);
        else {
            if (b.ops->ceilings)
                rc = b.ops->ceilings(b.be, (double)model_step_bytes(model), &b.read_bytes_per_s, &b.flop_per_s, err);
            else
                b.flop_per_s = bench_flop_rate(b.team);
            if (!rc) rc = bench_run_rows(&b, report, arg, err);
        }
    }
    bench_reader_close(b.reader); /* of a row that failed */
    free(b.ids), free(b.times), free(b.rates), free(b.segs), free(b.pos);
    team_close(b.team);
    if (b.be) b.ops->close(b.be);
    model_close(model);
    return rc;
}
