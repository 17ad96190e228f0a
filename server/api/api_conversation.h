/* api_conversation.h - the name of the conversation that a request goes on with, from what clients send by themselves.
 *
 * A name is a hint: it says where states of earlier requests may lie, and proves nothing. So what is no name is no
 * error. Pure; any thread.
 */
#ifndef API_CONVERSATION_H
#define API_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

enum { API_CONVERSATION_MAX = 255 }; /* bytes */

/* 1 to so many bytes of UTF-8 without control characters. */
bool api_conversation_is(const char *name, size_t len);

typedef const char *api_header_of(const void *from, const char *name); /* NULL: not sent */
/* The name that headers give; session_header: the one that the operator chose. The first header that was sent decides,
 * and is returned: out is "" where its value is no name. NULL: none was sent. */
const char *api_conversation_name(api_header_of *header, const void *from, const char *session_header,
                                  char out[API_CONVERSATION_MAX + 1]);

#endif
