/* error.c - the X-macro of rodimus.h as functions. */
#include "fail.h"
#include "utf8.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

int rod_fail(struct rod_error *err, int code, const char *format, ...) {
    assert(code != 0); /* an error has a code */
    if (err) {
        err->code = code;
        err->param[0] = 0;
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        utf8_mend(err->message, sizeof err->message);
    }
    return code;
}

int rod_fail_at(struct rod_error *err, int code, const char *param, const char *format, ...) {
    assert(code != 0);
    if (!err) return code;
    char message[sizeof err->message]; /* the arguments may lie in err */
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    rod_fail(err, code, "%s", message);
    snprintf(err->param, sizeof err->param, "%s", param);
    utf8_mend(err->param, sizeof err->param);
    return code;
}

int rod_fail_no_memory(struct rod_error *err) { return rod_fail(err, ROD_ENOMEM, "out of memory"); }

struct code {
    int code;
    const char *name;
    int http;
    const char *type, *openai;
};

static const struct code *code_of(int code) {
    static const struct code codes[] = {
#define ROD_X(name, value, http, type, openai) {value, #name, http, type, openai},
        ROD_ERRORS(ROD_X)
#undef ROD_X
            {0, "ROD_OK", 200, "", ""}};
    const struct code *c = codes;
    while (c->code && c->code != code) c++;
    return c;
}

const char *rod_code_name(int code) { return code_of(code)->name; }
int rod_code_http(int code) { return code_of(code)->http; }
const char *rod_code_type(int code) { return code_of(code)->type; }
const char *rod_code_openai(int code) { return code_of(code)->openai; }

const char *rod_prefix_miss_name(enum rod_prefix_miss miss) {
    static const char *const names[] = {
#define ROD_X(name, text) text,
        ROD_PREFIX_MISSES(ROD_X)
#undef ROD_X
    };
    return (unsigned)miss < ROD_PREFIX_N_MISSES ? names[miss] : "";
}

const char *rod_draft_name(enum rod_draft kind) {
    static const char *const names[] = {
#define ROD_X(name, text) text,
        ROD_DRAFTS(ROD_X)
#undef ROD_X
    };
    return (unsigned)kind < ROD_DRAFT_N_KINDS ? names[kind] : "";
}
