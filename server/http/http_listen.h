/* http_listen.h - sockets: where to listen, how a connection is tuned, how many files may be open. */
#ifndef HTTP_LISTEN_H
#define HTTP_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_NO_HOST = -2 }; /* no host has this name, which no new try cures */

/* A non-blocking socket that has its port (*bound) and refuses connections. shared: other sockets that say so too, of
 * processes of the same user, may have the port as well. -1 or HTTP_NO_HOST with message filled. */
int http_bind(const char *host, uint16_t port, bool shared, uint16_t *bound, char *message, size_t size);
/* Where a socket listens, as numbers. */
void http_local_address(int fd, char *host, size_t size, uint16_t *port);
/* It takes connections from now on. -1 with message: while it did not, somebody else could begin to on the same port.
 */
int http_listen(int fd, uint16_t port, char *message, size_t size);
/* From now on new clients are not answered: the first packet is dropped, the client's kernel asks again a second later
 * and finds the port closed. A handshake that has begun completes. Without it, a client that connects between the last
 * accept and the close is reset. */
void http_turn_away(int fd);
void http_tune_socket(int fd, uint64_t idle_ms);
uint64_t http_received_bytes(int fd); /* since it was connected; UINT64_MAX = not known */
/* Raises the limit of open files to n where allowed; returns the limit that holds. */
uint64_t http_raise_files(uint64_t n);

#endif
