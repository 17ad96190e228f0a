/* mask.c - what structured output costs between two steps: masks and walks of 64 rows over 126,464 tokens, for random
 * schemas, with states met for the first time (cold) and again (warm). Prints one JSON object. No argument.
 *
 * The vocabulary is vocabulary.h's. A row takes any token that may come, each fifth time one that has one of "]},. A
 * row that has finished begins anew; in the mixed load with another schema. */
#include "engine/grammar/grammar.h"
#include "tests/bench/vocabulary.h"
#include "tests/result_stamp.h"
#include "tests/vocab_of_bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { V = VOCABULARY, ROWS = 64, STEPS = 300, N_SCHEMAS = 20 };

/* Of this thread's processor time, so that what else runs on the machine counts little. */
static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double clock_us; /* what asking costs; taken off what is measured */

static double since_us(double begin_us) {
    const double us = now_us() - begin_us - clock_us;
    return us > 0 ? us : 0;
}

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    fprintf(stderr, "mask: %s\n", err->message);
    exit(1);
}

/* ---- schemas ---- */

struct text {
    size_t n;
    char s[1 << 16];
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, format, args);
    va_end(args);
}

static void say_schema(struct text *t, int depth) {
    static const char *const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "hostname"};
    static const char *const patterns[] = {"^[a-z]{2,6}$",      "^\\\\d+-[A-F]$",        "^(ab|cd)?x*$",
                                           "^[^a-z\\\"]{1,4}$", "^\\\\w+\\\\s\\\\S{2}$", "^[A-Z][a-z]{1,30}$"};
    static const char *const names[] = {"id",
                                        "name",
                                        "gr\xc3\xb6\xc3\x9f"
                                        "e",
                                        "list",
                                        "a/b",
                                        "title",
                                        "price",
                                        "created_at",
                                        "description",
                                        "items"};
    static const char *const plain[] = {"\"integer\"", "\"number\"", "\"boolean\"", "\"null\"",
                                        "[\"string\",\"null\"]"};
    const uint32_t kind = depth == 0 ? 12 : below(depth < 3 ? 16 : 11);
    const uint32_t low = below(4);
    switch (kind) {
    case 0: say(t, "{\"type\":\"string\"}"); break;
    case 1: say(t, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", low, low + 1 + below(9)); break;
    case 2: say(t, "{\"type\":\"string\",\"maxLength\":%u}", 20 + below(200)); break;
    case 3:
    case 4: say(t, "{\"type\":%s}", plain[below(5)]); break;
    case 5: say(t, "{\"type\":\"integer\",\"minimum\":%u,\"maximum\":%u}", below(50), 60 + below(5000)); break;
    case 6: say(t, "{\"type\":\"number\",\"minimum\":-%u.5,\"maximum\":%u}", below(50), 60 + below(500)); break;
    case 7: say(t, "{\"enum\":[\"red\",\"green\",\"light blue\",%u,null]}", below(99)); break;
    case 8: say(t, "{\"const\":{\"version\":[%u]}}", below(99)); break;
    case 9: say(t, "{\"type\":\"string\",\"format\":\"%s\"}", formats[below(7)]); break;
    case 10: say(t, "{\"type\":\"string\",\"pattern\":\"%s\"}", patterns[below(6)]); break;
    case 11:
        say(t, "{\"type\":\"array\",\"minItems\":%u,\"maxItems\":%u,\"items\":", low, low + 1 + below(5));
        say_schema(t, depth + 1);
        say(t, "}");
        break;
    case 12:
    case 13: {
        const uint32_t first = below(10), n = 2 + below(6);
        say(t, "{\"type\":\"object\",\"properties\":{");
        for (uint32_t i = 0; i < n; i++) {
            say(t, "%s\"%s\":", i ? "," : "", names[(first + i) % 10]);
            say_schema(t, depth + 1);
        }
        say(t, "},\"required\":[\"%s\",\"%s\"],\"additionalProperties\":false}", names[first], names[(first + 1) % 10]);
        break;
    }
    case 14:
        say(t, "{\"anyOf\":[");
        say_schema(t, depth + 1);
        say(t, ",");
        say_schema(t, depth + 1);
        say(t, "]}");
        break;
    default: say(t, "{}"); break;
    }
}

/* ---- rows ---- */

static uint32_t closing[V], n_closing; /* tokens that have one of "]}, */

static uint32_t any_of(const uint64_t *mask) {
    if (below(5) == 0)
        for (uint32_t at = below(n_closing), n = 0; n < n_closing; n++, at = at + 1 == n_closing ? 0 : at + 1)
            if (mask[closing[at] / 64] >> (closing[at] % 64) & 1) return closing[at];
    for (uint32_t at = below(V), n = 0; n < V; n++, at = at + 1 == V ? 0 : at + 1)
        if (mask[at / 64] >> (at % 64) & 1) return at;
    return V;
}

struct sums {
    double us[2 * N_SCHEMAS * STEPS]; /* of steps */
    size_t n;
    double worst_mask_us;
};

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, struct sums *s, const char *end) {
    qsort(s->us, s->n, sizeof *s->us, by_size);
    printf("  \"%s\": {\"steps\": %zu, \"step_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}, "
           "\"worst_mask_us\": %.1f}%s\n",
           name, s->n, s->us[s->n / 2], s->us[s->n * 9 / 10], s->us[s->n * 99 / 100], s->us[s->n - 1], s->worst_mask_us,
           end);
}

/* STEPS steps of ROWS rows, each of one of n grammars. */
static void run(struct grammar **g, uint32_t n, const struct vocab *v, const struct token *tokens, struct sums *s) {
    static struct grammar_walk w[ROWS];
    struct rod_error err;
    for (int r = 0; r < ROWS; r++) grammar_walk_init(&w[r], g[below(n)]);
    for (int step = 0; step < STEPS; step++) {
        double us = 0;
        for (int r = 0; r < ROWS; r++) {
            const uint64_t *mask;
            double begin = now_us();
            must(grammar_walk_mask(&w[r], v, &mask, &err), &err);
            const double mask_us = since_us(begin);
            if (mask_us > s->worst_mask_us) s->worst_mask_us = mask_us;
            const uint32_t id = any_of(mask);
            begin = now_us();
            if (id < V) must(grammar_walk_push(&w[r], tokens[id].bytes, tokens[id].len, &err), &err);
            us += mask_us + since_us(begin);
            if (id == V || grammar_walk_finished(&w[r])) {
                grammar_walk_fini(&w[r]);
                grammar_walk_init(&w[r], g[below(n)]);
            }
        }
        s->us[s->n++] = us;
    }
    for (int r = 0; r < ROWS; r++) grammar_walk_fini(&w[r]);
}

int main(void) {
    static struct sums cold, warm, mixed;
    static struct text text[N_SCHEMAS];
    struct token *tokens = make_vocabulary();
    for (int i = 0; i < 1000; i++) {
        const double before = now_us(), us = now_us() - before;
        if (i == 0 || us < clock_us) clock_us = us;
    }
    const char **bytes = malloc(V * sizeof *bytes);
    size_t *lens = malloc(V * sizeof *lens);
    if (!bytes || !lens) return 1;
    for (uint32_t i = 0; i < V; i++) {
        bytes[i] = tokens[i].bytes;
        lens[i] = tokens[i].len;
        bool closes = false;
        for (size_t k = 0; k < lens[i]; k++) closes |= bytes[i][k] && strchr("\"]},", bytes[i][k]);
        if (closes) closing[n_closing++] = i;
    }
    struct rod_error err;
    struct vocab *v = NULL;
    double begin = now_us();
    must(vocab_of_bytes(bytes, lens, V, &v, &err), &err);
    printf("{\n  ");
    result_stamp(stdout);
    printf("\"tokens\": %d, \"rows\": %d, \"schemas\": %d, \"trie_ms\": %.1f,\n", V, ROWS, N_SCHEMAS,
           (now_us() - begin) * 1e-3);
    struct grammar *g[N_SCHEMAS];
    for (int pass = 0; pass < 2; pass++) {
        double first_ms = 0, worst_ms = 0;
        for (int i = 0; i < N_SCHEMAS; i++) {
            if (!pass) say_schema(&text[i], 0);
            begin = now_us();
            must(grammar_compile(ROD_GRAMMAR_JSON_SCHEMA, text[i].s, text[i].n, &g[i], &err), &err);
#ifndef WITHOUT_TABLES
            must(grammar_prepare(g[i], v, &err), &err);
#endif
            const double ms = (now_us() - begin) * 1e-3;
            if (i == 0) first_ms = ms;
            if (i && ms > worst_ms) worst_ms = ms;
        }
        if (pass) {
            run(g, N_SCHEMAS, v, tokens, &mixed);
        } else {
            printf("  \"compile_ms\": {\"first\": %.2f, \"worst_of_others\": %.2f},\n", first_ms, worst_ms);
            for (int i = 0; i < N_SCHEMAS; i++) {
                const double before = cold.n ? cold.worst_mask_us : 0;
                cold.worst_mask_us = 0;
                const uint64_t seed = random_state;
                run(&g[i], 1, v, tokens, &cold);
                random_state = seed;
                run(&g[i], 1, v, tokens, &warm);
                if (getenv("MASK_VERBOSE")) {
                    double worst = 0;
                    for (size_t k = cold.n - STEPS; k < cold.n; k++)
                        if (cold.us[k] > worst) worst = cold.us[k];
                    fprintf(stderr, "%2d: worst mask %.0f us, worst step %.0f us, %.1f MB: %.400s\n", i,
                            cold.worst_mask_us, worst, (double)grammar_bytes(g[i]) * 1e-6, text[i].s);
                }
                if (before > cold.worst_mask_us) cold.worst_mask_us = before;
            }
        }
        for (int i = 0; i < N_SCHEMAS; i++) grammar_free(g[i]);
    }
    print("cold", &cold, ",");
    print("warm", &warm, ",");
    print("all_schemas_at_once_cold", &mixed, "");
    printf("}\n");
    vocab_free(v);
    free(bytes);
    free(lens);
    free(tokens);
    return 0;
}
