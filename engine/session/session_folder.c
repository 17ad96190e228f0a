/* session_folder.c - see session_internal.h: the folder as it was at the start and as it is now, writes into it, and
 * the files that were refused. */
#include "session_internal.h"
#include "engine/session/store/session_lease.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- at the start ---- */

/* No turn of a session could end, so the server must not seem ready. */
static int folder_not_usable(const char *dir, const char *what, int number, struct rod_error *err) {
    return rod_fail(err, ROD_EIO,
                    "state_dir %.200s cannot be %s: %s. It must be a folder that uid %u, as which the server runs, may "
                    "write, on a writable disk.",
                    dir, what, strerror(number), (unsigned)geteuid());
}

int session_folder_open(struct sessions *s, const char *dir, struct rod_error *err) {
    struct stat info;
    assert(s->dir_fd < 0);
    if (mkdir(dir, 0700) && errno != EEXIST) return folder_not_usable(dir, "created", errno, err);
    s->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0 || fstat(s->dir_fd, &info)) return folder_not_usable(dir, "read", errno, err);
    s->dir_device = (uint64_t)info.st_dev;
    s->dir_inode = (uint64_t)info.st_ino;
    const int number = state_disk_try(dir);
    if (number == ENOSPC || number == EDQUOT)
        session_log(s, 2, "state_dir: %s is full: turns of sessions fail until there is room", dir);
    else if (number)
        return folder_not_usable(dir, "written", number, err);
    return 0;
}

/* A crash came between the two files of a fork, or before the base of a former fork was removed. */
static void folder_sweep_one(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    const struct sessions *s = arg;
    char text[SESSION_FILE_NAME_BYTES];
    int lease;
    if (session_lease_take(s->dir, session_store_name(&s->store, name, text), &lease, NULL))
        return; /* it is being made */
    session_store_remove_left(&s->store, name);
    session_lease_end(s->dir, text, lease);
}

void session_folder_sweep(struct sessions *s) { session_store_list_left(&s->store, folder_sweep_one, s); }

/* ---- now ---- */

/* A removed folder cannot come back: the folder that was made in its place is taken, as a new one at a start. */
static bool folder_was_removed(const struct sessions *s) {
    struct stat info;
    return !fstat(s->dir_fd, &info) && !info.st_nlink;
}

int session_folder_here(const struct sessions *s, struct rod_error *err) {
    struct stat info;
    if (!session_on_disk(s)) return 0;
    if (session_fenced(s))
        return !atomic_load(&s->names_other)
                   ? 0
                   : rod_fail(err, ROD_EIO,
                              "state_url: " SESSION_NAMES_FILE " is another one than at the start: restore the "
                              "store's own, or restart the server");
    assert(s->dir_fd >= 0);
    if (stat(s->dir, &info)) return rod_fail(err, ROD_EIO, "state_dir %.300s is gone: %s", s->dir, strerror(errno));
    if ((uint64_t)info.st_dev != s->dir_device)
        return rod_fail(err, ROD_EIO, "state_dir %.300s is on another disk than at the start: is its own not mounted?",
                        s->dir);
    if ((uint64_t)info.st_ino != s->dir_inode && !folder_was_removed(s))
        return rod_fail(err, ROD_EIO,
                        "state_dir %.300s is another folder than at the start: restore its own, or restart the server",
                        s->dir);
    bool restored;
    const int rc = session_names_keep(s->store.names, &s->store.home, &restored, err);
    if (restored) session_log(s, 2, "state_dir: " SESSION_NAMES_FILE " was gone from %.300s, and is put back", s->dir);
    return rc;
}

/* ---- writes ---- */

void session_folder_write(const struct sessions *s, struct session_write *writes, size_t n) {
    struct rod_error err;
    const int rc = n ? session_folder_here(s, &err) : 0;
    for (size_t i = 0; rc && i < n; i++)
        if (!writes[i].rc) {
            writes[i].rc = rc;
            writes[i].err = err;
        }
    session_store_write(&s->store, writes, n);
}

void session_folder_wrote(struct sessions *s, struct session *x, const struct session_write *w) {
    session_count(w->rc == ROD_ENOROOM ? &s->no_room : w->rc ? &s->save_failures : &s->saves, 1);
    session_lock(s);
    assert(x->hold != SESSION_FREE);
    if (w->rc) session_table_reserve(&s->table, x, 0);
    if (!w->rc)
        s->disk_failed_ns = 0;
    else if (w->rc == ROD_EIO || w->rc == ROD_ENOROOM) /* other errors are of this session alone */
        s->disk_failed_ns = clock_now_ns();
    session_unlock(s);
}

bool session_folder_stuck_locked(const struct sessions *s) {
    assert(session_lock_held(s));
    /* Where nothing waits to be written nobody tries the disk again: then the next turn does. */
    const bool fails = s->disk_failed_ns && clock_now_ns() - s->disk_failed_ns < 3 * SESSIONS_RETRY_WRITE_NS;
    return session_on_disk(s) && fails && !session_table_to_drop(&s->table);
}

bool session_folder_writing_locked(const struct sessions *s) {
    assert(session_lock_held(s));
    for (const struct session *x = session_oldest(&s->table, SESSION_DIRTY); x;
         x = session_newer(&s->table, x, SESSION_DIRTY))
        if (x->hold == SESSION_WRITE) return true;
    return false;
}

/* ---- refused files ---- */

bool session_folder_refuse(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *file_version) {
    session_lock(s);
    const bool new = session_refusals_add(&s->refusals, name, file_version, s->n_scans);
    session_unlock(s);
    if (new) session_count(&s->refused, 1);
    return new;
}

void session_folder_refused(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                            const struct session_file_version *file_version, const struct rod_error *err) {
    if (session_folder_refuse(s, name, file_version))
        session_log_trouble(s, SESSION_REFUSED, "state_dir: refused and left alone: %s", err->message);
}
