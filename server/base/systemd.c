/* systemd.c - see systemd.h. */
#include "systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
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

/* ---- sockets ---- */

enum { FIRST_FD = 3, MAX_FDS = 2 };

/* The value of digits without leading zeros; -1 for any other text. */
static long number_of(const char *text) {
    const size_t n = strspn(text, "0123456789");
    if (!n || n > 9 || text[n] || (*text == '0' && n > 1)) return -1;
    return strtol(text, NULL, 10);
}

/* The name of the i-th, of n bytes. */
static const char *name_of(const char *names, long i, size_t *n) {
    for (; i > 0; i--) names += strcspn(names, ":") + 1;
    *n = strcspn(names, ":");
    return names;
}

static long count_names(const char *names) {
    long n = 1;
    for (const char *c = names; *c; c++) n += *c == ':';
    return n;
}

/* Without names the first is the port's. */
static int sort_socket(struct listen_fds *out, const char *names, long i, char *message, size_t size) {
    size_t n_name = 0;
    const char *name = names ? name_of(names, i, &n_name) : NULL;
    const bool admin = names ? n_name == 5 && !strncmp(name, "admin", 5) : i == 1;
    int *fd = admin ? &out->admin : &out->port;
    if (!*fd) {
        *fd = FIRST_FD + (int)i;
        return 0;
    }
    if (admin)
        snprintf(message, size, "LISTEN_FDNAMES: '%.80s' names two sockets admin.", names);
    else
        snprintf(message, size,
                 "LISTEN_FDNAMES: '%.80s' names no socket admin; of two sockets that of admin_port has "
                 "FileDescriptorName=admin.",
                 names);
    return -1;
}

int listen_fds_parse(const char *count, const char *pid, const char *names, pid_t self, struct listen_fds *out,
                     char *message, size_t size) {
    *out = (struct listen_fds){0};
    const long owner = pid ? number_of(pid) : -1;
    if (!count || (owner >= 0 && owner != self)) return 0;
    const long n = number_of(count);
    if (n < 0) {
        snprintf(message, size, "LISTEN_FDS: '%.40s' is no number of sockets.", count);
        return -1;
    }
    if (owner != self) return 0; /* nobody's */
    if (n > MAX_FDS) {
        snprintf(message, size,
                 "LISTEN_FDS: %ld sockets are handed over; at most one for port and one for admin_port are taken.", n);
        return -1;
    }
    if (n && names && count_names(names) != n) {
        snprintf(message, size, "LISTEN_FDNAMES: '%.80s' has not one name for each socket of LISTEN_FDS.", names);
        return -1;
    }
    for (long i = 0; i < n; i++)
        if (sort_socket(out, names, i, message, size)) return -1;
    return 0;
}

static int number_from_socket(int fd, int option) {
    int value = 0;
    socklen_t len = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &len) ? -1 : value;
}

/* Accept=yes would hand over a connection, ListenDatagram= no stream. */
static const char *socket_fault(int fd) {
    if (fcntl(fd, F_GETFD) < 0) return "is not open";
    const int domain = number_from_socket(fd, SO_DOMAIN);
    if ((domain != AF_INET && domain != AF_INET6) || number_from_socket(fd, SO_TYPE) != SOCK_STREAM)
        return "is no TCP socket";
    return number_from_socket(fd, SO_ACCEPTCONN) == 1 ? NULL : "does not listen";
}

static int prepare(int fd, char *message, size_t size) {
    if (!fd) return 0;
    const char *fault = socket_fault(fd);
    if (!fault && (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)))
        fault = strerror(errno);
    if (fault) snprintf(message, size, "LISTEN_FDS: file descriptor %d %s.", fd, fault);
    return fault ? -1 : 0;
}

int listen_fds_take(struct listen_fds *out, char *message, size_t size) {
    int rc = listen_fds_parse(getenv("LISTEN_FDS"), getenv("LISTEN_PID"), getenv("LISTEN_FDNAMES"), getpid(), out,
                              message, size);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    if (!rc) rc = prepare(out->port, message, size);
    return rc ? rc : prepare(out->admin, message, size);
}
