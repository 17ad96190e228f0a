/* chat.h - how messages become a prompt: a table of what stands before and after each role's content.
 *
 * The first source that exists counts: chat_template.rodimus.json in the model's directory (config/CHAT_FORMAT.md has
 * the format); a Jinja template of the checkpoint, if its literals are those of a known format; <role> tokens in the
 * tokenizer, which mean the published format. No Jinja is run. Ownership: a chat owns its strings and borrows nothing.
 * Threads: immutable after open. Invariant: contents never make special tokens; the frame does.
 */
#ifndef CHAT_H
#define CHAT_H

#include "tokenizer.h"

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_N_ROLES };

/* Texts of tools: before and behind the definitions, around a call, around a result. Each definition, call and result
 * has lines of its own. */
enum {
    CHAT_TOOLS_HEAD,
    CHAT_TOOLS_TAIL,
    CHAT_CALL_OPEN,
    CHAT_CALL_CLOSE,
    CHAT_RESULT_OPEN,
    CHAT_RESULT_CLOSE,
    CHAT_N_TOOL_TEXTS
};

struct chat {
    char *begin, *generation; /* text before all messages; text after them, where the model goes on */
    char *prefix[CHAT_N_ROLES], *suffix[CHAT_N_ROLES]; /* prefix NULL: the format has no such role */
    int32_t stop_ids[4];                               /* tokens that end an answer, beside the model's own */
    uint32_t n_stop_ids;
    char *tools[CHAT_N_TOOL_TEXTS]; /* all, or none of them: the format has no tools */
};

enum chat_end { /* of a prompt */
                CHAT_END_CLOSED,
                CHAT_END_GENERATION, /* with the generation prompt */
                CHAT_END_INSIDE      /* inside the last message */
};

struct chat_files {                     /* texts of a checkpoint's files, NULL = not there */
    const char *table, *config, *jinja; /* chat_template.rodimus.json, tokenizer_config.json, chat_template.jinja */
    size_t table_len, config_len, jinja_len;
};

/* *out NULL: the model has no chat format. note: "", or one sentence about a template that is ignored. Errors
 * (ROD_EMODEL) are faults of the files, by key. parse is pure. */
int chat_open(const char *dir, const struct tokenizer *t, struct chat **out, char *note, size_t note_bytes,
              struct rod_error *err);
int chat_parse(const struct chat_files *files, const struct tokenizer *t, struct chat **out, char *note,
               size_t note_bytes, struct rod_error *err);
void chat_close(struct chat *chat);

/* chat_tools.c: tools, calls and results become contents, so that the functions below read text alone: definitions
 * (unless with_tools is false) at the end of a first system message, calls behind the content, neighbouring results one
 * message. *out: one block of memory, the caller's. Errors name the message or tool. */
int chat_plain(const struct chat *chat, const struct rod_chat *from, bool with_tools, struct rod_message **out,
               size_t *n_out, struct rod_error *err);
int chat_role_of(const struct chat *chat, const char *role); /* CHAT_SYSTEM ..., -1: the format has no such role */
/* Of a message whose role the format lacks, or whose content has a bad byte. */
int chat_refuse_message(struct rod_error *err, size_t i, const char *role, bool known_role, size_t bad_byte);

/* What stands before the messages: the text before all messages; nothing, as they follow others; what closes the
 * model's answer, with which the tokens before them end. */
enum chat_begin { CHAT_BEGIN_FIRST, CHAT_BEGIN_LATER, CHAT_BEGIN_ANSWERED };
const char *chat_lead(const struct chat *chat, enum chat_begin begin); /* "" = none */
/* Messages without calls. *ids, *text malloc'd. */
int chat_encode(const struct chat *chat, const struct tokenizer *t, enum chat_begin begin,
                const struct rod_message *messages, size_t n_messages, enum chat_end end, int32_t **ids, size_t *n_ids,
                struct rod_error *err);
/* Where in the ids of these messages the second and each later one begins, and the generation prompt: *marks malloc'd,
 * rising. None where a role's prefix does not begin with a special token, or without memory: marks are hints. */
void chat_marks(const struct chat *chat, const struct tokenizer *t, const struct rod_message *messages,
                size_t n_messages, const int32_t *ids, size_t n_ids, size_t **marks, size_t *n_marks);
int chat_render(const struct chat *chat, const struct rod_message *messages, size_t n_messages, enum chat_end end,
                char **text, size_t *len, struct rod_error *err);

#endif
