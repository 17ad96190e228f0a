/* api_tools.h - tools of a request: what the model reads of them, which it may call, and a generated text cut into
 * content and calls.
 *
 * Ownership: as commented at each function. Threads: any. Pure: no I/O, no engine but the words of its chat format.
 */
#ifndef API_TOOLS_H
#define API_TOOLS_H

#include "server/base/buf.h"

#include "engine/rodimus.h"

#include <jansson.h>

#define API_TOOL_NAME_MAX 128

enum api_tool_kind {
    API_TOOL_FUNCTION,
    API_TOOL_CUSTOM, /* its input is the text of the argument `input` */
    API_TOOL_SEARCH  /* the client looks for tools */
};
struct api_tool_form { /* how the API of the request calls it, which the model need not know */
    enum api_tool_kind kind;
    size_t n_space; /* so many bytes of the name are those of its namespace, and a dot follows; 0 = none */
};

enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_REQUIRED, API_TOOLS_NAMED };

struct api_tools { /* owns its strings; n 0: none, or none that the model is to know of */
    char **lines;  /* [n] definitions as JSON on one line: keys in the order as sent, ", " and ": " between */
    char **names;  /* [n] */
    bool *allowed; /* [n] may be called */
    struct api_tool_form *forms; /* [n] */
    size_t n;
    size_t n_head; /* the first ones stand before the messages; the model reads of the others where they were found */
    struct buf schemas; /* of those that may be called, as JSON: [{"name","parameters","strict"},...] */
    enum api_tool_choice choice;
    bool parallel; /* an answer may have several calls */
};
void api_tools_fini(struct api_tools *tools);

/* Appends a value as Python's json.dumps writes it with ensure_ascii=False. */
void api_put_line(struct buf *out, const json_t *value);

/* ---- a generated text, cut into content and calls while it arrives ---- */

enum api_part_kind {
    API_PART_NONE,
    API_PART_TEXT,     /* content */
    API_PART_CALL,     /* a call begins: name */
    API_PART_ARGUMENTS /* the next bytes of its arguments */
};
struct api_part {
    enum api_part_kind kind;
    const char *text; /* TEXT, ARGUMENTS, never empty; valid until the next call */
    size_t len;
    const char *name; /* CALL: the request's string */
};

struct api_split {
    const struct api_tools *tools; /* NULL: all is content */
    struct rod_call_tags tags;
    int state;
    struct buf held; /* what may begin a tag, or is the head of a call */
    size_t n_told;   /* of them, in the last part */
    uint32_t depth;  /* of the arguments */
    bool in_string, escaped;
    bool after_call;  /* nothing but calls since the last one */
    uint32_t n_calls; /* that began */
    bool whole;       /* the last one has all its arguments */
    bool cut_head;    /* the text was cut in what comes before the arguments */
};
/* text: the next output of the model, complete characters of UTF-8. The caller then calls api_split_next until it is
 * false. Out of memory: held.failed. */
static inline void api_split_push(struct api_split *s, const char *text, size_t len) { buf_add(&s->held, text, len); }
bool api_split_next(struct api_split *split, struct api_part *part);
/* What is held is content, but a part of a call, or of the next one. cut: the text would have gone on. Then the
 * beginning of a call is no content, either. */
bool api_split_end(struct api_split *split, bool cut, struct api_part *part);
void api_split_fini(struct api_split *split);

#endif
