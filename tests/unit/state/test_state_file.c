/* test_state_file.c - the format of a state at rest: there and back, every flip, every cut, every refusal by its name.
 */
#include "engine/state/state_file.h"
#include "engine/state/state_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

static const uint8_t OURS[MODEL_FINGERPRINT_BYTES] = {0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const char LAYOUT[] = "test fp32 S, fp32 conv, fp32 window";
static const struct state_file_expected HERE = {OURS, LAYOUT};

static struct state_file example(void) {
    static const unsigned char ids[8] = {7, 0, 0, 0, 0xfe, 0xff, 0xff, 0x7f};
    static unsigned char payload[333];
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (unsigned char)(i * 7);
    struct state_file state = {.n_tok = 1234567890123,
                               .token_hash = 0xfedcba9876543210,
                               .version = 42,
                               .seed = 0x8000000000000001,
                               .layout = {LAYOUT, sizeof LAYOUT - 1},
                               .pending_text = {"\xe2\x82", 2},
                               .pending_ids = {ids, sizeof ids},
                               .sampler = {"counts", 6},
                               .meta = {"{\"id\":\"x\"}", 10},
                               .payload = {payload, sizeof payload}};
    memcpy(state.fingerprint, OURS, sizeof OURS);
    return state;
}

/* A file in a block exactly as long, so that a sanitizer sees a read past the end. */
struct image {
    unsigned char *bytes;
    size_t n;
};

static struct image image_of(const struct state_file *state) {
    size_t n = state_file_header_bytes(state);
    assert_int_not_equal(n, 0);
    struct image image = {malloc(n + state->payload.n), n + state->payload.n};
    assert_non_null(image.bytes);
    state_file_write_header(state, image.bytes);
    if (state->payload.n) memcpy(image.bytes + n, state->payload.data, state->payload.n);
    return image;
}

static size_t header_of(struct image image) { return image.bytes[12] | (size_t)image.bytes[13] << 8; }

/* Writes the checksum that fits the changed bytes. */
static void seal(struct image image) {
    size_t end = header_of(image) - 8;
    uint64_t check = XXH3_64bits(image.bytes, end);
    for (int i = 0; i < 8; i++) image.bytes[end + (size_t)i] = (unsigned char)(check >> (8 * i));
}

static void assert_refused(struct image image, const char *reason) {
    struct state_file state;
    struct rod_error err = {0};
    assert_int_equal(state_file_parse(image.bytes, image.n, "some.state", &HERE, &state, &err), ROD_ESTATE);
    if (!strstr(err.message, reason) || strncmp(err.message, "some.state: ", 12))
        fail_msg("\"%s\" does not say \"%s\"", err.message, reason);
    assert_null(state.payload.data);
    assert_int_equal(state.payload.n, 0);
}

static void assert_same_bytes(struct state_bytes a, struct state_bytes b) {
    assert_int_equal(a.n, b.n);
    if (a.n) assert_memory_equal(a.data, b.data, a.n);
}

static void assert_same(const struct state_file *a, const struct state_file *b) {
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
    assert_true(a->n_tok == b->n_tok && a->token_hash == b->token_hash);
    assert_true(a->version == b->version && a->seed == b->seed);
    assert_same_bytes(a->layout, b->layout);
    assert_same_bytes(a->pending_text, b->pending_text);
    assert_same_bytes(a->pending_ids, b->pending_ids);
    assert_same_bytes(a->sampler, b->sampler);
    assert_same_bytes(a->meta, b->meta);
    assert_same_bytes(a->payload, b->payload);
}

/* The header of a state whose bytes are in another file: it is all of its own one. */
static void a_state_that_is_apart_is_a_header(void **unused) {
    (void)unused;
    struct state_file state = example(), back, whole = example();
    struct rod_error err;
    const uint64_t check = XXH3_64bits(state.payload.data, state.payload.n);
    state.apart = true;
    state.payload_check = check;
    struct image image = image_of(&state);
    image.n -= state.payload.n;
    if (state_file_parse_header(image.bytes, image.n, image.n, "some.state", &HERE, &back, &err))
        fail_msg("%s", err.message);
    assert_true(back.apart);
    assert_int_equal(back.payload_check, check);
    assert_int_equal(back.payload.n, state.payload.n);
    assert_null(back.payload.data);
    assert_true(state_file_peek_apart(image.bytes));
    if (state_file_check_payload(image.bytes, &state.payload, "some.base", &err)) fail_msg("%s", err.message);
    assert_refused(image, "in another file");
    image.n += state.payload.n;
    assert_refused(image, "too long");
    image.bytes[100] = 2;
    seal(image);
    assert_refused(image, "unused bytes behind");
    free(image.bytes);
    image = image_of(&whole);
    assert_false(state_file_peek_apart(image.bytes));
    assert_int_equal(state_file_parse(image.bytes, image.n, "some.state", &HERE, &back, &err), 0);
    assert_false(back.apart);
    assert_int_equal(back.payload_check, check);
    free(image.bytes);
}

static void a_state_comes_back_as_it_was(void **unused) {
    (void)unused;
    struct state_file state = example(), back;
    struct rod_error err;
    struct image image = image_of(&state);
    if (state_file_parse(image.bytes, image.n, "some.state", &HERE, &back, &err)) fail_msg("%s", err.message);
    assert_same(&state, &back);
    assert_int_equal(state_file_n_ids(&back), 2);
    assert_int_equal(state_file_id(&back, 0), 7);
    assert_int_equal(state_file_id(&back, 1), 0x7ffffffe);
    assert_int_equal(header_of(image) % 64, 0);
    assert_int_equal(image.n, 192 + 333);
    assert_int_equal(XXH3_64bits(image.bytes, image.n), 0xe2dc4e6a77d4476f); /* format 1 stays as it is */
    /* At an odd address, without expectations, and the header alone. */
    unsigned char *odd = malloc(image.n + 1);
    assert_non_null(odd);
    memcpy(odd + 1, image.bytes, image.n);
    struct state_file_expected any = {0};
    assert_int_equal(state_file_parse(odd + 1, image.n, "some.state", &any, &back, &err), 0);
    assert_same(&state, &back);
    size_t n = header_of(image);
    unsigned char *start = malloc(n);
    assert_non_null(start);
    memcpy(start, image.bytes, n);
    assert_int_equal(state_file_parse_header(start, n, image.n, "some.state", &HERE, &back, &err), 0);
    assert_null(back.payload.data);
    assert_int_equal(back.payload.n, state.payload.n);
    assert_int_equal(back.n_tok, state.n_tok);
    free(start);
    free(odd);
    free(image.bytes);
}

static void sections_of_every_length_come_back(void **unused) {
    (void)unused;
    static const unsigned char zeros[260];
    for (uint32_t n = 0; n <= 200; n++) {
        struct state_file state = example(), back;
        struct rod_error err;
        state.pending_text.n = 0;
        state.pending_ids.n = 0;
        state.sampler = (struct state_bytes){zeros, n % 3};
        state.meta = (struct state_bytes){zeros, n};
        state.payload.n = n % 5 ? n : 0;
        struct image image = image_of(&state);
        if (state_file_parse(image.bytes, image.n, "some.state", &HERE, &back, &err))
            fail_msg("%u: %s", n, err.message);
        assert_same(&state, &back);
        free(image.bytes);
    }
}

static void every_flip_is_refused(void **unused) {
    (void)unused;
    struct state_file state = example();
    struct image image = image_of(&state);
    struct state_file_expected any = {0};
    for (size_t i = 0; i < image.n; i++)
        for (int flip = 1; flip < 256; flip++) {
            struct rod_error err = {0};
            image.bytes[i] ^= (unsigned char)flip;
            if (state_file_parse(image.bytes, image.n, "some.state", &any, &state, &err) != ROD_ESTATE)
                fail_msg("byte %zu ^ 0x%02x is accepted", i, (unsigned)flip);
            assert_true(err.message[0]);
            image.bytes[i] ^= (unsigned char)flip;
        }
    free(image.bytes);
}

static void every_cut_is_refused(void **unused) {
    (void)unused;
    struct state_file state = example();
    struct image image = image_of(&state);
    for (size_t n = 0; n < image.n; n++) {
        struct image cut = {malloc(n ? n : 1), n};
        assert_non_null(cut.bytes);
        memcpy(cut.bytes, image.bytes, n);
        assert_refused(cut, "too short");
        free(cut.bytes);
    }
    image.bytes = realloc(image.bytes, image.n + 1);
    assert_non_null(image.bytes);
    image.bytes[image.n++] = 0;
    assert_refused(image, "too long");
    free(image.bytes);
}

static void every_refusal_says_its_reason(void **unused) {
    (void)unused;
    struct state_file state = example();
    struct image image = image_of(&state);
    image.bytes[0] = 'r';
    assert_refused(image, "bad magic");
    image.bytes[0] = 'R';
    image.bytes[8] = 3;
    seal(image);
    assert_refused(image, "unknown version 3 of the format, 1 and 2 are supported");
    assert_true(state_file_peek_foreign(image.bytes));
    image.bytes[8] = 2;
    seal(image);
    assert_refused(image, "malformed header: its version has other layouts");
    image.bytes[8] = 1;
    seal(image);
    image.bytes[12] ^= 1;
    assert_refused(image, "damaged header");
    image.bytes[12] ^= 1;
    image.bytes[23] = 0xff;
    assert_refused(image, "damaged header");
    image.bytes[23] = 0;
    image.bytes[50] ^= 1;
    assert_refused(image, "bad checksum: the header");
    image.bytes[50] ^= 1;
    seal(image);
    image.bytes[image.n - 1] ^= 1;
    assert_refused(image, "bad checksum: the payload");
    image.bytes[image.n - 1] ^= 1;
    struct state_file back;
    assert_int_equal(state_file_parse(image.bytes, image.n, "some.state", &HERE, &back, NULL), 0);
    free(image.bytes);

    state.fingerprint[0] = 0xcd;
    image = image_of(&state);
    assert_refused(image, "foreign fingerprint: a state of model cd0102030405060708090a0b0c0d0e0f, this is model "
                          "ab0102030405060708090a0b0c0d0e0f");
    free(image.bytes);
    state = example();
    state.layout = (struct state_bytes){"other\n", 6};
    image = image_of(&state);
    assert_refused(image, "other layout: the state is laid out as other?, here it is test fp32 S");
    free(image.bytes);
}

static const struct state_layout USUAL = {.L = 2,
                                          .E = 32,
                                          .M = 16,
                                          .K = 4,
                                          .Hk = 1,
                                          .Hv = 2,
                                          .P = 8,
                                          .visible = 5,
                                          .S = DTYPE_F32,
                                          .act = DTYPE_BF16,
                                          .window = DTYPE_BF16};

/* A server of before takes it for one of a later server, not for damage. */
static void other_formats_have_a_version_of_their_own(void **unused) {
    (void)unused;
    struct state_layout narrow[3] = {USUAL, USUAL, USUAL};
    char id[BACKEND_STATE_ID_BYTES], usual[BACKEND_STATE_ID_BYTES];
    state_layout_id(&USUAL, usual);
    narrow[1].window = DTYPE_FP8;
    narrow[2].S = DTYPE_BF16;
    for (int i = 0; i < 3; i++) {
        state_layout_id(&narrow[i], id);
        struct state_file state = example(), back;
        state.layout = (struct state_bytes){id, strlen(id)};
        struct image image = image_of(&state);
        const struct state_file_expected own = {OURS, id}, default_formats = {OURS, usual};
        struct rod_error err;
        assert_int_equal(image.bytes[8], i ? 2 : 1);
        assert_false(state_file_peek_foreign(image.bytes));
        if (state_file_parse(image.bytes, image.n, "a", &own, &back, &err)) fail_msg("%s", err.message);
        assert_same(&state, &back);
        if (i) {
            assert_int_equal(state_file_parse(image.bytes, image.n, "a", &default_formats, &back, &err), ROD_ESTATE);
            assert_string_equal(
                err.message, i == 1 ? "a: other formats: the state has S in fp32, activations in bf16 and a window "
                                      "in fp8, here they are fp32, bf16 and bf16; `rodimus states convert` makes one "
                                      "of the other"
                                    : "a: other formats: the state has S in bf16, activations in bf16 and a window "
                                      "in bf16, here they are fp32, bf16 and bf16; `rodimus states convert` makes "
                                      "one of the other");
        }
        image.bytes[8] ^= 3; /* 1 for 2, 2 for 1 */
        seal(image);
        assert_int_equal(state_file_parse(image.bytes, image.n, "a", &own, &back, &err), ROD_ESTATE);
        assert_non_null(strstr(err.message, "its version has other layouts"));
        free(image.bytes);
    }
}

/* What a good checksum vouches for is looked at all the same. */
static void a_sealed_header_without_sense_is_refused(void **unused) {
    (void)unused;
    struct state_file state = example();
    for (size_t i = 0; i < 24; i++) {
        struct image image = image_of(&state);
        image.bytes[80 + i] ^= 0x80; /* a length of a section, or the field that must be 0 */
        seal(image);
        assert_refused(image, "malformed header");
        free(image.bytes);
    }
    struct image image = image_of(&state);
    image.bytes[80] = 0; /* no layout */
    seal(image);
    assert_refused(image, "section layout has an invalid length, 0 bytes");
    free(image.bytes);
    image = image_of(&state);
    size_t unused_byte = header_of(image) - 9;
    assert_int_equal(image.bytes[unused_byte], 0);
    image.bytes[unused_byte] = 1;
    seal(image);
    assert_refused(image, "unused bytes behind the last section");
    free(image.bytes);
    image = image_of(&state);
    image.bytes[88] = 6; /* of pending tokens, 2 of the sampler's bytes more */
    image.bytes[92] = 8;
    seal(image);
    assert_refused(image, "not a multiple of 4");
    free(image.bytes);
}

static void what_does_not_fit_is_not_written(void **unused) {
    (void)unused;
    struct state_file state = example();
    state.layout.n = 0;
    assert_int_equal(state_file_header_bytes(&state), 0);
    state.layout.n = STATE_FILE_MAX_LAYOUT + 1;
    assert_int_equal(state_file_header_bytes(&state), 0);
    state = example();
    state.pending_ids.n = 7;
    assert_int_equal(state_file_header_bytes(&state), 0);
    state = example();
    state.meta.n = SIZE_MAX;
    assert_int_equal(state_file_header_bytes(&state), 0);
    state.meta.n = STATE_FILE_MAX_HEADER_BYTES;
    assert_int_equal(state_file_header_bytes(&state), 0);
    state.meta.n = STATE_FILE_MAX_HEADER_BYTES - 192;
    assert_int_equal(state_file_header_bytes(&state), STATE_FILE_MAX_HEADER_BYTES);
    struct state_file least = {.layout = {"x", 1}};
    assert_int_equal(state_file_header_bytes(&least), STATE_FILE_MIN_BYTES);
}

static void tokens_hash_the_same_in_pieces(void **unused) {
    (void)unused;
    int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = i * 31 % 17;
    uint64_t whole = state_file_hash_tokens(0, ids, 100);
    for (size_t n = 0; n <= 100; n++)
        assert_true(state_file_hash_tokens(state_file_hash_tokens(0, ids, n), ids + n, 100 - n) == whole);
    assert_true(state_file_hash_tokens(0, ids, 0) == 0);
    ids[50] ^= 1;
    assert_true(state_file_hash_tokens(0, ids, 100) != whole);
    /* Of the format, so for ever: files of an earlier build are read by this one. */
    assert_true(state_file_hash_tokens(0, (const int32_t[]){1, 2, 3}, 3) == 0x521aff853e6c6f0e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_comes_back_as_it_was),
        cmocka_unit_test(a_state_that_is_apart_is_a_header),
        cmocka_unit_test(sections_of_every_length_come_back),
        cmocka_unit_test(every_flip_is_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_refusal_says_its_reason),
        cmocka_unit_test(other_formats_have_a_version_of_their_own),
        cmocka_unit_test(a_sealed_header_without_sense_is_refused),
        cmocka_unit_test(what_does_not_fit_is_not_written),
        cmocka_unit_test(tokens_hash_the_same_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
