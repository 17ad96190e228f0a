/* test_load_http.c - the load generator's parsers: whatever way the bytes are cut, the result is the same; broken input
 * is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/commands/load/load_http.h"
#include "server/commands/load/load_run.h"

struct gathered {
    char text[65536];
    size_t n;
    int n_events;
    struct load_sse *sse;
};

static void gather_body(void *arg, const char *bytes, size_t n) {
    struct gathered *got = arg;
    assert_true(got->n + n < sizeof got->text);
    memcpy(got->text + got->n, bytes, n);
    got->n += n;
    got->text[got->n] = '\0';
}

static void gather_event(void *arg, const char *data, size_t n) {
    struct gathered *got = arg;
    assert_int_equal(strlen(data), n);
    gather_body(got, "<", 1);
    gather_body(got, data, n);
    gather_body(got, ">", 1);
    got->n_events++;
}

/* Feeds `input` in pieces of `piece` bytes; returns the state of http, or -1 on a fault. *used: bytes of the response.
 */
static int feed_http(struct load_http *http, const char *input, size_t n, size_t piece, struct gathered *got,
                     size_t *used) {
    load_http_init(http);
    got->n = 0;
    got->text[0] = '\0';
    *used = 0;
    while (*used < n && http->state != LOAD_HTTP_DONE) {
        size_t n_piece = n - *used < piece ? n - *used : piece, n_used;
        /* A copy of its own size, so that the sanitizer sees a read past the piece. */
        char *bytes = malloc(n_piece);
        memcpy(bytes, input + *used, n_piece);
        int rc = load_http_feed(http, bytes, n_piece, &n_used, gather_body, got);
        free(bytes);
        if (rc != 0) return -1;
        assert_true(n_used == n_piece || http->state == LOAD_HTTP_DONE);
        *used += n_used;
    }
    return (int)http->state;
}

static void response_is_the_same_however_it_is_cut(void **state) {
    (void)state;
    static const char input[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                "Transfer-Encoding: chunked\r\nX-Request-Id: a\r\n\r\n"
                                "5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\nTrailer: 1\r\n\r\nHTTP/1.1 next";
    struct load_http *http = malloc(sizeof *http);
    struct gathered *got = calloc(1, sizeof *got);
    for (size_t piece = 1; piece < sizeof input; piece++) {
        size_t used;
        assert_int_equal(feed_http(http, input, sizeof input - 1, piece, got, &used), LOAD_HTTP_DONE);
        assert_string_equal(got->text, "hello world");
        assert_int_equal(used, strlen(input) - strlen("HTTP/1.1 next"));
        assert_int_equal(http->status, 200);
        assert_true(http->event_stream);
        assert_true(http->keep_alive);
    }
    free(got);
    free(http);
}

struct response_case {
    const char *input;
    int state; /* after all of it, -1 = fault */
    const char *body;
    int status;
    bool keep_alive;
};

static void responses_end_where_their_headers_say(void **state) {
    (void)state;
    static const struct response_case cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", LOAD_HTTP_DONE, "ab", 200, true},
        {"HTTP/1.1 200\nContent-Length: 2\n\nab", LOAD_HTTP_DONE, "ab", 200, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", LOAD_HTTP_DONE, "", 200, true},
        {"HTTP/1.1 204 No Content\r\n\r\n", LOAD_HTTP_DONE, "", 204, true},
        {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", LOAD_HTTP_DONE, "a", 200, false},
        {"HTTP/1.1 429 Too Many\r\ncontent-length: 1\r\nconnection: close\r\n\r\na", LOAD_HTTP_DONE, "a", 429, false},
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", LOAD_HTTP_UNTIL_EOF, "until the end", 200, false},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", LOAD_HTTP_DONE, "a", 200, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", LOAD_HTTP_BODY, "ab", 200, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n", LOAD_HTTP_CHUNK_SIZE, "0123456789",
         200, true},
        {"SSH-2.0-OpenSSH\r\n", -1, "", 0, false},
        {"HTTP/2 200\r\n", -1, "", 0, false},
        {"HTTP/1.1 2x0 OK\r\n", -1, "", 0, false},
        {"HTTP/1.1 2000 OK\r\n", -1, "", 0, false},
        {"HTTP/1.1 200 OK\r\nno colon\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 12x\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n", -1, "", 200, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", -1, "a", 200, true},
    };
    struct load_http *http = malloc(sizeof *http);
    struct gathered *got = calloc(1, sizeof *got);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t piece = 1; piece < 100; piece += 9) {
            size_t used;
            int end = feed_http(http, cases[i].input, strlen(cases[i].input), piece, got, &used);
            if (end != cases[i].state) print_error("case %zu piece %zu: %s\n", i, piece, cases[i].input);
            assert_int_equal(end, cases[i].state);
            assert_string_equal(got->text, cases[i].body);
            assert_int_equal(http->status, cases[i].status);
            if (end >= 0) assert_int_equal(http->keep_alive, cases[i].keep_alive);
            assert_int_equal(http->fault != NULL, end < 0);
        }
    }
    free(got);
    free(http);
}

static void end_of_connection_is_an_answer_only_without_length(void **state) {
    (void)state;
    struct load_http *http = malloc(sizeof *http);
    struct gathered *got = calloc(1, sizeof *got);
    size_t used;
    load_http_init(http);
    assert_int_equal(load_http_eof(http), -1);
    const char *open_end = "HTTP/1.1 200 OK\r\n\r\nab";
    feed_http(http, open_end, strlen(open_end), 100, got, &used);
    assert_int_equal(load_http_eof(http), 0);
    const char *cut = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab";
    feed_http(http, cut, strlen(cut), 100, got, &used);
    assert_int_equal(load_http_eof(http), -1);
    free(got);
    free(http);
}

static void endless_headers_are_refused(void **state) {
    (void)state;
    struct load_http *http = malloc(sizeof *http);
    struct gathered *got = calloc(1, sizeof *got);
    size_t used;
    load_http_init(http);
    assert_int_equal(load_http_feed(http, "HTTP/1.1 200 OK\r\n", 17, &used, gather_body, got), 0);
    int rc = 0, n_lines = 0;
    while (rc == 0 && n_lines < 100000) {
        rc = load_http_feed(http, "X-Header: value\r\n", 17, &used, gather_body, got);
        n_lines++;
    }
    assert_int_equal(rc, -1);
    assert_true(n_lines <= LOAD_HEADERS_MAX / 16 + 1);
    load_http_init(http);
    rc = 0;
    for (int i = 0; i < LOAD_LINE_MAX && rc == 0; i++)
        rc = load_http_feed(http, "aaaaaaaa", 8, &used, gather_body, got);
    assert_int_equal(rc, -1);
    free(got);
    free(http);
}

static void events_are_the_same_however_they_are_cut(void **state) {
    (void)state;
    static const char input[] =
        ": ping\n\ndata: one\n\ndata:two\r\n\r\nevent: x\ndata: three\ndata:  four\nid: 1\n\n\n\n"
        "data\n\nretry: 10\n\rdata: five\r\rdatum: no\n\ndata: unfinished\n";
    static const char want[] = "<one><two><three\n four><><five>";
    struct gathered *got = calloc(1, sizeof *got);
    for (size_t piece = 1; piece < sizeof input; piece++) {
        struct load_sse sse;
        load_sse_init(&sse);
        got->n = 0;
        got->text[0] = '\0';
        for (size_t at = 0; at < sizeof input - 1; at += piece) {
            size_t n_piece = sizeof input - 1 - at < piece ? sizeof input - 1 - at : piece;
            assert_int_equal(load_sse_feed(&sse, input + at, n_piece, gather_event, got), 0);
        }
        assert_string_equal(got->text, want);
        load_sse_fini(&sse);
    }
    free(got);
}

static void endless_event_is_refused(void **state) {
    (void)state;
    struct load_sse sse;
    struct gathered *got = calloc(1, sizeof *got);
    char *block = malloc(65536);
    memset(block, 'x', 65536);
    load_sse_init(&sse);
    int rc = 0, n_blocks = 0;
    while (rc == 0 && n_blocks < 1000) {
        rc = load_sse_feed(&sse, block, 65536, gather_event, got);
        n_blocks++;
    }
    assert_int_equal(rc, -1);
    assert_true(n_blocks <= LOAD_EVENT_MAX / 65536 + 1);
    load_sse_fini(&sse);
    free(block);
    free(got);
}

static void chunks_tell_text_finish_usage_and_errors(void **state) {
    (void)state;
    struct load_chunk chunk;
    const char *text = "{\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}";
    assert_int_equal(load_chunk_parse(text, strlen(text), &chunk), 0);
    assert_true(chunk.text && !chunk.finish && !chunk.done && !chunk.error);
    assert_int_equal(chunk.completion_tokens, -1);
    const char *chat = "{\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}";
    assert_int_equal(load_chunk_parse(chat, strlen(chat), &chunk), 0);
    assert_true(chunk.text);
    const char *finish = "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}";
    assert_int_equal(load_chunk_parse(finish, strlen(finish), &chunk), 0);
    assert_true(!chunk.text && chunk.finish);
    const char *ids = "{\"choices\":[{\"text\":\"\",\"token_ids\":[7],\"finish_reason\":null}]}";
    assert_int_equal(load_chunk_parse(ids, strlen(ids), &chunk), 0);
    assert_true(chunk.text); /* of a model without a tokenizer */
    const char *usage = "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}}";
    assert_int_equal(load_chunk_parse(usage, strlen(usage), &chunk), 0);
    assert_int_equal(chunk.completion_tokens, 5);
    assert_int_equal(chunk.prompt_tokens, 3);
    const char *error = "{\"error\":{\"message\":\"device fault\",\"type\":\"unavailable\"}}";
    assert_int_equal(load_chunk_parse(error, strlen(error), &chunk), 0);
    assert_true(chunk.error);
    assert_string_equal(chunk.message, "device fault");
    assert_int_equal(load_chunk_parse("[DONE]", 6, &chunk), 0);
    assert_true(chunk.done);
    assert_int_equal(load_chunk_parse("{\"choices\":", 11, &chunk), -1);
    assert_int_equal(load_chunk_parse("[]", 2, &chunk), -1);
    assert_int_equal(load_chunk_parse("{}", 2, &chunk), -1);
    assert_int_equal(load_chunk_parse("", 0, &chunk), -1);
}

static void long_error_messages_are_cut_between_characters(void **state) {
    (void)state;
    struct load_chunk chunk;
    char text[1024];
    int n = snprintf(text, sizeof text, "{\"error\":{\"message\":\"");
    for (int i = 0; i < 200; i++) n += snprintf(text + n, sizeof text - (size_t)n, "\xC3\xA9");
    n += snprintf(text + n, sizeof text - (size_t)n, "\"}}");
    assert_int_equal(load_chunk_parse(text, (size_t)n, &chunk), 0);
    assert_int_equal(strlen(chunk.message), 158);
}

static void percentiles_are_nearest_ranks(void **state) {
    (void)state;
    struct load_samples samples = {0};
    assert_true(load_percentile(&samples, 0.5) != load_percentile(&samples, 0.5)); /* NAN */
    for (int i = 1000; i >= 1; i--) assert_int_equal(load_sample(&samples, i), 0);
    assert_true(load_percentile(&samples, 0.50) == 500.0);
    assert_true(load_percentile(&samples, 0.90) == 900.0);
    assert_true(load_percentile(&samples, 0.99) == 990.0);
    assert_true(load_percentile(&samples, 1.0) == 1000.0);
    assert_true(load_mean(&samples) == 500.5);
    free(samples.ms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(response_is_the_same_however_it_is_cut),
        cmocka_unit_test(responses_end_where_their_headers_say),
        cmocka_unit_test(end_of_connection_is_an_answer_only_without_length),
        cmocka_unit_test(endless_headers_are_refused),
        cmocka_unit_test(events_are_the_same_however_they_are_cut),
        cmocka_unit_test(endless_event_is_refused),
        cmocka_unit_test(chunks_tell_text_finish_usage_and_errors),
        cmocka_unit_test(long_error_messages_are_cut_between_characters),
        cmocka_unit_test(percentiles_are_nearest_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
