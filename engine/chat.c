/* chat.c - the published chat format: <role>NAME</role>content for every message, nothing between them, and
 * <role>ASSISTANT</role> at the end as the place where the model goes on.
 *
 * Only the frame recognises special tokens; contents do not, so no content can open or close a role.
 */
#include "tokenizer.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The frame that opens a message of this OpenAI role; NULL = there is no such role. */
static const char *chat_frame(const char *role) {
    static const char *const frames[][2] = {{"system", "<role>SYSTEM</role>"},
                                            {"developer", "<role>SYSTEM</role>"},
                                            {"user", "<role>HUMAN</role>"},
                                            {"assistant", "<role>ASSISTANT</role>"},
                                            {"tool", "<role>OBSERVATION</role>"}};
    for (size_t i = 0; role && i < sizeof frames / sizeof *frames; i++)
        if (!strcmp(role, frames[i][0])) return frames[i][1];
    return NULL;
}

static int chat_fail_at(struct rod_error *err, int rc, size_t i, const char *field) {
    if (err) snprintf(err->param, sizeof err->param, "messages[%zu].%s", i, field);
    return rc;
}

int chat_encode(const struct tokenizer *t, const struct rod_message *messages, size_t n_messages, int32_t **ids,
                size_t *n_ids, struct rod_error *err) {
    static const char last[] = "<role>ASSISTANT</role>";
    if (tokenizer_find(t, "<role>") < 0 || tokenizer_find(t, "</role>") < 0)
        return rod_fail(err, ROD_EUNSUPPORTED, "the model has no chat format: its tokenizer lacks <role> and </role>");
    if (n_messages > SIZE_MAX / 2 / sizeof(struct tokenizer_piece) - 1)
        return rod_fail(err, ROD_EINVALID, "too many messages");
    struct tokenizer_piece *pieces = malloc((2 * n_messages + 1) * sizeof *pieces);
    if (!pieces) return rod_fail(err, ROD_ENOMEM, "out of memory while rendering a chat");
    int rc = 0;
    for (size_t i = 0; i < n_messages; i++) {
        const struct rod_message *m = &messages[i];
        const char *frame = chat_frame(m->role);
        if (!frame) {
            rc = rod_fail(err, ROD_EINVALID,
                          "unknown role \"%.64s\": known are system, developer, user, assistant, tool",
                          m->role ? m->role : "");
            rc = chat_fail_at(err, rc, i, "role");
            break;
        }
        size_t len = m->content ? m->content_len : 0, bad = utf8_check(m->content, len);
        if (bad != len) {
            rc = rod_fail(err, ROD_EINVALID, "content of message %zu is not valid UTF-8: the byte at offset %zu", i,
                          bad);
            rc = chat_fail_at(err, rc, i, "content");
            break;
        }
        pieces[2 * i] = (struct tokenizer_piece){frame, strlen(frame), true};
        pieces[2 * i + 1] = (struct tokenizer_piece){len ? m->content : "", len, false};
    }
    pieces[2 * n_messages] = (struct tokenizer_piece){last, sizeof last - 1, true};
    if (!rc) rc = tokenizer_encode_pieces(t, pieces, 2 * n_messages + 1, ids, n_ids, err);
    free(pieces);
    return rc;
}
