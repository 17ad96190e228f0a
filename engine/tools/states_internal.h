/* states_internal.h - what states.c (the calls, and a folder) and states_store.c (a store) share.
 *
 * Ownership: the caller's. Threads: any, each call stands alone.
 */
#ifndef STATES_INTERNAL_H
#define STATES_INTERNAL_H

#include "tools.h"
#include "engine/base/siphash.h"
#include "engine/session/store/session_metadata.h"
#include "engine/state/state_home.h"

#define STATES_HEXADECIMAL "0123456789abcdef"
#define STATES_LAYOUT      "v1/"
enum { STATES_HALF_DIGITS = 16 };

struct states {
    const char *dir;
    bool has_key; /* of a folder; in a store a key says whose it is */
    uint8_t key[SIPHASH_KEY_BYTES];
};

/* ---- states_name.c ---- */
/* ".VERSION.kept" */
bool states_is_kept(const char *end, uint64_t *version);
/* Of an object of a store: kind, model, owner. False: it is no state. */
bool states_take_name(const char *name, struct rod_state_file *out);

/* ---- states_header.c ---- */
/* Names of tenants are not for whoever looks at files: a hash. */
void states_put_tenant(const struct states *s, const char *tenant, char text[17]);
/* What the header says: of model, owner and time; or its fault. */
void states_take_header(const struct states *s, const struct state_home *home, const char *file,
                        struct rod_state_file *out);
/* *header, malloc'd: what the sections of state point into. */
int states_header_read(const struct state_home *home, const char *file, void **header, struct state_file *state,
                       struct rod_error *err);
int states_metadata_read(const struct state_home *home, const char *file, struct session_metadata *metadata,
                         struct rod_error *err);
int states_copy(const struct state_home *home, const char *file, int (*put)(void *arg, const void *bytes, size_t n),
                void *arg, struct rod_error *err);

/* ---- states_store.c: rod_states_* of a store ---- */
int states_store_list(const struct state_home *home, void (*found)(void *arg, const struct rod_state_file *file),
                      void *arg, struct rod_error *err);
int states_store_look(const struct state_home *home, const char *name, struct rod_state_file *out,
                      struct rod_error *err);
int states_store_remove(const struct state_home *home, const struct rod_state_file *seen, struct rod_error *err);

#endif
