/* completion_cache.c - where in a chat's tokens the prefix cache keeps the state, as the client asks with
 * cache_control: the chat is cut there and becomes tokens once more, and what both have in common is the place. */
#include "completion_internal.h"

#include <stdlib.h>
#include <string.h>

/* How many tokens of the prompt are those of the chat up to the mark; 0: it is not in the prompt. */
static size_t place_of_mark(struct completion *c, const struct completion_prompt *p, const struct api_cache_mark *mark,
                            struct rod_message *cut) {
    const struct api_request *q = &c->request;
    const char *first = q->messages[0].role;
    const bool is_system = !strcmp(first, "system") || !strcmp(first, "developer"); /* definitions stand at its end */
    struct rod_chat chat = {.messages = q->messages, .n_messages = is_system, .n_tools = mark->n_tools};
    size_t n_head;
    int32_t *ids;
    size_t n, same = 0;
    chat.tools = completion_head(c, &n_head);
    if (mark->n_tools > n_head) return 0;
    if (!mark->n_tools) {
        struct rod_message *last = &cut[mark->message];
        for (size_t i = 0; i <= mark->message; i++) cut[i] = q->messages[i];
        if (mark->len < last->content_len) {
            last->n_calls = 0; /* calls stand behind all of the content */
            last->ids = NULL;
        }
        last->content_len = mark->len;
        chat.messages = cut;
        chat.n_messages = mark->message + 1;
        chat.n_tools = n_head;
    }
    if (rod_chat_encode(c->server->engine, &chat, &ids, &n, NULL)) return 0; /* no memory: a hint less */
    while (same < n && same < p->shown.n_ids && ids[same] == p->shown.ids[same]) same++;
    free(ids);
    return same;
}

void completion_cache_places(struct completion *c, struct completion_prompt *p) {
    const struct api_cache *cache = &c->request.cache;
    struct rod_message *cut = cache->n ? calloc(c->request.n_messages, sizeof *cut) : NULL;
    for (uint32_t i = 0; cut && i < cache->n; i++) {
        const size_t at = place_of_mark(c, p, &cache->marks[i], cut);
        if (!at) continue;
        p->breakpoints[p->n_breakpoints++] = (struct rod_breakpoint){at, (uint64_t)cache->marks[i].ttl_s * 1000000000};
    }
    free(cut);
}
