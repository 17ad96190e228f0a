/* sched.h - which requests run in the next step: a pure state machine in the caller's time.
 *
 *   submit -> QUEUED -> admit -> PREFILL -> (plan, commit)* -> DECODE -> (plan, commit)* -> LAST -> remove
 *                                  | ^                          ^
 *                             wait v | wait_over                | fork
 *                                 WAITING ----------------------+
 *
 *   PREFILL, DECODE, LAST -> move -> MOVING -> moved -> as before, or remove, or leave ... release
 *   PREFILL at its end, DECODE -> mask -> MASKING -> masked -> as before, or remove
 *   PREFILL -> plan_flight -> FLYING -> land -> PREFILL, or leave ... release
 *
 * A plan takes requests of one sampling site only: those whose tokens the device samples and those whose logits the
 * host must see cannot share a step. Where no device samples, all are of SITE_HOST.
 * WAITING holds a slot and waits for the state of another request that reads the same prompt.
 * MOVING holds a slot whose state is on its way in or out: no plan takes it. A request may end meanwhile (leave); its
 * slot stays taken until the state has arrived (release). FLYING holds a slot for which a flight reads pieces of a
 * prompt; it may end meanwhile, too. MASKING holds a slot and waits for its next token's mask: no plan takes or counts
 * it, so it costs nobody a step. commit may come before the step has run (look-ahead); a request with all its tokens
 * planned waits in LAST for them.
 *
 * Prompts beside streams (budget.h): the caller says what each step took (sched_took). While requests decode, prompts
 * have about as much of the time as all streams' rows, and each request that waits for its first token has as much as a
 * stream. A piece is large enough to be worth the fixed cost of a step with prompts, even if the plans between two
 * pieces then have none. A plan without prompts measures decode rows alone again when their time may have changed.
 * While very many short prompts wait, every other plan has no decode rows.
 *
 * Flights: a device may read pieces of prompts beside steps. Flights start at 8 decoding streams (flight_streams).
 * Below that, ordinary steps give a prompt more time than a flight would. There must be as many streams as long
 * prompts, too. Flights have the long prompts then, and steps have the others and the last pieces.
 *
 * Keys that share the slots: every request names an API key. Each key has a queue of its own, first come, first
 * served, and a count of what it was served: tokens of prompts when they get a slot, generated ones twice, over the
 * weight of its request. The key that was served least goes next; one that was away begins where the others are, so
 * that nobody saves slots up. With one key that is one queue.
 *
 * Who owns what: a sched_req is the caller's and stays at its address until sched_remove or sched_expire gave it back.
 * Threads: the engine thread; no I/O, no clock (now_ns is an argument), no allocation after init.
 * Invariants: a slot has at most one request; a plan has at most max_batch_tok tokens, max_out rows of logits and one
 * row a request; a prompt is split only at absolute multiples of chunk_tok, so its state does not depend on the load;
 * every admitted request that a plan may take advances within a bounded number of plans.
 */
#ifndef SCHED_H
#define SCHED_H

#include "budget.h"
#include "engine/base/list.h"
#include "engine/rodimus.h"

#define SLOTS_NONE UINT32_MAX

struct slots { /* of the backend, as numbers */
    uint32_t n, n_free;
    uint32_t
        *free;    /* [n], the first n_free are free; taken from the end, but the parked ones last, from the beginning */
    bool *used;   /* [n] */
    bool *parked; /* [n] the state in it may be wanted, once it is free */
};

enum sched_state {
    SCHED_NONE,
    SCHED_QUEUED,
    SCHED_PREFILL,
    SCHED_WAITING,
    SCHED_DECODE,
    SCHED_LAST,
    SCHED_MOVING,
    SCHED_FLYING,
    SCHED_MASKING
};
enum sampling_site { SITE_DEVICE, SITE_HOST };
enum { SCHED_N_SITES = 2, SCHED_N_KEYS = ROD_MAX_KEYS };

struct sched_req {
    struct list_link link;              /* of the list that its state names */
    enum sched_state state, moved_from; /* moved_from: in MOVING and MASKING, where it goes back to */
    uint32_t slot;                      /* in all states but NONE and QUEUED */
    enum sampling_site site;            /* the caller's */
    bool held;                          /* the caller's: its last row's token is not known yet, and no plan takes it */
    bool no_end;                        /* the caller's: no plan takes the last piece of its prompt */
    bool scored;                     /* logits are wanted for every token of the prompt; needs max_out >= chunk_tok */
    uint64_t n_prompt, pos;          /* tokens of the prompt; tokens read so far */
    uint64_t stop_tok;               /* a multiple of chunk_tok at which a piece of the prompt ends; 0 = none */
    uint64_t handover_tok;           /* another one, where other choices take over the state; 0 = none */
    bool may_fly;                    /* the caller's: pieces of its prompt may be in flights; not if it is scored */
    bool flown;                      /* some were */
    uint32_t flight_tok, behind_tok; /* in FLYING: of the flight that ends first, and of one behind it */
    bool ahead;                      /* within a plan of a flight: as if its first one had ended */
    uint32_t n_drafts;               /* the caller's: draft tokens that its next row may take along, in DECODE */
    uint64_t max_out, n_out;         /* tokens it may get, 0 = no limit; those planned */
    uint64_t deadline_ns;            /* no slot by then: expired; 0 = none */
    uint32_t key, weight;            /* below SCHED_N_KEYS; its slots go by it beside other keys' weights, 0 = 1 */
    uint64_t order;                  /* of all that were submitted */
    uint64_t submit_ns, admit_ns;
    uint64_t plan; /* the plan that last took it or passed it over */
};

static inline struct sched_req *sched_of_link(struct list_link *link) {
    return link ? LIST_OF(link, struct sched_req, link) : NULL;
}
static inline struct sched_req *sched_first(const struct list *list) { return sched_of_link(list_first(list)); }
static inline struct sched_req *sched_after(const struct list *list, const struct sched_req *req) {
    return sched_of_link(list_next(list, &req->link));
}

struct sched_key {
    struct list queue;
    uint64_t served; /* in parts of a token; compared between keys only */
};

struct sched_config {
    uint32_t n_slots, max_batch_tok, max_out, chunk_tok; /* all >= 1, chunk_tok <= max_batch_tok */
    /* Most tokens of a step that is not one prompt's alone (more wait, or a request decodes): chunk_tok to
     * max_batch_tok, which 0 stands for. */
    uint32_t shared_tok;
    uint32_t flight_tok;     /* most tokens of a flight, at least chunk_tok; 0: the device has no flights */
    uint32_t flight_streams; /* flights begin beside so many streams and more */
};

struct sched {
    struct sched_config config;
    struct prefill_budget budget[SCHED_N_SITES];
    struct slots slots;
    struct sched_key keys[SCHED_N_KEYS];
    uint32_t n_keys, n_queued; /* n_keys: those that have had a request are below it */
    uint64_t n_submitted,
        served; /* served: of the key that had the last slot, when it got it; never less than before */
    struct list waiting, last, moving, flying;
    struct list prefill[SCHED_N_SITES], decode[SCHED_N_SITES]; /* decode: the row that ran longest ago first */
    struct list masking[SCHED_N_SITES];
    uint64_t next_deadline_ns; /* no queued request expires before this */
    uint64_t n_plans[SCHED_N_SITES], n_prompt_plans[SCHED_N_SITES];
    bool left_out[SCHED_N_SITES]; /* the plan before left streams out for a burst */
    uint64_t n_marks;             /* plans of steps and flights, of all sites */
    uint32_t n_left;              /* slots without a request whose state is still on its way */
};

/* One request's rows of a step: tokens [pos, pos + n_tok) are read, logits come for the last n_out: 0 or 1, all of
 * a prompt that is scored. Of a stream the token at pos is read, those behind it are a draft, and logits come for all.
 */
struct sched_row {
    struct sched_req *req;
    uint64_t pos;
    uint32_t n_tok, n_out;
};

int sched_init(struct sched *s, const struct sched_config *config, struct rod_error *err);
void sched_fini(struct sched *s);

/* req: n_prompt >= 1, pos (0), max_out, deadline_ns, key, weight filled by the caller. */
void sched_submit(struct sched *s, struct sched_req *req, uint64_t now_ns);
/* The next queued request whose deadline has come, taken out; NULL = none. Call before sched_admit. */
struct sched_req *sched_expire(struct sched *s, uint64_t now_ns);
/* Who is next in line, in the queue; NULL = nobody. */
struct sched_req *sched_next(const struct sched *s);
/* Gives sched_next's request a slot; NULL = none waits or no slot is free. */
struct sched_req *sched_admit(struct sched *s, uint64_t now_ns);
/* The state that is left in the slot may be wanted: until another request takes it. */
void sched_park(struct sched *s, uint32_t slot);
bool sched_is_parked(const struct sched *s, uint32_t slot); /* and free */
/* A free slot that nobody waits for, as one whose request has left it: sched_release gives it back. Or SLOTS_NONE. */
uint32_t sched_borrow(struct sched *s);

/* rows: room for n_slots. Decode rows first, then prompt pieces. Returns the number of rows; 0 = nothing runs. */
uint32_t sched_plan(struct sched *s, enum sampling_site site, struct sched_row *rows);
/* The next flight: pieces without logits of the site's long prompts, which are in FLYING from now on. While one is on
 * its way this is the one behind it, whose pieces may follow that one's; the caller has no third. rows: like
 * sched_plan's. */
uint32_t sched_plan_flight(struct sched *s, enum sampling_site site, struct sched_row *rows);
/* The request's first flight has ended: its piece is read. */
void sched_land(struct sched *s, struct sched_req *req);
bool sched_site_busy(const struct sched *s, enum sampling_site site); /* a plan of it has rows */
/* An admitted request that has read nothing begins at pos. Its key is not charged for the tokens before pos. */
void sched_skip(struct sched *s, struct sched_req *req, uint64_t pos);
/* wait: an admitted request that has read nothing waits for another's state. Its key is not charged for the prompt, so
 * wait comes before anybody else is admitted. wait_over: it reads the prompt itself, or (skip) the tokens that the
 * state lacks. fork: it has the state after its prompt, and the logits of its first token. */
void sched_wait(struct sched *s, struct sched_req *req);
void sched_wait_over(struct sched *s, struct sched_req *req);
void sched_fork(struct sched *s, struct sched_req *req);
/* The row's tokens are read, now or by a step on its way. */
void sched_commit(struct sched *s, const struct sched_row *row);
/* A committed row's draft was right up to the next token, which is read. */
void sched_advance(struct sched *s, struct sched_req *req);
/* The request's last committed row, of one drawn token, did nothing: it is planned again. */
void sched_uncommit(struct sched *s, struct sched_req *req);
/* A committed step of so many decode rows and tokens of prompts took ns, from the end of the one before. */
void sched_took(struct sched *s, enum sampling_site site, uint32_t n_decode, uint64_t n_prompt_tok, uint64_t ns);
/* A guess of what so many decode rows take, until a step of them is told. */
void sched_guess(struct sched *s, enum sampling_site site, uint32_t n_decode, uint64_t ns);
/* What reading prompts takes: in steps of this site, or where none is known of another. */
const struct step_cost *sched_reading(const struct sched *s, enum sampling_site site);
/* No rows from now on: the state of its slot moves; then the request goes on where it was. */
void sched_move(struct sched *s, struct sched_req *req);
void sched_moved(struct sched *s, struct sched_req *req);
/* Its next piece, the least that it can be, is its prompt's last. */
bool sched_at_end(const struct sched *s, const struct sched_req *req);
/* No rows from now on: its next one needs a mask that is not complete; then the request goes on where it was. */
void sched_mask(struct sched *s, struct sched_req *req);
void sched_masked(struct sched *s, struct sched_req *req);
/* Finished, failed or cancelled, in any state: its slot is free at once. */
void sched_remove(struct sched *s, struct sched_req *req);
/* Removes a request whose state or flight is still on its way; returns the slot, which release gives back. */
uint32_t sched_leave(struct sched *s, struct sched_req *req);
void sched_release(struct sched *s, uint32_t slot);

#endif
