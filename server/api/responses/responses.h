/* responses.h - OpenAI's responses, /v1/responses: the answer is items, and its state is a session that others go on
 * from.
 *
 * Ownership: what is parsed owns its strings; its _fini frees them. Threads: any, one at a time for an answer. Pure,
 * but for the ids of responses.
 */
#ifndef RESPONSES_H
#define RESPONSES_H

#include "server/api/api_fields.h"
#include "server/api/form.h"

extern const struct answer_form responses_form;

int responses_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                    struct api_error *err);
int responses_join(struct api_request *request, const struct api_headers *headers, struct api_error *err);
void responses_session_fault(struct api_error *err, int code);
bool responses_keep(const struct api_fields *p, struct api_request *request); /* fills session.kept */

/* ---- what a stored response keeps of its request (responses_kept.c) ---- */

struct responses_kept {
    struct buf echo;
    struct api_tools tools; /* that the model has read */
    json_t *input;          /* an array of items; what is no array has none */
};
/* Of text [len], session.kept. input: its items are wanted, else they may be missing. 0, or -1 with err filled. */
int responses_parse_kept(const char *text, size_t len, bool input, struct responses_kept *out, struct api_error *err);
void responses_kept_fini(struct responses_kept *kept);

struct responses_page { /* of a list */
    size_t limit;
    bool rising;       /* in the order of the input; else the last item first */
    const char *after; /* the id of an item; NULL = from the beginning */
};
/* The list of these items. False, with err filled: `after` names no item. */
bool responses_render_input_items(struct buf *out, const char *response, const json_t *input,
                                  const struct responses_page *page, struct api_error *err);

#endif
