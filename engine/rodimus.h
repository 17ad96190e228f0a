/* rodimus.h - the model server without HTTP: the calls of an engine that serves. engine/tools/tools.h has the calls
 * that measure a checkpoint, check it or write it in fewer bits; no other header of engine/ is public.
 *
 * What it is: an engine serves one model. Requests are submitted from any thread, run on the engine's own thread, and
 * answer with events that the owner pulls.
 * Who owns what: a request is moved into the engine by rod_submit (on success the engine frees it); an event is moved
 * out by rod_next_event (the caller frees it with rod_event_free).
 * Threads: rod_engine_open, rod_engine_close: one thread. rod_encode, rod_decode, rod_chat_encode, rod_submit(_all),
 * rod_cancel, rod_engine_stats, rod_session_*: any thread. rod_next_event: one consumer thread. The wake callback runs
 * on the engine thread, at most twice a step, and must only signal (uv_async_send, a semaphore). Invariant: every
 * successfully submitted request ends in exactly one ROD_EVENT_FINISH or ROD_EVENT_ERROR, also when it is cancelled or
 * the engine is closed before the consumer pulls it.
 */
#ifndef RODIMUS_H
#define RODIMUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors: name, value, HTTP status, OpenAI error type, OpenAI error code ("" = null) ---- */
#define ROD_ERRORS(X)                                                                                                  \
    X(ROD_EINVALID, -1, 400, "invalid_request_error", "")                                                              \
    X(ROD_EUNSUPPORTED, -2, 400, "invalid_request_error", "unsupported")                                               \
    X(ROD_ETOOLONG, -3, 400, "invalid_request_error", "context_length_exceeded")                                       \
    X(ROD_EQUEUEFULL, -4, 429, "rate_limit", "queue_full")                                                             \
    X(ROD_ETIMEDOUT, -5, 408, "timeout", "queue_timeout")                                                              \
    X(ROD_EDRAINING, -6, 503, "unavailable", "draining")                                                               \
    X(ROD_EDEVICE, -7, 503, "unavailable", "device_fault")                                                             \
    X(ROD_ENOTFOUND, -8, 404, "invalid_request_error", "not_found")                                                    \
    X(ROD_EMODEL, -9, 500, "server_error", "bad_model") /* a checkpoint or tokenizer file at fault */                  \
    X(ROD_EIO, -10, 503, "unavailable", "io") /* a disk that is full, read-only, gone or broken, at the moment */      \
    X(ROD_ENOMEM, -11, 500, "server_error", "out_of_memory")                                                           \
    X(ROD_EINTERNAL, -12, 500, "server_error", "internal")                                                             \
    X(ROD_ESTATE, -13, 412, "invalid_request_error", "bad_state") /* a saved state that is foreign or damaged */       \
    X(ROD_EBUSY, -14, 429, "rate_limit", "session_busy")                                                               \
    X(ROD_EVERSION, -15, 412, "invalid_request_error", "version_mismatch")                                             \
    /* never 409: clients repeat it by themselves */                                                                   \
    X(ROD_EEXISTS, -16, 412, "invalid_request_error", "session_exists")                                                \
    X(ROD_ENOROOM, -17, 503, "unavailable", "no_room") /* for a session's state, in memory or files, at the moment */  \
    X(ROD_EUNSURE, -18, 503, "unavailable", "unsure")  /* a turn may be done, or be undone by a power cut */           \
    X(ROD_ESESSIONS, -19, 429, "rate_limit", "max_sessions")    /* of all */                                           \
    X(ROD_EKEYSESSIONS, -20, 429, "rate_limit", "key_sessions") /* of the tenant */                                    \
    X(ROD_EGRAMMARS, -21, 503, "unavailable", "grammars")       /* memory of all compiled grammars in use */           \
    X(ROD_EKEYGRAMMARS, -22, 429, "rate_limit", "key_grammars") /* of those of a key */                                \
    X(ROD_ENOTKEPT, -23, 412, "invalid_request_error", "turn_not_kept")                                                \
    X(ROD_ECONFLICT, -24, 503, "unavailable", "conflict") /* another server's turn came first: to be repeated */

enum rod_code {
#define ROD_X(name, value, http, type, code) name = value,
    ROD_ERRORS(ROD_X)
#undef ROD_X
        ROD_OK = 0
};

/* Filled where the fact is known. message: one English sentence for the person who caused it; param: the request field
 * or the setting at fault, or "". */
struct rod_error {
    int code;
    char param[64];
    char message[448];
};

/* Fills err (may be NULL) and returns code, so that callers write `return rod_fail(err, ROD_EMODEL, "...", ...)`. */
int rod_fail(struct rod_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *rod_code_name(int code);   /* "ROD_EINVALID" ... or "ROD_OK" */
int rod_code_http(int code);           /* HTTP status; 200 for ROD_OK */
const char *rod_code_type(int code);   /* OpenAI error type */
const char *rod_code_openai(int code); /* OpenAI error code, "" = null */

/* ---- devices ---- */
/* One line a device ("cuda:0 NVIDIA ...; weights ..."), the CPU last, if there is room; returns the count. */
size_t rod_devices(char (*lines)[128], size_t max_lines);
/* One line: whether the CUDA part lies beside the program and loads, and else why not. */
void rod_cuda_note(char *note, size_t note_bytes);

/* ---- how far something is that may take seconds or minutes ---- */
struct rod_progress {
    const char *what;     /* "reading weights", "measuring": a phase; each counts from 0 */
    const char *unit;     /* "B" for bytes, else the word after the numbers: "rows" */
    uint64_t done, total; /* done rises; the phase is over at total */
};
/* report may be NULL. It is called by the thread that works, from some times to some thousand times a phase, and must
 * return soon. */
struct rod_progress_to {
    void (*report)(void *arg, const struct rod_progress *progress);
    void *arg;
};
void rod_progress(const struct rod_progress_to *to, const char *what, const char *unit, uint64_t done, uint64_t total);

/* ---- engine ---- */
struct rod_engine;

/* Where drafts come from: all sources, or what conversations have alone, or nowhere. */
enum rod_speculative { ROD_SPECULATIVE_AUTO, ROD_SPECULATIVE_LOOKUP, ROD_SPECULATIVE_NONE };

struct rod_store;

struct rod_engine_config {
    const char *model_dir;   /* a checkpoint directory; or NULL with synthetic set */
    const char *synthetic;   /* "rodimus-1.4b" ...: random weights of that shape, no tokenizer */
    const char *adapter_dir; /* a PEFT LoRA adapter of model_dir, merged into its weights; NULL or "": none */
    const char *device;      /* "auto", "cpu", "cuda", "cuda:N" */
    const char *precision;   /* "auto", "fp32", "bf16", "fp16" */
    const char *weights;     /* "auto", as the directory stores them, or "fp8", "int8", "int4" */
    const char *window_dtype, *state_dtype; /* of states: "auto", "fp8", "int8" ...; "auto", "bf16" (state_formats.h) */
    enum rod_speculative speculative;
    bool deterministic;          /* the same bits in steps of any size; costs speed on some devices */
    uint32_t n_slots;            /* 0 = auto */
    uint32_t n_threads;          /* CPU compute threads, 0 = all cores */
    uint32_t max_batch_tok;      /* rows of one step, 0 = the backend's choice */
    double prompt_share;         /* of the device, which reads long prompts beside streams; 0 = none, below 0 = auto */
    uint32_t max_queue;          /* requests beyond the free slots; past it ROD_EQUEUEFULL */
    uint64_t max_queue_tok;      /* prompt tokens waiting, 0 = no limit */
    uint64_t max_prompt_tok;     /* longer prompts: ROD_ETOOLONG; 0 = no limit */
    const char *state_dir;       /* of sessions' files, perhaps shared with other servers; NULL or "": sessions live in
                                    memory alone and end with the engine */
    struct rod_store *store;     /* an object store, where sessions lie instead of in state_dir; it outlives the engine;
                                    NULL: none */
    uint64_t state_host_bytes;   /* host memory for states outside their slots; 0 = auto */
    uint64_t prefix_cache_bytes; /* of those, at most half: states of beginnings of prompts; 0 = none are kept */
    uint64_t state_disk_bytes;   /* files in state_dir; 0 = no limit */
    uint64_t state_store_bytes;  /* conversations in the store, of all servers; 0 = half of state_disk_bytes */
    uint64_t session_ttl_s;      /* sessions not used for so long are removed, unless they say otherwise; 0 = never */
    uint64_t max_sessions;       /* that there are at once; 0 = no limit */
    uint32_t session_keep_turns; /* of sessions that do not say (rod_session_new) */
    bool session_lazy;   /* a turn's state is written later: when it is idle, leaves host memory, at drain and close */
    bool session_reject; /* a turn of a session that is busy is ROD_EBUSY; else it waits in its order */
    void (*wake)(void *arg); /* events are waiting; engine thread; may be NULL */
    void *wake_arg;
    void (*log)(void *arg, int level,
                const char *line); /* level 0 debug 1 info 2 warn 3 error; any thread; may be NULL */
    void *log_arg;
    struct rod_progress_to progress; /* of loading */
};

/* Loads the model, allocates the slot pool, starts the engine thread. 0 or a negative code with err filled. */
int rod_engine_open(const struct rod_engine_config *config, struct rod_engine **out, struct rod_error *err);
/* Stops: fails what is in flight with ROD_EDRAINING, joins the threads, frees everything (unpulled events too). Returns
 * how many sessions are lost at their last version, as their files could not be written. */
uint64_t rod_engine_close(struct rod_engine *engine);
/* After this rod_submit answers ROD_EDRAINING; what runs goes on. */
void rod_engine_drain(struct rod_engine *engine);

/* How tokens are drawn, an option a row: type and name; the value that changes nothing; the range of requests, from
 * `low` (`above`: without low itself) to `high`, where what is less than a low above 0 counts as low; the most that
 * generation_config.json may say, 0: it is not read there; letter and help of the flag. Members, checks, fields of
 * requests, flags and defaults follow from the rows. Temperature 0 is argmax, ties to the lower id. Frequency and
 * presence are those of generated tokens, repetition that of the prompt's, too. */
/* clang-format off */
#define ROD_SAMPLING(X) /* type, name, neutral, low, above, high, file, letter, help */ \
    X(float, temperature, 1, 0, false, 2, 1000, 't', "0 = always the likeliest token") \
    X(float, top_p, 1, 0, true, 1, 1, 0, "only the likeliest that sum to P") \
    X(float, min_p, 0, 0, false, 1, 1, 0, "only those at least P times as likely as the likeliest") \
    X(float, typical_p, 1, 0, true, 1, 0, 0, "locally typical sampling") \
    X(float, frequency_penalty, 0, -2, false, 2, 0, 0, "less of what came often") \
    X(float, presence_penalty, 0, -2, false, 2, 0, 0, "less of what came at all") \
    X(float, repetition_penalty, 1, 1e-3, false, 1e3, 1e3, 0, "above 1: fewer repetitions") \
    X(int32_t, top_k, 0, -1, false, INT32_MAX, INT32_MAX, 0, "only the K likeliest; 0 = off, -2 = the model's")
/* clang-format on */

struct rod_sampling {
#define X(type, name, ...) type name;
    ROD_SAMPLING(X)
#undef X
    uint64_t seed;
};
#define X(...) +1
enum { ROD_N_SAMPLING = ROD_SAMPLING(X) };
#undef X
struct rod_sampling_option {
    const char *name;
    size_t offset;     /* in struct rod_sampling */
    bool whole, above; /* whole: an int32_t, else a float */
    double low, high, file_high;
};
extern const struct rod_sampling_option rod_sampling_options[ROD_N_SAMPLING];
#define ROD_SAMPLING_VALUE(type, name, neutral, ...) .name = neutral,
#define ROD_SAMPLING_NEUTRAL                                                                                           \
    { ROD_SAMPLING(ROD_SAMPLING_VALUE) } /* seed 0 */
static inline struct rod_sampling rod_sampling_neutral(void) { return (struct rod_sampling)ROD_SAMPLING_NEUTRAL; }
static inline struct rod_sampling rod_sampling_greedy(void) {
    struct rod_sampling greedy = ROD_SAMPLING_NEUTRAL;
    greedy.temperature = 0;
    return greedy;
}

struct rod_model_info {
    char name[128];                                    /* last component of the directory, or the synthetic name */
    char adapter[128];                                 /* last component of its directory; "": none */
    char arch[32];                                     /* "rodimus" or "rodimus_plus" */
    char device[64];                                   /* "cpu (avx512, 2 threads)" ... */
    char products[96];                                 /* of prompts, where a library makes them: which; else "" */
    char fingerprint[33];                              /* of the weights */
    char weight_dtype[16];                             /* "bf16" ... */
    char weights[16];                                  /* of the large matrices: "int8" ..., or weight_dtype */
    char window_dtype[8], state_dtype[8];              /* "fp8" ..., "" without a window; of S: "fp32" ... */
    uint32_t d_model, n_layer, vocab_size, window_tok; /* window_tok = keys seen, 0 without attention */
    uint64_t n_params, weight_bytes;
    uint64_t session_bytes; /* state of one session, whatever its length */
    uint32_t n_slots, max_batch_tok, chunk_tok;
    uint64_t max_prompt_tok;
    bool has_tokenizer, has_chat;
    int32_t bos_id, eos_id;       /* -1 = none */
    struct rod_sampling sampling; /* of a request that says nothing: the options that generation_config.json has */
    int64_t created_unix_s;       /* modification time of the weights */
};
const struct rod_model_info *rod_engine_info(const struct rod_engine *engine);

/* Where the draft tokens of a step come from. */
#define ROD_DRAFTS(X)                                                                                                  \
    X(LOOKUP, "lookup")         /* what the conversation had where its last tokens stood before */                     \
    X(PREDICTION, "prediction") /* the request's */
#define X(name, text) ROD_DRAFT_##name,
enum rod_draft { ROD_DRAFTS(X) ROD_DRAFT_N_KINDS };
#undef X

const char *rod_draft_name(enum rod_draft kind);

/* Why the prefix cache had nothing, or less than there once was, of a prompt. */
#define ROD_PREFIX_MISSES(X)                                                                                           \
    X(COLD, "cold")               /* not seen before */                                                                \
    X(TOO_SHORT, "too_short")     /* not longer than a chunk */                                                        \
    X(SALT, "salt")               /* seen under another cache_salt of the same tenant */                               \
    X(RETOKENISED, "retokenised") /* an answer came back as other tokens than those that were generated */             \
    X(EVICTED, "evicted")         /* there was an entry */                                                             \
    X(BRANCH, "branch")           /* seen before, and no entry was left where the prompts part */                      \
    X(UNFINISHED, "unfinished")   /* being read or saved just now */                                                   \
    X(SCORED, "scored")           /* log-probabilities of the prompt need all of it */                                 \
    X(PENALTY, "penalty")         /* the device counts what it reads, for a repetition penalty */
enum rod_prefix_miss {
#define ROD_X(name, text) ROD_PREFIX_##name,
    ROD_PREFIX_MISSES(ROD_X)
#undef ROD_X
        ROD_PREFIX_N_MISSES
};
const char *rod_prefix_miss_name(enum rod_prefix_miss miss);

enum { ROD_STEP_ROWS_BUCKETS = 12, ROD_MAX_KEYS = 1024 };
struct rod_stats {                                             /* a consistent enough snapshot; counters since open */
    uint32_t n_slots, slots_used, queued, queued_max, running; /* queued_max = max_queue; running = they hold a slot */
    uint64_t queued_tok;
    uint64_t requests_finished, requests_cancelled, requests_failed, requests_rejected;
    uint64_t pinned_prefixes, pinned_bytes, pinned_used;       /* prompts that went on from one */
    uint64_t prefill_tok, decode_tok, steps, last_step_end_ns; /* ns: CLOCK_MONOTONIC */
    uint64_t flights, flight_tok; /* of long prompts beside steps; their tokens, which prefill_tok has when they end */
    uint64_t step_ns_sum;
    uint64_t step_ns_bucket[20]; /* cumulative counts; upper bounds rod_step_bounds_ns, last = +Inf */
    uint64_t batch_rows_sum;     /* sessions that had a row in a step, summed over the steps */
    uint64_t step_rows_bucket[ROD_STEP_ROWS_BUCKETS]; /* likewise, of their number in a step; rod_step_bounds_rows */
    bool failed;                                      /* a device fault: nothing will run any more */
    uint64_t requests_nan;                            /* of the failed ones: the logits were not numbers */
    /* Sessions that this server knows: those of which host memory has the state, and the others. Bytes: of states in
     * host memory, of files in state_dir as last seen. */
    uint64_t sessions, sessions_host, sessions_file, state_host_bytes, state_file_bytes;
    uint64_t session_host_bytes; /* beside states in the same budget: what sessions themselves take of memory */
    uint64_t state_saves, state_save_failures, state_loads; /* files written, not written, read back */
    uint64_t state_no_room; /* not written, though the disk is well: state_disk_bytes has no room beside pinned ones */
    uint64_t state_refused; /* files found damaged or foreign, and left alone */
    uint64_t sessions_expired, sessions_evicted; /* removed: by their time, for the budgets */
    uint64_t idempotent_replays, session_asks, session_rewinds, kept_turns; /* the last: states of earlier turns */
    /* The prefix cache: prompts that began from a prefix entry, and their tokens that were not read; prompts that
     * found no entry, or a shorter one than there once was, by reason; entries held now, and evicted ones. */
    uint64_t prefix_hits, prefix_tok_saved, prefix_misses[ROD_PREFIX_N_MISSES];
    uint64_t prefix_miss_tok[ROD_PREFIX_N_MISSES]; /* tokens of these prompts that were read */
    /* Conversations: names, and beginnings of them; their states in host memory, in files; files' bytes; files written,
     * not written, read. */
    uint64_t conversations, lanes, lane_states_host, lane_states_file, lane_file_bytes;
    uint64_t lane_saves, lane_save_failures, lane_loads;
    uint64_t prefix_entries, prefix_bytes, prefix_evicted;
    uint64_t drafted[ROD_DRAFT_N_KINDS], accepted[ROD_DRAFT_N_KINDS]; /* draft tokens: read along; that were right */
};
extern const uint64_t rod_step_bounds_ns[20], rod_step_bounds_rows[ROD_STEP_ROWS_BUCKETS];
void rod_engine_stats(const struct rod_engine *engine, struct rod_stats *out);
/* A device fault: every request has got its error, and nothing will run any more. The wake callback follows it. */
bool rod_engine_failed(const struct rod_engine *engine);

/* ---- text ---- */
/* text: UTF-8 (else ROD_EINVALID). special: recognise special tokens in the text. *ids is malloc'd. */
int rod_encode(const struct rod_engine *engine, const char *text, size_t len, bool special, int32_t **ids,
               size_t *n_ids, struct rod_error *err);
/* Likewise with a choice: special, recognise special tokens; begin, put those in front that the tokenizer's files ask
 * for (with special alone). rod_encode takes both or neither. */
int rod_tokenize(const struct rod_engine *engine, const char *text, size_t len, bool special, bool begin, int32_t **ids,
                 size_t *n_ids, struct rod_error *err);
/* *text is malloc'd, NUL-terminated, valid UTF-8 (broken sequences become U+FFFD). */
int rod_decode(const struct rod_engine *engine, const int32_t *ids, size_t n_ids, bool skip_special, char **text,
               size_t *len, struct rod_error *err);
/* The raw bytes of one token (special tokens: their content). NULL if id is out of range or there is no tokenizer. */
const char *rod_token_bytes(const struct rod_engine *engine, int32_t id, size_t *len, bool *special);

struct rod_call { /* of a tool, as the model made it: arguments are its bytes */
    const char *name, *arguments;
    size_t name_len, arguments_len;
    const char *id; /* that clients know it by; NULL = none. No prompt has it */
};
struct rod_message {
    const char *role; /* system developer user assistant tool */
    const char *content;
    size_t content_len;
    const struct rod_call *calls; /* of an assistant, behind its content */
    size_t n_calls;
    const int32_t *ids; /* of an assistant: the tokens that it said, in place of content and calls; NULL = none */
    size_t n_ids;
};
struct rod_chat { /* what a prompt is made of; borrowed */
    const struct rod_message *messages;
    size_t n_messages;
    const char *const *tools; /* each a definition as one line of JSON; the model reads them in the system's turn */
    size_t n_tools;
    bool generation; /* ends with the place where the model goes on */
    bool go_on;      /* else: ends inside the last message, an assistant's, which the model goes on with */
};
/* Renders the model's chat format (chat.h); contents never make special tokens. *text is malloc'd and NUL-terminated;
 * it does not tell frame from content, the ids do. */
int rod_chat_encode(const struct rod_engine *engine, const struct rod_chat *chat, int32_t **ids, size_t *n_ids,
                    struct rod_error *err);
/* Where in these ids each turn but the first begins, and the generation prompt: for rod_request.marks. *marks is
 * malloc'd or NULL. */
void rod_chat_marks(const struct rod_engine *engine, const struct rod_chat *chat, const int32_t *ids, size_t n_ids,
                    size_t **marks, size_t *n_marks);
/* Encodes a session's next turn: *ids, and in turn what is read instead (if_... , leaves_open, tools). */
struct rod_turn;
int rod_chat_encode_turn(const struct rod_engine *engine, const struct rod_chat *chat, struct rod_turn *turn,
                         int32_t **ids, size_t *n_ids, struct rod_error *err);
/* Of a turn with all of a conversation (rod_turn.whole). */
int rod_chat_encode_first(const struct rod_engine *engine, const struct rod_chat *chat, struct rod_turn *turn,
                          int32_t **ids, size_t *n_ids, struct rod_error *err);
int rod_chat_render(const struct rod_engine *engine, const struct rod_chat *chat, char **text, size_t *len,
                    struct rod_error *err);
/* What stands before and behind a call that the model makes: {"name": ..., "arguments": ...} in lines of its own. */
struct rod_call_tags {
    const char *open, *close; /* the engine's */
};
/* False: the model's chat format has no tools. */
bool rod_chat_call_tags(const struct rod_engine *engine, struct rod_call_tags *out);
/* A prompt for what belongs between before and after, through the tokenizer's fill-in-the-middle tokens; without them
 * ROD_EUNSUPPORTED. */
int rod_fim_encode(const struct rod_engine *engine, const char *before, size_t n_before, const char *after,
                   size_t n_after, int32_t **ids, size_t *n_ids, struct rod_error *err);

/* ---- structured output: what a request's text must look like ---- */
enum rod_grammar_kind {
    ROD_GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    ROD_GRAMMAR_JSON_SCHEMA, /* a JSON Schema, as JSON */
    ROD_GRAMMAR_REGEX,       /* the whole output matches */
    ROD_GRAMMAR_CHOICE,      /* one of a JSON array of strings */
    ROD_GRAMMAR_EBNF,        /* a grammar in the GBNF dialect */
    ROD_GRAMMAR_CALLS        /* calls of tools, as JSON (grammar_calls.c) */
};
struct rod_grammar;
/* Compiles a text, or finds it compiled: mostly under a millisecond, at most a second or two. ROD_EINVALID: it cannot
 * be honoured; the message goes on from the field's name ("has the keyword ..."). For an API key below ROD_MAX_KEYS,
 * whose grammars in use have at most quota times the memory that they leave free of the common limit; quota 0: all of
 * it. ROD_EKEYGRAMMARS, ROD_EGRAMMARS: there is no room now. Any thread. */
int rod_grammar_open(const struct rod_engine *engine, uint32_t key, uint32_t quota, enum rod_grammar_kind kind,
                     const char *text, size_t len, struct rod_grammar **out, struct rod_error *err);
/* What the text asks for and the grammar does not hold: a line each, a predicate that goes on from the field's name.
 * Empty if there is nothing of that kind. It lives as long as the grammar. */
const char *rod_grammar_notes(const struct rod_grammar *grammar);
struct rod_grammar *rod_grammar_ref(struct rod_grammar *grammar); /* one more owner; NULL gives NULL */
void rod_grammar_close(struct rod_grammar *grammar);              /* of each owner; also after the engine's close */

/* ---- requests ---- */
struct rod_bias {
    int32_t id;
    float bias;
};

struct rod_ids {
    int32_t *ids;
    size_t n_ids;
};

/* A conversation after n_tok tokens: what a request leaves behind (keep_state) and another goes on from (state), in any
 * engine with the same weights whose device has the same layout. Its bytes hold no tokens and no text. */
struct rod_state {
    char layout[160]; /* dtypes, sizes and order of bytes: must be equal */
    uint64_t n_tok;   /* read */
    int32_t
        pending; /* the last token that was generated and not read yet: the next request reads it first; -1 = none */
    struct state_buffer *buffer; /* state_buffer.h: the bytes, shared; of one size once the model's window is full */
};
/* One more owner of a state, for another request: its bytes are not copied. NULL: out of memory. */
struct rod_state *rod_state_ref(const struct rod_state *state);
void rod_state_free(struct rod_state *state);

/* The request is the next turn of a session: prompt has the new tokens alone (none where the last turn left one
 * pending). Strings are malloc'd and owned. Not with state, keep_state, n_prompt_logprobs, nor in a rod_submit_all of
 * many. What goes wrong with the session is told by ROD_EVENT_ERROR before any other event: ROD_ENOTFOUND,
 * ROD_EVERSION, ROD_EBUSY, ROD_ESTATE. */
struct rod_turn {
    char *tenant;  /* whose session: the API key's name, "" without keys */
    char *session; /* [A-Za-z0-9._-]{1,128} */
    bool create;   /* an unknown session begins with this turn, at version 0 */
    bool whole;    /* the prompt is a whole conversation, which may come again, longer: it begins from and leaves
                      prefix entries like one without a session. ROD_ESTATE if the session has read anything */
    bool beside;   /* a question: it is answered from the session's last version, beside a turn that runs, and
                      the session stays as it is; not with create, idempotency_key */
    uint64_t max_sessions; /* of the tenant: it makes none beyond; 0 = as in rod_session_new */
    char *from; /* with create: an unknown session begins where this one is now; NULL = empty. A turn that fails or
                   is cancelled leaves no new session */
    /* Which prompt is read depends on how the session stands when the turn begins. NULL = the request's own.
     * if_empty: nothing has been read yet (a format's beginning goes in front). if_open: the last turn left an answer
     * open (what closes it goes in front); leaves_open: so does this one, and the version remembers it. */
    int32_t *if_empty, *if_open;
    size_t n_if_empty, n_if_open;
    bool leaves_open;
    /* With tools alone, where the session has read these tools before: if_known_open if the last turn left an answer
     * open, else if_known. Neither has the definitions of the tools. */
    int32_t *if_known, *if_known_open;
    size_t n_if_known, n_if_known_open;
    uint64_t tools; /* a hash of the definitions in the prompt; 0 = none, and the session's stay */
    bool has_expected;
    uint64_t expected_version; /* the session's version before the turn, else ROD_EVERSION */
    /* The finished answer is stored with the version. A later turn with the same key and digest gets it again as
     * events, and nothing runs; with another digest it is ROD_EINVALID. NULL = none; at most 255 bytes. */
    char *idempotency_key;
    uint8_t digest[16]; /* of all that was asked */
    char *label;        /* kept with that answer, and in its first event when it is given again; UTF-8, 1 to 1023 bytes,
                           NULL = none */
    char *text; /* kept with that answer, for rod_session_answer; UTF-8, 1 to ROD_MAX_TURN_TEXT bytes, NULL = none */
};
#define ROD_MAX_TURN_TEXT ((size_t)1 << 20)

/* A place in the prompt at which the client wants the state to be kept: the prefix cache keeps it at the last multiple
 * of chunk_tok up to there, whatever it costs, and holds it for ttl_ns behind its last use. */
enum { ROD_MAX_BREAKPOINTS = 4 };
#define ROD_LONG_HOLD_NS ((uint64_t)3600 * 1000000000)
struct rod_breakpoint {
    size_t at;
    uint64_t ttl_ns;
};

enum { ROD_MAX_CONVERSATION = 255 };

struct rod_event;

struct rod_request {       /* make with rod_request_new; every pointer malloc'd and owned by the request */
    char id[64];           /* request id for logs */
    struct rod_turn *turn; /* NULL = no session */
    int32_t *prompt;
    size_t n_prompt; /* at least one token, each 0 <= id < vocab_size; none where state has a pending one */
    /* Goes on from this conversation; the request owns its reference: prompt has the new tokens alone and no earlier
     * one is read again. Draws go on by seed and position; penalties know the tokens from here on. A state that is not
     * one of this engine's is ROD_ESTATE. Not with n_prompt_logprobs. */
    struct rod_state *state;
    /* For the prefix cache. What was read for one tenant and salt is found for these alone. */
    char *tenant, *cache_salt; /* the API key's name; NULL as "" */
    size_t *marks; /* [n_marks] rising: places in prompt where a message ends; the first ends the system's */
    size_t n_marks;
    bool has_head;         /* the first mark ends system or tools, and not the first message */
    char *conversation;    /* the name under which this prompt comes again, longer each time; 1 to ROD_MAX_CONVERSATION
                              bytes, NULL = none. What is read and said is kept for it. Of turns, with whole alone */
    uint32_t n_user_texts; /* of a conversation: texts of the user in the prompt */
    uint64_t waited_ns;    /* for a store so far; ROD_EVENT_FINISH has it with what the engine waited */
    struct rod_breakpoint breakpoints[ROD_MAX_BREAKPOINTS]; /* [n_breakpoints] */
    uint32_t n_breakpoints;
    bool keep_state; /* ROD_EVENT_FINISH brings the state, with all counted tokens read or pending */
    struct rod_sampling sampling;
    struct rod_bias *bias;
    size_t n_bias;
    char **stop;
    size_t n_stop; /* NUL-terminated UTF-8 strings */
    int32_t *stop_ids;
    size_t n_stop_ids;
    int32_t *allowed_ids; /* only these are chosen; n_allowed_ids 0 = all */
    size_t n_allowed_ids;
    struct rod_ids *bad; /* sequences that are not generated: the last id is not chosen after the others */
    size_t n_bad;
    uint32_t max_tokens; /* 0: the prompt is read, perhaps scored, and nothing is generated */
    uint32_t min_tokens; /* end token and stop ids are not sampled before this many */
    bool ignore_eos;
    bool include_stop;         /* keep the matched stop string in the text */
    bool keep_special;         /* special tokens appear in the text */
    int32_t n_logprobs;        /* -1 = none; 0..20 = log-probability of the token and that many top ones */
    int32_t n_prompt_logprobs; /* the same for the prompt's tokens but the first: ROD_EVENT_PROMPT brings them */
    bool never_speculate;      /* no drafts: one token a step */
    int32_t *prediction;       /* [n_prediction] ids that the answer may be like, for drafts; NULL = none */
    size_t n_prediction;
    bool report_start;  /* ROD_EVENT_START says that it has a slot and its prompt is about to be read */
    bool report_end;    /* ROD_EVENT_END_TOKEN brings the log-probability of the token that ends it */
    size_t same_before; /* in rod_submit_all: the request so many places before has the same prompt; 0 = none. Where the
                           device can, its state after the prompt is copied and the prompt is not read again, also
                           for requests that wait for a slot, if two of them have one while it is read */
    struct rod_grammar *grammar; /* NULL = any text; the request ends where nothing may follow */
    char *grammar_open;  /* the text is free up to this tag, and the grammar's behind it; NULL = from the start. Stop
                            strings count in the free text alone */
    char *grammar_begun; /* [n_grammar_begun] the beginning of the grammar's text, which the prompt ends with: the
                            answer goes on behind it. NULL = none; not with grammar_open */
    size_t n_grammar_begun;
    bool grammar_again; /* with a tag: behind what the grammar describes the text is free up to the next tag */
    uint32_t key,
        weight; /* the API key, below ROD_MAX_KEYS, and its part of the slots beside others' weights (0 = 1) */
    uint32_t queue_quota; /* its key's waiting requests have at most so many times the free rest of the queue; 0: all of
                             it */
    uint64_t queue_timeout_ns; /* 0 = none: ROD_ETIMEDOUT if no slot by then */
    void *user;                /* comes back with every event */
    /* Gets the last event instead of rod_next_event, on the engine's thread, and takes it: for a caller that waits for
     * a request without text. NULL: none. */
    void (*on_end)(void *user, struct rod_event *event);
};
/* calloc + the API's defaults (temperature 1, max_tokens 16 ...) and a random seed */
struct rod_request *rod_request_new(void);
void rod_request_free(struct rod_request *request);

/* Whether the engine takes such a request, whatever the queue: a caller that will make many of a kind asks once. */
int rod_request_fits(const struct rod_engine *engine, const struct rod_request *request, struct rod_error *err);
/* Whether the queue has a place for one more request of this key now, by queue_quota of its requests. */
bool rod_queue_fits(const struct rod_engine *engine, uint32_t key, uint32_t queue_quota);
/* On success the request belongs to the engine and *ticket names it; on failure it stays the caller's. */
int rod_submit(struct rod_engine *engine, struct rod_request *request, uint64_t *ticket, struct rod_error *err);
/* All n or none, in order and at once. */
int rod_submit_all(struct rod_engine *engine, struct rod_request *const *requests, size_t n, uint64_t *tickets,
                   struct rod_error *err);
/* Idempotent. The request ends with ROD_EVENT_FINISH, reason ROD_FINISH_CANCEL, and its slot is free within one step.
 */
void rod_cancel(struct rod_engine *engine, uint64_t ticket);

/* ---- events ---- */
enum rod_event_kind {
    ROD_EVENT_PROMPT,
    ROD_EVENT_DELTA,
    ROD_EVENT_END_TOKEN,
    ROD_EVENT_FINISH,
    ROD_EVENT_ERROR,
    ROD_EVENT_START
};
enum rod_finish { ROD_FINISH_STOP, ROD_FINISH_LENGTH, ROD_FINISH_CANCEL };

struct rod_logprob {
    int32_t id;
    float logprob;
};

struct rod_token { /* one generated token, or one of the prompt */
    int32_t id;
    float logprob; /* the model's own, before temperature, penalties and masks; valid if n_logprobs >= 0 */
    uint32_t rank; /* of a prompt's token: 1 = the most likely; ties share the better rank */
    uint32_t n_top;
    struct rod_logprob *top; /* [n_top], best first; owned by the event */
};

struct rod_event {
    enum rod_event_kind kind;
    uint64_t ticket;
    void *user;
    /* PROMPT: the next tokens of the prompt with their log-probabilities, from its second on; before the first DELTA,
     * and only if n_prompt_logprobs asks for them.
     * START: once at most, before all others, without text, and not of an answer that was given before; only if
     * report_start asks for it. What goes wrong from there on is found while the request runs.
     * END_TOKEN: the end or stop id that was chosen, without text and not counted; only if report_end asks for it.
     * DELTA: text (valid UTF-8, may be empty while bytes or a possible stop string are held back) and the tokens of
     * this step, each reported once. FINISH may carry the last text that was held back; it has no tokens. */
    char *text;
    size_t text_len; /* part of the event's memory, NUL-terminated; NULL in ERROR alone */
    struct rod_token *tokens;
    size_t n_tokens;
    /* FINISH */
    enum rod_finish reason;
    char *stop_string;                               /* matched stop string or NULL */
    int32_t stop_id;                                 /* matched stop id or end token, else -1 */
    uint64_t accepted_tok, rejected_tok;             /* of drafts: those that came, those that did not */
    uint64_t prompt_tok, completion_tok, cached_tok; /* completion_tok = tokens reported: without the end token;
                                                        prompt_tok with those of a state, which are cached_tok */
    uint64_t created_tok;      /* behind the cached ones, up to the last breakpoint whose state was kept */
    uint64_t created_long_tok; /* of these: behind the breakpoint before, up to one of at least ROD_LONG_HOLD_NS */
    struct rod_state *state;   /* of keep_state, unless cancelled: freed with the event, or set to NULL and kept */
    char session[129];         /* of a turn, unless cancelled; else "" */
    uint64_t session_version;
    bool session_unseen; /* this process alone has that version, lazy: the store could not be told that there is one, so
                            another server's turn may come first, and then it is lost */
    bool replayed;       /* an answer given before, to the same idempotency key */
    char *label;         /* in the first event of such an answer: its turn's, or NULL; part of the event's memory */
    /* FINISH, ERROR: waiting for a slot; until the first token, 0 if it never had a slot; from first to last */
    uint64_t queue_ns, prefill_ns, decode_ns;
    uint64_t waited_ns; /* for a store, as rod_request.waited_ns */
    /* ERROR */
    struct rod_error error;
};
struct rod_event *rod_next_event(struct rod_engine *engine); /* NULL = none now; never blocks */
void rod_event_free(struct rod_event *event);

/* ---- conversations: prompts that bring everything, each time, under a name (rod_request.conversation) ---- */
struct rod_conversation_info {
    char name[ROD_MAX_CONVERSATION + 1];
    uint32_t n_lanes, n_states;  /* lanes: beginnings that differ; states: kept of all */
    uint64_t n_tok, state_bytes; /* of the longest state; of all */
    int64_t used_unix_s;
    bool durable; /* its longest state is in a file, too */
};
/* For hashes of what was said: of the folder, so that they last; without a folder random. */
uint64_t rod_conversation_seed(const struct rod_engine *engine);
bool rod_conversation_durable(const struct rod_engine *engine); /* there is a folder */
/* Makes known what another server of the folder has kept for this name: called before a prompt with it is made. Then
 * its notes, records that the owner appends (answers as tokens), if they have changed since *seen (zeros at first):
 * *bytes malloc'd, each record a u32 length, little-endian, and its bytes; else *bytes NULL. Waits for files. */
struct rod_notes_seen {
    uint64_t inode, n_bytes;
    uint64_t waited_ns; /* for a store by the request so far, in all its calls; it waits for some 10 s in all, and not
                           again where a wait has failed */
};
int rod_conversation_open(struct rod_engine *engine, const char *tenant, const char *name, struct rod_notes_seen *seen,
                          void **bytes, size_t *n, struct rod_error *err);
/* Appends a note; without a folder nothing. Waits for files. */
int rod_conversation_note(struct rod_engine *engine, const char *tenant, const char *name, const void *record, size_t n,
                          struct rod_notes_seen *seen, struct rod_error *err);
/* In order of name, behind `after` unless NULL. *infos: malloc'd. The three wait for files. */
int rod_conversation_list(struct rod_engine *engine, const char *tenant, const char *after, size_t limit,
                          struct rod_conversation_info **infos, size_t *n, bool *more, struct rod_error *err);
int rod_conversation_get(struct rod_engine *engine, const char *tenant, const char *name,
                         struct rod_conversation_info *out, struct rod_error *err);
/* With states and notes. */
int rod_conversation_delete(struct rod_engine *engine, const char *tenant, const char *name, struct rod_error *err);

/* ---- a store: objects in place of a folder, for all engines that name it (rod_engine_config.store) ---- */
struct rod_store_config { /* texts: "" or NULL is the default; as the settings of the server (config/README.md) */
    const char *url, *endpoint, *region, *style, *credentials, *encryption;
    uint32_t timeout_ms, n_connections; /* 0: the default */
    uint64_t bytes_in_flight;
    const char *cache_dir; /* a folder for copies of states, perhaps shared with other servers of this machine */
    uint64_t cache_bytes;  /* that they take at most; 0: no limit, but a twentieth of the disk stays free */
    bool looks;            /* reads alone, without a question whether the store keeps to conditions */
    void (*log)(void *arg, int level, const char *line); /* any thread; may be NULL */
    void *log_arg;
};
/* Opens it and asks whether its conditional writes do what they say. ROD_EINVALID: param names the setting;
 * ROD_EUNSUPPORTED: what it did instead; ROD_EIO. */
int rod_store_open(const struct rod_store_config *config, struct rod_store **out, struct rod_error *err);
void rod_store_close(struct rod_store *store); /* behind all engines; NULL: nothing */
/* Any thread. Reads the credentials again; on failure the old ones stay. */
int rod_store_reload(struct rod_store *store, struct rod_error *err);
enum rod_store_work { ROD_STORE_READ, ROD_STORE_WRITE, ROD_STORE_OTHER, ROD_STORE_N_WORKS };
enum { ROD_STORE_BUCKETS = 16 };
struct rod_store_times { /* of calls with their waits and repeats, to the end of a body */
    uint64_t ns_sum;
    uint64_t ns_bucket[ROD_STORE_BUCKETS]; /* cumulative counts; upper bounds rod_store_bounds_ns, last = +Inf */
};
extern const uint64_t rod_store_bounds_ns[ROD_STORE_BUCKETS];
struct rod_store_counts {
    uint64_t puts, gets, heads, deletes, copies, lists; /* requests, repeated ones too */
    uint64_t conflicts, failures, retries, bytes_in, bytes_out;
    struct rod_store_times times[ROD_STORE_N_WORKS];
    uint64_t cache_hits, cache_misses; /* states read from cache_dir, and not */
    uint64_t cache_bytes;              /* of the copies, as last seen */
    bool down;                         /* the last calls failed */
};
void rod_store_count(struct rod_store *store, struct rod_store_counts *out);

/* ---- sessions ---- */
#define ROD_MAX_KEPT_TURNS 16
struct rod_kept_turn { /* that a session can go back to; turns: how many it is back */
    uint64_t version, turns;
};
struct rod_session_info {
    char id[129];
    uint64_t version, n_tok, state_bytes;                /* state_bytes: 0 before the first turn */
    int64_t created_unix_s, used_unix_s, expires_unix_s; /* expires: 0 = never */
    bool pinned, busy;
    bool durable;     /* its file has this version: it outlives the process */
    char tier[8];     /* where its state is nearest: "host", "file" */
    char parent[129]; /* the session that it was forked or made from, or "" */
    /* For rod_turn_tokens: a token that is not read yet, an answer left open, a hash of the tools that it has read. */
    bool pending, open;
    uint64_t tools;
    uint32_t keep_turns, n_kept; /* how many it keeps at most; how many there are, as far as this server knows */
    struct rod_kept_turn kept[ROD_MAX_KEPT_TURNS];
};
/* How many tokens the conversation would have with this turn's prompt (rod_chat_encode_turn: its ids are n_ids). */
uint64_t rod_turn_tokens(const struct rod_turn *turn, const struct rod_session_info *session, size_t n_ids);
struct rod_session_new {
    const char *id;        /* NULL: the engine makes one */
    const char *from;      /* begins where this one is now; NULL: empty */
    uint64_t ttl_s;        /* 0 = never */
    bool has_ttl;          /* else the engine's session_ttl_s */
    bool has_keep;         /* else that of `from`, or the engine's session_keep_turns */
    uint32_t keep_turns;   /* states of earlier turns that it keeps at most, to ROD_MAX_KEPT_TURNS */
    bool pin;              /* neither time nor budgets remove it */
    uint64_t max_sessions; /* of the tenant, pinned ones too; 0 = four times what the engine's limit leaves free, or
                              for the tenant "" no limit */
};
struct rod_session_change {
    bool has_pin, pin;
    bool has_ttl;
    uint64_t ttl_s; /* 0 = never */
    bool has_keep;
    uint32_t keep_turns; /* fewer: the others go */
};
/* To the state that the session had so many turns ago, or in this version. */
struct rod_session_rewind {
    bool by_turns, has_expected;
    uint64_t turns, version, expected_version; /* the last: the session's, else ROD_EVERSION */
};
/* Any thread; they may wait for files. tenant: "" without keys; another tenant's session is ROD_ENOTFOUND. err->param
 * names the field at fault. A session whose turn runs is at its last version until the turn has ended.
 * ROD_EEXISTS: there is one of this id. ROD_ESESSIONS, ROD_EKEYSESSIONS: there are as many as may be. A session from
 * another keeps its version, and shares its state until the first turn, in memory and on disk; it is durable when this
 * returns, unless session_lazy. */
int rod_session_create(struct rod_engine *engine, const char *tenant, const struct rod_session_new *new_session,
                       struct rod_session_info *out, struct rod_error *err);
int rod_session_get(struct rod_engine *engine, const char *tenant, const char *id, struct rod_session_info *out,
                    struct rod_error *err);
/* Whether there is one: 0 or ROD_ENOTFOUND; ROD_EIO where a store does not say so within a few seconds. waited_ns: as
 * in rod_notes_seen. */
int rod_session_known(struct rod_engine *engine, const char *tenant, const char *id, uint64_t *waited_ns,
                      struct rod_error *err);
/* ROD_EBUSY while a turn runs. Its time begins anew; it keeps its version. */
int rod_session_change(struct rod_engine *engine, const char *tenant, const char *id,
                       const struct rod_session_change *change, struct rod_session_info *out, struct rod_error *err);
/* ROD_EBUSY while a turn runs. The next version has the state of an earlier one; turns between go, and their
 * idempotency keys are known without an answer. ROD_ENOTKEPT: it is not kept; the message names the nearest. */
int rod_session_rewind(struct rod_engine *engine, const char *tenant, const char *id,
                       const struct rod_session_rewind *to, struct rod_session_info *out, struct rod_error *err);
/* In order of id, from the first after `after` (NULL: from the beginning), at most limit. *infos is malloc'd. */
int rod_session_list(struct rod_engine *engine, const char *tenant, const char *after, size_t limit,
                     struct rod_session_info **infos, size_t *n, bool *more, struct rod_error *err);
int rod_session_delete(struct rod_engine *engine, const char *tenant, const char *id,
                       struct rod_error *err); /* ROD_EBUSY while a turn runs; a damaged file goes too */
/* The oldest answer that the session has for an idempotency key. It is kept as long as the session, but that one of
 * more than 8 MiB is not kept at all, and that answers of later keys take its place. */
struct rod_answer {
    uint64_t version;   /* that its turn made; 0: there is no answer */
    uint8_t digest[16]; /* its turn's, as are label and text */
    char *label;        /* malloc'd, with the memory of the other texts; "": there was none. NULL: it is not kept */
    const char *text, *output; /* text: NULL where there was none; output: all that was generated */
    size_t n_text, n_output;
    enum rod_finish reason; /* this and the counts: as its FINISH had them */
    uint64_t prompt_tok, cached_tok, completion_tok;
};
int rod_session_answer(struct rod_engine *engine, const char *tenant, const char *id, struct rod_answer *out,
                       struct rod_error *err);
/* The session as a file (engine/state/state_file.h), *bytes malloc'd. */
int rod_session_export(struct rod_engine *engine, const char *tenant, const char *id, void **bytes, size_t *n,
                       struct rod_error *err);
/* The reverse; a session of this id is replaced (ROD_EBUSY while a turn runs). Under another id than the file's: a
 * copy. A file that is damaged, or of another model or layout, is ROD_ESTATE. */
int rod_session_import(struct rod_engine *engine, const char *tenant, const char *id, const void *bytes, size_t n,
                       struct rod_session_info *out, struct rod_error *err);

/* ---- pinned prefixes: states of beginnings of prompts that an operator has given ids ----
 * Every tenant's prompt that begins with the tokens of one goes on from it, as from an entry of the prefix cache. They
 * need the prefix cache; with state_dir they are files, which all engines of one model and layout share. Any thread. */
struct rod_prefix_info {
    char id[129]; /* [A-Za-z0-9._-] */
    uint64_t n_tok, state_bytes;
    int64_t created_unix_s;
    uint64_t n_used; /* prompts that went on from it, since it came to this engine */
    bool durable;    /* it is a file */
};
struct rod_prefix_new {
    const char *id;
    const int32_t *ids;
    size_t n_ids;
    bool (*stopped)(void *arg); /* asked while it is read: true ends the reading with ROD_EDRAINING. NULL: never */
    void *arg;
};
/* Reads the prompt, up to the last multiple of chunk_tok before its last token, as text that follows may change that
 * one; waits for it. One that has this id is replaced. ROD_EQUEUEFULL: also while another one is read. */
int rod_prefix_pin(struct rod_engine *engine, const struct rod_prefix_new *wanted, struct rod_prefix_info *out,
                   struct rod_error *err);
int rod_prefix_get(struct rod_engine *engine, const char *id, struct rod_prefix_info *out, struct rod_error *err);
/* In order of id. *infos is malloc'd. */
int rod_prefix_list(struct rod_engine *engine, struct rod_prefix_info **infos, size_t *n, struct rod_error *err);
int rod_prefix_unpin(struct rod_engine *engine, const char *id, struct rod_error *err);

#endif
