/* http_tls.h - a certificate and its key for the listener, exchangeable while connections come in.
 *
 * Who owns what: the handle owns every certificate that it has had; one that was replaced is freed some reloads later,
 * because a handshake on its way may still point to it. Threads: one, that of the transport that uses it.
 */
#ifndef HTTP_TLS_H
#define HTTP_TLS_H

#include <gnutls/abstract.h>
#include <stddef.h>

struct http_tls;

/* PEM files: the certificate with its chain, and the private key. 0, or -1 with message filled. */
int http_tls_open(const char *cert_path, const char *key_path, struct http_tls **out, char *message, size_t size);
/* Handshakes that begin from now on see the new one. On an error nothing has changed. */
int http_tls_reload(struct http_tls *t, const char *cert_path, const char *key_path, char *message, size_t size);
void http_tls_close(struct http_tls *t); /* NULL is fine; after the transport that uses it */

/* What gnutls_certificate_retrieve_function2 is to answer. */
void http_tls_current(const struct http_tls *t, gnutls_pcert_st **chain, unsigned *n, gnutls_privkey_t *key);

#endif
