/* completion_recall.c - a chat's earlier answers as the tokens that were said, and its own answer kept for the next. */
#include "completion_internal.h"
#include "engine/base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void completion_recall_find(struct completion *c) {
    struct api_request *q = &c->request;
    assert(!c->turn.asked && q->n_messages);
    if (!c->server->recall || !q->end.generation) return; /* a text that goes on is read as it stands */
    const struct recall_scope scope = {.tenant = c->way.tenant,
                                       .salt = q->session.cache_salt,
                                       .tools = (const char *const *)q->tools.lines,
                                       .n_tools = q->tools.n_head};
    c->way.place = recall_find(c->server->recall, &scope, q->messages, q->n_messages);
    c->answer.keeps_items = true;
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
    const struct completion *c = choice->completion;
    const struct answer_choice *shown = &c->answer.choices[choice->index];
    if (!c->answer.keeps_items || shown->failed) return;
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
    if (!joined.failed && (!n || (said && calls))) recall_put(c->server->recall, c->way.tenant, c->way.place, &answer);
    free(said);
    free(calls);
    buf_fini(&joined);
}
