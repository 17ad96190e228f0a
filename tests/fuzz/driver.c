/* driver.c - runs a fuzz target: any object that has LLVMFuzzerTestOneInput, built with gcc's sanitizers.
 *
 * Coverage guides it: gcc's -fsanitize-coverage=trace-pc calls back at each basic block, pairs of blocks count into a
 * map, and an input that reaches a new pair (or a new order of magnitude of visits) joins the corpus. Mutations follow
 * from the seed that is printed. An input that crashes, or computes for more than HANG_S, is written beside the
 * program.
 *
 * It begins with tests/fuzz/seeds/NAME, written by hand, and tests/fuzz/corpus/NAME, what earlier runs found. --keep
 * FOLDER adds to the latter at the end: inputs that reach pairs of blocks that no other one does, smallest first and
 * cut to what reaches them.
 *
 * The state at file scope is what the callback without argument needs; this is a test tool, not part of the server.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);
void __sanitizer_set_death_callback(void (*callback)(void));
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

enum { MAP_SIZE = 1 << 16, INPUT_MAX = 1 << 16, CORPUS_MAX = 4096, HANG_S = 20 };

struct input {
    uint8_t *bytes;
    size_t n;
};

/* The harness itself is not watched: scanning the map must not cost more than the target. */
#define UNWATCHED __attribute__((no_sanitize_coverage, no_sanitize("address", "undefined")))

static uint8_t visits[MAP_SIZE] __attribute__((aligned(8))); /* of the current run */
static uint8_t seen[MAP_SIZE];                               /* classes of visit counts that some run had */
static uintptr_t block_before;
static struct input current; /* the input that runs now, for the death callback */
static char crash_file[512];
static struct input corpus[CORPUS_MAX];
static size_t n_corpus;
static uint64_t random_state;

const char *__asan_default_options(void) {
    return "handle_abort=1:allocator_may_return_null=1:max_allocation_size_mb=1024:detect_leaks=1";
}
const char *__ubsan_default_options(void) { return "print_stacktrace=1"; }

UNWATCHED void __sanitizer_cov_trace_pc(void) {
    uintptr_t block = (uintptr_t)__builtin_return_address(0);
    block = (block ^ block >> 16) & (MAP_SIZE - 1);
    uint8_t *count = &visits[(block ^ block_before >> 1) & (MAP_SIZE - 1)];
    if (*count < 255) ++*count;
    block_before = block;
}

/* splitmix64 */
static uint64_t random_next(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static size_t random_below(size_t n) { return n > 0 ? (size_t)(random_next() % n) : 0; }

static void on_death(void) {
    int file = open(crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, current.bytes, current.n) != (ssize_t)current.n) {
        fprintf(stderr, "cannot write %s: %s\n", crash_file, strerror(errno));
        return;
    }
    close(file);
    fprintf(stderr, "the input is in %s (%zu bytes); run the program with it as the argument to see this again\n",
            crash_file, current.n);
}

/* A sanitizer in a shared library does not see the options above, so it does not catch what a target itself gives up.
 */
static void on_abort(int signal_number) {
    (void)signal_number;
    on_death(); /* abort goes on when this returns */
}

static void on_hang(int signal_number) {
    (void)signal_number;
    static const char message[] = "an input runs for too long\n";
    if (write(2, message, sizeof message - 1) < 0) _exit(1);
    abort();
}

/* Bit 0: once; then 2, 3, 4-7, 8-15, 16-31, 32-127, 128 and more. */
UNWATCHED static uint8_t visit_class(uint8_t count) {
    if (count <= 3) return (uint8_t)(1u << (count - 1));
    if (count <= 7) return 1u << 3;
    if (count <= 15) return 1u << 4;
    if (count <= 31) return 1u << 5;
    return count <= 127 ? 1u << 6 : 1u << 7;
}

/* True if the last run reached something new. Words of eight zeros, most of the map, are skipped. */
UNWATCHED static bool visits_merge(void) {
    bool new_class = false;
    for (size_t i = 0; i < MAP_SIZE; i += 8) {
        uint64_t word;
        memcpy(&word, visits + i, sizeof word);
        if (word == 0) continue;
        for (size_t j = i; j < i + 8; j++) {
            if (visits[j] == 0) continue;
            uint8_t class = visit_class(visits[j]);
            new_class |= (seen[j] & class) == 0;
            seen[j] |= class;
        }
    }
    return new_class;
}

/* The processor's time, which a busy machine does not lengthen; and ten times as much for one that waits. 0 = off. */
static void watch(unsigned seconds) {
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = seconds}}, NULL);
    alarm(10 * seconds);
}

/* Runs one input (a copy of its exact size, so that a read past its end is seen); visits then has where it went. */
static void run_once(const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n > 0 ? n : 1);
    if (copy == NULL) abort();
    memcpy(copy, bytes, n);
    current = (struct input){copy, n};
    memset(visits, 0, sizeof visits);
    block_before = 0;
    watch(HANG_S);
    LLVMFuzzerTestOneInput(copy, n);
    watch(0);
    free(copy);
}

/* True if it reached something new. */
static bool run_input(const uint8_t *bytes, size_t n) {
    run_once(bytes, n);
    return visits_merge();
}

static void corpus_add(const uint8_t *bytes, size_t n) {
    size_t at = n_corpus < CORPUS_MAX ? n_corpus++ : random_below(CORPUS_MAX);
    free(corpus[at].bytes);
    corpus[at].bytes = malloc(n > 0 ? n : 1);
    if (corpus[at].bytes == NULL) abort();
    memcpy(corpus[at].bytes, bytes, n);
    corpus[at].n = n;
}

/* ---- mutation: buffer holds INPUT_MAX bytes, n are in use; each returns the new n ---- */

static size_t replace(uint8_t *buffer, size_t n, size_t at, size_t n_old, const void *with, size_t n_with) {
    if (n - n_old + n_with > INPUT_MAX) return n;
    memmove(buffer + at + n_with, buffer + at + n_old, n - at - n_old);
    memcpy(buffer + at, with, n_with);
    return n - n_old + n_with;
}

/* Puts a value of the kind that parsers get wrong in place of a run of digits, or of a string, or somewhere. */
static size_t mutate_text(uint8_t *buffer, size_t n) {
    static const char *const values[] = {
        "0",
        "-1",
        "1",
        "-0",
        "1e999",
        "-1e999",
        "1e-400",
        "0.1",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
        "null",
        "true",
        "false",
        "\"\"",
        "\"a\"",
        "[]",
        "{}",
        "[[]]",
        "{\"a\":1}",
        "\\u0000",
        "\\ud800",
        "\\udc00\\ud800",
        "\xff",
        "\xc3",
        "\xed\xa0\x80",
        "\xf4\x90\x80\x80",
        "\xe2\x80\x8b",
        "e\xcc\x81",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        ",",
        ":",
        "\"",
        "<|endoftext|>",
        "NaN",
        "Infinity",
    };
    const char *value = values[random_below(sizeof values / sizeof *values)];
    size_t at = random_below(n + 1), end;
    if (random_below(4) != 0) {
        while (at < n && !(buffer[at] >= '0' && buffer[at] <= '9')) at++;
        for (end = at; end < n && buffer[end] >= '0' && buffer[end] <= '9';) end++;
    } else {
        while (at < n && buffer[at] != '"') at++;
        for (end = at < n ? at + 1 : n; end < n && buffer[end] != '"';) end++;
        if (end < n) end++;
    }
    return replace(buffer, n, at, end - at, value, strlen(value));
}

/* Writes a number at the edges of its type, 1, 2, 4 or 8 bytes wide. */
static size_t mutate_integer(uint8_t *buffer, size_t n) {
    static const uint64_t edges[] = {0,          1,
                                     2,          7,
                                     8,          127,
                                     128,        255,
                                     256,        32767,
                                     32768,      65535,
                                     65536,      INT32_MAX,
                                     1u << 31,   UINT32_MAX,
                                     1ull << 32, 1ull << 53,
                                     INT64_MAX,  1ull << 63,
                                     UINT64_MAX, UINT64_MAX - 7,
                                     100000000};
    size_t width = (size_t)1 << random_below(4);
    if (n < width) return n;
    uint64_t value =
        edges[random_below(sizeof edges / sizeof *edges)] + (random_below(4) == 0 ? random_below(3) - 1 : 0);
    size_t at = random_below(3) == 0 ? 0 : random_below(n - width + 1);
    memcpy(buffer + at, &value, width);
    return n;
}

static size_t mutate(uint8_t *buffer, size_t n) {
    size_t at = random_below(n + 1),
           n_part = random_below(random_below(8) == 0 ? n - at + 1 : (n - at < 16 ? n - at : 16) + 1);
    uint8_t part[256];
    switch (random_below(10)) {
    case 0:
        if (n > 0) buffer[random_below(n)] ^= (uint8_t)(1u << random_below(8));
        return n;
    case 1:
        if (n > 0) buffer[random_below(n)] = (uint8_t)random_next();
        return n;
    case 2: return replace(buffer, n, at, n_part, "", 0);
    case 3: { /* a part once more, somewhere */
        if (n_part > sizeof part) n_part = sizeof part;
        memcpy(part, buffer + at, n_part);
        return replace(buffer, n, random_below(n + 1), 0, part, n_part);
    }
    case 4: { /* a run of one byte */
        size_t n_run = 1 + random_below(sizeof part);
        memset(part, (int)(random_next() & 255), n_run);
        return replace(buffer, n, at, 0, part, n_run);
    }
    case 5: { /* a part of another input */
        const struct input *other = &corpus[random_below(n_corpus)];
        size_t from = random_below(other->n + 1), n_from = random_below(other->n - from + 1);
        return replace(buffer, n, at, random_below(2) == 0 ? n_part : 0, other->bytes + from, n_from);
    }
    case 6: return random_below(4) == 0 ? at : n; /* cut off */
    case 7: return mutate_integer(buffer, n);
    default: return mutate_text(buffer, n);
    }
}

/* ---- what is worth keeping ---- */

static bool wanted[MAP_SIZE]; /* the pairs that only the input at hand reaches */

/* Marks the pairs that the last run reached and none before it. */
UNWATCHED static bool want_new(void) {
    bool any = false;
    for (size_t i = 0; i < MAP_SIZE; i++) {
        wanted[i] = visits[i] != 0 && seen[i] == 0;
        any |= wanted[i];
    }
    return any;
}

UNWATCHED static bool has_wanted(void) {
    for (size_t i = 0; i < MAP_SIZE; i++)
        if (wanted[i] && visits[i] == 0) return false;
    return true;
}

/* Takes parts away, from halves to single bytes, while the wanted pairs are reached. Returns the new n. */
static size_t shrink(uint8_t *bytes, size_t n) {
    static uint8_t less[INPUT_MAX];
    for (size_t part = n / 2; part > 0; part /= 2)
        for (size_t at = 0; at + part <= n;) {
            memcpy(less, bytes, at);
            memcpy(less + at, bytes + at + part, n - at - part);
            run_once(less, n - part);
            if (has_wanted()) {
                n -= part;
                memcpy(bytes, less, n);
            } else {
                at += part;
            }
        }
    return n;
}

static int by_size(const void *a, const void *b) {
    const struct input *x = a, *y = b;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Writes to the folder; false: it cannot. The first n_seeds of the corpus are kept already. */
static bool keep(const char *folder, size_t n_seeds, size_t *n_kept) {
    static uint8_t bytes[INPUT_MAX];
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < n_seeds; i++) run_input(corpus[i].bytes, corpus[i].n);
    qsort(corpus + n_seeds, n_corpus - n_seeds, sizeof *corpus, by_size);
    for (size_t i = n_seeds; i < n_corpus; i++) {
        run_once(corpus[i].bytes, corpus[i].n);
        if (!want_new()) continue;
        memcpy(bytes, corpus[i].bytes, corpus[i].n);
        size_t n = shrink(bytes, corpus[i].n);
        run_input(bytes, n);
        uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a: the same input has the same name */
        for (size_t k = 0; k < n; k++) hash = (hash ^ bytes[k]) * 0x100000001b3u;
        char path[1024];
        snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)hash);
        FILE *file = fopen(path, "wb");
        bool ok = file != NULL && fwrite(bytes, 1, n, file) == n;
        if (file == NULL || fclose(file) != 0 || !ok) {
            fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
            return false;
        }
        ++*n_kept;
    }
    return true;
}

/* ---- files ---- */

static bool read_input(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return false;
    static uint8_t bytes[INPUT_MAX];
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    corpus_add(bytes, n);
    return true;
}

/* A file, or each file of a folder in the order of names. */
static bool read_inputs(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return false;
    if (!S_ISDIR(info.st_mode)) return read_input(path);
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') read_input(name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return n >= 0;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
    if (strncmp(name, "fuzz_", 5) == 0) name += 5;
    double seconds = 10;
    bool files_only = false;
    const char *keep_in = NULL;
    struct timespec clock_now;
    clock_gettime(CLOCK_REALTIME, &clock_now);
    random_state = (uint64_t)clock_now.tv_sec * 1000000007u + (uint64_t)clock_now.tv_nsec;
    snprintf(crash_file, sizeof crash_file, "%s.crash", argv[0]);
    __sanitizer_set_death_callback(on_death);
    signal(SIGALRM, on_hang);
    signal(SIGPROF, on_hang);
    signal(SIGABRT, on_abort);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            random_state = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep_in = argv[++i];
        else if (argv[i][0] != '-' && read_inputs(argv[i]))
            files_only = true;
        else {
            fprintf(stderr, "Usage: %s [--seconds N] [--seed N] [--keep FOLDER], or %s FILE... to run just these\n",
                    argv[0], argv[0]);
            return 2;
        }
    }
    uint64_t seed = random_state;
    if (!files_only) {
        printf("%s: seed %llu\n", name, (unsigned long long)seed);
        fflush(stdout);
        char seeds[512];
        snprintf(seeds, sizeof seeds, "tests/fuzz/seeds/%s", name);
        read_inputs(seeds);
        snprintf(seeds, sizeof seeds, "tests/fuzz/corpus/%s", name);
        read_inputs(seeds);
        corpus_add((const uint8_t *)"", 0);
    }
    size_t n_seeds = n_corpus;
    for (size_t i = 0; i < n_seeds; i++) run_input(corpus[i].bytes, corpus[i].n);
    if (files_only) {
        printf("%s: %zu inputs, no fault\n", name, n_seeds);
        return 0;
    }
    static uint8_t buffer[INPUT_MAX];
    uint64_t n_runs = n_seeds;
    double begin_s = now_s(), elapsed_s = 0;
    while (elapsed_s < seconds) {
        /* Half of the time the newest quarter: what was just found leads on. */
        size_t pick = random_below(2) == 0 ? random_below(n_corpus) : n_corpus - 1 - random_below(n_corpus / 4 + 1);
        size_t n = corpus[pick].n;
        memcpy(buffer, corpus[pick].bytes, n);
        for (size_t i = 1 + random_below(4); i > 0; i--) n = mutate(buffer, n);
        if (run_input(buffer, n)) corpus_add(buffer, n);
        n_runs++;
        elapsed_s = now_s() - begin_s;
    }
    size_t n_covered = 0;
    for (size_t i = 0; i < MAP_SIZE; i++) n_covered += seen[i] != 0;
    printf("%s: %llu inputs in %.0f s, %zu block pairs reached, corpus %zu of which %zu seeds, no fault\n", name,
           (unsigned long long)n_runs, elapsed_s, n_covered, n_corpus, n_seeds);
    size_t n_kept = 0;
    bool ok = keep_in == NULL || keep(keep_in, n_seeds, &n_kept);
    if (keep_in != NULL) printf("%s: %zu inputs kept in %s\n", name, n_kept, keep_in);
    for (size_t i = 0; i < n_corpus; i++) free(corpus[i].bytes);
    return ok ? 0 : 1;
}
