/* test_sse.c - frames of server-sent events, and the buffer and JSON spelling under them. */
#include "server/base/buf.h"
#include "server/api/sse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

static void check(struct buf *b, const char *want) {
    size_t len = 0;
    char *got = buf_take(b, &len);
    assert_non_null(got);
    if (strcmp(got, want) != 0 || len != strlen(want))
        fail_msg("got \"%s\" (%zu), want \"%s\" (%zu)", got, len, want, strlen(want));
    free(got);
}

static void frames_are_data_a_line_and_an_empty_line(void **state) {
    (void)state;
    struct buf b = {0};
    buf_puts(&b, SSE_DATA);
    buf_json(&b, "a\nb", 3);
    buf_puts(&b, SSE_END SSE_PING SSE_DONE);
    check(&b, "data: \"a\\nb\"\n\n: ping\n\ndata: [DONE]\n\n");
}

static void no_byte_of_a_text_can_end_a_frame(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        struct buf b = {0};
        char text = (char)c;
        buf_json(&b, &text, 1);
        for (size_t i = 0; i < b.len; i++) {
            unsigned char at = (unsigned char)b.data[i];
            if (at < 0x20 || at == 0x7f) fail_msg("byte 0x%02x is written raw", (unsigned)c);
        }
        buf_fini(&b);
    }
}

static void json_strings_read_back_as_they_were(void **state) {
    (void)state;
    const char text[] = "quote \" backslash \\ tab \t NUL \0 bell \a \xC3\xA9 \xF0\x9F\xA6\x8A </script>";
    struct buf b = {0};
    buf_json(&b, text, sizeof text - 1);
    json_t *value = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    assert_int_equal(json_string_length(value), sizeof text - 1);
    assert_memory_equal(json_string_value(value), text, sizeof text - 1);
    json_decref(value);
    buf_fini(&b);
}

static void integers_of_every_size(void **state) {
    (void)state;
    struct buf b = {0};
    buf_int(&b, 0);
    buf_putc(&b, ' ');
    buf_int(&b, INT64_MIN);
    buf_putc(&b, ' ');
    buf_int(&b, INT64_MAX);
    check(&b, "0 -9223372036854775808 9223372036854775807");
}

static void log_probabilities_have_nine_digits_and_no_infinity(void **state) {
    (void)state;
    struct buf b = {0};
    buf_logprob(&b, -1.41487212f);
    buf_putc(&b, ' ');
    buf_logprob(&b, 0);
    buf_putc(&b, ' ');
    buf_logprob(&b, -INFINITY);
    buf_putc(&b, ' ');
    buf_logprob(&b, NAN);
    check(&b, "-1.41487217 0 -1e30 -1e30");
}

static void long_formats_grow_the_buffer(void **state) {
    (void)state;
    char text[1000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    struct buf b = {0};
    buf_addf(&b, "<%s>", text);
    assert_int_equal(b.len, sizeof text + 1);
    assert_int_equal(b.data[0], '<');
    assert_int_equal(b.data[b.len - 1], '>');
    buf_fini(&b);
}

static void an_empty_buffer_is_an_empty_string(void **state) {
    (void)state;
    struct buf b = {0};
    check(&b, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_data_a_line_and_an_empty_line),
        cmocka_unit_test(no_byte_of_a_text_can_end_a_frame),
        cmocka_unit_test(json_strings_read_back_as_they_were),
        cmocka_unit_test(integers_of_every_size),
        cmocka_unit_test(log_probabilities_have_nine_digits_and_no_infinity),
        cmocka_unit_test(long_formats_grow_the_buffer),
        cmocka_unit_test(an_empty_buffer_is_an_empty_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
