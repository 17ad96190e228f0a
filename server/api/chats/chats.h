/* chats.h - OpenAI's chats, /v1/chat/completions.
 *
 * Threads: any, one at a time for an answer. Pure.
 */
#ifndef CHATS_H
#define CHATS_H

#include "server/api/form.h"

extern const struct answer_form chats_form;

int chats_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                struct api_error *err);

#endif
