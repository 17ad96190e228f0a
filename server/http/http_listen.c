/* http_listen.c - see http_listen.h. */
#include "http_listen.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/tcp.h> /* glibc's knows no bytes_received */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that stops reading would otherwise swallow 2.7 MB of kernel buffers; with this 20 KB. */
#define NOTSENT_LOWAT_BYTES 16384
#define BACKLOG             4096
#define TCP_SYN             0x02
#define TCP_ACK             0x10

static int bind_to(const struct addrinfo *a, bool shared) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if ((shared && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on)) || bind(fd, a->ai_addr, a->ai_addrlen)) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

void http_local_address(int fd, char *host, size_t size, uint16_t *port) {
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &len);
    *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                : ((struct sockaddr_in *)&address)->sin_port);
    if (size && getnameinfo((struct sockaddr *)&address, len, host, (socklen_t)size, NULL, 0, NI_NUMERICHOST))
        snprintf(host, size, "?");
}

int http_bind(const char *host, uint16_t port, bool shared, uint16_t *bound, char *message, size_t size) {
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc) {
        /* A name server that does not answer yet is another matter, and so is memory. */
        const bool later = rc == EAI_AGAIN || rc == EAI_SYSTEM || rc == EAI_MEMORY;
        snprintf(message, size, later ? "Cannot look up host '%s': %s." : "'%s' is not the name of a host: %s.", host,
                 gai_strerror(rc));
        return later ? -1 : HTTP_NO_HOST;
    }
    int fd = -1;
    errno = 0;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) fd = bind_to(a, shared);
    int why = errno;
    freeaddrinfo(found);
    if (fd < 0) {
        const char *in_use = shared ? "; a server that does not share it, or one of another user, has it"
                                    : "; is another server running? Choose another port";
        snprintf(message, size, "Cannot listen on %s port %u: %s%s.", host, port, strerror(why),
                 why == EADDRINUSE ? in_use : "");
        return -1;
    }
    http_local_address(fd, NULL, 0, bound);
    return fd;
}

int http_listen(int fd, uint16_t port, char *message, size_t size) {
    if (!listen(fd, BACKLOG)) return 0;
    snprintf(message, size, "Cannot listen on port %u: %s%s.", port, strerror(errno),
             errno == EADDRINUSE ? "; another server has taken it meanwhile" : "");
    return -1;
}

void http_turn_away(int fd) {
    /* The kernel hands the filter a packet from its TCP header on; connections that were accepted later keep it, and
     * never see a SYN without an ACK. */
    struct sock_filter syn[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13), /* the flags */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, TCP_SYN | TCP_ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TCP_SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    const struct sock_fprog filter = {.len = sizeof syn / sizeof *syn, .filter = syn};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter,
               sizeof filter); /* if it cannot, the port closes all the same */
}

void http_tune_socket(int fd, uint64_t idle_ms) {
    int on = 1, lowat = NOTSENT_LOWAT_BYTES, idle_s = 30, interval_s = 10, probes = 3;
    unsigned timeout = (unsigned)idle_ms;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
    /* Peers that vanish without a FIN. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

uint64_t http_received_bytes(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    const bool known = !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) &&
                       len >= offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received;
    return known ? info.tcpi_bytes_received : UINT64_MAX;
}

uint64_t http_raise_files(uint64_t n) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return n;
    if (limit.rlim_cur >= n) return limit.rlim_cur;
    struct rlimit wanted = {.rlim_cur = n, .rlim_max = limit.rlim_max < n ? n : limit.rlim_max};
    if (!setrlimit(RLIMIT_NOFILE, &wanted)) return n; /* root may raise the hard limit too */
    wanted = (struct rlimit){.rlim_cur = limit.rlim_max < n ? limit.rlim_max : n, .rlim_max = limit.rlim_max};
    if (!setrlimit(RLIMIT_NOFILE, &wanted)) return wanted.rlim_cur;
    return limit.rlim_cur;
}
