/* model_path.c - see model_path.h. */
#include "model_path.h"

#include <limits.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* From the folder of the program: build/, build/asan/, an installation's bin/. */
static const char *const places[] = {"../config/models/tales", "../../config/models/tales", "../share/rodimus/models/tales"};

static int complete(const char *path) {
    char file[PATH_MAX];
    int n = snprintf(file, sizeof file, "%s/config.json", path);
    return n > 0 && n < (int)sizeof file && access(file, R_OK) == 0;
}

int model_path_bundled(char *path, size_t size) {
    char self[PATH_MAX] = "", found[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = n > 0 ? strrchr(self, '/') : NULL;
    if (slash) *slash = 0;
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        snprintf(path, size, "%s/%s", self, places[i]);
        if (!complete(path)) continue;
        if (realpath(path, found)) snprintf(path, size, "%s", found);
        return 0;
    }
    snprintf(path, size, "%s/%s", slash ? self : ".", places[0]);
    return -1;
}
