/* test_model_config.c - config.json of both layouts and generation_config.json: sizes, defaults, refusals. */
#include "engine/model/model_internal.h"
#include "tests/read_file.h"
#include "tests/count_params.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct model_dims parse_dims(const char *dir, bool *fla) {
    size_t n;
    char *text = read_file_in(dir, "config.json", &n);
    struct model_config config;
    struct rod_error err;
    if (model_config_parse(text, n, &config, &err)) fail_msg("%s: %s", dir, err.message);
    free(text);
    *fla = config.fla;
    return config.dims;
}

static void published_configs_have_the_sizes_of_the_design(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        uint32_t D, L, E, M, R, H, P, F, visible;
        uint64_t params;
        bool tied;
        float k_eps;
    } rows[] = {
        {"tests/configs/rodimus-1.4b-base", 2048, 48, 4096, 64, 32, 0, 0, 0, 0, 1531551744, true, 1e-12f},
        {"tests/configs/rodimus-plus-coder-1.6b", 2048, 24, 4096, 64, 32, 16, 128, 2736, 2049, 1607095296, true, 1e-5f},
        {"tests/configs/rodimus-plus-coder-4b", 3072, 32, 6144, 64, 48, 24, 128, 4096, 2049, 4786527232, false, 1e-5f},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool fla;
        struct model_dims d = parse_dims(rows[i].dir, &fla);
        assert_false(fla);
        assert_int_equal(d.D, rows[i].D);
        assert_int_equal(d.L, rows[i].L);
        assert_int_equal(d.E, rows[i].E);
        assert_int_equal(d.M, rows[i].M);
        assert_int_equal(d.R, rows[i].R);
        assert_int_equal(d.H, rows[i].H);
        assert_int_equal(d.P, rows[i].P);
        assert_int_equal(d.F, rows[i].F);
        assert_int_equal(d.visible, rows[i].visible);
        assert_int_equal(d.K, 4);
        assert_int_equal(d.V, 126464);
        assert_int_equal(d.bos_id, 126080);
        assert_int_equal(d.eos_id, 126081);
        assert_int_equal(d.tied, rows[i].tied);
        assert_int_equal(d.plus, rows[i].H != 0);
        assert_true(d.k_eps == rows[i].k_eps);
        assert_true(d.norm_eps == 1e-5f);
        if (count_params(&d) != rows[i].params)
            fail_msg("%s: %llu parameters, expected %llu", rows[i].dir, (unsigned long long)count_params(&d),
                     (unsigned long long)rows[i].params);
        if (d.plus) {
            assert_int_equal(d.Hk, 1);
            assert_int_equal(d.Hv, d.H);
            assert_int_equal(d.rot_dim, d.P);
        }
    }
}

static void session_bytes_are_those_of_the_design(void **state) {
    (void)state;
    bool fla;
    struct model_dims d = parse_dims("tests/configs/rodimus-1.4b-base", &fla);
    assert_int_equal(model_state_bytes(&d, 4, 0, 2), 48 << 20);
    assert_int_equal(model_state_bytes(&d, 0, 2, 2), 3 << 19);
    d = parse_dims("tests/configs/rodimus-plus-coder-1.6b", &fla);
    assert_int_equal(model_state_bytes(&d, 4, 0, 0), 24 << 20);
    assert_int_equal(model_state_bytes(&d, 0, 0, 2) >> 20, 204);
    d = parse_dims("tests/configs/rodimus-plus-coder-4b", &fla);
    assert_int_equal(model_state_bytes(&d, 4, 0, 0), 48 << 20);
    assert_int_equal((model_state_bytes(&d, 0, 0, 2) + (1 << 19)) >> 20, 400);
}

static int parse(const char *json, struct model_config *c, struct rod_error *err) {
    *err = (struct rod_error){0};
    return model_config_parse(json, strlen(json), c, err);
}

static void absent_and_null_keys_have_their_defaults(void **state) {
    (void)state;
    static const char *const published[] = {
        "{\"d_model\":256,\"n_layer\":2,\"vocab_size\":300,\"attn_cfg\":{\"window_size\":9}}",
        "{\"d_model\":256,\"n_layer\":2,\"vocab_size\":300,\"hidden_size\":null,\"block_type\":null,\"norm_epsilon\":"
        "null,"
        "\"tie_word_embeddings\":null,\"use_scale_embedding\":null,\"use_norm_embedding\":null,\"bos_token_id\":null,"
        "\"eos_token_id\":null,\"model_type\":null,\"torch_dtype\":null,"
        "\"mixer_cfg\":{\"d_conv\":null,\"expand_ratio\":null,\"mem_size\":null,\"input_gate_low_rank\":null,"
        "\"normalize_epsilon\":null},\"attn_cfg\":{\"window_size\":8,\"num_heads\":null,\"num_heads_k\":null,"
        "\"num_heads_v\":null,\"rotary_emb_dim\":null,\"rotary_emb_base\":null,\"rotary_emb_interleaved\":null,"
        "\"ffn_expand_ratio\":null,\"rotary_emb_scale_base\":null,\"softmax_scale\":null,\"causal\":null}}",
        /* what trains, what is slower or faster, and unknown keys that say nothing */
        "{\"d_model\":256,\"n_layer\":2,\"vocab_size\":300,\"mixer_cfg\":{\"mode\":\"chunk\",\"dropout\":0.1,\"bias\":"
        "false,\"x\":0,\"y\":\"\",\"z\":[]},\"attn_cfg\":{\"window_size\":9,\"attention_dropout\":0.1,\"alibi\":null,"
        "\"w\":{}}}"};
    enum { N_PUBLISHED = sizeof published / sizeof *published };
    struct model_config c;
    struct rod_error err;
    for (int i = 0; i < N_PUBLISHED; i++) {
        if (parse(published[i], &c, &err)) fail_msg("%s", err.message);
        const struct model_dims *d = &c.dims;
        assert_true(d->plus && !c.fla && !d->tied && !d->scale_embed && !d->norm_embed && !d->rot_interleaved);
        assert_int_equal(d->E, 512);
        assert_int_equal(d->M, 64);
        assert_int_equal(d->K, 4);
        assert_int_equal(d->R, 16);
        assert_int_equal(d->H, 2);
        assert_int_equal(d->Hk, 2);
        assert_int_equal(d->Hv, 2);
        assert_int_equal(d->P, 128);
        assert_int_equal(d->F, 344);
        assert_int_equal(d->rot_dim, 128);
        assert_int_equal(d->visible, 5); /* windows 8 and 9: four keys before, and the token's own */
        assert_int_equal(d->bos_id, -1);
        assert_int_equal(d->eos_id, -1);
        assert_true(d->rot_base == 10000.0 && d->norm_eps == 1e-5f && d->k_eps == 1e-12f);
    }
    static const char *const fla[] = {
        "{\"hidden_size\":256,\"num_hidden_layers\":2,\"vocab_size\":300}",
        "{\"hidden_size\":256,\"num_hidden_layers\":2,\"vocab_size\":300,\"block_type\":null,\"hidden_ratio\":null,"
        "\"intermediate_size\":null,\"norm_eps\":null,\"k_norm_eps\":null,\"expand_ratio\":null,\"conv_size\":null,"
        "\"input_gate_low_rank\":null,\"tie_word_embeddings\":null,\"attn\":null,\"use_short_conv\":null,\"hidden_"
        "act\":null,"
        "\"ska_attn\":{\"num_heads\":null,\"rope_theta\":null,\"qk_norm\":null,\"qkv_bias\":null}}"};
    for (int i = 0; i < 2; i++) {
        if (parse(fla[i], &c, &err)) fail_msg("%s", err.message);
        const struct model_dims *d = &c.dims;
        assert_true(d->plus && c.fla && d->tied && !d->qk_norm);
        assert_int_equal(d->E, 512);
        assert_int_equal(d->M, 64);
        assert_int_equal(d->K, 4);
        assert_int_equal(d->R, 16);
        assert_int_equal(d->H, 2);
        assert_int_equal(d->Hk, 1);
        assert_int_equal(d->Hv, 2);
        assert_int_equal(d->F, 344);
        assert_int_equal(d->visible, 1024);
        assert_int_equal(d->rot_dim, 128);
        assert_true(d->norm_eps == 1e-5f && d->k_eps == 1e-12f && d->rot_base == 10000.0);
    }
}

static void options_are_understood(void **state) {
    (void)state;
    bool fla;
    struct model_dims d = parse_dims("tests/vectors/rodimus-plus-options", &fla);
    assert_true(d.scale_embed && d.norm_embed && !d.tied && !fla);
    assert_int_equal(d.K, 3);
    assert_int_equal(d.E, 144);
    assert_int_equal(d.R, 8);
    assert_int_equal(d.Hk, 2);
    assert_int_equal(d.Hv, 3);
    assert_int_equal(d.visible, 6);
    assert_int_equal(d.F, 192);
    assert_true(d.rot_base == 500.0 && d.norm_eps == 1e-6f);
    d = parse_dims("tests/vectors/rodimus-plus-extremes", &fla);
    assert_int_equal(d.rot_dim, 8);
    assert_true(d.rot_interleaved);
    assert_int_equal(d.visible, 16);
    d = parse_dims("tests/vectors/rodimus-plus-short", &fla);
    assert_int_equal(d.rot_dim, 0);
    d = parse_dims("tests/vectors/fla-rodimus-plus-small", &fla);
    assert_true(fla && d.qk_norm && d.tied);
    assert_int_equal(d.visible, 24);
    assert_int_equal(d.M, 32);
    assert_int_equal(d.F, 176);
    d = parse_dims("tests/vectors/fla-rodimus-small", &fla);
    assert_true(fla && !d.plus && !d.tied);

    struct model_config c;
    struct rod_error err;
    assert_int_equal(parse("{\"d_model\":64,\"n_layer\":1,\"vocab_size\":300,\"block_type\":\"rodimus\",\"attn_cfg\":"
                           "{\"window_size\":null,\"softmax_scale\":2,\"num_heads\":7},\"eos_token_id\":[5,2,-1],"
                           "\"mixer_cfg\":{\"normalize_epsilon\":0,\"expand_ratio\":1.3}}",
                           &c, &err),
                     0);
    assert_int_equal(c.dims.visible, 0);
    assert_int_equal(c.dims.E, 88); /* int(83.2) = 83, to a multiple of 8 */
    assert_true(c.dims.k_eps == 1e-12f);
    assert_int_equal(c.dims.eos_id, 5);
    assert_int_equal(c.ends.n, 2);
    assert_int_equal(
        parse("{\"hidden_size\":64,\"num_hidden_layers\":1,\"vocab_size\":9,\"ska_attn\":{\"num_heads\":4},"
              "\"intermediate_size\":100,\"hidden_act\":\"silu\"}",
              &c, &err),
        0);
    assert_int_equal(c.dims.F, 100);
}

#define PUBLISHED    "\"n_layer\":2,\"vocab_size\":300,"
#define PLUS(attn)   "{\"d_model\":256," PUBLISHED "\"attn_cfg\":{\"window_size\":8," attn "}}"
#define PLAIN(mixer) "{\"d_model\":256," PUBLISHED "\"block_type\":\"rodimus\",\"mixer_cfg\":{" mixer "}}"
#define FLA(more)    "{\"hidden_size\":256,\"num_hidden_layers\":2,\"vocab_size\":300," more "}"

static void bad_configs_are_refused_by_key(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int code;
        const char *key, *says;
    } cases[] = {
        {"", ROD_EMODEL, "", "not valid JSON"},
        {"[1]", ROD_EMODEL, "", "not a JSON object"},
        {"{\"d_model\":256,\"n_layer\":3,\"n_layer\":0,\"vocab_size\":9}", ROD_EMODEL, "n_layer",
         "is 0"}, /* as Python: the last */
        {"{" PUBLISHED "\"d_model\":null}", ROD_EMODEL, "d_model", "missing"},
        {"{\"d_model\":256,\"vocab_size\":3}", ROD_EMODEL, "n_layer", "missing"},
        {"{\"d_model\":256,\"n_layer\":3}", ROD_EMODEL, "vocab_size", "missing"},
        {"{\"d_model\":0," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "is 0"},
        {"{\"d_model\":-5," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "is -5"},
        {"{\"d_model\":1000000," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "65536"},
        {"{\"d_model\":\"256\"," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "integer"},
        {"{\"d_model\":256.5," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "integer"},
        {"{\"d_model\":true," PUBLISHED "\"x\":1}", ROD_EMODEL, "d_model", "integer"},
        {"{\"d_model\":256," PUBLISHED "\"model_type\":\"llama\"}", ROD_EUNSUPPORTED, "model_type", "llama"},
        {"{\"d_model\":256," PUBLISHED "\"block_type\":\"mamba\"}", ROD_EUNSUPPORTED, "block_type", "mamba"},
        {"{\"d_model\":256," PUBLISHED "\"block_type\":3}", ROD_EMODEL, "block_type", "string"},
        {"{\"d_model\":256," PUBLISHED "\"mixer_cfg\":[]}", ROD_EMODEL, "mixer_cfg", "object"},
        {"{\"d_model\":256," PUBLISHED "\"norm_epsilon\":-1}", ROD_EMODEL, "norm_epsilon", "-1"},
        {"{\"d_model\":256," PUBLISHED "\"norm_epsilon\":0}", ROD_EMODEL, "norm_epsilon", "is 0"},
        {FLA("\"norm_eps\":0.0"), ROD_EMODEL, "norm_eps", "is 0.0"},
        {PLAIN("\"window\":5"), ROD_EUNSUPPORTED, "mixer_cfg.window", "not known"},
        {PLAIN("\"kernel\":\"x\""), ROD_EUNSUPPORTED, "mixer_cfg.kernel", "not known"},
        {PLUS("\"num_heads\":2,\"qkv_proj_bias\":true"), ROD_EUNSUPPORTED, "attn_cfg.qkv_proj_bias", "not known"},
        {PLUS("\"num_heads\":2,\"\\u001b[31m\\n\":1"), ROD_EUNSUPPORTED, "attn_cfg.?[31m?", "not known"},
        {PLUS("\"num_heads\":2,\"logit_softcap\":30"), ROD_EUNSUPPORTED, "attn_cfg.logit_softcap", "is 30"},
        {FLA("\"ska_attn\":{\"num_heads\":2,\"num_kv_heads\":2}"), ROD_EUNSUPPORTED, "ska_attn.num_kv_heads",
         "not known"},
        {"{\"d_model\":256," PUBLISHED "\"tie_word_embeddings\":1}", ROD_EMODEL, "tie_word_embeddings",
         "true or false"},
        {PLAIN("\"mem_size\":5000"), ROD_EMODEL, "mixer_cfg.mem_size", "4096"},
        {PLAIN("\"d_conv\":0"), ROD_EMODEL, "mixer_cfg.d_conv", "is 0"},
        {PLAIN("\"expand_ratio\":0.001"), ROD_EMODEL, "mixer_cfg.expand_ratio", "derived size"},
        {PLAIN("\"expand_ratio\":100000"), ROD_EMODEL, "mixer_cfg.expand_ratio", "derived size"},
        {PLAIN("\"expand_ratio\":-2"), ROD_EMODEL, "mixer_cfg.expand_ratio", "-2"},
        {PLAIN("\"input_gate_low_rank\":\"big\""), ROD_EMODEL, "mixer_cfg.input_gate_low_rank", "big"},
        {PLAIN("\"input_gate_low_rank\":0"), ROD_EMODEL, "mixer_cfg.input_gate_low_rank", "is 0"},
        {PLAIN("\"normalize_epsilon\":\"x\""), ROD_EMODEL, "mixer_cfg.normalize_epsilon", "number"},
        {"{\"d_model\":256," PUBLISHED "\"x\":1}", ROD_EUNSUPPORTED, "attn_cfg.window_size", "missing"},
        {"{\"d_model\":256," PUBLISHED "\"attn_cfg\":{\"window_size\":null}}", ROD_EUNSUPPORTED, "attn_cfg.window_size",
         ""},
        {"{\"d_model\":256," PUBLISHED "\"attn_cfg\":{\"window_size\":0}}", ROD_EUNSUPPORTED, "attn_cfg.window_size",
         "0"},
        {"{\"d_model\":256," PUBLISHED "\"attn_cfg\":{\"window_size\":-1}}", ROD_EUNSUPPORTED, "attn_cfg.window_size",
         ""},
        {"{\"d_model\":256," PUBLISHED "\"attn_cfg\":{\"window_size\":99999999}}", ROD_EMODEL, "attn_cfg.window_size",
         ""},
        {PLUS("\"rotary_emb_scale_base\":512"), ROD_EUNSUPPORTED, "attn_cfg.rotary_emb_scale_base", "512"},
        {PLUS("\"softmax_scale\":0.1"), ROD_EUNSUPPORTED, "attn_cfg.softmax_scale", "0.1"},
        {PLUS("\"causal\":false"), ROD_EUNSUPPORTED, "attn_cfg.causal", "false"},
        {PLUS("\"qk_norm\":true"), ROD_EUNSUPPORTED, "attn_cfg.qk_norm", "true"},
        {PLUS("\"num_heads\":3"), ROD_EMODEL, "attn_cfg.num_heads", "divide"},
        {PLUS("\"num_heads\":4,\"num_heads_k\":3"), ROD_EMODEL, "attn_cfg.num_heads_k", "divide"},
        {PLUS("\"num_heads\":4,\"num_heads_v\":8"), ROD_EMODEL, "attn_cfg.num_heads_v", "divide"},
        {PLUS("\"rotary_emb_dim\":7"), ROD_EMODEL, "attn_cfg.rotary_emb_dim", "even"},
        {PLUS("\"rotary_emb_dim\":130"), ROD_EMODEL, "attn_cfg.rotary_emb_dim", "head size"},
        {PLUS("\"rotary_emb_base\":0"), ROD_EMODEL, "attn_cfg.rotary_emb_base", "0"},
        {PLUS("\"ffn_expand_ratio\":1e9"), ROD_EMODEL, "attn_cfg.ffn_expand_ratio", ""},
        {"{\"d_model\":64," PUBLISHED "\"attn_cfg\":{\"window_size\":8}}", ROD_EMODEL, "attn_cfg.num_heads", "missing"},
        {"{\"d_model\":256," PUBLISHED "\"block_type\":\"rodimus\",\"eos_token_id\":300}", ROD_EMODEL, "eos_token_id",
         "300"},
        {"{\"d_model\":256," PUBLISHED "\"block_type\":\"rodimus\",\"eos_token_id\":[1,\"x\"]}", ROD_EMODEL,
         "eos_token_id", ""},
        {"{\"d_model\":256," PUBLISHED "\"block_type\":\"rodimus\",\"bos_token_id\":1e3}", ROD_EMODEL, "bos_token_id",
         ""},
        {FLA("\"attn\":{\"layers\":[1]}"), ROD_EUNSUPPORTED, "attn", "full-attention"},
        {FLA("\"quantization_config\":{\"bits\":4}"), ROD_EUNSUPPORTED, "quantization_config.quant_method",
         "is missing"},
        {FLA("\"use_short_conv\":false"), ROD_EUNSUPPORTED, "use_short_conv", "false"},
        {FLA("\"hidden_act\":\"gelu\""), ROD_EUNSUPPORTED, "hidden_act", "gelu"},
        {FLA("\"ska_attn\":{\"qkv_bias\":true}"), ROD_EUNSUPPORTED, "ska_attn.qkv_bias", "true"},
        {FLA("\"ska_attn\":{\"window_size\":null}"), ROD_EUNSUPPORTED, "ska_attn.window_size", "null"},
        {FLA("\"ska_attn\":{\"window_size\":-1}"), ROD_EUNSUPPORTED, "ska_attn.window_size", "-1"},
        {FLA("\"intermediate_size\":99999999"), ROD_EMODEL, "intermediate_size", "99999999"},
        {FLA("\"expand_ratio\":0"), ROD_EMODEL, "expand_ratio", "is 0"},
        {"{\"hidden_size\":254,\"num_hidden_layers\":2,\"vocab_size\":3,\"ska_attn\":{\"num_heads\":2}}", ROD_EMODEL,
         "ska_attn.num_heads", "even"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        struct rod_error err;
        int rc = parse(cases[i].json, &c, &err);
        if (rc != cases[i].code || strcmp(err.param, cases[i].key) || !strstr(err.message, cases[i].key) ||
            !strstr(err.message, cases[i].says))
            fail_msg("%s: code %d (expected %d), key \"%s\", \"%s\" lacks \"%s\" or \"%s\"", cases[i].json, rc,
                     cases[i].code, err.param, err.message, cases[i].key, cases[i].says);
    }
}

static void no_end_token_counts_twice_and_none_is_lost(void **state) {
    (void)state;
    struct model_config c;
    struct model_generation g;
    struct rod_error err;
    if (parse(FLA("\"eos_token_id\":[7,7,-1,2,7,7,7,7,7,7,2,7]"), &c, &err)) fail_msg("%s", err.message);
    assert_int_equal(c.ends.n, 2);
    assert_int_equal(c.ends.ids[0], 7);
    assert_int_equal(c.ends.ids[1], 2);
    const char *many = "{\"eos_token_id\":[1,2,3,4,5,6,7,8,8,1]}";
    assert_int_equal(model_generation_parse(many, strlen(many), 300, &g, &err), 0);
    assert_int_equal(g.ends.n, 8);
    many = "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}";
    assert_int_equal(model_generation_parse(many, strlen(many), 300, &g, &err), ROD_EUNSUPPORTED);
}

static void a_quantization_config_that_says_nothing_is_none(void **state) {
    (void)state;
    struct model_config c;
    struct rod_error err;
    static const char *const nothing[] = {FLA("\"quantization_config\":{}"), FLA("\"quantization_config\":null"),
                                          FLA("\"pad_token_id\":NaN")};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        if (parse(nothing[i], &c, &err)) fail_msg("%s: %s", nothing[i], err.message);
        assert_int_equal(c.quant.method, QUANT_NONE);
    }
}

#define BLOCK(value)                                                                                                   \
    FLA("\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{"            \
        "\"weights\":{"                                                                                                \
        "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":" value "}}}}")

static void a_block_structure_is_a_list_or_a_text(void **state) {
    (void)state;
    struct model_config c;
    struct rod_error err;
    if (parse(BLOCK("[128,128]"), &c, &err) || parse(BLOCK("\"128x128\""), &c, &err)) fail_msg("%s", err.message);
    assert_int_equal(c.quant.method, QUANT_COMPRESSED);
    static const char *const others[] = {BLOCK("\"128x64\""), BLOCK("\"128\""), BLOCK("\"128x128\\u0000\""),
                                         BLOCK("[128]"), BLOCK("[128,Infinity]")};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(parse(others[i], &c, &err), ROD_EUNSUPPORTED);
        assert_non_null(strstr(err.message, "block_structure"));
    }
}

static void generation_defaults_are_read(void **state) {
    (void)state;
    struct model_generation g;
    struct rod_error err;
    const char *json = "{\"do_sample\":false,\"temperature\":0.7,\"top_p\":0.9,\"top_k\":20,\"min_p\":0.05,"
                       "\"repetition_penalty\":1.1,\"eos_token_id\":[3,4],\"bos_token_id\":2}";
    assert_int_equal(model_generation_parse(json, strlen(json), 300, &g, &err), 0);
    const struct rod_sampling *s = &g.sampling;
    assert_true(s->temperature == 0.7f && s->top_p == 0.9f && s->min_p == 0.05f && s->repetition_penalty == 1.1f);
    assert_int_equal(s->top_k, 20);
    assert_int_equal(g.ends.n, 2);
    assert_int_equal(model_generation_parse("{}", 2, 300, &g, &err), 0);
    const struct rod_sampling neutral = rod_sampling_neutral();
    assert_memory_equal(s, &neutral, sizeof neutral);
    json = "{\"top_k\":-1,\"temperature\":0}";
    assert_int_equal(model_generation_parse(json, strlen(json), 300, &g, &err), 0);
    assert_true(s->top_k <= 0 && s->temperature == 0);
    static const char *const bad[] = {
        "{\"temperature\":-1}",       "{\"top_p\":0}",     "{\"top_p\":1.5}",       "{\"top_k\":1.5}",
        "{\"repetition_penalty\":0}", "{\"min_p\":\"x\"}", "{\"eos_token_id\":300}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(model_generation_parse(bad[i], strlen(bad[i]), 300, &g, &err), ROD_EMODEL);
        if (!strstr(err.message, "generation_config.json") || !err.param[0]) fail_msg("%s: %s", bad[i], err.message);
    }
}

static void bounds_are_printed_as_plain_numbers(void **state) {
    (void)state;
    struct model_generation g;
    struct rod_error err;
    static const char *const cases[][2] = {
        {"{\"temperature\":-1}", "a number of at least 0, at most 1000 is needed"},
        {"{\"min_p\":-1}", "a number of at least 0, at most 1 is needed"},
        {"{\"repetition_penalty\":0.0005}", "a number of at least 0.001, at most 1000 is needed"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(model_generation_parse(cases[i][0], strlen(cases[i][0]), 300, &g, &err), ROD_EMODEL);
        if (!strstr(err.message, cases[i][1]))
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i][0], err.message, cases[i][1]);
    }
    struct model_config c;
    const char *wide = "{\"model_type\":\"rodimus\",\"d_model\":256,\"n_layer\":2,\"vocab_size\":300,"
                       "\"mixer_cfg\":{\"expand_ratio\":2e6}}";
    assert_int_equal(parse(wide, &c, &err), ROD_EMODEL);
    if (!strstr(err.message, "a number above 0, at most 1048576 is needed")) fail_msg("\"%s\"", err.message);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configs_have_the_sizes_of_the_design),
        cmocka_unit_test(session_bytes_are_those_of_the_design),
        cmocka_unit_test(absent_and_null_keys_have_their_defaults),
        cmocka_unit_test(options_are_understood),
        cmocka_unit_test(bad_configs_are_refused_by_key),
        cmocka_unit_test(no_end_token_counts_twice_and_none_is_lost),
        cmocka_unit_test(a_quantization_config_that_says_nothing_is_none),
        cmocka_unit_test(a_block_structure_is_a_list_or_a_text),
        cmocka_unit_test(generation_defaults_are_read),
        cmocka_unit_test(bounds_are_printed_as_plain_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
