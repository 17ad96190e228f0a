/* cuda_lt.c - cuBLASLt, loaded. */
#include "cuda_lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool cuda_lt_load(struct lt_api *api, const char *const names[], size_t major, char *note, size_t note_bytes) {
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
        {"cublasLtGetVersion", offsetof(struct lt_api, version)},
        {"cublasLtCreate", offsetof(struct lt_api, create)},
        {"cublasLtDestroy", offsetof(struct lt_api, destroy)},
        {"cublasLtMatmulDescCreate", offsetof(struct lt_api, desc_create)},
        {"cublasLtMatmulDescSetAttribute", offsetof(struct lt_api, desc_set)},
        {"cublasLtMatmulDescDestroy", offsetof(struct lt_api, desc_destroy)},
        {"cublasLtMatrixLayoutCreate", offsetof(struct lt_api, layout_create)},
        {"cublasLtMatrixLayoutSetAttribute", offsetof(struct lt_api, layout_set)},
        {"cublasLtMatrixLayoutDestroy", offsetof(struct lt_api, layout_destroy)},
        {"cublasLtMatmulPreferenceCreate", offsetof(struct lt_api, pref_create)},
        {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct lt_api, pref_set)},
        {"cublasLtMatmulPreferenceDestroy", offsetof(struct lt_api, pref_destroy)},
        {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct lt_api, heuristic)},
        {"cublasLtMatmul", offsetof(struct lt_api, matmul)},
    };
    void *object = NULL;
    for (size_t i = 0; names[i] && !object; i++) object = dlopen(*names[i] ? names[i] : NULL, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        snprintf(note, note_bytes, "no cuBLASLt (%s)", names[0]);
        return false;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *p = dlsym(object, functions[i].name);
        if (!p) {
            snprintf(note, note_bytes, "a cuBLASLt without %s", functions[i].name);
            return false;
        }
        memcpy((char *)api + functions[i].at, &p, sizeof p);
    }
    const size_t v = api->version();
    snprintf(note, note_bytes, "cuBLASLt %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return v / 10000 == major;
}
