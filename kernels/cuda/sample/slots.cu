// slots.cu - what a step and a slot get from the host: the rows of a step, with the tokens that the last step drew; how
// a slot's tokens are chosen.
#include "sample.cuh"

// ---- the rows of a step ----

struct all_blocks {
    cuda_step of[CUDA_STEP_PARTS];
};
// Slots that begin together are written back one after the other: by the digits of the slot's number, so that also a
// few neighbours differ.
__device__ __forceinline__ bool is_written_back(uint32_t slot, int64_t pos) {
    uint32_t digits = 0;
    for (; slot; slot /= CUDA_DEFERRED + 1) digits += slot % (CUDA_DEFERRED + 1);
    return ((uint32_t)pos + digits) % (CUDA_DEFERRED + 1) == 0;
}
// DRAFTS: of a step with drafts.
template <bool DRAFTS>
__global__ void step_rows_kernel(cuda_sampler s, all_blocks host, cuda_step to, uint32_t n_rows, uint32_t n_segs,
                                 uint32_t n_out, uint32_t *n_deferred) {
    wait_for_inputs();
    const uint32_t part = *s.n_parts;
    const cuda_step from = host.of[part % CUDA_STEP_PARTS];
    for (uint32_t r = threadIdx.x; r < n_rows; r += blockDim.x) {
        const int32_t list = from.list[r], out = r < n_out ? from.out[r] : 0; // all loads over the bus first
        const int32_t seg_first = r < n_segs ? from.rows.seg_first[r] : 0, seg_n = r < n_segs ? from.rows.seg_n[r] : 0;
        int32_t tok = from.rows.tok[r], slot = from.rows.slot[r];
        int64_t pos = from.rows.pos[r];
        const int32_t lead = DRAFTS ? from.rows.lead[r] : 0;
        uint32_t late = DRAFTS ? from.rows.deferred[r] : 0;
        if (tok < 0) { // the slot's own last token, if it goes on
            const bool ended = s.slots[slot].ended;
            tok = ended ? 0 : s.slots[slot].last;
            if (ended) slot = (int32_t)s.n_slots, pos = 0;
        } else if ((uint32_t)slot < s.n_slots && s.slots[slot].penalised && !lead) { // a draft may be no token at all
            atomicOr(&s.marks[(size_t)slot * s.V + tok], MARK_SEEN);
        }
        ((int32_t *)to.rows.tok)[r] = tok;
        ((int32_t *)to.rows.slot)[r] = slot;
        ((int64_t *)to.rows.pos)[r] = pos;
        if (DRAFTS) {
            if (n_deferred && (uint32_t)slot < s.n_slots && !lead && n_deferred[slot])
                late = n_deferred[slot], n_deferred[slot] = 0; // S takes them in this step
            ((uint32_t *)to.rows.deferred)[r] = late;
            ((int32_t *)to.rows.lead)[r] = lead;
        } else if (n_deferred) {
            uint32_t word = 0; // of a padding row: nothing is applied, and S stays
            if ((uint32_t)slot < s.n_slots) {
                const uint32_t n = n_deferred[slot];
                const bool write = n == CUDA_DEFERRED || is_written_back((uint32_t)slot, pos);
                word = n | (write ? (uint32_t)CUDA_WRITE_BACK : 0);
                n_deferred[slot] = write ? 0 : n + 1;
            }
            ((uint32_t *)to.rows.deferred)[r] = word;
        }
        ((int32_t *)to.list)[r] = list;
        if (r < n_segs) ((int32_t *)to.rows.seg_first)[r] = seg_first, ((int32_t *)to.rows.seg_n)[r] = seg_n;
        if (r < n_out) ((int32_t *)to.out)[r] = out;
    }
    __syncthreads(); // everyone has read the part's number
    if (threadIdx.x == 0) *s.n_parts = part + 1;
}

template <bool DRAFTS>
static void step_rows(const struct cuda_sampler *s, const struct cuda_step host[CUDA_STEP_PARTS],
                      const struct cuda_step *device, uint32_t n_rows, uint32_t n_segs, uint32_t n_out,
                      uint32_t *n_deferred, void *stream) {
    assert(n_rows > 0 && n_segs <= n_rows && n_out <= n_rows);
    assert(!(DRAFTS || n_deferred) || device->rows.deferred);
    all_blocks blocks;
    for (int i = 0; i < CUDA_STEP_PARTS; i++) blocks.of[i] = host[i];
    launch(step_rows_kernel<DRAFTS>, dim3(1), dim3(n_rows < 1024 ? (n_rows + 31) / 32 * 32 : 1024), 0, stream, *s,
           blocks, *device, n_rows, n_segs, n_out, n_deferred);
}
void k_step_rows(const struct cuda_sampler *s, const struct cuda_step host[CUDA_STEP_PARTS],
                 const struct cuda_step *device, uint32_t n_rows, uint32_t n_segs, uint32_t n_out, uint32_t *n_deferred,
                 void *stream) {
    step_rows<false>(s, host, device, n_rows, n_segs, n_out, n_deferred, stream);
}
void k_step_draft_rows(const struct cuda_sampler *s, const struct cuda_step host[CUDA_STEP_PARTS],
                       const struct cuda_step *device, uint32_t n_rows, uint32_t *n_deferred, void *stream) {
    step_rows<true>(s, host, device, n_rows, n_rows, n_rows, n_deferred, stream);
}

// ---- admission ----

__global__ void admit_kernel(cuda_sampler s, const cuda_admission *a) {
    __shared__ int32_t ids[CUDA_ADMIT_IDS];
    __shared__ float bias[CUDA_ADMIT_IDS];
    wait_for_inputs();
    const uint32_t slot = a->slot, n_bias = a->n_bias, n_end_ids = a->n_end_ids, n_wait_ids = a->n_wait_ids;
    if (a->first && threadIdx.x == 0) s.slots[slot] = a->sampling;
    for (uint32_t i = threadIdx.x; i < n_end_ids; i += blockDim.x)
        s.marks[(size_t)slot * s.V + a->end_ids[i]] = MARK_END;
    __syncthreads(); // an id may be of both kinds
    for (uint32_t i = threadIdx.x; i < n_wait_ids; i += blockDim.x)
        s.marks[(size_t)slot * s.V + a->wait_ids[i]] |= MARK_WAIT;
    for (uint32_t i = threadIdx.x; i < n_bias; i += blockDim.x) ids[i] = a->bias_ids[i], bias[i] = a->bias[i];
    __syncthreads();                      // the entries are here
    for (uint32_t i = 0; i < n_bias; i++) // an id that comes twice is added in order, by one thread
        if ((uint32_t)ids[i] % blockDim.x == threadIdx.x) s.bias[(size_t)slot * s.V + ids[i]] += bias[i];
}

void k_admit(const struct cuda_sampler *s, const struct cuda_admission *host, void *stream) {
    assert(s->V > 0 && s->V <= CUDA_SAMPLE_MAX_V && s->slots && s->marks);
    launch(admit_kernel, dim3(1), dim3(256), 0, stream, *s, host);
}

// ---- masks ----

enum { MASK_THREADS = 256, MASK_BLOCKS = 8 };

__global__ void masks_kernel(cuda_sampler s, const cuda_mask *masks) {
    wait_for_inputs();
    const cuda_mask m = masks[blockIdx.y];
    if (blockIdx.x == 0 && threadIdx.x == 0) { // beside others of the same slot
        const uint32_t bit = 1u << m.n_drafts;
        m.words ? atomicOr(&s.slots[m.slot].constrained, bit) : atomicAnd(&s.slots[m.slot].constrained, ~bit);
        m.may_end ? atomicOr(&s.slots[m.slot].may_end, bit) : atomicAnd(&s.slots[m.slot].may_end, ~bit);
    }
    if (!m.words) return;
    const uint32_t n_pairs = CUDA_MASK_WORDS(s.V) / 2;
    const u64 *from = (const u64 *)m.words;
    u64 *to = (u64 *)(s.masks + ((size_t)m.slot * s.mask_rows + m.n_drafts) * CUDA_MASK_WORDS(s.V));
    for (uint32_t i = blockIdx.x * MASK_THREADS + threadIdx.x; i < n_pairs; i += MASK_BLOCKS * MASK_THREADS)
        to[i] = from[i];
}

void k_masks(const struct cuda_sampler *s, const struct cuda_mask *masks, uint32_t n, void *stream) {
    assert(n > 0 && n <= CUDA_GRID_Z && s->masks && s->mask_rows > 0);
    launch(masks_kernel, dim3(MASK_BLOCKS, n), dim3(MASK_THREADS), 0, stream, *s, masks);
}
