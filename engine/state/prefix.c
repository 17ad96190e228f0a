/* prefix.c - see prefix.h. A table finds entries by the chained hash of their whole chunks, longest first. Entries of
 * one prompt form a tree by `up`: each knows the longest shorter one, and how many are directly below it. */
#include "prefix.h"
#include "engine/base/array.h"
#include "engine/base/policy.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    MAX_ENTRIES = 4096,    /* each eviction looks at all */
    TABLE_SLOTS = 8192,    /* chains of one, mostly */
    SEEN_GROUPS = 1 << 15, /* 1 MiB: 131072 chunks, some 8 million tokens */
    SEEN_WAYS = 4
};

/* A record of `seen`: the hash, and in its lowest bits what was there. */
enum {
    SEEN_READ = 1,      /* a multiple of a chunk that was read */
    SEEN_GENERATED = 2, /* and the model had written some of its last chunk */
    SEEN_EVICTED = 4,   /* an entry here, or within the next chunk, was evicted */
    SEEN_ANSWERED = 8,  /* a prompt ended here and was answered */
    SEEN_END = 16,      /* an answer ended here */
    SEEN_FLAGS = 31
};

struct prefix_entry {
    struct prefix_entry *chain; /* of its slot in the table */
    struct prefix_entry *up;    /* the longest entry of a beginning of this one's tokens; NULL = none */
    uint32_t index;             /* in all */
    uint32_t n_below;           /* entries whose up this is */
    uint64_t place;             /* hash of its whole chunks */
    uint64_t n_tok, bytes, used_ns, number;
    uint64_t hold_ns; /* how long it is held behind its last use */
    uint64_t note;
    bool generated, doomed, forgotten; /* doomed: chosen within entries_evict_for; forgotten: goes when it is filled */
    struct state_buffer *buffer;       /* NULL: reserved */
    const char *tenant, *salt;         /* behind ids */
    int32_t ids[];
};

struct prefix {
    struct prefix_config config;
    struct prefix_entry *table[TABLE_SLOTS], *all[MAX_ENTRIES];
    uint32_t n;
    uint64_t bytes, n_made, n_evicted;
    uint64_t *path; /* scratch: path[i] = hash of the first i chunks */
    size_t n_path, path_cap;
    uint64_t seen[SEEN_GROUPS][SEEN_WAYS]; /* newest first */
};

int prefix_new(const struct prefix_config *config, struct prefix **out, struct rod_error *err) {
    assert(config->chunk_tok);
    struct prefix *p = calloc(1, sizeof *p);
    if (!p) return rod_fail_no_memory(err);
    p->config = *config;
    *out = p;
    return 0;
}

void prefix_close(struct prefix *p) {
    if (!p) return;
    for (uint32_t i = 0; i < p->n; i++) {
        state_buffer_release(p->all[i]->buffer);
        free(p->all[i]);
    }
    free(p->path);
    free(p);
}

struct prefix_counts prefix_count(const struct prefix *p) {
    return (struct prefix_counts){p->n, p->bytes, p->n_evicted};
}

/* ---- hashes ---- */

static const char *text_of(const char *s) { return s ? s : ""; }

/* Before the first token: all hashes of one tenant and salt follow from it. */
static uint64_t hash_root(const struct prefix *p, const struct prefix_key *key) {
    const char *tenant = text_of(key->tenant), *salt = text_of(key->salt);
    const uint64_t seed = XXH3_64bits_withSeed(tenant, strlen(tenant), p->config.seed);
    return XXH3_64bits_withSeed(salt, strlen(salt), seed);
}

/* Of the tenant alone, whatever the salt. */
static uint64_t hash_tenant_root(const struct prefix *p, const struct prefix_key *key) {
    const char *tenant = text_of(key->tenant);
    return XXH3_64bits_withSeed(tenant, strlen(tenant), ~p->config.seed);
}

static uint64_t hash_on(const struct prefix *p, uint64_t hash, const int32_t *ids, size_t n) {
    if (n) hash = XXH3_64bits_withSeed(ids, n * sizeof *ids, hash);
    return p->config.n_hashes ? hash % p->config.n_hashes << 8 : hash;
}

/* Fills p->path for the whole chunks of n tokens; false: no memory. */
static bool path_hash(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n) {
    const uint32_t chunk = p->config.chunk_tok;
    p->n_path = n / chunk;
    if (!ARRAY_RESERVE(p->path, p->path_cap, 0, p->n_path + 1)) return false;
    p->path[0] = hash_root(p, key);
    for (size_t i = 0; i < p->n_path; i++) p->path[i + 1] = hash_on(p, p->path[i], ids + i * chunk, chunk);
    return true;
}

/* After any number of the tokens that were walked. */
static uint64_t hash_at(const struct prefix *p, const int32_t *ids, size_t n) {
    assert(n / p->config.chunk_tok <= p->n_path);
    const size_t i = n / p->config.chunk_tok, from = i * p->config.chunk_tok;
    return hash_on(p, p->path[i], ids + from, n - from);
}

/* ---- what was seen ---- */

static uint64_t *seen_group(struct prefix *p, uint64_t hash) { return p->seen[(hash >> 8) % SEEN_GROUPS]; }

static uint64_t *seen_record(struct prefix *p, uint64_t hash) {
    uint64_t *group = seen_group(p, hash);
    for (int i = 0; i < SEEN_WAYS; i++)
        if ((group[i] ^ hash) <= SEEN_FLAGS && group[i]) return &group[i];
    return NULL;
}

static uint32_t seen_flags(struct prefix *p, uint64_t hash) {
    const uint64_t *record = seen_record(p, hash);
    return record ? *record & SEEN_FLAGS : 0;
}

static void seen_add(struct prefix *p, uint64_t hash, uint32_t flags) {
    uint64_t *record = seen_record(p, hash);
    if (record) {
        *record |= flags;
        return;
    }
    uint64_t *group = seen_group(p, hash);
    memmove(group + 1, group, (SEEN_WAYS - 1) * sizeof *group);
    group[0] = (hash & ~(uint64_t)SEEN_FLAGS) | flags;
}

static void seen_remove(struct prefix *p, uint64_t hash, uint32_t flags) {
    uint64_t *record = seen_record(p, hash);
    if (record) *record &= ~(uint64_t)flags;
}

void prefix_note(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n_prompt, size_t n) {
    const uint32_t chunk = p->config.chunk_tok;
    if (n < chunk || !path_hash(p, key, ids, n)) return;
    for (size_t i = 1; i <= p->n_path; i++)
        seen_add(p, p->path[i], SEEN_READ | (i * chunk > n_prompt ? SEEN_GENERATED : 0));
    if (n > n_prompt) {
        seen_add(p, hash_at(p, ids, n_prompt), SEEN_ANSWERED);
        seen_add(p, hash_at(p, ids, n), SEEN_END);
    }
    seen_add(p, hash_on(p, hash_tenant_root(p, key), ids, chunk), SEEN_READ);
}

/* ---- entries ---- */

static bool entry_matches(const struct prefix_entry *e, const struct prefix_key *key, const int32_t *ids) {
    return !strcmp(e->tenant, text_of(key->tenant)) && !strcmp(e->salt, text_of(key->salt)) &&
           !memcmp(e->ids, ids, e->n_tok * sizeof *ids);
}

/* The longest entry that is a beginning of the walked tokens and has at most `most`: of those with a buffer, or of all.
 * waits: a longer one is being saved. */
static struct prefix_entry *entry_longest(const struct prefix *p, const struct prefix_key *key, const int32_t *ids,
                                          uint64_t most, bool reserved_too, bool *waits) {
    const uint32_t chunk = p->config.chunk_tok;
    for (size_t i = p->n_path; i >= 1; i--) {
        struct prefix_entry *best = NULL;
        for (struct prefix_entry *e = p->table[p->path[i] % TABLE_SLOTS]; e; e = e->chain) {
            if (e->place != p->path[i] || e->n_tok > most || e->n_tok / chunk != i) continue;
            if ((best && e->n_tok <= best->n_tok) || !entry_matches(e, key, ids)) continue;
            if (e->buffer || reserved_too)
                best = e;
            else
                *waits = true;
        }
        if (best) return best;
    }
    return NULL;
}

static void entries_rewire(struct prefix *p, const struct prefix_entry *from, struct prefix_entry *to) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->all[i]->up == from) p->all[i]->up = to;
}

static void entry_remove(struct prefix *p, struct prefix_entry *e) {
    assert(e->index < p->n && p->all[e->index] == e && p->bytes >= e->bytes && !e->doomed);
    assert(!e->up || e->up->n_below > 0);
    struct prefix_entry **at = &p->table[e->place % TABLE_SLOTS];
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    if (e->n_below) entries_rewire(p, e, e->up);
    if (e->up) e->up->n_below += e->n_below - 1;
    assert(p->n > 0);
    p->all[e->index] = p->all[--p->n];
    p->all[e->index]->index = e->index;
    p->bytes -= e->bytes;
    state_buffer_release(e->buffer);
    if (e->note && p->config.gone) p->config.gone(p->config.arg, e->note);
    free(e);
}

static void entry_evict(struct prefix *p, struct prefix_entry *e) {
    assert(e->buffer); /* what is on its way stays */
    seen_add(p, e->place, SEEN_EVICTED);
    p->n_evicted++;
    entry_remove(p, e);
}

/* ---- worth ---- */

static double worth_of_tokens(uint64_t saved_tok, uint64_t bytes, uint64_t age_ns, uint32_t n_below) {
    const double w = (double)saved_tok / (double)bytes / ((double)age_ns + POLICY_PREFIX_YOUNG_S * 1e9);
    return n_below == 1 ? w / POLICY_PREFIX_EDITED_PARTS : w;
}

static double worth_of_entry(const struct prefix_entry *e, const struct prefix_entry *new_up, uint64_t now_ns) {
    const uint64_t saved_tok = e->n_tok - (e->up ? e->up->n_tok : 0);
    return worth_of_tokens(saved_tok, e->bytes, now_ns > e->used_ns ? now_ns - e->used_ns : 0,
                           e->n_below + (e == new_up));
}

static bool entry_is_held(const struct prefix_entry *e, uint64_t now_ns) {
    return now_ns <= e->used_ns ? e->hold_ns > 0 : now_ns - e->used_ns < e->hold_ns;
}

/* The least worth of those that may go, held ones last; of equals the oldest. new_up: has one more below it soon. */
static struct prefix_entry *entry_least_worth(const struct prefix *p, const struct prefix_entry *new_up,
                                              uint64_t now_ns) {
    struct prefix_entry *best = NULL;
    double best_worth = 0;
    bool best_held = false;
    for (uint32_t i = 0; i < p->n; i++) {
        struct prefix_entry *e = p->all[i];
        if (!e->buffer || e->doomed) continue;
        const double w = worth_of_entry(e, new_up, now_ns);
        const bool held = entry_is_held(e, now_ns),
                   worse = w > best_worth || (w == best_worth && best && e->number > best->number);
        if (best && (held != best_held ? held : worse)) continue;
        best = e;
        best_worth = w;
        best_held = held;
    }
    return best;
}

static struct prefix_entry *entry_lasting(struct prefix_entry *e) {
    while (e && e->doomed) e = e->up;
    return e;
}

/* Whether a new entry of this worth may take the place of e. */
static bool entry_yields(const struct prefix_entry *e, const struct prefix_entry *new_up, bool held, double worth,
                         uint64_t now_ns) {
    const bool was_held = entry_is_held(e, now_ns);
    return held != was_held ? held : worth >= worth_of_entry(e, new_up, now_ns);
}

/* Evicts the entries that must go for fresh, which hangs on *up: all of them, or none. */
static bool entries_evict_for(struct prefix *p, struct prefix_entry **up, const struct prefix_entry *fresh,
                              uint64_t now_ns) {
    const uint64_t n = fresh->n_tok, bytes = fresh->bytes;
    uint64_t kept = p->bytes;
    uint32_t n_kept = p->n;
    bool fits = bytes <= p->config.budget_bytes;
    while (fits && (kept + bytes > p->config.budget_bytes || n_kept == MAX_ENTRIES)) {
        struct prefix_entry *e = entry_least_worth(p, *up, now_ns);
        if (!e) fits = false;
        if (!fits) break;
        e->doomed = true;
        const struct prefix_entry *below = entry_lasting(*up);
        const double worth = worth_of_tokens(n - (below ? below->n_tok : 0), bytes, 0, 0);
        fits = (fresh->note && !entry_is_held(e, now_ns)) || entry_yields(e, *up, fresh->hold_ns > 0, worth, now_ns);
        kept -= e->bytes;
        n_kept--;
    }
    if (fits) *up = entry_lasting(*up);
    for (uint32_t i = p->n; i-- > 0;) {
        struct prefix_entry *e = p->all[i];
        if (!e->doomed) continue;
        e->doomed = false;
        if (fits) entry_evict(p, e); /* the last takes its place: that one was looked at already */
    }
    return fits;
}

bool prefix_evict(struct prefix *p, uint64_t now_ns) {
    struct prefix_entry *e = entry_least_worth(p, NULL, now_ns);
    if (e) entry_evict(p, e);
    return e != NULL;
}

/* ---- keeping ---- */

static struct prefix_entry *entry_new(const struct prefix_key *key, const int32_t *ids, size_t n, size_t buffer_bytes) {
    const size_t tenant = strlen(text_of(key->tenant)) + 1, salt = strlen(text_of(key->salt)) + 1;
    const size_t own = sizeof(struct prefix_entry) + n * sizeof *ids + tenant + salt;
    struct prefix_entry *e = malloc(own);
    if (!e) return NULL;
    *e = (struct prefix_entry){.n_tok = n, .bytes = own + buffer_bytes};
    memcpy(e->ids, ids, n * sizeof *ids);
    char *text = (char *)(e->ids + n);
    memcpy(text, text_of(key->tenant), tenant);
    memcpy(text + tenant, text_of(key->salt), salt);
    e->tenant = text;
    e->salt = text + tenant;
    return e;
}

/* Holds e for hold_ns behind each use from now on, within what its tenant may hold. */
static void entry_hold(struct prefix *p, struct prefix_entry *e, uint64_t hold_ns, uint64_t now_ns) {
    const uint64_t most = p->config.budget_bytes / POLICY_PREFIX_HELD_PARTS;
    if (e->bytes > most) hold_ns = 0;
    if (!entry_is_held(e, now_ns) || hold_ns > e->hold_ns) e->hold_ns = hold_ns;
    e->used_ns = now_ns;
    for (;;) {
        struct prefix_entry *oldest = NULL;
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < p->n; i++) {
            struct prefix_entry *f = p->all[i];
            if (f == e || !entry_is_held(f, now_ns) || strcmp(f->tenant, e->tenant)) continue;
            bytes += f->bytes;
            if (!oldest || f->used_ns < oldest->used_ns) oldest = f;
        }
        if (!oldest || !e->hold_ns || bytes + e->bytes <= most) return;
        oldest->hold_ns = 0;
    }
}

/* Longer ones hang on it from now on. */
static void entry_hang(struct prefix *p, struct prefix_entry *e, struct prefix_entry *up) {
    const struct prefix_key key = {e->tenant, e->salt};
    for (uint32_t i = 0; i < p->n; i++) {
        struct prefix_entry *f = p->all[i];
        if (f->up != up || f->n_tok <= e->n_tok) continue;
        if (strcmp(f->tenant, key.tenant) || strcmp(f->salt, key.salt)) continue;
        if (memcmp(f->ids, e->ids, e->n_tok * sizeof *e->ids)) continue;
        f->up = e;
        e->n_below++;
        if (up) up->n_below--;
    }
    e->up = up;
    if (up) up->n_below++;
}

struct prefix_entry *prefix_reserve(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n,
                                    const struct prefix_new_entry *wanted, uint64_t now_ns) {
    if (n < p->config.chunk_tok || !path_hash(p, key, ids, n)) return NULL;
    struct prefix_entry *up = entry_longest(p, key, ids, n, true, NULL);
    if (up && up->n_tok == n) return NULL;
    struct prefix_entry *e = entry_new(key, ids, n, wanted->buffer_bytes);
    if (!e) return NULL;
    e->note = wanted->note;
    entry_hold(p, e, wanted->hold_ns, now_ns);
    if (!entries_evict_for(p, &up, e, now_ns)) {
        free(e);
        return NULL;
    }
    e->place = p->path[p->n_path];
    e->generated = wanted->generated;
    e->number = ++p->n_made;
    entry_hang(p, e, up);
    e->index = p->n;
    assert(p->n < MAX_ENTRIES);
    p->all[p->n++] = e;
    struct prefix_entry **slot = &p->table[e->place % TABLE_SLOTS];
    e->chain = *slot;
    *slot = e;
    p->bytes += e->bytes;
    assert(p->bytes <= p->config.budget_bytes);
    return e;
}

void prefix_hold(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t hold_ns,
                 uint64_t now_ns) {
    if (n < p->config.chunk_tok || !path_hash(p, key, ids, n)) return;
    struct prefix_entry *e = entry_longest(p, key, ids, n, true, NULL);
    if (e && e->n_tok == n) entry_hold(p, e, hold_ns, now_ns);
}

void prefix_set_note(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t note,
                     struct state_buffer **buffer) {
    *buffer = NULL;
    if (n < p->config.chunk_tok || !path_hash(p, key, ids, n)) return;
    struct prefix_entry *e = entry_longest(p, key, ids, n, true, NULL);
    if (!e || e->n_tok != n || !e->buffer) return;
    e->note = note;
    *buffer = state_buffer_ref(e->buffer);
}

void prefix_forget_note(struct prefix *p, uint64_t note) {
    for (uint32_t i = p->n; i-- > 0;)
        if (p->all[i]->note == note && p->all[i]->buffer) entry_remove(p, p->all[i]);
}

void prefix_fill(struct prefix *p, struct prefix_entry *e, struct state_buffer *buffer) {
    assert(!e->buffer && buffer && !e->doomed);
    e->buffer = buffer;
    seen_remove(p, e->place, SEEN_EVICTED);
    if (e->forgotten) entry_remove(p, e);
}

uint64_t prefix_number(const struct prefix_entry *e) { return e->number; }

void prefix_drop(struct prefix *p, struct prefix_entry *e) {
    assert(!e->buffer);
    entry_remove(p, e);
}

void prefix_forget(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n) {
    for (uint32_t i = p->n; i-- > 0;) {
        struct prefix_entry *e = p->all[i];
        if (e->n_tok > n || !entry_matches(e, key, ids)) continue;
        e->forgotten = true;
        if (e->buffer) entry_remove(p, e); /* the last takes its place: that one was looked at already */
    }
}

/* ---- finding ---- */

/* Chunks up to which a prompt before was the same, 0 = fewer than `from`; the flags of the last, and of any of them. */
static size_t seen_deepest(struct prefix *p, size_t n_chunks, size_t from, uint32_t *last, uint32_t *any) {
    size_t deepest = 0;
    *last = *any = 0;
    for (size_t i = n_chunks; i >= 1 && i >= from; i--) {
        const uint32_t flags = seen_flags(p, p->path[i]);
        *any |= flags;
        if (!deepest && flags & SEEN_READ) {
            deepest = i;
            *last = flags;
        }
    }
    return deepest;
}

/* The prompt begins with an answered prompt, and then has other tokens than the answer. It leaves the seen tokens
 * within the chunk after `chunks`. */
static bool seen_retokenised(struct prefix *p, const int32_t *ids, size_t n, size_t chunks, uint32_t flags) {
    const size_t chunk = p->config.chunk_tok, from = chunks * chunk;
    bool answered = flags & SEEN_GENERATED;
    for (size_t at = from; at < n && at < from + chunk; at++) {
        const uint32_t here = seen_flags(p, hash_at(p, ids, at));
        if (here & SEEN_END) return false;
        answered |= (here & SEEN_ANSWERED) != 0;
    }
    return answered;
}

static void found_give_reason(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n,
                              struct prefix_found *out) {
    const uint32_t chunk = p->config.chunk_tok;
    const size_t most = (n - 1) / chunk, found = out->n_tok / chunk;
    uint32_t last, any;
    const size_t chunks = seen_deepest(p, most, found + 1, &last, &any);
    assert(chunks <= most);
    if (chunks * chunk > out->n_tok) out->branch_tok = chunks * chunk;
    if (!chunks) last = found ? seen_flags(p, p->path[found]) : 0;
    if (n <= chunk)
        out->reason = ROD_PREFIX_TOO_SHORT;
    else if (out->waits)
        out->reason = ROD_PREFIX_UNFINISHED;
    else if (any & SEEN_EVICTED)
        out->reason = ROD_PREFIX_EVICTED;
    else if (seen_retokenised(p, ids, n, chunks ? chunks : found, last))
        out->reason = ROD_PREFIX_RETOKENISED;
    else if (chunks)
        out->reason = ROD_PREFIX_BRANCH;
    else if (out->n_tok)
        out->complete = true;
    else
        out->reason =
            seen_flags(p, hash_on(p, hash_tenant_root(p, key), ids, chunk)) ? ROD_PREFIX_SALT : ROD_PREFIX_COLD;
}

void prefix_find(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t now_ns,
                 struct prefix_found *out) {
    *out = (struct prefix_found){0};
    assert(n >= 1);
    if (!path_hash(p, key, ids, n - 1)) {
        out->reason = ROD_PREFIX_COLD;
        return;
    }
    struct prefix_entry *e = entry_longest(p, key, ids, n - 1, false, &out->waits);
    if (e) {
        e->used_ns = now_ns;
        assert(e->buffer && e->n_tok < n && !e->forgotten);
        out->buffer = state_buffer_ref(e->buffer);
        out->n_tok = e->n_tok;
        out->generated = e->generated;
        out->number = e->number;
    }
    found_give_reason(p, key, ids, n, out);
}

/* ---- where to stop ---- */

/* At least `saves` tokens from the stop or start before it and from the stop after it. */
static void stops_try(const struct prefix_reading *r, uint64_t at_tok, uint64_t saves, uint64_t *stops, uint32_t *n) {
    const uint64_t at = at_tok - at_tok % r->chunk_tok;
    uint64_t before = r->from_tok, after = UINT64_MAX;
    uint32_t place = 0;
    while (place < *n && stops[place] < at) before = stops[place++];
    if (place < *n) after = stops[place];
    if (*n == PREFIX_MAX_STOPS || at >= r->n_tok || at <= before || at - before < saves) return;
    if (after != UINT64_MAX && (after == at || after - at < saves)) return;
    assert(at % r->chunk_tok == 0 && at > r->from_tok && *n < PREFIX_MAX_STOPS);
    memmove(stops + place + 1, stops + place, (*n - place) * sizeof *stops);
    stops[place] = at;
    ++*n;
}

static uint64_t saturating_product(uint64_t a, uint64_t n) { return a > UINT64_MAX / n ? UINT64_MAX : a * n; }

uint32_t prefix_stops(const struct prefix_reading *r, uint64_t stops[PREFIX_MAX_STOPS]) {
    uint32_t n = 0;
    const uint64_t pays_tok = r->pays_tok ? r->pays_tok : 1,
                   least_tok = saturating_product(pays_tok, POLICY_PREFIX_PAYS);
    if (r->n_tok < 2) return 0;
    for (uint32_t i = 0; i < r->n_wanted; i++) stops_try(r, r->wanted_tok[i], 1, stops, &n);
    if (!r->open_end) stops_try(r, r->n_tok - 1, r->named ? 1 : least_tok, stops, &n);
    if (r->named && r->n_marks) stops_try(r, r->marks[r->n_marks - 1], 1, stops, &n); /* the answer may be left out */
    stops_try(r, r->branch_tok, least_tok, stops, &n);
    if (r->n_marks) stops_try(r, r->marks[0], r->named ? 1 : least_tok, stops, &n);
    if (r->named && r->n_marks > 1) stops_try(r, r->marks[r->n_marks - 2], r->chunk_tok, stops, &n);
    for (size_t i = r->n_marks; i-- > 1;)
        stops_try(r, r->marks[i], saturating_product(pays_tok, POLICY_PREFIX_MARK_PAYS), stops, &n);
    return n;
}
