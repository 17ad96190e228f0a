/* test_engine_conversations.c - prompts that come again under a name: what was read or said is not read again, whatever
 * host memory has lost and whichever engine of the folder is asked; answers are those of an engine without a cache or,
 * behind an answer, of a session; nothing crosses tenants.
 */
#include "tests/sessions_folder.h"

enum { CHUNK = 8, MOST = 4000, MAX_MARKS = 64 };

/* A conversation as a client has it: system, then the user's texts and the answers. */
struct talk {
    char name[32];
    const char *tenant;
    int32_t ids[MOST];
    size_t n, marks[MAX_MARKS], n_marks;
    uint32_t n_texts;
};

static void talk_add(struct talk *t, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) t->ids[t->n + i] = (int32_t)(2 + philox_uniform(seed, t->n + i, 0) * (V - 2));
    t->n += n;
}
static void talk_mark(struct talk *t) { t->marks[t->n_marks++] = t->n; }

static void talk_begin(struct talk *t, const char *name, size_t n_head, uint64_t seed) {
    *t = (struct talk){.tenant = "a"};
    snprintf(t->name, sizeof t->name, "%s", name);
    talk_add(t, n_head, seed);
    talk_mark(t);
}
static void talk_text(struct talk *t, size_t n, uint64_t seed) {
    talk_add(t, n, seed);
    talk_mark(t);
    t->n_texts++;
}

static struct rod_request *talk_request(const struct talk *t, struct answer *a, uint32_t max_tokens) {
    struct rod_request *r = collect_request(t->ids, t->n, a);
    r->marks = malloc(t->n_marks * sizeof *r->marks);
    memcpy(r->marks, t->marks, t->n_marks * sizeof *r->marks);
    r->n_marks = t->n_marks;
    r->has_head = true;
    r->n_user_texts = t->n_texts;
    r->tenant = strdup(t->tenant);
    if (*t->name) r->conversation = strdup(t->name);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    r->sampling.temperature = 1;
    r->sampling.seed = 99;
    r->n_logprobs = 2;
    return r;
}

/* Asks, and takes the answer into the conversation. Returns how many tokens were read. */
static uint64_t talk_ask(struct setup *b, struct talk *t, uint32_t max_tokens) {
    struct answer a;
    finish(b, talk_request(t, &a, max_tokens), &a);
    memcpy(t->ids + t->n, a.ids, a.n_ids * sizeof *a.ids);
    t->n += a.n_ids;
    talk_mark(t);
    const uint64_t read = a.end.prompt_tok - a.end.cached_tok;
    collect_free(&a);
    return read;
}

static void begin(struct setup *b, uint64_t host_bytes) {
    begin_with(b, CONFIG(.state_host_bytes = host_bytes ? host_bytes : 64u << 20, .prefix_cache_bytes = 64u << 20));
}

static void a_restart_reads_nothing_again(void **state) {
    (void)state;
    struct talk t;
    talk_begin(&t, "thread", 100, 1);
    for (int turn = 0; turn < 12; turn++) {
        struct setup b;
        begin(&b, 0);
        const uint64_t n_before = turn ? 1 : t.n; /* the answer's last token was not read */
        talk_text(&t, 20, 2);
        const uint64_t read = talk_ask(&b, &t, 9);
        if (read != n_before + 20)
            fail_msg("turn %d: %llu tokens were read, want %llu", turn, (unsigned long long)read,
                     (unsigned long long)n_before + 20);
        setup_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_restart_reads_nothing_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
