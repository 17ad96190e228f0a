/* unicode.c - see unicode.h. The tables have where each run of one property begins; the next one ends it. */
#include "unicode.h"
#include "unicode_folds.h"
#include "unicode_table.h"

#include <string.h>

#define N_OF(table) (sizeof(table) / sizeof *(table))

/* The order in which unicode_table.py numbers them. */
static const char categories[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

uint32_t unicode_category(uint32_t c) {
    size_t low = 0, past = N_OF(category_from);
    while (past - low > 1) {
        size_t mid = low + (past - low) / 2;
        if (category_from[mid] >> 8 <= c)
            low = mid;
        else
            past = mid;
    }
    const char *name = categories + 2 * (category_from[low] & 0xff);
    return (uint32_t)name[0] << 8 | (uint32_t)name[1];
}

static char unicode_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c; }

static bool unicode_same_name(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == '_') a++;
        while (*b == '_') b++;
        if (unicode_lower(*a) != unicode_lower(*b)) return false;
        if (!*a) return true;
    }
}

/* Does the category of this number have the name "L" or "Lu"? */
static bool unicode_in_category(uint32_t number, const char *name) {
    const char *full = categories + 2 * number;
    return name[0] == full[0] && (!name[1] || (name[1] == full[1] && !name[2]));
}

bool unicode_property(const char *name, void (*range)(void *arg, uint32_t first, uint32_t last), void *arg) {
    if (!strcmp(name, "Any")) {
        range(arg, 0, UNICODE_MAX);
        return true;
    }
    bool category = false;
    for (uint32_t k = 0; k < (sizeof categories - 1) / 2; k++) category |= unicode_in_category(k, name);
    uint32_t script = 0;
    const char *known = script_names; /* two of each script, and an empty one at the end */
    for (; !category && *known && !unicode_same_name(known, name); known += strlen(known) + 1) script++;
    if (!category && !*known) return false;
    size_t n = category ? N_OF(category_from) : N_OF(script_from);
    const uint32_t *from = category ? category_from : script_from;
    for (size_t i = 0; i < n; i++) {
        uint32_t which = from[i] & 0xff, last = i + 1 < n ? (from[i + 1] >> 8) - 1 : UNICODE_MAX;
        if (category ? unicode_in_category(which, name) : which == script / 2) range(arg, from[i] >> 8, last);
    }
    return true;
}

const uint32_t *unicode_fold_classes(size_t *n) {
    *n = N_OF(fold_classes);
    return fold_classes;
}

bool unicode_folds_long(uint32_t first, uint32_t last) {
    for (size_t i = 0; i < N_OF(fold_long); i++)
        if (fold_long[i] >= first && fold_long[i] <= last) return true;
    return false;
}

bool unicode_fold_pair(uint32_t a, uint32_t b) {
    for (size_t i = 0; i + 1 < N_OF(fold_pairs); i += 2)
        if (fold_pairs[i] == a && fold_pairs[i + 1] == b) return true;
    return false;
}
