/* siphash.c - see siphash.h. The names are those of the paper. */
#include "siphash.h"
#include "bytes.h"

static uint64_t sip_rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void sip_rounds(uint64_t v[4], int n) {
    while (n--) {
        v[0] += v[1], v[1] = sip_rotate(v[1], 13) ^ v[0], v[0] = sip_rotate(v[0], 32);
        v[2] += v[3], v[3] = sip_rotate(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = sip_rotate(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = sip_rotate(v[1], 17) ^ v[2], v[2] = sip_rotate(v[2], 32);
    }
}

static void sip_add_word(uint64_t v[4], uint64_t m) {
    v[3] ^= m;
    sip_rounds(v, 2);
    v[0] ^= m;
}

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *bytes, size_t n, uint8_t out[SIPHASH_BYTES]) {
    const uint8_t *at = bytes;
    const uint64_t k0 = bytes_get(key, 8), k1 = bytes_get(key + 8, 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261,
                     k1 ^ 0x7465646279746573};
    const uint64_t last = (uint64_t)n << 56;
    for (; n >= 8; n -= 8, at += 8) sip_add_word(v, bytes_get(at, 8));
    sip_add_word(v, last | bytes_get(at, n));
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    bytes_put(out, v[0] ^ v[1] ^ v[2] ^ v[3], 8);
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    bytes_put(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3], 8);
}
