/* completion_item.c - the items of a choice: calls, and messages of a response. */
#include "completion_internal.h"

#include <stdio.h>
#include <stdlib.h>

struct completion_item *completion_item_add(struct completion_choice *choice, const char *name, const char *id) {
    if (choice->n_items == choice->items_cap) {
        const size_t cap = choice->items_cap ? 2 * choice->items_cap : 4;
        struct completion_item *items = realloc(choice->items, cap * sizeof *items);
        if (!items) {
            choice->text.failed = true;
            return NULL;
        }
        choice->items = items;
        choice->items_cap = cap;
    }
    struct completion_item *item = &choice->items[choice->n_items++];
    *item = (struct completion_item){.name = name};
    if (id) snprintf(item->id, sizeof item->id, "%s", id);
    return item;
}

void completion_items_free(struct completion_choice *choice) {
    for (size_t i = 0; i < choice->n_items; i++) buf_fini(&choice->items[i].text);
    free(choice->items);
}
