/* test_json_python.c - JSON as Python's json module reads it: what jansson alone refuses is a value. The expected
 * values are what Python 3 gives. */
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes that are no printable ASCII in hexadecimal. */
static void put_bytes(FILE *to, const char *bytes, size_t n) {
    fputc('\'', to);
    for (size_t i = 0; i < n; i++) fprintf(to, bytes[i] >= ' ' && bytes[i] < 127 ? "%c" : "<%02x>", (uint8_t)bytes[i]);
    fputc('\'', to);
}

static void put_value(FILE *to, json_t *value) {
    json_t *one;
    size_t i, n;
    const char *key;
    if (json_python_number(value)) {
        fputs(json_python_number(value), to);
    } else if (json_is_integer(value)) {
        fprintf(to, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        fprintf(to, "r%.17g", json_real_value(value));
    } else if (json_is_string(value)) {
        put_bytes(to, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, one) fputc(i ? ' ' : '[', to), put_value(to, one);
        fputs(json_array_size(value) ? "]" : "[]", to);
    } else if (json_is_object(value)) {
        fputc('{', to);
        json_object_keylen_foreach(value, key, n, one) {
            put_bytes(to, key, n);
            fputc(':', to);
            put_value(to, one);
        }
        fputc('}', to);
    } else {
        fputs(json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false", to);
    }
}

static char *shown(const char *text, size_t len) {
    json_error_t fault = {0};
    json_t *value = json_python_load(text, len, JSON_DECODE_ANY, &fault);
    char *out = NULL;
    size_t n;
    FILE *to = open_memstream(&out, &n);
    assert_non_null(to);
    if (value)
        put_value(to, value);
    else
        fprintf(to, "refused: %s", fault.text);
    fclose(to);
    json_decref(value);
    return out;
}

static void what_python_reads_is_a_value(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"[NaN, Infinity, -Infinity]", "[NaN Infinity -Infinity]"},
        {"{\"a\":NaN}", "{'a':NaN}"},
        {"Infinity", "Infinity"},
        {"[1e999, -1e999, 1e-999]", "[Infinity -Infinity r0]"},
        {"1000000000000000019884624838656", "r1e+30"},
        {"[9223372036854775807, -9223372036854775808]", "[9223372036854775807 -9223372036854775808]"},
        {"[9223372036854775808, -9223372036854775809]", "[r9.2233720368547758e+18 r-9.2233720368547758e+18]"},
        {"\"\\ud800\"", "'<ed><a0><80>'"},
        {"\"a\\udfffb\"", "'a<ed><bf><bf>b'"},
        {"\"\\ud83d\\ude00\"", "'<f0><9f><98><80>'"},
        {"\"\\ude00\\ud83d\"", "'<ed><b8><80><ed><a0><bd>'"},
        {"\"\\ud83d\\ud83d\\ude00\"", "'<ed><a0><bd><f0><9f><98><80>'"},
        {"\"\\\\ud800\"", "'\\ud800'"},
        {"[\"a\\u0000b\", \"\\u0000\"]", "['a<00>b' '<00>']"},
        {"{\"a\\u0000\":1,\"a\":2,\"\\udc00\":{\"\\u0000\":3},\"\\udc01\":4}",
         "{'a<00>':1'a':2'<ed><b0><80>':{'<00>':3}'<ed><b0><81>':4}"},
        {"\"\xef\xb7\x90\\ufdd0\\uFDD0"
         "d800\"",
         "'<ef><b7><90><ef><b7><90><ef><b7><90>d800'"},
        {"{\"k\":1,\"k\":NaN}", "{'k':NaN}"},
        {"[\"NaN\", \"-Infinity 1e999\"]", "['NaN' '-Infinity 1e999']"},
        {"[true,false,null,1.5,-0]", "[true false null r1.5 0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got = shown(cases[i][0], strlen(cases[i][0]));
        if (strcmp(got, cases[i][1]) != 0) fail_msg("%s is read as %s, expected %s", cases[i][0], got, cases[i][1]);
        free(got);
    }
}

static void what_python_refuses_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "[",
                                      "NaN1",
                                      "1NaN",
                                      "-NaN",
                                      "nan",
                                      "+Infinity",
                                      "0NaN",
                                      "Infinit",
                                      "[1 NaN]",
                                      "NaNNaN",
                                      "1e",
                                      "01",
                                      "1.NaN",
                                      "{NaN:1}",
                                      "\"\\ud8\"",
                                      "\"\\u00zz\"",
                                      "\"a\tb\"",
                                      "\"\\ud800",
                                      "[1,]",
                                      "123456789012345678901x",
                                      "00123456789012345678901",
                                      "\"\xed\xa0\x80\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *got = shown(bad[i], strlen(bad[i]));
        if (strncmp(got, "refused", 7) != 0) fail_msg("%s is read as %s", bad[i], got);
        free(got);
    }
    static const char nul[] = "[1,\n2\0]"; /* jansson passes over it */
    char *got = shown(nul, sizeof nul - 1);
    assert_string_equal(got, "refused: a NUL byte stands outside a string");
    free(got);
}

/* Where the text was changed before it was read, too. */
static void a_fault_names_the_place_in_the_text(void **state) {
    (void)state;
    static const char *const before[] = {"", "\"\\ud800\",\n", "NaN, \"\\u0000\",\n1e999,",
                                         "1000000000000000019884624838656,\n\"\\udc00\","};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        char text[200];
        const int n = snprintf(text, sizeof text, "[%s {\"kk\": 1, \"kk\": 2}]", before[i]);
        const char *second = strrchr(text, 'k') + 2;
        json_error_t fault = {0};
        int line = 1;
        for (const char *c = text; c < second; c++) line += *c == '\n';
        assert_null(json_python_load(text, (size_t)n, JSON_REJECT_DUPLICATES, &fault));
        assert_int_equal(json_error_code(&fault), json_error_duplicate_key);
        assert_int_equal(fault.line, line);
        if (fault.position != second - text)
            fail_msg("%s: byte %d, expected %d", text, fault.position, (int)(second - text));
    }
}

static void a_text_for_readers_is_utf8_without_nul(void **state) {
    (void)state;
    json_error_t fault;
    static const char text[] = "[\"a\", \"a\\u0000\", \"\\ud800\", 1, \"\"]";
    json_t *list = json_python_load(text, sizeof text - 1, 0, &fault);
    assert_non_null(list);
    assert_string_equal(json_python_text(json_array_get(list, 0)), "a");
    for (size_t i = 1; i < 4; i++) assert_null(json_python_text(json_array_get(list, i)));
    assert_string_equal(json_python_text(json_array_get(list, 4)), "");
    assert_null(json_python_text(NULL));
    json_decref(list);
}

static void an_odd_string_is_spelled_out_and_cut_between_pieces(void **state) {
    (void)state;
    static const char odd[] = "a\0\n\\\xed\xa0\x80\xed\xbf\xbf\x7f\xc3\xa9\xf0\x9f\x98\x80";
    static const char spelled[] = "a\\u0000\\u000a\\\\\\ud800\\udfff\\u007f\xc3\xa9\xf0\x9f\x98\x80";
    char text[64];
    const size_t n = sizeof odd - 1;
    assert_int_equal(json_python_spell(odd, n, true, NULL, 0), sizeof spelled - 1);
    assert_int_equal(json_python_spell(odd, n, true, text, sizeof text), sizeof spelled - 1);
    assert_string_equal(text, spelled);
    assert_int_equal(json_python_spell(odd, n, false, text, sizeof text), sizeof spelled - 2);
    assert_non_null(strstr(text, "\\u000a\\\\ud800"));
    for (size_t cut = 1; cut < sizeof spelled; cut++) {
        char few[64];
        memset(few, 'x', sizeof few);
        json_python_spell(odd, n, true, few, cut);
        assert_true(strlen(few) < cut && few[cut] == 'x' && cut - strlen(few) <= 6);
        assert_memory_equal(few, spelled, strlen(few));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_python_reads_is_a_value),
        cmocka_unit_test(what_python_refuses_is_refused),
        cmocka_unit_test(a_fault_names_the_place_in_the_text),
        cmocka_unit_test(a_text_for_readers_is_utf8_without_nul),
        cmocka_unit_test(an_odd_string_is_spelled_out_and_cut_between_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
