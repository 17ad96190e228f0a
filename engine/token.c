/* token.c - a token of a request becomes text and an event; the verdict says whether the request goes on. */
#include "core.h"

#include <assert.h>
#include <string.h>

int token_grammar_fault(const struct rod_error *fault, struct rod_error *err) {
    if (fault->code != ROD_EINVALID) return rod_fail(err, fault->code, "%s", fault->message);
    return rod_fail(err, ROD_EINVALID, "The structured output's grammar %s.", fault->message);
}

int token_follow_grammar(const struct active *a, struct grammar_gate *gate, const struct tokenizer *tokenizer,
                         int32_t id, struct rod_error *err) {
    size_t len = 0;
    bool special = false;
    const char *bytes = tokenizer_bytes(tokenizer, id, &len, &special);
    const bool in_text = bytes && (!special || a->request->keep_special); /* a tag may be a special token */
    struct rod_error fault;
    int rc = in_text ? grammar_gate_push(gate, bytes, len, &fault) : 0;
    return rc ? token_grammar_fault(&fault, err) : 0;
}

/* Nothing may follow: the end is the next token, whatever else the request says of it. */
static void token_only_end(struct active *a, const struct engine_parts *parts) {
    a->request->min_tokens = 0;
    if (a->request->ignore_eos) a->request->ignore_eos = false, active_add_end_ids(a, parts);
}

int token_begin_grammar(const struct rod_engine *e, struct active *a, struct rod_error *err) {
    const struct rod_request *r = a->request;
    struct rod_error fault;
    if (!r->grammar || !r->n_grammar_begun) return 0;
    assert(!r->grammar_open && !a->n_generated);
    const int rc = grammar_walk_begin(&a->gate.walk, r->grammar_begun, r->n_grammar_begun, &fault);
    if (!rc && grammar_gate_finished(&a->gate)) token_only_end(a, &e->parts);
    if (rc != ROD_EINVALID) return rc ? rod_fail(err, rc, "%s", fault.message) : 0;
    return rod_fail_at(err, rc, "messages", "messages end with the beginning of an answer, and the format %s.",
                       fault.message);
}

static bool token_is_of(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

void token_send_start(struct rod_engine *e, struct active *a) {
    struct event *event = a->request->report_start ? event_new(0, 0, 0, 0) : NULL;
    if (!event) return; /* without memory nobody is told: it is no part of the answer */
    event->pub.kind = ROD_EVENT_START;
    event->pub.ticket = a->submission.ticket;
    event->pub.user = a->request->user;
    mailbox_append(&e->events, &event->link);
}

/* The only allocation in a step: a message that moves to the consumer. */
static int token_send(struct rod_engine *e, struct active *a, enum rod_event_kind kind,
                      const struct sampler_output *picked) {
    const struct text *t = &a->text;
    const size_t n_text = kind == ROD_EVENT_DELTA ? t->n_out : 0;
    struct event *event = event_new(n_text, 1, picked->n_top, 0);
    if (!event) return ROD_ENOMEM;
    struct rod_event *pub = &event->pub;
    pub->kind = kind;
    pub->ticket = a->submission.ticket;
    pub->user = a->request->user;
    if (n_text) memcpy(pub->text, t->buf, n_text);
    pub->text_len = n_text;
    pub->text[n_text] = 0;
    struct rod_token *token = &pub->tokens[0];
    token->id = picked->id;
    token->logprob = picked->logprob;
    token->n_top = picked->n_top;
    if (picked->n_top) memcpy(token->top, picked->top, picked->n_top * sizeof *token->top);
    if (a->session.turn && turn_record(a, pub)) {
        event_free(event);
        return ROD_ENOMEM;
    }
    mailbox_append(&e->events, &event->link);
    return 0;
}

static struct verdict verdict_of(enum verdict_kind kind, enum rod_finish reason, int match, int32_t stop_id,
                                 int32_t pending) {
    return (struct verdict){kind, reason, match, stop_id, pending};
}
static struct verdict verdict_fails(void) { return verdict_of(VERDICT_FAILS, ROD_FINISH_STOP, -1, -1, -1); }

/* An end token, or a stop id that is left out, is neither text nor a counted token. */
static struct verdict token_take_end(struct rod_engine *e, struct active *a, const struct sampler_output *picked,
                                     struct rod_error *err) {
    if (a->request->report_end && token_send(e, a, ROD_EVENT_END_TOKEN, picked)) {
        rod_fail_no_memory(err);
        return verdict_fails();
    }
    return verdict_of(VERDICT_ENDS, ROD_FINISH_STOP, -1, picked->id, -1);
}

/* It is counted wherever somebody counts. */
static void token_count(struct active *a, int32_t id) {
    a->n_generated++;
    if (a->session.turn) turn_counted(a);
    a->last = id;
    score_generated(a, id);
    draft_use_generated(a, id);
    prefix_use_generated(a, id);
    if (a->counts.n_table) sampler_counts_add(&a->counts, id, 1);
}

struct verdict token_take(struct rod_engine *e, struct active *a, const struct sampler_output *picked, uint64_t now_ns,
                          struct rod_error *err) {
    const struct rod_request *r = a->request;
    const struct engine_parts *parts = &e->parts;
    assert(!a->ended && a->sched.slot < e->backend_info.n_slots);
    assert(picked->id >= 0 && (uint32_t)picked->id < parts->V);
    if (!a->first_ns) a->first_ns = now_ns;
    a->last_ns = now_ns;

    const bool is_end = !r->ignore_eos && token_is_of(parts->eos_ids, parts->n_eos_ids, picked->id);
    const bool is_stop = !is_end && token_is_of(r->stop_ids, r->n_stop_ids, picked->id);
    if (is_end || (is_stop && !r->include_stop)) return token_take_end(e, a, picked, err);
    token_count(a, picked->id);
    assert(a->n_generated <= r->max_tokens);
    bool finished = false;
    if (r->grammar && !is_stop) { /* a stop id is no part of the grammar's text */
        if (token_follow_grammar(a, &a->gate, parts->tokenizer, picked->id, err)) return verdict_fails();
        finished = grammar_gate_finished(&a->gate);
    }
    const bool in_tag = r->grammar_open && a->gate.on; /* stop strings are for the text around */
    const bool scan = a->n_generated > r->min_tokens && !in_tag;
    const int match = text_push(&a->text, picked->id, !r->keep_special && !is_stop, scan);
    if (token_send(e, a, ROD_EVENT_DELTA, picked)) {
        rod_fail_no_memory(err);
        return verdict_fails();
    }
    if (match >= 0) return verdict_of(VERDICT_ENDS, ROD_FINISH_STOP, match, -1, picked->id);
    if (finished) return verdict_of(VERDICT_ENDS, ROD_FINISH_STOP, -1, -1, picked->id);
    if (is_stop) return verdict_of(VERDICT_ENDS, ROD_FINISH_STOP, -1, picked->id, picked->id);
    if (a->n_generated == r->max_tokens) return verdict_of(VERDICT_ENDS, ROD_FINISH_LENGTH, -1, -1, picked->id);
    return verdict_of(VERDICT_GOES_ON, ROD_FINISH_STOP, -1, -1, -1);
}

struct verdict token_none(struct active *a, uint64_t now_ns) {
    assert(!a->ended && !a->n_generated && !a->first_ns);
    a->first_ns = a->last_ns = now_ns;
    return verdict_of(VERDICT_ENDS, ROD_FINISH_LENGTH, -1, -1, -1);
}
