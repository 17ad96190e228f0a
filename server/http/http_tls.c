/* http_tls.c - see http_tls.h. */
#include "http_tls.h"

#include "server/base/file_text.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN_MAX = 16 };

struct http_tls_pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned n_chain;
    gnutls_privkey_t key;
    size_t n_holders;
};

struct http_tls {
    struct http_tls_pair *newest;
};

static void pair_free(struct http_tls_pair *p) {
    if (!p) return;
    for (unsigned i = 0; i < p->n_chain; i++) gnutls_pcert_deinit(&p->chain[i]);
    if (p->key) gnutls_privkey_deinit(p->key);
    free(p);
}

static int tls_fault(char *message, size_t size, const char *setting, const char *path, int rc) {
    snprintf(message, size, "%s: %s: %s", setting, path, gnutls_strerror(rc));
    return -1;
}

/* That the two belong together is known only to a set of credentials. */
static int pair_check(const gnutls_datum_t *cert, const gnutls_datum_t *key) {
    gnutls_certificate_credentials_t both;
    int rc = gnutls_certificate_allocate_credentials(&both);
    if (rc) return rc;
    rc = gnutls_certificate_set_x509_key_mem(both, cert, key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(both);
    return rc < 0 ? rc : 0;
}

static int pair_parse(struct http_tls_pair *p, const gnutls_datum_t *cert, const gnutls_datum_t *key) {
    unsigned n = CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(p->chain, &n, cert, GNUTLS_X509_FMT_PEM, 0);
    if (rc) return rc;
    p->n_chain = n;
    rc = gnutls_privkey_init(&p->key);
    return rc ? rc : gnutls_privkey_import_x509_raw(p->key, key, GNUTLS_X509_FMT_PEM, NULL, 0);
}

static int pem_load(const char *setting, const char *path, struct file_bytes *out, char *message, size_t size) {
    char why[400];
    if (!file_text(path, out, why, sizeof why)) return 0;
    snprintf(message, size, "%s: %s.", setting, why);
    return -1;
}

static gnutls_datum_t pem_datum(const struct file_bytes *pem) {
    return (gnutls_datum_t){(unsigned char *)pem->data, (unsigned)pem->n};
}

static int pair_read(struct http_tls_pair *p, const char *cert_path, const char *key_path, struct file_bytes *cert_pem,
                     struct file_bytes *key_pem, char *message, size_t size) {
    if (pem_load("tls_cert", cert_path, cert_pem, message, size) ||
        pem_load("tls_key", key_path, key_pem, message, size))
        return -1;
    const gnutls_datum_t cert = pem_datum(cert_pem), key = pem_datum(key_pem);
    int rc = pair_check(&cert, &key);
    if (rc) return tls_fault(message, size, "tls_cert and tls_key", cert_path, rc);
    rc = pair_parse(p, &cert, &key);
    return rc ? tls_fault(message, size, "tls_cert", cert_path, rc) : 0;
}

int http_tls_read(const char *cert_path, const char *key_path, struct http_tls_pair **out, char *message, size_t size) {
    struct file_bytes cert = {0}, key = {0};
    struct http_tls_pair *p = calloc(1, sizeof *p);
    if (!p) return tls_fault(message, size, "tls_cert", cert_path, GNUTLS_E_MEMORY_ERROR);
    const int rc = pair_read(p, cert_path, key_path, &cert, &key, message, size);
    file_wipe(&cert);
    file_wipe(&key);
    if (rc) {
        pair_free(p);
        return -1;
    }
    p->n_holders = 1;
    *out = p;
    return 0;
}

void http_tls_take(struct http_tls *t, struct http_tls_pair *pair) {
    http_tls_drop(t->newest);
    t->newest = pair;
}

/* GnuTLS deciphers requests, with the keys in them, into buffers that it gives back as they are. */
static void wipe_and_free(void *p) {
    if (p) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

int http_tls_open(const char *cert_path, const char *key_path, struct http_tls **out, char *message, size_t size) {
    struct http_tls *t = calloc(1, sizeof *t);
    gnutls_free = wipe_and_free; /* before other threads are there */
    if (!t) {
        snprintf(message, size, "Out of memory.");
        return -1;
    }
    if (http_tls_read(cert_path, key_path, &t->newest, message, size)) {
        free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void http_tls_close(struct http_tls *t) {
    if (!t) return;
    http_tls_drop(t->newest);
    free(t);
}

bool http_tls_invalid(const struct http_tls *t, time_t now_s, char *what, size_t size) {
    const struct http_tls_pair *p = t->newest;
    for (unsigned i = 0; i < p->n_chain; i++) {
        gnutls_x509_crt_t crt;
        if (gnutls_pcert_export_x509((gnutls_pcert_st *)&p->chain[i], &crt)) continue; /* it only reads the first */
        const time_t from_s = gnutls_x509_crt_get_activation_time(crt), to_s = gnutls_x509_crt_get_expiration_time(crt);
        gnutls_x509_crt_deinit(crt);
        if (from_s <= now_s && now_s <= to_s) continue;
        char when[32] = "?";
        struct tm tm;
        if (gmtime_r(now_s > to_s ? &to_s : &from_s, &tm)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
        snprintf(what, size, "certificate %u of %u is valid only %s %s", i + 1, p->n_chain,
                 now_s > to_s ? "until" : "from", when);
        return true;
    }
    return false;
}

struct http_tls_pair *http_tls_hold(const struct http_tls *t) {
    assert(t->newest->n_holders); /* the handle's own */
    t->newest->n_holders++;
    return t->newest;
}

void http_tls_drop(struct http_tls_pair *pair) {
    assert(!pair || pair->n_holders);
    if (pair && --pair->n_holders == 0) pair_free(pair);
}

void http_tls_show(struct http_tls_pair *pair, gnutls_pcert_st **chain, unsigned *n, gnutls_privkey_t *key) {
    assert(pair->n_holders && pair->n_chain && pair->n_chain <= CHAIN_MAX);
    *chain = pair->chain;
    *n = pair->n_chain;
    *key = pair->key;
}
