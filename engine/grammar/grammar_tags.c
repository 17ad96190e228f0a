/* grammar_tags.c - see grammar_tags.h. A model has one tag for calls of tools; a request that brings another tag brings
 * few.
 */
#include "grammar_tags.h"
#include "engine/base/fail.h"
#include "engine/text/tokenizer.h"
#include "grammar_gate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TAGS = 16 };

struct tag {
    char *open;
    int32_t *ids;
    size_t n;
};

struct grammar_tags {
    pthread_mutex_t lock;
    const struct tokenizer *tokenizer;
    uint32_t V, n;
    struct tag tag[MOST_TAGS];
};

int grammar_tags_new(const struct tokenizer *tokenizer, uint32_t V, struct grammar_tags **out, struct rod_error *err) {
    struct grammar_tags *t = calloc(1, sizeof *t);
    if (!t || pthread_mutex_init(&t->lock, NULL)) {
        free(t);
        return rod_fail_no_memory(err);
    }
    t->tokenizer = tokenizer;
    t->V = V;
    *out = t;
    return 0;
}

static void tag_fini(struct tag *tag) {
    free(tag->open);
    free(tag->ids);
}

void grammar_tags_free(struct grammar_tags *t) {
    if (!t) return;
    for (uint32_t i = 0; i < t->n; i++) tag_fini(&t->tag[i]);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int tag_init(struct tag *tag, const struct grammar_tags *t, const char *open, struct rod_error *err) {
    const struct grammar_gate gate = {.open = open, .n_open = strlen(open)};
    *tag = (struct tag){.open = strdup(open), .ids = malloc((t->V + 1) * sizeof *tag->ids)};
    if (!tag->open || !tag->ids) {
        tag_fini(tag);
        return rod_fail_no_memory(err);
    }
    for (uint32_t id = 0; id < t->V; id++) {
        size_t len = 0;
        bool special;
        const char *bytes = tokenizer_bytes(t->tokenizer, (int32_t)id, &len, &special);
        if (bytes && grammar_gate_may_open(&gate, bytes, len)) tag->ids[tag->n++] = (int32_t)id;
    }
    int32_t *fitting = realloc(tag->ids, (tag->n + 1) * sizeof *tag->ids);
    if (fitting) tag->ids = fitting;
    return 0;
}

static struct tag *tags_find_locked(struct grammar_tags *t, const char *open) {
    for (uint32_t i = 0; i < t->n; i++)
        if (strcmp(t->tag[i].open, open) == 0) return &t->tag[i];
    return NULL;
}

int grammar_tags_find(struct grammar_tags *t, const char *open, const int32_t **ids, size_t *n, int32_t **own,
                      struct rod_error *err) {
    *own = NULL;
    pthread_mutex_lock(&t->lock); /* held while a list is made: other threads mostly need the same list */
    const struct tag *tag = tags_find_locked(t, open);
    struct tag made = {0};
    int rc = tag ? 0 : tag_init(&made, t, open, err);
    if (!rc && !tag && t->n < MOST_TAGS) {
        t->tag[t->n] = made;
        tag = &t->tag[t->n++];
    }
    pthread_mutex_unlock(&t->lock);
    if (rc) return rc;
    *ids = tag ? tag->ids : made.ids;
    *n = tag ? tag->n : made.n;
    if (tag) return 0;
    *own = made.ids;
    free(made.open);
    return 0;
}
