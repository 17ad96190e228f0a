/* options.h - a table of options that reads flags, environment and a JSON file, and prints --help.
 *
 * A row says where in the caller's struct its value lives (offset) and what the field's type is. All sources go through
 * one parser, so that `--port 80`, `RODIMUS_PORT=80` and `"port": 80` mean the same and fail with the same words.
 * Ownership: strings and lists inside the values are malloc'd; options_fini frees them.
 * Pure; any thread.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_STRING, /* char *, never NULL after options_init */
    OPTION_CHOICE, /* char *, one of `choices` */
    OPTION_UINT,   /* uint64_t */
    OPTION_AUTO,   /* uint64_t, "auto" = 0 */
    OPTION_INT,    /* int64_t */
    OPTION_FLOAT,  /* double; without a default NAN, as "auto" is where that is the default */
    OPTION_BOOL,   /* bool; a flag without a value means true */
    OPTION_LIST,   /* struct option_list, commas in flags and environment, an array in files */
    OPTION_REPEAT, /* struct option_list, one entry for every time the flag is given, commas kept */
};

struct option_list {
    char **items;
    size_t n_items;
};

struct option {
    const char *name; /* snake_case */
    enum option_type type;
    size_t offset;        /* of the value in the caller's struct */
    const char *fallback; /* the default, as text; NULL = empty */
    double min, max;      /* of numbers, both included */
    const char *choices;  /* "auto|cpu|cuda|cuda:N"; a final N stands for digits */
    const char *metavar;  /* "N", "DIR" ... in --help */
    const char *group;    /* heading in --help */
    const char *help;
    const char *(*check)(const char *text); /* of a text or a list's item: NULL, or what it must be; may be NULL */
    const char *removed; /* not NULL: there was such an option, and only an empty value is accepted; why */
    char letter;         /* short flag, 0 = none */
    bool secret;         /* never print the value */
    bool never_empty;    /* a flag or variable that is there and empty is an error: it would undo what a file says */
    bool reload;         /* SIGHUP takes a new value over; others need a restart */
};

struct option_set {
    const struct option *options;
    size_t n_options;
    void *values;
    const struct option *removed; /* [n_removed] named by errors alone; a row has a name and `removed` */
    size_t n_removed;
};
#define OPTION_SET(rows, of)                                                                                           \
    ((struct option_set){.options = (rows), .n_options = sizeof(rows) / sizeof *(rows), .values = (of)})

struct option_error {
    char message[512];
};

/* Sets every default. Returns 0, or -1 with the message when a default breaks its own row (or memory is out). */
int options_init(const struct option_set *set, struct option_error *err);
void options_fini(const struct option_set *set);

/* One value from text. source: "flag --port", "environment variable RODIMUS_PORT", "file x.json". 0 or -1. */
int options_set(const struct option_set *set, const struct option *option, const char *text, const char *source,
                struct option_error *err);
const struct option *options_find(const struct option_set *set, const char *name); /* NULL if unknown */

/* Flags: --name VALUE, --name=VALUE, -x VALUE. *help is set by --help or -h, and then the rest is not read.
 * skip (may be NULL): a flag name that is read elsewhere; its value is stepped over. 0 or -1. */
int options_from_flags(const struct option_set *set, int argc, char **argv, const char *skip, bool *help,
                       struct option_error *err);
/* RODIMUS_NAME=VALUE. An unknown name is an error, but for RODIMUS_CONFIG, RODIMUS_TEST_* and those that Kubernetes
 * sets for a service called rodimus). 0 or -1. */
int options_from_environment(const struct option_set *set, char **environment, struct option_error *err);
/* A JSON object of names. 0 or -1. */
int options_from_json_text(const struct option_set *set, const char *text, size_t len, const char *source,
                           struct option_error *err);

/* Whether two sets of the same table hold different values for a row. */
bool options_differ(const struct option_set *a, const struct option_set *b, const struct option *option);
void options_swap(const struct option_set *a, const struct option_set *b, const struct option *option);

/* The flags by group, wrapped to width columns. */
void options_help(const struct option_set *set, FILE *to, int width);

#endif
