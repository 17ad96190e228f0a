/* api_tools.h - tools of a request: what the model reads of them, which it may call, and a generated text cut into
 * content and calls.
 *
 * Ownership: as commented at each function. Threads: any. Pure: no I/O, no engine but the words of its chat format.
 */
#ifndef OPENAI_TOOLS_H
#define OPENAI_TOOLS_H

#include "server/base/buf.h"

#include "engine/rodimus.h"

#include <jansson.h>

#define OPENAI_TOOL_NAME_MAX 128

enum openai_tool_choice { OPENAI_TOOLS_AUTO, OPENAI_TOOLS_REQUIRED, OPENAI_TOOLS_NAMED };

struct openai_tools { /* owns its strings; n 0: none, or none that the model is to know of */
    char **lines;     /* [n] definitions as JSON on one line: keys in the order as sent, ", " and ": " between */
    char **names;     /* [n] */
    bool *allowed;    /* [n] may be called */
    size_t n;
    struct buf schemas; /* of those that may be called, as JSON: [{"name","parameters","strict"},...] */
    enum openai_tool_choice choice;
    bool parallel; /* an answer may have several calls */
};
void openai_tools_fini(struct openai_tools *tools);
/* The name of the tool that may be called so; NULL: there is none. */
const char *openai_tools_find(const struct openai_tools *tools, const char *name, size_t len);

/* Appends a value as Python's json.dumps writes it with ensure_ascii=False. */
void openai_put_line(struct buf *out, const json_t *value);

/* ---- a generated text, cut into content and calls while it arrives ---- */

enum openai_part_kind {
    OPENAI_PART_TEXT,     /* content */
    OPENAI_PART_CALL,     /* a call begins: name */
    OPENAI_PART_ARGUMENTS /* the next bytes of its arguments */
};
struct openai_part {
    enum openai_part_kind kind;
    const char *text; /* TEXT, ARGUMENTS; valid during take */
    size_t len;
    const char *name; /* CALL: the request's string */
};

struct openai_split {
    const struct openai_tools *tools; /* NULL: all is content */
    struct rod_call_tags tags;
    void (*take)(void *arg, const struct openai_part *part);
    void *arg;
    int state;
    struct buf held; /* what may begin a tag, or is the head of a call */
    uint32_t depth;  /* of the arguments */
    bool in_string, escaped;
    bool after_call;  /* nothing but calls since the last one */
    uint32_t n_calls; /* that began */
    bool whole;       /* the last one has all its arguments */
    bool cut_head;    /* the text was cut in what comes before the arguments */
};
/* What the model generated next: whole characters of UTF-8. Parts are never empty. Out of memory: held.failed. */
void openai_split_push(struct openai_split *split, const char *text, size_t len);
/* What is held is content, but a part of a call, or of the next one. cut: the text would have gone on. Then the
 * beginning of a call is no content, either. */
void openai_split_end(struct openai_split *split, bool cut);
void openai_split_fini(struct openai_split *split);

#endif
