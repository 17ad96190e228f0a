/* fake_backend.h - a deterministic backend without a model, that checks how the engine uses it.
 *
 * FAKE_HASH: the logits are random numbers of a hash of all tokens read since slot_zero. FAKE_COPY: after a prompt the
 * model says the prompt again, token by token, then the end token. fake_device_ops samples on its own, as a GPU does: a
 * launched step runs at once, but what it gave is seen when it is collected. A broken rule of backend.h is noted in
 * fault. fake_draft_ops and fake_draft_device_ops read drafts, too. With info.flight_tok there are flights: a few looks
 * long, or until hold_flights is over. gate: while gated, a forward or a collect waits
 * until fake_step lets one pass, so that tests decide what happens between steps.
 */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include "engine/core.h"
#include "tests/device_draws.h"
#include "engine/base/philox.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum fake_kind { FAKE_HASH, FAKE_COPY };
enum { FAKE_COPY_MAX = 4096 };

struct fake_slot {
    uint64_t hash, pos;
    uint32_t n_prompt, n_said;
    bool zeroed, said_any;
    uint64_t draft_hash[1 + BACKEND_MAX_DRAFTS]; /* after so many drafts of the last step */
    uint32_t n_drafts, n_accepted;
    int32_t said[FAKE_COPY_MAX];
};

struct fake_move {
    bool on, over, in;
    uint64_t pos;
    void *state;
    size_t bytes;
};

struct fake_flight {
    bool on;
    uint32_t n_segs, n_looks;
    struct backend_segment *segs; /* [n_slots] */
    int32_t *tok;                 /* [flight_tok] copies */
};

struct backend {
    struct backend_info info;
    const struct backend_ops *ops;
    enum fake_kind kind;
    uint32_t V;
    int32_t eos;
    struct fake_slot *slots;
    struct device_slot *draws; /* [n_slots] */
    float *logits;
    uint64_t *last_step; /* [n_slots] the forward that last had this slot */
    atomic_bool gated;
    sem_t gate, entered;
    atomic_uint n_forwards, n_launches; /* a launch is a forward too */
    _Atomic(int32_t) nan_token;         /* a row that reads this token gives NaN; -1 = never */
    atomic_uint fail_at;                /* forwards from this one (1 is the first) on are device faults; 0 = never */
    atomic_uint fail_collect_at;        /* this collect (from 1) is one */
    struct sampler sampler;
    bool launching;
    struct backend_token *tokens[2]; /* of the steps on their way */
    atomic_uint n_collects, n_masked, n_masks, n_draft_masks, n_copies, n_saves, n_loads, n_moves,
        n_prompt_segs;             /* n_moves: begun */
    atomic_bool hold_moves;        /* moves that begin from now on are under way until fake_end_moves */
    struct fake_flight flights[2]; /* [0] ends first */
    atomic_uint n_flights;         /* begun */
    atomic_bool hold_flights;      /* none ends */
    atomic_bool fail_flights;      /* a look at one is a device fault */
    atomic_bool fail_moves;        /* slot_moving is a device fault */
    atomic_bool fail_saves;        /* slot_save and slot_save_begin are */
    pthread_mutex_t moves_lock;
    struct fake_move *moves; /* [n_slots] */
    void (*moved)(void *arg);
    void *moved_arg;
    char fault[128];
};

/* A flight on its way reads memory that would be gone. */
static inline void fake_close(struct backend *be) {
    if (be->flights[0].on && !atomic_load(&be->fail_flights)) abort();
    for (uint32_t i = 0; i < be->info.n_slots; i++) device_forget(&be->draws[i]);
    free(be->draws);
    sampler_fini(&be->sampler);
    free(be->tokens[0]);
    free(be->tokens[1]);
    free(be->slots);
    free(be->logits);
    free(be->last_step);
    free(be->moves);
    for (int i = 0; i < 2; i++) free(be->flights[i].segs), free(be->flights[i].tok);
    pthread_mutex_destroy(&be->moves_lock);
    sem_destroy(&be->gate);
    sem_destroy(&be->entered);
    free(be);
}

static inline const struct backend_info *fake_info(const struct backend *be) { return &be->info; }

static inline void fake_no_flight(struct backend *be, uint32_t slot, const char *what) {
    for (const struct fake_flight *f = be->flights; f < be->flights + 2; f++)
        for (uint32_t i = 0; f->on && i < f->n_segs; i++)
            if (f->segs[i].slot == slot && !be->fault[0])
                snprintf(be->fault, sizeof be->fault, "a slot of a flight: %s", what);
}

static inline void fake_slot_zero(struct backend *be, uint32_t slot) {
    struct fake_slot *s = &be->slots[slot];
    fake_no_flight(be, slot, "zeroed");
    pthread_mutex_lock(&be->moves_lock);
    if (be->moves[slot].on && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "a slot zeroed during a move");
    pthread_mutex_unlock(&be->moves_lock);
    s->hash = s->pos = s->n_prompt = s->n_said = 0;
    s->zeroed = true;
    s->said_any = be->draws[slot].prepared = false;
}

static inline void fake_slot_copy(struct backend *be, uint32_t from, uint32_t to, uint64_t pos) {
    const struct fake_slot *src = &be->slots[from];
    struct fake_slot *dst = &be->slots[to];
    fake_no_flight(be, from, "copied");
    fake_no_flight(be, to, "copied to");
    if (src->pos != pos && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "a copy at another position");
    if (!src->zeroed && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "a copy of a slot that was never zeroed");
    pthread_mutex_lock(&be->moves_lock);
    if ((be->moves[from].on || be->moves[to].on) && !be->fault[0])
        snprintf(be->fault, sizeof be->fault, "a slot copied during a move");
    pthread_mutex_unlock(&be->moves_lock);
    dst->hash = src->hash;
    dst->pos = src->pos;
    dst->n_prompt = src->n_prompt;
    dst->n_said = src->n_said;
    dst->zeroed = true;
    dst->said_any = false; /* what it draws is its own */
    memcpy(dst->said, src->said, sizeof dst->said);
    atomic_fetch_add(&be->n_copies, 1);
}

/* A slot as a state: what it has read, and what it will say. */
struct fake_state {
    uint64_t hash, pos;
    uint32_t n_prompt, n_said;
    int32_t said[FAKE_COPY_MAX];
};

static inline size_t fake_state_bytes(const struct backend *be, uint64_t pos) {
    (void)be, (void)pos;
    return sizeof(struct fake_state);
}

static inline int fake_slot_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                                 struct rod_error *err) {
    const struct fake_slot *s = &be->slots[slot];
    struct fake_state *to = state;
    fake_no_flight(be, slot, "saved");
    if (atomic_load(&be->fail_saves)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    if (bytes != sizeof *to) return rod_fail(err, ROD_EINVALID, "a fake state has another size");
    if (s->pos != pos && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "a state saved at another position");
    *to = (struct fake_state){.hash = s->hash, .pos = s->pos, .n_prompt = s->n_prompt, .n_said = s->n_said};
    memcpy(to->said, s->said, sizeof to->said);
    atomic_fetch_add(&be->n_saves, 1);
    return 0;
}

static inline int fake_slot_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                                 struct rod_error *err) {
    const struct fake_state *from = state;
    struct fake_slot *s = &be->slots[slot];
    if (bytes != sizeof *from) return rod_fail(err, ROD_EINVALID, "a fake state has another size");
    if (from->n_said == UINT32_MAX) return rod_fail(err, ROD_EINVALID, "these bytes are no state");
    if (from->pos != pos && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "a state loaded at another position");
    fake_slot_zero(be, slot);
    s->hash = from->hash, s->pos = from->pos, s->n_prompt = from->n_prompt, s->n_said = from->n_said;
    memcpy(s->said, from->said, sizeof s->said);
    atomic_fetch_add(&be->n_loads, 1);
    return 0;
}

/* ---- moves: what is to be done is done when it is over ---- */

static inline int fake_move_begin(struct backend *be, uint32_t slot, bool in, uint64_t pos, void *state, size_t bytes,
                                  struct rod_error *err) {
    struct fake_move *m = &be->moves[slot];
    fake_no_flight(be, slot, "moved");
    if (in) { /* what is wrong with it is known at the beginning */
        if (bytes != sizeof(struct fake_state)) return rod_fail(err, ROD_EINVALID, "a fake state has another size");
        if (((struct fake_state *)state)->n_said == UINT32_MAX)
            return rod_fail(err, ROD_EINVALID, "these bytes are no state");
    }
    pthread_mutex_lock(&be->moves_lock);
    if (m->on && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "two moves of a slot");
    *m = (struct fake_move){
        .on = true, .over = !atomic_load(&be->hold_moves), .in = in, .pos = pos, .state = state, .bytes = bytes};
    const bool over = m->over;
    pthread_mutex_unlock(&be->moves_lock);
    atomic_fetch_add(&be->n_moves, 1);
    if (over && be->moved) be->moved(be->moved_arg);
    return 0;
}

static inline int fake_slot_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                                       struct rod_error *err) {
    if (atomic_load(&be->fail_saves)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    return fake_move_begin(be, slot, false, pos, state, bytes, err);
}

static inline int fake_slot_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                                       struct rod_error *err) {
    return fake_move_begin(be, slot, true, pos, (void *)(uintptr_t)state, bytes, err);
}

static inline int fake_slot_moving(struct backend *be, uint32_t slot, struct rod_error *err) {
    struct fake_move *m = &be->moves[slot];
    pthread_mutex_lock(&be->moves_lock);
    const bool on = m->on, over = m->over;
    if (over) m->on = false;
    pthread_mutex_unlock(&be->moves_lock);
    if (!on) return 0;
    if (atomic_load(&be->fail_moves)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    if (!over) return 1;
    return m->in ? fake_slot_load(be, slot, m->pos, m->state, m->bytes, err)
                 : fake_slot_save(be, slot, m->pos, m->state, m->bytes, err);
}

static inline void fake_on_moved(struct backend *be, void (*moved)(void *arg), void *arg) {
    be->moved = moved;
    be->moved_arg = arg;
}

/* From any thread: moves that began after hold_moves was set are over; later ones too if `all`. */
static inline void fake_end_moves(struct backend *be, bool all) {
    if (all) atomic_store(&be->hold_moves, false);
    pthread_mutex_lock(&be->moves_lock);
    for (uint32_t i = 0; i < be->info.n_slots; i++) be->moves[i].over = true;
    pthread_mutex_unlock(&be->moves_lock);
    if (be->moved) be->moved(be->moved_arg);
}

static inline uint64_t fake_mix(uint64_t hash, int32_t tok) {
    uint64_t x = (hash ^ (uint64_t)(uint32_t)tok) + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline void fake_logits(const struct backend *be, const struct fake_slot *s, float *row) {
    uint64_t x = s->hash | 1;
    for (uint32_t v = 0; v < be->V; v++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        row[v] = (float)(x >> 40) * 0x1p-21f; /* 0..8 */
    }
    if (be->kind == FAKE_COPY) row[s->n_said < s->n_prompt ? s->said[s->n_said] : be->eos] = 40;
}

static inline void fake_wait(struct backend *be) {
    if (!atomic_load(&be->gated)) return;
    sem_post(&be->entered);
    sem_wait(&be->gate);
}

static const struct backend_ops fake_ops, fake_device_ops, fake_draft_ops, fake_draft_device_ops;

/* The row behind draft t: the slot stays as it is. */
static inline void fake_draft_logits(struct backend *be, struct fake_slot *s, uint32_t t, int32_t tok, float *row) {
    const uint64_t hash = s->hash;
    if (t == 1) s->draft_hash[0] = hash;
    s->hash = s->draft_hash[t] = fake_mix(s->draft_hash[t - 1], tok);
    s->n_said += t;
    fake_logits(be, s, row);
    s->n_said -= t;
    s->hash = hash;
}

static inline void fake_slot_accept(struct backend *be, uint32_t slot, uint32_t n) {
    struct fake_slot *s = &be->slots[slot];
    if ((n > s->n_drafts || n < s->n_accepted) && !be->fault[0])
        snprintf(be->fault, sizeof be->fault, "%u of %u drafts accepted after %u", n, s->n_drafts, s->n_accepted);
    s->hash = s->draft_hash[n];
    s->pos += n - s->n_accepted;
    s->n_said += n - s->n_accepted;
    s->n_accepted = n;
}

static inline int fake_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                               const float **logits, struct rod_error *err) {
    unsigned step = atomic_fetch_add(&be->n_forwards, 1) + 1;
    if (!be->launching) fake_wait(be);
    const unsigned fail_at = atomic_load(&be->fail_at);
    if (fail_at && step >= fail_at) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    uint32_t n_tok = 0, n_out = 0;
    const char *fault = NULL;
    if (be->ops->launch && !be->launching && atomic_load(&be->n_launches) != atomic_load(&be->n_collects))
        fault = "a forward beside a step on its way";
    for (uint32_t i = 0; i < n_segs; i++) {
        const struct backend_segment *seg = &segs[i];
        if (seg->slot >= be->info.n_slots) {
            fault = "a slot out of range";
            break;
        }
        struct fake_slot *s = &be->slots[seg->slot];
        fake_no_flight(be, seg->slot, "a row");
        if (be->last_step[seg->slot] == step) fault = "a slot twice in a step";
        be->last_step[seg->slot] = step;
        if (!s->zeroed) fault = "a slot that was never zeroed";
        if (i && !seg->prompt && segs[i - 1].prompt) fault = "a drawn token behind a prompt";
        if (seg->prompt) atomic_fetch_add(&be->n_prompt_segs, 1);
        pthread_mutex_lock(&be->moves_lock);
        if (be->moves[seg->slot].on) fault = "a row of a slot whose state is on its way";
        pthread_mutex_unlock(&be->moves_lock);
        if (s->pos != seg->pos) fault = "a position that does not follow the last one";
        if (!seg->n_tok || seg->n_out > seg->n_tok) fault = "a segment without tokens or with too many outputs";
        s->n_drafts = backend_segment_drafts(seg), s->n_accepted = 0;
        if (s->n_drafts && (!be->ops->slot_accept || s->n_drafts > BACKEND_MAX_DRAFTS || seg->n_out != seg->n_tok))
            fault = "a draft in a step that may have no drafts";
        bool prompt = !s->said_any;
        if (prompt && !seg->n_out && (seg->pos + seg->n_tok) % be->info.chunk_tok)
            fault = "a prompt split inside a chunk";
        for (uint32_t t = 0; t < seg->n_tok; t++) {
            if (t && s->n_drafts) {
                if (n_out >= be->info.max_out) break;
                float *row = be->logits + (size_t)n_out++ * be->V;
                fake_draft_logits(be, s, t, seg->tok[t], row);
                if (seg->tok[t] == atomic_load(&be->nan_token)) row[7] = NAN;
                continue;
            }
            s->hash = fake_mix(s->hash, seg->tok[t]);
            if (prompt && s->pos < FAKE_COPY_MAX) s->said[s->pos] = seg->tok[t];
            s->pos++;
            if (t + seg->n_out < seg->n_tok) continue;
            if (prompt)
                s->n_prompt = (uint32_t)s->pos;
            else if (t + 1 == seg->n_tok || s->n_drafts)
                s->n_said++;
            s->said_any = true;
            if (n_out < be->info.max_out) fake_logits(be, s, be->logits + (size_t)n_out * be->V);
            if (seg->tok[t] == atomic_load(&be->nan_token)) be->logits[(size_t)n_out * be->V + 7] = NAN;
            n_out++;
        }
        n_tok += seg->n_tok;
    }
    if (n_tok > be->info.max_batch_tok) fault = "more tokens than max_batch_tok";
    if (n_out > be->info.max_out) fault = "more outputs than max_out";
    if (fault && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "step %u: %s", step, fault);
    *logits = be->logits;
    return 0;
}

/* ---- flights: what is to be done is done when it has ended ---- */

static inline uint32_t fake_flight_tok(const struct fake_flight *f, uint32_t slot) {
    for (uint32_t i = 0; i < f->n_segs; i++)
        if (f->segs[i].slot == slot) return f->segs[i].n_tok;
    return 0;
}

static inline int fake_flight_begin(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                                    struct rod_error *err) {
    const struct fake_flight *before = be->flights[0].on ? &be->flights[0] : NULL;
    struct fake_flight *f = &be->flights[before != NULL];
    const char *fault = f->on ? "a third flight" : !n_segs || n_segs > be->info.n_slots ? "no segments" : NULL;
    uint32_t n_tok = 0;
    if (atomic_load(&be->fail_flights)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    if (!f->segs) f->segs = calloc(be->info.n_slots, sizeof *f->segs);
    if (!f->tok) f->tok = calloc(be->info.flight_tok, sizeof *f->tok);
    for (uint32_t i = 0; !fault && i < n_segs; i++) {
        const struct backend_segment *seg = &segs[i];
        const struct fake_slot *s = &be->slots[seg->slot];
        if (seg->n_out || !seg->prompt || !seg->n_tok) fault = "no piece of a prompt";
        if ((seg->pos + seg->n_tok) % be->info.chunk_tok) fault = "a piece that ends inside a chunk";
        const uint64_t pos = s->pos + (before ? fake_flight_tok(before, seg->slot) : 0);
        if (!s->zeroed || s->said_any || pos != seg->pos) fault = "a piece that does not follow";
        for (uint32_t k = 0; k < i; k++)
            if (segs[k].slot == seg->slot) fault = "a slot twice";
        pthread_mutex_lock(&be->moves_lock);
        if (be->moves[seg->slot].on) fault = "a slot whose state is on its way";
        pthread_mutex_unlock(&be->moves_lock);
        if (n_tok + seg->n_tok > be->info.flight_tok) fault = "more tokens than flight_tok";
        if (fault) break;
        memcpy(f->tok + n_tok, seg->tok, seg->n_tok * sizeof *seg->tok);
        f->segs[i] = *seg;
        f->segs[i].tok = f->tok + n_tok;
        n_tok += seg->n_tok;
    }
    const unsigned n = atomic_fetch_add(&be->n_flights, 1);
    if (fault && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "flight %u: %s", n, fault);
    f->on = !fault;
    f->n_segs = n_segs;
    f->n_looks = n % 4;
    return 0;
}

static inline int fake_flight_ended(struct backend *be, bool wait, struct rod_error *err) {
    struct fake_flight *f = &be->flights[0];
    if (!f->on) return 1;
    if (atomic_load(&be->fail_flights)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    if (!wait && (atomic_load(&be->hold_flights) || f->n_looks)) {
        if (f->n_looks) f->n_looks--;
        return 0;
    }
    while (atomic_load(&be->hold_flights)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    f->on = false;
    for (uint32_t i = 0; i < f->n_segs; i++) {
        struct fake_slot *s = &be->slots[f->segs[i].slot];
        for (uint32_t t = 0; t < f->segs[i].n_tok; t++) {
            s->hash = fake_mix(s->hash, f->segs[i].tok[t]);
            if (s->pos < FAKE_COPY_MAX) s->said[s->pos] = f->segs[i].tok[t];
            s->pos++;
        }
    }
    const struct fake_flight ended = *f; /* its memory is the next one's */
    be->flights[0] = be->flights[1], be->flights[1] = ended;
    return 1;
}

/* ---- sampling on the device ---- */

static inline int fake_slot_sampling(struct backend *be, uint32_t slot, const struct backend_sampling *in,
                                     struct rod_error *err) {
    return device_prepare(&be->draws[slot], in, be->V, err);
}

static inline void fake_slot_mask(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask,
                                  bool may_end) {
    if (!be->draws[slot].prepared && !be->fault[0])
        snprintf(be->fault, sizeof be->fault, "a mask before the slot's sampling");
    device_mask(&be->draws[slot], n_drafts, mask, may_end, be->V);
    atomic_fetch_add(&be->n_masks, mask != NULL);
    atomic_fetch_add(&be->n_draft_masks, mask && n_drafts);
}

static inline int fake_launch(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                              struct rod_error *err) {
    const unsigned step = atomic_fetch_add(&be->n_launches, 1);
    uint32_t n_masked;
    const char *fault = NULL;
    if (step - atomic_load(&be->n_collects) > 1) fault = "a third step on its way";
    for (uint32_t i = 0; i < n_segs; i++) {
        const struct device_slot *s = &be->draws[segs[i].slot];
        const bool said_any = be->slots[segs[i].slot].said_any;
        if (!s->prepared) fault = "a slot without its sampling";
        if (s->waits && segs[i].tok && segs[i].tok[0] != s->last) fault = "another token than the slot waits behind";
        const uint32_t n_drafts = backend_segment_drafts(&segs[i]);
        if (n_drafts && (!segs[i].tok || !said_any || s->ended || segs[i].tok[0] != s->last))
            fault = "drafts behind another token than the last";
        if (n_drafts && step != atomic_load(&be->n_collects)) fault = "drafts beside a step on its way";
        if (!n_drafts && !s->waits && said_any != !segs[i].tok)
            fault = "a token from the host after the prompt, or none in it";
    }
    if (fault && !be->fault[0]) snprintf(be->fault, sizeof be->fault, "step %u: %s", step, fault);
    be->launching = true;
    const int rc = device_run(&be->sampler, be->draws, be->V, be, fake_forward, segs, n_segs, be->tokens[step % 2],
                              &n_masked, err);
    be->launching = false;
    atomic_fetch_add(&be->n_masked, n_masked);
    return rc;
}

static inline int fake_collect(struct backend *be, const struct backend_token **tokens, struct rod_error *err) {
    const unsigned step = atomic_load(&be->n_collects);
    fake_wait(be);
    if (step == atomic_load(&be->n_launches) && !be->fault[0])
        snprintf(be->fault, sizeof be->fault, "collect %u: nothing was launched", step);
    if (step + 1 == atomic_load(&be->fail_collect_at)) return rod_fail(err, ROD_EDEVICE, "the fake device caught fire");
    atomic_fetch_add(&be->n_collects, 1);
    *tokens = be->tokens[step % 2];
    return 0;
}

static const struct backend_ops fake_ops = {.name = "fake",
                                            .close = fake_close,
                                            .info = fake_info,
                                            .slot_zero = fake_slot_zero,
                                            .slot_copy = fake_slot_copy,
                                            .state_bytes = fake_state_bytes,
                                            .slot_save = fake_slot_save,
                                            .slot_load = fake_slot_load,
                                            .slot_save_begin = fake_slot_save_begin,
                                            .slot_load_begin = fake_slot_load_begin,
                                            .slot_moving = fake_slot_moving,
                                            .on_moved = fake_on_moved,
                                            .forward = fake_forward,
                                            .flight_begin = fake_flight_begin,
                                            .flight_ended = fake_flight_ended};

static const struct backend_ops fake_device_ops = {.name = "fake device",
                                                   .close = fake_close,
                                                   .info = fake_info,
                                                   .slot_zero = fake_slot_zero,
                                                   .slot_copy = fake_slot_copy,
                                                   .state_bytes = fake_state_bytes,
                                                   .slot_save = fake_slot_save,
                                                   .slot_load = fake_slot_load,
                                                   .slot_save_begin = fake_slot_save_begin,
                                                   .slot_load_begin = fake_slot_load_begin,
                                                   .slot_moving = fake_slot_moving,
                                                   .on_moved = fake_on_moved,
                                                   .forward = fake_forward,
                                                   .flight_begin = fake_flight_begin,
                                                   .flight_ended = fake_flight_ended,
                                                   .slot_sampling = fake_slot_sampling,
                                                   .slot_mask = fake_slot_mask,
                                                   .launch = fake_launch,
                                                   .collect = fake_collect};

#define FAKE_DRAFT_OPS(more)                                                                                           \
    {                                                                                                                  \
        .name = "fake with drafts", .close = fake_close, .info = fake_info, .slot_zero = fake_slot_zero,               \
        .slot_copy = fake_slot_copy, .state_bytes = fake_state_bytes, .slot_save = fake_slot_save,                     \
        .slot_load = fake_slot_load, .slot_save_begin = fake_slot_save_begin, .slot_load_begin = fake_slot_load_begin, \
        .slot_moving = fake_slot_moving, .on_moved = fake_on_moved, .flight_begin = fake_flight_begin,                 \
        .flight_ended = fake_flight_ended, .forward = fake_forward, .slot_accept = fake_slot_accept, more              \
    }
#define FAKE_SAMPLES                                                                                                   \
    .slot_sampling = fake_slot_sampling, .slot_mask = fake_slot_mask, .launch = fake_launch, .collect = fake_collect
static const struct backend_ops fake_draft_ops = FAKE_DRAFT_OPS(.launch = NULL),
                                fake_draft_device_ops = FAKE_DRAFT_OPS(FAKE_SAMPLES);

static inline struct backend *fake_open(const struct backend_ops *ops, enum fake_kind kind, uint32_t V,
                                        uint32_t n_slots, uint32_t max_batch_tok, uint32_t chunk_tok) {
    struct backend *be = calloc(1, sizeof *be);
    be->info = (struct backend_info){.device = "fake",
                                     .state_id = "fake",
                                     .n_slots = n_slots,
                                     .max_batch_tok = max_batch_tok,
                                     .max_out = n_slots > chunk_tok ? n_slots : chunk_tok,
                                     .chunk_tok = chunk_tok};
    be->ops = ops;
    be->kind = kind;
    be->V = V;
    for (int i = 0; i < 2; i++) be->tokens[i] = calloc(be->info.max_out, sizeof *be->tokens[i]);
    if (sampler_init(&be->sampler, V, NULL)) abort();
    be->eos = 1;
    be->slots = calloc(n_slots, sizeof *be->slots);
    be->draws = calloc(n_slots, sizeof *be->draws);
    be->logits = calloc((size_t)be->info.max_out * V, sizeof(float));
    be->last_step = calloc(n_slots, sizeof *be->last_step);
    be->moves = calloc(n_slots, sizeof *be->moves);
    pthread_mutex_init(&be->moves_lock, NULL);
    be->nan_token = -1;
    sem_init(&be->gate, 0, 0);
    sem_init(&be->entered, 0, 0);
    return be;
}

/* With the gate: waits until a forward or collect has begun, lets it pass. */
static inline void fake_step(struct backend *be) {
    sem_wait(&be->entered);
    sem_post(&be->gate);
}
/* Opens the gate for good; who waits at it goes on. */
static inline void fake_release(struct backend *be) {
    atomic_store(&be->gated, false);
    sem_post(&be->gate);
}

#endif
