/* tokenizer_letters.c - sets of characters, and the letters that stand for characters when a pattern runs.
 *
 * Two characters that lie in the same sets of a pattern are one to it. So each such kind gets a letter, a byte, and
 * PCRE2 sees letters instead of text: what it knows of Unicode has no part in a split, and a class of 700 ranges is a
 * table of 256 bits. ASCII characters are their own letters, so that ASCII text is searched as it is.
 */
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"
#include "unicode.h"
#include "tokenizer_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets ---- */

void letters_add(void *to, uint32_t first, uint32_t last) {
    struct letters_set *set = to;
    set->failed |= !ARRAY_RESERVE(set->v, set->cap, set->n, 1);
    if (set->n < set->cap) set->v[set->n++] = (struct letters_range){first, last};
}

void letters_add_all(struct letters_set *set, const struct letters_set *from) {
    for (size_t i = 0; i < from->n; i++) letters_add(set, from->v[i].first, from->v[i].last);
    set->failed |= from->failed;
}

static int letters_by_first(const void *a, const void *b) {
    uint32_t x = ((const struct letters_range *)a)->first, y = ((const struct letters_range *)b)->first;
    return x < y ? -1 : x > y;
}

void letters_tidy(struct letters_set *set) {
    size_t n = 0;
    if (set->n) qsort(set->v, set->n, sizeof *set->v, letters_by_first);
    for (size_t i = 0; i < set->n; i++) {
        if (n && set->v[i].first <= set->v[n - 1].last + 1) {
            if (set->v[i].last > set->v[n - 1].last) set->v[n - 1].last = set->v[i].last;
        } else
            set->v[n++] = set->v[i];
    }
    set->n = n;
}

void letters_invert(struct letters_set *set) {
    struct letters_set out = {.failed = set->failed};
    uint32_t from = 0;
    for (size_t i = 0; i < set->n; i++) {
        if (set->v[i].first > from) letters_add(&out, from, set->v[i].first - 1);
        from = set->v[i].last + 1;
    }
    if (from <= UNICODE_MAX) letters_add(&out, from, UNICODE_MAX);
    free(set->v);
    *set = out;
}

bool letters_has(const struct letters_set *set, uint32_t c) {
    size_t low = 0, past = set->n;
    while (low < past) {
        size_t mid = low + (past - low) / 2;
        if (set->v[mid].last < c)
            low = mid + 1;
        else
            past = mid;
    }
    return low < set->n && set->v[low].first <= c;
}

void letters_fold(struct letters_set *set) {
    struct letters_set more = {.failed = false};
    for (const char *at = unicode_fold_classes(); *at; at += strspn(at, " ")) {
        const char *end = at + strcspn(at, " ");
        bool in = false;
        size_t step;
        for (const char *c = at; c < end; c += step) in |= letters_has(set, utf8_decode(c, &step));
        for (; at < end; at += step) {
            const uint32_t c = utf8_decode(at, &step);
            if (in) letters_add(&more, c, c);
        }
    }
    letters_add_all(set, &more);
    free(more.v);
    letters_tidy(set);
}

void letters_words(struct letters_set *set) {
    static const char *const names[] = {"L", "M", "Nd", "Nl", "Pc"};
    /* letters in circles and squares, which are symbols by category but Alphabetic */
    static const struct letters_range others[] = {
        {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unicode_property(names[i], letters_add, set);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) letters_add(set, others[i].first, others[i].last);
}

/* ---- letters ---- */

int letters_take(struct letters *l, struct letters_set *set) {
    for (size_t i = 0; i < l->n; i++)
        if (l->set[i].n == set->n && !memcmp(l->set[i].v, set->v, set->n * sizeof *set->v)) {
            free(set->v);
            return (int)i;
        }
    if (l->n == LETTERS_MAX_SETS) {
        free(set->v);
        return -1;
    }
    l->set[l->n] = *set;
    return (int)l->n++;
}

static int letters_by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Where characters past ASCII begin to be of another kind, ascending, maybe twice; NULL: out of memory. */
static uint32_t *letters_bounds(const struct letters *l, size_t *n) {
    size_t cap = 2;
    for (size_t i = 0; i < l->n; i++) cap += 2 * l->set[i].n;
    uint32_t *bound = malloc(cap * sizeof *bound);
    if (!bound) return NULL;
    *n = 0;
    bound[(*n)++] = 0x80;
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->set[i].n; k++) {
            if (l->set[i].v[k].first > 0x80) bound[(*n)++] = l->set[i].v[k].first;
            if (l->set[i].v[k].last >= 0x80) bound[(*n)++] = l->set[i].v[k].last + 1;
        }
    qsort(bound, *n, sizeof *bound, letters_by_value);
    bound[*n] = UNICODE_MAX + 1;
    assert(*n < cap);
    return bound;
}

int letters_make(struct letters *l, struct rod_error *err) {
    unsigned char kind[256][(LETTERS_MAX_SETS + 7) / 8] = {{0}};
    size_t n_bounds = 0;
    uint32_t *bound = letters_bounds(l, &n_bounds);
    bool failed = !bound || !(l->letter = malloc(UNICODE_MAX + 1));
    for (size_t i = 0; i < l->n; i++) failed |= l->set[i].failed;
    int rc = failed ? rod_fail_no_memory(err) : 0;
    l->n_letters = 0x80;
    for (uint32_t c = 0; !rc && c < 0x80; c++) l->letter[c] = (unsigned char)(l->like[c] = c);
    for (size_t i = 0; !rc && i < n_bounds; i++) {
        uint32_t c = bound[i], past = bound[i + 1], k = 0x80;
        if (c >= past || c > UNICODE_MAX) continue;
        unsigned char this[sizeof kind[0]] = {0};
        for (size_t s = 0; s < l->n; s++)
            if (letters_has(&l->set[s], c)) this[s / 8] |= (unsigned char)(1 << s % 8);
        while (k < l->n_letters && memcmp(kind[k], this, sizeof this)) k++;
        if (k == 256) {
            rc =
                rod_fail(err, ROD_EUNSUPPORTED,
                         "tokenizer.json: pre_tokenizer pattern: it tells more than 128 kinds of characters past ASCII "
                         "apart, which is not supported");
        } else {
            if (k == l->n_letters) {
                memcpy(kind[k], this, sizeof this);
                l->like[l->n_letters++] = c;
            }
            memset(l->letter + c, (int)k, past - c);
        }
    }
    free(bound);
    return rc;
}

bool letters_in(const struct letters *l, int set, uint32_t letter) {
    return letter < l->n_letters && letters_has(&l->set[set], l->like[letter]);
}

void letters_fini(struct letters *l) {
    for (size_t i = 0; i < l->n; i++) free(l->set[i].v);
    free(l->letter);
}
