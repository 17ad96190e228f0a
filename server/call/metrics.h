/* metrics.h - the server's own counters, and the Prometheus text of them, of the keys and of the engine's.
 *
 * Threads: any; each number is atomic, and a reader may see one request in some of them and not yet in others. The
 * engine's counters are read by rod_engine_stats at the time of rendering.
 */
#ifndef METRICS_H
#define METRICS_H

#include "server/api/api_ignored.h"
#include "server/base/buf.h"
#include "server/settings/keys.h"

#include "engine/rodimus.h"

#include <stdatomic.h>

#define METRICS_BOUNDS 16

struct metrics_histogram { /* seconds; count[i] is not cumulative; the last one is +Inf */
    _Atomic uint64_t count[METRICS_BOUNDS + 1], sum_ns;
};

#define METRICS_ROUTES 48
#define METRICS_CODES  24

struct metrics {
    _Atomic uint64_t requests[METRICS_ROUTES][METRICS_CODES]; /* by route number and place of the status in metrics.c */
    _Atomic uint64_t prompt_tok, completion_tok, disconnects, slow_clients, pings, replays, conflicts;
    _Atomic uint64_t refused_early; /* for a full queue, before the body was read */
    _Atomic uint64_t streams;       /* now */
    _Atomic uint64_t reloads, reloads_failed;
    _Atomic uint64_t ignored[API_N_IGNORED]; /* requests that had such a part */
    _Atomic uint64_t names_unknown;          /* of conversations: whether they are sessions could not be read */
    struct metrics_histogram ttft, inter_token, request, queue;
    int64_t started_s; /* since 1970; set once, before others look */
};

void metrics_request(struct metrics *m, unsigned route, unsigned status);
void metrics_observe(struct metrics_histogram *h, double seconds);

struct metrics_view {               /* the rest of the text */
    const char *const *route_names; /* [n_routes] labels by route number */
    unsigned n_routes;
    const struct rod_stats *stats; /* stats, info: NULL while the model loads */
    const struct rod_model_info *info;
    const struct rod_store_counts *store; /* zeros without one */
    const char *model_name;
    struct keys *keys;
    uint64_t connections, connections_limit, log_lines_dropped;
    bool ready, stalled;
};
void metrics_render(struct metrics *m, const struct metrics_view *view, struct buf *out);

#endif
