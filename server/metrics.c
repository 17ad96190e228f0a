/* metrics.c - see metrics.h. */
#include "metrics.h"

#include "version.h"

#include <string.h>

/* From half a millisecond (a token of a small model on a GPU) to two minutes (a long queue). */
static const double bounds_s[METRICS_BOUNDS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                0.25,   0.5,   1,      2.5,   5,    10,    30,   120};

static const unsigned codes[METRICS_CODES] = {200, 400, 401, 403, 404, 405, 408, 411, 412, 413, 415,
                                              417, 429, 431, 499, 500, 501, 502, 503, 504, 0};

void metrics_request(struct metrics *m, unsigned route, unsigned status) {
    unsigned at = 0;
    while (codes[at] && codes[at] != status) at++;
    if (route < METRICS_ROUTES) m->requests[route][at]++;
}

void metrics_observe(struct metrics_histogram *h, double seconds) {
    unsigned at = 0;
    while (at < METRICS_BOUNDS && seconds > bounds_s[at]) at++;
    h->count[at]++;
    h->sum += seconds;
}

static void head(struct buf *out, const char *name, const char *type, const char *help) {
    buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(struct buf *out, const char *name, const char *type, const char *help, double number) {
    head(out, name, type, help);
    buf_addf(out, "%s %.15g\n", name, number);
}

static void histogram(struct buf *out, const char *name, const char *help, const struct metrics_histogram *h) {
    head(out, name, "histogram", help);
    uint64_t n = 0;
    for (unsigned i = 0; i < METRICS_BOUNDS; i++) {
        n += h->count[i];
        buf_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds_s[i], (unsigned long long)n);
    }
    n += h->count[METRICS_BOUNDS];
    buf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)n, name,
             h->sum, name, (unsigned long long)n);
}

static void step_histogram(struct buf *out, const struct rod_stats *s) {
    const char *name = "rodimus_step_duration_seconds";
    head(out, name, "histogram", "Time of one engine step.");
    for (unsigned i = 0; i < 19; i++) {
        buf_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)rod_step_bounds_ns[i] * 1e-9,
                 (unsigned long long)s->step_ns_bucket[i]);
    }
    buf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name,
             (unsigned long long)s->step_ns_bucket[19], name, (double)s->step_ns_sum * 1e-9, name,
             (unsigned long long)s->step_ns_bucket[19]);
}

static void engine_part(struct buf *out, const struct rod_stats *s, const struct rod_model_info *info,
                        const char *model_name) {
    head(out, "rodimus_model_info", "gauge", "The model served; always 1.");
    buf_puts(out, "rodimus_model_info{model=");
    buf_json(out, model_name, strlen(model_name));
    buf_addf(out, ",arch=\"%s\",dtype=\"%s\"} 1\n", info->arch, info->weight_dtype);
    value(out, "rodimus_slots", "gauge", "Session slots.", s->n_slots);
    value(out, "rodimus_slots_used", "gauge", "Session slots in use.", s->slots_used);
    value(out, "rodimus_requests_running", "gauge", "Requests that hold a slot.", s->running);
    value(out, "rodimus_queue_requests", "gauge", "Requests that wait for a slot.", s->queued);
    value(out, "rodimus_queue_requests_limit", "gauge", "Requests that may wait.", s->queued_max);
    value(out, "rodimus_queue_tokens", "gauge", "Prompt tokens that wait.", (double)s->queued_tok);
    value(out, "rodimus_session_bytes", "gauge", "State of one session, whatever its length.",
          (double)info->session_bytes);
    value(out, "rodimus_weight_bytes", "gauge", "Weights.", (double)info->weight_bytes);
    value(out, "rodimus_engine_requests_finished_total", "counter", "Requests that ended by themselves.",
          (double)s->requests_finished);
    value(out, "rodimus_engine_requests_cancelled_total", "counter", "Requests whose client left.",
          (double)s->requests_cancelled);
    value(out, "rodimus_engine_requests_failed_total", "counter", "Requests that ended in an error.",
          (double)s->requests_failed);
    value(out, "rodimus_engine_requests_nan_total", "counter",
          "Requests that failed because the logits were not numbers.", (double)s->requests_nan);
    value(out, "rodimus_engine_requests_rejected_total", "counter", "Requests refused because the queue was full.",
          (double)s->requests_rejected);
    value(out, "rodimus_prefill_tokens_total", "counter", "Prompt tokens read.", (double)s->prefill_tok);
    value(out, "rodimus_decode_tokens_total", "counter", "Tokens generated.", (double)s->decode_tok);
    value(out, "rodimus_steps_total", "counter", "Engine steps.", (double)s->steps);
    value(out, "rodimus_step_rows_total", "counter", "Sessions that took part in a step, summed over the steps.",
          (double)s->batch_rows_sum);
    step_histogram(out, s);
    /* The names that balancers and autoscalers of the field look for. A slot is our unit of memory. */
    double used = s->n_slots ? (double)s->slots_used / (double)s->n_slots : 0;
    value(out, "vllm:num_requests_running", "gauge", "Alias of rodimus_requests_running.", s->running);
    value(out, "vllm:num_requests_waiting", "gauge", "Alias of rodimus_queue_requests.", s->queued);
    value(out, "vllm:kv_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
    value(out, "vllm:gpu_cache_usage_perc", "gauge", "Slots in use, 0 to 1.", used);
}

void metrics_render(const struct metrics *m, const char *const *route_names, unsigned n_routes,
                    const struct rod_stats *stats, const struct rod_model_info *info, const char *model_name,
                    bool ready, struct buf *out) {
    head(out, "rodimus_build_info", "gauge", "The build; always 1.");
    buf_addf(out, "rodimus_build_info{version=\"%s\",commit=\"%s\"} 1\n", version_string(), version_commit());
    value(out, "rodimus_ready", "gauge", "1 when new requests are taken.", ready);
    head(out, "rodimus_http_requests_total", "counter", "Requests by route and status (499: the client left).");
    for (unsigned r = 0; r < n_routes && r < METRICS_ROUTES; r++) {
        for (unsigned c = 0; c < METRICS_CODES; c++) {
            if (!m->requests[r][c]) continue;
            buf_addf(out, "rodimus_http_requests_total{route=\"%s\",code=\"", route_names[r]);
            if (codes[c]) {
                buf_addf(out, "%u", codes[c]);
            } else {
                buf_puts(out, "other");
            }
            buf_addf(out, "\"} %llu\n", (unsigned long long)m->requests[r][c]);
        }
    }
    value(out, "rodimus_http_connections", "gauge", "Open connections.", (double)m->connections);
    value(out, "rodimus_http_streams", "gauge", "Streams in progress.", (double)m->streams);
    value(out, "rodimus_http_disconnects_total", "counter", "Clients that left before their answer ended.",
          (double)m->disconnects);
    value(out, "rodimus_http_slow_clients_total", "counter", "Streams cancelled because the client did not read.",
          (double)m->slow_clients);
    value(out, "rodimus_http_pings_total", "counter", "Ping comments sent.", (double)m->pings);
    value(out, "rodimus_prompt_tokens_total", "counter", "Prompt tokens of answered requests.", (double)m->prompt_tok);
    value(out, "rodimus_completion_tokens_total", "counter", "Tokens of answered requests.", (double)m->completion_tok);
    histogram(out, "rodimus_time_to_first_token_seconds", "From the request to its first token.", &m->ttft);
    histogram(out, "rodimus_inter_token_seconds", "Between two deliveries of a choice.", &m->inter_token);
    histogram(out, "rodimus_request_duration_seconds", "From the request to its last token.", &m->request);
    histogram(out, "rodimus_queue_duration_seconds", "Waiting for a slot.", &m->queue);
    if (stats && info) engine_part(out, stats, info, model_name);
}
