/* siphash.c - see siphash.h. The names are those of the paper. */
#include "siphash.h"

static uint64_t load(const uint8_t *from, size_t n) {
    uint64_t x = 0;
    while (n--) x = x << 8 | from[n];
    return x;
}

static void store(uint8_t *to, uint64_t x) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(x >> (8 * i));
}

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void rounds(uint64_t v[4], int n) {
    while (n--) {
        v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
        v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
    }
}

static void take(uint64_t v[4], uint64_t m) {
    v[3] ^= m;
    rounds(v, 2);
    v[0] ^= m;
}

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *bytes, size_t n, uint8_t out[SIPHASH_BYTES]) {
    const uint8_t *at = bytes;
    const uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261,
                     k1 ^ 0x7465646279746573};
    const uint64_t last = (uint64_t)n << 56;
    for (; n >= 8; n -= 8, at += 8) take(v, load(at, 8));
    take(v, last | load(at, n));
    v[2] ^= 0xee;
    rounds(v, 4);
    store(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
    v[1] ^= 0xdd;
    rounds(v, 4);
    store(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}
