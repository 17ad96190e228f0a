/* test_hooks.c - reads the environment. Setting a process's environment needs the right to end the process. */
#include "test_hooks.h"

#include <stdlib.h>

static uint64_t number_of(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

uint64_t test_hooks_fault_step(void) { return number_of("RODIMUS_TEST_FAULT_STEP"); }
uint64_t test_hooks_conflicts(void) { return number_of("RODIMUS_TEST_CONFLICTS"); }
uint64_t test_hooks_patience_ms(void) { return number_of("RODIMUS_TEST_PATIENCE_MS"); }

bool test_hooks_entries_pay(void) { return getenv("RODIMUS_TEST_CHECKPOINTS_PAY") != NULL; }
bool test_hooks_drafts_pay(void) { return getenv("RODIMUS_TEST_DRAFTS_PAY") != NULL; }
