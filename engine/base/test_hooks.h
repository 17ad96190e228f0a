/* test_hooks.h - what the environment may ask of a production build for the sake of a test. There are no others. */
#ifndef TEST_HOOKS_H
#define TEST_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/* RODIMUS_TEST_FAULT_STEP=N: the device fails in step N; 0 = it does not. */
uint64_t test_hooks_fault_step(void);
/* RODIMUS_TEST_CHECKPOINTS_PAY: the prefix cache keeps an entry at each place, whatever it costs. */
bool test_hooks_entries_pay(void);
/* RODIMUS_TEST_DRAFTS_PAY: each draft is read, whatever it costs. */
bool test_hooks_drafts_pay(void);
/* RODIMUS_TEST_CONFLICTS=N: the first N turns of sessions that are committed are told that another server was first. */
uint64_t test_hooks_conflicts(void);
/* RODIMUS_TEST_PATIENCE_MS=N: so long a conversation waits for a store; 0 = as always. */
uint64_t test_hooks_patience_ms(void);

#endif
