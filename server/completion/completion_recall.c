/* completion_recall.c - a chat's earlier answers as the tokens that were said, and its own answer kept for the next. */
#include "completion_internal.h"
#include "engine/base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Whether one message is an answer of this server: then so are all before it. */
static bool find(struct completion *c) {
    struct api_request *q = &c->request;
    struct recall_scope scope = {.tenant = c->way.tenant, .salt = q->session.cache_salt};
    bool found = false;
    scope.tools = completion_head(c, &scope.n_tools);
    c->way.place = recall_find(c->server->recall, &scope, q->messages, q->n_messages);
    for (size_t i = 0; !found && i < q->n_messages; i++) found = q->messages[i].ids;
    return found;
}

static void drop_head(struct completion *c) {
    free(c->way.kept.text);
    free(c->way.kept.lines);
    c->way.kept = (struct completion_head){0};
}

/* The i-th latest tools of the thread. */
static bool take_head(struct completion *c, size_t i) {
    struct completion_head *kept = &c->way.kept;
    size_t len;
    assert(!kept->n);
    kept->text = recall_tools(c->server->recall, c->way.tenant, c->request.session.conversation, i, &len);
    if (!kept->text) return false;
    for (size_t at = 0; at <= len; at++) kept->n += at == len || kept->text[at] == '\n';
    kept->lines = calloc(kept->n, sizeof *kept->lines);
    if (!kept->lines) {
        drop_head(c);
        return false;
    }
    char *line = kept->text;
    for (size_t k = 0; k < kept->n; k++) {
        kept->lines[k] = line;
        line += strcspn(line, "\n");
        *line++ = 0;
    }
    return true;
}

/* A request without tools in a thread that has them, as an agent's for a summary, keeps the head of its prompt: else
 * all of it would be read again. An answer that stood behind this head proves the thread. */
void completion_recall_find(struct completion *c) {
    struct api_request *q = &c->request;
    assert((!c->turn.asked || q->session.whole) && q->n_messages);
    if (!c->server->recall || !q->end.generation) return; /* a text that goes on is read as it stands */
    c->answer.keeps_items = true;
    bool found = find(c);
    if (found || q->tools.n || !q->session.conversation) return;
    for (size_t i = 0; !found && take_head(c, i); i++) {
        found = find(c);
        if (!found) drop_head(c);
    }
    if (!found) find(c); /* its place */
    c->answer.usage.kept_tools = c->way.kept.n;
}

/* Without memory the answer is not kept. */
void completion_recall_take(struct completion_choice *choice, const struct rod_event *e) {
    struct answer *a = &choice->completion->answer;
    if (!a->keeps_items || !e->n_tokens) return;
    struct rod_ids *said = &choice->said;
    a->keeps_items = ARRAY_RESERVE(said->ids, choice->said_cap, said->n_ids, e->n_tokens);
    for (size_t i = 0; a->keeps_items && i < e->n_tokens; i++) said->ids[said->n_ids++] = e->tokens[i].id;
}

void completion_recall_put(const struct completion_choice *choice) {
    struct completion *c = choice->completion;
    const struct answer_choice *shown = &c->answer.choices[choice->index];
    if (!c->answer.keeps_items || shown->failed || c->turn.replayed) return;
    struct buf joined = {0};
    size_t n;
    struct api_call *calls = answer_calls(shown, &n);
    struct rod_call *said = n ? calloc(n, sizeof *said) : NULL;
    struct rod_message answer = {
        .role = "assistant", .calls = said, .n_calls = n, .ids = choice->said.ids, .n_ids = choice->said.n_ids};
    answer.content = answer_text(shown, &joined, &answer.content_len);
    for (size_t i = 0; said && calls && i < n; i++)
        said[i] = (struct rod_call){.name = calls[i].name,
                                    .name_len = strlen(calls[i].name),
                                    .arguments = calls[i].arguments,
                                    .arguments_len = calls[i].len,
                                    .id = calls[i].id};
    if (!joined.failed && answer.n_ids && (!n || (said && calls))) {
        recall_put(c->server->recall, c->way.tenant, c->way.place, &answer);
        completion_notes_put(c, &answer);
    }
    free(said);
    free(calls);
    buf_fini(&joined);
}
