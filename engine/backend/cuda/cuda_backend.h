/* cuda_backend.h - what the CUDA backend's files share. Compiled into rodimus_cuda.so with the kernels, which
 * engine/backend/backend.c loads.
 *
 * Ownership: struct backend owns all device memory, pinned memory, the stream and the graphs. Threads: one at a time;
 * copies of states run on streams of their own. Invariants: after open nothing is allocated or moved, so that graphs
 * keep their pointers; part n's pinned rows and tokens are written again only when the step of part n -
 * CUDA_STEP_PARTS is over.
 */
#ifndef CUDA_BACKEND_H
#define CUDA_BACKEND_H

#include "engine/backend/backend.h"
#include "kernels/cuda/cuda.h"
#include "engine/model/model.h"
#include "engine/state/state_formats.h"

struct cuda_layer {
    struct cuda_matrix fc, in, c0, out, qkv, ao, f1,
        f2; /* in: q, k, gate, tau stacked; fc: a rows, then z from row Ep */
    float *mixer_norm, *conv, *conv_b, *residual, *c1, *c1_t, *c1_b, *g_b, *t_b,
        *act_norm; /* conv [K, Ep], c1 [E, R], c1_t [R, Ep] */
    float *attn_norm, *q_norm, *k_norm, *ffn_norm;
};

/* A decode step is the graph of the smallest bucket that holds it. Rows beyond the step's are padding: they cost their
 * part of the products, but no state and no window. Buckets: 1, 2, 4, 8, 12, 16 rows, then every 8 up to 64, and 4 in
 * each doubling up to 512. */
enum { CUDA_N_BUCKETS = 24 };
static inline uint32_t cuda_bucket_rows(uint32_t b) {
    if (b < 4) return 1u << b;
    if (b == 4) return 12;
    if (b < 12) return 8 * (b - 3);
    return (64u << (b - 12) / 4) / 4 * ((b - 12) % 4 + 5);
}
/* Of n rows; CUDA_N_BUCKETS if there are more than the largest has. */
static inline uint32_t cuda_bucket_of(uint32_t n) {
    uint32_t b = 0;
    while (b < CUDA_N_BUCKETS && cuda_bucket_rows(b) < n) b++;
    return b;
}

/* Rows of a step that a prompt alone has, where a step has `rows` else: the first size that has the room, its
 * workspaces at most a part of what is free beside the weights; kept: what must stay free for others. Sizes, the
 * largest first, with what their workspaces take. */
enum { CUDA_LARGE_PART = 32 };
struct cuda_large {
    uint32_t rows;
    uint64_t bytes;
};
static inline uint32_t cuda_large_rows(uint32_t rows, uint64_t available, uint64_t kept, const struct cuda_large *sizes,
                                       uint32_t n) {
    for (uint32_t i = 0; i < n && sizes[i].rows > rows; i++)
        if (sizes[i].bytes <= available / CUDA_LARGE_PART && sizes[i].bytes + kept <= available) return sizes[i].rows;
    return rows;
}

/* Steps that take the same time: a bucket's, without drafts and with them. */
enum { CUDA_N_KINDS = 2 * CUDA_N_BUCKETS, CUDA_DRAFT_BUCKETS = 12 };
/* How a step ends: logits to the host; tokens, the largest logit of each row; tokens, some of them drawn. */
enum cuda_end { CUDA_LOGITS, CUDA_GREEDY, CUDA_DRAWS, CUDA_N_ENDS };

/* What is enqueued at once: a step, or one of its two parts, the decode rows at its front and the rest. A part takes a
 * block of the rows in pinned memory and of the tokens.
 *
 * Of a session's rows, those alone between two multiples of the chunk have the kernels of decode steps: list holds
 * them, n_head that come before others of their session and n_tail that come after or are its only one. prompts: the
 * rows between. Without k_prompt_window, list holds all rows by phases (pieces between multiples of the chunk), in each
 * those that are alone up to alone_end first. */
struct step {
    uint32_t n_rows, n_segs, n_out, n_head, n_tail, n_phases, n_tiles, most_tok; /* most_tok: of a segment */
    const struct cuda_prompts *prompts; /* [n_rounds] one round; more where not all may be in a call */
    uint32_t n_rounds;
    bool single;       /* one token a session, with logits; or, with drafts, some of these behind it */
    bool drafts;       /* n_segs segments of single tokens with drafts; all rows have logits */
    uint32_t host_row; /* where its logits go in host_logits */
    enum cuda_end end;
};

/* The parts of a step on its way: their blocks and rows of logits. */
struct cuda_flight {
    uint32_t n_parts, n_out[2], block[2];
    uint32_t kind;  /* of a step of decode rows: its bucket, with drafts behind all these; CUDA_N_KINDS: another */
    uint64_t n_ops; /* those that have run when it has */
};

/* Decode steps: cudaGraphExec_t. */
struct cuda_graphs {
    struct CUgraphExec_st *steps[CUDA_N_ENDS][CUDA_N_BUCKETS], *drafts[CUDA_N_ENDS][CUDA_DRAFT_BUCKETS];
};

/* Steps of these buckets as one launch (cuda_one_launch.c). */
enum { CUDA_ONE_LAUNCH_BUCKETS = 4 };
struct cuda_one_launch {
    bool runs[CUDA_ONE_LAUNCH_BUCKETS];
    const struct cuda_step_layer *layers; /* on the device */
    void *words;                          /* NULL: no step runs so */
    uint32_t *note;                       /* pinned: where a wait had no end */
    uint64_t n_steps;
};

struct backend {
    struct backend_info info;
    struct model_dims d;
    struct cuda_shape shape;
    bool fused;                              /* products with the norms and gates between them are kernels here */
    bool decode_window, prompt_window, scan; /* and so are attention of both kinds, the recurrence of prompts */
    uint32_t n_drafts; /* most behind a token: CUDA_DRAFTS, or 0, and slots have no room for any */
    int device;
    struct CUstream_st *stream; /* a cudaStream_t */
    struct cuda_layer *layers;
    struct cuda_matrix embed, lm_head;
    float *embed_norm, *norm_f;
    double *inv_freq;

    /* Of a part of a step: the rows, in one block of pinned memory and its copy on the device. list: rows as struct
     * step says; out: rows whose logits are wanted. The prompts' tiles go the same way. */
    struct cuda_step
        host[CUDA_STEP_PARTS];        /* part n fills host[n % CUDA_STEP_PARTS], while those before may still be read */
    struct cuda_prompt *host_prompts; /* of the part that is being started, as step's */
    struct cuda_prompts *rounds;
    struct cuda_prompt_tile *host_tiles[CUDA_STEP_PARTS], *tiles;
    struct cuda_rows rows, draft_rows; /* draft_rows: the same with lead */
    int32_t *list, *out;
    uint32_t *alone_end, *phase_end; /* [phases of the longest piece] */
    void *host_block, *block;
    uint64_t n_steps, n_step_parts;
    struct cuda_sampling_parts *sampling; /* cuda_sample.c */
    struct cuda_sampler sampler;
    struct state_layout state;
    struct cuda_moves *moves; /* cuda_state.c */
    /* [n_slots] a slot whose last step deferred its tokens: S may not hold all of them (k_write_back). Where
     * shape.deferred is NULL none ever does. */
    unsigned char *may_be_deferred;
    /* [n_slots] Drafts of a slot's last step that had any, and of these the first n that were right: S lacks them until
     * the slot's next step with drafts, or k_write_back. Not beside may_be_deferred. */
    struct cuda_accepted {
        uint32_t n_drafts, n;
        bool second; /* CUDA_LATE_SECOND */
    } * accepted;
    /* What is enqueued on the stream for slots, counted; those up to n_ops_over have run. So a copy of a slot's state
     * waits for its own past alone. */
    uint64_t n_ops, n_ops_over, *slot_ops; /* slot_ops: [n_slots] the last of each slot */
    uint64_t sampling_ops;                 /* the last that gave any slot its sampling */

    /* Workspaces, fp32 but the activations (act_*). */
    float *x, *squares, *row_scale, *az, *s, *in, *c0_part, *q, *k, *log_alpha, *c0, *sums, *d_part, *qkv, *aq, *part,
        *part_ml, *f1, *gathered, *rope, *logits;
    uint32_t part_rows;  /* rows that part and part_ml have room for */
    uint32_t logit_rows; /* rows that logits have room for: max_out, or a bucket's */
    void *scan_work, *window_work;
    void *act_d, *act_e, *act_a, *act_z, *act_q, *act_f; /* act_z: NULL where the recurrence reads z in fp32 */
    float *host_logits;

    struct cuda_graphs own_graphs, *graphs; /* graphs: of the processors that stream has */
    uint32_t processors;                    /* these, where they are a part of the device; 0: all */
    struct cuda_device_part *device_part;   /* cuda_device_part.c; NULL: no prompts beside steps */
    struct cuda_one_launch one_launch;
    struct cuda_library *library; /* cuda_library.c; NULL: products of prompts are ours */
    size_t library_rows_bytes;
    bool library_failed; /* it refused a product: the step that enqueued it fails */
    uint64_t fault_step; /* backend_config.fault_step */
    void **allocations;
    size_t n_allocations;
};

enum { CUDA_CHUNK = 64 };
static inline size_t cuda_act_bytes(const struct backend *be) { return be->shape.dtype == CUDA_F32 ? 4 : 2; }
static inline size_t cuda_window_bytes(const struct backend *be) { /* of a number of keys and values */
    return be->shape.window == CUDA_FP8 ? 1 : cuda_act_bytes(be);
}

/* ---- cuda_base.c, below all others ---- */

enum { CUDA_MOST_ALLOCATIONS = 128 + 32 * 4096 };
/* Device memory that lives as long as the backend; NULL with what was asked for and what is free. */
void *cuda_take(struct backend *be, size_t bytes, const char *what, struct rod_error *err);
/* rc: a cudaError_t. 0, or ROD_EDEVICE with what was being done. */
int cuda_check(int rc, const char *doing, struct rod_error *err);
/* What is enqueued between both becomes a graph; nothing runs. `exec` stays NULL where any of it was refused. */
int cuda_capture_begin(struct backend *be, struct rod_error *err);
int cuda_capture_end(struct backend *be, struct CUgraphExec_st **exec, struct rod_error *err);

/* ---- cuda_workspace.c, above base ---- */

/* The rows and workspaces of a step, which a backend and a lane (cuda_device_part.c) have each. */
int cuda_workspaces_open(struct backend *be, const struct backend_config *config, struct rod_error *err);
/* What it takes on the device for steps of n_rows rows, but for what rows themselves are. */
uint64_t cuda_workspaces_bytes(const struct backend *be, const struct backend_config *config, uint32_t n_rows);
/* All memory, with the weights and slots where they are its own. */
void cuda_workspaces_close(struct backend *be);
void cuda_graphs_close(struct cuda_graphs *graphs);
/* Rows of logits that there is room for: a bucket's padding rows have theirs too. */
size_t cuda_logit_rows(const struct backend *be, const struct backend_config *config);

/* ---- cuda_load.c ---- */

/* Uploads and packs every weight. */
int cuda_load(struct backend *be, const struct model *model, const struct backend_config *config,
              struct rod_error *err);

/* ---- cuda_state.c ---- */

/* After the dtype is chosen, before the others of this group. */
int cuda_state_open(struct backend *be, struct rod_error *err);
void cuda_state_close(struct backend *be);
/* On `stream`: the slots' S takes the tokens that it does not hold yet. Before all readers of S but steps with drafts;
 * of decode steps that defer the accepted drafts alone. */
void cuda_state_write_back(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, bool drafts_alone,
                           void *stream);
void cuda_state_write_back_slot(struct backend *be, uint32_t slot, void *stream);
/* The first n drafts of the slot's last step are tokens. */
void cuda_state_accept(struct backend *be, uint32_t slot, uint32_t n);
/* The slot's S is about to be replaced. */
void cuda_state_forget_deferred(struct backend *be, uint32_t slot, void *stream);
size_t cuda_state_bytes(const struct backend *be, uint64_t pos);
int cuda_state_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes, struct rod_error *err);
int cuda_state_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                    struct rod_error *err);
int cuda_state_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                          struct rod_error *err);
int cuda_state_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                          struct rod_error *err);
int cuda_state_moving(struct backend *be, uint32_t slot, struct rod_error *err);
/* A copy was begun, and cuda_state_moving has not said that it is over. */
bool cuda_state_busy(const struct backend *be, uint32_t slot);
void cuda_state_on_moved(struct backend *be, void (*moved)(void *arg), void *arg);
void *cuda_state_host_take(struct backend *be, size_t bytes);
void cuda_state_host_give(void *memory, size_t bytes);

/* ---- cuda_one_launch.c, above base ---- */

/* After the weights, before cuda_forward_capture. */
int cuda_one_launch_open(struct backend *be, const struct backend_config *config, struct rod_error *err);
void cuda_one_launch_close(struct backend *be);
bool cuda_one_launch_runs(const struct backend *be, const struct step *st);
/* From be->x to be->logits, where cuda_one_launch_runs. */
void cuda_one_launch_enqueue(struct backend *be, const struct step *st);
/* Before each step of decode rows: now and then the words are cleared. */
void cuda_one_launch_count(struct backend *be);
/* A step's rc, with where it was where a wait had no end. */
int cuda_one_launch_fault(const struct backend *be, int rc, struct rod_error *err);

/* ---- cuda_library.c, above base ---- */

/* After the workspaces, before the slots, which take what is free. */
int cuda_library_open(struct backend *be, const struct backend_config *config, struct rod_error *err);
void cuda_library_close(struct backend *be);
/* Whether prompts' products of w are the library's: the same for all rows of all steps. */
bool cuda_library_has(const struct backend *be, const struct cuda_matrix *w);
/* y [n_rows][rows of w] = W x, whole sums; x as k_linear takes it. */
void cuda_library_product(struct backend *be, const struct cuda_matrix *w, const void *x, uint32_t n_rows, float *y);
/* What there is of it, for `rodimus version`. */
void cuda_library_note(char *note, size_t note_bytes);
/* A large square product in 16 bits by the library, for its rate, whoever multiplies prompts. NULL: fp32, or the
 * library is not here; flop: of one run. */
struct cuda_library *cuda_rate_open(struct backend *be, double *flop);
void cuda_rate_run(struct backend *be, void *rate);
void cuda_rate_close(struct cuda_library *rate);

/* ---- cuda_forward.c ---- */

void cuda_forward_enqueue(struct backend *be, const struct step *st);
/* Captures the decode steps of every bucket up to n_slots rows, to be->graphs. */
int cuda_forward_capture(struct backend *be, struct rod_error *err);

/* ---- cuda_step.c, above state and forward ---- */

int cuda_step_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                      struct rod_error *err);
/* Starts a step, to end with logits in host_logits or with its parts' tokens. */
int cuda_step_start(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, enum cuda_end how,
                    struct cuda_flight *flight, struct rod_error *err);

/* Pieces of prompts without logits, on the lane's stream. */
int cuda_step_prompts(struct backend *lane, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err);

/* ---- cuda_device_part.c, above step ---- */

/* After the workspaces and the library, before the slots, which take what is free. */
int cuda_device_part_open(struct backend *be, const struct backend_config *config, struct rod_error *err);
/* After cuda_forward_capture: the same for the processors that steps have beside a flight. */
int cuda_device_part_capture(struct backend *be, struct rod_error *err);
void cuda_device_part_close(struct backend *be);
/* Before a step: it goes to the processors that are its own now. */
int cuda_device_part_switch(struct backend *be, struct rod_error *err);
int cuda_device_part_begin(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                           struct rod_error *err);
int cuda_device_part_ended(struct backend *be, bool wait, struct rod_error *err);

/* ---- cuda_sample.c, above device part ---- */

/* n_rows: most rows of logits. After the slots, before cuda_forward_capture. */
int cuda_sample_open(struct backend *be, size_t n_rows, struct rod_error *err);
void cuda_sample_close(struct backend *be);
size_t cuda_sample_slot_bytes(uint32_t V, uint32_t n_drafts); /* on the device, beside the slot's state */
int cuda_sample_slot(struct backend *be, uint32_t slot, const struct backend_sampling *sampling, struct rod_error *err);
void cuda_sample_mask(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask, bool may_end);
int cuda_sample_launch(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err);
int cuda_sample_collect(struct backend *be, const struct backend_token **tokens, struct rod_error *err);

#endif
