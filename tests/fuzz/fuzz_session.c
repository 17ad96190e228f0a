/* fuzz_session.c - what stands behind a state file's checksums: the metadata of a session, the tokens that were seen,
 * the list of answers and their events. What is accepted is what the writer makes of it, and can be read again. */
#include "engine/session/store/session_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { V = 1000 };

static size_t state_bytes(const void *arg, uint64_t n_tok) {
    (void)arg;
    return n_tok < 10 ? (size_t)n_tok : 10;
}

static const struct state_form form = {.layout = "fuzzed", .V = V, .state_bytes = state_bytes};

static void free_events(struct mailbox_events *events) {
    for (struct mailbox_event *at = events->head, *next; at; at = next) {
        next = at->next;
        event_free(event_of_link(at));
    }
}

/* What is seen of an answer are the texts of its events, in order. */
static void check_seen(const uint8_t *body, size_t n, const struct mailbox_events *events) {
    static const uint8_t digest[16];
    struct rod_answer seen;
    size_t at = 0;
    if (session_answer_read(&(struct session_answer_found){.digest = digest, .body = body, .n = n}, &seen, NULL))
        abort();
    for (struct mailbox_event *one = events->head; one; one = one->next) {
        const struct rod_event *e = &event_of_link(one)->pub;
        if (e->kind == ROD_EVENT_END_TOKEN) continue;
        if (e->text_len > seen.n_output - at || memcmp(seen.output + at, e->text, e->text_len)) abort();
        at += e->text_len;
    }
    if (at != seen.n_output || seen.output[at] || (seen.text && seen.text[seen.n_text])) abort();
    if (strlen(seen.label) > SESSION_ANSWER_MAX_LABEL) abort();
    free(seen.label);
}

/* An answer's events are written again to the same bytes. */
static void check_body(const uint8_t *body, size_t n) {
    struct mailbox_events events = {0};
    struct rod_error err = {0};
    if (!session_answer_check(body, n)) return;
    if (session_answer_events(body, n, &events, &err)) abort();
    check_seen(body, n, &events);
    struct session_answer again = {0};
    const char *label = event_of_link(events.head)->pub.label;
    if (label && session_answer_label(&again, label)) abort();
    for (struct mailbox_event *at = events.head; at; at = at->next)
        if (session_answer_add(&again, &event_of_link(at)->pub)) abort();
    /* a stop string ends at its NUL */
    if (again.n > n || (again.n == n && memcmp(again.bytes, body, n))) abort();
    session_answer_free(&again);
    free_events(&events);
}

static void check_list(const uint8_t *bytes, size_t n) {
    struct session_answers *list;
    struct session_answer_found found;
    struct rod_error err = {0};
    if (session_answers_parse(bytes, n, &list, &err)) {
        if (!err.message[0] || list) abort();
        return;
    }
    const struct session_answer answer = {.bytes = (char[]){1, 2, 3}, .n = 3};
    struct session_answers *more = session_answers_add(list, "a key", form.fingerprint, 7, &answer);
    if (!more || !session_answers_find(more, "a key", &found) || found.version != 7 || found.n != 3) abort();
    session_answers_find(list, "k", &found);
    session_answers_release(more);
    session_answers_release(list);
}

/* Sections of a header, as a parsed file has them: n_tok, then the lengths of four sections, then these. */
static void check_session(const uint8_t *data, size_t size) {
    if (size < 8) return;
    struct state_file state = {.n_tok = data[0] % 16, .payload = {data, data[1] % 16}, .version = data[2]};
    const uint8_t *at = data + 8;
    size_t left = size - 8;
    struct state_bytes *sections[] = {&state.pending_text, &state.pending_ids, &state.sampler, &state.meta};
    for (int i = 0; i < 4; i++) {
        size_t n = i < 3 ? data[3 + i] : left;
        if (i == 1) n &= ~(size_t)3; /* the parser of the file sees to that */
        if (n > left) n = left & (i == 1 ? ~(size_t)3 : SIZE_MAX);
        *sections[i] = (struct state_bytes){at, n};
        at += n, left -= n;
    }
    struct session_metadata metadata;
    struct session_snapshot *snapshot;
    struct session_answers *answers;
    struct rod_error err = {0};
    if (session_file_read(&form, &state, "fuzzed", &metadata, &snapshot, &answers, &err)) {
        if (!err.message[0] || snapshot || answers) abort();
        return;
    }
    void *header;
    size_t n_header;
    struct state_buffer buffer = {.n_bytes = state.payload.n, .bytes = (void *)(uintptr_t)state.payload.data};
    snapshot->buffer = state.payload.n ? &buffer : NULL;
    if (session_file_write(&form, &metadata, snapshot, answers, NULL, &header, &n_header, &err)) abort();
    struct state_file again;
    const struct state_file_expected any = {NULL, NULL};
    if (state_file_parse_header(header, n_header, n_header + state.payload.n, "again", &any, &again, &err)) abort();
    for (int i = 0; i < 4; i++) {
        const struct state_bytes *now[] = {&again.pending_text, &again.pending_ids, &again.sampler, &again.meta};
        if (now[i]->n != sections[i]->n || memcmp(now[i]->data, sections[i]->data, now[i]->n)) abort();
    }
    snapshot->buffer = NULL;
    free(header);
    session_snapshot_release(snapshot);
    session_answers_release(answers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (data[0] % 3 == 0) check_body(data + 1, size - 1);
    if (data[0] % 3 == 1) check_list(data + 1, size - 1);
    if (data[0] % 3 == 2) check_session(data + 1, size - 1);
    return 0;
}
