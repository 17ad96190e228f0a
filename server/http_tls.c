/* http_tls.c - see http_tls.h. */
#include "http_tls.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHAIN_MAX = 16, KEPT = 3 }; /* KEPT: certificates that live at once, the newest first */

struct pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned n_chain;
    gnutls_privkey_t key;
};

struct http_tls {
    struct pair *pairs[KEPT];
};

static void pair_free(struct pair *p) {
    if (!p) return;
    for (unsigned i = 0; i < p->n_chain; i++) gnutls_pcert_deinit(&p->chain[i]);
    if (p->key) gnutls_privkey_deinit(p->key);
    free(p);
}

static int fault(char *message, size_t size, const char *setting, const char *path, int rc) {
    snprintf(message, size, "%s: %s: %s", setting, path, gnutls_strerror(rc));
    return -1;
}

/* That the two belong together is known only to a set of credentials. */
static int check(const gnutls_datum_t *cert, const gnutls_datum_t *key) {
    gnutls_certificate_credentials_t both;
    int rc = gnutls_certificate_allocate_credentials(&both);
    if (rc) return rc;
    rc = gnutls_certificate_set_x509_key_mem(both, cert, key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(both);
    return rc < 0 ? rc : 0;
}

static int parse(struct pair *p, const gnutls_datum_t *cert, const gnutls_datum_t *key) {
    unsigned n = CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(p->chain, &n, cert, GNUTLS_X509_FMT_PEM, 0);
    if (rc) return rc;
    p->n_chain = n;
    rc = gnutls_privkey_init(&p->key);
    return rc ? rc : gnutls_privkey_import_x509_raw(p->key, key, GNUTLS_X509_FMT_PEM, NULL, 0);
}

static int load(const char *cert_path, const char *key_path, struct pair **out, char *message, size_t size) {
    gnutls_datum_t cert = {0}, key = {0};
    struct pair *p = calloc(1, sizeof *p);
    int rc = p ? gnutls_load_file(cert_path, &cert) : GNUTLS_E_MEMORY_ERROR, code = 0;
    if (rc) {
        code = fault(message, size, "tls_cert", cert_path, rc);
    } else if ((rc = gnutls_load_file(key_path, &key))) {
        code = fault(message, size, "tls_key", key_path, rc);
    } else if ((rc = check(&cert, &key))) {
        code = fault(message, size, "tls_cert and tls_key", cert_path, rc);
    } else if ((rc = parse(p, &cert, &key))) {
        code = fault(message, size, "tls_cert", cert_path, rc);
    }
    gnutls_free(cert.data);
    if (key.data) gnutls_memset(key.data, 0, key.size);
    gnutls_free(key.data);
    if (code) {
        pair_free(p);
    } else {
        *out = p;
    }
    return code;
}

int http_tls_reload(struct http_tls *t, const char *cert_path, const char *key_path, char *message, size_t size) {
    struct pair *p;
    if (load(cert_path, key_path, &p, message, size)) return -1;
    pair_free(t->pairs[KEPT - 1]);
    for (int i = KEPT - 1; i > 0; i--) t->pairs[i] = t->pairs[i - 1];
    t->pairs[0] = p;
    return 0;
}

int http_tls_open(const char *cert_path, const char *key_path, struct http_tls **out, char *message, size_t size) {
    struct http_tls *t = calloc(1, sizeof *t);
    if (!t) {
        snprintf(message, size, "out of memory");
        return -1;
    }
    if (http_tls_reload(t, cert_path, key_path, message, size)) {
        free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void http_tls_close(struct http_tls *t) {
    if (!t) return;
    for (int i = 0; i < KEPT; i++) pair_free(t->pairs[i]);
    free(t);
}

void http_tls_current(const struct http_tls *t, gnutls_pcert_st **chain, unsigned *n, gnutls_privkey_t *key) {
    *chain = t->pairs[0]->chain;
    *n = t->pairs[0]->n_chain;
    *key = t->pairs[0]->key;
}
