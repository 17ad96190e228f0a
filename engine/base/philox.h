/* philox.h - counter-based random numbers (Philox 4x32 with 10 rounds; Salmon and others, "Parallel random numbers: as
 * easy as 1, 2, 3", 2011): a pure function of key and counter, so that a draw depends on neither batch nor order.
 */
#ifndef PHILOX_H
#define PHILOX_H

#include <stdint.h>

void philox_block(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
/* Uniform in [0, 1) with 53 bits: the draw number draw at a position of the sequence that seed names. */
double philox_uniform(uint64_t seed, uint64_t position, uint32_t draw);

#endif
