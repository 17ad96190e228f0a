/* object_memory.c - see object_memory.h. libcurl copies each text that an option has, and the user and password of a
 * connection, by strdup alone. */
#include "object_memory.h"

#include <curl/curl.h>

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct block {
    size_t n, n_mapped; /* 0 = malloc'd */
    alignas(max_align_t) unsigned char bytes[];
};

static struct block *block_of(void *p) { return (struct block *)((unsigned char *)p - offsetof(struct block, bytes)); }

static void *memory_malloc(size_t n) {
    struct block *b = n <= SIZE_MAX - sizeof *b ? malloc(sizeof *b + n) : NULL;
    if (!b) return NULL;
    b->n = n;
    b->n_mapped = 0;
    return b->bytes;
}

static void memory_free(void *p) {
    if (!p) return;
    struct block *b = block_of(p);
    explicit_bzero(p, b->n);
    if (b->n_mapped)
        munmap(b, b->n_mapped);
    else
        free(b);
}

static void *memory_realloc(void *p, size_t n) {
    void *q = memory_malloc(n);
    if (q && p) memcpy(q, p, block_of(p)->n < n ? block_of(p)->n : n);
    if (q) memory_free(p);
    return q;
}

static void *memory_calloc(size_t n, size_t size) {
    void *p = size && n > SIZE_MAX / size ? NULL : memory_malloc(n * size);
    if (p) memset(p, 0, n * size);
    return p;
}

static char *memory_strdup(const char *text) {
    const size_t n = strlen(text) + 1, n_mapped = sizeof(struct block) + n;
    struct block *b = mmap(NULL, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) return NULL;
    madvise(b, n_mapped, MADV_DONTDUMP);
    b->n = n;
    b->n_mapped = n_mapped;
    memcpy(b->bytes, text, n);
    return (char *)b->bytes;
}

bool object_memory_begin(void) {
    return !curl_global_init_mem(CURL_GLOBAL_DEFAULT, memory_malloc, memory_free, memory_realloc, memory_strdup,
                                 memory_calloc);
}
