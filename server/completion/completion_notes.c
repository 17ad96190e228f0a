/* completion_notes.c - what files keep of a named conversation beside its states: its earlier answers come into the
 * recall before the prompt is made, and its own answer is written before the client gets the end of it. All on the
 * pool, as files may wait. */
#include "completion_internal.h"
#include "note.h"
#include "engine/base/bytes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 4 };

static const char *name_of(const struct completion *c) { return c->request.session.conversation; }

bool completion_notes_wait(const struct completion *c) {
    return !c->way.failed && name_of(c) && rod_conversation_durable(c->server->engine);
}

static void take_note(struct completion *c, const struct note *note) {
    if (note->kind == NOTE_ANSWER)
        recall_put(c->server->recall, c->way.tenant, note->place, &note->answer);
    else
        recall_put_tools(c->server->recall, c->way.tenant, name_of(c), note->tools, note->n_tools);
}

/* One that cannot be read, of another version, is as if it were not there. */
static void take_notes(struct completion *c, const unsigned char *bytes, size_t n) {
    struct note note;
    for (size_t at = 0, len; n - at >= LENGTH_BYTES; at += len) {
        len = bytes_get(bytes + at, LENGTH_BYTES);
        at += LENGTH_BYTES;
        assert(len <= n - at);
        if (!note_read(bytes + at, len, c->server->info->vocab_size, &note)) continue;
        take_note(c, &note);
        note_fini(&note);
    }
}

/* Without the notes more is read again, and that is all. */
static void warn(const struct completion *c, const char *what, const struct rod_error *err) {
    log_text(&c->server->log, LOG_WARN, "The notes of a conversation are not %s: %s", what, err->message);
}

void completion_notes_open(struct completion *c) {
    struct server *s = c->server;
    struct rod_error err = {0};
    struct recall_seen known = {0};
    void *bytes;
    size_t n;
    if (!completion_notes_wait(c)) return;
    if (s->recall) known = recall_get_seen(s->recall, c->way.tenant, name_of(c));
    struct rod_notes_seen seen = {known.inode, known.n_bytes, c->way.waited_ns};
    const int rc = rod_conversation_open(s->engine, c->way.tenant, name_of(c), &seen, &bytes, &n, &err);
    c->way.waited_ns = seen.waited_ns;
    if (rc) {
        warn(c, "read", &err);
        return;
    }
    if (bytes && s->recall) take_notes(c, bytes, n);
    free(bytes);
    known.inode = seen.inode;
    known.n_bytes = seen.n_bytes;
    if (s->recall) recall_put_seen(s->recall, c->way.tenant, name_of(c), &known);
}

/* ---- the answer ---- */

static void note_begin(struct buf *out, size_t *at) {
    static const unsigned char length[LENGTH_BYTES];
    *at = out->len;
    buf_add(out, length, sizeof length);
}

static void note_end(struct buf *out, size_t at) {
    if (!out->failed) bytes_put((unsigned char *)out->data + at, out->len - at - LENGTH_BYTES, LENGTH_BYTES);
}

static void put_tools(struct completion *c) {
    struct buf text = {0}, *out = &c->notes;
    size_t n, at;
    const char *const *lines = completion_head(c, &n);
    for (size_t i = 0; i < n; i++) {
        if (i) buf_putc(&text, '\n');
        buf_puts(&text, lines[i]);
    }
    if (n && !text.failed && recall_put_tools(c->server->recall, c->way.tenant, name_of(c), text.data, text.len)) {
        note_begin(out, &at);
        note_put_tools(out, text.data, text.len);
        note_end(out, at);
    }
    buf_fini(&text);
}

void completion_notes_put(struct completion *c, const struct rod_message *answer) {
    size_t at;
    if (!name_of(c)) return;
    put_tools(c);
    note_begin(&c->notes, &at);
    note_put_answer(&c->notes, c->way.place, answer);
    note_end(&c->notes, at);
    if (!rod_conversation_durable(c->server->engine)) buf_fini(&c->notes);
}

void completion_notes_write(struct completion *c) {
    struct server *s = c->server;
    struct rod_error err = {0};
    struct recall_seen known = recall_get_seen(s->recall, c->way.tenant, name_of(c));
    struct rod_notes_seen seen = {known.inode, known.n_bytes, c->way.waited_ns};
    int rc = 0;
    for (size_t at = 0, len; !rc && at < c->notes.len; at += len) {
        len = bytes_get((const unsigned char *)c->notes.data + at, LENGTH_BYTES);
        at += LENGTH_BYTES;
        rc = rod_conversation_note(s->engine, c->way.tenant, name_of(c), c->notes.data + at, len, &seen, &err);
    }
    if (rc) warn(c, "written", &err);
    known.inode = seen.inode;
    known.n_bytes = seen.n_bytes;
    recall_put_seen(s->recall, c->way.tenant, name_of(c), &known);
}
