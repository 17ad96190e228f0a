/* notify.c - see notify.h. */
#include "notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int notify_send(const char *text) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!path || !*path) return 0;
    size_t n = strlen(path);
    if ((*path != '/' && *path != '@') || n >= sizeof to.sun_path) return -1;
    memcpy(to.sun_path, path, n);
    if (*path == '@') to.sun_path[0] = 0; /* the abstract namespace */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    ssize_t sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&to, len);
    close(fd);
    return sent < 0 ? -1 : 0;
}

uint64_t notify_watchdog_ms(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoull(pid, NULL, 10) != (unsigned long long)getpid())) return 0;
    return strtoull(usec, NULL, 10) / 2000;
}
