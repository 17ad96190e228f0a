/* object_answer.c - see object_answer.h. */
#include "object_answer.h"
#include "object_credentials.h"
#include "object_url.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"

#include <curl/curl.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

/* ---- headers ---- */

struct piece {
    const char *at;
    size_t n;
};

static bool is_text(struct piece p, const char *text) { return p.n == strlen(text) && !memcmp(p.at, text, p.n); }

/* Decimal digits and nothing else. */
static bool piece_number(struct piece p, uint64_t *out) {
    uint64_t x = 0;
    if (!p.n || p.n > 19) return false;
    for (size_t i = 0; i < p.n; i++) {
        if (p.at[i] < '0' || p.at[i] > '9') return false;
        x = 10 * x + (uint64_t)(p.at[i] - '0');
    }
    *out = x;
    return true;
}

/* Printable ASCII as it is. */
static bool piece_copy(struct piece p, char *dst, size_t n_dst) {
    dst[0] = 0;
    if (p.n >= n_dst) return false;
    for (size_t i = 0; i < p.n; i++)
        if (p.at[i] < ' ' || p.at[i] > '~') return false;
    memcpy(dst, p.at, p.n);
    dst[p.n] = 0;
    return true;
}

static int64_t piece_date(struct piece p) {
    char text[64];
    const time_t t = piece_copy(p, text, sizeof text) ? curl_getdate(text, NULL) : -1;
    return t > 0 ? t : 0;
}

/* "bytes 0-99/1234": the last number. */
static void take_range(struct object_answer *a, struct piece value) {
    const char *slash = memchr(value.at, '/', value.n);
    uint64_t n;
    if (!slash) return;
    slash++;
    if (piece_number((struct piece){slash, value.n - (size_t)(slash - value.at)}, &n)) a->version.n_bytes = n;
}

static void take_header(struct object_answer *a, struct piece name, struct piece value) {
    const struct {
        const char *name;
        int what;
    } all[] = {{"etag", 'e'},
               {"content-length", 'l'},
               {"content-range", 'r'},
               {"last-modified", 'm'},
               {"date", 'd'},
               {"retry-after", 'a'},
               {"x-amz-meta-mark", 'k'},
               {"x-amz-meta-after", 'f'},
               {"x-amz-meta-start", 's'}};
    int what = 0;
    uint64_t n;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (name.n == strlen(all[i].name) && !strncasecmp(name.at, all[i].name, name.n)) what = all[i].what;
    if (what == 'e') {
        a->has_etag = true;
        a->etag_fits = value.n && piece_copy(value, a->version.etag, sizeof a->version.etag);
    } else if (what == 'l' && piece_number(value, &n)) {
        a->has_length = true;
        a->n_body = n;
        if (a->status != 206) a->version.n_bytes = n;
    } else if (what == 'r') {
        take_range(a, value);
    } else if (what == 'm') {
        a->version.modified_s = piece_date(value);
    } else if (what == 'd') {
        a->date_s = piece_date(value);
    } else if (what == 'a' && piece_number(value, &n)) {
        a->retry_after_s = n < 3600 ? (uint32_t)n : 3600;
    } else if (what == 'k') {
        piece_copy(value, a->mark, sizeof a->mark);
    } else if (what == 'f') {
        piece_copy(value, a->after, sizeof a->after);
    } else if (what == 's') {
        piece_copy(value, a->start, sizeof a->start);
    }
}

void object_start_text(const struct state_bytes *parts, size_t n_parts, char text[OBJECT_START_TEXT_BYTES]) {
    char bytes[OBJECT_START_BYTES];
    size_t n = 0;
    for (size_t i = 0; i < n_parts && n < sizeof bytes; i++) {
        const size_t left = sizeof bytes - n, n_more = parts[i].n < left ? parts[i].n : left;
        if (n_more) memcpy(bytes + n, parts[i].data, n_more);
        n += n_more;
    }
    snprintf(text, OBJECT_START_TEXT_BYTES, "%016llx", (unsigned long long)XXH3_64bits(bytes, n));
}

/* "HTTP/1.1 200 OK" */
static int status_of(struct piece line) {
    const char *space = memchr(line.at, ' ', line.n);
    uint64_t status;
    if (!space || (size_t)(space - line.at) + 4 > line.n) return 0;
    return piece_number((struct piece){space + 1, 3}, &status) && status >= 100 ? (int)status : 0;
}

static struct piece trimmed(const char *at, size_t n) {
    while (n && strchr(" \t\r\n", at[0])) at++, n--;
    while (n && strchr(" \t\r\n", at[n - 1])) n--;
    return (struct piece){at, n};
}

bool object_answer_header(struct object_answer *a, const char *line, size_t n) {
    const size_t n_headers = a->n_headers + n;
    const struct piece whole = trimmed(line, n);
    if (n_headers > OBJECT_MAX_HEADERS) return false;
    if (n > 5 && !memcmp(line, "HTTP/", 5)) {
        *a = (struct object_answer){.status = status_of(whole)};
    } else if (!whole.n) {
        a->is_complete = a->status >= 200; /* what came before is an interim answer */
    } else {
        const char *colon = memchr(whole.at, ':', whole.n);
        const size_t n_name = colon ? (size_t)(colon - whole.at) : 0;
        if (colon) take_header(a, (struct piece){whole.at, n_name}, trimmed(colon + 1, whole.n - n_name - 1));
    }
    a->n_headers = n_headers;
    return true;
}

enum object_verdict object_answer_verdict(const struct object_answer *a) {
    static const char *const renew[] = {"ExpiredToken",         "ExpiredTokenException", "InvalidToken",
                                        "TokenRefreshRequired", "InvalidAccessKeyId",    "SignatureDoesNotMatch"};
    if ((a->status >= 200 && a->status < 300) || a->status == 304) return a->code[0] ? OBJECT_AGAIN : OBJECT_DONE;
    if (a->status == 416) return OBJECT_DONE; /* of an empty object */
    if (a->status == 412) return OBJECT_LOST;
    if (a->status == 404) return strcmp(a->code, "NoSuchBucket") != 0 ? OBJECT_MISSING : OBJECT_REFUSED;
    if (a->status == 409 || a->status == 429 || a->status == 500 || (a->status >= 502 && a->status <= 504))
        return OBJECT_AGAIN;
    if (!strcmp(a->code, "RequestTimeout") || !strcmp(a->code, "SlowDown")) return OBJECT_AGAIN;
    for (size_t i = 0; i < sizeof renew / sizeof *renew; i++)
        if (!strcmp(a->code, renew[i])) return OBJECT_RENEW;
    return OBJECT_REFUSED;
}

bool object_answer_unsure(const struct object_answer *a) { return a->status == 500 || object_answer_gateway(a); }

/* ---- XML ---- */

/* What is read of a text, from `at` to `end`. */
struct xml {
    const char *at, *end;
};

/* *out: from behind the next "<NAME>" or "<NAME ...>" to its "</NAME>". No element that is asked for contains one of
 * its own name. false: there is no such element. */
static bool xml_find(struct xml in, const char *name, struct xml *out, const char **behind) {
    const size_t n = strlen(name);
    for (const char *at = in.at; (at = memchr(at, '<', (size_t)(in.end - at))); at++) {
        if ((size_t)(in.end - at) < n + 2 || memcmp(at + 1, name, n) != 0 || !strchr("> \t\r\n", at[n + 1])) continue;
        const char *open = memchr(at, '>', (size_t)(in.end - at));
        if (!open) return false;
        *out = (struct xml){open + 1, open + 1};
        for (const char *to = open + 1; (to = memchr(to, '<', (size_t)(in.end - to))); to++) {
            if ((size_t)(in.end - to) < n + 3 || to[1] != '/' || memcmp(to + 2, name, n) != 0 || to[n + 2] != '>')
                continue;
            out->end = to;
            if (behind) *behind = to + n + 3;
            return true;
        }
        return false;
    }
    return false;
}

/* &amp; and the like, and &#N; of one byte to four. Bytes written to dst [4], 0: no entity. */
static size_t xml_entity(const char **at, const char *end, char dst[4]) {
    static const struct {
        const char *name;
        char is;
    } all[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t n = strlen(all[i].name);
        if ((size_t)(end - *at) < n || memcmp(*at, all[i].name, n) != 0) continue;
        *at += n;
        dst[0] = all[i].is;
        return 1;
    }
    if (end - *at < 4 || (*at)[1] != '#') return 0;
    const char *p = *at + 2;
    const uint32_t base = *p == 'x' ? 16 : 10;
    uint32_t c = 0, n = 0;
    if (base == 16) p++;
    for (; p < end && n < 7; p++, n++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = *p ? strchr(digits, *p) : NULL;
        const uint32_t value = digit ? (uint32_t)(digit - digits) : UINT32_MAX;
        if (!digit || (base == 10 && value > 9)) break;
        c = c * base + (value > 15 ? value - 6 : value);
    }
    if (!n || p == end || *p != ';' || c < ' ' || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *at = p + 1;
    return utf8_encode(c, dst);
}

/* The text of an element. false: it holds elements, broken entities or more than there is room for. */
static bool xml_text(struct xml in, char *dst, size_t n_dst) {
    size_t n = 0;
    char entity[4];
    dst[0] = 0;
    while (in.at < in.end) {
        if (*in.at == '<' || !*in.at) return false;
        size_t n_more = 1;
        if (*in.at == '&') {
            n_more = xml_entity(&in.at, in.end, entity);
            if (!n_more) return false;
        } else {
            entity[0] = *in.at++;
        }
        if (n + n_more >= n_dst) return false;
        memcpy(dst + n, entity, n_more);
        n += n_more;
    }
    dst[n] = 0;
    return true;
}

static bool xml_child(struct xml in, const char *name, char *dst, size_t n_dst) {
    struct xml child;
    const bool found = xml_find(in, name, &child, NULL) && xml_text(child, dst, n_dst);
    if (!found) dst[0] = 0;
    return found;
}

/* Printable ASCII; the rest as '?', and what has no room is left out. */
static void tidy(char *text) {
    for (; *text; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}

void object_answer_error(struct object_answer *a, const char *xml, size_t n) {
    const struct xml all = {xml, xml + n};
    struct xml error;
    char message[1024];
    a->code[0] = a->message[0] = 0;
    if (!n || !xml_find(all, "Error", &error, NULL) || !xml_child(error, "Code", a->code, sizeof a->code)) return;
    if (!a->code[0]) snprintf(a->code, sizeof a->code, "Error");
    tidy(a->code);
    if (!xml_child(error, "Message", message, sizeof message)) return;
    tidy(message);
    snprintf(a->message, sizeof a->message, "%.159s", message);
}

static int no_list(struct rod_error *err, const char *why) {
    return rod_fail(err, ROD_EIO, "The object store's list of keys is at fault: %s.", why);
}

static int take_entry(struct xml entry, struct object_page *page, struct rod_error *err) {
    struct object_version version = {0};
    char key[sizeof page->last], text[64];
    uint64_t n;
    if (!xml_child(entry, "Key", key, sizeof key)) return no_list(err, "an entry has no key");
    if (strncmp(key, page->prefix, strlen(page->prefix)) != 0) return no_list(err, "a key has another prefix");
    if (strcmp(key, page->n_keys ? page->last : page->after) <= 0) return no_list(err, "keys are out of order");
    page->n_keys++;
    memcpy(page->last, key, strlen(key) + 1);
    if (!xml_child(entry, "Size", text, sizeof text) || !piece_number((struct piece){text, strlen(text)}, &n))
        return no_list(err, "an entry has no size");
    version.n_bytes = n;
    if (xml_child(entry, "LastModified", text, sizeof text)) version.modified_s = object_credentials_time(text);
    if (!xml_child(entry, "ETag", version.etag, sizeof version.etag)) version.etag[0] = 0;
    if (object_url_is_key(key)) page->found(page->arg, key + page->n_skip, &version);
    return 0;
}

int object_answer_list(const char *xml, size_t n, struct object_page *page, struct rod_error *err) {
    const struct xml all = {xml, xml + n};
    struct xml result, entry;
    const char *behind;
    char truncated[16];
    page->n_keys = 0;
    page->last[0] = 0;
    if (!n || !xml_find(all, "ListBucketResult", &result, NULL)) return no_list(err, "it has no ListBucketResult");
    if (!xml_child(result, "IsTruncated", truncated, sizeof truncated))
        return no_list(err, "it does not say whether it goes on");
    page->more = is_text((struct piece){truncated, strlen(truncated)}, "true");
    for (struct xml rest = result; xml_find(rest, "Contents", &entry, &behind); rest.at = behind) {
        const int rc = take_entry(entry, page, err);
        if (rc) return rc;
    }
    return page->more && !page->n_keys ? no_list(err, "it goes on and is empty") : 0;
}
