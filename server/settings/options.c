/* options.c - see options.h. */
#include "options.h"
#include "engine/base/json_guard.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The message is a sentence: a full stop ends it. */
static int option_fail(struct option_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int option_fail(struct option_error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    const bool whole = n > 0 && (size_t)n + 1 < sizeof err->message;
    if (whole && err->message[n - 1] != '?') memcpy(err->message + n, ".", 2);
    return -1;
}

static void *option_value(const struct option_set *set, const struct option *option) {
    assert(set->values); /* a set without values is for names alone */
    return (char *)set->values + option->offset;
}

static const char *option_shown(const struct option *option, const char *text) {
    return option->secret ? "(hidden)" : text;
}

/* ---- one value ---- */

/* It may be a key. */
static void text_free(char *text) {
    if (text) explicit_bzero(text, strlen(text));
    free(text);
}

static void list_clear(struct option_list *list) {
    for (size_t i = 0; i < list->n_items; i++) text_free(list->items[i]);
    free(list->items);
    *list = (struct option_list){0};
}

static int bad_value(const struct option *option, const char *text, const char *source, const char *wanted,
                     struct option_error *err) {
    return option_fail(err, "%s = '%s' (%s) is not %s", option->name, option_shown(option, text), source, wanted);
}

static int list_push(struct option_list *list, const char *text, size_t len, struct option_error *err) {
    char **grown = realloc(list->items, (list->n_items + 1) * sizeof *grown);
    if (grown) list->items = grown;
    char *copy = grown ? strndup(text, len) : NULL;
    if (!copy) return option_fail(err, "out of memory");
    list->items[list->n_items++] = copy;
    return 0;
}

static int item_push(const struct option *option, struct option_list *list, const char *text, size_t len,
                     const char *source, struct option_error *err) {
    if (list_push(list, text, len, err)) return -1;
    const char *item = list->items[list->n_items - 1], *wanted = option->check ? option->check(item) : NULL;
    return wanted ? bad_value(option, item, source, wanted, err) : 0;
}

static int list_set(const struct option *option, struct option_list *list, const char *text, const char *source,
                    struct option_error *err) {
    list_clear(list);
    while (*text) {
        size_t len = strcspn(text, ",");
        if (len && item_push(option, list, text, len, source, err)) return -1;
        text += len + (text[len] == ',');
    }
    return 0;
}

static int string_set(const struct option *option, char **out, const char *text, const char *source,
                      struct option_error *err) {
    const bool none = !*text && !option->fallback; /* empty is the default, and no value */
    const char *wanted = !none && option->check ? option->check(text) : NULL;
    if (wanted) return bad_value(option, text, source, wanted, err);
    char *copy = strdup(text);
    if (!copy) return option_fail(err, "out of memory");
    text_free(*out);
    *out = copy;
    return 0;
}

/* "cuda:N" matches "cuda:" and digits; other choices match as they are. */
static bool choice_matches(const char *choice, size_t len, const char *text) {
    size_t n = strlen(text);
    if (len > 2 && choice[len - 1] == 'N' && choice[len - 2] == ':') {
        if (n < len || n > len + 5 || strncmp(choice, text, len - 1) != 0) return false;
        return strspn(text + len - 1, "0123456789") == n - (len - 1);
    }
    return n == len && !strncmp(choice, text, len);
}

static bool choice_valid(const char *choices, const char *text) {
    for (const char *at = choices; *at;) {
        size_t len = strcspn(at, "|");
        if (choice_matches(at, len, text)) return true;
        at += len + (at[len] == '|');
    }
    return false;
}

static bool takes_auto(const struct option *option) {
    const char *fallback = option->fallback ? option->fallback : "";
    return option->type == OPTION_AUTO || (option->type == OPTION_FLOAT && !strcmp(fallback, "auto"));
}

static int out_of_range(const struct option *option, const char *text, const char *source, struct option_error *err) {
    return option_fail(err, "%s = %s (%s) is out of range: it must be %s%.15g to %.15g", option->name,
                       option_shown(option, text), source, takes_auto(option) ? "auto or " : "", option->min,
                       option->max);
}

static int number_set(const struct option *option, void *at, const char *text, const char *source,
                      struct option_error *err) {
    if (takes_auto(option) && !strcmp(text, "auto")) {
        if (option->type == OPTION_FLOAT)
            *(double *)at = NAN;
        else
            *(uint64_t *)at = 0;
        return 0;
    }
    char *end = NULL;
    errno = 0;
    if (option->type == OPTION_FLOAT) {
        double value = strtod(text, &end);
        if (end == text || *end || isspace((unsigned char)*text))
            return bad_value(option, text, source, takes_auto(option) ? "auto or a number" : "a number", err);
        if (!(value >= option->min && value <= option->max)) return out_of_range(option, text, source, err);
        *(double *)at = value;
        return 0;
    }
    const char *digits = text + (*text == '-');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) {
        const char *wanted = option->type == OPTION_AUTO ? "auto or a whole number" : "a whole number";
        return bad_value(option, text, source, wanted, err);
    }
    if (option->type == OPTION_INT) {
        long long value = strtoll(text, &end, 10);
        if (errno || (double)value < option->min || (double)value > option->max) {
            return out_of_range(option, text, source, err);
        }
        *(int64_t *)at = value;
        return 0;
    }
    unsigned long long value = strtoull(digits, &end, 10);
    if (errno || *text == '-' || (double)value < option->min || (double)value > option->max) {
        return out_of_range(option, text, source, err);
    }
    *(uint64_t *)at = value;
    return 0;
}

static int bool_set(const struct option *option, bool *at, const char *text, const char *source,
                    struct option_error *err) {
    static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < 4; i++) {
        if (!strcmp(text, yes[i]) || !strcmp(text, no[i])) {
            *at = !strcmp(text, yes[i]);
            return 0;
        }
    }
    return bad_value(option, text, source, "true or false", err);
}

int options_set(const struct option_set *set, const struct option *option, const char *text, const char *source,
                struct option_error *err) {
    if (option->removed && *text)
        return option_fail(err, "%s (%s) was removed: %s", option->name, source, option->removed);
    if (option->removed) return 0;
    void *at = option_value(set, option);
    switch (option->type) {
    case OPTION_STRING: return string_set(option, at, text, source, err);
    case OPTION_CHOICE:
        if (!choice_valid(option->choices, text)) {
            return option_fail(err, "%s = '%s' (%s) is not one of %s", option->name, option_shown(option, text), source,
                               option->choices);
        }
        return string_set(option, at, text, source, err);
    case OPTION_UINT:
    case OPTION_AUTO:
    case OPTION_INT:
    case OPTION_FLOAT: return number_set(option, at, text, source, err);
    case OPTION_BOOL: return bool_set(option, at, text, source, err);
    case OPTION_LIST: return list_set(option, at, text, source, err);
    case OPTION_REPEAT: return list_push(at, text, strlen(text), err);
    }
    return option_fail(err, "%s has no type", option->name);
}

/* From a flag or a variable, which go before a file. */
static int set_over(const struct option_set *set, const struct option *option, const char *text, const char *source,
                    struct option_error *err) {
    if (option->never_empty && text[strspn(text, ",")] == 0)
        return option_fail(err, "%s (%s) is empty; leave it out", option->name, source);
    return options_set(set, option, text, source, err);
}

const struct option *options_find(const struct option_set *set, const char *name) {
    for (size_t i = 0; i < set->n_options; i++) {
        if (!strcmp(set->options[i].name, name)) return &set->options[i];
    }
    for (size_t i = 0; i < set->n_removed; i++) {
        if (!strcmp(set->removed[i].name, name)) return &set->removed[i];
    }
    return NULL;
}

int options_init(const struct option_set *set, struct option_error *err) {
    for (size_t i = 0; i < set->n_options; i++) {
        const struct option *option = &set->options[i];
        if (option->type == OPTION_REPEAT) continue;
        if (option->type == OPTION_FLOAT && !option->fallback) {
            *(double *)option_value(set, option) = NAN;
            continue;
        }
        bool number = option->type != OPTION_STRING && option->type != OPTION_LIST && option->type != OPTION_CHOICE;
        const char *fallback = option->fallback ? option->fallback : number ? "0" : "";
        if (option->type == OPTION_CHOICE && !*fallback) fallback = "auto";
        struct option plain = *option;
        if (number && !option->fallback) plain.min = 0;
        if (options_set(set, &plain, fallback, "default", err)) return -1;
    }
    return 0;
}

void options_fini(const struct option_set *set) {
    for (size_t i = 0; i < set->n_options; i++) {
        const struct option *option = &set->options[i];
        if (option->type == OPTION_STRING || option->type == OPTION_CHOICE) {
            char **at = option_value(set, option);
            text_free(*at);
            *at = NULL;
        } else if (option->type == OPTION_LIST || option->type == OPTION_REPEAT) {
            list_clear(option_value(set, option));
        }
    }
}

/* ---- names ---- */

/* Edit distance with two rows; names are short. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[64], n = strlen(b);
    if (n >= 64) return 64;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (a[i] != b[j]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j + 1] + 1 < best) best = row[j + 1] + 1;
            diagonal = row[j + 1];
            row[j + 1] = best;
        }
    }
    return row[n];
}

static const struct option *nearest_option(const struct option_set *set, const char *name) {
    const struct option *best = NULL;
    size_t least = 4; /* further away it is another word, not a slip */
    for (size_t i = 0; i < set->n_options; i++) {
        size_t d = edit_distance(name, set->options[i].name);
        if (d < least) {
            least = d;
            best = &set->options[i];
        }
    }
    return best;
}

/* prefix and the name with '-' or '_' as the source writes it, in upper case for the environment. */
static void spell_name(const char *prefix, const char *name, char dash, bool upper, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "%s%s", prefix, name);
    for (size_t i = strlen(prefix); i < n && i < size - 1; i++) {
        if (out[i] == '_' || out[i] == '-') out[i] = dash;
        if (upper) out[i] = (char)toupper((unsigned char)out[i]);
    }
}

static int fail_unknown(const struct option_set *set, const char *name, const char *as_written, const char *what,
                        const char *prefix, char dash, bool upper, struct option_error *err) {
    const struct option *near = nearest_option(set, name);
    char hint[96] = "";
    if (near) spell_name(prefix, near->name, dash, upper, hint, sizeof hint);
    return option_fail(err, "unknown %s %s%s%s%s", what, as_written, near ? "; did you mean " : "", hint,
                       near ? "?" : "");
}

/* ---- flags ---- */

static const struct option *find_flag(const struct option_set *set, const char *arg, char *name, size_t size) {
    if (arg[1] != '-') {
        for (size_t i = 0; i < set->n_options; i++) {
            if (set->options[i].letter && arg[1] == set->options[i].letter && !arg[2]) return &set->options[i];
        }
        snprintf(name, size, "%s", arg + 1);
        return NULL;
    }
    size_t len = strcspn(arg + 2, "=");
    snprintf(name, size, "%.*s", (int)(len < size ? len : size - 1), arg + 2);
    for (char *c = name; *c; c++) {
        if (*c == '_') return NULL;
        if (*c == '-') *c = '_';
    }
    return options_find(set, name);
}

int options_from_flags(const struct option_set *set, int argc, char **argv, const char *skip, bool *help,
                       struct option_error *err) {
    *help = false;
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            *help = true;
            return 0;
        }
        if (arg[0] != '-' || !arg[1]) return option_fail(err, "'%s' is not a flag", arg);
        char name[64] = "", written[80];
        const struct option *option = find_flag(set, arg, name, sizeof name);
        bool skipped = !option && skip && !strcmp(name, skip);
        snprintf(written, sizeof written, "%.*s", (int)strcspn(arg, "="), arg);
        if (!option && !skipped) return fail_unknown(set, name, written, "flag", "--", '-', false, err);
        char *value = arg[1] == '-' ? strchr(arg, '=') : NULL;
        if (value) {
            value++;
        } else if (option && option->type == OPTION_BOOL) {
            value = "true";
        } else if (i + 1 < argc) {
            value = argv[++i];
        } else {
            return option_fail(err, "flag %s needs a value", written);
        }
        char source[96];
        snprintf(source, sizeof source, "flag %s", written);
        if (option && set_over(set, option, value, source, err)) return -1;
    }
    return 0;
}

/* ---- environment ---- */

/* RODIMUS_CONFIG names the file, which is no row of a table. Kubernetes describes a service called "rodimus" to every
 * pod of its namespace in variables of the other forms. */
static bool foreign_variable(const char *name, const char *value) {
    if (!strcmp(name, "CONFIG") || !strncmp(name, "TEST_", 5)) return true; /* TEST_: of the tests */
    if (!strncmp(name, "SERVICE_HOST", 12) || !strncmp(name, "SERVICE_PORT", 12)) return true;
    return !strncmp(name, "PORT", 4) &&
           (name[4] == '_' || !strncmp(value, "tcp://", 6) || !strncmp(value, "udp://", 6));
}

int options_from_environment(const struct option_set *set, char **environment, struct option_error *err) {
    for (char **at = environment; at && *at; at++) {
        if (strncmp(*at, "RODIMUS_", 8) != 0) continue;
        const char *equals = strchr(*at, '=');
        if (!equals) continue;
        char name[64], source[112];
        size_t len = (size_t)(equals - *at) - 8;
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), *at + 8);
        if (foreign_variable(name, equals + 1)) continue;
        snprintf(source, sizeof source, "environment variable RODIMUS_%s", name);
        for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
        const struct option *option = options_find(set, name);
        if (!option) return fail_unknown(set, name, source + 21, "environment variable", "RODIMUS_", '_', true, err);
        if (set_over(set, option, equals + 1, source, err)) return -1;
    }
    return 0;
}

/* ---- files ---- */

static int from_array(const struct option_set *set, const struct option *option, const json_t *array,
                      const char *source, struct option_error *err) {
    if (option->type != OPTION_LIST) return option_fail(err, "%s (%s) must not be an array", option->name, source);
    struct option_list *list = option_value(set, option);
    list_clear(list);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_string(item)) return option_fail(err, "%s[%zu] (%s) must be a string", option->name, i, source);
        if (item_push(option, list, json_string_value(item), json_string_length(item), source, err)) return -1;
    }
    return 0;
}

static int from_json(const struct option_set *set, const struct option *option, const json_t *value, const char *source,
                     struct option_error *err) {
    char text[64];
    switch (json_typeof(value)) {
    case JSON_NULL: return 0;
    case JSON_ARRAY: return from_array(set, option, value, source, err);
    case JSON_OBJECT: return option_fail(err, "%s (%s) must not be an object", option->name, source);
    case JSON_STRING:
        if (option->type == OPTION_LIST)
            return option_fail(err, "%s (%s) must be an array of strings", option->name, source);
        if (option->type == OPTION_STRING || option->type == OPTION_CHOICE || takes_auto(option)) {
            return options_set(set, option, json_string_value(value), source, err);
        }
        return option_fail(err, "%s = \"%.64s\" (%s) must be a %s, not a string", option->name,
                           option_shown(option, json_string_value(value)), source,
                           option->type == OPTION_BOOL ? "boolean" : "number");
    case JSON_TRUE:
    case JSON_FALSE:
        if (option->type != OPTION_BOOL) return option_fail(err, "%s (%s) must not be a boolean", option->name, source);
        return options_set(set, option, json_is_true(value) ? "true" : "false", source, err);
    case JSON_INTEGER: snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: snprintf(text, sizeof text, "%.17g", json_real_value(value)); break;
    }
    if (option->type == OPTION_STRING || option->type == OPTION_CHOICE || option->type == OPTION_LIST ||
        option->type == OPTION_BOOL) {
        return option_fail(err, "%s = %s (%s) must not be a number", option->name, option_shown(option, text), source);
    }
    return options_set(set, option, text, source, err);
}

static int from_object(const struct option_set *set, json_t *root, const char *source, struct option_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        const struct option *option = options_find(set, name);
        char where[256];
        snprintf(where, sizeof where, "key '%s' of %s", name, source);
        if (!option) return fail_unknown(set, name, where, "setting:", "", '_', false, err);
        if (from_json(set, option, value, source, err)) return -1;
    }
    return 0;
}

static int from_root(const struct option_set *set, json_t *root, const json_error_t *fault, const char *source,
                     struct option_error *err) {
    if (!root && json_error_code(fault) == json_error_out_of_memory)
        return option_fail(err, "%s: out of memory", source);
    if (!root) {
        /* jansson says near which word; that may be a key. */
        const char *word = strstr(fault->text, " near '");
        const int n = (int)(word ? (size_t)(word - fault->text) : strlen(fault->text));
        return option_fail(err, "%s line %d column %d: %.*s", source, fault->line, fault->column, n, fault->text);
    }
    int rc = json_is_object(root) ? from_object(set, root, source, err)
                                  : option_fail(err, "%s is not a JSON object", source);
    json_decref(root);
    return rc;
}

int options_from_json_text(const struct option_set *set, const char *text, size_t len, const char *source,
                           struct option_error *err) {
    json_error_t fault;
    json_guard_wipe(true);
    json_t *root = json_guard_load(text, len, JSON_REJECT_DUPLICATES, &fault);
    const int rc = from_root(set, root, &fault, source, err);
    json_guard_wipe(false);
    explicit_bzero(&fault, sizeof fault); /* which repeats the text that it stopped at */
    return rc;
}

/* ---- two sets ---- */

static bool lists_differ(const struct option_list *a, const struct option_list *b) {
    bool differ = a->n_items != b->n_items;
    for (size_t i = 0; !differ && i < a->n_items; i++) differ = strcmp(a->items[i], b->items[i]) != 0;
    return differ;
}

static size_t value_bytes(enum option_type type) {
    switch (type) {
    case OPTION_STRING:
    case OPTION_CHOICE: return sizeof(char *);
    case OPTION_BOOL: return sizeof(bool);
    case OPTION_LIST:
    case OPTION_REPEAT: return sizeof(struct option_list);
    default: return sizeof(uint64_t); /* of any number */
    }
}

bool options_differ(const struct option_set *a, const struct option_set *b, const struct option *option) {
    assert(a->options == b->options);
    const void *x = option_value(a, option), *y = option_value(b, option);
    switch (option->type) {
    case OPTION_STRING:
    case OPTION_CHOICE: return strcmp(*(char *const *)x, *(char *const *)y) != 0;
    case OPTION_LIST:
    case OPTION_REPEAT: return lists_differ(x, y);
    default: return memcmp(x, y, value_bytes(option->type)) != 0; /* bits, so that NAN equals NAN */
    }
}

void options_swap(const struct option_set *a, const struct option_set *b, const struct option *option) {
    assert(a->options == b->options);
    assert(option >= a->options && option < a->options + a->n_options);
    char kept[sizeof(struct option_list)];
    const size_t n = value_bytes(option->type);
    assert(n && n <= sizeof kept);
    memcpy(kept, option_value(a, option), n);
    memcpy(option_value(a, option), option_value(b, option), n);
    memcpy(option_value(b, option), kept, n);
}

/* ---- help ---- */

static void put_wrapped(FILE *to, const char *text, int indent, int column, int width) {
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (column > indent && column + 1 + len > width) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", len, text);
        column += len;
        text += len + (text[len] == ' ');
    }
    fputc('\n', to);
}

static void help_row(const struct option *option, FILE *to, int width) {
    const int indent = 34;
    char name[64], left[128], right[512];
    spell_name("--", option->name, '-', false, name, sizeof name);
    int n = option->letter ? snprintf(left, sizeof left, "  -%c, %s", option->letter, name)
                           : snprintf(left, sizeof left, "  %s", name);
    if (option->type != OPTION_BOOL) {
        snprintf(left + n, sizeof left - (size_t)n, " %s", option->metavar ? option->metavar : "N");
    }
    bool plain = option->fallback && *option->fallback && option->type != OPTION_BOOL;
    snprintf(right, sizeof right, "%s%s%s%s", option->help, plain ? " [" : "", plain ? option->fallback : "",
             plain ? "]" : "");
    int column = fprintf(to, "%s", left);
    if (column > indent - 2) {
        fputc('\n', to);
        column = 0;
    }
    fprintf(to, "%*s", indent - column, "");
    put_wrapped(to, right, indent, indent, width);
}

void options_help(const struct option_set *set, FILE *to, int width) {
    const char *group = "";
    for (size_t i = 0; i < set->n_options; i++) {
        const struct option *option = &set->options[i];
        if (strcmp(group, option->group) != 0) {
            fprintf(to, "\n%s\n", option->group);
            group = option->group;
        }
        help_row(option, to, width);
    }
}
