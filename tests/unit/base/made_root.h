/* made_root.h - a folder that stands for / in a test of the machine's files. */
#ifndef TESTS_MADE_ROOT_H
#define TESTS_MADE_ROOT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* A root of its own for each test; *state is its path. */
static inline int made_root_open(void **state) {
    char *root = strdup("/tmp/rodimus-root-XXXXXX");
    *state = root;
    return mkdtemp(root) ? 0 : -1;
}

static inline int made_root_close(void **state) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return system(command);
}

static inline void made_root_write(const char *root, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#endif
