/* siphash.h - SipHash-2-4 with 128 bits (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): a hash under
 * a key. Without the key nobody can choose texts that collide; a checksum such as XXH3 has no such protection.
 *
 * Pure; any thread.
 */
#ifndef SIPHASH_H
#define SIPHASH_H

#include <stddef.h>
#include <stdint.h>

enum { SIPHASH_KEY_BYTES = 16, SIPHASH_BYTES = 16 };

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *bytes, size_t n, uint8_t out[SIPHASH_BYTES]);

#endif
