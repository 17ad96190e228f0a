/* engine_internal.h - the engine's parts, for engine*.c and the tests that plug in a backend of their own.
 *
 * Who owns what: an engine owns its backend and tokenizer and every work between submit and its end. A work is one
 * submitted request with all memory that its steps will need, made on the submitting thread.
 * Threads: sched, sampler, steps, segs, events of this turn: the engine thread. mailbox and counters: any. taken: the
 * consumer. Everything else is immutable after open.
 */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/backend/backend.h"
#include "engine/text/chat.h"
#include "engine/grammar/grammar.h"
#include "engine/sched/mailbox.h"
#include "engine/state/prefix.h"
#include "engine/sched/request.h"
#include "engine/backend/sampler.h"
#include "engine/sched/sched.h"
#include "engine/session/sessions.h"
#include "engine/state/state_buffer.h"
#include "engine/text/text.h"
#include "engine/base/log_limit.h"

#include <stdatomic.h>
#include <time.h>

/* Requests whose tokens the device samples and those whose logits the host must see cannot share a step. Where no
 * device samples, all are LANE_FIRST. */
enum engine_lane { LANE_FIRST, LANE_HOST };

struct work {
    struct mail mail;
    struct sched_req sched;
    struct rod_request *request;
    const int32_t *prompt; /* [n_prompt] what is read: the request's, or with a state's pending token before it */
    size_t n_prompt;
    int32_t *own_prompt; /* that one; else NULL */
    uint64_t base;       /* tokens before: of the state that it goes on from. sched counts from there */
    struct text text;
    struct sampler_counts counts; /* n_table = 0: this request has no penalties */
    int32_t *end_ids;             /* end and stop ids; not chosen before min_tokens. Behind them room for the ends of */
    size_t n_end_ids;             /* all bad words */
    int32_t *recent; /* [n_recent] the last tokens generated, newest last: as many as a bad word looks at */
    uint32_t n_recent, recent_tok; /* recent_tok: room */
    struct grammar_walk walk;      /* where the text stands in the request's grammar */
    enum engine_lane lane;
    struct work *leader;        /* the request whose state this one waits for, NULL = none */
    uint64_t forked;            /* it has its copy of the state after so many tokens, and waits in FOLLOW to start */
    struct mailbox_events kept; /* its prompt's scores so far, for those that wait for a slot */
    size_t n_scores;            /* of its prompt that it was sent, whoever read it */
    int32_t last;               /* the token that the next step feeds, where the host feeds it */
    uint32_t row[2];            /* its row of each step on its way, if that row names it */
    uint32_t n_generated;
    uint64_t submit_ns, first_ns, last_ns;
    struct event *end;        /* made at submit, so that every request can end whatever the memory */
    bool ended;               /* end says how, and goes out when the state is saved */
    struct rod_state *brings; /* room for what end brings, of keep_state */
    /* The prefix cache: tokens that were not read; those of the last checkpoint on the way; whether it may leave any.
     */
    uint64_t cached_tok, kept_tok;
    bool remembers, generated; /* generated: an answer is in its state */
    bool awaits, awaited;      /* it waits in FOLLOW for a checkpoint on its way; it has done so */
    uint64_t stops[PREFIX_MAX_STOPS];
    uint32_t n_stops, stop; /* stop: the one after sched.stop_tok */
    int32_t *said;          /* [n_said] the tokens generated, while it remembers */
    size_t n_said, said_room;
    /* engine_session.c: of a session's turn; else NULL. away: the sessions have it. ran: it has been in a slot. */
    struct session_turn *turn;
    bool away, ran, cancelled;
    uint64_t token_hash; /* of all tokens read, of a turn */
    struct detok held;   /* at its end: of a character that is not whole */
};

/* A slot's state on its way, engine_move.c. */
enum move_kind { MOVE_NONE, MOVE_IN, MOVE_OUT };
struct move {
    enum move_kind kind;
    struct work *work; /* NULL: it ended meanwhile */
    struct state_buffer *image;
    struct prefix_entry *checkpoint; /* MOVE_OUT: what the image is for; NULL: the work's end */
};

struct engine_counters {
    atomic_uint_fast64_t finished, cancelled, failed, rejected, nan;
    atomic_uint_fast64_t prefill_tok, decode_tok, steps, last_step_end_ns, step_ns_sum, rows_sum, running;
    atomic_uint_fast64_t left; /* slots without a request whose state is on its way */
    atomic_uint_fast64_t bucket[20], rows_bucket[ROD_STEP_ROWS_BUCKETS]; /* not cumulative */
    atomic_bool device_failed;
    atomic_uint_fast64_t prefix_hits, prefix_tok_saved, prefix_misses[ROD_PREFIX_N_MISSES];
    atomic_uint_fast64_t prefix_entries, prefix_bytes, prefix_evicted;
};

/* What an engine runs on. backend is open; ops closes it. tokenizer and chat may be NULL. */
struct engine_parts {
    const struct backend_ops *ops;
    struct backend *backend;
    struct tokenizer *tokenizer;
    struct chat *chat; /* NULL: no chat format */
    uint32_t V;
    int32_t eos_ids[8];
    uint32_t n_eos_ids;
    uint8_t fingerprint[16];    /* of the weights (model.h): states of others are refused */
    struct rod_model_info info; /* the engine fills in what the backend and tokenizer know */
};

/* A step between its plan and its results. */
struct step {
    struct sched_row *rows; /* [n_slots]; req NULL: the request ended after the plan */
    enum engine_lane lane;
    uint32_t n_rows, n_decode;
    uint64_t n_prompt_tok;
    bool needs_host; /* one of its tokens may end a request by its text: the next plan waits for it */
    uint64_t begin_ns;
};

struct rod_engine {
    struct rod_engine_config config; /* its strings are not kept */
    struct engine_parts parts;
    struct backend_info backend_info;
    size_t max_token_bytes;
    struct grammar_cache *grammars; /* NULL without a tokenizer */
    struct mailbox mailbox;
    struct engine_counters counters;
    struct mailbox_event *taken;
    struct state_pool *states;      /* NULL where the device keeps none */
    struct prefix *prefixes;        /* NULL: no prefix cache */
    double copy_ns;                 /* a byte of a state, between device and host */
    bool moves_always;              /* for tests: checkpoints are moves also where nobody else waits */
    struct sessions *sessions;      /* NULL without `states` */
    struct log_limit outside_limit; /* states outside of state_host_bytes */
    struct move *moves;             /* [n_slots] */
    uint32_t *moving;               /* [n_slots], n_moving: slots with a move */
    uint32_t n_moving;
    struct sched sched;
    struct sampler sampler;
    struct step steps[2]; /* taking turns: step number n is steps[n % 2] */
    uint64_t n_planned, n_collected;
    struct work *keeper;          /* engine_fork.c; NULL = none */
    float *kept_logits;           /* [V] behind the keeper's prompt, in LANE_HOST and where no device samples */
    bool host_next;               /* of both lanes with work, LANE_HOST has the next step */
    struct backend_segment *segs; /* [n_slots] */
    struct mailbox_events events; /* of this turn of the loop */
    pthread_t thread;
};

/* Takes over backend and tokenizer on success. config: n_slots and max_batch_tok are the backend's by now. */
int engine_open_parts(const struct rod_engine_config *config, const struct engine_parts *parts, struct rod_engine **out,
                      struct rod_error *err);
void *engine_thread(void *engine); /* engine_step.c */

/* engine_token.c: a request's next token becomes an event, or its end. */
void engine_token_take(struct rod_engine *engine, struct work *work, const struct sampler_output *picked,
                       uint64_t now_ns);
/* The prompt is read and nothing is to be generated. */
void engine_token_none(struct rod_engine *engine, struct work *work, uint64_t now_ns);
void engine_token_cancel(struct rod_engine *engine, struct work *work);
void engine_token_fail(struct rod_engine *engine, struct work *work, const struct rod_error *error);
/* The work's end event is posted and the work gone. */
void engine_token_post(struct rod_engine *engine, struct work *work);
/* What the grammar says it "is" or "has" becomes a sentence; returns the code. */
int engine_token_grammar_fault(const struct rod_error *fault, struct rod_error *err);

static inline void engine_count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* work.c */
int work_new(const struct rod_engine *engine, struct rod_request *request, struct work **out, struct rod_error *err);
/* What follows from the state that it goes on from: before it is scheduled. */
int work_bind(const struct rod_engine *engine, struct work *work, struct rod_error *err);
void work_free(struct work *work); /* its request too, unless taken out before */

/* engine_score.c */
/* The prompt's tokens whose logits a step gave become an event, also for the requests that follow. Fails as
 * sampler_score does, or with ROD_ENOMEM. */
int engine_score_prompt(struct rod_engine *engine, struct work *work, const struct sched_row *row, const float *logits,
                        struct rod_error *err);
/* What sampler_pick must not choose now: end ids before min_tokens and ends of bad words. ids may point to the work. */
size_t engine_score_banned(struct work *work, const int32_t **ids);

/* A copy without ticket and user, or NULL. */
struct event *engine_score_copy(const struct event *scored, struct rod_error *err);

/* engine_fork.c */
/* w has got a slot: perhaps it need not read its prompt. A failure is this request's. */
int engine_fork_admit(struct rod_engine *engine, struct work *work, uint64_t now_ns, struct rod_error *err);
/* After all that can have been admitted, before a step is planned: who follows one that has come to where they part has
 * a copy; and nobody may wait for the keeper any more. */
void engine_fork_settle(struct rod_engine *engine, uint64_t now_ns);
/* w has read its prompt: its first token, then those of who followed. w may be gone afterwards. */
void engine_fork_read(struct rod_engine *engine, struct work *work, const float *logits, uint64_t now_ns);
/* A piece of w's prompt is scored: the same for who follows, and kept for who waits. */
int engine_fork_scored(struct rod_engine *engine, struct work *work, const struct event *scored, struct rod_error *err);
/* w ends: who waited for its state reads the prompt after all. */
void engine_fork_left(struct rod_engine *engine, const struct work *work);

void engine_fork_drop(struct work *work); /* what it keeps for others */

/* engine_move.c */
/* The state after pos tokens out of the work's slot into image, or the reverse; until it is over the work is in
 * SCHED_MOVING. Takes the image over on success. Fails as slot_load does. */
int engine_move_begin(struct rod_engine *engine, struct work *work, enum move_kind kind, uint64_t pos,
                      struct state_buffer *image, struct rod_error *err);
/* Those that are over: a request with its state goes on, one that has left its state ends. A failure is a device
 * fault. */
int engine_move_collect(struct rod_engine *engine, struct rod_error *err);
void engine_move_end(struct rod_engine *engine, struct work *work); /* it ends: out of the scheduler, in any state */
void engine_move_drop(struct rod_engine *engine);                   /* the images, when the backend is closed */

/* engine_prefix.c. The index is the engine thread's. Failures are device faults. */
int engine_prefix_open(struct rod_engine *engine, struct rod_error *err);
/* w has a slot and is to read its prompt: perhaps not all of it. */
int engine_prefix_admit(struct rod_engine *engine, struct work *work, uint64_t now_ns, struct rod_error *err);
/* w's slot has read up to where it stops, or a step on its way will have. */
int engine_prefix_stop(struct rod_engine *engine, struct work *work, uint64_t now_ns, struct rod_error *err);
void engine_prefix_said(struct work *work, int32_t id); /* a counted token */
/* w ends, and its slot holds the state of prompt and answer, without a pending token. A device fault shows later. */
void engine_prefix_end(struct rod_engine *engine, struct work *work, int32_t pending, uint64_t now_ns);
/* The image has arrived; it is taken over. Who waits for a checkpoint looks again. */
int engine_prefix_saved(struct rod_engine *engine, struct prefix_entry *entry, struct state_buffer *image,
                        struct rod_error *err);
void engine_prefix_distrust(struct rod_engine *engine, const struct work *work); /* its logits were no numbers */
/* The device counts the tokens of w that it reads: what is not read in w's slot would not be counted. */
bool engine_prefix_counts(const struct rod_engine *engine, const struct work *work);

/* engine_step.c: w has a slot in the state before the first token, and is to read its prompt: perhaps not all of it. A
 * failure is a device fault. */
int engine_read(struct rod_engine *engine, struct work *work, uint64_t now_ns, struct rod_error *err);
/* engine_step.c: how the device samples for the work, when its slot has its state. A failure is a device fault. */
int engine_prepare_sampling(struct rod_engine *engine, const struct work *work, struct rod_error *err);
/* engine_token.c: the state of a request that has ended is saved. Takes the image over. */
void engine_token_saved(struct rod_engine *engine, struct work *work, struct state_buffer *image);

/* engine_step.c: a row of logits becomes the request's next token, or its end. */
void engine_take_logits(struct rod_engine *engine, struct work *work, uint64_t position, const float *logits,
                        uint64_t now_ns);

/* engine_state.c */
int engine_state_open(struct rod_engine *engine, struct rod_error *err); /* the pool */
int engine_state_check(const struct rod_engine *engine, const struct rod_request *request, struct rod_error *err);
int engine_state_prompt(struct work *work, struct rod_error *err); /* what the work reads, and from where */
/* Begins to move it into the work's slot. ROD_ESTATE: the state is at fault, and the slot as before. */
int engine_state_load(struct rod_engine *engine, struct work *work, struct rod_error *err);
/* Begins to move the slot's state out, for the end event. pending: the last token, if no step has read it, or -1. */
int engine_state_keep(struct rod_engine *engine, struct work *work, int32_t pending, struct rod_error *err);

/* engine_session.c */
int engine_session_open(struct rod_engine *engine, struct rod_error *err);
/* Of a request that is a turn: whether it can be one; then its part of the work. */
int engine_session_check(const struct rod_engine *engine, const struct rod_request *request, struct rod_error *err);
int engine_session_work(struct work *work, struct rod_error *err);
void engine_session_free(struct work *work);
void engine_session_arrive(struct rod_engine *engine, struct work *work);
/* Its session, or its end, is there. */
void engine_session_back(struct rod_engine *engine, struct work *work, uint64_t now_ns);
bool engine_session_cancel(struct rod_engine *engine, struct work *work); /* true: it is told when it comes back */
bool engine_session_leave(struct rod_engine *engine, struct work *work);  /* true: its end waits for the session */
/* A token is counted; an event leaves. */
void engine_session_counted(struct work *work); /* last is still the one before */
int engine_session_event(struct work *work, const struct rod_event *event);
void engine_session_stop(struct rod_engine *engine, const struct rod_error *error);

static inline struct work *work_of_mail(struct mail *mail) {
    return (struct work *)(void *)((char *)mail - offsetof(struct work, mail));
}
static inline struct work *work_of_sched(struct sched_req *req) {
    return (struct work *)(void *)((char *)req - offsetof(struct work, sched));
}

/* Its tokens are drawn where they are computed: the host sees no logits. */
static inline bool engine_on_device(const struct rod_engine *engine, const struct work *work) {
    return engine->parts.ops->launch && work->lane == LANE_FIRST;
}

void engine_log(const struct rod_engine *engine, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline uint64_t engine_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
