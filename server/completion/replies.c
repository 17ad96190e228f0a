/* replies.c - see replies.h. */
#include "replies.h"
#include "engine/base/list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { REPLY_TENANT_PARTS = 4 };

struct reply {
    struct list_link link; /* oldest first */
    uint8_t digest[16];
    bool ended;
    struct buf answer;
    size_t n_tenant; /* bytes of name, which begins with the tenant */
    char name[];     /* tenant, a NUL, key */
};
struct replies {
    size_t budget;
    struct list all;
};

struct replies *replies_new(size_t budget_bytes) {
    struct replies *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->budget = budget_bytes;
    list_init(&r->all);
    return r;
}

static struct reply *reply_of(struct list_link *link) { return link ? LIST_OF(link, struct reply, link) : NULL; }

static void reply_drop(struct replies *r, struct reply *one) {
    list_remove(&r->all, &one->link);
    buf_fini(&one->answer);
    free(one);
}

static bool is_tenants(const struct reply *one, const char *tenant) { return !strcmp(one->name, tenant); }

static struct reply *reply_find(const struct replies *r, const char *tenant, const char *key) {
    struct list_link *at = list_first(&r->all);
    while (at && !(is_tenants(reply_of(at), tenant) && !strcmp(reply_of(at)->name + strlen(tenant) + 1, key)))
        at = list_next(&r->all, at);
    return reply_of(at);
}

static struct reply *reply_new(const char *tenant, const char *key) {
    const size_t n_tenant = strlen(tenant) + 1, n_key = strlen(key) + 1;
    struct reply *one = calloc(1, sizeof *one + n_tenant + n_key);
    if (!one) return NULL;
    memcpy(one->name, tenant, n_tenant);
    memcpy(one->name + n_tenant, key, n_key);
    return one;
}

enum reply_is replies_ask(struct replies *r, const char *tenant, const char *key, const uint8_t digest[16],
                          const struct buf **out) {
    struct reply *one = reply_find(r, tenant, key);
    if (one && memcmp(one->digest, digest, sizeof one->digest) != 0) return REPLY_OTHER;
    if (one && !one->ended) return REPLY_RUNS;
    if (one) {
        *out = &one->answer;
        return REPLY_THERE;
    }
    one = reply_new(tenant, key);
    if (!one) return REPLY_NEW; /* and nothing is kept */
    memcpy(one->digest, digest, sizeof one->digest);
    list_push_last(&r->all, &one->link);
    return REPLY_NEW;
}

/* Of those that have ended, of a tenant or (NULL) of all: their bytes, and the oldest. */
static size_t replies_bytes(const struct replies *r, const char *tenant, struct reply **oldest) {
    size_t bytes = 0;
    *oldest = NULL;
    for (struct list_link *at = list_last(&r->all); at; at = list_before(&r->all, at)) {
        struct reply *one = reply_of(at);
        if (!one->ended || (tenant && !is_tenants(one, tenant))) continue;
        bytes += sizeof *one + one->answer.cap;
        *oldest = one;
    }
    return bytes;
}

static void replies_shrink(struct replies *r, const char *tenant, size_t most) {
    struct reply *oldest;
    while (replies_bytes(r, tenant, &oldest) > most) reply_drop(r, oldest);
}

void replies_end(struct replies *r, const char *tenant, const char *key, struct buf *answer) {
    struct reply *one = reply_find(r, tenant, key);
    if (!one || one->ended) return;
    if (!answer || answer->failed || !answer->len) {
        reply_drop(r, one);
        return;
    }
    one->ended = true;
    one->answer = *answer;
    *answer = (struct buf){0};
    replies_shrink(r, tenant, r->budget / REPLY_TENANT_PARTS);
    replies_shrink(r, NULL, r->budget);
}

void replies_close(struct replies *r) {
    while (r && r->all.n) reply_drop(r, reply_of(list_first(&r->all)));
    free(r);
}
