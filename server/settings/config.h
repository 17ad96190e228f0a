/* config.h - every setting of `rodimus serve`, from one table (config.c).
 *
 * Flag over environment over --config FILE over default; config/default.json holds every key and is checked against the
 * table by tests/unit/server/test_config.c. Ownership: strings and lists belong to the struct; config_fini frees
 * them.
 */
#ifndef CONFIG_H
#define CONFIG_H

#include "options.h"

struct config {
    /* model */
    char *model, *synthetic, *adapter, *model_name, *device, *precision, *weights, *window_dtype, *state_dtype,
        *speculative;
    uint64_t threads;
    bool deterministic;
    /* network */
    char *host, *listen;
    uint64_t port, connection_limit, body_max_bytes, idle_timeout_ms, stream_buffer_bytes;
    /* scheduling and limits */
    double prompt_share; /* NAN: auto */
    uint64_t slots, max_batch_tokens, max_queue_requests, max_queue_tokens, max_prompt_tokens, default_max_tokens;
    uint64_t request_timeout_ms, sse_ping_ms, drain_notice_ms, drain_ms, stall_ms, stall_exit_s;
    /* access */
    struct option_list api_keys, cors_origins;
    char *api_key_file, *admin_key, *admin_host, *tls_cert, *tls_key;
    uint64_t admin_port;
    /* logs */
    char *log_level, *log_format;
    /* sessions */
    char *session_header, *session_busy, *session_durability, *state_dir;
    char *state_url, *state_endpoint, *state_region, *state_style, *state_credentials, *state_encryption;
    uint64_t state_timeout_ms, state_connections, state_flight_bytes;
    uint64_t session_ttl_s, session_keep_turns, max_sessions, state_host_bytes, state_disk_bytes, state_store_bytes;
    uint64_t prefix_cache_bytes;
    const char
        *secrets_in; /* the file of settings, if it holds keys; else NULL. Part of the flags or the environment */
};

extern const struct option config_options[];
extern const size_t config_n_options;
struct option_set config_set(struct config *config);

enum config_result { CONFIG_OK, CONFIG_HELP, CONFIG_USAGE };

/* Reads defaults, file, environment and flags. CONFIG_USAGE: err says which key, value and source is at fault, and
 * log_format is what flag or variable say, or else the file, also behind its fault; NULL without memory.
 * Whatever the result, config_fini must be called. */
enum config_result config_load(struct config *config, int argc, char **argv, char **environment,
                               struct option_error *err);
/* Where a setting that somebody gave comes from, in the words of the messages about values: "flag --port". */
void config_source(const char *name, int argc, char **argv, char **environment, char *out, size_t size);
/* Adds to a message "setting: fault" where the setting comes from; other messages stay as they are. */
void config_add_source(char *message, size_t size, int argc, char **argv, char **environment);
/* The file of settings that flag or variable name; NULL: there is none, or an empty name. */
const char *config_file(int argc, char **argv, char **environment);
/* Takes from `from` what a reload may change. Names of other settings that differ go to left, separated by commas. */
void config_take(struct config *config, struct config *from, char *left, size_t size);
void config_fini(struct config *config);

#endif
