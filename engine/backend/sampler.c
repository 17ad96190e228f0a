/* sampler.c - partial selection, never a full sort: block maxima and thresholds cut the vocabulary down to candidates,
 * and a quickselect by count or by mass cuts the candidates down to the set that is drawn from. */
#include "sampler.h"

#include "engine/base/fail.h"
#include "engine/base/philox.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16u
#define BLOCK 64u /* logits a block: its maximum and its mass are kept, so a search skips whole blocks */

/* ---- history ---- */

int sampler_counts_init(struct sampler_counts *counts, uint64_t max_distinct, struct rod_error *err) {
    assert(max_distinct >= 1 && max_distinct <= INT32_MAX);
    uint32_t n_table = 8;
    while (n_table < max_distinct * 2) n_table *= 2;
    *counts = (struct sampler_counts){.n_table = n_table};
    counts->ids = calloc(max_distinct, sizeof *counts->ids);
    counts->n_generated = calloc(max_distinct, sizeof *counts->n_generated);
    counts->table = calloc(n_table, sizeof *counts->table);
    if (counts->ids && counts->n_generated && counts->table) return 0;
    sampler_counts_fini(counts);
    return rod_fail_no_memory(err);
}

void sampler_counts_fini(struct sampler_counts *counts) {
    free(counts->ids);
    free(counts->n_generated);
    free(counts->table);
    *counts = (struct sampler_counts){0};
}

void sampler_counts_add(struct sampler_counts *counts, int32_t id, uint32_t n_generated) {
    uint32_t mask = counts->n_table - 1, at = ((uint32_t)id * 2654435769u) & mask;
    for (; counts->table[at]; at = (at + 1) & mask) {
        uint32_t index = counts->table[at] - 1;
        if (counts->ids[index] == id) {
            counts->n_generated[index] += n_generated;
            return;
        }
    }
    assert(counts->n < counts->n_table / 2);
    counts->ids[counts->n] = id;
    counts->n_generated[counts->n] = n_generated;
    counts->table[at] = ++counts->n;
}

/* ---- sums and maxima in one fixed order ---- */

static inline float sampler_clamp(float x) { return x < -88.0f ? -88.0f : x; }

/* exp(y) for -88 <= y <= 0 to about one unit in the last place, branch-free so that the compiler vectorises it without
 * changing a bit. Below about -87.7 it is 0: n is -127 there, whose power of two is made as 0. The polynomial is the
 * Taylor series on |r| <= ln(2)/2. */
static inline float exp_clamped(float y) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float n = (y * 1.44269504f + shift) - shift;
    float r = (y - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static uint32_t block_len(uint32_t V, uint32_t block) { return V - block * BLOCK < BLOCK ? V - block * BLOCK : BLOCK; }

/* The largest of x[0..V) with every block's; *finite: none is infinite or not a number. -INFINITY if all are. */
static float sampler_maxima(const float *x, uint32_t V, float *block_max, bool *finite) {
    float max = -INFINITY;
    bool ok = true;
    for (uint32_t b = 0; b * BLOCK < V; b++) {
        const float *p = x + (size_t)b * BLOCK;
        uint32_t n = block_len(V, b);
        float lane[LANES], zero[LANES];
        for (uint32_t j = 0; j < LANES; j++) lane[j] = -INFINITY, zero[j] = 0;
        uint32_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (uint32_t j = 0; j < LANES; j++) {
                lane[j] = p[i + j] > lane[j] ? p[i + j] : lane[j];
                zero[j] += p[i + j] * 0.0f; /* stays 0 unless one is inf or nan */
            }
        for (; i < n; i++) {
            lane[0] = p[i] > lane[0] ? p[i] : lane[0];
            zero[0] += p[i] * 0.0f;
        }
        for (uint32_t j = 1; j < LANES; j++) {
            lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
            zero[0] += zero[j];
        }
        ok = ok && zero[0] == 0;
        block_max[b] = lane[0];
        if (lane[0] > max) max = lane[0];
    }
    *finite = ok;
    return max;
}

/* The sum of exp((x - max) * scale) over a block; the terms go to mass where it is not NULL. A short last block is
 * padded with terms of 0, so that every block has the same loops of fixed length. Two of them: in one, the compiler
 * would follow the clamped value as a constant and branch. */
static double block_mass(const float *x, uint32_t n, float max, float scale, float *mass) {
    float in[BLOCK], e[BLOCK], lane[LANES] = {0};
    if (n < BLOCK) {
        for (uint32_t i = 0; i < BLOCK; i++) in[i] = i < n ? x[i] : -INFINITY;
        x = in;
    }
    for (uint32_t i = 0; i < BLOCK; i++) e[i] = sampler_clamp((x[i] - max) * scale);
    for (uint32_t i = 0; i < BLOCK; i++) e[i] = exp_clamped(e[i]);
    for (uint32_t i = 0; i < BLOCK; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) lane[j] += e[i + j];
    if (mass) memcpy(mass, e, n * sizeof *e);
    double sum = 0;
    for (uint32_t j = 0; j < LANES; j++) sum += (double)lane[j];
    return sum;
}

/* ---- log-probabilities ---- */

static void top_push(struct sampler_output *out, uint32_t n_max, int32_t id, float value) {
    if (out->n_top == n_max && !(value > out->top[n_max - 1].logprob)) return;
    uint32_t at = out->n_top < n_max ? out->n_top++ : n_max - 1;
    for (; at > 0 && value > out->top[at - 1].logprob; at--) out->top[at] = out->top[at - 1];
    out->top[at] = (struct rod_logprob){id, value};
}

/* Ids come in ascending order, so an equal value stays behind: ties to the lower id. */
static void top_logits(const float *x, uint32_t V, const float *block_max, uint32_t n_max, struct sampler_output *out) {
    if (n_max == 0) return;
    for (uint32_t b = 0; b * BLOCK < V; b++) {
        if (out->n_top == n_max && !(block_max[b] > out->top[n_max - 1].logprob)) continue;
        for (uint32_t i = b * BLOCK, end = i + block_len(V, b); i < end; i++) top_push(out, n_max, (int32_t)i, x[i]);
    }
}

static double log_sum(const float *x, uint32_t V, float max) {
    double sum = 0;
    for (uint32_t b = 0; b * BLOCK < V; b++) sum += block_mass(x + (size_t)b * BLOCK, block_len(V, b), max, 1.0f, NULL);
    return (double)max + log(sum);
}

/* The top ones into out; the logarithm of the sum that every log-probability of the row is taken from. */
static double sampler_logprobs(const struct sampler *s, const float *logits, float max, uint32_t n_top,
                               struct sampler_output *out) {
    const double lse = log_sum(logits, s->V, max);
    top_logits(logits, s->V, s->block_max, n_top < s->V ? n_top : s->V, out);
    for (uint32_t i = 0; i < out->n_top; i++) out->top[i].logprob = (float)((double)out->top[i].logprob - lse);
    return lse;
}

/* ---- adjustments ---- */

/* The logits that a mask allows; the others become -INFINITY. */
static void copy_masked(float *x, const float *logits, uint32_t V, const struct sampler_input *in) {
    for (uint32_t i = 0; i < V; i += 64) {
        const uint64_t word = in->mask[i / 64];
        const uint32_t n = V - i < 64 ? V - i : 64;
        if (word == UINT64_MAX) {
            memcpy(x + i, logits + i, n * sizeof *x);
            continue;
        }
        for (uint32_t k = 0; k < n; k++) x[i + k] = -INFINITY;
        for (uint64_t left = word; left; left &= left - 1) {
            const uint32_t k = (uint32_t)__builtin_ctzll(left);
            x[i + k] = logits[i + k];
        }
    }
    for (size_t i = 0; i < in->n_also; i++) x[in->also[i]] = logits[in->also[i]];
}

/* Tokens that are not among the allowed become -INFINITY. */
static void keep_allowed(struct sampler *s, float *x, const struct sampler_input *in) {
    struct sampler_candidate *c = s->candidates; /* not in use yet */
    for (uint32_t i = 0; i < s->V; i++) c[i].id = 0;
    for (size_t i = 0; i < in->n_allowed; i++) c[in->allowed[i]].id = 1;
    for (uint32_t i = 0; i < s->V; i++)
        if (!c[i].id) x[i] = -INFINITY;
}

/* Mask, bias, bans and penalties on a copy; the raw logits themselves when there is nothing to do. */
static const float *sampler_adjusted(struct sampler *s, const struct sampler_input *in, const float *logits) {
    const struct rod_sampling *sp = in->sampling;
    const struct sampler_counts *c = in->counts;
    bool penalties = c && c->n && sampler_needs_counts(sp);
    if (!in->n_bias && !in->n_banned && !in->n_allowed && !in->mask && !penalties) return logits;
    float *x = s->logits;
    if (in->mask)
        copy_masked(x, logits, s->V, in);
    else
        memcpy(x, logits, s->V * sizeof *x);
    if (in->n_allowed) keep_allowed(s, x, in);
    for (size_t i = 0; i < in->n_bias; i++) x[in->bias[i].id] += in->bias[i].bias;
    for (size_t i = 0; i < in->n_banned; i++) x[in->banned[i]] = -INFINITY;
    for (uint32_t i = 0; penalties && i < c->n; i++) {
        float *v = &x[c->ids[i]];
        *v = *v > 0 ? *v / sp->repetition_penalty : *v * sp->repetition_penalty;
        if (c->n_generated[i]) *v -= (float)c->n_generated[i] * sp->frequency_penalty + sp->presence_penalty;
    }
    return x;
}

static int32_t sampler_argmax(const float *x, uint32_t V, const float *block_max, float max) {
    uint32_t b = 0;
    while (block_max[b] != max) b++;
    uint32_t i = b * BLOCK;
    while (x[i] != max) i++;
    assert(i < V);
    return (int32_t)i;
}

/* ---- candidates: keys ascend from the most wanted; equal keys in order of id, so the order is total ---- */

static bool sampler_before(const struct sampler_candidate *a, const struct sampler_candidate *b) {
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

static void sampler_swap(struct sampler_candidate *a, struct sampler_candidate *b) {
    struct sampler_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Splits c[lo..hi) around the median of three; returns the pivot's place: what is before it lies left. */
static uint32_t sampler_partition(struct sampler_candidate *c, uint32_t lo, uint32_t hi) {
    uint32_t mid = lo + (hi - lo) / 2, last = hi - 1;
    if (sampler_before(&c[mid], &c[lo])) sampler_swap(&c[mid], &c[lo]);
    if (sampler_before(&c[last], &c[lo])) sampler_swap(&c[last], &c[lo]);
    if (sampler_before(&c[mid], &c[last])) sampler_swap(&c[mid], &c[last]); /* the median is now last */
    uint32_t at = lo;
    for (uint32_t i = lo; i < last; i++)
        if (sampler_before(&c[i], &c[last])) sampler_swap(&c[i], &c[at++]);
    sampler_swap(&c[at], &c[last]);
    return at;
}

/* Partitions look at some 3 n of n candidates. A client can make an order with logit_bias in which every split is the
 * worst one, and they look at n * n. Past this many looks the rest is sorted. */
static uint64_t most_looks(uint32_t n) { return 16 * (uint64_t)n; }

static int sampler_compare(const void *a, const void *b) {
    return sampler_before(a, b) ? -1 : 1;
} /* no two are alike */

/* Puts the k first of c[0..n) in front. */
static void select_count(struct sampler_candidate *c, uint32_t n, uint32_t k) {
    uint64_t n_looks = 0;
    for (uint32_t lo = 0, hi = n; hi - lo > 1;) {
        if ((n_looks += hi - lo) > most_looks(n)) {
            qsort(c + lo, hi - lo, sizeof *c, sampler_compare);
            return;
        }
        uint32_t at = sampler_partition(c, lo, hi);
        if (at == k) return;
        if (at > k)
            hi = at;
        else
            lo = at + 1;
    }
}

/* Puts the shortest run of first candidates whose mass reaches target in front; returns its length, at least 1. */
static uint32_t select_mass(struct sampler_candidate *c, uint32_t n, double target) {
    uint32_t lo = 0, hi = n;
    uint64_t n_looks = 0;
    for (double have = 0; hi - lo > 1;) {
        if ((n_looks += hi - lo) > most_looks(n)) {
            qsort(c + lo, hi - lo, sizeof *c, sampler_compare);
            while (lo + 1 < hi && (have += (double)c[lo].mass) < target) lo++;
            return lo + 1;
        }
        uint32_t at = sampler_partition(c, lo, hi);
        double left = 0;
        for (uint32_t i = lo; i < at; i++) left += (double)c[i].mass;
        if (at > lo && have + left >= target) {
            hi = at;
        } else {
            have += left + (double)c[at].mass;
            lo = at + 1;
            if (have >= target) return lo;
        }
    }
    return hi;
}

static double total_mass(const struct sampler_candidate *c, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)c[i].mass;
    return sum;
}

/* A bound that at least k logits reach: the k-th largest block maximum. -INFINITY when there are fewer blocks. */
static float bound_of_top_k(struct sampler *s, uint32_t k) {
    if (k > s->n_blocks) return -INFINITY;
    struct sampler_candidate *c = s->candidates;
    for (uint32_t b = 0; b < s->n_blocks; b++)
        c[b] = (struct sampler_candidate){.key = -s->block_max[b], .id = (int32_t)b};
    select_count(c, s->n_blocks, k);
    float bound = INFINITY;
    for (uint32_t i = 0; i < k; i++)
        if (-c[i].key < bound) bound = -c[i].key;
    return bound;
}

/* The smallest logit that top_k and min_p can leave, so that only few become candidates. */
static float lowest_kept(struct sampler *s, const struct rod_sampling *sp, float max) {
    float low = -INFINITY;
    if (sp->top_k > 0) low = bound_of_top_k(s, (uint32_t)sp->top_k);
    if (sp->min_p > 0) {
        float bound = max + logf(sp->min_p) * sp->temperature;
        if (bound > low) low = bound;
    }
    return low;
}

static uint32_t sampler_gather(struct sampler *s, const float *x, float low, float max, float scale) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] < low) continue;
        for (uint32_t i = b * BLOCK, end = i + block_len(s->V, b); i < end; i++) {
            if (!(x[i] >= low)) continue;
            float mass = exp_clamped(sampler_clamp((x[i] - max) * scale));
            if (mass > 0) s->candidates[n++] = (struct sampler_candidate){.key = -x[i], .mass = mass, .id = (int32_t)i};
        }
    }
    return n;
}

/* Locally typical sampling: nearest to the entropy first (Meister and others, 2022). */
static uint32_t select_typical(struct sampler_candidate *c, uint32_t n, float typical_p) {
    double total = total_mass(c, n), entropy = 0;
    for (uint32_t i = 0; i < n; i++) {
        double p = (double)c[i].mass / total;
        entropy -= p * log(p);
    }
    for (uint32_t i = 0; i < n; i++) c[i].key = (float)fabs(-log((double)c[i].mass / total) - entropy);
    return select_mass(c, n, (double)typical_p * total);
}

static int32_t draw_filtered(struct sampler *s, const struct rod_sampling *sp, const float *x, float max, float scale,
                             double u) {
    struct sampler_candidate *c = s->candidates;
    uint32_t n;
    if (sp->top_p < 1 && sp->top_k <= 0 && !(sp->min_p > 0)) {
        /* top_p of the whole vocabulary: the tokens below (1 - top_p) / V of the best one's probability have less than
         * 1 - top_p together, so none of them is needed, only the mass of all. */
        double total = 0;
        for (uint32_t b = 0; b < s->n_blocks; b++)
            total += block_mass(x + (size_t)b * BLOCK, block_len(s->V, b), max, scale, NULL);
        n = sampler_gather(s, x, max + logf((1 - sp->top_p) / (float)s->V) * sp->temperature, max, scale);
        n = select_mass(c, n, (double)sp->top_p * total);
    } else {
        n = sampler_gather(s, x, lowest_kept(s, sp, max), max, scale);
        if (sp->top_k > 0 && n > (uint32_t)sp->top_k) {
            select_count(c, n, (uint32_t)sp->top_k);
            n = (uint32_t)sp->top_k;
        }
        if (sp->top_p < 1) n = select_mass(c, n, (double)sp->top_p * total_mass(c, n));
    }
    if (sp->typical_p < 1) n = select_typical(c, n, sp->typical_p);
    /* The order of the draw is the ids', which a device can walk too; with equal keys the selection is by id. */
    for (uint32_t i = 0; i < n; i++) c[i].key = 0;
    n = select_mass(c, n, u * total_mass(c, n));
    int32_t last = c[0].id;
    for (uint32_t i = 1; i < n; i++) last = c[i].id > last ? c[i].id : last;
    return last;
}

static int32_t draw_all(struct sampler *s, const float *x, float max, float scale, double u) {
    float *mass = s->logits; /* x may be the same array: a block is read before it is written */
    double total = 0, sum = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        double m = block_mass(x + (size_t)b * BLOCK, block_len(s->V, b), max, scale, mass + (size_t)b * BLOCK);
        s->block_mass[b] = (float)m;
        total += (double)s->block_mass[b];
    }
    double target = u * total;
    int32_t last = -1;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        double m = (double)s->block_mass[b];
        if (m == 0) continue;
        if (sum + m <= target) {
            sum += m;
            last = (int32_t)b;
            continue;
        }
        last = (int32_t)b;
        break;
    }
    assert(last >= 0); /* the largest has mass 1 */
    int32_t id = -1;
    for (uint32_t i = (uint32_t)last * BLOCK, end = i + block_len(s->V, (uint32_t)last); i < end; i++) {
        if (mass[i] == 0) continue;
        id = (int32_t)i; /* the last one with mass, where rounding leaves a rest */
        sum += (double)mass[i];
        if (sum > target) break;
    }
    return id;
}

/* ---- public ---- */

int sampler_init(struct sampler *s, uint32_t V, struct rod_error *err) {
    assert(V > 0 && V <= INT32_MAX);
    *s = (struct sampler){.V = V, .n_blocks = (V + BLOCK - 1) / BLOCK};
    s->logits = calloc(V, sizeof *s->logits);
    s->block_max = calloc(s->n_blocks, sizeof *s->block_max);
    s->block_mass = calloc(s->n_blocks, sizeof *s->block_mass);
    s->candidates = calloc(V, sizeof *s->candidates);
    if (s->logits && s->block_max && s->block_mass && s->candidates) return 0;
    sampler_fini(s);
    return rod_fail_no_memory(err);
}

void sampler_fini(struct sampler *s) {
    free(s->logits);
    free(s->block_max);
    free(s->block_mass);
    free(s->candidates);
    *s = (struct sampler){0};
}

int sampler_check(enum sampler_status status, struct rod_error *err) {
    switch (status) {
    case SAMPLER_OK: return 0;
    case SAMPLER_NAN:
        return rod_fail(err, ROD_EINTERNAL, "A logit of this request is not a number: its state is broken.");
    case SAMPLER_FORBIDDEN:
        return rod_fail(
            err, ROD_EINVALID,
            "Every token is forbidden by logit_bias, allowed_token_ids, bad_words, min_tokens or the grammar.");
    case SAMPLER_INFINITE: return rod_fail(err, ROD_EINVALID, "The penalties make a logit infinite.");
    }
    return rod_fail(err, ROD_EINTERNAL, "A token has no known status.");
}

int sampler_pick(struct sampler *s, const struct sampler_input *in, const float *logits, struct sampler_output *out,
                 struct rod_error *err) {
    const struct rod_sampling *sp = in->sampling;
    assert(in->n_logprobs <= SAMPLER_MAX_TOP && sp->temperature >= 0 && sp->top_p > 0 && sp->typical_p > 0);
    bool finite;
    float raw_max = sampler_maxima(logits, s->V, s->block_max, &finite);
    if (!finite) return sampler_check(SAMPLER_NAN, err);

    out->n_top = 0;
    const double lse = in->n_logprobs >= 0 ? sampler_logprobs(s, logits, raw_max, (uint32_t)in->n_logprobs, out) : 0;

    const float *x = sampler_adjusted(s, in, logits);
    float max = x == logits ? raw_max : sampler_maxima(x, s->V, s->block_max, &finite);
    if (!(max > -INFINITY)) return sampler_check(SAMPLER_FORBIDDEN, err);
    if (!(max < INFINITY)) return sampler_check(SAMPLER_INFINITE, err);

    if (sp->temperature == 0) {
        out->id = sampler_argmax(x, s->V, s->block_max, max);
    } else {
        double u = philox_uniform(sp->seed, in->position, 0);
        float scale = 1 / sp->temperature;
        if (scale > 1e30f) scale = 1e30f; /* a temperature near 0 is argmax; its inverse must stay a number */
        bool all = sp->top_k <= 0 && !(sp->min_p > 0) && !(sp->top_p < 1) && !(sp->typical_p < 1);
        out->id = all ? draw_all(s, x, max, scale, u) : draw_filtered(s, sp, x, max, scale, u);
    }
    assert(out->id >= 0 && (uint32_t)out->id < s->V && x[out->id] > -INFINITY); /* no filter keeps what is forbidden */
    out->logprob = in->n_logprobs >= 0 ? (float)((double)logits[out->id] - lse) : 0;
    return 0;
}

int sampler_score(struct sampler *s, const float *logits, int32_t id, uint32_t n_top, struct sampler_output *out,
                  uint32_t *rank, struct rod_error *err) {
    assert(id >= 0 && (uint32_t)id < s->V && n_top <= SAMPLER_MAX_TOP);
    bool finite;
    const float max = sampler_maxima(logits, s->V, s->block_max, &finite), own = logits[id];
    if (!finite) return sampler_check(SAMPLER_NAN, err);
    out->n_top = 0;
    out->id = id;
    out->logprob = (float)((double)own - sampler_logprobs(s, logits, max, n_top, out));
    *rank = 1;
    for (uint32_t i = 0; i < s->V; i++) *rank += logits[i] > own;
    return 0;
}
