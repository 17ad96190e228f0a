/* keys.c - see keys.h. */
#include "keys.h"

#include "server/base/file_text.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char name_letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";

/* ---- reading ---- */

struct reading { /* a list being made; then it takes the place of the old one */
    struct key **list;
    size_t n, cap;
    struct option_error *err;
};

static int reading_fail(struct reading *r, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int reading_fail(struct reading *r, const char *where, const char *format, ...) {
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(r->err->message, sizeof r->err->message, "%s: %s.", where, what);
    return -1;
}

static void secret_free(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    free(secret);
}

static void key_free(struct key *key) {
    if (!key) return;
    secret_free(key->secret);
    free(key);
}

static void reading_fini(struct reading *r) {
    for (size_t i = 0; i < r->n; i++) key_free(r->list[i]);
    free(r->list);
}

static int add_key(struct reading *r, const char *secret, size_t len, const char *where, struct key **out) {
    if (r->n == KEYS_MAX) return reading_fail(r, where, "more than 1000 keys");
    if (len > KEYS_SECRET_MAX) return reading_fail(r, where, "the key has more than 256 bytes");
    for (size_t i = 0; i < r->n; i++) {
        if (strlen(r->list[i]->secret) == len && !memcmp(r->list[i]->secret, secret, len))
            return reading_fail(r, where, "the key appears twice");
    }
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 8;
        struct key **grown = realloc(r->list, cap * sizeof(struct key *));
        if (!grown) return reading_fail(r, where, "out of memory");
        r->list = grown;
        r->cap = cap;
    }
    struct key *key = calloc(1, sizeof *key);
    if (key) key->secret = strndup(secret, len);
    if (!key || !key->secret) {
        key_free(key);
        return reading_fail(r, where, "out of memory");
    }
    key->priority = 1;
    r->list[r->n++] = key;
    snprintf(key->name, sizeof key->name, "key-%zu", r->n);
    *out = key;
    return 0;
}

static int set_number(struct reading *r, const char *where, const char *field, const char *text, uint64_t low,
                      uint64_t high, uint64_t *out) {
    errno = 0;
    const uint64_t value = strtoull(text, NULL, 10);
    const bool good = *text && strspn(text, "0123456789") == strlen(text) && !errno && value >= low && value <= high;
    if (good) *out = value;
    return good ? 0
                : reading_fail(r, where, "%s = '%.40s' must be a whole number, %llu to %llu", field, text,
                               (unsigned long long)low, (unsigned long long)high);
}

static int set_field(struct reading *r, struct key *key, const char *where, char *word) {
    uint64_t priority = key->priority;
    const struct {
        const char *name;
        uint64_t low, high, *value;
    } numbers[] = {{"requests", 0, 1000000, &key->max_requests},
                   {"tokens_per_minute", 0, 1000000000000, &key->tokens_per_minute},
                   {"sessions", 0, 1000000000, &key->max_sessions},
                   {"priority", 1, 100, &priority}};
    char *value = strchr(word, '=');
    if (!value) return reading_fail(r, where, "a field behind the key must have the form name=value");
    *value++ = 0;
    if (!strcmp(word, "name")) {
        if (!*value || strlen(value) >= sizeof key->name || strspn(value, name_letters) != strlen(value))
            return reading_fail(r, where, "name must be 1 to 47 of A-Z a-z 0-9 . _ -");
        memcpy(key->name, value, strlen(value) + 1);
        key->named = true;
        return 0;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(word, numbers[i].name) != 0) continue;
        const int rc = set_number(r, where, word, value, numbers[i].low, numbers[i].high, numbers[i].value);
        key->priority = (uint32_t)priority;
        return rc;
    }
    /* without the word: it may be a key in the wrong place */
    return reading_fail(r, where,
                        "unknown field; the fields are name, requests, tokens_per_minute, sessions, priority");
}

static int read_line(struct reading *r, char *line, const char *where) {
    static const char blanks[] = " \t\r\n";
    char *rest = line + strspn(line, blanks);
    if (!*rest || *rest == '#') return 0;
    size_t len = strcspn(rest, blanks);
    struct key *key;
    for (size_t i = 0; i < len; i++) /* no header carries them, so the key would never fit */
        if ((unsigned char)rest[i] < ' ' || rest[i] == 0x7f)
            return reading_fail(r, where, "the key contains a control character");
    if (add_key(r, rest, len, where, &key)) return -1;
    rest += len;
    while (*(rest += strspn(rest, blanks))) {
        char *word = rest;
        rest += strcspn(rest, blanks);
        if (*rest) *rest++ = 0;
        if (set_field(r, key, where, word)) return -1;
    }
    return 0;
}

static int read_lines(struct reading *r, char *text, size_t len, const char *path) {
    char where[256], *at = text + (strncmp(text, "\xef\xbb\xbf", 3) ? 0 : 3); /* of UTF-8, by some editors */
    for (unsigned number = 1; at < text + len; number++) {
        char *end = memchr(at, '\n', (size_t)(text + len - at));
        if (!end) end = text + len;
        *end = 0;
        snprintf(where, sizeof where, "api_key_file %s line %u", path, number);
        if (at + strlen(at) != end) return reading_fail(r, where, "zero byte; the file must be ASCII or UTF-8");
        if (read_line(r, at, where)) return -1;
        at = end + 1;
    }
    return 0;
}

static int read_file(struct reading *r, const char *path) {
    char what[400];
    struct file_bytes text;
    const size_t before = r->n;
    if (file_text(path, &text, what, sizeof what)) return reading_fail(r, "api_key_file", "%s", what);
    const int rc = read_lines(r, text.data, text.n, path);
    file_wipe(&text);
    if (rc || r->n > before) return rc;
    return reading_fail(r, "api_key_file", "%.380s contains no key", path);
}

static int check_names(struct reading *r) {
    for (size_t i = 0; i < r->n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (!strcmp(r->list[i]->name, r->list[j]->name))
                return reading_fail(r, "api_key_file", "two keys are named '%s'", r->list[i]->name);
        }
    }
    return 0;
}

/* The admin key opens what the others must not, and a key would open what the admin key must not. */
static int check_admin(struct reading *r, const char *admin) {
    if (strlen(admin) > KEYS_SECRET_MAX) return reading_fail(r, "admin_key", "the key has more than 256 bytes");
    for (size_t i = 0; *admin && i < r->n; i++) {
        if (!strcmp(r->list[i]->secret, admin))
            return reading_fail(r, "admin_key", "equals the API key '%s'; give the admin key a value of its own",
                                r->list[i]->name);
    }
    return 0;
}

/* A file that was written without its secrets would disable authentication. At the start an operator sees that. */
static int check_last(struct reading *r, const struct keys *k, const char *admin) {
    if (k->n && !r->n)
        return reading_fail(r, "api_keys",
                            "reload would remove the last API key and disable authentication; restart to do that");
    if (k->admin && *k->admin && !*admin)
        return reading_fail(r, "admin_key",
                            "reload would remove the admin key and open its routes to API keys; restart to do that");
    return 0;
}

/* ---- the list ---- */

static struct key *keys_named(struct keys *k, const char *name) {
    for (size_t i = 0; i < k->n; i++) {
        if (!strcmp(k->list[i]->name, name)) return k->list[i];
    }
    return NULL;
}

static void give_index(struct keys *k, struct key *key) {
    uint32_t i = 1;
    while (i < KEYS_MAX && k->used[i]) i++;
    k->used[i] = true; /* with more keys in flight than numbers, the last is shared: fairness suffers, nothing else */
    assert(i && i <= KEYS_MAX);
    key->index = i;
}

static void key_release(struct keys *k, struct key *key) {
    assert(!key->n_requests && !key->body_bytes && !key->queue.waiting.n);
    k->used[key->index] = false;
    key_free(key);
}

/* A key of the same name goes on, with the new secret and limits. */
static void take_over(struct key *old, struct key *key) {
    char *secret = old->secret;
    old->secret = key->secret;
    key->secret = secret;
    old->named = key->named;
    old->priority = key->priority;
    old->max_requests = key->max_requests;
    old->max_sessions = key->max_sessions;
    if (old->tokens_per_minute != key->tokens_per_minute) {
        old->level_ns = 0;
        old->era++; /* what was taken from the old minute does not go back to the new one */
    }
    old->tokens_per_minute = key->tokens_per_minute;
    key_free(key);
}

int keys_reload(struct keys *k, const struct option_list *listed, const char *path, const char *admin,
                struct option_error *err) {
    struct reading r = {.err = err};
    struct key *key;
    int rc = 0;
    for (size_t i = 0; !rc && i < listed->n_items; i++)
        rc = add_key(&r, listed->items[i], strlen(listed->items[i]), "api_keys", &key);
    if (!rc && *path) rc = read_file(&r, path);
    if (!rc) rc = check_names(&r);
    if (!rc) rc = check_admin(&r, admin);
    if (!rc) rc = check_last(&r, k, admin);
    char *copy = rc ? NULL : strdup(admin);
    if (!rc && !copy) rc = reading_fail(&r, "admin_key", "out of memory");
    if (rc) {
        reading_fini(&r);
        return -1;
    }
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < r.n; i++) {
        struct key *old = keys_named(k, r.list[i]->name);
        if (old) {
            take_over(old, r.list[i]);
            r.list[i] = old;
        } else {
            give_index(k, r.list[i]);
        }
        r.list[i]->n_holders++;
    }
    struct keys before = *k;
    k->list = r.list;
    k->n = r.n;
    k->admin = copy;
    pthread_mutex_unlock(&k->lock);
    for (size_t i = 0; i < before.n; i++) key_drop(k, before.list[i]);
    free(before.list);
    secret_free(before.admin);
    return 0;
}

int keys_open(struct keys *k, const struct option_list *listed, const char *path, const char *admin,
              struct option_error *err) {
    *k = (struct keys){0};
    pthread_mutex_init(&k->lock, NULL);
    return keys_reload(k, listed, path, admin, err);
}

void keys_fini(struct keys *k) {
    for (size_t i = 0; i < k->n; i++) key_drop(k, k->list[i]);
    free(k->list);
    secret_free(k->admin);
    pthread_mutex_destroy(&k->lock);
    *k = (struct keys){0};
}

void key_hold(struct key *key) {
    assert(key->n_holders); /* the list's, or that of a request */
    key->n_holders++;
}

void key_drop(struct keys *k, struct key *key) {
    assert(key->n_holders);
    if (--key->n_holders == 0) key_release(k, key);
}

/* ---- which key a request has ---- */

/* The time depends on the length of what the client sent and on nothing of the key. */
static bool secrets_equal(const char *given, const char *key) {
    size_t n = strlen(given), n_key = strlen(key);
    unsigned different = n != n_key;
    for (size_t i = 0; i < n; i++)
        different |= (unsigned)((unsigned char)given[i] ^ (unsigned char)key[n_key ? i % n_key : 0]);
    return !different;
}

struct key *keys_find(struct keys *k, const char *given) {
    struct key *found = NULL;
    if (!given || strlen(given) > KEYS_SECRET_MAX) return NULL;
    for (size_t i = 0; i < k->n; i++) {
        if (secrets_equal(given, k->list[i]->secret)) found = k->list[i]; /* all are compared, whichever it is */
    }
    return found;
}

bool keys_any(struct keys *k) {
    pthread_mutex_lock(&k->lock);
    const bool any = k->n != 0;
    pthread_mutex_unlock(&k->lock);
    return any;
}

bool keys_open_to(struct keys *k, const char *given) {
    pthread_mutex_lock(&k->lock);
    bool open = k->n == 0 || keys_find(k, given);
    pthread_mutex_unlock(&k->lock);
    return open;
}

bool keys_is_admin(struct keys *k, const char *given, bool *needed) {
    pthread_mutex_lock(&k->lock);
    *needed = *k->admin != 0;
    bool is = *needed && given && strlen(given) <= KEYS_SECRET_MAX && secrets_equal(given, k->admin);
    pthread_mutex_unlock(&k->lock);
    return is;
}

void keys_each(struct keys *k, void (*each)(void *arg, const struct key *key), void *arg) {
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n; i++) each(arg, k->list[i]);
    pthread_mutex_unlock(&k->lock);
}

/* ---- how much ---- */

bool key_add(struct key *key, uint32_t n) {
    if (key->max_requests && key->n_requests + n > key->max_requests) {
        key->rejected_total++;
        return false;
    }
    key->n_requests += n;
    return true;
}

bool key_begin(struct key *key) {
    const bool begins = key_add(key, 1);
    key->requests_total += begins;
    return begins;
}

void key_end(struct key *key, uint32_t n) {
    assert(n && key->n_requests >= n);
    key->n_requests -= n;
}

/* At priority 1 a key alone has four fifths. */
uint32_t keys_queue_share(const struct keys *k, const struct key *key) {
    return key && k->n > 1 ? 4 * key->priority : 0;
}

/* What has come back by now. A limit that is new or has changed begins with a whole minute's tokens. */
static void key_refill(struct key *key, uint64_t now_ns) {
    assert(now_ns >= key->level_ns);
    const double full = (double)key->tokens_per_minute;
    key->level_tok += (double)(now_ns - key->level_ns) * full / 60e9;
    if (!key->level_ns || key->level_tok > full) key->level_tok = full;
    key->level_ns = now_ns;
}

/* Seconds until so many may be taken. */
static uint64_t wait_s(struct key *key, uint64_t n_tok, uint64_t now_ns) {
    const double full = (double)key->tokens_per_minute, per_s = full / 60;
    if (!key->tokens_per_minute) return 0;
    key_refill(key, now_ns);
    const double wanted = (double)n_tok < full ? (double)n_tok : full;
    if (key->level_tok >= wanted) return 0;
    key->rejected_total++;
    return (uint64_t)ceil((wanted - key->level_tok) / per_s);
}

uint64_t key_take(struct key *key, uint64_t n_tok, uint64_t now_ns, struct key_tokens *out) {
    const uint64_t wait = wait_s(key, n_tok, now_ns);
    if (wait) return wait;
    key->level_tok -= (double)n_tok; /* without a limit it counts for nothing */
    *out = (struct key_tokens){n_tok, key->era, true};
    return 0;
}

uint64_t key_closed_s(struct key *key, uint64_t now_ns) { return wait_s(key, 1, now_ns); }

void key_settle(struct key *key, struct key_tokens *taken, uint64_t used_tok) {
    if (taken->taken && taken->era == key->era) key->level_tok += (double)taken->n_tok - (double)used_tok;
    *taken = (struct key_tokens){0};
}
