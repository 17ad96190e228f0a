/* kept_response.h - a stored response as its session has kept it: shown again, and its items for requests that name
 * them. Waits for files. Any thread.
 */
#ifndef KEPT_RESPONSE_H
#define KEPT_RESPONSE_H

#include "server/api/responses/responses.h"
#include "server/call/server.h"

struct kept_response { /* owns what it has */
    struct rod_answer answer;
    struct responses_kept request;
};
/* input: the items of its request are wanted. 0, or -1 with err filled: there is none, its texts are not kept, or they
 * are damaged. */
int kept_response_take(struct server *server, const char *tenant, const char *id, bool input, struct kept_response *out,
                       struct api_error *err);
/* The answer once more, by the code that made it; takes the request's echo and tools. 0, or -1 with err filled. */
int kept_response_tell(struct server *server, const char *id, struct kept_response *kept, struct buf *out,
                       struct api_error *err);
void kept_response_fini(struct kept_response *kept);
/* What api_stored asks for; server: a struct server. */
json_t *kept_response_items(void *server, const char *tenant, const char *id, bool input, struct api_error *err);

#endif
