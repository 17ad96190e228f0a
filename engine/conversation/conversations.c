/* conversations.c - see conversations.h: places, the table behind its lock, the calls. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/policy.h"
#include "engine/base/test_hooks.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <xxhash.h>

enum { MOST_PLACES = 64, DISK_PARTS = 4 };

static const char *text_of(const char *s) { return s ? s : ""; }

/* ---- open ---- */

static void table_remove(void *arg, const char *dir, const char *file) {
    struct conversations *c = arg;
    struct conversation_job *job = conversations_durable(c) ? conversations_job(CONVERSATION_UNLINK, dir) : NULL;
    if (!job) return; /* without memory a file stays until the next start finds it */
    snprintf(job->file, sizeof job->file, "%s", file);
    conversations_push_locked(c, job);
}

static void table_forget(void *arg, uint64_t tokens_low) {
    struct conversations *c = arg;
    if (ARRAY_RESERVE(c->forgotten, c->forgotten_cap, c->n_forgotten, 1)) c->forgotten[c->n_forgotten++] = tokens_low;
    atomic_store(&c->has_news, true);
}

static uint64_t disk_budget(const struct conversations *c) {
    struct statvfs disk;
    if (c->config.disk_bytes) return c->config.disk_bytes;
    const bool has_folder = !c->config.home && c->config.state_dir && *c->config.state_dir;
    if (!has_folder || statvfs(c->config.state_dir, &disk)) return UINT64_MAX / 2;
    return (uint64_t)disk.f_bavail * disk.f_frsize / DISK_PARTS;
}

int conversations_open(const struct conversations_config *config, struct conversations **out, struct rod_error *err) {
    struct conversations *c = calloc(1, sizeof *c);
    if (!c) return rod_fail_no_memory(err);
    c->config = *config;
    c->patience_ns = test_hooks_patience_ms() * 1000000u;
    pthread_mutex_init(&c->lock, NULL);
    for (int queue = 0; queue < 2; queue++) {
        list_init(&c->queues[queue]);
        list_init(&c->going[queue]);
        clock_init_condition(&c->work[queue]);
    }
    clock_init_condition(&c->tick);
    clock_init_condition(&c->called);
    list_init(&c->over);
    if (getrandom(c->key, sizeof c->key, 0) != (ssize_t)sizeof c->key) c->key[0] = (uint8_t)clock_now_ns();
    const struct conversation_table_config of_table = {.budget_bytes = disk_budget(c),
                                                       .max_conversations = POLICY_CONVERSATIONS,
                                                       .file_bytes = config->file_bytes,
                                                       .forgets = config->home != NULL,
                                                       .remove = table_remove,
                                                       .forget = table_forget,
                                                       .arg = c};
    c->table = conversation_table_new(&of_table);
    int rc = c->table ? 0 : rod_fail_no_memory(err);
    const bool has_folder = config->state_dir && *config->state_dir;
    if (!rc && config->home)
        rc = conversations_store_open(c, err);
    else if (!rc && has_folder)
        rc = conversations_folder_open(c, err);
    if (!rc && conversations_durable(c)) rc = conversations_start(c, err);
    uint8_t hash[SIPHASH_BYTES];
    siphash(c->key, "tokens of conversations", 23, hash);
    memcpy(&c->seed, hash, sizeof c->seed);
    if (rc)
        conversations_close(c);
    else
        *out = c;
    return rc;
}

bool conversations_durable(const struct conversations *c) { return c->root || c->stored; }
uint64_t conversations_seed(const struct conversations *c) { return c->seed; }

/* ---- places ---- */

enum { BLOCK_TOK = 64 };

/* A walk over a prompt's tokens: the hash of its whole blocks so far, each with the one before it. */
struct walk {
    const struct conversation_prompt *prompt;
    size_t at;
    struct conversation_hash blocks;
};

static struct conversation_hash hash_block(const struct conversation_hash *before, const int32_t *ids, size_t n) {
    unsigned char bytes[sizeof *before + BLOCK_TOK * sizeof *ids];
    assert(n <= BLOCK_TOK);
    memcpy(bytes, before, sizeof *before);
    memcpy(bytes + sizeof *before, ids, n * sizeof *ids);
    const XXH128_hash_t hash = XXH3_128bits(bytes, sizeof *before + n * sizeof *ids);
    return (struct conversation_hash){hash.low64, hash.high64};
}

static struct walk walk_begin(const struct conversations *c, const struct conversation_prompt *p) {
    const char *tenant = text_of(p->tenant), *salt = text_of(p->salt);
    uint64_t seed = XXH3_64bits_withSeed(tenant, strlen(tenant), c->seed);
    seed = XXH3_64bits_withSeed(salt, strlen(salt), seed);
    return (struct walk){p, 0, {seed, ~seed}};
}

/* Of the first n tokens; n never goes back by more than a block. */
static struct conversation_hash walk_to(struct walk *w, size_t n) {
    assert(n <= w->prompt->n && n >= w->at);
    for (; n - w->at >= BLOCK_TOK; w->at += BLOCK_TOK)
        w->blocks = hash_block(&w->blocks, w->prompt->ids + w->at, BLOCK_TOK);
    return n == w->at ? w->blocks : hash_block(&w->blocks, w->prompt->ids + w->at, n - w->at);
}

/* Hashes of the head, and of the prompt up to the end of its first message; 0 where that is unknown. */
static void lanes_of(const struct conversations *c, const struct conversation_prompt *p, uint64_t *head,
                     uint64_t *lane) {
    struct walk w = walk_begin(c, p);
    *head = *lane = 0;
    if (p->n_head && p->n_head <= p->n) *head = walk_to(&w, p->n_head).low;
    if (p->n_first > p->n_head && p->n_first <= p->n) *lane = walk_to(&w, p->n_first).low;
}

struct conversation_place conversations_place(const struct conversations *c, const struct conversation_prompt *p,
                                              uint64_t n_tok, enum conversation_kind kind, bool generated) {
    struct conversation_place place = {.n_tok = n_tok, .turn = p->turn, .kind = kind, .generated = generated};
    uint64_t head, lane;
    struct walk w = walk_begin(c, p);
    lanes_of(c, p, &head, &lane);
    place.lane = kind == CONVERSATION_HEAD ? head : lane;
    if (kind == CONVERSATION_HEAD) place.turn = 0;
    if (kind == CONVERSATION_ANSWER) place.generated = true;
    place.tokens = walk_to(&w, (size_t)n_tok);
    return place;
}

/* The longest of these, in rising order, whose tokens are the prompt's. */
static bool places_match(const struct conversations *c, const struct conversation_prompt *p,
                         const struct conversation_place *places, uint32_t n, struct conversation_place *out) {
    struct walk w = walk_begin(c, p);
    bool found = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct conversation_hash tokens = walk_to(&w, (size_t)places[i].n_tok);
        if (tokens.low != places[i].tokens.low || tokens.high != places[i].tokens.high) continue;
        *out = places[i];
        found = true;
    }
    return found;
}

bool conversations_find(struct conversations *c, const struct conversation_prompt *p, uint64_t than,
                        struct conversation_place *out) {
    struct conversation_place places[MOST_PLACES];
    uint64_t lanes[2];
    bool found = false;
    if (!conversations_durable(c) || p->n < 2) return false;
    lanes_of(c, p, &lanes[0], &lanes[1]);
    for (int i = 0; i < 2; i++) {
        if (!lanes[i]) continue;
        pthread_mutex_lock(&c->lock);
        const uint32_t n =
            conversation_places(c->table, text_of(p->tenant), lanes[i], than, p->n - 1, places, MOST_PLACES);
        pthread_mutex_unlock(&c->lock);
        if (!n || !places_match(c, p, places, n, out)) continue;
        than = out->n_tok;
        found = true;
    }
    return found;
}

/* ---- the engine's calls ---- */

static struct conversation_job *job_new(enum conversation_work work, const struct conversation_place *place,
                                        const char *dir, struct state_buffer *buffer, void *user) {
    struct conversation_job *job = conversations_job(work, dir);
    if (!job) return NULL;
    job->place = *place;
    conversation_file_name(place, job->file);
    job->buffer = buffer;
    job->user = user;
    return job;
}

struct conversation_job *conversations_load(struct conversations *c, const struct conversation_prompt *prompt,
                                            struct conversation_place *place, struct state_buffer *buffer,
                                            uint64_t waited_ns, void *user) {
    char dir[CONVERSATION_DIR_BYTES] = "";
    struct conversation_job *job = NULL;
    if (prompt->name) conversations_dir(c, text_of(prompt->tenant), prompt->name, dir);
    pthread_mutex_lock(&c->lock);
    const struct conversation_state *s = conversation_state_ready(c->table, conversation_find(c->table, dir), place);
    if (s && conversations_waits_locked(c, waited_ns))
        job = job_new(CONVERSATION_READ, &s->place, s->of->dir, buffer, user);
    if (job) {
        *place = s->place;
        job->until_ns = conversations_until_locked(c, buffer->n_bytes, waited_ns);
        conversation_get(c->table, s->of->dir, s->of->tenant, s->of->name, clock_unix_s());
        conversation_state_add(c->table, s->of, place); /* it is used */
        conversations_push_locked(c, job);
    }
    pthread_mutex_unlock(&c->lock);
    return job;
}

/* What waits takes host memory: a home that is slow must not have all of it. */
static bool write_waits_well(const struct conversations *c, const struct state_buffer *buffer) {
    const uint64_t most = c->config.waiting_bytes;
    return !most || !c->waiting_bytes || c->waiting_bytes + buffer->n_bytes <= most;
}

/* Where another conversation has the file: the home copies it. */
static void set_twin_locked(const struct conversations *c, struct conversation_job *job,
                            const struct conversation_state *s) {
    const struct conversation_state *twin = conversation_state_twin(c->table, s);
    if (twin) memcpy(job->twin, twin->of->dir, sizeof job->twin);
}

/* Writes the state unless it is in a file: the job, or NULL. */
static struct conversation_job *keep_write_locked(struct conversations *c, struct conversation *of,
                                                  struct conversation_state *s, struct state_buffer *buffer,
                                                  uint64_t waited_ns, void *user) {
    const uint64_t bytes = conversation_file_bytes(&c->config.form, &s->place);
    if (!conversations_durable(c) || s->file_bytes) return NULL;
    if (c->queues[0].n >= POLICY_CONVERSATION_WRITES || !write_waits_well(c, buffer) ||
        !conversation_room(c->table, of, bytes)) {
        c->n_failures++;
        return NULL;
    }
    if (!conversations_waits_locked(c, waited_ns)) user = NULL;
    struct conversation_job *job = job_new(CONVERSATION_WRITE, &s->place, of->dir, buffer, user);
    if (job) job->makes = !of->notes_bytes;
    if (job && user) job->until_ns = conversations_until_locked(c, buffer->n_bytes, waited_ns);
    if (job) job->whose = conversations_whose(of->tenant, of->name, &job->n_whose);
    if (!job || !job->whose) {
        free(job);
        return NULL;
    }
    set_twin_locked(c, job, s);
    of->made = true; /* by this job, or one before it */
    conversation_state_filed(c->table, s, bytes, false);
    state_buffer_ref(buffer);
    conversations_push_locked(c, job);
    return user ? job : NULL;
}

uint64_t conversations_now(struct conversations *c) {
    pthread_mutex_lock(&c->lock);
    const uint64_t now = c->n_removed;
    pthread_mutex_unlock(&c->lock);
    return now;
}

/* Of many removals since then the earliest are not known any more: what is kept wrongly is found and removed again. */
static bool was_removed_locked(const struct conversations *c, const char *dir, uint64_t since) {
    for (int i = 0; i < CONVERSATIONS_REMOVED; i++)
        if (c->removed[i].number > since && !strcmp(c->removed[i].dir, dir)) return true;
    return false;
}

struct conversation_job *conversations_keep(struct conversations *c, const char *tenant, const char *name,
                                            const struct conversation_place *place, struct state_buffer *buffer,
                                            uint64_t since, uint64_t waited_ns, void *user) {
    char dir[CONVERSATION_DIR_BYTES], heads[CONVERSATION_DIR_BYTES];
    const int64_t now_s = clock_unix_s();
    struct conversation_job *job = NULL;
    if (!place->lane) return NULL; /* its prompt is no chat's: nobody would find it */
    conversations_dir(c, tenant, name, dir);
    conversations_dir(c, tenant, "", heads);
    pthread_mutex_lock(&c->lock);
    conversations_expire_locked(c);
    if (was_removed_locked(c, dir, since)) {
        table_forget(c, place->tokens.low);
        atomic_store(&c->has_news, true);
        pthread_mutex_unlock(&c->lock);
        return NULL;
    }
    struct conversation *of = conversation_get(c->table, dir, tenant, name, now_s);
    if (of && place->kind == CONVERSATION_HEAD) of = conversation_get(c->table, heads, tenant, "", now_s);
    struct conversation_state *s = of ? conversation_state_add(c->table, of, place) : NULL;
    if (s) {
        conversation_state_in_memory(c->table, &s->place);
        job = keep_write_locked(c, s->of, s, buffer, waited_ns, user);
        if (place->kind != CONVERSATION_HEAD) conversation_thin(c->table, s->of, place->lane);
    }
    pthread_mutex_unlock(&c->lock);
    return job;
}

void conversations_there(struct conversations *c, const struct conversation_place *place) {
    pthread_mutex_lock(&c->lock);
    conversation_state_in_memory(c->table, place);
    pthread_mutex_unlock(&c->lock);
}

void conversations_distrust(struct conversations *c, const struct conversation_prompt *p) {
    for (struct conversation_place place; conversations_find(c, p, 0, &place);) {
        pthread_mutex_lock(&c->lock);
        for (struct conversation_state *s; (s = conversation_state_ready(c->table, NULL, &place));)
            conversation_state_drop(c->table, s);
        pthread_mutex_unlock(&c->lock);
    }
}

void conversations_gone(struct conversations *c, uint64_t tokens_low) {
    pthread_mutex_lock(&c->lock);
    conversation_state_gone(c->table, tokens_low);
    pthread_mutex_unlock(&c->lock);
}

bool conversations_have_news(struct conversations *c) { return atomic_exchange(&c->has_news, false); }

static void hear_word_locked(struct conversation_job *word) {
    if (!word->of) return;
    word->of->word = NULL;
    if (word->of->ended) conversations_job_free(word->of);
}

bool conversations_next_over(struct conversations *c, struct conversation_over *out) {
    struct conversation_job *job = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->over.n) {
        job = LIST_OF(list_first(&c->over), struct conversation_job, link);
        list_remove(&c->over, &job->link);
        hear_word_locked(job);
    }
    pthread_mutex_unlock(&c->lock);
    if (!job) return false;
    *out = (struct conversation_over){job->user, job->work == CONVERSATION_READ, job->rc, job->buffer};
    conversations_job_free(job);
    return true;
}

void conversations_leave(struct conversations *c, struct conversation_job *job) {
    pthread_mutex_lock(&c->lock);
    (job->word ? job->word : job)->user = NULL;
    pthread_mutex_unlock(&c->lock);
}

bool conversations_next_forgotten(struct conversations *c, uint64_t *tokens_low) {
    pthread_mutex_lock(&c->lock);
    const bool is = c->n_forgotten > 0;
    if (is) *tokens_low = c->forgotten[--c->n_forgotten];
    pthread_mutex_unlock(&c->lock);
    return is;
}

void conversations_close(struct conversations *c) {
    if (!c) return;
    conversations_stop(c);
    for (struct conversation_over over; conversations_next_over(c, &over);) state_buffer_release(over.buffer);
    conversation_table_close(c->table);
    if (c->stored) state_guard_fini(&c->guard);
    pthread_mutex_destroy(&c->lock);
    free(c->forgotten);
    free(c->root);
    free(c);
}

/* ---- the owner's calls ---- */

int conversations_look(struct conversations *c, const char *tenant, const char *name, struct rod_notes_seen *seen,
                       void **bytes, size_t *n, struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES], path[STATE_DISK_MAX_NAME * 8];
    *bytes = NULL;
    *n = 0;
    pthread_mutex_lock(&c->lock);
    conversations_expire_locked(c);
    pthread_mutex_unlock(&c->lock);
    if (c->stored) return conversations_store_call_look(c, tenant, name, seen, bytes, n, err);
    if (!c->root) return 0;
    conversations_dir(c, tenant, "", dir);
    conversations_scan(c, dir, tenant, "");
    conversations_dir(c, tenant, name, dir);
    conversations_scan(c, dir, tenant, name);
    if (snprintf(path, sizeof path, "%s/%s", c->root, dir) >= (int)sizeof path) return 0;
    return notes_read(path, seen, bytes, n, err);
}

int conversations_note(struct conversations *c, const char *tenant, const char *name, const void *record, size_t n,
                       struct rod_notes_seen *seen, struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES], path[STATE_DISK_MAX_NAME * 8];
    size_t n_whose;
    if (c->stored) return conversations_store_call_note(c, tenant, name, record, n, seen, err);
    if (!c->root) return 0;
    conversations_dir(c, tenant, name, dir);
    if (snprintf(path, sizeof path, "%s/%s", c->root, dir) >= (int)sizeof path) return 0;
    int rc = notes_add(path, record, n, seen, err);
    if (rc == ROD_ESTATE)
        state_disk_drop(path, CONVERSATION_NOTES_FILE); /* what was said is read as text from now on */
    if (rc == ROD_ENOTFOUND && seen->inode) return 0;   /* it was removed while the answer was made */
    if (rc == ROD_ENOTFOUND || rc == ROD_ESTATE) {
        char *whose = conversations_whose(tenant, name, &n_whose);
        rc = whose ? conversations_make_dir(c, dir, whose, n_whose, err) : rod_fail_no_memory(err);
        if (!rc) rc = notes_add(path, record, n, seen, err);
        free(whose);
    }
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    struct conversation *of = conversation_get(c->table, dir, tenant, name, clock_unix_s());
    if (of) {
        of->made = true;
        conversation_set_notes(c->table, of, seen->n_bytes ? seen->n_bytes : of->notes_bytes + n);
        conversation_room(c->table, of, 0);
    }
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static struct rod_conversation_info info_of(const struct conversations *c, const struct conversation *of) {
    struct rod_conversation_info info = {.n_lanes = of->n_lanes,
                                         .n_states = of->states.n,
                                         .state_bytes = of->file_bytes - of->notes_bytes,
                                         .used_unix_s = of->used_s};
    snprintf(info.name, sizeof info.name, "%s", of->name);
    for (struct list_link *l = list_first(&of->states); l; l = list_next(&of->states, l)) {
        const struct conversation_state *s = LIST_OF(l, struct conversation_state, link);
        if (s->place.n_tok > info.n_tok) {
            info.n_tok = s->place.n_tok;
            info.durable = s->ready;
        }
        if (!s->file_bytes) info.state_bytes += c->config.form.state_bytes(c->config.form.arg, s->place.n_tok);
    }
    return info;
}

static int by_name(const void *a, const void *b) {
    const struct conversation *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

int conversations_list(struct conversations *c, const char *tenant, const char *after, size_t limit,
                       struct rod_conversation_info **infos, size_t *n, bool *more, struct rod_error *err) {
    const struct conversation **all = NULL;
    size_t n_all = 0, cap = 0;
    bool ok = true;
    *infos = NULL;
    *n = 0;
    *more = false;
    const int rc = c->stored ? conversations_store_call_list(c, tenant, err) : 0;
    if (rc) return rc;
    if (!c->stored) conversations_scan_all(c);
    pthread_mutex_lock(&c->lock);
    conversations_expire_locked(c);
    for (struct conversation *of = conversation_first(c->table); of && ok; of = conversation_after(c->table, of)) {
        if (!*of->name || strcmp(of->tenant, tenant) != 0 || (after && strcmp(of->name, after) <= 0)) continue;
        ok = ARRAY_RESERVE(all, cap, n_all, 1);
        if (ok) all[n_all++] = of;
    }
    if (n_all) qsort(all, n_all, sizeof *all, by_name);
    *more = n_all > limit;
    *n = *more ? limit : n_all;
    *infos = ok && *n ? calloc(*n, sizeof **infos) : NULL;
    for (size_t i = 0; *infos && i < *n; i++) (*infos)[i] = info_of(c, all[i]);
    pthread_mutex_unlock(&c->lock);
    free(all);
    return ok && (*infos || !*n) ? 0 : rod_fail_no_memory(err);
}

/* What the home has of it, known to the table. */
static int learn(struct conversations *c, const char *tenant, const char *name, const char *dir,
                 struct rod_error *err) {
    if (c->stored) return conversations_store_call_learn(c, tenant, name, err);
    conversations_scan(c, dir, tenant, name);
    return 0;
}

static int not_found(const char *name, struct rod_error *err) {
    return rod_fail(err, ROD_ENOTFOUND, "There is no conversation '%.255s'.", name);
}

int conversations_get(struct conversations *c, const char *tenant, const char *name, struct rod_conversation_info *out,
                      struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES];
    conversations_dir(c, tenant, name, dir);
    const int rc = learn(c, tenant, name, dir, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    const struct conversation *of = *name ? conversation_find(c->table, dir) : NULL;
    if (of) *out = info_of(c, of);
    pthread_mutex_unlock(&c->lock);
    return of ? 0 : not_found(name, err);
}

/* A write that is on its way may make the folder again: the table has asked for its removal behind that. */
int conversations_remove(struct conversations *c, const char *tenant, const char *name, struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES];
    conversations_dir(c, tenant, name, dir);
    int rc = learn(c, tenant, name, dir, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    struct conversation *of = *name ? conversation_find(c->table, dir) : NULL;
    if (of) {
        (c->stored ? conversation_forget : conversation_remove)(c->table, of);
        const uint64_t number = ++c->n_removed;
        memcpy(c->removed[number % CONVERSATIONS_REMOVED].dir, dir, sizeof dir);
        c->removed[number % CONVERSATIONS_REMOVED].number = number;
    }
    pthread_mutex_unlock(&c->lock);
    if (of && c->stored) rc = conversations_store_call_remove(c, dir, err);
    if (of && c->root) conversations_unlink_all(c, dir);
    c->config.wake(c->config.arg);
    return rc || of ? rc : not_found(name, err);
}

void conversations_stats(struct conversations *c, struct rod_stats *out) {
    pthread_mutex_lock(&c->lock);
    const struct conversation_counts n = conversation_count(c->table);
    out->conversations = n.n_conversations;
    out->lanes = n.n_lanes;
    out->lane_states_host = n.n_host;
    out->lane_states_file = n.n_file;
    out->lane_file_bytes = c->stored ? atomic_load(&c->stored_bytes) : n.file_bytes;
    out->lane_saves = c->n_saves;
    out->lane_save_failures = c->n_failures;
    out->lane_loads = c->n_loads;
    pthread_mutex_unlock(&c->lock);
}
