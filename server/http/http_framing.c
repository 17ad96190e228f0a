/* http_framing.c - see http_internal.h. The facts about libmicrohttpd 0.9.75 that shape this file:
 * - it accepts Content-Length with Transfer-Encoding, two Content-Lengths, no Host: headers are counted here;
 * - it puts the second line of a folded header behind the name: "Content-Length:\r\n 5" is a header Content-Length5;
 * - a line that begins with a colon, or with a zero byte, ends its headers as an empty one would: what follows would be
 *   the body, or the next request. So the headers must lie in the bytes that came with an end of line between any two,
 *   and an empty line behind the last. Names and values point there; it writes a zero over each end of line, and over
 *   such a colon, so that of ":\n" and "\0\n" behind the last header nothing is seen. 1.0 refuses all of these itself.
 */
#include "http_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct count {
    unsigned n_length, n_encoding, n_host;
    bool bad_name, folded, chunked, expect, torn; /* torn: something stands between two headers */
    const char *length;
    uintptr_t at; /* the end of the last header, or of the request's line */
};

static bool is_folded(const char *name, const char *of) {
    return !strncasecmp(name, of, strlen(of)) && name[strlen(of)];
}

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                    const char *value, size_t value_len) {
    struct count *c = cls;
    (void)kind;
    const uintptr_t line_end = (uintptr_t)name - c->at;
    c->torn |= line_end != 1 && line_end != 2;
    c->at = (uintptr_t)value + value_len;
    c->bad_name |= !name_len;
    for (size_t i = 0; i < name_len; i++)
        c->bad_name |= (unsigned char)name[i] <= ' ' || (unsigned char)name[i] >= 0x7f;
    c->folded |= is_folded(name, "Content-Length") || is_folded(name, "Transfer-Encoding");
    if (!strcasecmp(name, "Content-Length")) {
        c->n_length++;
        c->length = value;
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        c->n_encoding++;
        c->chunked = value && !strcasecmp(value, "chunked");
    } else if (!strcasecmp(name, "Host")) {
        c->n_host++;
    } else if (!strcasecmp(name, "Expect")) {
        c->expect = true;
    }
    return MHD_YES;
}

static bool is_torn(struct MHD_Connection *connection, const struct count *c, const char *method) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (!info || strncmp(MHD_get_version(), "0.", 2)) return false;
    const uintptr_t rest = (uintptr_t)method + info->header_size - c->at; /* two ends of line */
    return c->torn || rest < 2 || rest > 4;
}

const char *http_framing_fault(struct MHD_Connection *connection, const char *method, const char *version,
                               struct http_framing *out) {
    struct count c = {.at = (uintptr_t)version + strlen(version)};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, count_header, &c);
    const bool old = !strcmp(version, "HTTP/1.0");
    *out = (struct http_framing){.chunked = c.n_encoding != 0,
                                 .expect = c.expect,
                                 .length = c.n_length ? (size_t)strtoull(c.length, NULL, 10) : 0};
    if (c.bad_name) return "a header has no name, or one with a space or a control character";
    if (c.folded) return "Content-Length or Transfer-Encoding goes on in a second line";
    if (is_torn(connection, &c, method)) return "a header goes on in a second line, has no name, or holds a zero byte";
    if (c.n_length > 1) return "Content-Length appears more than once";
    if (c.n_encoding > 1) return "Transfer-Encoding appears more than once";
    if (c.n_length && c.n_encoding) return "Content-Length and Transfer-Encoding exclude each other";
    if (c.n_encoding && (!c.chunked || old)) return "the only Transfer-Encoding understood is chunked, in HTTP/1.1";
    if (c.n_length && strspn(c.length, "0123456789") != strlen(c.length)) return "Content-Length is not a number";
    if (c.n_host > 1 || (!c.n_host && !old)) return "exactly one Host header is needed";
    return NULL;
}
