/* lane_use.c - conversations' states: prefix entries that have files, too.
 *
 * A request looks for a file when host memory has less than it wants, and waits in SCHED_WAITING while it is read; the
 * state becomes an entry like any other. A request with a conversation's name leaves the states that the name needs:
 * at the end of system and tools, at the end of its prompt, behind its answer. Each is written beside the steps; the
 * request's last event goes out when the last one is in its file, so that a client that has its answer finds it again
 * whatever becomes of this process.
 */
#include "core.h"
#include "engine/base/store_wait.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void lane_use_log(void *arg, int level, const char *line) { engine_log(arg, level, "%s", line); }

static void lane_use_wake(void *arg) {
    struct rod_engine *e = arg;
    mailbox_poke(&e->mailbox);
}

static uint64_t lane_use_budget(const struct rod_engine *e) {
    const uint64_t n = e->config.state_disk_bytes, of_store = e->home.calls ? e->config.state_store_bytes : 0;
    return of_store ? of_store : n / 2 + n % 2;
}

int lane_use_open(struct rod_engine *e, struct rod_error *err) {
    if (!e->prefixes) return 0;
    struct state_pool_counts pool;
    state_pool_count(e->states, &pool);
    const struct conversations_config config = {.state_dir = e->config.state_dir,
                                                .home = e->home.calls ? &e->home : NULL,
                                                .form = keep_form(e),
                                                .disk_bytes = lane_use_budget(e),
                                                .waiting_bytes = e->home.calls ? pool.bytes / 4 : 0,
                                                .file_bytes = &e->conversation_bytes,
                                                .ttl_s = e->config.session_ttl_s,
                                                .wake = lane_use_wake,
                                                .log = lane_use_log,
                                                .arg = e};
    return conversations_open(&config, &e->conversations, err);
}

void lane_use_gone(void *arg, uint64_t note) {
    struct rod_engine *e = arg;
    if (e->conversations) conversations_gone(e->conversations, note);
}

static struct conversation_prompt lane_use_prompt(const struct active *a, const int32_t *ids, size_t n) {
    const struct rod_request *r = a->request;
    const struct prefix_key key = active_prefix_key(a);
    const size_t first = r->has_head;
    return (struct conversation_prompt){.tenant = key.tenant,
                                        .salt = key.salt,
                                        .ids = ids,
                                        .n = n,
                                        .n_head = first && r->n_marks ? r->marks[0] : 0,
                                        .n_first = r->n_marks > first ? r->marks[first] : 0,
                                        .turn = r->n_user_texts,
                                        .name = r->conversation};
}

/* ---- in ---- */

/* A buffer for a state from a file: no session goes for it. */
static struct state_buffer *lane_use_buffer(struct rod_engine *e, uint64_t n_tok) {
    const size_t bytes = e->parts.ops->state_bytes(e->parts.backend, n_tok);
    struct state_buffer *buffer = state_buffer_try(e->states, bytes);
    while (!buffer && prefix_evict(e->prefixes, clock_now_ns())) buffer = state_buffer_try(e->states, bytes);
    return buffer;
}

bool lane_use_look(struct rod_engine *e, struct active *a, uint64_t than) {
    if (!e->conversations || a->lane.looked) return false;
    assert(!a->lane.job && !a->lane.loaded);
    a->lane.looked = true;
    a->lane.since = conversations_now(e->conversations);
    if (active_device_counts(a)) return false;
    const struct conversation_prompt prompt = lane_use_prompt(a, a->prompt, a->n_prompt);
    if (!conversations_find(e->conversations, &prompt, than, &a->lane.loaded_place)) return false;
    struct state_buffer *buffer = lane_use_buffer(e, a->lane.loaded_place.n_tok);
    if (buffer)
        a->lane.job = conversations_load(e->conversations, &prompt, &a->lane.loaded_place, buffer, a->waited_ns, a);
    a->lane.job_ns = clock_now_ns();
    if (!a->lane.job) state_buffer_release(buffer);
    return a->lane.job != NULL;
}

bool lane_use_take(struct rod_engine *e, struct active *a, struct prefix_found *found) {
    struct active_lane *l = &a->lane;
    struct state_buffer *loaded = l->loaded;
    l->loaded = NULL;
    if (!loaded || l->loaded_place.n_tok <= found->n_tok) {
        state_buffer_release(loaded);
        return false;
    }
    state_buffer_release(found->buffer);
    found->buffer = loaded;
    found->n_tok = l->loaded_place.n_tok;
    found->generated = l->loaded_place.generated;
    found->number = 0;
    found->waits = false;
    found->complete = found->branch_tok <= found->n_tok;
    if (found->complete) found->branch_tok = 0;
    conversations_there(e->conversations, &l->loaded_place);
    return true;
}

/* ---- out ---- */

static uint64_t whole_chunks(const struct rod_engine *e, size_t n) { return n - n % e->backend_info.chunk_tok; }

/* Which of the states that a conversation needs is the one after n tokens of its prompt; false: none. */
static bool lane_use_kind(const struct rod_engine *e, const struct active *a, size_t n,
                          struct conversation_prompt *prompt, enum conversation_kind *kind) {
    const struct rod_request *r = a->request;
    *kind = CONVERSATION_PROMPT;
    if (n == whole_chunks(e, prompt->n_head)) {
        *kind = CONVERSATION_HEAD;
        return true;
    }
    if (n == whole_chunks(e, a->n_prompt - 1)) return true;
    if (r->n_marks && n == whole_chunks(e, r->marks[r->n_marks - 1])) return true; /* before what opens the answer */
    if (r->n_marks < 2 || n != whole_chunks(e, r->marks[r->n_marks - 2])) return false;
    prompt->turn -= prompt->turn > 0; /* before the user's last text, in whose place an edit or a summary may come */
    return true;
}

void lane_use_place(struct rod_engine *e, struct active *a, const int32_t *ids, size_t n, bool answer) {
    enum conversation_kind kind = CONVERSATION_ANSWER;
    a->lane.keeps = false;
    if (!e->conversations || !a->request->conversation) return;
    struct conversation_prompt prompt = lane_use_prompt(a, ids, n > a->n_prompt ? n : a->n_prompt);
    if (!answer && !lane_use_kind(e, a, n, &prompt, &kind)) return;
    a->lane.place = conversations_place(e->conversations, &prompt, n, kind, a->cache.has_answer);
    a->lane.keeps = a->lane.place.lane != 0;
    a->lane.ends = answer && a->lane.keeps;
}

void lane_use_keep(struct rod_engine *e, struct active *a, struct state_buffer *buffer) {
    const struct prefix_key key = active_prefix_key(a);
    if (!a->lane.keeps) return;
    assert(!a->lane.job);
    a->lane.keeps = false;
    a->lane.job = conversations_keep(e->conversations, key.tenant ? key.tenant : "", a->request->conversation,
                                     &a->lane.place, buffer, a->lane.since, a->waited_ns, a->lane.ends ? a : NULL);
    a->lane.job_ns = clock_now_ns();
    if (!a->lane.ends) a->lane.job = NULL; /* nobody waits */
    e->n_lane_ends += a->lane.job != NULL;
}

struct lane_kept {
    struct conversation_place place;
    uint64_t since;
    const char *name; /* behind tenant */
    char tenant[];
};

struct lane_kept *lane_use_detach(struct active *a) {
    const char *tenant = active_prefix_key(a).tenant, *name = a->request->conversation;
    if (!a->lane.keeps) return NULL;
    assert(!a->lane.ends);
    a->lane.keeps = false;
    const size_t n_tenant = strlen(tenant ? tenant : "") + 1, n_name = strlen(name) + 1;
    struct lane_kept *kept = malloc(sizeof *kept + n_tenant + n_name);
    if (!kept) return NULL;
    kept->place = a->lane.place;
    kept->since = a->lane.since;
    memcpy(kept->tenant, tenant ? tenant : "", n_tenant);
    kept->name = memcpy(kept->tenant + n_tenant, name, n_name);
    return kept;
}

void lane_use_keep_detached(struct rod_engine *e, struct lane_kept *kept, struct state_buffer *buffer) {
    if (kept)
        conversations_keep(e->conversations, kept->tenant, kept->name, &kept->place, buffer, kept->since, 0, NULL);
    free(kept);
}

void lane_use_leave(struct rod_engine *e, struct active *a) {
    if (!a->lane.job) return;
    conversations_leave(e->conversations, a->lane.job);
    a->lane.job = NULL;
    e->n_lane_ends -= a->lane.ends;
}

void lane_use_distrust(struct rod_engine *e, const struct active *a) {
    const struct conversation_prompt prompt = lane_use_prompt(a, a->prompt, a->n_prompt);
    if (e->conversations) conversations_distrust(e->conversations, &prompt);
}

/* ---- jobs that are over ---- */

static void lane_use_waited(const struct rod_engine *e, struct active *a, int rc) {
    const bool failed = rc == ROD_EIO || rc == ROD_EUNSURE;
    if (e->home.calls) a->waited_ns = store_wait_add(a->waited_ns, clock_now_ns() - a->lane.job_ns, failed);
}

struct active *lane_use_next(struct rod_engine *e, bool *loaded) {
    if (!e->conversations) return NULL;
    for (struct conversation_over over; conversations_next_over(e->conversations, &over);) {
        struct active *a = over.user;
        const bool is_state = over.buffer && !over.rc;
        *loaded = over.loaded;
        if (a) {
            a->lane.job = NULL;
            e->n_lane_ends -= a->lane.ends;
            lane_use_waited(e, a, over.rc);
        }
        if (a && over.loaded && is_state)
            a->lane.loaded = over.buffer;
        else
            state_buffer_release(over.buffer);
        if (a && over.loaded) sched_wait_over(&e->sched, &a->sched);
        if (a) return a;
    }
    return NULL;
}
