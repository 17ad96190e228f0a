/* backend_cuda_state.c - a slot of the device's pool as the bytes of state_layout.h, and back: in order on the stream,
 * through two pieces of pinned memory that take turns. */
#include "backend_cuda.h"

#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

enum { STAGE_BYTES = 8 << 20, MOST_RUNS = 7 };

struct cuda_staging {
    struct stage {
        unsigned char *pinned; /* [STAGE_BYTES] */
        cudaEvent_t done;      /* the copies that use it */
        size_t used;
    } stage[2];
};

int state_cuda_open(struct backend *be, struct rod_error *err) {
    static const enum dtype act[] = {[CUDA_F32] = DTYPE_F32, [CUDA_BF16] = DTYPE_BF16, [CUDA_F16] = DTYPE_F16};
    be->state = state_layout_of(&be->d, act[be->shape.dtype]);
    state_layout_id(&be->state, be->info.state_id);
    struct cuda_staging *p = be->staging = calloc(1, sizeof *p);
    if (!p) return rod_fail(err, ROD_ENOMEM, "no memory for the CUDA backend");
    int rc = 0;
    for (int i = 0; !rc && i < 2; i++) {
        rc = cuda_check(cudaMallocHost((void **)&p->stage[i].pinned, STAGE_BYTES), "taking pinned memory for states",
                        err);
        if (!rc)
            rc = cuda_check(cudaEventCreateWithFlags(&p->stage[i].done, cudaEventDisableTiming | cudaEventBlockingSync),
                            "making an event", err);
    }
    return rc;
}

void state_cuda_close(struct backend *be) {
    for (int i = 0; be->staging && i < 2; i++) {
        if (be->staging->stage[i].done) cudaEventDestroy(be->staging->stage[i].done);
        if (be->staging->stage[i].pinned) cudaFreeHost(be->staging->stage[i].pinned);
    }
    free(be->staging);
}

size_t backend_cuda_state_bytes(const struct backend *be, uint64_t pos) { return state_bytes_at(&be->state, pos); }

/* ---- what of the pool the bytes are, in their order ---- */

struct run {
    unsigned char *device;
    size_t bytes;
};

/* n rows of a ring of n_rows, from the row of position pos on. */
static void add_ring(struct run *runs, uint32_t *n_runs, unsigned char *ring, uint32_t n_rows, size_t row_bytes,
                     uint64_t pos, uint32_t n) {
    if (n == 0) return;
    const uint32_t first = (uint32_t)(pos % n_rows), head = n < n_rows - first ? n : n_rows - first;
    runs[(*n_runs)++] = (struct run){ring + first * row_bytes, head * row_bytes};
    if (n > head) runs[(*n_runs)++] = (struct run){ring, (n - head) * row_bytes};
}

static uint32_t runs_of_layer(const struct backend *be, uint32_t slot, uint32_t layer, uint64_t pos,
                              struct run runs[MOST_RUNS]) {
    const struct cuda_shape *s = &be->shape;
    const size_t a = dtype_bytes(be->state.act);
    const uint32_t n_keys = state_layer_at(&be->state, pos).n_keys;
    uint32_t n = 0;
    runs[n++] = (struct run){(unsigned char *)(s->S + slot * s->S_slot + layer * s->S_layer), s->S_layer * 4};
    /* row of position p: p mod K, so of pos - K: pos mod K */
    add_ring(runs, &n, (unsigned char *)s->conv + (slot * s->conv_slot + layer * s->conv_layer) * a, s->K, s->Ep * a,
             pos, s->K);
    add_ring(runs, &n, (unsigned char *)s->keys + (slot * s->keys_slot + layer * s->keys_layer) * a, s->ring_keys,
             (size_t)s->Hk * s->P * a, pos - n_keys, n_keys);
    add_ring(runs, &n, (unsigned char *)s->values + (slot * s->values_slot + layer * s->values_layer) * a, s->ring_keys,
             (size_t)s->Hv * s->P * a, pos - n_keys, n_keys);
    return n;
}

static int check(const struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                 struct rod_error *err) {
    if (slot >= be->info.n_slots)
        return rod_fail(err, ROD_EINVALID, "slot %u of %u is out of range", slot, be->info.n_slots);
    return state_check(&be->state, pos, state, bytes, err);
}

/* ---- out: what a stage got goes to the state while the other one is being filled ---- */

static int drain(struct stage *stage, unsigned char **to, struct rod_error *err) {
    const int rc = cuda_check(cudaEventSynchronize(stage->done), "saving a state", err);
    if (rc) return rc;
    memcpy(*to, stage->pinned, stage->used);
    *to += stage->used;
    stage->used = 0;
    return 0;
}

int backend_cuda_slot_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                           struct rod_error *err) {
    struct stage *stage = be->staging->stage;
    unsigned char *to = state;
    struct run runs[MOST_RUNS];
    int turn = 0, rc = check(be, slot, pos, NULL, bytes, err);
    if (rc) return rc;
    cudaSetDevice(be->device);
    /* A load that is still on its way reads the stages: it comes first on the stream. */
    stage[0].used = stage[1].used = 0;
    for (uint32_t layer = 0; layer < be->d.L; layer++) {
        const uint32_t n = runs_of_layer(be, slot, layer, pos, runs);
        for (uint32_t i = 0; i < n; i++)
            for (size_t at = 0, piece; at < runs[i].bytes; at += piece) {
                struct stage *now = &stage[turn];
                const size_t room = STAGE_BYTES - now->used, left = runs[i].bytes - at;
                piece = left < room ? left : room;
                rc = cuda_check(cudaMemcpyAsync(now->pinned + now->used, runs[i].device + at, piece,
                                                cudaMemcpyDeviceToHost, be->stream),
                                "saving a state", err);
                if (rc) return rc;
                now->used += piece;
                if (now->used < STAGE_BYTES) continue;
                if ((rc = cuda_check(cudaEventRecord(now->done, be->stream), "saving a state", err))) return rc;
                turn ^= 1;
                if (stage[turn].used && (rc = drain(&stage[turn], &to, err))) return rc;
            }
    }
    if ((rc = cuda_check(cudaEventRecord(stage[turn].done, be->stream), "saving a state", err))) return rc;
    if (stage[turn ^ 1].used) rc = drain(&stage[turn ^ 1], &to, err);
    return rc ? rc : drain(&stage[turn], &to, err);
}

/* ---- in: a stage is filled again when the copies from it are over ---- */

int backend_cuda_slot_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                           struct rod_error *err) {
    const unsigned char *from = state;
    struct run runs[MOST_RUNS];
    int turn = 0, rc = check(be, slot, pos, state, bytes, err);
    if (rc) return rc;
    cudaSetDevice(be->device);
    be->staging->stage[0].used = be->staging->stage[1].used = 0;
    for (uint32_t layer = 0; layer < be->d.L; layer++) {
        const uint32_t n = runs_of_layer(be, slot, layer, pos, runs);
        for (uint32_t i = 0; i < n; i++)
            for (size_t at = 0, piece; at < runs[i].bytes; at += piece) {
                struct stage *now = &be->staging->stage[turn];
                if (now->used == 0 && (rc = cuda_check(cudaEventSynchronize(now->done), "loading a state", err)))
                    return rc;
                const size_t room = STAGE_BYTES - now->used, left = runs[i].bytes - at;
                piece = left < room ? left : room;
                memcpy(now->pinned + now->used, from, piece);
                rc = cuda_check(cudaMemcpyAsync(runs[i].device + at, now->pinned + now->used, piece,
                                                cudaMemcpyHostToDevice, be->stream),
                                "loading a state", err);
                if (rc) return rc;
                from += piece;
                now->used += piece;
                if (now->used < STAGE_BYTES) continue;
                if ((rc = cuda_check(cudaEventRecord(now->done, be->stream), "loading a state", err))) return rc;
                now->used = 0;
                turn ^= 1;
            }
    }
    return cuda_check(cudaEventRecord(be->staging->stage[turn].done, be->stream), "loading a state", err);
}
