/* session_gone.c - see session_internal.h: states of earlier turns that the table let go under the lock are freed, and
 * their files removed, when it is given back. */
#include "session_internal.h"

void session_gone(struct sessions *s, struct session_kept *kept) {
    for (const struct session_kept *k = kept; k; k = k->next)
        if (k->in_file && !k->stays) session_store_drop_kept(&s->store, k->name, k->version);
    session_kept_free(kept);
}
