/* tools.h - a checkpoint looked at, written in fewer bits, checked and measured: what the commands inspect, quantise,
 * verify and bench do, without their terminals. No engine is needed; any thread.
 */
#ifndef RODIMUS_TOOLS_H
#define RODIMUS_TOOLS_H

#include "engine/rodimus.h"

/* ---- inspect ---- */
struct rod_tensor_info {
    const char *name, *file, *dtype; /* dtype as the file spells it: "BF16" */
    uint64_t n_bytes, shape[8];
    uint32_t n_dims;
    bool used; /* the model calls for it */
};
struct rod_inspect_report { /* the letters: kernels/README.md, "Equations": D d_model, L layers, E d_inner ... */
    char name[128], layout[16], arch[32], weight_dtype[16], weights[16]; /* as in struct rod_model_info */
    char fingerprint[33]; /* hexadecimal: of the configuration, the tokenizer and all tensors; states carry it */
    uint32_t D, L, E, M, R, K, V, H, Hk, Hv, P, F, window_tok, rot_dim;
    double rot_base;
    float norm_eps, k_eps;
    bool tied, scale_embed, norm_embed, qk_norm, rot_interleaved;
    int32_t bos_id;
    int32_t eos_ids[24];
    uint32_t n_eos_ids;
    bool has_tokenizer;                          /* else prompts must be token ids */
    uint32_t tokenizer_ids;                      /* the tokenizer's highest id + 1 */
    uint64_t n_params, weight_bytes, file_bytes; /* weight_bytes: what the model calls for */
    /* One session, whatever its length: S in fp32, conv tail and window in 16 bits (GPU) or all in fp32 (CPU). */
    uint64_t S_bytes, conv16_bytes, window16_bytes, session16_bytes, session32_bytes;
    uint64_t fp8_bytes, int8_bytes; /* likewise with a window in fp8 (GPU), in int8 (CPU); 0 without one */
    const struct rod_tensor_info *tensors;
    size_t n_tensors; /* sorted by name */
    const char *warnings[12];
    uint32_t n_warnings;
    void *priv;
};
/* Opens model and tokenizer as serving does; progress may be NULL. Errors name the first fault: the key, or tensor and
 * file. */
int rod_inspect(const char *dir, const struct rod_progress_to *progress, struct rod_inspect_report **out,
                struct rod_error *err);
void rod_inspect_free(struct rod_inspect_report *report);

/* ---- states at rest: the files of a state_dir, also while servers use it ---- */
#define ROD_STATE_KINDS(X)                                                                                             \
    X(SESSION, "session")           /* the last turn of one */                                                         \
    X(KEPT, "kept")                 /* an earlier turn */                                                              \
    X(BASE, "base")                 /* the state of a fork, which has no turn of its own yet */                        \
    X(PINNED, "pinned")             /* a pinned prefix */                                                              \
    X(CONVERSATION, "conversation") /* a state of one */                                                               \
    X(NOTES, "notes")               /* a conversation's answers */                                                     \
    X(MARK, "mark")                 /* of a lazy turn, in a store */                                                   \
    X(PART, "part")                 /* of a file that is being written, or was when a server died */
enum rod_state_kind {
#define X(name, text) ROD_STATE_##name,
    ROD_STATE_KINDS(X)
#undef X
};
const char *rod_state_kind_name(enum rod_state_kind kind);

struct rod_states_place {
    const char *dir;
    struct rod_store *store; /* in place of dir; NULL: none */
};
struct rod_state_file {
    char name[320]; /* below the folder */
    enum rod_state_kind kind;
    char fingerprint[33]; /* of the model; "": unknown */
    char tenant[17];      /* the hash of the owner's name, under the folder's key; "": unknown, or nobody's */
    uint64_t n_bytes, n_tok, version;
    int64_t used_unix_s, expires_unix_s; /* expires: 0 = never by itself. Of a conversation used is one time of all */
    bool pinned;                         /* by its owner */
    bool left;                           /* nothing needs it */
    char fault[160];                     /* of a header that cannot be read; else "" */
    uint64_t inode, mtime_ns;            /* with n_bytes: which file it was */
    char etag[64];                       /* likewise of a store */
};
/* In no order. ROD_EIO: there is no such folder. */
int rod_states_list(const struct rod_states_place *place, void (*found)(void *arg, const struct rod_state_file *file),
                    void *arg, struct rod_error *err);
int rod_states_look(const struct rod_states_place *place, const char *name, struct rod_state_file *out,
                    struct rod_error *err);
/* Gives put the bytes in pieces; nonzero stops, with errno. */
int rod_states_get(const struct rod_states_place *place, const char *name,
                   int (*put)(void *arg, const void *bytes, size_t n), void *arg, struct rod_error *err);
/* The file as it was seen, with all of a session. ROD_EBUSY: a server uses it just now; ROD_ECONFLICT: it was used
 * since. Either stays. */
int rod_states_remove(const struct rod_states_place *place, const struct rod_state_file *seen, struct rod_error *err);

/* A session's file in other formats, as the file `to`, which is not there. NULL or "": as it is. */
struct rod_states_formats {
    const char *window_dtype, *state_dtype; /* "auto", "fp8", "int8" or the activations' type; "fp32", "bf16" */
    const char *activations;                /* "fp32", "bf16", "fp16": a CPU's are fp32 */
};
int rod_states_convert(const char *from, const char *to, const struct rod_states_formats *formats,
                       struct rod_error *err);

/* ---- quantise ---- */

/* Writes model_dir with its large matrices in fewer bits into out_dir, which is not there or empty, in the format of
 * compressed-tensors. */
struct rod_quantise_options {
    const char *model_dir, *out_dir;
    const char *weights; /* "fp8", "int8", "int4" */
    const char
        *calibrate; /* a file of text: int4 codes are chosen by its tokens' inputs; NULL or "": each to the nearest */
    uint32_t n_tok; /* of the text, at most */
    uint32_t n_threads; /* 0 = all cores */
    struct rod_progress_to progress;
};
int rod_quantise(const struct rod_quantise_options *options, struct rod_error *err);

/* ---- verify ---- */

/* Runs a golden.safetensors through prefill and through single steps and compares everything that it holds. Without
 * one, the same from the CPU backend for n_tok random ids: for a GPU and models of full size. */
struct rod_verify_options {
    const char *model_dir, *golden_path;      /* golden_path NULL: against the CPU */
    const char *synthetic, *adapter_dir;      /* instead of model_dir; merged into its weights, or NULL */
    uint32_t n_tok;                           /* against the CPU: length of the prompt, 0 = 64 */
    const char *device, *precision, *weights; /* NULL = "auto" */
    const char *window_dtype, *state_dtype;   /* likewise */
    const char *prompt_products;              /* auto, own or library (backend.h); NULL = auto */
    bool deterministic;
    uint32_t n_threads; /* CPU, 0 = all cores */
    uint32_t first_tok,
        piece_tok; /* how prefill splits the prompt: the first piece, the others; 0 = as large as fits */
    struct rod_progress_to progress;
};
enum { ROD_VERIFY_PREFILL, ROD_VERIFY_STEPS, ROD_VERIFY_N_MODES };
struct rod_verify_row { /* one tensor in one mode */
    char what[32];      /* "logits", "state.3.S" */
    int mode;
    double rel_err; /* ||x - ref|| / ||ref|| */
    double max_err; /* largest |x - ref| of one element / rms of its row of the reference */
    bool ok;
};
struct rod_verify_agreement { /* argmax of the prompt's logits; greedy continuation, fed the reference's ids */
    uint32_t argmax_same, argmax_excused, greedy_same,
        greedy_excused; /* excused: too close to call at this precision */
    bool ok;
};
struct rod_verify_report {
    char model[128], device[64], precision[16], window_dtype[8], state_dtype[8];
    uint32_t n_tok, n_greedy;
    double rel_bound, max_bound, margin; /* margin: of the logits' deviation, below which ids may differ; 0 = never */
    struct rod_verify_row *rows;
    size_t n_rows;
    struct rod_verify_agreement agreement[ROD_VERIFY_N_MODES];
    bool passed;
};
/* 0 when it could be run: then report->passed is the answer. */
int rod_verify(const struct rod_verify_options *options, struct rod_verify_report **out, struct rod_error *err);
void rod_verify_free(struct rod_verify_report *report);

/* ---- bench ---- */

/* Measures decode and prefill at the engine's level, without HTTP, and the machine's ceilings in the same run. */
struct rod_bench_options {
    const char *model_dir, *synthetic, *adapter_dir; /* one of the two; merged into the first's weights, or NULL */
    const char *device, *precision, *weights;        /* NULL = "auto" */
    const char *window_dtype, *state_dtype;          /* likewise */
    const char *decode_kernel;                       /* graph, auto, any or persistent (backend.h); NULL = auto */
    const char *prompt_products;                     /* auto, own or library (backend.h); NULL = auto */
    bool deterministic;
    uint32_t n_threads; /* CPU, 0 = all cores */
    const uint32_t *batches;
    size_t n_batches; /* decode: sessions a step */
    const uint64_t *contexts;
    size_t n_contexts; /* decode: tokens each session has read before */
    const uint64_t *prompts;
    size_t n_prompts; /* prefill: lengths */
    const uint32_t *packed;
    size_t n_packed;        /* prefill: prompts read together, each into a session of its own; none = 1 */
    const uint32_t *drafts; /* decode: draft tokens behind each session's, each step waited for */
    size_t n_drafts;        /* none = no drafts, steps launched ahead */
    double seconds;         /* of measuring a row, at least 5 steps */
    struct rod_progress_to progress;
};
struct rod_bench_row {
    char model[128], device[64], dtype[16], weights[16]; /* weights: of the large matrices, "int8" or a dtype */
    char window_dtype[8], state_dtype[8];                /* of states, as in struct rod_model_info */
    bool prefill, verify;                                /* verify: a step with drafts */
    uint32_t batch, drafts;                              /* drafts: behind each session's token */
    uint64_t context;                                    /* decode: tokens before; prefill: prompt length */
    double ms; /* median of a step (decode; on a GPU of rounds of 4, their mean) or of all prompts (prefill) */
    double ms_low, ms_high;   /* fastest and slowest */
    double tokens_per_s;      /* from the median */
    double bytes, flop;       /* that must move and be done: weights once a step, states, windows */
    double moved_bytes;       /* that do move: a GPU writes the states of many sessions at every fourth token */
    double read_bytes_per_s;  /* ceiling: reading as many bytes as one such step touches; on a CPU between steps */
    double flop_per_s;        /* ceiling: a matrix product in cache, all threads */
    double ceiling, fraction; /* tokens/s if the larger of the two floors were reached; tokens_per_s / ceiling */
    double moved_fraction;    /* the same of the bytes that do move */
    uint64_t resident_bytes;  /* of the process, after the row */
    double host_cpu;          /* decode: processor time of the thread that drives the device, of a step's time */
    double host_bytes;        /* decode: between host and device, a step; 0 on the CPU */
};
/* Calls report for each row as it is measured; a nonzero return stops. */
int rod_bench(const struct rod_bench_options *options, int (*report)(void *arg, const struct rod_bench_row *row),
              void *arg, struct rod_error *err);

#endif
