/* session_sweep.c - see session_internal.h: what time asks for in a fenced home, on a thread of its own, since a store
 * may let it wait: expired sessions are removed, whoever used them last, and files that nobody needs.
 *
 * Any server sweeps. An object that was written lately is left alone; of older ones the header says when its session
 * expires, and a removal loses against another server's turn. */
#include "session_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

#define NS_S ((uint64_t)1000000000u)
/* Between looks at the key of names; between sweeps; an age below which nothing is looked at; the sweeps after which
 * leftovers are looked for, about a day; the age of a session without a time to live of the settings, at which its own
 * is looked at. */
enum { NAMES_S = 5, SWEEP_S = 300, YOUNG_S = 3600, LEFTOVERS_EVERY = 288, SLEEPING_S = 24 * 3600 };

struct sweep_file {
    char name[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version;
};

struct sweep_page {
    struct sweep_file *files;
    size_t n, cap;
    bool no_memory;
};

static void sweep_found(void *arg, const char *name, const struct state_disk_version *version) {
    struct sweep_page *page = arg;
    struct sweep_file *files =
        strlen(name) < SESSION_FILE_NAME_BYTES && ARRAY_RESERVE(page->files, page->cap, page->n, 1) ? page->files
                                                                                                    : NULL;
    page->no_memory |= !files;
    if (!files) return;
    memcpy(files[page->n].name, name, strlen(name) + 1);
    files[page->n++].version = *version;
}

static bool sweep_ending(struct sessions *s) {
    session_lock(s);
    const bool ending = s->ending;
    session_unlock(s);
    return ending;
}

/* What is expired gets into the table, where its end is due. */
static void sweep_session(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], const struct sweep_file *file,
                          int64_t age_s) {
    const uint64_t ttl_s = s->config.ttl_s;
    struct session_read read;
    if (age_s < YOUNG_S || (uint64_t)age_s < (ttl_s ? ttl_s : SLEEPING_S)) return;
    session_lock(s);
    const struct session *x = session_table_find_name(&s->table, name);
    const bool known = x && x->exists && !strcmp(x->file_version.etag, file->version.etag);
    session_unlock(s);
    if (known || session_store_read(&s->store, name, false, &read, NULL)) return;
    if (session_expired(&read.metadata, session_now_s(s))) session_tenants_learn(s, name, &read);
    session_read_fini(&read);
}

static void sweep_leftover(struct sessions *s, const struct sweep_file *file) {
    uint8_t name[SESSION_NAME_BYTES];
    uint64_t version;
    const char *end = session_store_parse_file(&s->store, file->name, name);
    if (end && !strcmp(end, ".lazy")) state_home_remove(&s->store.home, file->name, &file->version, NULL);
    if (session_store_parse_kept(&s->store, file->name, name, &version) &&
        session_store_kept_left(&s->store, name, version))
        state_home_remove(&s->store.home, file->name, &file->version, NULL);
}

static int sweep_page(struct sessions *s, char last[SESSION_FILE_NAME_BYTES], bool leftovers, uint64_t *n, bool *more) {
    struct sweep_page page = {0};
    const int rc = state_home_list(&s->store.home, "", last, sweep_found, &page, more, NULL);
    for (size_t i = 0; !rc && i < page.n && !sweep_ending(s); i++) {
        const struct sweep_file *file = &page.files[i];
        const int64_t age_s = session_now_s(s) - (int64_t)(file->version.mtime_ns / NS_S);
        uint8_t name[SESSION_NAME_BYTES];
        const bool is_session = session_store_parse_name(&s->store, file->name, name);
        *n += is_session;
        if (is_session)
            sweep_session(s, name, file, age_s);
        else if (leftovers && age_s >= YOUNG_S)
            sweep_leftover(s, file);
    }
    if (page.n)
        memcpy(last, page.files[page.n - 1].name, SESSION_FILE_NAME_BYTES);
    else
        *more = false;
    free(page.files);
    return rc;
}

/* A store that does not answer is asked again next time. */
static void sweep_all(struct sessions *s, bool leftovers) {
    char last[SESSION_FILE_NAME_BYTES] = "";
    uint64_t n = 0;
    bool more = true;
    session_fence_set_clock(s);
    while (more && !sweep_ending(s))
        if (sweep_page(s, last, leftovers, &n, &more)) return;
    if (!more) atomic_store_explicit(&s->n_stored, n, memory_order_relaxed);
}

/* Who empties a store under its servers takes the key of their names along: a server that starts then would make
 * another one, and two servers would keep one session under two names. */
static void sweep_look_at_names(struct sessions *s) {
    struct rod_error err;
    bool restored, other;
    if (session_names_look(s->store.names, &s->store.home, &restored, &other, &err)) return;
    if (restored) session_log(s, 2, "state_url: " SESSION_NAMES_FILE " was gone from the store, and is put back");
    if (other && !atomic_exchange(&s->names_other, true))
        session_log(s, 3,
                    "state_url: " SESSION_NAMES_FILE
                    " is another one than at the start: no session is read or written until it is the store's own");
    if (!other) atomic_store(&s->names_other, false);
}

static void *sweep_thread(void *arg) {
    struct sessions *s = arg;
    uint64_t n_sweeps = 0, second_ns = 0, names_ns = 0;
    uint64_t next_ns = clock_now_ns() + (uint64_t)s->server_id[0] % 16 * NS_S; /* servers that start together */
    session_lock(s);
    while (!s->ending) {
        const uint64_t now_ns = clock_now_ns();
        if (now_ns >= second_ns) {
            second_ns = now_ns + NS_S;
            session_budget_expire_locked(s);
            session_unlock(s);
            session_tenants_trim(s);
            if (now_ns >= names_ns) {
                sweep_look_at_names(s);
                names_ns = now_ns + NAMES_S * NS_S;
            }
            session_lock(s);
        }
        if (!s->ending && now_ns >= next_ns) {
            session_unlock(s);
            sweep_all(s, n_sweeps++ % LEFTOVERS_EVERY == 0);
            next_ns = clock_now_ns() + SWEEP_S * NS_S;
            session_lock(s);
        }
        if (!s->ending) session_wait_locked(s, &s->changed, second_ns);
    }
    session_unlock(s);
    return NULL;
}

int session_sweep_start(struct sessions *s, struct rod_error *err) {
    assert(!s->has_sweeper);
    s->has_sweeper = !pthread_create(&s->sweeper, NULL, sweep_thread, s);
    return s->has_sweeper ? 0 : rod_fail(err, ROD_EINTERNAL, "The threads of the sessions did not start.");
}

void session_sweep_stop(struct sessions *s) {
    if (s->has_sweeper) pthread_join(s->sweeper, NULL);
    s->has_sweeper = false;
}
