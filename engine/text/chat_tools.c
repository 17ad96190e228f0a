/* chat_tools.c - tools, calls and results as text: messages become others that have contents alone.
 *
 * It is written twice: once to count, once into the block that the caller gets. */
#include "chat.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain {
    const struct chat *chat;
    struct rod_message *messages; /* NULL while it counts */
    char *text;
    size_t n_messages, n_text;
};

static void plain_put(struct plain *p, const char *bytes, size_t n) {
    if (p->text && n) memcpy(p->text + p->n_text, bytes, n);
    p->n_text += n;
}

static void plain_puts(struct plain *p, const char *text) { plain_put(p, text, strlen(text)); }

static void plain_begin(struct plain *p, const char *role) {
    if (p->messages) p->messages[p->n_messages] = (struct rod_message){.role = role, .content = p->text + p->n_text};
    p->n_messages++;
}

static void plain_end(struct plain *p) {
    if (!p->messages) return;
    struct rod_message *m = &p->messages[p->n_messages - 1];
    m->content_len = (size_t)(p->text + p->n_text - m->content);
}

static void plain_put_definitions(struct plain *p, const struct rod_chat *from) {
    plain_puts(p, p->chat->tools[CHAT_TOOLS_HEAD]);
    for (size_t i = 0; i < from->n_tools; i++) {
        plain_puts(p, "\n");
        plain_puts(p, from->tools[i]);
    }
    plain_puts(p, p->chat->tools[CHAT_TOOLS_TAIL]);
}

/* A string of JSON. */
static void plain_put_json(struct plain *p, const char *text, size_t n) {
    plain_puts(p, "\"");
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)text[i];
        char escaped[8];
        if (byte < ' ')
            snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        else
            snprintf(escaped, sizeof escaped, byte == '"' || byte == '\\' ? "\\%c" : "%c", byte);
        plain_puts(p, escaped);
    }
    plain_puts(p, "\"");
}

static void plain_put_call(struct plain *p, const struct rod_call *call) {
    plain_puts(p, p->chat->tools[CHAT_CALL_OPEN]);
    plain_puts(p, "\n{\"name\": ");
    plain_put_json(p, call->name, call->name_len);
    plain_puts(p, ", \"arguments\": ");
    if (call->arguments_len)
        plain_put(p, call->arguments, call->arguments_len);
    else
        plain_puts(p, "{}"); /* some clients write none so */
    plain_puts(p, "}\n");
    plain_puts(p, p->chat->tools[CHAT_CALL_CLOSE]);
}

static void plain_put_result(struct plain *p, const struct rod_message *m) {
    plain_puts(p, p->chat->tools[CHAT_RESULT_OPEN]);
    plain_puts(p, "\n");
    plain_put(p, m->content, m->content_len);
    plain_puts(p, "\n");
    plain_puts(p, p->chat->tools[CHAT_RESULT_CLOSE]);
}

static bool plain_is_result(const struct plain *p, const struct rod_message *m) {
    return p->chat->tools[0] && !strcmp(m->role, "tool");
}

/* Message i, or with its neighbours those from i on: the number of messages. */
static size_t plain_put_message(struct plain *p, const struct rod_chat *from, size_t i) {
    const struct rod_message *m = &from->messages[i];
    size_t n = 1;
    plain_begin(p, m->role);
    if (m->ids) {
        if (p->messages) p->messages[p->n_messages - 1].ids = m->ids, p->messages[p->n_messages - 1].n_ids = m->n_ids;
    } else if (plain_is_result(p, m)) {
        plain_put_result(p, m);
        for (; i + n < from->n_messages && plain_is_result(p, m + n); n++) {
            plain_puts(p, "\n");
            plain_put_result(p, m + n);
        }
    } else {
        plain_put(p, m->content, m->content_len);
        for (size_t k = 0; k < m->n_calls; k++) {
            if (m->content_len || k) plain_puts(p, "\n");
            plain_put_call(p, &m->calls[k]);
        }
    }
    plain_end(p);
    return n;
}

static void plain_put_all(struct plain *p, const struct rod_chat *from, bool with_tools) {
    size_t i = 0;
    if (with_tools) {
        const struct rod_message *first = from->n_messages ? &from->messages[0] : NULL;
        const bool is_system = first && chat_role_of(p->chat, first->role) == CHAT_SYSTEM;
        plain_begin(p, "system");
        if (is_system && first->content_len) {
            plain_put(p, first->content, first->content_len);
            plain_puts(p, "\n\n");
        }
        plain_put_definitions(p, from);
        plain_end(p);
        i = is_system;
    }
    while (i < from->n_messages) i += plain_put_message(p, from, i);
}

static int plain_check_message(const struct chat *c, const struct rod_chat *from, size_t i, struct rod_error *err) {
    const struct rod_message *m = &from->messages[i];
    const int role = chat_role_of(c, m->role);
    const size_t bad = m->content_len ? utf8_check(m->content, m->content_len) : 0;
    if (role < 0 || bad != m->content_len) return chat_refuse_message(err, i, m->role, role >= 0, bad);
    if (!m->n_calls) return 0;
    char field[64];
    snprintf(field, sizeof field, "messages[%zu].tool_calls", i);
    if (role != CHAT_ASSISTANT) return rod_fail_at(err, ROD_EINVALID, field, "%s must be an assistant's.", field);
    if (!c->tools[0])
        return rod_fail_at(err, ROD_EUNSUPPORTED, field, "%s has no place in the model's chat format.", field);
    for (size_t k = 0; k < m->n_calls; k++) {
        const struct rod_call *call = &m->calls[k];
        if (utf8_check(call->name, call->name_len) != call->name_len ||
            utf8_check(call->arguments, call->arguments_len) != call->arguments_len)
            return rod_fail_at(err, ROD_EINVALID, field, "%s is not valid UTF-8.", field);
    }
    return 0;
}

static int plain_check(const struct chat *c, const struct rod_chat *from, bool with_tools, struct rod_error *err) {
    if (!c)
        return rod_fail(err, ROD_EUNSUPPORTED, "the model has no chat format: give it a chat_template.rodimus.json");
    if (with_tools && (!c->tools[0] || !c->prefix[CHAT_SYSTEM]))
        return rod_fail_at(err, ROD_EUNSUPPORTED, "tools", "tools have no place in the model's chat format.");
    int rc = 0;
    for (size_t i = 0; !rc && i < from->n_messages; i++) rc = plain_check_message(c, from, i, err);
    return rc;
}

int chat_plain(const struct chat *chat, const struct rod_chat *from, bool with_tools, struct rod_message **out,
               size_t *n_out, struct rod_error *err) {
    with_tools = with_tools && from->n_tools;
    const int rc = plain_check(chat, from, with_tools, err);
    if (rc) return rc;
    struct plain count = {.chat = chat};
    plain_put_all(&count, from, with_tools);
    const size_t n_head = (count.n_messages + 1) * sizeof **out;
    char *block = malloc(n_head + count.n_text);
    if (!block) return rod_fail_no_memory(err);
    struct plain p = {.chat = chat, .messages = (struct rod_message *)(void *)block, .text = block + n_head};
    plain_put_all(&p, from, with_tools);
    assert(p.n_messages == count.n_messages && p.n_text == count.n_text);
    *out = p.messages;
    *n_out = p.n_messages;
    return 0;
}
