/* model_open.c - the model that a command is given: see model.h. */
#include "engine/base/fail.h"
#include "model.h"

int model_open_either(const char *dir, const char *synthetic, const char *adapter,
                      const struct rod_progress_to *progress, struct model **out, struct rod_error *err) {
    if (!synthetic) return model_open_adapted(dir, adapter, progress, out, err);
    if (adapter && *adapter)
        return rod_fail_at(err, ROD_EINVALID, "adapter", "adapter cannot be merged into a synthetic model.");
    return model_synthetic_watched(synthetic, 1, progress, out, err);
}
