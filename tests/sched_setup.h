/* sched_setup.h - a scheduler in virtual time, for the tests of its parts. */
#ifndef SCHED_SETUP_H
#define SCHED_SETUP_H

#include "engine/base/policy.h"
#include "engine/sched/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_SLOTS = 64 };

static inline void make(struct sched *s, uint32_t n_slots, uint32_t max_batch_tok, uint32_t max_out,
                        uint32_t chunk_tok) {
    const struct sched_config config = {
        .n_slots = n_slots, .max_batch_tok = max_batch_tok, .max_out = max_out, .chunk_tok = chunk_tok};
    assert_int_equal(sched_init(s, &config, NULL), 0);
}

static inline struct sched_req request(uint64_t n_prompt) { return (struct sched_req){.n_prompt = n_prompt}; }

static inline void run_step(struct sched *s, struct sched_row *rows, uint32_t *n) {
    *n = sched_plan(s, 0, rows);
    for (uint32_t i = 0; i < *n; i++) sched_commit(s, &rows[i]);
}

static inline const struct sched_row *row_of(const struct sched_row *rows, uint32_t n, const struct sched_req *r) {
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].req == r) return &rows[i];
    return NULL;
}

#endif
