/* config.c - the table, and the order of the sources. */
#include "config.h"
#include "server/base/buf.h"
#include "flag_help.h"
#include "server/base/file_text.h"
#include "engine/base/json_guard.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define AT(member)       .offset = offsetof(struct config, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define MODEL            .group = "Model"
#define NETWORK          .group = "Network"
#define LIMITS           .group = "Scheduling and limits"
#define ACCESS           .group = "Access"
#define LOGS             .group = "Logs"
#define DAY_MS           86400000.0
#define HUGE             1e15 /* exact in a double, beyond any real limit */

#define SESSIONS    .group = "Sessions"
#define SECONDS_MAX 1099511627776.0 /* 2^40, some 35,000 years */
#define RELOAD      .reload = true
#define GUARD                                                                                                          \
    .never_empty = true, .reload = true /* protects: nobody switches it off by a variable that was not filled in */

/* What a browser sends as Origin: scheme://host[:port] in lower case, without the scheme's own port; the comparison is
 * of bytes, so that what is spelt in another way would never match. */
static bool is_origin(const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz", digits[] = "0123456789";
    const size_t n_scheme = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
    if (!strspn(text, letters) || strncmp(text + n_scheme, "://", 3) != 0) return false;
    const char *host = text + n_scheme + 3;
    const bool six = *host == '[';
    size_t n_host =
        six ? 1 + strspn(host + 1, "0123456789abcdef:.") : strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    if (six && (n_host < 3 || host[n_host++] != ']')) return false;
    const char *port = host + n_host;
    if (!n_host) return false;
    if (!*port) return true;
    const size_t n_port = strspn(port + 1, digits);
    if (*port != ':' || !n_port || n_port > 5 || port[1 + n_port] || port[1] == '0') return false;
    const long number = strtol(port + 1, NULL, 10);
    const bool own = (number == 443 && !strncmp(text, "https:", 6)) || (number == 80 && !strncmp(text, "http:", 5));
    return number <= 65535 && !own;
}

static const char *check_origin(const char *text) {
    if (!strcmp(text, "*") || is_origin(text)) return NULL;
    return "* or an origin as browsers send it: scheme://host or scheme://host:port in lower case, with no path and "
           "not the "
           "scheme's own port";
}

static const char *check_names(const char *text) {
    const size_t n = strlen(text);
    bool good = !n || (text[0] != ',' && text[n - 1] != ',' && !strstr(text, ",,"));
    for (size_t at = 0; strchr(text, ',') && good && at < n; at += buf_utf8(text + at, n - at))
        good = buf_utf8(text + at, n - at) != 0;
    if (good && (!strncmp(text, "*,", 2) || strstr(text, ",*,"))) return "names with * as the last one: any other name";
    return good ? NULL : "a name, or names in UTF-8 with commas between them and none empty";
}

/* Only characters that an HTTP header can carry. */
static const char *check_key(const char *text) {
    bool good = *text != 0;
    for (const char *c = text; *c; c++) good = good && (unsigned char)*c > ' ' && *c != 0x7f;
    return good ? NULL : "a key: characters without blanks, line breaks and other control characters";
}

/* A name may be anybody's; what looks like an address must be one. */
static bool is_host(const char *text) {
    if (strchr(text, ':')) {
        char six[INET6_ADDRSTRLEN] = "";
        struct in6_addr address;
        const size_t n = strcspn(text, "%"); /* an interface may follow */
        if (n < sizeof six) memcpy(six, text, n);
        return inet_pton(AF_INET6, six, &address) == 1;
    }
    struct in_addr address;
    if (strspn(text, "0123456789.") == strlen(text)) return inet_aton(text, &address) != 0;
    return !text[strcspn(text, "/ \t[]")];
}

static const char *check_host(const char *text) {
    return is_host(text) ? NULL : "an address or the name of a host, without a port";
}

/* A header's name is a token of HTTP, and those that say something else are not free for it. */
static const char *check_header(const char *text) {
    static const char *const taken[] = {"Authorization", "X-Api-Key",         "X-Request-Id",    "Idempotency-Key",
                                        "Host",          "Content-Type",      "Content-Length",  "Connection",
                                        "Expect",        "Transfer-Encoding", "Content-Encoding"};
    static const char token[] = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (!*text || strspn(text, token) != strlen(text))
        return "the name of a header, of letters, digits and !#$%&'*+-.^_`|~";
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcasecmp(text, taken[i])) return "a header that is free: in every request it says something else";
    return NULL;
}

/* The value is secret in errors: it may have a password in it. The store's client checks the rest. */
static const char *check_state_url(const char *text) {
    if (!*text) return NULL;
    if (strchr(text, '@'))
        return "s3://BUCKET/PREFIX without credentials: they come from state_credentials or the environment";
    return strncmp(text, "s3://", 5) || !text[5] || text[5] == '/' ? "s3://BUCKET/PREFIX" : NULL;
}

static const char *check_state_endpoint(const char *text) {
    if (!*text) return NULL;
    if (strchr(text, '@')) return "a URL without credentials: they come from state_credentials or the environment";
    return strncmp(text, "http://", 7) && strncmp(text, "https://", 8) ? "http://HOST[:PORT] or https://HOST[:PORT]"
                                                                       : NULL;
}

/* clang-format off */
const struct option config_options[] = {
    {"model", OPTION_STRING, AT(model), MODEL, .letter = 'm', .metavar = "DIR",
     .help = "checkpoint directory: config.json, *.safetensors, tokenizer.json; without it the bundled demo model"},
    {"synthetic", OPTION_STRING, AT(synthetic), MODEL, .metavar = "NAME",
     .help = SYNTHETIC_HELP "; to measure a machine, prompts are token ids"},
    {"adapter", OPTION_STRING, AT(adapter), MODEL, .metavar = "DIR",
     .help = ADAPTER_HELP},
    {"model_name", OPTION_STRING, AT(model_name), MODEL, .metavar = "NAME", .check = check_names,
     .help = "name in /v1/models and in the requests' \"model\"; several with commas between them: answers have the first; "
             "a last * takes any other; without it the directory's last component"},
    {"device", OPTION_CHOICE, AT(device), MODEL, .fallback = "auto", .choices = "auto|cpu|cuda|cuda:N|null|null:N", .metavar = "NAME",
     .help = "auto, cpu, cuda or cuda:N; null computes nothing, null:N takes N ms a step: to measure the server"},
    {"precision", OPTION_CHOICE, AT(precision), MODEL, .fallback = "auto", .choices = "auto|fp32|bf16|fp16", .metavar = "NAME",
     .help = PRECISION_HELP},
    {"weights", OPTION_CHOICE, AT(weights), MODEL, .fallback = "auto", .choices = "auto|fp8|int8|int4", .metavar = "NAME",
     .help = WEIGHTS_HELP},
    {"window_dtype", OPTION_CHOICE, AT(window_dtype), MODEL, .fallback = "auto", .choices = WINDOW_DTYPES, .metavar = "NAME",
     .help = WINDOW_DTYPE_HELP},
    {"state_dtype", OPTION_CHOICE, AT(state_dtype), MODEL, .fallback = "auto", .choices = STATE_DTYPES, .metavar = "NAME",
     .help = STATE_DTYPE_HELP},
    {"threads", OPTION_AUTO, AT(threads), MODEL, .fallback = "auto", RANGE(1, 1024),
     .help = THREADS_HELP},
    {"deterministic", OPTION_BOOL, AT(deterministic), MODEL, .fallback = "false",
     .help = "a GPU gives a session the same bits in steps of any size, not only within a batch bucket; the CPU always does"},
    {"speculative", OPTION_CHOICE, AT(speculative), MODEL, .fallback = "auto", .choices = "auto|lookup|none", .metavar = "NAME",
     .help = "drafts, so that a step may give several tokens, and never others: auto, from all sources where they pay; lookup, "
             "from the conversation alone; none"},

    {"host", OPTION_STRING, AT(host), NETWORK, .fallback = "127.0.0.1", .metavar = "ADDRESS", .check = check_host,
     .help = "address to listen on; 0.0.0.0 or :: for all"},
    {"port", OPTION_UINT, AT(port), NETWORK, .fallback = "8080", RANGE(0, 65535),
     .help = "port to listen on; 0 takes a free one and prints it"},
    {"listen", OPTION_CHOICE, AT(listen), NETWORK, .fallback = "early", .choices = "early|ready|shared", .metavar = "WHEN",
     .help = "early: while the model is loaded the port answers, health with 503; ready: it refuses connections until then, "
             "for balancers that ask nobody's health (nginx); shared: as ready, and another server of the same user may have "
             "the port too (SO_REUSEPORT), so that one takes over while the other drains"},
    {"connection_limit", OPTION_UINT, AT(connection_limit), NETWORK, .fallback = "4096", RANGE(8, 1000000),
     .help = "open connections; keep it well above slots + max-queue-requests"},
    {"body_max_bytes", OPTION_UINT, AT(body_max_bytes), NETWORK, .fallback = "8388608", RANGE(1024, 1073741824),
     .help = "largest request body; larger ones get 413"},
    {"idle_timeout_ms", OPTION_UINT, AT(idle_timeout_ms), NETWORK, .fallback = "60000", RANGE(1000, DAY_MS),
     .help = "a connection that sends and takes nothing for so long is closed, and so is one that needs longer for its headers"},
    {"stream_buffer_bytes", OPTION_UINT, AT(stream_buffer_bytes), NETWORK, .fallback = "1048576", RANGE(4096, 1073741824),
     .help = "a stream whose client lets so much pile up unread is cancelled"},

    {"slots", OPTION_AUTO, AT(slots), LIMITS, .fallback = "auto", RANGE(1, 65536),
     .help = "requests that run at once, each with a session's memory; auto = what fits the device"},
    {"max_batch_tokens", OPTION_AUTO, AT(max_batch_tokens), LIMITS, .fallback = "auto", RANGE(1, 1048576),
     .help = "most tokens of one step: one of each session that generates, and pieces of prompts"},
    {"prompt_share", OPTION_FLOAT, AT(prompt_share), LIMITS, .fallback = "auto", RANGE(0, 0.7), .metavar = "PART",
     .help = "part of a GPU that reads long prompts beside streams, so that these wait little for a token; 0 = none: prompts are "
             "read in steps; auto = 0.25 where the device can"},
    {"max_queue_requests", OPTION_UINT, AT(max_queue_requests), LIMITS, .fallback = "1024", RANGE(0, 1000000),
     .help = "requests that may wait beyond the free slots; more get 429"},
    {"max_queue_tokens", OPTION_UINT, AT(max_queue_tokens), LIMITS, .fallback = "4194304", RANGE(0, HUGE),
     .help = "prompt tokens that may wait; more get 429; 0 = no limit"},
    {"max_prompt_tokens", OPTION_UINT, AT(max_prompt_tokens), LIMITS, .fallback = "1048576", RANGE(1, 2147483647),
     .help = "longest prompt; longer ones get 400"},
    {"default_max_tokens", OPTION_AUTO, AT(default_max_tokens), LIMITS, .fallback = "auto", RANGE(1, 2147483647),
     .help = "end of an answer whose chat or response names no limit; auto = 2048, for responses max_prompt_tokens less the prompt"},
    {"request_timeout_ms", OPTION_UINT, AT(request_timeout_ms), LIMITS, .fallback = "600000", RANGE(0, DAY_MS),
     .help = "a request that waits longer for a slot gets 408; 0 = no limit"},
    {"sse_ping_ms", OPTION_UINT, AT(sse_ping_ms), LIMITS, .fallback = "15000", RANGE(0, DAY_MS),
     .help = "comment line on a stream after so much silence; 0 = never"},
    {"drain_notice_ms", OPTION_UINT, AT(drain_notice_ms), LIMITS, .fallback = "1000", RANGE(0, DAY_MS),
     .help = "after SIGTERM the server says for so long that it is not ready and still takes requests: at least two checks "
             "of the balancer"},
    {"drain_ms", OPTION_UINT, AT(drain_ms), LIMITS, .fallback = "30000", RANGE(0, DAY_MS),
     .help = "after that no more are taken, and requests that run may go on for so long"},

    {"stall_ms", OPTION_UINT, AT(stall_ms), LIMITS, .fallback = "60000", RANGE(100, DAY_MS),
     .help = "health turns 503 when no step has ended for so long although work waits"},
    {"stall_exit_s", OPTION_UINT, AT(stall_exit_s), LIMITS, .fallback = "0", RANGE(0, 86400),
     .help = "the process ends with status 3 when no step has ended for so many seconds although work waits, so that what "
             "runs it starts it again; 0 = never"},

    {"api_keys", OPTION_LIST, AT(api_keys), ACCESS, .metavar = "KEY,...", .secret = true, GUARD, .check = check_key,
     .help = "keys that clients must send (Authorization: Bearer or X-Api-Key); prefer --api-key-file, flags show in ps"},
    {"api_key_file", OPTION_STRING, AT(api_key_file), ACCESS, .metavar = "FILE", GUARD,
     .help = "more keys, one a line, each with a name and limits if wanted: KEY name=team requests=8 "
             "tokens_per_minute=60000 sessions=1000 priority=2"},
    {"admin_key", OPTION_STRING, AT(admin_key), ACCESS, .metavar = "KEY", .secret = true, GUARD, .check = check_key,
     .help = "where it is set, the only key for the admin routes (metrics, slots, states of sessions, pinned prefixes); it opens no other route"},
    {"admin_port", OPTION_UINT, AT(admin_port), ACCESS, .fallback = "0", RANGE(0, 65535),
     .help = "a second listener, on a thread of its own, for health and the admin routes (states too); 0 = on the main port only"},
    {"admin_host", OPTION_STRING, AT(admin_host), ACCESS, .fallback = "127.0.0.1", .metavar = "ADDRESS", .check = check_host,
     .help = "address of that listener, which speaks HTTP without TLS; 0.0.0.0 for probes and scrapers of a trusted network"},
    {"cors_origins", OPTION_LIST, AT(cors_origins), ACCESS, .metavar = "ORIGIN,...", RELOAD, .check = check_origin,
     .help = "web pages of these origins may call the API from a browser (https://app.example.com, or * for all)"},
    {"tls_cert", OPTION_STRING, AT(tls_cert), ACCESS, .metavar = "FILE", GUARD,
     .help = "PEM file with the certificate and its chain: the port then speaks TLS"},
    {"tls_key", OPTION_STRING, AT(tls_key), ACCESS, .metavar = "FILE", GUARD,
     .help = "PEM file with its private key"},

    {"log_level", OPTION_CHOICE, AT(log_level), LOGS, RELOAD, .fallback = "info", .choices = "debug|info|warn|error", .metavar = "LEVEL",
     .help = "debug, info, warn or error; info has one line a request, never its text"},
    {"log_format", OPTION_CHOICE, AT(log_format), LOGS, .fallback = "text", .choices = "text|json", .metavar = "FORMAT",
     .help = "text or json, on stderr"},

    {"session_header", OPTION_STRING, AT(session_header), SESSIONS, .fallback = "X-Session-Id", .metavar = "NAME", .check = check_header,
     .help = "header that names a conversation, or beside the body's session_id leads to a server"},
    {"session_busy", OPTION_CHOICE, AT(session_busy), SESSIONS, .fallback = "wait", .choices = "wait|reject", .metavar = "HOW",
     .help = "a turn of a session whose turn is running: wait, in its order, or reject, with 429"},
    {"session_durability", OPTION_CHOICE, AT(session_durability), SESSIONS, .fallback = "turn", .choices = "turn|lazy", .metavar = "WHEN",
     .help = "turn: a turn is on disk before its answer ends; lazy: it is written when the session idles or leaves memory, and at drain"},
    {"session_ttl_s", OPTION_UINT, AT(session_ttl_s), SESSIONS, .fallback = "86400", RANGE(0, SECONDS_MAX),
     .help = "a session that is not used for so many seconds is removed, unless it says otherwise; 0 = never"},
    {"session_keep_turns", OPTION_UINT, AT(session_keep_turns), SESSIONS, .fallback = "0", RANGE(0, 16),
     .help = "earlier turns that a session keeps to go back to, unless it says otherwise; each takes a state of disk, or of memory"},
    {"max_sessions", OPTION_UINT, AT(max_sessions), SESSIONS, .fallback = "65536", RANGE(1, 1000000000),
     .help = "sessions that there are at once, pinned ones and responses that are kept too; more get 429"},
    {"state_dir", OPTION_STRING, AT(state_dir), SESSIONS, .metavar = "DIR",
     .help = "directory of files of sessions and pinned prefixes, perhaps shared with other servers; beside state_url a cache of it; without both sessions end with the process"},
    {"state_url", OPTION_STRING, AT(state_url), SESSIONS, .metavar = "URL", .secret = true, .check = check_state_url,
     .help = STATE_URL_HELP},
    {"state_endpoint", OPTION_STRING, AT(state_endpoint), SESSIONS, .metavar = "URL", .secret = true, .check = check_state_endpoint,
     .help = STATE_ENDPOINT_HELP},
    {"state_region", OPTION_STRING, AT(state_region), SESSIONS, .metavar = "NAME",
     .help = STATE_REGION_HELP},
    {"state_style", OPTION_CHOICE, AT(state_style), SESSIONS, .fallback = "auto", .choices = "auto|path|virtual", .metavar = "HOW",
     .help = STATE_STYLE_HELP},
    {"state_credentials", OPTION_STRING, AT(state_credentials), SESSIONS, .metavar = "FILE",
     .help = STATE_CREDENTIALS_HELP},
    {"state_encryption", OPTION_CHOICE, AT(state_encryption), SESSIONS, .fallback = "none", .choices = "none|AES256|aws:kms", .metavar = "HOW",
     .help = "of objects by the store: none, AES256 or aws:kms"},
    {"state_timeout_ms", OPTION_UINT, AT(state_timeout_ms), SESSIONS, .fallback = "8000", RANGE(100, 600000),
     .help = STATE_TIMEOUT_HELP},
    {"state_connections", OPTION_UINT, AT(state_connections), SESSIONS, .fallback = "16", RANGE(1, 1024),
     .help = "to the store, at once"},
    {"state_flight_bytes", OPTION_UINT, AT(state_flight_bytes), SESSIONS, .fallback = "1073741824", RANGE(1048576, HUGE),
     .help = "on their way to and from the store, at once"},
    {"state_store_bytes", OPTION_UINT, AT(state_store_bytes), SESSIONS, .fallback = "0", RANGE(0, HUGE),
     .help = STATE_STORE_HELP},
    {"state_host_bytes", OPTION_AUTO, AT(state_host_bytes), SESSIONS, .fallback = "auto", RANGE(1, HUGE),
     .help = "host memory for states that are in no slot, and for all else that sessions take; auto = a part of the machine's"},
    {"state_disk_bytes", OPTION_UINT, AT(state_disk_bytes), SESSIONS, .fallback = "0", RANGE(0, HUGE),
     .help = "what files of sessions and conversations take of the disk, conversations half of it; those used longest ago go first; 0 = no limit"},
    {"prefix_cache_bytes", OPTION_UINT, AT(prefix_cache_bytes), SESSIONS, .fallback = "4294967296", RANGE(0, HUGE),
     .help = "host memory for states of beginnings of prompts: at most half of "
             "state-host-bytes, and taken as it fills; 0 = every prompt is read from its first token"},
};
/* clang-format on */
const size_t config_n_options = sizeof config_options / sizeof *config_options;

/* An empty value asks for nothing: files that hold every key of an older version still open. */
static const struct option removed[] = {
    {"draft_model", .removed = "no measurement showed a gain; drafts come from the conversation and from predictions"},
};

struct option_set config_set(struct config *config) {
    struct option_set set = OPTION_SET(config_options, config);
    set.removed = removed, set.n_removed = sizeof removed / sizeof *removed;
    return set;
}

/* What a flag says, or else its variable; the last one wins, as with every flag. NULL: neither is there. */
static const char *given_value(const char *name, const char *variable, int argc, char **argv, char **environment,
                               const char **source) {
    const char *value = NULL;
    const size_t n = strlen(name), n_variable = strlen(variable);
    for (char **at = environment; at && *at; at++) {
        if (strncmp(*at, variable, n_variable) != 0 || (*at)[n_variable] != '=') continue;
        value = *at + n_variable + 1;
        *source = "environment variable ";
    }
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, n) != 0) continue;
        const char *rest = argv[i] + n;
        if (*rest == '=')
            value = rest + 1;
        else if (!*rest && i + 1 < argc)
            value = argv[++i];
        else
            continue;
        *source = "flag ";
    }
    return value;
}

/* --config is no row of the table: a file cannot name a file. An empty name is a template that was not filled in, and
 * the defaults are not what its file says. */
static int config_path(int argc, char **argv, char **environment, const char **path, struct option_error *err) {
    const char *source = "";
    *path = given_value("--config", "RODIMUS_CONFIG", argc, argv, environment, &source);
    if (!*path || **path) return 0;
    snprintf(err->message, sizeof err->message, "config (%s%s) is empty; leave it out.", source,
             *source == 'f' ? "--config" : "RODIMUS_CONFIG");
    return -1;
}

const char *config_file(int argc, char **argv, char **environment) {
    const char *path;
    struct option_error err;
    return config_path(argc, argv, environment, &path, &err) ? NULL : path;
}

/* Whether the file has the setting; yes, where that cannot be read any more. */
static bool file_sets(const char *path, const char *name) {
    char why[400];
    struct file_bytes text;
    if (file_text(path, &text, why, sizeof why)) return true;
    json_error_t fault;
    json_guard_wipe(true);
    json_t *settings = json_guard_load(text.data, text.n, 0, &fault);
    const bool sets = !json_is_object(settings) || json_object_get(settings, name);
    json_decref(settings);
    json_guard_wipe(false);
    explicit_bzero(&fault, sizeof fault);
    file_wipe(&text);
    return sets;
}

void config_source(const char *name, int argc, char **argv, char **environment, char *out, size_t size) {
    char flag[64], variable[64];
    const char *kind = "", *path = config_file(argc, argv, environment);
    const size_t n = (size_t)snprintf(flag, sizeof flag, "--%s", name);
    for (size_t i = 2; i < n; i++) flag[i] = flag[i] == '_' ? '-' : flag[i];
    snprintf(variable, sizeof variable, "RODIMUS_%s", name);
    for (char *c = variable; *c; c++) *c = (char)toupper((unsigned char)*c);
    if (given_value(flag, variable, argc, argv, environment, &kind))
        snprintf(out, size, "%s%s", kind, *kind == 'f' ? flag : variable);
    else if (path && file_sets(path, name))
        snprintf(out, size, "file %s", path);
    else
        snprintf(out, size, "default");
}

void config_add_source(char *message, size_t size, int argc, char **argv, char **environment) {
    char name[64], source[256], rest[512];
    const size_t n = strcspn(message, ":");
    if (n >= sizeof name || !message[n]) return;
    snprintf(name, sizeof name, "%.*s", (int)n, message);
    const struct option_set set = config_set(NULL);
    if (!options_find(&set, name)) return;
    config_source(name, argc, argv, environment, source, sizeof source);
    snprintf(rest, sizeof rest, "%s", message + n);
    snprintf(message, size, "%s (%s)%s", name, source, rest);
}

/* What says nothing without a store was meant for one. */
static int check_store(const struct config *c, int argc, char **argv, char **environment, struct option_error *err) {
    const struct {
        const char *name, *value;
    } rows[] = {{"state_endpoint", c->state_endpoint},
                {"state_region", c->state_region},
                {"state_credentials", c->state_credentials},
                {"state_store_bytes", c->state_store_bytes ? "set" : ""}};
    char source[120];
    for (size_t i = 0; !*c->state_url && i < sizeof rows / sizeof *rows; i++) {
        if (!*rows[i].value) continue;
        config_source(rows[i].name, argc, argv, environment, source, sizeof source);
        snprintf(err->message, sizeof err->message, "%s (%s) is set and state_url is empty; set both.", rows[i].name,
                 source);
        return -1;
    }
    return 0;
}

/* What one row cannot say: settings that need each other, or exclude. */
static int check_together(const struct config *c, int argc, char **argv, char **environment, struct option_error *err) {
    char from[2][120];
    if (!*c->tls_cert != !*c->tls_key) {
        const char *there = *c->tls_cert ? "tls_cert" : "tls_key", *missing = *c->tls_cert ? "tls_key" : "tls_cert";
        config_source(there, argc, argv, environment, from[0], sizeof from[0]);
        snprintf(err->message, sizeof err->message, "%s (%s) is set and %s is empty; set both.", there, from[0],
                 missing);
        return -1;
    }
    if (*c->model && *c->synthetic) {
        config_source("model", argc, argv, environment, from[0], sizeof from[0]);
        config_source("synthetic", argc, argv, environment, from[1], sizeof from[1]);
        snprintf(err->message, sizeof err->message,
                 "model '%.100s' (%s) and synthetic '%.40s' (%s) exclude each other; give one.", c->model, from[0],
                 c->synthetic, from[1]);
        return -1;
    }
    if (c->admin_port && c->admin_port == c->port) {
        config_source("admin_port", argc, argv, environment, from[0], sizeof from[0]);
        snprintf(err->message, sizeof err->message, "admin_port (%s) and port are both %llu; give each its own.",
                 from[0], (unsigned long long)c->port);
        return -1;
    }
    return check_store(c, argc, argv, environment, err);
}

/* Which log the file asks for, also where it breaks off or holds what it must not: the fault is told in that log. */
static void find_format(const struct option_set *set, const char *text) {
    static const char name[] = "\"log_format\"", blanks[] = " \t\r\n";
    const struct option *option = options_find(set, "log_format");
    const char *at = strstr(text, name);
    if (!at || !option) return;
    at += sizeof name - 1;
    at += strspn(at, blanks);
    if (*at++ != ':') return;
    at += strspn(at, blanks);
    if (*at++ != '"') return;
    char value[8];
    struct option_error other;
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\""), at);
    options_set(set, option, value, "", &other);
}

static int read_file(const struct option_set *set, const char *path, struct option_error *err) {
    char source[256], why[400];
    struct file_bytes text;
    if (file_text(path, &text, why, sizeof why)) {
        snprintf(err->message, sizeof err->message, "config: %s.", why);
        return -1;
    }
    snprintf(source, sizeof source, "file %s", path);
    const int rc = options_from_json_text(set, text.data, text.n, source, err);
    if (rc) find_format(set, text.data);
    file_wipe(&text);
    return rc;
}

static enum config_result read_all(struct config *config, int argc, char **argv, char **environment,
                                   struct option_error *err) {
    *config = (struct config){0};
    struct option_set set = config_set(config);
    bool help = false;
    if (options_init(&set, err)) return CONFIG_USAGE;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return CONFIG_HELP;
    }
    const char *path;
    if (config_path(argc, argv, environment, &path, err)) return CONFIG_USAGE;
    if (path && read_file(&set, path, err)) return CONFIG_USAGE;
    if (config->api_keys.n_items || *config->admin_key) config->secrets_in = path;
    if (options_from_environment(&set, environment, err)) return CONFIG_USAGE;
    if (options_from_flags(&set, argc, argv, "config", &help, err)) return CONFIG_USAGE;
    return check_together(config, argc, argv, environment, err) ? CONFIG_USAGE : CONFIG_OK;
}

enum config_result config_load(struct config *config, int argc, char **argv, char **environment,
                               struct option_error *err) {
    enum config_result result = read_all(config, argc, argv, environment, err);
    if (result != CONFIG_USAGE) return result;
    /* What was not reached any more, but for the format in which the error is to be said. */
    struct option_set set = config_set(config);
    struct option_error other;
    const char *source = "",
               *format = given_value("--log-format", "RODIMUS_LOG_FORMAT", argc, argv, environment, &source);
    const struct option *option = options_find(&set, "log_format");
    if (format && option && config->log_format) options_set(&set, option, format, source, &other);
    return result;
}

void config_take(struct config *config, struct config *from, char *left, size_t size) {
    struct option_set into = config_set(config), other = config_set(from);
    size_t n = 0;
    if (size) *left = 0;
    for (size_t i = 0; i < config_n_options; i++) {
        const struct option *option = &config_options[i];
        if (option->reload) {
            options_swap(&into, &other, option);
        } else if (options_differ(&into, &other, option) && n < size) {
            n += (size_t)snprintf(left + n, size - n, "%s%s", n ? ", " : "", option->name);
        }
    }
}

void config_fini(struct config *config) {
    struct option_set set = config_set(config);
    options_fini(&set);
}
