/* cmd_bench.c - rodimus bench: a table of decode and prefill speed, each row beside what the machine could do. */
#include "bench_drafts.h"
#include "commands.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/tools/tools.h"
#include "server/base/json_file.h"
#include "server/settings/model_path.h"
#include "server/settings/flag_help.h"
#include "server/settings/options.h"
#include "server/base/progress.h"
#include "server/base/version.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench_options {
    char *model, *synthetic, *adapter, *device, *precision, *weights, *window_dtype, *state_dtype, *decode_kernel;
    char *prompt_products, *json;
    struct option_list batches, contexts, drafts, prompts, packed, acceptance;
    uint64_t threads, tokens;
    bool deterministic;
    double seconds;
};

#define AT(member)       .offset = offsetof(struct bench_options, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define WHAT             .group = "What"
#define HOW              .group = "How"

/* clang-format off */
static const struct option bench_flags[] = {
    {"model", OPTION_STRING, AT(model), WHAT, .letter = 'm', .metavar = "DIR",
     .help = "checkpoint directory; without it the bundled demo model"},
    {"synthetic", OPTION_STRING, AT(synthetic), WHAT, .metavar = "NAME",
     .help = SYNTHETIC_HELP},
    {"adapter", OPTION_STRING, AT(adapter), WHAT, .metavar = "DIR", .help = ADAPTER_HELP},
    {"batches", OPTION_LIST, AT(batches), WHAT, .fallback = "1,2,4,8,16,32,64", .metavar = "N,N,...", .help = "decode: sessions a step"},
    {"contexts", OPTION_LIST, AT(contexts), WHAT, .fallback = "512", .metavar = "N,N,...",
     .help = "decode: tokens each session has read before"},
    {"drafts", OPTION_LIST, AT(drafts), WHAT, .metavar = "K,K,...",
     .help = "decode: steps with so many draft tokens behind each session's token, 0 too, each step waited for"},
    {"prompts", OPTION_LIST, AT(prompts), WHAT, .fallback = "64,512,4096", .metavar = "N,N,...", .help = "prefill: prompt lengths"},
    {"packed", OPTION_LIST, AT(packed), WHAT, .fallback = "1", .metavar = "N,N,...", .help = "prefill: prompts read together, a session each"},
    {"acceptance", OPTION_LIST, AT(acceptance), WHAT, .metavar = "P,P,...",
     .help = "instead of these rows: sessions with drafts whose tokens are each right with this probability, beside the same ones without drafts"},
    {"tokens", OPTION_UINT, AT(tokens), WHAT, .fallback = "128", RANGE(2, 1000000), .help = "tokens that a session of these generates"},
    {"device", OPTION_CHOICE, AT(device), HOW, .fallback = "auto", .choices = "auto|cpu|cuda|cuda:N", .metavar = "NAME",
     .help = "auto, cpu, cuda or cuda:N"},
    {"precision", OPTION_CHOICE, AT(precision), HOW, .fallback = "auto", .choices = "auto|fp32|bf16|fp16", .metavar = "NAME",
     .help = PRECISION_HELP},
    {"weights", OPTION_CHOICE, AT(weights), HOW, .fallback = "auto", .choices = "auto|fp8|int8|int4", .metavar = "NAME",
     .help = WEIGHTS_HELP},
    {"window_dtype", OPTION_CHOICE, AT(window_dtype), HOW, .fallback = "auto", .choices = WINDOW_DTYPES, .metavar = "NAME",
     .help = WINDOW_DTYPE_HELP},
    {"state_dtype", OPTION_CHOICE, AT(state_dtype), HOW, .fallback = "auto", .choices = STATE_DTYPES, .metavar = "NAME",
     .help = STATE_DTYPE_HELP},
    {"decode_kernel", OPTION_CHOICE, AT(decode_kernel), HOW, .fallback = "auto", .choices = "graph|auto|any|persistent", .metavar = "NAME",
     .help = "steps of up to 8 sessions on a GPU: a kernel for each stage (graph); one launch where it is faster (auto) or where it can "
             "(any); an error if a step of one session cannot (persistent). The tokens are the same"},
    {"prompt_products", OPTION_CHOICE, AT(prompt_products), HOW, .fallback = "auto", .choices = "auto|own|library", .metavar = "NAME",
     .help = PROMPT_PRODUCTS_HELP},
    {"threads", OPTION_AUTO, AT(threads), HOW, .fallback = "auto", RANGE(1, 1024), .help = THREADS_HELP},
    {"deterministic", OPTION_BOOL, AT(deterministic), HOW, .help = DETERMINISTIC_HELP},
    {"seconds", OPTION_FLOAT, AT(seconds), HOW, .fallback = "2", RANGE(0.01, 600), .metavar = "S", .help = "time to measure a row"},
    {"json", OPTION_STRING, AT(json), .group = "Output", .metavar = "FILE", .help = "write the rows there too"},
};
/* clang-format on */

/* Numbers of a list, malloc'd as uint64_t. NULL: one of them is no number. */
static uint64_t *read_numbers(const char *flag, const struct option_list *list, uint64_t max) {
    uint64_t *values = calloc(list->n_items + 1, sizeof *values);
    for (size_t i = 0; values && i < list->n_items; i++) {
        char *end;
        errno = 0;
        unsigned long long value = strtoull(list->items[i], &end, 10);
        if (errno || end == list->items[i] || *end || list->items[i][0] == '-' || value > max) {
            fprintf(stderr, "rodimus bench: --%s: '%s' is not a number up to %llu.\n", flag, list->items[i],
                    (unsigned long long)max);
            free(values);
            return NULL;
        }
        values[i] = value;
    }
    return values;
}

static uint32_t *read_small_numbers(const char *flag, const struct option_list *list) {
    uint64_t *values = read_numbers(flag, list, 65536);
    uint32_t *small = values ? calloc(list->n_items + 1, sizeof *small) : NULL;
    for (size_t i = 0; small && i < list->n_items; i++) small[i] = (uint32_t)values[i];
    free(values);
    return small;
}

struct bench_output {
    json_t *rows;
    char date[32];
    bool header;
    struct progress progress;
};

static int report_row(void *arg, const struct rod_bench_row *row) {
    struct bench_output *output = arg;
    progress_hide(&output->progress);
    if (!output->header) {
        printf("%s, %s, %s, weights %s, S %s%s%s; ceilings: %.0f GFLOP/s, and reading a row's MB at its GB/s\n\n",
               row->model, row->device, row->dtype, row->weights, row->state_dtype,
               *row->window_dtype ? ", window " : "", row->window_dtype, row->flop_per_s / 1e9);
        printf("%-8s %6s %9s %12s %10s %10s %7s %10s %9s %9s\n", "phase", "batch", "context", "tokens/s", "ms", "MB",
               "GB/s", "GFLOP", "ceiling", "resident");
        output->header = true;
    }
    const char *phase = row->prefill ? "prefill" : row->verify ? "verify" : "decode";
    char drafts[16] = "";
    if (row->verify) snprintf(drafts, sizeof drafts, "+%u", row->drafts);
    printf("%-7s%-2s%6u %9llu %12.1f %10.3f %10.2f %7.0f %10.3f %8.1f%% %6.0f MB\n", phase, drafts, row->batch,
           (unsigned long long)row->context, row->tokens_per_s, row->ms, row->bytes / 1e6, row->read_bytes_per_s / 1e9,
           row->flop / 1e9, 100 * row->fraction, (double)row->resident_bytes / 1e6);
    if (fflush(stdout)) return -1; /* main.c says so */
    json_t *object = json_pack(
        "{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:f,s:f}",
        "model", row->model, "phase", phase, "device", row->device, "commit", version_commit(), "date", output->date,
        "dtype", row->dtype, "weights", row->weights, "window_dtype", row->window_dtype, "state_dtype",
        row->state_dtype, "batch", (int)row->batch, "context", (json_int_t)row->context, "tokens_per_s",
        row->tokens_per_s, "ms", row->ms, "ms_low", row->ms_low, "ms_high", row->ms_high, "bytes", row->bytes,
        "moved_bytes", row->moved_bytes, "flop", row->flop, "ceiling", row->ceiling, "fraction", row->fraction,
        "moved_fraction", row->moved_fraction, "read_bytes_per_s", row->read_bytes_per_s, "flop_per_s", row->flop_per_s,
        "resident_bytes", (json_int_t)row->resident_bytes, "host_cpu", row->host_cpu, "host_bytes", row->host_bytes);
    if (row->verify) json_object_set_new(object, "drafts", json_integer(row->drafts));
    return json_array_append_new(output->rows, object);
}

static int report_drafts(void *arg, const struct rod_model_info *info, const struct bench_drafts_row *row) {
    struct bench_output *output = arg;
    progress_hide(&output->progress);
    if (!output->header) {
        printf("%s, %s, %s, weights %s, S %s%s%s: with drafts and without\n\n%8s %10s %12s %12s %8s %9s %9s\n",
               info->name, info->device, info->weight_dtype, info->weights, info->state_dtype,
               *info->window_dtype ? ", window " : "", info->window_dtype, "sessions", "acceptance", "plain tok/s",
               "tokens/s", "factor", "accepted", "rejected");
        output->header = true;
    }
    printf("%8u %10.2f %12.1f %12.1f %8.2f %9llu %9llu\n", row->n_sessions, row->acceptance, row->plain_tokens_per_s,
           row->tokens_per_s, row->tokens_per_s / row->plain_tokens_per_s, (unsigned long long)row->accepted,
           (unsigned long long)row->rejected);
    if (fflush(stdout)) return -1;
    json_t *object =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:f,s:f,s:f,s:I,s:I}", "model", info->name, "phase",
                  "drafts", "device", info->device, "commit", version_commit(), "date", output->date, "dtype",
                  info->weight_dtype, "weights", info->weights, "window_dtype", info->window_dtype, "state_dtype",
                  info->state_dtype, "speculative", "prediction", "batch", (int)row->n_sessions, "acceptance",
                  row->acceptance, "tokens_per_s", row->tokens_per_s, "plain_tokens_per_s", row->plain_tokens_per_s,
                  "accepted", (json_int_t)row->accepted, "rejected", (json_int_t)row->rejected);
    return json_array_append_new(output->rows, object);
}

/* NULL: one of them is no probability. */
static double *read_acceptances(const struct option_list *list, struct rod_error *err) {
    double *values = calloc(list->n_items + 1, sizeof *values);
    for (size_t i = 0; values && i < list->n_items; i++) {
        char *end;
        values[i] = strtod(list->items[i], &end);
        if (end == list->items[i] || *end || !(values[i] >= 0 && values[i] <= 1)) {
            rod_fail(err, ROD_EINVALID, "--acceptance: '%s' is not a probability from 0 to 1.", list->items[i]);
            free(values);
            return NULL;
        }
    }
    if (!values) rod_fail_no_memory(err);
    return values;
}

static int run_drafts(const struct bench_options *options, const struct rod_bench_options *bench,
                      struct bench_output *output, struct rod_error *err) {
    double *acceptances = read_acceptances(&options->acceptance, err);
    if (!acceptances) return err->code;
    const struct bench_drafts drafts = {.bench = bench,
                                        .n_tok = (uint32_t)options->tokens,
                                        .acceptances = acceptances,
                                        .n_acceptances = options->acceptance.n_items,
                                        .report = report_drafts,
                                        .arg = output};
    const int rc = bench_drafts(&drafts, err);
    free(acceptances);
    return rc;
}

static int run_bench(const struct bench_options *options, const char *dir, struct bench_output *output) {
    uint32_t *batches = read_small_numbers("batches", &options->batches),
             *packed = read_small_numbers("packed", &options->packed),
             *drafts = read_small_numbers("drafts", &options->drafts);
    uint64_t *contexts = read_numbers("contexts", &options->contexts, 1u << 30);
    uint64_t *prompts = read_numbers("prompts", &options->prompts, 1u << 30);
    int rc = 2;
    if (batches && contexts && prompts && packed && drafts) {
        struct rod_bench_options bench = {.model_dir = dir,
                                          .synthetic = options->synthetic[0] ? options->synthetic : NULL,
                                          .adapter_dir = options->adapter,
                                          .device = options->device,
                                          .precision = options->precision,
                                          .weights = options->weights,
                                          .window_dtype = options->window_dtype,
                                          .state_dtype = options->state_dtype,
                                          .decode_kernel = options->decode_kernel,
                                          .prompt_products = options->prompt_products,
                                          .deterministic = options->deterministic,
                                          .n_threads = (uint32_t)options->threads,
                                          .batches = batches,
                                          .n_batches = options->batches.n_items,
                                          .contexts = contexts,
                                          .n_contexts = options->contexts.n_items,
                                          .prompts = prompts,
                                          .n_prompts = options->prompts.n_items,
                                          .packed = packed,
                                          .n_packed = options->packed.n_items,
                                          .drafts = drafts,
                                          .n_drafts = options->drafts.n_items,
                                          .seconds = options->seconds};
        struct rod_error err = {0};
        progress_open(&output->progress, "rodimus bench");
        bench.progress = progress_to(&output->progress);
        rc = options->acceptance.n_items ? run_drafts(options, &bench, output, &err)
                                         : rod_bench(&bench, report_row, output, &err);
        if (rc) rc = err.code == ROD_EINVALID ? 2 : 1; /* what was asked for is nothing that could be measured */
        progress_close(&output->progress);
        if (rc) fprintf(stderr, "rodimus bench: %s\n", err.message[0] ? err.message : "cannot keep the results.");
        if (!rc && options->json[0] &&
            json_file_write(output->rows, options->json, JSON_INDENT(1) | JSON_REAL_PRECISION(7))) {
            fprintf(stderr, "rodimus bench: cannot write %s: %s.\n", options->json, strerror(errno));
            rc = 1;
        }
    }
    free(batches), free(contexts), free(prompts), free(packed), free(drafts);
    return rc;
}

int cmd_bench(int argc, char **argv) {
    struct bench_options options = {0};
    struct option_set set = OPTION_SET(bench_flags, &options);
    int rc = command_flags(&set, "bench",
                           "[--model DIR | --synthetic NAME] [flags]\n\n"
                           "Decode and prefill at the engine's level, without HTTP. Each row says the bytes and FLOP "
                           "that it needs and what\n"
                           "fraction it reaches of the ceiling: reading as many bytes, or multiplying in cache, on "
                           "this machine in this run;\n"
                           "on a GPU the rates of copying and of one large product in this run.",
                           "", argc, argv);
    const char *dir = options.model;
    char bundled[PATH_MAX];
    if (rc < 0 && options.model[0] && options.synthetic[0]) {
        fprintf(stderr, "rodimus bench: give either --model DIR or --synthetic NAME.\n");
        rc = 2;
    } else if (rc < 0 && !options.model[0] && !options.synthetic[0]) {
        dir = bundled;
        if (model_path_bundled(bundled, sizeof bundled)) {
            fprintf(stderr, "rodimus bench: " MODEL_PATH_MISSING "\n", bundled);
            rc = 1;
        }
    }
    if (rc < 0) {
        struct bench_output output = {.rows = json_array()};
        const time_t now = (time_t)clock_unix_s();
        struct tm utc;
        strftime(output.date, sizeof output.date, "%Y-%m-%d", gmtime_r(&now, &utc));
        rc = run_bench(&options, dir, &output);
        json_decref(output.rows);
    }
    options_fini(&set);
    return rc;
}
