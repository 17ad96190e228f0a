/* file_text.h - the whole of a small file that an operator names: settings, keys, certificates.
 *
 * The loop reads them at SIGHUP and serves nobody meanwhile, so there is a bound: /dev/zero, or a log that took the
 * place of a key file, is an error after 4 MiB. Who owns what: the caller frees the text; it may hold secrets, and no
 * copy of it stays. Any thread.
 */
#ifndef FILE_TEXT_H
#define FILE_TEXT_H

#include <stddef.h>

/* The most that a parser takes, some times over: 1000 keys of 256 bytes with their fields, 16 certificates. */
#define FILE_TEXT_MAX_BYTES (4u << 20)

/* Malloc'd, with a zero behind its end. 0, or -1 with the message, which names file and reason. */
int file_text(const char *path, char **text, size_t *len, char *message, size_t size);
/* Overwrites and frees it. NULL is fine. */
void file_text_free(char *text, size_t len);

#endif
