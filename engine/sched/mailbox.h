/* mailbox.h - the seam between the threads: submits and cancels in, events out, one engine thread in the middle.
 *
 * Who owns what: a submission belongs to the mailbox from push until retire; the engine thread works on it in between.
 * Events are moved through as a list. The links are inside of them: nothing is allocated after init. Threads: push,
 * cancel, return, poke, refuse, stop: any. wait, pop, started, left, retire, post: the engine thread. take: one
 * consumer. Invariants: both locks are held for a few pointer moves only, so no side waits on the other's work; at most
 * n_slots + max_queue submissions live at once. A key's submissions take places of the queue, one each, and leave
 * others something free of it (quota). However late or many at once, a submission is counted where it is pushed.
 */
#ifndef MAILBOX_H
#define MAILBOX_H

#include "engine/rodimus.h"

#include <pthread.h>

struct submission {
    struct submission *next;  /* in the list of new submissions */
    struct submission *chain; /* in the table by ticket */
    struct submission *cancel_next, *cancel_prev;
    uint64_t ticket, n_tok; /* n_tok: the prompt's tokens, for max_queue_tok */
    uint32_t key, quota;    /* quota: its key has at most so many times the free rest; 0: all of it */
    bool cancelled, cancel_listed, started, in_slot;
};

struct mailbox_event {
    struct mailbox_event *next;
};
struct mailbox_events {
    struct mailbox_event *head, *tail;
};

struct mailbox_key { /* of its live submissions those without a slot, and the tokens of those that wait for one */
    uint64_t n_places, tok;
};

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct submission *head, *tail, *cancels, *returns, *returns_tail;
    struct submission **table;
    uint32_t n_table; /* power of two */
    uint64_t last_ticket, n_live, n_waiting, waiting_tok;
    uint32_t n_slots, max_queue;
    uint64_t max_queue_tok;
    struct mailbox_key keys[ROD_MAX_KEYS];
    int refusal; /* 0, ROD_EDRAINING or ROD_EDEVICE */
    bool stop, poked;
    pthread_mutex_t out_lock;
    struct mailbox_events out;
};

struct mailbox_batch {
    struct submission *submits, *cancels, *returns;
    bool stop;
}; /* linked by next, by cancel_next, by next */

int mailbox_init(struct mailbox *m, uint32_t n_slots, uint32_t max_queue, uint64_t max_queue_tok,
                 struct rod_error *err);
void mailbox_fini(
    struct mailbox *m); /* no submission may live; events still inside are the caller's: take them first */

/* Names the submissions by tickets, consecutive ones, and hands them over, all in one pop. ROD_EQUEUEFULL,
 * ROD_EDRAINING or ROD_EDEVICE: none is taken, they stay the caller's. */
int mailbox_push_all(struct mailbox *m, struct submission *const *submissions, size_t n, uint64_t *tickets,
                     struct rod_error *err);
/* Whether one more of this key, without tokens, would be within the key's quota of the queue. */
bool mailbox_fits(struct mailbox *m, uint32_t key, uint32_t quota);
void mailbox_cancel(struct mailbox *m, uint64_t ticket); /* unknown or ended tickets are ignored */
void mailbox_refuse(struct mailbox *m, int code);        /* every later push fails with code; ROD_EDEVICE is final */
void mailbox_stop(struct mailbox *m);                    /* pop reports stop from now on */
void mailbox_poke(struct mailbox *m);                    /* the next pop, or the one that waits, returns */

/* A submission that the engine thread gave to another thread comes back to it. */
void mailbox_return(struct mailbox *m, struct submission *submission);

/* Returns when there is something to pop, or after ns. */
void mailbox_wait(struct mailbox *m, uint64_t ns);
/* Moves out what came in; wait: blocks until there is something. A cancelled submission is in submits of this or an
 * earlier pop. */
void mailbox_pop(struct mailbox *m, bool wait, struct mailbox_batch *batch);
void mailbox_started(struct mailbox *m, struct submission *submission); /* it no longer waits: it has a slot */
void mailbox_left(struct mailbox *m, struct submission *submission);    /* it has no slot any more, and lives on */
void mailbox_retire(struct mailbox *m, struct submission *submission);  /* it ended; may be freed afterwards */

void mailbox_append(struct mailbox_events *events, struct mailbox_event *event);
void mailbox_post(struct mailbox *m, struct mailbox_events *events); /* moves the whole list */
struct mailbox_event *mailbox_take(struct mailbox *m);               /* all posted ones, oldest first, linked by next */

struct mailbox_counts {
    uint64_t n_live, n_waiting, waiting_tok;
};
void mailbox_count(struct mailbox *m, struct mailbox_counts *out);

#endif
