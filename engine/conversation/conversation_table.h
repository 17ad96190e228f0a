/* conversation_table.h - the conversations that an engine knows, and their kept states: by name, by lane, by use.
 *
 * A lane is what begins with the same system, tools and first message: a name may have several, as titles and
 * sub-agents come under one. Of a lane there stay the longest and the two newest states behind a prompt and behind an
 * answer, because a client may leave out the newest answer; and of earlier turns the latest state each,
 * thinned out: the number of a turn is a power of two, or its distance from the last turn is at most twice the largest
 * power of two that divides it. So n turns leave some 3 log2(n) states, and an edit of any turn finds one near it.
 *
 * A state is in host memory (an entry of the prefix cache), in a file, or both; in neither it is forgotten. Equal
 * prompts of two conversations are a state of each: one entry, but two files, which end with their conversation. Files
 * past the budget go: of the tenant's conversation that was used longest ago the lane used longest ago, first those of
 * the tenant that wants room if it has a quarter. The caller has the folder and removes what the table names.
 *
 * Ownership: a table owns its conversations and states; tenant and name given are copied. Threads: one at a time. No
 * I/O and no clock (now_s: Unix seconds). Invariant: files together take at most budget_bytes, as far as this table
 * knows of them.
 */
#ifndef CONVERSATION_TABLE_H
#define CONVERSATION_TABLE_H

#include "conversation_file.h"
#include "engine/base/list.h"

enum { CONVERSATION_DIR_BYTES = 34, CONVERSATION_TENANT_PARTS = 4, CONVERSATION_MAX_LANES = 8 };

struct conversation {
    struct list_link used; /* in the table's, latest last */
    struct conversation *next;
    struct list states;
    /* Name of its folder: a hash in hexadecimal digits; in a store the tenant's hash stands before it. */
    char dir[CONVERSATION_DIR_BYTES];
    bool made;                      /* the folder is there */
    uint64_t listed_ns, changed_ns; /* the owner's, in a store: when it was looked at, or written to */
    uint32_t n_lanes;
    uint64_t file_bytes, notes_bytes; /* of all its files; of them the notes */
    int64_t used_s;
    const char *name; /* behind tenant; "": the heads of the tenant's conversations */
    char tenant[];
};
struct conversation_state {
    struct list_link link; /* in its conversation's, latest use last */
    struct conversation_state *of_lane, *of_tokens;
    struct conversation *of;
    struct conversation_place place;
    uint64_t file_bytes; /* 0: it has no file */
    bool ready;          /* the file is written */
    bool in_memory;
    int64_t used_s;
};

struct conversation_table_config {
    uint64_t budget_bytes;            /* of files */
    atomic_uint_fast64_t *file_bytes; /* what they take is written here; NULL: nobody asks */
    uint32_t max_conversations;
    bool forgets; /* past their number and behind their time conversations leave the table alone, not the files */
    /* The file of a state, or of a conversation all of them and the folder (file ""), is not wanted any more. */
    void (*remove)(void *arg, const char *dir, const char *file);
    /* The entry of the state in host memory is not wanted any more. */
    void (*forget)(void *arg, uint64_t tokens_low);
    void *arg;
};
struct conversation_table;

struct conversation_table *conversation_table_new(const struct conversation_table_config *config); /* NULL: no memory */
void conversation_table_close(struct conversation_table *t); /* NULL: nothing; nothing is removed */

/* dir: of tenant and name. Latest use from now on. NULL: no memory. */
struct conversation *conversation_get(struct conversation_table *t, const char *dir, const char *tenant,
                                      const char *name, int64_t now_s);
struct conversation *conversation_find(struct conversation_table *t, const char *dir); /* NULL: unknown */
struct conversation *conversation_first(const struct conversation_table *t);           /* used longest ago; NULL */
struct conversation *conversation_after(const struct conversation_table *t, const struct conversation *c);
void conversation_remove(struct conversation_table *t, struct conversation *c); /* with all its states */
void conversation_forget(struct conversation_table *t, struct conversation *c); /* likewise, but for the files */

/* The state that this conversation has of these tokens. NULL: none. */
struct conversation_state *conversation_state_find(struct conversation_table *t, const struct conversation *of,
                                                   const struct conversation_place *p);
/* One that can be read, anybody's, but this conversation's (NULL: nobody's) before others. NULL: none. */
struct conversation_state *conversation_state_ready(struct conversation_table *t, const struct conversation *of,
                                                    const struct conversation_place *p);
/* One that can be read, of another conversation, whose file is the same to the byte. NULL: none. */
const struct conversation_state *conversation_state_twin(const struct conversation_table *t,
                                                         const struct conversation_state *s);
/* A state that is new, or known. NULL: no memory. */
struct conversation_state *conversation_state_add(struct conversation_table *t, struct conversation *c,
                                                  const struct conversation_place *p);
/* Its file takes so many bytes, 0: is gone; ready: it can be read. A state that is nowhere any more is forgotten. */
void conversation_state_filed(struct conversation_table *t, struct conversation_state *s, uint64_t file_bytes,
                              bool ready);
void conversation_state_drop(struct conversation_table *t, struct conversation_state *s); /* file and entry */
void conversation_set_notes(struct conversation_table *t, struct conversation *c, uint64_t bytes);
/* There is an entry in host memory of these tokens; it is gone. */
void conversation_state_in_memory(struct conversation_table *t, const struct conversation_place *p);
void conversation_state_gone(struct conversation_table *t, uint64_t tokens_low);
/* Removes the files that the lane does not need. */
void conversation_thin(struct conversation_table *t, struct conversation *c, uint64_t lane);
/* Removes until a file of so many bytes of c fits. False: it does not. */
bool conversation_room(struct conversation_table *t, struct conversation *c, uint64_t bytes);
/* Removes what was not used since then. */
void conversation_expire(struct conversation_table *t, int64_t before_s);

/* Places of a tenant with this lane and at most n tokens, more than `than`, in rising order of n_tok; at most `most`,
 * the longest ones. Returns how many. */
uint32_t conversation_places(const struct conversation_table *t, const char *tenant, uint64_t lane, uint64_t than,
                             uint64_t n, struct conversation_place *places, uint32_t most);

struct conversation_counts {
    uint64_t n_conversations, n_lanes, n_host, n_file, file_bytes;
};
struct conversation_counts conversation_count(const struct conversation_table *t);

#endif
