/* api_peers.c - see api_peers.h. */
#include "api_peers.h"
#include "api_fields.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPETITION "use repetition_penalty, frequency_penalty or presence_penalty"
#define LOGPROBS   "use logprobs, in chats with top_logprobs"
#define TAILS      "use min_p, top_p or typical_p"

const struct api_peer api_peers[] = {
    {"add_generation_prompt", "vLLM", PEER_SAME, NULL, NULL},
    {"add_special_tokens", "vLLM", PEER_SAME, NULL, NULL},
    {"allowed_token_ids", "vLLM", PEER_SAME, NULL, NULL},
    {"bad_words", "vLLM, LMDeploy", PEER_SAME, NULL, NULL},
    {"cache_salt", "vLLM", PEER_SAME, NULL, NULL},
    {"continue_final_message", "vLLM, SGLang", PEER_SAME, NULL, NULL},
    {"ignore_eos", "vLLM, SGLang, LMDeploy, llama.cpp", PEER_SAME, NULL, NULL},
    {"include_stop_str_in_output", "vLLM, LMDeploy", PEER_SAME, NULL, NULL},
    {"min_p", "vLLM, SGLang, LMDeploy, llama.cpp", PEER_SAME, NULL, NULL},
    {"min_tokens", "vLLM, SGLang", PEER_SAME, NULL, NULL},
    {"prompt_logprobs", "vLLM", PEER_SAME, NULL, NULL},
    {"repetition_penalty", "vLLM, SGLang, LMDeploy", PEER_SAME, NULL, NULL},
    {"return_token_ids", "vLLM, LMDeploy", PEER_SAME, NULL, NULL},
    {"return_tokens_as_token_ids", "vLLM", PEER_SAME, NULL, NULL},
    {"skip_special_tokens", "vLLM, SGLang, LMDeploy", PEER_SAME, NULL, NULL},
    {"stop_token_ids", "vLLM, SGLang, LMDeploy", PEER_SAME, NULL, NULL},
    {"structured_outputs", "vLLM", PEER_SAME, NULL, NULL},
    {"top_k", "vLLM, SGLang, LMDeploy, llama.cpp", PEER_SAME, NULL, NULL},
    {"truncate_prompt_tokens", "vLLM", PEER_SAME, NULL, NULL},
    {"truncation_side", "vLLM", PEER_SAME, NULL, NULL},
    {"typical_p", "llama.cpp", PEER_SAME, NULL, NULL},

    {"max_new_tokens", "SGLang, LMDeploy", PEER_ALIAS, "max_tokens", NULL},
    {"min_new_tokens", "SGLang, LMDeploy", PEER_ALIAS, "min_tokens", NULL},
    {"n_cmpl", "llama.cpp", PEER_ALIAS, "n", NULL},
    {"n_predict", "llama.cpp", PEER_ALIAS, "max_tokens", NULL},
    {"no_stop_trim", "SGLang", PEER_ALIAS, "include_stop_str_in_output", NULL},
    {"random_seed", "LMDeploy, Mistral", PEER_ALIAS, "seed", NULL},
    {"repeat_penalty", "llama.cpp, Ollama", PEER_ALIAS, "repetition_penalty", NULL},
    {"return_tokens", "llama.cpp", PEER_ALIAS, "return_token_ids", NULL},
    {"sampling_seed", "SGLang", PEER_ALIAS, "seed", NULL},
    {"stop_words", "LMDeploy", PEER_ALIAS, "stop", NULL},

    {"ebnf", "SGLang", PEER_GRAMMAR, "grammar", NULL},
    {"grammar", "llama.cpp", PEER_GRAMMAR, "grammar", NULL},
    {"guided_choice", "vLLM, old", PEER_GRAMMAR, "choice", NULL},
    {"guided_grammar", "vLLM, old", PEER_GRAMMAR, "grammar", NULL},
    {"guided_json", "vLLM, old", PEER_GRAMMAR, "json", NULL},
    {"guided_json_object", "vLLM, old", PEER_GRAMMAR, "json_object", NULL},
    {"guided_regex", "vLLM, old", PEER_GRAMMAR, "regex", NULL},
    {"json_schema", "SGLang, llama.cpp", PEER_GRAMMAR, "json", NULL},
    {"regex", "SGLang", PEER_GRAMMAR, "regex", NULL},

    {"adaptive_target", "llama.cpp", PEER_REFUSED, TAILS, "-1"},
    {"audio", "OpenAI", PEER_REFUSED, NULL, NULL},
    {"banned_strings", "text-generation-webui", PEER_REFUSED, "use bad_words", NULL},
    {"chat_template", "vLLM", PEER_REFUSED, "put a chat_template.rodimus.json beside the model", NULL},
    {"custom_logit_processor", "SGLang", PEER_REFUSED, "use logit_bias, allowed_token_ids or bad_words", NULL},
    {"custom_token_bans", "text-generation-webui", PEER_REFUSED, "use logit_bias", NULL},
    {"do_preprocess", "LMDeploy", PEER_REFUSED, "use /v1/completions for text without a chat format", "true"},
    {"documents", "vLLM", PEER_REFUSED, "put them into a message", NULL},
    {"dry_multiplier", "llama.cpp", PEER_REFUSED, REPETITION, NULL},
    {"dynatemp_range", "llama.cpp", PEER_REFUSED, "use temperature", NULL},
    {"epsilon_cutoff", "Aphrodite", PEER_REFUSED, TAILS, NULL},
    {"eta_cutoff", "Aphrodite", PEER_REFUSED, TAILS, NULL},
    {"guidance_scale", "text-generation-webui", PEER_REFUSED, NULL, "1"},
    {"guided_whitespace_pattern", "vLLM, old", PEER_REFUSED, "use structured_outputs.grammar", NULL},
    {"input_embeds", "SGLang", PEER_REFUSED, "use prompt", NULL},
    {"input_ids", "SGLang", PEER_REFUSED, "use prompt of /v1/completions", NULL},
    {"logit_processors", "vLLM", PEER_REFUSED, "use logit_bias, allowed_token_ids or bad_words", NULL},
    {"logits_processors", "vLLM, LMDeploy", PEER_REFUSED, "use logit_bias, allowed_token_ids or bad_words", NULL},
    {"logprob_token_ids", "vLLM", PEER_REFUSED, LOGPROBS, NULL},
    {"lora", "llama.cpp", PEER_REFUSED, NULL, NULL},
    {"lora_path", "SGLang", PEER_REFUSED, NULL, NULL},
    {"min_keep", "llama.cpp", PEER_REFUSED, NULL, "1"},
    {"mirostat", "llama.cpp", PEER_REFUSED, TAILS, NULL},
    {"mirostat_mode", "Aphrodite", PEER_REFUSED, TAILS, NULL},
    {"n_indent", "llama.cpp", PEER_REFUSED, "use structured_outputs.grammar", NULL},
    {"n_probs", "llama.cpp", PEER_REFUSED, LOGPROBS, NULL},
    {"negative_prompt", "text-generation-webui", PEER_REFUSED, NULL, NULL},
    {"no_repeat_ngram_size", "text-generation-webui, TGI", PEER_REFUSED, REPETITION, NULL},
    {"parse_tool_calls", "llama.cpp", PEER_REFUSED, "read tool_calls, or leave out tools", "true"},
    {"post_sampling_probs", "llama.cpp", PEER_REFUSED, "use logprobs, which are the model's own", NULL},
    {"prompt_embeds", "vLLM", PEER_REFUSED, "use prompt", NULL},
    {"repeat_last_n", "llama.cpp", PEER_REFUSED, "send -1: penalties look at the whole text", "-1"},
    {"repetition_detection", "vLLM", PEER_REFUSED, REPETITION, NULL},
    {"repetition_ngram_size", "LMDeploy", PEER_REFUSED, REPETITION, NULL},
    {"response_fields", "llama.cpp", PEER_REFUSED, NULL, NULL},
    {"return_hidden_states", "SGLang", PEER_REFUSED, NULL, NULL},
    {"return_logprob", "SGLang", PEER_REFUSED, LOGPROBS, NULL},
    {"return_meta_info", "SGLang", PEER_REFUSED, "read usage", NULL},
    {"return_progress", "llama.cpp", PEER_REFUSED, NULL, NULL},
    {"return_prompt_text", "vLLM", PEER_REFUSED, "use /apply-template, or echo in completions", NULL},
    {"return_token_offsets", "vLLM", PEER_REFUSED, "use return_offsets of /tokenize", NULL},
    {"samplers", "llama.cpp", PEER_REFUSED, "leave it out: the order of the filters is fixed", NULL},
    {"session_params", "SGLang", PEER_REFUSED, "use session_id", NULL},
    {"smoothing_factor", "Aphrodite, text-generation-webui", PEER_REFUSED, "use temperature", NULL},
    {"stop_regex", "SGLang", PEER_REFUSED, "use stop or structured_outputs.regex", NULL},
    {"structural_tag", "SGLang", PEER_REFUSED, "use structured_outputs.grammar", NULL},
    {"t_max_predict_ms", "llama.cpp", PEER_REFUSED, "use max_tokens, or close the connection", "-1"},
    {"tfs", "Aphrodite", PEER_REFUSED, TAILS, "1"},
    {"tfs_z", "llama.cpp", PEER_REFUSED, TAILS, "1"},
    {"thinking_token_budget", "vLLM", PEER_REFUSED, NULL, NULL},
    {"timings_per_token", "llama.cpp", PEER_REFUSED, "use stream_options.continuous_usage_stats", NULL},
    {"top_a", "Aphrodite", PEER_REFUSED, TAILS, NULL},
    {"top_n_sigma", "llama.cpp", PEER_REFUSED, TAILS, "-1"},
    {"use_beam_search", "vLLM", PEER_REFUSED, "use n", NULL},
    {"vllm_xargs", "vLLM", PEER_REFUSED, NULL, NULL},
    {"web_search_options", "OpenAI", PEER_REFUSED, NULL, NULL},
    {"xtc_probability", "llama.cpp", PEER_REFUSED, TAILS, NULL},
};
const size_t api_n_peers = sizeof api_peers / sizeof *api_peers;

#define GRAMMARS "structured_outputs"

/* The field of the API that the request is of. */
static const char *peer_field(const struct api_peer *peer, const struct api_dialect *d) {
    if (!strcmp(peer->to, "max_tokens")) return d->max_tokens[0];
    if (!strcmp(peer->to, "stop")) return d->stop;
    return peer->to;
}

static const json_t *peer_value(const json_t *root, const struct api_peer *peer) {
    const json_t *value = json_object_get(root, peer->name);
    if (json_is_null(value)) return NULL;
    return value && (peer->kind == PEER_ALIAS || field_asks(value)) ? value : NULL;
}

static bool peer_asks(const struct api_peer *peer, const json_t *value) {
    double number = 0;
    if (json_is_true(value)) return !peer->neutral || strcmp(peer->neutral, "true") != 0;
    if (json_is_false(value)) return peer->neutral && !strcmp(peer->neutral, "true");
    if (!field_as_number(value, &number)) return field_asks(value);
    return number != 0 && !(peer->neutral && number == strtod(peer->neutral, NULL));
}

/* How far penalties look back matters where there is one. */
static bool peer_matters(const struct api_peer *peer, const json_t *root) {
    static const struct {
        const char *name;
        double off;
    } penalties[] = {
        {"repeat_penalty", 1}, {"repetition_penalty", 1}, {"frequency_penalty", 0}, {"presence_penalty", 0}};
    double number;
    if (strcmp(peer->name, "repeat_last_n") != 0) return true;
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++) {
        const json_t *value = json_object_get(root, penalties[i].name);
        if (value && field_as_number(value, &number) && number != penalties[i].off) return true;
    }
    return false;
}

/* llama.cpp's clients ask for an answer of any length with n_predict -1. */
static json_t *peer_translate(const struct api_peer *peer, const json_t *value) {
    if (!strcmp(peer->name, "n_predict") && json_is_integer(value) && json_integer_value(value) == -1)
        return json_integer(INT32_MAX);
    return json_incref((json_t *)value);
}

/* Sets object[name], where nothing else is. false: out of memory, or another value is there. */
static bool peer_put(json_t *object, const struct api_peer *peer, const char *name, const json_t *value,
                     const char *shown, struct api_error *err) {
    json_t *ours = peer_translate(peer, value), *there = json_object_get(object, name);
    if (!ours) return api_error_no_memory(err);
    const bool same = there && json_equal(there, ours), free_place = !there || json_is_null(there);
    const bool put = free_place && json_object_set_nocheck(object, name, ours) == 0;
    json_decref(ours);
    if (put || same) return true;
    if (free_place) return api_error_no_memory(err);
    return api_error_field(err, peer->name, "is another name of %s, which the request has with another value", shown);
}

static bool peer_put_grammar(json_t *root, const struct api_peer *peer, const json_t *value, struct api_error *err) {
    char shown[64];
    json_t *forms = json_object_get(root, GRAMMARS);
    if (!forms || json_is_null(forms)) {
        if (json_object_set_new(root, GRAMMARS, json_object())) return api_error_no_memory(err);
        forms = json_object_get(root, GRAMMARS);
    }
    if (!json_is_object(forms)) return api_error_field(err, GRAMMARS, "must be an object");
    snprintf(shown, sizeof shown, GRAMMARS ".%s", peer->to);
    return peer_put(forms, peer, peer->to, value, shown, err);
}

bool api_peers_apply(const struct api_fields *p, json_t *root) {
    struct api_error *err = p->err;
    for (size_t i = 0; i < api_n_peers; i++) {
        const struct api_peer *peer = &api_peers[i];
        const json_t *value = peer->kind == PEER_SAME ? NULL : json_object_get(root, peer->name);
        bool ok = true;
        if (!value || json_is_null(value)) continue;
        if (peer->kind == PEER_REFUSED) {
            ok = !peer_asks(peer, value) || !peer_matters(peer, root) ||
                 api_error_field(err, peer->name, "is not available: %s", peer->to ? peer->to : "leave it out");
        } else if (peer->kind == PEER_ALIAS) {
            const char *field = peer_field(peer, p->dialect);
            ok = peer_put(root, peer, field, value, field, err);
        } else if (field_asks(value)) {
            ok = peer_put_grammar(root, peer, value, err);
        }
        if (!ok) return false;
    }
    return true;
}

const char *api_peers_sent(const struct api_fields *p, const char *param) {
    static const char grammars[] = GRAMMARS ".";
    const size_t n = sizeof grammars - 1;
    for (size_t i = 0; i < api_n_peers; i++) {
        const struct api_peer *peer = &api_peers[i];
        if (peer->kind != PEER_ALIAS && peer->kind != PEER_GRAMMAR) continue;
        if (!peer_value(p->root, peer)) continue;
        if (peer->kind == PEER_ALIAS && !strcmp(param, peer_field(peer, p->dialect))) return peer->name;
        if (peer->kind == PEER_GRAMMAR && !strncmp(param, grammars, n) && !strcmp(param + n, peer->to))
            return peer->name;
    }
    return param;
}

void api_peers_rename(const struct api_fields *p) {
    struct api_error *err = p->err;
    char message[sizeof err->message];
    const char *sent = api_peers_sent(p, err->param);
    const size_t n = strlen(err->param);
    if (sent == err->param) return;
    if (!strncmp(err->message, err->param, n)) {
        snprintf(message, sizeof message, "%s", err->message + n);
        snprintf(err->message, sizeof err->message, "%.60s%.380s", sent, message);
    }
    snprintf(err->param, sizeof err->param, "%s", sent);
}
