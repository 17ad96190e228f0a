/* tokenizer_bpe.c - byte-pair merging of one word, and the cache of words of one call.
 *
 * The rule: of all neighbouring pairs that have a merge, the one of lowest rank is merged first, the leftmost of
 * equals. A heap of (rank, position) finds it, so a word of n bytes costs O(n log n) however long it is. An entry of
 * the heap is stale when the pair at its position has another rank by now: a rank names one pair.
 */
#include "tokenizer_parts.h"
#include "engine/base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BPE_NO_KEY           UINT64_MAX
#define BPE_NONE             UINT32_MAX
#define BPE_CACHE_WORD_BYTES 48         /* longer words are rare and cost more to keep */
#define BPE_CACHE_MAX        (1u << 15) /* words; then the cache starts anew, so that its size is bounded */
#define BPE_CACHE_PROBES     8          /* a hostile text may make hashes collide: give up looking, never slow down */

int ids_reserve(struct ids *ids, size_t n_more) {
    return ARRAY_RESERVE(ids->v, ids->cap, ids->n, n_more) ? 0 : ROD_ENOMEM;
}

static uint64_t bpe_mix(uint64_t x) {
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint64_t bpe_hash(const char *bytes, size_t len) {
    uint64_t h = len, w;
    for (; len >= 8; bytes += 8, len -= 8) {
        memcpy(&w, bytes, 8);
        h = bpe_mix(h ^ w);
    }
    w = 0;
    memcpy(&w, bytes, len);
    return bpe_mix(h ^ w);
}

/* ---- tables ---- */

static uint32_t bpe_table_size(size_t n) { /* a power of two, at most half full */
    uint32_t size = 16;
    while (size < n * 2) size *= 2;
    return size;
}

int bpe_init(struct bpe *bpe, size_t n_merges) {
    if (n_merges > UINT32_MAX / 4) return ROD_ENOMEM;
    uint32_t size = bpe_table_size(n_merges);
    bpe->merges = malloc(size * sizeof *bpe->merges);
    if (!bpe->merges) return ROD_ENOMEM;
    bpe->merge_mask = size - 1;
    for (uint32_t i = 0; i < size; i++) bpe->merges[i] = (struct bpe_merge){BPE_NO_KEY, 0, 0};
    return 0;
}

void bpe_fini(struct bpe *bpe) {
    free(bpe->merges);
    free(bpe->words);
}

static struct bpe_merge *bpe_slot(const struct bpe *bpe, uint64_t key) {
    uint32_t i = (uint32_t)bpe_mix(key) & bpe->merge_mask;
    while (bpe->merges[i].key != key && bpe->merges[i].key != BPE_NO_KEY) i = (i + 1) & bpe->merge_mask;
    return &bpe->merges[i];
}

static uint64_t bpe_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    assert(left >= 0 && right >= 0 && id >= 0);
    uint64_t key = bpe_key(left, right);
    *bpe_slot(bpe, key) = (struct bpe_merge){key, rank, id};
}

static const struct bpe_merge *bpe_find(const struct bpe *bpe, int32_t left, int32_t right) {
    const struct bpe_merge *m = bpe_slot(bpe, bpe_key(left, right));
    return m->key == BPE_NO_KEY ? NULL : m;
}

int bpe_index_words(struct bpe *bpe, const bool *usable, size_t n_tokens) {
    uint32_t size = bpe_table_size(n_tokens);
    bpe->words = malloc(size * sizeof *bpe->words);
    if (!bpe->words) return ROD_ENOMEM;
    bpe->word_mask = size - 1;
    memset(bpe->words, -1, size * sizeof *bpe->words);
    for (size_t id = 0; id < n_tokens; id++) {
        if (!usable[id]) continue;
        uint32_t i = (uint32_t)bpe_hash(bpe->blob + bpe->tokens[id].bytes, bpe->tokens[id].len) & bpe->word_mask;
        while (bpe->words[i] >= 0) i = (i + 1) & bpe->word_mask;
        bpe->words[i] = (int32_t)id;
    }
    return 0;
}

static int32_t bpe_find_word(const struct bpe *bpe, const char *word, size_t len, uint64_t hash) {
    for (uint32_t i = (uint32_t)hash & bpe->word_mask; bpe->words[i] >= 0; i = (i + 1) & bpe->word_mask) {
        const struct token *t = &bpe->tokens[bpe->words[i]];
        if (t->len == len && !memcmp(bpe->blob + t->bytes, word, len)) return bpe->words[i];
    }
    return -1;
}

/* ---- merging ---- */

static void bpe_sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= v) break;
        heap[i] = heap[c];
    }
    heap[i] = v;
}

static int bpe_push(struct bpe_work *work, size_t *n, uint64_t v) {
    if (!ARRAY_RESERVE(work->heap, work->cap_heap, *n, 1)) return ROD_ENOMEM; /* a merge takes one out, puts two in */
    size_t i = (*n)++;
    for (; i && work->heap[(i - 1) / 2] > v; i = (i - 1) / 2) work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = v;
    return 0;
}

static int bpe_reserve_word(struct bpe_work *work, size_t len) {
    if (!ARRAY_RESERVE(work->symbols, work->cap_symbols, 0, len)) return ROD_ENOMEM;
    if (!ARRAY_RESERVE(work->heap, work->cap_heap, 0, len)) return ROD_ENOMEM;
    return ids_reserve(&work->out, len);
}

/* A candidate for the pair whose left symbol is at pos, if that pair has a merge. */
static int bpe_offer(const struct bpe *bpe, struct bpe_work *work, size_t *n_heap, uint32_t pos) {
    const struct bpe_symbol *s = &work->symbols[pos];
    if (s->next == BPE_NONE) return 0;
    const struct bpe_merge *m = bpe_find(bpe, s->id, work->symbols[s->next].id);
    return m ? bpe_push(work, n_heap, (uint64_t)m->rank << 32 | pos) : 0;
}

static int bpe_merge_word(const struct bpe *bpe, struct bpe_work *work, const char *word, size_t len) {
    int rc = bpe_reserve_word(work, len);
    if (rc) return rc;
    struct bpe_symbol *s = work->symbols;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < len; i++) {
        s[i] = (struct bpe_symbol){bpe->byte_id[(unsigned char)word[i]], i ? i - 1 : BPE_NONE,
                                   i + 1 < len ? i + 1 : BPE_NONE};
        const struct bpe_merge *m = i ? bpe_find(bpe, s[i - 1].id, s[i].id) : NULL;
        if (m) work->heap[n_heap++] = (uint64_t)m->rank << 32 | (i - 1);
    }
    for (size_t i = n_heap / 2; i-- > 0;) bpe_sift_down(work->heap, n_heap, i);

    while (n_heap) {
        uint64_t top = work->heap[0];
        work->heap[0] = work->heap[--n_heap];
        if (n_heap) bpe_sift_down(work->heap, n_heap, 0);
        uint32_t pos = (uint32_t)top, right = s[pos].next;
        if (s[pos].id < 0 || right == BPE_NONE) continue;
        const struct bpe_merge *m = bpe_find(bpe, s[pos].id, s[right].id);
        if (!m || m->rank != top >> 32) continue;
        s[pos].id = m->id;
        s[pos].next = s[right].next;
        s[right].id = -1;
        if (s[pos].next != BPE_NONE) s[s[pos].next].prev = pos;
        if ((rc = bpe_offer(bpe, work, &n_heap, pos))) return rc;
        if (s[pos].prev != BPE_NONE && (rc = bpe_offer(bpe, work, &n_heap, s[pos].prev))) return rc;
    }
    assert(work->out.cap - work->out.n >= len); /* a word has at most a token a byte */
    for (uint32_t i = 0; i != BPE_NONE; i = s[i].next) work->out.v[work->out.n++] = s[i].id;
    return 0;
}

/* ---- the cache: most words of a text have been seen in it before ---- */

static int bpe_cache_grow(struct bpe_work *work) {
    uint32_t size = work->cache ? (work->cache_mask + 1) * 4 : 256;
    struct bpe_cached *cache = calloc(size, sizeof *cache);
    if (!cache) return ROD_ENOMEM;
    uint32_t old = work->cache ? work->cache_mask + 1 : 0, kept = 0;
    for (uint32_t i = 0; i < old; i++) {
        if (!work->cache[i].len) continue;
        for (uint32_t p = 0; p < BPE_CACHE_PROBES; p++) {
            struct bpe_cached *c = &cache[(work->cache[i].hash + p) & (size - 1)];
            if (c->len) continue;
            *c = work->cache[i];
            kept++;
            break;
        }
    }
    free(work->cache);
    work->cache = cache;
    work->cache_mask = size - 1;
    work->n_cached = kept;
    return 0;
}

static int bpe_cache_put(struct bpe_work *work, uint64_t hash, const char *word, size_t len, size_t ids) {
    assert(len > 0 && len <= BPE_CACHE_WORD_BYTES && ids < work->out.n);
    if (!work->cache || work->n_cached > work->cache_mask / 2) {
        if (work->n_cached < BPE_CACHE_MAX) {
            int rc = bpe_cache_grow(work);
            if (rc) return rc;
        } else {
            memset(work->cache, 0, ((size_t)work->cache_mask + 1) * sizeof *work->cache);
            work->n_cached = work->arena_len = 0;
        }
    }
    if (!ARRAY_RESERVE(work->arena, work->arena_cap, work->arena_len, len)) return ROD_ENOMEM;
    for (uint32_t p = 0; p < BPE_CACHE_PROBES; p++) {
        struct bpe_cached *c = &work->cache[(hash + p) & work->cache_mask];
        if (c->len) continue;
        *c = (struct bpe_cached){hash, work->arena_len, (uint32_t)len, (uint32_t)(work->out.n - ids), ids};
        memcpy(work->arena + work->arena_len, word, len);
        work->arena_len += (uint32_t)len;
        work->n_cached++;
        return 0;
    }
    return 0;
}

int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *word, size_t len) {
    if (len == 1) {
        int rc = ids_reserve(&work->out, 1);
        if (!rc) work->out.v[work->out.n++] = bpe->byte_id[(unsigned char)word[0]];
        return rc;
    }
    bool cacheable = len <= BPE_CACHE_WORD_BYTES;
    uint64_t hash = cacheable || bpe->ignore_merges ? bpe_hash(word, len) : 0;
    if (cacheable && work->cache) {
        for (uint32_t p = 0; p < BPE_CACHE_PROBES; p++) {
            const struct bpe_cached *c = &work->cache[(hash + p) & work->cache_mask];
            if (!c->len) break;
            if (c->hash != hash || c->len != len || memcmp(work->arena + c->text, word, len)) continue;
            assert(c->ids + c->n_ids <= work->out.n);
            int rc = ids_reserve(&work->out, c->n_ids);
            if (rc) return rc;
            memcpy(work->out.v + work->out.n, work->out.v + c->ids, c->n_ids * sizeof *work->out.v);
            work->out.n += c->n_ids;
            return 0;
        }
    }
    size_t first = work->out.n;
    int32_t whole = bpe->ignore_merges ? bpe_find_word(bpe, word, len, hash) : -1;
    int rc;
    if (whole >= 0) {
        if ((rc = ids_reserve(&work->out, 1))) return rc;
        work->out.v[work->out.n++] = whole;
    } else if ((rc = bpe_merge_word(bpe, work, word, len)))
        return rc;
    return cacheable ? bpe_cache_put(work, hash, word, len, first) : 0;
}

void bpe_work_fini(struct bpe_work *work) {
    free(work->symbols);
    free(work->heap);
    free(work->cache);
    free(work->arena);
}
