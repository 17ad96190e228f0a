/* responses_parts.h - the parts of a response's body, for responses_*.c alone: tools of several kinds become functions
 * that the model reads, items become messages. Each function is false with an error that names the place.
 */
#ifndef RESPONSES_PARTS_H
#define RESPONSES_PARTS_H

#include "server/api/api_fields.h"

/* The tools and their choice. They stand in `tools` and in items of the input: first ones are read before the messages,
 * later ones where they stand. */
bool responses_take_tools(const struct api_fields *p, const json_t *input, struct api_tools *out);
/* What the model reads of the tools of one item: a definition a line. */
bool responses_put_tools(const struct api_fields *p, const char *where, const json_t *tools, struct buf *out);
/* How many items of the input are in the head: instructions, and tools that stand before the messages. */
size_t responses_head(const json_t *input);
/* The name by which the model knows the tool of a call or a choice. */
bool responses_put_name(const json_t *call, struct buf *out);

/* Whether a group around the pattern holds all of it: no parenthesis, class or backslash reaches out. */
bool responses_regex_whole(const char *pattern, size_t len);
/* The regular expression of the texts of a grammar of Lark, behind what stands in `out`. False: none is found, as where
 * a rule leads back to itself; `out` then has a part of it. */
bool responses_lark(const char *grammar, size_t len, struct buf *out);

/* Puts the items into the input that its references name. False with stored->waits set: not on this thread. */
bool responses_resolve(const struct api_fields *p);
/* The items of the response that the request goes on from, whose calls its outputs answer: the caller's. NULL: nothing
 * is known of them, or the input needs none. False: likewise. */
bool responses_take_before(const struct api_fields *p, json_t **out);

/* The input and the instructions before it. */
bool responses_take_items(const struct api_fields *p, struct api_request *out);
/* Whether the input, whose items and tools are taken, has left a message. */
bool responses_check_items(const struct api_fields *p, const struct api_request *request);

/* A custom tool's text, of the arguments {"input": "..."} that the model writes: what has come behind the first `from`
 * bytes of them. Returns how many have been read; from 0: from the beginning. */
size_t responses_custom_input(const char *arguments, size_t len, size_t from, struct buf *out);

#endif
