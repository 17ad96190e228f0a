/* backend_setup.h - for tests of the seam: a model of tests/vectors, or tales, opened on the backend that
 * RODIMUS_TEST_DEVICE names (the CPU without it), in RODIMUS_TEST_PRECISION, its weights in RODIMUS_TEST_WEIGHTS; on a
 * GPU with RODIMUS_TEST_PROMPT_PRODUCTS (backend.h). What cannot be opened fails the test. */
#ifndef BACKEND_SETUP_H
#define BACKEND_SETUP_H

#include "engine/backend/backend.h"
#include "engine/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* sizes: all of the configuration but device and precision. backend_setup_close ends both. */
static inline void backend_setup_open(const char *set, struct backend_config sizes, struct model **model,
                                      const struct backend_ops **ops, struct backend **be) {
    char path[128];
    struct rod_error err;
    snprintf(path, sizeof path, "%s/%s", strcmp(set, "tales") ? "tests/vectors" : "config/models", set);
    if (model_open(path, NULL, NULL, model, &err)) fail_msg("%s", err.message);
    const char *device = getenv("RODIMUS_TEST_DEVICE"), *precision = getenv("RODIMUS_TEST_PRECISION"),
               *weights = getenv("RODIMUS_TEST_WEIGHTS");
    if (weights && !weight_format_by_name(weights, &(*model)->weights)) fail_msg("RODIMUS_TEST_WEIGHTS is %s", weights);
    sizes.device = device ? device : "cpu";
    sizes.precision = precision ? precision : "auto";
    sizes.prompt_products = getenv("RODIMUS_TEST_PROMPT_PRODUCTS");
    if (backend_find(sizes.device, ops, &err)) fail_msg("%s", err.message);
    if ((*ops)->open(*model, &sizes, be, &err)) fail_msg("%s: %s", set, err.message);
}

static inline void backend_setup_close(struct model *model, const struct backend_ops *ops, struct backend *be) {
    ops->close(be);
    model_close(model);
}

#endif
