/* cmd_verify.c - rodimus verify: prefill and single steps beside a golden file or the CPU, as a table. */
#include "commands.h"
#include "server/settings/flag_help.h"
#include "server/settings/options.h"
#include "server/base/progress.h"

#include "engine/tools/tools.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verify {
    char *model, *synthetic, *adapter, *golden, *against, *device, *precision, *weights, *window_dtype, *state_dtype;
    char *prompt_products;
    uint64_t n_tok, n_threads, piece_tok;
    bool deterministic;
};

#define AT(member)       .offset = offsetof(struct verify, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define WHAT             .group = "What"
#define WITH             .group = "With what"
#define HOW              .group = "How"

static const char *check_against(const char *text) { return strcmp(text, "cpu") ? "cpu" : NULL; }

/* clang-format off */
static const struct option verify_flags[] = {
    {"model", OPTION_STRING, AT(model), WHAT, .letter = 'm', .metavar = "DIR", .help = "checkpoint directory"},
    {"synthetic", OPTION_STRING, AT(synthetic), WHAT, .metavar = "NAME", .help = SYNTHETIC_HELP},
    {"adapter", OPTION_STRING, AT(adapter), WHAT, .metavar = "DIR", .help = ADAPTER_HELP},
    {"golden", OPTION_STRING, AT(golden), WITH, .metavar = "FILE",
     .help = "golden.safetensors: input_ids, logits, greedy_ids and state.N.S, .conv, .k, .v"},
    {"against", OPTION_STRING, AT(against), WITH, .metavar = "cpu", .check = check_against,
     .help = "what the CPU backend computes in fp32, for a prompt of random ids"},
    {"tokens", OPTION_AUTO, AT(n_tok), WITH, .fallback = "auto", RANGE(1, 1 << 20), .help = "with --against: length of the prompt; auto = 64"},
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
    {"prompt_products", OPTION_CHOICE, AT(prompt_products), HOW, .fallback = "auto", .choices = "auto|own|library", .metavar = "NAME",
     .help = PROMPT_PRODUCTS_HELP},
    {"threads", OPTION_AUTO, AT(n_threads), HOW, .fallback = "auto", RANGE(1, 1024), .help = THREADS_HELP},
    {"deterministic", OPTION_BOOL, AT(deterministic), HOW, .help = DETERMINISTIC_HELP},
    {"piece_tokens", OPTION_AUTO, AT(piece_tok), HOW, .fallback = "auto", RANGE(1, 1 << 20),
     .help = "prefill in pieces of so many tokens; auto = as large as a step takes"},
};
/* clang-format on */

static void print_agreement(const char *what, const uint32_t same[2], const uint32_t excused[2], uint32_t n) {
    printf("%-14s", what);
    for (int mode = 0; mode < ROD_VERIFY_N_MODES; mode++) {
        char text[48];
        int len = snprintf(text, sizeof text, "%u of %u", same[mode], n);
        if (excused[mode]) snprintf(text + len, sizeof text - (size_t)len, " (%u close)", excused[mode]);
        printf("  %-21s", text);
    }
    for (int mode = 0; mode < ROD_VERIFY_N_MODES; mode++)
        if (same[mode] + excused[mode] != n) {
            printf("  FAIL");
            break;
        }
    printf("\n");
}

/* The rows of both modes come in the same order: one line for both. */
static void print_report(const struct rod_verify_report *r) {
    printf("%s on %s, arithmetic %s, S %s%s%s, prompt of %u tokens; bounds: error %.1e, worst %.1e\n\n", r->model,
           r->device, r->precision, r->state_dtype, *r->window_dtype ? ", window " : "", r->window_dtype, r->n_tok,
           r->rel_bound, r->max_bound);
    printf("%-14s  %-21s  %s\n", "", "prefill", "single steps");
    printf("%-14s  %-9s  %-10s  %-9s  %s\n", "", "error", "worst", "error", "worst");
    size_t half = r->n_rows / 2;
    for (size_t i = 0; i < half; i++) {
        const struct rod_verify_row *a = &r->rows[i], *b = &r->rows[half + i];
        printf("%-14s  %-9.2e  %-10.2e  %-9.2e  %-10.2e%s\n", a->what, a->rel_err, a->max_err, b->rel_err, b->max_err,
               a->ok && b->ok ? "" : "  FAIL");
    }
    const struct rod_verify_agreement *p = &r->agreement[ROD_VERIFY_PREFILL], *s = &r->agreement[ROD_VERIFY_STEPS];
    print_agreement("argmax", (const uint32_t[]){p->argmax_same, s->argmax_same},
                    (const uint32_t[]){p->argmax_excused, s->argmax_excused}, r->n_tok);
    print_agreement("greedy ids", (const uint32_t[]){p->greedy_same, s->greedy_same},
                    (const uint32_t[]){p->greedy_excused, s->greedy_excused}, r->n_greedy);
    printf("\n%s\n", r->passed ? "PASS" : "FAIL");
}

static int run_verify(const struct verify *v) {
    struct rod_verify_options options = {.model_dir = *v->model ? v->model : NULL,
                                         .synthetic = *v->synthetic ? v->synthetic : NULL,
                                         .adapter_dir = v->adapter,
                                         .golden_path = *v->golden ? v->golden : NULL,
                                         .device = v->device,
                                         .precision = v->precision,
                                         .weights = v->weights,
                                         .window_dtype = v->window_dtype,
                                         .state_dtype = v->state_dtype,
                                         .prompt_products = v->prompt_products,
                                         .deterministic = v->deterministic,
                                         .n_threads = (uint32_t)v->n_threads,
                                         .n_tok = (uint32_t)v->n_tok,
                                         .piece_tok = (uint32_t)v->piece_tok};
    struct rod_verify_report *report;
    struct rod_error err;
    struct progress progress;
    progress_open(&progress, "rodimus verify");
    options.progress = progress_to(&progress);
    int rc = rod_verify(&options, &report, &err);
    progress_close(&progress);
    if (rc) {
        fprintf(stderr, "rodimus verify: %s\n", err.message);
        return rc == ROD_EINVALID ? 2 : 1; /* an unknown device or shape */
    }
    assert(report->n_rows % ROD_VERIFY_N_MODES == 0); /* a row of each mode */
    print_report(report);
    rc = report->passed ? 0 : 1;
    rod_verify_free(report);
    return rc;
}

/* NULL, or what does not go together. */
static const char *flags_conflict(const struct verify *v) {
    if (!*v->model == !*v->synthetic) return "give either --model DIR or --synthetic NAME";
    if (!*v->golden == !*v->against) return "give either --golden FILE or --against cpu";
    if (*v->golden && *v->synthetic) return "--golden goes with --model";
    if (*v->golden && v->n_tok) return "--tokens goes with --against cpu";
    return NULL;
}

int cmd_verify(int argc, char **argv) {
    struct verify v = {0};
    struct option_set set = OPTION_SET(verify_flags, &v);
    int rc = command_flags(
        &set, "verify",
        "--model DIR --golden FILE [flags]\n"
        "       rodimus verify --model DIR | --synthetic NAME --against cpu [flags]\n\n"
        "Runs a prompt through prefill and through single steps, and compares the logits, the state of every layer "
        "and\n"
        "the greedy continuation with those of a golden file, or with the CPU's.",
        "error: norm of the difference by norm of the reference. worst: the largest difference of one element by the\n"
        "root mean square of its row. Exit status 0 only if everything is within its bound.\n",
        argc, argv);
    const char *wrong = rc < 0 ? flags_conflict(&v) : NULL;
    if (wrong) fprintf(stderr, "rodimus verify: %s; 'rodimus verify --help' explains.\n", wrong);
    if (rc < 0) rc = wrong ? 2 : run_verify(&v);
    options_fini(&set);
    return rc;
}
