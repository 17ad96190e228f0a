/* fuzz_tokenizer.c - the first half of the data is a tokenizer.json (and, when it parses, encodes the second half); all
 * of the data is a text for a small fixed tokenizer, whose ids must decode to it, for one with added tokens of every
 * flag, and a list of ids to decode. */
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const flagged[] = {" ", "  ", "\\n", "<u>", "u> ", " a", "ac", "<u>a", "\\u00a0"};
#define N_FLAGGED (sizeof flagged / sizeof *flagged)

static const char *fuzz_bool(uint32_t bits) { return bits & 1 ? "true" : "false"; }

/* Every byte is a token, "ab", "abc" and two spaces are merges, <s> and </s> are special, and the flags of others, if
 * any, are drawn from a number. Made once for each input: a fuzzer keeps no state between inputs, and it takes
 * microseconds. */
static struct tokenizer *fuzz_fixed(uint32_t flags) {
    char json[16384];
    size_t n = 0;
    int next = 256;
    n += (size_t)snprintf(json + n, sizeof json - n, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)snprintf(json + n, sizeof json - n, "\"\\u%04x\":%d,", (unsigned)(itself ? b : next++), b);
    }
    n += (size_t)snprintf(
        json + n, sizeof json - n,
        "\"ab\":256,\"abc\":257,\"\\u0120\\u0120\":258},\"merges\":[\"a b\",[\"ab\",\"c\"],\"\\u0120 \\u0120\"]},"
        "\"added_tokens\":[{\"id\":259,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":260,\"content\":\"</s>\",\"special\":true,\"normalized\":true}");
    for (uint32_t i = 0; flags && i < N_FLAGGED; i++, flags = flags * 1664525 + 1013904223)
        n += (size_t)snprintf(json + n, sizeof json - n,
                              ",{\"id\":%u,\"content\":\"%s\",\"lstrip\":%s,\"rstrip\":%s,\"single_word\":%s,"
                              "\"normalized\":%s,\"special\":%s}",
                              261 + i, flagged[i], fuzz_bool(flags >> 30), fuzz_bool(flags >> 29),
                              fuzz_bool(flags >> 28), fuzz_bool(flags >> 27), fuzz_bool(flags >> 26));
    snprintf(json + n, sizeof json - n,
             "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
             "\"decoder\":{\"type\":\"ByteLevel\"}}");
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

/* Added tokens of every flag: each text is encoded, in time, to ids that are there. */
static void fuzz_flagged(const char *bytes, size_t size) {
    uint32_t flags = 1;
    for (size_t i = 0; i < size && i < 8; i++) flags = flags * 31 + (unsigned char)bytes[i];
    struct tokenizer *t = fuzz_fixed(flags | 1);
    struct tokenizer_piece pieces[2] = {{bytes, size / 2, true}, {bytes + size / 2, size - size / 2, false}};
    struct rod_error err;
    int32_t *ids;
    size_t n, len;
    bool special;
    for (int k = 0; k < 2; k++) {
        if (k ? tokenizer_encode_pieces(t, pieces, 2, &ids, &n, &err)
              : tokenizer_encode(t, bytes, size, size & 1, &ids, &n, &err))
            continue;
        for (size_t i = 0; i < n; i++)
            if (!tokenizer_bytes(t, ids[i], &len, &special)) abort();
        free(ids);
    }
    tokenizer_close(t);
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
    fuzz_flagged(bytes, size);
    t = fuzz_fixed(0);
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
