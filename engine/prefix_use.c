/* prefix_use.c - prompts that go on from a prefix entry of the prefix cache, and prefix entries that requests leave.
 *
 * A prompt looks when it has a slot and nothing else to go on from; for a prefix entry on its way it waits, once. It
 * stops where a prefix entry pays, and waits there in SCHED_MOVING while its state is copied; no other request waits
 * with it, and without one the copy is made at once. When an answer ends, the state of the whole conversation
 * so far is copied out of the slot while the client has its last event already.
 */
#include "core.h"
#include "engine/base/array.h"
#include "engine/base/policy.h"
#include "engine/base/test_hooks.h"
#include "engine/state/pinned.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- open ---- */

/* How long copying a byte takes: a new slot's state, the fastest of a few, as the first touches memory that is new. */
static double prefix_use_measure_copy_ns(struct rod_engine *e) {
    const struct backend_ops *ops = e->parts.ops;
    const size_t n = ops->state_bytes(e->parts.backend, 0);
    struct state_buffer *buffer = state_buffer_new(e->states, n);
    double least_ns = 0;
    for (int i = 0; buffer && i < 8; i++) {
        ops->slot_zero(e->parts.backend, 0);
        const uint64_t begin_ns = clock_now_ns();
        if (ops->slot_save(e->parts.backend, 0, 0, buffer->bytes, n, NULL)) break;
        const double ns = (double)(clock_now_ns() - begin_ns) / (double)n;
        if (i == 0 || ns < least_ns) least_ns = ns;
    }
    state_buffer_release(buffer);
    return least_ns;
}

static void prefix_use_log(void *arg, int level, const char *line) { engine_log(arg, level, "%s", line); }

int prefix_use_open(struct rod_engine *e, struct rod_error *err) {
    if (!e->config.prefix_cache_bytes || !e->states) return 0;
    struct state_pool_counts pool;
    state_pool_count(e->states, &pool);
    struct prefix_config config = {.budget_bytes = e->config.prefix_cache_bytes,
                                   .chunk_tok = e->backend_info.chunk_tok,
                                   .gone = lane_use_gone,
                                   .arg = e};
    if (config.budget_bytes > pool.bytes / POLICY_PREFIX_POOL_PARTS)
        config.budget_bytes =
            pool.bytes / POLICY_PREFIX_POOL_PARTS; /* the other half is for sessions and pinned prefixes */
    if (getrandom(&config.seed, sizeof config.seed, GRND_NONBLOCK) != (ssize_t)sizeof config.seed)
        config.seed = clock_now_ns() ^ (uint64_t)(uintptr_t)e;
    const bool all_pay = test_hooks_entries_pay();
    if (all_pay) engine_log(e, 2, "RODIMUS_TEST_CHECKPOINTS_PAY is set: copying a state counts as free");
    e->copy_ns = all_pay ? 0 : prefix_use_measure_copy_ns(e);
    return prefix_new(&config, &e->prefixes, err);
}

int prefix_use_open_pinned(struct rod_engine *e, struct rod_error *err) {
    if (!e->prefixes) return 0;
    struct state_pool_counts pool;
    state_pool_count(e->states, &pool);
    struct pinned_config config = {.state_dir = e->config.state_dir,
                                   .home = e->home.calls ? &e->home : NULL,
                                   .form = keep_form(e),
                                   .pool = e->states,
                                   .budget_bytes = pool.bytes / POLICY_PREFIX_PINNED_PARTS,
                                   .log = prefix_use_log,
                                   .arg = e};
    return pinned_open(&config, &e->pinned, err);
}

/* ---- figures ---- */

static void prefix_use_publish(struct rod_engine *e) {
    const struct prefix_counts n = prefix_count(e->prefixes);
    atomic_store_explicit(&e->counters.prefix_entries, n.n_entries, memory_order_relaxed);
    atomic_store_explicit(&e->counters.prefix_bytes, n.bytes, memory_order_relaxed);
    atomic_store_explicit(&e->counters.prefix_evicted, n.n_evicted, memory_order_relaxed);
}

static void prefix_use_count_miss(struct rod_engine *e, const struct active *a, enum rod_prefix_miss why) {
    engine_count(&e->counters.prefix_misses[why], 1);
    engine_count(&e->counters.prefix_miss_tok[why], a->n_prompt - a->cache.cached_tok);
    engine_log(e, 0, "request %s: prefix cache: %llu of %zu tokens: %s", a->request->id,
               (unsigned long long)a->cache.cached_tok, a->n_prompt, rod_prefix_miss_name(why));
}

static void prefix_use_count_look_up(struct rod_engine *e, const struct active *a, const struct prefix_found *found,
                                     bool pinned) {
    if (found->n_tok) {
        if (pinned) pinned_use(e->pinned, a->prompt, found->n_tok);
        engine_count(&e->counters.prefix_hits, 1);
        engine_count(&e->counters.prefix_tok_saved, found->n_tok);
    }
    if (!found->complete)
        prefix_use_count_miss(e, a, found->reason);
    else
        engine_log(e, 0, "request %s: prefix cache: %llu of %zu tokens", a->request->id,
                   (unsigned long long)found->n_tok, a->n_prompt);
}

/* Nobody but one request that waits for a copy anyway: it is made at once, without a hand-over to another thread. */
static bool prefix_use_is_alone(const struct rod_engine *e) {
    const struct sched *s = &e->sched;
    uint32_t n = s->waiting.n + s->last.n + s->moving.n + s->flying.n + s->n_queued;
    for (int i = 0; i < SCHED_N_SITES; i++) n += s->prefill[i].n + s->decode[i].n;
    return n == 1 && !e->n_moving && !e->moves_always;
}

/* ---- in ---- */

static size_t prefix_use_state_bytes(const struct rod_engine *e, uint64_t n_tok) {
    return e->parts.ops->state_bytes(e->parts.backend, n_tok);
}

/* Reading so many tokens takes as long as a state's way out and in, and more_ns. Not measured yet: a chunk. */
static uint64_t prefix_use_pays_tok(const struct rod_engine *e, const struct active *a, double more_ns) {
    if (e->copy_ns <= 0) return 1;
    const struct step_cost *reading = sched_reading(&e->sched, a->sched.site);
    if (!reading->n_most) return e->backend_info.chunk_tok;
    const double ns = 2 * e->copy_ns * (double)prefix_use_state_bytes(e, a->n_prompt) + more_ns;
    return (uint64_t)(ns / cost_each_ns(reading)) + 1;
}

/* The next of the stops; before it, every few thousand tokens of a prompt that pays for it: a client that leaves a long
 * prompt, and asks again, goes on from there. */
static void prefix_use_next_stop(struct active *a) {
    assert(a->cache.next_stop <= a->cache.n_stops && a->cache.n_stops <= PREFIX_MAX_STOPS);
    const bool last = a->cache.next_stop == a->cache.n_stops;
    const uint64_t planned = last ? a->n_prompt : a->cache.stops[a->cache.next_stop],
                   on_the_way = a->cache.way_tok ? (a->sched.pos / a->cache.way_tok + 1) * a->cache.way_tok : planned;
    if (on_the_way < planned)
        a->sched.stop_tok = on_the_way;
    else
        a->sched.stop_tok = last ? 0 : a->cache.stops[a->cache.next_stop++];
}

/* Where the state is kept for a breakpoint. */
static uint64_t prefix_use_place(const struct rod_engine *e, const struct rod_breakpoint *b) {
    return b->at - b->at % e->backend_info.chunk_tok;
}

/* How long the client wants the entry after n_tok tokens to be held; 0 = it asks for none there. */
static uint64_t prefix_use_hold_ns(const struct rod_engine *e, const struct rod_request *r, uint64_t n_tok) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < r->n_breakpoints; i++)
        if (prefix_use_place(e, &r->breakpoints[i]) == n_tok && r->breakpoints[i].ttl_ns > ns)
            ns = r->breakpoints[i].ttl_ns;
    return ns;
}

/* Entries that the client asks for and that are there: this use counts for each. */
static void prefix_use_hold(struct rod_engine *e, const struct active *a, const struct prefix_key *key,
                            uint64_t now_ns) {
    const struct rod_request *r = a->request;
    for (uint32_t i = 0; i < r->n_breakpoints; i++) {
        const uint64_t at = prefix_use_place(e, &r->breakpoints[i]);
        if (at <= a->cache.cached_tok) prefix_hold(e->prefixes, key, a->prompt, at, r->breakpoints[i].ttl_ns, now_ns);
    }
}

/* Where the prompt stops from here on: each stop makes one more piece, which has the fixed part of a price again. A
 * session's turn keeps its own end. */
static void prefix_use_plan_stops(const struct rod_engine *e, struct active *a, const struct prefix_found *found) {
    const struct rod_request *r = a->request;
    uint64_t wanted_tok[ROD_MAX_BREAKPOINTS];
    for (uint32_t i = 0; i < r->n_breakpoints; i++) wanted_tok[i] = prefix_use_place(e, &r->breakpoints[i]);
    const struct prefix_reading reading = {
        .from_tok = a->cache.cached_tok,
        .n_tok = a->n_prompt,
        .branch_tok = found->branch_tok,
        .marks = r->marks,
        .n_marks = r->n_marks,
        .wanted_tok = wanted_tok,
        .n_wanted = r->n_breakpoints,
        .pays_tok = prefix_use_pays_tok(e, a, sched_reading(&e->sched, a->sched.site)->fixed_ns),
        .chunk_tok = e->backend_info.chunk_tok,
        .open_end = r->keep_state && !(r->turn && r->turn->whole),
        .named = r->conversation != NULL};
    const uint32_t chunk_tok = reading.chunk_tok, way_tok = POLICY_PREFIX_LONG_TOK / chunk_tok * chunk_tok;
    a->cache.way_tok = reading.pays_tok <= way_tok / POLICY_PREFIX_MARK_PAYS ? way_tok : 0;
    a->cache.n_stops = prefix_stops(&reading, a->cache.stops);
    a->cache.next_stop = 0;
    prefix_use_next_stop(a);
}

/* A free slot has the entry's state still. */
static bool prefix_use_unpark(struct rod_engine *e, const struct active *a, uint64_t n_tok, uint64_t number) {
    for (uint32_t slot = 0; number && slot < e->backend_info.n_slots; slot++) {
        if (e->parked[slot] != number || !sched_is_parked(&e->sched, slot)) continue;
        e->parts.ops->slot_copy(e->parts.backend, slot, a->sched.slot, n_tok);
        engine_log(e, 0, "request %s: its state is still in slot %u", a->request->id, slot);
        return true;
    }
    return false;
}

/* Takes the buffer over. */
static int prefix_use_load(struct rod_engine *e, struct active *a, uint64_t n_tok, struct state_buffer *buffer,
                           struct rod_error *err) {
    int rc;
    if (prefix_use_is_alone(e)) {
        rc = e->parts.ops->slot_load(e->parts.backend, a->sched.slot, n_tok, buffer->bytes, buffer->n_bytes, err);
        if (!rc) rc = slot_prepare_sampling(e, a, err);
    } else if (!(rc = move_begin(e, a, MOVE_IN, n_tok, buffer, err))) {
        return 0;
    }
    state_buffer_release(buffer);
    return rc;
}

/* A pinned prefix that is longer than the entry takes the entry's place. False: there is none. */
static bool prefix_use_find_pinned(struct rod_engine *e, const struct active *a, struct prefix_found *found) {
    struct state_buffer *buffer;
    uint64_t n_tok;
    if (!pinned_find(e->pinned, a->prompt, a->n_prompt, found->n_tok, &buffer, &n_tok)) return false;
    state_buffer_release(found->buffer);
    found->buffer = buffer;
    found->n_tok = n_tok;
    found->generated = false;
    found->number = 0;
    if (found->branch_tok > n_tok) return true;
    found->branch_tok = 0;
    found->complete = true;
    return true;
}

/* What came from a file becomes an entry, if there is room. */
static void prefix_use_put(struct rod_engine *e, const struct active *a, const struct prefix_found *found,
                           uint64_t now_ns) {
    const struct prefix_key key = active_prefix_key(a);
    const struct prefix_new_entry wanted = {.generated = found->generated,
                                            .buffer_bytes = state_pool_bytes(1, found->buffer->n_bytes),
                                            .note = a->lane.loaded_place.tokens.low};
    struct prefix_entry *entry = prefix_reserve(e->prefixes, &key, a->prompt, (size_t)found->n_tok, &wanted, now_ns);
    if (entry) prefix_fill(e->prefixes, entry, state_buffer_ref(found->buffer));
    prefix_use_publish(e);
}

/* A conversation's state that is an entry already. */
static void prefix_use_keep_known(struct rod_engine *e, struct active *a, const int32_t *ids, size_t n) {
    const struct prefix_key key = active_prefix_key(a);
    struct state_buffer *buffer = NULL;
    if (a->lane.keeps) prefix_set_note(e->prefixes, &key, ids, n, a->lane.place.tokens.low, &buffer);
    if (buffer) lane_use_keep(e, a, buffer);
    state_buffer_release(buffer);
}

/* Another conversation, or a request without one, may have left what this one begins from. */
static void prefix_use_keep_begin(struct rod_engine *e, struct active *a, const struct prefix_found *found) {
    a->cache.has_answer = found->generated;
    lane_use_place(e, a, a->prompt, (size_t)found->n_tok, false);
    prefix_use_keep_known(e, a, a->prompt, (size_t)found->n_tok);
    a->lane.keeps = false;
}

int prefix_use_admit(struct rod_engine *e, struct active *a, uint64_t now_ns, struct rod_error *err) {
    if (!e->prefixes || a->request->state || a->sched.state != SCHED_PREFILL) return 0;
    if (a->sched.scored) {
        prefix_use_count_miss(e, a, ROD_PREFIX_SCORED);
        return 0;
    }
    assert(!a->cache.waiting && !a->cache.cacheable && !a->shared.source && a->sched.pos == 0);
    const struct prefix_key key = active_prefix_key(a);
    struct prefix_found found;
    prefix_find(e->prefixes, &key, a->prompt, a->n_prompt, now_ns, &found);
    bool pinned = prefix_use_find_pinned(e, a, &found);
    prefix_note(e->prefixes, &key, a->prompt, a->n_prompt, a->n_prompt);
    if (found.waits && !a->cache.waited) { /* a copy takes less than reading */
        state_buffer_release(found.buffer);
        a->cache.waiting = a->cache.waited = true;
        sched_wait(&e->sched, &a->sched);
        return 0;
    }
    if (lane_use_look(e, a, found.n_tok)) { /* a file has more */
        state_buffer_release(found.buffer);
        sched_wait(&e->sched, &a->sched);
        return 0;
    }
    if (lane_use_take(e, a, &found)) {
        prefix_use_put(e, a, &found, now_ns);
        pinned = false;
    }
    if (found.buffer && active_device_counts(a)) {
        state_buffer_release(found.buffer);
        found = (struct prefix_found){.reason = ROD_PREFIX_PENALTY};
    } else if (found.buffer) {
        if (!pinned) prefix_use_keep_begin(e, a, &found);
        sched_skip(&e->sched, &a->sched, found.n_tok);
        const bool parked = prefix_use_unpark(e, a, found.n_tok, found.number);
        if (parked) state_buffer_release(found.buffer);
        const int rc = parked ? 0 : prefix_use_load(e, a, found.n_tok, found.buffer, err);
        if (rc == ROD_EDEVICE) return rc;
        if (rc) {
            a->sched.pos = 0;
            found = (struct prefix_found){.reason = ROD_PREFIX_COLD};
        }
    }
    assert(found.n_tok < a->n_prompt); /* one token is left to read */
    a->cache.cached_tok = a->cache.saved_tok = found.n_tok;
    a->cache.has_answer = found.generated;
    a->cache.cacheable = true;
    prefix_use_count_look_up(e, a, &found, pinned);
    prefix_use_hold(e, a, &key, now_ns);
    prefix_use_plan_stops(e, a, &found);
    return 0;
}

/* ---- out ---- */

/* The slot's state into the entry's buffer, which is taken over: at a stop beside what the request reads on, or at once
 * where nobody else waits; else as a move. */
static int prefix_use_copy_out(struct rod_engine *e, struct active *a, struct prefix_entry *entry, size_t n,
                               struct state_buffer *buffer, bool at_stop, struct rod_error *err) {
    const uint32_t aside = at_stop ? move_aside(e, a, n, buffer, entry) : SLOTS_NONE;
    if (aside != SLOTS_NONE) {
        e->moves[aside].kept = lane_use_detach(a);
        return 0;
    }
    int rc;
    if (at_stop && prefix_use_is_alone(e)) {
        rc = e->parts.ops->slot_save(e->parts.backend, a->sched.slot, n, buffer->bytes, buffer->n_bytes, err);
        if (rc) return rc;
        prefix_fill(e->prefixes, entry, buffer);
        lane_use_keep(e, a, buffer);
        return 0;
    }
    rc = move_begin(e, a, MOVE_OUT, n, buffer, err);
    if (!rc) e->moves[a->sched.slot].entry = entry;
    return rc;
}

/* Copies the state after ids, which is what the request's slot holds. ROD_EDEVICE alone is an error. */
static int prefix_use_save_entry(struct rod_engine *e, struct active *a, const int32_t *ids, size_t n, uint64_t hold_ns,
                                 bool at_stop, uint64_t now_ns, struct rod_error *err) {
    const struct prefix_key key = active_prefix_key(a);
    const size_t bytes = prefix_use_state_bytes(e, n);
    const struct prefix_new_entry wanted = {.generated = a->cache.has_answer,
                                            .buffer_bytes = state_pool_bytes(1, bytes),
                                            .hold_ns = hold_ns,
                                            .note = a->lane.keeps ? a->lane.place.tokens.low : 0};
    struct prefix_entry *entry = prefix_reserve(e->prefixes, &key, ids, n, &wanted, now_ns);
    assert(n > 0 && e->moves[a->sched.slot].kind == MOVE_NONE);
    if (!entry) {
        prefix_use_keep_known(e, a, ids, n);
        return 0;
    }
    struct state_buffer *buffer = state_buffer_try(e->states, bytes); /* no session goes for a prefix entry */
    for (bool more = true; !buffer && more && prefix_evict(e->prefixes, now_ns); more = a->lane.keeps)
        buffer = state_buffer_try(e->states, bytes);
    const int rc = buffer ? prefix_use_copy_out(e, a, entry, n, buffer, at_stop, err) : ROD_ENOMEM;
    if (rc) {
        state_buffer_release(buffer);
        prefix_drop(e->prefixes, entry);
    } else {
        a->cache.saved_tok = n;
        if (hold_ns >= ROD_LONG_HOLD_NS)
            a->cache.created_long_tok += n - (a->cache.created_tok ? a->cache.created_tok : a->cache.cached_tok);
        if (hold_ns) a->cache.created_tok = n;
    }
    prefix_use_publish(e);
    return rc == ROD_EDEVICE ? rc : 0;
}

int prefix_use_stop(struct rod_engine *e, struct active *a, uint64_t now_ns, struct rod_error *err) {
    const uint64_t at = a->sched.pos;
    assert(a->cache.cacheable && at < a->n_prompt && at % e->backend_info.chunk_tok == 0);
    prefix_use_next_stop(a);
    const uint64_t hold_ns = prefix_use_hold_ns(e, a->request, at);
    if (hold_ns) { /* another request may have left it meanwhile */
        const struct prefix_key key = active_prefix_key(a);
        prefix_hold(e->prefixes, &key, a->prompt, at, hold_ns, now_ns);
    }
    lane_use_place(e, a, a->prompt, at, false);
    return prefix_use_save_entry(e, a, a->prompt, at, hold_ns, true, now_ns, err);
}

void prefix_use_generated(struct active *a, int32_t id) {
    if (!a->cache.cacheable) return;
    a->cache.cacheable = ARRAY_RESERVE(a->cache.generated_ids, a->cache.generated_cap, a->cache.n_generated, 1);
    if (!a->cache.cacheable) return; /* this conversation leaves nothing */
    a->cache.generated_ids[a->cache.n_generated++] = id;
    assert(a->cache.n_generated == a->n_generated);
}

/* [*n] tokens of prompt and answer, malloc'd, for an entry of the state behind them. NULL: there is none to be. */
static int32_t *prefix_use_whole(struct rod_engine *e, struct active *a, int32_t pending, size_t *n) {
    *n = a->n_prompt + a->cache.n_generated - (pending >= 0);
    if (*n <= a->n_prompt) /* inside a chunk, and nothing generated: not what reading a longer prompt gives */
        return NULL;
    int32_t *ids = malloc(*n * sizeof *ids);
    if (!ids) return NULL;
    memcpy(ids, a->prompt, a->n_prompt * sizeof *ids);
    memcpy(ids + a->n_prompt, a->cache.generated_ids, (*n - a->n_prompt) * sizeof *ids);
    const struct prefix_key key = active_prefix_key(a);
    prefix_note(e->prefixes, &key, ids, a->n_prompt, *n);
    a->cache.has_answer = true;
    lane_use_place(e, a, ids, *n, true);
    return ids;
}

void prefix_use_answer(struct rod_engine *e, struct active *a, int32_t pending, uint64_t now_ns) {
    struct rod_error err;
    size_t n;
    if (!a->cache.cacheable || a->request->keep_state || e->config.deterministic) return;
    if (a->sched.state != SCHED_DECODE && a->sched.state != SCHED_LAST) return;
    int32_t *ids = prefix_use_whole(e, a, pending, &n);
    if (!ids) return;
    if (a->lane.keeps || n - a->cache.saved_tok >= prefix_use_pays_tok(e, a, 0))
        prefix_use_save_entry(e, a, ids, n, 0, false, now_ns, &err);
    free(ids);
}

void prefix_use_turn(struct rod_engine *e, struct active *a, struct state_buffer *buffer, uint64_t now_ns) {
    const struct rod_turn *turn = a->request->turn;
    size_t n;
    if (!turn || !turn->whole || !a->cache.cacheable || e->config.deterministic || !buffer->pool) return;
    int32_t *ids = prefix_use_whole(e, a, a->output_state->pending, &n);
    if (!ids) return;
    assert(n == a->output_state->n_tok);
    const struct prefix_key key = active_prefix_key(a);
    const struct prefix_new_entry wanted = {.generated = true,
                                            .buffer_bytes = state_pool_bytes(1, buffer->n_bytes),
                                            .note = a->lane.keeps ? a->lane.place.tokens.low : 0};
    struct prefix_entry *entry = prefix_reserve(e->prefixes, &key, ids, n, &wanted, now_ns);
    if (entry) {
        prefix_use_saved(e, entry, state_buffer_ref(buffer));
        lane_use_keep(e, a, buffer);
    } else {
        prefix_use_keep_known(e, a, ids, n);
    }
    free(ids);
}

void prefix_use_left(struct rod_engine *e, struct active *a, uint64_t now_ns) {
    struct rod_error err;
    const uint64_t at = a->sched.pos;
    if (!a->cache.cacheable || a->sched.state != SCHED_PREFILL || at % e->backend_info.chunk_tok) return;
    if (at < a->cache.saved_tok + prefix_use_pays_tok(e, a, 0)) return;
    a->lane.keeps = false;
    prefix_use_save_entry(e, a, a->prompt, at, 0, false, now_ns, &err);
}

void prefix_use_saved(struct rod_engine *e, struct prefix_entry *entry, struct state_buffer *buffer) {
    prefix_fill(e->prefixes, entry, buffer);
    prefix_use_publish(e);
}

void prefix_use_forget(struct rod_engine *e) {
    uint64_t note;
    while (conversations_next_forgotten(e->conversations, &note)) prefix_forget_note(e->prefixes, note);
    prefix_use_publish(e);
}

struct active *prefix_use_next_waiting(struct rod_engine *e) {
    for (struct sched_req *r = sched_first(&e->sched.waiting); r; r = sched_after(&e->sched.waiting, r)) {
        struct active *a = active_of_sched(r);
        if (!a->cache.waiting) continue;
        assert(!a->shared.source && !a->shared.copied_tok); /* it waits for one thing */
        a->cache.waiting = false;
        sched_wait_over(&e->sched, r);
        return a;
    }
    return NULL;
}

void prefix_use_distrust(struct rod_engine *e, const struct active *a) {
    if (!a->cache.cacheable) return;
    const struct prefix_key key = active_prefix_key(a);
    lane_use_distrust(e, a);
    prefix_forget(e->prefixes, &key, a->prompt, a->n_prompt);
    prefix_use_publish(e);
}
