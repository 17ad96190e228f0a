/* shim.c - preloaded into a server under test: memory and threads that run out, a clock that jumps, a model that does
 * not get loaded, a port that closes late, on command.
 *
 * The file that RODIMUS_TEST_SHIM names is shared memory: a struct orders. Allocations fail on the first thread alone,
 * the loop's; the wall clock is wrong for all. While the file that RODIMUS_TEST_HOLD names exists, loading stands still
 * where it opens generation_config.json. Of the threads that are made, so many as RODIMUS_TEST_THREADS says live at
 * once. A port closes RODIMUS_TEST_CLOSE_MS late. Weights are hashed at RODIMUS_TEST_HASH_BPS bytes a second, as from a
 * slow disk. While files of RODIMUS_TEST_HANG exist, the loop or the log hangs. Not part of the product.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct orders {
    volatile uint32_t one_in; /* of so many allocations one fails; 0 = none */
    volatile uint32_t n_failed;
    volatile int64_t skew_s; /* added to the wall clock */
};

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
/* A sanitizer's functions, if the server has one: what fails then leaks nothing that it does not see. */
__attribute__((weak)) void *__interceptor_malloc(size_t n);
__attribute__((weak)) void *__interceptor_calloc(size_t n, size_t size);
__attribute__((weak)) void *__interceptor_realloc(void *p, size_t n);

static struct orders *orders;
static __thread int is_loop; /* 0 = not known yet, 1, -1 */
static uint64_t state = 88172645463325252ull;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RODIMUS_TEST_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) orders = at;
    close(fd);
}

static int fails(void) {
    if (!orders || !orders->one_in) return 0;
    if (!is_loop) is_loop = syscall(SYS_gettid) == getpid() ? 1 : -1;
    if (is_loop < 0) return 0;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (state % orders->one_in) return 0;
    orders->n_failed++;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) {
    if (fails()) return NULL;
    return __interceptor_malloc ? __interceptor_malloc(n) : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    if (fails()) return NULL;
    return __interceptor_calloc ? __interceptor_calloc(n, size) : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    if (n && fails()) return NULL;
    return __interceptor_realloc ? __interceptor_realloc(p, n) : __libc_realloc(p, n);
}

int open(const char *path, int flags, ...) {
    static const char held[] = "/generation_config.json";
    const char *hold = getenv("RODIMUS_TEST_HOLD");
    const size_t n = strlen(path), n_held = sizeof held - 1;
    int (*next)(const char *, int, ...); /* a sanitizer's, which wants to know which files are open */
    mode_t mode = 0;
    *(void **)&next = dlsym(RTLD_NEXT, "open");
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    while (hold && n >= n_held && !strcmp(path + n - n_held, held) && !access(hold, F_OK)) usleep(10000);
    return next(path, flags, mode);
}

/* The loop, and writers of the log, stand still while the files exist that RODIMUS_TEST_HANG names, with .loop and .log
 * behind it. */
static void hang_while(const char *end) {
    const char *name = getenv("RODIMUS_TEST_HANG");
    char path[512];
    if (!name) return;
    snprintf(path, sizeof path, "%s%s", name, end);
    while (!access(path, F_OK)) usleep(10000);
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout) {
    int (*next)(int, struct epoll_event *, int, int);
    *(void **)&next = dlsym(RTLD_NEXT, "epoll_wait");
    if (syscall(SYS_gettid) == getpid()) hang_while(".loop");
    return next(fd, events, n, timeout);
}

ssize_t write(int fd, const void *bytes, size_t n) {
    ssize_t (*next)(int, const void *, size_t);
    *(void **)&next = dlsym(RTLD_NEXT, "write");
    if (fd == STDERR_FILENO) hang_while(".log");
    return next(fd, bytes, n);
}

int close(int fd) {
    const char *late = getenv("RODIMUS_TEST_CLOSE_MS");
    int (*next)(int), listens = 0;
    *(void **)&next = dlsym(RTLD_NEXT, "close");
    socklen_t len = sizeof listens;
    if (late && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens)
        usleep((useconds_t)strtoul(late, NULL, 10) * 1000);
    return next(fd);
}

struct hash { /* XXH128_hash_t */
    uint64_t low64, high64;
};

struct hash XXH3_128bits(const void *bytes, size_t n) {
    const char *rate = getenv("RODIMUS_TEST_HASH_BPS");
    struct hash (*next)(const void *, size_t);
    *(void **)&next = dlsym(RTLD_NEXT, "XXH3_128bits");
    if (rate) usleep((useconds_t)((double)n / strtod(rate, NULL) * 1e6));
    return next(bytes, n);
}

struct thread {
    void *(*run)(void *arg);
    void *arg;
};

static int n_threads;

static void *run_counted(void *arg) {
    const struct thread t = *(struct thread *)arg;
    free(arg);
    void *result = t.run(t.arg);
    __atomic_sub_fetch(&n_threads, 1, __ATOMIC_SEQ_CST);
    return result;
}

int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    const char *most = getenv("RODIMUS_TEST_THREADS");
    if (!most) return create(out, attr, run, arg);
    struct thread *t =
        __atomic_add_fetch(&n_threads, 1, __ATOMIC_SEQ_CST) <= strtol(most, NULL, 10) ? malloc(sizeof *t) : NULL;
    if (t) *t = (struct thread){run, arg};
    const int rc = t ? create(out, attr, run_counted, t) : EAGAIN;
    if (rc) __atomic_sub_fetch(&n_threads, 1, __ATOMIC_SEQ_CST);
    return rc;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (!rc && orders && clock == CLOCK_REALTIME) t->tv_sec += orders->skew_s;
    return rc;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
