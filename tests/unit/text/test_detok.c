/* test_detok.c - streaming decode, and the Unicode facts under it. */
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"
#include "engine/text/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t next_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* The token of one byte, found by what it decodes to; -1: UTF-8 never has that byte. */
static int32_t token_of_byte(const struct tokenizer *t, unsigned char byte) {
    size_t len;
    bool special;
    for (int32_t id = 0; id < (int32_t)tokenizer_n_ids(t); id++) {
        const char *b = tokenizer_bytes(t, id, &len, &special);
        if (b && len == 1 && (unsigned char)b[0] == byte) return id;
    }
    return -1;
}

/* What Python's bytes.decode("utf-8", "replace") gives, written from the table of well-formed sequences. */
static size_t reference_replace(const unsigned char *in, size_t len, char *out) {
    static const unsigned char rows[][5] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                                            {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                                            {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                                            {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    size_t w = 0;
    for (size_t i = 0; i < len;) {
        size_t n = 1, want = in[i] < 0x80 ? 1 : 0;
        for (size_t r = 0; r < 8; r++) {
            if (in[i] < rows[r][0] || in[i] > rows[r][1]) continue;
            want = rows[r][4];
            while (n < want && i + n < len && in[i + n] >= (n == 1 ? rows[r][2] : 0x80) &&
                   in[i + n] <= (n == 1 ? rows[r][3] : 0xbf))
                n++;
        }
        if (n == want)
            memcpy(out + w, in + i, n), w += n;
        else
            memcpy(out + w, "\xef\xbf\xbd", 3), w += 3;
        i += n;
    }
    return w;
}

static void streaming_decode_equals_whole_decode(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct rod_error err;
    if (tokenizer_open("config/models/tales", &t, &err)) fail_msg("%s", err.message);
    static const unsigned char pool[] = {0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0,
                                         0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff, 0x80, 0x80, 0xbf};
    int32_t single[sizeof pool];
    for (size_t i = 0; i < sizeof pool; i++) single[i] = token_of_byte(t, pool[i]);
    uint64_t seed = 4242;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[64];
        unsigned char bytes[4096];
        size_t n_ids = next_random(&seed) % 64, n_bytes = 0, len;
        bool special;
        for (size_t i = 0; i < n_ids; i++) { /* single bytes from the edges of the table, and whole tokens */
            int32_t id = single[next_random(&seed) % sizeof pool];
            if (id < 0 || next_random(&seed) % 8 == 0) id = (int32_t)(next_random(&seed) % tokenizer_n_ids(t));
            const char *b = tokenizer_bytes(t, ids[i] = id, &len, &special);
            memcpy(bytes + n_bytes, b, len);
            n_bytes += len;
        }
        char want[3 * sizeof bytes], got[3 * sizeof bytes];
        size_t n_want = reference_replace(bytes, n_bytes, want), n_got = 0;
        struct detok d = {{0}, 0};
        for (size_t i = 0; i < n_ids; i++) {
            size_t n = detok_push(&d, t, ids[i], false, got + n_got);
            if (utf8_check(got + n_got, n) != n) fail_msg("seed 4242 round %d: a push ended inside a character", round);
            n_got += n;
        }
        n_got += detok_flush(&d, got + n_got);
        assert_int_equal(d.n_held, 0);
        if (n_got != n_want || memcmp(got, want, n_got))
            fail_msg("seed 4242 round %d: %zu bytes, expected %zu", round, n_got, n_want);
    }
    tokenizer_close(t);
}

static void nfc_composes_as_unicode_says(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"e\xcc\x81", "\xc3\xa9"},
        {"\xe2\x84\xab", "\xc3\x85"},                             /* the angstrom sign */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, /* Hangul */
        {"\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"}, /* U+11A7 is no final */
        {"s\xcc\x87\xcc\xa3", "\xe1\xb9\xa9"},                    /* marks in the wrong order */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* excluded from composition */
        {"", ""},
        {"\xcc\x81", "\xcc\x81"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *got;
        size_t n;
        assert_true(unicode_nfc(pairs[i][0], strlen(pairs[i][0]), &got, &n));
        assert_string_equal(got, pairs[i][1]);
        assert_int_equal(n, strlen(pairs[i][1]));
        free(got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_decode_equals_whole_decode),
        cmocka_unit_test(nfc_composes_as_unicode_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
