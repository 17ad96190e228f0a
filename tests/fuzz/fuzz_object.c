/* fuzz_object.c - what an object store answers and what its users write: the first byte says which parser. */
#include "engine/object/object_answer.h"
#include "engine/object/object_credentials.h"
#include "engine/object/object_url.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t room) {
    if (strnlen(text, room) == room) abort();
    for (; *text; text++)
        if (*text < ' ' || *text > '~') abort();
}

static void headers(const char *bytes, size_t n) {
    struct object_answer a = {0};
    for (size_t at = 0; at < n;) {
        const char *end = memchr(bytes + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - bytes) - at + 1 : n - at;
        if (!object_answer_header(&a, bytes + at, length)) return;
        at += length;
    }
    check_text(a.version.etag, sizeof a.version.etag);
    check_text(a.mark, sizeof a.mark);
    check_text(a.after, sizeof a.after);
    if (a.etag_fits && !a.version.etag[0]) abort();
}

static void error(const char *bytes, size_t n) {
    struct object_answer a = {.status = 400};
    object_answer_error(&a, bytes, n);
    check_text(a.code, sizeof a.code);
    check_text(a.message, sizeof a.message);
    object_answer_verdict(&a);
}

struct seen {
    char last[1200];
};
static void see(void *arg, const char *key, const struct object_version *version) {
    struct seen *s = arg;
    if (strcmp(key, s->last) <= 0 || strlen(key) >= sizeof s->last || strncmp(key, "f/", 2) != 0) abort();
    if (strnlen(version->etag, sizeof version->etag) == sizeof version->etag) abort();
    memcpy(s->last, key, strlen(key) + 1);
}
static void list(const char *bytes, size_t n) {
    struct seen seen = {0};
    struct rod_error err = {0};
    struct object_page page = {.prefix = "t/f/", .n_skip = 2, .after = "", .found = see, .arg = &seen};
    const int rc = object_answer_list(bytes, n, &page, &err);
    if (rc && (rc != ROD_EIO || !err.message[0])) abort();
    if (!rc && page.more && !page.n_keys) abort();
}

static void credentials(const char *bytes, size_t n) {
    struct object_credentials *c = calloc(1, sizeof *c);
    const char *wrong = object_credentials_parse(bytes, n, "default", c);
    if (!wrong && (!c->key_id[0] || !c->secret[0])) abort();
    check_text(c->key_id, sizeof c->key_id);
    check_text(c->secret, sizeof c->secret);
    check_text(c->token, sizeof c->token);
    free(c);
}

static void url(const char *bytes) {
    const struct object_url_settings settings = {bytes, bytes + strlen(bytes) + 1, "x", ""};
    struct object_url out;
    struct rod_error err = {0};
    if (object_url_parse(&settings, &out, &err) ? !err.param[0] : !out.base[0] || !out.bucket[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char *bytes = calloc(1, size + 1); /* two zeros behind a URL and its endpoint */
    memcpy(bytes, data + 1, size - 1);
    switch (data[0]) {
    case 'h': headers(bytes, size - 1); break;
    case 'e': error(bytes, size - 1); break;
    case 'l': list(bytes, size - 1); break;
    case 'c': credentials(bytes, size - 1); break;
    case 'u': url(bytes); break;
    default: break;
    }
    free(bytes);
    return 0;
}
