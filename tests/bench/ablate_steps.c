/* ablate_steps.c - what rules of kernels/dispatch.c are worth: the steps of a model as they are and with a rule left
 * out, in turn. Prints a JSON object a line; tests/bench/ablate runs it, once a model, and again where it fell.
 *
 * ablate_steps --synthetic NAME --cases LIST [--device D] [--precision P] [--weights W] [--context N] [--ms N]
 *              [--pairs N] [--done KEYS]
 *
 * Cases: d8: a decode step of 8 sessions; s8: drawn at temperature 1; v8x3: with 3 drafts behind each token; p512: a
 * prompt of 512 tokens. Keys, as "begin" lines name them: CASE:RULE or CASE:KERNEL, where a kernel has several rules;
 * what --done names is not measured again.
 * A rule that no launch of a step asks for is worth nothing there, and is not timed. A device without the hook (cpu,
 * null) is timed against itself. */
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/philox.h"
#include "engine/model/model.h"
#include "kernels/dispatch.h"
#include "tests/bench/ablate_hook.h"
#include "tests/bench/ablate_sum.h"
#include "tests/result_stamp.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_STEPS = 4, ROUND_STEPS = 4, MOST_ROWS = 4096, CHECKED_STEPS = 3, LEAST_STEPS = 4, MOST_STEPS = 400 };
enum { DECODE = 'd', DRAWN = 's', VERIFY = 'v', PROMPT = 'p' };

struct ablate_case {
    char name[16], kind;
    uint32_t n, drafts; /* sessions, or a prompt's tokens */
};

static const char *synthetic, *device = "cuda", *precision = "bf16", *weights, *case_list, *done = "";
static uint32_t context_tok = 4096, side_ms = 25, n_pairs = 7;

static const struct backend_ops *ops;
static const struct ablate_hook *hook;
static struct backend *be;
static struct model_dims dims;
static uint32_t n_slots;
static uint64_t ref_pos;
static int32_t ids[MOST_ROWS];
static struct backend_segment segs[MOST_ROWS];
static struct ablate_case now; /* what is measured */

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }

static void must(int rc, const struct rod_error *err) {
    if (!rc) return;
    printf("{\"failed\": \"%s\"}\n", err->message);
    exit(1);
}

static int32_t id_of(uint64_t a, uint64_t b) { return (int32_t)(philox_uniform(a + 1, b, 7) * dims.V); }
static uint32_t ref_slot(void) { return n_slots - 1; }
static bool is_prompt(void) { return now.kind == PROMPT; }
static bool by_device(void) { return ops->launch && !is_prompt(); }

/* ---- steps ---- */

static void read_context(void) {
    const struct backend_info *info = ops->info(be);
    const uint32_t most = info->max_batch_tok / info->chunk_tok * info->chunk_tok;
    const float *logits;
    struct rod_error err;
    ops->slot_zero(be, ref_slot());
    for (uint32_t n; ref_pos < context_tok; ref_pos += n) {
        n = context_tok - (uint32_t)ref_pos;
        if (n > most) n = most;
        if (n > MOST_ROWS) n = MOST_ROWS;
        for (uint32_t i = 0; i < n; i++) ids[i] = id_of(1, ref_pos + i);
        const struct backend_segment seg = {ref_slot(), n, 0, ref_pos, ids, true};
        must(ops->forward(be, &seg, 1, &logits, &err), &err);
    }
}

/* All sessions have read the context, and choose their tokens from the beginning. */
static void reset(void) {
    struct rod_sampling how = ROD_SAMPLING_NEUTRAL;
    how.temperature = now.kind == DRAWN;
    how.seed = 5;
    const struct backend_sampling sampling = {.sampling = &how, .max_tokens = UINT32_MAX, .n_logprobs = -1};
    struct rod_error err;
    for (uint32_t i = 0; !is_prompt() && i < now.n; i++) {
        if (ops->slot_copy) ops->slot_copy(be, ref_slot(), i, ref_pos);
        if (ops->slot_sampling) must(ops->slot_sampling(be, i, &sampling, &err), &err);
    }
}

static uint32_t segments(uint64_t step) {
    const uint32_t rows = 1 + now.drafts;
    if (is_prompt()) {
        for (uint32_t t = 0; t < now.n; t++) ids[t] = id_of(3, t);
        segs[0] = (struct backend_segment){0, now.n, 1, 0, ids, true};
        ops->slot_zero(be, 0);
        return 1;
    }
    for (uint32_t i = 0; i < now.n; i++) {
        for (uint32_t t = 0; t < rows; t++) ids[i * rows + t] = id_of(step * rows + t, 1000003u * i);
        segs[i] = (struct backend_segment){i, rows, rows, ref_pos + step % ROUND_STEPS, &ids[i * rows], false};
    }
    return now.n;
}

static uint64_t hash_of(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (size_t i = bytes / 8 * 8; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

/* Of the logits of a few steps, kernel by kernel. */
static uint64_t logits_of_steps(void) {
    const struct ablate_step step = {now.n * (1 + now.drafts), now.drafts > 0, false};
    struct CUgraphExec_st **graph = hook && !is_prompt() ? hook->graph(be, &step, true) : NULL, *kept = NULL;
    const size_t n_out = is_prompt() ? 1 : (size_t)now.n * (1 + now.drafts);
    uint64_t hash = 1;
    const float *logits;
    struct rod_error err;
    if (graph) kept = *graph, *graph = NULL;
    reset();
    for (uint32_t i = 0; i < CHECKED_STEPS; i++) {
        const uint32_t n = segments(i);
        must(ops->forward(be, segs, n, &logits, &err), &err);
        hash = hash_of(hash, logits, n_out * dims.V * sizeof *logits);
    }
    if (graph) *graph = kept;
    return hash;
}

/* Of the tokens of a few steps, as they are timed. */
static uint64_t tokens_of_steps(void) {
    uint64_t hash = 1;
    const struct backend_token *tokens;
    struct rod_error err;
    if (!by_device()) return hash;
    reset();
    for (uint32_t i = 0; i < CHECKED_STEPS; i++) {
        const uint32_t n = segments(i);
        must(ops->launch(be, segs, n, &err), &err);
        must(ops->collect(be, &tokens, &err), &err);
        for (uint32_t r = 0; r < n * (1 + now.drafts); r++)
            hash = (hash ^ (uint64_t)(tokens[r].masked ? -2 : tokens[r].picked.id)) * 0x9e3779b97f4a7c15u;
    }
    return hash;
}

/* Seconds of n steps, each launched before the one before it is collected. */
static double steps_ahead(uint32_t n) {
    const struct backend_token *tokens;
    struct rod_error err;
    const uint32_t n_segs = segments(0);
    must(ops->launch(be, segs, n_segs, &err), &err);
    for (uint32_t i = 0; i < n_segs; i++) segs[i].tok = NULL;
    double begin = 0;
    for (uint32_t step = 1; step <= WARM_STEPS + n; step++) {
        for (uint32_t i = 0; i < n_segs; i++) segs[i].pos = ref_pos + step % ROUND_STEPS;
        must(ops->launch(be, segs, n_segs, &err), &err);
        must(ops->collect(be, &tokens, &err), &err);
        if (step == WARM_STEPS) begin = now_s();
    }
    const double s = now_s() - begin;
    must(ops->collect(be, &tokens, &err), &err);
    return s;
}

/* Seconds of n steps, each waited for: with drafts, of prompts, and where the host samples. */
static double steps_alone(uint32_t n) {
    const struct backend_token *tokens;
    const float *logits;
    struct rod_error err;
    const uint32_t n_warm = is_prompt() ? 1 : WARM_STEPS;
    double begin = now_s();
    for (uint32_t step = 0; step < n_warm + n; step++) {
        if (step == n_warm) begin = now_s();
        const uint32_t n_segs = segments(step);
        if (by_device()) {
            must(ops->launch(be, segs, n_segs, &err), &err);
            must(ops->collect(be, &tokens, &err), &err);
        } else
            must(ops->forward(be, segs, n_segs, &logits, &err), &err);
    }
    return now_s() - begin;
}
static double steps_ms(uint32_t n) {
    reset();
    return 1e3 * (by_device() && now.kind != VERIFY ? steps_ahead(n) : steps_alone(n)) / n;
}

/* ---- with a rule and without ---- */

struct variant {
    unsigned char left_out[ABLATE_MOST_RULES];
    struct ablate_seen seen;
    struct CUgraphExec_st *graph;
};
struct base {
    struct ablate_seen seen;
    uint64_t logits, tokens;
    double ms;
    uint32_t n_steps; /* of a side of a pair */
};

static void choose(const struct variant *v) {
    if (hook) hook->leave_out(be, v ? v->left_out : NULL, NULL);
}

/* The rules that its launches ask for, and its graph. */
static void see(const unsigned char *left_out, struct ablate_seen *seen, struct CUgraphExec_st **graph) {
    const struct ablate_step step = {now.n * (1 + now.drafts), now.drafts > 0, now.kind == DRAWN};
    const float *logits;
    struct rod_error err;
    *seen = (struct ablate_seen){0};
    if (!hook) return;
    hook->leave_out(be, left_out, seen);
    if (is_prompt())
        must(ops->forward(be, segs, segments(0), &logits, &err), &err);
    else
        must(hook->capture(be, &step, graph, &err), &err);
    hook->leave_out(be, NULL, NULL);
}

/* Milliseconds of a step; NULL: as things are. */
static double side_of(const struct variant *v, uint32_t n) {
    const struct ablate_step step = {now.n * (1 + now.drafts), now.drafts > 0, now.kind == DRAWN};
    struct CUgraphExec_st **graph = hook && !is_prompt() ? hook->graph(be, &step, false) : NULL, *kept = NULL;
    if (hook && !is_prompt() && !graph) {
        printf("{\"failed\": \"%s has no graph: its rows are no bucket's\"}\n", now.name);
        exit(2);
    }
    choose(v);
    if (v && v->graph) kept = *graph, *graph = v->graph;
    const double ms = steps_ms(n);
    if (v && v->graph) *graph = kept;
    choose(NULL);
    return ms;
}

static const char *bits_of(const struct base *base, const struct variant *v) {
    const struct ablate_step step = {now.n * (1 + now.drafts), now.drafts > 0, now.kind == DRAWN};
    struct CUgraphExec_st **graph = hook && !is_prompt() ? hook->graph(be, &step, false) : NULL, *kept = NULL;
    choose(v);
    const bool logits = logits_of_steps() == base->logits;
    if (v->graph) kept = *graph, *graph = v->graph;
    const bool tokens = tokens_of_steps() == base->tokens;
    if (v->graph) *graph = kept;
    choose(NULL);
    return !logits ? "other logits" : !tokens ? "other tokens" : "equal";
}

static uint32_t n_rules(void) { return hook ? hook->n_rules() : dispatch_n_rules(); }

static void print_rules(const char *name, const unsigned char *some) {
    bool first = true;
    printf(", \"%s\": [", name);
    for (uint32_t i = 0; i < n_rules(); i++)
        if (some[i]) printf("%s%u", first ? "" : ", ", i), first = false;
    printf("]");
}

/* Pairs in turn, and as many again where the loss is near the bound that decides about a rule. */
static void measure(const char *key, const struct base *base, struct variant *v, const unsigned char *instead) {
    struct ablate_pair pair[ABLATE_MOST_PAIRS];
    uint32_t n = 0;
    const char *bits = bits_of(base, v);
    const bool equal = !strcmp(bits, "equal");
    for (uint32_t most = n_pairs; equal && n < most && n < ABLATE_MOST_PAIRS; n++) {
        pair[n].with_ms = side_of(NULL, base->n_steps);
        pair[n].without_ms = side_of(v, base->n_steps);
        if (n + 1 == n_pairs && ablate_is_close(pair, n_pairs)) most = 2 * n_pairs;
    }
    printf("{\"key\": \"%s\", \"case\": \"%s\", \"bits\": \"%s\"", key, now.name, bits);
    print_rules("rules", v->left_out);
    print_rules("instead", instead);
    if (equal) {
        const struct ablate_loss loss = ablate_loss(pair, n);
        printf(", \"loss_percent\": %.2f, \"low\": %.2f, \"high\": %.2f, \"with_ms\": %.4f, \"without_ms\": %.4f, "
               "\"pairs\": %u",
               loss.percent, loss.low, loss.high, loss.with_ms, loss.without_ms, n);
    }
    printf("}\n");
    fflush(stdout);
}

static bool is_done(const char *key) {
    const size_t n = strlen(key);
    for (const char *at = done; (at = strstr(at, key)); at += n)
        if ((at == done || at[-1] == ',') && (!at[n] || at[n] == ',')) return true;
    return false;
}

/* One rule, or several that have one kernel. like: a variant beside which this one would be measured twice. */
static void ablate(const char *what, const struct base *base, struct variant *v, const struct variant *like) {
    char key[96];
    unsigned char instead[ABLATE_MOST_RULES] = {0}, others[ABLATE_MOST_RULES] = {0};
    snprintf(key, sizeof key, "%s:%s", now.name, what);
    if (is_done(key)) return;
    printf("{\"begin\": \"%s\"}\n", key);
    fflush(stdout);
    see(v->left_out, &v->seen, &v->graph);
    for (uint32_t i = 0; i < ABLATE_MOST_RULES; i++)
        instead[i] = v->seen.instead[i] > 0, others[i] = like && like->seen.instead[i] > 0;
    if (v->seen.stuck)
        printf("{\"key\": \"%s\", \"case\": \"%s\", \"bits\": \"no other rule\"}\n", key, now.name);
    else if (!like || memcmp(instead, others, sizeof others) != 0)
        measure(key, base, v, instead);
    if (v->graph) hook->drop(v->graph);
    v->graph = NULL;
}

/* A kernel's name without its sizes. */
static size_t kernel_name(uint32_t rule, char name[64]) {
    snprintf(name, 64, "%s", hook->rule(rule).kernel);
    const size_t n = strcspn(name, "<, ");
    name[n] = 0;
    return n;
}

static void ablate_kernels(const struct base *base, const struct variant *of_rule) {
    static struct variant v;
    char name[64], other[64];
    for (uint32_t i = 0; i < n_rules(); i++) {
        const struct variant *alone = &of_rule[i];
        uint32_t n_own = 0, n_fired = 0;
        bool first = base->seen.fired[i] > 0;
        if (!first) continue;
        v = (struct variant){.graph = NULL};
        kernel_name(i, name);
        for (uint32_t k = 0; k < n_rules(); k++) {
            kernel_name(k, other);
            if (strcmp(name, other) != 0) continue;
            v.left_out[k] = 1, n_own++;
            n_fired += base->seen.fired[k] > 0;
            if (k < i && base->seen.fired[k]) first = false;
        }
        if (first && n_own > 1) ablate(name, base, &v, n_fired == 1 ? alone : NULL);
    }
}

static void run_case(void) {
    static struct variant of_rule[ABLATE_MOST_RULES];
    static struct variant none;
    struct base base = {.n_steps = LEAST_STEPS};
    struct CUgraphExec_st *graph = NULL;
    see(NULL, &base.seen, &graph);
    if (graph) hook->drop(graph);
    base.logits = logits_of_steps();
    base.tokens = tokens_of_steps();
    base.ms = side_of(NULL, base.n_steps);
    base.n_steps = ablate_steps(base.ms, side_ms, LEAST_STEPS, MOST_STEPS);
    base.ms = side_of(NULL, base.n_steps);
    printf(
        "{\"case\": \"%s\", \"kind\": \"%c\", \"n\": %u, \"drafts\": %u, \"context\": %u, \"ms\": %.4f, \"fires\": {",
        now.name, now.kind, now.n, now.drafts, is_prompt() ? 0 : context_tok, base.ms);
    for (uint32_t i = 0, first = 1; i < n_rules(); i++)
        if (base.seen.fired[i]) printf("%s\"%u\": %u", first ? "" : ", ", i, base.seen.fired[i]), first = 0;
    printf("}}\n");
    fflush(stdout);
    if (!hook) {
        none = (struct variant){.graph = NULL};
        ablate("itself", &base, &none, NULL);
        return;
    }
    memset(of_rule, 0, sizeof of_rule);
    for (uint32_t i = 0; i < n_rules(); i++) {
        char what[16];
        if (!base.seen.fired[i]) continue;
        of_rule[i].left_out[i] = 1;
        snprintf(what, sizeof what, "%u", i);
        ablate(what, &base, &of_rule[i], NULL);
    }
    ablate_kernels(&base, of_rule);
}

/* ---- the program ---- */

static void open_hook(void) {
    char path[4096 + 32];
    const ssize_t n = readlink("/proc/self/exe", path, 4096);
    path[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 32, "rodimus_cuda.so");
    void *object = dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* the backend's own */
    hook = object ? dlsym(object, "ablate_hook") : NULL;
    if (hook && hook->n_rules() <= ABLATE_MOST_RULES) return;
    printf("{\"failed\": \"rodimus_cuda.so has no hook\"}\n");
    exit(2);
}

static void open_backend(uint32_t most_sessions) {
    struct rod_error err;
    struct model *model;
    const double begin = now_s();
    const struct model_choice choice = {.synthetic = synthetic, .weights = weights};
    const struct rod_progress_to nobody = {.arg = NULL};
    must(model_open_either(&choice, &nobody, &model, &err), &err);
    dims = model->dims;
    must(backend_find(device, &ops, &err), &err);
    n_slots = most_sessions + 1;
    const struct backend_config config = {.n_slots = n_slots, .device = device, .precision = precision};
    must(ops->open(model, &config, &be, &err), &err);
    if (!strncmp(ops->name, "cuda", 4)) open_hook();
    read_context();
    printf("{\"model\": \"%s\", \"weights\": \"%s\", \"dtype\": \"%s\", \"device\": \"%s\", ", model->name,
           model_weights_name(model), precision, ops->info(be)->device);
    result_stamp(stdout);
    printf("\"open_s\": %.2f, \"rules\": [", now_s() - begin);
    for (uint32_t i = 0; i < n_rules(); i++) {
        const struct dispatch_text t = hook ? hook->rule(i) : dispatch_rule_text(i);
        printf("%s{\"what\": \"%s\", \"device\": \"%s\", \"dtype\": \"%s\", \"when\": \"%s\", \"kernel\": \"%s\"}",
               i ? ", " : "", t.op, t.device, t.dtype, t.when, t.kernel);
    }
    printf("]}\n");
    fflush(stdout);
    model_close(model);
}

/* Of the list from `at`; false: at its end. */
static bool next_case(const char **at, struct ablate_case *c) {
    const size_t n = strcspn(*at, ",");
    int used = 0;
    if (!n) return false;
    *c = (struct ablate_case){.kind = **at};
    snprintf(c->name, sizeof c->name, "%.*s", (int)n, *at);
    const bool drafts = c->kind == VERIFY;
    const int found =
        drafts ? sscanf(c->name + 1, "%ux%u%n", &c->n, &c->drafts, &used) : sscanf(c->name + 1, "%u%n", &c->n, &used);
    if (found < 1 + drafts || c->name[1 + used] || !strchr("dsvp", c->kind) || !c->n ||
        c->drafts > BACKEND_MAX_DRAFTS || c->n * (1 + c->drafts) > MOST_ROWS) {
        fprintf(stderr, "ablate_steps: '%s' is no case\n", c->name);
        exit(2);
    }
    *at += n + ((*at)[n] == ',');
    return true;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--synthetic"))
            synthetic = value;
        else if (!strcmp(name, "--cases"))
            case_list = value;
        else if (!strcmp(name, "--device"))
            device = value;
        else if (!strcmp(name, "--precision"))
            precision = value;
        else if (!strcmp(name, "--weights"))
            weights = value;
        else if (!strcmp(name, "--done"))
            done = value;
        else if (!strcmp(name, "--context"))
            context_tok = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--ms"))
            side_ms = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--pairs"))
            n_pairs = (uint32_t)strtoul(value, NULL, 10);
        else
            synthetic = NULL, i = argc;
    }
    if (argc % 2 && synthetic && case_list && n_pairs && 2 * n_pairs <= ABLATE_MOST_PAIRS && context_tok) return;
    fprintf(stderr, "usage: ablate_steps --synthetic NAME --cases LIST [--device D] [--precision P] [--weights W] "
                    "[--context N] [--ms N] [--pairs N] [--done KEYS]\n");
    exit(2);
}

int main(int argc, char **argv) {
    uint32_t most = 1;
    parse(argc, argv);
    for (const char *at = case_list; next_case(&at, &now);)
        if (!is_prompt() && now.n > most) most = now.n;
    open_backend(most);
    for (const char *at = case_list; next_case(&at, &now);) {
        if (is_done(now.name)) continue;
        run_case();
        printf("{\"end\": \"%s\"}\n", now.name);
        fflush(stdout);
    }
    ops->close(be);
    return 0;
}
