/* version.c - see version.h. The Makefile passes ROD_VERSION to all files and ROD_COMMIT to this one. */
#include "version.h"

#ifndef ROD_COMMIT
#define ROD_COMMIT "unknown"
#endif

const char *version_string(void) { return ROD_VERSION; }
const char *version_commit(void) { return ROD_COMMIT; }

const char *version_compiler(void) {
#ifdef __clang__
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}
