/* cmd_version.c - rodimus version: what was built, against what, and which devices it sees. */
#include "commands.h"
#include "version.h"

#include <jansson.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

int cmd_version(int argc, char **argv) {
    if (argc > 1) {
        bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");
        fprintf(help ? stdout : stderr, "Usage: rodimus version\nPrints version, commit and build features.\n");
        return help ? 0 : 2;
    }
    printf("rodimus %s\ncommit %s\n", version_string(), version_commit());
    printf("compiler %s\n", version_compiler());
    printf("libraries libmicrohttpd %s, libuv %s, jansson %s\n", MHD_get_version(), uv_version_string(),
           jansson_version_str());
    return 0;
}
