/* state_layout.c - sizes, places and the id of the bytes that state_layout.h describes. */
#include "state_layout.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static size_t layout_padded_E(const struct state_layout *l) {
    return ((size_t)l->E + STATE_TILE - 1) / STATE_TILE * STATE_TILE;
}

struct state_layout state_layout_of(const struct model_dims *d, enum dtype act) {
    struct state_layout l = {.L = d->L, .E = d->E, .M = d->M, .K = d->K, .S = DTYPE_F32, .act = act, .window = act};
    if (d->plus) l.Hk = d->Hk, l.Hv = d->Hv, l.P = d->P, l.visible = d->visible;
    return l;
}

size_t state_scale_bytes(enum dtype window) { return window == DTYPE_INT8 ? sizeof(float) : 0; }

void state_layout_id(const struct state_layout *l, char id[BACKEND_STATE_ID_BYTES]) {
    const char *order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "le" : "be";
    const bool own = l->window != l->act;
    const int n = snprintf(id, BACKEND_STATE_ID_BYTES,
                           "rodimus-1 %s S=%s/%d act=%s%s%s L=%u E=%u M=%u K=%u Hk=%u Hv=%u P=%u visible=%u", order,
                           dtype_name(l->S), STATE_TILE, dtype_name(l->act), own ? " window=" : "",
                           own ? dtype_name(l->window) : "", l->L, l->E, l->M, l->K, l->Hk, l->Hv, l->P, l->visible);
    assert(n > 0 && n < BACKEND_STATE_ID_BYTES); /* cut, two layouts could have one id */
}

/* The text behind key, up to the next blank, as a type of numbers; *at moves behind it. */
static bool parse_dtype(const char **at, const char *key, char end, enum dtype *out) {
    const size_t n_key = strlen(key);
    if (strncmp(*at, key, n_key) != 0) return false;
    *at += n_key;
    const size_t n = strcspn(*at, (char[]){end, 0});
    for (int i = 0; i < N_DTYPES; i++)
        if (strlen(dtype_name((enum dtype)i)) == n && !memcmp(*at, dtype_name((enum dtype)i), n)) {
            *out = (enum dtype)i;
            *at += n;
            return true;
        }
    return false;
}

/* Sizes whose products cannot wrap. */
static bool layout_has_a_size(const struct state_layout *l) {
    const double S = ((double)l->E + STATE_TILE) * ((double)l->M + l->K), heads = (double)l->Hk + l->Hv;
    return sizeof(float) * l->L * (S + (double)l->visible * heads * ((double)l->P + 1)) < 0x1p60;
}

bool state_layout_parse(const void *id, size_t n, struct state_layout *out) {
    char text[BACKEND_STATE_ID_BYTES], again[BACKEND_STATE_ID_BYTES];
    struct state_layout l = {0};
    if (n >= sizeof text || memchr(id, 0, n)) return false;
    memcpy(text, id, n);
    text[n] = 0;
    const char *at = strstr(text, " S=");
    if (!at || !parse_dtype(&at, " S=", '/', &l.S)) return false;
    at = strstr(at, " act=");
    if (!at || !parse_dtype(&at, " act=", ' ', &l.act)) return false;
    l.window = l.act;
    if (!strncmp(at, " window=", 8) && !parse_dtype(&at, " window=", ' ', &l.window)) return false;
    if (sscanf(at, " L=%u E=%u M=%u K=%u Hk=%u Hv=%u P=%u visible=%u", &l.L, &l.E, &l.M, &l.K, &l.Hk, &l.Hv, &l.P,
               &l.visible) != 8)
        return false;
    state_layout_id(&l, again); /* what was passed over is not as it must be, either */
    if (strcmp(text, again) != 0 || !layout_has_a_size(&l)) return false;
    *out = l;
    return true;
}

bool state_layout_is_narrow(const struct state_layout *l) { return l->S != DTYPE_F32 || l->window != l->act; }

bool state_layout_same_sizes(const struct state_layout *a, const struct state_layout *b) {
    struct state_layout as_b = *a;
    as_b.S = b->S, as_b.act = b->act, as_b.window = b->window;
    char id[BACKEND_STATE_ID_BYTES], other[BACKEND_STATE_ID_BYTES];
    state_layout_id(&as_b, id);
    state_layout_id(b, other);
    return !strcmp(id, other);
}

struct state_layer state_layer_at(const struct state_layout *l, uint64_t pos) {
    struct state_layer at = {.n_keys = pos < l->visible ? (uint32_t)pos : l->visible};
    const size_t keys = (size_t)at.n_keys * l->Hk, values = (size_t)at.n_keys * l->Hv;
    at.conv = layout_padded_E(l) * l->M * dtype_bytes(l->S);
    at.keys = at.conv + layout_padded_E(l) * l->K * dtype_bytes(l->act);
    at.values = at.keys + keys * l->P * dtype_bytes(l->window);
    at.key_scales = at.values + values * l->P * dtype_bytes(l->window);
    at.value_scales = at.key_scales + keys * state_scale_bytes(l->window);
    at.bytes = at.value_scales + values * state_scale_bytes(l->window);
    return at;
}

size_t state_bytes_at(const struct state_layout *l, uint64_t pos) { return state_layer_at(l, pos).bytes * l->L; }

static bool bytes_are_zero(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

static bool padding_is_zero(const struct state_layout *l, const unsigned char *layer, const struct state_layer *at) {
    const size_t used = l->E % STATE_TILE, unused = used ? STATE_TILE - used : 0;
    const size_t element = dtype_bytes(l->S), row = STATE_TILE * element;
    const size_t conv_row = layout_padded_E(l) * dtype_bytes(l->act);
    const unsigned char *tile = layer + at->conv - l->M * row; /* the last one */
    for (uint32_t m = 0; m < l->M; m++)
        if (!bytes_are_zero(tile + m * row + used * element, unused * element)) return false;
    for (uint32_t j = 0; j < l->K; j++)
        if (!bytes_are_zero(layer + at->conv + j * conv_row + (size_t)l->E * dtype_bytes(l->act),
                            unused * dtype_bytes(l->act)))
            return false;
    return true;
}

int state_check(const struct state_layout *l, uint64_t pos, const void *state, size_t bytes, struct rod_error *err) {
    const size_t want = state_bytes_at(l, pos);
    if (bytes != want)
        return rod_fail(err, ROD_EINVALID, "payload has %zu bytes, a state at position %llu has %zu", bytes,
                        (unsigned long long)pos, want);
    const struct state_layer at = state_layer_at(l, pos);
    assert(at.conv <= at.keys && at.keys <= at.values && at.values <= at.key_scales && at.key_scales <= at.bytes);
    if (!state || l->E % STATE_TILE == 0) return 0;
    for (uint32_t i = 0; i < l->L; i++)
        if (!padding_is_zero(l, (const unsigned char *)state + i * at.bytes, &at))
            return rod_fail(err, ROD_EINVALID, "not a state: padding channels of layer %u are not zero", i);
    return 0;
}
