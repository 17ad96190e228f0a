/* fail.h - errors that several folders of the engine give in one way. rod_fail itself is public (rodimus.h). */
#ifndef FAIL_H
#define FAIL_H

#include "engine/rodimus.h"

/* An error of a request's field: `param` names it. Returns the code. */
int rod_fail_at(struct rod_error *err, int code, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The one spelling of it. Returns ROD_ENOMEM. */
int rod_fail_no_memory(struct rod_error *err);

#endif
