/* quota.h - one client's quota of a common limit: places of sessions, bytes of bodies. Pure. */
#ifndef QUOTA_H
#define QUOTA_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a client that has `mine` may take `more`, where all clients together have `all` of max. A client never has
 * more than four times what is left free: one client alone gets four fifths, and the next client finds something free.
 */
static inline bool quota_fits(uint64_t mine, uint64_t all, uint64_t more, uint64_t max) {
    return all + more <= max && mine + more <= 4 * (max - all - more);
}

#endif
