/* cmd_inspect.c - rodimus inspect: what a checkpoint directory holds, for people or as JSON. */
#include "commands.h"
#include "server/base/progress.h"

#include "engine/tools/tools.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576.0

static const char HELP[] =
    "Usage: rodimus inspect DIR [--json]\n"
    "Shows what the checkpoint in DIR is: layout, sizes, tokenizer, tensors, bytes of one session, sessions per GiB.\n"
    "\n"
    "  --json   one JSON object on standard output\n"
    "  --help   this text\n"
    "\n"
    "Exit status 0 if the checkpoint can be served; 1 with its first fault if not; 2 for wrong usage.\n";

static uint64_t sessions_per_gib(uint64_t session_bytes) { return session_bytes ? (1u << 30) / session_bytes : 0; }

/* ---- for people ---- */

static void print_sizes(const struct rod_inspect_report *r) {
    printf("%s: %s, %s layout, weights %s\n\n", r->name, r->arch, r->layout, r->weights);
    printf("  d_model %u, layers %u, d_inner %u, mem_size %u, low rank %u, conv %u, vocabulary %u%s\n", r->D, r->L,
           r->E, r->M, r->R, r->K, r->V, r->tied ? ", head tied to the embedding" : "");
    if (r->H) {
        printf("  heads %u x %u (%u key, %u value), ffn %u, a token sees %u keys\n", r->H, r->P, r->Hk, r->Hv, r->F,
               r->window_tok);
        printf("  rotary over %u of %u dimensions, base %g%s%s\n", r->rot_dim, r->P, r->rot_base,
               r->rot_interleaved ? ", interleaved" : "", r->qk_norm ? "; query and key norms" : "");
    }
    printf("  norm epsilon %g, key epsilon %g%s%s\n", (double)r->norm_eps, (double)r->k_eps,
           r->scale_embed ? "; embedding scaled" : "", r->norm_embed ? "; embedding normed" : "");
    printf("  first token %d, end tokens", r->bos_id);
    for (uint32_t i = 0; i < r->n_eos_ids; i++) printf(" %d", r->eos_ids[i]);
    printf("%s\n", r->n_eos_ids ? "" : " none");
    if (r->has_tokenizer)
        printf("  tokenizer with %u ids\n\n", r->tokenizer_ids);
    else
        printf("  tokenizer none: token-id prompts only\n\n");
    const bool billions = r->n_params >= 1000000000;
    printf("  parameters       %15" PRIu64 "  (%.2f %s)\n", r->n_params, (double)r->n_params / (billions ? 1e9 : 1e6),
           billions ? "billion" : "million");
    const bool large = r->weight_bytes >= (1u << 30);
    printf("  weights          %15" PRIu64 " bytes  (%.2f %s)\n", r->weight_bytes,
           (double)r->weight_bytes / (large ? GIB : MIB), large ? "GiB" : "MiB");
    printf("  in the files     %15" PRIu64 " bytes, %zu tensors\n", r->file_bytes, r->n_tensors);
    printf("  fingerprint      %s\n", r->fingerprint);
}

static void print_whole(const char *what, uint64_t bytes) {
    printf("    %-16s %15" PRIu64 " bytes  (%.2f MiB), %" PRIu64 " sessions per GiB\n", what, bytes,
           (double)bytes / MIB, sessions_per_gib(bytes));
}

static void print_session(const struct rod_inspect_report *r) {
    printf("\n  One session, whatever its length:\n");
    printf("    state S (fp32)   %15" PRIu64 " bytes\n", r->S_bytes);
    printf("    conv (16 bit)    %15" PRIu64 " bytes\n", r->conv16_bytes);
    printf("    window (16 bit)  %15" PRIu64 " bytes\n", r->window16_bytes);
    print_whole("on a GPU", r->session16_bytes);
    if (r->fp8_bytes) print_whole("  window in fp8", r->fp8_bytes);
    print_whole("on a CPU (fp32)", r->session32_bytes);
    if (r->int8_bytes) print_whole("  window in int8", r->int8_bytes);
    printf("\n");
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool many_files(const struct rod_inspect_report *r) {
    for (size_t i = 1; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].file, r->tensors[0].file)) return true;
    return false;
}

static void print_tensors(const struct rod_inspect_report *r) {
    int width = 8;
    for (size_t i = 0; i < r->n_tensors; i++)
        if ((int)strlen(r->tensors[i].name) > width && strlen(r->tensors[i].name) < 80)
            width = (int)strlen(r->tensors[i].name);
    bool files = many_files(r);
    for (size_t i = 0; i < r->n_tensors; i++) {
        const struct rod_tensor_info *t = &r->tensors[i];
        char shape[176] = "[";
        size_t n = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, d ? ", %" PRIu64 : "%" PRIu64, t->shape[d]);
        snprintf(shape + n, sizeof shape - n, "]");
        printf("  %-*s  %-4s  %-16s  %12" PRIu64 "%s%s%s\n", width, t->name, t->dtype, shape, t->n_bytes,
               files ? "  " : "", files ? file_name(t->file) : "", t->used ? "" : "  (not used)");
    }
}

/* ---- as JSON ---- */

static json_t *tensors_json(const struct rod_inspect_report *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_tensors; i++) {
        const struct rod_tensor_info *t = &r->tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(list, json_pack("{s:s,s:s,s:o,s:I,s:s,s:b}", "name", t->name, "dtype", t->dtype, "shape",
                                              shape, "bytes", (json_int_t)t->n_bytes, "file", file_name(t->file),
                                              "used", (int)t->used));
    }
    return list;
}

static int print_json(const struct rod_inspect_report *r) {
    json_t *eos = json_array(), *warnings = json_array(), *attention = json_null();
    for (uint32_t i = 0; i < r->n_eos_ids; i++) json_array_append_new(eos, json_integer(r->eos_ids[i]));
    for (uint32_t i = 0; i < r->n_warnings; i++) json_array_append_new(warnings, json_string(r->warnings[i]));
    if (r->H)
        attention = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:b,s:b}", "num_heads", (int)r->H, "num_heads_k",
                              (int)r->Hk, "num_heads_v", (int)r->Hv, "head_dim", (int)r->P, "ffn_dim", (int)r->F,
                              "window_tokens", (int)r->window_tok, "rotary_dim", (int)r->rot_dim, "rotary_base",
                              r->rot_base, "rotary_interleaved", (int)r->rot_interleaved, "qk_norm", (int)r->qk_norm);
    json_t *sizes = json_pack(
        "{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b,s:b,s:b,s:o}", "d_model", (int)r->D, "n_layer", (int)r->L, "d_inner",
        (int)r->E, "mem_size", (int)r->M, "low_rank", (int)r->R, "d_conv", (int)r->K, "vocab_size", (int)r->V,
        "norm_epsilon", (double)r->norm_eps, "normalize_epsilon", (double)r->k_eps, "tie_word_embeddings", (int)r->tied,
        "use_scale_embedding", (int)r->scale_embed, "use_norm_embedding", (int)r->norm_embed, "attention", attention);
    json_t *session =
        json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "S_bytes", (json_int_t)r->S_bytes, "conv_bytes",
                  (json_int_t)r->conv16_bytes, "window_bytes", (json_int_t)r->window16_bytes, "bytes",
                  (json_int_t)r->session16_bytes, "sessions_per_gib", (json_int_t)sessions_per_gib(r->session16_bytes),
                  "fp32_bytes", (json_int_t)r->session32_bytes, "fp32_sessions_per_gib",
                  (json_int_t)sessions_per_gib(r->session32_bytes), "fp8_bytes", (json_int_t)r->fp8_bytes, "int8_bytes",
                  (json_int_t)r->int8_bytes);
    json_t *tokenizer = r->has_tokenizer ? json_pack("{s:I}", "ids", (json_int_t)r->tokenizer_ids) : json_null();
    json_t *root = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:o,s:i,s:o,s:o,s:I,s:I,s:I,s:o,s:o,s:o}", "name", r->name,
                             "arch", r->arch, "layout", r->layout, "weight_dtype", r->weight_dtype, "weights",
                             r->weights, "fingerprint", r->fingerprint, "sizes", sizes, "bos_token_id", r->bos_id,
                             "eos_token_ids", eos, "tokenizer", tokenizer, "parameters", (json_int_t)r->n_params,
                             "weight_bytes", (json_int_t)r->weight_bytes, "file_bytes", (json_int_t)r->file_bytes,
                             "session", session, "warnings", warnings, "tensors", tensors_json(r));
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(root);
    if (!text) {
        fprintf(stderr, "rodimus inspect: no memory for the JSON.\n");
        return 1;
    }
    puts(text);
    free(text);
    return 0;
}

/* ---- the command ---- */

int cmd_inspect(int argc, char **argv) {
    const char *dir = NULL;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(HELP, stdout);
            return 0;
        }
        if (!strcmp(argv[i], "--json")) {
            json = true;
        } else if (argv[i][0] == '-' || dir) {
            fprintf(stderr, "rodimus inspect: unexpected argument %s; --help explains.\n", argv[i]);
            return 2;
        } else {
            dir = argv[i];
        }
    }
    if (!dir) {
        fprintf(stderr, "rodimus inspect: DIR is missing; --help explains.\n");
        return 2;
    }
    struct rod_inspect_report *report;
    struct rod_error err;
    struct progress progress;
    progress_open(&progress, "rodimus inspect");
    const struct rod_progress_to to = progress_to(&progress);
    int rc = rod_inspect(dir, &to, &report, &err);
    progress_close(&progress);
    if (rc) {
        fprintf(stderr, "rodimus inspect: %s\n", err.message);
        return 1;
    }
    if (json) {
        rc = print_json(report);
    } else {
        for (uint32_t i = 0; i < report->n_warnings; i++) fprintf(stderr, "warning: %s\n", report->warnings[i]);
        print_sizes(report);
        print_session(report);
        print_tensors(report);
    }
    rod_inspect_free(report);
    return rc;
}
