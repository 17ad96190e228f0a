/* each_model.h - for tests that hold for every model of config/models: those that have a file of cases. */
#ifndef EACH_MODEL_H
#define EACH_MODEL_H

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* test gets each folder that has the file. */
static inline void each_model_with(const char *file, void (*test)(const char *dir)) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "config/models/*/%s", file);
    if (glob(pattern, 0, NULL, &found)) fail_msg("there is no %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        *strrchr(found.gl_pathv[i], '/') = 0;
        test(found.gl_pathv[i]);
    }
    globfree(&found);
}

#endif
