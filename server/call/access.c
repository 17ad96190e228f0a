/* access.c - the right to call: API keys, and pages of other origins (CORS). */
#include "access.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <gnutls/crypto.h>

/* ---- keys ---- */

static const char *given_key(const struct http_call *call) {
    const char *given = http_header(call->http, "Authorization");
    if (given && !strncasecmp(given, "Bearer ", 7)) return given + 7;
    return http_header(call->http, "X-Api-Key");
}

/* Wipes the key where the library has read it: the bytes would stay until others come there. */
void access_wipe_key(struct http_request *r) {
    http_wipe_header(r, "Authorization");
    http_wipe_header(r, "X-Api-Key");
}

/* An admin route takes the admin key, or any key where no admin key is set. */
static bool admin_allowed(struct http_call *call, const char *given) {
    bool needed = false;
    return keys_is_admin(&call->server->keys, given, &needed) || (!needed && keys_open_to(&call->server->keys, given));
}

/* A key with a name: the name, so that its sessions survive an exchange of the key. A key without one: half of a
 * SHA-256 of the key, as its place in a list may change and the tenant stands in the files of states. False if GnuTLS
 * has no SHA-256. */
static bool choose_tenant(struct http_call *call) {
    if (call->key->named) {
        snprintf(call->tenant, sizeof call->tenant, "name-%s", call->key->name);
        return true;
    }
    uint8_t digest[32];
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, call->key->secret, strlen(call->key->secret), digest) < 0) return false;
    int n = snprintf(call->tenant, sizeof call->tenant, "key-");
    for (size_t i = 0; i < 16; i++) n += snprintf(call->tenant + n, sizeof call->tenant - (size_t)n, "%02x", digest[i]);
    return true;
}

static bool user_allowed(struct http_call *call, const char *given) {
    struct keys *keys = &call->server->keys;
    if (!keys->n) return true;
    assert(!call->key && server_on_loop(call->server)); /* keys are found on the loop thread */
    call->key = keys_find(keys, given);
    if (!call->key) return false;
    key_hold(call->key);
    return choose_tenant(call);
}

bool access_allowed(struct http_call *call, bool admin) {
    const char *given = given_key(call);
    if (admin ? admin_allowed(call, given) : user_allowed(call, given)) return true;
    http_call_refuse(call, 401, "authentication_error", "invalid_api_key", "", "%s",
                     admin ? "This route requires the admin key: send Authorization: Bearer KEY."
                           : "A valid API key is required: send Authorization: Bearer KEY.");
    return false;
}

/* A key may be closed for days, and its operator may open it any time. A client that sleeps for days would not see
 * that, and some clients take no number so large. */
enum { RETRY_MAX_S = 3600 };

void access_key_spent(struct api_error *err, const struct key *key, uint64_t wait_s) {
    assert(wait_s && key->tokens_per_minute);
    api_error_set(err, 429, "rate_limit", "key_tokens", "", "This key has reached its limit of %llu tokens a minute.",
                  (unsigned long long)key->tokens_per_minute);
    err->retry_s = wait_s < RETRY_MAX_S ? wait_s : RETRY_MAX_S;
}

void access_key_busy(struct api_error *err, const struct key *key) {
    api_error_set(err, 429, "rate_limit", "key_requests", "",
                  "This key has reached its limit of %llu requests in flight.", (unsigned long long)key->max_requests);
    err->retry_s = 1;
}

bool access_take_tokens(struct key *key, uint64_t n_tok, struct key_tokens *taken, struct api_error *err) {
    const uint64_t wait_s = key ? key_take(key, n_tok, uv_hrtime(), taken) : 0;
    if (wait_s) access_key_spent(err, key, wait_s);
    return !wait_s;
}

/* What is of all tenants, such as the content of their conversations, or bytes that the engine continues from: the
 * admin key alone opens it. */
bool access_tenants(struct http_call *call) {
    struct keys *keys = &call->server->keys;
    bool needed = false;
    keys_is_admin(keys, given_key(call), &needed);
    if (needed || !keys_any(keys)) return true;
    http_call_refuse(call, 403, "permission_error", "admin_key_missing", "",
                     "This route requires the admin key, and this server has none: set admin_key.");
    return false;
}

/* The admin key has no tenant of its own: the header X-Tenant names the tenant. */
bool access_choose_tenant(struct http_call *call) {
    const char *tenant = http_header(call->http, "X-Tenant");
    if (!tenant || !*tenant) return true;
    const size_t n = strlen(tenant);
    if (n + sizeof "name-" > sizeof call->tenant) {
        http_call_invalid(call, 404, "not_found", "X-Tenant", "X-Tenant is the name of no key.");
        return false;
    }
    snprintf(call->tenant, sizeof call->tenant, "name-%s", tenant);
    return true;
}

/* ---- pages of other origins ---- */

/* The origin if it is listed; "*" where all are; else NULL. */
static const char *allowed_origin(const struct http_call *call) {
    const struct option_list *origins = &call->server->config.cors_origins;
    const char *origin = http_header(call->http, "Origin");
    for (size_t i = 0; origin && i < origins->n_items; i++) {
        if (!strcmp(origins->items[i], "*")) return "*";
        if (!strcmp(origins->items[i], origin)) return origin;
    }
    return NULL;
}

/* Keys come in headers and never in cookies: Access-Control-Allow-Credentials is not needed. */
void access_cors(struct http_call *call) {
    if (!call->server->config.cors_origins.n_items) return;
    const char *origin = allowed_origin(call);
    http_add_header(call->http, "Vary", "Origin"); /* a cache must not give one origin's answer to another */
    if (!origin) return;
    http_add_header(call->http, "Access-Control-Allow-Origin", origin);
    http_add_header(call->http, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After, x-should-retry");
}

/* The server's own page has the Origin of its Host. Behind a proxy that changes Host it looks foreign. */
bool access_foreign(const struct http_call *call) {
    const char *origin = http_header(call->http, "Origin"), *host = http_header(call->http, "Host");
    if (!origin || allowed_origin(call)) return false;
    const char *from = strstr(origin, "://");
    return !from || !host || strcasecmp(from + 3, host) != 0;
}

/* A preflight carries no key, and names what the page is about to send. Any header may come: the packages of OpenAI
 * send a dozen of their own (X-Stainless-...). The star stands for all but Authorization, and for nothing in old
 * browsers. */
bool access_preflight(struct http_call *call) {
    if (strcmp(http_method(call->http), "OPTIONS") != 0 || !http_header(call->http, "Access-Control-Request-Method") ||
        !allowed_origin(call))
        return false;
    http_add_header(call->http, "Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE");
    char headers[320];
    snprintf(headers, sizeof headers,
             "Authorization, Content-Type, X-Api-Key, X-Request-Id, Idempotency-Key, %.200s, *",
             call->server->config.session_header);
    http_add_header(call->http, "Access-Control-Allow-Headers", headers);
    http_add_header(call->http, "Access-Control-Max-Age", "600");
    http_respond(call->http, 204, NULL, "", 0);
    return true;
}
