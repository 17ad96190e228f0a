/* prefix_setup.h - for tests of the prefix cache, on fake devices and on a model: an answer beside the cold one. */
#ifndef PREFIX_SETUP_H
#define PREFIX_SETUP_H

#include "collect.h"

/* All that one could tell an answer by: drawn tokens, log-probabilities, the best. */
static inline struct rod_request *request(struct answer *a, const int32_t *ids, size_t n, uint32_t max_tokens) {
    struct rod_request *r = collect_request(ids, n, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    r->sampling.temperature = 1;
    r->sampling.seed = 99;
    r->n_logprobs = 2;
    return r;
}

static inline void assert_same(const struct answer *a, const struct answer *b, const char *what) {
    collect_assert_ids(a, b->ids, b->n_ids, what);
    for (size_t i = 0; i < a->n_ids; i++)
        if (memcmp(&a->logprobs[i], &b->logprobs[i], sizeof(float)))
            fail_msg("%s: log-probability %zu is %.9g, cold %.9g", what, i, (double)a->logprobs[i],
                     (double)b->logprobs[i]);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top, b->top, a->n_top * sizeof *a->top);
}

#endif
