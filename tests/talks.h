/* talks.h - for tests of conversations: prompts that grow by texts and answers, as clients send them. */
#ifndef TALKS_H
#define TALKS_H

#include "sessions_setup.h"

enum { MOST = 4000, MAX_MARKS = 64 };

/* A conversation as a client has it: system, then the user's texts and the answers. */
struct talk {
    char name[32];
    const char *tenant;
    int32_t ids[MOST];
    size_t n, marks[MAX_MARKS], n_marks;
    uint32_t n_texts;
};

static inline void talk_add(struct talk *t, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) t->ids[t->n + i] = (int32_t)(2 + philox_uniform(seed, t->n + i, 0) * (V - 2));
    t->n += n;
}
static inline void talk_mark(struct talk *t) { t->marks[t->n_marks++] = t->n; }

static inline void talk_begin(struct talk *t, const char *name, size_t n_head, uint64_t seed) {
    *t = (struct talk){.tenant = "a"};
    snprintf(t->name, sizeof t->name, "%s", name);
    talk_add(t, n_head, seed);
    talk_mark(t);
}
static inline void talk_text(struct talk *t, size_t n, uint64_t seed) {
    talk_add(t, n, seed);
    talk_mark(t);
    t->n_texts++;
}

static inline struct rod_request *talk_request(const struct talk *t, struct answer *a, uint32_t max_tokens) {
    struct rod_request *r = collect_request(t->ids, t->n, a);
    r->marks = malloc(t->n_marks * sizeof *r->marks);
    memcpy(r->marks, t->marks, t->n_marks * sizeof *r->marks);
    r->n_marks = t->n_marks;
    r->has_head = true;
    r->n_user_texts = t->n_texts;
    r->tenant = strdup(t->tenant);
    if (*t->name) r->conversation = strdup(t->name);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    r->sampling.temperature = 1;
    r->sampling.seed = 99;
    r->n_logprobs = 2;
    return r;
}

/* Asks, and takes the answer into the conversation. Returns how many tokens were read. */
static inline uint64_t talk_ask(struct setup *b, struct talk *t, uint32_t max_tokens) {
    struct answer a;
    finish(b, talk_request(t, &a, max_tokens), &a);
    memcpy(t->ids + t->n, a.ids, a.n_ids * sizeof *a.ids);
    t->n += a.n_ids;
    talk_mark(t);
    const uint64_t read = a.end.prompt_tok - a.end.cached_tok;
    collect_free(&a);
    return read;
}

/* Likewise, with the answer compared to that of an engine that reads everything. */
static inline uint64_t talk_ask_beside(struct setup *b, struct setup *cold, struct talk *t, uint32_t max_tokens,
                                       const char *what) {
    struct answer z;
    struct talk same = *t;
    *same.name = 0;
    finish(cold, talk_request(&same, &z, max_tokens), &z);
    const size_t from = t->n;
    const uint64_t read = talk_ask(b, t, max_tokens);
    for (size_t i = 0; i < z.n_ids; i++)
        if (t->ids[from + i] != z.ids[i]) fail_msg("%s: token %zu is %d, cold %d", what, i, t->ids[from + i], z.ids[i]);
    collect_free(&z);
    return read;
}

static inline void look(struct setup *b, const struct talk *t) {
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    void *bytes;
    size_t n;
    if (rod_conversation_open(b->c.engine, t->tenant, t->name, &seen, &bytes, &n, &err)) fail_msg("%s", err.message);
    free(bytes);
}

#endif
