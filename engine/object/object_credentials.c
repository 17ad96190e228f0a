/* object_credentials.c - see object_credentials.h. */
#include "object_credentials.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20 };

static struct object_credentials *credentials_make(void) {
    struct object_credentials *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED) return NULL;
    madvise(c, sizeof *c, MADV_DONTDUMP);
    atomic_init(&c->n_references, 1);
    return c;
}

struct object_credentials *object_credentials_ref(struct object_credentials *c) {
    atomic_fetch_add(&c->n_references, 1);
    return c;
}

void object_credentials_unref(struct object_credentials *c) {
    if (!c || atomic_fetch_sub(&c->n_references, 1) != 1) return;
    explicit_bzero(c, sizeof *c);
    munmap(c, sizeof *c);
}

int64_t object_credentials_time(const char *text) {
    struct tm t = {0};
    int n = 0;
    if (strlen(text) < 20 ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min, &t.tm_sec,
               &n) != 6 ||
        n != 19)
        return 0;
    const char *rest = text + 19;
    if (*rest == '.') rest += 1 + strspn(rest + 1, "0123456789");
    if (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0) return 0;
    if (t.tm_year < 1970 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31 || t.tm_hour < 0 ||
        t.tm_hour > 23 || t.tm_min < 0 || t.tm_min > 59 || t.tm_sec < 0 || t.tm_sec > 60)
        return 0;
    t.tm_year -= 1900;
    t.tm_mon--;
    return timegm(&t);
}

/* ---- a file's text ---- */

struct piece {
    const char *at;
    size_t n;
};
static struct piece trim(struct piece p) {
    while (p.n && strchr(" \t\r", p.at[0])) p.at++, p.n--;
    while (p.n && strchr(" \t\r", p.at[p.n - 1])) p.n--;
    return p;
}
static bool is_word(struct piece p, const char *word) { return p.n == strlen(word) && !memcmp(p.at, word, p.n); }

/* "[NAME]", in AWS's other file "[profile NAME]". */
static bool is_profile(struct piece line, const char *profile) {
    if (line.n < 2 || line.at[line.n - 1] != ']') return false;
    struct piece name = trim((struct piece){line.at + 1, line.n - 2});
    if (name.n > 8 && !memcmp(name.at, "profile ", 8)) name = trim((struct piece){name.at + 8, name.n - 8});
    return is_word(name, profile);
}

/* A value of a header: printable, without spaces. */
static bool keep(struct piece value, char *dst, size_t n_dst) {
    if (value.n >= n_dst) return false;
    for (size_t i = 0; i < value.n; i++)
        if (value.at[i] < '!' || value.at[i] > '~') return false;
    memcpy(dst, value.at, value.n);
    dst[value.n] = 0;
    return true;
}

static const char *take_value(struct piece name, struct piece value, struct object_credentials *out) {
    char when[64];
    if (is_word(name, "aws_access_key_id"))
        return keep(value, out->key_id, sizeof out->key_id) ? NULL : "its aws_access_key_id is not one word";
    if (is_word(name, "aws_secret_access_key"))
        return keep(value, out->secret, sizeof out->secret) ? NULL : "its aws_secret_access_key is not one word";
    if (is_word(name, "aws_session_token") || is_word(name, "aws_security_token"))
        return keep(value, out->token, sizeof out->token) ? NULL : "its aws_session_token is not one word";
    if (is_word(name, "aws_expiration") || is_word(name, "expiration") || is_word(name, "x_security_token_expires")) {
        out->expires_s = keep(value, when, sizeof when) ? object_credentials_time(when) : 0;
        return out->expires_s ? NULL : "its time of expiry is not like 2026-11-29T00:55:05Z";
    }
    return NULL;
}

const char *object_credentials_parse(const char *text, size_t n, const char *profile, struct object_credentials *out) {
    bool inside = false, found = false;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - text) - at : n - at;
        const struct piece line = trim((struct piece){text + at, length});
        at += length + 1;
        if (!line.n || line.at[0] == '#' || line.at[0] == ';') continue;
        if (line.at[0] == '[') {
            inside = is_profile(line, profile);
            found |= inside;
            continue;
        }
        const char *equals = memchr(line.at, '=', line.n);
        if (!inside || !equals) continue;
        const size_t n_name = (size_t)(equals - line.at);
        const char *wrong = take_value(trim((struct piece){line.at, n_name}),
                                       trim((struct piece){equals + 1, line.n - n_name - 1}), out);
        if (wrong) return wrong;
    }
    if (!found) return "it has no such profile";
    if (!out->key_id[0]) return "it has no aws_access_key_id";
    return out->secret[0] ? NULL : "it has no aws_secret_access_key";
}

/* ---- where they are ---- */

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static int fail_at_credentials(struct rod_error *err, const char *path, const char *why) {
    return rod_fail_at(err, ROD_EINVALID, "state_credentials", "%.200s: %s.", path, why);
}

static int load_file(const char *path, struct object_credentials *c, struct rod_error *err) {
    struct file_bytes bytes;
    const char *profile = environment("AWS_PROFILE");
    const enum file_verdict verdict = file_read(path, FILE_ANY_KIND, FILE_MAX, &bytes);
    if (verdict == FILE_NO_MEMORY) return rod_fail_no_memory(err);
    if (verdict != FILE_READ)
        return fail_at_credentials(err, path,
                                   verdict == FILE_TOO_LARGE ? "it is larger than 1 MiB"
                                   : verdict == FILE_MISSING ? "there is no such file"
                                                             : "it cannot be read");
    const char *wrong = object_credentials_parse(bytes.data, bytes.n, *profile ? profile : "default", c);
    file_wipe(&bytes);
    c->from_file = true;
    return wrong ? fail_at_credentials(err, path, wrong) : 0;
}

static int load_environment(struct object_credentials *c, struct rod_error *err) {
    const struct {
        const char *name;
        char *dst;
        size_t n;
    } all[] = {{"AWS_ACCESS_KEY_ID", c->key_id, sizeof c->key_id},
               {"AWS_SECRET_ACCESS_KEY", c->secret, sizeof c->secret},
               {"AWS_SESSION_TOKEN", c->token, sizeof c->token}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *value = environment(all[i].name);
        if (!keep((struct piece){value, strlen(value)}, all[i].dst, all[i].n))
            return fail_at_credentials(err, all[i].name, "it is not one word");
    }
    return 0;
}

static int load_into(const char *file, struct object_credentials *c, struct rod_error *err) {
    char path[4096];
    if (*file) return load_file(file, c, err);
    if (*environment("AWS_ACCESS_KEY_ID") && *environment("AWS_SECRET_ACCESS_KEY")) return load_environment(c, err);
    if (*environment("AWS_SHARED_CREDENTIALS_FILE"))
        return load_file(environment("AWS_SHARED_CREDENTIALS_FILE"), c, err);
    const int n = snprintf(path, sizeof path, "%s/.aws/credentials", environment("HOME"));
    if (n >= (int)sizeof path) return fail_at_credentials(err, "HOME", "it is too long");
    const int rc = load_file(path, c, err);
    if (rc && access(path, F_OK))
        return rod_fail_at(
            err, ROD_EINVALID, "state_credentials",
            "state_url needs credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, state_credentials, "
            "or ~/.aws/credentials.");
    return rc;
}

int object_credentials_load(const char *file, struct object_credentials **out, struct rod_error *err) {
    *out = credentials_make();
    if (!*out) return rod_fail_no_memory(err);
    const int rc = load_into(file, *out, err);
    if (rc) object_credentials_unref(*out);
    if (rc) *out = NULL;
    return rc;
}
