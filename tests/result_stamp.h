/* result_stamp.h - what a recorded figure carries: the commit and the day it was measured, as members of a JSON object.
 */
#ifndef RESULT_STAMP_H
#define RESULT_STAMP_H

#include "server/base/version.h"

#include <stdio.h>
#include <time.h>

static inline void result_stamp(FILE *out) {
    char day[16];
    struct tm utc;
    const time_t now = time(NULL);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&now, &utc));
    fprintf(out, "\"commit\": \"%s\", \"date\": \"%s\", ", version_commit(), day);
}

#endif
