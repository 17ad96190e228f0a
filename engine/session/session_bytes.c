/* session_bytes.c - see session_bytes.h. */
#include "session_bytes.h"

#include <assert.h>
#include <stdlib.h>

enum { FIRST_BUCKETS = 64 };

void session_bytes_fini(struct session_bytes *b) {
    for (size_t i = 0; i < b->n_buckets; i++)
        for (struct session_bytes_file *f = b->buckets[i], *next; f; f = next) {
            next = f->chain;
            free(f);
        }
    free(b->buckets);
    *b = (struct session_bytes){0};
}

static struct session_bytes_file **bytes_bucket(const struct session_bytes *b, uint64_t inode) {
    return &b->buckets[(inode * 0x9e3779b97f4a7c15u >> 32) & (b->n_buckets - 1)];
}

/* Without memory the chains are longer. */
static void bytes_grow(struct session_bytes *b) {
    const struct session_bytes old = *b;
    const size_t n_buckets = old.n_buckets ? 2 * old.n_buckets : FIRST_BUCKETS;
    struct session_bytes_file **buckets = calloc(n_buckets, sizeof(struct session_bytes_file *));
    if (!buckets) return;
    b->buckets = buckets;
    b->n_buckets = n_buckets;
    for (size_t i = 0; i < old.n_buckets; i++)
        for (struct session_bytes_file *f = old.buckets[i], *next; f; f = next) {
            next = f->chain;
            struct session_bytes_file **to = bytes_bucket(b, f->inode);
            f->chain = *to;
            *to = f;
        }
    free(old.buckets);
}

static struct session_bytes_file *bytes_find_or_add(struct session_bytes *b, uint64_t inode, uint64_t n_bytes) {
    if (b->n >= b->n_buckets) bytes_grow(b);
    if (!b->n_buckets) return NULL;
    struct session_bytes_file **bucket = bytes_bucket(b, inode), *f = *bucket;
    while (f && (f->inode != inode || f->n_bytes != n_bytes)) f = f->chain;
    if (f || !(f = calloc(1, sizeof *f))) return f;
    *f = (struct session_bytes_file){.chain = *bucket, .inode = inode, .n_bytes = n_bytes};
    *bucket = f;
    b->n++;
    return f;
}

static void bytes_remove_file(struct session_bytes *b, struct session_bytes_file *f) {
    struct session_bytes_file **at = bytes_bucket(b, f->inode);
    while (*at != f) at = &(*at)->chain;
    *at = f->chain;
    assert(b->n && !f->n_pinned);
    b->n--;
    free(f);
}

void session_bytes_pin(struct session_bytes *b, struct session_bytes_hold *h, bool pinned) {
    if (pinned == h->pinned) return;
    assert(b->pinned >= session_bytes_pinned_alone(h));
    b->pinned -= session_bytes_pinned_alone(h);
    if (h->file) h->file->n_pinned += pinned ? 1 : -1u;
    h->pinned = pinned;
    b->pinned += session_bytes_pinned_alone(h);
}

bool session_bytes_pinned(const struct session_bytes *b, uint64_t inode, uint64_t n_bytes) {
    const struct session_bytes_file *f = b->n_buckets ? *bytes_bucket(b, inode) : NULL;
    while (f && (f->inode != inode || f->n_bytes != n_bytes)) f = f->chain;
    return f && f->n_pinned;
}

void session_bytes_set(struct session_bytes *b, struct session_bytes_hold *h, uint64_t inode, uint64_t n_bytes,
                       bool pinned) {
    session_bytes_pin(b, h, false);
    assert(b->all >= session_bytes_alone(h) && (!h->file || h->file->n_held));
    b->all -= session_bytes_alone(h);
    if (h->file && !--h->file->n_held) bytes_remove_file(b, h->file);
    *h = (struct session_bytes_hold){.file = n_bytes ? bytes_find_or_add(b, inode, n_bytes) : NULL, .n_bytes = n_bytes};
    if (h->file) h->file->n_held++;
    b->all += session_bytes_alone(h);
    session_bytes_pin(b, h, pinned);
    assert(b->pinned <= b->all);
}
