/* cfg.h - keys of a configuration's JSON, read until the first fault: after it every read answers its default, and rc
 * keeps the fault. A key that is null is absent. Paths ("attn_cfg.num_heads") are for messages: the key is the last
 * part.
 */
#ifndef CFG_H
#define CFG_H

#include "engine/rodimus.h"

#include <jansson.h>

struct cfg {
    const char *file;
    struct rod_error *err;
    int rc;
};

/* A text of JSON that is an object; else NULL and a fault. The caller gives it back with json_decref. */
json_t *cfg_load(struct cfg *c, const char *json, size_t len);

/* A fault of the key; value NULL: it is missing. what: what is needed, or why not. */
void cfg_fail(struct cfg *c, int code, const char *path, const json_t *value, const char *what);
/* It is a fault of ROD_EUNSUPPORTED. */
void cfg_refuse(struct cfg *c, const char *path, const json_t *value, const char *why);

json_t *cfg_get(const json_t *object, const char *path); /* NULL: absent */
/* def < lo: the key is required. */
int64_t cfg_int(struct cfg *c, const json_t *object, const char *path, int64_t def, int64_t lo, int64_t hi);
/* At most hi; above lo, or with lo_in from lo on. */
double cfg_interval(struct cfg *c, const json_t *object, const char *path, double def, double lo, bool lo_in,
                    double hi);
double cfg_real(struct cfg *c, const json_t *object, const char *path, double def, double lo, double hi);
bool cfg_bool(struct cfg *c, const json_t *object, const char *path, bool def);
const json_t *cfg_object(struct cfg *c, const json_t *object, const char *path); /* NULL: absent */
const char *cfg_string(struct cfg *c, const json_t *object, const char *path, const char *def);

/* null, false, 0 or empty. */
bool cfg_says_nothing(const json_t *value);
/* Refuses keys that are not in known, unless they say nothing: an unknown key may change results. known ends with NULL;
 * part: the path of the object, "" = the root. */
void cfg_only(struct cfg *c, const json_t *object, const char *part, const char *const *known);

#endif
