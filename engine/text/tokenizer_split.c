/* tokenizer_split.c - pre-tokenizers: cuts a section of text into words, stage by stage.
 *
 * Every stage sees each piece of the stage before as a text of its own, as the reference implementation does: a
 * look-ahead does not see past the end of its piece. Stages recurse, so no list of pieces is ever built.
 * PCRE2 sees a letter for each character (tokenizer_letters.c). It runs compiled code where it can; where that runs out
 * of its small stack the interpreter takes over, whose memory and steps are limited here.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer_parts.h"
#include "engine/base/fail.h"
#include "engine/base/json_python.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What ByteLevel itself splits by, when use_regex is true. */
#define SPLIT_BYTE_LEVEL "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* What Digits takes for one: of Unicode 17, unlike the patterns. */
#define SPLIT_NUMERIC  "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"
#define SPLIT_HEAP_KIB (256u << 10)

/* ---- building ---- */

static int split_compile(struct split_stage *stage, const char *pattern, size_t len, bool literal,
                         struct rod_error *err) {
    struct regex_letters regex = {0};
    if (!literal) {
        int rc = regex_translate(pattern, len, &regex, err);
        if (rc) return rc;
        stage->letter = regex.letter;
    }
    PCRE2_SPTR text = (PCRE2_SPTR)(literal ? pattern : regex.text);
    int number = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        stage->code = pcre2_compile(text, literal ? len : regex.n, literal ? PCRE2_LITERAL : PCRE2_MULTILINE, &number,
                                    &at, context);
        pcre2_compile_context_free(context);
    }
    free(regex.text);
    if (!stage->code) {
        if (!context) {
            free(regex.from);
            return rod_fail_no_memory(err);
        }
        char why[128] = "", few[160];
        pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why);
        json_python_spell(pattern, len, false, few, sizeof few);
        const size_t place = literal || at > regex.n ? len : regex.from[at];
        free(regex.from);
        return rod_fail(err, ROD_EUNSUPPORTED, "tokenizer.json: pre_tokenizer pattern \"%s\": %s at offset %zu", few,
                        why, place);
    }
    free(regex.from);
    stage->jit = pcre2_jit_compile(stage->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

static int split_key(struct rod_error *err, const char *type, const char *key) {
    return rod_fail(err, ROD_EUNSUPPORTED, "tokenizer.json: pre_tokenizer %s: this \"%s\" is not supported", type, key);
}

/* An optional boolean; absent or null = the default. -1: another type. */
static int split_bool(const json_t *object, const char *key, int absent) {
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return absent;
    return json_is_boolean(v) ? json_is_true(v) : -1;
}

static int split_add_regex(struct split_stage *stage, const json_t *node, struct rod_error *err) {
    const json_t *pattern = json_object_get(node, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const char *behavior = json_string_value(json_object_get(node, "behavior"));
    int invert = split_bool(node, "invert", 0);
    if (!json_is_string(regex) && !json_is_string(string)) return split_key(err, "Split", "pattern");
    if (invert < 0) return split_key(err, "Split", "invert");
    if (behavior && !strcmp(behavior, "Removed"))
        *(invert ? &stage->drop_gap : &stage->drop_match) = true;
    else if (!behavior || strcmp(behavior, "Isolated"))
        return split_key(err, "Split", "behavior");
    const json_t *text = json_is_string(regex) ? regex : string;
    if (!json_string_length(text)) return split_key(err, "Split", "pattern");
    return split_compile(stage, json_string_value(text), json_string_length(text), text == string, err);
}

static int split_add_digits(struct split_stage *stage, const json_t *node, struct rod_error *err) {
    int individual = split_bool(node, "individual_digits", 0);
    if (individual < 0) return split_key(err, "Digits", "individual_digits");
    const char *pattern = individual ? SPLIT_NUMERIC : SPLIT_NUMERIC "+";
    return split_compile(stage, pattern, strlen(pattern), false, err);
}

static int split_add_byte_level(struct split_stage *stage, const json_t *node, struct rod_error *err) {
    int use_regex = split_bool(node, "use_regex", 1), prefix = split_bool(node, "add_prefix_space", 1);
    if (use_regex < 0) return split_key(err, "ByteLevel", "use_regex");
    if (prefix < 0) return split_key(err, "ByteLevel", "add_prefix_space");
    stage->prefix_space = prefix;
    return use_regex ? split_compile(stage, SPLIT_BYTE_LEVEL, strlen(SPLIT_BYTE_LEVEL), false, err) : 0;
}

static int split_refuse_type(const char *type, const json_t *node, struct rod_error *err) {
    char few[65];
    if (!type)
        return rod_fail(err, ROD_EMODEL, "tokenizer.json: pre_tokenizer: a stage must be an object with a \"type\"");
    json_python_spell(type, json_string_length(json_object_get(node, "type")), false, few, sizeof few);
    return rod_fail(err, ROD_EUNSUPPORTED, "tokenizer.json: pre_tokenizer type \"%s\" is not supported", few);
}

int split_init(struct split *split, const json_t *pre_tokenizer, struct rod_error *err) {
    const char *outer = json_string_value(json_object_get(pre_tokenizer, "type"));
    bool sequence = outer && !strcmp(outer, "Sequence");
    const json_t *list = sequence ? json_object_get(pre_tokenizer, "pretokenizers") : NULL;
    if (sequence && !json_is_array(list)) return split_key(err, "Sequence", "pretokenizers");
    size_t n = sequence ? json_array_size(list) : 1;
    if (n > SPLIT_MAX_STAGES) return split_key(err, "Sequence", "pretokenizers");
    bool byte_level = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *node = sequence ? json_array_get(list, i) : pre_tokenizer;
        const char *type = json_string_value(json_object_get(node, "type"));
        struct split_stage *stage = &split->stage[split->n_stages];
        *stage = (struct split_stage){0};
        if (byte_level) /* it would see letters that stand for bytes, not the text */
            return rod_fail(err, ROD_EUNSUPPORTED,
                            "tokenizer.json: pre_tokenizer: a stage after ByteLevel is not supported");
        assert(split->n_stages < SPLIT_MAX_STAGES);
        split->n_stages++; /* from here on split_fini frees it */
        int rc;
        if (type && !strcmp(type, "Split"))
            rc = split_add_regex(stage, node, err);
        else if (type && !strcmp(type, "Digits"))
            rc = split_add_digits(stage, node, err);
        else if (type && !strcmp(type, "ByteLevel"))
            rc = split_add_byte_level(stage, node, err), byte_level = true;
        else
            rc = split_refuse_type(type, node, err);
        if (rc) return rc;
    }
    if (!byte_level)
        return rod_fail(err, ROD_EUNSUPPORTED,
                        "tokenizer.json: pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
    return 0;
}

void split_fini(struct split *split) {
    for (uint32_t i = 0; i < split->n_stages; i++) {
        pcre2_code_free(split->stage[i].code);
        free(split->stage[i].letter);
    }
    split->n_stages = 0;
}

/* ---- running ---- */

/* What a stage's pattern sees of a piece, and how far its matches are. A byte of it is a character of the text, unless
 * the text itself is seen. */
struct split_subject {
    const char *text, *seen;
    size_t len;
};

static int split_see(const struct split_stage *stage, uint32_t k, struct split_work *work, const char *text, size_t len,
                     struct split_subject *out) {
    *out = (struct split_subject){text, text, len};
    if (!stage->letter || utf8_is_ascii(text, len)) return 0;
    if (work->letters[k].cap < len) {
        free(work->letters[k].v);
        work->letters[k].cap = len + 256;
        work->letters[k].v = malloc(work->letters[k].cap);
        if (!work->letters[k].v) {
            work->letters[k].cap = 0;
            return ROD_ENOMEM;
        }
    }
    char *seen = work->letters[k].v;
    size_t n = 0;
    for (size_t i = 0, step; i < len; i += step) {
        step = 1;
        if ((unsigned char)text[i] < 0x80)
            seen[n++] = text[i];
        else
            seen[n++] = (char)stage->letter[utf8_decode(text + i, &step)];
    }
    out->seen = seen;
    out->len = n;
    return 0;
}

/* The offset in the text that lies so many of the subject's bytes after from. */
static size_t split_past(const struct split_subject *s, size_t from, size_t n) {
    if (s->seen == s->text) return from + n;
    for (; n; n--) {
        unsigned char lead = (unsigned char)s->text[from];
        from += (size_t)1 + (lead >= 0xc0) + (lead >= 0xe0) + (lead >= 0xf0);
    }
    return from;
}

static int split_match(const struct split_stage *stage, struct split_work *work, const struct split_subject *s,
                       size_t at) {
    PCRE2_SPTR subject = (PCRE2_SPTR)s->seen;
    if (stage->jit) { /* the fast path checks nothing, and bytes need no check */
        int rc = pcre2_jit_match(stage->code, subject, s->len, at, 0, work->match, work->context);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT && rc != PCRE2_ERROR_MATCHLIMIT) return rc;
    }
    return pcre2_match(stage->code, subject, s->len, at, PCRE2_NO_JIT, work->match, work->context);
}

static int split_from(const struct split *split, uint32_t k, struct split_work *work, const char *text, size_t len,
                      struct rod_error *err);

static int split_emit(const struct split *split, uint32_t k, struct split_work *work, const char *text, size_t len,
                      struct rod_error *err) {
    if (!len) return 0;
    if (k + 1 < split->n_stages) return split_from(split, k + 1, work, text, len, err);
    int rc = work->word(work->arg, text, len);
    assert(!rc || rc == ROD_ENOMEM);
    return rc ? rod_fail_no_memory(err) : 0;
}

static int split_pieces(const struct split *split, uint32_t k, struct split_work *work, const char *text, size_t len,
                        struct rod_error *err) {
    const struct split_stage *stage = &split->stage[k];
    if (!stage->code) return split_emit(split, k, work, text, len, err);
    struct split_subject seen;
    if (split_see(stage, k, work, text, len, &seen)) return rod_fail_no_memory(err);
    size_t done = 0, at = 0, done_text = 0; /* done in the subject, and the same in the text */
    while (at <= seen.len) {
        int n = split_match(stage, work, &seen, at);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0)
            return rod_fail(err, ROD_EINVALID,
                            "the tokenizer's pattern gives up on this text (PCRE2 error %d): it is too "
                            "long and too regular",
                            n);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(work->match);
        size_t start = span[0], end = span[1];
        assert(end >= start && end <= seen.len);
        if (start < done) start = done; /* a look-behind's \K is refused, so this cannot be; and must not, below */
        size_t from = split_past(&seen, done_text, start - done), past = split_past(&seen, from, end - start);
        int rc = stage->drop_gap ? 0 : split_emit(split, k, work, text + done_text, from - done_text, err);
        if (!rc && !stage->drop_match && past > from) rc = split_emit(split, k, work, text + from, past - from, err);
        if (rc) return rc;
        done = at = end;
        done_text = past;
        if (end == start) at++; /* an empty match cuts there; the next search begins one character on */
    }
    return stage->drop_gap ? 0 : split_emit(split, k, work, text + done_text, len - done_text, err);
}

static int split_from(const struct split *split, uint32_t k, struct split_work *work, const char *text, size_t len,
                      struct rod_error *err) {
    assert(k < split->n_stages && len > 0);
    if (!split->stage[k].prefix_space || text[0] == ' ') return split_pieces(split, k, work, text, len, err);
    char *spaced = malloc(len + 1);
    if (!spaced) return rod_fail_no_memory(err);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, len);
    int rc = split_pieces(split, k, work, spaced, len + 1, err);
    free(spaced);
    return rc;
}

int split_run(const struct split *split, struct split_work *work, const char *text, size_t len, struct rod_error *err) {
    if (!work->match) {
        work->match = pcre2_match_data_create(1, NULL);
        work->context = pcre2_match_context_create(NULL);
        if (!work->match || !work->context) return rod_fail_no_memory(err);
        pcre2_set_heap_limit(work->context, SPLIT_HEAP_KIB);
    }
    /* A greedy run is left one character at a time, and each is a step: the limit grows with the text. */
    size_t steps = 1000000 + 64 * (len < UINT32_MAX / 128 ? len : UINT32_MAX / 128);
    pcre2_set_match_limit(work->context, (uint32_t)steps);
    return len ? split_from(split, 0, work, text, len, err) : 0;
}

void split_work_fini(struct split_work *work) {
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    for (size_t k = 0; k < SPLIT_MAX_STAGES; k++) free(work->letters[k].v);
}
