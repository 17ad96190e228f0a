/* model_quant_config.c - config.json's quantization_config, as other programs write it. Pure.
 *
 * The tensors say how a weight is kept (model_quant.c). Here is what they do not say: the program's way of packing, and
 * what is refused by name as results would differ. What is said of activations and of caches is passed over: they stay
 * wide here. */
#include "cfg.h"
#include "engine/base/json_python.h"
#include "model_internal.h"

#include <stdio.h>
#include <string.h>

#define KEY "quantization_config"

static bool is_one_of(const char *text, const char *const *names) {
    while (*names && strcmp(*names, text)) names++;
    return *names != NULL;
}

/* A group of columns: 128, or all of a row (-1, 0 or unsaid). */
static void quant_check_group(struct cfg *c, const json_t *object, const char *path) {
    const int64_t group = cfg_int(c, object, path, -1, -1, 1 << 24);
    if (group > 0 && group != WEIGHT_GROUP)
        cfg_refuse(c, path, cfg_get(object, path), "128 columns a scale, or a scale a row, are supported");
}

/* A list of two, or the same as "128x128". */
static void quant_check_block(struct cfg *c, const json_t *object, const char *path) {
    const json_t *block = cfg_get(object, path);
    const char *text = json_python_text(block);
    if (block && !(text && !strcmp(text, "128x128")) &&
        !(json_array_size(block) == 2 && json_integer_value(json_array_get(block, 0)) == WEIGHT_GROUP &&
          json_integer_value(json_array_get(block, 1)) == WEIGHT_GROUP))
        cfg_refuse(c, path, block, "only blocks of [128, 128] are supported");
}

/* ---- compressed-tensors ---- */

static void quant_parse_weights(struct cfg *c, const json_t *w) {
    static const char *const known[] = {"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure",
                                        "dynamic", "actorder",
                                        /* no results */
                                        "observer", "observer_kwargs", "scale_dtype", "zp_dtype", NULL};
    static const char *const strategies[] = {"tensor", "channel", "group", "block", NULL};
    static const char *const orders[] = {"weight", "static", NULL}; /* of the columns while they were rounded */
#define AT(key) KEY ".config_groups.weights." key
    cfg_only(c, w, KEY ".config_groups.weights", known);
    const char *type = cfg_string(c, w, AT("type"), "int"), *strategy = cfg_string(c, w, AT("strategy"), "tensor");
    const int64_t bits = cfg_int(c, w, AT("num_bits"), 8, 1, 16);
    if (strcmp(type, "int") && strcmp(type, "float"))
        cfg_refuse(c, AT("type"), cfg_get(w, "type"), "int or float is needed");
    if (bits != 8 && !(bits == 4 && !strcmp(type, "int")))
        cfg_refuse(c, AT("num_bits"), cfg_get(w, "num_bits"), "int of 4 or 8 bits and float of 8 bits are supported");
    if (!is_one_of(strategy, strategies))
        cfg_refuse(c, AT("strategy"), cfg_get(w, "strategy"), "tensor, channel, group or block is needed");
    if (!strcmp(strategy, "group")) quant_check_group(c, w, AT("group_size"));
    quant_check_block(c, w, AT("block_structure"));
    const json_t *value = cfg_get(w, "dynamic");
    if (value && !json_is_false(value)) cfg_refuse(c, AT("dynamic"), value, "weights need scales that are stored");
    value = cfg_get(w, "actorder");
    if (value && !json_is_false(value) && !(json_python_text(value) && is_one_of(json_python_text(value), orders)))
        cfg_refuse(c, AT("actorder"), value, "columns out of their order are not supported");
#undef AT
}

static void quant_parse_compressed(struct cfg *c, const json_t *q, struct quant_config *out) {
    static const char *const known[] = {"quant_method", "config_groups", "format", "quantization_status",
                                        /* no results, or activations' and caches' */
                                        "ignore", "version", "global_compression_ratio", "kv_cache_scheme",
                                        "sparsity_config", NULL};
    static const char *const in_group[] = {"targets", "weights", "input_activations", "output_activations",
                                           "format",  NULL};
    static const char *const formats[] = {"pack-quantized",  "int-quantized",   "float-quantized",
                                          "naive-quantized", "mixed-precision", NULL};
    static const char *const statuses[] = {"compressed", "frozen", NULL};
    cfg_only(c, q, KEY, known);
    const char *format = cfg_string(c, q, KEY ".format", "naive-quantized");
    if (!is_one_of(format, formats))
        cfg_refuse(c, KEY ".format", cfg_get(q, "format"),
                   "pack-quantized, int-quantized, float-quantized and naive-quantized are supported");
    if (!is_one_of(cfg_string(c, q, KEY ".quantization_status", "compressed"), statuses))
        cfg_refuse(c, KEY ".quantization_status", cfg_get(q, "quantization_status"), "compressed is needed");
    const json_t *sparsity = cfg_object(c, q, KEY ".sparsity_config");
    if (sparsity && strcmp(cfg_string(c, sparsity, KEY ".sparsity_config.format", "dense"), "dense"))
        cfg_refuse(c, KEY ".sparsity_config", sparsity, "sparse weights are not supported");
    json_t *groups =
        (json_t *)(uintptr_t)cfg_object(c, q, KEY ".config_groups"); /* jansson's iterators are not const */
    const char *name;
    json_t *group;
    json_object_foreach(groups, name, group) {
        if (c->rc) return;
        if (!json_is_object(group)) {
            cfg_fail(c, ROD_EMODEL, KEY ".config_groups", group, "groups that are objects are needed");
            return;
        }
        cfg_only(c, group, KEY ".config_groups", in_group);
        const json_t *weights = cfg_object(c, group, KEY ".config_groups.weights");
        if (weights) quant_parse_weights(c, weights);
        /* Of several groups each tensor has its own; which is whose is not looked up. */
        out->needs_zeros = weights && json_object_size(groups) == 1 &&
                           !cfg_bool(c, weights, KEY ".config_groups.weights.symmetric", true);
        format = cfg_string(c, group, KEY ".config_groups.format", "naive-quantized");
        if (!is_one_of(format, formats))
            cfg_refuse(c, KEY ".config_groups.format", cfg_get(group, "format"), "this format is not supported");
    }
}

/* ---- the others ---- */

static void quant_parse_fp8(struct cfg *c, const json_t *q) {
    static const char *const known[] = {"quant_method", "weight_block_size", "fmt",
                                        /* no results, or activations' and caches' */
                                        "activation_scheme", "modules_to_not_convert", "ignored_layers",
                                        "kv_cache_scheme", "scale_fmt", "dequantize", "activation_scale_ub", NULL};
    cfg_only(c, q, KEY, known);
    quant_check_block(c, q, KEY ".weight_block_size");
    if (strcmp(cfg_string(c, q, KEY ".fmt", "e4m3"), "e4m3"))
        cfg_refuse(c, KEY ".fmt", cfg_get(q, "fmt"), "only e4m3 is supported");
}

/* meta.quantizer: "name:version", or a list of such. */
static bool quant_made_by(const json_t *quantizer, const char *name) {
    const size_t n = json_is_array(quantizer) ? json_array_size(quantizer) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(quantizer) ? json_array_get(quantizer, i) : quantizer;
        if (json_python_text(one) && !strncmp(json_python_text(one), name, strlen(name))) return true;
    }
    return false;
}

static void quant_parse_gptq(struct cfg *c, const json_t *q, struct quant_config *out) {
    static const char *const known[] = {
        "quant_method", "method", "bits", "group_size", "desc_act", "checkpoint_format", "format", "pack_dtype",
        /* no results, once it is made */
        "sym", "act_group_aware", "lm_head", "static_groups", "true_sequential", "damp_percent", "damp_auto_increment",
        "mse", "model_name_or_path", "model_file_base_name", "modules_in_block_to_quantize", "block_name_to_quantize",
        "module_name_preceding_first_block", "batch_size", "pad_token_id", "dataset", "tokenizer", "model_seqlen",
        "use_exllama", "exllama_config", "disable_exllama", "max_input_length", "use_cuda_fp16", "cache_block_outputs",
        "backend", "meta", "quantizer", "mock_quantization", "rotation", "hyb_act", "offload",
        "calibration_data_min_length", NULL};
    cfg_only(c, q, KEY, known);
    const char *format_key = cfg_get(q, "checkpoint_format") ? KEY ".checkpoint_format" : KEY ".format";
    const char *format = cfg_string(c, q, format_key, "gptq"), *type = cfg_string(c, q, KEY ".pack_dtype", "int32");
    if (cfg_int(c, q, KEY ".bits", 0, 1, 16) != 4)
        cfg_refuse(c, KEY ".bits", cfg_get(q, "bits"), "only 4 bits are supported");
    quant_check_group(c, q, KEY ".group_size");
    if (cfg_bool(c, q, KEY ".desc_act", false))
        cfg_refuse(c, KEY ".desc_act", cfg_get(q, "desc_act"),
                   "columns in the order of their activations (act-order) are not supported");
    if (strcmp(type, "int32")) cfg_refuse(c, KEY ".pack_dtype", cfg_get(q, "pack_dtype"), "only int32 is supported");
    if (strcmp(format, "gptq") && strcmp(format, "gptq_v2"))
        cfg_refuse(c, format_key, cfg_get(q, format_key), "only gptq and gptq_v2 are supported");
    if (!cfg_says_nothing(cfg_get(q, "rotation")))
        cfg_refuse(c, KEY ".rotation", cfg_get(q, "rotation"), "rotated weights are not supported");
    out->zero_shift = !strcmp(format, "gptq");
    /* AutoGPTQ took 1 off each zero point alone, and a 0 became -1, which spoils its word. */
    out->zero_borrow = quant_made_by(cfg_get(cfg_get(q, "meta"), "quantizer"), "gptqmodel");
}

static void quant_parse_awq(struct cfg *c, const json_t *q) {
    static const char *const known[] = {"quant_method", "bits", "w_bit", "group_size", "q_group_size", "version",
                                        /* no results: the zero points are tensors */
                                        "zero_point", "modules_to_not_convert", "do_fuse", "fuse_max_seq_len",
                                        "modules_to_fuse", "backend", "exllama_config", "desc_act", NULL};
    cfg_only(c, q, KEY, known);
    const char *bits = cfg_get(q, "w_bit") ? KEY ".w_bit" : KEY ".bits";
    if (cfg_int(c, q, bits, 4, 1, 16) != 4) cfg_refuse(c, bits, cfg_get(q, bits), "only 4 bits are supported");
    quant_check_group(c, q, cfg_get(q, "q_group_size") ? KEY ".q_group_size" : KEY ".group_size");
    const char *version = cfg_string(c, q, KEY ".version", "gemm");
    if (strcmp(version, "gemm") && strcmp(version, "GEMM"))
        cfg_refuse(c, KEY ".version", cfg_get(q, "version"), "only gemm is supported");
}

void quant_config_parse(struct cfg *c, const json_t *root, struct quant_config *out) {
    const json_t *q = cfg_object(c, root, KEY);
    if (!q || !json_object_size(q)) return;
    const char *method = cfg_string(c, q, KEY ".quant_method", "");
    snprintf(out->name, sizeof out->name, "%s", method);
    if (!strcmp(method, "compressed-tensors")) {
        out->method = QUANT_COMPRESSED;
        quant_parse_compressed(c, q, out);
    } else if (!strcmp(method, "fp8") || !strcmp(method, "fbgemm_fp8")) {
        out->method = QUANT_COMPRESSED; /* the same tensors */
        quant_parse_fp8(c, q);
    } else if (!strcmp(method, "gptq")) {
        out->method = QUANT_GPTQ;
        quant_parse_gptq(c, q, out);
    } else if (!strcmp(method, "awq")) {
        out->method = QUANT_AWQ;
        quant_parse_awq(c, q);
    } else {
        cfg_refuse(c, KEY ".quant_method", cfg_get(q, "quant_method"),
                   "compressed-tensors, fp8, gptq and awq are supported");
    }
}
