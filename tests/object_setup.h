/* object_setup.h - an object store over tests/object_stand_in.py, which does faults on demand. */
#ifndef OBJECT_SETUP_H
#define OBJECT_SETUP_H

#include "engine/object/object_store.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct object_setup {
    pid_t pid;
    int port, out; /* out: the stand-in's stdout */
    char endpoint[64];
    struct object_store *store;
    char log[4096]; /* lines of the store */
};

/* Flags of the stand-in, NULL at the end; "--dir" makes it outlive a kill. */
static inline void object_setup_stand_in(struct object_setup *s, const char *const *flags) {
    int ends[2];
    char line[64] = "", port[16];
    const char *argv[32] = {"python3", "tests/object_stand_in.py", "--port", port};
    size_t n = 4;
    snprintf(port, sizeof port, "%d", s->port);
    while (flags && *flags) argv[n++] = *flags++;
    assert_int_equal(pipe(ends), 0);
    s->pid = fork();
    if (!s->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves none behind */
        dup2(ends[1], 1);
        close(ends[0]);
        execvp("python3", (char *const *)(const void *)argv);
        _exit(127);
    }
    close(ends[1]);
    s->out = ends[0];
    for (size_t at = 0; at + 1 < sizeof line && read(s->out, line + at, 1) == 1 && line[at] != '\n'; at++) {}
    if (sscanf(line, "listening on %d", &s->port) != 1) fail_msg("the stand-in says '%s'", line);
    snprintf(s->endpoint, sizeof s->endpoint, "http://127.0.0.1:%d", s->port);
}

static inline void object_setup_end_stand_in(struct object_setup *s, int number) {
    kill(s->pid, number);
    kill(s->pid, SIGCONT);
    waitpid(s->pid, NULL, 0);
    close(s->out);
}

/* One request without a signature; the answer's body, malloc'd. */
static inline char *object_setup_ask(struct object_setup *s, const char *method, const char *path, const char *body) {
    char head[256], buffer[65536];
    char *all = malloc(1);
    size_t n = 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", method,
             path, strlen(body));
    assert_int_equal(write(fd, head, strlen(head)), (ssize_t)strlen(head));
    assert_int_equal(write(fd, body, strlen(body)), (ssize_t)strlen(body));
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0; n += (size_t)got) {
        all = realloc(all, n + (size_t)got + 1);
        memcpy(all + n, buffer, (size_t)got);
    }
    close(fd);
    all[n] = 0;
    char *begin = strstr(all, "\r\n\r\n");
    if (!begin || strncmp(all, "HTTP/1.1 200", 12) != 0) fail_msg("%s %s: %s", method, path, all);
    memmove(all, begin + 4, strlen(begin + 4) + 1);
    return all;
}

static inline void object_setup_faults(struct object_setup *s, const char *json) {
    free(object_setup_ask(s, "PUT", "/_faults", json));
}

/* How often a text is in the answer of a path of control. */
static inline unsigned object_setup_count(struct object_setup *s, const char *path, const char *text) {
    char *all = object_setup_ask(s, "GET", path, "");
    unsigned n = 0;
    for (const char *at = all; (at = strstr(at, text)); at += strlen(text)) n++;
    free(all);
    return n;
}

static inline void object_setup_log(void *arg, int level, const char *line) {
    struct object_setup *s = arg;
    const size_t n = strlen(s->log);
    (void)level;
    snprintf(s->log + n, sizeof s->log - n, "%s\n", line);
}

static inline struct object_store_config object_setup_config(struct object_setup *s) {
    setenv("AWS_ACCESS_KEY_ID", "STANDIN", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "stand+in/secret", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_REGION");
    unsetenv("AWS_DEFAULT_REGION");
    return (struct object_store_config){
        .url = "s3://states/t/est", .endpoint = s->endpoint, .timeout_ms = 2000, .log = object_setup_log, .log_arg = s};
}

static inline struct object_store *object_setup_open(const struct object_store_config *config) {
    struct object_store *store;
    struct rod_error err;
    if (object_store_open(config, &store, &err)) fail_msg("%s: %s", err.param, err.message);
    return store;
}

/* One object of one part. */
static inline struct object_put object_setup_put(struct object_store *store, const char *key, const void *data,
                                                 size_t n, enum object_condition condition, const char *etag) {
    const struct state_bytes part = {data, n};
    struct object_put put = {.key = key, .parts = &part, .n_parts = 1, .condition = condition, .etag = etag};
    object_store_put(store, &put, 1);
    put.parts = NULL;
    return put;
}

/* Of a group of tests. */
static inline int object_setup_begin(void **state) {
    struct object_setup *s = *state = calloc(1, sizeof *s);
    object_setup_stand_in(s, NULL);
    const struct object_store_config config = object_setup_config(s);
    s->store = object_setup_open(&config);
    return 0;
}
static inline int object_setup_finish(void **state) {
    struct object_setup *s = *state;
    object_store_close(s->store);
    object_setup_end_stand_in(s, SIGTERM);
    free(s);
    return 0;
}

static inline char *object_setup_body(size_t n) {
    char *body = malloc(n + 1);
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) body[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
    return body;
}

/* All of an object, with a zero behind it. */
static inline char *object_setup_read(struct object_store *store, const char *key, size_t n_bytes) {
    struct object_reader *reader;
    struct object_version version;
    struct rod_error err;
    size_t n;
    char *all = malloc(n_bytes + 2);
    if (object_store_get(store, key, "", &reader, &version, &err)) fail_msg("%s", err.message);
    if (object_reader_get(reader, all, n_bytes + 1, &n, &err)) fail_msg("%s", err.message);
    if (n != n_bytes || version.n_bytes != n_bytes) fail_msg("%s has %zu bytes, not %zu", key, n, n_bytes);
    object_reader_close(reader);
    all[n] = 0;
    return all;
}

#endif
