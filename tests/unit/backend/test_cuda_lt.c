/* test_cuda_lt.c - cuBLASLt is looked for and does not have to be there: a stand-in in this program has its names,
 * other objects lack some or all of them. No GPU is needed. */
#include "engine/backend/cuda/cuda_lt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

/* The stand-in: a function for each name, found as the program exports them (-rdynamic). Only the version is called. */
#define SHOWN __attribute__((visibility("default")))
#define STAND_IN(name)                                                                                                 \
    SHOWN int name(void);                                                                                              \
    int name(void) { return 0; }
static size_t its_version;
SHOWN size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return its_version; }
STAND_IN(cublasLtCreate)
STAND_IN(cublasLtDestroy)
STAND_IN(cublasLtMatmulDescCreate)
STAND_IN(cublasLtMatmulDescSetAttribute)
STAND_IN(cublasLtMatmulDescDestroy)
STAND_IN(cublasLtMatrixLayoutCreate)
STAND_IN(cublasLtMatrixLayoutSetAttribute)
STAND_IN(cublasLtMatrixLayoutDestroy)
STAND_IN(cublasLtMatmulPreferenceCreate)
STAND_IN(cublasLtMatmulPreferenceSetAttribute)
STAND_IN(cublasLtMatmulPreferenceDestroy)
STAND_IN(cublasLtMatmulAlgoGetHeuristic)
STAND_IN(cublasLtMatmul)

static bool load(struct lt_api *api, const char *first, const char *second, char *note, size_t note_bytes) {
    const char *const names[] = {first, second, NULL};
    return cuda_lt_load(api, names, 13, note, note_bytes);
}

static void a_library_of_the_right_version_is_taken_whole(void **state) {
    (void)state;
    struct lt_api api = {0};
    char note[96];
    its_version = 130102;
    assert_true(load(&api, "libcublasLt-of-nobody.so.13", "", note, sizeof note)); /* the second name is tried, too */
    assert_string_equal(note, "cuBLASLt 13.1.2");
    assert_ptr_equal(api.version, cublasLtGetVersion);
    void *p[sizeof api / sizeof(void *)];
    memcpy(p, &api, sizeof api);
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) assert_non_null(p[i]);
}

static void without_the_library_the_note_names_what_is_missing(void **state) {
    (void)state;
    struct lt_api api;
    char note[96];
    assert_false(load(&api, "libcublasLt-of-nobody.so.13", NULL, note, sizeof note));
    assert_string_equal(note, "no cuBLASLt (libcublasLt-of-nobody.so.13)");
}

static void a_library_of_another_version_or_without_a_function_is_left_alone(void **state) {
    (void)state;
    struct lt_api api;
    char note[96];
    its_version = 120500;
    assert_false(load(&api, "", NULL, note, sizeof note));
    assert_string_equal(note, "cuBLASLt 12.5.0");
    assert_false(load(&api, "libuv.so.1", NULL, note, sizeof note));
    assert_string_equal(note, "a cuBLASLt without cublasLtGetVersion");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_of_the_right_version_is_taken_whole),
        cmocka_unit_test(without_the_library_the_note_names_what_is_missing),
        cmocka_unit_test(a_library_of_another_version_or_without_a_function_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
