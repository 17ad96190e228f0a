/* state_formats.h - the formats of states that a device has, and which of them the settings `window_dtype` and
 * `state_dtype` mean. Pure functions. */
#ifndef STATE_FORMATS_H
#define STATE_FORMATS_H

#include "state_layout.h"

/* What a device keeps states in beside the default formats; a bit 1 << enum dtype each. */
struct state_formats {
    const char *device; /* "a CPU" */
    unsigned windows, S;
};

/* layout, of state_layout_of, gets the formats that config asks for. Refused, naming the setting and what there is: a
 * format that this device lacks; a narrow window for a model that has none, or whose heads are not whole words. */
int state_formats_choose(const struct state_formats *there, const struct backend_config *config,
                         struct state_layout *layout, struct rod_error *err);

/* For people. window "" without a window; both "" without a layout (NULL). */
void state_formats_name(const struct state_layout *layout, char window[8], char S[8]);

#endif
