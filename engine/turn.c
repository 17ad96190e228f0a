/* turn.c - a request that is a session's turn: what it goes on from, and what it leaves to the session.
 *
 * A turn's request is the engine's, then the sessions' until its session is there (away), the engine's while it runs,
 * and the sessions' again until its end is kept (away); they give it back through the mailbox. Only then its end is
 * posted.
 */
#include "core.h"
#include "store.h"
#include "engine/base/test_hooks.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open ---- */

static void turn_give_back(void *arg, struct session_turn *turn) {
    struct rod_engine *e = arg;
    struct active *a = turn->user;
    mailbox_return(&e->mailbox, &a->submission);
}

static void turn_log(void *arg, int level, const char *line) { engine_log(arg, level, "%s", line); }

static int turn_begin(void *arg, struct session_turn *turn, struct rod_error *err);

/* States of other models, and of other layouts of the store, are never met. */
static struct state_home turn_home(const struct rod_engine *e) {
    char below[2 * sizeof e->parts.fingerprint + 5] = "v1/";
    size_t n = 3;
    for (size_t i = 0; i < sizeof e->parts.fingerprint; i++, n += 2)
        snprintf(below + n, sizeof below - n, "%02x", e->parts.fingerprint[i]);
    snprintf(below + n, sizeof below - n, "/");
    return state_home_below(&e->config.store->home, below);
}

int turn_open(struct rod_engine *e, struct rod_error *err) {
    if (!e->states) return 0;
    if (e->config.store) e->home = turn_home(e);
    struct sessions_config config = {.dir = e->config.state_dir,
                                     .home = e->home.calls ? &e->home : NULL,
                                     .disk_bytes = e->config.state_disk_bytes,
                                     .beside_bytes = &e->conversation_bytes,
                                     .ttl_s = e->config.session_ttl_s,
                                     .max_sessions = e->config.max_sessions,
                                     .keep_turns = e->config.session_keep_turns,
                                     .lazy = e->config.session_lazy,
                                     .reject = e->config.session_reject,
                                     .form = keep_form(e),
                                     .pool = e->states,
                                     .begin = turn_begin,
                                     .back = turn_give_back,
                                     .log = turn_log,
                                     .arg = e};
    e->test_conflicts = test_hooks_conflicts();
    const int rc = sessions_open(&config, &e->sessions, err);
    if (!rc) state_pool_on_full(e->states, sessions_make_room, e->sessions);
    return rc;
}

/* ---- submit ---- */

static int turn_check_ids(const struct rod_engine *e, const int32_t *ids, size_t n, struct rod_error *err) {
    if (e->config.max_prompt_tok && n > e->config.max_prompt_tok)
        return rod_fail_at(err, ROD_ETOOLONG, "prompt", "The prompt has more tokens than the limit.");
    for (size_t i = 0; ids && i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->parts.V)
            return rod_fail_at(err, ROD_EINVALID, "prompt", "A token id is outside the vocabulary.");
    return 0;
}

int turn_check(const struct rod_engine *e, const struct rod_request *r, struct rod_error *err) {
    if (!e->sessions) return rod_fail_at(err, ROD_EUNSUPPORTED, "session_id", "This device keeps no states.");
    if (r->state || r->keep_state)
        return rod_fail_at(err, ROD_EINVALID, "state", "A session's turn has the session's state.");
    if (r->n_prompt_logprobs >= 0)
        return rod_fail_at(err, ROD_EUNSUPPORTED, "prompt_logprobs", "A session's prompt cannot be scored.");
    int rc = sessions_check(e->sessions, r->turn, err);
    if (!rc) rc = turn_check_ids(e, r->turn->if_empty, r->turn->n_if_empty, err);
    if (!rc) rc = turn_check_ids(e, r->turn->if_open, r->turn->n_if_open, err);
    if (!rc) rc = turn_check_ids(e, r->turn->if_known, r->turn->n_if_known, err);
    if (!rc) rc = turn_check_ids(e, r->turn->if_known_open, r->turn->n_if_known_open, err);
    return rc;
}

void turn_arrive(struct rod_engine *e, struct active *a) {
    assert(!a->session.in_sessions && !a->session.ran && a->sched.state == SCHED_NONE);
    a->session.in_sessions = true;
    a->session.turn->waited_ns = a->waited_ns;
    sessions_arrive(e->sessions, a->session.turn);
}

/* ---- its session is there; on a thread of the sessions ---- */

/* The ids that fit how the session stands: empty, with an answer left open, with these tools read before. NULL: the
 * request's own. */
static int32_t *turn_prompt(const struct rod_turn *t, bool empty, bool open, uint64_t tools, size_t *n) {
    const bool known = t->tools && t->tools == tools;
    if (empty) {
        *n = t->n_if_empty;
        return t->if_empty;
    }
    if (known) {
        const bool closes = open && t->if_known_open;
        *n = closes ? t->n_if_known_open : t->n_if_known;
        return closes ? t->if_known_open : t->if_known;
    }
    *n = t->n_if_open;
    return open ? t->if_open : NULL;
}

uint64_t rod_turn_tokens(const struct rod_turn *turn, const struct rod_session_info *s, size_t n_ids) {
    size_t n;
    const bool other = turn_prompt(turn, s->n_tok == 0, s->open, s->tools, &n) != NULL;
    return s->n_tok + s->pending + (other ? n : n_ids);
}

static void turn_choose_prompt(struct rod_request *r, bool empty, bool open, uint64_t tools) {
    struct rod_turn *t = r->turn;
    size_t n;
    int32_t *ids = turn_prompt(t, empty, open, tools, &n);
    if (!ids) return;
    int32_t **const all[] = {&t->if_empty, &t->if_open, &t->if_known, &t->if_known_open};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (*all[i] == ids) *all[i] = NULL; /* it is the request's now */
    free(r->prompt);
    r->prompt = ids;
    r->n_prompt = n;
    while (r->n_marks && r->marks[r->n_marks - 1] >= r->n_prompt) r->n_marks--; /* hints for the other prompt */
}

static struct rod_state *turn_state(const struct rod_engine *e, const struct session_snapshot *p) {
    struct rod_state *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    memcpy(s->layout, e->backend_info.state_id, sizeof s->layout);
    s->n_tok = p->n_tok;
    s->pending = p->pending;
    s->buffer = state_buffer_ref(p->buffer);
    return s;
}

static int turn_begin(void *arg, struct session_turn *turn, struct rod_error *err) {
    struct rod_engine *e = arg;
    struct active *a = turn->user;
    struct rod_request *r = a->request;
    const struct session_snapshot *p = turn->snapshot;
    assert(!r->state && a->sched.state == SCHED_NONE);
    if (r->turn->whole && p->n_tok)
        return rod_fail_at(err, ROD_ESTATE, "session_id",
                           "The session has text already, and the turn brings all of it.");
    turn_choose_prompt(r, p->n_tok == 0, turn->open, turn->tools);
    if (!r->n_prompt && p->pending < 0)
        return rod_fail_at(err, ROD_EINVALID, "prompt",
                           "The turn has no new tokens, and the session's last turn left none to go on from.");
    if (p->n_tok && !(r->state = turn_state(e, p))) return rod_fail_no_memory(err);
    r->keep_state = !r->turn->beside;
    a->draft.before = p->recent;
    a->draft.n_before = p->n_recent;
    int rc = keep_check(e, r, err);
    if (!rc) rc = active_bind(e, a, err);
    a->draft.before = NULL; /* the snapshot's */
    if (rc) return rc;
    a->session.token_hash = state_file_hash_tokens(p->token_hash, a->prompt, a->n_prompt);
    if (!r->n_prompt) { /* the text goes on where it was cut */
        memcpy(a->text.detok.held, p->held, p->n_held);
        a->text.detok.n_held = p->n_held;
    }
    turn->open = r->turn->leaves_open;
    if (r->turn->tools) turn->tools = r->turn->tools;
    if (!r->turn->idempotency_key) return 0;
    if (r->turn->label && session_answer_label(&turn->answer, r->turn->label)) return rod_fail_no_memory(err);
    if (r->turn->text && session_answer_text(&turn->answer, r->turn->text)) return rod_fail_no_memory(err);
    return 0;
}

/* ---- while it runs ---- */

void turn_take_back(struct active *a) { a->session.in_sessions = false; }

void turn_hold(struct active *a, const struct detok *detok) { a->session.held = detok ? *detok : (struct detok){0}; }

void turn_counted(struct active *a) {
    if (a->n_generated > 1) a->session.token_hash = state_file_hash_tokens(a->session.token_hash, &a->last, 1);
}

int turn_record(struct active *a, const struct rod_event *event) {
    return a->request->turn->idempotency_key ? session_answer_add(&a->session.turn->answer, event) : 0;
}

/* ---- its end ---- */

static int turn_compare_seen(const void *a, const void *b) {
    const struct session_seen *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Where the conversation stands now; the buffer becomes the point's. */
static struct session_snapshot *turn_new_snapshot(struct active *a) {
    struct rod_state *s = a->end->pub.state;
    struct session_snapshot *p = session_snapshot_new(a->counts.n);
    if (!p) return NULL;
    p->n_tok = s->n_tok;
    p->pending = s->pending;
    p->token_hash = a->session.token_hash;
    if (s->pending < 0 && a->n_generated) p->token_hash = state_file_hash_tokens(p->token_hash, &a->last, 1);
    p->seed = a->request->sampling.seed;
    p->n_held = a->session.held.n_held;
    memcpy(p->held, a->session.held.held, sizeof p->held);
    for (uint32_t i = 0; i < a->counts.n; i++)
        p->seen[i] = (struct session_seen){a->counts.ids[i], a->counts.n_generated[i]};
    qsort(p->seen, p->n_seen, sizeof *p->seen, turn_compare_seen);
    p->recent = draft_use_recent(a, &p->n_recent);
    if (p->pending >= 0 && p->n_recent) p->n_recent--; /* it is the first token of the next turn's prompt */
    p->buffer = s->buffer;
    s->buffer = NULL;
    return p;
}

static void turn_name_session(struct rod_event *event, const struct session_turn *t) {
    memcpy(event->session, t->ask->session, strlen(t->ask->session) + 1);
    event->session_version = t->metadata.version;
    event->session_unseen = t->unseen;
}

bool turn_leave(struct rod_engine *e, struct active *a) {
    struct session_turn *t = a->session.turn;
    struct rod_event *end = &a->end->pub;
    assert(!a->session.in_sessions && a->sched.state == SCHED_NONE);
    if (t->stage != SESSION_STAGE_RUN) return false;
    assert(!a->session.ran);
    bool commit = end->kind == ROD_EVENT_FINISH && end->reason != ROD_FINISH_CANCEL;
    if (t->ask->beside) { /* the sessions have nothing of it */
        if (commit) turn_name_session(end, t);
        return false;
    }
    session_snapshot_release(t->snapshot);
    t->snapshot = commit ? turn_new_snapshot(a) : NULL;
    if (commit && (!t->snapshot || turn_record(a, end))) {
        t->rc = rod_fail_no_memory(&t->err);
        commit = false;
    }
    rod_state_free(end->state);
    end->state = NULL;
    a->session.in_sessions = a->session.ran = true;
    t->waited_ns = a->waited_ns;
    sessions_end(e->sessions, t, commit);
    return true;
}

bool turn_cancel(struct rod_engine *e, struct active *a) {
    if (!a->session.in_sessions) return false;
    a->session.cancelled = true;
    a->session.in_sessions = !sessions_cancel(e->sessions, a->session.turn);
    return a->session.in_sessions;
}

/* ---- it is back ---- */

/* The answer that was given before is this one's. */
static void turn_send_replay(struct rod_engine *e, struct active *a) {
    struct session_turn *t = a->session.turn;
    for (struct mailbox_event *at = t->replay.head, *next; at; at = next) {
        next = at->next;
        struct rod_event *event = &event_of_link(at)->pub;
        event->ticket = a->submission.ticket;
        event->user = a->request->user;
        if (event->kind == ROD_EVENT_FINISH) turn_name_session(event, t);
        mailbox_append(&e->events, at);
    }
    t->replay = (struct mailbox_events){0};
}

/* To the client it is as if another server had committed it. */
static void turn_test_conflict(struct rod_engine *e, struct session_turn *t) {
    if (!e->test_conflicts) return;
    e->test_conflicts--;
    t->rc = rod_fail(&t->err, ROD_ECONFLICT, "RODIMUS_TEST_CONFLICTS is set.");
}

enum turn_back turn_back(struct rod_engine *e, struct active *a) {
    struct session_turn *t = a->session.turn;
    assert(a->session.in_sessions && a->sched.state == SCHED_NONE);
    a->session.in_sessions = false;
    a->waited_ns = t->waited_ns;
    if (a->session.ran) {
        const bool finished = a->end->pub.kind == ROD_EVENT_FINISH && a->end->pub.reason != ROD_FINISH_CANCEL;
        if (finished && !t->rc) turn_test_conflict(e, t);
        if (finished && t->rc) return TURN_UNSAVED;
        if (finished) turn_name_session(&a->end->pub, t);
        return TURN_ENDED;
    }
    if (a->session.cancelled) return TURN_CANCELLED;
    if (t->rc) return TURN_FAILED;
    if (!t->replay.head) return TURN_RUNS;
    turn_send_replay(e, a);
    return TURN_REPLAYED;
}
