/* fuzz_tokenizer.c - the first half of the data is a tokenizer.json (and, when it parses, encodes the second half); all
 * of the data is a text for a small fixed tokenizer, whose ids must decode to it, and a list of ids to decode. */
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every byte is a token, "ab", "abc" and two spaces are merges, <s> and </s> are special. Made once for each input: a
 * fuzzer keeps no state between inputs, and it takes microseconds. */
static struct tokenizer *fuzz_fixed(void) {
    char json[16384];
    size_t n = 0;
    int next = 256;
    n += (size_t)snprintf(json + n, sizeof json - n, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)snprintf(json + n, sizeof json - n, "\"\\u%04x\":%d,", (unsigned)(itself ? b : next++), b);
    }
    snprintf(
        json + n, sizeof json - n,
        "\"ab\":256,\"abc\":257,\"\\u0120\\u0120\":258},\"merges\":[\"a b\",[\"ab\",\"c\"],\"\\u0120 \\u0120\"]},"
        "\"added_tokens\":[{\"id\":259,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":260,\"content\":\"</s>\",\"special\":true,\"normalized\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct tokenizer *t = NULL;
    struct rod_error err;
    if (tokenizer_parse(json, strlen(json), NULL, 0, &t, &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return t;
}

static void fuzz_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, const char *want, size_t n_want) {
    struct detok d = {{0}, 0};
    size_t n = 0, cap = 64, len;
    bool special;
    char *text = malloc(cap);
    for (size_t i = 0; i < n_ids; i++) {
        size_t need = (tokenizer_bytes(t, ids[i], &len, &special) ? len : 0) * 3 + 16;
        if (cap - n < need + 16) text = realloc(text, cap = (cap + need) * 2);
        if (!text) abort();
        size_t got = detok_push(&d, t, ids[i], false, text + n);
        if (utf8_check(text + n, got) != got) abort(); /* half a character */
        n += got;
    }
    n += detok_flush(&d, text + n);
    if (want && (n != n_want || memcmp(text, want, n))) abort(); /* not what was encoded */
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *bytes = (const char *)data, *half = bytes + size / 2;
    size_t n_half = size - size / 2, n;
    struct tokenizer *t = NULL;
    struct rod_error err;
    int32_t *ids;
    if (!tokenizer_parse(bytes, size / 2, NULL, 0, &t, &err)) {
        if (!tokenizer_encode(t, half, n_half, true, &ids, &n, &err)) {
            fuzz_decode(t, ids, n, NULL, 0);
            free(ids);
        }
        tokenizer_close(t);
    }
    t = fuzz_fixed();
    if (!tokenizer_encode(t, bytes, size, size & 1, &ids, &n, &err)) {
        fuzz_decode(t, ids, n, bytes, size);
        free(ids);
    } else if (utf8_check(bytes, size) == size)
        abort(); /* only broken text is refused */
    struct tokenizer_piece pieces[2] = {{bytes, size / 2, true}, {half, n_half, false}};
    if (!tokenizer_encode_pieces(t, pieces, 2, &ids, &n, &err)) {
        fuzz_decode(t, ids, n, bytes, size);
        free(ids);
    }
    int32_t id[64];
    size_t n_id = size / sizeof *id < 64 ? size / sizeof *id : 64;
    if (n_id) memcpy(id, data, n_id * sizeof *id);
    for (size_t i = 0; i < n_id; i++)
        if (id[i] & 1) id[i] &= 0x1ff; /* half of them within the vocabulary */
    fuzz_decode(t, id, n_id, NULL, 0);
    tokenizer_close(t);
    return 0;
}
