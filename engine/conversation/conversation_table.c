/* conversation_table.c - see conversation_table.h. */
#include "conversation_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 14, LOOKS = 16 };

struct conversation_table {
    struct conversation_table_config config;
    struct list used;
    struct conversation_counts counts;
    struct conversation *by_dir[BUCKETS];
    struct conversation_state *by_lane[BUCKETS], *by_tokens[BUCKETS];
};

struct conversation_table *conversation_table_new(const struct conversation_table_config *config) {
    struct conversation_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->config = *config;
    list_init(&t->used);
    return t;
}

/* ---- tables ---- */

static struct conversation **dir_bucket(struct conversation_table *t, const char *dir) {
    uint64_t hash = 0;
    for (int i = 0; dir[i]; i++) hash = hash * 31 + (unsigned char)dir[i];
    return &t->by_dir[hash % BUCKETS];
}
static struct conversation_state **lane_bucket(struct conversation_table *t, uint64_t lane) {
    return &t->by_lane[lane % BUCKETS];
}
static struct conversation_state **tokens_bucket(struct conversation_table *t, uint64_t low) {
    return &t->by_tokens[low % BUCKETS];
}

struct conversation *conversation_find(struct conversation_table *t, const char *dir) {
    struct conversation *c = *dir_bucket(t, dir);
    while (c && strcmp(c->dir, dir) != 0) c = c->next;
    return c;
}
static struct conversation *of_use(struct list_link *link) {
    return link ? LIST_OF(link, struct conversation, used) : NULL;
}
struct conversation *conversation_first(const struct conversation_table *t) {
    return of_use(list_first(&t->used));
}
struct conversation *conversation_after(const struct conversation_table *t, const struct conversation *c) {
    return of_use(list_next(&t->used, &c->used));
}
static struct conversation_state *of_state(struct list_link *link) {
    return link ? LIST_OF(link, struct conversation_state, link) : NULL;
}
static struct conversation_state *state_first(const struct conversation *c) { return of_state(list_first(&c->states)); }
static struct conversation_state *state_after(const struct conversation_state *s) {
    return of_state(list_next(&s->of->states, &s->link));
}

static bool lane_is_there(const struct conversation *c, uint64_t lane) {
    for (struct conversation_state *s = state_first(c); s; s = state_after(s))
        if (s->place.lane == lane) return true;
    return false;
}

static void state_free(struct conversation_table *t, struct conversation_state *s) {
    struct conversation *c = s->of;
    struct conversation_state **at = lane_bucket(t, s->place.lane);
    while (*at != s) at = &(*at)->of_lane;
    *at = s->of_lane;
    for (at = tokens_bucket(t, s->place.tokens.low); *at != s;) at = &(*at)->of_tokens;
    *at = s->of_tokens;
    list_remove(&c->states, &s->link);
    assert(!s->file_bytes);
    t->counts.n_host -= s->in_memory;
    if (*c->name && !lane_is_there(c, s->place.lane)) {
        c->n_lanes--;
        t->counts.n_lanes--;
    }
    free(s);
}

/* More or, wrapped around, less. */
static void files_grow(struct conversation_table *t, uint64_t bytes) {
    t->counts.file_bytes += bytes;
    if (t->config.file_bytes) atomic_store(t->config.file_bytes, t->counts.file_bytes);
}

static void state_set_file(struct conversation_table *t, struct conversation_state *s, uint64_t bytes) {
    t->counts.n_file += bytes != 0;
    t->counts.n_file -= s->file_bytes != 0;
    files_grow(t, bytes - s->file_bytes);
    s->of->file_bytes += bytes - s->file_bytes;
    s->file_bytes = bytes;
    s->ready = false;
}

void conversation_set_notes(struct conversation_table *t, struct conversation *c, uint64_t bytes) {
    files_grow(t, bytes - c->notes_bytes);
    c->file_bytes += bytes - c->notes_bytes;
    c->notes_bytes = bytes;
}

static bool same_tokens(const struct conversation_place *a, const struct conversation_place *b) {
    return a->tokens.low == b->tokens.low && a->tokens.high == b->tokens.high && a->n_tok == b->n_tok;
}

/* Another conversation has read these tokens, and needs the entry. */
static bool other_in_memory(struct conversation_table *t, const struct conversation_state *s) {
    for (const struct conversation_state *o = *tokens_bucket(t, s->place.tokens.low); o; o = o->of_tokens)
        if (o != s && o->in_memory && same_tokens(&o->place, &s->place)) return true;
    return false;
}

/* Out of its file, and out of memory where it is not wanted there. */
static void state_drop(struct conversation_table *t, struct conversation_state *s, bool everywhere) {
    char name[CONVERSATION_NAME_BYTES];
    conversation_file_name(&s->place, name);
    if (s->file_bytes) t->config.remove(t->config.arg, s->of->dir, name);
    state_set_file(t, s, 0);
    if (everywhere && s->in_memory && !other_in_memory(t, s)) t->config.forget(t->config.arg, s->place.tokens.low);
    if (everywhere || !s->in_memory) state_free(t, s);
}

static void conversation_free(struct conversation_table *t, struct conversation *c) {
    struct conversation **at = dir_bucket(t, c->dir);
    assert(!c->states.n);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    list_remove(&t->used, &c->used);
    t->counts.n_conversations -= *c->name != 0;
    files_grow(t, -c->file_bytes);
    free(c);
}

void conversation_table_close(struct conversation_table *t) {
    if (!t) return;
    for (struct conversation *c; (c = conversation_first(t)); conversation_free(t, c))
        for (struct conversation_state *s; (s = state_first(c)); state_free(t, s)) state_set_file(t, s, 0);
    free(t);
}

void conversation_forget(struct conversation_table *t, struct conversation *c) {
    for (struct conversation_state *s; (s = state_first(c));) {
        state_set_file(t, s, 0); /* the folder goes as a whole, or stays */
        state_drop(t, s, true);
    }
    conversation_free(t, c);
}

void conversation_remove(struct conversation_table *t, struct conversation *c) {
    if (c->made) t->config.remove(t->config.arg, c->dir, "");
    conversation_forget(t, c);
}

static void conversation_let_go(struct conversation_table *t, struct conversation *c) {
    (t->config.forgets ? conversation_forget : conversation_remove)(t, c);
}

/* Where there are too many: the oldest of a tenant that has its part, else the oldest of all. */
static void conversation_make_way(struct conversation_table *t, const char *tenant) {
    struct conversation *own = NULL;
    uint32_t n = 0;
    for (struct conversation *c = conversation_first(t); c; c = conversation_after(t, c)) {
        if (strcmp(c->tenant, tenant) != 0) continue;
        if (!n++) own = c;
    }
    const bool has_part = n >= t->config.max_conversations / CONVERSATION_TENANT_PARTS;
    conversation_let_go(t, own && has_part ? own : conversation_first(t));
}

struct conversation *conversation_get(struct conversation_table *t, const char *dir, const char *tenant,
                                      const char *name, int64_t now_s) {
    struct conversation *c = conversation_find(t, dir);
    const size_t n_tenant = strlen(tenant) + 1, n_name = strlen(name) + 1;
    if (c) {
        list_remove(&t->used, &c->used);
    } else {
        if (t->used.n >= t->config.max_conversations) conversation_make_way(t, tenant);
        if (!(c = calloc(1, sizeof *c + n_tenant + n_name))) return NULL;
        memcpy(c->tenant, tenant, n_tenant);
        c->name = memcpy(c->tenant + n_tenant, name, n_name);
        memcpy(c->dir, dir, strnlen(dir, sizeof c->dir - 1));
        list_init(&c->states);
        c->next = *dir_bucket(t, dir);
        *dir_bucket(t, dir) = c;
        t->counts.n_conversations += *name != 0;
    }
    c->used_s = now_s;
    list_push_last(&t->used, &c->used);
    return c;
}

/* ---- states ---- */

struct conversation_state *conversation_state_find(struct conversation_table *t, const struct conversation *of,
                                                   const struct conversation_place *p) {
    struct conversation_state *s = *tokens_bucket(t, p->tokens.low);
    while (s && (s->of != of || !same_tokens(&s->place, p))) s = s->of_tokens;
    return s;
}

struct conversation_state *conversation_state_ready(struct conversation_table *t, const struct conversation *of,
                                                    const struct conversation_place *p) {
    struct conversation_state *found = NULL;
    for (struct conversation_state *s = *tokens_bucket(t, p->tokens.low); s; s = s->of_tokens)
        if (s->ready && same_tokens(&s->place, p) && (!found || s->of == of)) found = s;
    return found;
}

const struct conversation_state *conversation_state_twin(const struct conversation_table *t,
                                                         const struct conversation_state *s) {
    const struct conversation_place *p = &s->place;
    for (const struct conversation_state *o = t->by_tokens[p->tokens.low % BUCKETS]; o; o = o->of_tokens)
        if (o != s && o->ready && same_tokens(&o->place, p) && o->place.lane == p->lane && o->place.turn == p->turn &&
            o->place.kind == p->kind && o->place.generated == p->generated)
            return o;
    return NULL;
}

struct conversation_state *conversation_state_add(struct conversation_table *t, struct conversation *c,
                                                  const struct conversation_place *p) {
    struct conversation_state *s = conversation_state_find(t, c, p);
    if (s) {
        s->used_s = c->used_s;
        list_remove(&s->of->states, &s->link);
        list_push_last(&s->of->states, &s->link);
        return s;
    }
    if (!(s = calloc(1, sizeof *s))) return NULL;
    if (*c->name && !lane_is_there(c, p->lane)) {
        c->n_lanes++;
        t->counts.n_lanes++;
    }
    s->of = c;
    s->used_s = c->used_s;
    s->place = *p;
    s->of_lane = *lane_bucket(t, p->lane);
    *lane_bucket(t, p->lane) = s;
    s->of_tokens = *tokens_bucket(t, p->tokens.low);
    *tokens_bucket(t, p->tokens.low) = s;
    list_push_last(&c->states, &s->link);
    s->in_memory = other_in_memory(t, s);
    t->counts.n_host += s->in_memory;
    return s;
}

void conversation_state_filed(struct conversation_table *t, struct conversation_state *s, uint64_t file_bytes,
                              bool ready) {
    state_set_file(t, s, file_bytes);
    s->ready = ready;
    if (!file_bytes && !s->in_memory) state_free(t, s);
}

void conversation_state_drop(struct conversation_table *t, struct conversation_state *s) { state_drop(t, s, true); }

void conversation_state_in_memory(struct conversation_table *t, const struct conversation_place *p) {
    for (struct conversation_state *s = *tokens_bucket(t, p->tokens.low); s; s = s->of_tokens) {
        if (!same_tokens(&s->place, p)) continue;
        t->counts.n_host += !s->in_memory;
        s->in_memory = true;
    }
}

void conversation_state_gone(struct conversation_table *t, uint64_t tokens_low) {
    for (struct conversation_state *s = *tokens_bucket(t, tokens_low), *next; s; s = next) {
        next = s->of_tokens;
        if (s->place.tokens.low != tokens_low || !s->in_memory) continue;
        struct conversation *c = s->of;
        s->in_memory = false;
        t->counts.n_host--;
        if (!s->file_bytes) state_free(t, s);
        if (!c->made && !c->states.n) conversation_free(t, c); /* it lived in memory alone */
    }
}

/* ---- what stays ---- */

static bool turn_stays(uint32_t turn, uint32_t last) {
    const uint32_t low_bit = turn & (~turn + 1);
    return turn == low_bit || (last > turn && last - turn <= 2 * low_bit);
}

struct lane_view {
    const struct conversation *c;
    uint64_t lane;
    uint32_t last;                                           /* turn */
    const struct conversation_state *newest[3], *longest[3]; /* by kind */
    const struct conversation_state *before[3];              /* the newest but one */
};

static bool in_lane(const struct conversation_state *s, uint64_t lane) {
    return s->place.lane == lane && s->place.kind != CONVERSATION_HEAD;
}

static struct lane_view lane_look(const struct conversation *c, uint64_t lane) {
    struct lane_view v = {.c = c, .lane = lane};
    for (struct conversation_state *s = state_first(c); s; s = state_after(s)) {
        if (!in_lane(s, lane)) continue;
        const enum conversation_kind kind = s->place.kind;
        v.before[kind] = v.newest[kind];
        v.newest[kind] = s;
        if (!v.longest[kind] || s->place.n_tok > v.longest[kind]->place.n_tok) v.longest[kind] = s;
        if (s->place.turn > v.last) v.last = s->place.turn;
    }
    return v;
}

static bool state_stays(const struct lane_view *v, const struct conversation_state *s) {
    const struct conversation_place *p = &s->place;
    if (s == v->newest[p->kind] || s == v->longest[p->kind] || s == v->before[p->kind]) return true;
    if (p->turn >= v->last || !turn_stays(p->turn, v->last)) return false;
    for (const struct conversation_state *other = s; (other = state_after(other));)
        if (in_lane(other, v->lane) && other->place.turn == p->turn) return false; /* what came later went on */
    return true;
}

static void lane_drop(struct conversation_table *t, struct conversation *c, uint64_t lane) {
    for (struct conversation_state *s = state_first(c), *next; s; s = next) {
        next = state_after(s);
        if (s->place.lane == lane) state_drop(t, s, false);
    }
}

/* Removes the files of the oldest lane, but never of the lane `but`. False: no lane has files. */
static bool lane_drop_oldest(struct conversation_table *t, struct conversation *c, uint64_t but) {
    for (struct conversation_state *s = state_first(c); s; s = state_after(s)) {
        if (!s->file_bytes || s->place.lane == but) continue;
        lane_drop(t, c, s->place.lane);
        return true;
    }
    return false;
}

void conversation_thin(struct conversation_table *t, struct conversation *c, uint64_t lane) {
    const struct lane_view v = lane_look(c, lane);
    for (struct conversation_state *s = state_first(c), *next; s; s = next) {
        next = state_after(s);
        if (in_lane(s, lane) && s->file_bytes && !state_stays(&v, s)) state_drop(t, s, false);
    }
    if (*c->name && c->n_lanes > CONVERSATION_MAX_LANES) lane_drop_oldest(t, c, lane);
}

/* Removes the file of the oldest head, if its last use was before before_s. False: nothing was removed. */
static bool head_drop_oldest(struct conversation_table *t, struct conversation *heads, int64_t before_s) {
    for (struct conversation_state *s = state_first(heads); s; s = state_after(s)) {
        if (!s->file_bytes) continue;
        if (s->used_s >= before_s) return false;
        state_drop(t, s, false);
        return true;
    }
    return false;
}

/* Of the conversation used longest ago, of this tenant unless NULL, the lane used longest ago, or what is left of it;
 * before it a head that was not used since then. False: there is nothing but c's notes. */
static bool drop_oldest(struct conversation_table *t, const char *tenant, const struct conversation *but) {
    struct conversation *oldest = NULL;
    for (struct conversation *c = conversation_first(t); c; c = conversation_after(t, c)) {
        if (!c->file_bytes || (tenant && strcmp(c->tenant, tenant) != 0)) continue;
        if (!*c->name && head_drop_oldest(t, c, oldest ? oldest->used_s : INT64_MAX)) return true;
        if (!oldest && *c->name && (c != but || c->file_bytes > c->notes_bytes)) oldest = c;
    }
    if (!oldest) return false;
    if (!lane_drop_oldest(t, oldest, 0)) conversation_remove(t, oldest);
    return true;
}

static uint64_t tenant_bytes(const struct conversation_table *t, const char *tenant) {
    uint64_t bytes = 0;
    for (struct conversation *c = conversation_first(t); c; c = conversation_after(t, c))
        if (!strcmp(c->tenant, tenant)) bytes += c->file_bytes;
    return bytes;
}

/* Whose files go: the tenant's own where it has its part, else those of one of the oldest that has, else anybody's. */
static const char *whose_goes(const struct conversation_table *t, const struct conversation *own) {
    const uint64_t part = t->config.budget_bytes / CONVERSATION_TENANT_PARTS;
    if (tenant_bytes(t, own->tenant) >= part) return own->tenant;
    const struct conversation *c = conversation_first(t);
    for (int i = 0; c && i < LOOKS; i++, c = conversation_after(t, c))
        if (c->file_bytes && tenant_bytes(t, c->tenant) >= part) return c->tenant;
    return NULL;
}

bool conversation_room(struct conversation_table *t, struct conversation *c, uint64_t bytes) {
    const uint64_t budget = t->config.budget_bytes;
    if (bytes > budget) return false;
    while (t->counts.file_bytes + bytes > budget)
        if (!drop_oldest(t, whose_goes(t, c), c) && !drop_oldest(t, NULL, c)) return false;
    return true;
}

void conversation_expire(struct conversation_table *t, int64_t before_s) {
    for (struct conversation *c; (c = conversation_first(t)) && c->used_s < before_s;) conversation_let_go(t, c);
}

/* Of another conversation, in rising order of n_tok. */
static bool place_is_there(const struct conversation_place *places, uint32_t n, const struct conversation_place *p) {
    while (n && places[n - 1].n_tok > p->n_tok) n--;
    for (; n && places[n - 1].n_tok == p->n_tok; n--)
        if (same_tokens(&places[n - 1], p)) return true;
    return false;
}

uint32_t conversation_places(const struct conversation_table *t, const char *tenant, uint64_t lane, uint64_t than,
                             uint64_t n, struct conversation_place *places, uint32_t most) {
    uint32_t found = 0;
    for (const struct conversation_state *s = t->by_lane[lane % BUCKETS]; s; s = s->of_lane) {
        const struct conversation_place *p = &s->place;
        if (p->lane != lane || !s->ready || p->n_tok <= than || p->n_tok > n) continue;
        if (strcmp(s->of->tenant, tenant) != 0) continue;
        if ((found == most && p->n_tok <= places[0].n_tok) || place_is_there(places, found, p)) continue;
        if (found == most) memmove(places, places + 1, --found * sizeof *places);
        uint32_t at = found++;
        for (; at > 0 && places[at - 1].n_tok > p->n_tok; at--) places[at] = places[at - 1];
        places[at] = *p;
    }
    return found;
}

struct conversation_counts conversation_count(const struct conversation_table *t) {
    return t->counts;
}
