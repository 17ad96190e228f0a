/* metrics.c - see metrics.h. */
#include "metrics.h"

#include "server/base/version.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* From half a millisecond (a token of a small model on a GPU) to two minutes (a long queue). */
static const uint64_t bounds_us[METRICS_BOUNDS] = {500,     1000,     2500,     5000,     10000,   25000,
                                                   50000,   100000,   250000,   500000,   1000000, 2500000,
                                                   5000000, 10000000, 30000000, 120000000};

static const unsigned codes[METRICS_CODES] = {200, 201, 204, 400, 401, 403, 404, 405, 408, 411, 412, 413,
                                              415, 417, 423, 429, 431, 499, 500, 501, 503, 504, 507, 0};

void metrics_request(struct metrics *m, unsigned route, unsigned status) {
    unsigned at = 0;
    while (codes[at] && codes[at] != status) at++;
    assert(route < METRICS_ROUTES && at < METRICS_CODES);
    m->requests[route][at]++;
}

void metrics_observe(struct metrics_histogram *h, double seconds) {
    unsigned at = 0;
    while (at < METRICS_BOUNDS && seconds * 1e6 > (double)bounds_us[at]) at++;
    h->count[at]++;
    h->sum_ns += seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

static void put_head(struct buf *out, const char *name, const char *type, const char *help) {
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A counter's name ends in _total. */
static void put(struct buf *out, const char *name, const char *help, uint64_t number) {
    const size_t n = strlen(name);
    put_head(out, name, n > 6 && !strcmp(name + n - 6, "_total") ? "counter" : "gauge", help);
    buf_addf(out, "%s %llu\n", name, (unsigned long long)number);
}

static void put_fraction(struct buf *out, const char *name, const char *type, const char *help, double number) {
    put_head(out, name, type, help);
    buf_addf(out, "%s %.15g\n", name, number);
}

/* Cumulative counts, the last one all; unit: what one of the bounds counts in. label: "" or one, as it is written. */
static void put_series(struct buf *out, const char *name, const char *label, const uint64_t *bounds, double unit,
                       const uint64_t *bucket, unsigned n, double sum) {
    const unsigned long long all = bucket[n - 1];
    const char *comma = *label ? "," : "", *open = *label ? "{" : "", *close = *label ? "}" : "";
    for (unsigned i = 0; i + 1 < n; i++)
        buf_addf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, label, comma, (double)bounds[i] * unit,
                 (unsigned long long)bucket[i]);
    buf_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_sum%s%s%s %.9g\n%s_count%s%s%s %llu\n", name, label, comma, all,
             name, open, label, close, sum, name, open, label, close, all);
}

static void put_buckets(struct buf *out, const char *name, const char *help, const uint64_t *bounds, double unit,
                        const uint64_t *bucket, unsigned n, double sum) {
    put_head(out, name, "histogram", help);
    put_series(out, name, "", bounds, unit, bucket, n, sum);
}

static void put_histogram(struct buf *out, const char *name, const char *help, struct metrics_histogram *h) {
    uint64_t bucket[METRICS_BOUNDS + 1], n = 0;
    for (unsigned i = 0; i <= METRICS_BOUNDS; i++) bucket[i] = n += h->count[i];
    put_buckets(out, name, help, bounds_us, 1e-6, bucket, METRICS_BOUNDS + 1, (double)h->sum_ns * 1e-9);
}

static void render_sessions(struct buf *out, const struct metrics *m, const struct rod_stats *s) {
    put(out, "rodimus_sessions", "Sessions that this server knows.", s->sessions);
    put_head(out, "rodimus_sessions_by_tier", "gauge", "Of them: with the state in host memory, and in a file alone.");
    buf_addf(out, "rodimus_sessions_by_tier{tier=\"host\"} %llu\nrodimus_sessions_by_tier{tier=\"file\"} %llu\n",
             (unsigned long long)s->sessions_host, (unsigned long long)s->sessions_file);
    put(out, "rodimus_sessions_expired_total", "Sessions removed at the end of their time to live.",
        s->sessions_expired);
    put(out, "rodimus_sessions_evicted_total", "Sessions removed to keep within the budgets.", s->sessions_evicted);
    put(out, "rodimus_state_host_bytes", "States in host memory, and all else that sessions take of it.",
        s->state_host_bytes + s->session_host_bytes);
    put(out, "rodimus_state_file_bytes", "What files in state_dir take of the disk, as last seen.",
        s->state_file_bytes);
    put(out, "rodimus_state_saves_total", "States written to files.", s->state_saves);
    put(out, "rodimus_state_save_failures_total", "States that could not be written.", s->state_save_failures);
    put(out, "rodimus_state_no_room_total", "States that state_disk_bytes has no room for beside pinned ones.",
        s->state_no_room);
    put(out, "rodimus_state_loads_total", "States read back from files.", s->state_loads);
    put(out, "rodimus_state_refused_total", "Files found damaged or foreign.", s->state_refused);
    put(out, "rodimus_session_asks_total", "Questions beside sessions that began.", s->session_asks);
    put(out, "rodimus_session_rewinds_total", "Sessions that went back to an earlier turn.", s->session_rewinds);
    put(out, "rodimus_kept_turns", "States of earlier turns.", s->kept_turns);
    put(out, "rodimus_session_conflicts_total", "Turns that lost to another server's of the same session.",
        m->conflicts);
    put(out, "rodimus_idempotent_replays_total",
        "Turns, and requests of conversations, answered again from their idempotency key.",
        s->idempotent_replays + m->replays);
}

static void render_engine(struct buf *out, const struct metrics *m, const struct metrics_view *view) {
    const struct rod_stats *s = view->stats;
    const struct rod_model_info *info = view->info;
    put_head(out, "rodimus_model_info", "gauge", "The model served; always 1.");
    buf_puts(out, "rodimus_model_info{model=");
    buf_json(out, view->model_name, strlen(view->model_name));
    buf_addf(out, ",arch=\"%s\",dtype=\"%s\",weights=\"%s\",window_dtype=\"%s\",state_dtype=\"%s\"} 1\n", info->arch,
             info->weight_dtype, info->weights, info->window_dtype, info->state_dtype);
    put(out, "rodimus_slots", "Session slots.", s->n_slots);
    const double used = s->n_slots ? (double)s->slots_used / (double)s->n_slots : 0;
    put(out, "rodimus_slots_used", "Session slots in use.", s->slots_used);
    put_fraction(out, "rodimus_slots_used_ratio", "gauge", "Session slots in use, 0 to 1.", used);
    put(out, "rodimus_requests_running", "Requests that hold a slot.", s->running);
    put(out, "rodimus_queue_requests", "Requests that wait for a slot.", s->queued);
    put(out, "rodimus_queue_requests_limit", "Requests that may wait.", s->queued_max);
    put(out, "rodimus_queue_tokens", "Prompt tokens that wait.", s->queued_tok);
    put(out, "rodimus_session_bytes", "State of one session, whatever its length.", info->session_bytes);
    put(out, "rodimus_slot_pool_bytes", "Device memory of all slots together.", info->session_bytes * s->n_slots);
    put(out, "rodimus_weight_bytes", "Device memory of the weights.", info->weight_bytes);
    put(out, "rodimus_engine_requests_finished_total", "Requests that ended by themselves.", s->requests_finished);
    put(out, "rodimus_engine_requests_cancelled_total", "Requests whose client left.", s->requests_cancelled);
    put(out, "rodimus_engine_requests_failed_total", "Requests that ended in an error.", s->requests_failed);
    put(out, "rodimus_engine_requests_nan_total", "Requests that failed because the logits were not numbers.",
        s->requests_nan);
    put(out, "rodimus_engine_requests_rejected_total", "Requests refused because the queue was full.",
        s->requests_rejected + m->refused_early);
    put(out, "rodimus_prefill_tokens_total", "Prompt tokens read.", s->prefill_tok);
    put(out, "rodimus_decode_tokens_total", "Tokens generated.", s->decode_tok);
    put(out, "rodimus_prompt_flights_total", "Pieces of long prompts that were read beside steps.", s->flights);
    put(out, "rodimus_prompt_flight_tokens_total", "Prompt tokens that were read beside steps.", s->flight_tok);
    put(out, "rodimus_steps_total", "Engine steps.", s->steps);
    put(out, "rodimus_step_rows_total", "Sessions that took part in a step, summed over the steps.", s->batch_rows_sum);
    put_buckets(out, "rodimus_step_duration_seconds", "Time of one engine step.", rod_step_bounds_ns, 1e-9,
                s->step_ns_bucket, 20, (double)s->step_ns_sum * 1e-9);
    put_buckets(out, "rodimus_step_batch_rows", "Sessions that took part in a step: the size of the batch.",
                rod_step_bounds_rows, 1, s->step_rows_bucket, ROD_STEP_ROWS_BUCKETS, (double)s->batch_rows_sum);
    render_sessions(out, m, s);
    /* The names that balancers and autoscalers of the field look for. A slot is our unit of memory. */
    put(out, "vllm:num_requests_running", "Alias of rodimus_requests_running.", s->running);
    put(out, "vllm:num_requests_waiting", "Alias of rodimus_queue_requests.", s->queued);
    put_fraction(out, "vllm:kv_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
    put_fraction(out, "vllm:gpu_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
}

static void render_conversations(struct buf *out, const struct metrics *m, const struct rod_stats *s) {
    put(out, "rodimus_conversations", "Named conversations.", s->conversations);
    put(out, "rodimus_conversation_lanes", "Beginnings of them that differ.", s->lanes);
    put_head(out, "rodimus_conversation_states", "gauge", "Their states in host memory, and in files.");
    buf_addf(out, "rodimus_conversation_states{tier=\"host\"} %llu\nrodimus_conversation_states{tier=\"file\"} %llu\n",
             (unsigned long long)s->lane_states_host, (unsigned long long)s->lane_states_file);
    put(out, "rodimus_conversation_file_bytes", "What these files take of the disk.", s->lane_file_bytes);
    put(out, "rodimus_conversation_saves_total", "States of conversations written to files.", s->lane_saves);
    put(out, "rodimus_conversation_save_failures_total", "States of conversations that could not be written.",
        s->lane_save_failures);
    put(out, "rodimus_conversation_loads_total", "States of conversations read back from files.", s->lane_loads);
    put(out, "rodimus_conversation_names_unread_total",
        "Requests whose conversation's name could not be looked up among sessions.", m->names_unknown);
}

static void render_prefix(struct buf *out, const struct rod_stats *s) {
    put(out, "rodimus_prefix_hits_total", "Prompts that began from a checkpoint.", s->prefix_hits);
    put(out, "rodimus_prefix_tokens_saved_total", "Tokens of prompts that were not read again.", s->prefix_tok_saved);
    put_head(out, "rodimus_prefix_misses_total", "counter",
             "Prompts of which nothing was found, or less than there once was, by reason.");
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) {
        buf_addf(out, "rodimus_prefix_misses_total{reason=\"%s\"} %llu\n",
                 rod_prefix_miss_name((enum rod_prefix_miss)i), (unsigned long long)s->prefix_misses[i]);
    }
    put_head(out, "rodimus_prefix_miss_tokens_total", "counter", "Tokens of these prompts that were read.");
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) {
        buf_addf(out, "rodimus_prefix_miss_tokens_total{reason=\"%s\"} %llu\n",
                 rod_prefix_miss_name((enum rod_prefix_miss)i), (unsigned long long)s->prefix_miss_tok[i]);
    }
    put(out, "rodimus_prefix_evicted_total", "Checkpoints that went for the budget.", s->prefix_evicted);
    put(out, "rodimus_prefix_checkpoints", "Checkpoints in the prefix cache.", s->prefix_entries);
    put(out, "rodimus_prefix_bytes", "Host memory of the prefix cache in use.", s->prefix_bytes);
    put(out, "rodimus_pinned_prefixes", "Pinned prefixes.", s->pinned_prefixes);
    put(out, "rodimus_pinned_prefix_bytes", "Host memory of pinned prefixes.", s->pinned_bytes);
    put(out, "rodimus_pinned_prefix_hits_total", "Prompts that began from a pinned prefix.", s->pinned_used);
}

static void put_drafts(struct buf *out, const char *name, const char *help, const uint64_t n_tok[ROD_DRAFT_N_KINDS]) {
    put_head(out, name, "counter", help);
    for (int i = 0; i < ROD_DRAFT_N_KINDS; i++)
        buf_addf(out, "%s{kind=\"%s\"} %llu\n", name, rod_draft_name((enum rod_draft)i), (unsigned long long)n_tok[i]);
}

struct key_family {
    const char *name, *kind, *type, *help; /* kind: a second label, or NULL; type NULL: of the family before it */
    size_t offset;
};
static const struct key_family key_families[] = {
    {"rodimus_key_requests_in_flight", NULL, "gauge", "Requests in flight, by the name of their key.",
     offsetof(struct key, n_requests)},
    {"rodimus_key_requests_total", NULL, "counter",
     "Requests that a key's limits let in, of the routes that work for it.", offsetof(struct key, requests_total)},
    {"rodimus_key_rejected_total", NULL, "counter", "Requests refused because of a key's own limits.",
     offsetof(struct key, rejected_total)},
    {"rodimus_key_tokens_total", "prompt", "counter",
     "Tokens of a key's requests, kind prompt, completion or text (the tokenizer's routes).",
     offsetof(struct key, prompt_tok)},
    {"rodimus_key_tokens_total", "completion", NULL, NULL, offsetof(struct key, completion_tok)},
    {"rodimus_key_tokens_total", "text", NULL, NULL, offsetof(struct key, text_tok)},
};

struct key_line {
    struct buf *out;
    const struct key_family *family;
};

static void put_key(void *arg, const struct key *key) {
    const struct key_line *line = arg;
    const struct key_family *f = line->family;
    const _Atomic uint64_t *number = (const _Atomic uint64_t *)(const void *)((const char *)key + f->offset);
    buf_addf(line->out, "%s{key=\"%s\"", f->name, key->name);
    if (f->kind) buf_addf(line->out, ",kind=\"%s\"", f->kind);
    buf_addf(line->out, "} %llu\n", (unsigned long long)*number);
}

/* The format wants one family after the other: a walk over the keys for each. */
static void render_keys(struct buf *out, struct keys *keys) {
    for (size_t i = 0; i < sizeof key_families / sizeof *key_families; i++) {
        const struct key_family *f = &key_families[i];
        if (f->type) put_head(out, f->name, f->type, f->help);
        keys_each(keys, put_key, &(struct key_line){out, f});
    }
}

static void render_store_times(struct buf *out, const struct rod_store_times *times) {
    static const char name[] = "rodimus_store_duration_seconds";
    static const char *const works[ROD_STORE_N_WORKS] = {"work=\"read\"", "work=\"write\"", "work=\"other\""};
    put_head(out, name, "histogram", "Time of one call of the store, with its repeats.");
    for (int i = 0; i < ROD_STORE_N_WORKS; i++)
        put_series(out, name, works[i], rod_store_bounds_ns, 1e-9, times[i].ns_bucket, ROD_STORE_BUCKETS,
                   (double)times[i].ns_sum * 1e-9);
}

static void render_store(struct buf *out, const struct rod_store_counts *c) {
    static const char name[] = "rodimus_store_requests_total";
    const struct {
        const char *kind;
        uint64_t n;
    } kinds[] = {{"put", c->puts},       {"get", c->gets},    {"head", c->heads},
                 {"delete", c->deletes}, {"copy", c->copies}, {"list", c->lists}};
    put_head(out, name, "counter", "Requests to the store of states, repeated ones too.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        buf_addf(out, "%s{kind=\"%s\"} %llu\n", name, kinds[i].kind, (unsigned long long)kinds[i].n);
    put_head(out, "rodimus_store_bytes_total", "counter", "Bytes of states to (out) and from (in) it.");
    buf_addf(out, "rodimus_store_bytes_total{way=\"in\"} %llu\nrodimus_store_bytes_total{way=\"out\"} %llu\n",
             (unsigned long long)c->bytes_in, (unsigned long long)c->bytes_out);
    put(out, "rodimus_store_conflicts_total", "Writes that it refused, as another server's came first.", c->conflicts);
    put(out, "rodimus_store_retries_total", "Requests that were repeated.", c->retries);
    put(out, "rodimus_store_failures_total", "Calls that failed with all repeats.", c->failures);
    render_store_times(out, c->times);
    put(out, "rodimus_store_cache_hits_total", "States read from the copies in state_dir.", c->cache_hits);
    put(out, "rodimus_store_cache_misses_total", "States read from the store.", c->cache_misses);
    put(out, "rodimus_store_cache_bytes", "What the copies take of the disk, as last seen.", c->cache_bytes);
    put(out, "rodimus_store_down", "1 while the last calls failed.", c->down);
}

/* ---- the process: the names that every dashboard knows ---- */

static void render_process(struct buf *out, const struct metrics *m) {
    struct rusage usage;
    struct rlimit files;
    FILE *statm = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, resident = 0;
    if (statm && fscanf(statm, "%llu %llu", &pages, &resident) == 2) {
        put(out, "process_resident_memory_bytes", "Host memory in use.", resident * (uint64_t)sysconf(_SC_PAGESIZE));
    }
    if (statm) fclose(statm);
    if (!getrusage(RUSAGE_SELF, &usage)) {
        put_fraction(out, "process_cpu_seconds_total", "counter", "CPU time of all threads.",
                     (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    }
    put(out, "process_start_time_seconds", "When the process began, in seconds since 1970.", (uint64_t)m->started_s);
    if (!getrlimit(RLIMIT_NOFILE, &files))
        put(out, "process_max_fds", "Open files and sockets that are allowed.", files.rlim_cur);
}

static void render_ignored(struct buf *out, const struct metrics *m) {
    static const char name[] = "rodimus_request_parts_ignored_total";
    put_head(out, name, "counter", "Requests with a part that the server leaves out, by part.");
    for (int i = 0; i < API_N_IGNORED; i++) {
        const unsigned long long n = m->ignored[i];
        if (n) buf_addf(out, "%s{part=\"%s\"} %llu\n", name, api_ignored_names[i], n);
    }
}

static void render_http(struct buf *out, struct metrics *m, const struct metrics_view *view) {
    put_head(out, "rodimus_http_requests_total", "counter", "Requests by route and status (499: the client left).");
    for (unsigned r = 0; r < view->n_routes; r++) {
        for (unsigned c = 0; c < METRICS_CODES; c++) {
            const unsigned long long n = m->requests[r][c];
            if (!n) continue;
            buf_addf(out, "rodimus_http_requests_total{route=\"%s\",code=\"", view->route_names[r]);
            if (codes[c]) {
                buf_addf(out, "%u", codes[c]);
            } else {
                buf_puts(out, "other");
            }
            buf_addf(out, "\"} %llu\n", n);
        }
    }
    put(out, "rodimus_http_connections", "Open connections to the main port.", view->connections);
    put(out, "rodimus_http_connections_limit", "Connections that may be open at once.", view->connections_limit);
    put(out, "rodimus_http_streams", "Streams in progress.", m->streams);
    put(out, "rodimus_http_disconnects_total", "Clients that left before their answer ended.", m->disconnects);
    put(out, "rodimus_http_slow_clients_total", "Streams cancelled because the client did not read.", m->slow_clients);
    put(out, "rodimus_http_pings_total", "Ping comments sent.", m->pings);
    render_ignored(out, m);
}

void metrics_render(struct metrics *m, const struct metrics_view *view, struct buf *out) {
    assert(view->n_routes <= METRICS_ROUTES);
    assert(!(view->ready && view->stalled));
    put_head(out, "rodimus_build_info", "gauge", "The build; always 1.");
    buf_addf(out, "rodimus_build_info{version=\"%s\",commit=\"%s\"} 1\n", version_string(), version_commit());
    put(out, "rodimus_ready", "1 when new requests are taken.", view->ready);
    put(out, "rodimus_stalled", "1 when no step has ended for stall_ms although work waits.", view->stalled);
    put(out, "rodimus_config_reloads_total", "Configurations applied after SIGHUP.", m->reloads);
    put(out, "rodimus_config_reload_failures_total", "Configurations refused after SIGHUP.", m->reloads_failed);
    put(out, "rodimus_log_lines_dropped_total", "Log lines dropped because their reader was too slow.",
        view->log_lines_dropped);
    render_process(out, m);
    render_http(out, m, view);
    put(out, "rodimus_prompt_tokens_total",
        "Prompt tokens of requests that were taken, without what a session has read before.", m->prompt_tok);
    put(out, "rodimus_completion_tokens_total", "Tokens of their answers, as far as they came.", m->completion_tok);
    put_histogram(out, "rodimus_time_to_first_token_seconds", "From the request to its first token.", &m->ttft);
    put_histogram(out, "rodimus_inter_token_seconds", "Between two deliveries of a choice.", &m->inter_token);
    put_histogram(out, "rodimus_request_duration_seconds", "From the request to its last token.", &m->request);
    put_histogram(out, "rodimus_queue_duration_seconds", "Waiting for a slot.", &m->queue);
    if (view->keys) render_keys(out, view->keys);
    render_store(out, view->store);
    if (!view->stats) return;
    render_engine(out, m, view);
    render_prefix(out, view->stats);
    render_conversations(out, m, view->stats);
    put_drafts(out, "rodimus_draft_tokens_total", "Tokens that steps read ahead as drafts, by their source.",
               view->stats->drafted);
    put_drafts(out, "rodimus_draft_accepted_tokens_total", "Of these, tokens that came.", view->stats->accepted);
}
