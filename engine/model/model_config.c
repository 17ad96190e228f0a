/* model_config.c - config.json and generation_config.json -> sizes (README.md, "A checkpoint"), and what an adapter's
 * adapter_config.json says. Pure.
 *
 * The bounds are far above any real model and low enough that no later product of sizes overflows 64 bits:
 * V D < 2^41, S of a session M E L < 2^43, its window visible (Hk + Hv) P L < 2^52 elements.
 */
#include "cfg.h"
#include "engine/base/fail.h"
#include "engine/base/json_python.h"
#include "model_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_D       65536
#define MAX_L       1024
#define MAX_E       (1 << 20) /* also F */
#define MAX_M       4096
#define MAX_K       64
#define MAX_V       (1 << 24)
#define MAX_H       1024
#define MAX_VISIBLE (1 << 24)
#define MAX_ALPHA   1e6 /* of an adapter */

/* Of a norm of rows. 0 is refused: it may be meant, and a row of zeros would be no numbers. */
static float cfg_norm_epsilon(struct cfg *c, const json_t *object, const char *path) {
    return (float)cfg_real(c, object, path, 1e-5, 1e-30, 1.0);
}

/* Of keys, which are divided by their length or this, whichever is more: 0 is as good as the default. */
static float cfg_key_epsilon(struct cfg *c, const json_t *object, const char *path) {
    const json_t *value = cfg_get(object, path);
    if (json_is_number(value) && json_number_value(value) == 0) return 1e-12f;
    return (float)cfg_real(c, object, path, 1e-12, 1e-30, 1.0);
}

/* align8(int(x)): rounded up to a multiple of 8. */
static uint32_t cfg_align8(struct cfg *c, const char *path, const json_t *value, double x, uint32_t max) {
    if (x >= 1 && x <= (double)max - 8) return ((uint32_t)x + 7) / 8 * 8;
    char what[96];
    snprintf(what, sizeof what, "the derived size %.15g must be from 1 to %u", x, max - 8);
    cfg_fail(c, ROD_EMODEL, path, value, what);
    return 8;
}

/* An end token, or several: an integer or a list of them. -1 (none) is passed over. */
static void cfg_ids(struct cfg *c, const json_t *object, const char *key, uint32_t vocab, struct model_ends *ends) {
    const json_t *value = cfg_get(object, key);
    size_t n = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    ends->n = 0;
    for (size_t i = 0; i < n && !c->rc; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (json_is_integer(id) && json_integer_value(id) == -1) continue;
        bool known = false;
        for (uint32_t k = 0; k < ends->n; k++) known |= json_is_integer(id) && json_integer_value(id) == ends->ids[k];
        if (known) continue;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            cfg_fail(c, ROD_EMODEL, key, value, "token ids below vocab_size are needed");
        else if (ends->n == MODEL_MAX_EOS)
            cfg_fail(c, ROD_EUNSUPPORTED, key, value, "at most 8 end tokens are supported");
        else
            ends->ids[ends->n++] = (int32_t)json_integer_value(id);
    }
}

/* "auto" = max(D / 64, 16) */
static uint32_t cfg_rank(struct cfg *c, const json_t *object, const char *path, uint32_t D) {
    const json_t *value = cfg_get(object, path);
    const char *text = json_python_text(value);
    if (!value || (text && !strcmp(text, "auto"))) return D / 64 > 16 ? D / 64 : 16;
    return (uint32_t)cfg_int(c, object, path, 0, 1, MAX_D);
}

/* Heads: P = D / H, and query head h reads head h mod Hk, so Hk and Hv divide H. */
static void set_heads(struct cfg *c, const json_t *attn, const char *prefix, struct model_dims *d) {
    char path[64];
    snprintf(path, sizeof path, "%s.num_heads", prefix);
    const json_t *value = cfg_get(attn, "num_heads");
    d->H = (uint32_t)cfg_int(c, attn, path, d->D / 128, 1, MAX_H);
    if (c->rc) return;
    if (d->D % d->H) cfg_fail(c, ROD_EMODEL, path, value, "it must divide the model's width");
    d->P = d->D / d->H;
}

static void check_groups(struct cfg *c, const char *path, const json_t *value, uint32_t n, uint32_t H) {
    if (!c->rc && H % n) cfg_fail(c, ROD_EMODEL, path, value, "it must divide num_heads");
}

static void parse_published_attn(struct cfg *c, const json_t *a, struct model_dims *d) {
    static const char *const known[] = {
        "num_heads", "num_heads_k", "num_heads_v", "window_size", "ffn_expand_ratio", "causal", "softmax_scale",
        "qk_norm", "rotary_emb_dim", "rotary_emb_base", "rotary_emb_scale_base", "rotary_emb_interleaved",
        /* no results */
        "dropout", "activation_dropout", "attention_dropout", "max_position_embeddings", "layer_idx", NULL};
    cfg_only(c, a, "attn_cfg", known);
    const json_t *value = cfg_get(a, "rotary_emb_scale_base");
    if (value) cfg_refuse(c, "attn_cfg.rotary_emb_scale_base", value, "scaled rotary embedding is not supported");
    if ((value = cfg_get(a, "softmax_scale")))
        cfg_refuse(c, "attn_cfg.softmax_scale", value, "only 1/sqrt(head size) is supported");
    if (!cfg_bool(c, a, "attn_cfg.causal", true))
        cfg_refuse(c, "attn_cfg.causal", cfg_get(a, "causal"), "only causal attention is supported");
    if (cfg_bool(c, a, "attn_cfg.qk_norm", false))
        cfg_refuse(c, "attn_cfg.qk_norm", cfg_get(a, "qk_norm"), "this layout has no query and key norms");

    value = cfg_get(a, "window_size");
    if (!value || (json_is_integer(value) && json_integer_value(value) <= 0))
        cfg_refuse(c, "attn_cfg.window_size", value,
                   "a positive window is needed, unlimited attention has no fixed size");
    /* left = w / 2 keys before the token, and the token's own */
    d->visible = (uint32_t)cfg_int(c, a, "attn_cfg.window_size", 0, 1, MAX_VISIBLE) / 2 + 1;

    set_heads(c, a, "attn_cfg", d);
    d->Hk = (uint32_t)cfg_int(c, a, "attn_cfg.num_heads_k", d->H, 1, MAX_H);
    d->Hv = (uint32_t)cfg_int(c, a, "attn_cfg.num_heads_v", d->H, 1, MAX_H);
    check_groups(c, "attn_cfg.num_heads_k", cfg_get(a, "num_heads_k"), d->Hk, d->H);
    check_groups(c, "attn_cfg.num_heads_v", cfg_get(a, "num_heads_v"), d->Hv, d->H);

    int64_t rotary = cfg_int(c, a, "attn_cfg.rotary_emb_dim", -1, -1, MAX_D);
    d->rot_dim = rotary < 0 ? d->P : (uint32_t)rotary;
    if (!c->rc && (d->rot_dim > d->P || d->rot_dim % 2))
        cfg_fail(c, ROD_EMODEL, "attn_cfg.rotary_emb_dim", cfg_get(a, "rotary_emb_dim"),
                 "the rotated size must be even and at most the head size");
    d->rot_base = cfg_real(c, a, "attn_cfg.rotary_emb_base", 10000.0, 0, 1e12);
    d->rot_interleaved = cfg_bool(c, a, "attn_cfg.rotary_emb_interleaved", false);
    double ratio = cfg_real(c, a, "attn_cfg.ffn_expand_ratio", 4.0 / 3.0, 0, MAX_E);
    d->F = cfg_align8(c, "attn_cfg.ffn_expand_ratio", cfg_get(a, "ffn_expand_ratio"), d->D * ratio, MAX_E);
}

static void parse_published(struct cfg *c, const json_t *root, struct model_dims *d) {
    d->D = (uint32_t)cfg_int(c, root, "d_model", 0, 1, MAX_D);
    d->L = (uint32_t)cfg_int(c, root, "n_layer", 0, 1, MAX_L);
    d->norm_eps = cfg_norm_epsilon(c, root, "norm_epsilon");
    d->tied = cfg_bool(c, root, "tie_word_embeddings", false);
    d->scale_embed = cfg_bool(c, root, "use_scale_embedding", false);
    d->norm_embed = cfg_bool(c, root, "use_norm_embedding", false);

    static const char *const known[] = {"d_conv", "mem_size", "expand_ratio", "input_gate_low_rank",
                                        "normalize_epsilon",
                                        /* no results */
                                        "mode", "dropout", "activation_dropout", "post_norm_epsilon",
                                        "residual_in_fp32", "use_fast_path", "layer_idx", NULL};
    const json_t *m = cfg_object(c, root, "mixer_cfg");
    cfg_only(c, m, "mixer_cfg", known);
    d->K = (uint32_t)cfg_int(c, m, "mixer_cfg.d_conv", 4, 1, MAX_K);
    d->M = (uint32_t)cfg_int(c, m, "mixer_cfg.mem_size", 64, 1, MAX_M);
    d->R = cfg_rank(c, m, "mixer_cfg.input_gate_low_rank", d->D);
    d->k_eps = cfg_key_epsilon(c, m, "mixer_cfg.normalize_epsilon");
    double ratio = cfg_real(c, m, "mixer_cfg.expand_ratio", 2.0, 0, MAX_E);
    d->E = cfg_align8(c, "mixer_cfg.expand_ratio", cfg_get(m, "expand_ratio"), d->D * ratio, MAX_E);
    if (d->plus) parse_published_attn(c, cfg_object(c, root, "attn_cfg"), d);
}

static void parse_fla_attn(struct cfg *c, const json_t *root, struct model_dims *d) {
    static const char *const known[] = {"num_heads", "window_size", "rope_theta", "qk_norm", "qkv_bias",
                                        /* no results */
                                        "max_position_embeddings", "layer_idx", NULL};
    const json_t *a = cfg_object(c, root, "ska_attn");
    cfg_only(c, a, "ska_attn", known);
    if (cfg_bool(c, a, "ska_attn.qkv_bias", false))
        cfg_refuse(c, "ska_attn.qkv_bias", cfg_get(a, "qkv_bias"), "biases of q, k, v are not supported");
    const json_t *window = json_object_get(a, "window_size"); /* absent has a default, null means unlimited */
    if (window && (json_is_null(window) || (json_is_integer(window) && json_integer_value(window) <= 0)))
        cfg_refuse(c, "ska_attn.window_size", window,
                   "a positive window is needed, unlimited attention has no fixed size");
    d->visible = (uint32_t)cfg_int(c, a, "ska_attn.window_size", 1024, 1, MAX_VISIBLE);
    set_heads(c, a, "ska_attn", d);
    d->Hk = 1;
    d->Hv = d->H;
    d->rot_dim = d->P;
    if (!c->rc && d->P % 2)
        cfg_fail(c, ROD_EMODEL, "ska_attn.num_heads", cfg_get(a, "num_heads"), "the head size must be even");
    d->rot_base = cfg_real(c, a, "ska_attn.rope_theta", 10000.0, 0, 1e12);
    d->qk_norm = cfg_bool(c, a, "ska_attn.qk_norm", false);

    double ratio = cfg_real(c, root, "hidden_ratio", 4.0 / 3.0, 0, MAX_E);
    int64_t F = cfg_int(c, root, "intermediate_size", 0, 0, MAX_E);
    d->F = F ? (uint32_t)F : cfg_align8(c, "hidden_ratio", cfg_get(root, "hidden_ratio"), d->D * ratio, MAX_E);
}

static void parse_fla(struct cfg *c, const json_t *root, struct model_dims *d) {
    const json_t *value = cfg_get(root, "attn");
    if (value) cfg_refuse(c, "attn", value, "full-attention layers are not supported");
    if (!cfg_bool(c, root, "use_short_conv", true))
        cfg_refuse(c, "use_short_conv", cfg_get(root, "use_short_conv"), "the short convolution is needed");
    const char *act = cfg_string(c, root, "hidden_act", "swish");
    if (strcmp(act, "swish") && strcmp(act, "silu"))
        cfg_refuse(c, "hidden_act", cfg_get(root, "hidden_act"), "only swish (silu) is supported");

    d->D = (uint32_t)cfg_int(c, root, "hidden_size", 0, 1, MAX_D);
    d->L = (uint32_t)cfg_int(c, root, "num_hidden_layers", 0, 1, MAX_L);
    d->M = (uint32_t)cfg_int(c, root, "expand_ratio", 64, 1, MAX_M); /* here the key means the memory size */
    d->K = (uint32_t)cfg_int(c, root, "conv_size", 4, 1, MAX_K);
    d->R = cfg_rank(c, root, "input_gate_low_rank", d->D);
    d->E = (2 * d->D + 7) / 8 * 8;
    d->norm_eps = cfg_norm_epsilon(c, root, "norm_eps");
    d->k_eps = cfg_key_epsilon(c, root, "k_norm_eps");
    d->tied = cfg_bool(c, root, "tie_word_embeddings", true);
    if (d->plus) parse_fla_attn(c, root, d);
}

static void parse_root(struct cfg *c, const json_t *root, struct model_config *out) {
    struct model_dims *d = &out->dims;
    const json_t *value = cfg_get(root, "model_type");
    const char *type = cfg_string(c, root, "model_type", "rodimus");
    if (strcmp(type, "rodimus")) cfg_refuse(c, "model_type", value, "only rodimus is supported");
    const char *block = cfg_string(c, root, "block_type", "rodimus_plus");
    d->plus = !strcmp(block, "rodimus_plus");
    if (!d->plus && strcmp(block, "rodimus"))
        cfg_refuse(c, "block_type", cfg_get(root, "block_type"), "only rodimus and rodimus_plus are supported");

    quant_config_parse(c, root, &out->quant);

    d->V = (uint32_t)cfg_int(c, root, "vocab_size", 0, 1, MAX_V);
    d->qk_norm_eps = 1e-5f;
    out->fla = cfg_get(root, "hidden_size") != NULL;
    if (out->fla)
        parse_fla(c, root, d);
    else
        parse_published(c, root, d);

    d->bos_id = (int32_t)cfg_int(c, root, "bos_token_id", -1, -1, (int64_t)d->V - 1);
    cfg_ids(c, root, "eos_token_id", d->V, &out->ends);
    d->eos_id = out->ends.n ? out->ends.ids[0] : -1;
    value = cfg_get(root, "torch_dtype");
    if (!value) value = cfg_get(root, "dtype"); /* newer files */
    const char *dtype = json_python_text(value);
    snprintf(out->torch_dtype, sizeof out->torch_dtype, "%s", dtype ? dtype : "");
}

/* What is true of every configuration that was accepted, whatever its text. */
static void check_dims(const struct model_dims *d) {
    assert(d->D && d->L && d->M && d->R && d->K && d->V);
    assert(d->E && d->E % 8 == 0 && d->E <= MAX_E);
    assert(d->eos_id < (int64_t)d->V && d->bos_id < (int64_t)d->V);
    if (!d->plus) {
        assert(!d->H && !d->visible && !d->F);
        return;
    }
    assert(d->H && d->H * d->P == d->D && d->H % d->Hk == 0 && d->H % d->Hv == 0);
    assert(d->visible && d->visible <= MAX_VISIBLE && d->rot_dim <= d->P && d->rot_dim % 2 == 0);
}

int model_config_parse(const char *json, size_t len, struct model_config *out, struct rod_error *err) {
    struct cfg c = {.file = "config.json", .err = err};
    *out = (struct model_config){0};
    json_t *root = cfg_load(&c, json, len);
    if (!c.rc) parse_root(&c, root, out);
    json_decref(root);
    if (!c.rc) check_dims(&out->dims);
    return c.rc;
}

static void parse_sampling(struct cfg *c, const json_t *root, const struct rod_sampling_option *o,
                           struct rod_sampling *out) {
    void *at = (char *)out + o->offset;
    if (o->file_high <= 0) return;
    if (o->whole)
        *(int32_t *)at = (int32_t)cfg_int(c, root, o->name, *(int32_t *)at, INT32_MIN, (int64_t)o->file_high);
    else
        *(float *)at = (float)cfg_interval(c, root, o->name, (double)*(float *)at, o->low, !o->above, o->file_high);
}

int model_generation_parse(const char *json, size_t len, uint32_t vocab_size, struct model_generation *out,
                           struct rod_error *err) {
    struct cfg c = {.file = "generation_config.json", .err = err};
    *out = (struct model_generation){.sampling = rod_sampling_neutral(), .bos_id = -1};
    json_t *root = cfg_load(&c, json, len);
    if (!c.rc) {
        for (size_t i = 0; i < ROD_N_SAMPLING; i++) parse_sampling(&c, root, &rod_sampling_options[i], &out->sampling);
        out->bos_id = (int32_t)cfg_int(&c, root, "bos_token_id", -1, -1, (int64_t)vocab_size - 1);
        cfg_ids(&c, root, "eos_token_id", vocab_size, &out->ends);
    }
    json_decref(root);
    return c.rc;
}

/* ---- adapters ---- */

/* In PEFT a pattern is a regular expression for the end of a module's name; those that are plain names are honoured. */
static bool name_is_plain(const char *name, size_t len) {
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == len;
}

static void parse_patterns(struct cfg *c, const json_t *root, const char *key, struct adapter_pattern **out,
                           size_t *n_out) {
    json_t *o = (json_t *)(uintptr_t)cfg_object(c, root, key);
    const bool whole = !strcmp(key, "rank_pattern");
    if (!json_object_size(o)) return;
    *out = calloc(json_object_size(o), sizeof **out);
    if (!*out && !c->rc) c->rc = rod_fail_no_memory(c->err);
    const char *name;
    size_t len;
    json_t *value;
    if (c->rc) return;
    json_object_keylen_foreach(o, name, len, value) {
        const double x = json_number_value(value);
        if (!name_is_plain(name, len)) {
            cfg_refuse(c, key, o, "only plain names of modules are supported, no regular expressions");
        } else if (whole && !(json_is_integer(value) && x >= 1 && x <= MAX_D)) {
            cfg_fail(c, ROD_EMODEL, key, o, "integers from 1 to 65536 are needed");
        } else if (!(json_is_number(value) && x > 0 && x <= MAX_ALPHA)) {
            cfg_fail(c, ROD_EMODEL, key, o, "numbers above 0, at most 1000000, are needed");
        }
        if (c->rc) return;
        (*out)[(*n_out)++] = (struct adapter_pattern){name, x};
    }
}

/* A list of names, or a text: a regular expression over all modules, where the tensors alone say what it met. */
static void parse_targets(struct cfg *c, const json_t *root, struct adapter_config *out) {
    const json_t *value = cfg_get(root, "target_modules");
    if (!value || json_is_string(value)) return;
    if (!json_array_size(value)) {
        cfg_fail(c, ROD_EMODEL, "target_modules", value, "a text or a list of names is needed");
        return;
    }
    out->targets = calloc(json_array_size(value), sizeof *out->targets);
    if (!out->targets && !c->rc) c->rc = rod_fail_no_memory(c->err);
    for (size_t i = 0; i < json_array_size(value) && !c->rc; i++) {
        const char *name = json_python_text(json_array_get(value, i));
        if (name && *name)
            out->targets[out->n_targets++] = name;
        else
            cfg_fail(c, ROD_EMODEL, "target_modules", value, "a text or a list of names is needed");
    }
}

/* Some ways to begin move a part of the base model's weights into the adapter: it is no adapter of the base model. */
static void check_beginning(struct cfg *c, const json_t *root) {
    const json_t *value = cfg_get(root, "init_lora_weights");
    static const char *const good[] = {"gaussian", "eva", "orthogonal"};
    if (!value || json_is_boolean(value)) return;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (json_python_text(value) && !strcmp(json_python_text(value), good[i])) return;
    cfg_refuse(c, "init_lora_weights", value, "the base model's weights may have been changed with it");
}

static void parse_adapter(struct cfg *c, const json_t *root, struct adapter_config *out) {
    static const char *const known[] = {
        "peft_type", "r", "lora_alpha", "use_rslora", "fan_in_fan_out", "target_modules", "bias", "rank_pattern",
        "alpha_pattern", "modules_to_save", "use_dora", "init_lora_weights",
        /* no results, once it is trained */
        "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "inference_mode",
        "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config", "megatron_core",
        "peft_version", "qalora_group_size", "revision", "task_type", NULL};
    const json_t *value = cfg_get(root, "peft_type");
    const char *type = cfg_string(c, root, "peft_type", "");
    if (strcmp(type, "LORA")) cfg_refuse(c, "peft_type", value, "only LORA is supported");
    if (strcmp(cfg_string(c, root, "bias", "none"), "none"))
        cfg_refuse(c, "bias", cfg_get(root, "bias"), "only none is supported");
    if (cfg_bool(c, root, "use_dora", false))
        cfg_refuse(c, "use_dora", cfg_get(root, "use_dora"), "DoRA is not supported");
    if (cfg_bool(c, root, "fan_in_fan_out", false))
        cfg_refuse(c, "fan_in_fan_out", cfg_get(root, "fan_in_fan_out"), "no weight of this model is stored so");
    if ((value = cfg_get(root, "modules_to_save")) && !cfg_says_nothing(value))
        cfg_refuse(c, "modules_to_save", value, "whole modules in an adapter are not supported");
    check_beginning(c, root);
    cfg_only(c, root, "", known);
    out->r = (uint32_t)cfg_int(c, root, "r", 8, 1, MAX_D);
    out->alpha = cfg_real(c, root, "lora_alpha", 8, 0, MAX_ALPHA);
    out->rslora = cfg_bool(c, root, "use_rslora", false);
    parse_patterns(c, root, "rank_pattern", &out->ranks, &out->n_ranks);
    parse_patterns(c, root, "alpha_pattern", &out->alphas, &out->n_alphas);
    parse_targets(c, root, out);
}

int adapter_config_parse(const char *json, size_t len, struct adapter_config *out, struct rod_error *err) {
    struct cfg c = {.file = "adapter_config.json", .err = err};
    *out = (struct adapter_config){0};
    out->priv = cfg_load(&c, json, len);
    if (!c.rc) parse_adapter(&c, out->priv, out);
    if (c.rc) adapter_config_free(out);
    return c.rc;
}

void adapter_config_free(struct adapter_config *config) {
    free(config->ranks);
    free(config->alphas);
    free(config->targets);
    json_decref(config->priv);
    *config = (struct adapter_config){0};
}

bool adapter_config_matches(const char *name, const char *module) {
    const size_t n = strlen(name), len = strlen(module);
    return n <= len && !strcmp(module + len - n, name) && (n == len || module[len - n - 1] == '.');
}

static double pattern_value(const struct adapter_pattern *patterns, size_t n, const char *module, double otherwise) {
    for (size_t i = 0; i < n; i++)
        if (adapter_config_matches(patterns[i].name, module)) return patterns[i].value;
    return otherwise;
}

uint32_t adapter_config_rank(const struct adapter_config *config, const char *module) {
    return (uint32_t)pattern_value(config->ranks, config->n_ranks, module, config->r);
}

double adapter_config_scale(const struct adapter_config *config, const char *module) {
    const double r = adapter_config_rank(config, module);
    return pattern_value(config->alphas, config->n_alphas, module, config->alpha) / (config->rslora ? sqrt(r) : r);
}
