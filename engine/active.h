/* active.h - an active request: one that was submitted, with the memory of all its steps.
 *
 * Who owns what: an active request is the mailbox's from submit on and freed where it ends (end.c). What its steps need
 * is made on the submitting thread, so that running out of memory is an answer to a submit. Threads: the submitter
 * until the mailbox has it, then the engine thread; a session's turn that is away: the sessions'.
 */
#ifndef ACTIVE_H
#define ACTIVE_H

#include "engine/draft/draft_lookup.h"
#include "engine/draft/draft_policy.h"
#include "engine/grammar/grammar_gate.h"
#include "engine/sched/mailbox.h"
#include "engine/state/prefix.h"
#include "engine/sched/request.h"
#include "engine/backend/backend.h"
#include "engine/sched/sched.h"
#include "engine/session/sessions.h"
#include "engine/conversation/conversations.h"
#include "engine/text/text.h"

/* What score.c keeps: a prompt's scores, and bad words. */
struct active_score {
    size_t n_sent;   /* scores of its prompt that it was sent, whichever request read it */
    int32_t *recent; /* [n_recent] the last tokens generated, newest last: as many as a bad word looks at */
    uint32_t n_recent, recent_cap;
};

/* What shared_prefill.c keeps. */
struct active_shared {
    struct active *source;        /* the request whose state this one waits for, NULL = none */
    uint64_t copied_tok;          /* it has its copy of the state after so many tokens, and waits to start; 0 = no */
    struct mailbox_events scores; /* its prompt's so far, for those that wait for a slot */
};

/* What prefix_use.c keeps. */
struct active_cache {
    uint64_t cached_tok;       /* tokens that were not read */
    uint64_t created_tok;      /* tokens up to the last breakpoint whose state it left; 0 = none */
    uint64_t created_long_tok; /* tokens from the breakpoint before to one that is held for long, all together */
    uint64_t saved_tok;        /* those of the last prefix entry that it began from or left */
    bool cacheable;            /* it may leave prefix entries */
    bool has_answer;           /* an answer is in its state */
    bool waiting;              /* for a prefix entry on its way */
    bool waited;               /* it has done so, and does not again */
    uint64_t stops[PREFIX_MAX_STOPS];
    uint32_t n_stops, next_stop; /* next_stop: the one after sched.stop_tok */
    uint64_t way_tok;            /* beside these it stops at each multiple of so many tokens; 0 = at none */
    int32_t *generated_ids;      /* [n_generated] while it is cacheable */
    size_t n_generated, generated_cap;
};

/* What lane_use.c keeps. */
struct active_lane {
    uint64_t since; /* conversations_now when it looked */
    bool looked;    /* for a state in a file */
    bool keeps;     /* the state on its way is kept at `place` */
    bool ends;      /* its end waits until that state is in a file */
    struct conversation_place place;
    struct conversation_job *job; /* a file is read or written, and this request waits for it */
    uint64_t job_ns;              /* since then */
    struct state_buffer *loaded;  /* of a file, after loaded_place's tokens */
    struct conversation_place loaded_place;
};

/* What draft_use.c keeps. */
struct active_draft {
    bool on;
    struct draft_lookup lookup; /* of a session's turn, too, that has no drafts: the next one may have some */
    const int32_t *before;      /* [n_before] until it is bound: the last tokens of its session, which has them */
    uint32_t n_before;
    struct draft_chances chances;
    struct draft_offer offer;            /* of the next plan */
    uint32_t kind;                       /* of the last draft, draft_kind() */
    int32_t expected;                    /* the token on its way, for which a plan was put off, or -1 */
    uint32_t n_expected, expected_kind;  /* how much of a draft behind it is a try */
    int32_t tok[1 + BACKEND_MAX_DRAFTS]; /* the token before it, and the draft */
    uint32_t n_drafted, n_accepted;
};

/* What turn.c keeps, of a session's turn. */
struct active_session {
    struct session_turn *turn; /* NULL: a request without a session */
    bool in_sessions;          /* the sessions have it */
    bool ran;                  /* it has been in a slot */
    bool cancelled;            /* while the sessions had it */
    uint64_t token_hash;       /* of all tokens read */
    struct detok held;         /* at its end: of a character that is not complete */
};

/* The engine's files write what is here; a feature's part is written by its own file alone. */
struct active {
    struct submission submission;
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
    struct grammar_gate gate;     /* whether the request's grammar is on now, and where the text stands in it */
    const int32_t *wait_ids;      /* tokens that may open the gate, where the device draws: of the engine's tags, or */
    int32_t *own_wait_ids;        /* these */
    size_t n_wait_ids;
    bool mask_waits; /* within a turn: its next token needs a mask that is not complete yet */
    bool waits;      /* the device waits for the host behind the last token */
    uint32_t masked; /* bit n: the device holds what it draws behind n drafts to a mask */
    int32_t last;    /* the token that the next step feeds, where the host feeds it */
    uint32_t row[2]; /* its row of each step on its way, if that row names it */
    uint32_t n_generated;
    uint64_t submit_ns, first_ns, last_ns;
    uint64_t waited_ns;             /* for a store, as rod_request.waited_ns */
    struct event *end;              /* made at submit, so that every request can end whatever the memory */
    bool ended;                     /* end says how, and goes out when the state is saved */
    struct rod_state *output_state; /* room for what end carries, of keep_state */
    struct active_score score;
    struct active_shared shared;
    struct active_cache cache;
    struct active_lane lane;
    struct active_draft draft;
    struct active_session session;
};

struct rod_engine;
struct engine_parts;

void active_add_end_ids(struct active *active, const struct engine_parts *parts); /* the model's, once */
int active_new(const struct rod_engine *engine, struct rod_request *request, struct active **out,
               struct rod_error *err);
/* What follows from the state that it goes on from: before it is scheduled. */
int active_bind(const struct rod_engine *engine, struct active *active, struct rod_error *err);
void active_free(struct active *active); /* its request too, unless taken out before */

static inline struct active *active_of_submission(struct submission *submission) {
    return (struct active *)(void *)((char *)submission - offsetof(struct active, submission));
}
static inline struct active *active_of_sched(struct sched_req *req) {
    return (struct active *)(void *)((char *)req - offsetof(struct active, sched));
}

#endif
