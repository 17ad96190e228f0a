/* test_conversations_bytes.c - what conversations take of a store: their budget, and that the figure which servers show
 * is what the store has. Over the fake device. */
#include "tests/conversations_store.h"

enum { N_SERVERS = 2, TALKS = 8, STEPS = 250, TTL_S = 1000 };

static struct conversations *of(struct server *v) { return v->b.c.engine->conversations; }

static void begin_sweep(struct server *v) {
    struct conversations *c = of(v);
    struct conversation_job *job = conversations_job(CONVERSATION_SWEEP, "");
    assert_non_null(job);
    pthread_mutex_lock(&c->lock);
    conversations_push_locked(c, job);
    pthread_mutex_unlock(&c->lock);
}

/* All jobs are done, and no sweep comes by itself. */
static void wait_idle(struct server *v) {
    struct conversations *c = of(v);
    const uint64_t began_ns = clock_now_ns();
    for (bool busy = true; busy; usleep(500)) {
        pthread_mutex_lock(&c->lock);
        busy = c->queues[0].n + c->queues[1].n + c->going[0].n + c->going[1].n;
        c->sweep_ns = UINT64_MAX;
        pthread_mutex_unlock(&c->lock);
        if (ms_since(began_ns) > 20000) fail_msg("%s", "jobs do not end");
    }
}

static void sweep_in_quiet(struct server *v, int n) {
    for (int i = 0; i < n; i++) wait_idle(&v[i]);
    for (int i = 0; i < 2 * n; i++) { /* the first may remove what another has counted */
        begin_sweep(&v[i % n]);
        wait_idle(&v[i % n]);
    }
}

static void assert_shown(struct server *v, struct memory_store *m, const char *what) {
    const uint64_t shown = stats_of(v->b.c.engine).lane_file_bytes,
                   there = bytes_below(m, "/c/") - bytes_below(m, "/c/clock");
    if (shown != there)
        fail_msg("%s: %llu bytes are shown, %llu are there", what, (unsigned long long)shown,
                 (unsigned long long)there);
}

static void all_servers_keep_one_budget_and_spare_who_has_little(void **state) {
    (void)state;
    enum { BUDGET = 1 << 20, LIVES = 60 };
    struct memory_store m;
    struct server v[2];
    struct talk little = begun("little", 3);
    memory_open_store(&m);
    for (int i = 0; i < 2; i++)
        serve(&v[i], &m, CACHED(.state_disk_bytes = 1, .state_store_bytes = BUDGET, .session_ttl_s = 2000));
    for (int i = 0; i < 2; i++) {
        wait_idle(&v[i]);
        of(&v[i])->soon_ns = UINT64_MAX;
    }
    little.tenant = "b";
    ask(&v[0], &little);
    for (int i = 0; i < LIVES; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%02d", i);
        struct talk t = begun(name, (uint64_t)(10 + 2 * i));
        ask(&v[i % 2], &t);
    }
    const uint64_t before = bytes_below(&m, "/c/");
    if (before <= BUDGET) fail_msg("%llu bytes are too few for this test", (unsigned long long)before);
    struct conversations *c = v[0].b.c.engine->conversations;
    pthread_mutex_lock(&c->lock);
    c->soon_ns = 0;                             /* the last sweep was some seconds ago */
    atomic_store(&c->stored_bytes, 2 * BUDGET); /* it knows of the other's */
    pthread_mutex_unlock(&c->lock);
    struct talk last = begun("last", 900);
    ask(&v[0], &last);
    for (uint64_t began_ns = clock_now_ns(); bytes_below(&m, "/c/") > BUDGET; usleep(50000))
        if (ms_since(began_ns) > 10000)
            fail_msg("%llu bytes of %d", (unsigned long long)bytes_below(&m, "/c/"), BUDGET);
    wait_idle(&v[0]);
    assert_shown(&v[0], &m, "the one that swept");
    talk_text(&little, 20, 2);
    assert_read(ask(&v[1], &little), 21, "of the key with little");
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

/* ---- the figure ---- */

struct life {
    struct memory_store m;
    struct server v[N_SERVERS];
    struct talk talks[TALKS];
    uint64_t seed, n_drawn;
    int n_servers;
};

static uint32_t draw(struct life *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 5) * (double)n);
}

/* Two talks have the same texts; an answer is left out now and then. */
static void life_ask(struct life *l, struct server *v, uint32_t i) {
    struct talk *t = &l->talks[i];
    char name[32];
    snprintf(name, sizeof name, "talk %u", i);
    if (!t->n || t->n > MOST - 200 || t->n_marks > MAX_MARKS - 4) talk_begin(t, name, 20 + 30 * (i % 3), 1 + i / 2);
    if (!draw(l, 6) && t->n_texts > 1) {
        t->n_texts = 1 + draw(l, t->n_texts - 1);
        t->n_marks = 1 + 2 * t->n_texts;
        t->n = t->marks[t->n_marks - 1];
    }
    talk_text(t, 1 + draw(l, 40), l->seed + i / 2);
    ask(v, t);
}

static void life_step(struct life *l) {
    const uint32_t i = draw(l, TALKS);
    struct server *v = &l->v[draw(l, (uint32_t)l->n_servers)];
    struct rod_engine *e = v->b.c.engine;
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    char note[300] = "said";
    switch (draw(l, 10)) {
    case 0: rod_conversation_delete(e, "a", l->talks[i].name, &err); break;
    case 1:
    case 2:
        if (l->talks[i].n) rod_conversation_note(e, "a", l->talks[i].name, note, 1 + draw(l, 299), &seen, &err);
        break;
    case 3:
        if (l->n_servers > 1) begin_sweep(v);
        break;
    case 4:
        if (draw(l, 8)) break;
        pthread_mutex_lock(&l->m.lock);
        l->m.ahead_s += TTL_S + 60;
        pthread_mutex_unlock(&l->m.lock);
        break;
    default: life_ask(l, v, i);
    }
}

static void live(uint64_t seed, int n_servers) {
    struct life *l = calloc(1, sizeof *l);
    struct rod_error err;
    char what[96];
    *l = (struct life){.seed = seed, .n_servers = n_servers};
    memory_open_store(&l->m);
    for (int i = 0; i < n_servers; i++) serve(&l->v[i], &l->m, CACHED(.session_ttl_s = TTL_S));
    for (int i = 0; i < n_servers; i++) wait_idle(&l->v[i]);
    for (uint32_t k = 0; k < STEPS; k++) {
        life_step(l);
        snprintf(what, sizeof what, "seed %llu, %d servers, step %u", (unsigned long long)seed, n_servers, k);
        if (n_servers == 1) wait_idle(&l->v[0]);
        const bool in_quiet = !draw(l, 10);
        if (in_quiet) sweep_in_quiet(l->v, n_servers);
        for (int i = 0; i < n_servers && (in_quiet || n_servers == 1); i++) assert_shown(&l->v[i], &l->m, what);
    }
    for (int i = 0; i < TALKS; i++)
        rod_conversation_delete(l->v[i % n_servers].b.c.engine, "a", l->talks[i].name, &err);
    l->m.ahead_s += TTL_S + 60; /* for the heads, which outlive them */
    sweep_in_quiet(l->v, n_servers);
    for (int i = 0; i < n_servers; i++) {
        const uint64_t shown = stats_of(l->v[i].b.c.engine).lane_file_bytes;
        if (shown) fail_msg("%s: all is gone, and %llu bytes are shown", what, (unsigned long long)shown);
        setup_close(&l->v[i].b);
    }
    memory_close_store(&l->m);
    free(l);
}

static void what_is_shown_is_there(void **state) {
    (void)state;
    const uint64_t seed = test_seed();
    printf("note: seed %llu\n", (unsigned long long)seed);
    for (int n = 1; n <= N_SERVERS; n++) live(seed + (uint64_t)n, n);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_servers_keep_one_budget_and_spare_who_has_little),
        cmocka_unit_test(what_is_shown_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
