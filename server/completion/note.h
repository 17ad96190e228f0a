/* note.h - what is kept of a conversation beside its states, a record each: an answer as its tokens, or the tools that
 * its prompts begin with.
 *
 *   u8 version, u8 kind; numbers are little-endian, a text is its u32 length and its bytes
 *   answer: u64 low, u64 high, u32 n_ids, ids of u32, content, u32 n_calls, and of each name, arguments, id ("" = none)
 *   tools:  a definition a line, to the end
 *
 * Ownership: a note that was read owns its memory, and points into the bytes for texts. Threads: any. Pure. Invariant:
 * what is read was written so: writing it again makes the same bytes.
 */
#ifndef NOTE_H
#define NOTE_H

#include "recall.h"
#include "server/base/buf.h"

enum note_kind { NOTE_ANSWER = 1, NOTE_TOOLS };

struct note {
    enum note_kind kind;
    struct recall_place place; /* of an answer */
    struct rod_message answer;
    const char *tools; /* [n_tools] bytes */
    size_t n_tools;
    void *memory;
};

void note_put_answer(struct buf *out, struct recall_place place, const struct rod_message *answer);
void note_put_tools(struct buf *out, const char *tools, size_t n);
/* False: the bytes are no note of this version, with a token of n_vocab or beyond, or there is no memory. */
bool note_read(const void *bytes, size_t n, uint32_t n_vocab, struct note *out);
void note_fini(struct note *note);

#endif
