/* cuda_step.c - a step's segments become rows in pinned memory and one or two parts: single tokens with logits
 * at its front are one graph replay, as if they had the step for themselves; pieces of prompts follow kernel by kernel.
 */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>

static_assert((int)CUDA_DRAFTS == BACKEND_MAX_DRAFTS, "one bound of drafts");

struct host_rows { /* of a part, to be written */
    int32_t *tok, *slot, *seg_first, *seg_n, *list, *out, *lead;
    uint32_t *deferred;
    int64_t *pos;
};

static struct host_rows host_rows(const struct backend *be) {
    const struct cuda_step *host = &be->host[be->n_step_parts % CUDA_STEP_PARTS];
#define WRITABLE(p) ((void *)(uintptr_t)(p))
    return (struct host_rows){.tok = WRITABLE(host->rows.tok),
                              .slot = WRITABLE(host->rows.slot),
                              .seg_first = WRITABLE(host->rows.seg_first),
                              .seg_n = WRITABLE(host->rows.seg_n),
                              .list = WRITABLE(host->list),
                              .out = WRITABLE(host->out),
                              .lead = WRITABLE(host->rows.lead),
                              .deferred = WRITABLE(host->rows.deferred),
                              .pos = WRITABLE(host->rows.pos)};
#undef WRITABLE
}

static void fill_rows(const struct backend_segment *segs, uint32_t n_segs, uint32_t V, const struct host_rows *h,
                      struct step *st) {
    st->n_segs = n_segs;
    for (uint32_t i = 0; i < n_segs; i++) {
        h->seg_first[i] = (int32_t)st->n_rows;
        h->seg_n[i] = (int32_t)segs[i].n_tok;
        if (segs[i].n_tok > st->most_tok) st->most_tok = segs[i].n_tok;
        for (uint32_t t = 0; t < segs[i].n_tok; t++, st->n_rows++) {
            assert(segs[i].tok || segs[i].n_tok == 1);
            assert(!segs[i].tok || (segs[i].tok[t] >= 0 && (uint32_t)segs[i].tok[t] < V)); /* a row of the embedding */
            h->tok[st->n_rows] = segs[i].tok ? segs[i].tok[t] : -1;
            h->slot[st->n_rows] = (int32_t)segs[i].slot;
            h->pos[st->n_rows] = (int64_t)(segs[i].pos + t);
            if (t + segs[i].n_out >= segs[i].n_tok) h->out[st->n_out++] = (int32_t)st->n_rows;
        }
    }
}

/* Rows of a segment that are alone between two multiples of the chunk: its first, before others, and its last. */
struct alone {
    uint32_t head, tail; /* 0 or 1 */
};
static struct alone alone_of(const struct backend_segment *seg, uint32_t chunk) {
    const uint64_t begin = seg->pos, last = seg->pos + seg->n_tok - 1;
    if (begin / chunk == last / chunk) return (struct alone){0, begin == last};
    return (struct alone){begin % chunk == chunk - 1, last % chunk == 0};
}

/* Rows that are alone in their chunk go to the list, what is between them to the prompts. */
static void list_prompts(struct backend *be, const struct backend_segment *segs, const struct host_rows *h,
                         struct step *st) {
    const uint32_t chunk = be->info.chunk_tok, block = be->n_step_parts % CUDA_STEP_PARTS;
    struct cuda_prompt *prompt = be->host_prompts;
    uint32_t n_prompts = 0;
    for (uint32_t i = 0; i < st->n_segs; i++) {
        const struct alone alone = alone_of(&segs[i], chunk);
        const uint32_t between = segs[i].n_tok - alone.head - alone.tail;
        if (alone.head) h->list[st->n_head++] = h->seg_first[i];
        if (between)
            prompt[n_prompts++] = (struct cuda_prompt){h->seg_first[i] + (int32_t)alone.head, (int32_t)between};
    }
    for (uint32_t i = 0; i < st->n_segs; i++)
        if (alone_of(&segs[i], chunk).tail) h->list[st->n_head + st->n_tail++] = h->seg_first[i] + h->seg_n[i] - 1;
    struct cuda_prompt_tile *tile = be->host_tiles[block];
    assert(st->n_head + st->n_tail <= st->n_rows && n_prompts <= st->n_segs);
    const uint32_t most = be->shape.window == CUDA_FP8 ? CUDA_WINDOW_COPIES : UINT32_MAX;
    st->prompts = be->rounds;
    for (uint32_t i = 0, n; i < n_prompts; i += n) {
        struct cuda_prompts *round = &be->rounds[st->n_rounds++];
        n = n_prompts - i < most ? n_prompts - i : most;
        *round = cuda_prompt_tiles(&be->shape, prompt + i, n, h->pos, tile + st->n_tiles);
        round->tile = be->tiles + st->n_tiles;
        st->n_tiles += round->n_pairs + round->n_single;
    }
    if (st->n_tiles) cudaMemcpyAsync(be->tiles, tile, st->n_tiles * sizeof *tile, cudaMemcpyHostToDevice, be->stream);
}

/* All rows to the list, by phases: pieces of segments between multiples of the chunk, whose keys fit the ring. */
static void list_phases(struct backend *be, const struct backend_segment *segs, const struct host_rows *h,
                        struct step *st) {
    const uint64_t chunk = be->info.chunk_tok;
    const bool decodes = be->decode_window;
    uint32_t n_listed = 0;
    for (uint32_t phase = 0; n_listed < st->n_rows; phase++) {
        be->alone_end[phase] = n_listed;
        for (int alone = decodes; alone >= 0; alone--) {
            for (uint32_t i = 0; i < st->n_segs; i++) {
                const uint64_t begin = segs[i].pos, end = begin + segs[i].n_tok,
                               piece = (begin / chunk + phase) * chunk;
                const uint64_t from = piece < begin ? begin : piece, to = piece + chunk < end ? piece + chunk : end;
                if (from >= to || (decodes && alone != (to - from == 1))) continue;
                for (uint64_t p = from; p < to; p++) h->list[n_listed++] = h->seg_first[i] + (int32_t)(p - begin);
            }
            if (alone) be->alone_end[phase] = n_listed;
        }
        be->phase_end[phase] = n_listed;
        st->n_phases = phase + 1;
    }
}

/* A single token, or one and its drafts. */
static bool is_decode(const struct backend_segment *seg) {
    return seg->n_out == seg->n_tok && !seg->prompt && seg->n_tok <= 1 + CUDA_DRAFTS;
}

/* Single tokens with logits, one a session: a graph where there is one for so many. */
static int start_decode(struct backend *be, const struct backend_segment *segs, uint32_t n, enum cuda_end how,
                        struct rod_error *err) {
    const struct host_rows h = host_rows(be);
    struct step st = {.single = true, .end = how};
    const uint32_t b = cuda_bucket_of(n);
    const bool graph = b < CUDA_N_BUCKETS && be->graphs->steps[how][b];
    const uint32_t n_rows = graph ? cuda_bucket_rows(b) : n;
    fill_rows(segs, n, be->shape.V, &h, &st);
    assert(st.n_rows == n && st.n_out == n && n_rows >= n && n_rows <= be->info.max_batch_tok);
    for (uint32_t r = n; r < n_rows; r++) { /* padding rows work in a slot that nobody owns */
        h.tok[r] = 0, h.slot[r] = (int32_t)be->info.n_slots, h.pos[r] = 0, h.seg_first[r] = (int32_t)r, h.seg_n[r] = 1;
    }
    for (uint32_t r = 0; r < n_rows; r++) h.list[r] = h.out[r] = (int32_t)r;
    cuda_one_launch_count(be);
    const bool defers = cuda_state_defers(&be->shape, n_rows);
    cuda_state_write_back(be, segs, n, defers, be->stream);
    for (uint32_t i = 0; defers && i < n; i++) be->may_be_deferred[segs[i].slot] = 1;
    const int rc = cuda_check(cudaGetLastError(), "writing states back", err);
    if (rc) return rc;
    if (graph) return cuda_check(cudaGraphLaunch(be->graphs->steps[how][b], be->stream), "starting a decode step", err);
    cuda_forward_enqueue(be, &st);
    return cuda_check(cudaGetLastError(), "launching a step", err);
}

/* What S lacks of each segment's session, and that it lacks the segment's own drafts from now on, of which none is
 * right so far. */
static void list_drafts(struct backend *be, const struct backend_segment *segs, uint32_t n, const struct host_rows *h) {
    for (uint32_t i = 0, r = 0; i < n; i++) {
        struct cuda_accepted *a = &be->accepted[segs[i].slot];
        assert(!be->may_be_deferred[segs[i].slot] || (!a->n && !a->second));
        for (uint32_t t = 0; t < segs[i].n_tok; t++, r++)
            h->lead[r] = (int32_t)t, h->deferred[r] = t ? 0 : a->n | (a->second ? CUDA_LATE_SECOND : 0);
        *a = segs[i].n_tok > 1 ? (struct cuda_accepted){.n_drafts = segs[i].n_tok - 1, .second = !a->second}
                               : (struct cuda_accepted){0};
        /* The device puts these in place of the word, and S takes them; but a row whose token the host does not name
         * may have been left out. */
        if (segs[i].tok) be->may_be_deferred[segs[i].slot] = 0;
    }
}

/* Single tokens, some of them with drafts: each row as if it had a step of its own. */
static int start_drafts(struct backend *be, const struct backend_segment *segs, uint32_t n, enum cuda_end how,
                        struct rod_error *err) {
    const struct host_rows h = host_rows(be);
    struct step st = {.single = true, .drafts = true, .end = how};
    fill_rows(segs, n, be->shape.V, &h, &st);
    list_drafts(be, segs, n, &h);
    const uint32_t b = cuda_bucket_of(st.n_rows);
    const bool graph = b < CUDA_DRAFT_BUCKETS && be->graphs->drafts[how][b];
    const uint32_t n_rows = graph ? cuda_bucket_rows(b) : st.n_rows;
    assert(st.n_out == st.n_rows && n_rows <= be->logit_rows && n_rows <= be->info.max_batch_tok);
    for (uint32_t r = st.n_rows; r < n_rows; r++) {
        h.tok[r] = 0, h.slot[r] = (int32_t)be->info.n_slots, h.pos[r] = 0, h.lead[r] = 0, h.deferred[r] = 0;
    }
    for (uint32_t i = n; i < n_rows; i++) h.seg_first[i] = h.seg_n[i] = 0; /* k_step_draft_rows takes as many as rows */
    for (uint32_t r = 0; r < n_rows; r++) h.list[r] = h.out[r] = (int32_t)r;
    if (graph)
        return cuda_check(cudaGraphLaunch(be->graphs->drafts[how][b], be->stream), "starting a decode step", err);
    cuda_forward_enqueue(be, &st);
    return cuda_check(cudaGetLastError(), "launching a step", err);
}

static int start_prompts(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, uint32_t host_row,
                         enum cuda_end how, uint32_t *n_out, struct rod_error *err) {
    const struct host_rows h = host_rows(be);
    struct step st = {.host_row = host_row, .end = how};
    fill_rows(segs, n_segs, be->shape.V, &h, &st);
    cuda_state_write_back(be, segs, n_segs, false, be->stream);
    if (be->prompt_window)
        list_prompts(be, segs, &h, &st);
    else
        list_phases(be, segs, &h, &st);
    cuda_forward_enqueue(be, &st);
    *n_out = st.n_out;
    if (be->library_failed) return rod_fail(err, ROD_EDEVICE, "launching a step: cuBLASLt refused a product");
    return cuda_check(cudaGetLastError(), "launching a step", err);
}

int cuda_step_prompts(struct backend *lane, const struct backend_segment *segs, uint32_t n_segs,
                      struct rod_error *err) {
    uint32_t n_out = 0;
    const int rc = start_prompts(lane, segs, n_segs, 0, CUDA_GREEDY, &n_out, err);
    lane->n_step_parts++;
    return rc;
}

int cuda_step_start(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, enum cuda_end how,
                    struct cuda_flight *flight, struct rod_error *err) {
    uint32_t n_rows = 0, n_out = 0, n_decode = 0, decode_rows = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        assert(segs[i].slot < be->info.n_slots && segs[i].n_tok > 0 && segs[i].n_out <= segs[i].n_tok);
        n_rows += segs[i].n_tok, n_out += segs[i].n_out;
        n_decode += is_decode(&segs[i]);
        if (is_decode(&segs[i])) decode_rows += segs[i].n_tok;
        assert(segs[i].prompt || segs[i].n_tok == 1 || is_decode(&segs[i]));
        assert(backend_segment_drafts(&segs[i]) <= be->n_drafts);
        assert(!is_decode(&segs[i]) || n_decode == i + 1); /* they come first */
    }
    assert(n_rows <= be->info.max_batch_tok && n_out <= be->info.max_out);
    const bool drafts = decode_rows > n_decode;
    const uint32_t bucket = cuda_bucket_of(decode_rows);
    *flight = (struct cuda_flight){
        .kind = n_decode < n_segs || bucket == CUDA_N_BUCKETS ? CUDA_N_KINDS : bucket + drafts * CUDA_N_BUCKETS,
        .n_ops = be->n_ops};
    if (n_rows == 0) return 0;
    cudaSetDevice(be->device); /* of this thread */
    int rc = 0;
    cuda_launch_on(be->processors);
    be->n_steps++;
    flight->n_ops = ++be->n_ops;
    for (uint32_t i = 0; i < n_segs; i++) be->slot_ops[segs[i].slot] = be->n_ops;
    if (be->n_steps == be->fault_step) k_fault(be->stream);
    for (uint32_t first = 0; !rc && first < n_segs;) { /* decode rows at the front, then the rest */
        const bool decode = first < n_decode;
        uint32_t *part_out = &flight->n_out[flight->n_parts];
        if (decode)
            *part_out = decode_rows, rc = (drafts ? start_drafts : start_decode)(be, segs, n_decode, how, err);
        else
            rc = start_prompts(be, segs + first, n_segs - first, decode_rows, how, part_out, err);
        assert(flight->n_parts < 2 && flight->n_out[flight->n_parts] <= be->info.max_out);
        flight->block[flight->n_parts++] = be->n_step_parts++ % CUDA_STEP_PARTS;
        first = decode ? n_decode : n_segs;
    }
    cuda_launch_on(0);
    be->info.host_bytes = (uint64_t)n_rows * 32;
    if (how == CUDA_LOGITS) be->info.host_bytes += (uint64_t)n_out * be->shape.V * sizeof(float);
    return rc;
}

int cuda_step_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                      struct rod_error *err) {
    struct cuda_flight flight;
    int rc = cuda_step_start(be, segs, n_segs, CUDA_LOGITS, &flight, err);
    *logits = be->host_logits;
    if (!rc) rc = cuda_one_launch_fault(be, cuda_check(cudaStreamSynchronize(be->stream), "running a step", err), err);
    if (!rc) be->n_ops_over = be->n_ops;
    return rc;
}
