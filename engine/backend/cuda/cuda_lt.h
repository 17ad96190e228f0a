/* cuda_lt.h - what we know of cuBLASLt: its C interface, the same in 12 and 13, and how it is loaded. It is never
 * linked: a program that has no use for it, or a machine that has it not, is without it. Compiled into the program,
 * too, so that loading is tested without CUDA. */
#ifndef CUDA_LT_H
#define CUDA_LT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LT_OP_T = 1, LT_COMPUTE_32F = 68, LT_COMPUTE_32F_PEDANTIC = 69 }; /* pedantic: no TF32, whatever asks for it */
enum { LT_R_32F = 0, LT_R_16F = 2, LT_R_16BF = 14 };
enum { LT_DESC_TRANSA = 3, LT_LAYOUT_COLS = 3, LT_PREF_WORKSPACE = 1, LT_PREF_REDUCTIONS = 3 };
struct lt_algo {
    uint64_t data[8];
};
struct lt_result {
    struct lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
struct lt_api {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_set)(void *layout, int attribute, const void *value, size_t bytes);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_set)(void *pref, int attribute, const void *value, size_t bytes);
    int (*pref_destroy)(void *pref);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int most,
                     struct lt_result *results, int *n);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb,
                  const void *beta, const void *c, void *lc, void *d, void *ld, const struct lt_algo *algo,
                  void *workspace, size_t workspace_bytes, void *stream);
};

/* The library of this major version, by the names, one after the other (NULL-terminated; an empty one: the program
 * itself, for tests). note: what was found, "cuBLASLt 13.1.0", or what was not. It stays loaded, as the plugin does. */
bool cuda_lt_load(struct lt_api *api, const char *const names[], size_t major, char *note, size_t note_bytes);

#endif
