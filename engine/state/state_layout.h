/* state_layout.h - the bytes of a slot's state outside its backend: what slot_save writes and slot_load reads.
 *
 * Layers in order, without gaps; in each, with n = min(pos, visible) keys and Ep = E rounded up to 32:
 *
 *   S             S       [Ep / 32][M][32]  channel e at tile e / 32, column e % 32
 *   conv          act     [K][Ep]           the inputs at positions pos - K .. pos - 1, oldest first, zero before the
 *                                           first
 *   keys          window  [n][Hk][P]        after norm and rotary, at positions pos - n .. pos - 1, oldest first
 *   values        window  [n][Hv][P]
 *   key_scales    fp32    [n][Hk]           of a window in int8: a number is its code times the scale
 *   value_scales  fp32    [n][Hv]
 *
 * Channels from E on are zero. Numbers in the host's byte order; act is fp32, bf16 or fp16, S fp32 or bf16, the window
 * act, fp8 or int8. So the bytes tell nothing of rings and of where pos stands in them, grow with pos until the window
 * is full, and are of one size from then on. A backend loads what another saved if their ids are equal: dtypes, tile,
 * sizes, byte order. That the weights are the same, and pos, is for the caller to know. All functions are pure.
 */
#ifndef STATE_LAYOUT_H
#define STATE_LAYOUT_H

#include "engine/backend/backend.h"
#include "engine/model/model.h"

enum { STATE_TILE = 32 };

struct state_layout {
    uint32_t L, E, M, K, Hk, Hv, P, visible; /* as in model_dims */
    enum dtype S, act, window;
};

/* Bytes: of one layer, and where its parts begin in it. */
struct state_layer {
    size_t conv, keys, values, key_scales, value_scales, bytes; /* S at 0; no scales: all at the end */
    uint32_t n_keys;
};

/* In the default formats: S in fp32, the window in act. */
struct state_layout state_layout_of(const struct model_dims *dims, enum dtype act);
/* Bytes of scales that a format of a window stores beside the codes of one head. */
size_t state_scale_bytes(enum dtype window);
/* The id of the default formats has no word of them. */
void state_layout_id(const struct state_layout *layout, char id[BACKEND_STATE_ID_BYTES]);
/* The reverse, of n bytes of anybody: false where they are no id of a layout in this byte order, or of
 * one that no memory would hold. */
bool state_layout_parse(const void *id, size_t n, struct state_layout *out);
/* Not the default formats. */
bool state_layout_is_narrow(const struct state_layout *layout);
/* They differ in their formats alone. */
bool state_layout_same_sizes(const struct state_layout *a, const struct state_layout *b);
struct state_layer state_layer_at(const struct state_layout *layout, uint64_t pos);
size_t state_bytes_at(const struct state_layout *layout, uint64_t pos);
/* Whether bytes can be a state after pos tokens: ROD_EINVALID where the size is another, or channels from E on are not
 * zero (other sequences' results could depend on them). state NULL: the size alone. */
int state_check(const struct state_layout *layout, uint64_t pos, const void *state, size_t bytes,
                struct rod_error *err);

#endif
