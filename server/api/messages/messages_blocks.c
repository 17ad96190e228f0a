/* messages_blocks.c - the blocks of a message's body become messages; see messages_parts.h. */
#include "messages_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_mark(const json_t *block) {
    const json_t *mark = json_object_get(block, "cache_control");
    return mark && !json_is_null(mark);
}

/* A member that must be a string. */
static const json_t *block_text(const struct messages_place *at, const json_t *block, const char *member) {
    const json_t *text = json_object_get(block, member);
    char what[48];
    if (json_is_string(text)) return text;
    snprintf(what, sizeof what, "must have a string %s", member);
    messages_bad(at, what);
    return NULL;
}

struct texts { /* of one message: its content so far, with the places in it that the cache is to keep */
    struct buf text;
    size_t n;
    bool system;
    struct api_cache cache; /* in the message, whose number is not known yet */
};

/* Behind a block before it stands a line break. */
static void begin_text(struct texts *out) {
    if (out->n++) buf_putc(&out->text, '\n');
}

static bool end_text(const struct messages_place *at, const json_t *block, struct texts *out) {
    return messages_mark(at, block, (struct api_cache_mark){.len = out->text.len}, &out->cache);
}

static void put_text(struct texts *out, const json_t *text) {
    buf_add(&out->text, json_string_value(text), json_string_length(text));
}

/* Claude Code puts a line before the system's text. Its digits change with each conversation, so that the prefix cache
 * would find nothing behind them. Returns the line's bytes; 0: no such line. */
static size_t billing_line(const json_t *text) {
    static const char begin[] = "x-anthropic-billing-header:";
    const char *at = json_string_value(text);
    const size_t len = json_string_length(text);
    if (len < sizeof begin - 1 || memcmp(at, begin, sizeof begin - 1) != 0) return 0;
    const char *end = memchr(at, '\n', len);
    return end ? (size_t)(end - at) + 1 : len;
}

static bool take_text(const struct messages_place *at, const json_t *block, struct texts *out) {
    const json_t *text = block_text(at, block, "text");
    if (!text) return false;
    const size_t skipped = out->system ? billing_line(text) : 0, n = json_string_length(text) - skipped;
    if (skipped) field_ignore(at->fields, API_IGNORED_BILLING_HEADER);
    if (n || !skipped) begin_text(out);
    buf_add(&out->text, json_string_value(text) + skipped, n);
    return end_text(at, block, out);
}

/* The model learns that it does not see something: without a word it would speak of what it cannot know. */
static void put_unseen(const struct api_fields *p, enum api_ignored what, struct buf *out) {
    buf_addf(out, "[%s: not shown, this model reads text alone]", api_ignored_names[what]);
    field_ignore(p, what);
}

static bool take_unseen(const struct messages_place *at, const json_t *block, enum api_ignored what,
                        struct texts *out) {
    begin_text(out);
    put_unseen(at->fields, what, &out->text);
    return end_text(at, block, out);
}

static bool bad_member(const struct messages_place *at, const char *member, const char *what) {
    char name[sizeof at->name + 64];
    snprintf(name, sizeof name, "%s.%s", at->name, member);
    return field_bad(at->fields, name, "%s", what);
}

/* Texts of a document's source, or of a result of a search, with line breaks between them. Images of the first are not
 * shown, and the second has none. */
static bool put_blocks(const struct messages_place *at, const char *array, bool images, const json_t *blocks,
                       struct buf *out) {
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        const json_t *type = json_object_get(block, "type"), *text = json_object_get(block, "text");
        const bool image = images && field_is(type, "image");
        char member[48];
        snprintf(member, sizeof member, "%s[%zu]", array, i);
        if (!image && !(field_is(type, "text") && json_is_string(text)))
            return bad_member(at, member,
                              images ? "must be of type text, with its text, or image"
                                     : "must be of type text, with its text");
        if (i) buf_putc(out, '\n');
        if (image)
            put_unseen(at->fields, API_IGNORED_IMAGE, out);
        else
            buf_add(out, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* {"type": "document", "title", "source": {"type": "text", "data"}}, or a source of "content", a string or blocks;
 * other sources are no text. */
static bool take_document(const struct messages_place *at, const json_t *block, struct texts *out) {
    const json_t *source = json_object_get(block, "source"), *title = json_object_get(block, "title"),
                 *type = json_object_get(source, "type");
    const bool content = field_is(type, "content");
    const json_t *data = json_object_get(source, content ? "content" : "data");
    if (!json_is_object(source) || !json_is_string(type))
        return bad_member(at, "source", "must be an object with a type");
    if (data && !json_is_string(data) && !(content && json_is_array(data)))
        return bad_member(at, content ? "source.content" : "source.data",
                          content ? "must be a string or blocks" : "must be a string");
    if (!content && !field_is(type, "text")) return take_unseen(at, block, API_IGNORED_DOCUMENT, out);
    if (!data) return bad_member(at, content ? "source.content" : "source.data", "is missing");
    begin_text(out);
    if (json_is_string(title)) {
        put_text(out, title);
        buf_putc(&out->text, '\n');
    }
    put_text(out, data);
    return put_blocks(at, "source.content", true, data, &out->text) && end_text(at, block, out);
}

/* {"type": "search_result", "title", "source", "content": texts}: what it is, where it is from, and what it says, a
 * line each. */
static bool take_search_result(const struct messages_place *at, const json_t *block, struct texts *out) {
    const json_t *title = block_text(at, block, "title"), *content = json_object_get(block, "content");
    const json_t *source = title ? block_text(at, block, "source") : NULL;
    if (!source) return false;
    if (!json_array_size(content)) return bad_member(at, "content", "must be an array of blocks of type text");
    begin_text(out);
    put_text(out, title);
    buf_putc(&out->text, '\n');
    put_text(out, source);
    buf_putc(&out->text, '\n');
    return put_blocks(at, "content", false, content, &out->text) && end_text(at, block, out);
}

static bool take_image(const struct messages_place *at, const json_t *block, struct texts *out) {
    if (!json_is_object(json_object_get(block, "source"))) return bad_member(at, "source", "must be an object");
    return take_unseen(at, block, API_IGNORED_IMAGE, out);
}

static bool take_reference(const struct messages_place *at, const json_t *block, struct texts *out) {
    const json_t *name = block_text(at, block, "tool_name");
    if (!name) return false;
    begin_text(out);
    messages_put_found(at->fields, name, &out->text);
    return end_text(at, block, out);
}

enum role { SYSTEM, USER, ASSISTANT, RESULT }; /* whose content it is */

/* A block that is text, or becomes one. -1: it is no such block. */
static int take_texts(const struct messages_place *at, enum role role, const json_t *block, struct texts *out) {
    const json_t *type = json_object_get(block, "type");
    if (field_is(type, "text")) return take_text(at, block, out);
    if (role != USER && role != RESULT) return -1;
    if (field_is(type, "image")) return take_image(at, block, out);
    if (field_is(type, "document")) return take_document(at, block, out);
    if (field_is(type, "search_result")) return take_search_result(at, block, out);
    return role == RESULT && field_is(type, "tool_reference") ? take_reference(at, block, out) : -1;
}

/* A string as it is, or blocks. */
static bool take_content(const struct api_fields *p, const char *where, enum role role, const json_t *content,
                         struct texts *out) {
    if (json_is_string(content)) {
        put_text(out, content);
        return true;
    }
    if (!json_is_array(content))
        return field_bad(p, where, content ? "must be a string or an array of blocks" : "is missing");
    out->system = role == SYSTEM;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const struct messages_place at = messages_place(p, where, i);
        const int taken = take_texts(&at, role, json_array_get(content, i), out);
        if (taken < 0)
            return messages_bad(&at, role == RESULT
                                         ? "must be of type text, image, document, search_result or tool_reference"
                                         : "must be of type text");
        if (!taken) return false;
    }
    return true;
}

/* ---- messages ---- */

struct reader { /* of the messages, so far */
    const struct api_fields *fields;
    struct api_request *out;
    size_t *ranks; /* [n_messages] of results, as api_order_results takes them */
    size_t cap;
    const json_t *called; /* the content of the last message that is no result */
};

static bool add_marks(const struct reader *r, const struct api_cache *marks) {
    struct api_cache *out = &r->out->cache;
    for (uint32_t i = 0; i < marks->n; i++) {
        if (out->n == API_MAX_CACHE_MARKS)
            return field_bad(r->fields, "cache_control", "stands in more than %d places", API_MAX_CACHE_MARKS);
        out->marks[out->n] = marks->marks[i];
        out->marks[out->n++].message = r->out->n_messages - 1;
    }
    return true;
}

/* Takes what texts and calls hold, also on an error. */
static bool push(struct reader *r, const char *role, size_t rank, struct texts *texts, struct rod_message *calls) {
    struct api_request *q = r->out;
    if (q->n_messages == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 8;
        struct rod_message *messages = realloc(q->messages, cap * sizeof *messages);
        if (messages) q->messages = messages;
        size_t *ranks = realloc(r->ranks, cap * sizeof *ranks);
        if (ranks) r->ranks = ranks;
        if (!messages || !ranks) return field_no_memory(r->fields);
        r->cap = cap;
    }
    r->ranks[q->n_messages] = rank;
    struct rod_message *m = &q->messages[q->n_messages++];
    *m = (struct rod_message){.role = role};
    if (calls) {
        m->calls = calls->calls;
        m->n_calls = calls->n_calls;
        *calls = (struct rod_message){0};
    }
    m->content = buf_take(&texts->text, &m->content_len);
    return m->content ? add_marks(r, &texts->cache) : field_no_memory(r->fields);
}

/* The answer's own id begins with call_, which messages_form.c shows as toolu_. */
static char *take_call_id(const json_t *id) {
    static const char shown[] = "toolu_";
    const char *text = json_string_value(id);
    struct buf own = {0};
    size_t len;
    const bool is = !strncmp(text, shown, sizeof shown - 1);
    if (is) buf_puts(&own, "call_");
    buf_puts(&own, is ? text + sizeof shown - 1 : text);
    return buf_take(&own, &len);
}

/* {"type": "tool_use", "id", "name", "input"}: spelled as the model's own calls are. */
static bool take_tool_use(const struct messages_place *at, const json_t *block, struct rod_message *out) {
    const json_t *name = block_text(at, block, "id") ? block_text(at, block, "name") : NULL;
    const json_t *input = json_object_get(block, "input");
    if (!name) return false;
    if (field_has_nul(json_object_get(block, "id"))) return messages_bad(at, "must have an id without a NUL");
    if (!json_string_length(name)) return messages_bad(at, "must have a name that is not empty");
    if (!json_is_object(input)) return messages_bad(at, "must have an object input");
    struct rod_call *calls = realloc((struct rod_call *)out->calls, (out->n_calls + 1) * sizeof *calls);
    if (!calls) return field_no_memory(at->fields);
    struct rod_call *call = &calls[out->n_calls++];
    struct buf line = {0};
    *call = (struct rod_call){0};
    out->calls = calls;
    api_put_line(&line, input);
    call->name = field_copy(name, &call->name_len);
    call->id = take_call_id(json_object_get(block, "id"));
    call->arguments = buf_take(&line, &call->arguments_len);
    return (call->name && call->id && call->arguments) || field_no_memory(at->fields);
}

/* The place of the call that a result answers, among those of the message before. */
static size_t result_rank(const json_t *called, const json_t *id) {
    const json_t *block;
    size_t i, rank = 0;
    json_array_foreach(called, i, block) {
        if (!field_is(json_object_get(block, "type"), "tool_use")) continue;
        if (rank == API_NO_RANK || json_equal(json_object_get(block, "id"), id)) return rank;
        rank++;
    }
    return API_NO_RANK;
}

/* {"type": "tool_result", "tool_use_id", "content"} is a message of its own. */
static bool take_tool_result(struct reader *r, const struct messages_place *at, const json_t *block) {
    char where[sizeof at->name + 16];
    const json_t *id = block_text(at, block, "tool_use_id"), *content = json_object_get(block, "content");
    struct texts texts = {0};
    if (!id) return false;
    snprintf(where, sizeof where, "%s.content", at->name);
    bool ok = !content || json_is_null(content) || take_content(at->fields, where, RESULT, content, &texts);
    ok = ok && messages_mark(at, block, (struct api_cache_mark){.len = texts.text.len}, &texts.cache) &&
         push(r, "tool", result_rank(r->called, id), &texts, NULL);
    buf_fini(&texts.text);
    return ok;
}

/* Of a tool that the API's owner ran: a history that was begun there goes on without it. */
static bool is_server_call(const json_t *type) {
    static const char *const types[] = {"server_tool_use",
                                        "web_search_tool_result",
                                        "web_fetch_tool_result",
                                        "code_execution_tool_result",
                                        "bash_code_execution_tool_result",
                                        "text_editor_code_execution_tool_result",
                                        "tool_search_tool_result",
                                        "mcp_tool_use",
                                        "mcp_tool_result"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (field_is(type, types[i])) return true;
    return false;
}

struct blocks { /* of one message */
    struct texts texts;
    struct rod_message calls; /* its calls alone */
    const json_t *marked;     /* the last call with a mark, which stands at the end of the message */
    struct messages_place marked_at;
};

static bool take_block(struct reader *r, const struct messages_place *at, bool user, const json_t *block,
                       struct blocks *out) {
    const json_t *type = json_object_get(block, "type");
    struct api_cache checked = {0};
    if (!messages_mark(at, block, (struct api_cache_mark){0}, &checked)) return false;
    const int text = take_texts(at, user ? USER : ASSISTANT, block, &out->texts);
    if (text >= 0) return text;
    if (user && field_is(type, "tool_result")) return take_tool_result(r, at, block);
    if (!user && field_is(type, "tool_use")) {
        if (has_mark(block)) {
            out->marked = block;
            out->marked_at = *at;
        }
        return take_tool_use(at, block, &out->calls);
    }
    if (!user && is_server_call(type)) {
        r->out->ignored |= 1u << API_IGNORED_SERVER_CALL;
        return true;
    }
    if (!user && (field_is(type, "thinking") || field_is(type, "redacted_thinking"))) return true; /* as others do */
    return messages_bad(at, user ? "must be of type text, tool_result, image, document or search_result"
                                 : "must be of type text, tool_use or thinking");
}

/* Results of tools become messages of their own, before the text of their message. */
static bool take_blocks(struct reader *r, const char *where, bool user, const json_t *content) {
    struct blocks found = {0};
    const size_t before = r->out->n_messages;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const struct messages_place at = messages_place(r->fields, where, i);
        ok = take_block(r, &at, user, json_array_get(content, i), &found);
    }
    const bool results_alone = r->out->n_messages > before && !found.texts.n;
    if (ok && !results_alone) {
        const struct api_cache_mark end = {.len = found.texts.text.len};
        ok = (!found.marked || messages_mark(&found.marked_at, found.marked, end, &found.texts.cache)) &&
             push(r, user ? "user" : "assistant", API_NO_RANK, &found.texts, &found.calls);
        r->called = content;
    }
    buf_fini(&found.texts.text);
    api_messages_free_calls(&found.calls);
    return ok;
}

static bool take_message(struct reader *r, size_t i, const json_t *value) {
    const struct api_fields *p = r->fields;
    char where[96];
    const struct messages_place at = messages_place(p, "messages", i);
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    const bool user = field_is(role, "user"), system = field_is(role, "system");
    if (!json_is_object(value)) return field_bad(p, at.name, "must be an object, not %s", field_type(value));
    if (has_mark(value)) {
        snprintf(where, sizeof where, "%s.cache_control", at.name);
        return field_bad(p, where, "belongs into a block of its content");
    }
    snprintf(where, sizeof where, "%s.role", at.name);
    if (!user && !system && !field_is(role, "assistant"))
        return field_bad(p, where, "must be user, assistant or system");
    snprintf(where, sizeof where, "%s.content", at.name);
    if (json_is_array(content) && !system) return take_blocks(r, where, user, content);
    struct texts texts = {0};
    const char *said_by = system ? "system" : user ? "user" : "assistant";
    const bool ok = take_content(p, where,
                                 system ? SYSTEM
                                 : user ? USER
                                        : ASSISTANT,
                                 content, &texts) &&
                    push(r, said_by, API_NO_RANK, &texts, NULL);
    r->called = NULL;
    buf_fini(&texts.text);
    return ok;
}

static bool take_system(struct reader *r) {
    const json_t *system = field_get(r->fields, "system");
    struct texts texts = {0};
    const bool ok = !system || (take_content(r->fields, "system", SYSTEM, system, &texts) &&
                                push(r, "system", API_NO_RANK, &texts, NULL));
    buf_fini(&texts.text);
    return ok;
}

static bool take_messages(struct reader *r) {
    const struct api_fields *p = r->fields;
    const json_t *given = field_get(p, "messages");
    bool ok = take_system(r);
    if (ok && !json_array_size(given))
        ok = field_bad(p, "messages", given ? "must be an array with a message" : "is missing");
    for (size_t i = 0; ok && i < json_array_size(given); i++) ok = take_message(r, i, json_array_get(given, i));
    if (ok) api_order_results(r->out->messages, r->out->n_messages, r->ranks);
    return ok;
}

bool messages_take_blocks(const struct api_fields *p, struct api_request *out) {
    struct reader r = {.fields = p, .out = out};
    const bool ok = take_messages(&r);
    free(r.ranks);
    return ok;
}
