/* responses_session.c - a response is a session of its own, named by the response's id, that begins as a fork of the
 * session it goes on from. So any response can be continued any number of times. */
#include "responses.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

enum { ID_BYTES = 48 };

/* With an Idempotency-Key the id is made from the key: a repeated request finds the response of the first one. A
 * response that is not stored is not found: its request makes another one. */
static void choose_id(const struct api_session *s, const char *tenant, char id[ID_BYTES]) {
    uint64_t number[2] = {0};
    if (s->idempotency_key && !s->discard) {
        struct buf text = {0};
        buf_puts(&text, tenant);
        buf_putc(&text, '\n'); /* in no name and no key */
        buf_puts(&text, s->idempotency_key);
        const XXH128_hash_t hash = XXH3_128bits(text.data, text.len);
        number[0] = hash.high64;
        number[1] = hash.low64;
        buf_fini(&text);
    } else {
        getrandom(number, sizeof number, 0);
    }
    snprintf(id, ID_BYTES, "resp_%016llx%016llx", (unsigned long long)number[0], (unsigned long long)number[1]);
}

/* The answer of a stored response is kept for its id, where its client gives no key. */
int responses_join(struct api_request *q, const struct api_headers *h, struct api_error *err) {
    const struct api_fields p = {.err = err};
    struct api_session *s = &q->session;
    char id[ID_BYTES];
    assert(!q->answer_id && !s->id);
    if (!api_take_key(&p, s, h->idempotency_key)) return -1;
    choose_id(s, h->tenant, id);
    q->answer_id = strdup(id);
    if (!s->discard || s->from) s->id = strdup(id);
    if (!s->discard && !s->idempotency_key) s->idempotency_key = strdup(id);
    s->create = s->id != NULL;
    s->whole = s->id && !s->from;
    if (!api_join_conversation(&p, q, h)) return -1;
    if (q->answer_id && (s->id || (s->discard && !s->from)) && (s->idempotency_key || s->discard)) return 0;
    field_no_memory(&p);
    return -1;
}

void responses_session_fault(struct api_error *err, int code) {
    const char *field = NULL;
    if (code == ROD_ENOTFOUND) err->code = "previous_response_not_found";
    if (code == ROD_EVERSION) field = "expected_version";
    if (code == ROD_ENOTFOUND || code == ROD_ESTATE) field = "previous_response_id"; /* what the turn goes on from */
    if (field) snprintf(err->param, sizeof err->param, "%s", field);
}
