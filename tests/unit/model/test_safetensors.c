/* test_safetensors.c - the header parser against good, broken and mutated headers; files; the sharded index. */
#include "engine/base/half.h"
#include "engine/model/safetensors.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define REAL_FILE "tests/vectors/rodimus-plus-small/model.safetensors"

/* A file in memory: length, header, n_data bytes 0, 1, 2 ... Its block is exactly as long as the file, so that a
 * sanitizer sees a read past the end. */
struct image {
    unsigned char *bytes;
    size_t n;
};

static struct image image_of(const char *header, size_t n_header, size_t n_data) {
    struct image f = {malloc(8 + n_header + n_data), 8 + n_header + n_data};
    assert_non_null(f.bytes);
    for (int i = 0; i < 8; i++) f.bytes[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
    memcpy(f.bytes + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++) f.bytes[8 + n_header + i] = (unsigned char)i;
    return f;
}

static int parse_text(const char *header, size_t n_data, struct safetensors_table *table, struct rod_error *err) {
    struct image f = image_of(header, strlen(header), n_data);
    int rc = safetensors_parse(f.bytes, f.n, f.n, "some.safetensors", table, err);
    free(f.bytes);
    return rc;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(to), 0);
}

static void a_good_header_gives_every_tensor_sorted(void **state) {
    (void)state;
    struct safetensors_table table;
    struct rod_error err;
    int rc = parse_text("{\"__metadata__\":{\"format\":\"pt\"},"
                        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,1,1],\"data_offsets\":[0,4]},"
                        "\"none\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
                        "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[28,29]}}   ",
                        29, &table, &err);
    if (rc) fail_msg("%s", err.message);
    assert_int_equal(table.n_tensors, 4);
    assert_string_equal(table.tensors[0].name, "a");
    assert_string_equal(table.tensors[1].name, "b");
    assert_string_equal(table.tensors[1].dtype_name, "F32");
    assert_int_equal(table.tensors[1].n_dims, 2);
    assert_int_equal(table.tensors[1].shape[1], 3);
    assert_int_equal(table.tensors[1].n_bytes, 24);
    assert_int_equal(table.tensors[1].first_byte - table.tensors[0].first_byte, 4);
    assert_int_equal(table.tensors[2].n_elems, 0);
    assert_int_equal(table.tensors[3].n_elems, 1);
    safetensors_free(&table);
}

/* Its bytes are what the offsets say; who reads it is told the type. */
static void a_tensor_of_a_type_that_is_not_known_has_its_place(void **state) {
    (void)state;
    struct safetensors_table table;
    struct rod_error err;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"n\":NaN,\"t\":\"\\u0000\\ud800\"},"
                                 "\"a\":{\"dtype\":\"F4_E2M1\",\"shape\":[3,2],\"data_offsets\":[0,3]},"
                                 "\"b\":{\"dtype\":\"f32\",\"shape\":[0],\"data_offsets\":[3,3]},"
                                 "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]}}";
    if (parse_text(header, 7, &table, &err)) fail_msg("%s", err.message);
    assert_int_equal(table.n_tensors, 3);
    assert_string_equal(table.tensors[0].dtype_name, "F4_E2M1");
    assert_int_equal(table.tensors[0].dtype, SAFETENSORS_N_DTYPES);
    assert_int_equal(table.tensors[0].n_bytes, 3);
    assert_int_equal(table.tensors[2].first_byte - table.tensors[0].first_byte, 3);
    float x[6];
    int64_t i[6];
    const unsigned char data[8] = {0};
    struct safetensors st = {.path = (char *)"p", .table = table, .map = data, .n_bytes = UINT64_MAX};
    assert_int_equal(safetensors_read_f32(&st, &table.tensors[0], x, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, "tensor a has dtype F4_E2M1"));
    assert_int_equal(safetensors_read_i64(&st, &table.tensors[0], i, &err), ROD_EMODEL);
    safetensors_free(&table);
    assert_int_equal(parse_text("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,3]}}", 2, &table, &err),
                     ROD_EMODEL);
    assert_non_null(strstr(err.message, "truncated"));
}

static void a_key_of_a_header_that_nobody_reads_may_stand_twice(void **state) {
    (void)state;
    struct safetensors_table table;
    struct rod_error err;
    static const char header[] = "{\"__metadata__\":{\"n\":1,\"n\":2,\"dtype\":1,\"dtype\":{\"a\":1,\"a\":2}},"
                                 "\"__metadata__\":{},\"w\":{\"x\":1,\"x\":[\"dtype\", {\"dtype\":1,\"dtype\":2}],"
                                 "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    if (parse_text(header, 4, &table, &err)) fail_msg("%s", err.message);
    assert_int_equal(table.n_tensors, 1);
    assert_string_equal(table.tensors[0].name, "w");
    safetensors_free(&table);
}

/* No name of a weight looks so: who looks for "w" does not find "w", NUL. */
static void odd_names_and_types_of_tensors_are_spelled_out(void **state) {
    (void)state;
    struct safetensors_table table;
    struct rod_error err;
    static const char header[] = "{\"w\\u0000\":{\"dtype\":\"F32\\u0000\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                 "\"\\udc00\":{\"dtype\":\"\\ud800\",\"shape\":[9],\"data_offsets\":[4,6]},"
                                 "\"a\\n\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[6,8]},"
                                 "\"a\\\\n\":{\"dtype\":\"F\\n\",\"shape\":[],\"data_offsets\":[8,8]}}";
    static const char *const names[] = {"\\udc00", "a\\\\n", "a\\u000a", "w\\u0000"};
    static const char *const types[] = {"\\ud800", "F\\u000a", "F16", "F32\\u0000"};
    if (parse_text(header, 8, &table, &err)) fail_msg("%s", err.message);
    assert_int_equal(table.n_tensors, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(table.tensors[i].name, names[i]);
        assert_string_equal(table.tensors[i].dtype_name, types[i]);
        assert_int_equal(table.tensors[i].dtype, i == 2 ? SAFETENSORS_F16 : SAFETENSORS_N_DTYPES);
    }
    safetensors_free(&table);
}

static void an_empty_file_of_tensors_is_good(void **state) {
    (void)state;
    struct safetensors_table table;
    struct rod_error err;
    assert_int_equal(parse_text("{}", 0, &table, &err), 0);
    assert_int_equal(table.n_tensors, 0);
    safetensors_free(&table);
}

#define T(name, dtype, shape, offsets)                                                                                 \
    "\"" name "\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void broken_headers_name_tensor_and_fault(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        const char *says, *names;
    } cases[] = {
        {"", 0, "not valid JSON", ""},
        {"{", 0, "not valid JSON", ""},
        {"nonsense", 4, "not valid JSON", ""},
        {"[]", 0, "not a JSON object", ""},
        {"{} x", 0, "not valid JSON", ""},
        {"{\"a\xff\":{}}", 0, "not valid JSON", ""},
        {"{}", 1, "belong to no tensor", ""},
        {"{\"__metadata__\":3}", 0, "__metadata__", ""},
        {"{\"w\":3}", 0, "not described by an object", "w"},
        {"{\"w\":{}}", 0, "no dtype", "w"},
        {"{\"w\\n\":{}}", 0, "tensor w\\u000a has no dtype", ""},
        {"{" T("w", "\"F32\"", "[1]", "[0,4]") "," T("w", "\"F32\"", "[1]", "[0,4]") "}", 4, "tensor w is there twice",
         "duplicate"},
        {"{" T("model.layers.0.a_long_name.weight", "\"F32\"", "[1]",
               "[0,4]") "," T("model.layers.0.a_long_name.weight", "\"F32\"", "[1]", "[4,8]") "}",
         8, "tensor model.layers.0.a_long_name.weight is there twice", "duplicate"},
        {"{" T("a\\\"{\\\\", "\"F32\"", "[1]", "[0,4]") "," T("a\\\"{\\\\", "\"F32\"", "[1]", "[4,8]") "}", 8,
         "tensor a\\\"{\\\\ is there twice", "duplicate"},
        {"{" T("v", "\"F32\"", "[1]", "[0,4]") ",\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"dtype\":\"F16\"}}", 4,
         "tensor w: dtype is there twice", "duplicate"},
        {"{" T("w", "7", "[1]", "[0,4]") "}", 4, "no dtype", "w"},
        {"{" T("w\\u0000x", "\"F32\"", "[2]", "[0,4]") "}", 4, "tensor w\\u0000x: shape [2] of F32 needs 8", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[0,4]") "," T("\\u0077", "\"F32\"", "[1]", "[4,8]") "}", 8,
         "tensor \\u0077 is there twice", "duplicate"},
        {"{" T("w\\u0000", "\"F32\"", "[1]", "[0,4]") "," T("w\\u0000", "\"F32\"", "[1]", "[4,8]") "}", 8,
         "tensor w\\u0000 is there twice", "duplicate"},
        {"{\"w\":{\"shape\":[1],\"dtype\":\"F16\",\"sh\\u0061pe\" : [1],\"data_offsets\":[0,2]}}", 2,
         "tensor w: sh\\u0061pe is there twice", "duplicate"},
        {"{" T("w", "\"F32\"", "[NaN]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[Infinity]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "1", "[0,4]") "}", 4, "no shape", "w"},
        {"{" T("w", "\"F32\"", "[-1]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[2,1.5]", "[0,4]") "}", 4, "shape[1]", "w"},
        {"{" T("w", "\"F32\"", "[\"1\"]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[null]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[99999999999999999999999]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[1e999]", "[0,4]") "}", 4, "shape[0]", "w"},
        {"{" T("w", "\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions", "w"},
        {"{" T("w", "\"F32\"", "[4294967296,4294967296]", "[0,4]") "}", 4, "overflows", "w"},
        {"{" T("w", "\"F32\"", "[4294967296,4294967296,0]", "[0,4]") "}", 4, "needs 0 bytes", "w"},
        {"{" T("w", "\"F64\"", "[9007199254740992]", "[0,4]") "}", 4, "needs 72057594037927936 bytes", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[0]") "}", 4, "data_offsets", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[0,4,8]") "}", 4, "data_offsets", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[-4,0]") "}", 4, "data_offsets", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[0,18446744073709551620]") "}", 4, "data_offsets", "w"},
        {"{" T("w", "\"F32\"", "[1]", "{}") "}", 4, "data_offsets", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[4,0]") "}", 4, "after its end", "w"},
        {"{" T("w", "\"F32\"", "[2]", "[0,8]") "}", 4, "truncated", "w"},
        {"{" T("w", "\"F32\"", "[2]", "[0,4]") "}", 4, "needs 8 bytes, its offsets give 4", "w"},
        {"{" T("w", "\"F16\"", "[1]", "[0,3]") "}", 3, "needs 2 bytes, its offsets give 3", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[4,8]") "}", 8, "gap of 4 bytes before", "w"},
        {"{" T("v", "\"F32\"", "[1]", "[0,4]") "," T("w", "\"F32\"", "[1]", "[8,12]") "}", 12, "gap of 4", "w"},
        {"{" T("v", "\"F32\"", "[2]", "[0,8]") "," T("w", "\"F32\"", "[1]", "[4,8]") "}", 8, "w overlaps tensor v",
         "w"},
        {"{" T("v", "\"F32\"", "[1]", "[0,4]") "," T("w", "\"F32\"", "[1]", "[0,4]") "}", 4, "overlaps", "w"},
        {"{" T("w", "\"F32\"", "[1]", "[0,4]") "}", 6, "2 bytes of data follow", "w"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors_table table;
        struct rod_error err = {0};
        int rc = parse_text(cases[i].header, cases[i].n_data, &table, &err);
        if (rc != ROD_EMODEL || err.code != ROD_EMODEL) fail_msg("%s: code %d", cases[i].header, rc);
        if (!strstr(err.message, cases[i].says) || !strstr(err.message, cases[i].names) ||
            !strstr(err.message, "some.safetensors"))
            fail_msg("%s: message \"%s\" lacks \"%s\" or \"%s\"", cases[i].header, err.message, cases[i].says,
                     cases[i].names);
    }
}

static void header_lengths_beyond_the_file_are_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3, 4, 1000, 1u << 25, UINT64_MAX, UINT64_MAX - 7, (uint64_t)INT64_MAX + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct image f = image_of("{}", 2, 0);
        for (int b = 0; b < 8; b++) f.bytes[b] = (unsigned char)(lengths[i] >> (8 * b));
        struct safetensors_table table;
        struct rod_error err;
        assert_int_equal(safetensors_parse(f.bytes, f.n, f.n, "f", &table, &err), ROD_EMODEL);
        assert_non_null(strstr(err.message, "does not fit"));
        /* a file that claims to be large, of which only the start is at hand */
        assert_int_equal(safetensors_parse(f.bytes, f.n, UINT64_MAX, "f", &table, &err), ROD_EMODEL);
        free(f.bytes);
    }
    struct safetensors_table table;
    struct rod_error err;
    for (size_t n = 0; n < 8; n++)
        assert_int_equal(safetensors_parse("\2\0\0\0\0\0\0", n, n, "f", &table, &err), ROD_EMODEL);
}

static struct image read_whole(const char *path) {
    FILE *from = fopen(path, "rb");
    assert_non_null(from);
    fseek(from, 0, SEEK_END);
    struct image f = {NULL, (size_t)ftell(from)};
    rewind(from);
    f.bytes = malloc(f.n);
    assert_non_null(f.bytes);
    assert_int_equal(fread(f.bytes, 1, f.n, from), f.n);
    fclose(from);
    return f;
}

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

/* What parse promises of a table that it accepts. */
static void check_table(const struct safetensors_table *table, uint64_t file_bytes, uint64_t seed) {
    for (size_t i = 0; i < table->n_tensors; i++) {
        const struct safetensors_tensor *t = &table->tensors[i];
        if (t->first_byte < 8 || t->first_byte > file_bytes || t->n_bytes > file_bytes - t->first_byte ||
            t->n_dims > SAFETENSORS_MAX_DIMS)
            fail_msg("seed %llu: tensor %s leaves the file", (unsigned long long)seed, t->name);
    }
}

static void a_mutated_real_header_never_crashes(void **state) {
    (void)state;
    struct image real = read_whole(REAL_FILE);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | real.bytes[i];
    size_t n = (size_t)header + 8;
    static const char interesting[] = "{}[]\",:0123456789-eE.\\\0\xff";
    unsigned accepted = 0, n_rounds = 3000;
    for (unsigned round = 0; round < n_rounds; round++) {
        uint64_t seed = 0x9e3779b97f4a7c15u + round, s = seed;
        size_t keep = round % 5 ? n : (size_t)(next_random(&s) % (n + 1));
        unsigned char *copy = malloc(keep + 1);
        assert_non_null(copy);
        memcpy(copy, real.bytes, keep);
        for (uint64_t edits = 1 + next_random(&s) % 4; edits && keep; edits--) {
            size_t at = (size_t)(next_random(&s) % keep);
            uint64_t how = next_random(&s);
            copy[at] =
                how & 1 ? (unsigned char)(how >> 8) : (unsigned char)interesting[(how >> 8) % (sizeof interesting - 1)];
        }
        unsigned char *exact = realloc(copy, keep ? keep : 1);
        struct safetensors_table table;
        struct rod_error err = {0};
        int rc = safetensors_parse(exact, keep, real.n, "mutated", &table, &err);
        if (rc && !err.message[0]) fail_msg("seed %llu: an error without a message", (unsigned long long)seed);
        if (!rc) {
            accepted++;
            check_table(&table, real.n, seed);
            safetensors_free(&table);
        }
        free(exact);
    }
    if (accepted > n_rounds / 2)
        fail_msg("%u of %u mutated headers were accepted", accepted, n_rounds); /* names only */
    free(real.bytes);
}

static void a_file_truncated_anywhere_is_refused(void **state) {
    (void)state;
    struct image real = read_whole("tests/vectors/rodimus-plus-short/golden.safetensors");
    for (size_t n = 0; n < real.n; n = n < 1000 ? n + 1 : n + 977) {
        struct safetensors_table table;
        struct rod_error err;
        int rc = safetensors_parse(real.bytes, n, n, "cut", &table, &err);
        if (rc != ROD_EMODEL) fail_msg("cut to %zu bytes of %zu: code %d", n, real.n, rc);
    }
    free(real.bytes);
}

static void files_are_mapped_and_read(void **state) {
    (void)state;
    struct safetensors *st;
    struct rod_error err;
    if (safetensors_open("tests/vectors/rodimus-plus-short/golden.safetensors", &st, &err)) fail_msg("%s", err.message);
    const struct safetensors_tensor *ids = safetensors_find(st, "input_ids"), *logits = safetensors_find(st, "logits");
    assert_non_null(ids);
    assert_non_null(logits);
    assert_null(safetensors_find(st, "input_id"));
    assert_int_equal(ids->n_elems, 5);
    int64_t values[5];
    assert_int_equal(safetensors_read_i64(st, ids, values, &err), 0);
    for (int i = 0; i < 5; i++) assert_in_range(values[i], 0, 269);
    float *row = malloc(logits->n_elems * sizeof *row);
    assert_int_equal(safetensors_read_f32(st, logits, row, &err), 0);
    for (uint64_t i = 0; i < logits->n_elems; i++) assert_true(isfinite(row[i]));
    assert_int_equal(safetensors_read_f32(st, ids, row, &err), ROD_EMODEL);
    assert_int_equal(safetensors_read_i64(st, logits, values, &err), ROD_EMODEL);
    free(row);
    safetensors_close(st);

    assert_int_equal(safetensors_open("tests/vectors/none.safetensors", &st, &err), ROD_ENOTFOUND);
    assert_non_null(strstr(err.message, "none.safetensors"));
    assert_int_equal(safetensors_open("tests/vectors", &st, &err), ROD_EMODEL);
}

/* Every element size at every byte alignment: UBSan watches the loads. */
static void unaligned_tensors_are_read(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64], header[512];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/odd.safetensors", dir);
    for (int pad = 0; pad < 8; pad++) {
        int n = snprintf(header, sizeof header,
                         "{" T("a", "\"U8\"", "[1]", "[0,1]") "," T("f", "\"F32\"", "[1]", "[1,5]") "," T(
                             "i", "\"I64\"", "[1]",
                             "[5,13]") "," T("d", "\"F64\"", "[1]",
                                             "[13,21]") "," T("h", "\"F16\"", "[1]",
                                                              "[21,23]") "," T("j", "\"I32\"", "[1]", "[23,27]") "}%*s",
                         pad, "");
        struct image f = image_of(header, (size_t)n, 27);
        unsigned char *data = f.bytes + 8 + n;
        memcpy(data + 1, &(float){1.5f}, 4);
        memcpy(data + 5, &(int64_t){-5000000000}, 8);
        memcpy(data + 13, &(double){2.25}, 8);
        memcpy(data + 21, &(uint16_t){0xc000}, 2);
        memcpy(data + 23, &(int32_t){-7}, 4);
        write_file(path, f.bytes, f.n);
        free(f.bytes);
        struct safetensors *st;
        struct rod_error err;
        if (safetensors_open(path, &st, &err)) fail_msg("%s", err.message);
        float x;
        int64_t i;
        assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "f"), &x, &err), 0);
        assert_true(x == 1.5f);
        assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "d"), &x, &err), 0);
        assert_true(x == 2.25f);
        assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "h"), &x, &err), 0);
        assert_true(x == -2.0f);
        assert_int_equal(safetensors_read_i64(st, safetensors_find(st, "i"), &i, &err), 0);
        assert_true(i == -5000000000);
        assert_int_equal(safetensors_read_i64(st, safetensors_find(st, "j"), &i, &err), 0);
        assert_true(i == -7);
        safetensors_close(st);
    }
    unlink(path);
    rmdir(dir);
}

static void an_index_gives_places_and_distinct_files(void **state) {
    (void)state;
    const char *json =
        "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\","
        "\"c\":\"m-1.safetensors\"}}";
    struct safetensors_index index;
    struct rod_error err;
    assert_int_equal(safetensors_parse_index(json, strlen(json), "i.json", &index, &err), 0);
    assert_int_equal(index.n_places, 3);
    assert_string_equal(index.places[0].tensor, "a");
    assert_int_equal(index.n_files, 2);
    assert_string_equal(index.files[1], "m-2.safetensors");
    safetensors_free_index(&index);
}

static void the_last_of_a_key_that_stands_twice_in_an_index_counts(void **state) {
    (void)state;
    static const char json[] = "{\"metadata\":{\"a\":1,\"a\":2},\"x\":1,\"x\":2,\"weight_map\":{\"w\":3},"
                               "\"weight_map\":{\"w\":\"a.safetensors\",\"w\":\"b.safetensors\"}}";
    struct safetensors_index index;
    struct rod_error err;
    if (safetensors_parse_index(json, sizeof json - 1, "i.json", &index, &err)) fail_msg("%s", err.message);
    assert_int_equal(index.n_places, 1);
    assert_string_equal(index.places[0].file, "b.safetensors");
    safetensors_free_index(&index);
}

static void an_odd_name_of_an_index_is_the_one_of_the_header(void **state) {
    (void)state;
    static const char json[] = "{\"weight_map\":{\"w\\u0000\\n\":\"a.safetensors\",\"\\udc00\":\"a.safetensors\"}}";
    struct safetensors_index index;
    struct rod_error err;
    if (safetensors_parse_index(json, sizeof json - 1, "i.json", &index, &err)) fail_msg("%s", err.message);
    assert_int_equal(index.n_places, 2);
    assert_string_equal(index.places[0].tensor, "\\udc00");
    assert_string_equal(index.places[1].tensor, "w\\u0000\\u000a");
    safetensors_free_index(&index);
}

static void shards_outside_the_directory_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"weight_map\":{\"w\":\".."
         "/m.safetensors\"}}",
         "w"},
        {"{\"weight_map\":{\"w\":\"/etc/m.safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\"sub/m.safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\"..\\\\m.safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\".safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\"\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\"passwd\"}}", "plain"},
        {"{\"weight_map\":{\"w\":\"m\\u0007.safetensors\"}}", "plain"},
        {"{\"weight_map\":{\"w\":3}}", "not a string"},
        {"{\"weight_map\":{}}", "empty"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{}", "weight_map"},
        {"3", "not valid JSON"},
        {"{\"weight_map\":{\"w\":\"a.safetensors\"},\"weight_map\":3}", "weight_map"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors_index index;
        struct rod_error err = {0};
        int rc = safetensors_parse_index(cases[i].json, strlen(cases[i].json), "i.json", &index, &err);
        if (rc != ROD_EMODEL || !strstr(err.message, cases[i].says) || !strstr(err.message, "i.json"))
            fail_msg("%s: code %d, \"%s\" lacks \"%s\"", cases[i].json, rc, err.message, cases[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_header_gives_every_tensor_sorted),
        cmocka_unit_test(a_tensor_of_a_type_that_is_not_known_has_its_place),
        cmocka_unit_test(a_key_of_a_header_that_nobody_reads_may_stand_twice),
        cmocka_unit_test(odd_names_and_types_of_tensors_are_spelled_out),
        cmocka_unit_test(an_empty_file_of_tensors_is_good),
        cmocka_unit_test(broken_headers_name_tensor_and_fault),
        cmocka_unit_test(header_lengths_beyond_the_file_are_refused),
        cmocka_unit_test(a_mutated_real_header_never_crashes),
        cmocka_unit_test(a_file_truncated_anywhere_is_refused),
        cmocka_unit_test(files_are_mapped_and_read),
        cmocka_unit_test(unaligned_tensors_are_read),
        cmocka_unit_test(an_index_gives_places_and_distinct_files),
        cmocka_unit_test(the_last_of_a_key_that_stands_twice_in_an_index_counts),
        cmocka_unit_test(an_odd_name_of_an_index_is_the_one_of_the_header),
        cmocka_unit_test(shards_outside_the_directory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
