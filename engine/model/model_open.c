/* model_open.c - the model that a command is given: see model.h. */
#include "engine/base/fail.h"
#include "model_internal.h"

#include <string.h>

/* Which weights a format is for depends on the shape alone: the name of the format is enough. */
static void open_take_format(struct model *model, enum weight_format format) {
    const char *name = weight_format_name(format);
    model->weights = format;
    if (format != WEIGHT_STORED) model_fingerprint_add(model, "weights", name, strlen(name));
}

int model_open_either(const struct model_choice *choice, const struct rod_progress_to *progress, struct model **out,
                      struct rod_error *err) {
    enum weight_format format = WEIGHT_STORED;
    if (choice->weights && !weight_format_by_name(choice->weights, &format))
        return rod_fail_at(err, ROD_EINVALID, "weights", "weights is %.40s; it must be auto, fp8, int8 or int4.",
                           choice->weights);
    if (choice->synthetic && choice->adapter && *choice->adapter)
        return rod_fail_at(err, ROD_EINVALID, "adapter", "adapter cannot be merged into a synthetic model.");
    const int rc = choice->synthetic ? model_synthetic_watched(choice->synthetic, 1, progress, out, err)
                                     : model_open_dir(choice->dir, choice->adapter, progress, out, err);
    if (!rc) open_take_format(*out, format);
    return rc;
}
