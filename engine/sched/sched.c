/* sched.c - queue, slots and the plan of a step. */
#include "sched.h"
#include "engine/base/fail.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- free slots: the one released last is reused first, as its memory is warm; parked ones last ---- */

static void slots_fini(struct slots *slots) {
    free(slots->free);
    free(slots->used);
    free(slots->parked);
    *slots = (struct slots){0};
}

static int slots_init(struct slots *slots, uint32_t n, struct rod_error *err) {
    assert(n);
    *slots = (struct slots){.n = n, .n_free = n};
    slots->free = calloc(n, sizeof *slots->free);
    slots->used = calloc(n, sizeof *slots->used);
    slots->parked = calloc(n, sizeof *slots->parked);
    if (!slots->free || !slots->used || !slots->parked) {
        slots_fini(slots);
        return rod_fail_no_memory(err);
    }
    for (uint32_t i = 0; i < n; i++) slots->free[i] = n - 1 - i;
    return 0;
}

static uint32_t slots_acquire(struct slots *slots) {
    if (slots->n_free == 0) return SLOTS_NONE;
    uint32_t at = slots->n_free;
    while (at > 0 && slots->parked[slots->free[at - 1]]) at--;
    at -= at > 0; /* all are parked: the one for the longest time */
    const uint32_t slot = slots->free[at];
    assert(slot < slots->n && !slots->used[slot]);
    memmove(slots->free + at, slots->free + at + 1, (--slots->n_free - at) * sizeof *slots->free);
    slots->used[slot] = true;
    slots->parked[slot] = false;
    return slot;
}

static void slots_release(struct slots *slots, uint32_t slot) {
    assert(slot < slots->n && slots->used[slot] && slots->n_free < slots->n);
    slots->used[slot] = false;
    slots->free[slots->n_free++] = slot;
}

/* ---- lists ---- */

static struct list *sched_list_of(struct sched *s, const struct sched_req *req) {
    switch (req->state) {
    case SCHED_QUEUED: return &s->keys[req->key].queue;
    case SCHED_PREFILL: return &s->prefill[req->site];
    case SCHED_WAITING: return &s->waiting;
    case SCHED_DECODE: return &s->decode[req->site];
    case SCHED_LAST: return &s->last;
    case SCHED_MOVING: return &s->moving;
    case SCHED_FLYING: return &s->flying;
    case SCHED_MASKING: return &s->masking[req->site];
    case SCHED_NONE: break;
    }
    return NULL;
}

int sched_init(struct sched *s, const struct sched_config *config, struct rod_error *err) {
    assert(config->n_slots && config->max_out && config->chunk_tok && config->chunk_tok <= config->max_batch_tok);
    assert(!config->flight_tok || config->flight_tok >= config->chunk_tok);
    assert(!config->shared_tok ||
           (config->shared_tok >= config->chunk_tok && config->shared_tok <= config->max_batch_tok));
    *s = (struct sched){.config = *config, .next_deadline_ns = UINT64_MAX};
    struct list *const lists[] = {&s->waiting,    &s->last,      &s->moving,    &s->flying,     &s->prefill[0],
                                  &s->prefill[1], &s->decode[0], &s->decode[1], &s->masking[0], &s->masking[1]};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) list_init(lists[i]);
    for (size_t i = 0; i < SCHED_N_KEYS; i++) list_init(&s->keys[i].queue);
    for (int i = 0; i < SCHED_N_SITES; i++) budget_init(&s->budget[i], config->chunk_tok);
    return slots_init(&s->slots, config->n_slots, err);
}

void sched_fini(struct sched *s) { slots_fini(&s->slots); }

void sched_submit(struct sched *s, struct sched_req *req, uint64_t now_ns) {
    assert(req->n_prompt > req->pos && (req->site == SITE_DEVICE || req->site == SITE_HOST));
    assert(!req->scored || s->config.max_out >= s->config.chunk_tok);
    assert(req->key < SCHED_N_KEYS);
    assert(req->state == SCHED_NONE && req->n_out == 0);
    req->state = SCHED_QUEUED;
    req->submit_ns = now_ns;
    req->slot = SLOTS_NONE;
    if (req->deadline_ns && req->deadline_ns < s->next_deadline_ns) s->next_deadline_ns = req->deadline_ns;
    req->order = s->n_submitted++;
    struct sched_key *key = &s->keys[req->key];
    if (req->key >= s->n_keys) s->n_keys = req->key + 1;
    if (!key->queue.n && key->served < s->served) key->served = s->served;
    list_push_last(&key->queue, &req->link);
    s->n_queued++;
}

/* ---- keys ---- */

/* A generated token costs a device more than one of a prompt, which is read beside others. */
enum { SERVED_PARTS = 1024 };

static uint64_t sched_served_parts(const struct sched_req *r, uint64_t n_tok) {
    return n_tok * SERVED_PARTS / (r->weight ? r->weight : 1);
}
static void sched_serve(struct sched *s, const struct sched_req *r, uint64_t n_tok) {
    s->keys[r->key].served += sched_served_parts(r, n_tok);
}

struct sched_req *sched_next(const struct sched *s) {
    const struct sched_key *best = NULL;
    for (uint32_t i = 0; i < s->n_keys; i++) {
        const struct sched_key *k = &s->keys[i];
        if (!k->queue.n) continue;
        if (best && (k->served > best->served ||
                     (k->served == best->served && sched_first(&k->queue)->order > sched_first(&best->queue)->order)))
            continue;
        best = k;
    }
    return best ? sched_first(&best->queue) : NULL;
}

static void sched_leave_queue(struct sched *s, struct sched_req *r) {
    assert(r->state == SCHED_QUEUED && r->slot == SLOTS_NONE && s->n_queued > 0);
    list_remove(&s->keys[r->key].queue, &r->link);
    s->n_queued--;
}

/* ---- the queue's end ---- */

static struct sched_req *sched_find_expired(struct list *queue, uint64_t now_ns, uint64_t *next_ns) {
    for (struct sched_req *r = sched_first(queue); r; r = sched_after(queue, r)) {
        if (!r->deadline_ns) continue;
        if (r->deadline_ns <= now_ns) return r;
        if (r->deadline_ns < *next_ns) *next_ns = r->deadline_ns;
    }
    return NULL;
}

struct sched_req *sched_expire(struct sched *s, uint64_t now_ns) {
    if (now_ns < s->next_deadline_ns) return NULL;
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < s->n_keys; i++) {
        struct sched_req *r = sched_find_expired(&s->keys[i].queue, now_ns, &next_ns);
        if (!r) continue;
        sched_leave_queue(s, r);
        r->state = SCHED_NONE;
        return r;
    }
    s->next_deadline_ns = next_ns;
    return NULL;
}

struct sched_req *sched_admit(struct sched *s, uint64_t now_ns) {
    struct sched_req *r = s->n_queued ? sched_next(s) : NULL;
    if (!r) return NULL;
    uint32_t slot = slots_acquire(&s->slots);
    if (slot == SLOTS_NONE) return NULL;
    sched_leave_queue(s, r);
    if (s->keys[r->key].served > s->served) s->served = s->keys[r->key].served;
    sched_serve(s, r, r->n_prompt - r->pos);
    r->slot = slot;
    r->state = SCHED_PREFILL;
    r->admit_ns = now_ns;
    list_push_last(sched_list_of(s, r), &r->link);
    return r;
}

void sched_park(struct sched *s, uint32_t slot) { s->slots.parked[slot] = true; }

bool sched_is_parked(const struct sched *s, uint32_t slot) { return s->slots.parked[slot] && !s->slots.used[slot]; }

uint32_t sched_borrow(struct sched *s) {
    const uint32_t slot = s->n_queued ? SLOTS_NONE : slots_acquire(&s->slots);
    if (slot != SLOTS_NONE) s->n_left++;
    return slot;
}

/* How many tokens of the prompt fit into budget_tok: to its end, or to the last multiple of chunk_tok before. */
static uint32_t sched_piece_tok(const struct sched *s, const struct sched_req *r, uint32_t budget_tok, uint32_t n_out) {
    uint64_t end = r->pos + (r->scored && n_out < budget_tok ? n_out : budget_tok);
    if (r->stop_tok > r->pos && end > r->stop_tok) end = r->stop_tok;
    if (r->handover_tok > r->pos && end > r->handover_tok) end = r->handover_tok;
    const uint32_t chunk_tok = s->config.chunk_tok, inside = (uint32_t)(r->pos % chunk_tok);
    const uint64_t most = end < r->n_prompt ? end : r->n_prompt;
    if (inside && most >= r->pos + POLICY_PIECE_ALIGNS_TOK) return chunk_tok - inside;
    if (end >= r->n_prompt && n_out && !r->no_end) return (uint32_t)(r->n_prompt - r->pos);
    if (end >= r->n_prompt) end = r->n_prompt - 1; /* no row of logits left for its end, or no mask */
    end -= end % chunk_tok;
    return end > r->pos ? (uint32_t)(end - r->pos) : 0;
}

/* The least that a prompt can advance: to the next multiple of chunk_tok or to its end. */
static uint32_t sched_least_tok(const struct sched *s, const struct sched_req *r) {
    uint64_t to_chunk = s->config.chunk_tok - r->pos % s->config.chunk_tok, to_end = r->n_prompt - r->pos;
    return (uint32_t)(to_chunk < to_end ? to_chunk : to_end);
}

bool sched_at_end(const struct sched *s, const struct sched_req *r) {
    assert(r->pos < r->n_prompt);
    return sched_least_tok(s, r) == r->n_prompt - r->pos;
}

/* ---- prompts that are long, and are left to flights ---- */

/* Which prompts a plan is of. */
enum sched_prompts { PROMPTS_ALL, PROMPTS_SHORT, PROMPTS_LONG };

/* Its last piece is a step's, and up to a chunk. */
static bool sched_is_long(const struct sched *s, const struct sched_req *r) {
    const uint64_t chunk = s->config.chunk_tok, end = (r->n_prompt - 1) / chunk * chunk;
    if (!s->config.flight_tok || !r->may_fly || r->scored || end <= r->pos) return false;
    return r->flown ||
           end - r->pos >= POLICY_FLIGHT_LEAST_CHUNKS * chunk; /* one that has begun in flights ends in them */
}

static uint32_t sched_n_long(const struct sched *s, enum sampling_site site) {
    uint32_t n = 0;
    for (const struct sched_req *r = sched_first(&s->prefill[site]); r && s->config.flight_tok;
         r = sched_after(&s->prefill[site], r))
        n += sched_is_long(s, r);
    return n;
}

/* Where few streams run or many long prompts wait, prompts have more of the time in steps than a flight gives them. */
static bool sched_has_flights(const struct sched *s, enum sampling_site site, uint32_t n_long) {
    const uint32_t n_streams = s->decode[site].n;
    return s->config.flight_tok && n_streams >= s->config.flight_streams && n_streams >= n_long + s->flying.n;
}

static bool sched_takes(const struct sched *s, const struct sched_req *r, enum sched_prompts which) {
    return which == PROMPTS_ALL || sched_is_long(s, r) == (which == PROMPTS_LONG);
}

static struct sched_req *sched_oldest(const struct sched *s, enum sampling_site site, enum sched_prompts which) {
    struct sched_req *r = sched_first(&s->prefill[site]);
    while (r && !sched_takes(s, r, which)) r = sched_after(&s->prefill[site], r);
    return r;
}

/* The prompt with the least left to read that this plan has not taken yet. */
static struct sched_req *sched_shortest(const struct sched *s, enum sampling_site site, enum sched_prompts which) {
    struct sched_req *best = NULL;
    for (struct sched_req *r = sched_first(&s->prefill[site]); r; r = sched_after(&s->prefill[site], r))
        if (r->plan != s->n_marks && (!best || r->n_prompt - r->pos < best->n_prompt - best->pos) &&
            sched_takes(s, r, which))
            best = r;
    return best;
}

/* Rows of logits of a piece of n_tok tokens. */
static uint32_t sched_piece_out(const struct sched_req *r, uint32_t n_tok) {
    return r->scored ? n_tok : r->pos + n_tok == r->n_prompt;
}

/* ---- prompts beside streams ---- */

/* A round of all streams: sites alternate. */
static uint64_t sched_round_ns(const struct sched *s) {
    uint64_t ns = 0;
    for (int i = 0; i < SCHED_N_SITES; i++) ns += budget_streams_ns(&s->budget[i], s->decode[i].n);
    return ns;
}

/* What prompts may have beside a step of all streams: as much as these have, and for each that waits a stream's part,
 * but for those that are left to flights. */
static uint64_t sched_prompt_ns(const struct sched *s, uint64_t streams_ns, uint32_t n_left_out) {
    uint64_t n_waiting = s->waiting.n, n_streams = 0;
    for (int i = 0; i < SCHED_N_SITES; i++) n_waiting += s->prefill[i].n, n_streams += s->decode[i].n;
    n_waiting -= n_left_out;
    return n_streams ? streams_ns + streams_ns * n_waiting / n_streams : 0;
}

static bool sched_is_short(const struct sched *s, const struct sched_req *r, enum sched_prompts which) {
    return r->n_prompt - r->pos <= POLICY_SHORT_CHUNKS * (uint64_t)s->config.chunk_tok && sched_takes(s, r, which);
}

struct short_prompts {
    uint64_t n, tok; /* requests; tokens that they still have */
};
static struct short_prompts sched_short(const struct sched *s, enum sampling_site site, enum sched_prompts which) {
    struct short_prompts all = {0, 0};
    for (const struct sched_req *r = sched_first(&s->prefill[site]); r; r = sched_after(&s->prefill[site], r))
        if (sched_is_short(s, r, which)) all.n++, all.tok += r->n_prompt - r->pos;
    return all;
}

/* What short prompts have beyond the prompt time. */
static uint64_t sched_burst_ns(const struct sched *s, enum sampling_site site, struct short_prompts all,
                               uint64_t streams_ns) {
    uint64_t n_streams = 0;
    for (int i = 0; i < SCHED_N_SITES; i++) n_streams += s->decode[i].n;
    if (!all.n || !n_streams) return 0;
    return budget_burst_ns(&s->budget[site], all.tok, streams_ns * (POLICY_SHORT_STREAMS - 1) * all.n / n_streams);
}

/* A burst of short prompts gets every second step to itself, where prompts are read sooner. It must have at least
 * POLICY_ALONE_CHUNKS chunks and two prompts for every five streams, and burst_ns must cover the step. Returns how many
 * tokens such a step has, most_tok at most; 0: streams have their rows in it. */
static uint32_t sched_alone_tok(const struct sched *s, enum sampling_site site, struct short_prompts all,
                                uint32_t most_tok, uint64_t burst_ns) {
    if (!burst_ns || s->left_out[site] || all.tok < POLICY_ALONE_CHUNKS * (uint64_t)s->config.chunk_tok) return 0;
    if (5 * all.n < POLICY_ALONE_PROMPTS * (uint64_t)s->decode[site].n) return 0;
    return (uint32_t)budget_alone_tok(&s->budget[site], most_tok, burst_ns);
}

void sched_took(struct sched *s, enum sampling_site site, uint32_t n_decode, uint64_t n_prompt_tok, uint64_t ns) {
    budget_took(&s->budget[site], n_decode, n_prompt_tok, ns);
}

void sched_guess(struct sched *s, enum sampling_site site, uint32_t n_decode, uint64_t ns) {
    budget_guess(&s->budget[site], n_decode, ns);
}

const struct step_cost *sched_reading(const struct sched *s, enum sampling_site site) {
    const struct step_cost *own = &s->budget[site].prompt;
    for (int i = 0; !own->n_most && i < SCHED_N_SITES; i++) own = &s->budget[i].prompt;
    return own;
}

bool sched_site_busy(const struct sched *s, enum sampling_site site) { return s->prefill[site].n || s->decode[site].n; }

/* Rows of a step. A prompt that has the device alone takes all there are, since a large step reads faster. Beside
 * other requests, which would wait for its end, steps are smaller (shared_tok). */
static uint32_t sched_step_tok(const struct sched *s) {
    uint32_t n_prompts = 0, n_streams = 0;
    for (int i = 0; i < SCHED_N_SITES; i++) n_prompts += s->prefill[i].n, n_streams += s->decode[i].n + s->masking[i].n;
    const bool alone = n_prompts == 1 && !n_streams && !s->flying.n && !s->moving.n;
    return alone || !s->config.shared_tok ? s->config.max_batch_tok : s->config.shared_tok;
}

/* What is left of a step while it is planned. */
struct step_left {
    uint32_t tok, out;
};

/* A piece of r, then of the shortest of those that this plan has not taken. Returns the number of rows. */
static uint32_t sched_plan_pieces(struct sched *s, enum sampling_site site, enum sched_prompts which,
                                  struct sched_req *r, struct step_left *left, struct sched_row *rows) {
    uint32_t n = 0;
    for (; r && left->tok; r = sched_shortest(s, site, which)) {
        const uint32_t n_tok = sched_piece_tok(s, r, left->tok, left->out), n_out = sched_piece_out(r, n_tok);
        if (!n_tok && !r->scored) break;
        r->plan = s->n_marks;
        if (!n_tok) continue; /* no rows of logits are left for it, but tokens perhaps for others */
        assert(n_tok <= left->tok && n_out <= left->out);
        rows[n++] = (struct sched_row){.req = r, .pos = r->pos, .n_tok = n_tok, .n_out = n_out};
        left->tok -= n_tok;
        left->out -= n_out;
    }
    return n;
}

/* Of a large piece the shortest prompts have half, the oldest the rest: a piece may not come in every step, and who
 * comes last should not wait for two. Of a small one first has all that it can take. */
static uint32_t sched_plan_prompts(struct sched *s, enum sampling_site site, enum sched_prompts which,
                                   struct sched_req *first, struct step_left left, struct sched_row *rows) {
    if (!first) return 0;
    struct sched_req *oldest = sched_oldest(s, site, which), *next = sched_shortest(s, site, which);
    const uint32_t chunk = s->config.chunk_tok, least_out = oldest->scored || next->scored ? chunk : 1;
    const bool out_fits = which == PROMPTS_LONG || left.out >= 2 * least_out; /* those have no logits */
    if (next == oldest || left.tok < 2 * chunk || !out_fits)
        return sched_plan_pieces(s, site, which, first, &left, rows);
    const struct step_left rest = {left.tok / 2, left.out / 2};
    oldest->plan = s->n_marks;
    left.tok -= rest.tok, left.out -= rest.out;
    uint32_t n = sched_plan_pieces(s, site, which, next, &left, rows);
    left.tok += rest.tok, left.out += rest.out;
    oldest->plan = 0;
    return n + sched_plan_pieces(s, site, which, oldest, &left, rows + n);
}

/* Drafts have what is left when every stream has its row. */
static void sched_plan_drafts(struct step_left *left, uint32_t kept, uint32_t kept_out, struct sched_row *rows,
                              uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_drafts = rows[i].req->n_drafts;
        if (n_drafts > left->tok - kept) n_drafts = left->tok - kept;
        if (n_drafts > left->out - kept_out) n_drafts = left->out - kept_out;
        rows[i].n_tok += n_drafts;
        rows[i].n_out += n_drafts;
        left->tok -= n_drafts;
        left->out -= n_drafts;
    }
}

uint32_t sched_plan(struct sched *s, enum sampling_site site, struct sched_row *rows) {
    uint32_t n = 0;
    struct step_left left = {sched_step_tok(s), s->config.max_out};
    const struct list *decode = &s->decode[site];
    const uint64_t number = ++s->n_plans[site];
    s->n_marks++;
    const uint32_t n_long = sched_n_long(s, site);
    const enum sched_prompts which = sched_has_flights(s, site, n_long) ? PROMPTS_SHORT : PROMPTS_ALL;

    /* One prompt advances however many decode rows there are: the oldest and the shortest in turn, so that a short
     * prompt overtakes a long one and the long one still gets every second turn. Its least piece is kept free. */
    struct sched_req *first =
        s->n_prompt_plans[site] % 2 ? sched_shortest(s, site, which) : sched_oldest(s, site, which);
    const uint64_t streams_ns = sched_round_ns(s);
    const struct short_prompts short_ones = sched_short(s, site, which);
    const uint64_t burst = sched_burst_ns(s, site, short_ones, streams_ns);
    const uint64_t prompt_ns = sched_prompt_ns(s, streams_ns, which == PROMPTS_SHORT ? n_long : 0) + burst;
    if (first && decode->n && budget_skips(&s->budget[site], decode->n, prompt_ns, burst > 0)) first = NULL;
    uint32_t kept = first ? sched_least_tok(s, first) : 0, kept_out = first ? sched_piece_out(first, kept) : 0;
    if (first && decode->n && (kept == left.tok || kept_out == left.out) && number % 2) {
        first = NULL; /* they do not fit together: steps alternate between the two kinds */
        kept = kept_out = 0;
    }
    const uint32_t alone_tok = first && decode->n ? sched_alone_tok(s, site, short_ones, left.tok, burst) : 0;
    s->left_out[site] = alone_tok;

    uint32_t n_decode = alone_tok ? 0 : decode->n;
    if (n_decode > left.tok - kept) n_decode = left.tok - kept;
    if (n_decode > left.out - kept_out) n_decode = left.out - kept_out;
    for (struct sched_req *r = sched_first(decode); r && n < n_decode; r = sched_after(decode, r)) {
        if (r->held) continue;
        r->plan = s->n_marks;
        rows[n++] = (struct sched_row){.req = r, .pos = r->pos, .n_tok = 1, .n_out = 1};
    }
    n_decode = n;
    left.tok -= n_decode;
    left.out -= n_decode;
    sched_plan_drafts(&left, kept, kept_out, rows, n);

    if (first) s->n_prompt_plans[site]++;
    const uint64_t fits_tok = alone_tok ? alone_tok : budget_fits_tok(&s->budget[site], streams_ns, prompt_ns, burst);
    if (left.tok > fits_tok) left.tok = fits_tok > kept ? (uint32_t)fits_tok : kept;
    n += sched_plan_prompts(s, site, which, first, left, rows + n);
    uint64_t n_prompt_tok = 0;
    for (uint32_t i = n_decode; i < n; i++) n_prompt_tok += rows[i].n_tok;
    assert(n <= s->config.n_slots && n_decode + n_prompt_tok <= s->config.max_batch_tok);
    assert(left.tok <= s->config.max_batch_tok && left.out <= s->config.max_out);
    if (alone_tok)
        budget_spend(&s->budget[site], n_prompt_tok, 0, burst, burst);
    else
        budget_spend(&s->budget[site], n_prompt_tok, streams_ns, prompt_ns, burst);
    return n;
}

static void sched_move_to(struct sched *s, struct sched_req *r, enum sched_state to) {
    list_remove(sched_list_of(s, r), &r->link);
    r->state = to;
    list_push_last(sched_list_of(s, r), &r->link);
}

/* ---- flights ---- */

/* Back to its place: the head of the list is the oldest. */
static void sched_to_prefill(struct sched *s, struct sched_req *r) {
    list_remove(sched_list_of(s, r), &r->link);
    r->state = SCHED_PREFILL;
    struct list *l = sched_list_of(s, r);
    struct list_link *at = &l->ends;
    while (at->prev != &l->ends && sched_of_link(at->prev)->order > r->order) at = at->prev;
    list_insert_before(l, at, &r->link);
}

/* Plans as if the flight on its way had ended. A request whose piece ends where other choices take over its state, or
 * where it leaves a prefix entry, stays out: its next piece has to wait for that. */
static void sched_look_ahead(struct sched *s) {
    for (struct sched_req *r = sched_first(&s->flying), *next; r; r = next) {
        const uint64_t end = r->pos + r->flight_tok;
        next = sched_after(&s->flying, r);
        if (r->behind_tok || end == r->stop_tok || end == r->handover_tok) continue;
        r->ahead = true;
        r->pos += r->flight_tok;
        sched_to_prefill(s, r);
    }
}

/* Requests that the plan did not take are in FLYING as before. */
static void sched_look_back(struct sched *s, enum sampling_site site) {
    for (struct sched_req *r = sched_first(&s->prefill[site]), *next; r; r = next) {
        next = sched_after(&s->prefill[site], r);
        if (r->ahead) sched_move_to(s, r, SCHED_FLYING);
    }
    for (struct sched_req *r = sched_first(&s->flying); r; r = sched_after(&s->flying, r)) {
        if (r->ahead) r->pos -= r->flight_tok;
        r->ahead = false;
    }
}

uint32_t sched_plan_flight(struct sched *s, enum sampling_site site, struct sched_row *rows) {
    uint32_t n = 0;
    sched_look_ahead(s);
    const uint32_t n_long = sched_n_long(s, site);
    if (n_long && sched_has_flights(s, site, n_long)) {
        s->n_marks++;
        const struct step_left left = {s->config.flight_tok, 0};
        n = sched_plan_prompts(s, site, PROMPTS_LONG, sched_oldest(s, site, PROMPTS_LONG), left, rows);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct sched_req *r = rows[i].req;
        assert(!rows[i].n_out && rows[i].n_tok && (rows[i].pos + rows[i].n_tok) % s->config.chunk_tok == 0);
        *(r->ahead ? &r->behind_tok : &r->flight_tok) = rows[i].n_tok;
        r->flown = true;
        sched_move_to(s, r, SCHED_FLYING);
    }
    sched_look_back(s, site);
    return n;
}

void sched_land(struct sched *s, struct sched_req *r) {
    assert(r->state == SCHED_FLYING && r->flight_tok && r->pos + r->flight_tok < r->n_prompt);
    const uint32_t n_tok = r->flight_tok, behind_tok = r->behind_tok;
    r->behind_tok = 0;
    r->pos += n_tok;
    if (!behind_tok) sched_to_prefill(s, r);
    r->flight_tok = behind_tok;
}

/* To the end of the line: when not all rows fit, they alternate. */
static void sched_to_decode(struct sched *s, struct sched_req *r) {
    sched_move_to(s, r, r->max_out && r->n_out == r->max_out ? SCHED_LAST : SCHED_DECODE);
}

void sched_commit(struct sched *s, const struct sched_row *row) {
    struct sched_req *r = row->req;
    assert(r->pos == row->pos && (r->state == SCHED_PREFILL || r->state == SCHED_DECODE));
    assert(row->n_tok > 0 && row->n_out <= row->n_tok);
    assert(r->state == SCHED_DECODE ? row->n_out == row->n_tok : r->pos + row->n_tok <= r->n_prompt);
    r->pos += r->state == SCHED_DECODE ? 1 : row->n_tok;
    if (r->state == SCHED_DECODE) sched_serve(s, r, POLICY_GENERATED_TOK);
    if (row->n_out && r->pos >= r->n_prompt) r->n_out++; /* rows of logits before the prompt's end score it */
    assert(!r->max_out || r->n_out <= r->max_out);
    if (r->state == SCHED_PREFILL && r->pos < r->n_prompt) return;
    sched_to_decode(s, r);
}

void sched_advance(struct sched *s, struct sched_req *r) {
    assert(r->state == SCHED_DECODE && r->pos > r->n_prompt && r->n_out < r->max_out);
    sched_serve(s, r, POLICY_GENERATED_TOK);
    r->pos++;
    r->n_out++;
    sched_to_decode(s, r);
}

void sched_uncommit(struct sched *s, struct sched_req *r) {
    assert((r->state == SCHED_DECODE || r->state == SCHED_LAST) && r->pos > r->n_prompt && r->n_out > 1);
    assert(s->keys[r->key].served >= sched_served_parts(r, POLICY_GENERATED_TOK));
    s->keys[r->key].served -= sched_served_parts(r, POLICY_GENERATED_TOK);
    r->pos--;
    r->n_out--;
    sched_move_to(s, r, SCHED_DECODE);
}

void sched_skip(struct sched *s, struct sched_req *req, uint64_t pos) {
    assert(req->state == SCHED_PREFILL && pos >= req->pos && pos < req->n_prompt);
    assert(s->keys[req->key].served >= sched_served_parts(req, pos - req->pos));
    s->keys[req->key].served -= sched_served_parts(req, pos - req->pos);
    req->pos = pos;
}

void sched_wait(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_PREFILL && req->pos == 0);
    assert(s->keys[req->key].served >= sched_served_parts(req, req->n_prompt));
    s->keys[req->key].served -= sched_served_parts(req, req->n_prompt);
    sched_move_to(s, req, SCHED_WAITING);
}

void sched_wait_over(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_WAITING);
    sched_serve(s, req, req->n_prompt);
    sched_move_to(s, req, SCHED_PREFILL);
}

void sched_fork(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_WAITING);
    assert(req->n_out == 0 && req->pos == 0);
    req->pos = req->n_prompt;
    req->n_out = 1;
    sched_to_decode(s, req);
}

void sched_move(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_PREFILL || req->state == SCHED_DECODE || req->state == SCHED_LAST);
    assert(req->slot < s->config.n_slots);
    req->moved_from = req->state;
    sched_move_to(s, req, SCHED_MOVING);
}

void sched_moved(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_MOVING);
    assert(req->moved_from != SCHED_MOVING && req->moved_from != SCHED_NONE);
    sched_move_to(s, req, req->moved_from);
}

void sched_mask(struct sched *s, struct sched_req *req) {
    assert(!req->held && (req->state == SCHED_DECODE || (req->state == SCHED_PREFILL && sched_at_end(s, req))));
    req->moved_from = req->state;
    req->n_drafts = 0;
    sched_move_to(s, req, SCHED_MASKING);
}

void sched_masked(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_MASKING);
    if (req->moved_from == SCHED_PREFILL)
        sched_to_prefill(s, req);
    else
        sched_move_to(s, req, req->moved_from);
}

static uint32_t sched_take_out(struct sched *s, struct sched_req *req) {
    const uint32_t slot = req->slot;
    struct list *list = sched_list_of(s, req);
    assert(list);
    assert((req->state == SCHED_QUEUED) == (slot == SLOTS_NONE));
    list_remove(list, &req->link);
    if (req->state == SCHED_QUEUED) s->n_queued--;
    req->slot = SLOTS_NONE;
    req->state = SCHED_NONE;
    return slot;
}

void sched_remove(struct sched *s, struct sched_req *req) {
    const bool queued = req->state == SCHED_QUEUED;
    const uint32_t slot = sched_take_out(s, req);
    if (!queued) slots_release(&s->slots, slot);
}

uint32_t sched_leave(struct sched *s, struct sched_req *req) {
    assert(req->state == SCHED_MOVING || req->state == SCHED_FLYING);
    assert(s->n_left < s->config.n_slots);
    s->n_left++;
    return sched_take_out(s, req);
}

void sched_release(struct sched *s, uint32_t slot) {
    assert(s->n_left > 0 && slot < s->config.n_slots);
    s->n_left--;
    slots_release(&s->slots, slot);
}
