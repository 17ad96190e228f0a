/* file_text.c - see file_text.h. */
#include "file_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_to_read(const char *path, int why, char *message, size_t size) {
    snprintf(message, size, "cannot read %s: %s", path, strerror(why));
    return -1;
}

/* At once, and not by the size that the file says: it may be a pipe, or grow. */
static int read_all(FILE *file, const char *path, char *text, size_t *len, char *message, size_t size) {
    setvbuf(file, NULL, _IONBF, 0); /* what it holds is not to stay in a buffer */
    *len = fread(text, 1, FILE_TEXT_MAX_BYTES + 1, file);
    if (ferror(file)) return fail_to_read(path, errno, message, size);
    if (*len <= FILE_TEXT_MAX_BYTES) return 0;
    snprintf(message, size, "%s has more than %u bytes", path, FILE_TEXT_MAX_BYTES);
    return -1;
}

int file_text(const char *path, char **text, size_t *len, char *message, size_t size) {
    FILE *file = fopen(path, "rbe");
    if (!file) return fail_to_read(path, errno, message, size);
    char *all = malloc(FILE_TEXT_MAX_BYTES + 1);
    const int rc = all ? read_all(file, path, all, len, message, size) : fail_to_read(path, ENOMEM, message, size);
    fclose(file);
    if (rc) {
        file_text_free(all, all ? *len : 0);
        return -1;
    }
    all[*len] = 0;
    *text = all;
    return 0;
}

void file_text_free(char *text, size_t len) {
    if (text) explicit_bzero(text, len);
    free(text);
}
