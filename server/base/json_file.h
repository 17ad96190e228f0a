/* json_file.h - a result that is written to a file whole or not at all. */
#ifndef JSON_FILE_H
#define JSON_FILE_H

#include <jansson.h>

/* Into a new file beside path, which then takes its place: a process that ends in between leaves the old one or the new
 * one. What is no regular file (/dev/stdout, a pipe) is written to as it is. A line break ends it. -1 with errno. */
int json_file_write(const json_t *root, const char *path, size_t flags);

#endif
