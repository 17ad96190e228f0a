/* read_file.h - for tests: a whole file, zero-terminated, for free(). One that cannot be read fails the test. */
#ifndef READ_FILE_H
#define READ_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* len may be NULL. */
static inline char *read_file(const char *path, size_t *len) {
    FILE *from = fopen(path, "rb");
    if (!from) fail_msg("cannot open %s", path);
    fseek(from, 0, SEEK_END);
    const size_t n = (size_t)ftell(from);
    rewind(from);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, from), n);
    text[n] = 0;
    fclose(from);
    if (len) *len = n;
    return text;
}

static inline char *read_file_in(const char *dir, const char *file, size_t *len) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return read_file(path, len);
}

#endif
