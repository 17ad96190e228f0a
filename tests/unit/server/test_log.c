/* test_log.c - the log on a pipe: nobody reads it and nothing waits, what is lost is counted and told, lines are
 * complete.
 */
#include "server/base/buf.h"
#include "server/base/log.h"

#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define PATIENCE_S 20
#define MAX_BYTES  (4u << 20)

/* All that is in the pipe now. */
static char *drain(int fd) {
    char *text = calloc(1, MAX_BYTES + 1);
    size_t n = 0;
    assert_non_null(text);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (ssize_t got; n < MAX_BYTES && (got = read(fd, text + n, MAX_BYTES - n)) > 0;) n += (size_t)got;
    return text;
}

static unsigned count(const char *text, const char *what) {
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* own false: as where the pipe cannot be opened again. */
static void fill_and_read(int reading, int writing, bool own) {
    enum { LINES = 20000 };
    struct log log;
    log_init(&log, "info", "text", writing);
    if (!own) nonblocking_writer_close(&log.out);
    alarm(PATIENCE_S); /* it hangs: the signal ends the test */
    for (int i = 0; i < LINES; i++) log_text(&log, LOG_INFO, "a line number %d of some length", i);
    alarm(0);
    char *text = drain(reading), told[64];
    const unsigned whole = count(text, "\n"), kept = count(text, "a line number");
    if (whole != kept || kept + log.n_dropped != LINES || !kept || !log.n_dropped)
        fail_msg("%u ends of lines, %u lines and %llu lost of %d", whole, kept, (unsigned long long)log.n_dropped,
                 LINES);
    free(text);
    snprintf(told, sizeof told, "Dropped %llu log lines: the reader was too slow.", (unsigned long long)log.n_dropped);
    log_text(&log, LOG_INFO, "again");
    log_text(&log, LOG_INFO, "again");
    text = drain(reading);
    const char *lost = strstr(text, told);
    if (!lost || !strstr(lost, "again") || count(text, "Dropped") != 1 || count(text, "again") != 2 ||
        count(text, "\n") != 3)
        fail_msg("after \"%s\" the log goes on with: %s", told, text);
    free(text);
    assert_int_equal(fcntl(writing, F_GETFL) & O_NONBLOCK, 0); /* others write there too */
    log_fini(&log);
    close(reading);
    close(writing);
}

static void a_pipe_that_nobody_reads_loses_lines_and_holds_nobody_up(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        fill_and_read(ends[0], ends[1], own);
    }
}

static void a_socket_that_nobody_reads_too(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    struct log log;
    log_init(&log, "info", "text", ends[1]);
    alarm(PATIENCE_S);
    for (int i = 0; i < 20000; i++) log_text(&log, LOG_INFO, "a line number %d", i);
    alarm(0);
    if (!log.n_dropped) fail_msg("all of 20000 lines are in a socket's buffer");
    log_fini(&log);
    close(ends[0]);
    close(ends[1]);
}

/* Like a window whose program stands still; at the end the log goes on with a new line. */
static void a_terminal_that_nobody_reads_too(void **state) {
    (void)state;
    const int reading = posix_openpt(O_RDWR | O_NOCTTY);
    const bool given = reading >= 0 && !grantpt(reading) && !unlockpt(reading);
    const int writing = given ? open(ptsname(reading), O_RDWR | O_NOCTTY) : -1;
    if (writing < 0) {
        printf("note: this system gives no pseudo-terminal (no /dev/pts)\n");
        skip();
    }
    struct log log;
    log_init(&log, "info", "text", writing);
    alarm(PATIENCE_S);
    for (int i = 0; i < 20000; i++) log_text(&log, LOG_INFO, "a line number %d", i);
    if (!log.n_dropped) fail_msg("all of 20000 lines are in a terminal's buffer");
    free(drain(reading));
    log_text(&log, LOG_INFO, "again");
    alarm(0);
    char *text = drain(reading);
    const char *lost = strstr(text, "log lines: the reader was too slow");
    if (!lost || !strstr(lost, "again")) fail_msg("the log goes on with: %s", text);
    free(text);
    log_fini(&log);
    close(writing);
    close(reading);
}

static void *write_lines(void *arg) {
    for (int i = 0; i < 5000; i++) log_text(arg, LOG_INFO, "# %d", i);
    return NULL;
}

static void lines_of_threads_are_whole_and_all_are_counted(void **state) {
    (void)state;
    enum { THREADS = 4 };
    for (int own = 0; own < 2; own++) {
        int ends[2];
        struct log log;
        pthread_t threads[THREADS];
        assert_int_equal(pipe(ends), 0);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        log_init(&log, "info", "text", ends[1]);
        if (!own) nonblocking_writer_close(&log.out);
        alarm(PATIENCE_S);
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, write_lines, &log);
        unsigned long long kept = 0, whole = 0;
        for (int i = 0; i < 50; i++) { /* a reader that is too slow */
            char text[4096];
            const ssize_t n = read(ends[0], text, sizeof text);
            for (ssize_t k = 0; k < n; k++) {
                whole += text[k] == '\n';
                kept += text[k] == '#';
            }
            usleep(1000);
        }
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        alarm(0);
        char *text = drain(ends[0]);
        kept += count(text, "#");
        whole += count(text, "\n");
        free(text);
        const unsigned long long lines = THREADS * 5000ull;
        if (kept + log.n_dropped != lines || whole < kept || whole > 2 * kept + 1)
            fail_msg("%llu lines, %llu ends and %llu lost of %llu", kept, whole, (unsigned long long)log.n_dropped,
                     lines);
        log_fini(&log);
        close(ends[0]);
        close(ends[1]);
    }
}

static void a_long_line_on_a_pipe_is_cut_and_still_json(void **state) {
    (void)state;
    static const size_t sizes[] = {100, 3900, 4096, 5000, 100000};
    char *path = malloc(100001);
    assert_non_null(path);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int hard = 0; hard < 2; hard++) { /* hard: each byte is six when it is escaped */
            int ends[2];
            struct log log;
            assert_int_equal(pipe(ends), 0);
            memset(path, hard ? 1 : 'a', sizes[i]);
            path[sizes[i]] = 0;
            log_init(&log, "info", "json", ends[1]);
            const struct log_field fields[] = {log_words("path", path), log_words("method", path), log_number("ms", 7)};
            alarm(PATIENCE_S);
            log_line(&log, LOG_INFO, "request", fields, 3);
            alarm(0);
            char *text = drain(ends[0]);
            json_error_t fault;
            json_t *line = json_loads(text, 0, &fault);
            const char *got = line ? json_string_value(json_object_get(line, "path")) : NULL;
            if (!got || !*got || strncmp(got, path, strlen(got)) != 0 ||
                json_integer_value(json_object_get(line, "ms")) != 7 || strlen(text) > 4096)
                fail_msg("%zu bytes%s make a line of %zu: %s", sizes[i], hard ? " to be escaped" : "", strlen(text),
                         text);
            json_decref(line);
            free(text);
            log_fini(&log);
            close(ends[0]);
            close(ends[1]);
        }
    }
    free(path);
}

/* Euro signs, three bytes each, where the room ends: of a message, of an argument in it, of a field on a pipe. */
static void a_line_is_not_cut_inside_a_character(void **state) {
    (void)state;
    static char euros[30001];
    for (size_t i = 0; i + 3 < sizeof euros; i += 3) memcpy(euros + i, "\xe2\x82\xac", 3);
    for (int shift = 0; shift < 3; shift++) {
        int ends[2];
        struct log log;
        assert_int_equal(pipe(ends), 0);
        log_init(&log, "info", "json", ends[1]);
        log_text(&log, LOG_INFO, "%.*s%s", shift, "ab", euros);
        log_text(&log, LOG_INFO, "%.*s: %.100s.", shift, "ab", euros);
        log_line(&log, LOG_INFO, "request", (const struct log_field[]){log_words("path", euros + shift * 3)}, 1);
        char *text = drain(ends[0]);
        if (count(text, "\n") != 3 || strstr(text, "\xef\xbf\xbd") || strchr(text, '?'))
            fail_msg("%u lines: %s", count(text, "\n"), text);
        free(text);
        log_fini(&log);
        close(ends[0]);
        close(ends[1]);
    }
}

static void a_file_takes_a_line_of_any_length(void **state) {
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    char *path = malloc(100001);
    assert_non_null(path);
    memset(path, 'a', 100000);
    path[100000] = 0;
    struct log log;
    log_init(&log, "info", "json", fileno(file));
    log_line(&log, LOG_INFO, "request", (const struct log_field[]){log_words("path", path)}, 1);
    const off_t size = lseek(fileno(file), 0, SEEK_END);
    if (size < 100000 || log.n_dropped) fail_msg("the file has %lld bytes of a line of 100000", (long long)size);
    log_fini(&log);
    free(path);
    fclose(file);
}

/* A path has them behind percent signs: a terminal obeys some, and some readers of logs begin a line at others. */
static void control_characters_and_ends_of_lines_beyond_ascii_are_escaped(void **state) {
    (void)state;
    static const char value[] = "/\xc2\x9b"
                                "2J\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\n\x7f\xff\xc2\xa0\xc3\xa9";
    static const char wanted[] = "\"/\\u009b2J\\u0085\\u2028\\u2029\\n\\u007f\xef\xbf\xbd\xc2\xa0\xc3\xa9\"";
    for (int json = 0; json < 2; json++) {
        int ends[2];
        struct log log;
        assert_int_equal(pipe(ends), 0);
        log_init(&log, "info", json ? "json" : "text", ends[1]);
        log_line(&log, LOG_INFO, "request", (const struct log_field[]){log_words("path", value)}, 1);
        char *text = drain(ends[0]);
        if (!strstr(text, wanted)) fail_msg("%s is not in %s", wanted, text);
        free(text);
        log_fini(&log);
        close(ends[0]);
        close(ends[1]);
    }
}

/* One line with the value in a field, and as its message where `message`; malloc'd. */
static char *logged(const char *format, const char *value, bool message) {
    FILE *file = tmpfile();
    struct log log;
    assert_non_null(file);
    log_init(&log, "info", format, fileno(file));
    log_line(&log, LOG_INFO, message ? value : "request", (const struct log_field[]){log_words("path", value)}, 1);
    log_fini(&log);
    char *text = calloc(1, 65536);
    assert_non_null(text);
    rewind(file);
    assert_true(fread(text, 1, 65535, file) > 0);
    fclose(file);
    return text;
}

static size_t encode(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((0xf00u >> n) | code);
    return n;
}

/* Written down here, so that the server's own table is not its judge. */
static bool must_be_escaped(uint32_t code) {
    static const uint32_t ranges[][2] = {
        {0, 0x1f},        {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x600, 0x605},
        {0x61c, 0x61c},   {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x180b, 0x180f},   {0x200b, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
        {0xfff9, 0xfffb}, {0x1d173, 0x1d17a}, {0xe0001, 0xe0001}, {0xe0020, 0xe007f}, {0xe0100, 0xe01ef}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1]) return true;
    return false;
}

static void fail_if_hidden(const char *text, const char *what) {
    for (const char *at = text; *at && !(at[0] == '\n' && !at[1]);) {
        const unsigned char *c = (const unsigned char *)at;
        const size_t n = buf_utf8(at, strlen(at));
        if (!n) fail_msg("%s: no UTF-8 at byte %zu: %s", what, (size_t)(at - text), text);
        uint32_t code = n == 1 ? c[0] : c[0] & (0xffu >> (n + 1));
        for (size_t i = 1; i < n; i++) code = code << 6 | (c[i] & 0x3f);
        if (must_be_escaped(code)) fail_msg("%s: U+%04X is in the line as it is: %s", what, code, text);
        at += n;
    }
}

static void fail_unless_same(const char *line, const char *value, const char *what) {
    json_error_t fault;
    json_t *root = json_loads(line, 0, &fault);
    const char *got = json_string_value(json_object_get(root, "path"));
    if (!got || strcmp(got, value) != 0) fail_msg("%s: a reader gets %s of %s", what, got ? got : fault.text, line);
    json_decref(root);
}

static void characters_that_hide_or_turn_text_are_escaped_in_both_formats(void **state) {
    (void)state;
    for (uint32_t code = 1; code < 0x110000; code += code < 0x3000 || (code >= 0xfd00 && code < 0x10000) ? 1 : 7) {
        char value[16] = "/a", what[16];
        if (code >= 0xd800 && code < 0xe000) continue;
        const size_t n = encode(code, value + 2);
        memcpy(value + 2 + n, "b", 2);
        snprintf(what, sizeof what, "U+%04X", code);
        if (!must_be_escaped(code) && code % 97) continue;
        for (int json = 0; json < 2; json++) {
            char *line = logged(json ? "json" : "text", value, false),
                 *message = logged(json ? "json" : "text", value, true);
            fail_if_hidden(line, what);
            fail_if_hidden(message, what);
            if (json) fail_unless_same(line, value, what);
            free(line);
            free(message);
        }
    }
}

static void what_is_seen_stays_as_it_is(void **state) {
    (void)state;
    static const char *const values[] = {"/\xc3\xa9\xc3\x9f", "/\xe6\xbc\xa2", "/\xf0\x9f\x98\x80", "/\xd7\xa9\xd9\x85",
                                         "/e\xcc\x81"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int json = 0; json < 2; json++) {
            char *line = logged(json ? "json" : "text", values[i], true);
            if (count(line, values[i]) != 2) fail_msg("%s is not twice in %s", values[i], line);
            free(line);
        }
    }
}

static void of_random_bytes_nothing_hides_and_valid_text_comes_back(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    const unsigned first = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)getpid() * 2654435761u;
    unsigned seed = first;
    printf("note: RODIMUS_TEST_SEED=%u\n", first);
    for (int round = 0; round < 3000; round++) {
        char value[400], what[64];
        size_t n = 0;
        const bool valid = round % 2;
        for (const size_t wanted = (size_t)rand_r(&seed) % 60; n < wanted * 4;) {
            const uint32_t code = (uint32_t)rand_r(&seed) % (rand_r(&seed) % 2 ? 0x3000 : 0x110000);
            if (code == 0 || (code >= 0xd800 && code < 0xe000)) continue;
            n += encode(code, value + n);
            if (!valid && rand_r(&seed) % 4 == 0) value[n - 1] = (char)(1 + rand_r(&seed) % 255);
        }
        value[n] = 0;
        snprintf(what, sizeof what, "seed %u round %d", first, round);
        for (int json = 0; json < 2; json++) {
            char *line = logged(json ? "json" : "text", value, true);
            fail_if_hidden(line, what);
            if (json && valid) fail_unless_same(line, value, what);
            free(line);
        }
    }
}

static void who_reads_no_more_is_no_signal(void **state) {
    (void)state;
    int ends[2];
    struct log log;
    signal(SIGPIPE, SIG_IGN); /* as the server has it */
    assert_int_equal(pipe(ends), 0);
    log_init(&log, "info", "text", ends[1]);
    close(ends[0]);
    log_text(&log, LOG_INFO, "to nobody");
    if (log.n_dropped != 1) fail_msg("%llu lines are lost, 1 was written", (unsigned long long)log.n_dropped);
    log_fini(&log);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_that_nobody_reads_loses_lines_and_holds_nobody_up),
        cmocka_unit_test(a_socket_that_nobody_reads_too),
        cmocka_unit_test(a_terminal_that_nobody_reads_too),
        cmocka_unit_test(lines_of_threads_are_whole_and_all_are_counted),
        cmocka_unit_test(a_long_line_on_a_pipe_is_cut_and_still_json),
        cmocka_unit_test(a_line_is_not_cut_inside_a_character),
        cmocka_unit_test(a_file_takes_a_line_of_any_length),
        cmocka_unit_test(control_characters_and_ends_of_lines_beyond_ascii_are_escaped),
        cmocka_unit_test(characters_that_hide_or_turn_text_are_escaped_in_both_formats),
        cmocka_unit_test(what_is_seen_stays_as_it_is),
        cmocka_unit_test(of_random_bytes_nothing_hides_and_valid_text_comes_back),
        cmocka_unit_test(who_reads_no_more_is_no_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
