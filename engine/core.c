/* core.c - what every file of the engine uses: the log, and the bounds of its figures. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>

const uint64_t rod_step_bounds_ns[20] = {100000,      200000,      500000,      1000000,      2000000,
                                         5000000,     10000000,    20000000,    50000000,     100000000,
                                         200000000,   500000000,   1000000000,  2000000000,   5000000000,
                                         10000000000, 20000000000, 50000000000, 100000000000, UINT64_MAX};

const uint64_t rod_step_bounds_rows[ROD_STEP_ROWS_BUCKETS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, UINT64_MAX};

void engine_log(const struct rod_engine *e, int level, const char *format, ...) {
    if (!e->config.log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    e->config.log(e->config.log_arg, level, line);
}
