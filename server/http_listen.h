/* http_listen.h - sockets: where to listen, how a connection is tuned, how many files may be open. */
#ifndef HTTP_LISTEN_H
#define HTTP_LISTEN_H

#include <stddef.h>
#include <stdint.h>

/* A listening, non-blocking socket; *bound is its port. -1 with message filled. */
int http_listen(const char *host, uint16_t port, uint16_t *bound, char *message, size_t size);
void http_tune_socket(int fd, uint64_t idle_ms);
/* Raises the limit of open files to n where allowed; returns the limit that holds. */
uint64_t http_raise_files(uint64_t n);

#endif
