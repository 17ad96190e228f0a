/* state_formats.c - a setting's word to a format of this device, or a refusal that says which there are. */
#include "state_formats.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <string.h>

struct format_choice {
    const char *field, *device, *asked;
    const char *why; /* what the default is */
    enum dtype usual;
    unsigned others;
};

/* "auto, bf16 (the activations' type) and fp8" */
static void list_formats(const struct format_choice *c, char *text, size_t n_text) {
    int n = snprintf(text, n_text, "auto%s %s%s", c->others ? "," : " and", dtype_name(c->usual), c->why);
    for (unsigned i = 0, left = c->others; left; left &= left - 1) {
        i = (unsigned)__builtin_ctz(left);
        n += snprintf(text + n, n_text - (size_t)n, "%s %s", left & (left - 1) ? "," : " and",
                      dtype_name((enum dtype)i));
    }
}

static int choose_format(const struct format_choice *c, enum dtype *out, struct rod_error *err) {
    *out = c->usual;
    if (!c->asked || !strcmp(c->asked, "auto") || !strcmp(c->asked, dtype_name(c->usual))) return 0;
    for (int i = 0; i < N_DTYPES; i++)
        if (c->others >> i & 1 && !strcmp(c->asked, dtype_name((enum dtype)i))) {
            *out = (enum dtype)i;
            return 0;
        }
    char there[96];
    list_formats(c, there, sizeof there);
    return rod_fail_at(err, ROD_EUNSUPPORTED, c->field, "%s: \"%.20s\" is not there on %s; there are %s.", c->field,
                       c->asked, c->device, there);
}

void state_formats_name(const struct state_layout *l, char window[8], char S[8]) {
    snprintf(window, 8, "%s", l && l->visible ? dtype_name(l->window) : "");
    snprintf(S, 8, "%s", l ? dtype_name(l->S) : "");
}

int state_formats_choose(const struct state_formats *there, const struct backend_config *config, struct state_layout *l,
                         struct rod_error *err) {
    const struct format_choice window = {.field = "window_dtype",
                                         .device = there->device,
                                         .asked = config->window_dtype,
                                         .why = " (the activations' type)",
                                         .usual = l->act,
                                         .others = there->windows};
    const struct format_choice S = {.field = "state_dtype",
                                    .device = there->device,
                                    .asked = config->state_dtype,
                                    .why = "",
                                    .usual = DTYPE_F32,
                                    .others = there->S};
    int rc = choose_format(&window, &l->window, err);
    if (!rc) rc = choose_format(&S, &l->S, err);
    if (rc || l->window == l->act) return rc;
    if (l->visible == 0)
        return rod_fail_at(err, ROD_EUNSUPPORTED, window.field, "window_dtype: %s, but this model has no window.",
                           dtype_name(l->window));
    if (l->P % sizeof(float)) /* what comes behind must be aligned */
        return rod_fail_at(err, ROD_EUNSUPPORTED, window.field,
                           "window_dtype: %s needs heads of a multiple of 4 dims, this model's have %u.",
                           dtype_name(l->window), l->P);
    return 0;
}
