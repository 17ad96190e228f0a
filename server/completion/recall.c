/* recall.c - the answers of this server, found by what stood before them. */
#include "recall.h"
#include "engine/base/json_guard.h"
#include "engine/base/list.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Of answers at one place, as of a prompt that is asked again and again, the latest are enough. */
enum { RECALL_BUCKETS = 1 << 14, RECALL_TENANT_PARTS = 4, RECALL_AT_A_PLACE = 8 };

struct recall_tenant {     /* of an operator's key, kept until the close */
    struct list_link link; /* in the recall's */
    struct list answers;   /* oldest use first */
    uint64_t bytes, n_dropped;
    char name[];
};
struct recalled {
    struct list_link link; /* in its tenant's */
    struct recalled *next; /* in its bucket */
    struct recall_tenant *tenant;
    struct recall_place place;
    size_t bytes;
    uint32_t n_users;          /* the table, and who compares it outside the lock */
    struct rod_message answer; /* its memory is one block with this */
};
struct recall {
    pthread_mutex_t lock;
    uint64_t seed;
    size_t budget;
    struct list tenants;
    struct recall_counts counts;
    struct recalled *bucket[RECALL_BUCKETS];
};

struct recall *recall_new(size_t budget_bytes, uint64_t seed) {
    struct recall *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    list_init(&r->tenants);
    r->seed = seed;
    r->budget = budget_bytes;
    return r;
}

/* ---- places ---- */

/* Lengths are hashed beside texts, so that no text can speak for its neighbour. */
static void place_add(struct recall_place *at, const void *bytes, size_t n) {
    const uint64_t head[3] = {at->low, at->high, n};
    const XXH128_hash_t before = XXH3_128bits(head, sizeof head),
                        all = n ? XXH3_128bits_withSeed(bytes, n, before.low64 ^ before.high64) : before;
    *at = (struct recall_place){all.low64 ^ before.high64, all.high64 ^ before.low64};
}
static void place_add_text(struct recall_place *at, const char *text) {
    place_add(at, text ? text : "", text ? strlen(text) : 0);
}
static struct recall_place place_first(const struct recall *r, const struct recall_scope *scope) {
    struct recall_place at = {r->seed, ~r->seed};
    place_add_text(&at, scope->tenant);
    place_add_text(&at, scope->salt);
    place_add(&at, &scope->n_tools, sizeof scope->n_tools);
    for (size_t i = 0; i < scope->n_tools; i++) place_add_text(&at, scope->tools[i]);
    return at;
}
/* An answer that was found counts by its tokens, whatever its text became: what was said behind other tokens of equal
 * text was said elsewhere. */
static void place_add_message(struct recall_place *at, const struct rod_message *m) {
    place_add_text(at, m->role);
    place_add(at, m->ids, m->n_ids * sizeof *m->ids);
    if (m->ids) return;
    place_add(at, m->content, m->content ? m->content_len : 0);
    place_add(at, &m->n_calls, sizeof m->n_calls);
    for (size_t i = 0; i < m->n_calls; i++) {
        place_add_text(at, m->calls[i].id);
        place_add(at, m->calls[i].name, m->calls[i].name_len);
        place_add(at, m->calls[i].arguments, m->calls[i].arguments_len);
    }
}

/* ---- whether an answer came back unaltered ---- */

static bool bytes_equal(const char *a, size_t n_a, const char *b, size_t n_b) {
    return n_a == n_b && (!n_a || !memcmp(a, b, n_a));
}
static bool numbers_equal(const json_t *a, const json_t *b) {
    if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
    return json_number_value(a) == json_number_value(b); /* 8.0 comes back as 8 */
}
/* Each member of an object, however deep, with others beside them; all else as it was said. */
static bool value_holds(const json_t *back, const json_t *said) {
    if (json_is_number(back) && json_is_number(said)) return numbers_equal(back, said);
    if (json_is_array(back) && json_is_array(said)) {
        bool holds = json_array_size(back) == json_array_size(said);
        for (size_t i = 0; holds && i < json_array_size(said); i++)
            holds = value_holds(json_array_get(back, i), json_array_get(said, i));
        return holds;
    }
    if (!json_is_object(back) || !json_is_object(said)) return json_equal(back, said);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)said, key, member) {
        const json_t *other = json_object_get(back, key);
        if (!other || !value_holds(other, member)) return false;
    }
    return true;
}
static json_t *arguments_of(const struct rod_call *call) {
    json_error_t fault;
    if (!call->arguments_len) return json_object(); /* some clients write none so */
    return json_guard_load(call->arguments, call->arguments_len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &fault);
}
/* By all but its arguments; a call without an id by these, too. */
static bool call_may_be(const struct rod_call *back, const struct rod_call *said) {
    if (!bytes_equal(back->name, back->name_len, said->name, said->name_len)) return false;
    if (back->id && said->id) return !strcmp(back->id, said->id);
    return bytes_equal(back->arguments, back->arguments_len, said->arguments, said->arguments_len);
}
static bool arguments_are(const struct rod_call *back, const struct rod_call *said) {
    if (bytes_equal(back->arguments, back->arguments_len, said->arguments, said->arguments_len)) return true;
    json_t *a = arguments_of(back), *b = arguments_of(said);
    const bool is = a && b && value_holds(a, b);
    json_decref(a);
    json_decref(b);
    return is;
}
static bool answer_may_be(const struct rod_message *back, const struct rod_message *said) {
    bool may = bytes_equal(back->content, back->content_len, said->content, said->content_len) &&
               back->n_calls == said->n_calls;
    for (size_t i = 0; may && i < said->n_calls; i++) may = call_may_be(&back->calls[i], &said->calls[i]);
    return may;
}
/* Of one that may be: reads JSON of any length, so no lock is held. */
static bool answer_is(const struct rod_message *back, const struct rod_message *said) {
    bool is = true;
    for (size_t i = 0; is && i < said->n_calls; i++) is = arguments_are(&back->calls[i], &said->calls[i]);
    return is;
}

/* ---- the table ---- */

static struct recalled *oldest_of(const struct recall_tenant *t) {
    return LIST_OF(list_first(&t->answers), struct recalled, link);
}
static struct recalled **bucket_of(struct recall *r, const struct recall_place *place) {
    return &r->bucket[place->low % RECALL_BUCKETS];
}
static void recalled_release(struct recalled *a) { /* the lock is held */
    if (!--a->n_users) free(a);
}
static void recall_drop(struct recall *r, struct recalled *a) {
    struct recalled **at = bucket_of(r, &a->place);
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    list_remove(&a->tenant->answers, &a->link);
    a->tenant->bytes -= a->bytes;
    r->counts.bytes -= a->bytes;
    r->counts.n_answers--;
    recalled_release(a);
}
static void recall_evict(struct recall *r, struct recall_tenant *t) {
    t->n_dropped++;
    recall_drop(r, oldest_of(t));
}
/* The tenant's own oldest answers go first, then those of the tenant that has the most. False: it is too large. */
static bool recall_make_room(struct recall *r, struct recall_tenant *own, size_t bytes) {
    const size_t most = r->budget / RECALL_TENANT_PARTS;
    if (bytes > most) return false;
    while (own->bytes + bytes > most) recall_evict(r, own);
    while (r->counts.bytes + bytes > r->budget) {
        struct recall_tenant *largest = own;
        for (struct list_link *l = list_first(&r->tenants); l; l = list_next(&r->tenants, l)) {
            struct recall_tenant *t = LIST_OF(l, struct recall_tenant, link);
            if (t->bytes > largest->bytes) largest = t;
        }
        recall_evict(r, largest);
    }
    return true;
}
static struct recall_tenant *recall_tenant(struct recall *r, const char *name) {
    for (struct list_link *l = list_first(&r->tenants); l; l = list_next(&r->tenants, l)) {
        struct recall_tenant *t = LIST_OF(l, struct recall_tenant, link);
        if (!strcmp(t->name, name)) return t;
    }
    struct recall_tenant *t = calloc(1, sizeof *t + strlen(name) + 1);
    if (!t) return NULL;
    memcpy(t->name, name, strlen(name) + 1);
    list_init(&t->answers);
    list_push_last(&r->tenants, &t->link);
    return t;
}
static bool is_at(const struct recalled *a, const struct recall_place *place) {
    return a->place.low == place->low && a->place.high == place->high;
}
/* The answers at the place that may be this one, the latest first, each with a user more. */
static uint32_t recall_look(struct recall *r, const struct recall_place *place, const struct rod_message *back,
                            struct recalled *found[RECALL_AT_A_PLACE]) {
    uint32_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (struct recalled *a = *bucket_of(r, place); a && n < RECALL_AT_A_PLACE; a = a->next) {
        if (!is_at(a, place) || !answer_may_be(back, &a->answer)) continue;
        a->n_users++;
        found[n++] = a;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}
/* One of equal text and tokens makes way, and the oldest of many. True: there was an equal one. */
static bool recall_make_way(struct recall *r, const struct recalled *added, uint32_t most) {
    const struct rod_message *m = &added->answer;
    struct recalled *last = NULL, *same = NULL;
    uint32_t n = 0;
    for (struct recalled *a = *bucket_of(r, &added->place); a; a = a->next) {
        if (!is_at(a, &added->place)) continue;
        n++;
        last = a;
        if (a->answer.n_ids == m->n_ids && !memcmp(a->answer.ids, m->ids, m->n_ids * sizeof *m->ids) &&
            answer_may_be(m, &a->answer))
            same = a;
    }
    if (same || n == most) recall_drop(r, same ? same : last);
    return same != NULL;
}

static void *block_add(char **at, const void *bytes, size_t n) {
    void *to = *at;
    if (n) memcpy(to, bytes, n);
    *at += n;
    return to;
}
static size_t text_bytes(const char *text) { return text ? strlen(text) + 1 : 0; }
/* The answer in one block of memory, aligned members first. */
static struct recalled *recalled_new(const struct rod_message *m) {
    size_t bytes = sizeof(struct recalled) + m->n_calls * sizeof *m->calls + m->n_ids * sizeof *m->ids + m->content_len;
    for (size_t i = 0; i < m->n_calls; i++)
        bytes += m->calls[i].name_len + m->calls[i].arguments_len + text_bytes(m->calls[i].id);
    struct recalled *a = malloc(bytes);
    if (!a) return NULL;
    char *at = (char *)(a + 1);
    *a = (struct recalled){.bytes = bytes, .n_users = 1, .answer = *m};
    struct rod_call *calls = block_add(&at, m->calls, m->n_calls * sizeof *calls);
    a->answer.calls = calls;
    a->answer.ids = block_add(&at, m->ids, m->n_ids * sizeof *m->ids);
    a->answer.content = block_add(&at, m->content, m->content_len);
    for (size_t i = 0; i < m->n_calls; i++) {
        calls[i].name = block_add(&at, calls[i].name, calls[i].name_len);
        calls[i].arguments = block_add(&at, calls[i].arguments, calls[i].arguments_len);
        calls[i].id = calls[i].id ? block_add(&at, calls[i].id, text_bytes(calls[i].id)) : NULL;
    }
    assert(at == (char *)a + bytes);
    return a;
}

/* ---- the calls ---- */

/* The message gets the tokens of its answer, if there is one. */
static void recall_one(struct recall *r, const struct recall_place *at, struct rod_message *m) {
    struct recalled *found[RECALL_AT_A_PLACE], *is = NULL;
    const uint32_t n = recall_look(r, at, m, found);
    for (uint32_t i = 0; !is && i < n; i++)
        if (answer_is(m, &found[i]->answer)) is = found[i];
    int32_t *ids = is ? malloc(is->answer.n_ids * sizeof *ids) : NULL;
    if (ids) {
        memcpy(ids, is->answer.ids, is->answer.n_ids * sizeof *ids);
        m->ids = ids;
        m->n_ids = is->answer.n_ids;
    }
    pthread_mutex_lock(&r->lock);
    if (is && is->link.next) { /* it may have been dropped meanwhile */
        list_remove(&is->tenant->answers, &is->link);
        list_push_last(&is->tenant->answers, &is->link);
    }
    for (uint32_t i = 0; i < n; i++) recalled_release(found[i]);
    pthread_mutex_unlock(&r->lock);
}

struct recall_place recall_find(struct recall *r, const struct recall_scope *scope, struct rod_message *messages,
                                size_t n_messages) {
    struct recall_place at = place_first(r, scope);
    for (size_t i = 0; i < n_messages; i++) {
        assert(!messages[i].ids);
        if (!strcmp(messages[i].role, "assistant")) recall_one(r, &at, &messages[i]);
        place_add_message(&at, &messages[i]);
    }
    return at;
}

/* One of at most so many at its place. True: there was none like it. */
static bool recall_keep(struct recall *r, const char *tenant, struct recall_place place, const struct rod_message *m,
                        uint32_t most) {
    struct recalled *a = recalled_new(m);
    if (!a) return true;
    a->place = place;
    pthread_mutex_lock(&r->lock);
    const bool known = recall_make_way(r, a, most);
    a->tenant = recall_tenant(r, tenant);
    if (!a->tenant || !recall_make_room(r, a->tenant, a->bytes)) {
        free(a);
    } else {
        a->next = *bucket_of(r, &place);
        *bucket_of(r, &place) = a;
        list_push_last(&a->tenant->answers, &a->link);
        a->tenant->bytes += a->bytes;
        r->counts.bytes += a->bytes;
        r->counts.n_answers++;
    }
    pthread_mutex_unlock(&r->lock);
    return !known;
}

void recall_put(struct recall *r, const char *tenant, struct recall_place place, const struct rod_message *answer) {
    struct rod_message m = *answer;
    m.role = "assistant";
    if (m.n_ids) recall_keep(r, tenant, place, &m, RECALL_AT_A_PLACE);
}

/* ---- of a name ---- */

/* No message's place: those begin with the tenant alone. */
static struct recall_place place_of_name(const struct recall *r, const char *tenant, const char *name,
                                         const char *what) {
    struct recall_place at = {~r->seed, r->seed};
    place_add_text(&at, tenant);
    place_add_text(&at, name);
    place_add_text(&at, what);
    return at;
}

bool recall_put_tools(struct recall *r, const char *tenant, const char *name, const char *tools, size_t n) {
    const struct rod_message m = {.role = "tools", .content = tools, .content_len = n};
    return recall_keep(r, tenant, place_of_name(r, tenant, name, "tools"), &m, RECALL_AT_A_PLACE);
}

/* A copy, with a NUL behind it, of the i-th latest at a place. */
static char *recall_copy(struct recall *r, struct recall_place place, size_t i, size_t *n, uint64_t *n_dropped) {
    char *copy = NULL;
    pthread_mutex_lock(&r->lock);
    struct recalled *a = *bucket_of(r, &place);
    while (a && (!is_at(a, &place) || i--)) a = a->next;
    if (a) copy = malloc(a->answer.content_len + 1);
    if (copy) {
        *n = a->answer.content_len;
        memcpy(copy, a->answer.content, *n);
        copy[*n] = 0;
        *n_dropped = a->tenant->n_dropped;
        list_remove(&a->tenant->answers, &a->link);
        list_push_last(&a->tenant->answers, &a->link);
    }
    pthread_mutex_unlock(&r->lock);
    return copy;
}

char *recall_tools(struct recall *r, const char *tenant, const char *name, size_t i, size_t *n) {
    uint64_t n_dropped;
    return recall_copy(r, place_of_name(r, tenant, name, "tools"), i, n, &n_dropped);
}

static uint64_t recall_dropped(struct recall *r, const char *tenant) {
    pthread_mutex_lock(&r->lock);
    const struct recall_tenant *t = recall_tenant(r, tenant);
    const uint64_t n = t ? t->n_dropped : 0;
    pthread_mutex_unlock(&r->lock);
    return n;
}

struct recall_seen recall_get_seen(struct recall *r, const char *tenant, const char *name) {
    struct recall_seen seen = {0};
    size_t n;
    uint64_t n_dropped;
    char *copy = recall_copy(r, place_of_name(r, tenant, name, "seen"), 0, &n, &n_dropped);
    if (copy) {
        assert(n == sizeof seen);
        memcpy(&seen, copy, sizeof seen);
        free(copy);
        if (seen.n_dropped == n_dropped) return seen;
    }
    return (struct recall_seen){0};
}

void recall_put_seen(struct recall *r, const char *tenant, const char *name, const struct recall_seen *seen) {
    struct recall_seen now = *seen;
    const struct rod_message m = {.role = "seen", .content = (const char *)&now, .content_len = sizeof now};
    for (int i = 0; i < 2; i++) { /* something may have to go for this itself, the first time alone */
        now.n_dropped = recall_dropped(r, tenant);
        recall_keep(r, tenant, place_of_name(r, tenant, name, "seen"), &m, 1);
    }
}

struct recall_counts recall_count(struct recall *r) {
    pthread_mutex_lock(&r->lock);
    const struct recall_counts counts = r->counts;
    pthread_mutex_unlock(&r->lock);
    return counts;
}

void recall_close(struct recall *r) {
    if (!r) return;
    while (r->tenants.n) {
        struct recall_tenant *t = LIST_OF(list_first(&r->tenants), struct recall_tenant, link);
        while (t->answers.n) recall_drop(r, oldest_of(t));
        list_remove(&r->tenants, &t->link);
        free(t);
    }
    pthread_mutex_destroy(&r->lock);
    free(r);
}
