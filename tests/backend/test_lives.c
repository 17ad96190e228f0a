/* test_lives.c - random worlds against a real device: any model in any precision with any number of slots; requests of
 * every kind at once, cancelled at any moment, split over states and sessions that move in and out, forked, as choices
 * of one prompt, from the prefix cache, held to a grammar, beside sessions whose states are NaN. Each answer has the
 * bits that the same request has alone on an idle engine (lives.h), and none is NaN.
 *
 * On the device that RODIMUS_TEST_DEVICE names, the CPU without it: then every second subject has it as a device that
 * draws on its own (drawing_cpu.h). A world is a number: RODIMUS_TEST_SEED=n begins
 * with it, and a failure prints it. RODIMUS_TEST_SOAK_S: for so many seconds. RODIMUS_TEST_SOAK_JSON: a record.
 * RODIMUS_TEST_FULL=1: published shapes, too. RODIMUS_TEST_WORLDS: worlds at once.
 */
#include "tests/lives.h"
#include "tests/result_stamp.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <cmocka.h>

enum { MOST_CLIENTS = 400, MOST_THREADS = 16 };
enum finding { DIFFERENT, NOT_A_NUMBER, FAULT, N_FINDINGS };

/* What all worlds found, behind one lock. */
static struct {
    pthread_mutex_t lock;
    uint64_t next_seed, n_subjects, n_worlds, n_requests, n_tokens, n_cancelled, n_splits, n_forks, n_turns, n_choices,
        n_poisoned, n_lost, n_alone, n_hits, n_flights, n_accepted, n_rejected, n_grammars, n_nowhere, n[N_FINDINGS];
    double until_s;
    atomic_bool dead; /* the device failed */
} found = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }
/* A loaded machine may take all of the time before the first answers: then it lasts until there are some. */
static bool is_over(void) {
    const double late_s = now_s() - found.until_s;
    if (atomic_load(&found.dead)) return true;
    if (late_s <= 0) return false;
    pthread_mutex_lock(&found.lock);
    const bool compared = found.n_requests > 0;
    pthread_mutex_unlock(&found.lock);
    return compared || late_s > 600;
}

/* How a client asks: one request; choices of one prompt; one answer over several requests, by states or by turns of a
 * session; requests that go on from a state of NaN. */
enum way { ONE, CHOICES, BY_STATE, BY_TURN, POISON };

struct client {
    enum way way;
    bool busy, cancelled, from_nan;
    uint32_t entry[MOST_CHOICES], tok[MOST_CHOICES], n; /* n requests at once; tok: max_tokens of each */
    size_t before;                                      /* of a split answer: tokens of earlier requests */
    struct reply a[MOST_CHOICES];
    char session[40];
};

struct world {
    struct subject *s;
    struct dice d;
    struct host h;
    struct client client[MOST_CLIENTS];
    uint32_t number, n_clients, n_slots, budget, n_begun, cancel_one_in;
    bool waves, host, poisons, short_prompts, sessions, drafts;
    char dir[64], what[340];
    struct rod_state *nan; /* a state of NaN; NULL: not yet */
    struct reply nan_from;
    uint64_t n_requests, n_tokens, n_cancelled, n_splits, n_forks, n_turns, n_choices, n_poisoned, n_lost, n_accepted,
        n_rejected, n_grammars, n_nowhere, n_found[N_FINDINGS];
};

/* ---- what is found ---- */

static void say(struct world *w, enum finding kind, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(struct world *w, enum finding kind, const char *format, ...) {
    char line[400];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (w->n_found[kind]++ < 2)
        fprintf(stderr, "RODIMUS_TEST_SEED=%llu (%s): %s\n", (unsigned long long)w->s->seed, w->what, line);
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* a holds tokens [from, from + a->n_ids) of the entry's answer; a client that was cancelled, fewer than it asked for.
 */
static void compare(struct world *w, const struct client *c, uint32_t i, size_t from) {
    struct rod_error err;
    const struct reply *a = &c->a[i];
    const uint32_t e = c->entry[i], want_tok = c->tok[i];
    if (entry_alone(w->s, e, (uint32_t)from + want_tok, &err)) {
        say(w, FAULT, "entry %u alone: %s", e, err.message);
        return;
    }
    const struct reply *alone = &w->s->entry[e].alone;
    char who[128];
    snprintf(who, sizeof who, "entry %u, prompt of %u, way %d, from token %zu", e, family_length(w->s, e / VARIANTS),
             (int)c->way, from);
    const size_t left = alone->n_ids > from ? alone->n_ids - from : 0, want = want_tok < left ? want_tok : left;
    /* Where a grammar and bans leave nothing, alone too; with fewer tokens it does not come so far. */
    const bool has_form = w->s->entry[e].form >= 0, leads_nowhere = has_form && strstr(alone->message, "is forbidden"),
               fails = leads_nowhere && want_tok > left;
    if ((alone->failed && !leads_nowhere) || (a->failed && strcmp(a->message, alone->message) != 0) ||
        (a->failed != fails && !a->cancelled)) {
        const bool nan = strstr(a->message, "not a number") || strstr(alone->message, "not a number");
        say(w, nan ? NOT_A_NUMBER : FAULT, "%s: \"%s\", alone \"%s\"", who, a->message, alone->message);
        return;
    }
    if (a->cancelled ? a->n_ids > want : a->n_ids != want) {
        say(w, DIFFERENT, "%s: %zu tokens, alone %zu", who, a->n_ids, want);
        return;
    }
    for (size_t k = 0; k < a->n_ids; k++)
        if (a->ids[k] != alone->ids[from + k] || bits_of(a->logprobs[k]) != bits_of(alone->logprobs[from + k])) {
            say(w, DIFFERENT, "%s: token %zu of %zu is %d (%.9g), alone %d (%.9g)", who, k, a->n_ids, a->ids[k],
                (double)a->logprobs[k], alone->ids[from + k], (double)alone->logprobs[from + k]);
            return;
        }
    const bool ends_with_grammar =
        has_form && want == left && want == want_tok; /* or with the last token that it may have */
    if (!a->cancelled && !a->failed && !ends_with_grammar && a->stopped != (want < want_tok))
        say(w, DIFFERENT, "%s: ends %s", who, a->stopped ? "too early" : "late");
    for (size_t k = 0; k < a->n_scores && from == 0; k++)
        if (k >= alone->n_scores || bits_of(a->scores[k]) != bits_of(alone->scores[k])) {
            say(w, DIFFERENT, "%s: score %zu of the prompt is %.9g", who, k, (double)a->scores[k]);
            return;
        }
    w->n_tokens += a->n_ids;
    w->n_grammars += has_form;
    w->n_nowhere += a->failed;
    w->n_accepted += a->n_accepted;
    w->n_rejected += a->n_rejected;
    w->n_requests += !a->cancelled;
    w->n_cancelled += a->cancelled;
}

/* ---- what is asked ---- */

static void submit(struct world *w, struct client *c, struct rod_request **r) {
    struct rod_error err = {0};
    uint64_t tickets[MOST_CHOICES];
    c->busy = true;
    if (rod_submit_all(w->h.engine, r, c->n, tickets, &err)) {
        say(w, FAULT, "submit: %s", err.message);
        for (uint32_t i = 0; i < c->n; i++) rod_request_free(r[i]), reply_free(&c->a[i]);
        c->busy = false;
        return;
    }
    for (uint32_t i = 0; i < c->n; i++) c->a[i].ticket = tickets[i];
}

static struct rod_turn *turn_of(const char *session, bool create) {
    struct rod_turn *t = calloc(1, sizeof *t);
    t->tenant = strdup("");
    t->session = strdup(session);
    t->create = create;
    return t;
}

/* Drafts of any kind, or none: the answer alone, as far as it is known, with some of its tokens changed. */
static void speculate(struct world *w, struct rod_request *r, uint32_t entry, size_t from) {
    const struct reply *alone = &w->s->entry[entry].alone;
    const double wrong = roll(&w->d, 3) ? 0.4 * roll_real(&w->d) : 0;
    r->never_speculate = !w->drafts || roll_one_in(&w->d, 5);
    if (r->never_speculate || roll(&w->d, 3) == 0 || !w->s->entry[entry].known || alone->n_ids <= from) return;
    r->n_prediction = alone->n_ids - from;
    r->prediction = malloc(r->n_prediction * sizeof *r->prediction);
    for (size_t i = 0; i < r->n_prediction; i++)
        r->prediction[i] = roll_real(&w->d) < wrong ? any_id(w->s, &w->d) : alone->ids[from + i];
}

/* The next request of a split answer. */
static void go_on(struct world *w, struct client *c, struct rod_state *state) {
    struct rod_request *r = entry_request(w->s, &w->h, &w->s->entry[c->entry[0]], c->entry[0], c->tok[0], &c->a[0]);
    if (c->way == BY_TURN) r->turn = turn_of(c->session, c->before == 0);
    if (c->way == BY_STATE) r->keep_state = true, r->state = state;
    if (c->before) r->n_prompt = 0;
    speculate(w, r, c->entry[0], c->before);
    submit(w, c, &r);
}

static void poison(struct world *w, struct client *c) {
    struct rod_request *r = rod_request_new();
    r->user = &c->a[0];
    r->prompt = calloc(4, sizeof *r->prompt);
    r->n_prompt = 1 + roll(&w->d, 4);
    r->max_tokens = 8;
    for (uint32_t i = 0; i < r->n_prompt; i++) r->prompt[i] = any_id(w->s, &w->d);
    c->from_nan = w->nan != NULL;
    if (c->from_nan)
        r->state = rod_state_ref(w->nan);
    else
        r->keep_state = true;
    submit(w, c, &r);
}

/* What the poisoner's request left becomes the state of NaN: every number of it that is not zero. */
static void poisoned(struct world *w, struct client *c) {
    struct reply *a = &c->a[0];
    if (c->from_nan) {
        if (!a->cancelled && !strstr(a->message, "not a number"))
            say(w, FAULT, "a state of NaN gave %s", a->failed ? a->message : "tokens");
        w->n_poisoned++;
    } else if (a->state && !w->nan) {
        w->nan = a->state, a->state = NULL;
        w->nan->pending = -1;
        unsigned char *bytes = w->nan->buffer->bytes;
        for (size_t i = 0; i + 4 <= w->nan->buffer->n_bytes; i += 4)
            if (bytes[i] | bytes[i + 1] | bytes[i + 2] | bytes[i + 3]) memset(bytes + i, 0xff, 4);
    }
    reply_free(a);
    c->busy = false;
}

static uint32_t pick_entry(struct world *w, struct dice *d) {
    for (int tries = 0;; tries++) {
        const uint32_t e = roll(d, w->s->n_entries);
        struct reply none = {0};
        rod_request_free(entry_request(w->s, NULL, &w->s->entry[e], e, 1, &none));
        if (tries > 50) return e;
        if (w->s->entry[e].host && !w->host) continue;
        if (w->short_prompts && family_length(w->s, e / VARIANTS) > 2) continue;
        return e;
    }
}

/* What request n of a world asks follows from n alone; when it begins, and is cancelled, from how fast things go. */
static void begin(struct world *w, struct client *c) {
    memset(c, 0, sizeof *c);
    struct dice own = {.seed = w->s->seed * 7919 + w->number * 104729 + ++w->n_begun}, *d = &own;
    c->n = 1;
    const uint32_t kind = roll(d, 10);
    if (w->poisons && kind == 0) {
        c->way = POISON;
        poison(w, c);
        return;
    }
    c->entry[0] = pick_entry(w, d);
    c->tok[0] = roll_log(d, w->s->most_answer);
    const struct entry *e = &w->s->entry[c->entry[0]];
    if (kind < 3 && e->splits) {
        c->way = w->sessions && kind == 1 ? BY_TURN : BY_STATE;
        c->tok[0] = roll_log(d, 60);
        snprintf(c->session, sizeof c->session, "s%u", w->n_begun);
        w->n_splits++;
        go_on(w, c, NULL);
        return;
    }
    struct rod_request *r[MOST_CHOICES];
    if (kind == 3 && !e->host) {
        c->way = CHOICES;
        const uint32_t family = c->entry[0] / VARIANTS, n = 2 + roll(d, MOST_CHOICES - 1);
        for (c->n = 0; c->n < n; c->n++) {
            const uint32_t i = c->n, of = family * VARIANTS + roll(d, VARIANTS);
            c->entry[i] = of, c->tok[i] = roll_log(d, w->s->most_answer);
            r[i] = entry_request(w->s, &w->h, &w->s->entry[of], of, c->tok[i], &c->a[i]);
            if (w->s->entry[of].host)
                c->entry[i] = c->entry[0], rod_request_free(r[i]),
                r[i] = entry_request(w->s, &w->h, &w->s->entry[c->entry[0]], c->entry[0], c->tok[i], &c->a[i]);
            r[i]->same_before = i;
            speculate(w, r[i], c->entry[i], 0);
        }
        w->n_choices += c->n;
        submit(w, c, r);
        return;
    }
    c->way = ONE;
    r[0] = entry_request(w->s, &w->h, &w->s->entry[c->entry[0]], c->entry[0], c->tok[0], &c->a[0]);
    speculate(w, r[0], c->entry[0], 0);
    submit(w, c, r);
}

/* A copy of a conversation answers for itself, as the conversation will. */
static void fork_of(struct world *w, const struct client *c, struct rod_state *state) {
    struct client *copy = NULL;
    struct rod_session_info info;
    struct rod_error err;
    for (uint32_t i = 0; i < w->n_clients && !copy; i++)
        if (!w->client[i].busy && &w->client[i] != c) copy = &w->client[i];
    if (!copy) return;
    memset(copy, 0, sizeof *copy);
    copy->way = c->way, copy->n = 1, copy->entry[0] = c->entry[0], copy->before = c->before;
    copy->tok[0] = roll_log(&w->d, 60);
    w->n_forks++;
    if (c->way == BY_TURN) {
        snprintf(copy->session, sizeof copy->session, "f%llu", (unsigned long long)w->n_forks);
        if (rod_session_create(w->h.engine, "", &(struct rod_session_new){.id = copy->session, .from = c->session},
                               &info, &err)) {
            if (err.code != ROD_ENOTFOUND && err.code != ROD_EEXISTS && err.code != ROD_ENOROOM)
                say(w, FAULT, "fork: %s", err.message);
            return;
        }
    }
    go_on(w, copy, state ? rod_state_ref(state) : NULL);
}

static bool went_for_room(const struct world *w, const struct client *c) {
    const struct reply *a = &c->a[0];
    if (c->way != BY_TURN || !a->failed) return false;
    return a->code == ROD_ENOROOM || (a->code == ROD_ENOTFOUND && !w->dir[0] && c->before);
}

/* All of c's requests have ended. */
static void end(struct world *w, struct client *c) {
    struct rod_error err;
    if (c->way == POISON) {
        poisoned(w, c);
        return;
    }
    c->busy = false;
    if (went_for_room(w, c)) {
        w->n_lost++;
        reply_free(&c->a[0]);
        return;
    }
    for (uint32_t i = 0; i < c->n; i++) compare(w, c, i, c->before);
    struct rod_state *state = c->a[0].state;
    c->a[0].state = NULL;
    const bool more =
        (c->way == BY_STATE || c->way == BY_TURN) && !c->a[0].failed && !c->a[0].cancelled && !c->a[0].stopped;
    c->before += c->a[0].n_ids;
    for (uint32_t i = 0; i < c->n; i++) reply_free(&c->a[i]);
    if (c->way == BY_TURN) w->n_turns++;
    if (more && c->before + 1 < w->s->most_answer && roll(&w->d, 4)) {
        const uint32_t left = w->s->most_answer - (uint32_t)c->before, some = roll_log(&w->d, 60);
        c->tok[0] = some < left ? some : left;
        if (left > w->s->most_answer / 5 && roll_one_in(&w->d, 3)) fork_of(w, c, state);
        go_on(w, c, c->way == BY_STATE ? state : NULL);
        return;
    }
    rod_state_free(state);
    if (c->way == BY_TURN && roll(&w->d, 2)) rod_session_delete(w->h.engine, "", c->session, &err);
}

/* ---- a world ---- */

static void remove_dir(const char *dir) {
    DIR *list = dir[0] ? opendir(dir) : NULL;
    char path[512];
    for (struct dirent *e; list && (e = readdir(list));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            unlink(path);
        }
    if (list) closedir(list);
    if (dir[0]) rmdir(dir);
}

static int open_world(struct world *w, uint32_t number, struct rod_error *err) {
    struct subject *s = w->s;
    w->number = number;
    w->d = (struct dice){.seed = s->seed * 1009 + number + 1};
    w->n_slots = roll_log(&w->d, s->published ? 48 : s->on_gpu ? 300 : 12);
    const uint32_t most = 2 * w->n_slots + 4;
    w->n_clients = 1 + roll(&w->d, most < MOST_CLIENTS ? most : MOST_CLIENTS);
    w->waves = roll_one_in(&w->d, 3), w->host = roll_one_in(&w->d, 5), w->poisons = roll_one_in(&w->d, 3);
    w->short_prompts = roll_one_in(&w->d, 4), w->sessions = roll(&w->d, 2);
    w->drafts = roll(&w->d, 4);
    w->cancel_one_in = roll(&w->d, 2) ? 4 + roll(&w->d, 40) : 0;
    w->budget = s->published ? 150 : s->on_gpu ? 300 + roll(&w->d, 900) : 40;
    const size_t state = subject_state_bytes(s);
    const uint32_t images = 4 + roll(&w->d, s->published ? 8 : 60), prefix = roll(&w->d, 2) ? roll(&w->d, 20) : 0;
    struct rod_engine_config config = {.device = s->on_gpu ? getenv("RODIMUS_TEST_DEVICE") : "cpu",
                                       .precision = s->precision,
                                       .deterministic = roll_one_in(&w->d, 4),
                                       .n_slots = w->n_slots,
                                       .max_queue = 5000,
                                       .session_lazy = roll(&w->d, 2)};
    config.prefix_cache_bytes = prefix * state;
    config.state_host_bytes = (images + 2 * prefix) * state;
    if (roll_one_in(&w->d, 3)) config.max_batch_tok = w->n_slots + 64 + roll(&w->d, 600);
    if (s->on_gpu && roll_one_in(&w->d, 2)) config.prompt_share = 0.1 + 0.1 * roll(&w->d, 6); /* flights */
    if (w->sessions && roll(&w->d, 2)) {
        snprintf(w->dir, sizeof w->dir, "/tmp/rodimus-lives-XXXXXX");
        if (!mkdtemp(w->dir)) return rod_fail(err, ROD_EIO, "no folder: %s", strerror(errno));
        config.state_dir = w->dir;
    }
    if (!w->drafts && roll(&w->d, 2)) config.speculative = ROD_SPECULATIVE_NONE;
    snprintf(w->what, sizeof w->what, "%s, world %u, %u slots, %u clients%s%s%s%s%s", s->name, number, w->n_slots,
             w->n_clients, prefix ? ", prefix cache" : "", w->waves ? ", waves" : "", w->poisons ? ", poison" : "",
             w->sessions ? ", sessions" : "", config.prompt_share > 0 ? ", flights" : "");
    const int rc = subject_host(s, config, &w->h, err);
    if (!rc) w->h.engine->drafts_always = roll(&w->d, 2);
    if (!rc) w->h.engine->sched.config.flight_streams = 1 + roll(&w->d, 8);
    return rc;
}

static bool all_ended(const struct client *c) {
    for (uint32_t i = 0; i < c->n; i++)
        if (!c->a[i].ended) return false;
    return true;
}

static void live(struct world *w) {
    bool wave = true; /* clients may begin */
    for (;;) {
        uint32_t n_busy = 0;
        const bool over = w->n_begun >= w->budget || is_over();
        for (uint32_t i = 0; i < w->n_clients; i++) {
            struct client *c = &w->client[i];
            if (c->busy && all_ended(c)) end(w, c);
            if (!c->busy && !over && wave && (w->waves || roll(&w->d, 3))) begin(w, c);
            n_busy += c->busy;
            if (c->busy && w->cancel_one_in && !c->cancelled && roll_one_in(&w->d, 64 * w->cancel_one_in)) {
                c->cancelled = true;
                rod_cancel(w->h.engine, c->a[roll(&w->d, c->n)].ticket);
            }
        }
        if (over && !n_busy) return;
        wave = !w->waves || n_busy == 0;
        if (n_busy && !host_wait(&w->h, 100000)) {
            say(w, FAULT, "no event for 100 s, %u clients wait", n_busy);
            return;
        }
        host_pull(&w->h);
    }
}

static void run_world(struct subject *s, uint32_t number) {
    struct world *w = calloc(1, sizeof *w);
    struct rod_error err;
    struct rod_stats stats = {0};
    w->s = s;
    if (open_world(w, number, &err)) {
        say(w, FAULT, "%s", err.message);
    } else {
        live(w);
        if (rod_engine_failed(w->h.engine) || rod_engine_failed(s->idle.engine)) { /* nothing runs on it any more */
            fprintf(stderr, "RODIMUS_TEST_SEED=%llu (%s): the device failed, all others end\n",
                    (unsigned long long)s->seed, w->what);
            atomic_store(&found.dead, true);
        }
        rod_engine_stats(w->h.engine, &stats);
        host_close(&w->h);
    }
    for (uint32_t i = 0; i < MOST_CLIENTS; i++)
        for (uint32_t k = 0; k < MOST_CHOICES; k++) reply_free(&w->client[i].a[k]);
    rod_state_free(w->nan);
    remove_dir(w->dir);
    pthread_mutex_lock(&found.lock);
    found.n_worlds++;
    found.n_requests += w->n_requests, found.n_tokens += w->n_tokens, found.n_cancelled += w->n_cancelled;
    found.n_splits += w->n_splits, found.n_forks += w->n_forks, found.n_turns += w->n_turns;
    found.n_choices += w->n_choices, found.n_poisoned += w->n_poisoned, found.n_lost += w->n_lost;
    found.n_hits += stats.prefix_hits;
    found.n_flights += stats.flights;
    found.n_accepted += w->n_accepted, found.n_rejected += w->n_rejected;
    found.n_grammars += w->n_grammars, found.n_nowhere += w->n_nowhere;
    for (int i = 0; i < N_FINDINGS; i++) found.n[i] += w->n_found[i];
    pthread_mutex_unlock(&found.lock);
    free(w);
}

static void run_subject(uint64_t seed) {
    struct subject *s = malloc(sizeof *s);
    struct rod_error err;
    const int rc = subject_open(s, seed, &err);
    if (rc) {
        struct world w = {.s = s};
        s->seed = seed;
        snprintf(w.what, sizeof w.what, "%.200s", s->name);
        say(&w, FAULT, "%s", err.message);
    }
    for (uint32_t i = 0; !rc && i < 3 && !is_over(); i++) run_world(s, i);
    pthread_mutex_lock(&found.lock);
    found.n_subjects++, found.n[FAULT] += rc != 0;
    for (uint32_t i = 0; !rc && i < s->n_entries; i++) found.n_alone += s->entry[i].known;
    pthread_mutex_unlock(&found.lock);
    if (!rc) subject_close(s);
    free(s);
}

static void *run_thread(void *arg) {
    (void)arg;
    while (!is_over()) {
        pthread_mutex_lock(&found.lock);
        const uint64_t seed = found.next_seed++;
        pthread_mutex_unlock(&found.lock);
        run_subject(seed);
    }
    return NULL;
}

static void record(uint64_t seed, double seconds, uint32_t n_threads) {
    const char *path = getenv("RODIMUS_TEST_SOAK_JSON"), *device = getenv("RODIMUS_TEST_DEVICE");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "{");
    result_stamp(f);
    fprintf(f, "\"what\": \"random lives\", \"device\": \"%s\", \"seed\": %llu, \"seconds\": %.0f, \"threads\": %u",
            device ? device : "cpu", (unsigned long long)seed, seconds, n_threads);
#define FIELD(name) fprintf(f, ", \"" #name "\": %llu", (unsigned long long)found.n_##name)
    FIELD(subjects), FIELD(worlds), FIELD(alone), FIELD(requests), FIELD(tokens), FIELD(cancelled), FIELD(choices);
    FIELD(splits), FIELD(forks), FIELD(turns), FIELD(poisoned), FIELD(lost), FIELD(hits), FIELD(flights);
    FIELD(accepted), FIELD(rejected), FIELD(grammars), FIELD(nowhere);
    fprintf(f, ", \"different\": %llu, \"nan\": %llu, \"faults\": %llu}\n", (unsigned long long)found.n[DIFFERENT],
            (unsigned long long)found.n[NOT_A_NUMBER], (unsigned long long)found.n[FAULT]);
    fclose(f);
}

static void each_answer_has_the_bits_that_it_has_alone(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED"), *time_s = getenv("RODIMUS_TEST_SOAK_S"),
               *device = getenv("RODIMUS_TEST_DEVICE"), *threads = getenv("RODIMUS_TEST_WORLDS");
    const bool gpu = device && !strncmp(device, "cuda", 4);
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    const double seconds = time_s ? strtod(time_s, NULL) : gpu ? 60 : 5, began = now_s();
    uint32_t n_threads = threads ? (uint32_t)strtoul(threads, NULL, 10) : gpu ? 8 : 1;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    found.next_seed = seed;
    found.until_s = began + seconds;
    pthread_t thread[MOST_THREADS];
    for (uint32_t i = 0; i < n_threads; i++) pthread_create(&thread[i], NULL, run_thread, NULL);
    for (uint32_t i = 0; i < n_threads; i++) pthread_join(thread[i], NULL);
    printf(
        "note: seed %llu, %.0f s: %llu worlds of %llu models, %llu answers alone; compared %llu requests, %llu tokens "
        "(%llu cancelled, %llu choices, %llu split, %llu forks, %llu turns, %llu hits, %llu flights, %llu poisoned, "
        "%llu went for "
        "room, %llu draft tokens right, %llu wrong, %llu under grammars, %llu of them led nowhere): %llu different, "
        "%llu NaN, %llu faults\n",
        (unsigned long long)seed, now_s() - began, (unsigned long long)found.n_worlds,
        (unsigned long long)found.n_subjects, (unsigned long long)found.n_alone, (unsigned long long)found.n_requests,
        (unsigned long long)found.n_tokens, (unsigned long long)found.n_cancelled, (unsigned long long)found.n_choices,
        (unsigned long long)found.n_splits, (unsigned long long)found.n_forks, (unsigned long long)found.n_turns,
        (unsigned long long)found.n_hits, (unsigned long long)found.n_flights, (unsigned long long)found.n_poisoned,
        (unsigned long long)found.n_lost, (unsigned long long)found.n_accepted, (unsigned long long)found.n_rejected,
        (unsigned long long)found.n_grammars, (unsigned long long)found.n_nowhere,
        (unsigned long long)found.n[DIFFERENT], (unsigned long long)found.n[NOT_A_NUMBER],
        (unsigned long long)found.n[FAULT]);
    record(seed, now_s() - began, n_threads);
    assert_true(found.n_requests > 0);
    if (found.n[DIFFERENT] + found.n[NOT_A_NUMBER] + found.n[FAULT])
        fail_msg("answers differ from those alone, or failed");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_answer_has_the_bits_that_it_has_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
