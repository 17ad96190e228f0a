/* backend_setup.h - for tests of the seam: a model of tests/vectors, or tales, opened on the backend that
 * RODIMUS_TEST_DEVICE names (the CPU without it), in RODIMUS_TEST_PRECISION, its weights in RODIMUS_TEST_WEIGHTS, its
 * window, if it has one, in RODIMUS_TEST_WINDOW; on a GPU with RODIMUS_TEST_PROMPT_PRODUCTS (backend.h). What cannot be
 * opened fails the test. */
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

/* Behind a set's name: its window in 8 bits, int8 on a CPU, fp8 on a GPU. */
#define NARROW_WINDOW ", narrow window"

/* Each set of tests/vectors, and tales; then some with the other window. */
static const char *const backend_sets[] = {"fla-rodimus-plus-small",
                                           "fla-rodimus-small",
                                           "rodimus-plus-extremes",
                                           "rodimus-plus-headdim128",
                                           "rodimus-plus-options",
                                           "rodimus-plus-short",
                                           "rodimus-plus-small",
                                           "rodimus-small",
                                           "tales",
                                           "rodimus-plus-headdim128" NARROW_WINDOW,
                                           "rodimus-plus-options" NARROW_WINDOW,
                                           "tales" NARROW_WINDOW};
#define N_SETS (sizeof backend_sets / sizeof *backend_sets)

static inline const char *backend_setup_window(const char *set, const struct model *model) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    if (strstr(set, NARROW_WINDOW)) return device && strcmp(device, "cpu") ? "fp8" : "int8";
    return model->dims.visible ? getenv("RODIMUS_TEST_WINDOW") : NULL;
}

/* sizes: all of the configuration but device and formats. backend_setup_close ends both. */
static inline void backend_setup_open(const char *set, struct backend_config sizes, struct model **model,
                                      const struct backend_ops **ops, struct backend **be) {
    char path[128];
    struct rod_error err;
    snprintf(path, sizeof path, "%s/%.*s", strncmp(set, "tales", 5) ? "tests/vectors" : "config/models",
             (int)strcspn(set, ","), set);
    if (model_open(path, NULL, NULL, model, &err)) fail_msg("%s", err.message);
    const char *device = getenv("RODIMUS_TEST_DEVICE"), *precision = getenv("RODIMUS_TEST_PRECISION"),
               *weights = getenv("RODIMUS_TEST_WEIGHTS");
    if (weights && !weight_format_by_name(weights, &(*model)->weights)) fail_msg("RODIMUS_TEST_WEIGHTS is %s", weights);
    sizes.device = device ? device : "cpu";
    sizes.precision = precision ? precision : "auto";
    sizes.window_dtype = backend_setup_window(set, *model);
    sizes.prompt_products = getenv("RODIMUS_TEST_PROMPT_PRODUCTS");
    if (backend_find(sizes.device, ops, &err)) fail_msg("%s", err.message);
    int rc = (*ops)->open(*model, &sizes, be, &err);
    if (rc == ROD_EUNSUPPORTED && !strcmp(err.param, "window_dtype") && strstr(set, NARROW_WINDOW)) {
        sizes.window_dtype = NULL; /* a GPU has it for some forms of heads, in 16 bits */
        rc = (*ops)->open(*model, &sizes, be, &err);
    }
    if (rc) fail_msg("%s: %s", set, err.message);
}

static inline void backend_setup_close(struct model *model, const struct backend_ops *ops, struct backend *be) {
    ops->close(be);
    model_close(model);
}

#endif
