/* metrics.c - see metrics.h. */
#include "metrics.h"

#include "server/base/version.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* From half a millisecond (a token of a small model on a GPU) to two minutes (a long queue). */
static const double bounds_s[METRICS_BOUNDS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                0.25,   0.5,   1,      2.5,   5,    10,    30,   120};

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
    while (at < METRICS_BOUNDS && seconds > bounds_s[at]) at++;
    h->count[at]++;
    h->sum_ns += seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

static void put_head(struct buf *out, const char *name, const char *type, const char *help) {
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_value(struct buf *out, const char *name, const char *type, const char *help, double number) {
    put_head(out, name, type, help);
    buf_addf(out, "%s %.15g\n", name, number);
}

static void put_histogram(struct buf *out, const char *name, const char *help, struct metrics_histogram *h) {
    put_head(out, name, "histogram", help);
    uint64_t n = 0;
    for (unsigned i = 0; i < METRICS_BOUNDS; i++) {
        n += h->count[i];
        buf_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds_s[i], (unsigned long long)n);
    }
    n += h->count[METRICS_BOUNDS];
    buf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)n, name,
             (double)h->sum_ns * 1e-9, name, (unsigned long long)n);
}

/* Of the engine: cumulative counts, the last one all; unit: what one of the bounds counts in. */
static void put_engine_histogram(struct buf *out, const char *name, const char *help, const uint64_t *bounds,
                                 double unit, const uint64_t *bucket, unsigned n, double sum) {
    put_head(out, name, "histogram", help);
    for (unsigned i = 0; i + 1 < n; i++) {
        buf_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds[i] * unit, (unsigned long long)bucket[i]);
    }
    buf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)bucket[n - 1],
             name, sum, name, (unsigned long long)bucket[n - 1]);
}

static void render_sessions(struct buf *out, const struct rod_stats *s) {
    put_value(out, "rodimus_sessions", "gauge", "Sessions that this server knows.", (double)s->sessions);
    put_head(out, "rodimus_sessions_by_tier", "gauge", "Of them: with the state in host memory, and in a file alone.");
    buf_addf(out, "rodimus_sessions_by_tier{tier=\"host\"} %llu\nrodimus_sessions_by_tier{tier=\"file\"} %llu\n",
             (unsigned long long)s->sessions_host, (unsigned long long)s->sessions_file);
    put_value(out, "rodimus_sessions_expired_total", "counter", "Sessions removed at the end of their time to live.",
              (double)s->sessions_expired);
    put_value(out, "rodimus_sessions_evicted_total", "counter", "Sessions removed to keep within the budgets.",
              (double)s->sessions_evicted);
    put_value(out, "rodimus_state_host_bytes", "gauge", "States in host memory, and all else that sessions take of it.",
              (double)(s->state_host_bytes + s->session_host_bytes));
    put_value(out, "rodimus_state_file_bytes", "gauge", "What files in state_dir take of the disk, as last seen.",
              (double)s->state_file_bytes);
    put_value(out, "rodimus_state_saves_total", "counter", "States written to files.", (double)s->state_saves);
    put_value(out, "rodimus_state_save_failures_total", "counter", "States that could not be written.",
              (double)s->state_save_failures);
    put_value(out, "rodimus_state_no_room_total", "counter",
              "States that state_disk_bytes has no room for beside pinned ones.", (double)s->state_no_room);
    put_value(out, "rodimus_state_loads_total", "counter", "States read back from files.", (double)s->state_loads);
    put_value(out, "rodimus_state_refused_total", "counter", "Files found damaged or foreign.",
              (double)s->state_refused);
    put_value(out, "rodimus_idempotent_replays_total", "counter", "Turns answered again from their idempotency key.",
              (double)s->idempotent_replays);
}

static void render_engine(struct buf *out, const struct metrics *m, const struct metrics_view *view) {
    const struct rod_stats *s = view->stats;
    const struct rod_model_info *info = view->info;
    put_head(out, "rodimus_model_info", "gauge", "The model served; always 1.");
    buf_puts(out, "rodimus_model_info{model=");
    buf_json(out, view->model_name, strlen(view->model_name));
    buf_addf(out, ",arch=\"%s\",dtype=\"%s\",weights=\"%s\"} 1\n", info->arch, info->weight_dtype, info->weights);
    put_value(out, "rodimus_slots", "gauge", "Session slots.", s->n_slots);
    const double used = s->n_slots ? (double)s->slots_used / (double)s->n_slots : 0;
    put_value(out, "rodimus_slots_used", "gauge", "Session slots in use.", s->slots_used);
    put_value(out, "rodimus_slots_used_ratio", "gauge", "Session slots in use, 0 to 1.", used);
    put_value(out, "rodimus_requests_running", "gauge", "Requests that hold a slot.", s->running);
    put_value(out, "rodimus_queue_requests", "gauge", "Requests that wait for a slot.", s->queued);
    put_value(out, "rodimus_queue_requests_limit", "gauge", "Requests that may wait.", s->queued_max);
    put_value(out, "rodimus_queue_tokens", "gauge", "Prompt tokens that wait.", (double)s->queued_tok);
    put_value(out, "rodimus_session_bytes", "gauge", "State of one session, whatever its length.",
              (double)info->session_bytes);
    put_value(out, "rodimus_slot_pool_bytes", "gauge", "Device memory of all slots together.",
              (double)info->session_bytes * s->n_slots);
    put_value(out, "rodimus_weight_bytes", "gauge", "Device memory of the weights.", (double)info->weight_bytes);
    put_value(out, "rodimus_engine_requests_finished_total", "counter", "Requests that ended by themselves.",
              (double)s->requests_finished);
    put_value(out, "rodimus_engine_requests_cancelled_total", "counter", "Requests whose client left.",
              (double)s->requests_cancelled);
    put_value(out, "rodimus_engine_requests_failed_total", "counter", "Requests that ended in an error.",
              (double)s->requests_failed);
    put_value(out, "rodimus_engine_requests_nan_total", "counter",
              "Requests that failed because the logits were not numbers.", (double)s->requests_nan);
    put_value(out, "rodimus_engine_requests_rejected_total", "counter", "Requests refused because the queue was full.",
              (double)(s->requests_rejected + m->refused_early));
    put_value(out, "rodimus_prefill_tokens_total", "counter", "Prompt tokens read.", (double)s->prefill_tok);
    put_value(out, "rodimus_decode_tokens_total", "counter", "Tokens generated.", (double)s->decode_tok);
    put_value(out, "rodimus_prompt_flights_total", "counter", "Pieces of long prompts that were read beside steps.",
              (double)s->flights);
    put_value(out, "rodimus_prompt_flight_tokens_total", "counter", "Prompt tokens that were read beside steps.",
              (double)s->flight_tok);
    put_value(out, "rodimus_steps_total", "counter", "Engine steps.", (double)s->steps);
    put_value(out, "rodimus_step_rows_total", "counter", "Sessions that took part in a step, summed over the steps.",
              (double)s->batch_rows_sum);
    put_engine_histogram(out, "rodimus_step_duration_seconds", "Time of one engine step.", rod_step_bounds_ns, 1e-9,
                         s->step_ns_bucket, 20, (double)s->step_ns_sum * 1e-9);
    put_engine_histogram(out, "rodimus_step_batch_rows", "Sessions that took part in a step: the size of the batch.",
                         rod_step_bounds_rows, 1, s->step_rows_bucket, ROD_STEP_ROWS_BUCKETS,
                         (double)s->batch_rows_sum);
    render_sessions(out, s);
    /* The names that balancers and autoscalers of the field look for. A slot is our unit of memory. */
    put_value(out, "vllm:num_requests_running", "gauge", "Alias of rodimus_requests_running.", s->running);
    put_value(out, "vllm:num_requests_waiting", "gauge", "Alias of rodimus_queue_requests.", s->queued);
    put_value(out, "vllm:kv_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
    put_value(out, "vllm:gpu_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
}

/* ---- the prefix cache ---- */

static void render_prefix(struct buf *out, const struct rod_stats *s) {
    put_value(out, "rodimus_prefix_hits_total", "counter", "Prompts that began from a checkpoint.",
              (double)s->prefix_hits);
    put_value(out, "rodimus_prefix_tokens_saved_total", "counter", "Tokens of prompts that were not read again.",
              (double)s->prefix_tok_saved);
    put_head(out, "rodimus_prefix_misses_total", "counter",
             "Prompts of which nothing was found, or less than there once was, by reason.");
    for (int i = 0; i < ROD_PREFIX_N_MISSES; i++) {
        buf_addf(out, "rodimus_prefix_misses_total{reason=\"%s\"} %llu\n",
                 rod_prefix_miss_name((enum rod_prefix_miss)i), (unsigned long long)s->prefix_misses[i]);
    }
    put_value(out, "rodimus_prefix_evicted_total", "counter", "Checkpoints that went for the budget.",
              (double)s->prefix_evicted);
    put_value(out, "rodimus_prefix_checkpoints", "gauge", "Checkpoints in the prefix cache.",
              (double)s->prefix_entries);
    put_value(out, "rodimus_prefix_bytes", "gauge", "Host memory of the prefix cache in use.", (double)s->prefix_bytes);
    put_value(out, "rodimus_pinned_prefixes", "gauge", "Pinned prefixes.", (double)s->pinned_prefixes);
    put_value(out, "rodimus_pinned_prefix_bytes", "gauge", "Host memory of pinned prefixes.", (double)s->pinned_bytes);
    put_value(out, "rodimus_pinned_prefix_hits_total", "counter", "Prompts that began from a pinned prefix.",
              (double)s->pinned_used);
}

/* ---- drafts ---- */

static void render_drafts(struct buf *out, const struct rod_stats *s) {
    put_head(out, "rodimus_draft_tokens_total", "counter", "Tokens that steps read ahead as drafts, by their source.");
    for (int i = 0; i < ROD_DRAFT_N_KINDS; i++)
        buf_addf(out, "rodimus_draft_tokens_total{kind=\"%s\"} %llu\n", rod_draft_name((enum rod_draft)i),
                 (unsigned long long)s->drafted[i]);
    put_head(out, "rodimus_draft_accepted_tokens_total", "counter", "Of these, tokens that came.");
    for (int i = 0; i < ROD_DRAFT_N_KINDS; i++)
        buf_addf(out, "rodimus_draft_accepted_tokens_total{kind=\"%s\"} %llu\n", rod_draft_name((enum rod_draft)i),
                 (unsigned long long)s->accepted[i]);
}

/* ---- keys ---- */

/* One family after the other, as the format wants it: a walk over the keys for each. */
struct key_family {
    struct buf *out;
    const char *name, *kind; /* kind: a second label, or NULL */
    size_t offset;
};

static void put_key(void *arg, const struct key *key) {
    const struct key_family *f = arg;
    const _Atomic uint64_t *number = (const _Atomic uint64_t *)(const void *)((const char *)key + f->offset);
    buf_addf(f->out, "%s{key=\"%s\"", f->name, key->name);
    if (f->kind) buf_addf(f->out, ",kind=\"%s\"", f->kind);
    buf_addf(f->out, "} %llu\n", (unsigned long long)*number);
}

static void render_keys(struct buf *out, struct keys *keys) {
    struct key_family family = {out, "rodimus_key_requests_in_flight", NULL, offsetof(struct key, n_requests)};
    put_head(out, family.name, "gauge", "Requests in flight, by the name of their key.");
    keys_each(keys, put_key, &family);
    family = (struct key_family){out, "rodimus_key_requests_total", NULL, offsetof(struct key, requests_total)};
    put_head(out, family.name, "counter", "Requests that a key's limits let in, of the routes that work for it.");
    keys_each(keys, put_key, &family);
    family = (struct key_family){out, "rodimus_key_rejected_total", NULL, offsetof(struct key, rejected_total)};
    put_head(out, family.name, "counter", "Requests refused because of a key's own limits.");
    keys_each(keys, put_key, &family);
    family = (struct key_family){out, "rodimus_key_tokens_total", "prompt", offsetof(struct key, prompt_tok)};
    put_head(out, family.name, "counter",
             "Tokens of a key's requests, kind prompt, completion or text (the tokenizer's routes).");
    keys_each(keys, put_key, &family);
    family.kind = "completion";
    family.offset = offsetof(struct key, completion_tok);
    keys_each(keys, put_key, &family);
    family.kind = "text";
    family.offset = offsetof(struct key, text_tok);
    keys_each(keys, put_key, &family);
}

/* ---- the process: the names that every dashboard knows ---- */

static void render_process(struct buf *out, const struct metrics *m) {
    struct rusage usage;
    struct rlimit files;
    FILE *statm = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, resident = 0;
    if (statm && fscanf(statm, "%llu %llu", &pages, &resident) == 2) {
        put_value(out, "process_resident_memory_bytes", "gauge", "Host memory in use.",
                  (double)resident * (double)sysconf(_SC_PAGESIZE));
    }
    if (statm) fclose(statm);
    if (!getrusage(RUSAGE_SELF, &usage)) {
        put_value(out, "process_cpu_seconds_total", "counter", "CPU time of all threads.",
                  (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                      (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
    }
    put_value(out, "process_start_time_seconds", "gauge", "When the process began, in seconds since 1970.",
              (double)m->started_s);
    if (!getrlimit(RLIMIT_NOFILE, &files))
        put_value(out, "process_max_fds", "gauge", "Open files and sockets that are allowed.", (double)files.rlim_cur);
}

/* ---- all of it ---- */

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
    put_value(out, "rodimus_http_connections", "gauge", "Open connections to the main port.",
              (double)view->connections);
    put_value(out, "rodimus_http_connections_limit", "gauge", "Connections that may be open at once.",
              (double)view->connections_limit);
    put_value(out, "rodimus_http_streams", "gauge", "Streams in progress.", (double)m->streams);
    put_value(out, "rodimus_http_disconnects_total", "counter", "Clients that left before their answer ended.",
              (double)m->disconnects);
    put_value(out, "rodimus_http_slow_clients_total", "counter", "Streams cancelled because the client did not read.",
              (double)m->slow_clients);
    put_value(out, "rodimus_http_pings_total", "counter", "Ping comments sent.", (double)m->pings);
}

void metrics_render(struct metrics *m, const struct metrics_view *view, struct buf *out) {
    assert(view->n_routes <= METRICS_ROUTES);
    assert(!(view->ready && view->stalled));
    put_head(out, "rodimus_build_info", "gauge", "The build; always 1.");
    buf_addf(out, "rodimus_build_info{version=\"%s\",commit=\"%s\"} 1\n", version_string(), version_commit());
    put_value(out, "rodimus_ready", "gauge", "1 when new requests are taken.", view->ready);
    put_value(out, "rodimus_stalled", "gauge", "1 when no step has ended for stall_ms although work waits.",
              view->stalled);
    put_value(out, "rodimus_config_reloads_total", "counter", "Configurations applied after SIGHUP.",
              (double)m->reloads);
    put_value(out, "rodimus_config_reload_failures_total", "counter", "Configurations refused after SIGHUP.",
              (double)m->reloads_failed);
    put_value(out, "rodimus_log_lines_dropped_total", "counter", "Log lines dropped because their reader was too slow.",
              (double)view->log_lines_dropped);
    render_process(out, m);
    render_http(out, m, view);
    put_value(out, "rodimus_prompt_tokens_total", "counter",
              "Prompt tokens of requests that were taken, without what a session has read before.",
              (double)m->prompt_tok);
    put_value(out, "rodimus_completion_tokens_total", "counter", "Tokens of their answers, as far as they came.",
              (double)m->completion_tok);
    put_histogram(out, "rodimus_time_to_first_token_seconds", "From the request to its first token.", &m->ttft);
    put_histogram(out, "rodimus_inter_token_seconds", "Between two deliveries of a choice.", &m->inter_token);
    put_histogram(out, "rodimus_request_duration_seconds", "From the request to its last token.", &m->request);
    put_histogram(out, "rodimus_queue_duration_seconds", "Waiting for a slot.", &m->queue);
    if (view->keys) render_keys(out, view->keys);
    if (view->stats && view->info) render_engine(out, m, view);
    if (view->stats) render_prefix(out, view->stats);
    if (view->stats) render_drafts(out, view->stats);
}
