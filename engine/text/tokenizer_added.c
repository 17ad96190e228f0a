/* tokenizer_added.c - finds added tokens in a text: a trie walked from every position where one may begin.
 *
 * Leftmost first, then longest, as the reference implementation's automaton reports them. A special token counts only
 * inside a run that recognises special tokens; elsewhere it does not exist.
 *
 * The search goes on where a match's own text ends. So a match may lie within the white space that an earlier one took
 * by rstrip, and the text goes on at its end, which may be further left. What lstrip takes begins at the end of the
 * match before; where nothing is left of a match by that, it is empty, and an empty match gives no token. (Where even
 * less than nothing is left the reference panics.)
 */
#include "tokenizer_parts.h"
#include "engine/base/array.h"
#include "engine/base/utf8.h"
#include "unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t added_child(const struct added *added, uint32_t node, unsigned char byte) {
    uint32_t c = added->nodes[node].child;
    while (c && added->nodes[c].byte != byte) c = added->nodes[c].sibling;
    return c;
}

static int added_node(struct added *added, unsigned char byte, uint32_t *out) {
    if (!ARRAY_RESERVE(added->nodes, added->cap_nodes, added->n_nodes, 2)) return ROD_ENOMEM;
    if (!added->n_nodes) added->nodes[added->n_nodes++] = (struct added_node){.token = -1};
    added->nodes[ *out = added->n_nodes++] = (struct added_node){.token = -1, .byte = byte};
    return 0;
}

int added_insert(struct added *added, const struct added_token *token, const char *text) {
    if (!ARRAY_RESERVE(added->tokens, added->cap_tokens, added->n_tokens, 1)) return ROD_ENOMEM;
    assert(token->len > 0);
    if (token->single_word && !added->words.n) {
        letters_words(&added->words);
        letters_add(&added->words, 0x200c, 0x200d); /* the joiners */
        letters_tidy(&added->words);
        if (added->words.failed) return ROD_ENOMEM;
    }
    const unsigned char *p = (const unsigned char *)text;
    uint32_t node = added->root[p[0]];
    if (!node) {
        if (added_node(added, p[0], &node)) return ROD_ENOMEM;
        added->root[p[0]] = node;
    }
    for (uint32_t i = 1; i < token->len; i++) {
        uint32_t next = added_child(added, node, p[i]);
        if (!next) {
            if (added_node(added, p[i], &next)) return ROD_ENOMEM;
            added->nodes[next].sibling = added->nodes[node].child;
            added->nodes[node].child = next;
        }
        node = next;
    }
    added->nodes[node].token = (int32_t)added->n_tokens;
    assert(added->n_tokens < added->cap_tokens && added->n_nodes <= added->cap_nodes);
    added->tokens[added->n_tokens++] = *token;
    return 0;
}

static bool added_word_before(const struct added *added, const char *text, size_t at) {
    size_t i = at, n;
    if (!at) return false;
    do i--;
    while (i && ((unsigned char)text[i] & 0xc0) == 0x80);
    return letters_has(&added->words, utf8_decode(text + i, &n));
}

static bool added_word_after(const struct added *added, const char *text, size_t len, size_t at) {
    size_t n;
    return at < len && letters_has(&added->words, utf8_decode(text + at, &n));
}

/* Where the white space before at begins; floor is as far as it looks, so that no byte is looked at for two matches. */
static size_t added_spaces_before(const char *text, size_t floor, size_t at) {
    while (at > floor) {
        size_t i = at, n;
        do i--;
        while (i && ((unsigned char)text[i] & 0xc0) == 0x80);
        if (!unicode_is_space(utf8_decode(text + i, &n))) break;
        at = i;
    }
    return at;
}

/* Where the white space at the end of a match ends. A match may end within what an earlier one took: its end is known.
 */
static size_t added_spaces_after(const struct added_view *view, struct added_match *m, size_t at) {
    size_t n, from = at;
    if (at >= m->spaces && at <= m->spaces_end) return m->spaces_end;
    while (at < view->len && unicode_is_space(utf8_decode(view->text + at, &n))) at += n;
    m->spaces = from;
    return m->spaces_end = at;
}

/* The longest token that begins at pos; special ones only where they end within the bytes still open to them. */
static const struct added_token *added_at(const struct added *added, const struct added_view *view, size_t pos,
                                          size_t special_end) {
    const unsigned char *p = (const unsigned char *)view->text;
    const struct added_token *best = NULL;
    uint32_t node = added->root[p[pos]];
    for (size_t i = pos + 1; node; i++) {
        int32_t t = added->nodes[node].token;
        if (t >= 0 && (!added->tokens[t].special || i <= special_end)) best = &added->tokens[t];
        if (i == view->len) break;
        node = added_child(added, node, p[i]);
    }
    return best;
}

size_t added_run_at(const struct added_view *view, size_t pos) {
    size_t run = 0, past = view->n_runs;
    while (run < past) {
        size_t mid = run + (past - run) / 2;
        if (view->run[mid].end <= view->base + pos)
            run = mid + 1;
        else
            past = mid;
    }
    return run;
}

bool added_find(const struct added *added, const struct added_view *view, struct added_match *m) {
    if (!added->n_tokens) return false;
    size_t from = m->resume, taken = m->end;
    assert(from <= view->len && from <= taken && taken <= view->len);
    size_t run = added_run_at(view, from);
    for (size_t pos = from; pos < view->len; pos++) {
        if (!added->root[(unsigned char)view->text[pos]]) continue;
        while (run < view->n_runs && view->run[run].end <= view->base + pos) run++;
        bool open = run < view->n_runs && view->run[run].special;
        const struct added_token *t = added_at(added, view, pos, open ? view->run[run].end - view->base : 0);
        if (!t) continue;
        size_t start = pos, end = pos + t->len;
        if (t->single_word &&
            (added_word_before(added, view->text, start) || added_word_after(added, view->text, view->len, end))) {
            pos = end - 1; /* the reference goes on after a match that it discards */
            continue;
        }
        m->resume = end;
        if (t->lstrip) start = start > taken ? added_spaces_before(view->text, taken, start) : taken;
        if (t->rstrip) end = added_spaces_after(view, m, end);
        m->start = start < end ? start : end;
        m->end = end;
        m->id = t->id;
        assert(m->start <= m->end && m->resume > from && m->resume <= m->end);
        return true;
    }
    return false;
}

void added_fini(struct added *added) {
    free(added->tokens);
    free(added->nodes);
    free(added->words.v);
}
