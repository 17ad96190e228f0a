/* cuda_device_part.c - prompts that are read beside steps: a flight has multiprocessors of its own, by two green
 * contexts of the driver, and a lane, which is a backend of the same weights and slots with a stream and workspaces of
 * its own. While it is on its way steps go to the stream of the other context, with graphs that were captured for that,
 * else to the whole device's. Where the driver has no such contexts there are no flights.
 */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLIGHT_ROWS = 2048, GRAIN = 8, PROMPTS = 0, REST = 1 };
/* GRAIN: multiprocessors of which a context has a multiple, as on compute capability 9 */

#if CUDA_VERSION >= 12050
struct cuda_device_part {
    CUgreenCtx context[2];
    uint32_t processors[2];
    cudaStream_t stream[2], all; /* all: the backend's own, with every multiprocessor */
    struct cuda_graphs rest_graphs;
    struct backend lane;
    cudaEvent_t passed, ended[2]; /* passed: all that comes before on the other stream; ended: of flights, by parity */
    uint64_t n_begun, n_ended;    /* flights; ended: it has been seen */
};

/* ---- green contexts ---- */

struct driver {
    __typeof__(&cuDeviceGetDevResource) get;
    __typeof__(&cuDevSmResourceSplitByCount) split;
    __typeof__(&cuDevResourceGenerateDesc) describe;
    __typeof__(&cuGreenCtxCreate) create;
    __typeof__(&cuGreenCtxDestroy) destroy;
    __typeof__(&cuGreenCtxStreamCreate) stream;
};

static bool find_function(const char *name, void **f) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *f = NULL;
    if (cudaGetDriverEntryPointByVersion(name, f, 12050, cudaEnableDefault, &found) != cudaSuccess) cudaGetLastError();
    return found == cudaDriverEntryPointSuccess && *f;
}
static bool find_driver(struct driver *d) {
    return find_function("cuDeviceGetDevResource", (void **)&d->get) &&
           find_function("cuDevSmResourceSplitByCount", (void **)&d->split) &&
           find_function("cuDevResourceGenerateDesc", (void **)&d->describe) &&
           find_function("cuGreenCtxCreate", (void **)&d->create) &&
           find_function("cuGreenCtxDestroy", (void **)&d->destroy) &&
           find_function("cuGreenCtxStreamCreate", (void **)&d->stream);
}

/* The prompts' context has about `part` of the multiprocessors, the other the rest. */
static bool make_contexts(struct cuda_device_part *part, int device, double prompt_part) {
    struct driver d;
    CUdevResource all, of[2];
    CUdevResourceDesc desc;
    unsigned n = 1;
    int least = 0, greatest = 0;
    memset(of, 0, sizeof of);
    if (!find_driver(&d) || d.get((CUdevice)device, &all, CU_DEV_RESOURCE_TYPE_SM)) return false;
    unsigned count = (unsigned)(prompt_part * all.sm.smCount / GRAIN + 0.5) * GRAIN;
    if (count < GRAIN) count = GRAIN;
    if (count + GRAIN > all.sm.smCount || d.split(&of[PROMPTS], &n, &all, &of[REST], 0, count)) return false;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int i = 0; i < 2; i++) { /* steps go first while the two share what they had before */
        part->processors[i] = of[i].sm.smCount;
        if (!of[i].sm.smCount || d.describe(&desc, &of[i], 1) ||
            d.create(&part->context[i], desc, (CUdevice)device, CU_GREEN_CTX_DEFAULT_STREAM) ||
            d.stream((CUstream *)&part->stream[i], part->context[i], CU_STREAM_NON_BLOCKING,
                     i == REST ? greatest : least))
            return false;
    }
    return true;
}

/* ---- open and close ---- */

static void say(const struct backend_config *config, const char *line) {
    if (config->log) config->log(config->log_arg, 1, line);
}

/* The lane is a copy of the backend before that has slots: it has the weights, and owns its workspaces alone. */
static int make_lane(struct backend *be, struct rod_error *err) {
    struct cuda_device_part *part = be->device_part;
    struct backend *lane = &part->lane;
    const struct backend_config sizes = {.n_slots = 1};
    *lane = *be;
    lane->device_part = NULL, lane->host_block = NULL, lane->host_logits = NULL, lane->n_allocations = 0,
    lane->n_step_parts = 0;
    lane->alone_end = lane->phase_end = NULL, lane->host_prompts = NULL;
    lane->stream = part->stream[PROMPTS], lane->graphs = NULL;
    lane->info.max_out = 1;
    if (lane->info.max_batch_tok > FLIGHT_ROWS) lane->info.max_batch_tok = FLIGHT_ROWS;
    lane->allocations = calloc(CUDA_MOST_ALLOCATIONS, sizeof *lane->allocations);
    if (!lane->allocations) return rod_fail_no_memory(err);
    int rc = cuda_workspaces_open(lane, &sizes, err);
    lane->sampler = (struct cuda_sampler){0}; /* its counter of parts is the lane's own */
    if (!rc && !(lane->sampler.n_parts = cuda_take(lane, sizeof *lane->sampler.n_parts, "a workspace", err)))
        rc = err ? err->code : ROD_ENOMEM;
    if (!rc)
        rc = cuda_check(cudaMemsetAsync(lane->sampler.n_parts, 0, sizeof *lane->sampler.n_parts, lane->stream),
                        "clearing the count of parts", err);
    return rc ? rc : cuda_check(cudaStreamSynchronize(lane->stream), "setting up", err);
}

int cuda_device_part_open(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    const double prompt_part = config->prompt_share;
    if (!(prompt_part >= 0 && prompt_part < 1))
        return rod_fail_at(err, ROD_EINVALID, "prompt_share", "prompt_share is %g, it must be from 0 to below 1.",
                           prompt_part);
    if (prompt_part == 0) return 0;
    if (be->library) { /* its operands are of one product at a time */
        say(config, "prompts beside steps: none, their products are cuBLASLt's");
        return 0;
    }
    struct cuda_device_part *part = be->device_part = calloc(1, sizeof *part);
    if (!part) return rod_fail_no_memory(err);
    part->all = be->stream;
    if (!make_contexts(part, be->device, prompt_part)) {
        say(config, "prompts beside steps: none, this driver or device has no green contexts of that size");
        cuda_device_part_close(be);
        return 0;
    }
    char line[128];
    snprintf(line, sizeof line, "prompts beside steps: %u multiprocessors, steps have %u meanwhile",
             part->processors[PROMPTS], part->processors[REST]);
    say(config, line);
    int rc = cuda_check(cudaEventCreateWithFlags(&part->passed, cudaEventDisableTiming), "making an event", err);
    for (int i = 0; !rc && i < 2; i++)
        rc = cuda_check(cudaEventCreateWithFlags(&part->ended[i], cudaEventDisableTiming | cudaEventBlockingSync),
                        "making an event", err);
    if (!rc) rc = make_lane(be, err);
    if (rc) { /* a device without the room reads prompts in steps */
        say(config, "prompts beside steps: none, their workspaces do not fit beside the model");
        cudaGetLastError();
        cuda_device_part_close(be);
    }
    return 0;
}

/* Steps go to the rest, or to the whole device, from now on. */
static void go(struct backend *be, bool rest) {
    struct cuda_device_part *part = be->device_part;
    be->stream = rest ? part->stream[REST] : part->all;
    be->graphs = rest ? &part->rest_graphs : &be->own_graphs;
    be->processors = rest ? part->processors[REST] : 0;
}

int cuda_device_part_capture(struct backend *be, struct rod_error *err) {
    struct cuda_device_part *part = be->device_part;
    if (!part) return 0;
    struct backend *lane = &part->lane;
    const struct cuda_one_launch kept =
        be->one_launch; /* a step as one launch has as many blocks as the device holds */
    lane->shape = be->shape, lane->info.n_slots = be->info.n_slots;
    lane->accepted = be->accepted, lane->may_be_deferred = be->may_be_deferred;
    uint32_t *const n_parts = lane->sampler.n_parts;
    lane->sampler = be->sampler, lane->sampler.n_parts = n_parts;
    memset(be->one_launch.runs, 0, sizeof be->one_launch.runs);
    go(be, true);
    cuda_launch_on(be->processors);
    const int rc = cuda_forward_capture(be, err);
    cuda_launch_on(0);
    go(be, false);
    be->one_launch = kept;
    if (!rc) be->info.flight_tok = lane->info.max_batch_tok / be->info.chunk_tok * be->info.chunk_tok;
    return rc;
}

void cuda_device_part_close(struct backend *be) {
    struct cuda_device_part *part = be->device_part;
    struct driver d;
    if (!part) return;
    for (int i = 0; i < 2; i++)
        if (part->stream[i]) cudaStreamSynchronize(part->stream[i]);
    go(be, false);
    cuda_graphs_close(&part->rest_graphs);
    cuda_workspaces_close(&part->lane);
    if (part->passed) cudaEventDestroy(part->passed);
    for (int i = 0; i < 2; i++) {
        if (part->ended[i]) cudaEventDestroy(part->ended[i]);
        if (part->stream[i]) cudaStreamDestroy(part->stream[i]);
        if (part->context[i] && find_driver(&d)) d.destroy(part->context[i]);
    }
    cudaGetLastError(); /* what was not made is no fault of what follows */
    free(part);
    be->device_part = NULL;
}

/* ---- flights ---- */

/* `to` goes on after all that `from` has now. */
static int pass(struct cuda_device_part *part, cudaStream_t from, cudaStream_t to, struct rod_error *err) {
    const int rc = cuda_check(cudaEventRecord(part->passed, from), "passing a step on", err);
    return rc ? rc : cuda_check(cudaStreamWaitEvent(to, part->passed, 0), "passing a step on", err);
}

int cuda_device_part_switch(struct backend *be, struct rod_error *err) {
    struct cuda_device_part *part = be->device_part;
    const bool on = part && part->n_begun != part->n_ended;
    if (!part || on == (be->processors != 0)) return 0;
    const cudaStream_t from = be->stream;
    go(be, on);
    return pass(part, from, be->stream, err);
}

int cuda_device_part_begin(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                           struct rod_error *err) {
    struct cuda_device_part *part = be->device_part;
    uint32_t n_rows = 0;
    /* Sampling writes marks, which that clears. A step on the whole device would wait for the prompts' long blocks. */
    bool waits = be->sampling_ops > be->n_ops_over || !be->processors;
    assert(part && part->n_begun - part->n_ended < 2 && n_segs > 0);
    for (uint32_t i = 0; i < n_segs; i++) {
        assert(segs[i].slot < be->info.n_slots && !cuda_state_busy(be, segs[i].slot));
        assert(segs[i].prompt && segs[i].n_tok && !segs[i].n_out);
        assert((segs[i].pos + segs[i].n_tok) % be->info.chunk_tok == 0);
        n_rows += segs[i].n_tok;
        waits = waits || be->slot_ops[segs[i].slot] > be->n_ops_over;
    }
    assert(n_rows <= be->info.flight_tok);
    cudaSetDevice(be->device);
    int rc = waits ? pass(part, be->stream, part->stream[PROMPTS], err) : 0;
    if (rc) return rc;
    const uint64_t parity = part->n_begun++ % 2;
    cuda_launch_on(part->processors[PROMPTS]);
    rc = cuda_step_prompts(&part->lane, segs, n_segs, err);
    cuda_launch_on(0);
    return rc ? rc : cuda_check(cudaEventRecord(part->ended[parity], part->stream[PROMPTS]), "starting a flight", err);
}

/* Steps that are launched afterwards need not wait: the flight is over by then. */
int cuda_device_part_ended(struct backend *be, bool wait, struct rod_error *err) {
    struct cuda_device_part *part = be->device_part;
    if (!part || part->n_begun == part->n_ended) return 1;
    cudaSetDevice(be->device);
    const cudaEvent_t ended = part->ended[part->n_ended % 2];
    const cudaError_t rc = wait ? cudaEventSynchronize(ended) : cudaEventQuery(ended);
    if (rc == cudaErrorNotReady) return 0;
    part->n_ended++;
    return cuda_check(rc, "reading prompts beside steps", err) ? -1 : 1;
}
#else
int cuda_device_part_open(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    (void)be, (void)config, (void)err;
    return 0;
}
int cuda_device_part_capture(struct backend *be, struct rod_error *err) {
    (void)be, (void)err;
    return 0;
}
void cuda_device_part_close(struct backend *be) { (void)be; }
int cuda_device_part_switch(struct backend *be, struct rod_error *err) {
    (void)be, (void)err;
    return 0;
}
int cuda_device_part_begin(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                           struct rod_error *err) {
    (void)be, (void)segs, (void)n_segs;
    return rod_fail(err, ROD_EUNSUPPORTED, "This build reads no prompts beside steps.");
}
int cuda_device_part_ended(struct backend *be, bool wait, struct rod_error *err) {
    (void)be, (void)wait, (void)err;
    return 1;
}
#endif
