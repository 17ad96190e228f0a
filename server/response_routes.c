/* response_routes.c - see side_routes.h. */
#include "kept_response.h"
#include "side_routes.h"
#include "server/api/api_routes.h"

#include <stdio.h>
#include <string.h>

enum { ITEMS_DEFAULT = 20, ITEMS_MAX = 100 };

static int run_get(struct job *j, struct rod_error *err) {
    struct kept_response kept;
    (void)err;
    if (kept_response_take(j->server, j->tenant, j->name, false, &kept, &j->err)) return JOB_REFUSED;
    const int rc = kept_response_tell(j->server, j->name, &kept, &j->out, &j->err);
    kept_response_fini(&kept);
    return rc ? JOB_REFUSED : 0;
}

static int run_items(struct job *j, struct rod_error *err) {
    struct kept_response kept;
    const struct responses_page page = {j->page.limit, j->page.rising, *j->page.after ? j->page.after : NULL};
    (void)err;
    if (kept_response_take(j->server, j->tenant, j->name, true, &kept, &j->err)) return JOB_REFUSED;
    const bool shown = responses_render_input_items(&j->out, j->name, kept.request.input, &page, &j->err);
    kept_response_fini(&kept);
    return shown ? 0 : JOB_REFUSED;
}

int response_routes_delete(struct job *j, struct rod_error *err) {
    const int rc = rod_session_delete(j->server->engine, j->tenant, j->name, err);
    if (!rc) api_render_deleted(&j->out, "response", j->name);
    if (rc == ROD_ENOTFOUND) snprintf(err->message, sizeof err->message, "There is no response %s.", j->name);
    return rc;
}

/* What is to be shown beside the texts, as in the body of a POST: there is no reasoning to show. */
static bool check_include(struct http_call *call) {
    static const char *const names[] = {"include", "include[]"};
    for (size_t i = 0; i < 2; i++) {
        const char *other = http_query_other(call->http, names[i], "reasoning.encrypted_content");
        if (!other) continue;
        http_call_invalid(call, 400, "", "include",
                          "include is not available with '%.60s': only reasoning.encrypted_content passes.", other);
        return false;
    }
    return true;
}

void response_routes_get(struct http_call *call) {
    const char *stream = http_query_other(call->http, "stream", "false");
    if (stream) {
        http_call_invalid(call, 400, "", "stream", "stream must be false: a response that is kept comes whole.");
        return;
    }
    struct job *j = check_include(call) ? job_new_named(call, run_get, false) : NULL;
    if (j) job_start(j, true);
}

void response_routes_items(struct http_call *call) {
    const char *order = http_query(call->http, "order");
    struct job_page page = {.limit = ITEMS_DEFAULT, .rising = order && !strcmp(order, "asc")};
    if (!job_take_page(call, ITEMS_MAX, "an item", &page) || !check_include(call)) return;
    if (order && !page.rising && strcmp(order, "desc") != 0) {
        http_call_invalid(call, 400, "", "order", "order must be asc or desc.");
        return;
    }
    struct job *j = job_new_named(call, run_items, false);
    if (!j) return;
    j->page = page;
    job_start(j, true);
}
