/* api_split.c - a generated text, cut into content and calls; see api_tools.h.
 *
 *   <tool_call>
 *   {"name": "NAME", "arguments": {...}}
 *   </tool_call>
 *
 * White space between the parts may be any. A call begins for the client when its name is known and arguments begin;
 * until then it may turn out to be text. A line break before a tag, and one between two calls, belongs to the tags. */
#include "api_tools.h"

#include <assert.h>
#include <string.h>

enum { STATE_TEXT, STATE_HEAD, STATE_ARGUMENTS, STATE_TAIL };
enum { MAX_HEAD = 512 }; /* bytes from the tag to the arguments, and behind them to the tag */

enum match { MATCH_NO, MATCH_MORE, MATCH_YES }; /* MORE: with more bytes it may match */

struct scan {
    const char *at, *end;
};

static void scan_space(struct scan *s) {
    while (s->at < s->end && strchr(" \t\r\n", *s->at) && *s->at) s->at++;
}

/* White space, then this word. */
static enum match scan_word(struct scan *s, const char *word) {
    scan_space(s);
    for (; *word; word++, s->at++) {
        if (s->at == s->end) return MATCH_MORE;
        if (*s->at != *word) return MATCH_NO;
    }
    return MATCH_YES;
}

static enum match scan_words(struct scan *s, const char *const *words) {
    enum match m = MATCH_YES;
    while (m == MATCH_YES && *words) m = scan_word(s, *words++);
    return m;
}

/* {"name": "NAME", "arguments": up to the { of the arguments. */
static enum match scan_head(struct scan *s, const char **name, size_t *len) {
    static const char *const before[] = {"{", "\"name\"", ":", "\"", NULL}, *const behind[] = {",", "\"arguments\"",
                                                                                               ":", NULL};
    enum match m = scan_words(s, before);
    if (m != MATCH_YES) return m;
    const char *end = memchr(s->at, '"', (size_t)(s->end - s->at));
    if (!end) return MATCH_MORE;
    *name = s->at;
    *len = (size_t)(end - s->at);
    s->at = end + 1;
    m = scan_words(s, behind);
    if (m != MATCH_YES) return m;
    scan_space(s);
    return s->at == s->end ? MATCH_MORE : *s->at == '{' ? MATCH_YES : MATCH_NO;
}

/* ---- parts ---- */

static void split_drop(struct api_split *s, size_t n) {
    assert(n <= s->held.len);
    s->held.len -= n;
    if (n && s->held.len) memmove(s->held.data, s->held.data + n, s->held.len);
}

static void split_text(struct api_split *s, size_t n, struct api_part *part) {
    if (!n) return;
    *part = (struct api_part){.kind = API_PART_TEXT, .text = s->held.data, .len = n};
    s->after_call = false;
    s->n_told = n;
}

/* Bytes at the end that may begin the tag, or the line break before it. */
static size_t split_may_begin(const struct api_split *s) {
    const size_t n_tag = strlen(s->tags.open);
    size_t n = s->held.len < n_tag ? s->held.len : n_tag - 1;
    while (n && memcmp(s->held.data + s->held.len - n, s->tags.open, n) != 0) n--;
    return n + (s->held.len > n && s->held.data[s->held.len - n - 1] == '\n');
}

/* Each step is true where it left something to look at, if only behind its part. */
static bool split_step_text(struct api_split *s, struct api_part *part) {
    const char *tag = memmem(s->held.data, s->held.len, s->tags.open, strlen(s->tags.open));
    if (!tag) {
        split_text(s, s->held.len - split_may_begin(s), part);
        return false;
    }
    size_t n = (size_t)(tag - s->held.data);
    if (n && tag[-1] == '\n') n--;
    split_text(s, n, part);
    s->state = STATE_HEAD;
    return true;
}

/* The tool of this name, if it may be called; NULL: no such tool. */
static const char *tool_named(const struct api_tools *t, const char *name, size_t len) {
    for (size_t i = 0; i < t->n; i++)
        if (t->allowed[i] && strlen(t->names[i]) == len && !memcmp(t->names[i], name, len)) return t->names[i];
    return NULL;
}

static bool split_step_head(struct api_split *s, struct api_part *part) {
    const size_t n_tag = strlen(s->tags.open), begin = n_tag + (s->held.data[0] == '\n' && s->tags.open[0] != '\n');
    struct scan at = {s->held.data + begin, s->held.data + s->held.len};
    const char *name = NULL, *known = NULL;
    size_t len = 0;
    enum match m = scan_head(&at, &name, &len);
    if (m == MATCH_MORE && s->held.len > MAX_HEAD + begin) m = MATCH_NO;
    if (m == MATCH_MORE) return false;
    if (m == MATCH_YES) known = tool_named(s->tools, name, len);
    if (!known) { /* the tag is text, and behind it another may come */
        split_text(s, begin, part);
        s->state = STATE_TEXT;
        return true;
    }
    *part = (struct api_part){.kind = API_PART_CALL, .name = known};
    s->n_calls++;
    s->whole = false;
    s->n_told = (size_t)(at.at - s->held.data);
    s->depth = 0;
    s->in_string = s->escaped = false;
    s->state = STATE_ARGUMENTS;
    return true;
}

/* Whether the arguments end with this byte. */
static bool split_ends_arguments(struct api_split *s, char byte) {
    if (s->in_string) {
        if (s->escaped)
            s->escaped = false;
        else if (byte == '\\')
            s->escaped = true;
        else if (byte == '"')
            s->in_string = false;
        return false;
    }
    if (byte == '"') s->in_string = true;
    if (byte == '{' || byte == '[') s->depth++;
    if (byte == '}' || byte == ']') s->depth--;
    return !s->depth;
}

static bool split_step_arguments(struct api_split *s, struct api_part *part) {
    size_t n = 0;
    while (n < s->held.len && !s->whole) s->whole = split_ends_arguments(s, s->held.data[n++]);
    *part = (struct api_part){.kind = API_PART_ARGUMENTS, .text = s->held.data, .len = n};
    s->n_told = n;
    if (s->whole) s->state = STATE_TAIL;
    return s->whole;
}

/* The call is made; if its end is not as it should be, that is text. */
static bool split_step_tail(struct api_split *s) {
    struct scan at = {s->held.data, s->held.data + s->held.len};
    const char *const words[] = {"}", s->tags.close, NULL};
    enum match m = scan_words(&at, words);
    if (m == MATCH_MORE && s->held.len > MAX_HEAD) m = MATCH_NO;
    if (m == MATCH_MORE) return false;
    if (m == MATCH_YES) split_drop(s, (size_t)(at.at - s->held.data));
    s->after_call = true;
    s->state = STATE_TEXT;
    return true;
}

static bool split_step(struct api_split *s, struct api_part *part) {
    if (!s->held.len) return false;
    switch (s->state) {
    case STATE_HEAD: return split_step_head(s, part);
    case STATE_ARGUMENTS: return split_step_arguments(s, part);
    case STATE_TAIL: return split_step_tail(s);
    default: return split_step_text(s, part);
    }
}

bool api_split_next(struct api_split *s, struct api_part *part) {
    assert(s->tools);
    part->kind = API_PART_NONE;
    split_drop(s, s->n_told);
    s->n_told = 0;
    while (!part->kind && split_step(s, part)) {}
    return part->kind != API_PART_NONE;
}

/* Of a cut text nobody can tell how a tag that it ends in would have gone on. A line break alone is no part of one. */
static bool split_ends_in_call(const struct api_split *s) {
    if (s->state == STATE_HEAD) return true;
    return s->state == STATE_TEXT && s->held.len && !(s->held.len == 1 && s->held.data[0] == '\n');
}

bool api_split_end(struct api_split *s, bool cut, struct api_part *part) {
    assert(!s->n_told);
    s->cut_head = cut && split_ends_in_call(s);
    part->kind = API_PART_NONE;
    if ((s->state == STATE_TEXT || s->state == STATE_HEAD) && !s->after_call && !s->cut_head)
        split_text(s, s->held.len, part);
    s->held.len = s->n_told = 0;
    return part->kind != API_PART_NONE;
}

void api_split_fini(struct api_split *s) { buf_fini(&s->held); }
