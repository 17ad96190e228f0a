/* version.h - what this build is. Pure; any thread. */
#ifndef VERSION_H
#define VERSION_H

const char *version_string(void);   /* "0.1.0" */
const char *version_commit(void);   /* 12 hexadecimal digits, or "unknown" outside a git checkout */
const char *version_compiler(void); /* "gcc 12.2.0" */

#endif
