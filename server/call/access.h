/* access.h - the right to call: API keys, and pages of other origins (CORS).
 *
 * Threads: that of the call's loop.
 */
#ifndef ACCESS_H
#define ACCESS_H

#include "http_call.h"

bool access_allowed(struct http_call *call, bool admin); /* else 401 is the answer. Sets call->key */
void access_key_spent(struct api_error *err, const struct key *key, uint64_t wait_s); /* no tokens left: 429 */
/* Takes what a call may use at most from its key's minute; else false with a 429. key NULL = no limit. */
bool access_take_tokens(struct key *key, uint64_t n_tok, struct key_tokens *taken, struct api_error *err);
void access_key_busy(struct api_error *err, const struct key *key); /* as many in flight as may be: 429 */
bool access_tenants(struct http_call *call);       /* after access_allowed, for routes of all tenants; else 403 */
bool access_choose_tenant(struct http_call *call); /* the header X-Tenant, for routes of states; else 404 */
void access_wipe_key(struct http_request *r);      /* wipes the key that the request brought, after the comparison */
void access_cors(struct http_call *call);          /* headers for a page of another origin */
bool access_preflight(struct http_call *call);     /* the call was a preflight and is answered */
bool access_foreign(
    const struct http_call *call); /* a page sent it that is neither of this server nor of a listed origin */

#endif
