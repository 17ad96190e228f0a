/* test_json_guard.c - a JSON text is read as it is, or memory is said to be short: each allocation of a reading fails
 * once, alone and with all after it. */
#include "engine/base/json_guard.h"
#include "engine/text/chat.h"
#include "engine/grammar/grammar.h"
#include "engine/model/model_internal.h"
#include "engine/model/safetensors.h"
#include "server/settings/config.h"
#include "server/api/api_fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct { /* what malloc does */
    long until_failure;
    bool for_good;
    long n_failed;
} memory;

static void *failing(size_t n) {
    const bool fails = memory.for_good ? memory.until_failure <= 0 : memory.until_failure == 0;
    memory.until_failure--;
    memory.n_failed += fails;
    return fails ? json_guard_take(n) : malloc(n);
}

static int set_up(void **state) {
    (void)state;
    json_set_alloc_funcs(failing, json_guard_give);
    memory.until_failure = 1L << 40;
    return 0;
}

/* Reads the text with each allocation failing; what is read is `want` or nothing. */
static void each_failure(const char *text, size_t len, bool for_good) {
    json_error_t fault;
    memory.until_failure = 1L << 40;
    memory.for_good = false;
    json_t *want = json_guard_load(text, len, JSON_ALLOW_NUL, &fault);
    const long n_calls = (1L << 40) - memory.until_failure;
    if (!want) fail_msg("%.80s: %s", text, fault.text);
    for (long k = 0; k < n_calls; k++) {
        memory.until_failure = k;
        memory.for_good = for_good;
        memory.n_failed = 0;
        json_t *got = json_guard_load(text, len, JSON_ALLOW_NUL, &fault);
        const long n_failed = memory.n_failed;
        memory.until_failure = 1L << 40;
        memory.for_good = false;
        if (got) fail_msg("%.80s: allocation %ld of %ld failed and it was read", text, k, n_calls);
        if (!n_failed || json_error_code(&fault) != json_error_out_of_memory)
            fail_msg("%.80s: allocation %ld of %ld: %s", text, k, n_calls, fault.text);
    }
    json_decref(want);
}

/* Strings, keys and numbers of all lengths around the sizes of the buffer, and with escapes at its end. */
static void a_token_of_any_length_is_whole_or_not_read(void **state) {
    (void)state;
    char text[400];
    static const char *const forms[] = {"[\"%.*s\", 1]",     "{\"%.*s\": {\"a\": [1.5, true, \"b\"]}}",
                                        "[\"%.*s\\n\"]",     "[\"%.*s\\\"\"]",
                                        "[\"%.*s\\u00e9\"]", "[0.%.*s, -1]"};
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)
        for (int n = 1; n < 140; n++) {
            char body[140];
            memset(body, form == 5 ? '7' : 'x', sizeof body);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            const int len = snprintf(text, sizeof text, forms[form], n, body);
#pragma GCC diagnostic pop
            for (int for_good = 0; for_good < 2; for_good++) each_failure(text, (size_t)len, for_good);
        }
}

/* The worst for a room: strings whose value is a power of two, in ever longer tables, before a longer token. */
static void a_room_lasts(void **state) {
    (void)state;
    static char text[20000];
    size_t len = 0;
    len += (size_t)snprintf(text, sizeof text, "[");
    for (int i = 0; i < 120; i++) len += (size_t)snprintf(text + len, sizeof text - len, "\"%029d\",", i);
    len += (size_t)snprintf(text + len, sizeof text - len, "\"%0*d\"]", 5000, 1);
    each_failure(text, len, false);
    each_failure(text, len, true);
}

static void a_body_without_memory_is_no_fault_of_the_client(void **state) {
    (void)state;
    static const char body[] = "{\"session_create\": true, \"prompt\": \"what is longer than sixteen bytes\"}";
    for (long k = 0;; k++) {
        struct api_error err = {0};
        memory.until_failure = k;
        memory.n_failed = 0;
        json_t *root = api_load(body, strlen(body), &err);
        memory.until_failure = 1L << 40;
        if (!memory.n_failed) {
            assert_true(k > 5);
            assert_non_null(root);
            json_decref(root);
            return;
        }
        if (root || err.http != 500 || strcmp(err.code, "out_of_memory"))
            fail_msg("allocation %ld: %s, %u %s", k, root ? "read" : "refused", err.http, err.message);
    }
}

/* A server that runs reads it again at each SIGHUP. */
static void a_file_of_settings_is_read_as_it_is_or_not_at_all(void **state) {
    (void)state;
    static char path[64];
    static const char key[] = "sk-0123456789abcdef0123456789abcdef", host[] = "a-name-14-long";
    char *flags[] = {"serve", "--config", path, NULL}, *none[] = {NULL};
    snprintf(path, sizeof path, "/tmp/test_json_guard_%d.json", (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"host\": \"%s\", \"api_keys\": [\"%s\"], \"session_header\": \"X-My-Session-Id\"}", host, key);
    fclose(file);
    long k = 0;
    for (bool failed = true; failed; k++) {
        struct config c;
        struct option_error err = {""};
        memory.until_failure = k;
        memory.n_failed = 0;
        const enum config_result result = config_load(&c, 3, flags, none, &err);
        memory.until_failure = 1L << 40;
        failed = memory.n_failed;
        if (failed && (result == CONFIG_OK || !strstr(err.message, path) || !strstr(err.message, "out of memory")))
            fail_msg("allocation %ld: %s, host '%s', '%s'", k, result == CONFIG_OK ? "read" : "refused",
                     c.host ? c.host : "", err.message);
        if (!failed) {
            assert_int_equal(result, CONFIG_OK);
            assert_string_equal(c.host, host);
            assert_string_equal(c.api_keys.items[0], key);
        }
        config_fini(&c);
    }
    unlink(path);
    assert_true(k > 10);
}

/* ---- a model's files ---- */

static int read_config(const char *text, struct rod_error *err) {
    struct model_config config;
    return model_config_parse(text, strlen(text), &config, err);
}

static int read_generation(const char *text, struct rod_error *err) {
    struct model_generation generation;
    return model_generation_parse(text, strlen(text), 100, &generation, err);
}

static int read_header(const char *text, struct rod_error *err) {
    unsigned char bytes[600] = {(unsigned char)strlen(text)};
    struct safetensors_table table;
    assert_in_range(strlen(text), 1, 255);
    memcpy(bytes + 8, text, strlen(text));
    const int rc = safetensors_parse(bytes, 8 + strlen(text), 8 + strlen(text) + 16, "file", &table, err);
    if (!rc) safetensors_free(&table);
    return rc;
}

static int read_index(const char *text, struct rod_error *err) {
    struct safetensors_index index;
    const int rc = safetensors_parse_index(text, strlen(text), "file", &index, err);
    if (!rc) safetensors_free_index(&index);
    return rc;
}

static int read_tokenizer(const char *text, struct rod_error *err) {
    struct tokenizer *t;
    const int rc = tokenizer_parse(text, strlen(text), NULL, 0, &t, err);
    if (!rc) tokenizer_close(t);
    return rc;
}

static int read_chat(const struct chat_files *files, struct rod_error *err) {
    char note[200];
    struct chat *chat = NULL;
    struct tokenizer *t;
    const long until = memory.until_failure;
    memory.until_failure = 1L << 40;
    if (tokenizer_open("config/models/tales", &t, err)) fail_msg("%s", err->message);
    memory.until_failure = until;
    const int rc = chat_parse(files, t, &chat, note, sizeof note, err);
    chat_close(chat);
    tokenizer_close(t);
    return rc;
}

static int read_table(const char *text, struct rod_error *err) {
    return read_chat(&(struct chat_files){.table = text, .table_len = strlen(text)}, err);
}

/* What a client sends is compiled on a thread of the pool, while others take memory. */
static int compile(enum rod_grammar_kind kind, const char *text, struct rod_error *err) {
    struct grammar *g;
    const int rc = grammar_compile(kind, text, strlen(text), &g, err);
    if (!rc) grammar_free(g);
    return rc;
}

static int read_schema(const char *text, struct rod_error *err) { return compile(ROD_GRAMMAR_JSON_SCHEMA, text, err); }
static int read_choice(const char *text, struct rod_error *err) { return compile(ROD_GRAMMAR_CHOICE, text, err); }

static int read_template(const char *text, struct rod_error *err) {
    return read_chat(&(struct chat_files){.config = text, .config_len = strlen(text)}, err);
}

static void files_of_a_model_and_schemas_are_read_as_they_are_or_not_at_all(void **state) {
    (void)state;
    static const struct {
        int (*read)(const char *text, struct rod_error *err);
        const char *text;
    } files[] = {
        {read_config, "{\"a-name-14-long\": \"and-30-bytes-of-a-value-for-it\", \"model_type\": \"rodimus\"}"},
        {read_config,
         "{\"a-name-14-lon\\ud800\": [\"\\u0000-and-30-bytes-of-a-value-for-it\", NaN], \"b\\u0000\": 1e999}"},
        {read_generation, "{\"a-name-14-long\": \"and-30-bytes-of-a-value-for-it\", \"temperature\": 0.5}"},
        {read_header, "{\"a-name-14-long\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0, 16]}}"},
        {read_index, "{\"weight_map\": {\"a-name-14-long\": \"model-00001-of-00002.safetensors\"}}"},
        {read_tokenizer, "{\"a-name-14-long\": \"and-30-bytes-of-a-value-for-it\", \"model\": {\"type\": \"BPE\"}}"},
        {read_table, "{\"begin\": \"<a-frame-of-14>\", \"generation_prompt\": \"and-30-bytes-of-a-value-for-it\"}"},
        {read_schema, "{\"properties\": {\"a-name-14-long\": {\"const\": \"and-30-bytes-of-a-value-for-it\"}, \"b\": "
                      "{\"enum\": [[\"a-name-14-long\"]]}}, \"required\": [\"b\", \"a-name-14-long\"]}"},
        {read_choice, "[\"a-name-14-long\", \"and-30-bytes-of-a-value-for-it\"]"},
        {read_template, "{\"a-name-14-long\": 1, \"chat_template\": \"{{ and-30-bytes-of-a-value }}\"}"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int for_good = 0; for_good < 2; for_good++) {
            long k = 0;
            for (bool failed = true; failed; k++) {
                struct rod_error err = {0};
                memory.until_failure = k;
                memory.for_good = for_good;
                memory.n_failed = 0;
                const int rc = files[i].read(files[i].text, &err);
                memory.until_failure = 1L << 40;
                memory.for_good = false;
                failed = memory.n_failed;
                if (failed && rc != ROD_ENOMEM)
                    fail_msg("file %zu, allocation %ld: %s, '%s'", i, k, rod_code_name(rc), err.message);
            }
            if (k < 5) fail_msg("file %zu: %ld allocations", i, k);
        }
}

static void what_malloc_gave_is_not_of_the_room(void **state) {
    (void)state;
    struct json_guard room;
    assert_null(json_guard_take(64)); /* none is open */
    assert_int_equal(json_guard_open(&room, 100), 0);
    void *p = malloc(64);
    json_guard_give(p); /* the sanitizer would see it lost */
    assert_false(room.was_short);
    p = json_guard_take(64);
    assert_non_null(p);
    assert_null(json_guard_take(24));
    json_guard_give(p);
    assert_true(room.was_short);
    json_guard_close(&room);
    assert_null(json_guard_take(64));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_of_any_length_is_whole_or_not_read),
        cmocka_unit_test(a_room_lasts),
        cmocka_unit_test(a_body_without_memory_is_no_fault_of_the_client),
        cmocka_unit_test(a_file_of_settings_is_read_as_it_is_or_not_at_all),
        cmocka_unit_test(files_of_a_model_and_schemas_are_read_as_they_are_or_not_at_all),
        cmocka_unit_test(what_malloc_gave_is_not_of_the_room),
    };
    return cmocka_run_group_tests_name("json_guard", tests, set_up, NULL);
}
