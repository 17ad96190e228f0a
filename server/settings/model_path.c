/* model_path.c - see model_path.h. */
#include "model_path.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL "skills" /* of config/models */

/* From the folder of the program so many levels up, then down: a bundle, build/, build/asan/, an installation's bin/.
 */
static const struct {
    int levels;
    const char *path;
} places[] = {{0, "config/models/" MODEL},
              {1, "config/models/" MODEL},
              {2, "config/models/" MODEL},
              {1, "share/rodimus/models/" MODEL}};

static void go_up(char *path, int levels) {
    for (; levels > 0; levels--) {
        char *slash = strrchr(path, '/');
        if (slash) *slash = 0;
    }
}

static int is_model_folder(const char *path) {
    char file[PATH_MAX];
    int n = snprintf(file, sizeof file, "%s/config.json", path);
    return n > 0 && n < (int)sizeof file && access(file, R_OK) == 0;
}

int model_path_bundled(char *path, size_t size) {
    char self[PATH_MAX] = "", base[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    for (size_t i = 0; n > 0 && i < sizeof places / sizeof *places; i++) {
        snprintf(base, sizeof base, "%s", self);
        go_up(base, places[i].levels + 1);
        snprintf(path, size, "%s/%s", base, places[i].path);
        if (is_model_folder(path)) return 0;
    }
    snprintf(base, sizeof base, "%s", self);
    go_up(base, places[0].levels + 1);
    snprintf(path, size, "%s/%s", base, places[0].path);
    return -1;
}
