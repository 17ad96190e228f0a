/* session_mark_text.h - the bytes of a lazy turn's mark in a store: whose turn, and which version comes. Pure. */
#ifndef SESSION_MARK_TEXT_H
#define SESSION_MARK_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SESSION_SERVER_DIGITS = 16, SESSION_MARK_BYTES = 49 };

/* Of a lazy turn whose session is not written yet. */
struct session_mark {
    bool there, ours;
    uint64_t version;
    char etag[64];
    uint64_t key; /* of this one file, among all marks */
};

/* server_id: SESSION_SERVER_DIGITS characters. */
void session_mark_write(const char *server_id, uint64_t version, char text[SESSION_MARK_BYTES + 1]);
/* What is damaged is nobody's, of version 0. */
void session_mark_parse(const char *server_id, const char *text, size_t n, struct session_mark *mark);

#endif
