/* calls_text.c - the public calls that turn text into tokens, and tokens into text. */
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int calls_need_tokenizer(const struct rod_engine *e, struct rod_error *err) {
    if (e->parts.tokenizer) return 0;
    return rod_fail(err, ROD_EUNSUPPORTED, "This model has no tokenizer.json: it takes and gives token ids only.");
}

int rod_encode(const struct rod_engine *e, const char *text, size_t len, bool special, int32_t **ids, size_t *n_ids,
               struct rod_error *err) {
    int rc = calls_need_tokenizer(e, err);
    return rc ? rc : tokenizer_encode(e->parts.tokenizer, text, len, special, ids, n_ids, err);
}

int rod_decode(const struct rod_engine *e, const int32_t *ids, size_t n_ids, bool skip_special, char **text,
               size_t *len, struct rod_error *err) {
    const struct tokenizer *t = e->parts.tokenizer;
    int rc = calls_need_tokenizer(e, err);
    if (rc) return rc;
    size_t cap = 16;
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0;
        bool special;
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->parts.V)
            return rod_fail(err, ROD_EINVALID, "Token id %d is outside the vocabulary of %u tokens.", ids[i],
                            e->parts.V);
        if (tokenizer_bytes(t, ids[i], &n, &special)) cap += n * 3 + 16;
    }
    char *buf = malloc(cap + 1);
    if (!buf) return rod_fail_no_memory(err);
    struct detok detok = {0};
    size_t n = 0;
    for (size_t i = 0; i < n_ids; i++) {
        size_t token_len;
        bool special;
        if (tokenizer_bytes(t, ids[i], &token_len, &special)) n += detok_push(&detok, t, ids[i], skip_special, buf + n);
    }
    n += detok_flush(&detok, buf + n);
    buf[n] = 0;
    *text = buf;
    *len = n;
    return 0;
}

const char *rod_token_bytes(const struct rod_engine *e, int32_t id, size_t *len, bool *special) {
    return e->parts.tokenizer ? tokenizer_bytes(e->parts.tokenizer, id, len, special) : NULL;
}

int rod_tokenize(const struct rod_engine *e, const char *text, size_t len, bool special, bool begin, int32_t **ids,
                 size_t *n_ids, struct rod_error *err) {
    int rc = calls_need_tokenizer(e, err);
    if (rc) return rc;
    const struct tokenizer_piece piece = {text, len, special};
    if (!begin) return tokenizer_encode_pieces(e->parts.tokenizer, &piece, 1, ids, n_ids, err);
    return tokenizer_encode(e->parts.tokenizer, text, len, special, ids, n_ids, err);
}

int rod_grammar_open(const struct rod_engine *e, uint32_t key, uint32_t quota, enum rod_grammar_kind kind,
                     const char *text, size_t len, struct rod_grammar **out, struct rod_error *err) {
    int rc = calls_need_tokenizer(e, err);
    return rc ? rc : grammar_cache_open(e->grammars, key, quota, kind, text, len, out, err);
}

/* The chat in the words of the model's format; *plain is the caller's. */
static int calls_plain(const struct rod_engine *e, const struct rod_chat *chat, bool with_tools,
                       struct rod_message **plain, size_t *n, struct rod_error *err) {
    int rc = calls_need_tokenizer(e, err);
    return rc ? rc : chat_plain(e->parts.chat, chat, with_tools, plain, n, err);
}

static enum chat_end calls_end(const struct rod_chat *chat) {
    if (chat->generation) return CHAT_END_GENERATION;
    return chat->go_on ? CHAT_END_INSIDE : CHAT_END_CLOSED;
}

int rod_chat_encode(const struct rod_engine *e, const struct rod_chat *chat, int32_t **ids, size_t *n_ids,
                    struct rod_error *err) {
    struct rod_message *plain;
    size_t n;
    int rc = calls_plain(e, chat, true, &plain, &n, err);
    if (rc) return rc;
    rc = chat_encode(e->parts.chat, e->parts.tokenizer, CHAT_BEGIN_FIRST, plain, n, calls_end(chat), ids, n_ids, err);
    free(plain);
    return rc;
}

void rod_chat_marks(const struct rod_engine *e, const struct rod_chat *chat, const int32_t *ids, size_t n_ids,
                    size_t **marks, size_t *n_marks) {
    struct rod_message *plain;
    size_t n;
    *marks = NULL;
    *n_marks = 0;
    if (calls_plain(e, chat, true, &plain, &n, NULL)) return;
    chat_marks(e->parts.chat, e->parts.tokenizer, plain, n, ids, n_ids, marks, n_marks);
    free(plain);
}

static int calls_encode_turn(const struct rod_engine *e, const struct rod_message *messages, size_t n_messages,
                             enum chat_end end, struct rod_turn *turn, int32_t **ids, size_t *n_ids,
                             struct rod_error *err) {
    const struct chat *c = e->parts.chat;
    const struct tokenizer *t = e->parts.tokenizer;
    int rc = chat_encode(c, t, CHAT_BEGIN_LATER, messages, n_messages, end, ids, n_ids, err);
    if (rc) return rc;
    if (*chat_lead(c, CHAT_BEGIN_FIRST))
        rc = chat_encode(c, t, CHAT_BEGIN_FIRST, messages, n_messages, end, &turn->if_empty, &turn->n_if_empty, err);
    if (!rc && *chat_lead(c, CHAT_BEGIN_ANSWERED))
        rc = chat_encode(c, t, CHAT_BEGIN_ANSWERED, messages, n_messages, end, &turn->if_open, &turn->n_if_open, err);
    if (!rc) return 0;
    free(*ids);
    *ids = NULL;
    return rc;
}

/* Never 0. */
static uint64_t calls_hash_tools(const struct rod_chat *chat) {
    uint64_t hash = 0;
    for (size_t i = 0; i < chat->n_tools; i++)
        hash = XXH3_64bits_withSeed(chat->tools[i], strlen(chat->tools[i]), hash + 1);
    return hash ? hash : 1;
}

int rod_chat_encode_first(const struct rod_engine *e, const struct rod_chat *chat, struct rod_turn *turn, int32_t **ids,
                          size_t *n_ids, struct rod_error *err) {
    turn->leaves_open = chat->generation || chat->go_on;
    if (chat->n_tools) turn->tools = calls_hash_tools(chat);
    return rod_chat_encode(e, chat, ids, n_ids, err);
}

/* The turn of a session that has read these tools before. */
static int calls_encode_known(const struct rod_engine *e, const struct rod_chat *chat, struct rod_turn *turn,
                              struct rod_error *err) {
    const struct chat *c = e->parts.chat;
    const struct tokenizer *t = e->parts.tokenizer;
    struct rod_message *plain;
    size_t n;
    int rc = calls_plain(e, chat, false, &plain, &n, err);
    if (rc) return rc;
    rc = chat_encode(c, t, CHAT_BEGIN_LATER, plain, n, calls_end(chat), &turn->if_known, &turn->n_if_known, err);
    if (!rc && *chat_lead(c, CHAT_BEGIN_ANSWERED))
        rc = chat_encode(c, t, CHAT_BEGIN_ANSWERED, plain, n, calls_end(chat), &turn->if_known_open,
                         &turn->n_if_known_open, err);
    free(plain);
    turn->tools = calls_hash_tools(chat);
    return rc;
}

int rod_chat_encode_turn(const struct rod_engine *e, const struct rod_chat *chat, struct rod_turn *turn, int32_t **ids,
                         size_t *n_ids, struct rod_error *err) {
    struct rod_message *plain;
    size_t n;
    int rc = calls_plain(e, chat, true, &plain, &n, err);
    if (rc) return rc;
    rc = calls_encode_turn(e, plain, n, calls_end(chat), turn, ids, n_ids, err);
    free(plain);
    turn->leaves_open = chat->generation || chat->go_on;
    if (rc || !chat->n_tools) return rc;
    rc = calls_encode_known(e, chat, turn, err);
    if (!rc) return 0;
    free(*ids);
    *ids = NULL;
    return rc;
}

int rod_chat_render(const struct rod_engine *e, const struct rod_chat *chat, char **text, size_t *len,
                    struct rod_error *err) {
    struct rod_message *plain;
    size_t n;
    int rc = calls_plain(e, chat, true, &plain, &n, err);
    if (rc) return rc;
    rc = chat_render(e->parts.chat, plain, n, calls_end(chat), text, len, err);
    free(plain);
    return rc;
}

bool rod_chat_call_tags(const struct rod_engine *e, struct rod_call_tags *out) {
    const struct chat *c = e->parts.chat;
    if (!c || !c->tools[0]) return false;
    *out = (struct rod_call_tags){c->tools[CHAT_CALL_OPEN], c->tools[CHAT_CALL_CLOSE]};
    return true;
}

int rod_fim_encode(const struct rod_engine *e, const char *before, size_t n_before, const char *after, size_t n_after,
                   int32_t **ids, size_t *n_ids, struct rod_error *err) {
    int rc = calls_need_tokenizer(e, err);
    return rc ? rc : tokenizer_encode_fim(e->parts.tokenizer, before, n_before, after, n_after, ids, n_ids, err);
}
