/* http_tls.h - a certificate and its key for the listener, exchangeable while connections come in.
 *
 * Ownership: the handle holds the newest certificate; each connection holds the one of its handshake until it ends, as
 * the handshake points to it and takes as long as its client likes. Threads: that of the transport that uses it.
 */
#ifndef HTTP_TLS_H
#define HTTP_TLS_H

#include <gnutls/abstract.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* TLS 1.3, and of 1.2 what keeps a recording closed when the certificate's key is known later: no key exchange by RSA
 * alone. Neither in ciphers nor in signatures SHA-1. */
#define HTTP_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-SHA1:-SIGN-RSA-SHA1:-SIGN-ECDSA-SHA1"

struct http_tls;
struct http_tls_pair; /* a certificate with its chain and its key */

/* PEM files: the certificate with its chain, and the private key. 0, or -1 with message filled. */
int http_tls_open(const char *cert_path, const char *key_path, struct http_tls **out, char *message, size_t size);
/* What the files hold now, for http_tls_take, or to be dropped. 0, or -1 with message filled. */
int http_tls_read(const char *cert_path, const char *key_path, struct http_tls_pair **out, char *message, size_t size);
void http_tls_take(struct http_tls *t, struct http_tls_pair *pair); /* handshakes that begin from now on see it */
void http_tls_close(struct http_tls *t);                            /* NULL is fine; after the transport that uses it */

/* Whether the newest certificate, or one of its chain, is not valid at that time; what says which and why. */
bool http_tls_invalid(const struct http_tls *t, time_t now_s, char *what, size_t size);

/* The newest certificate, held until it is dropped (NULL is fine). */
struct http_tls_pair *http_tls_hold(const struct http_tls *t);
void http_tls_drop(struct http_tls_pair *pair);
/* What gnutls_certificate_retrieve_function2 is to answer. */
void http_tls_show(struct http_tls_pair *pair, gnutls_pcert_st **chain, unsigned *n, gnutls_privkey_t *key);

#endif
