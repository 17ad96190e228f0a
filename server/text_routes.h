/* text_routes.h - jobs of the routes that make tokens of texts or texts of tokens. */
#ifndef TEXT_ROUTES_H
#define TEXT_ROUTES_H

#include "server/call/job.h"

int text_routes_tokenize(struct job *j, struct rod_error *err);
int text_routes_detokenize(struct job *j, struct rod_error *err);
int text_routes_apply_template(struct job *j, struct rod_error *err);
int text_routes_count_message(struct job *j, struct rod_error *err);  /* POST /v1/messages/count_tokens */
int text_routes_count_response(struct job *j, struct rod_error *err); /* POST /v1/responses/input_tokens */

#endif
