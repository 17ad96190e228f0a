/* cmd_verify.c - rodimus verify: a golden file through prefill and through single steps, as a table. */
#include "commands.h"
#include "progress.h"

#include "engine/rodimus.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "Usage: rodimus verify --model DIR --golden FILE [--device D] [--precision P]\n"
    "       rodimus verify --model DIR | --synthetic NAME --against cpu [--tokens N] [--device D] ...\n"
    "Runs the prompt of FILE (golden.safetensors) through prefill and through single steps, and compares the logits, "
    "the\n"
    "state of every layer and the greedy continuation with those in FILE. --against cpu: with what the CPU backend\n"
    "computes in fp32, for a prompt of N random ids.\n"
    "\n"
    "  --model DIR       checkpoint directory\n"
    "  --synthetic NAME  random weights of a published shape instead: rodimus-1.4b, rodimus-plus-1.6b,\n"
    "                    rodimus-plus-1.6b-w1024, rodimus-plus-4b\n"
    "  --golden FILE     input_ids, logits, greedy_ids and state.N.S, .conv, .k, .v\n"
    "  --against cpu     instead of --golden\n"
    "  --tokens N        with --against: length of the prompt (64)\n"
    "  --device D        auto, cpu, cuda or cuda:N (auto)\n"
    "  --precision P     auto, fp32, bf16 or fp16 (auto)\n"
    "  --deterministic   the same bits in steps of any size, on a GPU too\n"
    "  --threads N       compute threads of the CPU, 0 = all cores (0)\n"
    "  --piece-tokens N  prefill in pieces of N tokens, 0 = as large as a step takes (0)\n"
    "  --help            this text\n"
    "\n"
    "error: norm of the difference by norm of the reference. worst: the largest difference of one element by the root\n"
    "mean square of its row. Exit code 0 only if everything is within its bound.\n";

enum {
    FLAG_MODEL = 1,
    FLAG_GOLDEN,
    FLAG_DEVICE,
    FLAG_PRECISION,
    FLAG_THREADS,
    FLAG_PIECE,
    FLAG_DETERMINISTIC,
    FLAG_SYNTHETIC,
    FLAG_TOKENS,
    FLAG_AGAINST
};

static const struct option flags[] = {{"model", required_argument, NULL, FLAG_MODEL},
                                      {"golden", required_argument, NULL, FLAG_GOLDEN},
                                      {"device", required_argument, NULL, FLAG_DEVICE},
                                      {"precision", required_argument, NULL, FLAG_PRECISION},
                                      {"threads", required_argument, NULL, FLAG_THREADS},
                                      {"piece-tokens", required_argument, NULL, FLAG_PIECE},
                                      {"synthetic", required_argument, NULL, FLAG_SYNTHETIC},
                                      {"against", required_argument, NULL, FLAG_AGAINST},
                                      {"tokens", required_argument, NULL, FLAG_TOKENS},
                                      {"deterministic", no_argument, NULL, FLAG_DETERMINISTIC},
                                      {"help", no_argument, NULL, 'h'},
                                      {NULL, 0, NULL, 0}};

static bool read_count(const char *flag, const char *text, uint32_t *value) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || n > 1u << 20) {
        fprintf(stderr, "rodimus verify: --%s %s: an integer from 0 to %u is needed\n", flag, text, 1u << 20);
        return false;
    }
    *value = (uint32_t)n;
    return true;
}

/* -1 to go on, else the exit code. */
static int read_flags(int argc, char **argv, struct rod_verify_options *o) {
    int flag;
    const char *against = NULL;
    optind = 0; /* getopt keeps its place in a global; 0 starts afresh */
    while ((flag = getopt_long(argc, argv, "h", flags, NULL)) != -1) {
        switch (flag) {
        case FLAG_MODEL: o->model_dir = optarg; break;
        case FLAG_GOLDEN: o->golden_path = optarg; break;
        case FLAG_DEVICE: o->device = optarg; break;
        case FLAG_PRECISION: o->precision = optarg; break;
        case FLAG_THREADS:
            if (!read_count("threads", optarg, &o->n_threads)) return 2;
            break;
        case FLAG_PIECE:
            if (!read_count("piece-tokens", optarg, &o->piece_tok)) return 2;
            break;
        case FLAG_SYNTHETIC: o->synthetic = optarg; break;
        case FLAG_AGAINST: against = optarg; break;
        case FLAG_TOKENS:
            if (!read_count("tokens", optarg, &o->n_tok)) return 2;
            break;
        case FLAG_DETERMINISTIC: o->deterministic = true; break;
        case 'h': fputs(HELP, stdout); return 0;
        default: return 2; /* getopt has said which */
        }
    }
    static const char *const precisions[] = {"auto", "fp32", "bf16", "fp16"};
    bool known = !o->precision;
    for (size_t i = 0; i < 4 && !known; i++) known = !strcmp(o->precision, precisions[i]);
    if (!known) {
        fprintf(stderr, "rodimus verify: --precision %s: auto, fp32, bf16 or fp16 is needed\n", o->precision);
        return 2;
    }
    if (optind < argc) {
        fprintf(stderr, "rodimus verify: unexpected argument %s; --help explains\n", argv[optind]);
        return 2;
    }
    if (against && strcmp(against, "cpu")) {
        fprintf(stderr, "rodimus verify: --against %s: only cpu is known\n", against);
        return 2;
    }
    if (!o->model_dir == !o->synthetic || !o->golden_path == !against ||
        (o->golden_path && (o->synthetic || o->n_tok))) {
        fputs(HELP, stderr);
        return 2;
    }
    return -1;
}

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
    printf("%s on %s, arithmetic %s, prompt of %u tokens; bounds: error %.1e, worst %.1e\n\n", r->model, r->device,
           r->precision, r->n_tok, r->rel_bound, r->max_bound);
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

int cmd_verify(int argc, char **argv) {
    struct rod_verify_options options = {0};
    int rc = read_flags(argc, argv, &options);
    if (rc >= 0) return rc;
    struct rod_verify_report *report;
    struct rod_error err;
    struct progress progress;
    progress_open(&progress, "rodimus verify");
    options.progress = progress_to(&progress);
    rc = rod_verify(&options, &report, &err);
    progress_close(&progress);
    if (rc) {
        fprintf(stderr, "rodimus verify: %s\n", err.message);
        return 1;
    }
    print_report(report);
    rc = report->passed ? 0 : 1;
    rod_verify_free(report);
    return rc;
}
