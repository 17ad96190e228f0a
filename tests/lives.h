/* lives.h - for random worlds on a real device: the models that they run (subjects), the requests that they ask, and
 * what each request gives alone on an idle engine.
 *
 * A subject is a model in a precision and a format of weights with a pool of requests; number and seed say all of it.
 * An answer alone is made when it is first needed, as long as needed: an answer of 40 tokens is the beginning of one of
 * 300. Threads: a subject is one thread's.
 */
#ifndef LIVES_H
#define LIVES_H

#include "tests/drawing_cpu.h"
#include "tests/lives_text.h"
#include "engine/model/model_internal.h"
#include "engine/base/philox.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- random numbers: a stream of draws, the same for the same seed ---- */

struct dice {
    uint64_t seed, n;
};
static inline double roll_real(struct dice *d) { return philox_uniform(d->seed, d->n++, 7); }
static inline uint32_t roll(struct dice *d, uint32_t n) { return (uint32_t)(roll_real(d) * n); } /* 0 .. n - 1 */
static inline bool roll_one_in(struct dice *d, uint32_t n) { return roll(d, n) == 0; }
static inline uint32_t roll_log(struct dice *d, uint32_t most) { /* 1 .. most, small ones as often as large ones */
    const uint32_t n = (uint32_t)exp(roll_real(d) * log((double)most + 1));
    return n < 1 ? 1 : n > most ? most : n;
}

/* ---- answers ---- */

struct reply {
    uint64_t ticket;
    int32_t *ids;
    float *logprobs, *scores; /* scores: of the prompt, from its second token on */
    size_t n_ids, n_scores;
    bool ended, failed, cancelled, stopped; /* stopped: by an end token or stop id */
    char message[160];
    int code;
    struct rod_state *state;
    uint64_t n_accepted, n_rejected;
};
static inline void reply_free(struct reply *a) {
    free(a->ids), free(a->logprobs), free(a->scores);
    rod_state_free(a->state);
    memset(a, 0, sizeof *a);
}
static inline void reply_take(struct rod_event *e) {
    struct reply *a = e->user;
    if (e->kind == ROD_EVENT_DELTA) {
        a->ids = realloc(a->ids, (a->n_ids + e->n_tokens) * sizeof *a->ids);
        a->logprobs = realloc(a->logprobs, (a->n_ids + e->n_tokens) * sizeof *a->logprobs);
        for (size_t i = 0; i < e->n_tokens; i++, a->n_ids++)
            a->ids[a->n_ids] = e->tokens[i].id, a->logprobs[a->n_ids] = e->tokens[i].logprob;
    } else if (e->kind == ROD_EVENT_PROMPT) {
        a->scores = realloc(a->scores, (a->n_scores + e->n_tokens) * sizeof *a->scores);
        for (size_t i = 0; i < e->n_tokens; i++) a->scores[a->n_scores++] = e->tokens[i].logprob;
    } else if (e->kind == ROD_EVENT_FINISH) {
        a->ended = true;
        a->cancelled = e->reason == ROD_FINISH_CANCEL;
        a->stopped = e->reason == ROD_FINISH_STOP;
        a->state = e->state;
        a->n_accepted = e->accepted_tok;
        a->n_rejected = e->rejected_tok;
        e->state = NULL;
    } else if (e->kind == ROD_EVENT_ERROR) {
        a->ended = a->failed = true;
        a->code = e->error.code;
        snprintf(a->message, sizeof a->message, "%.*s", (int)sizeof a->message - 1, e->error.message);
    }
    rod_event_free(e);
}

/* An engine, its grammars, and the semaphore that it posts. */
struct host {
    struct rod_engine *engine;
    struct rod_grammar *form[TEXT_N_FORMS];
    sem_t woken;
};
static inline void host_wake(void *arg) { sem_post(&((struct host *)arg)->woken); }
static inline void host_pull(struct host *h) {
    for (struct rod_event *e; (e = rod_next_event(h->engine));) reply_take(e);
}
static inline bool host_wait(struct host *h, uint32_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int rc;
    while ((rc = sem_timedwait(&h->woken, &until)) && errno == EINTR) {}
    return rc == 0;
}

/* ---- subjects ---- */

enum { MOST_ENTRIES = 96, MOST_CHOICES = 8, VARIANTS = 4, MOST_PROMPT = 2000, MOST_ANSWER = 300 };

/* A request of the pool: entries of a family share a prompt. */
struct entry {
    bool known, host; /* host: only the host can do it, so its steps run without look-ahead */
    bool splits;      /* may end and go on anywhere: nothing counts from where it went on */
    int form;         /* of text_forms; -1: any text */
    struct reply alone;
    uint32_t alone_tok; /* max_tokens of `alone` */
};

struct subject {
    uint64_t seed;
    char name[224]; /* model, precision, formats of weights and of the window */
    const char *precision, *window;
    struct model *model;
    bool published, on_gpu, draws; /* draws: the CPU, as a device that draws */
    uint32_t n_entries, most_prompt, most_answer;
    struct entry entry[MOST_ENTRIES];
    struct host idle; /* an engine with one slot, for answers alone */
};

/* Heads of a multiple of 8, which a GPU asks for, 64 and 128 among them; E and F are multiples of 8 in every layout; a
 * model without heads has any width. */
static inline void draw_shape(struct dice *d, char *json, size_t bytes) {
    const bool common = roll_one_in(d, 4); /* heads that windows in fp8 ask for */
    const uint32_t heads = common ? 4 : 1 + roll(d, 6), groups[] = {1, heads, heads % 2 ? 1 : 2, heads % 3 ? 1 : 3};
    const uint32_t P = roll(d, 3) && !common ? 8 * (1 + roll(d, 9)) : roll(d, 2) ? 64 : 128, plus = roll(d, 4) != 0;
    /* half of them with widths in whole tiles of 16, which the fused kernels ask for */
    const uint32_t D = !plus        ? 9 + roll(d, 400)
                       : roll(d, 2) ? heads * P
                                    : heads * ((P + 15) / 16 * 16),
                   Hk = common ? 1 : groups[roll(d, 4)];
    snprintf(json, bytes,
             "{\"block_type\": \"%s\", \"d_model\": %u, \"n_layer\": %u, \"vocab_size\": %u, \"bos_token_id\": 0, "
             "\"eos_token_id\": 1, \"tie_word_embeddings\": %s, \"mixer_cfg\": {\"mem_size\": %u, \"d_conv\": %u, "
             "\"expand_ratio\": %.3f, \"input_gate_low_rank\": %u}, \"attn_cfg\": {\"num_heads\": %u, "
             "\"num_heads_k\": %u, \"num_heads_v\": %u, \"window_size\": %u, \"ffn_expand_ratio\": %.3f}}",
             plus ? "rodimus_plus" : "rodimus", D, 1 + roll(d, 4), 50 + roll(d, 700), roll(d, 2) ? "true" : "false",
             roll(d, 2) ? 64 : 1 + roll(d, 128), 1 + roll(d, 8), roll(d, 2) ? 2.0 : 0.6 + 2 * roll_real(d),
             roll(d, 2) ? 16 : 1 + roll(d, 128), heads, Hk, common || roll(d, 2) ? heads : Hk, 1 + roll_log(d, 1200),
             0.3 + 2 * roll_real(d));
}

/* With RODIMUS_TEST_FULL=1 one subject in twelve has a published shape: which one follows from its seed. */
static inline bool is_published(uint64_t seed) { return getenv("RODIMUS_TEST_FULL") && seed % 12 == 1; }

static inline int subject_model(struct subject *s, struct dice *d, struct rod_error *err) {
    static const char *const sets[] = {"config/models/tales",
                                       "config/models/skills",
                                       "tests/vectors/fla-rodimus-plus-small",
                                       "tests/vectors/fla-rodimus-small",
                                       "tests/vectors/rodimus-small",
                                       "tests/vectors/rodimus-plus-extremes",
                                       "tests/vectors/rodimus-plus-options",
                                       "tests/vectors/rodimus-plus-short",
                                       "tests/vectors/rodimus-plus-headdim128",
                                       "tests/vectors/rodimus-plus-small"};
    const uint32_t n_sets = sizeof sets / sizeof *sets, which = roll(d, 2 * n_sets);
    if ((s->published = is_published(s->seed))) {
        const char *name = s->seed / 12 % 2 ? "rodimus-plus-1.6b" : "rodimus-1.4b";
        snprintf(s->name, sizeof s->name, "%s", name);
        return model_synthetic(name, 1, NULL, &s->model, err);
    }
    if (which < n_sets || roll_one_in(d, 4)) { /* tales as often as all of them: its F is no multiple of 16 */
        snprintf(s->name, sizeof s->name, "%s", sets[which < n_sets ? which : 0]);
        return model_open(s->name, NULL, NULL, &s->model, err);
    }
    char json[1024];
    draw_shape(d, json, sizeof json);
    int rc = model_synthetic_of("random", json, s->seed, NULL, &s->model, err);
    if (rc) return rc;
    const struct model_dims *m = &s->model->dims;
    snprintf(s->name, sizeof s->name, "random D %u E %u F %u M %u R %u K %u heads %u/%u/%u of %u window %u L %u V %u",
             m->D, m->E, m->F, m->M, m->R, m->K, m->H, m->Hk, m->Hv, m->P, m->visible, m->L, m->V);
    return 0;
}

/* How the model's weights are kept: half of all subjects in fewer bits, on a GPU more. RODIMUS_TEST_WEIGHTS: one for
 * all that may be: a GPU multiplies codes in 16 bits. */
static inline int subject_weights(struct subject *s, struct dice *d, struct rod_error *err) {
    static const char *const on_cpu[] = {"auto", "auto", "int8", "int4"}, *const on_gpu[] = {"auto", "fp8", "int8",
                                                                                             "int4"};
    const char *asked = getenv("RODIMUS_TEST_WEIGHTS"), *drawn = (s->on_gpu ? on_gpu : on_cpu)[roll(d, 4)],
               *name = s->on_gpu && !strcmp(s->precision, "fp32") ? "auto"
                       : asked                                    ? asked
                                                                  : drawn;
    const size_t len = strlen(s->name);
    snprintf(s->name + len, sizeof s->name - len, ", weights %s", name);
    if (weight_format_by_name(name, &s->model->weights)) return 0;
    snprintf(err->message, sizeof err->message, "RODIMUS_TEST_WEIGHTS is %s", name);
    return err->code = ROD_EINVALID;
}

/* Whether a GPU keeps windows in fp8 for such heads (dispatch_decode_window). */
static inline bool subject_has_fp8(const struct subject *s) {
    const struct model_dims *m = &s->model->dims;
    return strcmp(s->precision, "fp32") && (m->P == 64 || m->P == 128) && m->Hk == 1 && m->Hv == m->H && m->H % 4 == 0;
}
/* A window in 8 bits in half of all subjects that may have it; RODIMUS_TEST_WINDOW: in all of them that one. */
static inline void subject_window(struct subject *s, struct dice *d) {
    const struct model_dims *m = &s->model->dims;
    const bool may = m->visible && (s->on_gpu ? subject_has_fp8(s) : m->P % 4 == 0);
    const char *asked = getenv("RODIMUS_TEST_WINDOW"), *drawn = roll(d, 2) ? s->on_gpu ? "fp8" : "int8" : "auto";
    s->window = !may ? "auto" : asked ? asked : drawn;
    const size_t len = strlen(s->name);
    snprintf(s->name + len, sizeof s->name - len, ", window %s", s->window);
}

/* An engine of this subject. */
static inline int subject_host(const struct subject *s, struct rod_engine_config config, struct host *h,
                               struct rod_error *err) {
    struct engine_parts parts = {.V = s->model->dims.V, .eos_ids = {1}, .n_eos_ids = 1, .measures = h != &s->idle};
    const struct backend_config be = {.n_slots = config.n_slots,
                                      .n_threads = 2,
                                      .max_batch_tok = config.max_batch_tok,
                                      .prompt_share = config.prompt_share,
                                      .max_out = config.n_slots < 64 ? 64 : config.n_slots,
                                      .device = config.device,
                                      .precision = config.precision,
                                      .window_dtype = s->window,
                                      .deterministic = config.deterministic,
                                      .no_drafts = config.speculative == ROD_SPECULATIVE_NONE,
                                      .decode_kernel = h == &s->idle ? "graph" : "any",
                                      .prompt_products = getenv("RODIMUS_TEST_PROMPT_PRODUCTS"),
                                      .log = config.log,
                                      .log_arg = config.log_arg};
    memcpy(parts.fingerprint, s->model->fingerprint, sizeof parts.fingerprint);
    int rc = backend_find(config.device, &parts.ops, err);
    if (!rc && s->draws) parts.ops = &drawing_cpu;
    if (!rc) rc = parts.ops->open(s->model, &be, &parts.backend, err);
    if (rc) return rc;
    sem_init(&h->woken, 0, 0);
    config.wake = host_wake, config.wake_arg = h;
    rc = text_tokenizer(parts.V, &parts.tokenizer, err);
    if (!rc) rc = engine_open_parts(&config, &parts, &h->engine, err);
    if (rc) {
        parts.ops->close(parts.backend);
        tokenizer_close(parts.tokenizer);
        return rc;
    }
    return text_open_forms(h->engine, h->form, err);
}
static inline void host_close(struct host *h) {
    for (int i = 0; i < TEXT_N_FORMS; i++) rod_grammar_close(h->form[i]), h->form[i] = NULL;
    if (h->engine) rod_engine_close(h->engine), sem_destroy(&h->woken);
    h->engine = NULL;
}

/* A state's size in host memory, once the window is full. */
static inline size_t subject_state_bytes(const struct subject *s) {
    const struct model_dims *m = &s->model->dims;
    const size_t layer = (size_t)m->M * ((m->E + 31) / 32 * 32) + (size_t)m->E * m->K +
                         ((size_t)m->visible + 64) * (m->Hk + m->Hv) * m->P;
    return state_pool_bytes(1, layer * m->L * 4);
}

static inline int subject_open(struct subject *s, uint64_t seed, struct rod_error *err) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->on_gpu = device && !strncmp(device, "cuda", 4);
    struct dice d = {.seed = seed * 2654435761u + 1};
    int rc = subject_model(s, &d, err);
    if (rc) return rc;
    static const char *const precisions[] = {"bf16", "fp16", "fp32", "bf16"};
    s->precision = !s->on_gpu ? "auto" : precisions[roll(&d, s->published ? 2 : 4)];
    const size_t len = strlen(s->name);
    s->draws = !s->on_gpu && seed % 2;
    snprintf(s->name + len, sizeof s->name - len, ", %s%s", s->precision, s->draws ? ", the device draws" : "");
    if ((rc = subject_weights(s, &d, err))) {
        model_close(s->model);
        return rc;
    }
    subject_window(s, &d);
    s->n_entries = s->published ? 24 : s->on_gpu ? MOST_ENTRIES : 24;
    s->most_prompt = s->on_gpu ? MOST_PROMPT : 150;
    s->most_answer = s->on_gpu ? MOST_ANSWER : 40;
    const struct rod_engine_config config = {.device = s->on_gpu ? device : "cpu",
                                             .precision = s->precision,
                                             .n_slots = 1,
                                             .max_queue = 8,
                                             .state_host_bytes = 4 * subject_state_bytes(s)};
    if ((rc = subject_host(s, config, &s->idle, err))) host_close(&s->idle), model_close(s->model);
    return rc;
}

static inline void subject_close(struct subject *s) {
    for (uint32_t i = 0; i < s->n_entries; i++) reply_free(&s->entry[i].alone);
    host_close(&s->idle);
    model_close(s->model);
}

/* ---- requests of the pool ---- */

static inline uint32_t family_length(const struct subject *s, uint32_t family) {
    struct dice d = {.seed = s->seed * 1000 + family};
    static const uint32_t edges[] = {1, 1, 1, 2, 63, 64, 65, 128, 129, 513};
    const uint32_t n = roll(&d, 3) ? roll_log(&d, s->most_prompt) : edges[roll(&d, 10)];
    return n > s->most_prompt ? s->most_prompt : n;
}
/* Every third family begins as the one before does, for the prefix cache. */
static inline int32_t family_token(const struct subject *s, uint32_t family, uint32_t i) {
    while (family && family % 3 == 2 && i < 192) family--;
    return 2 + (int32_t)(philox_uniform(s->seed * 1000 + family, i, 9) * (s->model->dims.V - 2));
}

static inline int32_t any_id(const struct subject *s, struct dice *d) {
    return 2 + (int32_t)roll(d, s->model->dims.V - 2);
}

/* The text of one in three is held to a grammar, from the start or behind a tag that comes more often than by chance.
 * A split answer would begin it anew. */
static inline void entry_form(struct dice *d, const struct host *h, struct entry *of, struct rod_request *r) {
    const bool likely = roll(d, 2);
    of->form = (int)roll(d, 3 * TEXT_N_FORMS);
    if (of->form >= TEXT_N_FORMS) of->form = -1;
    if (of->form < 0) return;
    const char *open = text_forms[of->form].open;
    of->splits = false;
    if (h) r->grammar = rod_grammar_ref(h->form[of->form]);
    if (!open) return;
    r->grammar_open = strdup(open);
    r->grammar_again = true;
    if (r->n_bias || !likely) return;
    r->n_bias = 1;
    r->bias = calloc(1, sizeof *r->bias);
    *r->bias = (struct rod_bias){TEXT_TAG, 5};
}

/* Entry e as a request of at most max_tokens to that engine (NULL: to none); a is where its answer goes. Sets what the
 * entry is. */
static inline struct rod_request *entry_request(const struct subject *s, const struct host *h, struct entry *of,
                                                uint32_t e, uint32_t max_tokens, struct reply *a) {
    struct dice d = {.seed = s->seed * 77777 + e};
    struct rod_request *r = rod_request_new();
    const uint32_t family = e / VARIANTS;
    r->user = a;
    r->n_prompt = family_length(s, family);
    r->prompt = malloc(r->n_prompt * sizeof *r->prompt);
    for (uint32_t i = 0; i < r->n_prompt; i++) r->prompt[i] = family_token(s, family, i);
    r->max_tokens = max_tokens;
    r->sampling.seed = s->seed + e;
    r->sampling.temperature = roll(&d, 3) ? 0.4f + (float)roll_real(&d) : 0;
    if (roll_one_in(&d, 3)) r->sampling.top_p = 0.3f + 0.69f * (float)roll_real(&d);
    if (roll_one_in(&d, 4)) r->sampling.top_k = 1 + (int32_t)roll(&d, 50);
    if (roll_one_in(&d, 6)) r->sampling.min_p = 0.1f;
    if (roll_one_in(&d, 8)) r->sampling.typical_p = 0.8f;
    const uint32_t counts = roll(&d, 8);
    if (counts == 0) r->sampling.frequency_penalty = 0.7f;
    if (counts == 1) r->sampling.repetition_penalty = 1.2f;
    if (counts == 2) r->sampling.presence_penalty = 0.5f;
    if (roll_one_in(&d, 8)) {
        r->n_bias = 5;
        r->bias = calloc(r->n_bias, sizeof *r->bias);
        for (size_t i = 0; i < r->n_bias; i++) r->bias[i] = (struct rod_bias){any_id(s, &d), roll(&d, 2) ? 3 : -4};
    }
    r->ignore_eos = roll(&d, 2);
    if (roll_one_in(&d, 3)) {
        r->n_stop_ids = 1 + roll(&d, 6);
        r->stop_ids = calloc(r->n_stop_ids, sizeof *r->stop_ids);
        for (size_t i = 0; i < r->n_stop_ids; i++) r->stop_ids[i] = any_id(s, &d);
    }
    r->n_logprobs = roll_one_in(&d, 8) ? 20 : (int32_t)roll(&d, 5) - 1;
    const uint32_t least = roll_one_in(&d, 5) ? roll(&d, 30) : 0;
    r->min_tokens = least < max_tokens ? least : max_tokens;
    if (roll_one_in(&d, 4)) r->cache_salt = strdup(roll(&d, 2) ? "a" : "b");
    const uint32_t host = roll(&d, 14);
    if (host == 0) {
        r->n_allowed_ids = 40;
        r->allowed_ids = calloc(r->n_allowed_ids, sizeof *r->allowed_ids);
        for (size_t i = 0; i < r->n_allowed_ids; i++) r->allowed_ids[i] = any_id(s, &d);
    } else if (host == 1 && r->n_prompt > 1) {
        r->n_prompt_logprobs = (int32_t)roll(&d, 4);
    } else if (host == 2) {
        r->n_bad = 3;
        r->bad = calloc(r->n_bad, sizeof *r->bad);
        for (size_t i = 0; i < r->n_bad; i++) {
            r->bad[i].n_ids = 1 + i;
            r->bad[i].ids = calloc(r->bad[i].n_ids, sizeof *r->bad[i].ids);
            for (size_t k = 0; k < r->bad[i].n_ids; k++) r->bad[i].ids[k] = any_id(s, &d);
        }
    }
    of->host = r->n_allowed_ids || r->n_prompt_logprobs >= 0 || r->n_bad;
    of->splits = counts > 2 && !of->host && !least;
    entry_form(&d, h, of, r);
    return r;
}

/* The entry's answer alone, of at least max_tokens or whole. */
static inline int entry_alone(struct subject *s, uint32_t e, uint32_t max_tokens, struct rod_error *err) {
    struct entry *of = &s->entry[e];
    if (of->known && (of->alone_tok >= max_tokens || of->alone.failed || of->alone.stopped)) return 0;
    of->alone_tok = max_tokens <= 40 ? 40 : max_tokens <= 120 ? 120 : s->most_answer;
    reply_free(&of->alone);
    struct rod_request *r = entry_request(s, &s->idle, of, e, of->alone_tok, &of->alone);
    r->never_speculate = true;
    int rc = rod_submit(s->idle.engine, r, &of->alone.ticket, err);
    if (rc) {
        rod_request_free(r);
        return rc;
    }
    while (!of->alone.ended) {
        if (!host_wait(&s->idle, 60000)) return rod_fail(err, ROD_EINTERNAL, "alone: no event for 60 s");
        host_pull(&s->idle);
    }
    of->known = true;
    if (of->form < 0 || text_forms[of->form].open) return 0;
    const size_t n = text_allowed(s->idle.engine, s->idle.form[of->form], of->alone.ids, of->alone.n_ids);
    if (n == of->alone.n_ids) return 0;
    return rod_fail(err, ROD_EINTERNAL, "token %zu of %zu, %d, is not in grammar %d", n, of->alone.n_ids,
                    of->alone.ids[n], of->form);
}

#endif
