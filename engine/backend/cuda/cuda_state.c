/* cuda_state.c - a slot of the device's pool as the bytes of state_layout.h, and back: a few copies of rows
 * that lie a layer apart on both sides, by the copy engines, on a stream for each way beside the steps' own. */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_WAYS = 2, MOST_PARTS = 7 }; /* ways: out, in */

struct cuda_moves {
    cudaStream_t stream[N_WAYS];
    cudaEvent_t before;  /* what was launched before a copy */
    cudaEvent_t *done;   /* [n_slots] */
    unsigned char *busy; /* [n_slots] a copy was begun and is not known to be over */
    void (*moved)(void *arg);
    void *arg;
};

int cuda_state_open(struct backend *be, struct rod_error *err) {
    state_layout_id(&be->state, be->info.state_id);
    be->info.state = &be->state;
    struct cuda_moves *m = be->moves = calloc(1, sizeof *m);
    if (m) m->done = calloc(be->info.n_slots, sizeof *m->done);
    if (m) m->busy = calloc(be->info.n_slots, sizeof *m->busy);
    be->slot_ops = calloc(be->info.n_slots, sizeof *be->slot_ops);
    be->may_be_deferred = calloc(be->info.n_slots, sizeof *be->may_be_deferred);
    be->accepted = calloc(be->info.n_slots, sizeof *be->accepted);
    if (!m || !m->done || !m->busy || !be->slot_ops || !be->may_be_deferred || !be->accepted)
        return rod_fail_no_memory(err);
    int rc = 0;
    for (int i = 0; !rc && i < N_WAYS; i++)
        rc = cuda_check(cudaStreamCreateWithFlags(&m->stream[i], cudaStreamNonBlocking), "making a stream", err);
    if (!rc) rc = cuda_check(cudaEventCreateWithFlags(&m->before, cudaEventDisableTiming), "making an event", err);
    for (uint32_t i = 0; !rc && i < be->info.n_slots; i++)
        rc = cuda_check(cudaEventCreateWithFlags(&m->done[i], cudaEventDisableTiming | cudaEventBlockingSync),
                        "making an event", err);
    return rc;
}

void cuda_state_close(struct backend *be) {
    struct cuda_moves *m = be->moves;
    free(be->slot_ops), free(be->may_be_deferred), free(be->accepted);
    if (!m) return;
    for (int i = 0; i < N_WAYS; i++)
        if (m->stream[i]) cudaStreamSynchronize(m->stream[i]), cudaStreamDestroy(m->stream[i]);
    if (m->before) cudaEventDestroy(m->before);
    for (uint32_t i = 0; m->done && i < be->info.n_slots; i++)
        if (m->done[i]) cudaEventDestroy(m->done[i]);
    free(m->done);
    free(m->busy);
    free(m);
}

size_t cuda_state_bytes(const struct backend *be, uint64_t pos) { return state_bytes_at(&be->state, pos); }

/* ---- tokens that S does not hold yet ---- */

void cuda_state_write_back(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, bool drafts_alone,
                           void *stream) {
    struct cuda_late late[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const uint32_t slot = segs[i].slot;
        assert(slot < be->info.n_slots);
        const struct cuda_accepted a = be->accepted[slot];
        assert(!be->may_be_deferred[slot] || (be->shape.n_deferred && !a.n)); /* steps of one kind or the other */
        if (a.n || (be->may_be_deferred[slot] && !drafts_alone)) late[n++] = (struct cuda_late){slot, a.n, a.second};
        if (!drafts_alone) be->may_be_deferred[slot] = 0;
        be->accepted[slot] = (struct cuda_accepted){0};
        if (n == 64 || (n && i + 1 == n_segs)) k_write_back(&be->shape, be->d.L, late, n, stream), n = 0;
    }
}

void cuda_state_accept(struct backend *be, uint32_t slot, uint32_t n) {
    assert(slot < be->info.n_slots && n >= be->accepted[slot].n && n <= be->accepted[slot].n_drafts);
    be->accepted[slot].n = n;
}

void cuda_state_write_back_slot(struct backend *be, uint32_t slot, void *stream) {
    const struct backend_segment seg = {.slot = slot};
    cuda_state_write_back(be, &seg, 1, false, stream);
}

void cuda_state_forget_deferred(struct backend *be, uint32_t slot, void *stream) {
    assert(slot < be->info.n_slots);
    if (be->may_be_deferred[slot])
        cudaMemsetAsync(be->shape.n_deferred + slot, 0, sizeof *be->shape.n_deferred, stream);
    be->may_be_deferred[slot] = 0;
    be->accepted[slot] = (struct cuda_accepted){0};
}

/* ---- what of the pool the bytes are ---- */

/* Of each layer the same: rows of `bytes`, on the device `pitch` apart and in the state a layer's bytes. */
struct part {
    unsigned char *device;
    size_t pitch, at, bytes; /* at: in the state's first layer */
};

struct parts {
    struct part part[MOST_PARTS];
    uint32_t n;
};

static void add_part(struct parts *p, unsigned char *device, size_t pitch, size_t at, size_t bytes) {
    assert(!bytes || p->n < MOST_PARTS);
    if (bytes) p->part[p->n++] = (struct part){device, pitch, at, bytes};
}

/* n rows of a ring of n_rows, from the row of position pos on: the oldest come first in the state. */
static void add_ring(struct parts *p, unsigned char *ring, uint32_t n_rows, size_t row_bytes, uint64_t pos, uint32_t n,
                     size_t at) {
    if (n == 0) return;
    assert(n <= n_rows);
    const size_t first = (size_t)(pos % n_rows), head = n < n_rows - first ? n : n_rows - first;
    add_part(p, ring + first * row_bytes, n_rows * row_bytes, at, head * row_bytes);
    add_part(p, ring, n_rows * row_bytes, at + head * row_bytes, (n - head) * row_bytes);
}

static struct parts parts_of(const struct backend *be, uint32_t slot, uint64_t pos, const struct state_layer *at) {
    const struct cuda_shape *s = &be->shape;
    const size_t a = dtype_bytes(be->state.act), w = cuda_window_bytes(be), S = s->S_layer * sizeof(float);
    struct parts p = {.n = 0};
    add_part(&p, (unsigned char *)(s->S + slot * s->S_slot), S, 0, S);
    /* row of position p: p mod conv_ring; of positions before the first one, too */
    add_ring(&p, (unsigned char *)s->conv + slot * s->conv_slot * a, s->conv_ring, s->Ep * a, pos + s->conv_ring - s->K,
             s->K, at->conv);
    add_ring(&p, (unsigned char *)s->keys + slot * s->keys_slot * w, s->ring_keys, (size_t)s->Hk * s->P * w,
             pos - at->n_keys, at->n_keys, at->keys);
    add_ring(&p, (unsigned char *)s->values + slot * s->values_slot * w, s->ring_keys, (size_t)s->Hv * s->P * w,
             pos - at->n_keys, at->n_keys, at->values);
    return p;
}

/* ---- copies ---- */

static void CUDART_CB tell_moved(void *arg) {
    const struct cuda_moves *m = arg;
    if (m->moved) m->moved(m->arg);
}

/* In the order of the way's stream, after all that was launched. A failure may have begun some of it: a device fault.
 */
static int begin_copy(struct backend *be, uint32_t slot, uint64_t pos, enum cudaMemcpyKind way, unsigned char *state,
                      struct rod_error *err) {
    struct cuda_moves *m = be->moves;
    const bool out = way == cudaMemcpyDeviceToHost;
    const char *doing = out ? "saving a state" : "loading a state";
    const cudaStream_t stream = m->stream[!out];
    const struct state_layer at = state_layer_at(&be->state, pos);
    const struct parts p = parts_of(be, slot, pos, &at);
    assert(slot < be->info.n_slots && p.n <= MOST_PARTS && be->n_ops_over <= be->n_ops);
    assert(!m->busy[slot]); /* one copy of a slot at a time */
    cudaSetDevice(be->device);
    int rc = 0;
    if (be->slot_ops[slot] > be->n_ops_over) {
        rc = cuda_check(cudaEventRecord(m->before, be->stream), doing, err);
        if (!rc) rc = cuda_check(cudaStreamWaitEvent(stream, m->before, 0), doing, err);
    }
    if (!rc) (out ? cuda_state_write_back_slot : cuda_state_forget_deferred)(be, slot, stream);
    if (!rc) rc = cuda_check(cudaGetLastError(), doing, err);
    for (uint32_t i = 0; !rc && i < p.n; i++) {
        const struct part *part = &p.part[i];
        unsigned char *host = state + part->at, *to = out ? host : part->device, *from = out ? part->device : host;
        const size_t to_pitch = out ? at.bytes : part->pitch, from_pitch = out ? part->pitch : at.bytes;
        rc = cuda_check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, part->bytes, be->d.L, way, stream), doing,
                        err);
    }
    if (!rc) rc = cuda_check(cudaEventRecord(m->done[slot], stream), doing, err);
    return rc;
}

static int check_call(const struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                      struct rod_error *err) {
    if (slot >= be->info.n_slots)
        return rod_fail(err, ROD_EINVALID, "Slot %u of %u is out of range.", slot, be->info.n_slots);
    return state_check(&be->state, pos, state, bytes, err);
}

static int wait_copy(struct backend *be, uint32_t slot, const char *doing, struct rod_error *err) {
    return cuda_check(cudaEventSynchronize(be->moves->done[slot]), doing, err);
}

int cuda_state_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes, struct rod_error *err) {
    int rc = check_call(be, slot, pos, NULL, bytes, err);
    if (!rc) rc = begin_copy(be, slot, pos, cudaMemcpyDeviceToHost, state, err);
    return rc ? rc : wait_copy(be, slot, "saving a state", err);
}

#define WRITABLE(p) ((void *)(uintptr_t)(p)) /* it is only read */

int cuda_state_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                    struct rod_error *err) {
    int rc = check_call(be, slot, pos, state, bytes, err);
    if (!rc) rc = begin_copy(be, slot, pos, cudaMemcpyHostToDevice, WRITABLE(state), err);
    return rc ? rc : wait_copy(be, slot, "loading a state", err);
}

static int begin_announced(struct backend *be, uint32_t slot, uint64_t pos, enum cudaMemcpyKind way, void *state,
                           struct rod_error *err) {
    struct cuda_moves *m = be->moves;
    int rc = begin_copy(be, slot, pos, way, state, err);
    if (rc) return rc;
    m->busy[slot] = 1;
    return m->moved ? cuda_check(cudaLaunchHostFunc(m->stream[way != cudaMemcpyDeviceToHost], tell_moved, m),
                                 "asking to be told of a state's end", err)
                    : 0;
}

int cuda_state_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                          struct rod_error *err) {
    const int rc = check_call(be, slot, pos, NULL, bytes, err);
    return rc ? rc : begin_announced(be, slot, pos, cudaMemcpyDeviceToHost, state, err);
}

int cuda_state_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                          struct rod_error *err) {
    const int rc = check_call(be, slot, pos, state, bytes, err);
    return rc ? rc : begin_announced(be, slot, pos, cudaMemcpyHostToDevice, WRITABLE(state), err);
}

int cuda_state_moving(struct backend *be, uint32_t slot, struct rod_error *err) {
    struct cuda_moves *m = be->moves;
    if (slot >= be->info.n_slots || !m->busy[slot]) return 0;
    cudaSetDevice(be->device);
    const cudaError_t rc = cudaEventQuery(m->done[slot]);
    if (rc == cudaErrorNotReady) return 1;
    m->busy[slot] = 0;
    return cuda_check(rc, "moving a state", err);
}

bool cuda_state_busy(const struct backend *be, uint32_t slot) { return be->moves->busy[slot]; }

/* Before any copy is under way. */
void cuda_state_on_moved(struct backend *be, void (*moved)(void *arg), void *arg) {
    for (uint32_t i = 0; i < be->info.n_slots; i++) assert(!be->moves->busy[i]);
    be->moves->moved = moved;
    be->moves->arg = arg;
}

/* ---- host memory ---- */

enum { TOUCH_THREADS = 8, PAGE = 4096 };

struct touch {
    unsigned char *memory;
    size_t bytes;
};

static void *touch_pages(void *arg) {
    const struct touch *t = arg;
    for (size_t i = 0; i < t->bytes; i += PAGE) t->memory[i] = 0;
    return NULL;
}

/* Touched by several threads, in large pages where the system has them, and then pinned: 45 ms a GiB on an H200's host,
 * where cudaHostAlloc takes 400. */
void *cuda_state_host_take(struct backend *be, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    pthread_t threads[TOUCH_THREADS];
    struct touch parts[TOUCH_THREADS];
    uint32_t n = 0;
    const size_t part = (bytes / TOUCH_THREADS + PAGE - 1) / PAGE * PAGE;
    for (size_t at = 0; at < bytes && n < TOUCH_THREADS; at += part, n++) {
        parts[n] = (struct touch){(unsigned char *)memory + at, bytes - at < part ? bytes - at : part};
        if (pthread_create(&threads[n], NULL, touch_pages, &parts[n])) break; /* pinning touches what is left */
    }
    while (n) pthread_join(threads[--n], NULL);
    cudaSetDevice(be->device);
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess) return memory;
    cudaGetLastError();
    munmap(memory, bytes);
    return NULL;
}

void cuda_state_host_give(void *memory, size_t bytes) {
    cudaHostUnregister(memory);
    munmap(memory, bytes);
}
