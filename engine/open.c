/* open.c - from a directory to an engine: model, tokenizer, backend. */
#include "core.h"
#include "engine/base/policy.h"
#include "engine/base/test_hooks.h"
#include "engine/model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCORED_ROWS = 64 };

static void open_fill_info(struct rod_model_info *info, const struct model *model, bool synthetic) {
    const struct model_dims *d = &model->dims;
    snprintf(info->name, sizeof info->name, "%s", model->name);
    snprintf(info->adapter, sizeof info->adapter, "%s", model->adapter);
    snprintf(info->arch, sizeof info->arch, "%s", d->plus ? "rodimus_plus" : "rodimus");
    model_render_fingerprint(model->fingerprint, info->fingerprint);
    snprintf(info->weight_dtype, sizeof info->weight_dtype, "%s", dtype_name(model->weight_dtype));
    snprintf(info->weights, sizeof info->weights, "%s", model_weights_name(model));
    info->d_model = d->D;
    info->n_layer = d->L;
    info->vocab_size = d->V;
    info->window_tok = d->visible;
    info->n_params = model->n_params;
    info->bos_id = d->bos_id;
    info->eos_id = model->n_eos_ids ? model->eos_ids[0] : d->eos_id;
    info->sampling = model->sampling;
    info->created_unix_s = synthetic ? 0 : model->created_unix_s;
}

static uint64_t open_fault_step(const struct rod_engine_config *config) {
    const uint64_t step = test_hooks_fault_step();
    if (step && config->log) config->log(config->log_arg, 2, "RODIMUS_TEST_FAULT_STEP is set: the device will fail");
    return step;
}

static const char *open_device(const struct rod_engine_config *config) {
    return config->device ? config->device : "auto";
}

static int open_find_device(const struct rod_engine_config *config, struct engine_parts *parts, struct rod_error *err) {
    const char *device = open_device(config);
    const int rc = backend_find(device, &parts->ops, err);
    if (rc) return rc;
    if (parts->ops == &backend_cpu && !strcmp(device, "auto") && config->log) {
        char why[256], line[288];
        snprintf(line, sizeof line, "device auto is the CPU: %s", backend_why_cpu(why, sizeof why));
        config->log(config->log_arg, 1, line);
    }
    return 0;
}

/* None where no flight would ever begin: its graphs and workspaces take memory. */
static double open_prompt_share(const struct rod_engine_config *config) {
    if (config->n_slots && config->n_slots <= POLICY_FLIGHT_STREAMS) return 0;
    return config->prompt_share < 0 ? POLICY_FLIGHT_PART : config->prompt_share;
}

static int open_backend(const struct rod_engine_config *config, const struct model *model, struct engine_parts *parts,
                        struct rod_error *err) {
    const char *device = open_device(config);
    const struct backend_config be = {
        .n_slots = config->n_slots,
        .n_threads = config->n_threads,
        .max_batch_tok = config->max_batch_tok,
        /* One row of logits a session: only decode rows and the ends of prompts are sampled. But a prompt that is
         * scored wants one for each token of a chunk. */
        .max_out = config->n_slots && config->n_slots < SCORED_ROWS ? SCORED_ROWS : config->n_slots,
        .device = strcmp(device, "auto") == 0 ? parts->ops->name : device,
        .precision = config->precision ? config->precision : "auto",
        .window_dtype = config->window_dtype,
        .state_dtype = config->state_dtype,
        .deterministic = config->deterministic,
        .no_drafts = config->speculative == ROD_SPECULATIVE_NONE,
        .prompt_share = open_prompt_share(config),
        .fault_step = open_fault_step(config),
        .log = config->log,
        .log_arg = config->log_arg,
        .progress = config->progress,
    };
    const int rc = parts->ops->open(model, &be, &parts->backend, err);
    if (!rc && config->prompt_share > 0 && !parts->ops->info(parts->backend)->flight_tok && config->log)
        config->log(config->log_arg, 2,
                    "prompt_share has no use on this device with these slots: prompts are read in steps");
    return rc;
}

/* Tokens that end an answer of the chat format end every text: the model was trained to stop there. */
static int open_chat(const struct rod_engine_config *config, struct engine_parts *parts, struct rod_error *err) {
    char note[320];
    int rc = chat_open(config->model_dir, parts->tokenizer, &parts->chat, note, sizeof note, err);
    if (rc) return rc;
    if (*note && config->log) config->log(config->log_arg, 2, note);
    for (uint32_t i = 0; parts->chat && i < parts->chat->n_stop_ids; i++) {
        bool known = false;
        assert(parts->n_eos_ids < sizeof parts->eos_ids / sizeof *parts->eos_ids);
        for (uint32_t k = 0; k < parts->n_eos_ids; k++) known |= parts->eos_ids[k] == parts->chat->stop_ids[i];
        if (!known) parts->eos_ids[parts->n_eos_ids++] = parts->chat->stop_ids[i];
    }
    return 0;
}

/* The tokenizer, where there is one, what ends an answer, and the chat format. */
static int open_text(const struct rod_engine_config *config, struct model *model, struct engine_parts *parts,
                     struct rod_error *err) {
    int rc = config->synthetic ? ROD_ENOTFOUND : tokenizer_open(config->model_dir, &parts->tokenizer, err);
    const bool has_none = rc == ROD_ENOTFOUND;
    if (rc && !has_none) return rc;
    if (has_none) parts->tokenizer = NULL;
    model_check_tokenizer(model, has_none ? 0 : tokenizer_n_ids(parts->tokenizer),
                          has_none ? TOKENIZER_NO_NAME : tokenizer_eos(parts->tokenizer));
    for (uint32_t i = 0; i < model->n_warnings && config->log; i++) config->log(config->log_arg, 2, model->warnings[i]);
    memcpy(parts->eos_ids, model->eos_ids, sizeof model->eos_ids);
    parts->n_eos_ids = model->n_eos_ids;
    if (has_none && !config->synthetic && config->log)
        config->log(config->log_arg, 2, "there is no tokenizer.json: prompts must be token ids");
    return has_none ? 0 : open_chat(config, parts, err);
}

int rod_engine_open(const struct rod_engine_config *config, struct rod_engine **out, struct rod_error *err) {
    if (!config->model_dir == !config->synthetic)
        return rod_fail(err, ROD_EINVALID, "Give either a model directory or the name of a synthetic model.");
    struct model *model;
    const struct model_choice choice = {config->model_dir, config->synthetic, config->adapter_dir, config->weights};
    int rc = model_open_either(&choice, &config->progress, &model, err);
    if (rc) return rc;
    struct engine_parts parts = {.V = model->dims.V};
    memcpy(parts.fingerprint, model->fingerprint, sizeof parts.fingerprint);
    rc = open_text(config, model, &parts, err);
    open_fill_info(&parts.info, model, config->synthetic != NULL);
    if (!rc) rc = open_find_device(config, &parts, err);
    if (!rc) rc = open_backend(config, model, &parts, err);
    parts.measures = !rc && !strcmp(parts.ops->name, "cuda"); /* the null device takes what it is told */
    if (!rc) rc = engine_open_parts(config, &parts, out, err);
    model_close(model); /* the backend has its own copy of the weights */
    if (rc) {
        if (parts.backend) parts.ops->close(parts.backend);
        chat_close(parts.chat);
        if (parts.tokenizer) tokenizer_close(parts.tokenizer);
    }
    return rc;
}
