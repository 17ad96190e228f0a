/* test_schema.c - JSON Schema: what each keyword accepts and rejects, byte by byte; what is refused, and by which name;
 * what is weakened, and what the notes say. */
#include "tests/grammar_reads.h"

#include <time.h>

#define PET(kind, more)                                                                                                \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"" kind "\"}" more "},\"required\":[\"kind\"]}"

static void schemas_of_each_type(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"null\"}", LIST("null"), LIST("true", "nul"));
    SCHEMA("{\"type\":[\"boolean\",\"null\"],\"title\":\"t\"}", LIST("true", "false", "null"), LIST("1"));
    SCHEMA("{\"type\":\"integer\"}", LIST("0", "-12", "1234567890123456"),
           LIST("01", "1.5", "-0", "12345678901234567"));
    SCHEMA("{\"type\":\"number\"}", LIST("0.5", "-1e-9", "3"), LIST(".5", "1.", "1e999", "+1"));
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", LIST("\"ab\"", "\"a\\n\xc3\xa9\"", "\"\\u0041bc\""),
           LIST("\"a\"", "\"abcd\""));
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
           LIST("[1]", "[1, 2]", "[1,2,3]"), LIST("[]", "[1,2,3,4]", "[\"a\"]"));
    SCHEMA("{\"type\":\"array\",\"maxItems\":0}", LIST("[]"), LIST("[1]"));
    SCHEMA("{\"enum\":[\"a\",1,null,[1,{\"x\":2}]]}", LIST("\"a\"", "1", "null", "[1,{\"x\":2}]"), LIST("\"b\"", "2"));
    SCHEMA("{\"type\":\"string\",\"enum\":[\"a\",1]}", LIST("\"a\""), LIST("1"));
    SCHEMA("{\"const\":\"\xc3\xa9\\\"\"}", LIST("\"\xc3\xa9\\\"\""), LIST("\"\xc3\xa9\""));
    SCHEMA("true", LIST("1", "{\"a\":[]}", "\"x\""), LIST("x"));
    SCHEMA("{\"minLength\":1}", LIST("\"x\""), LIST("1", "\"\""));
    SCHEMA("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"enum\":[\"x\"]}],\"default\":1}",
           LIST("7", "\"x\""), LIST("\"y\"", "null"));
}

static void objects_keep_order_and_leave_out_what_is_optional(void **state) {
    (void)state;
    const char *ab = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
                     "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}";
    SCHEMA(ab,
           LIST("{\"a\":1,\"b\":true,\"c\":null}", "{\"b\":true}", "{ \"a\" : 1 , \"b\" : false }",
                "{\"b\":true,\"c\":null}"),
           LIST("{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,}", "{\"b\":true,\"d\":1}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false}",
           LIST("{}", "{\"a\":1}", "{\"b\":[]}", "{\"a\":1,\"b\":2}"), LIST("{\"b\":1,\"a\":2}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},\"required\":[\"ab\"],"
           "\"additionalProperties\":{\"type\":\"integer\"}}",
           LIST("{\"ab\":null}", "{\"ab\":null,\"a\":1,\"abc\":2,\"b\":3,\"\":4}"),
           LIST("{\"ab\":null,\"ab\":1}", "{\"x\":1}", "{\"ab\":null,\"b\":null}"));
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
           LIST("{}", "{\"x\":1}", "{\"x\":1,\"y\":2}"), LIST("{\"x\":true}"));
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":false}", LIST("{}"), LIST("{\"x\":true}"));
}

static void schemas_recur_through_references(void **state) {
    (void)state;
    const char *tree = "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":"
                       "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\"]}},"
                       "\"$ref\":\"#/$defs/n\"}";
    SCHEMA(tree, LIST("{\"v\":1}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}"),
           LIST("{\"kids\":[]}", "[]"));
    SCHEMA("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", LIST("[]", "[[],[[]]]"), LIST("[1]"));
    SCHEMA("{\"$defs\":{\"A B\":{\"const\":1},\"a/\xc3\xa9%\":{\"const\":2}},"
           "\"anyOf\":[{\"$ref\":\"#/$defs/A%20B\"},{\"$ref\":\"#/%24defs/a~1%C3%a9%25\"}]}",
           LIST("1", "2"), LIST("3"));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/A%2\",\"$defs\":{\"A%2\":{}}}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/%00\",\"$defs\":{\"\":{}}}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "$ref, which leads back to itself");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#\"}}",
            "has at /items the keyword $ref, which leads back to itself");
}

static void patterns_and_formats_hold_inside_json_strings(void **state) {
    (void)state;
    SCHEMA("{\"pattern\":\"^[a-c]+$\"}", LIST("\"abc\""), LIST("\"\"", "\"abd\""));
    SCHEMA("{\"pattern\":\"b\"}", LIST("\"abc\"", "\"\\nb\"", "\"b\""), LIST("\"ac\""));
    SCHEMA("{\"pattern\":\"^[\\\"\\\\\\\\\\n]$\"}", LIST("\"\\\"\"", "\"\\\\\"", "\"\\n\""), LIST("\"\"\"", "\"n\""));
    SCHEMA("{\"pattern\":\"^a|b$\"}", LIST("\"ax\"", "\"xb\""), LIST("\"xa\""));
    SCHEMA("{\"format\":\"date\"}", LIST("\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""),
           LIST("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"0000-01-01\""));
    SCHEMA("{\"format\":\"date-time\"}", LIST("\"2024-02-29T23:59:59.5Z\"", "\"2024-01-01T00:00:00+01:00\""),
           LIST("\"2024-01-01T24:00:00Z\"", "\"2024-01-01T00:00:00\""));
    SCHEMA("{\"format\":\"uuid\"}", LIST("\"123e4567-e89b-12d3-a456-426614174000\""), LIST("\"123e4567\""));
    SCHEMA("{\"format\":\"email\"}", LIST("\"a.b@c-d.org\""), LIST("\"a@b\"", "\"@b.org\"", "\"a..b@c.de\""));
    SCHEMA("{\"format\":\"ipv4\"}", LIST("\"127.0.0.1\"", "\"255.249.10.0\""), LIST("\"256.0.0.1\"", "\"01.0.0.1\""));
}

static void numbers_stay_between_their_bounds(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"minimum\":5,\"maximum\":1203}", LIST("5", "9", "10", "99", "1000", "1199", "1203"),
           LIST("4", "1204", "1300", "-5", "0", "5.0"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":-15,\"maximum\":3}", LIST("-15", "-9", "-1", "0", "3"),
           LIST("-16", "4", "-0"));
    SCHEMA("{\"type\":\"integer\",\"exclusiveMinimum\":0}", LIST("1", "10", "999"), LIST("0", "-1"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":1.5,\"exclusiveMaximum\":4}", LIST("2", "3"), LIST("1", "4"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", LIST("0", "0.0", "0.999", "1", "1.000"),
           LIST("1.0001", "-0.1", "-0", "2"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":2.5}",
           LIST("-2.4999", "0", "2.49", "-0.5"), LIST("2.5", "-2.5", "-2.50", "2.500", "3"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.001}", LIST("0.001", "0.01", "1", "123456"), LIST("0", "0.0009", "0.0"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":7}", LIST("0", "7", "-14", "700", "1001", "-7000000000000000"),
           LIST("1", "-0", "15", "007", "70000000000000000", "1000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":64}", LIST("0", "64", "-128", "6400000000000000"),
           LIST("1", "65", "64000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":1000}", LIST("0", "1000", "-1000", "17000"),
           LIST("100", "1001", "123456789012345000", "-1000000000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":65}", LIST("0", "65", "-6500000000000000"),
           LIST("1", "65000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":999}", LIST("0", "999", "-1998", "998001"), LIST("1000", "99900000"));
    for (int m = 65; m <= 1000; m++) { /* none is too large, and each has its multiples of four digits and no others */
        char schema[64], text[32];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"multipleOf\":%d}", m);
        if (m > 70 && m < 995 && m % 97 && !(m > 240 && m < 340)) continue;
        struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, schema);
        for (int x = -9999; x <= 9999; x++) {
            snprintf(text, sizeof text, "%d", x);
            if ((reads(g, text) == 2) != (x % m == 0)) fail_msg("%s on %d", schema, x);
        }
        grammar_free(g);
    }
    SCHEMA("{\"const\":9223372036854775807}", LIST("9223372036854775807"), LIST("9223372036854775806"));
    SCHEMA("{\"const\":[0.5,1e3,5.0]}", LIST("[0.5,1000.0,5.0]"), LIST("5"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":9223372036854775806}", LIST("9223372036854775806", "9223372036854775807"),
           LIST("9223372036854775805"));
    SCHEMA("{\"type\":\"number\",\"minimum\":9007199254740993,\"exclusiveMinimum\":9007199254740992}",
           LIST("9007199254740993"), LIST("9007199254740992.5"));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"const\":1.2345678901234568e29}", "const");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"enum\":[1,[{\"a\":-9007199254740992.0}]]}", "enum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":9.2233720368547758e18}", "minimum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"exclusiveMaximum\":9.2233720368547758e18}",
            "exclusiveMaximum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"const\":9223372036854775808}", "integer");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}",
            "the keyword minimum, which leaves no number");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.3}", "multipleOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":1e-30}", "minimum");
}

/* Every integer of a range and around it, for random bounds. */
static void random_integer_bounds_hold(void **state) {
    (void)state;
    const unsigned seed = (unsigned)time(NULL);
    uint64_t random = seed | 1;
    for (int round = 0; round < 60; round++) {
        int bound[2];
        for (int i = 0; i < 2; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bound[i] = (int)(random >> 33) % (i ? 1500 : 300) - 150;
        }
        if (bound[0] > bound[1]) continue;
        char schema[128], text[32];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", bound[0], bound[1]);
        struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, schema);
        for (int x = -400; x < 1800; x++) {
            snprintf(text, sizeof text, "%d", x);
            bool in = x >= bound[0] && x <= bound[1];
            if ((reads(g, text) == 2) != in) fail_msg("seed %u: %s on %d", seed, schema, x);
        }
        grammar_free(g);
    }
}

static void what_a_schema_cannot_say_is_refused_by_name(void **state) {
    (void)state;
    static const char *const unknown[] = {"not",
                                          "oneOf",
                                          "if",
                                          "uniqueItems",
                                          "prefixItems",
                                          "contains",
                                          "minProperties",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "unevaluatedProperties",
                                          "$dynamicRef"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"type\":\"array\",\"items\":{\"%s\":{}}}", unknown[i]);
        refused(ROD_GRAMMAR_JSON_SCHEMA, text, unknown[i]);
    }
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"strung\"}", "type");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"required\":[\"a\"]}", "required");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^a{0,40}b{0,40}$\",\"minLength\":75}", "pattern");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^a$\",\"format\":\"date\"}", "pattern");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"(a\"}", "without its )");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"not\":{}},{\"if\":{}}]}", "not");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":{},\"type\":\"string\"}", "anyOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"$id\":\"http://x/\"}}", "$id");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "pattern");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[" PET("cat", "") "," PET("cat", "") "]}", "oneOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"minProperties\":2}", "minProperties");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":7,\"minimum\":8}", "multipleOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":7,\"minimum\":0,\"maximum\":70000}", "multipleOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"enum\":[]}", "the keyword enum, which lists no value");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"maxLength\":-1}", "maxLength");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"maxLength\":70000}", "maxLength");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"a\":", "not JSON");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "[]", "a schema must be");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "false", "no finite text");
}

static void alternatives_join_what_stands_beside_them(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"anyOf\":[{"
           "\"properties\":{\"b\":"
           "{\"type\":\"null\"}},\"required\":[\"b\"]},{\"properties\":{\"c\":{\"type\":\"null\"}},\"required\":[\"c\"]"
           "}]}",
           LIST("{\"a\":1,\"b\":null}", "{\"a\":1,\"c\":null}"),
           LIST("{\"a\":1}", "{\"b\":null}", "{\"a\":1,\"b\":null,\"c\":null}"));
    SCHEMA("{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"minLength\":2,\"maximum\":3}",
           LIST("\"ab\"", "3"), LIST("\"a\"", "4"));
    SCHEMA(
        "{\"$defs\":{\"p\":{\"type\":\"integer\",\"minimum\":0}},\"allOf\":[{\"$ref\":\"#/$defs/p\"},{\"maximum\":9}]}",
        LIST("0", "9"), LIST("-1", "10"));
    SCHEMA("{\"$defs\":{\"p\":{\"type\":\"integer\",\"minimum\":0}},\"$ref\":\"#/$defs/"
           "p\",\"maximum\":9,\"description\":\"d\"}",
           LIST("0", "9"), LIST("-1", "10"));
    SCHEMA("{\"allOf\":[{\"type\":[\"integer\",\"null\"]},{\"type\":[\"number\",\"string\"]}]}", LIST("1"),
           LIST("null", "1.5", "\"a\""));
    SCHEMA("{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[3,2,4]}]}", LIST("2", "3"), LIST("1", "4"));
    SCHEMA("{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":1}}},{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}"
           "},\"required\":[\"a\"]}]}",
           LIST("{\"a\":1}", "{\"a\":2,\"b\":[]}"), LIST("{\"a\":0}", "{\"a\":1.5}", "{}"));
    SCHEMA("{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{\"b\":{}}}]}",
           LIST("{}", "{\"a\":1}"), LIST("{\"b\":1}"));
    SCHEMA("{\"anyOf\":[{\"not\":{}},{\"type\":\"null\"}]}", LIST("null"), LIST("1"));
}

static void one_of_is_honoured_where_its_schemas_are_apart(void **state) {
    (void)state;
    SCHEMA("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", LIST("1", "\"a\""), LIST("null"));
    SCHEMA("{\"oneOf\":[{\"const\":1},{\"enum\":[2,3]}]}", LIST("1", "3"), LIST("4"));
    SCHEMA("{\"oneOf\":[" PET("cat", ",\"lives\":{\"type\":\"integer\"}") "," PET("dog", "") "]}",
           LIST("{\"kind\":\"cat\",\"lives\":9}", "{\"kind\":\"dog\"}"),
           LIST("{\"kind\":\"cow\"}", "{\"kind\":\"dog\",\"lives\":9}"));
    SCHEMA("{\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\",\"default\":\"a\"}}},\"b\":{"
           "\"type\":\"object\",\"properties\":{\"k\":"
           "{\"const\":\"b\"},\"of\":{\"$ref\":\"#\"}}}},\"discriminator\":{\"propertyName\":\"k\",\"mapping\":{\"a\":"
           "\"#/$defs/a\"}},"
           "\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}",
           LIST("{\"k\":\"a\"}", "{\"k\":\"b\"}", "{\"k\":\"b\",\"of\":{\"k\":\"a\"}}"), LIST("{}", "{\"k\":\"c\"}"));
}

static void tuples_and_sets_are_arrays(void **state) {
    (void)state;
    const char *two = "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":"
                      "2,\"maxItems\":2}";
    SCHEMA(two, LIST("[1,\"a\"]", "[1, \"a\"]"), LIST("[]", "[1]", "[1,\"a\",2]", "[\"a\",1]"));
    SCHEMA("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
           LIST("[]", "[1]", "[1,\"a\"]"), LIST("[1,\"a\",2]"));
    SCHEMA("{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"maxItems\":3}",
           LIST("[]", "[1]", "[1,null,null]"), LIST("[1,null,null,null]", "[null]"));
    SCHEMA("{\"prefixItems\":[{},{\"type\":\"null\"}],\"minItems\":1,\"maxItems\":1}", LIST("[2]"),
           LIST("[]", "[2,null]"));
    SCHEMA("{\"prefixItems\":[{\"type\":\"null\"}],\"minItems\":3}", LIST("[null,1,2]", "[null,1,2,3]"),
           LIST("[null,1]", "[1,1,1]"));
    SCHEMA("{\"items\":[{\"type\":\"null\"}],\"additionalItems\":{\"type\":\"integer\"}}", LIST("[]", "[null,1]"),
           LIST("[1]"));
    SCHEMA("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",\"c\",\"a\"]},\"minItems\":1}",
           LIST("[\"a\"]", "[\"a\",\"c\"]", "[ \"a\", \"b\", \"c\" ]"), LIST("[]", "[\"a\",\"a\"]", "[\"b\",\"a\"]"));
    SCHEMA("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"},\"maxItems\":1}",
           LIST("[]", "[true]"), LIST("[true,true]"));
    SCHEMA("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"enum\":[1,\"a\",1.0]}}",
           LIST("[]", "[1]"), LIST("[\"a\"]", "[1,\"a\"]", "[1,1.0]"));
}

static void keys_follow_their_patterns_and_names(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"object\",\"patternProperties\":{\"^x-[a-z]+$\":{\"type\":\"integer\"}}}",
           LIST("{}", "{\"x-a\":1}", "{\"x-a\":1,\"x-bc\":2}"), LIST("{\"a\":1}", "{\"x-a\":\"b\"}"));
    SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\",3]},\"additionalProperties\":{\"type\":"
           "\"null\"}}",
           LIST("{}", "{\"b\":null}", "{\"a\":null,\"b\":null}"),
           LIST("{\"b\":null,\"a\":null}", "{\"c\":null}", "{3:null}"));
    SCHEMA("{\"propertyNames\":{\"maxLength\":2},\"minProperties\":1,\"maxProperties\":2}",
           LIST("{\"ab\":1}", "{\"ab\":1,\"c\":[]}"), LIST("{}", "{\"abc\":1}", "{\"a\":1,\"b\":1,\"c\":1}"));
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\"],\"minProperties\":1,\"maxProperties\":2}",
           LIST("{\"a\":1}", "{\"a\":1,\"b\":2}"), LIST("{}"));
}

static void patterns_and_formats_join_lengths(void **state) {
    SCHEMA("{\"pattern\":\"[0-9]{2}\",\"maxLength\":4}", LIST("\"12\"", "\"a12\"", "\"ab12\"", "\"1234\""),
           LIST("\"1\"", "\"abc12\"", "\"a1b2\""));
    (void)state;
    SCHEMA("{\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":3}", LIST("\"ab\"", "\"abc\""),
           LIST("\"a\"", "\"abcd\""));
    SCHEMA("{\"pattern\":\"^[A-Z]{2}[0-9]*(-x)?$\",\"minLength\":4,\"maxLength\":5}",
           LIST("\"AB12\"", "\"AB123\"", "\"AB-x\"", "\"AB1-x\""),
           LIST("\"AB\"", "\"AB1\"", "\"AB1234\"", "\"AB12-x\""));
    SCHEMA("{\"pattern\":\"^a\",\"maxLength\":2}", LIST("\"a\"", "\"a\\n\""), LIST("\"abc\"", "\"b\""));
    SCHEMA("{\"pattern\":\"^(\xc3\xa9|ab)$\",\"maxLength\":1}", LIST("\"\xc3\xa9\""), LIST("\"ab\""));
    SCHEMA("{\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}", LIST("\"https://a.example.org/b?c=d\""),
           LIST("\"\"", "\"a b\""));
    SCHEMA("{\"format\":\"no-such-format\",\"maxLength\":2}", LIST("\"ab\""), LIST("\"abc\""));
    SCHEMA("{\"format\":\"duration\"}", LIST("\"P3D\"", "\"PT15M\"", "\"P1DT2H\""), LIST("\"P\"", "\"3D\""));
    SCHEMA("{\"type\":\"string\",\"contentMediaType\":\"application/"
           "json\",\"contentSchema\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}",
           LIST("\"[]\"", "\"[\\\"a\\\", \\\"\\\\\\\"b\\\"]\""), LIST("\"1\"", "\"[\"", "[]"));
}

static void multiples_stay_between_their_bounds(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":-7,\"exclusiveMaximum\":15}", LIST("-5", "0", "5", "10"),
           LIST("-10", "15", "1", "05"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":3,\"exclusiveMinimum\":0}", LIST("3", "999"), LIST("0", "-3", "4"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":3,\"minimum\":0}", LIST("0", "3"), LIST("-3", "4"));
    SCHEMA("{\"type\":\"number\",\"multipleOf\":0.25}", LIST("1.25", "-0.5", "3", "2.0"), LIST("1.3", "0.1"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":0.5,\"maximum\":2}", LIST("1", "2"), LIST("3", "0.5"));
    SCHEMA("{\"type\":\"number\",\"multipleOf\":0.5,\"minimum\":0.25,\"exclusiveMaximum\":2}", LIST("0.5", "1", "1.5"),
           LIST("0", "0.25", "2"));
    SCHEMA("{\"type\":\"number\",\"multipleOf\":0.01}", LIST("0", "-3", "19.99", "-0.5"), LIST("0.001", "1.234"));
    SCHEMA("{\"type\":\"number\",\"multipleOf\":0.1,\"minimum\":-0.2,\"maximum\":1}", LIST("-0.2", "0", "0.3", "1"),
           LIST("-0.3", "1.1", "0.25"));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}",
            "the keyword multipleOf without a multiple between the bounds");
}

static void annotations_change_nothing(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"null\",\"x-order\":1,\"nullable\":false,\"discriminator\":{},\"$comment\":\"c\",\"deprecated\":"
           "true,\"readOnly\":true,"
           "\"examples\":[1],\"$anchor\":\"a\"}",
           LIST("null"), LIST("1"));
}

/* What is left out is said; the rest holds. */
static void a_tools_schema_loses_only_what_is_at_fault(void **state) {
    (void)state;
    static const struct {
        const char *schema, *note, *yes, *no;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"not\":{\"const\":1}}},\"required\":[\"a\"]"
         "}",
         "f has the keyword not", "{\"a\": 1}", "{\"a\": \"x\"}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?=a)\",\"maxLength\":2}}}",
         "look-around", "{\"a\": \"xy\"}", "{\"a\": \"xyz\"}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/no\"},\"b\":{\"type\":\"null\"}}}", "$ref",
         "{\"a\": [1], \"b\": null}", "{\"b\": 1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}}}",
         "oneOf", "{\"a\": 1}", "{\"a\": \"b\"}"},
        {"{\"type\":\"object\",\"required\":[\"a\"]}", "required", "{\"b\": 1}", "[]"},
        {"{\"type\":\"king\"}", "another type than object", "{\"b\": 1}", "[]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024], yes[256], no[256];
        struct grammar *g;
        snprintf(text, sizeof text,
                 "{\"open\":\"<c>\",\"close\":\"</c>\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                 cases[i].schema);
        snprintf(yes, sizeof yes, "<c>\n{\"name\": \"f\", \"arguments\": %s}\n</c>", cases[i].yes);
        snprintf(no, sizeof no, "<c>\n{\"name\": \"f\", \"arguments\": %s}\n</c>", cases[i].no);
        g = compiled(ROD_GRAMMAR_CALLS, text);
        if (!strstr(grammar_notes(g), cases[i].note))
            fail_msg("%s: the notes are '%s', not '%s'", text, grammar_notes(g), cases[i].note);
        if (reads(g, yes) != 2) fail_msg("%s rejects %s", text, yes);
        if (reads(g, no) == 2) fail_msg("%s accepts %s", text, no);
        grammar_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_of_each_type),
        cmocka_unit_test(objects_keep_order_and_leave_out_what_is_optional),
        cmocka_unit_test(schemas_recur_through_references),
        cmocka_unit_test(patterns_and_formats_hold_inside_json_strings),
        cmocka_unit_test(numbers_stay_between_their_bounds),
        cmocka_unit_test(random_integer_bounds_hold),
        cmocka_unit_test(what_a_schema_cannot_say_is_refused_by_name),
        cmocka_unit_test(alternatives_join_what_stands_beside_them),
        cmocka_unit_test(one_of_is_honoured_where_its_schemas_are_apart),
        cmocka_unit_test(tuples_and_sets_are_arrays),
        cmocka_unit_test(keys_follow_their_patterns_and_names),
        cmocka_unit_test(patterns_and_formats_join_lengths),
        cmocka_unit_test(multiples_stay_between_their_bounds),
        cmocka_unit_test(annotations_change_nothing),
        cmocka_unit_test(a_tools_schema_loses_only_what_is_at_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
