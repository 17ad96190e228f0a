/* core.h - the engine and its parts, for the files of this folder and for tests that plug in a backend of their own.
 *
 * Who owns what: an engine owns its backend and tokenizer, and every active request (active.h) between submit and its
 * end. Threads: sched, sampler, steps, segs, events of this round: the engine thread. mailbox and counters: any. taken:
 * the consumer. Everything else is immutable after open.
 */
#ifndef CORE_H
#define CORE_H

#include "engine/backend/backend.h"
#include "engine/grammar/grammar_tags.h"
#include "engine/text/chat.h"
#include "engine/state/state_buffer.h"
#include "engine/state/state_home.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/log_limit.h"
#include "active.h"

#include <stdatomic.h>

/* A slot's state on its way, move.c. */
enum move_kind { MOVE_NONE, MOVE_IN, MOVE_OUT };
struct move {
    enum move_kind kind;
    struct active *active; /* NULL: it ended meanwhile */
    struct state_buffer *buffer;
    struct prefix_entry *entry; /* MOVE_OUT: what the buffer is for; NULL: the request's end */
    struct lane_kept *kept;     /* of such an entry without a request: its conversation; NULL: none */
};

/* Pieces of prompts that are read beside steps, flight.c. */
struct flight {
    struct sched_row *rows; /* [n_slots]; req NULL: the request ended meanwhile */
    struct backend_segment *segs;
    uint32_t n_rows;
    uint64_t n_tok, begin_ns;
};
/* Up to two on their way, number n is by_parity[n % 2]. */
struct flights {
    struct flight by_parity[2];
    uint64_t n_begun, n_ended;
    uint64_t ended_ns, looked_ns; /* when the last one's end was seen; when the last look was */
    struct step_cost cost;        /* of a flight's tokens */
};

/* Whose masks are made before a step, mask_pieces.c. */
struct mask_pieces {
    uint64_t used[SCHED_N_KEYS]; /* effort that each key has used lately */
    uint64_t halved_ns;          /* when that was halved */
    double step_ns, effort_ns;   /* what a step takes without masks; what effort takes */
    uint64_t dear;               /* the ticket of the request that had the last piece beyond its first */
    uint64_t spent_ns;           /* since the last step was planned */
    /* of one round */
    struct active **rows;       /* [n_slots] requests that wait, by their keys' effort, least first; NULL: it failed */
    uint32_t n, n_first;        /* n_first: rows before it have had a first piece */
    int64_t budget, left;       /* effort */
    const struct grammar *last; /* the grammar of the last piece; NULL: none */
};

struct engine_counters {
    atomic_uint_fast64_t finished, cancelled, failed, rejected, nan;
    atomic_uint_fast64_t prefill_tok, decode_tok, steps, last_step_end_ns, step_ns_sum, rows_sum, running;
    atomic_uint_fast64_t flights, flight_tok;
    atomic_uint_fast64_t left; /* slots without a request whose state or flight is on its way */
    atomic_uint_fast64_t bucket[20], rows_bucket[ROD_STEP_ROWS_BUCKETS]; /* not cumulative */
    atomic_bool device_failed;
    atomic_uint_fast64_t prefix_hits, prefix_tok_saved, prefix_misses[ROD_PREFIX_N_MISSES];
    atomic_uint_fast64_t prefix_miss_tok[ROD_PREFIX_N_MISSES];
    atomic_uint_fast64_t prefix_entries, prefix_bytes, prefix_evicted;
    atomic_uint_fast64_t drafted[ROD_DRAFT_N_KINDS], accepted[ROD_DRAFT_N_KINDS];
};

/* What an engine runs on. backend is open; ops closes it. tokenizer and chat may be NULL. */
struct engine_parts {
    const struct backend_ops *ops;
    struct backend *backend;
    struct tokenizer *tokenizer;
    struct chat *chat; /* NULL: no chat format */
    uint32_t V;
    int32_t eos_ids[24]; /* the model's and the chat format's */
    uint32_t n_eos_ids;
    bool measures;              /* its steps, before the first request (pace.c) */
    uint8_t fingerprint[16];    /* of the weights (model.h): states of others are refused */
    struct rod_model_info info; /* the engine fills in what the backend and tokenizer know */
};

/* A step between its plan and its results. */
struct step {
    struct sched_row *rows; /* [n_slots]; req NULL: the request ended after the plan */
    enum sampling_site site;
    uint32_t n_rows, n_decode, n_drafts; /* n_decode: rows of streams, those of drafts among them */
    uint32_t n_accepted;
    uint64_t n_prompt_tok;
    bool needs_host; /* the next plan waits for its tokens: one may end a request by its text, or drafts are among it */
    bool waits;      /* the same, drafts left aside */
    bool ahead, waited; /* it was planned before the step before it was collected; that step had waits */
    bool put_off;       /* it was not ahead because of drafts */
    uint64_t begin_ns;
    uint64_t mask_ns; /* what masks took */
};

struct rod_engine {
    struct rod_engine_config config; /* its strings are not kept */
    struct engine_parts parts;
    struct backend_info backend_info;
    size_t max_token_bytes;
    struct grammar_cache *grammars; /* NULL without a tokenizer */
    struct grammar_tags *tags;      /* NULL without a tokenizer */
    struct mailbox mailbox;
    struct engine_counters counters;
    struct mailbox_event *taken;
    struct state_pool *states;               /* NULL where the device keeps none */
    struct prefix *prefixes;                 /* NULL: no prefix cache */
    struct pinned *pinned;                   /* NULL without `prefixes` */
    atomic_bool pinning;                     /* one is read */
    double copy_ns;                          /* a byte of a state, between device and host */
    bool moves_always;                       /* for tests: entries come and go as moves of their own slots alone */
    struct state_home home;                  /* the store's part for this model; calls NULL without a store */
    struct sessions *sessions;               /* NULL without `states` */
    struct conversations *conversations;     /* NULL without `prefixes` */
    uint32_t n_lane_ends;                    /* requests whose end waits for a file */
    atomic_uint_fast64_t conversation_bytes; /* of their files */
    struct log_limit outside_limit;          /* states outside of state_host_bytes */
    struct move *moves;                      /* [n_slots] */
    uint64_t *parked;                        /* [n_slots] number of the entry whose state is left in a parked slot */
    uint32_t *moving;                        /* [n_slots], n_moving: slots with a move */
    uint32_t n_moving;
    struct flights flights;
    struct mask_pieces masks;
    struct sched sched;
    struct sampler sampler;
    struct draft_price price[SCHED_N_SITES]; /* of steps without prompts */
    struct draft_chances chances;            /* of all requests */
    struct draft_account draft_account;
    struct draft_tries draft_tries;
    bool put_off;            /* the next plan waits for a step's tokens because of drafts */
    bool drafts_always;      /* for tests: each draft is read, whether it pays or not */
    uint64_t test_conflicts; /* turns to come that are told that another server was first */
    struct step steps[2];    /* step number n is steps[n % 2] */
    uint64_t n_planned, n_collected;
    struct active *idle_source;   /* shared_prefill.c; NULL = none */
    float *source_logits;         /* [V] behind the idle source's prompt, where the host sees logits */
    bool host_next;               /* of both sites with work, the host has the next step */
    struct backend_segment *segs; /* [n_slots] */
    struct mailbox_events events; /* of this round of the loop */
    pthread_t thread;
};

/* The files below, each above those that it uses. A file of a feature says what is to happen; step.c and loop.c do it.
 */

/* ---- core.c ---- */
void engine_log(const struct rod_engine *engine, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline void engine_count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline void engine_uncount(atomic_uint_fast64_t *counter) {
    atomic_fetch_sub_explicit(counter, 1, memory_order_relaxed);
}
/* Whose entries of the prefix cache it uses. */
static inline struct prefix_key active_prefix_key(const struct active *active) {
    const struct rod_request *r = active->request;
    return (struct prefix_key){r->turn ? r->turn->tenant : r->tenant, r->cache_salt};
}
/* Its tokens are drawn where they are computed: the host sees no logits. */
static inline bool active_on_device(const struct active *active) { return active->sched.site == SITE_DEVICE; }
/* The device counts the tokens that it reads for the request: what another slot read would not be counted. */
static inline bool active_device_counts(const struct active *active) {
    return active_on_device(active) && active->request->sampling.repetition_penalty != 1;
}

/* ---- score.c ---- */
/* *out: the log-probabilities of the prompt's tokens whose logits a step gave, without ticket and user; NULL: the piece
 * has none. Fails as sampler_score does, or with ROD_ENOMEM. */
int score_prompt(struct rod_engine *engine, const struct active *active, const struct sched_row *row,
                 const float *logits, struct event **out, struct rod_error *err);
/* Sends what the request does not have yet of the scores of a piece from pos on; takes the event. */
void score_send(struct rod_engine *engine, struct active *active, uint64_t pos, struct event *scored);
/* A copy without ticket and user, or NULL. */
struct event *score_copy(const struct event *scored, struct rod_error *err);
/* What sampler_pick must not choose now: end ids before min_tokens and ends of bad words. ids may point to the request.
 */
size_t score_banned(struct active *active, const int32_t **ids);
void score_generated(struct active *active, int32_t id); /* a counted token */

/* ---- move.c ---- */
/* The state after pos tokens out of the request's slot into buffer, or the reverse; until it is over the request is in
 * SCHED_MOVING. Takes the buffer over on success. Fails as slot_load does. */
int move_begin(struct rod_engine *engine, struct active *active, enum move_kind kind, uint64_t pos,
               struct state_buffer *buffer, struct rod_error *err);
/* A copy of the slot's state after pos tokens goes out of another slot, for the entry, and the request goes on: that
 * slot, and the buffer is taken over. SLOTS_NONE: no slot is free for it, or the device cannot; nothing has happened.
 */
uint32_t move_aside(struct rod_engine *engine, const struct active *active, uint64_t pos, struct state_buffer *buffer,
                    struct prefix_entry *entry);
/* The next move that is over, from number *at on (0 at first): 1 and *over, whose buffer is the caller's; 0: no more;
 * below 0: a device fault. Its request goes on where it was, but for one that has left its state: that one ends. */
int move_next_over(struct rod_engine *engine, uint32_t *at, struct move *over, struct rod_error *err);
/* The request ends: out of the scheduler, in any state. Its slot is free when no state is on its way. */
void move_abandon(struct rod_engine *engine, struct active *active);
void move_drop_all(struct rod_engine *engine); /* the buffers, when the backend is closed */

/* ---- keep.c ---- */
int keep_open(struct rod_engine *engine, struct rod_error *err); /* the pool */
struct state_form keep_form(const struct rod_engine *engine);    /* of the files of its states */
int keep_check(const struct rod_engine *engine, const struct rod_request *request, struct rod_error *err);
/* Begins to move it into the request's slot. ROD_ESTATE: the state is at fault, and the slot as before. */
int keep_load(struct rod_engine *engine, struct active *active, struct rod_error *err);
/* Begins to move the slot's state out, for the end event. pending: the last token, if no step has read it, or -1. */
int keep_save(struct rod_engine *engine, struct active *active, int32_t pending, struct rod_error *err);

/* ---- slot.c ---- */
/* The request has a slot: it is zeroed, or its state begins to come in. Fails as keep_load does. */
int slot_prepare(struct rod_engine *engine, struct active *active, struct rod_error *err);
/* How the device samples for the request, when its slot has its state. A failure is a device fault. */
int slot_prepare_sampling(struct rod_engine *engine, const struct active *active, struct rod_error *err);

/* ---- prefix_use.c: the index is the engine thread's; failures are device faults ---- */
int prefix_use_open(struct rod_engine *engine, struct rod_error *err);
/* Called after turn_open, which names what is wrong with state_dir. */
int prefix_use_open_pinned(struct rod_engine *engine, struct rod_error *err);
/* The request has a slot and is to read its prompt: perhaps not all of it. */
int prefix_use_admit(struct rod_engine *engine, struct active *active, uint64_t now_ns, struct rod_error *err);
/* The request's slot has read up to where it stops, or a step on its way will have. */
int prefix_use_stop(struct rod_engine *engine, struct active *active, uint64_t now_ns, struct rod_error *err);
void prefix_use_generated(struct active *active, int32_t id); /* a counted token */
/* The request ends, and its slot holds the state of prompt and answer, without a pending token. A device fault shows
 * later. */
void prefix_use_answer(struct rod_engine *engine, struct active *active, int32_t pending, uint64_t now_ns);
/* Likewise of a turn that brought a whole conversation: that state is in the buffer, which its session gets, too. */
void prefix_use_turn(struct rod_engine *engine, struct active *active, struct state_buffer *buffer, uint64_t now_ns);
/* The client has left a prompt that is being read: what has been read is kept. */
void prefix_use_left(struct rod_engine *engine, struct active *active, uint64_t now_ns);
/* The buffer has arrived; it is taken over. Requests that prefix_use_next_waiting gives look again. */
void prefix_use_saved(struct rod_engine *engine, struct prefix_entry *entry, struct state_buffer *buffer);
struct active *prefix_use_next_waiting(struct rod_engine *engine); /* to be read now; NULL: nobody waits */
void prefix_use_forget(struct rod_engine *engine);                 /* entries whose conversations were removed */
void prefix_use_distrust(struct rod_engine *engine, const struct active *active); /* its logits were no numbers */

/* ---- lane_use.c: states of conversations, which the prefix cache has in files, too ---- */
int lane_use_open(struct rod_engine *engine, struct rod_error *err); /* called after prefix_use_open and turn_open */
void lane_use_gone(void *engine, uint64_t note);                     /* of prefix_config */
/* A file has a longer state than `than` tokens: the request waits for it. */
bool lane_use_look(struct rod_engine *engine, struct active *active, uint64_t than);
/* A state that came from a file and is longer takes the place of what was found: true. */
bool lane_use_take(struct rod_engine *engine, struct active *active, struct prefix_found *found);
/* The slot's state after n tokens of ids is on its way out: whether, and where, the request's conversation keeps it. */
void lane_use_place(struct rod_engine *engine, struct active *active, const int32_t *ids, size_t n, bool answer);
/* That state is in host memory. The caller keeps its reference. */
void lane_use_keep(struct rod_engine *engine, struct active *active, struct state_buffer *buffer);
/* Likewise of a state that goes out without its request: NULL: no conversation keeps it. Then, in host memory: frees
 * it. */
struct lane_kept *lane_use_detach(struct active *active);
void lane_use_keep_detached(struct rod_engine *engine, struct lane_kept *kept, struct state_buffer *buffer);
void lane_use_leave(struct rod_engine *engine, struct active *active); /* the request ends */
void lane_use_distrust(struct rod_engine *engine, const struct active *active);
/* Each request that waited: *loaded, it is to be read now; else its end
 * is in a file. NULL: no more. */
struct active *lane_use_next(struct rod_engine *engine, bool *loaded);

/* ---- flight.c: failures are device faults ---- */
/* Whether pieces of the request's prompt may be in flights: not if the device or anybody else looks at its rows. */
bool flight_may_have(const struct rod_engine *engine, const struct active *active);
/* Begins the next flight, if long prompts wait for one and none is on its way, or one that is about to end. */
int flight_start(struct rod_engine *engine, struct rod_error *err);
/* Of each flight that has ended: its prompts are that much further. */
int flight_land(struct rod_engine *engine, struct rod_error *err);
bool flight_on(const struct rod_engine *engine); /* one is on its way */
/* The request ends, in SCHED_FLYING: out of the scheduler. Its slot is free when its flights have ended. */
void flight_abandon(struct rod_engine *engine, struct active *active);
void flight_drop(struct rod_engine *engine); /* waits, also after a fault; nothing follows */

/* ---- draft_use.c ---- */
void draft_use_open(struct rod_engine *engine);
int draft_use_bind(const struct rod_engine *engine, struct active *active, struct rod_error *err);
void draft_use_generated(struct active *active, int32_t id); /* a counted token */
/* The last tokens of prompt and answer, *n of them, malloc'd, for the session's next turn; NULL: none, or no memory. */
enum { DRAFT_MAX_RECENT = 1 << 12 };
int32_t *draft_use_recent(const struct active *active, uint32_t *n);
/* Before a plan: how many draft tokens each stream's row may take along (sched_req.n_drafts). */
void draft_use_plan(struct rod_engine *engine, enum sampling_site site);
/* A step of the device's site is on its way, and another could follow it at once, without drafts: whether to wait for
 * its tokens instead, as drafts behind them would pay. Once before each plan. */
bool draft_use_expects(struct rod_engine *engine);
/* The planned row has so many: the token that it feeds and these. */
const int32_t *draft_use_tokens(struct rod_engine *engine, struct active *active, uint32_t n_drafts);
/* The request's last token is drawn: whether it is draft token i, from 1 on. Then that is read. */
bool draft_use_take(struct rod_engine *engine, struct active *active, uint32_t i);
/* A step took so long since the one before it. */
void draft_use_learn(struct rod_engine *engine, const struct step *step, uint64_t ns);
/* Of n_drafts the first n_right were right. */
void draft_use_judge(struct rod_engine *engine, struct active *active, uint32_t n_drafts, uint32_t n_right);

/* ---- shared_prefill.c ---- */
/* The request has got a slot: perhaps it need not read its prompt. A failure is this request's. */
int shared_admit(struct rod_engine *engine, struct active *active, struct rod_error *err);
/* After all admissions, before a step is planned: each waiter whose source has come to the place where they part gets a
 * copy; an idle source that has no more waiters leaves its slot. */
void shared_settle(struct rod_engine *engine);
/* The request has read its prompt: those that waited for it have their copies. */
void shared_read(struct rod_engine *engine, struct active *active, const float *logits);
/* After each of the three, until NULL: a request that has its prompt's state now and gets its first token from logits:
 * after shared_read from the logits given there, else from source_logits. */
struct active *shared_next_started(struct rod_engine *engine);
/* A piece of the request's prompt is scored: the same for its waiters, and kept for choices in the queue. */
int shared_scored(struct rod_engine *engine, struct active *active, const struct sched_row *row,
                  const struct event *scored, struct rod_error *err);
/* The request ends: waiters for its state read the prompt themselves. */
void shared_leave(struct rod_engine *engine, const struct active *active);

/* ---- turn.c ---- */
int turn_open(struct rod_engine *engine, struct rod_error *err); /* the sessions */
int turn_check(const struct rod_engine *engine, const struct rod_request *request, struct rod_error *err);
void turn_arrive(struct rod_engine *engine, struct active *active);
/* A turn that the sessions give back. */
enum turn_back {
    TURN_RUNS,      /* its session is there */
    TURN_REPLAYED,  /* its answer was given before, and is sent */
    TURN_CANCELLED, /* before it ran */
    TURN_FAILED,    /* before it ran, active->turn->err says how */
    TURN_UNSAVED,   /* it ended, but its session could not be kept: active->turn->err */
    TURN_ENDED      /* its end is kept, or it left nothing to keep */
};
enum turn_back turn_back(struct rod_engine *engine, struct active *active);
bool turn_cancel(struct rod_engine *engine, struct active *active); /* true: it is told when it comes back */
bool turn_leave(struct rod_engine *engine, struct active *active);  /* true: its end waits for the session */
void turn_take_back(struct active *active); /* one that runs is not the sessions', whatever they said */
/* It ends, and text.detok holds a character that the next turn may complete; NULL: none does. */
void turn_hold(struct active *active, const struct detok *detok);
/* A token is counted; an event leaves. */
void turn_counted(struct active *active); /* last is still the one before */
int turn_record(struct active *active, const struct rod_event *event);

/* ---- token.c: a request's next token becomes an event ---- */
/* What is to happen to a request after it. */
enum verdict_kind { VERDICT_GOES_ON, VERDICT_ENDS, VERDICT_FAILS };
struct verdict {
    enum verdict_kind kind;
    enum rod_finish reason;
    int match;       /* index of the stop string, or -1 */
    int32_t stop_id; /* the end token or stop id, or -1 */
    int32_t pending; /* the token that is counted and not read, or -1 */
};
/* VERDICT_FAILS: err says why. */
struct verdict token_take(struct rod_engine *engine, struct active *active, const struct sampler_output *picked,
                          uint64_t now_ns, struct rod_error *err);
/* The prompt is read and nothing is to be generated. */
struct verdict token_none(struct active *active, uint64_t now_ns);
/* A token's text goes through a gate of the request's grammar. */
int token_follow_grammar(const struct active *active, struct grammar_gate *gate, const struct tokenizer *tokenizer,
                         int32_t id, struct rod_error *err);
void token_send_start(struct rod_engine *engine, struct active *active); /* if the request wants to know */
/* The grammar goes on behind the beginning that the request has of its text. */
int token_begin_grammar(const struct rod_engine *engine, struct active *active, struct rod_error *err);
/* What the grammar says it "is" or "has" becomes a sentence; returns the code. */
int token_grammar_fault(const struct rod_error *fault, struct rod_error *err);

/* ---- end.c: every request ends here. The request may be gone after each of these ---- */
void end_finish(struct rod_engine *engine, struct active *active, const struct verdict *verdict);
void end_fail(struct rod_engine *engine, struct active *active, const struct rod_error *error);
void end_cancel(struct rod_engine *engine, struct active *active);
/* The state of a request that has ended is saved. Takes the buffer over. */
void end_saved(struct rod_engine *engine, struct active *active, struct state_buffer *buffer);
/* The answer's state is in host memory, for its conversation. */
void end_kept(struct rod_engine *engine, struct active *active);
/* That state is in a file. */
void end_written(struct rod_engine *engine, struct active *active);
/* Of a turn that is back: its end is kept; its session could not be kept; its answer was sent. */
void end_back(struct rod_engine *engine, struct active *active);
void end_unsaved(struct rod_engine *engine, struct active *active);
void end_replayed(struct rod_engine *engine, struct active *active);

/* ---- pace.c ---- */
int pace_measure(struct rod_engine *engine, struct rod_error *err); /* before the engine thread */

/* ---- mask_pieces.c: masks of those that a plan may take, as far as a step has time for them ---- */
void mask_pieces_begin(struct rod_engine *engine, uint64_t now_ns);
/* Whose mask is worked at next, until NULL. An error ends the request. */
struct active *mask_pieces_next(struct rod_engine *engine);
int mask_pieces_work(struct rod_engine *engine, struct active *active, struct rod_error *err);
/* Whoever lacks its mask is in SCHED_MASKING from now on, or reads its prompt up to its last piece; nobody else is. */
void mask_pieces_settle(struct rod_engine *engine);
/* Behind a draft; *mask NULL: there is no time for it. */
int mask_pieces_draft(struct rod_engine *engine, struct active *active, struct grammar_walk *walk,
                      const uint64_t **mask, struct rod_error *err);
uint64_t mask_pieces_spent(struct rod_engine *engine); /* what masks took since the last call, ns */
void mask_pieces_end(struct rod_engine *engine);
/* A step took so long since the one before it, without what masks took. */
void mask_pieces_learn(struct rod_engine *engine, uint64_t ns);

/* ---- step.c ---- */
/* Plans and runs the next step, or what may run of it. A failure is a device fault. */
int step_run(struct rod_engine *engine, uint64_t now_ns, struct rod_error *err);
/* A row of logits becomes the request's next token, or its end: whether it goes on. */
bool step_take_logits(struct rod_engine *engine, struct active *active, uint64_t position, const float *logits,
                      uint64_t now_ns);

/* ---- loop.c ---- */
void *loop_thread(void *engine);

/* ---- engine.c ---- */
/* Takes over backend and tokenizer on success. config: n_slots and max_batch_tok are the backend's by now. */
int engine_open_parts(const struct rod_engine_config *config, const struct engine_parts *parts, struct rod_engine **out,
                      struct rod_error *err);

#endif
