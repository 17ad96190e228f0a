/* test_config.c - flags, environment and file of `rodimus serve`: one table, one meaning, errors that name the fault.
 */
#include "server/settings/config.h"

#include <ctype.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_ARGS = 20 };

/* Loads from words ("--port 1") and variables, both separated by single spaces. */
static enum config_result load(struct config *c, const char *flags, const char *variables, struct option_error *err) {
    char words[2][512], *list[2][MAX_ARGS + 1] = {{0}};
    const char *from[2] = {flags, variables};
    int n[2] = {0, 0};
    list[0][n[0]++] = "serve";
    for (int k = 0; k < 2; k++) {
        snprintf(words[k], sizeof words[k], "%s", from[k]);
        char *rest = words[k], *word;
        while ((word = strsep(&rest, " "))) {
            if (*word && n[k] < MAX_ARGS) list[k][n[k]++] = word;
        }
    }
    err->message[0] = 0;
    return config_load(c, n[0], list[0], list[1], err);
}

static void check_error(const char *flags, const char *variables, const char *const *wanted) {
    struct config c;
    struct option_error err;
    enum config_result result = load(&c, flags, variables, &err);
    if (result != CONFIG_USAGE) fail_msg("'%s' '%s' is accepted", flags, variables);
    for (; *wanted; wanted++) {
        if (!strstr(err.message, *wanted)) fail_msg("'%s' is not in: %s", *wanted, err.message);
    }
    config_fini(&c);
}
#define ERROR(flags, variables, ...) check_error(flags, variables, (const char *const[]){__VA_ARGS__, NULL})

static const char *write_file(const char *text) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_config_%d.json", (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static void flag_goes_before_environment_before_file_before_default(void **state) {
    (void)state;
    char flags[128];
    struct config c;
    struct option_error err;
    const char *path = write_file("{\"port\": 1001, \"drain_ms\": 1002, \"sse_ping_ms\": 1003}");
    snprintf(flags, sizeof flags, "--config %s --port 3001", path);
    assert_int_equal(load(&c, flags, "RODIMUS_PORT=2001 RODIMUS_DRAIN_MS=2002 OTHER=1", &err), CONFIG_OK);
    unlink(path);
    assert_int_equal(c.port, 3001);
    assert_int_equal(c.drain_ms, 2002);
    assert_int_equal(c.sse_ping_ms, 1003);
    assert_int_equal(c.max_queue_requests, 1024);
    assert_int_equal(c.max_sessions, 65536);
    assert_string_equal(c.host, "127.0.0.1");
    config_fini(&c);
}

static void the_file_can_be_named_by_the_environment(void **state) {
    (void)state;
    char variables[128];
    struct config c;
    struct option_error err;
    const char *path = write_file("{\"slots\": 7, \"api_keys\": [\"a,b\", \"c\"], \"log_format\": null}");
    snprintf(variables, sizeof variables, "RODIMUS_CONFIG=%s", path);
    assert_int_equal(load(&c, "", variables, &err), CONFIG_OK);
    unlink(path);
    assert_int_equal(c.slots, 7);
    assert_int_equal(c.api_keys.n_items, 2);
    assert_string_equal(c.api_keys.items[0], "a,b");
    assert_string_equal(c.log_format, "text");
    config_fini(&c);
}

/* A template that was not filled in: the defaults would be other settings than the file's. */
static void an_empty_name_of_the_file_is_an_error(void **state) {
    (void)state;
    ERROR("--config=", "", "flag --config", "empty");
    ERROR("--config= --port 1", "RODIMUS_CONFIG=/nowhere.json", "flag --config", "empty");
    ERROR("", "RODIMUS_CONFIG=", "environment variable RODIMUS_CONFIG", "empty");
    struct config c;
    struct option_error err;
    char *flags[] = {"serve", "--config", ""}, *none[] = {NULL}, *empty[] = {"RODIMUS_CONFIG=", NULL}, flag[128];
    if (config_load(&c, 3, flags, none, &err) != CONFIG_USAGE) fail_msg("--config '' is taken");
    config_fini(&c);
    const char *path = write_file("{\"slots\": 7}");
    snprintf(flag, sizeof flag, "--config=%s", path);
    flags[1] = flag;
    if (config_load(&c, 2, flags, empty, &err) != CONFIG_OK) fail_msg("a flag that names the file: %s", err.message);
    unlink(path);
    assert_int_equal(c.slots, 7); /* the flag goes before the environment */
    config_fini(&c);
}

static void values_have_one_spelling_everywhere(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    assert_int_equal(
        load(&c, "--slots=auto --port=0 --api-keys=k1,k2 -m dir --device cuda:3", "RODIMUS_LOG_LEVEL=warn", &err),
        CONFIG_OK);
    assert_int_equal(c.slots, 0);
    assert_int_equal(c.port, 0);
    assert_int_equal(c.api_keys.n_items, 2);
    assert_string_equal(c.api_keys.items[1], "k2");
    assert_string_equal(c.model, "dir");
    assert_string_equal(c.device, "cuda:3");
    assert_string_equal(c.log_level, "warn");
    config_fini(&c);
}

static void errors_name_key_value_range_and_source(void **state) {
    (void)state;
    ERROR("--port 70000", "", "port", "70000", "0 to 65535", "flag --port");
    ERROR("", "RODIMUS_PORT=70000", "port", "70000", "0 to 65535", "RODIMUS_PORT");
    ERROR("--port 12x", "", "port", "12x", "whole number");
    ERROR("--port -1", "", "port", "-1", "out of range");
    ERROR("--port 99999999999999999999999", "", "port", "out of range");
    ERROR("--slots 0", "", "slots", "auto or 1");
    ERROR("--device gpu", "", "device", "gpu", "auto|cpu|cuda|cuda:N");
    ERROR("--device cuda:", "", "device");
    ERROR("--device cuda:1234567", "", "device");
    ERROR("--port", "", "--port", "needs a value");
    ERROR("--host 300.1.1.1", "", "host", "300.1.1.1", "an address", "flag --host");
    ERROR("", "RODIMUS_ADMIN_HOST=::12345", "admin_host", "::12345", "RODIMUS_ADMIN_HOST");
    ERROR("--host 127.0.0.1:80", "", "host", "without a port");
    ERROR("--host http://here", "", "host", "http://here");
    ERROR("stray", "", "stray");
}

/* A half-written file ends within a string, which may be a key; line and column say where. */
static void a_broken_file_is_told_of_without_its_words(void **state) {
    (void)state;
    static const char *const broken[] = {
        "{\"admin_key\": \"sk-secret",         "{\"api_keys\": [\"sk-one\" \"sk-secret\"]}",
        "{\"admin_key\": sk-secret}",          "{\"admin_key\": \"a\" \"sk-secret\": 1}",
        "{\"admin_key\": \"sk-secret\\u12\"}", "{\"a\": 1, \"a\": \"sk-secret\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct config c;
        struct option_error err;
        char flags[128];
        const char *path = write_file(broken[i]);
        snprintf(flags, sizeof flags, "--config %s", path);
        assert_int_equal(load(&c, flags, "", &err), CONFIG_USAGE);
        unlink(path);
        config_fini(&c);
        if (!strstr(err.message, path) || !strstr(err.message, "line 1 column ")) fail_msg("%s", err.message);
        if (strstr(err.message, "secret") || strstr(err.message, "sk")) fail_msg("%s: %s", broken[i], err.message);
    }
}

static void hosts_are_addresses_and_names(void **state) {
    (void)state;
    static const char *const good[] = {"0.0.0.0",      "127.0.0.1", "::",        "::1",
                                       "fe80::1%eth0", "localhost", "rodimus-1", "0"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct config c;
        struct option_error err;
        char flags[64];
        snprintf(flags, sizeof flags, "--host %s", good[i]);
        if (load(&c, flags, "", &err) != CONFIG_OK) fail_msg("%s: %s", flags, err.message);
        config_fini(&c);
    }
}

static void a_settings_source_is_the_one_that_holds(void **state) {
    (void)state;
    char *flags[] = {"serve", "--config", "a.json", "--max-batch-tokens-not", "5", "--max-batch-tokens=80", NULL};
    char *variables[] = {"RODIMUS_MAX_BATCH_TOKENS_=1", "RODIMUS_MAX_BATCH_TOKENS=70", NULL};
    char source[128];
    config_source("max_batch_tokens", 6, flags, variables, source, sizeof source);
    assert_string_equal(source, "flag --max-batch-tokens");
    config_source("max_batch_tokens", 5, flags, variables, source, sizeof source);
    assert_string_equal(source, "environment variable RODIMUS_MAX_BATCH_TOKENS");
    config_source("max_batch_tokens", 5, flags, variables + 2, source, sizeof source);
    assert_string_equal(source, "file a.json"); /* which cannot be read any more */
    char path[] = "/tmp/test_config_XXXXXX", want[64];
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "{\"slots\": 3}", 12) == 12 && !close(fd));
    flags[2] = path;
    snprintf(want, sizeof want, "file %s", path);
    config_source("slots", 5, flags, variables + 2, source, sizeof source);
    assert_string_equal(source, want);
    config_source("max_batch_tokens", 5, flags, variables + 2, source, sizeof source);
    assert_string_equal(source, "default");
    unlink(path);
    config_source("max_batch_tokens", 1, flags, variables + 2, source, sizeof source);
    assert_string_equal(source, "default");
}

static void unknown_names_are_errors_with_a_guess(void **state) {
    (void)state;
    ERROR("--prot 1", "", "--prot", "did you mean --port?");
    ERROR("--max_queue_requests 1", "", "--max_queue_requests", "--max-queue-requests");
    ERROR("", "RODIMUS_SLOT=1", "RODIMUS_SLOT", "did you mean RODIMUS_SLOTS?");
    ERROR("--no-such-thing-at-all 1", "", "unknown flag --no-such-thing-at-all");
}

static void variables_of_kubernetes_are_not_settings(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    assert_int_equal(load(&c, "",
                          "RODIMUS_SERVICE_HOST=10.0.0.1 RODIMUS_SERVICE_PORT=80 RODIMUS_PORT=tcp://10.0.0.1:80 "
                          "RODIMUS_PORT_80_TCP_ADDR=10.0.0.1",
                          &err),
                     CONFIG_OK);
    assert_int_equal(c.port, 8080);
    config_fini(&c);
}

static void files_are_checked_as_strictly(void **state) {
    (void)state;
    static const struct {
        const char *text, *want[3];
    } cases[] = {
        {"{\"prot\": 1}", {"prot", "did you mean port?"}},
        {"{\"port\": \"80\"}", {"port = \"80\"", "must be a number"}},
        {"{\"port\": 1.5}", {"port", "whole number"}},
        {"{\"port\": 1, \"port\": 2}", {"duplicate"}},
        {"{\"host\": 5}", {"host = 5", "must not be a number"}},
        {"{\"api_keys\": \"k\"}", {"api_keys", "array"}},
        {"{\"api_keys\": [1]}", {"api_keys[0]", "string"}},
        {"{\"host\": {}}", {"host", "object"}},
        {"[]", {"JSON object"}},
        {"{\"port\": 1", {"line 1"}},
        {"{\"config\": \"x\"}", {"config"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[128];
        const char *path = write_file(cases[i].text), *want[4] = {path};
        memcpy(want + 1, cases[i].want, sizeof cases[i].want);
        snprintf(flags, sizeof flags, "--config %s", path);
        check_error(flags, "", want);
        unlink(path);
    }
    ERROR("--config /nowhere/at/all.json", "", "/nowhere/at/all.json");
}

static void formats_of_states_are_chosen_by_name(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    assert_int_equal(load(&c, "--state-dtype fp32", "RODIMUS_WINDOW_DTYPE=int8", &err), CONFIG_OK);
    assert_string_equal(c.state_dtype, "fp32");
    assert_string_equal(c.window_dtype, "int8");
    config_fini(&c);
    ERROR("", "RODIMUS_STATE_DTYPE=fp8", "state_dtype", "auto|fp32|bf16");
    ERROR("--window-dtype e5m2", "", "window_dtype", "fp8|int8");
}

static void what_was_removed_is_refused_by_name_unless_it_is_empty(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    ERROR("--draft-model some", "", "draft_model (flag --draft-model) was removed");
    ERROR("", "RODIMUS_DRAFT_MODEL=some", "draft_model (environment variable RODIMUS_DRAFT_MODEL) was removed");
    const char *path = write_file("{\"draft_model\": \"some\"}");
    char flags[128];
    snprintf(flags, sizeof flags, "--config %s", path);
    ERROR(flags, "", path, "draft_model (", "was removed");
    unlink(path);
    path = write_file("{\"draft_model\": \"\", \"port\": 81}");
    snprintf(flags, sizeof flags, "--config %s", path);
    assert_int_equal(load(&c, flags, "RODIMUS_DRAFT_MODEL=", &err), CONFIG_OK);
    assert_int_equal(c.port, 81);
    config_fini(&c);
    unlink(path);
}

static void settings_of_sessions_are_checked(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    assert_int_equal(load(&c, "", "", &err), CONFIG_OK);
    assert_string_equal(c.session_header, "X-Session-Id");
    assert_string_equal(c.session_busy, "wait");
    assert_string_equal(c.session_durability, "turn");
    assert_int_equal(c.session_ttl_s, 86400);
    assert_string_equal(c.state_dir, "");
    assert_int_equal(c.state_host_bytes, 0); /* auto */
    assert_int_equal(c.state_disk_bytes, 0);
    config_fini(&c);
    assert_int_equal(load(&c,
                          "--state-dir /var/states --state-host-bytes 1000000 --session-busy reject --session-ttl-s 0",
                          "RODIMUS_SESSION_HEADER=X-Chat", &err),
                     CONFIG_OK);
    assert_string_equal(c.state_dir, "/var/states");
    assert_int_equal(c.state_host_bytes, 1000000);
    assert_string_equal(c.session_header, "X-Chat");
    config_fini(&c);
    ERROR("--session-busy queue", "", "session_busy", "wait");
    ERROR("--session-durability never", "", "session_durability", "lazy");
    ERROR("--session-ttl-s -1", "", "session_ttl_s");
    ERROR("--state-disk-bytes x", "", "state_disk_bytes");
    ERROR("--state-store-bytes 5", "", "state_store_bytes (flag --state-store-bytes)", "state_url is empty");
    ERROR("--session-header authorization", "", "session_header = 'authorization' (flag --session-header)", "free");
    ERROR("--session-header a:b", "", "session_header = 'a:b'", "name of a header");
    ERROR("", "RODIMUS_SESSION_HEADER=", "session_header = '' (environment variable RODIMUS_SESSION_HEADER)");
    char flags[128];
    const char *path = write_file("{\"session_header\": \"a b\"}");
    snprintf(flags, sizeof flags, "--config %s", path);
    ERROR(flags, "", "session_header = 'a b' (file ", path, "name of a header, of letters");
    unlink(path);
}

static void determinism_is_a_setting_and_variables_of_tests_are_nobodys(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    assert_int_equal(load(&c, "", "RODIMUS_TEST_FAULT_STEP=3", &err), CONFIG_OK);
    assert_false(c.deterministic);
    config_fini(&c);
    assert_int_equal(load(&c, "--deterministic", "", &err), CONFIG_OK);
    assert_true(c.deterministic);
    config_fini(&c);
    assert_int_equal(load(&c, "", "RODIMUS_DETERMINISTIC=yes", &err), CONFIG_OK);
    assert_true(c.deterministic);
    config_fini(&c);
}

static void secrets_are_not_in_messages(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    const char *path = write_file("{\"api_keys\": \"hunter2\", \"admin_key\": [\"hunter3\"]}");
    char flags[128];
    snprintf(flags, sizeof flags, "--config %s", path);
    assert_int_equal(load(&c, flags, "", &err), CONFIG_USAGE);
    assert_null(strstr(err.message, "hunter"));
    config_fini(&c);
    unlink(path);
}

static void settings_that_need_each_other_are_checked_together(void **state) {
    (void)state;
    ERROR("--tls-cert a.pem", "", "tls_cert (flag --tls-cert)", "tls_key is empty");
    ERROR("--tls-key a.pem", "", "tls_key (flag --tls-key)", "tls_cert is empty");
    ERROR("--port 8081 --admin-port 8081", "", "admin_port (flag --admin-port)", "8081");
    ERROR("--model m", "RODIMUS_SYNTHETIC=s", "'m' (flag --model)", "'s' (environment variable RODIMUS_SYNTHETIC)");
}

static void an_origin_is_what_a_browser_sends(void **state) {
    (void)state;
    static const char *const good[] = {"*",
                                       "https://app.example.com",
                                       "http://localhost:3000",
                                       "http://127.0.0.1:8080",
                                       "http://[::1]:5173",
                                       "https://x",
                                       "chrome-extension://abcdefghijklmnop",
                                       "https://xn--bcher-kva.example",
                                       "http://x:443",
                                       "https://a.example,http://b.example:81"};
    static const char *const bad[] = {"app.example.com",
                                      "https://app.example.com/",
                                      "https://app.example.com/page",
                                      "https://",
                                      "://x",
                                      "https//x",
                                      "HTTPS://x",
                                      "https://App.example",
                                      "https://x:443",
                                      "http://x:80",
                                      "http://x:0",
                                      "http://x:65536",
                                      "http://x:080",
                                      "http://x:",
                                      "http://x:1a",
                                      "http://user@x",
                                      "http://[::1",
                                      "http://[]",
                                      "http://::1",
                                      "https://*.example.com",
                                      "null",
                                      "**",
                                      "https://a.example, https://b.example"};
    struct config c;
    struct option_error err;
    char flags[128];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(flags, sizeof flags, "--cors-origins=%s", good[i]);
        if (load(&c, flags, "", &err) != CONFIG_OK) fail_msg("%s is refused: %s", good[i], err.message);
        config_fini(&c);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char variable[160];
        snprintf(variable, sizeof variable, "RODIMUS_CORS_ORIGINS=%s", bad[i]);
        char *environment[] = {variable, NULL}, *argv[] = {"serve", NULL};
        if (config_load(&c, 1, argv, environment, &err) != CONFIG_USAGE)
            fail_msg("'%s' is taken for an origin", bad[i]);
        if (!strstr(err.message, "cors_origins = '") || !strstr(err.message, "RODIMUS_CORS_ORIGINS"))
            fail_msg("%s", err.message);
        config_fini(&c);
    }
    const char *path = write_file("{\"cors_origins\": [\"https://good.example\", \"bad.example\"]}");
    snprintf(flags, sizeof flags, "--config %s", path);
    assert_int_equal(load(&c, flags, "", &err), CONFIG_USAGE);
    if (!strstr(err.message, "'bad.example'") || !strstr(err.message, path)) fail_msg("%s", err.message);
    config_fini(&c);
    unlink(path);
}

/* A variable that somebody forgot to fill must not open the server. */
static void an_empty_value_takes_no_protection_away(void **state) {
    (void)state;
    static const char *const names[] = {"api_keys", "api_key_file", "admin_key", "tls_cert", "tls_key"};
    struct config c;
    struct option_error err;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char flag[64], variable[64];
        snprintf(flag, sizeof flag, "--%s=", names[i]);
        snprintf(variable, sizeof variable, "RODIMUS_%s=", names[i]);
        for (char *at = flag; *at; at++) *at = *at == '_' ? '-' : *at;
        for (char *at = variable; *at; at++) *at = (char)toupper((unsigned char)*at);
        char *argv[] = {"serve", flag, NULL}, *environment[] = {variable, NULL}, *none[] = {NULL};
        for (int by_flag = 0; by_flag < 2; by_flag++) {
            int rc = config_load(&c, 1 + by_flag, argv, by_flag ? none : environment, &err);
            if (rc != CONFIG_USAGE) fail_msg("an empty %s is taken", by_flag ? flag : variable);
            if (!strstr(err.message, names[i]) || !strstr(err.message, "is empty")) fail_msg("%s", err.message);
            config_fini(&c);
        }
    }
    ERROR("", "RODIMUS_API_KEYS=,", "api_keys", "RODIMUS_API_KEYS", "is empty");
    /* in a file these are the defaults, and nothing stands below a file */
    const char *path = write_file("{\"api_keys\": [], \"api_key_file\": \"\", \"admin_key\": \"\"}");
    char flags[128];
    snprintf(flags, sizeof flags, "--config %s", path);
    assert_int_equal(load(&c, flags, "", &err), CONFIG_OK);
    assert_null(c.secrets_in);
    config_fini(&c);
    unlink(path);
}

static void a_text_may_be_empty_where_that_is_its_default(void **state) {
    (void)state;
    for (size_t i = 0; i < config_n_options; i++) {
        const struct option *option = &config_options[i];
        if (option->type != OPTION_STRING && option->type != OPTION_CHOICE) continue;
        char text[96], flags[128];
        struct config c;
        struct option_error err;
        snprintf(text, sizeof text, "{\"%s\": \"\"}", option->name);
        const char *path = write_file(text);
        snprintf(flags, sizeof flags, "--config %s", path);
        const bool taken = load(&c, flags, "", &err) == CONFIG_OK;
        unlink(path);
        config_fini(&c);
        if (taken != !option->fallback) fail_msg("%s is %s: %s", text, taken ? "taken" : "refused", err.message);
        if (!taken && (!strstr(err.message, option->name) || !strstr(err.message, path))) fail_msg("%s", err.message);
    }
}

static void who_uses_a_setting_says_where_it_comes_from(void **state) {
    (void)state;
    char *argv[] = {"serve", "--api-key-file", "k", "--config=c.json", NULL},
         *env[] = {"RODIMUS_API_KEYS=hunter2", NULL};
    static const char *const cases[][2] = {
        {"api_keys: twice: two", "api_keys (environment variable RODIMUS_API_KEYS): twice: two"},
        {"api_key_file: k: no", "api_key_file (flag --api-key-file): k: no"},
        {"admin_key: no", "admin_key (file c.json): no"},
        {"api_key_file k line 1: no", "api_key_file k line 1: no"},
        {"no colon", "no colon"},
        {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char message[128];
        snprintf(message, sizeof message, "%s", cases[i][0]);
        config_add_source(message, sizeof message, 4, argv, env);
        assert_string_equal(message, cases[i][1]);
    }
}

static void a_key_can_be_sent_in_a_header(void **state) {
    (void)state;
    static const char *const bad[] = {"[\"\"]", "[\"sk-good\", \"sk-hunter\\n\"]", "[\"sk hunter\"]",
                                      "[\"\\u007fhunter\"]"};
    struct config c;
    struct option_error err;
    char text[128], flags[128];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "{\"api_keys\": %s}", bad[i]);
        const char *path = write_file(text);
        snprintf(flags, sizeof flags, "--config %s", path);
        if (load(&c, flags, "", &err) != CONFIG_USAGE) fail_msg("%s are taken", bad[i]);
        if (!strstr(err.message, "api_keys") || !strstr(err.message, path) || strstr(err.message, "hunter"))
            fail_msg("%s", err.message);
        config_fini(&c);
        unlink(path);
    }
    ERROR("", "RODIMUS_ADMIN_KEY=boss\n", "admin_key", "RODIMUS_ADMIN_KEY");
}

static void a_file_that_holds_keys_is_known(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool holds;
    } cases[] = {{"{\"port\": 1}", false},
                 {"{\"api_keys\": [\"k\"]}", true},
                 {"{\"admin_key\": \"k\"}", true},
                 {"{\"api_key_file\": \"k\"}", false}};
    struct config c;
    struct option_error err;
    char flags[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = write_file(cases[i].text);
        snprintf(flags, sizeof flags, "--admin-key other --config %s", path);
        assert_int_equal(load(&c, flags, "RODIMUS_API_KEYS=other", &err), CONFIG_OK);
        if (!c.secrets_in != !cases[i].holds) fail_msg("%s: %s", cases[i].text, c.secrets_in ? "keys" : "no keys");
        config_fini(&c);
        unlink(path);
    }
}

static void a_reload_takes_what_may_change_and_names_the_rest(void **state) {
    (void)state;
    struct config now, fresh;
    struct option_error err;
    char left[64];
    assert_int_equal(load(&now, "--port 1 --slots 4 --log-level warn --api-keys a", "", &err), CONFIG_OK);
    assert_int_equal(load(&fresh,
                          "--port 2 --slots 4 --log-level debug --api-keys b,c --cors-origins http://x --drain-ms 7",
                          "", &err),
                     CONFIG_OK);
    config_take(&now, &fresh, left, sizeof left);
    assert_string_equal(left, "port, drain_ms");
    assert_int_equal(now.port, 1);
    assert_string_equal(now.log_level, "debug");
    assert_int_equal(now.api_keys.n_items, 2);
    assert_string_equal(now.api_keys.items[1], "c");
    assert_string_equal(now.cors_origins.items[0], "http://x");
    assert_string_equal(fresh.log_level, "warn");
    config_take(&now, &now, left, sizeof left);
    assert_string_equal(left, "");
    config_fini(&fresh);
    config_fini(&now);
}

/* What a row takes, in words. */
static void put_range(const struct option *option, FILE *to) {
    switch (option->type) {
    case OPTION_STRING: fputs("text", to); break;
    case OPTION_CHOICE:
        for (const char *c = option->choices; *c; c++) *c == '|' ? fputs(", ", to) : fputc(*c, to);
        break;
    case OPTION_BOOL: fputs("true, false", to); break;
    case OPTION_LIST:
    case OPTION_REPEAT: fputs("list", to); break;
    case OPTION_UINT:
    case OPTION_AUTO:
    case OPTION_INT:
    case OPTION_FLOAT:
        fprintf(to, "%s%.15g to %.15g",
                option->type == OPTION_AUTO || (option->fallback && !strcmp(option->fallback, "auto")) ? "auto, " : "",
                option->min, option->max);
        break;
    }
}

/* The rows of a Markdown table: name, default, what is taken, reload, help. */
static void options_markdown(const struct option_set *set, FILE *to) {
    for (size_t i = 0; i < set->n_options; i++) {
        const struct option *o = &set->options[i];
        const char *none = o->type == OPTION_LIST ? "[]" : "";
        fprintf(to, "| `%s`%s | %s | ", o->name, o->reload ? " (reload)" : "", o->fallback ? o->fallback : none);
        put_range(o, to);
        fprintf(to, " | %s |\n", o->help);
    }
}

/* With RODIMUS_TEST_WRITE=1 the table is written anew instead. */
static void the_readme_has_the_table(void **state) {
    (void)state;
    static const char path[] = "config/README.md", first[] = "<!-- settings -->\n",
                      last[] = "<!-- end of settings -->\n";
    struct config c = {0};
    struct option_set set = config_set(&c);
    char *table = NULL, *text = NULL;
    size_t n_table = 0, n_text = 0;
    FILE *to = open_memstream(&table, &n_table);
    fputs("| key | default | takes | |\n|---|---|---|---|\n", to);
    options_markdown(&set, to);
    fclose(to);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    to = open_memstream(&text, &n_text);
    for (int byte; (byte = fgetc(file)) != EOF;) fputc(byte, to);
    fclose(file);
    fclose(to);
    char *begin = strstr(text, first), *end = strstr(text, last);
    assert_true(begin && end && begin < end);
    begin += strlen(first);
    const bool same = (size_t)(end - begin) == n_table && !memcmp(begin, table, n_table);
    if (!same && getenv("RODIMUS_TEST_WRITE")) {
        file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "%.*s%s%s", (int)(begin - text), text, table, end);
        fclose(file);
    } else if (!same) {
        fail_msg("%s has another table; RODIMUS_TEST_WRITE=1 build/tests/unit/test_config writes this one:\n%s", path,
                 table);
    }
    free(table);
    free(text);
}

static void default_json_holds_every_key_with_its_default(void **state) {
    (void)state;
    json_error_t fault;
    json_t *root = json_load_file("config/default.json", JSON_REJECT_DUPLICATES, &fault);
    if (!root) fail_msg("config/default.json line %d: %s", fault.line, fault.text);
    for (size_t i = 0; i < config_n_options; i++) {
        const struct option *o = &config_options[i];
        const json_t *value = json_object_get(root, o->name);
        char text[64] = "";
        if (!value) fail_msg("config/default.json lacks %s", o->name);
        if (json_is_integer(value)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        if (json_is_boolean(value)) snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
        if (json_is_string(value)) snprintf(text, sizeof text, "%s", json_string_value(value));
        const char *want = o->fallback ? o->fallback : "";
        if (strcmp(text, want) != 0)
            fail_msg("%s is '%s' in config/default.json, '%s' in the table", o->name, text, want);
    }
    assert_int_equal(json_object_size(root), config_n_options);
    json_decref(root);
    struct config c;
    struct option_error err;
    if (load(&c, "--config config/default.json", "", &err) != CONFIG_OK) fail_msg("%s", err.message);
    config_fini(&c);
}

static void help_names_every_flag(void **state) {
    (void)state;
    struct config c;
    struct option_error err;
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(load(&c, "--port 1 --help", "", &err), CONFIG_HELP);
    FILE *file = open_memstream(&text, &len);
    assert_non_null(file);
    struct option_set set = config_set(&c);
    options_help(&set, file, 100);
    fclose(file);
    for (size_t i = 0; i < config_n_options; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", config_options[i].name);
        for (char *at = flag; *at; at++) *at = *at == '_' ? '-' : *at;
        if (!strstr(text, flag)) fail_msg("%s is not in --help", flag);
    }
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        size_t n = strcspn(line, "\n");
        if (n > 100) fail_msg("a line of --help has %zu columns: %.*s", n, (int)n, line);
    }
    free(text);
    config_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flag_goes_before_environment_before_file_before_default),
        cmocka_unit_test(the_file_can_be_named_by_the_environment),
        cmocka_unit_test(an_empty_name_of_the_file_is_an_error),
        cmocka_unit_test(values_have_one_spelling_everywhere),
        cmocka_unit_test(errors_name_key_value_range_and_source),
        cmocka_unit_test(a_broken_file_is_told_of_without_its_words),
        cmocka_unit_test(hosts_are_addresses_and_names),
        cmocka_unit_test(a_settings_source_is_the_one_that_holds),
        cmocka_unit_test(unknown_names_are_errors_with_a_guess),
        cmocka_unit_test(variables_of_kubernetes_are_not_settings),
        cmocka_unit_test(files_are_checked_as_strictly),
        cmocka_unit_test(formats_of_states_are_chosen_by_name),
        cmocka_unit_test(what_was_removed_is_refused_by_name_unless_it_is_empty),
        cmocka_unit_test(settings_of_sessions_are_checked),
        cmocka_unit_test(determinism_is_a_setting_and_variables_of_tests_are_nobodys),
        cmocka_unit_test(secrets_are_not_in_messages),
        cmocka_unit_test(settings_that_need_each_other_are_checked_together),
        cmocka_unit_test(an_origin_is_what_a_browser_sends),
        cmocka_unit_test(an_empty_value_takes_no_protection_away),
        cmocka_unit_test(a_text_may_be_empty_where_that_is_its_default),
        cmocka_unit_test(who_uses_a_setting_says_where_it_comes_from),
        cmocka_unit_test(a_key_can_be_sent_in_a_header),
        cmocka_unit_test(a_file_that_holds_keys_is_known),
        cmocka_unit_test(a_reload_takes_what_may_change_and_names_the_rest),
        cmocka_unit_test(the_readme_has_the_table),
        cmocka_unit_test(default_json_holds_every_key_with_its_default),
        cmocka_unit_test(help_names_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
