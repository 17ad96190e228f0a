/* model_write.h - writes a model in fewer bits as a directory in the format of compressed-tensors, which this program
 * and others read.
 *
 * Memory: some rows of one weight. The directory is complete when the call has answered 0: config.json comes last.
 * After a fault nothing of it is left. */
#ifndef MODEL_WRITE_H
#define MODEL_WRITE_H

#include "model.h"

/* Where codes come from: rows [first, first + n) of a weight, codes [n, cols] and scales [n, groups] as
 * weight_quant_row gives them. Rows are asked for in order, weight by weight, layer by layer. */
struct model_rows {
    int (*fill)(void *arg, const struct weight *w, const struct weight_quant *q, uint32_t first, uint32_t n,
                uint8_t *codes, float *scales, struct rod_error *err);
    void *arg;
};

/* from: the directory that the model is of; to: one that is not there, or empty. A tied head becomes one of its own. */
int model_write(const struct model *model, const char *from, const char *to, const struct model_rows *rows,
                const struct rod_progress_to *progress, struct rod_error *err);

#endif
