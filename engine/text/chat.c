/* chat.c - chat formats as tables; messages to ids or text; see chat.h. */
#include "chat.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_names[CHAT_N_ROLES] = {"system", "user", "assistant", "tool"};

/* ---- the known formats ---- */

struct format {
    const char *mark; /* a token that only this format has */
    const char *prefix[CHAT_N_ROLES], *suffix, *generation, *stop;
    const char *words[16]; /* what the literals of a Jinja template that writes it are made of; NULL ends them */
};

/* The published format's, which Hermes and Qwen have in ChatML, too. */
static const char *const known_tools[CHAT_N_TOOL_TEXTS] = {
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>"};

static const struct format formats[] = {
    {.mark = "<role>", /* the published format */
     .prefix = {"<role>SYSTEM</role>", "<role>HUMAN</role>", "<role>ASSISTANT</role>", "<role>OBSERVATION</role>"},
     .suffix = "",
     .generation = "<role>ASSISTANT</role>",
     .words = {"<role>", "</role>", "SYSTEM", "HUMAN", "ASSISTANT", "OBSERVATION"}},
    {.mark = "<|im_start|>", /* ChatML */
     .prefix = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_start|>tool\n"},
     .suffix = "<|im_end|>\n",
     .generation = "<|im_start|>assistant\n",
     .stop = "<|im_end|>",
     .words = {"<|im_start|>", "<|im_end|>", "\n"}},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

void chat_close(struct chat *chat) {
    if (!chat) return;
    for (int i = 0; i < CHAT_N_ROLES; i++) {
        free(chat->prefix[i]);
        free(chat->suffix[i]);
    }
    for (int i = 0; i < CHAT_N_TOOL_TEXTS; i++) free(chat->tools[i]);
    free(chat->begin);
    free(chat->generation);
    free(chat);
}

static int chat_from_format(const struct format *f, const struct tokenizer *t, struct chat **out,
                            struct rod_error *err) {
    struct chat *c = calloc(1, sizeof *c);
    if (!c) return rod_fail_no_memory(err);
    bool ok = (c->begin = strdup("")) && (c->generation = strdup(f->generation));
    for (int i = 0; i < CHAT_N_ROLES && ok; i++)
        ok = (c->prefix[i] = strdup(f->prefix[i])) && (c->suffix[i] = strdup(f->suffix));
    for (int i = 0; i < CHAT_N_TOOL_TEXTS && ok; i++) ok = (c->tools[i] = strdup(known_tools[i])) != NULL;
    if (!ok) {
        chat_close(c);
        return rod_fail_no_memory(err);
    }
    if (f->stop && tokenizer_find(t, f->stop) >= 0) c->stop_ids[c->n_stop_ids++] = tokenizer_find(t, f->stop);
    *out = c;
    return 0;
}

/* ---- a Jinja template, looked at and not run ---- */

struct literals { /* walks over what a template can write: quoted strings in tags, and the text between tags */
    const char *at, *end;
    bool in_tag;
};

/* The next one, unescaped, into text; false at the end. A text too long for it is no word of any format anyway. */
static bool literals_next(struct literals *l, char *text, size_t cap) {
    size_t n = 0;
    while (l->at < l->end) {
        const char *s = l->at;
        const size_t left = (size_t)(l->end - s);
        if (!l->in_tag) {
            bool open = left > 1 && s[0] == '{' && (s[1] == '{' || s[1] == '%' || s[1] == '#');
            if (!open) {
                if (n + 1 < cap) text[n++] = *s;
                l->at++;
                continue;
            }
            l->at += 2;
            l->in_tag = true;
            if (s[1] == '#') { /* a comment */
                const char *close = memmem(s + 2, left - 2, "#}", 2);
                l->at = close ? close + 2 : l->end;
                l->in_tag = false;
            }
            text[n] = 0;
            if (strspn(text, " \r\n\t") < n) return true; /* white space between tags is layout */
            n = 0;
        } else if (left > 1 && (s[0] == '}' || s[0] == '%') && s[1] == '}') {
            l->at += 2;
            l->in_tag = false;
        } else if (*s == '"' || *s == '\'') {
            for (l->at++; l->at < l->end && *l->at != *s; l->at++) {
                char c = *l->at;
                if (c == '\\' && l->at + 1 < l->end) {
                    c = *++l->at;
                    c = (char)(c == 'n' ? '\n' : c == 't' ? '\t' : c);
                }
                if (n + 1 < cap) text[n++] = c;
            }
            l->at += l->at < l->end;
            text[n] = 0;
            return true;
        } else {
            l->at++;
        }
    }
    text[n] = 0;
    return strspn(text, " \r\n\t") < n;
}

/* The literal is nothing but words of the format and the names that a template compares with or looks up. */
static bool format_writes(const char *text, const struct format *f) {
    static const char *const names[] = {"system",    "user", "assistant", "tool",
                                        "developer", "role", "content",   "messages"};
    while (*text) {
        size_t n = 0;
        for (size_t i = 0; f->words[i]; i++)
            if (!strncmp(text, f->words[i], strlen(f->words[i]))) n = strlen(f->words[i]);
        for (size_t i = 0; !n && i < sizeof names / sizeof *names; i++)
            if (!strncmp(text, names[i], strlen(names[i]))) n = strlen(names[i]);
        if (!n) return false;
        text += n;
    }
    return true;
}

static const struct format *format_recognise(const char *jinja, size_t len) {
    if (memmem(jinja, len, "bos_token", 9)) return NULL;
    for (size_t i = 0; i < N_FORMATS; i++) {
        struct literals l = {jinja, jinja + len, false};
        char text[256];
        bool fits = true, marked = false;
        while (fits && literals_next(&l, text, sizeof text)) {
            fits = format_writes(text, &formats[i]);
            marked = marked || strstr(text, formats[i].mark);
        }
        if (fits && marked) return &formats[i];
    }
    return NULL;
}

/* chat_template of tokenizer_config.json: a string, or named ones, in a list or an object, of which "default" counts.
 * *out NULL: there is none. */
static int config_template(const json_t *config, const json_t **out, struct rod_error *err) {
    const json_t *value = json_object_get(config, "chat_template"), *found = value, *item;
    const size_t n_named = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    size_t i;
    *out = NULL;
    if (json_is_object(value) || json_is_array(value)) found = json_object_get(value, "default");
    json_array_foreach(value, i, item) {
        const char *name = json_python_text(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) found = json_object_get(item, "template");
    }
    if (json_is_string(found)) *out = found;
    if (*out || !value || json_is_null(value) || (!found && !n_named)) return 0;
    return rod_fail(err, ROD_EMODEL,
                    "tokenizer_config.json: \"chat_template\" must be a string, a list of objects with \"name\" and "
                    "\"template\" of which one has the name \"default\", or null");
}

/* ---- the table beside the model ---- */

#define TABLE "chat_template.rodimus.json"

static int table_take_text(const json_t *value, const char *key, char **out, struct rod_error *err) {
    if (!value) {
        *out = strdup("");
    } else if (!json_python_text(value)) {
        return rod_fail(err, ROD_EMODEL, TABLE ": %s must be a string without NUL and lone surrogates", key);
    } else {
        *out = strdup(json_string_value(value));
    }
    return *out ? 0 : rod_fail_no_memory(err);
}

static int table_check_keys(const json_t *object, const char *what, const char *const *known, struct rod_error *err) {
    const char *key;
    json_t *value;
    size_t len;
    if (!json_is_object(object)) return rod_fail(err, ROD_EMODEL, TABLE ": %s must be an object", what);
    json_object_keylen_foreach((json_t *)object, key, len, value) {
        size_t i = 0;
        while (known[i] && (strlen(known[i]) != len || memcmp(key, known[i], len) != 0)) i++;
        if (!known[i]) return rod_fail(err, ROD_EMODEL, TABLE ": unknown key \"%.64s\" in %s", key, what);
    }
    return 0;
}

static int table_take_roles(const json_t *roles, struct chat *c, struct rod_error *err) {
    static const char *const names[] = {"system", "user", "assistant", "tool", NULL};
    static const char *const parts[] = {"prefix", "suffix", NULL};
    int rc = table_check_keys(roles, "roles", names, err);
    for (int i = 0; !rc && i < CHAT_N_ROLES; i++) {
        const json_t *role = json_object_get(roles, role_names[i]);
        if (!role) continue;
        rc = table_check_keys(role, role_names[i], parts, err);
        if (!rc) rc = table_take_text(json_object_get(role, "prefix"), "prefix", &c->prefix[i], err);
        if (!rc) rc = table_take_text(json_object_get(role, "suffix"), "suffix", &c->suffix[i], err);
    }
    if (!rc && !c->prefix[CHAT_USER]) rc = rod_fail(err, ROD_EMODEL, TABLE ": roles has no user");
    return rc;
}

/* A tag is searched for in what the model says, so it is not empty, and not long. */
static int table_take_tools(const json_t *tools, struct chat *c, struct rod_error *err) {
    enum { MAX_TAG = 64 };
    static const char *const names[CHAT_N_TOOL_TEXTS + 1] = {"head",       "tail",        "call_open",
                                                             "call_close", "result_open", "result_close"};
    if (!tools) return 0;
    int rc = table_check_keys(tools, "tools", names, err);
    for (int i = 0; !rc && i < CHAT_N_TOOL_TEXTS; i++) {
        const json_t *text = json_object_get(tools, names[i]);
        const size_t n = json_string_length(text);
        if (!text) rc = rod_fail(err, ROD_EMODEL, TABLE ": tools has no %s", names[i]);
        if (!rc) rc = table_take_text(text, names[i], &c->tools[i], err);
        if (!rc && i > CHAT_TOOLS_TAIL && (n == 0 || n > MAX_TAG))
            rc = rod_fail(err, ROD_EMODEL, TABLE ": %s must have 1 to %d bytes, not %zu", names[i], MAX_TAG, n);
    }
    return rc;
}

static int table_take_stops(const json_t *stops, const struct tokenizer *t, struct chat *c, struct rod_error *err) {
    const json_t *item;
    size_t i;
    if (!stops) return 0;
    if (!json_is_array(stops) || json_array_size(stops) > 4)
        return rod_fail(err, ROD_EMODEL, TABLE ": stop must be an array of up to 4 tokens");
    json_array_foreach(stops, i, item) {
        const char *token = json_python_text(item);
        int32_t id = token ? tokenizer_find(t, token) : -1;
        if (id < 0) return rod_fail(err, ROD_EMODEL, TABLE ": stop[%zu] is not an added token of the tokenizer", i);
        assert(c->n_stop_ids < sizeof c->stop_ids / sizeof *c->stop_ids);
        c->stop_ids[c->n_stop_ids++] = id;
    }
    return 0;
}

static int chat_from_table(const char *text, size_t len, const struct tokenizer *t, struct chat **out,
                           struct rod_error *err) {
    static const char *const known[] = {"begin", "roles", "generation_prompt", "stop", "tools", NULL};
    json_error_t fault;
    json_t *root = json_python_load(text, len, 0, &fault);
    if (!root && json_guard_was_short(&fault)) return rod_fail_no_memory(err);
    if (!root) return rod_fail(err, ROD_EMODEL, TABLE ": line %d: %.120s", fault.line, fault.text);
    struct chat *c = calloc(1, sizeof *c);
    int rc = c ? table_check_keys(root, "the table", known, err) : rod_fail_no_memory(err);
    if (!rc) rc = table_take_text(json_object_get(root, "begin"), "begin", &c->begin, err);
    if (!rc && !json_object_get(root, "generation_prompt"))
        rc = rod_fail(err, ROD_EMODEL, TABLE ": generation_prompt is missing");
    if (!rc) rc = table_take_text(json_object_get(root, "generation_prompt"), "generation_prompt", &c->generation, err);
    if (!rc && !json_object_get(root, "roles")) rc = rod_fail(err, ROD_EMODEL, TABLE ": roles is missing");
    if (!rc) rc = table_take_roles(json_object_get(root, "roles"), c, err);
    if (!rc) rc = table_take_stops(json_object_get(root, "stop"), t, c, err);
    if (!rc) rc = table_take_tools(json_object_get(root, "tools"), c, err);
    json_decref(root);
    if (rc) {
        chat_close(c);
    } else {
        *out = c;
    }
    return rc;
}

/* ---- which one ---- */

/* *config: what *value, its template, lies in. */
static int chat_load_config(const struct chat_files *files, json_t **config, const json_t **value,
                            struct rod_error *err) {
    json_error_t fault;
    *config = NULL;
    *value = NULL;
    if (!files->config) return 0;
    *config = json_python_load(files->config, files->config_len, 0, &fault);
    if (!*config && json_guard_was_short(&fault)) return rod_fail_no_memory(err);
    if (!*config) return rod_fail(err, ROD_EMODEL, "tokenizer_config.json: %.120s (line %d)", fault.text, fault.line);
    int rc = 0;
    if (!json_is_object(*config))
        rc = rod_fail(err, ROD_EMODEL, "tokenizer_config.json: not an object");
    else if (!files->jinja) /* else the key is not read */
        rc = config_template(*config, value, err);
    if (rc) json_decref(*config);
    return rc;
}

int chat_parse(const struct chat_files *files, const struct tokenizer *t, struct chat **out, char *note,
               size_t note_bytes, struct rod_error *err) {
    *out = NULL;
    *note = 0;
    if (files->table) return chat_from_table(files->table, files->table_len, t, out, err);
    json_t *config;
    const json_t *value;
    int rc = chat_load_config(files, &config, &value, err);
    if (rc) return rc;
    const char *from = "chat_template.jinja", *jinja = files->jinja;
    size_t len = files->jinja_len;
    if (value) {
        from = "chat_template of tokenizer_config.json";
        jinja = json_string_value(value);
        len = json_string_length(value);
    }
    const struct format *format = jinja ? format_recognise(jinja, len) : NULL;
    const bool published = tokenizer_find(t, "<role>") >= 0 && tokenizer_find(t, "</role>") >= 0;
    if (jinja && !format) {
        snprintf(note, note_bytes, "%s is ignored: it is not one of the known formats; %s; " TABLE " may give another",
                 from, published ? "chats take the published format" : "chat is not available");
    } else if (format && tokenizer_find(t, format->mark) < 0) {
        snprintf(note, note_bytes, "%s is ignored: the tokenizer lacks %s", from, format->mark);
        format = NULL;
    }
    if (!format && published) format = &formats[0];
    json_decref(config);
    return format ? chat_from_format(format, t, out, err) : 0;
}

/* data NULL: there is none. What keeps a file from being read is an error of the model: no other format is guessed. */
static int chat_load(const char *dir, const char *name, struct file_bytes *out, struct rod_error *err) {
    enum { MAX_BYTES = 1 << 24 };
    int rc = file_load(dir, name, MAX_BYTES, out, err);
    if (rc == ROD_ENOTFOUND) return 0;
    if (rc == ROD_EIO && err) err->code = ROD_EMODEL;
    return rc == ROD_EIO ? ROD_EMODEL : rc;
}

int chat_open(const char *dir, const struct tokenizer *t, struct chat **out, char *note, size_t note_bytes,
              struct rod_error *err) {
    struct file_bytes table = {0}, config = {0}, jinja = {0};
    int rc = chat_load(dir, TABLE, &table, err);
    if (!rc) rc = chat_load(dir, "tokenizer_config.json", &config, err);
    if (!rc) rc = chat_load(dir, "chat_template.jinja", &jinja, err);
    const struct chat_files files = {.table = table.data,
                                     .config = config.data,
                                     .jinja = jinja.data,
                                     .table_len = table.n,
                                     .config_len = config.n,
                                     .jinja_len = jinja.n};
    if (!rc) rc = chat_parse(&files, t, out, note, note_bytes, err);
    file_wipe(&table);
    file_wipe(&config);
    file_wipe(&jinja);
    return rc;
}

/* ---- messages ---- */

int chat_role_of(const struct chat *c, const char *role) {
    if (role && !strcmp(role, "developer")) role = "system";
    for (int i = 0; role && i < CHAT_N_ROLES; i++)
        if (!strcmp(role, role_names[i]) && c->prefix[i]) return i;
    return -1;
}

int chat_refuse_message(struct rod_error *err, size_t i, const char *role, bool known_role, size_t bad_byte) {
    char field[64];
    snprintf(field, sizeof field, "messages[%zu].%s", i, known_role ? "content" : "role");
    if (known_role)
        return rod_fail_at(err, ROD_EINVALID, field,
                           "content of message %zu is not valid UTF-8: the byte at offset %zu", i, bad_byte);
    return rod_fail_at(err, ROD_EINVALID, field,
                       "unknown role \"%.64s\": known are system, developer, user, assistant, tool, "
                       "as far as the model's chat format has them",
                       role ? role : "");
}

/* lead, three pieces a message, the end: *n of them, malloc'd; they borrow from chat and messages. */
static int chat_to_pieces(const struct chat *c, const char *lead, const struct rod_message *messages, size_t n_messages,
                          enum chat_end end, struct tokenizer_piece **out, size_t *n_out, struct rod_error *err) {
    if (!c) return rod_fail(err, ROD_EUNSUPPORTED, "the model has no chat format: give it a " TABLE);
    if (n_messages > SIZE_MAX / 3 / sizeof(struct tokenizer_piece) - 2)
        return rod_fail(err, ROD_EINVALID, "too many messages");
    struct tokenizer_piece *pieces = malloc((3 * n_messages + 2) * sizeof *pieces);
    if (!pieces) return rod_fail_no_memory(err);
    size_t n = 0;
    int rc = 0;
    pieces[n++] = (struct tokenizer_piece){lead, strlen(lead), true};
    for (size_t i = 0; !rc && i < n_messages; i++) {
        const struct rod_message *m = &messages[i];
        const int role = chat_role_of(c, m->role);
        const size_t len = m->content ? m->content_len : 0, bad = utf8_check(m->content, len);
        if (role < 0 || bad != len) {
            rc = chat_refuse_message(err, i, m->role, role >= 0, bad);
        } else {
            /* an answer as tokens stands where the model went on */
            const char *before = m->ids ? c->generation : c->prefix[role];
            pieces[n++] = (struct tokenizer_piece){before, strlen(before), true};
            pieces[n++] = (struct tokenizer_piece){len ? m->content : "", len, false};
            if (end != CHAT_END_INSIDE || i + 1 < n_messages)
                pieces[n++] = (struct tokenizer_piece){c->suffix[role], strlen(c->suffix[role]), true};
        }
    }
    assert(n <= 3 * n_messages + 1);
    if (end == CHAT_END_GENERATION) pieces[n++] = (struct tokenizer_piece){c->generation, strlen(c->generation), true};
    if (rc) {
        free(pieces);
        return rc;
    }
    *out = pieces;
    *n_out = n;
    return 0;
}

const char *chat_lead(const struct chat *c, enum chat_begin begin) {
    const char *close = c ? c->suffix[CHAT_ASSISTANT] : NULL; /* a table may have no role assistant */
    if (begin == CHAT_BEGIN_FIRST) return c ? c->begin : "";
    return begin == CHAT_BEGIN_ANSWERED && close ? close : "";
}

struct chat_ids { /* [n] so far */
    int32_t *ids;
    size_t n, cap;
};
static int chat_ids_add(struct chat_ids *to, const int32_t *ids, size_t n, struct rod_error *err) {
    if (!n) return 0;
    if (!ARRAY_RESERVE(to->ids, to->cap, to->n, n)) return rod_fail_no_memory(err);
    memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
    return 0;
}

/* The first pieces' ids are taken as they are: mostly they are all. */
static int chat_ids_add_pieces(struct chat_ids *to, const struct tokenizer *t, const struct tokenizer_piece *pieces,
                               size_t n, struct rod_error *err) {
    int32_t *ids;
    size_t n_ids;
    int rc = tokenizer_encode_pieces(t, pieces, n, &ids, &n_ids, err);
    if (rc) return rc;
    if (!to->ids) {
        *to = (struct chat_ids){ids, n_ids, n_ids};
        return 0;
    }
    rc = chat_ids_add(to, ids, n_ids, err);
    free(ids);
    return rc;
}

int chat_encode(const struct chat *chat, const struct tokenizer *t, enum chat_begin begin,
                const struct rod_message *messages, size_t n_messages, enum chat_end end, int32_t **ids, size_t *n_ids,
                struct rod_error *err) {
    struct tokenizer_piece *pieces = NULL;
    size_t n = 0, from = 0;
    int rc = chat_to_pieces(chat, chat_lead(chat, begin), messages, n_messages, end, &pieces, &n, err);
    if (rc) return rc;
    struct chat_ids all = {0};
    for (size_t i = 0; !rc && i < n_messages; i++) { /* an answer as tokens parts the text before it from that behind */
        if (!messages[i].ids) continue;
        rc = chat_ids_add_pieces(&all, t, pieces + from, 3 * i + 2 - from, err); /* lead, three a message, its prefix */
        if (!rc) rc = chat_ids_add(&all, messages[i].ids, messages[i].n_ids, err);
        from = 3 * i + 3;
    }
    if (!rc) rc = chat_ids_add_pieces(&all, t, pieces + from, n - from, err);
    free(pieces);
    if (rc) {
        free(all.ids);
        return rc;
    }
    *ids = all.ids;
    *n_ids = all.n;
    return 0;
}

/* The first token of a piece of the frame, if it is a special one; else -1. */
static int32_t chat_first_token(const struct tokenizer *t, const char *text) {
    int32_t *ids, first = -1;
    size_t n, len;
    bool special = false;
    const struct tokenizer_piece piece = {text, strlen(text), true};
    if (!*text || tokenizer_encode_pieces(t, &piece, 1, &ids, &n, NULL)) return -1;
    if (n && tokenizer_bytes(t, ids[0], &len, &special) && special) first = ids[0];
    free(ids);
    return first;
}

void chat_marks(const struct chat *c, const struct tokenizer *t, const struct rod_message *messages, size_t n_messages,
                const int32_t *ids, size_t n_ids, size_t **marks, size_t *n_marks) {
    *marks = NULL;
    *n_marks = 0;
    size_t *found = c && t ? malloc((n_messages + 1) * sizeof *found) : NULL;
    if (!found) return;
    int32_t starts[CHAT_N_ROLES];
    for (int i = 0; i < CHAT_N_ROLES; i++) starts[i] = c->prefix[i] ? chat_first_token(t, c->prefix[i]) : -1;
    size_t at = 0, n = 0;
    for (size_t i = 0; i <= n_messages; i++) {
        const int role = i < n_messages ? chat_role_of(c, messages[i].role) : CHAT_N_ROLES;
        const int32_t start = role < 0 ? -1 : role < CHAT_N_ROLES ? starts[role] : chat_first_token(t, c->generation);
        while (at < n_ids && ids[at] != start) at++;
        if (start < 0 || at == n_ids) break;
        if (i) found[n++] = at;
        at++;
    }
    assert(n <= n_messages);
    *marks = found;
    *n_marks = n;
}

int chat_render(const struct chat *chat, const struct rod_message *messages, size_t n_messages, enum chat_end end,
                char **text, size_t *len, struct rod_error *err) {
    struct tokenizer_piece *pieces;
    size_t n, n_bytes = 0, at = 0;
    int rc = chat_to_pieces(chat, chat_lead(chat, CHAT_BEGIN_FIRST), messages, n_messages, end, &pieces, &n, err);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) n_bytes += pieces[i].len;
    char *buf = malloc(n_bytes + 1);
    for (size_t i = 0; buf && i < n; i++) {
        memcpy(buf + at, pieces[i].text, pieces[i].len);
        at += pieces[i].len;
    }
    free(pieces);
    if (!buf) return rod_fail_no_memory(err);
    buf[at] = 0;
    *text = buf;
    *len = at;
    return 0;
}
