/* object_request.c - see object_request.h. */
#include "object_request.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *object_kind_name(enum object_kind kind) {
    static const char *const names[OBJECT_KINDS] = {"PUT", "GET", "HEAD", "DELETE", "COPY", "LIST"};
    return names[kind];
}

void object_request_wipe(struct object_request *r) { explicit_bzero(r, sizeof *r); }

__attribute__((format(printf, 2, 3))) static void add_line(struct object_request *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *line = r->text + r->n_text;
    const int n = vsnprintf(line, sizeof r->text - r->n_text, format, args);
    va_end(args);
    assert(n > 0 && (size_t)n < sizeof r->text - r->n_text && r->n_lines < OBJECT_MAX_LINES);
    r->lines[r->n_lines++] = line;
    r->n_text += (size_t)n + 1;
}

static bool is_etag(const char *etag) {
    const size_t n = strlen(etag);
    if (!n || n >= OBJECT_ETAG_BYTES) return false;
    for (size_t i = 0; i < n; i++)
        if (etag[i] < ' ' || etag[i] > '~') return false;
    return true;
}

static bool is_key(const struct object_url *url, const char *key) {
    return strlen(key) + strlen(url->prefix) <= OBJECT_MAX_KEY + sizeof url->prefix && strlen(key) <= OBJECT_MAX_KEY &&
           object_url_is_key(key);
}

static int make_list_url(const struct object_url *url, const struct object_ask *ask, struct object_request *out,
                         struct rod_error *err) {
    char prefix[OBJECT_MAX_KEY + sizeof url->prefix], name[3 * sizeof prefix], after[3 * 1100 + 1] = "";
    const int n = snprintf(prefix, sizeof prefix, "%s%s", url->prefix, ask->key);
    if (n < 0 || (size_t)n >= sizeof prefix) return rod_fail(err, ROD_EINVALID, "A prefix of keys is too long.");
    object_url_encode(prefix, name, sizeof name);
    if (*ask->after && !object_url_encode(ask->after, after, sizeof after))
        return rod_fail(err, ROD_EINVALID, "A key to begin behind is too long.");
    const int n_url = snprintf(out->url, sizeof out->url, "%s/?list-type=2&max-keys=%d%s%s%s%s", url->base, OBJECT_PAGE,
                               n ? "&prefix=" : "", n ? name : "", *after ? "&start-after=" : "", after);
    return n_url > 0 && (size_t)n_url < sizeof out->url
               ? 0
               : rod_fail(err, ROD_EINVALID, "A key to begin behind is too long.");
}

static int make_url(const struct object_url *url, const struct object_ask *ask, struct object_request *out,
                    struct rod_error *err) {
    if (ask->kind == OBJECT_LIST) return make_list_url(url, ask, out, err);
    if (!is_key(url, ask->key)) return rod_fail(err, ROD_EINVALID, "'%.100s' cannot be a key of an object.", ask->key);
    snprintf(out->url, sizeof out->url, "%s/%s%s", url->base, url->prefix, ask->key);
    return 0;
}

static void add_match(const struct object_ask *ask, struct object_request *out) {
    const size_t n = strlen(ask->etag);
    const bool bare = ask->is_bare && n > 2 && ask->etag[0] == '"' && ask->etag[n - 1] == '"';
    add_line(out, "If-Match: %.*s", (int)(bare ? n - 2 : n), ask->etag + bare);
}

static int add_condition(const struct object_ask *ask, struct object_request *out, struct rod_error *err) {
    const bool known = ask->kind == OBJECT_GET && ask->etag && *ask->etag;
    if ((known || ask->condition == OBJECT_IF_SAME) && !(ask->etag && is_etag(ask->etag)))
        return rod_fail(err, ROD_EINVALID, "An ETag is not 1 to %d printable characters.", OBJECT_ETAG_BYTES - 1);
    if (known) add_line(out, "If-None-Match: %s", ask->etag);
    if (ask->condition == OBJECT_IF_SAME) add_match(ask, out);
    if (ask->condition == OBJECT_IF_NEW) add_line(out, "If-None-Match: *");
    return 0;
}

static int add_copy(const struct object_url *url, const struct object_ask *ask, struct object_request *out,
                    struct rod_error *err) {
    if (!is_key(url, ask->from))
        return rod_fail(err, ROD_EINVALID, "'%.100s' cannot be a key of an object.", ask->from);
    add_line(out, "x-amz-copy-source: /%s/%s%s", url->bucket, url->prefix, ask->from);
    return 0;
}

int object_request_make(const struct object_url *url, const struct object_ask *ask, const char *token,
                        struct object_request *out, struct rod_error *err) {
    static const char *const methods[OBJECT_KINDS] = {"PUT", "GET", "HEAD", "DELETE", "PUT", "GET"};
    const bool writes = ask->kind == OBJECT_PUT || ask->kind == OBJECT_COPY;
    out->method = methods[ask->kind];
    out->n_lines = out->n_text = 0;
    int rc = make_url(url, ask, out, err);
    if (rc) return rc;
    add_line(out, "x-amz-content-sha256: %s", ask->payload ? ask->payload : OBJECT_NO_BODY);
    rc = add_condition(ask, out, err);
    if (!rc && ask->kind == OBJECT_COPY) rc = add_copy(url, ask, out, err);
    if (rc) return rc;
    if (ask->n_start) add_line(out, "Range: bytes=0-%llu", (unsigned long long)ask->n_start - 1);
    if (writes) add_line(out, "Content-Type: application/octet-stream");
    if (ask->kind == OBJECT_PUT) add_line(out, "x-amz-meta-mark: %s", ask->mark);
    if (ask->kind == OBJECT_PUT && ask->replaces) add_line(out, "x-amz-meta-after: %s", ask->replaces);
    if (ask->kind == OBJECT_PUT && ask->start) add_line(out, "x-amz-meta-start: %s", ask->start);
    if (writes && ask->encryption && *ask->encryption)
        add_line(out, "x-amz-server-side-encryption: %s", ask->encryption);
    if (*token) add_line(out, "x-amz-security-token: %s", token);
    return 0;
}
