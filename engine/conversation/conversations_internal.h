/* conversations_internal.h - what conversations.c and conversations_files.c share; for these alone. */
#ifndef CONVERSATIONS_INTERNAL_H
#define CONVERSATIONS_INTERNAL_H

#include "conversation_notes.h"
#include "conversation_table.h"
#include "conversations.h"
#include "engine/base/log_limit.h"
#include "engine/base/siphash.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CONVERSATIONS_REMOVED = 64 };

enum conversation_work {
    CONVERSATION_WRITE,
    CONVERSATION_READ,
    CONVERSATION_UNLINK /* file "": the folder with all that is in it */
};
struct conversation_job {
    struct list_link link; /* in a queue, then in over */
    enum conversation_work work;
    char dir[CONVERSATION_DIR_BYTES], file[CONVERSATION_NAME_BYTES];
    struct conversation_place place;
    char *whose; /* of a write: the first note, n_whose bytes */
    size_t n_whose;
    struct state_buffer *buffer;
    void *user;
    int rc;
};
struct conversations {
    struct conversations_config config; /* its strings are not kept, but the layout's */
    char *root;                         /* the folder; NULL: none */
    uint8_t key[SIPHASH_KEY_BYTES];
    uint64_t seed;
    pthread_mutex_t lock; /* over what follows; never held over a file */
    struct conversation_table *table;
    struct list queues[2]; /* of the thread that writes and removes; of the one that reads */
    struct list over;      /* jobs with a user, and reads */
    uint64_t *forgotten;   /* [n_forgotten] */
    size_t n_forgotten, forgotten_cap;
    atomic_bool has_news; /* over, or forgotten */
    struct log_limit failed;
    uint64_t n_saves, n_failures, n_loads;
    struct {
        char dir[CONVERSATION_DIR_BYTES];
        uint64_t number;
    } removed[CONVERSATIONS_REMOVED]; /* the latest, a ring */
    uint64_t n_removed;
    bool ends;
    pthread_cond_t work[2];
    pthread_t threads[2];
    uint32_t n_threads;
};

void conversations_say(const struct conversations *c, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Name of the folder of this conversation. */
void conversations_dir(const struct conversations *c, const char *tenant, const char *name,
                       char dir[CONVERSATION_DIR_BYTES]);
char *conversations_whose(const char *tenant, const char *name, size_t *n); /* the first note; malloc'd */
/* The folder of a conversation is there: its states and the size of its notes into the table. Without the lock. */
void conversations_scan(struct conversations *c, const char *dir, const char *tenant, const char *name);
void conversations_scan_all(struct conversations *c);    /* folders that are not known yet */
void conversations_close_files(struct conversations *c); /* all jobs are done */
int conversations_open_files(struct conversations *c, struct rod_error *err);
void conversations_expire_locked(struct conversations *c); /* what its time is over for goes */
void conversations_push_locked(struct conversations *c, struct conversation_job *job);
/* Of a folder: all files in it, and itself. */
void conversations_unlink_all(const struct conversations *c, const char *dir);
int conversations_make_dir(const struct conversations *c, const char *dir, const void *whose, size_t n_whose,
                           struct rod_error *err);

#endif
