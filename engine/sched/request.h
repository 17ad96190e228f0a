/* request.h - what a request may ask for, and the events that answer it.
 *
 * Who owns what: an event is one block of memory with its text and tokens inside; whoever pulled it frees it.
 * Threads: any; pure but for malloc.
 */
#ifndef REQUEST_H
#define REQUEST_H

#include "mailbox.h"

/* The limits that keep one request's cost per token small beside the model's. */
#define REQUEST_MAX_STOP       64u
#define REQUEST_MAX_STOP_BYTES 16384u /* all stop strings together */
#define REQUEST_MAX_STOP_IDS   1024u
#define REQUEST_MAX_BAD_TOK    4096u /* all bad words together */

/* Checks ids, ranges and sizes; the error names the field. max_prompt_tok: 0 = no limit. */
int request_check(const struct rod_request *request, uint32_t V, uint64_t max_prompt_tok, struct rod_error *err);

struct event {
    struct mailbox_event link;
    struct rod_event pub;
};

/* A zeroed event with room for text_cap bytes (and the NUL), n_tokens tokens with n_top log-probabilities each, and
 * extra bytes (event_extra: the stop string). NULL without memory. */
struct event *event_new(size_t text_cap, size_t n_tokens, uint32_t n_top, size_t extra);
char *event_extra(struct event *event,
                  size_t extra); /* the last extra bytes of the block; the same extra as at event_new */
struct event *event_of_link(struct mailbox_event *link);
void event_free(struct event *event);
void events_free(struct mailbox_events *events); /* all that are in the list, which is empty then */

#endif
