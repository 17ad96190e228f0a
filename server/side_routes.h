/* side_routes.h - the handlers of the routes beside answers, for the table in routes.c. A job runs on the pool (job.h),
 * a handler of a call on the loop thread.
 */
#ifndef SIDE_ROUTES_H
#define SIDE_ROUTES_H

#include "server/call/job.h"

#define JSON "application/json"

/* ---- info_routes.c: what clients and routers of other servers ask about the model, the tokenizer and the server ----
 */
void info_routes_models(struct http_call *call);
void info_routes_model(struct http_call *call);
void info_routes_tokenizer(struct http_call *call);   /* vLLM's: for lm-evaluation-harness */
void info_routes_server(struct http_call *call);      /* SGLang's: for its router */
void info_routes_model_facts(struct http_call *call); /* likewise */

/* ---- text_routes.c: tokens of texts, texts of tokens ---- */
int text_routes_tokenize(struct job *j, struct rod_error *err);
int text_routes_detokenize(struct job *j, struct rod_error *err);
int text_routes_apply_template(struct job *j, struct rod_error *err);
int text_routes_count_message(struct job *j, struct rod_error *err);  /* POST /v1/messages/count_tokens */
int text_routes_count_response(struct job *j, struct rod_error *err); /* POST /v1/responses/input_tokens */

/* ---- response_routes.c: responses that are kept ---- */
void response_routes_get(struct http_call *call);
void response_routes_items(struct http_call *call); /* GET /v1/responses/{id}/input_items */
int response_routes_delete(struct job *j, struct rod_error *err);

/* ---- session_routes.c: sessions and their states; conversations ---- */
void session_routes_list(struct http_call *call);
int session_routes_create(struct job *j, struct rod_error *err);
int session_routes_fork(struct job *j, struct rod_error *err);
int session_routes_rewind(struct job *j, struct rod_error *err);
void session_routes_get(struct http_call *call);
int session_routes_change(struct job *j, struct rod_error *err);
void session_routes_delete(struct http_call *call);
int session_routes_finish(struct job *j, struct rod_error *err); /* of a conversation, as vllm-router asks */
int session_routes_export(struct job *j, struct rod_error *err);
int session_routes_import(struct job *j, struct rod_error *err);
size_t session_routes_state_max(const struct server *server); /* bytes of the largest state that is taken */

/* ---- prefix_routes.c: pinned prefixes, for the admin key ---- */
int prefix_routes_pin(struct job *j, struct rod_error *err);
int prefix_routes_get(struct job *j, struct rod_error *err);
int prefix_routes_list(struct job *j, struct rod_error *err);
int prefix_routes_unpin(struct job *j, struct rod_error *err);

#endif
