/* grammar_tags.h - the tokens in which an opening tag may end, of each tag that requests brought: a look at every token
 * takes milliseconds, and the thread that submits has others waiting.
 *
 * Ownership: the tags own their lists until they are freed. Threads: any.
 */
#ifndef GRAMMAR_TAGS_H
#define GRAMMAR_TAGS_H

#include "engine/rodimus.h"

struct tokenizer;
struct grammar_tags;

int grammar_tags_new(const struct tokenizer *tokenizer, uint32_t V, struct grammar_tags **out, struct rod_error *err);
void grammar_tags_free(struct grammar_tags *t);
/* Ids below V, ascending. Of the first tags it keeps the lists; *own is NULL then. Of others the caller gets the list
 * to free: *own. */
int grammar_tags_find(struct grammar_tags *t, const char *open, const int32_t **ids, size_t *n, int32_t **own,
                      struct rod_error *err);

#endif
