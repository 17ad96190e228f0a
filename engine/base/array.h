/* array.h - room in an array that grows by doubling. Pure but for realloc. */
#ifndef ARRAY_H
#define ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Room for n more items behind those in use: the array may move. items: the pointer to them, cap: a uint32_t or size_t.
 * false: no memory, or more than cap can count; all stays as it was. */
#define ARRAY_RESERVE(items, cap, used, n)                                                                             \
    array_reserve((void *)&(items), sizeof *(items), (void *)&(cap), sizeof(cap), used, n)
bool array_reserve(void *items, size_t item_bytes, void *cap, size_t cap_bytes, size_t used, size_t n);

#endif
