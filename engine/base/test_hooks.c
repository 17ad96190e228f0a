/* test_hooks.c - reads the environment. Setting a process's environment needs the right to end the process. */
#include "test_hooks.h"

#include <stdlib.h>

uint64_t test_hooks_fault_step(void) {
    const char *text = getenv("RODIMUS_TEST_FAULT_STEP");
    return text ? strtoull(text, NULL, 10) : 0;
}

bool test_hooks_entries_pay(void) { return getenv("RODIMUS_TEST_CHECKPOINTS_PAY") != NULL; }
bool test_hooks_drafts_pay(void) { return getenv("RODIMUS_TEST_DRAFTS_PAY") != NULL; }
