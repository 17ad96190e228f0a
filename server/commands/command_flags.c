/* command_flags.c - see commands.h. */
#include "commands.h"
#include "server/settings/options.h"

#include <stdio.h>

#define HELP_COLUMNS 110

int command_flags(const struct option_set *set, const char *name, const char *about, const char *more, int argc,
                  char **argv) {
    struct option_error err;
    bool help = false;
    if (options_init(set, &err) || options_from_flags(set, argc, argv, NULL, &help, &err)) {
        fprintf(stderr, "rodimus %s: %s\n('rodimus %s --help' lists the flags.)\n", name, err.message, name);
        return 2;
    }
    if (!help) return -1;
    printf("Usage: rodimus %s %s\n\n  -h, --help                      this text\n", name, about);
    options_help(set, stdout, HELP_COLUMNS);
    printf("%s%s", *more ? "\n" : "", more);
    return 0;
}
