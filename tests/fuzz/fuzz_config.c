/* fuzz_config.c - config.json, generation_config.json and adapter_config.json: whatever is accepted has sizes within
 * the bounds that later products of sizes rely on. */
#include "engine/model/model_internal.h"
#include "tests/count_params.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dims(const struct model_dims *d) {
    if (!d->D || !d->L || !d->E || !d->M || !d->R || !d->K || !d->V || d->E % 8) abort();
    if (!(d->norm_eps > 0) || !(d->k_eps > 0)) abort();
    if (d->bos_id >= (int32_t)d->V || d->eos_id >= (int32_t)d->V) abort();
    if (d->plus && (!d->visible || !d->F || d->H * d->P != d->D || d->H % d->Hk || d->H % d->Hv)) abort();
    if (d->plus && (d->rot_dim > d->P || d->rot_dim % 2 || !(d->rot_base > 0))) abort();
    if (!d->plus && (d->H || d->visible)) abort();
    if (model_state_bytes(d, 4, 4, 4) >> 58 || count_params(d) >> 58) abort();
}

static void check_adapter(const char *json, size_t len) {
    struct adapter_config config;
    struct rod_error err = {0};
    const int rc = adapter_config_parse(json, len, &config, &err);
    if (rc && (!err.message[0] || config.priv)) abort();
    if (rc) return;
    static const char module[] = "model.layers.1.attn.q_proj";
    const double scale = adapter_config_scale(&config, module);
    if (adapter_config_rank(&config, module) < 1 || adapter_config_rank(&config, module) > 65536) abort();
    if (!(scale > 0 && scale <= 1e6)) abort();
    for (size_t i = 0; i < config.n_targets; i++)
        if (adapter_config_matches(config.targets[i], module) && strlen(config.targets[i]) > strlen(module)) abort();
    adapter_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config config;
    struct model_generation generation;
    struct rod_error err = {0};
    int rc = model_config_parse((const char *)data, size, &config, &err);
    if (rc && !err.message[0]) abort();
    if (!rc) check_dims(&config.dims);
    err = (struct rod_error){0};
    rc = model_generation_parse((const char *)data, size, 300, &generation, &err);
    if (rc && !err.message[0]) abort();
    check_adapter((const char *)data, size);
    return 0;
}
