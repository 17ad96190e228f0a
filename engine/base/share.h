/* share.h - how much of what is everyone's one client may have: places of sessions, room for bodies. Pure. */
#ifndef SHARE_H
#define SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a client that has `mine` of max may take so much more, where others and it have `all`: it never has more than
 * four times what is left free, so one alone has four fifths, and the next one that comes finds room. */
static inline bool share_fits(uint64_t mine, uint64_t all, uint64_t more, uint64_t max) {
    return all + more <= max && mine + more <= 4 * (max - all - more);
}

#endif
