/* completions.h - OpenAI's completions, /v1/completions: text that goes on.
 *
 * Threads: any, one at a time for an answer. Pure.
 */
#ifndef COMPLETIONS_H
#define COMPLETIONS_H

#include "server/api/form.h"

extern const struct answer_form completions_form;

int completions_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                      struct api_error *err);

#endif
