/* pool.h - libuv's pool of threads, started before it is needed.
 *
 * libuv starts it at the first work, a long body, and ends the process where a thread does not start (a limit of
 * processes, of a container or a user). So it starts with the server, which can say why it does not.
 */
#ifndef POOL_H
#define POOL_H

#include <stddef.h>
#include <uv.h>

/* On a loop that has nothing else yet. 0, or -1 with message filled. */
int pool_start(uv_loop_t *loop, char *message, size_t size);

#endif
