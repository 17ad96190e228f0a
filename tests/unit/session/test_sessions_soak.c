/* test_sessions_soak.c - ten times as many sessions as slots have turns at random, with less host memory and less disk
 * than they want: no token is another than without any of that, what the gauges say is true, and nothing grows.
 *
 * RODIMUS_TEST_SOAK_S: how long (15); RODIMUS_TEST_SEED: printed; RODIMUS_TEST_SOAK_JSON: where the result goes. On
 * tales. Each conversation is run a second time on an engine without sessions' files and with room for all, turn
 * by turn; where the budget for files took a session away, that is a 404 and the conversation begins anew under another
 * id. */
#include "engine/session/store/session_store.h"
#include "tests/result_stamp.h"
#include "tests/sessions_setup.h"

enum { SLOTS = 4, SESSIONS = 10 * SLOTS, IN_HOST = 12, ON_DISK = 30, SAMPLES = 4096 };

struct talk {
    char id[32];
    uint32_t n_lives, n_turns; /* n_turns: of this life */
    uint32_t n_new, n_tokens;  /* of the turn on its way */
    uint64_t seed;
    bool runs;
    struct answer a, want;
};

static uint32_t from_environment(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static uint64_t resident_bytes(void) {
    unsigned long long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%llu %llu", &all, &resident) != 2) fail_msg("no /proc/self/statm");
    fclose(f);
    return resident * 4096u;
}

static uint64_t bytes_in(const char *dir, uint32_t *n) {
    uint64_t bytes = 0;
    DIR *list = opendir(dir);
    *n = 0;
    for (struct dirent *e; (e = readdir(list));) {
        char path[600];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".state") && !strstr(e->d_name, ".tmp-") && !stat(path, &info))
            bytes += (uint64_t)info.st_blocks * 512 + SESSION_ENTRY_BYTES, ++*n;
    }
    closedir(list);
    return bytes;
}

static struct rod_request *turn_of(const struct talk *t, struct answer *a) {
    int32_t ids[48];
    for (uint32_t i = 0; i < t->n_new; i++) ids[i] = 300 + (int32_t)(philox_uniform(t->seed, i, 0) * 2000);
    struct rod_request *r = turn_request(a, t->id, ids, t->n_new, t->n_tokens);
    r->turn->create = t->n_turns == 0;
    r->sampling.temperature = 0.9f;
    r->sampling.seed = t->seed;
    r->sampling.frequency_penalty = t->seed % 3 ? 0 : 0.7f;
    r->turn->has_expected = t->n_turns > 0;
    r->turn->expected_version = t->n_turns;
    r->n_logprobs = 0;
    return r;
}

struct soak {
    struct collector c, plain;
    char *dir;
    struct talk talks[SESSIONS];
    unsigned random;
    uint64_t n_turns, n_lost, n_cancelled, most_disk_bytes, most_host_bytes, most_files;
    uint64_t samples[SAMPLES];
    size_t n_samples;
};

static void begin_life(struct talk *t, int number) {
    t->n_turns = 0;
    snprintf(t->id, sizeof t->id, "talk-%d.%u", number, t->n_lives++);
}

/* The turn again, undisturbed; the two answers are equal. */
static void check(struct soak *s, struct talk *t) {
    turn_ok(&s->plain, turn_of(t, &t->want), &t->want);
    collect_assert_ids(&t->a, t->want.ids, t->want.n_ids, t->id);
    assert_memory_equal(t->a.logprobs, t->want.logprobs, t->want.n_ids * sizeof *t->want.logprobs);
    assert_int_equal(t->a.end.session_version, t->n_turns + 1);
    assert_int_equal(t->a.end.prompt_tok, t->want.end.prompt_tok);
    assert_int_equal(t->a.end.cached_tok, t->want.end.cached_tok);
    assert_string_equal(t->a.text, t->want.text);
    collect_free(&t->want);
}

static void start_turn(struct soak *s, struct talk *t) {
    t->seed = (uint64_t)rand_r(&s->random) + 1;
    t->n_new = 1 + (uint32_t)rand_r(&s->random) % 40;
    t->n_tokens = 1 + (uint32_t)rand_r(&s->random) % 24;
    t->runs = true;
    collect_submit(&s->c, turn_of(t, &t->a));
    if (rand_r(&s->random) % 16 == 0) rod_cancel(s->c.engine, t->a.ticket); /* or its end comes first */
}

static void end_turn(struct soak *s, struct talk *t) {
    t->runs = false;
    if (t->a.failed && t->a.end.error.code == ROD_ENOTFOUND && t->n_turns) {
        if (rod_session_delete(s->plain.engine, "", t->id, NULL)) fail_msg("%s is gone twice", t->id);
        s->n_lost++;
        begin_life(t, (int)(t - s->talks));
    } else if (t->a.failed) {
        fail_msg("%s: %s", t->id, t->a.end.error.message);
    } else if (t->a.end.reason == ROD_FINISH_CANCEL) {
        s->n_cancelled++;
    } else {
        check(s, t);
        t->n_turns++;
        s->n_turns++;
    }
    collect_free(&t->a);
}

static void take_sample(struct soak *s, uint64_t disk_budget) {
    const struct rod_stats stats = stats_of(s->c.engine);
    uint32_t n_files;
    const uint64_t bytes = bytes_in(s->dir, &n_files);
    if (bytes > s->most_disk_bytes) s->most_disk_bytes = bytes;
    if (n_files > s->most_files) s->most_files = n_files;
    if (stats.state_host_bytes > s->most_host_bytes) s->most_host_bytes = stats.state_host_bytes;
    if (s->n_samples < SAMPLES) s->samples[s->n_samples++] = resident_bytes();
    /* as many turns as run may have been written since the keeper looked */
    if (bytes > disk_budget + disk_budget / ON_DISK * (SLOTS + 4))
        fail_msg("%llu bytes of files, the budget is %llu", (unsigned long long)bytes, (unsigned long long)disk_budget);
}

static void open_engines(struct soak *s, size_t state_bytes, uint64_t disk_budget) {
    struct rod_error err;
    struct rod_engine_config config = {.model_dir = "config/models/tales",
                                       .device = "cpu",
                                       .n_slots = SLOTS,
                                       .n_threads = 1,
                                       .max_queue = 1000,
                                       .state_dir = s->dir,
                                       .state_host_bytes = state_pool_bytes(IN_HOST, state_bytes),
                                       .state_disk_bytes = disk_budget};
    collect_init(&s->c, &config);
    if (rod_engine_open(&config, &s->c.engine, &err)) fail_msg("%s", err.message);
    config.state_dir = NULL;
    config.state_host_bytes = state_pool_bytes(SESSIONS + 2 * SLOTS, state_bytes);
    collect_init(&s->plain, &config);
    if (rod_engine_open(&config, &s->plain.engine, &err)) fail_msg("%s", err.message);
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t median(uint64_t *of, size_t n) {
    qsort(of, n, sizeof *of, by_size);
    return n ? of[n / 2] : 0;
}

static void write_result(const struct soak *s, const struct rod_stats *stats, uint32_t seconds, unsigned seed,
                         uint64_t early, uint64_t late, uint64_t host_budget, uint64_t disk_budget) {
    const char *path = getenv("RODIMUS_TEST_SOAK_JSON");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (path && !f) fail_msg("%s cannot be written", path);
    if (!f) return;
    fprintf(f,
            "{\"what\": \"make soak: sessions taking turns at random, each checked against an undisturbed run\",\n ");
    result_stamp(f);
    fprintf(
        f,
        "\"model\": \"tales\", \"device\": \"cpu\", \"seconds\": %u, \"seed\": %u,\n"
        " \"slots\": %d, \"sessions\": %d, \"turns\": %llu, \"wrong_turns\": 0, \"cancelled\": %llu,\n"
        " \"lost_to_disk_budget\": %llu, \"evicted\": %llu, \"saves\": %llu, \"save_failures\": %llu, \"loads\": "
        "%llu,\n"
        " \"host_budget_bytes\": %llu, \"most_host_bytes\": %llu, \"disk_budget_bytes\": %llu, \"most_disk_bytes\": "
        "%llu, \"most_files\": %llu,\n"
        " \"resident_bytes_first_third\": %llu, \"resident_bytes_last_third\": %llu}\n",
        seconds, seed, SLOTS, SESSIONS, (unsigned long long)s->n_turns, (unsigned long long)s->n_cancelled,
        (unsigned long long)s->n_lost, (unsigned long long)stats->sessions_evicted,
        (unsigned long long)stats->state_saves, (unsigned long long)stats->state_save_failures,
        (unsigned long long)stats->state_loads, (unsigned long long)host_budget, (unsigned long long)s->most_host_bytes,
        (unsigned long long)disk_budget, (unsigned long long)s->most_disk_bytes, (unsigned long long)s->most_files,
        (unsigned long long)early, (unsigned long long)late);
    fclose(f);
}

/* The size of a state of tales: of a turn long enough to fill its window, if it has one. */
static size_t one_state(char *dir) {
    struct rod_error err;
    struct collector c;
    struct answer a;
    int32_t ids[600];
    struct rod_engine_config config = {
        .model_dir = "config/models/tales", .device = "cpu", .n_slots = 1, .n_threads = 1, .state_dir = dir};
    collect_init(&c, &config);
    if (rod_engine_open(&config, &c.engine, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < 600; i++) ids[i] = 300 + i;
    turn_ok(&c, turn_request(&a, "one", ids, 600, 1), &a);
    collect_free(&a);
    const size_t bytes = session_info(c.engine, "one").state_bytes;
    if (rod_session_delete(c.engine, "", "one", &err)) fail_msg("%s", err.message);
    collect_close(&c);
    return bytes;
}

static void sessions_take_turns_at_random(void **state) {
    (void)state;
    const uint32_t seconds = from_environment("RODIMUS_TEST_SOAK_S", 15);
    struct soak *s = calloc(1, sizeof *s);
    s->random = from_environment("RODIMUS_TEST_SEED", (unsigned)getpid());
    const unsigned seed = s->random;
    print_message("note: seed %u\n", seed);
    s->dir = make_dir();
    const size_t state_bytes = one_state(s->dir);
    const uint64_t disk_budget = (uint64_t)ON_DISK * (state_bytes + 8192);
    open_engines(s, state_bytes, disk_budget);
    for (int i = 0; i < SESSIONS; i++) begin_life(&s->talks[i], i);
    const uint64_t begin_ns = clock_now_ns();
    uint64_t sampled_ns = 0;
    const uint64_t every_ns = (uint64_t)seconds * 1000000000u / (SAMPLES / 8);
    for (;;) {
        const uint64_t now_ns = clock_now_ns();
        const uint64_t ran_s = (now_ns - begin_ns) / 1000000000u; /* on a slow machine, until enough has happened */
        const bool enough = s->n_turns > SESSIONS && s->n_lost && stats_of(s->c.engine).state_loads;
        const bool over = ran_s >= seconds && (enough || ran_s > seconds + 30);
        uint32_t n_run = 0;
        collect_now(&s->c);
        for (int i = 0; i < SESSIONS; i++) {
            if (s->talks[i].runs && s->talks[i].a.ended) end_turn(s, &s->talks[i]);
            n_run += s->talks[i].runs;
        }
        if (over && !n_run) break;
        while (!over && n_run < 3 * SLOTS) {
            struct talk *t = &s->talks[(uint32_t)rand_r(&s->random) % SESSIONS];
            if (t->runs) continue;
            start_turn(s, t);
            n_run++;
        }
        if (now_ns - sampled_ns > every_ns) {
            take_sample(s, disk_budget);
            sampled_ns = now_ns;
        }
        collect_wait(&s->c, 20);
    }
    for (int ms = 0; stats_of(s->c.engine).state_file_bytes > disk_budget; ms += 10) {
        if (ms > 5000) fail_msg("the files stay above their budget");
        usleep(10000);
    }
    const struct rod_stats stats = stats_of(s->c.engine);
    uint32_t n_files;
    assert_int_equal(bytes_in(s->dir, &n_files), stats.state_file_bytes); /* the gauges are true */
    assert_int_equal(n_files, stats.sessions);
    assert_int_equal(stats.sessions_host + stats.sessions_file, stats.sessions);
    assert_int_equal(stats.running + stats.queued, 0);
    assert_int_equal(stats.state_save_failures, 0);
    assert_int_equal(stats.state_refused, 0);
    assert_true(stats.sessions <= SESSIONS);
    assert_true(s->n_turns > 0);
    if (seconds >= 60) assert_true(s->n_turns > SESSIONS && stats.state_loads > 0 && s->n_lost > 0);
    const uint64_t host_budget = state_pool_bytes(IN_HOST, state_bytes);
    const size_t third = s->n_samples / 3;
    const uint64_t late = median(s->samples + 2 * third, third), early = median(s->samples + third / 2, third);
    printf("note: seed %u: %u s, %llu turns, none wrong, %llu cancelled, %llu sessions lost to the budget, %llu loads; "
           "resident %llu MB, then %llu MB\n",
           seed, seconds, (unsigned long long)s->n_turns, (unsigned long long)s->n_cancelled,
           (unsigned long long)s->n_lost, (unsigned long long)stats.state_loads, (unsigned long long)(early >> 20),
           (unsigned long long)(late >> 20));
    write_result(s, &stats, seconds, seed, early, late, host_budget, disk_budget);
    if (seconds >= 60 && late > early + early / 20 + (8u << 20))
        fail_msg("resident memory grew from %llu to %llu bytes", (unsigned long long)early, (unsigned long long)late);
    collect_close(&s->c), collect_close(&s->plain);
    remove_dir(s->dir);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sessions_take_turns_at_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
