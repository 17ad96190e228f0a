/* conversation_file.h - a kept state of a conversation as a state file (state_file.h), and what its name says.
 *
 * The file's name has all that a look-up needs, so that a list of the folder is its index:
 *
 *   LANE-TOKENS-TURN-N-K.state   LANE 16 and TOKENS 32 hexadecimal digits; TURN, N decimal; K one letter: h, p, q, a
 *
 * The section meta is the name again; token_hash is the lower half of TOKENS; version and seed are 0, other sections
 * empty. Hashes are made with a secret seed (conversations.h), and the tokens themselves are not in the file.
 *
 * Threads: pure, but for malloc and the last. Invariant: one state has one name; a name that is accepted is one that
 * the writer makes.
 */
#ifndef CONVERSATION_FILE_H
#define CONVERSATION_FILE_H

#include "engine/state/state_buffer.h"
#include "engine/state/state_home.h"

enum conversation_kind {
    CONVERSATION_HEAD,   /* at the end of system and tools, and equal for all lanes that begin so */
    CONVERSATION_PROMPT, /* at the last multiple of the chunk in a prompt */
    CONVERSATION_ANSWER  /* behind an answer */
};
struct conversation_hash {
    uint64_t low, high;
};
struct conversation_place { /* of a state */
    uint64_t lane;          /* hash of the first tokens, up to the end of the first message; of a head, of itself */
    struct conversation_hash tokens; /* of all n_tok that were read */
    uint64_t n_tok;
    uint32_t turn; /* texts of the user in the prompt that it belongs to */
    enum conversation_kind kind;
    bool generated; /* the model has said some of the tokens */
};
enum { CONVERSATION_NAME_BYTES = 112 };
/* How prompts become states; kernels whose states have other bits count it up. */
enum { CONVERSATION_ARITHMETIC = 1 };

void conversation_file_name(const struct conversation_place *place, char name[CONVERSATION_NAME_BYTES]);
/* False: it is no such name. */
bool conversation_file_parse(const char *name, struct conversation_place *out);

/* What the file takes. */
uint64_t conversation_file_bytes(const struct state_form *form, const struct conversation_place *place);
/* *header, *n_header: malloc'd; the file is these bytes and then the buffer's. */
int conversation_file_write(const struct state_form *form, const struct conversation_place *place,
                            const struct state_buffer *buffer, void **header, size_t *n_header, struct rod_error *err);
/* Whether a parsed header is the one of the file of this name. ROD_ESTATE. */
int conversation_file_check(const struct state_form *form, const struct state_file *state, const char *name,
                            const struct conversation_place *place, struct rod_error *err);
/* Into the buffer. version, unless NULL: of what was read, also where that is at fault. */
int conversation_file_read(const struct state_form *form, const struct state_home *home,
                           const struct conversation_place *place, const struct state_buffer *buffer,
                           struct state_disk_version *version, struct rod_error *err);

#endif
