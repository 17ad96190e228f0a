/* calls_conversation.c - the public calls of conversations. */
#include "core.h"

static int calls_need_conversations(const struct rod_engine *e, struct rod_error *err) {
    return e->conversations
               ? 0
               : rod_fail(err, ROD_EUNSUPPORTED, "Conversations need the prefix cache: set prefix_cache_bytes.");
}

uint64_t rod_conversation_seed(const struct rod_engine *e) {
    return e->conversations ? conversations_seed(e->conversations) : 0;
}

bool rod_conversation_durable(const struct rod_engine *e) {
    return e->conversations && conversations_durable(e->conversations);
}

int rod_conversation_open(struct rod_engine *e, const char *tenant, const char *name, struct rod_notes_seen *seen,
                          void **bytes, size_t *n, struct rod_error *err) {
    *bytes = NULL;
    *n = 0;
    return e->conversations ? conversations_look(e->conversations, tenant, name, seen, bytes, n, err) : 0;
}

int rod_conversation_note(struct rod_engine *e, const char *tenant, const char *name, const void *record, size_t n,
                          struct rod_notes_seen *seen, struct rod_error *err) {
    return e->conversations ? conversations_note(e->conversations, tenant, name, record, n, seen, err) : 0;
}

int rod_conversation_list(struct rod_engine *e, const char *tenant, const char *after, size_t limit,
                          struct rod_conversation_info **infos, size_t *n, bool *more, struct rod_error *err) {
    const int rc = calls_need_conversations(e, err);
    return rc ? rc : conversations_list(e->conversations, tenant, after, limit, infos, n, more, err);
}

int rod_conversation_get(struct rod_engine *e, const char *tenant, const char *name, struct rod_conversation_info *out,
                         struct rod_error *err) {
    const int rc = calls_need_conversations(e, err);
    return rc ? rc : conversations_get(e->conversations, tenant, name, out, err);
}

int rod_conversation_delete(struct rod_engine *e, const char *tenant, const char *name, struct rod_error *err) {
    const int rc = calls_need_conversations(e, err);
    return rc ? rc : conversations_remove(e->conversations, tenant, name, err);
}
