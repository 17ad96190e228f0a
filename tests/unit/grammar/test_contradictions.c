/* test_contradictions.c - schemas that no value satisfies: of a tool, the keywords at fault give way and the tool stays
 * callable; of a strict tool or a format, the place and the keyword are named. And parts that are no schema. */
#include "tests/grammar_reads.h"

#include <jansson.h>

/* Tools a and b, b with a property x of this schema. */
static char *tools_with(const char *x, bool strict) {
    const size_t size = strlen(x) + 512;
    char *text = malloc(size);
    snprintf(text, size,
             "{\"open\":\"<c>\",\"close\":\"</c>\",\"tools\":[{\"name\":\"a\",\"parameters\":{\"type\":\"object\","
             "\"properties\":{\"y\":{\"type\":\"string\"}},\"required\":[\"y\"]}},{\"name\":\"b\",\"strict\":%s,"
             "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":%s},\"required\":[\"x\"]}}]}",
             strict ? "true" : "false", x);
    return text;
}

static char *call_of_b(const char *x) {
    const size_t size = strlen(x) + 128;
    char *text = malloc(size);
    snprintf(text, size, "<c>\n{\"name\": \"b\", \"arguments\": {\"x\":%s}}\n</c>", x);
    return text;
}

/* n times what stands between head and tail, with its number. */
static char *repeated(const char *head, const char *each, int n, const char *tail) {
    const size_t size = strlen(head) + strlen(tail) + (size_t)n * (strlen(each) + 12) + 1;
    char *text = malloc(size), *at = text;
    at += snprintf(at, size, "%s", head);
    for (int i = 0; i < n; i++) {
        at += snprintf(at, 16, i ? "," : "");
        for (const char *p = each; *p; p++)
            if (*p == '#')
                at += snprintf(at, 16, "%d", i);
            else
                *at++ = *p;
    }
    snprintf(at, strlen(tail) + 1, "%s", tail);
    return text;
}

static const struct {
    const char *schema, *keyword; /* NULL: strict tools may have it */
    const char *takes[4], *not [3];
} contradictions[] = {
    {"{\"type\":\"string\",\"enum\":[1,2]}", "enum", {"\"Friday\""}, {"1", "true"}},
    {"{\"type\":\"string\",\"const\":1}", "const", {"\"Friday\""}, {"1"}},
    {"{\"enum\":[]}", "enum", {"\"Friday\"", "1"}, {"x"}},
    {"{\"enum\":[1],\"const\":2}", "enum", {"\"Friday\"", "3"}, {"x"}},
    {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "minLength", {"\"abc\"", "\"\"", "\"abcdefg\""}, {"1"}},
    {"{\"type\":\"string\",\"pattern\":\"^a{5}$\",\"maxLength\":2}", "maxLength", {"\"aaaaa\""}, {"\"a\"", "1"}},
    {"{\"type\":\"string\",\"format\":\"uuid\",\"maxLength\":9}",
     "maxLength",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"abc\""}},
    {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":3}", "minimum", {"5", "1", "9"}, {"\"a\""}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":4}", "exclusiveMinimum", {"5", "3"}, {"3.5"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}", "multipleOf", {"5"}, {"7"}},
    {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":1}", "minItems", {"[]", "[1,2]"}, {"1"}},
    {"{\"type\":\"array\",\"minItems\":1,\"items\":false}", "minItems", {"[]", "[1]"}, {"1"}},
    {"{\"type\":\"array\",\"minItems\":2,\"prefixItems\":[{\"type\":\"null\"},false]}",
     "minItems",
     {"[]", "[1]"},
     {"1"}},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":3,\"items\":{\"type\":\"boolean\"}}",
     "minItems",
     {"[true]", "[]"},
     {"[1]"}},
    {"{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"string\",\"enum\":[1]}}",
     "enum",
     {"[\"a\"]"},
     {"[1]", "[]"}},
    {"false", "required", {"1", "\"a\""}, {"x"}},
    {"{\"type\":\"object\",\"properties\":{\"z\":false},\"required\":[\"z\"]}", "required", {"{\"z\":1}"}, {"{}"}},
    {"{\"type\":\"string\",\"anyOf\":[{\"type\":\"integer\"}]}", "anyOf", {"\"a\""}, {"1"}},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "allOf", {"\"a\"", "1"}, {"x"}},
    {"{\"type\":\"string\",\"$ref\":\"#/properties/n\"}", "$ref", {"\"a\""}, {"1"}},
    {"{\"$ref\":\"#/properties/x\"}", "$ref", {"1", "\"a\""}, {"x"}},
    {"{\"$ref\":\"#\"}", "$ref", {"1", "{\"x\":1}"}, {"x"}},
    {"{\"type\":\"object\",\"properties\":{\"z\":{\"$ref\":\"#/properties/x\"}},\"required\":[\"z\"]}",
     "$ref",
     {"{\"z\":{\"z\":1}}", "{\"z\":{\"z\":{}}}"},
     {"1"}},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":4,\"$ref\":\"#/properties/x\"}", "$ref", {"3"}, {"5", "\"a\""}},
    {"{\"type\":\"integer\",\"maximum\":4,\"anyOf\":[{\"$ref\":\"#/properties/x\"}]}", "$ref", {"3"}, {"5", "\"a\""}},
    {"{\"type\":\"integer\",\"maximum\":4,\"allOf\":[{\"$ref\":\"#/properties/x\"}]}", "$ref", {"3"}, {"5", "\"a\""}},
    {"{\"type\":\"string\",\"contentMediaType\":\"application/"
     "json\",\"contentSchema\":{\"type\":\"string\",\"enum\":[1]}}",
     "enum",
     {"\"\\\"a\\\"\""},
     {"1"}},
    {"{\"type\":\"string\",\"contentMediaType\":\"application/json\",\"contentSchema\":false}",
     "contentSchema",
     {"\"1\""},
     {"1"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[]},\"minProperties\":1}", "enum", {"{\"a\":1}"}, {"{}"}},
    {"{\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"string\",\"enum\":[1]}}}",
     "enum",
     {"{}", "{\"z\":\"a\"}"},
     {"{\"z\":1}"}},
    {"{\"type\":[\"string\",\"array\"],\"minLength\":3,\"maxLength\":1,\"uniqueItems\":true,\"items\":{}}",
     NULL,
     {"[1]"},
     {"1"}},
    {"{\"anyOf\":[{\"type\":\"string\",\"enum\":[1]},{\"type\":\"boolean\"}]}", NULL, {"true"}, {"1"}},
};
enum { N_CONTRADICTIONS = sizeof contradictions / sizeof *contradictions };

static void a_tool_that_contradicts_itself_stays_callable(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CONTRADICTIONS; i++) {
        char *tools = tools_with(contradictions[i].schema, false);
        struct grammar *g = compiled(ROD_GRAMMAR_CALLS, tools);
        for (size_t k = 0; k < 4 && contradictions[i].takes[k]; k++) {
            char *call = call_of_b(contradictions[i].takes[k]);
            if (reads(g, call) != 2)
                fail_msg("%s rejects %s; notes: %s", contradictions[i].schema, call, grammar_notes(g));
            free(call);
        }
        for (size_t k = 0; k < 3 && contradictions[i].not [k]; k++) {
            char *call = call_of_b(contradictions[i].not [k]);
            if (reads(g, call) == 2) fail_msg("%s takes %s", contradictions[i].schema, call);
            free(call);
        }
        if (contradictions[i].keyword && !strstr(grammar_notes(g), contradictions[i].keyword))
            fail_msg("%s: notes are '%s', without %s", contradictions[i].schema, grammar_notes(g),
                     contradictions[i].keyword);
        grammar_free(g);
        free(tools);
    }
}

static void a_strict_tool_that_contradicts_itself_is_refused_by_tool_place_and_keyword(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CONTRADICTIONS; i++) {
        char *tools = tools_with(contradictions[i].schema, true);
        struct grammar *g = NULL;
        struct rod_error err = {0};
        const int rc = grammar_compile(ROD_GRAMMAR_CALLS, tools, strlen(tools), &g, &err);
        if (!contradictions[i].keyword) {
            if (rc) fail_msg("%s: %s", contradictions[i].schema, err.message);
        } else if (rc != ROD_EINVALID || !strstr(err.message, "strict tool, b,") ||
                   !strstr(err.message, contradictions[i].keyword) ||
                   (!strstr(err.message, "/properties/x") && contradictions[i].schema[0] == '{')) {
            fail_msg("%s: %d '%s', without b, %s, /properties/x", contradictions[i].schema, rc, err.message,
                     contradictions[i].keyword);
        }
        grammar_free(g);
        free(tools);
    }
}

/* Whatever the root names. */
static void arguments_of_a_strict_tool_are_an_object(void **state) {
    (void)state;
    static const char *const roots[] = {"{\"type\":\"string\"}",
                                        "{\"type\":[\"object\",\"null\"]}",
                                        "{\"enum\":[\"a\"]}",
                                        "{\"const\":\"x\"}",
                                        "{\"anyOf\":[{\"type\":\"string\"}]}",
                                        "{\"$ref\":\"#/$defs/i\",\"$defs\":{\"i\":{\"type\":\"integer\"}}}"};
    char text[512];
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(text, sizeof text,
                 "{\"open\":\"<c>\",\"close\":\"</c>\",\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":%s}]}",
                 roots[i]);
        refused(ROD_GRAMMAR_CALLS, text, "strict tool, f, whose schema has the keyword");
    }
    snprintf(text, sizeof text,
             "{\"open\":\"<c>\",\"close\":\"</"
             "c>\",\"tools\":[{\"name\":\"f\",\"strict\":true,\"parameters\":{\"minLength\":2}}]}");
    struct grammar *g = compiled(ROD_GRAMMAR_CALLS, text);
    assert_int_equal(reads(g, "<c>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</c>"), 2);
    assert_int_equal(reads(g, "<c>\n{\"name\": \"f\", \"arguments\": \"ab\"}\n</c>"), 0);
    grammar_free(g);
}

static void a_refusal_names_the_place_as_a_json_pointer(void **state) {
    (void)state;
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a/b~c\":{\"not\":{}}}}",
            "has at /properties/a~1b~0c the keyword not");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"pattern\":\"(?=a)\"}}}",
            "has at /properties/a the keyword pattern, which has, at byte 2");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"type\":\"number\",\"minimum\":0.12345678901234561}}",
            "has at /items the keyword minimum, which has a bound");
    char *text = repeated("{\"properties\":{\"", "\xc3\xa9", 100, "\":{\"enum\":[]}},\"required\":[\"");
    char *whole = repeated(text, "\xc3\xa9", 100, "\"]}");
    refused(ROD_GRAMMAR_JSON_SCHEMA, whole, "... the keyword enum, which lists no value");
    free(text), free(whole);
}

/* A needs what is never there; B, compiled in A, needs A. */
static void a_schema_that_needs_an_impossible_one_is_impossible(void **state) {
    (void)state;
    const char *x =
        "{\"anyOf\":[{\"$ref\":\"#/properties/x/$defs/A\"},{\"$ref\":\"#/properties/x/$defs/B\"}],\"$defs\":{"
        "\"A\":{\"type\":\"object\",\"properties\":{\"z\":false,\"y\":{\"$ref\":\"#/properties/x/$defs/B\"}},"
        "\"required\":[\"z\"]},"
        "\"B\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/properties/x/$defs/"
        "A\"}},\"required\":[\"a\"]}}}";
    char *tools = tools_with(x, true);
    refused(ROD_GRAMMAR_CALLS, tools, "strict tool, b, whose schema has at ");
    free(tools);
    tools = tools_with(x, false);
    struct grammar *g = compiled(ROD_GRAMMAR_CALLS, tools);
    char *call = call_of_b("{\"a\":{\"z\":1}}");
    if (reads(g, call) != 2) fail_msg("it does not take %s; notes: '%s'", call, grammar_notes(g));
    grammar_free(g);
    free(call), free(tools);
}

static void a_part_that_is_no_schema_loses_only_itself(void **state) {
    (void)state;
    static const struct {
        const char *parameters, *takes, *not ;
    } cases[] = {
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}", "{\"a\":1}", "{}"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[7,\"a\"]}", "{\"a\":1}", "{}"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\\u0000b\",\"a\"]}", "{\"a\":1}", "{}"},
        {"{\"properties\":{\"a\":5,\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}", "{\"a\":null,\"b\":1}",
         "{\"a\":1,\"b\":null}"},
        {"{\"properties\":{\"a\":{\"type\":[\"integer\",\"whole\"]}},\"required\":[\"a\"]}", "{\"a\":1}",
         "{\"a\":null}"},
        {"{\"properties\":{\"a\":{\"type\":\"array\",\"items\":3,\"minItems\":1}},\"required\":[\"a\"]}", "{\"a\":[1]}",
         "{\"a\":[]}"},
        {"{\"properties\":{\"a\":{\"anyOf\":[4,{\"type\":\"integer\"}]}},\"required\":[\"a\"]}", "{\"a\":1}",
         "{\"a\":null}"},
        {"{\"properties\":{\"a\":{\"type\":\"array\",\"prefixItems\":[4,{\"type\":\"integer\"}],\"minItems\":2}},"
         "\"required\":[\"a\"]}",
         "{\"a\":[null,1]}", "{\"a\":[1,null]}"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\",\"allOf\":[null,{\"maximum\":4}]}},\"required\":[\"a\"]}",
         "{\"a\":3}", "{\"a\":5}"},
        {"{\"properties\":{\"a\":{\"enum\":[1e30,\"x\"]}},\"required\":[\"a\"]}", "{\"a\":\"x\"}", "{\"a\":\"y\"}"},
        {"{\"properties\":{\"a\":{\"enum\":[\"x\"],\"minLength\":1}},\"required\":[\"a\"]}", "{\"a\":\"x\"}",
         "{\"a\":\"y\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024], call[512];
        snprintf(text, sizeof text,
                 "{\"open\":\"<c>\",\"close\":\"</c>\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                 cases[i].parameters);
        struct grammar *g = compiled(ROD_GRAMMAR_CALLS, text);
        snprintf(call, sizeof call, "<c>\n{\"name\": \"f\", \"arguments\": %s}\n</c>", cases[i].takes);
        if (reads(g, call) != 2) fail_msg("%s rejects %s; notes: %s", text, call, grammar_notes(g));
        snprintf(call, sizeof call, "<c>\n{\"name\": \"f\", \"arguments\": %s}\n</c>", cases[i].not );
        if (reads(g, call) == 2) fail_msg("%s takes %s", text, call);
        if (!*grammar_notes(g)) fail_msg("%s: no note", text);
        grammar_free(g);
    }
}

static void words_that_are_no_keywords_are_notes(void **state) {
    (void)state;
    static const char *const words[] = {
        "min_items", "example", "order",   "ui:widget",      "enumNames",          "x-a",
        "nullable",  "id",      "$anchor", "$dynamicAnchor", "markdownDescription"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\",\"%s\":[1]}},\"%s\":{}}", words[i],
                 words[i]);
        SCHEMA(text, LIST("{\"a\":null}"), LIST("{\"a\":1}"));
        snprintf(text, sizeof text, "{\"allOf\":[{\"type\":\"null\",\"%s\":[1]},{\"%s\":2}]}", words[i], words[i]);
        SCHEMA(text, LIST("null"), LIST("1"));
    }
    static const char *const known[] = {"not",        "if", "contains", "dependentRequired", "unevaluatedProperties",
                                        "$dynamicRef"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"type\":\"object\",\"properties\":{\"a\":{\"%s\":{}}}}", known[i]);
        refused(ROD_GRAMMAR_JSON_SCHEMA, text, "has at /properties/a the keyword");
    }
}

static void lengths_give_way_to_a_format_that_they_cannot_be_joined_with(void **state) {
    (void)state;
    const char *email = "{\"type\":\"string\",\"format\":\"email\",\"minLength\":9,\"maxLength\":40}";
    struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, email);
    assert_int_equal(reads(g, "\"a.b@c-d.org\""), 2);
    assert_non_null(strstr(grammar_notes(g), "lengths beside a format"));
    grammar_free(g);
    SCHEMA("{\"type\":\"string\",\"format\":\"date\",\"minLength\":1,\"maxLength\":10}", LIST("\"2024-02-29\""),
           LIST("\"a\""));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date\",\"maxLength\":5}", "maxLength");
}

static void strings_of_a_schema_may_have_u0000(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"description\":\"ends with \\u0000\"}", LIST("1"), LIST("\"a\""));
    SCHEMA("{\"enum\":[\"a\\u0000b\"]}", LIST("\"a\\u0000b\""), LIST("\"a\""));
    SCHEMA("{\"pattern\":\"^a\\u0000$\"}", LIST("\"a\\u0000\""), LIST("\"a\""));
    SCHEMA("{\"pattern\":\"^[\\u0000b]\\\\\\u0000\\\\\\\\$\"}", LIST("\"b\\u0000\\\\\""), LIST("\"b\\\\\""));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\\u0000\"}", "no type");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a\\u0000b\",\"$defs\":{\"a\":{}}}", "leads to nothing");
}

static void fractions_are_spelled_in_the_fewest_digits(void **state) {
    (void)state;
    SCHEMA("{\"enum\":[0.1,21.1,1e-7,100000.0,-2.5]}", LIST("0.1", "21.1", "1e-07", "100000.0", "-2.5"),
           LIST("0.10000000000000001"));
    SCHEMA("{\"const\":{\"a\":[0.7,\"x\",null,{\"b\":5e-324}]}}", LIST("{\"a\":[0.7,\"x\",null,{\"b\":5e-324}]}"),
           LIST("{}"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.1,\"maximum\":0.3}", LIST("0.1", "0.2", "0.3"), LIST("0.31", "0.09"));
}

/* 5,000 strings of 40 characters: as an enum that does not come first, and as a choice. */
static void a_list_of_5000_strings_is_held(void **state) {
    (void)state;
    enum { N = 5000 };
    enum { ROOM = N * 44 + 256 };
    char *list = malloc(ROOM), *at = list, *schema = malloc(ROOM), one[64], call[96];
    uint64_t x = 88172645463325252ull;
    *at++ = '[';
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 40; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            one[k] = "abcdefghijklmnopqrstuvwxyz0123456789"[x % 36];
        }
        one[40] = 0;
        at += snprintf(at, 64, "%s\"%s\"", i ? "," : "", one);
    }
    snprintf(at, 2, "]");
    snprintf(schema, ROOM,
             "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"a\":{\"enum\":%s}},\"required\":["
             "\"n\",\"a\"]}",
             list);
    struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, schema);
    snprintf(call, sizeof call, "{\"n\":1,\"a\":\"%s\"}", one);
    assert_int_equal(reads(g, call), 2);
    call[20]++;
    assert_int_equal(reads(g, call), 0);
    grammar_free(g);
    g = compiled(ROD_GRAMMAR_CHOICE, list);
    assert_int_equal(reads(g, one), 2);
    one[39] = '!';
    assert_int_equal(reads(g, one), 0);
    grammar_free(g);
    free(list), free(schema);
}

static const struct {
    const char *head, *each, *tail, *text; /* a text that is valid with `most` of them */
    int most;
    const char *says;
} limits[] = {
    {"{\"type\":\"object\",\"properties\":{", "\"k#\":{\"type\":\"null\"}", "}}", "{\"k1\":null,\"k999\":null}", 1000,
     "the keyword properties, with more than 1000 optional ones in a row"},
    {"{\"anyOf\":[", "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":#}},\"required\":[\"k\"]}", "]}",
     "{\"k\":499}", 500, NULL},
    {"{\"oneOf\":[", "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":#}},\"required\":[\"k\"]}", "]}",
     "{\"k\":127}", 128, "the keyword oneOf, with more than 128 schemas"},
    {"{\"type\":\"array\",\"prefixItems\":[", "{\"const\":#}", "]}", "[0,1]", 256, "up to 256 schemas"},
    {"{\"anyOf\":[", "{\"const\":\"w#\"}", "]}", "\"w2999\"", 3000, NULL},
};

/* What the limit lets pass is read without a fault, and what it does not is refused before the first byte. */
static void limits_are_found_when_a_schema_is_compiled(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        char *text = repeated(limits[i].head, limits[i].each, limits[i].most, limits[i].tail);
        struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, text);
        if (reads(g, limits[i].text) != 2)
            fail_msg("%.80s... with %d rejects %s", text, limits[i].most, limits[i].text);
        grammar_free(g);
        free(text);
        if (!limits[i].says) continue;
        text = repeated(limits[i].head, limits[i].each, limits[i].most + 1, limits[i].tail);
        refused(ROD_GRAMMAR_JSON_SCHEMA, text, limits[i].says);
        free(text);
    }
    static const char *const odd[][3] = {
        {"{\"anyOf\":[", "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":#}},\"required\":[\"k\"]}", "]}"},
        {"{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"z\":{\"anyOf\":[",
         "{\"type\":\"array\",\"items\":{\"const\":#}}", "]}},\"required\":[\"n\",\"z\"]}"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *many = repeated(odd[i][0], odd[i][1], 1000, odd[i][2]);
        refused(ROD_GRAMMAR_JSON_SCHEMA, many, "more than 2048 alternatives at one place");
        free(many);
    }
    refused(ROD_GRAMMAR_REGEX, "(abcdefgh){60000}(abcdefgh){60000}(abcdefgh){60000}(abcdefgh){60000}(abcdefgh){60000}",
            "262144");
    char *text = repeated("", "\\d#x", 2100, "");
    for (char *p = text; *p; p++)
        if (*p == ',') *p = '|';
    refused(ROD_GRAMMAR_REGEX, text, "more than 2048 alternatives at one place, or needs more than 4096 parts");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tool_that_contradicts_itself_stays_callable),
        cmocka_unit_test(a_strict_tool_that_contradicts_itself_is_refused_by_tool_place_and_keyword),
        cmocka_unit_test(arguments_of_a_strict_tool_are_an_object),
        cmocka_unit_test(a_refusal_names_the_place_as_a_json_pointer),
        cmocka_unit_test(a_schema_that_needs_an_impossible_one_is_impossible),
        cmocka_unit_test(a_part_that_is_no_schema_loses_only_itself),
        cmocka_unit_test(words_that_are_no_keywords_are_notes),
        cmocka_unit_test(lengths_give_way_to_a_format_that_they_cannot_be_joined_with),
        cmocka_unit_test(strings_of_a_schema_may_have_u0000),
        cmocka_unit_test(fractions_are_spelled_in_the_fewest_digits),
        cmocka_unit_test(a_list_of_5000_strings_is_held),
        cmocka_unit_test(limits_are_found_when_a_schema_is_compiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
