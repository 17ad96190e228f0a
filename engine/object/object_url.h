/* object_url.h - where an object lies: s3://BUCKET/PREFIX with an endpoint, as the URL of a key.
 *
 * Pure; any thread.
 */
#ifndef OBJECT_URL_H
#define OBJECT_URL_H

#include "engine/rodimus.h"

enum { OBJECT_URL_BYTES = 2048, OBJECT_REGION_BYTES = 64 };

struct object_url {
    char base[640]; /* of the bucket, without a slash at its end: "https://HOST/BUCKET", "https://BUCKET.HOST" */
    char bucket[64];
    char prefix[256]; /* ends with a slash, or is "" */
    char region[OBJECT_REGION_BYTES];
    bool is_tls;
};
struct object_url_settings {
    const char *url, *endpoint, *region, *style; /* NULL as ""; region: of AWS's own endpoint and of signatures */
};
/* ROD_EINVALID: param names the setting. */
int object_url_parse(const struct object_url_settings *settings, struct object_url *out, struct rod_error *err);

/* What keys and prefixes have: [A-Za-z0-9._/-] without empty parts, "." and "..". */
bool object_url_is_key(const char *key);
/* Each byte but [A-Za-z0-9._~-] as %XX; returns the length, 0 where there is no room. */
size_t object_url_encode(const char *text, char *dst, size_t n_dst);

#endif
