/* sessions_setup.h - for tests of sessions: turns over an engine with a collector, in a folder of the test's own. */
#ifndef SESSIONS_SETUP_H
#define SESSIONS_SETUP_H

#include "engine_setup.h"
#include "test_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder's key is no session's. */
static inline uint32_t count_in(const char *dir, const char *end) {
    DIR *list = opendir(dir);
    assert_non_null(list);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(list));) {
        const size_t len = strlen(e->d_name), n_end = strlen(end);
        n += e->d_name[0] != '.' && strcmp(e->d_name, "names.key") != 0 && len >= n_end &&
             !strcmp(e->d_name + len - n_end, end);
    }
    closedir(list);
    return n;
}

/* A turn of n new tokens; more may be set on what is returned. */
static inline struct rod_request *turn_request(struct answer *a, const char *session, const int32_t *ids, size_t n,
                                               uint32_t max_tokens) {
    struct rod_request *r = collect_request(ids, n, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    r->sampling.temperature = 1;
    r->sampling.seed = 99;
    r->turn = calloc(1, sizeof *r->turn);
    r->turn->tenant = strdup("");
    r->turn->session = strdup(session);
    r->turn->create = true;
    return r;
}

/* To its end, whatever that is. */
static inline void turn_run(struct collector *c, struct rod_request *r, struct answer *a) {
    collect_submit(c, r);
    collect_until(c, a, 1);
}

static inline void turn_ok(struct collector *c, struct rod_request *r, struct answer *a) {
    turn_run(c, r, a);
    if (a->failed) fail_msg("the turn failed: %s", a->end.error.message);
}

static inline void turn_fails(struct collector *c, struct rod_request *r, struct answer *a, int code) {
    turn_run(c, r, a);
    if (!a->failed) fail_msg("the turn did not fail with %s", rod_code_name(code));
    if (a->end.error.code != code)
        fail_msg("%s, want %s: %s", rod_code_name(a->end.error.code), rod_code_name(code), a->end.error.message);
    assert_int_equal(a->n_ids, 0);
    collect_free(a);
}

static inline struct rod_session_info session_info(struct rod_engine *engine, const char *id) {
    struct rod_session_info info;
    struct rod_error err;
    if (rod_session_get(engine, "", id, &info, &err)) fail_msg("%s: %s", id, err.message);
    return info;
}

#endif
