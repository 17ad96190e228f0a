/* model_tensors.c - the tensors of a model's files, by name. */
#include "model_internal.h"

#include <stdlib.h>
#include <string.h>

static int tensor_by_name(const void *a, const void *b) {
    return strcmp(((const struct model_tensor *)a)->name, ((const struct model_tensor *)b)->name);
}

void model_sort_tensors(struct model *model) {
    qsort(model->tensors, model->n_tensors, sizeof *model->tensors, tensor_by_name);
}

struct model_tensor *model_find_tensor(const struct model *model, const char *name) {
    struct model_tensor key = {.name = name};
    if (!model->n_tensors) return NULL;
    return bsearch(&key, model->tensors, model->n_tensors, sizeof key, tensor_by_name);
}
