/* array.c - see array.h. Pointers and counts go by memcpy: their types are the caller's. */
#include "array.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ITEMS = 64 };

bool array_reserve(void *items, size_t item_bytes, void *cap, size_t cap_bytes, size_t used, size_t n) {
    uint32_t narrow = 0;
    size_t has = 0;
    assert(cap_bytes == sizeof narrow || cap_bytes == sizeof has);
    memcpy(cap_bytes == sizeof narrow ? (void *)&narrow : (void *)&has, cap, cap_bytes);
    if (narrow) has = narrow;
    assert(used <= has);
    if (n <= has - used) return true;
    const size_t most = (cap_bytes == sizeof narrow ? UINT32_MAX : SIZE_MAX / 2) / item_bytes;
    size_t want = has ? has : FIRST_ITEMS;
    while (want <= most / 2 && want - used < n) want *= 2;
    void *at;
    memcpy(&at, items, sizeof at);
    void *more = want - used < n ? NULL : realloc(at, want * item_bytes);
    if (!more) return false;
    memcpy(items, &more, sizeof more);
    narrow = (uint32_t)want;
    memcpy(cap, cap_bytes == sizeof narrow ? (void *)&narrow : (void *)&want, cap_bytes);
    return true;
}
