/* info_routes.h - what clients and routers of other servers ask about the model, the tokenizer and the server.
 *
 * Threads: the loop thread.
 */
#ifndef INFO_ROUTES_H
#define INFO_ROUTES_H

#include "server/call/http_call.h"

/* False after a 503: the model is still loading. */
bool info_routes_loaded(struct http_call *call);
void info_routes_models(struct http_call *call);
void info_routes_model(struct http_call *call);
void info_routes_tokenizer(struct http_call *call);   /* vLLM's: for lm-evaluation-harness */
void info_routes_server(struct http_call *call);      /* SGLang's: for its router */
void info_routes_model_facts(struct http_call *call); /* likewise */

#endif
