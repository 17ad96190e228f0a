/* completion_grammar.c - the grammar that an answer follows, and that of the calls in it. It may take long to compile,
 * however short its text: on the pool. */
#include "completion_internal.h"
#include "engine/base/fail.h"
#include "engine/base/json_guard.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compiles the grammar of the answer. An error names the field. */
static int open_grammar(struct completion *c, struct rod_error *err) {
    const struct api_grammar *g = &c->request.grammar;
    struct rod_error fault = {0};
    if (!g->text) return 0;
    struct json_guard guard; /* a schema is JSON, which the engine reads */
    int rc = json_guard_open(&guard, g->len) ? ROD_ENOMEM : 0;
    if (!rc)
        rc = rod_grammar_open(c->server->engine, c->account.key ? c->account.key->index : 0, c->account.queue_share,
                              g->kind, g->text, g->len, &c->grammar, &fault);
    if (rc && guard.was_short) rc = ROD_ENOMEM; /* the schema may have been read before memory ran out; it is freed */
    json_guard_close(&guard);
    if (rc == ROD_ENOMEM) rod_fail_no_memory(&fault);
    if (rc == ROD_EINVALID) rod_fail(err, rc, "%s %.400s.", g->param, fault.message);
    if (rc && rc != ROD_EINVALID) *err = fault;
    if (rc) snprintf(err->param, sizeof err->param, "%s", g->param);
    return rc;
}

/* A tag that is a special token is seen only where special tokens are in the text. */
static int tag_is_special(const struct completion *c, bool *out, struct rod_error *err) {
    int32_t *ids;
    size_t n, len;
    int rc = rod_encode(c->server->engine, c->answer.tags.open, strlen(c->answer.tags.open), true, &ids, &n, err);
    if (rc) return rc;
    *out = false;
    for (size_t i = 0; i < n && !*out; i++) rod_token_bytes(c->server->engine, ids[i], &len, out);
    free(ids);
    return 0;
}

static int open_calls(struct completion *c, struct rod_error *err) {
    struct api_request *q = &c->request;
    struct api_grammar calls;
    assert(q->tools.n && !c->grammar);
    if (!rod_chat_call_tags(c->server->engine, &c->answer.tags))
        return rod_fail_at(err, ROD_EUNSUPPORTED, "tools", "tools have no place in the model's chat format.");
    bool special;
    int rc = tag_is_special(c, &special, err);
    if (rc) return rc;
    if (special) q->keep_special = true;
    if (q->tools.choice != API_TOOLS_AUTO) /* stop strings are for text, and there will be none */
        while (q->n_stop) free(q->stop[--q->n_stop]);
    c->way.lazy = api_tools_lazy(q);
    if (!api_tools_grammar(q, &c->answer.tags, &calls)) return rod_fail_no_memory(err);
    free(q->grammar.text);
    q->grammar = calls;
    return 0;
}

/* The beginning of an answer is text, so calls that are forced come whole behind it, and where a format holds for the
 * text no call comes any more. */
int completion_grammar_open(struct completion *c, struct rod_error *err) {
    const struct api_request *q = &c->request;
    const struct rod_message *last = q->n_messages ? &q->messages[q->n_messages - 1] : NULL;
    int rc = open_grammar(c, err);
    if (rc) return rc;
    const bool of_text = !q->tools.n || q->tools.choice == API_TOOLS_AUTO;
    if (c->grammar && of_text && q->end.go_on && last->content_len) c->way.begun = last;
    if (!q->tools.n) return 0;
    struct rod_grammar *content = c->grammar; /* it was checked: the grammar of calls takes it in */
    c->grammar = NULL;
    rc = open_calls(c, err);
    if (!rc) rc = open_grammar(c, err);
    if (!rc && c->way.begun) {
        rod_grammar_close(c->grammar);
        c->grammar = rod_grammar_ref(content);
    }
    rod_grammar_close(content);
    return rc;
}
