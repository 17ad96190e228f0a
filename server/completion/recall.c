/* recall.c - the answers of this server, found by what stood before them. */
#include "recall.h"
#include "engine/base/json_guard.h"
#include "engine/base/list.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { RECALL_BUCKETS = 1 << 14, RECALL_TENANT_PARTS = 4 };

struct recall_tenant {     /* of an operator's key, kept until the close */
    struct list_link link; /* in the recall's */
    struct list answers;   /* oldest use first */
    uint64_t bytes;
    char name[];
};
struct recalled {
    struct list_link link; /* in its tenant's */
    struct recalled *next; /* in its bucket */
    struct recall_tenant *tenant;
    struct recall_place place;
    size_t bytes;
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
static void place_add_message(struct recall_place *at, const struct rod_message *m) {
    place_add_text(at, m->role);
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
/* Of an object each member, however deep, with others beside them; of all else the value itself. */
static bool value_holds(const json_t *back, const json_t *said) {
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
static bool call_is(const struct rod_call *back, const struct rod_call *said) {
    if (!bytes_equal(back->name, back->name_len, said->name, said->name_len)) return false;
    if (back->id && said->id && strcmp(back->id, said->id)) return false;
    if (bytes_equal(back->arguments, back->arguments_len, said->arguments, said->arguments_len)) return true;
    if (!back->id || !said->id) return false;
    json_t *a = arguments_of(back), *b = arguments_of(said);
    const bool is = a && b && value_holds(a, b);
    json_decref(a);
    json_decref(b);
    return is;
}
static bool answer_is(const struct rod_message *back, const struct rod_message *said) {
    if (!bytes_equal(back->content, back->content_len, said->content, said->content_len)) return false;
    if (back->n_calls != said->n_calls) return false;
    for (size_t i = 0; i < said->n_calls; i++)
        if (!call_is(&back->calls[i], &said->calls[i])) return false;
    return true;
}

/* ---- the table ---- */

static struct recalled *oldest_of(const struct recall_tenant *t) {
    return LIST_OF(list_first(&t->answers), struct recalled, link);
}
static struct recalled **bucket_of(struct recall *r, const struct recall_place *place) {
    return &r->bucket[place->low % RECALL_BUCKETS];
}
static void recall_drop(struct recall *r, struct recalled *a) {
    struct recalled **at = bucket_of(r, &a->place);
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    list_remove(&a->tenant->answers, &a->link);
    a->tenant->bytes -= a->bytes;
    r->counts.bytes -= a->bytes;
    r->counts.n_answers--;
    free(a);
}
/* The tenant's own oldest answers go first, then those of the tenant that has the most. False: it is too large. */
static bool recall_make_room(struct recall *r, struct recall_tenant *own, size_t bytes) {
    const size_t most = r->budget / RECALL_TENANT_PARTS;
    if (bytes > most) return false;
    while (own->bytes + bytes > most) recall_drop(r, oldest_of(own));
    while (r->counts.bytes + bytes > r->budget) {
        struct recall_tenant *largest = own;
        for (struct list_link *l = list_first(&r->tenants); l; l = list_next(&r->tenants, l)) {
            struct recall_tenant *t = LIST_OF(l, struct recall_tenant, link);
            if (t->bytes > largest->bytes) largest = t;
        }
        recall_drop(r, oldest_of(largest));
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
static struct recalled *recall_look(struct recall *r, const struct recall_place *place,
                                    const struct rod_message *back) {
    for (struct recalled *a = *bucket_of(r, place); a; a = a->next)
        if (a->place.low == place->low && a->place.high == place->high && answer_is(back, &a->answer)) return a;
    return NULL;
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
    *a = (struct recalled){.bytes = bytes, .answer = *m};
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

struct recall_place recall_find(struct recall *r, const struct recall_scope *scope, struct rod_message *messages,
                                size_t n_messages) {
    struct recall_place at = place_first(r, scope);
    for (size_t i = 0; i < n_messages; i++) {
        struct rod_message *m = &messages[i];
        if (strcmp(m->role, "assistant")) {
            place_add_message(&at, m);
            continue;
        }
        pthread_mutex_lock(&r->lock);
        struct recalled *a = recall_look(r, &at, m);
        int32_t *ids = a ? malloc(a->answer.n_ids * sizeof *ids) : NULL;
        if (ids) {
            memcpy(ids, a->answer.ids, a->answer.n_ids * sizeof *ids);
            m->ids = ids, m->n_ids = a->answer.n_ids;
            list_remove(&a->tenant->answers, &a->link);
            list_push_last(&a->tenant->answers, &a->link);
        }
        place_add_message(&at, ids ? &a->answer : m); /* as it was given, whatever became of it */
        pthread_mutex_unlock(&r->lock);
    }
    return at;
}

void recall_put(struct recall *r, const char *tenant, struct recall_place place, const struct rod_message *answer) {
    if (!answer->n_ids) return;
    struct recalled *a = recalled_new(answer);
    if (!a) return;
    a->place = place;
    a->answer.role = "assistant";
    pthread_mutex_lock(&r->lock);
    struct recalled *same = recall_look(r, &place, answer);
    if (same) recall_drop(r, same);
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
