/* backend.h - the one seam to a device: a few model-level functions, never a table of operations.
 *
 * Who owns what: a backend owns its copy of the weights, the slot pool (states, conv tails, window rings of n_slots
 * sessions) and every workspace; after open the model's memory may be unmapped.
 * Threads: all calls from one thread at a time (the engine thread). Invariant: forward, launch and collect allocate
 * nothing.
 * Laws (tests/backend/test_laws.c): a segment's results depend on nothing but its slot's state, its tokens and its
 * position; splitting a segment at absolute multiples of chunk_tok changes no bit.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include "sampler.h"

struct model;
struct backend;
struct state_layout;

enum { BACKEND_MAX_DRAFTS = 7 };

/* One session's rows of a step: tokens tok[0..n_tok) at absolute positions pos.. are read into the slot's state.
 * Logits are produced for the last n_out tokens (0 = none; 1 for a decode row or the end of a prompt; all for a prompt
 * that is scored). prompt: true for tokens of a prompt. A device may sum these in another order than decode rows, so a
 * prompt's last token alone must not be marked as a decode row.
 * Not prompt, and more than one token: those behind the first are drafts, up to BACKEND_MAX_DRAFTS, and n_out is n_tok.
 * Each row's logits have the bits that single steps give; the slot's state is that after the first token, until
 * slot_accept. */
struct backend_segment {
    uint32_t slot, n_tok, n_out;
    uint64_t pos;
    const int32_t *tok;
    bool prompt;
};
static inline uint32_t backend_segment_drafts(const struct backend_segment *seg) {
    return seg->prompt ? 0 : seg->n_tok - 1;
}

/* How a device chooses a slot's tokens: sampler.h's order and meaning. What is pointed to is copied. A slot's tokens
 * before its first output are the prompt that the penalties count. */
struct backend_sampling {
    const struct rod_sampling *sampling;
    const struct rod_bias *bias;
    size_t n_bias;
    const int32_t *end_ids; /* end and stop ids: drawing one ends the slot; none is drawn before min_tokens */
    size_t n_end_ids;
    const int32_t *wait_ids;         /* after one the slot waits: its rows do nothing until one names its token (tok) */
    size_t n_wait_ids;               /* 0 where there is no slot_mask */
    uint32_t min_tokens, max_tokens; /* not counting end_ids; the slot ends with its max_tokens-th token */
    int32_t n_logprobs;              /* -1 = none */
};

/* What one row of a launched step gave. */
struct backend_token {
    struct sampler_output picked; /* if status is SAMPLER_OK */
    enum sampler_status status;
    bool waits;  /* picked is one of wait_ids: later rows of this slot do nothing, until one names its token */
    bool ended;  /* by end_ids, max_tokens or status: later rows of this slot do nothing */
    bool masked; /* the slot had ended before, or waits: there is nothing here */
};

struct backend_config {
    uint32_t n_slots;       /* 0 = auto */
    uint32_t n_threads;     /* CPU only, 0 = all cores */
    uint32_t max_batch_tok; /* rows of a forward, 0 = auto */
    uint32_t max_out;       /* rows of logits of a forward, 0 = max_batch_tok; prompts can be scored from a chunk on */
    const char *device;     /* "cpu", "cuda", "cuda:N" */
    const char *precision;  /* "auto", "fp32", "bf16", "fp16" */
    const char *window_dtype, *state_dtype; /* of the window and of S (state_formats.h); NULL: "auto" */
    bool deterministic;        /* a row's bits depend on the number of rows in no way; without it they may by bucket */
    bool no_drafts;            /* no segment has drafts: slots need no room for them */
    const char *decode_kernel; /* of steps of few rows: "graph" (a kernel a stage), "auto" (NULL is that: one launch for
                                * all stages, where it is faster), "any" (where it runs), "persistent" (as any, or an
                                * error) */
    const char *prompt_products; /* of a GPU: "auto" (NULL is that: by cuBLASLt where there is no kernel of ours, and it
                                  * loads), "own" (never), "library" (for every shape that keeps the law with it; an
                                  * error where no shape does) */
    double prompt_share;         /* of the device that reads prompts beside steps; 0: none */
    uint64_t fault_step;         /* for tests: this step (from 1) is a device fault; 0 = none */
    void (*log)(void *arg, int level, const char *line);
    void *log_arg;
    struct rod_progress_to progress; /* of packing and uploading the weights */
};

enum { BACKEND_STATE_ID_BYTES = 160 };

struct backend_info {
    char device[64];   /* for people: "cpu (avx512, 2 threads)" */
    char products[96]; /* of prompts, where a library makes them: which; else "" */
    /* What slot_save writes, as text (state_layout.h): a backend loads the states of another with the same id. */
    char state_id[BACKEND_STATE_ID_BYTES];
    const struct state_layout *state; /* the same as numbers, its formats too; NULL: there is no state */
    uint32_t n_slots, max_batch_tok, max_out, chunk_tok;
    uint64_t weight_bytes, slot_bytes;
    /* Decode steps of more than defer_rows rows write a state at one token of deferred_tok + 1, and keep what changes
     * it of the others; deferred_tok 0: every step writes it. */
    uint32_t defer_rows, deferred_tok;
    uint32_t draft_rows; /* a step with drafts of more rows takes several times as long; 0: of any number it does not */
    uint32_t flight_tok; /* rows of a flight at most; 0: this device has none */
    /* Rows of a step at most, where it is not one prompt's alone (sched.h); 0: max_batch_tok, which is never less. */
    uint32_t shared_tok;
    uint64_t host_bytes; /* moved between host and device by the last step; 0 where they are one */
};

struct backend_ops {
    const char *name; /* "cpu", "cuda" */
    unsigned formats; /* of weights in fewer bits: a bit 1 << enum weight_format each */
    int (*open)(const struct model *model, const struct backend_config *config, struct backend **out,
                struct rod_error *err);
    void (*close)(struct backend *be);
    const struct backend_info *(*info)(const struct backend *be);
    void (*slot_zero)(struct backend *be, uint32_t slot); /* the state before the first token */
    /* Slot `to` gets the state of `from` after pos tokens, bit for bit, and keeps its own sampling. In order with the
     * steps launched before and after. NULL where a device cannot. */
    void (*slot_copy)(struct backend *be, uint32_t from, uint32_t to, uint64_t pos);
    /* A slot's state outside the backend; these and the next group all NULL where a device cannot. state_bytes: its
     * size after pos tokens, the same for every pos once the window is full. slot_save: the slot's state after pos
     * tokens into state[bytes], whole when it returns; the slot stays as it is. slot_load: the reverse, in place of
     * slot_zero: nothing of the slot's past is left; state is free again when it returns. A save or load runs in order
     * with the steps launched before and after. The slot goes on with the same bits. ROD_EINVALID, and the slot is as
     * it was, where bytes is not state_bytes(pos) or this backend has no such slot; ROD_EDEVICE as forward. */
    size_t (*state_bytes)(const struct backend *be, uint64_t pos);
    int (*slot_save)(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes, struct rod_error *err);
    int (*slot_load)(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                     struct rod_error *err);
    /* Save and load while steps go on: begin returns at once, and the copy runs beside the steps of other slots, after
     * all that was launched before it. Until slot_moving has said that it is over, slot and state are the copy's: the
     * slot has no rows in steps launched meanwhile and is not zeroed, copied, saved or loaded; its past rows may still
     * be on their way where they have ended. Copies of several slots may be under way, one of a slot. A begin that
     * failed has begun nothing. slot_moving: 1 = under way, 0 = over or never begun, ROD_EDEVICE. on_moved: moved(arg)
     * is called from some thread after each copy that is over, and must only signal; not after close. */
    int (*slot_save_begin)(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                           struct rod_error *err);
    int (*slot_load_begin)(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                           struct rod_error *err);
    int (*slot_moving)(struct backend *be, uint32_t slot, struct rod_error *err);
    void (*on_moved)(struct backend *be, void (*moved)(void *arg), void *arg);
    /* Host memory between which and the device copies are fastest; any other does too, but a begin may then wait for
     * its copy. NULL, both: any memory is as good. host_give may come after close, from any thread. */
    void *(*host_take)(struct backend *be, size_t bytes);
    void (*host_give)(void *memory, size_t bytes);
    /* Every segment with another slot, decode rows before prompts; sum of n_tok <= max_batch_tok, sum of n_out <=
     * max_out. *logits: fp32 rows of vocab_size floats, in segment order, valid until the next call. A failure is a
     * device fault. Not while a launched step is on its way. */
    int (*forward)(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                   struct rod_error *err);
    /* After a forward, or the collect of a launched step, in which the slot's segment had drafts, and before anything
     * else of the slot: the first n of them are read, too. Again with a larger n, if more are. NULL where a device
     * cannot: then no segment has drafts. */
    void (*slot_accept)(struct backend *be, uint32_t slot, uint32_t n);
    /* Sampling on the device, and steps launched ahead; all NULL where the host samples. Before a prompt, in a
     * slot that has the state before it: how the slot's tokens are chosen from now on. In order with the steps launched
     * before it and after it. */
    int (*slot_sampling)(struct backend *be, uint32_t slot, const struct backend_sampling *sampling,
                         struct rod_error *err);
    /* What a grammar allows of the slot's tokens that are drawn behind so many drafts (0: behind none, so in steps
     * without any), from the next launched step to the next call for as many or slot_sampling: a bit for each id, 64 a
     * word, copied; NULL = all. Of end_ids all may come if may_end, else none. One for each row of logits of a step at
     * most, and not while a row of the slot is on its way that has logits. NULL where a device cannot: then grammars
     * are the host's. */
    void (*slot_mask)(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask, bool may_end);
    /* Begins a step like forward, returns before it has run and samples a token for each row of logits (n_out is 0 or
     * 1, or that of drafts: where no step is on its way, behind the slot's last token. Each row is drawn as if the
     * drafts before it had been; behind a token that is not the next draft, or ends, the rows are masked). tok NULL
     * with n_tok 1: the slot's last token, which the host need not have seen; a slot that has ended is left as it is;
     * tok given: that token, also if the slot waited for it. The segments' tokens are copied. At most two steps are
     * launched and not collected. */
    int (*launch)(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err);
    /* Waits for the oldest launched step without using the processor. tokens: one for each row of logits, in order,
     * valid until the next collect. A failure is a device fault, perhaps of a later step. */
    int (*collect)(struct backend *be, const struct backend_token **tokens, struct rod_error *err);
    /* A flight: pieces of prompts that are read beside steps, on a part of the device's processors. Its segments have
     * n_out = 0 and prompt = true and end at a multiple of 64; their slots are in no step and no move until it has
     * ended. Two at most are on their way: the second begins when the first has ended, may go on in its slots, and is
     * begun early so that the device need not wait. Its bits are those of the same pieces in steps. The segments'
     * tokens are copied. NULL, both, where flight_tok is 0 always. */
    int (*flight_begin)(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err);
    /* 1: the first of those on their way has ended, or there is no flight. 0: it has not; with wait this is never
     * returned. -1: the device has failed. */
    int (*flight_ended)(struct backend *be, bool wait, struct rod_error *err);
    /* What the device can do, for the benchmark: bytes a second over a working set of about `bytes`, products a second.
     * NULL: the benchmark measures the CPU. */
    int (*ceilings)(struct backend *be, double bytes, double *bytes_per_s, double *flop_per_s, struct rod_error *err);
    /* For the benchmark: one plain copy of so many bytes to this memory of host_take and back, medians. NULL: as the
     * CPU copies memory. */
    int (*copy_seconds)(struct backend *be, void *host, size_t bytes, double *out_s, double *in_s,
                        struct rod_error *err);
};

/* What rodimus_cuda.so exports as rodimus_cuda_plugin. devices: one line a usable GPU. */
struct backend_plugin {
    size_t (*devices)(char (*lines)[128], size_t max_lines);
    void (*library)(char *note, size_t note_bytes); /* what there is of the library of products */
    const struct backend_ops *ops;
};

extern const struct backend_ops backend_cpu, backend_null;

/* The ops for a device string ("auto", "cpu", "cuda", "cuda:N", "null", "null:MS"): the CUDA ones come from
 * rodimus_cuda.so beside the program, loaded at run time. "auto" without a usable GPU gives the CPU; "cuda" without one
 * fails with a clear error.
 */
int backend_find(const char *device, const struct backend_ops **out, struct rod_error *err);
/* Why "auto" is the CPU, where it is. */
const char *backend_why_cpu(char *why, size_t why_bytes);
/* One line a device ("cuda:0 NVIDIA ..."), for `rodimus version`; returns the count written. */
size_t backend_devices(char (*lines)[128], size_t max_lines);

#endif
