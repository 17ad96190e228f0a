/* bytes.h - numbers in files and keys: little-endian, of 1 to 8 bytes, at any address. Pure. */
#ifndef BYTES_H
#define BYTES_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the low n bytes of x; returns where the next number goes. */
static inline unsigned char *bytes_put(unsigned char *to, uint64_t x, size_t n) {
    assert(n <= 8);
    for (size_t i = 0; i < n; i++) to[i] = (unsigned char)(x >> 8 * i);
    return to + n;
}

static inline uint64_t bytes_get(const unsigned char *from, size_t n) {
    assert(n <= 8);
    uint64_t x = 0;
    while (n--) x = x << 8 | from[n];
    return x;
}

#endif
