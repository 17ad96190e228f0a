/* cmd_quantise.c - rodimus quantise: a checkpoint with its large matrices in fewer bits, as a directory. */
#include "commands.h"
#include "server/base/progress.h"
#include "server/settings/flag_help.h"
#include "server/settings/options.h"

#include "engine/tools/tools.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct quantise {
    const char *in, *out;
    char *weights, *calibrate;
    uint64_t n_tok, n_threads;
};

#define AT(member)       .offset = offsetof(struct quantise, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define HOW              .group = "How"

/* clang-format off */
static const struct option quantise_flags[] = {
    {"weights", OPTION_CHOICE, AT(weights), HOW, .fallback = "int4", .choices = "fp8|int8|int4", .metavar = "NAME",
     .help = "fp8 (for a GPU), int8 or int4"},
    {"calibrate", OPTION_STRING, AT(calibrate), HOW, .metavar = "FILE",
     .help = "int4: a text like those that the model will read; codes are chosen by what its tokens give as inputs"},
    {"tokens", OPTION_UINT, AT(n_tok), HOW, .fallback = "8192", RANGE(1, 1 << 24), .help = "so many of the text's tokens, at most"},
    {"threads", OPTION_AUTO, AT(n_threads), HOW, .fallback = "auto", RANGE(1, 1024), .help = THREADS_HELP},
};
/* clang-format on */

static int run_quantise(const struct quantise *q) {
    struct rod_quantise_options options = {.model_dir = q->in,
                                           .out_dir = q->out,
                                           .weights = q->weights,
                                           .calibrate = q->calibrate,
                                           .n_tok = (uint32_t)q->n_tok,
                                           .n_threads = (uint32_t)q->n_threads};
    struct rod_error err;
    struct progress progress;
    progress_open(&progress, "rodimus quantise");
    options.progress = progress_to(&progress);
    const int rc = rod_quantise(&options, &err);
    progress_close(&progress);
    if (!rc) return 0;
    fprintf(stderr, "rodimus quantise: %s\n", err.message);
    return rc == ROD_EINVALID ? 2 : 1;
}

int cmd_quantise(int argc, char **argv) {
    struct quantise q = {0};
    struct option_set set = OPTION_SET(quantise_flags, &q);
    int n = 0;
    while (n < 2 && argc > n + 1 && *argv[n + 1] != '-') n++;
    if (n == 2) q.in = argv[1], q.out = argv[2];
    argc -= n, argv += n;
    int rc = command_flags(
        &set, "quantise",
        "IN OUT [flags]\n\n"
        "Writes the checkpoint in the directory IN into OUT, with its large matrices in fewer bits, in the format of "
        "compressed-tensors, with its\ntokenizer and configurations.",
        "Exit status 0 if the directory is whole.\n", argc, argv);
    if (rc < 0 && !q.in) {
        fprintf(
            stderr,
            "rodimus quantise: two directories are needed first, IN and OUT; 'rodimus quantise --help' explains.\n");
        rc = 2;
    }
    if (rc < 0) rc = run_quantise(&q);
    options_fini(&set);
    return rc;
}
