/* session_answer.c - see session_answer.h. */
#include "session_answer.h"
#include "engine/base/array.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_FIXED = 8 + 16 + 4, LABEL = 16 }; /* RECORD_FIXED: behind its length; LABEL: in an event's kind */
enum { HAS_STOP = 1, HAS_COUNTS = 2 };          /* flags of a FINISH */

/* ---- bytes ---- */

static unsigned char *answer_put_bytes(unsigned char *to, const void *from, size_t n) {
    if (n) memcpy(to, from, n);
    return to + n;
}

static unsigned char *answer_put_f32(unsigned char *to, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bytes_put(to, bits, 4);
}

struct answer_reader {
    const unsigned char *at, *end;
    bool bad;
};

static const unsigned char *answer_take(struct answer_reader *r, size_t n) {
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return r->at - n;
}

static uint64_t answer_get(struct answer_reader *r, size_t n) {
    const unsigned char *from = answer_take(r, n);
    return from ? bytes_get(from, n) : 0;
}

static float answer_get_f32(struct answer_reader *r) {
    const uint32_t bits = (uint32_t)answer_get(r, 4);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- writing a body ---- */

/* Counts that most answers do not have; without them a body is as it was before they were known. */
static bool answer_has_counts(const struct rod_event *e) {
    return e->created_tok || e->created_long_tok || e->accepted_tok || e->rejected_tok;
}

static size_t answer_event_bytes(const struct rod_event *e) {
    size_t n = 1 + 4 + e->text_len;
    if (e->kind != ROD_EVENT_FINISH) return n + 12 + e->tokens[0].n_top * 8u;
    return n + 1 + 4 + 1 + 4 + (e->stop_string ? strlen(e->stop_string) : 0) + 24 + (answer_has_counts(e) ? 32 : 0);
}

int session_answer_label(struct session_answer *a, const char *label) {
    const size_t n = strlen(label);
    assert(!a->n); /* before the events */
    if (!ARRAY_RESERVE(a->bytes, a->cap, a->n, 1 + 4 + n)) return ROD_ENOMEM;
    unsigned char *to = (unsigned char *)a->bytes + a->n;
    answer_put_bytes(bytes_put(bytes_put(to, LABEL, 1), n, 4), label, n);
    a->n += 1 + 4 + n;
    return 0;
}

int session_answer_text(struct session_answer *a, const char *text) {
    struct rod_token none = {0};
    const struct rod_event e = {.kind = ROD_EVENT_END_TOKEN,
                                .text = (char *)(uintptr_t)text,
                                .text_len = strlen(text),
                                .tokens = &none,
                                .n_tokens = 1};
    return session_answer_add(a, &e);
}

int session_answer_add(struct session_answer *a, const struct rod_event *e) {
    assert(e->kind == ROD_EVENT_DELTA || e->kind == ROD_EVENT_END_TOKEN || e->kind == ROD_EVENT_FINISH);
    assert(a->n <= a->cap && a->n <= SESSION_ANSWER_BODY_BYTES);
    const size_t n = answer_event_bytes(e);
    if (a->too_long || n > SESSION_ANSWER_BODY_BYTES - a->n) {
        a->too_long = true;
        return 0;
    }
    if (!ARRAY_RESERVE(a->bytes, a->cap, a->n, n)) return ROD_ENOMEM;
    unsigned char *to = (unsigned char *)a->bytes + a->n;
    to = bytes_put(to, (uint64_t)e->kind, 1);
    to = bytes_put(to, e->text_len, 4);
    to = answer_put_bytes(to, e->text, e->text_len);
    if (e->kind == ROD_EVENT_FINISH) {
        const size_t n_stop = e->stop_string ? strlen(e->stop_string) : 0;
        to = bytes_put(to, (uint64_t)e->reason, 1);
        to = bytes_put(to, (uint32_t)e->stop_id, 4);
        to = bytes_put(to, (e->stop_string ? HAS_STOP : 0) | (answer_has_counts(e) ? HAS_COUNTS : 0), 1);
        to = bytes_put(to, n_stop, 4);
        to = answer_put_bytes(to, e->stop_string, n_stop);
        to = bytes_put(to, e->prompt_tok, 8);
        to = bytes_put(to, e->cached_tok, 8);
        to = bytes_put(to, e->completion_tok, 8);
        if (answer_has_counts(e)) {
            to = bytes_put(to, e->created_tok, 8);
            to = bytes_put(to, e->created_long_tok, 8);
            to = bytes_put(to, e->accepted_tok, 8);
            to = bytes_put(to, e->rejected_tok, 8);
        }
    } else {
        const struct rod_token *t = &e->tokens[0];
        to = bytes_put(to, (uint32_t)t->id, 4);
        to = answer_put_f32(to, t->logprob);
        to = bytes_put(to, t->n_top, 4);
        for (uint32_t i = 0; i < t->n_top; i++)
            to = answer_put_f32(bytes_put(to, (uint32_t)t->top[i].id, 4), t->top[i].logprob);
    }
    a->n += n;
    assert(to == (unsigned char *)a->bytes + a->n); /* as many bytes as were measured */
    return 0;
}

void session_answer_free(struct session_answer *a) {
    free(a->bytes);
    *a = (struct session_answer){0};
}

/* ---- reading a body ---- */

/* A log-probability that JSON has a number for: no NaN and no +inf. -inf is one of a token that cannot come. */
static bool answer_get_logprob(struct answer_reader *r, float *out) {
    *out = answer_get_f32(r);
    return *out <= FLT_MAX;
}

/* One event; token and top lie in the caller's memory. False: malformed. */
static bool answer_read_event(struct answer_reader *r, struct rod_event *e, struct rod_token *token,
                              struct rod_logprob top[SESSION_ANSWER_MAX_TOP], size_t *n_stop) {
    *e = (struct rod_event){.kind = (enum rod_event_kind)answer_get(r, 1), .stop_id = -1, .tokens = token};
    *token = (struct rod_token){.top = top};
    e->text_len = (size_t)answer_get(r, 4);
    const unsigned char *text = answer_take(r, e->text_len);
    e->text = (char *)text;                                                    /* pointed into, copied by the caller */
    if (text && utf8_check(e->text, e->text_len) != e->text_len) return false; /* it goes to a client */
    if (e->kind == ROD_EVENT_FINISH) {
        const uint64_t reason = answer_get(r, 1);
        e->reason = (enum rod_finish)reason;
        e->stop_id = (int32_t)(uint32_t)answer_get(r, 4);
        const uint64_t flags = answer_get(r, 1);
        const bool has_stop = flags & HAS_STOP;
        *n_stop = (size_t)answer_get(r, 4);
        const unsigned char *stop = answer_take(r, *n_stop);
        e->stop_string = has_stop ? (char *)stop : NULL;
        if (stop && utf8_check((const char *)stop, *n_stop) != *n_stop) return false;
        e->prompt_tok = answer_get(r, 8);
        e->cached_tok = answer_get(r, 8);
        e->completion_tok = answer_get(r, 8);
        if (flags & HAS_COUNTS) {
            e->created_tok = answer_get(r, 8);
            e->created_long_tok = answer_get(r, 8);
            e->accepted_tok = answer_get(r, 8);
            e->rejected_tok = answer_get(r, 8);
        }
        return !r->bad && reason <= ROD_FINISH_LENGTH && flags <= (HAS_STOP | HAS_COUNTS) && (has_stop || !*n_stop);
    }
    if (e->kind != ROD_EVENT_DELTA && e->kind != ROD_EVENT_END_TOKEN) return false;
    e->n_tokens = 1;
    token->id = (int32_t)(uint32_t)answer_get(r, 4);
    if (!answer_get_logprob(r, &token->logprob)) return false;
    const uint64_t n_top = answer_get(r, 4);
    if (n_top > SESSION_ANSWER_MAX_TOP) return false;
    token->n_top = (uint32_t)n_top;
    for (uint32_t i = 0; i < n_top; i++) {
        top[i].id = (int32_t)(uint32_t)answer_get(r, 4);
        if (!answer_get_logprob(r, &top[i].logprob)) return false;
    }
    return !r->bad;
}

/* The label before the events: *n 0 where there is none. False: malformed. */
static bool answer_read_label(struct answer_reader *r, const char **label, size_t *n) {
    *label = NULL;
    *n = 0;
    if (r->at == r->end || *r->at != LABEL) return true;
    answer_get(r, 1);
    *n = (size_t)answer_get(r, 4);
    *label = (const char *)answer_take(r, *n);
    return *label && *n && *n <= SESSION_ANSWER_MAX_LABEL && !memchr(*label, 0, *n) && utf8_check(*label, *n) == *n;
}

bool session_answer_check(const void *body, size_t n) {
    struct answer_reader r = {body, (const unsigned char *)body + n, false};
    const char *label;
    size_t n_label;
    if (!answer_read_label(&r, &label, &n_label)) return false;
    struct rod_event e = {0};
    struct rod_token token;
    struct rod_logprob top[SESSION_ANSWER_MAX_TOP];
    size_t n_stop;
    do {
        if (!answer_read_event(&r, &e, &token, top, &n_stop)) return false;
    } while (e.kind != ROD_EVENT_FINISH);
    return r.at == r.end;
}

static struct event *answer_copy_event(const struct rod_event *from, size_t n_stop, const char *label, size_t n_label) {
    const uint32_t n_top = from->n_tokens ? from->tokens[0].n_top : 0;
    const size_t extra = n_stop + 1 + n_label + 1;
    struct event *event = event_new(from->text_len, from->n_tokens, n_top, extra);
    if (!event) return NULL;
    struct rod_event *e = &event->pub;
    char *stop = event_extra(event, extra);
    if (n_label) {
        e->label = memcpy(stop + n_stop + 1, label, n_label);
        e->label[n_label] = 0;
    }
    e->kind = from->kind;
    if (from->text_len) memcpy(e->text, from->text, from->text_len);
    e->text_len = from->text_len;
    e->text[from->text_len] = 0;
    if (from->n_tokens) {
        struct rod_logprob *top = e->tokens[0].top;
        e->tokens[0] = from->tokens[0];
        e->tokens[0].top = top;
        if (n_top) memcpy(top, from->tokens[0].top, n_top * sizeof *top);
    }
    e->reason = from->reason;
    e->stop_id = from->stop_id;
    if (from->stop_string) {
        memcpy(stop, from->stop_string, n_stop);
        stop[n_stop] = 0;
        e->stop_string = stop;
    }
    e->prompt_tok = from->prompt_tok;
    e->cached_tok = from->cached_tok;
    e->completion_tok = from->completion_tok;
    e->created_tok = from->created_tok;
    e->created_long_tok = from->created_long_tok;
    e->accepted_tok = from->accepted_tok;
    e->rejected_tok = from->rejected_tok;
    e->replayed = true;
    return event;
}

int session_answer_events(const void *body, size_t n, struct mailbox_events *events, struct rod_error *err) {
    struct answer_reader r = {body, (const unsigned char *)body + n, false};
    struct mailbox_events own = {0};
    struct rod_event e = {0};
    struct rod_token token;
    struct rod_logprob top[SESSION_ANSWER_MAX_TOP];
    const char *label;
    size_t n_stop = 0, n_label;
    int rc = answer_read_label(&r, &label, &n_label) ? 0 : rod_fail(err, ROD_ESTATE, "The stored answer is damaged.");
    while (!rc && e.kind != ROD_EVENT_FINISH) {
        if (!answer_read_event(&r, &e, &token, top, &n_stop)) {
            rc = rod_fail(err, ROD_ESTATE, "The stored answer is damaged.");
            break;
        }
        struct event *event = answer_copy_event(&e, e.kind == ROD_EVENT_FINISH ? n_stop : 0, label, n_label);
        n_label = 0; /* of the first alone */
        if (event)
            mailbox_append(&own, &event->link);
        else
            rc = rod_fail_no_memory(err);
    }
    for (struct mailbox_event *at = own.head, *next; !rc && at; at = next) {
        next = at->next;
        mailbox_append(events, at);
    }
    if (rc) events_free(&own);
    return rc;
}

/* Behind `to`, with a NUL; the reader's bytes have room for it, as each text has a length before it there. */
static char *answer_put_text(char *to, const char *text, size_t n) {
    if (n) memcpy(to, text, n);
    to[n] = 0;
    return to + n;
}

int session_answer_read(const struct session_answer_found *found, struct rod_answer *out, struct rod_error *err) {
    struct answer_reader r = {found->body, (const unsigned char *)found->body + found->n, false};
    struct rod_event e = {0};
    struct rod_token token;
    struct rod_logprob top[SESSION_ANSWER_MAX_TOP];
    const char *label;
    size_t n_label, n_stop;
    *out = (struct rod_answer){.version = found->version};
    memcpy(out->digest, found->digest, sizeof out->digest);
    if (!found->n) return 0;
    char *bytes = malloc(found->n), *to = bytes;
    if (!bytes) return rod_fail_no_memory(err);
    bool good = answer_read_label(&r, &label, &n_label);
    if (good) to = answer_put_text(to, label, n_label) + 1;
    char *output = to;
    while (good && e.kind != ROD_EVENT_FINISH && (good = answer_read_event(&r, &e, &token, top, &n_stop))) {
        if (e.kind == ROD_EVENT_END_TOKEN && (!e.text_len || to != output)) continue;
        to = answer_put_text(to, e.text, e.text_len);
        if (e.kind != ROD_EVENT_END_TOKEN) continue;
        out->text = output;
        out->n_text = e.text_len;
        output = ++to;
    }
    if (!good) {
        free(bytes);
        return rod_fail(err, ROD_ESTATE, "The stored answer is damaged.");
    }
    out->label = bytes;
    out->output = output;
    out->n_output = (size_t)(to - output);
    out->reason = e.reason;
    out->prompt_tok = e.prompt_tok;
    out->cached_tok = e.cached_tok;
    out->completion_tok = e.completion_tok;
    return 0;
}

/* ---- lists ---- */

struct answer_record {
    const unsigned char *bytes; /* with its length */
    size_t n;
    struct session_answer_found found;
    const char *key;
    size_t n_key;
};

static bool answers_read_record(struct answer_reader *r, struct answer_record *out) {
    out->bytes = r->at;
    const size_t n = (size_t)answer_get(r, 4);
    const unsigned char *rest = answer_take(r, n);
    if (!rest || n < RECORD_FIXED) return false;
    out->n = n + 4;
    struct answer_reader in = {rest, rest + n, false};
    out->found.version = answer_get(&in, 8);
    out->found.digest = answer_take(&in, 16);
    out->n_key = (size_t)answer_get(&in, 4);
    out->key = (const char *)answer_take(&in, out->n_key);
    if (in.bad || !out->n_key || out->n_key > SESSION_ANSWER_MAX_KEY || memchr(out->key, 0, out->n_key)) return false;
    out->found.body = in.at;
    out->found.n = (size_t)(in.end - in.at);
    return true;
}

struct session_answers *session_answers_ref(struct session_answers *a) {
    if (a) {
        const unsigned refs = atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
        assert(refs);
    }
    return a;
}

void session_answers_release(struct session_answers *a) {
    if (!a) return;
    const unsigned refs = atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel);
    assert(refs);
    if (refs == 1) free(a);
}

static struct session_answers *answers_new(size_t n) {
    struct session_answers *list = malloc(sizeof *list + n);
    if (!list) return NULL;
    atomic_init(&list->refs, 1);
    list->n = n;
    return list;
}

int session_answers_parse(const void *bytes, size_t n, struct session_answers **out, struct rod_error *err) {
    struct answer_reader r = {bytes, (const unsigned char *)bytes + n, false};
    *out = NULL;
    for (struct answer_record record; r.at < r.end;)
        if (!answers_read_record(&r, &record) ||
            (record.found.n && !session_answer_check(record.found.body, record.found.n)))
            return rod_fail(err, ROD_ESTATE, "the list of answers is malformed");
    if (!n) return 0;
    struct session_answers *list = answers_new(n);
    if (!list) return rod_fail_no_memory(err);
    memcpy(list->bytes, bytes, n);
    *out = list;
    return 0;
}

bool session_answers_first(const struct session_answers *a, struct session_answer_found *out) {
    if (!a) return false;
    struct answer_reader r = {a->bytes, a->bytes + a->n, false};
    struct answer_record record;
    if (!answers_read_record(&r, &record)) return false;
    *out = record.found;
    return true;
}

bool session_answers_find(const struct session_answers *a, const char *key, struct session_answer_found *out) {
    if (!a) return false;
    struct answer_reader r = {a->bytes, a->bytes + a->n, false};
    const size_t n_key = strlen(key);
    bool found = false;
    for (struct answer_record record; r.at < r.end && answers_read_record(&r, &record);)
        if (record.n_key == n_key && !memcmp(record.key, key, n_key)) {
            *out = record.found;
            found = true;
        }
    return found;
}

/* How many of the oldest records go, and how many after them lose their bodies, so that one more has room. */
static void answers_make_room(const struct session_answers *a, size_t *n_drop, size_t *n_bare) {
    struct answer_reader r = {a->bytes, a->bytes + a->n, false};
    size_t n = 0, bodies = 0;
    for (struct answer_record record; r.at < r.end && answers_read_record(&r, &record); n++) bodies += record.found.n;
    *n_drop = n >= SESSION_ANSWER_LIST_N ? n + 1 - SESSION_ANSWER_LIST_N : 0;
    *n_bare = 0;
    r = (struct answer_reader){a->bytes, a->bytes + a->n, false};
    for (struct answer_record record; bodies > SESSION_ANSWER_LIST_BYTES && answers_read_record(&r, &record); ++*n_bare)
        bodies -= record.found.n;
}

static unsigned char *answers_put_record(unsigned char *to, const char *key, size_t n_key,
                                         const struct session_answer_found *found, size_t n_body) {
    to = bytes_put(to, RECORD_FIXED + n_key + n_body, 4);
    to = bytes_put(to, found->version, 8);
    to = answer_put_bytes(to, found->digest, 16);
    to = bytes_put(to, n_key, 4);
    to = answer_put_bytes(to, key, n_key);
    return answer_put_bytes(to, found->body, n_body);
}

struct session_answers *session_answers_add(const struct session_answers *a, const char *key, const uint8_t digest[16],
                                            uint64_t version, const struct session_answer *answer) {
    const struct session_answer_found added = {version, digest, answer->bytes, answer->too_long ? 0 : answer->n};
    const size_t n_key = strlen(key), before = a ? a->n : 0;
    assert(n_key && n_key <= SESSION_ANSWER_MAX_KEY && answer->n <= SESSION_ANSWER_BODY_BYTES);
    size_t n_drop = 0, n_bare = 0;
    if (a) answers_make_room(a, &n_drop, &n_bare);
    struct session_answers *list = answers_new(before + 4 + RECORD_FIXED + n_key + added.n);
    if (!list) return NULL;
    unsigned char *to = list->bytes;
    if (a) {
        struct answer_reader r = {a->bytes, a->bytes + a->n, false};
        size_t i = 0;
        for (struct answer_record record; r.at < r.end && answers_read_record(&r, &record); i++)
            if (i >= n_drop)
                to = answers_put_record(to, record.key, record.n_key, &record.found, i < n_bare ? 0 : record.found.n);
    }
    to = answers_put_record(to, key, n_key, &added, added.n);
    assert((size_t)(to - list->bytes) <= list->n); /* old records only shrink */
    list->n = (size_t)(to - list->bytes);
    return list;
}

struct session_answers *session_answers_go_back(const struct session_answers *a, uint64_t version) {
    struct session_answers *list = answers_new(a->n);
    if (!list) return NULL;
    unsigned char *to = list->bytes;
    struct answer_reader r = {a->bytes, a->bytes + a->n, false};
    for (struct answer_record record; r.at < r.end && answers_read_record(&r, &record);)
        to = answers_put_record(to, record.key, record.n_key, &record.found,
                                record.found.version > version ? 0 : record.found.n);
    list->n = (size_t)(to - list->bytes);
    assert(list->n <= a->n);
    return list;
}
