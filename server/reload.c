/* reload.c - SIGHUP: the settings are read again, from the same flags, environment and files. What may change while
 * the server runs is taken over, all or nothing; of the rest the log says that it waits for a restart. */
#include "server/http/http_tls.h"
#include "reload.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

extern char **environ;

/* A pipe was read to its end at the start, and opening it again would block until it has a writer. A missing file is
 * reported by its reader. */
static int check_file(const char *setting, const char *path, struct option_error *err) {
    struct stat st;
    if (!path || !*path || stat(path, &st) || S_ISREG(st.st_mode)) return 0;
    snprintf(err->message, sizeof err->message, "%s: %s is no regular file and cannot be read again.", setting, path);
    return -1;
}

static int check_files(const struct config *c, struct option_error *err) {
    return check_file("api_key_file", c->api_key_file, err) || check_file("tls_cert", c->tls_cert, err) ||
                   check_file("tls_key", c->tls_key, err) || check_file("state_credentials", c->state_credentials, err)
               ? -1
               : 0;
}

/* Each file is read once, as it may change meanwhile; steps that can fail come before those that change anything. */
static int take_files(struct server *s, struct http_tls *tls, const struct config *fresh, struct option_error *err) {
    struct http_tls_pair *pair = NULL;
    if (tls && *fresh->tls_cert &&
        http_tls_read(fresh->tls_cert, fresh->tls_key, &pair, err->message, sizeof err->message))
        return -1;
    struct rod_store *const store = s->store;
    struct rod_error why;
    if (store && rod_store_reload(store, &why)) {
        snprintf(err->message, sizeof err->message, "state_credentials: %s", why.message);
        http_tls_drop(pair);
        return -1;
    }
    if (keys_reload(&s->keys, &fresh->api_keys, fresh->api_key_file, fresh->admin_key, err)) {
        http_tls_drop(pair);
        return -1;
    }
    if (pair) http_tls_take(tls, pair);
    return 0;
}

/* Warns of a file of secrets that others may read. */
static void check_secret(struct log *log, const char *setting, const char *path) {
    struct stat st;
    if (*path && !stat(path, &st) && (st.st_mode & (S_IRWXG | S_IRWXO)))
        log_text(log, LOG_WARN, "%s: others may read or change %s (mode %03o): chmod 600.", setting, path,
                 (unsigned)st.st_mode & 0777u);
}

void reload_warn(struct server *s, const struct http_tls *tls) {
    const struct config *c = &s->config;
    char fault[128];
    if (c->secrets_in) check_secret(&s->log, "config holds keys", c->secrets_in);
    check_secret(&s->log, "api_key_file", c->api_key_file);
    check_secret(&s->log, "state_credentials", c->state_credentials);
    if (!tls || !*c->tls_cert) return;
    check_secret(&s->log, "tls_key", c->tls_key);
    if (http_tls_invalid(tls, time(NULL), fault, sizeof fault))
        log_text(&s->log, LOG_WARN, "tls_cert: clients will refuse %s: %s.", c->tls_cert, fault);
}

void reload_settings(struct server *s, struct http_tls *tls, int argc, char **argv) {
    assert(server_on_loop(s));
    struct config fresh = {0};
    struct option_error err = {""};
    char left[256];
    int rc = check_file("config", config_file(argc, argv, environ), &err);
    if (!rc) rc = config_load(&fresh, argc, argv, environ, &err) == CONFIG_OK ? 0 : -1;
    if (!rc) rc = check_files(&fresh, &err);
    if (!rc) rc = take_files(s, tls, &fresh, &err);
    if (rc) {
        s->metrics.reloads_failed++;
        config_add_source(err.message, sizeof err.message, argc, argv, environ);
        log_text(&s->log, LOG_ERROR, "SIGHUP: the settings stay as they were: %s", err.message);
    } else {
        const bool tls_changes = !*fresh.tls_cert != !tls;
        config_take(&s->config, &fresh, left, sizeof left);
        s->config.secrets_in = fresh.secrets_in;
        s->log.level = log_level_of(s->config.log_level);
        s->metrics.reloads++;
        if (s->keys.n)
            log_text(&s->log, LOG_INFO, "SIGHUP: settings taken over, %zu keys.", s->keys.n);
        else
            log_text(&s->log, LOG_WARN, "SIGHUP: settings taken over; there are no API keys, so none is required.");
        if (*left || tls_changes)
            log_text(&s->log, LOG_WARN, "SIGHUP: changes that need a restart: %s%s%s.", left,
                     *left && tls_changes ? ", " : "", tls_changes ? "TLS on or off" : "");
        reload_warn(s, tls);
    }
    config_fini(&fresh);
}
