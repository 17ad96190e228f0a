/* tokenizer.c - the way of a text through the parts (tokenizer_parts.h). */
#include "tokenizer_parts.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"
#include "unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_MAX_TEXT_BYTES (1u << 30) /* positions in a word are 32 bits */

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    split_fini(&t->split);
    bpe_fini(&t->bpe);
    added_fini(&t->raw);
    added_fini(&t->normalized);
    free(t->tokens);
    free(t->blob);
    free(t);
}

/* ---- ids and tokens ---- */

uint32_t tokenizer_n_ids(const struct tokenizer *t) { return t->n_ids; }

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len, bool *special) {
    if (id < 0 || (uint32_t)id >= t->n_ids || !t->tokens[id].present) return NULL;
    *len = t->tokens[id].len;
    *special = t->tokens[id].special;
    return t->blob + t->tokens[id].bytes;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *content) {
    const struct added *sets[] = {&t->raw, &t->normalized};
    size_t len = strlen(content);
    for (size_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < sets[k]->n_tokens; i++) {
            const struct added_token *a = &sets[k]->tokens[i];
            if (a->len == len && !memcmp(t->blob + a->text, content, len)) return a->id;
        }
    return -1;
}

int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos_id; }

/* ---- encoding ---- */

struct encoding {
    const struct tokenizer *t;
    struct bpe_work bpe;
    struct split_work split;
    struct rod_error *err;
};

static int encoding_word(void *arg, const char *word, size_t len) {
    struct encoding *e = arg;
    return bpe_encode(&e->t->bpe, &e->bpe, word, len);
}

static int encoding_push(struct encoding *e, int32_t id) {
    if (ids_reserve(&e->bpe.out, 1)) return rod_fail_no_memory(e->err);
    e->bpe.out.v[e->bpe.out.n++] = id;
    return 0;
}

/* The view with its added tokens found, and what lies between them given to between(). */
static int encoding_cut(struct encoding *e, const struct added *added, const struct added_view *view,
                        int (*between)(struct encoding *e, const struct added_view *part)) {
    size_t done = 0;
    int rc = 0;
    struct added_match m = {0};
    while (!rc && added_find(added, view, &m)) {
        if (m.start > done) {
            struct added_view part = {view->text + done, m.start - done, view->base + done, view->run, view->n_runs};
            rc = between(e, &part);
        }
        if (!rc && m.end > m.start) rc = encoding_push(e, m.id);
        done = m.end;
    }
    if (!rc && done < view->len) {
        struct added_view part = {view->text + done, view->len - done, view->base + done, view->run, view->n_runs};
        rc = between(e, &part);
    }
    return rc;
}

static int encoding_words(struct encoding *e, const struct added_view *view) {
    return split_run(&e->t->split, &e->split, view->text, view->len, e->err);
}

static int encoding_normalized(struct encoding *e, const struct added_view *view) {
    return encoding_cut(e, &e->t->normalized, view, encoding_words);
}

/* Runs are normalized apart, so that what composes with a piece's first character cannot reach into another piece. */
static int encoding_section(struct encoding *e, const struct added_view *view) {
    if (!e->t->nfc || utf8_is_ascii(view->text, view->len)) return encoding_normalized(e, view);
    assert(view->len > 0);
    size_t first = added_run_at(view, 0), last = added_run_at(view, view->len - 1);
    assert(first <= last && last < view->n_runs);
    struct added_run *run = malloc((last - first + 1) * sizeof *run);
    char *text = NULL;
    size_t len = 0, n_runs = 0, done = 0;
    int rc = run ? 0 : rod_fail_no_memory(e->err);
    for (size_t i = first; !rc && i <= last; i++) {
        size_t end = view->run[i].end - view->base < view->len ? view->run[i].end - view->base : view->len, n = 0;
        char *part = NULL, *grown = NULL;
        if (!unicode_nfc(view->text + done, end - done, &part, &n) || !(grown = realloc(text, len + n + 1))) {
            rc = rod_fail_no_memory(e->err);
        } else {
            text = grown;
            memcpy(text + len, part, n);
            len += n;
            run[n_runs++] = (struct added_run){len, view->run[i].special};
            done = end;
        }
        free(part);
    }
    if (!rc) {
        struct added_view composed = {text, len, 0, run, n_runs};
        rc = encoding_normalized(e, &composed);
    }
    free(text);
    free(run);
    return rc;
}

static int tokenizer_run(const struct tokenizer *t, const struct added_view *view, const int32_t *prefix,
                         uint32_t n_prefix, int32_t **ids, size_t *n_ids, struct rod_error *err) {
    struct encoding e = {.t = t, .err = err};
    e.split.word = encoding_word;
    e.split.arg = &e;
    int rc = ids_reserve(&e.bpe.out, view->len / 4 + 16) ? rod_fail_no_memory(err) : 0;
    for (uint32_t i = 0; !rc && i < n_prefix; i++) rc = encoding_push(&e, prefix[i]);
    if (!rc) rc = encoding_cut(&e, &t->raw, view, encoding_section);
    split_work_fini(&e.split);
    bpe_work_fini(&e.bpe);
    if (rc) {
        free(e.bpe.out.v);
        return rc;
    }
    assert(e.bpe.out.v && e.bpe.out.n <= e.bpe.out.cap);
    *ids = e.bpe.out.v;
    *n_ids = e.bpe.out.n;
    return 0;
}

static int tokenizer_check(const char *text, size_t len, struct rod_error *err) {
    if (len > TOKENIZER_MAX_TEXT_BYTES)
        return rod_fail(err, ROD_ETOOLONG, "text has %zu bytes, the limit is %u", len, TOKENIZER_MAX_TEXT_BYTES);
    size_t bad = utf8_check(text, len);
    return bad == len ? 0 : rod_fail(err, ROD_EINVALID, "text is not valid UTF-8: the byte at offset %zu", bad);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, int32_t **ids,
                     size_t *n_ids, struct rod_error *err) {
    int rc = tokenizer_check(text, len, err);
    if (rc) return rc;
    struct added_run run = {len, special};
    struct added_view view = {text, len, 0, &run, 1};
    return tokenizer_run(t, &view, t->prefix, special ? t->n_prefix : 0, ids, n_ids, err);
}

int tokenizer_encode_pieces(const struct tokenizer *t, const struct tokenizer_piece *pieces, size_t n_pieces,
                            int32_t **ids, size_t *n_ids, struct rod_error *err) {
    size_t len = 0, n_runs = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        int rc = tokenizer_check(pieces[i].text, pieces[i].len, err);
        if (rc) return rc;
        len += pieces[i].len;
        if (len > TOKENIZER_MAX_TEXT_BYTES)
            return rod_fail(err, ROD_ETOOLONG, "text has more than %u bytes", TOKENIZER_MAX_TEXT_BYTES);
    }
    char *text = malloc(len + 1);
    struct added_run *run = malloc((n_pieces + 1) * sizeof *run);
    int rc = 0;
    if (!text || !run) {
        rc = rod_fail_no_memory(err);
        goto end;
    }
    len = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        if (!pieces[i].len) continue;
        memcpy(text + len, pieces[i].text, pieces[i].len);
        len += pieces[i].len;
        if (n_runs && run[n_runs - 1].special == pieces[i].special) n_runs--;
        run[n_runs++] = (struct added_run){len, pieces[i].special};
    }
    assert(n_runs <= n_pieces);
    struct added_view view = {text, len, 0, run, n_runs};
    rc = tokenizer_run(t, &view, NULL, 0, ids, n_ids, err);
end:
    free(run);
    free(text);
    return rc;
}

int tokenizer_encode_fim(const struct tokenizer *t, const char *before, size_t n_before, const char *after,
                         size_t n_after, int32_t **ids, size_t *n_ids, struct rod_error *err) {
    static const char *const frame[] = {"<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"};
    bool plain = true;
    for (int i = 0; i < 3; i++) {
        const size_t len = strlen(frame[i]);
        if (tokenizer_find(t, frame[i]) < 0)
            return rod_fail_at(err, ROD_EUNSUPPORTED, "suffix",
                               "suffix needs a tokenizer with %s, which this model's lacks", frame[i]);
        /* A file about such models may spell them: then it is all plain text, so that the hole stays where it is. */
        plain = plain && !memmem(before, n_before, frame[i], len) && !memmem(after, n_after, frame[i], len);
    }
    const struct tokenizer_piece pieces[] = {{frame[0], strlen(frame[0]), true},
                                             {before, n_before, plain},
                                             {frame[1], strlen(frame[1]), true},
                                             {after, n_after, plain},
                                             {frame[2], strlen(frame[2]), true}};
    return tokenizer_encode_pieces(t, pieces, 5, ids, n_ids, err);
}
