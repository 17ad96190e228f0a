/* tokenizer.h - byte-level BPE from a Hugging Face tokenizer.json.
 *
 * Threads: a tokenizer is immutable after open and may be used by many threads at once. Invariant: encode and decode
 * round-trip every valid UTF-8 text whose tokenizer declares no normalizer.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "engine/rodimus.h"

struct tokenizer;

/* dir/tokenizer.json (and tokenizer_config.json if there). ROD_ENOTFOUND when there is no tokenizer.json. */
int tokenizer_open(const char *dir, struct tokenizer **out, struct rod_error *err);
/* Pure; config_json may be NULL. */
int tokenizer_parse(const char *json, size_t len, const char *config_json, size_t config_len, struct tokenizer **out,
                    struct rod_error *err);
void tokenizer_close(struct tokenizer *t);

/* text: UTF-8, else ROD_EINVALID. special: recognise special added tokens, and begin with those that the tokenizer's
 * files ask for before every text (TemplateProcessing, add_bos_token: none in the published models). *ids malloc'd
 * (never NULL on success). */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, int32_t **ids,
                     size_t *n_ids, struct rod_error *err);
/* A text of several pieces, each recognising special tokens or not: encoded as their concatenation would be, except
 * that no special token begins or ends in a piece that does not recognise them. */
struct tokenizer_piece {
    const char *text;
    size_t len;
    bool special;
};
int tokenizer_encode_pieces(const struct tokenizer *t, const struct tokenizer_piece *pieces, size_t n_pieces,
                            int32_t **ids, size_t *n_ids, struct rod_error *err);

/* Code completion: what stands before and after a hole, as one prompt <|fim_begin|>before<|fim_hole|>after<|fim_end|>;
 * ROD_EUNSUPPORTED with param "suffix" where the tokenizer lacks one of these. Special tokens in before and after are
 * recognised, as in every text prompt, but for these three. */
int tokenizer_encode_fim(const struct tokenizer *t, const char *before, size_t n_before, const char *after,
                         size_t n_after, int32_t **ids, size_t *n_ids, struct rod_error *err);

uint32_t tokenizer_n_ids(const struct tokenizer *t);                                            /* highest id + 1 */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len, bool *special); /* NULL: no such id */
int32_t tokenizer_find(const struct tokenizer *t,
                       const char *content); /* id of an added token's exact content, or -1 */

/* The id of tokenizer_config.json's eos_token. */
enum { TOKENIZER_NO_NAME = -1 /* it names none */, TOKENIZER_NO_TOKEN = -2 /* one that tokenizer.json lacks */ };
int32_t tokenizer_eos(const struct tokenizer *t);

/* Streaming decode: bytes in, whole UTF-8 characters out; never half a character. */
struct detok {
    unsigned char held[4];
    uint32_t n_held;
};
/* Writes id's text to dst, which has room for the token's length * 3 + 16 bytes (a broken byte becomes U+FFFD, 3
 * bytes). Returns the bytes written. */
size_t detok_push(struct detok *d, const struct tokenizer *t, int32_t id, bool skip_special, char *dst);
/* The end: what is still held becomes one U+FFFD. */
size_t detok_flush(struct detok *d, char *dst);

#endif
