/* unicode.c - see unicode.h. Properties are looked up while a pattern is read, so the tables are short and not fast. */
#include "unicode.h"
#include "engine/base/utf8.h"
#include "unicode_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char categories[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

/* Is "L" or "Lu" the category of so many letters? */
static bool unicode_is_category(const char *name) {
    for (const char *known = categories; *name && *known; known += 2)
        if (name[0] == known[0] && (!name[1] || (name[1] == known[1] && !name[2]))) return true;
    return false;
}

/* Compares up to a blank; case and "_" do not count. */
static bool unicode_same_name(const char *known, const char *name) {
    for (;; known++, name++) {
        while (*known == '_') known++;
        while (*name == '_') name++;
        if (*known == ' ' || !*name) return *known == ' ' && !*name;
        if (tolower((unsigned char)*known) != tolower((unsigned char)*name)) return false;
    }
}

/* The four letters of a script; NULL: no script has this name. */
static const char *unicode_script(const char *name) {
    for (const char *at = script_names; *at;) {
        const char *letters = strchr(at, ' ') + 1;
        if (unicode_same_name(at, name) || unicode_same_name(letters, name)) return letters;
        at = letters + 5;
    }
    return NULL;
}

bool unicode_property(const char *name, void (*range)(void *arg, uint32_t first, uint32_t last), void *arg) {
    if (!strcmp(name, "Any")) {
        range(arg, 0, UNICODE_MAX);
        return true;
    }
    const bool category = unicode_is_category(name);
    const char *wanted = category ? name : unicode_script(name);
    if (!wanted) return false;
    const size_t n_letters = category ? 2 : 4, n_wanted = category ? strlen(name) : 4;
    uint32_t first = 0;
    for (const char *at = category ? category_runs : script_runs; *at; at += n_letters) {
        char *letters;
        const uint32_t n = (uint32_t)strtoul(at, &letters, 10), past = first + (n ? n : 1);
        at = letters;
        if (!strncmp(at, wanted, n_wanted)) range(arg, first, past - 1);
        first = past;
    }
    return true;
}

const char *unicode_fold_classes(void) { return fold_classes; }

bool unicode_folds_long(uint32_t first, uint32_t last) {
    size_t step;
    for (const char *at = fold_long; *at; at += step) {
        const uint32_t c = utf8_decode(at, &step);
        if (c >= first && c <= last) return true;
    }
    return false;
}

bool unicode_fold_pair(uint32_t a, uint32_t b) {
    char pair[9];
    size_t n = utf8_encode(a, pair);
    n += utf8_encode(b, pair + n);
    pair[n] = 0;
    return a != ' ' && b != ' ' && a && b && strstr(fold_pairs, pair);
}
