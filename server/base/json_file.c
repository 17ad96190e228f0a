/* json_file.c - see json_file.h. */
#include "json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_to(const json_t *root, const char *path, size_t flags) {
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    int rc = json_dumpf(root, file, flags) || fputc('\n', file) == EOF ? -1 : 0;
    const int why = errno;
    if (fclose(file)) return -1;
    errno = why;
    return rc;
}

int json_file_write(const json_t *root, const char *path, size_t flags) {
    struct stat there;
    if (!lstat(path, &there) && !S_ISREG(there.st_mode)) return write_to(root, path, flags);
    char *beside = NULL;
    if (asprintf(&beside, "%s.%ld.part", path, (long)getpid()) < 0) return -1;
    int rc = write_to(root, beside, flags);
    if (!rc) rc = rename(beside, path);
    const int why = errno;
    if (rc) unlink(beside);
    free(beside);
    errno = why;
    return rc ? -1 : 0;
}
