/* bench_ceiling.c - see bench_ceiling.h. */
#include "bench_ceiling.h"
#include "engine/base/clock.h"
#include "engine/backend/cpu/cpu_team.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALL_BYTES = 16 << 20 };

static double ceiling_now_s(void) { return 1e-9 * (double)clock_now_ns(); }

struct bench_reader {
    struct team *team;
    const struct cpu_ops *ops;
    float *x;
    size_t n;
    double sum[1024];
};

static void read_member(void *arg, uint32_t member) {
    struct bench_reader *r = arg;
    uint32_t first, last;
    team_range(r->team, member, (uint32_t)(r->n / 256), &first, &last);
    r->sum[member % 1024] = (double)r->ops->read_sum(r->x + (size_t)first * 256, (size_t)(last - first) * 256);
}

static double read_once(struct bench_reader *r, bool alone) {
    const double t = ceiling_now_s();
    if (alone)
        r->sum[0] += (double)r->ops->read_sum(r->x, r->n);
    else
        team_run(r->team, read_member, r);
    return (double)r->n * sizeof *r->x / (ceiling_now_s() - t);
}

struct bench_reader *bench_reader_open(struct team *team, double bytes) {
    struct bench_reader *r = calloc(1, sizeof *r);
    const size_t n = (size_t)fmin(fmax(bytes, 1 << 20), 1 << 30) / 1024 * 256;
    /* Not from the heap, which may keep it: a row says the memory that the process has. */
    float *x = mmap(NULL, n * sizeof *x, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!r || x == MAP_FAILED) {
        if (x != MAP_FAILED) munmap(x, n * sizeof *x);
        free(r);
        return NULL;
    }
    *r = (struct bench_reader){.team = team, .ops = cpu_ops_best(), .x = x, .n = n};
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 13) * 0.25f;
    return r;
}

void bench_reader_close(struct bench_reader *r) {
    if (r) munmap(r->x, r->n * sizeof *r->x);
    free(r);
}

/* By the team, or alone where waking the team may take longer than the reading. */
double bench_reader_rate(struct bench_reader *r) {
    const double by_team = read_once(r, false);
    return r->n * sizeof *r->x > SMALL_BYTES ? by_team : fmax(by_team, read_once(r, true));
}

struct flop_job {
    const struct team *team;
    const struct cpu_ops *ops;
    const struct cpu_matrix *w;
    const float *x;
    float *y;
    uint32_t n_members; /* of the run that is on: a busy machine's may have one */
};
enum { FLOP_ROWS = 8, FLOP_COLS = 256, FLOP_OUT = 32, FLOP_REPEAT = 200 };
static void flop_member(void *arg, uint32_t member) {
    struct flop_job *job = arg;
    if (member == 0) job->n_members = team_size(job->team);
    const struct cpu_product product = {.w = job->w,
                                        .n_rows = FLOP_ROWS,
                                        .x = job->x,
                                        .ldx = FLOP_COLS,
                                        .y = job->y + (size_t)member * FLOP_ROWS * FLOP_OUT,
                                        .ldy = FLOP_OUT};
    for (int i = 0; i < FLOP_REPEAT; i++) job->ops->linear(&product, 0, 1, NULL);
}

double bench_flop_rate(struct team *team) {
    size_t bytes = cpu_matrix_bytes(FLOP_OUT, FLOP_COLS, CPU_BF16);
    struct cpu_matrix w = {.rows = FLOP_OUT, .cols = FLOP_COLS, .n_panels = 1, .dtype = CPU_BF16};
    w.data = aligned_alloc(64, bytes);
    float *x = aligned_alloc(64, sizeof *x * FLOP_ROWS * FLOP_COLS);
    float *y = aligned_alloc(64, sizeof *y * FLOP_ROWS * FLOP_OUT * team_size(team));
    double rate = 0;
    if (w.data && x && y) {
        for (size_t i = 0; i < bytes / 2; i++) {
            uint16_t half = (uint16_t)(0x3c00 + i % 97);
            memcpy(w.data + 2 * i, &half, 2);
        }
        for (int i = 0; i < FLOP_ROWS * FLOP_COLS; i++) x[i] = (float)(i % 11) * 0.125f;
        struct flop_job job = {team, cpu_ops_best(), &w, x, y, 0};
        for (int i = 0; i < 50; i++) {
            double t = ceiling_now_s();
            team_run(team, flop_member, &job);
            rate = fmax(rate,
                        2.0 * FLOP_ROWS * FLOP_COLS * FLOP_OUT * FLOP_REPEAT * job.n_members / (ceiling_now_s() - t));
        }
    }
    free(w.data), free(x), free(y);
    return rate;
}
