/* note.c - see note.h. */
#include "note.h"
#include "engine/base/bytes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE_VERSION = 1 };

/* ---- to bytes ---- */

static void put_number(struct buf *out, uint64_t x, size_t n) {
    unsigned char bytes[8];
    bytes_put(bytes, x, n);
    buf_add(out, bytes, n);
}

static void put_text(struct buf *out, const char *text, size_t n) {
    assert(n <= UINT32_MAX);
    put_number(out, n, 4);
    buf_add(out, text, n);
}

void note_put_answer(struct buf *out, struct recall_place place, const struct rod_message *m) {
    assert(m->n_ids);
    put_number(out, NOTE_VERSION, 1);
    put_number(out, NOTE_ANSWER, 1);
    put_number(out, place.low, 8);
    put_number(out, place.high, 8);
    put_number(out, m->n_ids, 4);
    for (size_t i = 0; i < m->n_ids; i++) put_number(out, (uint32_t)m->ids[i], 4);
    put_text(out, m->content, m->content_len);
    put_number(out, m->n_calls, 4);
    for (size_t i = 0; i < m->n_calls; i++) {
        const struct rod_call *c = &m->calls[i];
        put_text(out, c->name, c->name_len);
        put_text(out, c->arguments, c->arguments_len);
        put_text(out, c->id ? c->id : "", c->id ? strlen(c->id) : 0);
    }
}

void note_put_tools(struct buf *out, const char *tools, size_t n) {
    assert(n);
    put_number(out, NOTE_VERSION, 1);
    put_number(out, NOTE_TOOLS, 1);
    buf_add(out, tools, n);
}

/* ---- from bytes ---- */

struct reader {
    const unsigned char *at;
    size_t left;
    bool bad;
};

static const unsigned char *take(struct reader *r, size_t n) {
    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    const unsigned char *from = r->at;
    r->at += n;
    r->left -= n;
    return from;
}

static uint64_t take_number(struct reader *r, size_t n) {
    const unsigned char *from = take(r, n);
    return from ? bytes_get(from, n) : 0;
}

/* A count of things of at least so many bytes, which must be there. */
static size_t take_count(struct reader *r, size_t each) {
    const uint64_t n = take_number(r, 4);
    if (n * each > r->left) r->bad = true;
    return r->bad ? 0 : n;
}

static const char *take_text(struct reader *r, size_t *n) {
    *n = take_count(r, 1);
    return (const char *)take(r, *n);
}

/* Into the note's memory, with a NUL behind it. */
static bool take_id(struct reader *r, char **to, const char **id) {
    size_t n;
    const char *text = take_text(r, &n);
    *id = n ? *to : NULL;
    if (!n) return !r->bad;
    if (memchr(text, 0, n)) return false;
    memcpy(*to, text, n);
    (*to)[n] = 0;
    *to += n + 1;
    return true;
}

static bool take_ids(struct reader *r, size_t n, uint32_t n_vocab, int32_t *ids) {
    for (size_t i = 0; i < n; i++) {
        const uint64_t id = take_number(r, 4);
        if (id >= n_vocab) return false;
        ids[i] = (int32_t)id;
    }
    return n != 0;
}

static bool take_calls(struct reader *r, size_t n, struct rod_call *calls, char *texts) {
    for (size_t i = 0; i < n; i++) {
        calls[i].name = take_text(r, &calls[i].name_len);
        calls[i].arguments = take_text(r, &calls[i].arguments_len);
        if (!take_id(r, &texts, &calls[i].id)) return false;
    }
    return true;
}

static bool read_answer(struct reader *r, uint32_t n_vocab, struct note *out) {
    struct rod_message *m = &out->answer;
    out->place.low = take_number(r, 8);
    out->place.high = take_number(r, 8);
    m->role = "assistant";
    m->n_ids = take_count(r, 4);
    struct reader ids = *r; /* read once it is known how much memory all takes */
    take(r, 4 * m->n_ids);
    m->content = take_text(r, &m->content_len);
    m->n_calls = take_count(r, 12);
    if (r->bad || n_vocab > INT32_MAX) return false;
    out->memory = malloc(m->n_calls * sizeof *m->calls + m->n_ids * sizeof *m->ids + r->left + 1);
    if (!out->memory) return false;
    struct rod_call *calls = out->memory;
    int32_t *said = (int32_t *)(calls + m->n_calls);
    m->calls = calls;
    m->ids = said;
    return take_ids(&ids, m->n_ids, n_vocab, said) && take_calls(r, m->n_calls, calls, (char *)(said + m->n_ids));
}

bool note_read(const void *bytes, size_t n, uint32_t n_vocab, struct note *out) {
    struct reader r = {.at = bytes, .left = n};
    const bool known = take_number(&r, 1) == NOTE_VERSION;
    const uint64_t kind = take_number(&r, 1);
    bool ok = false;
    *out = (struct note){0};
    if (known && kind == NOTE_ANSWER) {
        out->kind = NOTE_ANSWER;
        ok = read_answer(&r, n_vocab, out) && !r.bad && !r.left;
    } else if (known && kind == NOTE_TOOLS) {
        *out = (struct note){.kind = NOTE_TOOLS, .tools = (const char *)r.at, .n_tools = r.left};
        ok = r.left && !memchr(r.at, 0, r.left);
    }
    if (!ok) note_fini(out);
    return ok;
}

void note_fini(struct note *note) {
    free(note->memory);
    *note = (struct note){0};
}
