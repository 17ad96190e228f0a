/* file_text.c - see file_text.h. */
#include "file_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int file_text(const char *path, struct file_bytes *out, char *message, size_t size) {
    const enum file_verdict verdict = file_read(path, FILE_ANY_KIND, FILE_TEXT_MAX_BYTES, out);
    if (verdict == FILE_READ) return 0;
    if (verdict == FILE_TOO_LARGE)
        snprintf(message, size, "%s has more than %u bytes", path, FILE_TEXT_MAX_BYTES);
    else
        snprintf(message, size, "cannot read %s: %s", path, strerror(verdict == FILE_NO_MEMORY ? ENOMEM : out->number));
    return -1;
}
