/* state_cache_folder.c - see state_cache_folder.h. */
#include "state_cache_folder.h"
#include "state_cache.h"
#include "state_cache_file.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_END ".cached"
#define NS_S     ((uint64_t)1000000000u)
enum {
    PIECE_BYTES = 256 << 10,
    BLOCK_BYTES = 4096,
    SPARE_PARTS = 16, /* of the copies: so much becomes free at once */
    FREE_PARTS = 20,  /* of the disk: so much stays free */
    KEPT_S = 86400,   /* behind the last use: of what was removed elsewhere a copy goes then */
    LOOK_S = 3600,    /* until old copies are looked for again */
    PAUSE_S = 10      /* behind a write that failed */
};
_Static_assert(CACHE_FILE_NAME_BYTES == 32 + sizeof FILE_END, "a hash of 128 bits and the end");

void cache_folder_name(const struct cache_folder *f, const char *name, char file[CACHE_FILE_NAME_BYTES]) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(name, strlen(name), f->of);
    snprintf(file, CACHE_FILE_NAME_BYTES, "%016llx%016llx" FILE_END, (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

uint64_t cache_folder_bytes(struct cache_folder *f) {
    pthread_mutex_lock(&f->lock);
    const uint64_t bytes = f->bytes;
    pthread_mutex_unlock(&f->lock);
    return bytes;
}

static void folder_lose(struct cache_folder *f, uint64_t less) {
    pthread_mutex_lock(&f->lock);
    f->bytes -= less < f->bytes ? less : f->bytes;
    pthread_mutex_unlock(&f->lock);
}

/* ---- what goes wrong is told once, and what goes well again ---- */

static void folder_say(const struct cache_folder *f, int level, const char *what, const char *why) {
    char line[768];
    if (!f->log) return;
    snprintf(line, sizeof line, "state_dir %.300s keeps copies of states %s%.300s", f->dir, what, why);
    f->log(f->log_arg, level, line);
}

static void folder_went(struct cache_folder *f, int rc, const char *why) {
    pthread_mutex_lock(&f->lock);
    const bool before = f->failed;
    f->failed = rc != 0;
    if (rc) f->failed_ns = clock_now_ns();
    pthread_mutex_unlock(&f->lock);
    if (rc && !before) folder_say(f, 2, "no longer; the store is read: ", why);
    if (!rc && before) folder_say(f, 1, "again", "");
}

/* ---- room ---- */

struct entry {
    uint64_t used_ns, bytes;
    char file[CACHE_FILE_NAME_BYTES];
};

static int entry_older(const void *a, const void *b) {
    const uint64_t x = ((const struct entry *)a)->used_ns, y = ((const struct entry *)b)->used_ns;
    return x < y ? -1 : x > y;
}

static bool entry_look(int folder, const char *file, struct entry *e) {
    struct stat info;
    const size_t n = strlen(file);
    if (n != CACHE_FILE_NAME_BYTES - 1 || strcmp(file + n - strlen(FILE_END), FILE_END) != 0) return false;
    if (fstatat(folder, file, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode)) return false;
    memcpy(e->file, file, CACHE_FILE_NAME_BYTES);
    e->used_ns = (uint64_t)info.st_mtim.tv_sec * NS_S + (uint64_t)info.st_mtim.tv_nsec;
    e->bytes = (uint64_t)info.st_blocks * 512;
    if (e->bytes < (uint64_t)info.st_size) e->bytes = (uint64_t)info.st_size;
    return true;
}

/* All copies, in order of their last use. */
static struct entry *folder_list(DIR *list, size_t *n, uint64_t *total) {
    struct entry *entries = NULL, e;
    size_t cap = 0;
    *n = 0;
    *total = 0;
    for (struct dirent *d; (d = readdir(list));) {
        if (!entry_look(dirfd(list), d->d_name, &e) || !ARRAY_RESERVE(entries, cap, *n, 1)) continue;
        entries[(*n)++] = e;
        *total += e.bytes;
    }
    if (*n) qsort(entries, *n, sizeof *entries, entry_older);
    return entries;
}

/* Removes copies that nobody used for a day, and those used longest ago until the others take at most `most`; what they
 * take. */
static uint64_t folder_trim(const struct cache_folder *f, uint64_t most) {
    const uint64_t now_ns = clock_unix_ns();
    uint64_t total = 0;
    size_t n = 0;
    DIR *list = opendir(f->dir);
    if (!list) return 0;
    struct entry *entries = folder_list(list, &n, &total);
    for (size_t i = 0; i < n; i++) {
        const bool old = now_ns > entries[i].used_ns && now_ns - entries[i].used_ns > KEPT_S * NS_S;
        if (!old && total <= most) break;
        if (!unlinkat(dirfd(list), entries[i].file, 0) || errno == ENOENT) total -= entries[i].bytes;
    }
    free(entries);
    closedir(list);
    return total;
}

/* How many bytes of copies must go until n more may come, as far as it is known. */
static uint64_t folder_over(const struct cache_folder *f, uint64_t n) {
    struct statvfs disk;
    const uint64_t all = f->bytes + f->writing + n, over = f->max_bytes && all > f->max_bytes ? all - f->max_bytes : 0;
    if (statvfs(f->dir, &disk)) return over;
    const uint64_t left = (uint64_t)disk.f_bavail * disk.f_frsize,
                   want = (uint64_t)disk.f_blocks * disk.f_frsize / FREE_PARTS + n,
                   lacks = left < want ? want - left : 0;
    return over > lacks ? over : lacks;
}

static bool folder_look_is_due(const struct cache_folder *f, uint64_t over, uint64_t now_ns) {
    return !f->looking && (over || now_ns - f->looked_ns > LOOK_S * NS_S);
}

static void folder_look_locked(struct cache_folder *f, uint64_t most, uint64_t now_ns) {
    f->looking = true;
    pthread_mutex_unlock(&f->lock);
    const uint64_t bytes = folder_trim(f, most);
    pthread_mutex_lock(&f->lock);
    f->looking = false;
    f->looked_ns = now_ns;
    f->bytes = bytes;
}

void cache_folder_tidy(struct cache_folder *f) {
    const uint64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&f->lock);
    if (folder_look_is_due(f, 0, now_ns)) folder_look_locked(f, UINT64_MAX, now_ns);
    pthread_mutex_unlock(&f->lock);
}

/* False: there is no room for n bytes, which count from now on, or another thread makes some. */
static bool folder_room(struct cache_folder *f, uint64_t n) {
    const uint64_t now_ns = clock_now_ns();
    bool short_of_room = false;
    if (f->max_bytes && n > f->max_bytes) return false;
    pthread_mutex_lock(&f->lock);
    const bool pauses = f->failed && now_ns - f->failed_ns < PAUSE_S * NS_S;
    uint64_t over = pauses ? 1 : folder_over(f, n);
    if (!pauses && folder_look_is_due(f, over, now_ns)) {
        const uint64_t goes = over ? over + f->bytes / SPARE_PARTS : 0, most = goes < f->bytes ? f->bytes - goes : 0;
        folder_look_locked(f, over ? most : UINT64_MAX, now_ns);
        over = folder_over(f, n);
        short_of_room = over != 0;
    }
    if (!over) f->writing += n;
    pthread_mutex_unlock(&f->lock);
    if (short_of_room) folder_went(f, ROD_EIO, "too little of the disk is free");
    return !over;
}

static uint64_t file_disk_bytes(const struct cache_folder *f, const char *file) {
    struct state_disk_version version;
    return state_disk_stat(f->dir, file, &version, NULL) ? 0 : version.disk_bytes;
}

void cache_folder_drop(struct cache_folder *f, const char *file) {
    const uint64_t less = file_disk_bytes(f, file);
    state_disk_drop(f->dir, file);
    folder_lose(f, less);
}

/* ---- a copy is made ---- */

static void part_over(struct cache_folder *f, const struct cache_part *p, bool named) {
    pthread_mutex_lock(&f->lock);
    assert(f->writing >= p->n_disk);
    f->writing -= p->n_disk;
    f->bytes += named ? p->n_disk : 0;
    pthread_mutex_unlock(&f->lock);
}

static void part_give_up(struct cache_folder *f, struct cache_part *p, int rc, const struct rod_error *err) {
    if (p->part) state_disk_part_end(p->part, false, NULL, NULL);
    p->part = NULL;
    part_over(f, p, false);
    if (rc) folder_went(f, rc, err->message);
}

/* True: somebody has removed it. */
static bool folder_made_again(struct cache_folder *f) {
    if (mkdir(f->dir, 0700)) return false;
    pthread_mutex_lock(&f->lock);
    f->bytes = 0;
    pthread_mutex_unlock(&f->lock);
    return true;
}

void cache_part_begin(struct cache_folder *f, const char *file, const struct state_disk_version *version,
                      struct cache_part *p) {
    unsigned char start[STATE_CACHE_FILE_BYTES];
    struct rod_error err;
    *p = (struct cache_part){.file = file, .n_bytes = version->n_bytes};
    p->n_disk = (version->n_bytes + sizeof start + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (!*version->etag || version->n_bytes < STATE_FILE_MIN_BYTES || !folder_room(f, p->n_disk)) return;
    state_cache_file_write(version, start);
    int rc = state_disk_part_begin(f->dir, file, &p->part, &err);
    if (rc && folder_made_again(f)) rc = state_disk_part_begin(f->dir, file, &p->part, &err);
    if (!rc) rc = state_disk_part_put(p->part, start, sizeof start, &err);
    if (rc) part_give_up(f, p, rc, &err);
}

void cache_part_put(struct cache_folder *f, struct cache_part *p, const void *bytes, size_t n) {
    struct rod_error err;
    const int rc = p->part && n ? state_disk_part_put(p->part, bytes, n, &err) : 0;
    if (rc) part_give_up(f, p, rc, &err);
}

/* ---- a copy is checked ---- */

static bool read_fully(int fd, void *to, size_t n, uint64_t at) {
    for (ssize_t got; n; n -= (size_t)got, at += (uint64_t)got, to = (char *)to + got) {
        while ((got = pread(fd, to, n, (off_t)at)) < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
    }
    return true;
}

static bool hash_of_file(int fd, uint64_t at, uint64_t n, uint64_t *hash) {
    XXH3_state_t *state = XXH3_createState();
    unsigned char *piece = malloc(PIECE_BYTES);
    bool good = state && piece && !XXH3_64bits_reset(state);
    for (size_t part; good && n; at += part, n -= part) {
        part = n < PIECE_BYTES ? (size_t)n : PIECE_BYTES;
        good = read_fully(fd, piece, part, at) && !XXH3_64bits_update(state, piece, part);
    }
    if (good) *hash = XXH3_64bits_digest(state);
    free(piece);
    XXH3_freeState(state);
    return good;
}

/* The n bytes behind the version are a state file, whole. */
static bool holds_state(int fd, uint64_t n) {
    static const struct state_file_expected any;
    const uint64_t at = STATE_CACHE_FILE_BYTES;
    unsigned char fixed[STATE_FILE_FIXED_BYTES];
    struct state_file state;
    uint64_t n_header, n_file, hash;
    if (n < sizeof fixed || !read_fully(fd, fixed, sizeof fixed, at)) return false;
    if (state_file_measure(fixed, sizeof fixed, "", &n_header, &n_file, NULL) || n_file != n) return false;
    unsigned char *header = malloc((size_t)n_header);
    const bool good = header && read_fully(fd, header, (size_t)n_header, at) &&
                      !state_file_parse_header(header, (size_t)n_header, n, "", &any, &state, NULL) && !state.apart &&
                      hash_of_file(fd, at + n_header, n - n_header, &hash) && hash == state.payload_check;
    free(header);
    return good;
}

void cache_part_end(struct cache_folder *f, struct cache_part *p, bool whole, bool checks) {
    struct rod_error err;
    if (!p->part) return;
    if (!whole || (checks && !holds_state(state_disk_part_fd(p->part), p->n_bytes))) {
        part_give_up(f, p, 0, NULL);
        return;
    }
    const uint64_t before = file_disk_bytes(f, p->file);
    const int rc = state_disk_part_end(p->part, true, NULL, &err);
    p->part = NULL;
    if (rc) {
        part_give_up(f, p, rc, &err);
        return;
    }
    part_over(f, p, true);
    folder_lose(f, before);
    folder_went(f, 0, "");
}

/* ---- a copy is read ---- */

bool cache_copy_open(struct cache_folder *f, const char *file, struct state_disk_file *out,
                     struct state_disk_version *version) {
    unsigned char start[STATE_CACHE_FILE_BYTES];
    size_t n;
    out->fd = -1;
    if (state_disk_open(f->dir, file, out, NULL)) return false;
    if (!state_disk_get(out, 0, start, sizeof start, &n, NULL) &&
        state_cache_file_read(start, n, out->version.n_bytes, version))
        return true;
    state_disk_close(out);
    cache_folder_drop(f, file);
    return false;
}

bool cache_copy_check(const struct state_disk_file *copy, const struct state_disk_version *version) {
    const bool whole = holds_state(copy->fd, version->n_bytes);
    if (whole) futimens(copy->fd, NULL);
    return whole;
}

int cache_copy_get(struct state_disk_file *copy, uint64_t at, void *dst, size_t n_bytes, struct rod_error *err) {
    if (read_fully(copy->fd, dst, n_bytes, STATE_CACHE_FILE_BYTES + at)) return 0;
    return rod_fail(err, ROD_EIO, "A copy of a state was cut while it was read: %.200s", copy->path);
}

/* ---- the folder ---- */

int cache_folder_init(struct cache_folder *f, const struct state_cache_config *config, struct rod_error *err) {
    *f = (struct cache_folder){.dir = strdup(config->dir),
                               .of = XXH3_64bits(config->of, strlen(config->of)),
                               .max_bytes = config->max_bytes,
                               .log = config->log,
                               .log_arg = config->log_arg};
    if (!f->dir) return rod_fail_no_memory(err);
    pthread_mutex_init(&f->lock, NULL);
    mkdir(f->dir, 0700);
    const int number = state_disk_try(f->dir);
    if (number) folder_went(f, ROD_EIO, strerror(number));
    state_disk_sweep(f->dir, NULL, NULL);
    f->bytes = folder_trim(f, f->max_bytes ? f->max_bytes : UINT64_MAX);
    f->looked_ns = clock_now_ns();
    return 0;
}

void cache_folder_fini(struct cache_folder *f) {
    pthread_mutex_destroy(&f->lock);
    free(f->dir);
}
