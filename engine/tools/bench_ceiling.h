/* bench_ceiling.h - what this machine's processors can do at best: read memory, and multiply.
 *
 * Struct bench_reader owns a buffer as large as a step's bytes (1 MiB to 1 GiB), so that a model that fits a cache is
 * held to that cache's speed. Its caller reads it between the steps that it measures: other users of the machine
 * then slow both alike.
 */
#ifndef BENCH_CEILING_H
#define BENCH_CEILING_H

struct team;
struct bench_reader;

struct bench_reader *bench_reader_open(struct team *team, double bytes); /* NULL without memory */
void bench_reader_close(struct bench_reader *reader);                    /* NULL: nothing */
double bench_reader_rate(struct bench_reader *reader);                   /* reads it once; bytes a second */

/* Best rate of fp32 products of bf16 weights with everything in the nearest cache. */
double bench_flop_rate(struct team *team);

#endif
