/* completion_calls.c - tools of a completion: the grammar that its answer follows, and the calls in what the model
 * says.
 */
#include "completion_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A tag that is a special token is seen only where special tokens are in the text. */
static int tag_is_special(const struct completion *c, bool *out, struct rod_error *err) {
    int32_t *ids;
    size_t n, len;
    int rc = rod_encode(c->server->engine, c->tags.open, strlen(c->tags.open), true, &ids, &n, err);
    if (rc) return rc;
    *out = false;
    for (size_t i = 0; i < n && !*out; i++) rod_token_bytes(c->server->engine, ids[i], &len, out);
    free(ids);
    return 0;
}

int completion_calls_open(struct completion *c, struct rod_error *err) {
    struct api_request *q = &c->request;
    struct api_grammar calls;
    assert(q->tools.n && !c->grammar);
    if (!rod_chat_call_tags(c->server->engine, &c->tags))
        return rod_fail_at(err, ROD_EUNSUPPORTED, "tools", "tools have no place in the model's chat format.");
    bool special;
    int rc = tag_is_special(c, &special, err);
    if (rc) return rc;
    if (special) q->keep_special = true;
    if (q->tools.choice != API_TOOLS_AUTO) /* stop strings are for text, and there will be none */
        while (q->n_stop) free(q->stop[--q->n_stop]);
    c->lazy = api_tools_lazy(q);
    if (!api_tools_grammar(q, &c->tags, &calls)) return rod_fail_no_memory(err);
    free(q->grammar.text);
    q->grammar = calls;
    return 0;
}

/* "call_" and 24 characters: of the answer's id and time, so that an answer given again has the same; and of the body,
 * as clients may repeat their request ids. */
static void call_id(const struct completion *c, const struct completion_choice *choice, size_t index, char *id) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    struct {
        char answer[SERVER_ID_BYTES];
        uint8_t digest[16];
        int64_t created;
        uint64_t choice, index;
    } from;
    memset(&from, 0, sizeof from);
    memcpy(from.answer, c->answer_id, sizeof from.answer);
    memcpy(from.digest, c->digest, sizeof from.digest);
    from.created = c->created_unix_s;
    from.choice = choice->index;
    from.index = index;
    XXH128_hash_t hash = XXH3_128bits(&from, sizeof from);
    memcpy(id, "call_", 5);
    for (int i = 0; i < 24; i++) {
        uint64_t *half = i < 12 ? &hash.high64 : &hash.low64;
        id[5 + i] = letters[*half % 32];
        *half /= 32;
    }
    id[29] = 0;
}

/* ---- the parts of the answer ---- */

/* The first chunk of an event has its log-probabilities and ids; the others have text alone. */
static void send_part(struct completion *c, struct completion_choice *choice, const struct api_part *part) {
    char id[API_CALL_ID_BYTES];
    struct api_call call = {.arguments = ""};
    struct api_choice plain = {.index = choice->index, .text = "", .stop_id = -1};
    struct api_choice *shown = choice->shown ? choice->shown : &plain;
    if (c->is_message) {
        if (part->kind == API_PART_CALL) call_id(c, choice, choice->split.n_calls - 1, id);
        completion_message_part(c, part, id);
        return;
    }
    if (part->kind == API_PART_TEXT) {
        shown->text = part->text;
        shown->text_len = part->len;
    } else {
        call.index = choice->split.n_calls - 1;
        shown->calls = &call;
        shown->n_calls = 1;
        if (part->kind == API_PART_CALL) {
            call_id(c, choice, call.index, id);
            call.id = id;
            call.name = part->name;
        } else {
            call.arguments = part->text;
            call.len = part->len;
        }
    }
    completion_push_chunk(c, choice, shown);
    *shown = (struct api_choice){.index = choice->index, .text = "", .stop_id = -1};
}

static void keep_part(struct completion *c, struct completion_choice *choice, const struct api_part *part) {
    char id[API_CALL_ID_BYTES];
    struct completion_item *call = choice->n_items ? &choice->items[choice->n_items - 1] : NULL;
    switch (part->kind) {
    case API_PART_TEXT: buf_add(&choice->text, part->text, part->len); break;
    case API_PART_CALL:
        call_id(c, choice, choice->split.n_calls - 1, id);
        completion_item_add(choice, part->name, id);
        break;
    case API_PART_ARGUMENTS:
        if (call) buf_add(&call->text, part->text, part->len);
        if (call && call->text.failed) choice->text.failed = true;
    }
}

static void respond_part(struct completion *c, const struct completion_choice *choice, const struct api_part *part) {
    char id[API_CALL_ID_BYTES];
    switch (part->kind) {
    case API_PART_TEXT: completion_response_text(c, part->text, part->len); break;
    case API_PART_CALL:
        call_id(c, choice, choice->split.n_calls - 1, id);
        completion_response_call(c, part->name, id);
        break;
    case API_PART_ARGUMENTS: completion_response_arguments(c, part->text, part->len);
    }
}

static void take_part(void *arg, const struct api_part *part) {
    struct completion_choice *choice = arg;
    struct completion *c = choice->completion;
    if (c->kind == API_RESPONSE)
        respond_part(c, choice, part);
    else if (c->stream)
        send_part(c, choice, part);
    else
        keep_part(c, choice, part);
}

void completion_calls_begin(struct completion *c, struct completion_choice *choice) {
    choice->split = (struct api_split){
        .tools = c->request.tools.n ? &c->request.tools : NULL, .tags = c->tags, .take = take_part, .arg = choice};
}

static void check_memory(struct completion_choice *choice) {
    if (!choice->split.held.failed) return;
    choice->text.failed = true;
    choice->completion->frame.failed = choice->completion->stream;
}

void completion_calls_push(struct completion_choice *choice, const char *text, size_t len, struct api_choice *shown) {
    choice->shown = shown;
    api_split_push(&choice->split, text, len);
    choice->shown = NULL;
    check_memory(choice);
}

void completion_calls_end(struct completion_choice *choice) {
    api_split_end(&choice->split, choice->reason == ROD_FINISH_LENGTH);
    check_memory(choice);
}

/* A call that a stop text has cut is not to be made. */
bool completion_called(const struct completion *c, const struct completion_choice *choice) {
    const struct api_split *s = &choice->split;
    return s->n_calls && s->whole && c->request.tools.choice != API_TOOLS_NAMED;
}

struct api_call *completion_calls_view(const struct completion_choice *choice) {
    struct api_call *calls = choice->n_items ? calloc(choice->n_items, sizeof *calls) : NULL;
    for (size_t i = 0; calls && i < choice->n_items; i++) {
        const struct completion_item *item = &choice->items[i];
        calls[i] = (struct api_call){.index = (uint32_t)i,
                                     .id = item->id,
                                     .name = item->name,
                                     .arguments = item->text.len ? item->text.data : "",
                                     .len = item->text.len};
    }
    return calls;
}
