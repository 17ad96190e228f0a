/* vocabulary.h - a vocabulary of a published model's size, made here, with the shares that a bilingual one has: words
 * with and without a space before, Chinese, pieces of characters, code. Every run makes it alike: whoever wants other
 * random numbers from below() takes them behind it. */
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 126464, MAX_TOKEN = 40 };

static uint64_t random_state = 20261121;
static uint32_t below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) * n >> 31);
}

struct token {
    size_t len;
    char bytes[MAX_TOKEN + 24];
};

static void put(struct token *t, const char *text) {
    for (; *text && t->len < MAX_TOKEN; text++) t->bytes[t->len++] = *text;
}

static void put_word(struct token *t, bool capital) {
    static const char *const parts[] = {"a",  "e",  "in", "er",   "st",   "on",  "re", "th", "ing", "ed", "al",
                                        "or", "co", "de", "ment", "tion", "un",  "ex", "i",  "s",   "ly", "ver",
                                        "q",  "zo", "ha", "pl",   "ich",  "sch", "ow", "um", "y",   "nd"};
    const size_t first = t->len;
    for (uint32_t n = 1 + below(4); n > 0; n--) put(t, parts[below(32)]);
    if (capital) t->bytes[first] = (char)(t->bytes[first] - 'a' + 'A');
}

static void put_chinese(struct token *t, uint32_t n) {
    for (; n > 0; n--) {
        const uint32_t c = 0x4e00 + (below(60) + 1) * (below(60) + 1) * 5;
        put(t, (char[]){(char)(0xe0 | c >> 12), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63)), 0});
    }
}

static void make_token(struct token *t, uint32_t id) {
    static const char *const code[] = {"\"", ",",  ":",    "{", "}",  "[", "]", "(", ")", ";",
                                       "\n", "\t", "    ", " ", "\\", "/", ".", "=", "-", "_",
                                       "<",  ">",  "0",    "1", "'",  "#", "*", "!", "?", "\r\n"};
    const uint32_t kind = below(1000);
    *t = (struct token){0};
    if (id < 256) {
        t->bytes[t->len++] = (char)id;
    } else if (kind < 420) {
        put(t, " ");
        put_word(t, below(5) == 0);
    } else if (kind < 660) {
        put_word(t, below(3) == 0);
    } else if (kind < 900) {
        put_chinese(t, 1 + below(4));
    } else if (kind < 910) { /* the beginning or the end of a character */
        put_chinese(t, 2);
        const size_t cut = 1 + below(2);
        t->len -= cut;
        if (below(2)) memmove(t->bytes, t->bytes + cut, t->len -= cut);
    } else if (kind < 930) {
        put(t, "caf\xc3\xa9");
        put_word(t, false);
    } else if (kind < 990) {
        for (uint32_t n = 1 + below(4); n > 0; n--) put(t, code[below(30)]);
        if (below(3) == 0) put_word(t, false);
    } else {
        for (uint32_t n = 1 + below(5); n > 0; n--) put(t, (char[]){(char)('0' + below(10)), 0});
    }
}

static int by_bytes(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static struct token *make_vocabulary(void) {
    struct token *t = malloc(VOCABULARY * sizeof *t);
    if (!t) exit(1);
    for (uint32_t i = 0; i < VOCABULARY; i++) make_token(&t[i], i);
    for (bool again = true; again;) { /* until no two are the same */
        again = false;
        qsort(t, VOCABULARY, sizeof *t, by_bytes);
        for (uint32_t i = 1; i < VOCABULARY; i++)
            if (by_bytes(&t[i - 1], &t[i]) == 0) {
                again = true;
                if (t[i].len < 12)
                    put_word(&t[i], false);
                else
                    make_token(&t[i], VOCABULARY);
            }
    }
    for (uint32_t i = VOCABULARY - 1; i > 0; i--) { /* ids say nothing about bytes */
        const uint32_t k = below(i + 1);
        const struct token one = t[i];
        t[i] = t[k];
        t[k] = one;
    }
    return t;
}

#endif
