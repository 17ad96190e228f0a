/* tokenizer_parse.c - tokenizer.json (and tokenizer_config.json) to tables. Pure: bytes in, a tokenizer or an error
 * out.
 *
 * Every key that changes ids is either honoured or refused by name. Not read on purpose: truncation and padding (a
 * server never cuts a prompt silently), post-processing that only moves offsets, byte_fallback, fuse_unk and unk_token
 * (every byte has a token, which is checked, so they have no effect).
 */
#include "tokenizer_parts.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"
#include "engine/base/utf8.h"
#include "unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct parse {
    struct tokenizer *t;
    const json_t *vocab;
    int16_t byte_of[324]; /* letter of the byte-level alphabet -> byte, -1 = not a letter of it */
    bool *from_bytes;     /* ids whose text is written in that alphabet */
    uint32_t *last_added; /* of each id, which entry of added_tokens is the last one */
    char *scratch;        /* one token's bytes */
    size_t scratch_cap;
    struct rod_error *err;
};

/* GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and on, in order. */
static void parse_alphabet(struct parse *p) {
    memset(p->byte_of, -1, sizeof p->byte_of);
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        p->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

static int parse_blob(struct parse *p, const char *bytes, size_t len, uint32_t *at) {
    struct tokenizer *t = p->t;
    if (!ARRAY_RESERVE(t->blob, t->blob_cap, t->blob_len, len + 1)) return rod_fail_no_memory(p->err);
    *at = t->blob_len;
    memcpy(t->blob + *at, bytes, len);
    t->blob[*at + len] = 0;
    t->blob_len += (uint32_t)len + 1;
    return 0;
}

/* The bytes that a text in the byte-level alphabet stands for, in scratch; SIZE_MAX when it has another character. */
static size_t parse_bytes(struct parse *p, const char *text, size_t len) {
    size_t n = 0, step;
    for (size_t i = 0; i < len; i += step) {
        uint32_t c = utf8_decode(text + i, &step);
        if (c >= sizeof p->byte_of / sizeof *p->byte_of || p->byte_of[c] < 0) return SIZE_MAX;
        p->scratch[n++] = (char)p->byte_of[c];
    }
    return n;
}

static int parse_reserve_scratch(struct parse *p, size_t len) {
    return ARRAY_RESERVE(p->scratch, p->scratch_cap, 0, len + 1) ? 0 : rod_fail_no_memory(p->err);
}

static int parse_bad(struct parse *p, const char *what) {
    return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: %s", what);
}

static int parse_unsupported(struct parse *p, const char *key) {
    return rod_fail(p->err, ROD_EUNSUPPORTED, "tokenizer.json: this \"%s\" is not supported", key);
}

enum { SHOWN_BYTES = 65 };
/* A stranger's string, for a message. */
static const char *shown(const char *text, size_t len, char dst[SHOWN_BYTES]) {
    json_python_spell(text, len, false, dst, SHOWN_BYTES);
    return dst;
}

/* 0 with *out set; the default when absent or null. */
static int parse_flag(struct parse *p, const json_t *object, const char *key, bool absent, bool *out) {
    const json_t *v = json_object_get(object, key);
    *out = v && json_is_boolean(v) ? json_is_true(v) : absent;
    return !v || json_is_null(v) || json_is_boolean(v)
               ? 0
               : rod_fail(p->err, ROD_EMODEL, "tokenizer.json: \"%s\" must be true or false", key);
}

static bool parse_is_id(const json_t *v) {
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < TOKENIZER_MAX_IDS;
}

/* ---- vocab and added tokens ---- */

static int parse_sizes(struct parse *p, const json_t *added) {
    uint32_t n = 0;
    const char *key;
    json_t *v;
    size_t i, len;
    json_object_keylen_foreach((json_t *)p->vocab, key, len, v) {
        char text[SHOWN_BYTES];
        if (utf8_check(key, len) != len)
            return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: vocab: \"%s\" has a surrogate alone",
                            shown(key, len, text));
        if (!parse_is_id(v))
            return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: vocab: \"%s\" has an invalid id",
                            shown(key, len, text));
        if (json_integer_value(v) >= n) n = (uint32_t)json_integer_value(v) + 1;
    }
    json_array_foreach(added, i, v) {
        const json_t *id = json_object_get(v, "id");
        if (!parse_is_id(id))
            return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: added_tokens[%zu]: no valid \"id\"", i);
        if (json_integer_value(id) >= n) n = (uint32_t)json_integer_value(id) + 1;
    }
    p->t->n_ids = n;
    p->t->tokens = calloc(n + 1, sizeof *p->t->tokens);
    p->from_bytes = calloc(n + 1, sizeof *p->from_bytes);
    p->last_added = calloc(n + 1, sizeof *p->last_added);
    if (!p->t->tokens || !p->from_bytes || !p->last_added) return rod_fail_no_memory(p->err);
    json_array_foreach(added, i, v) p->last_added[json_integer_value(json_object_get(v, "id"))] = (uint32_t)i;
    return 0;
}

static int parse_vocab(struct parse *p) {
    struct tokenizer *t = p->t;
    const char *key;
    json_t *v;
    size_t len, n;
    for (int b = 0; b < 256; b++) t->bpe.byte_id[b] = -1;
    json_object_keylen_foreach((json_t *)p->vocab, key, len, v) {
        int32_t id = (int32_t)json_integer_value(v);
        int rc = parse_reserve_scratch(p, len);
        if (rc) return rc;
        if (t->tokens[id].present)
            return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: vocab: id %d is given twice", id);
        n = parse_bytes(p, key, len);
        bool mapped = n != SIZE_MAX && n > 0;
        t->tokens[id].present = true;
        t->tokens[id].len = (uint32_t)(mapped ? n : len);
        rc = parse_blob(p, mapped ? p->scratch : key, mapped ? n : len, &t->tokens[id].bytes);
        if (rc) return rc;
        p->from_bytes[id] = mapped;
        if (mapped && n == 1) t->bpe.byte_id[(unsigned char)p->scratch[0]] = id;
    }
    for (int b = 0; b < 0xf5; b++) {
        if (t->bpe.byte_id[b] >= 0 || b == 0xc0 || b == 0xc1) continue; /* UTF-8 never has those, nor 0xf5 and up */
        return rod_fail(p->err, ROD_EUNSUPPORTED,
                        "tokenizer.json: vocab has no token for byte 0x%02x: not a byte-level BPE", b);
    }
    return 0;
}

static int parse_added_token(struct parse *p, const json_t *list, size_t at) {
    struct tokenizer *t = p->t;
    const json_t *node = json_array_get(list, at), *content = json_object_get(node, "content");
    struct added_token a = {.id = (int32_t)json_integer_value(json_object_get(node, "id"))};
    if (!json_is_string(content))
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: added token %d has no \"content\"", a.id);
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    if (utf8_check(text, len) != len)
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: added token %d has a surrogate alone", a.id);
    bool normalized = false;
    int rc = parse_flag(p, node, "special", false, &a.special);
    if (!rc) rc = parse_flag(p, node, "single_word", false, &a.single_word);
    if (!rc) rc = parse_flag(p, node, "lstrip", false, &a.lstrip);
    if (!rc) rc = parse_flag(p, node, "rstrip", false, &a.rstrip);
    if (!rc) rc = parse_flag(p, node, "normalized", !a.special, &normalized);
    if (rc || !len) return rc; /* an empty one never matches */

    const json_t *in_vocab = json_object_getn(p->vocab, text, len);
    const json_t *last = json_array_get(list, p->last_added[a.id]);
    struct token *token = &t->tokens[a.id];
    if (last != node && json_equal(content, json_object_get(last, "content"))) return 0; /* the last one counts */
    char few[SHOWN_BYTES];
    if (in_vocab ? json_integer_value(in_vocab) != a.id : token->present)
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: added token \"%s\" and vocab disagree about id %d",
                        shown(text, len, few), a.id);
    if (!token->present) {
        if ((rc = parse_blob(p, text, len, &token->bytes))) return rc;
        token->len = (uint32_t)len;
        token->present = true;
    }
    token->special = a.special;

    char *composed = NULL;
    if (normalized && t->nfc && !utf8_is_ascii(text, len)) {
        if (!unicode_nfc(text, len, &composed, &len)) return rod_fail_no_memory(p->err);
        text = composed;
    }
    a.len = (uint32_t)len;
    rc = parse_blob(p, text, len, &a.text);
    if (!rc && added_insert(normalized ? &t->normalized : &t->raw, &a, text)) rc = rod_fail_no_memory(p->err);
    free(composed);
    return rc;
}

/* ---- merges ---- */

static int parse_merge(struct parse *p, const json_t *node, size_t i) {
    const char *left = NULL, *right = NULL;
    size_t n_left = 0, n_right = 0;
    if (json_is_string(node)) { /* "a b" */
        left = json_string_value(node);
        size_t len = json_string_length(node);
        const char *space = memchr(left, ' ', len);
        if (space) {
            n_left = (size_t)(space - left);
            right = space + 1;
            n_right = len - n_left - 1;
            if (memchr(right, ' ', n_right)) right = NULL;
        }
    } else if (json_array_size(node) == 2) {
        const json_t *l = json_array_get(node, 0), *r = json_array_get(node, 1);
        if (json_is_string(l) && json_is_string(r)) {
            left = json_string_value(l), n_left = json_string_length(l);
            right = json_string_value(r), n_right = json_string_length(r);
        }
    }
    if (!right) return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: merges[%zu] is not a pair of tokens", i);
    int rc = parse_reserve_scratch(p, n_left + n_right);
    if (rc) return rc;
    memcpy(p->scratch, left, n_left);
    memcpy(p->scratch + n_left, right, n_right);
    const json_t *a = json_object_getn(p->vocab, left, n_left), *b = json_object_getn(p->vocab, right, n_right);
    const json_t *ab = json_object_getn(p->vocab, p->scratch, n_left + n_right);
    char few[SHOWN_BYTES];
    const char *missing = !a ? left : !b ? right : p->scratch;
    if (!a || !b || !ab)
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: merges[%zu]: \"%s\" is not in the vocab", i,
                        shown(missing,
                              !a   ? n_left
                              : !b ? n_right
                                   : n_left + n_right,
                              few));
    bpe_add_merge(&p->t->bpe, (int32_t)json_integer_value(a), (int32_t)json_integer_value(b), (uint32_t)i,
                  (int32_t)json_integer_value(ab));
    return 0;
}

static int parse_model(struct parse *p, const json_t *model) {
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    struct bpe *bpe = &p->t->bpe;
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && !json_string_length(v)))
            return parse_unsupported(p, empty[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout"), *merges = json_object_get(model, "merges");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return parse_unsupported(p, "dropout");
    if (!json_is_array(merges)) return parse_bad(p, "\"model\" has no \"merges\" that is an array");
    int rc = parse_flag(p, model, "ignore_merges", false, &bpe->ignore_merges);
    if (rc) return rc;
    size_t n = json_array_size(merges), first = 0;
    if (bpe_init(bpe, n)) return rod_fail_no_memory(p->err);
    const char *head = json_string_value(json_array_get(merges, 0));
    if (head && !strncmp(head, "#version", 8)) first = 1; /* merges.txt's first line, kept by old converters */
    for (size_t i = first; i < n; i++)
        if ((rc = parse_merge(p, json_array_get(merges, i), i))) return rc;
    return 0;
}

/* After added tokens are known: a whole word never becomes a special token, whatever ignore_merges says. */
static int parse_words(struct parse *p) {
    struct tokenizer *t = p->t;
    t->bpe.tokens = t->tokens;
    t->bpe.blob = t->blob;
    if (!t->bpe.ignore_merges) return 0;
    for (uint32_t id = 0; id < t->n_ids; id++) p->from_bytes[id] &= !t->tokens[id].special;
    return bpe_index_words(&t->bpe, p->from_bytes, t->n_ids) ? rod_fail_no_memory(p->err) : 0;
}

/* ---- the parts around the model ---- */

/* A part's type that is not one of those that are read. */
static int parse_refuse_type(struct parse *p, const char *part, const json_t *node) {
    char text[SHOWN_BYTES];
    const json_t *type = json_object_get(node, "type");
    if (!node || json_is_null(node))
        return rod_fail(p->err, ROD_EUNSUPPORTED, "tokenizer.json: no \"%s\": ByteLevel is needed", part);
    if (!json_is_object(node))
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: \"%s\" must be an object or null", part);
    if (!json_is_string(type))
        return rod_fail(p->err, ROD_EMODEL, "tokenizer.json: \"%s\" has no \"type\" that is a string", part);
    return rod_fail(p->err, ROD_EUNSUPPORTED, "tokenizer.json: %s type \"%s\" is not supported", part,
                    shown(json_string_value(type), json_string_length(type), text));
}

static int parse_each(struct parse *p, const json_t *list, int depth, int (*one)(struct parse *, const json_t *, int)) {
    size_t i;
    json_t *v;
    int rc = 0;
    json_array_foreach(list, i, v) if (!rc) rc = one(p, v, depth + 1);
    return rc;
}

static int parse_normalizer(struct parse *p, const json_t *node, int depth) {
    if (!node || json_is_null(node)) return 0;
    const char *type = json_python_text(json_object_get(node, "type"));
    const json_t *list = json_object_get(node, "normalizers");
    if (type && !strcmp(type, "NFC")) {
        p->t->nfc = true;
        return 0;
    }
    if (type && !strcmp(type, "Sequence") && json_is_array(list) && depth < 4)
        return parse_each(p, list, depth, parse_normalizer);
    return parse_refuse_type(p, "normalizer", node);
}

/* A template may put single special tokens before the text; tokenizer_encode adds them then. */
static int parse_template(struct parse *p, const json_t *node) {
    const json_t *single = json_object_get(node, "single"), *specials = json_object_get(node, "special_tokens");
    bool seen = false;
    size_t i, k;
    json_t *piece, *id;
    if (!json_is_array(single)) return parse_bad(p, "TemplateProcessing has no \"single\"");
    p->t->n_prefix = 0;
    json_array_foreach(single, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken");
        if (!special && !seen && json_object_get(piece, "Sequence")) {
            seen = true;
            continue;
        }
        const json_t *name = json_object_get(special, "id");
        const json_t *ids =
            json_object_get(json_object_getn(specials, json_string_value(name), json_string_length(name)), "ids");
        if (seen || !json_is_array(ids)) return parse_unsupported(p, "post_processor TemplateProcessing");
        json_array_foreach(ids, k, id) {
            if (!parse_is_id(id) || json_integer_value(id) >= p->t->n_ids ||
                !p->t->tokens[json_integer_value(id)].present ||
                p->t->n_prefix == sizeof p->t->prefix / sizeof *p->t->prefix)
                return parse_unsupported(p, "post_processor TemplateProcessing");
            p->t->prefix[p->t->n_prefix++] = (int32_t)json_integer_value(id);
        }
    }
    return 0;
}

static int parse_post_processor(struct parse *p, const json_t *node, int depth) {
    if (!node || json_is_null(node)) return 0;
    const char *type = json_python_text(json_object_get(node, "type"));
    const json_t *list = json_object_get(node, "processors");
    if (type && !strcmp(type, "ByteLevel")) return 0; /* offsets only */
    if (type && !strcmp(type, "TemplateProcessing")) return parse_template(p, node);
    if (type && !strcmp(type, "Sequence") && json_is_array(list) && depth < 4)
        return parse_each(p, list, depth, parse_post_processor);
    return parse_refuse_type(p, "post_processor", node);
}

static int parse_decoder(struct parse *p, const json_t *node, int depth) {
    const char *type = json_python_text(json_object_get(node, "type"));
    const json_t *list = json_object_get(node, "decoders");
    if (type && !strcmp(type, "ByteLevel")) return 0;
    if (type && !strcmp(type, "Sequence") && json_array_size(list) == 1 && depth < 4)
        return parse_decoder(p, json_array_get(list, 0), depth + 1);
    return parse_refuse_type(p, "decoder", node);
}

/* ---- tokenizer_config.json ---- */

static int config_flag(struct parse *p, const json_t *config, const char *key, bool *out) {
    const json_t *v = json_object_get(config, key);
    *out = json_is_true(v);
    if (!v || json_is_null(v) || json_is_boolean(v)) return 0;
    return rod_fail(p->err, ROD_EMODEL, "tokenizer_config.json: \"%s\" must be true or false", key);
}

/* The id of a token that the configuration names: by a string, or by an object that has it as content. */
static int config_token(struct parse *p, const json_t *config, const char *key, int32_t *out) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    const char *text = json_string_value(value);
    const size_t len = json_string_length(value);
    *out = TOKENIZER_NO_NAME;
    if (!value || json_is_null(value) || (text && !len)) return 0;
    if (!text || utf8_check(text, len) != len)
        return rod_fail(
            p->err, ROD_EMODEL,
            "tokenizer_config.json: \"%s\" must be a string of UTF-8, an object with such a \"content\", or "
            "null",
            key);
    const json_t *id = json_object_getn(p->vocab, text, len);
    *out = id ? (int32_t)json_integer_value(id) : TOKENIZER_NO_TOKEN;
    for (uint32_t i = 0; i < p->t->n_ids && *out < 0; i++) {
        const struct token *token = &p->t->tokens[i]; /* an added one has its own text */
        if (token->present && !p->from_bytes[i] && token->len == len && !memcmp(p->t->blob + token->bytes, text, len))
            *out = (int32_t)i;
    }
    return 0;
}

/* add_bos_token and add_eos_token are what the model's own tokenizer class reads. */
static int config_take(struct parse *p, const json_t *config) {
    struct tokenizer *t = p->t;
    int32_t bos;
    bool adds_bos, adds_eos;
    int rc = config_flag(p, config, "add_eos_token", &adds_eos);
    if (!rc) rc = config_flag(p, config, "add_bos_token", &adds_bos);
    if (!rc) rc = config_token(p, config, "eos_token", &t->eos_id);
    if (!rc && adds_eos)
        rc = rod_fail(p->err, ROD_EUNSUPPORTED, "tokenizer_config.json: \"add_eos_token\" true is not supported");
    if (rc || !adds_bos || t->n_prefix) return rc;
    rc = config_token(p, config, "bos_token", &bos);
    if (!rc && bos < 0)
        rc = rod_fail(p->err, ROD_EMODEL, "tokenizer_config.json: \"bos_token\" is no token of tokenizer.json");
    if (!rc) t->prefix[t->n_prefix++] = bos;
    return rc;
}

static int parse_config(struct parse *p, const char *json, size_t len) {
    json_error_t where;
    json_t *config = json_python_load(json, len, 0, &where);
    int rc;
    if (!config && json_guard_was_short(&where))
        rc = rod_fail_no_memory(p->err);
    else if (!json_is_object(config))
        rc = rod_fail(p->err, ROD_EMODEL, "tokenizer_config.json: %s (line %d)", config ? "not an object" : where.text,
                      config ? 1 : where.line);
    else
        rc = config_take(p, config);
    json_decref(config);
    return rc;
}

/* A surrogate alone in a string of the part: it is no UTF-8. */
static bool has_broken_string(const json_t *value) {
    const json_t *one;
    size_t i;
    if (json_is_string(value))
        return utf8_check(json_string_value(value), json_string_length(value)) != json_string_length(value);
    json_array_foreach(value, i, one) if (has_broken_string(one)) return true;
    json_t *o = (json_t *)(uintptr_t)value; /* jansson's iterators are not const */
    for (void *at = json_object_iter(o); at; at = json_object_iter_next(o, at))
        if (has_broken_string(json_object_iter_value(at))) return true;
    return false;
}

static int parse_all(struct parse *p, const json_t *root) {
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *kind = json_object_get(model, "type");
    size_t i;
    json_t *v;
    if (!json_is_object(root)) return parse_bad(p, "not an object");
    if (!model || json_is_null(model)) return parse_bad(p, "no \"model\"");
    if (!json_is_object(model)) return parse_bad(p, "\"model\" must be an object");
    const char *kind_name = json_python_text(kind);
    if (kind && !json_is_null(kind) && (!kind_name || strcmp(kind_name, "BPE") != 0))
        return parse_refuse_type(p, "model", model);
    p->vocab = json_object_get(model, "vocab");
    if (!json_is_object(p->vocab)) return parse_bad(p, "\"model\" has no \"vocab\" that is an object");
    if (added && !json_is_null(added) && !json_is_array(added)) return parse_bad(p, "\"added_tokens\" is not an array");

    if (has_broken_string(json_object_get(root, "pre_tokenizer")))
        return parse_bad(p, "\"pre_tokenizer\" has a surrogate alone");
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    int rc = json_is_string(json_object_get(pre, "type")) ? split_init(&p->t->split, pre, p->err)
                                                          : parse_refuse_type(p, "pre_tokenizer", pre);
    if (!rc) rc = parse_normalizer(p, json_object_get(root, "normalizer"), 0);
    if (!rc) rc = parse_decoder(p, json_object_get(root, "decoder"), 0);
    if (!rc) rc = parse_sizes(p, added);
    if (!rc) rc = parse_vocab(p);
    if (!rc) rc = parse_model(p, model);
    if (rc) return rc;
    json_array_foreach(added, i, v) if ((rc = parse_added_token(p, added, i))) return rc;
    rc = parse_post_processor(p, json_object_get(root, "post_processor"), 0);
    return rc ? rc : parse_words(p);
}

int tokenizer_parse(const char *json, size_t len, const char *config_json, size_t config_len, struct tokenizer **out,
                    struct rod_error *err) {
    json_error_t where;
    struct parse p = {.err = err, .t = calloc(1, sizeof *p.t)};
    if (!p.t) return rod_fail_no_memory(err);
    p.t->eos_id = TOKENIZER_NO_NAME;
    parse_alphabet(&p);
    json_t *root = json_python_load(json, len, 0, &where);
    int rc = 0;
    if (root)
        rc = parse_all(&p, root);
    else if (json_guard_was_short(&where))
        rc = rod_fail_no_memory(err);
    else
        rc = rod_fail(err, ROD_EMODEL, "tokenizer.json: %s (line %d)", where.text, where.line);
    if (!rc && config_json) rc = parse_config(&p, config_json, config_len);
    json_decref(root);
    free(p.from_bytes);
    free(p.last_added);
    free(p.scratch);
    if (rc)
        tokenizer_close(p.t);
    else
        *out = p.t;
    return rc;
}
