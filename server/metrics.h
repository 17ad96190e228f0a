/* metrics.h - the server's own counters, and the Prometheus text of them and of the engine's.
 *
 * Threads: the loop thread only. The engine's counters are read by rod_engine_stats at the time of rendering.
 */
#ifndef METRICS_H
#define METRICS_H

#include "buf.h"

#include "engine/rodimus.h"

#define METRICS_BOUNDS 16

struct metrics_histogram { /* seconds; count[i] is not cumulative; the last one is +Inf */
    uint64_t count[METRICS_BOUNDS + 1];
    double sum;
};

#define METRICS_ROUTES 48
#define METRICS_CODES  24

struct metrics {
    uint64_t requests[METRICS_ROUTES][METRICS_CODES]; /* by route number and place of the status in metrics.c */
    uint64_t prompt_tok, completion_tok, disconnects, slow_clients, pings;
    uint64_t connections, streams; /* now */
    struct metrics_histogram ttft, inter_token, request, queue;
};

void metrics_request(struct metrics *m, unsigned route, unsigned status);
void metrics_observe(struct metrics_histogram *h, double seconds);

/* stats, info may be NULL while the model loads. route_names: [n_routes] labels by route number. */
void metrics_render(const struct metrics *m, const char *const *route_names, unsigned n_routes,
                    const struct rod_stats *stats, const struct rod_model_info *info, const char *model_name,
                    bool ready, struct buf *out);

#endif
