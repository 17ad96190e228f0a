/* access.c - who may call, and from where: keys, and pages of other origins (CORS). */
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

/* Where the library has read it, it would stay until other bytes come there. */
void access_forget(struct http_request *r) {
    http_wipe_header(r, "Authorization");
    http_wipe_header(r, "X-Api-Key");
}

/* An admin route takes the admin key, or any key where there is none. */
static bool admin_allowed(struct http_call *call, const char *given) {
    bool needed = false;
    return keys_is_admin(&call->server->keys, given, &needed) || (!needed && keys_open_to(&call->server->keys, given));
}

/* A name that the operator gave stays when the key is exchanged, and so do the sessions; a place in a list does not, so
 * there half of a SHA-256 names the key without telling it: it stands in the files of states. False if GnuTLS has none.
 */
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

/* A key may be closed for days, and its operator may open it any time: a client that is told to sleep so long would not
 * see it, and some take no number so large. */
enum { RETRY_MAX_S = 3600 };

void access_key_spent(struct openai_error *err, const struct key *key, uint64_t wait_s) {
    assert(wait_s && key->tokens_per_minute);
    openai_error_set(err, 429, "rate_limit", "key_tokens", "",
                     "This key has reached its limit of %llu tokens a minute.",
                     (unsigned long long)key->tokens_per_minute);
    err->retry_s = wait_s < RETRY_MAX_S ? wait_s : RETRY_MAX_S;
}

/* A state holds what a conversation was about, so any key will not do; and it is bytes that the engine goes on from.
 * Whose session it is says the header X-Tenant, as the admin key is nobody's. */
bool access_state(struct http_call *call) {
    struct keys *keys = &call->server->keys;
    const char *tenant = http_header(call->http, "X-Tenant");
    bool needed = false;
    keys_is_admin(keys, given_key(call), &needed);
    if (!needed && keys_any(keys)) {
        http_call_refuse(call, 403, "permission_error", "admin_key_missing", "",
                         "States require the admin key, and this server has none: set admin_key.");
        return false;
    }
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

/* The origin if it is one of the list; "*" where all are. */
static const char *allowed_origin(const struct http_call *call) {
    const struct option_list *origins = &call->server->config.cors_origins;
    const char *origin = http_header(call->http, "Origin");
    for (size_t i = 0; origin && i < origins->n_items; i++) {
        if (!strcmp(origins->items[i], "*")) return "*";
        if (!strcmp(origins->items[i], origin)) return origin;
    }
    return NULL;
}

/* Keys come in headers and never as cookies, so no Access-Control-Allow-Credentials. */
void access_cors(struct http_call *call) {
    if (!call->server->config.cors_origins.n_items) return;
    const char *origin = allowed_origin(call);
    http_add_header(call->http, "Vary", "Origin"); /* a cache must not give one origin's answer to another */
    if (!origin) return;
    http_add_header(call->http, "Access-Control-Allow-Origin", origin);
    http_add_header(call->http, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After, x-should-retry");
}

/* The server's own page names the host that it came from; behind a proxy that changes Host it looks foreign, too. */
bool access_foreign(const struct http_call *call) {
    const char *origin = http_header(call->http, "Origin"), *host = http_header(call->http, "Host");
    if (!origin || allowed_origin(call)) return false;
    const char *from = strstr(origin, "://");
    return !from || !host || strcasecmp(from + 3, host) != 0;
}

/* It carries no key, and names what the page is about to send. Any header may come, as the packages of OpenAI send a
 * dozen of their own (X-Stainless-...); the star stands for all but Authorization, and for nothing in old browsers. */
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
