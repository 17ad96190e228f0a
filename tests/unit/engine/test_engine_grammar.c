/* test_engine_grammar.c - requests with a grammar over fake backends, one that samples on its own and one that does
 * not: what they say, how they end, and that others beside them say what they say alone. */
#include "tests/engine_setup.h"

static struct rod_grammar *opened(struct setup *b, enum rod_grammar_kind kind, const char *text) {
    struct rod_grammar *g = NULL;
    struct rod_error err;
    if (rod_grammar_open(b->c.engine, 0, 0, kind, text, strlen(text), &g, &err)) fail_msg("%s", err.message);
    return g;
}

static void a_choice_is_said_and_ends_the_request(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_CHOICE, "[\"tea\",\"coffee\"]");
    for (int i = 0; i < 10; i++) {
        struct answer a;
        struct rod_request *r = say(&b, "What do you drink?", &a);
        r->grammar = rod_grammar_ref(g);
        r->sampling.temperature = 1;
        r->sampling.seed = (uint64_t)i;
        r->ignore_eos = i % 2;
        r->min_tokens = 50; /* nothing may follow, so there is nothing to wait for */
        finish(&b, r, &a);
        assert_true(!strcmp(a.text, "tea") || !strcmp(a.text, "coffee"));
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        assert_int_equal(a.end.stop_id, -1);
        collect_free(&a);
    }
    rod_grammar_close(g);
    setup_close(&b);
}

/* The copy model wants to say its prompt and then to end; the grammar takes what it can of that. */
static void the_end_token_is_chosen_only_where_the_text_may_end(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "12(34)*");
    struct answer a;
    struct rod_request *r = say(&b, "1234", &a);
    r->grammar = g;
    finish(&b, r, &a);
    assert_string_equal(a.text, "1234");
    assert_int_equal(a.end.reason, ROD_FINISH_STOP);
    assert_int_equal(a.end.stop_id, EOS);
    collect_free(&a);
    g = opened(&b, ROD_GRAMMAR_REGEX, "1234567");
    r = say(&b, "1234", &a);
    r->grammar = g;
    finish(&b, r, &a);
    assert_string_equal(a.text, "1234567");
    collect_free(&a);
    setup_close(&b);
}

static void begin(struct rod_request *r, struct rod_grammar *g, const char *text) {
    r->grammar = rod_grammar_ref(g);
    r->grammar_begun = strdup(text);
    r->n_grammar_begun = strlen(text);
}

/* The copy model would say its prompt; each beginning has one way on. */
static void behind_a_beginning_the_grammar_goes_on(void **state) {
    (void)state;
    static const char whole[] = "[12, 34, 56]";
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_CHOICE, "[\"[12, 34, 56]\"]");
    for (size_t n = 1; n <= strlen(whole); n++) {
        struct answer a;
        struct rod_request *r = say(&b, "Numbers", &a);
        char text[sizeof whole];
        snprintf(text, n + 1, "%s", whole);
        begin(r, g, text);
        r->min_tokens = 5;
        r->ignore_eos = n % 2;
        finish(&b, r, &a);
        assert_false(a.failed);
        assert_string_equal(a.text, whole + n);
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        collect_free(&a);
    }
    rod_grammar_close(g);
    setup_close(&b);
}

static void a_beginning_that_the_grammar_does_not_allow_is_refused(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "[0-9]+");
    struct rod_grammar *dear = opened(&b, ROD_GRAMMAR_REGEX, "^(.*[a-m].{24}N?)+$");
    char *longest = calloc(1, (1 << 20) + 2), *many = calloc(1, 20001);
    assert_true(longest && many);
    memset(longest, '1', (1 << 20) + 1);
    for (uint32_t i = 0, x = 1; i < 20000; i++, x = x * 1664525 + 1013904223) many[i] = (char)('a' + (x >> 16) % 26);
    const char *texts[] = {"12a", longest, many, many};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct answer a;
        struct rod_request *r = say(&b, "Numbers", &a);
        begin(r, texts[i] == many ? dear : g, texts[i]); /* again: what is known counts, too */
        collect_submit(&b.c, r);
        collect_until(&b.c, &a, 1);
        assert_true(a.failed);
        assert_int_equal(a.end.error.code, ROD_EINVALID);
        assert_string_equal(a.end.error.param, "messages");
        static const char *const words[] = {"does not allow", "1048576 bytes", "steps", "steps"};
        assert_non_null(strstr(a.end.error.message, words[i]));
        collect_free(&a);
    }
    struct answer a;
    struct rod_request *r = say(&b, "1234", &a); /* the slot is free again */
    finish(&b, r, &a);
    assert_false(a.failed);
    collect_free(&a);
    free(longest);
    free(many);
    rod_grammar_close(dear);
    rod_grammar_close(g);
    setup_close(&b);
}

/* A replacement character is the beginning of nothing valid. */
static void a_character_that_is_cut_is_left_out(void **state) {
    (void)state;
    static const char whole[] = "\xf0\x92\x80\x80\xe2\x82\xac\xf0\x92\x80\x81";
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, whole);
    for (uint32_t limit = 1; limit <= 11; limit++) {
        struct answer a;
        struct rod_request *r = say(&b, "Say it", &a);
        r->grammar = rod_grammar_ref(g);
        r->max_tokens = limit;
        finish(&b, r, &a);
        if (strncmp(whole, a.text, strlen(a.text)) != 0) fail_msg("%u tokens: '%s'", limit, a.text);
        if (a.end.reason == ROD_FINISH_STOP) assert_string_equal(a.text, whole);
        collect_free(&a);
    }
    rod_grammar_close(g);
    setup_close(&b);
}

static void others_say_what_they_say_alone(void **state) {
    (void)state;
    enum { N = 12 };
    struct answer alone[N], mixed[N];
    for (int with = 0; with < 2; with++) {
        struct setup b;
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .n_slots = 4), CONFIG());
        struct answer *answers = with ? mixed : alone;
        struct rod_grammar *g =
            opened(&b, ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}");
        for (int i = 0; i < N; i++) {
            struct rod_request *r = say(&b, i % 2 ? "A wolf and a sheep went out." : "Three little pigs", &answers[i]);
            r->sampling.temperature = 1;
            r->sampling.seed = (uint64_t)i;
            r->max_tokens = 30;
            if (with && i % 3 == 0) r->grammar = rod_grammar_ref(g);
            collect_submit(&b.c, r);
        }
        collect_until(&b.c, answers, N);
        rod_grammar_close(g);
        setup_close(&b);
    }
    for (int i = 0; i < N; i++) {
        assert_false(mixed[i].failed);
        if (i % 3) assert_string_equal(alone[i].text, mixed[i].text);
        if (i % 3 == 0) assert_int_equal(mixed[i].text[0], '[');
        collect_free(&alone[i]);
        collect_free(&mixed[i]);
    }
}

static void a_grammar_outlives_the_engine(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "[a-z]+"), *same = opened(&b, ROD_GRAMMAR_REGEX, "[a-z]+");
    assert_ptr_equal(g, same);
    struct rod_error err;
    struct rod_grammar *none = NULL;
    assert_int_equal(rod_grammar_open(b.c.engine, 0, 0, ROD_GRAMMAR_REGEX, "(", 1, &none, &err), ROD_EINVALID);
    assert_null(none);
    for (int i = 0; i < 100; i++) { /* more than are kept */
        char text[32];
        snprintf(text, sizeof text, "x{%d}", i + 1);
        rod_grammar_close(opened(&b, ROD_GRAMMAR_REGEX, text));
    }
    setup_close(&b);
    rod_grammar_close(g);
    rod_grammar_close(same);
}

/* The copy model says its prompt: free text up to the tag, what the grammar takes of the rest behind it, free text
 * again. */
static void a_tag_turns_the_grammar_on_and_its_end_turns_it_off(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    static const struct {
        const char *prompt, *regex, *want;
        bool again;
    } cases[] = {
        {"No tag: 5 < 7.", "[0-9]{3}", "No tag: 5 < 7.", true},
        {"A <go>123, B", "[0-9]{3}.*", "A <go>123, B", true},
        {"A <<go>123<go>456.", "[0-9]{3}.*", "A <<go>123<go>456.", true},
        {"A <go>123, B", "[0-9]{3}", "A <go>123", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a;
        struct rod_request *r = say(&b, cases[i].prompt, &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, cases[i].regex);
        r->grammar_open = strdup("<go>");
        r->grammar_again = cases[i].again;
        finish(&b, r, &a);
        assert_string_equal(a.text, cases[i].want);
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        collect_free(&a);
    }
    setup_close(&b);
}

/* "1" would stop the text, also one byte before the tag. */
static void stop_strings_count_in_free_text_alone(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    static const char *const cases[][3] = {
        {"A <go>123;1", "1", "A <go>123;"}, {"A <go>123;> B", ">1", "A <go>123;> B"}, {"A 1 <go>123;", "1", "A "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a;
        struct rod_request *r = say(&b, cases[i][0], &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, "[0-9]{3};.*");
        r->grammar_open = strdup("<go>");
        r->grammar_again = true;
        r->stop = malloc(sizeof *r->stop);
        r->stop[0] = strdup(cases[i][1]);
        r->n_stop = 1;
        finish(&b, r, &a);
        assert_string_equal(a.text, cases[i][2]);
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        collect_free(&a);
    }
    setup_close(&b);
}

/* Behind the tag the model would say letters. */
static void behind_its_tag_the_grammar_holds(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (int again = 0; again < 2; again++) {
        struct answer a;
        struct rod_request *r = say(&b, "A <go>xyz", &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, again ? "[0-9]{3}.*" : "[0-9]{3}");
        r->grammar_open = strdup("<go>");
        r->grammar_again = again;
        r->max_tokens = 12;
        finish(&b, r, &a);
        if (strncmp(a.text, "A <go>", 6) != 0 || strspn(a.text + 6, "0123456789") < 3) fail_msg("'%s'", a.text);
        if (!again) assert_int_equal(strlen(a.text), 9);
        collect_free(&a);
    }
    setup_close(&b);
}

enum { N_SAID = 40 };

/* Ids that the grammar may want as text: in the middle of it they are not drawn, so some of these requests fail. */
static void stop_at(struct setup *b, struct rod_request *r, const char *text) {
    struct rod_error err;
    size_t n;
    if (rod_encode(b->c.engine, text, strlen(text), false, &r->stop_ids, &n, &err)) fail_msg("%s", err.message);
    r->n_stop_ids = n;
}

/* What it said before is its prediction, now and then with another token. */
static void predict(struct rod_request *r, const struct answer *said, int i) {
    r->n_prediction = said->n_ids;
    r->prediction = calloc(said->n_ids + 1, sizeof *r->prediction);
    for (size_t k = 0; k < said->n_ids; k++)
        r->prediction[k] = i % 3 && (k + (size_t)i) % 9 == 8 ? said->ids[k] % (V - 2) + 2 : said->ids[k];
}

/* Requests with a grammar from the start, behind a tag, or none. said: NULL, or drafts of that. */
static void ask_many(enum fake_kind kind, bool device, const struct answer *said, struct answer answers[N_SAID]) {
    static const char *const prompts[] = {"A <go>xyz", "B <go>12 <go>34.", "C: no tag", "D <g<go>7, and so on"};
    const bool before = setup_on_device;
    struct setup b;
    setup_on_device = device;
    setup_drafts = said;
    setup_open(&b, OPTIONS(.kind = kind, .tokenizer = true, .n_slots = 6), CONFIG());
    setup_drafts = false;
    b.c.engine->drafts_always = true;
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "[0-9]{2,5}[a-z]{1,3};");
    for (int i = 0; i < N_SAID; i++) {
        struct rod_request *r = say(&b, prompts[i % 4], &answers[i]);
        r->sampling.temperature = (float)(i % 3);
        r->sampling.seed = (uint64_t)i;
        r->sampling.repetition_penalty = i % 7 == 3 ? 1.3f : 1;
        r->max_tokens = 5 + (uint32_t)i;
        r->min_tokens = i % 5 ? 0 : 4;
        r->n_logprobs = i % 2 ? 2 : -1;
        if (i % 4 == 1) stop_at(&b, r, "3x;"), r->include_stop = i % 8 == 1;
        if (i % 5 < 4) r->grammar = rod_grammar_ref(g);
        if (r->grammar && i % 5) r->grammar_open = strdup("<go>"), r->grammar_again = i % 2;
        if (said) predict(r, &said[i], i);
        collect_submit(&b.c, r);
    }
    collect_until(&b.c, answers, N_SAID);
    rod_grammar_close(g);
    if (device) assert_true(atomic_load(&b.be->n_masks) > 0);
    if (device && said) assert_true(atomic_load(&b.be->n_draft_masks) > 0);
    /* 93 to 300 came in 120 runs on busy cores: how many depends on which rows share a step. */
    if (said) assert_in_range(stats_of(b.c.engine).accepted[ROD_DRAFT_PREDICTION], 20, 10000);
    if (device) assert_int_equal(atomic_load(&b.be->n_launches), atomic_load(&b.be->n_forwards)); /* no logits left */
    setup_close(&b);
    setup_on_device = before;
}

/* Also of a row that runs into its tag while its next step is on its way, and of drafts that go over it. */
static void say_the_same(bool drafts) {
    struct answer host[N_SAID], device[N_SAID];
    for (int kind = 0; kind < 2; kind++) {
        ask_many(kind ? FAKE_COPY : FAKE_HASH, false, NULL, host);
        ask_many(kind ? FAKE_COPY : FAKE_HASH, true, drafts ? host : NULL, device);
        for (int i = 0; i < N_SAID; i++) {
            assert_int_equal(device[i].failed, host[i].failed);
            if (host[i].failed && i % 4 != 1) fail_msg("request %d: %s", i, host[i].end.error.message);
            assert_string_equal(device[i].text, host[i].text);
            if (!host[i].failed) assert_int_equal(device[i].end.reason, host[i].end.reason);
            if (!host[i].failed) assert_int_equal(device[i].end.stop_id, host[i].end.stop_id);
            collect_free(&host[i]);
            collect_free(&device[i]);
        }
    }
}
static void the_device_says_what_the_host_says(void **state) {
    (void)state;
    say_the_same(false);
}
static void with_drafts_the_device_says_what_the_host_says(void **state) {
    (void)state;
    say_the_same(true);
}

/* A request without a grammar has a row in every step; one with a grammar in every second, once its mask is made. Alone
 * it has one in every step. */
static void a_grammar_s_rows_cost_others_no_step(void **state) {
    (void)state;
    enum { N_TOK = 60 };
    const bool before = setup_on_device;
    setup_on_device = true;
    for (int plain = 0; plain < 2; plain++) {
        struct setup b;
        struct answer a[3];
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .gated = true), CONFIG());
        for (int i = 0; i < 2 + plain; i++) {
            struct rod_request *r = say(&b, "Tell", &a[i]);
            r->ignore_eos = true;
            r->max_tokens = i < 2 ? N_TOK / 2 - 2 : N_TOK;
            if (i < 2) r->grammar = opened(&b, ROD_GRAMMAR_REGEX, ".*");
            collect_submit(&b.c, r);
        }
        fake_release(b.be);
        collect_until(&b.c, a, 2 + (size_t)plain);
        for (int i = 0; i < 2 + plain; i++) {
            assert_false(a[i].failed);
            collect_free(&a[i]);
        }
        const unsigned n = atomic_load(&b.be->n_launches), least = plain ? N_TOK : N_TOK / 2 - 2;
        if (n < least || n > least + 5) fail_msg("%u steps for %u tokens", n, least);
        setup_close(&b);
    }
    setup_on_device = before;
}

/* Requests whose masks take long, of one key, and one of another key without a grammar. It has its steps meanwhile, and
 * they say what each of them says alone. */
static void dear_masks_of_one_key_cost_another_no_step(void **state) {
    (void)state;
    enum { N = 4, N_TOK = 30, N_DEAR = 12 };
    const bool before = setup_on_device;
    for (int device = 0; device < 2; device++) {
        struct answer a[N + 1], alone[N];
        struct setup b;
        setup_on_device = device;
        for (int together = 0; together < 2; together++) {
            struct answer *all = together ? a : alone;
            setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .n_slots = N + 1), CONFIG());
            struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "^(.*[a-m].{24}N?)+$");
            for (int i = 0; i < N + together; i++) {
                struct rod_request *r = say(&b, "Tell", &all[i]);
                r->ignore_eos = true;
                r->sampling.temperature = 1;
                r->sampling.seed = (uint64_t)i;
                r->key = i < N ? 1 : 2;
                r->max_tokens = i < N ? N_DEAR : N_TOK;
                if (i < N) r->grammar = rod_grammar_ref(g);
                collect_submit(&b.c, r);
                if (!together) collect_until(&b.c, &all[i], 1);
            }
            if (together) collect_until(&b.c, &a[N], 1);
            size_t n_dear = 0;
            for (int i = 0; together && i < N; i++) n_dear += a[i].n_ids;
            /* Steps that wait for masks would bring them all; how many come beside depends on what else the machine
             * does. */
            if (together && n_dear > 3 * N * N_DEAR / 4)
                fail_msg("%zu tokens under grammars beside %d without", n_dear, N_TOK);
            collect_until(&b.c, all, N);
            rod_grammar_close(g);
            setup_close(&b);
        }
        assert_int_equal(a[N].n_ids, N_TOK);
        for (int i = 0; i < N; i++) {
            assert_int_equal(a[i].failed, alone[i].failed);
            assert_string_equal(a[i].text, alone[i].text);
            collect_free(&a[i]), collect_free(&alone[i]);
        }
        collect_free(&a[N]);
    }
    setup_on_device = before;
}

/* Many requests of one key with as many grammars whose masks take long, and small steps. One of another key comes
 * behind them: its prompt is longer than theirs, and is read while they wait for their masks. */
static void dear_masks_of_one_key_keep_no_prompt_of_another_waiting(void **state) {
    (void)state;
    enum { N = 16 };
    struct answer a[N + 1];
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .n_slots = N + 1, .max_batch_tok = 16), CONFIG());
    for (int i = 0; i < N; i++) {
        char regex[64];
        snprintf(regex, sizeof regex, "^(.*[b-%c].{%d}X?)+$", 'f' + i, 19 + i % 11);
        struct rod_request *r = say(&b, "Tell", &a[i]);
        r->ignore_eos = true;
        r->key = 1;
        r->max_tokens = 2;
        struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, regex);
        begin(r, g, "the bear and the fox went into the wood");
        rod_grammar_close(g);
        collect_submit(&b.c, r);
    }
    while (stats_of(b.c.engine).queued) collect_now(&b.c);
    struct rod_request *r = say(&b, "Once there was a girl who lived in a large wood with her mother.", &a[N]);
    assert_in_range(r->n_prompt, 2 * b.be->info.chunk_tok - 4, 1000);
    r->ignore_eos = true;
    r->key = 2;
    r->max_tokens = 2;
    collect_submit(&b.c, r);
    collect_until(&b.c, &a[N], 1);
    size_t n_dear = 0;
    for (int i = 0; i < N; i++) n_dear += a[i].n_ids;
    collect_until(&b.c, a, N + 1);
    for (int i = 0; i <= N; i++) {
        if (a[i].failed) fail_msg("%s", a[i].end.error.message);
        assert_int_equal(a[i].n_ids, 2);
        collect_free(&a[i]);
    }
    setup_close(&b);
    if (n_dear > N / 2) fail_msg("%zu tokens under grammars before two of another key", n_dear);
}

/* Nobody has all of the memory for grammars in use, and where it is free again there is room again. */
static void a_key_leaves_memory_for_grammars_to_others(void **state) {
    (void)state;
    enum { MOST = 400 };
    struct setup b;
    struct rod_grammar *g[MOST], *one = NULL;
    struct rod_error err;
    size_t n = 0, n_again = 0;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    for (int again = 0; again < 2; again++) {
        int rc = 0;
        for (n = 0; n < MOST && !rc; n += !rc) {
            char text[32];
            snprintf(text, sizeof text, "[ab]{60000}%zu", n + 1000);
            rc = rod_grammar_open(b.c.engine, 1, 4, ROD_GRAMMAR_REGEX, text, strlen(text), &g[n], &err);
        }
        if (rc != ROD_EKEYGRAMMARS)
            fail_msg("%d after %zu: %zu bytes each", rc, n, grammar_own_bytes(grammar_of(g[0])));
        assert_non_null(strstr(err.message, "This key has its share of the memory for compiled schemas and grammars"));
        size_t bytes = 0;
        for (size_t i = 0; i < n; i++) bytes += grammar_own_bytes(grammar_of(g[i]));
        assert_in_range(bytes, GRAMMAR_USED_BYTES / 2, GRAMMAR_USED_BYTES / 5 * 4);
        assert_int_equal(rod_grammar_open(b.c.engine, 2, 4, ROD_GRAMMAR_REGEX, "[ab]{60000}x", 12, &one, &err), 0);
        rod_grammar_close(one);
        assert_int_equal(rod_grammar_open(b.c.engine, 1, 4, ROD_GRAMMAR_REGEX, "[ab]{60000}1000", 15, &one, &err),
                         0); /* it has it already */
        rod_grammar_close(one);
        for (size_t i = 0; i < n; i++) rod_grammar_close(g[i]);
        if (!again) n_again = n;
    }
    assert_int_equal(n, n_again);
    int rc = 0;
    for (n = 0; n < MOST && !rc; n += !rc) {
        char text[32];
        snprintf(text, sizeof text, "[ab]{60000}%zu", n + 1000);
        rc = rod_grammar_open(b.c.engine, 0, 0, ROD_GRAMMAR_REGEX, text, strlen(text), &g[n], &err);
    }
    assert_int_equal(rc, ROD_EGRAMMARS);
    assert_true(n > n_again);
    for (size_t i = 0; i < n; i++) rod_grammar_close(g[i]);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_is_said_and_ends_the_request),
        cmocka_unit_test(the_end_token_is_chosen_only_where_the_text_may_end),
        cmocka_unit_test(behind_a_beginning_the_grammar_goes_on),
        cmocka_unit_test(a_beginning_that_the_grammar_does_not_allow_is_refused),
        cmocka_unit_test(a_character_that_is_cut_is_left_out),
        cmocka_unit_test(others_say_what_they_say_alone),
        cmocka_unit_test(a_tag_turns_the_grammar_on_and_its_end_turns_it_off),
        cmocka_unit_test(stop_strings_count_in_free_text_alone),
        cmocka_unit_test(behind_its_tag_the_grammar_holds),
        cmocka_unit_test(a_grammar_outlives_the_engine),
        cmocka_unit_test(the_device_says_what_the_host_says),
        cmocka_unit_test(with_drafts_the_device_says_what_the_host_says),
        cmocka_unit_test(a_grammar_s_rows_cost_others_no_step),
        cmocka_unit_test(dear_masks_of_one_key_cost_another_no_step),
        ON_BOTH(dear_masks_of_one_key_keep_no_prompt_of_another_waiting),
        cmocka_unit_test(a_key_leaves_memory_for_grammars_to_others),
    };
    int failed = cmocka_run_group_tests_name("host sampling", tests, NULL, NULL);
    setup_on_device = true;
    return failed + cmocka_run_group_tests_name("device sampling", tests, NULL, NULL);
}
