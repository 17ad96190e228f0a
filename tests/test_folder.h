/* test_folder.h - a folder of a test's own. */
#ifndef TEST_FOLDER_H
#define TEST_FOLDER_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

static inline char *make_dir(void) {
    char dir[] = "/tmp/rodimus-sessions-XXXXXX";
    if (!mkdtemp(dir)) fail_msg("no folder");
    return strdup(dir);
}

static inline int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}
static inline void remove_dir(char *dir) {
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

#endif
