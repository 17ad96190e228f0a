/* object_url.c - see object_url.h. */
#include "object_url.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <string.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

static const char *or_empty(const char *text) { return text ? text : ""; }

bool object_url_is_key(const char *key) {
    if (!*key || key[strspn(key, LETTERS "._/-")]) return false;
    for (const char *part = key;; part++) {
        const size_t n = strcspn(part, "/");
        if (!n || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
        part += n;
        if (!*part) return true;
    }
}

size_t object_url_encode(const char *text, char *dst, size_t n_dst) {
    size_t n = 0;
    for (; *text; text++) {
        const bool plain = strchr(LETTERS "-_.~", *text) != NULL;
        if (n + (plain ? 2 : 4) > n_dst) return 0;
        if (plain)
            dst[n++] = *text;
        else
            n += (size_t)snprintf(dst + n, 4, "%%%02X", (unsigned char)*text);
    }
    if (n < n_dst) dst[n] = 0;
    return n;
}

/* s3://BUCKET/PREFIX */
static int parse_place(const char *url, struct object_url *out, struct rod_error *err) {
    if (strncmp(url, "s3://", 5) != 0)
        return rod_fail_at(err, ROD_EINVALID, "state_url", "state_url is not of the form s3://BUCKET/PREFIX.");
    const char *bucket = url + 5, *prefix = bucket + strcspn(bucket, "/");
    const size_t n = (size_t)(prefix - bucket);
    if (n < 3 || n >= sizeof out->bucket || strspn(bucket, LETTERS "._-") < n || !strchr(LETTERS, bucket[0]))
        return rod_fail_at(err, ROD_EINVALID, "state_url", "state_url names no bucket: 3 to 63 of [A-Za-z0-9._-].");
    memcpy(out->bucket, bucket, n);
    out->bucket[n] = 0;
    size_t n_prefix = *prefix ? strlen(++prefix) : 0;
    if (n_prefix && prefix[n_prefix - 1] == '/') n_prefix--;
    if (n_prefix + 2 > sizeof out->prefix)
        return rod_fail_at(err, ROD_EINVALID, "state_url", "state_url has a prefix of more than 254 bytes.");
    memcpy(out->prefix, prefix, n_prefix);
    out->prefix[n_prefix] = 0;
    if (n_prefix && !object_url_is_key(out->prefix))
        return rod_fail_at(err, ROD_EINVALID, "state_url",
                           "state_url's prefix has other characters than [A-Za-z0-9._/-], or an empty part.");
    if (n_prefix) memcpy(out->prefix + n_prefix, "/", 2);
    return 0;
}

static int parse_region(const char *region, struct object_url *out, struct rod_error *err) {
    const size_t n = strlen(region);
    if (!n || n >= sizeof out->region || region[strspn(region, LETTERS "_-")])
        return rod_fail_at(err, ROD_EINVALID, "state_region", "state_region is not 1 to 63 of [A-Za-z0-9_-].");
    memcpy(out->region, region, n + 1);
    return 0;
}

/* scheme://host[:port], nothing behind it but a slash. */
static int parse_endpoint(const char *endpoint, const char **host, size_t *n_host, bool *is_tls,
                          struct rod_error *err) {
    const bool plain = !strncmp(endpoint, "http://", 7);
    *is_tls = !strncmp(endpoint, "https://", 8);
    if (!plain && !*is_tls)
        return rod_fail_at(err, ROD_EINVALID, "state_endpoint",
                           "state_endpoint begins with neither https:// nor http://.");
    *host = endpoint + (plain ? 7 : 8);
    *n_host = strcspn(*host, "/");
    const char *end = *host + *n_host;
    if (!*n_host || *n_host > 255 || strspn(*host, LETTERS ".:-_[]") < *n_host || (*end && end[1]))
        return rod_fail_at(err, ROD_EINVALID, "state_endpoint",
                           "state_endpoint is not scheme://HOST[:PORT] without user, path and query.");
    return 0;
}

/* A certificate of *.s3.amazonaws.com does not fit a bucket with a dot. */
static int is_virtual(const char *style, bool own_endpoint, const char *bucket, bool *out, struct rod_error *err) {
    if (!*style || !strcmp(style, "auto"))
        *out = !own_endpoint && !strchr(bucket, '.');
    else if (!strcmp(style, "virtual") || !strcmp(style, "path"))
        *out = style[0] == 'v';
    else
        return rod_fail_at(err, ROD_EINVALID, "state_style", "state_style is none of auto, path, virtual.");
    return 0;
}

int object_url_parse(const struct object_url_settings *settings, struct object_url *out, struct rod_error *err) {
    char aws[128];
    const char *endpoint = or_empty(settings->endpoint), *host = "";
    const bool own_endpoint = *endpoint != 0;
    size_t n_host = 0;
    bool virtual_host = false;
    *out = (struct object_url){0};
    int rc = parse_place(or_empty(settings->url), out, err);
    if (!rc) rc = parse_region(or_empty(settings->region), out, err);
    if (!rc && !own_endpoint) {
        snprintf(aws, sizeof aws, "https://s3.%s.amazonaws.com%s", out->region,
                 strncmp(out->region, "cn-", 3) ? "" : ".cn");
        endpoint = aws;
    }
    if (!rc) rc = parse_endpoint(endpoint, &host, &n_host, &out->is_tls, err);
    if (!rc) rc = is_virtual(or_empty(settings->style), own_endpoint, out->bucket, &virtual_host, err);
    if (rc) return rc;
    snprintf(out->base, sizeof out->base, "%s%s%s%.*s%s%s", out->is_tls ? "https://" : "http://",
             virtual_host ? out->bucket : "", virtual_host ? "." : "", (int)n_host, host, virtual_host ? "" : "/",
             virtual_host ? "" : out->bucket);
    return 0;
}
