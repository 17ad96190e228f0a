/* model_open.c - the model that a command is given: see model.h. */
#include "engine/base/fail.h"
#include "model_internal.h"

#include <string.h>

/* What is stored in another format would be rounded twice. Beside int4 others may stand: 8 bits where that counts. */
static int open_check_stored(const struct model *model, enum weight_format format, struct rod_error *err) {
    const struct weight *w;
    enum weight_format other = WEIGHT_STORED;
    bool named = false;
    for (size_t i = 0; format != WEIGHT_STORED && (w = model_product(model, i)); i++)
        for (uint32_t p = 0; p < w->n_parts; p++) {
            if (!w->part[p].codes) continue;
            if (w->part[p].codes->quant.format == format)
                named = true;
            else
                other = w->part[p].codes->quant.format;
        }
    if (other == WEIGHT_STORED || (named && format == WEIGHT_INT4)) return 0;
    return rod_fail_at(err, ROD_EUNSUPPORTED, "weights",
                       "weights is %s; the directory keeps weights in %s: auto takes them as they are.",
                       weight_format_name(format), weight_format_name(other));
}

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
    int rc = choice->synthetic ? model_synthetic(choice->synthetic, 1, progress, out, err)
                               : model_open(choice->dir, choice->adapter, progress, out, err);
    if (rc) return rc;
    rc = open_check_stored(*out, format, err);
    if (rc)
        model_close(*out);
    else
        open_take_format(*out, format);
    return rc;
}
