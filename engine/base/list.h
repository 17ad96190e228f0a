/* list.h - a list of members that carry their own links: nothing is allocated, and removal needs no search.
 *
 * Ownership: a list owns no member. A member is in at most one list by each of its links. Threads: the owner's. Pure.
 */
#ifndef LIST_H
#define LIST_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct list_link {
    struct list_link *prev, *next; /* next: NULL = in no list */
};

struct list {
    struct list_link ends; /* a ring: next is the first member, prev the last */
    uint32_t n;
};

/* The struct of which a link is a member. */
#define LIST_OF(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

static inline void list_init(struct list *list) { *list = (struct list){{&list->ends, &list->ends}, 0}; }

static inline struct list_link *list_first(const struct list *list) { return list->n ? list->ends.next : NULL; }
static inline struct list_link *list_last(const struct list *list) { return list->n ? list->ends.prev : NULL; }
/* The member behind one; NULL behind the last. */
static inline struct list_link *list_next(const struct list *list, const struct list_link *link) {
    assert(link->next && link != &list->ends);
    return link->next == &list->ends ? NULL : link->next;
}

static inline struct list_link *list_before(const struct list *list, const struct list_link *link) {
    return link->prev == &list->ends ? NULL : link->prev;
}
static inline void list_insert_before(struct list *list, struct list_link *at, struct list_link *link) {
    assert(!link->next && !link->prev);
    assert(at->prev && at->prev->next == at);
    *link = (struct list_link){at->prev, at};
    link->prev->next = link;
    at->prev = link;
    list->n++;
}
static inline void list_push_last(struct list *list, struct list_link *link) {
    list_insert_before(list, &list->ends, link);
}
static inline void list_push_first(struct list *list, struct list_link *link) {
    list_insert_before(list, list->ends.next, link);
}

static inline void list_remove(struct list *list, struct list_link *link) {
    assert(list->n && link->next && link->prev && link->prev->next == link && link->next->prev == link);
    link->prev->next = link->next;
    link->next->prev = link->prev;
    *link = (struct list_link){NULL, NULL};
    list->n--;
}

#endif
