/* conversations.h - what the engine keeps of conversations: prompts that bring everything, each time, under a name.
 *
 * The states are the prefix cache's; this module says which of them a conversation needs, and has the second place
 * where they lie: files, a folder a conversation, DIR/conversations/HASH/. HASH is of tenant and name, model and
 * layout, under the folder's key (session_names.h). So a state outlives its entry in host memory, the process (also
 * kill -9: a file has its name once it is complete), and is found by each server of the folder.
 *
 * A state is found by its lane, the hash of a prompt's beginning, and then by the hash of all its tokens, of 128 bits
 * with a secret seed, tenant and salt: the name is a hint where another server's files are, and under which a state is
 * listed and removed. What another conversation has read too is copied by the home, or linked. Files are not synced:
 * after a power cut a part of them may be lost, which readers see by the checksums, and the tokens are read again.
 *
 * Ownership: a job is this module's; its buffer is given over. Threads: keep, load, next_over, gone, leave: the
 * engine's; look, note, list, get, remove, counts: any, and the first two may wait for files. One thread writes, one
 * reads.
 */
#ifndef CONVERSATIONS_H
#define CONVERSATIONS_H

#include "conversation_file.h"

#define CONVERSATIONS_FOLDER "conversations"

struct conversations_config {
    const char *state_dir;            /* NULL or "": states live in host memory alone */
    const struct state_home *home;    /* a fenced one, instead of state_dir; NULL = none. It is copied */
    struct state_form form;           /* its layout outlives this */
    uint64_t disk_bytes;              /* 0 = a quarter of what the disk has free; in a store no limit */
    atomic_uint_fast64_t *file_bytes; /* what the files take is written here; NULL: nobody asks */
    uint64_t waiting_bytes;           /* of states that wait to be written at most; 0 = no limit */
    uint64_t ttl_s;                   /* 0 = for ever */
    void (*wake)(void *arg);          /* a job is over; any thread */
    void (*log)(void *arg, int level, const char *line);
    void *arg;
};
struct conversations;

/* Reads the folder. ROD_EIO, ROD_ESTATE: the folder's key. */
int conversations_open(const struct conversations_config *config, struct conversations **out, struct rod_error *err);
void conversations_close(struct conversations *c); /* waits for what is being written; NULL: nothing */
bool conversations_durable(const struct conversations *c);
uint64_t conversations_seed(const struct conversations *c);

struct conversation_prompt {
    const char *tenant, *salt; /* NULL as "" */
    const int32_t *ids;
    size_t n;
    size_t n_head, n_first; /* where system with tools, and the first message, end; 0 = unknown */
    uint32_t turn;          /* texts of the user */
    const char *name;       /* of the conversation, whose states are read before others'; NULL = none */
};
/* The place of the state after the first n_tok of these tokens. */
struct conversation_place conversations_place(const struct conversations *c, const struct conversation_prompt *prompt,
                                              uint64_t n_tok, enum conversation_kind kind, bool generated);
/* The longest state in a file that has read a beginning of the prompt of more than `than` tokens, and leaves one to
 * read. */
bool conversations_find(struct conversations *c, const struct conversation_prompt *prompt, uint64_t than,
                        struct conversation_place *out);

struct conversation_job;
struct conversation_over {
    void *user;
    bool loaded;                 /* a load; else a keep */
    int rc;                      /* of a load: not 0 if the file is gone or at fault */
    struct state_buffer *buffer; /* of a load: the caller's */
};
/* How long a request waits for a store's answer that moves no bytes and has waited so long before (store_wait.h). */
uint64_t conversations_patience_ns(uint64_t waited_ns);
/* Reads the file into the buffer, which is given over and comes back; *place: of the state that is read. NULL without
 * memory, or where the user, having waited so long, does not wait: the buffer is the caller's. */
struct conversation_job *conversations_load(struct conversations *c, const struct conversation_prompt *prompt,
                                            struct conversation_place *place, struct state_buffer *buffer,
                                            uint64_t waited_ns, void *user);
/* How many conversations were removed so far: for what a request keeps later. */
uint64_t conversations_now(struct conversations *c);
/* The state is in host memory, as an entry named place.tokens.low, and belongs to this conversation; with a folder it
 * is written, but not if the conversation was removed since `since`, of conversations_now. user: told when it is. NULL:
 * nothing is to be waited for. The caller keeps its reference. */
struct conversation_job *conversations_keep(struct conversations *c, const char *tenant, const char *name,
                                            const struct conversation_place *place, struct state_buffer *buffer,
                                            uint64_t since, uint64_t waited_ns, void *user);
/* The entry is in host memory again; has left it. */
void conversations_there(struct conversations *c, const struct conversation_place *place);
void conversations_gone(struct conversations *c, uint64_t tokens_low);
/* The files of all beginnings of this prompt go: one of their states is at fault. */
void conversations_distrust(struct conversations *c, const struct conversation_prompt *prompt);
/* Whether one of the next two has something new, since the last call. */
bool conversations_have_news(struct conversations *c);
bool conversations_next_over(struct conversations *c, struct conversation_over *out);
void conversations_leave(struct conversations *c, struct conversation_job *job); /* its user waits no more */
/* An entry that is to leave host memory, as its conversation was removed. */
bool conversations_next_forgotten(struct conversations *c, uint64_t *tokens_low);

/* The calls of rodimus.h. */
int conversations_look(struct conversations *c, const char *tenant, const char *name, struct rod_notes_seen *seen,
                       void **bytes, size_t *n, struct rod_error *err);
int conversations_note(struct conversations *c, const char *tenant, const char *name, const void *record, size_t n,
                       struct rod_notes_seen *seen, struct rod_error *err);
int conversations_list(struct conversations *c, const char *tenant, const char *after, size_t limit,
                       struct rod_conversation_info **infos, size_t *n, bool *more, struct rod_error *err);
int conversations_get(struct conversations *c, const char *tenant, const char *name, struct rod_conversation_info *out,
                      struct rod_error *err);
int conversations_remove(struct conversations *c, const char *tenant, const char *name, struct rod_error *err);
void conversations_stats(struct conversations *c, struct rod_stats *out);

#endif
