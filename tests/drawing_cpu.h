/* drawing_cpu.h - for tests: the CPU as a device that draws on its own, looks ahead and reads drafts. So what a GPU's
 * engine does with real states, of slots that move, roll back and are masked, runs without a GPU. */
#ifndef DRAWING_CPU_H
#define DRAWING_CPU_H

#include "engine/base/fail.h"
#include "engine/model/model.h"
#include "tests/device_draws.h"

struct backend {
    struct backend *cpu; /* another struct of this name: only backend_cpu looks into it */
    struct device_slot *draws;
    struct backend_token *tokens[2]; /* of the steps on their way */
    uint64_t n_launched, n_collected;
    struct sampler sampler;
    uint32_t V;
};

static inline void drawing_close(struct backend *be) {
    for (uint32_t i = 0; be->cpu && i < backend_cpu.info(be->cpu)->n_slots; i++) device_forget(&be->draws[i]);
    if (be->cpu) backend_cpu.close(be->cpu);
    sampler_fini(&be->sampler);
    free(be->draws), free(be->tokens[0]), free(be->tokens[1]), free(be);
}

static inline int drawing_open(const struct model *model, const struct backend_config *config, struct backend **out,
                               struct rod_error *err) {
    struct backend *be = calloc(1, sizeof *be);
    be->V = model->dims.V;
    int rc = sampler_init(&be->sampler, be->V, err);
    if (!rc) rc = backend_cpu.open(model, config, &be->cpu, err);
    if (rc) {
        drawing_close(be);
        return rc;
    }
    const struct backend_info *info = backend_cpu.info(be->cpu);
    be->draws = calloc(info->n_slots, sizeof *be->draws);
    for (int i = 0; i < 2; i++) be->tokens[i] = calloc(info->max_out, sizeof **be->tokens);
    *out = be;
    return 0;
}

static inline const struct backend_info *drawing_info(const struct backend *be) { return backend_cpu.info(be->cpu); }
static inline void drawing_slot_zero(struct backend *be, uint32_t slot) { backend_cpu.slot_zero(be->cpu, slot); }
static inline void drawing_slot_copy(struct backend *be, uint32_t from, uint32_t to, uint64_t pos) {
    backend_cpu.slot_copy(be->cpu, from, to, pos);
}
static inline size_t drawing_state_bytes(const struct backend *be, uint64_t pos) {
    return backend_cpu.state_bytes(be->cpu, pos);
}
#define DRAWING_MOVES(name, constness)                                                                                 \
    static inline int drawing_##name(struct backend *be, uint32_t slot, uint64_t pos, constness void *state,           \
                                     size_t bytes, struct rod_error *err) {                                            \
        return backend_cpu.name(be->cpu, slot, pos, state, bytes, err);                                                \
    }
DRAWING_MOVES(slot_save, )
DRAWING_MOVES(slot_load, const)
DRAWING_MOVES(slot_save_begin, )
DRAWING_MOVES(slot_load_begin, const)
static inline int drawing_slot_moving(struct backend *be, uint32_t slot, struct rod_error *err) {
    return backend_cpu.slot_moving(be->cpu, slot, err);
}
static inline void drawing_on_moved(struct backend *be, void (*moved)(void *arg), void *arg) {
    backend_cpu.on_moved(be->cpu, moved, arg);
}
static inline int drawing_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                                  const float **logits, struct rod_error *err) {
    return n_segs ? backend_cpu.forward(be->cpu, segs, n_segs, logits, err) : 0;
}
static inline void drawing_slot_accept(struct backend *be, uint32_t slot, uint32_t n) {
    backend_cpu.slot_accept(be->cpu, slot, n);
}
static inline int drawing_slot_sampling(struct backend *be, uint32_t slot, const struct backend_sampling *in,
                                        struct rod_error *err) {
    return device_prepare(&be->draws[slot], in, be->V, err);
}
static inline void drawing_slot_mask(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask,
                                     bool may_end) {
    device_mask(&be->draws[slot], n_drafts, mask, may_end, be->V);
}
static inline int drawing_launch(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                                 struct rod_error *err) {
    uint32_t n_masked;
    return device_run(&be->sampler, be->draws, be->V, be, drawing_forward, segs, n_segs,
                      be->tokens[be->n_launched++ % 2], &n_masked, err);
}
static inline int drawing_collect(struct backend *be, const struct backend_token **tokens, struct rod_error *err) {
    if (be->n_collected == be->n_launched) return rod_fail(err, ROD_EDEVICE, "nothing was launched");
    *tokens = be->tokens[be->n_collected++ % 2];
    return 0;
}

static const struct backend_ops drawing_cpu = {.name = "cpu",
                                               .open = drawing_open,
                                               .close = drawing_close,
                                               .info = drawing_info,
                                               .slot_zero = drawing_slot_zero,
                                               .slot_copy = drawing_slot_copy,
                                               .state_bytes = drawing_state_bytes,
                                               .slot_save = drawing_slot_save,
                                               .slot_load = drawing_slot_load,
                                               .slot_save_begin = drawing_slot_save_begin,
                                               .slot_load_begin = drawing_slot_load_begin,
                                               .slot_moving = drawing_slot_moving,
                                               .on_moved = drawing_on_moved,
                                               .forward = drawing_forward,
                                               .slot_accept = drawing_slot_accept,
                                               .slot_sampling = drawing_slot_sampling,
                                               .slot_mask = drawing_slot_mask,
                                               .launch = drawing_launch,
                                               .collect = drawing_collect};

#endif
