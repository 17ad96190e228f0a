/* count_params.h - for tests of checkpoints: the parameters that sizes call for, a tied head counted once. */
#ifndef COUNT_PARAMS_H
#define COUNT_PARAMS_H

#include "engine/model/model_internal.h"

static inline int count_params_add(void *arg, const struct model_piece *piece) {
    *(uint64_t *)arg += (uint64_t)piece->rows * piece->cols;
    return 0;
}

static inline uint64_t count_params(const struct model_dims *dims) {
    uint64_t n = 0;
    model_plan(dims, false, count_params_add, &n);
    return n;
}

#endif
