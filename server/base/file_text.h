/* file_text.h - the whole of a small file that an operator names: settings, keys, certificates.
 *
 * The loop reads these files at SIGHUP and serves nobody meanwhile, so there is a bound: /dev/zero, or a log that took
 * the place of a key file, is an error after 4 MiB. Ownership: the caller wipes the bytes (file_wipe), which may be
 * secrets. Threads: any.
 */
#ifndef FILE_TEXT_H
#define FILE_TEXT_H

#include "engine/base/file.h"

/* The most that a parser takes, some times over: 1000 keys of 256 bytes with their fields, 16 certificates. */
#define FILE_TEXT_MAX_BYTES (4u << 20)

/* 0, or -1 with the message, which names file and reason. */
int file_text(const char *path, struct file_bytes *out, char *message, size_t size);

#endif
