/* messages.h - Anthropic's messages, /v1/messages. A field that would change the answer and cannot be honoured is an
 * error that names it as Anthropic does.
 *
 * Threads: any, one at a time for an answer. Pure.
 */
#ifndef MESSAGES_H
#define MESSAGES_H

#include "server/api/form.h"

extern const struct answer_form messages_form;

int messages_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                   struct api_error *err);
/* Of /v1/messages/count_tokens, where max_tokens may be missing. */
int messages_parse_counted(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                           struct api_error *err);

#endif
