/* object_credentials.h - the keys that sign requests, from the environment or a file in AWS's ini form. No message has
 * them.
 *
 * In order: the file that is named (AWS_PROFILE says which part of it, "default" without); AWS_ACCESS_KEY_ID and
 * AWS_SECRET_ACCESS_KEY with AWS_SESSION_TOKEN; the file AWS_SHARED_CREDENTIALS_FILE; ~/.aws/credentials.
 * Ownership: counted; the memory is no part of a core file where the system can leave it out, and is wiped when the
 * last reference goes. Threads: a loaded one is immutable; any thread.
 */
#ifndef OBJECT_CREDENTIALS_H
#define OBJECT_CREDENTIALS_H

#include "engine/rodimus.h"

#include <stdatomic.h>

enum { OBJECT_KEY_ID_BYTES = 256, OBJECT_SECRET_BYTES = 256, OBJECT_TOKEN_BYTES = 8192 };

struct object_credentials {
    char key_id[OBJECT_KEY_ID_BYTES], secret[OBJECT_SECRET_BYTES], token[OBJECT_TOKEN_BYTES]; /* token: "" = none */
    int64_t expires_s;                                                                        /* 0 = unknown */
    bool from_file;
    atomic_uint_fast32_t n_references;
};

/* file: "" = in the order above. ROD_EINVALID: param is state_credentials; ROD_ENOMEM. */
int object_credentials_load(const char *file, struct object_credentials **out, struct rod_error *err);
struct object_credentials *object_credentials_ref(struct object_credentials *c);
void object_credentials_unref(struct object_credentials *c);

/* The profile's values of a file's bytes, into a struct of zeros; what is wrong as a sentence without values, or NULL.
 * Pure. */
const char *object_credentials_parse(const char *text, size_t n, const char *profile, struct object_credentials *out);
/* "2026-11-29T00:55:05Z", also with a fraction or +00:00; 0: no such time. Pure. */
int64_t object_credentials_time(const char *text);

#endif
