/* cmd_version.c - rodimus version: what was built, against what, and which devices it sees. */
#include "commands.h"
#include "server/base/version.h"

#include "engine/rodimus.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <curl/curl.h>
#include <gnutls/gnutls.h>
#include <jansson.h>
#include <microhttpd.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include <uv.h>
#include <xxhash.h>

int cmd_version(int argc, char **argv) {
    if (argc > 1) {
        bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");
        if (!help) fprintf(stderr, "rodimus version: %s is not understood.\n", argv[1]);
        fprintf(help ? stdout : stderr, "Usage: rodimus version\nPrints version, commit, build features, and the "
                                        "devices seen with the weights that they run.\n");
        return help ? 0 : 2;
    }
    printf("rodimus %s\ncommit %s\n", version_string(), version_commit());
    printf("compiler %s\n", version_compiler());
    char pcre2[64] = "unknown", cuda[256];
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2); /* "10.42 2022-12-11", less than 24 bytes by its manual */
    printf("libraries libmicrohttpd %s, GnuTLS %s, libcurl %s, libuv %s, jansson %s, PCRE2 %.*s, utf8proc %s, xxHash "
           "%u.%u.%u\n",
           MHD_get_version(), gnutls_check_version(NULL), curl_version_info(CURLVERSION_NOW)->version,
           uv_version_string(), jansson_version_str(), (int)strcspn(pcre2, " "), pcre2, utf8proc_version(),
           XXH_versionNumber() / 10000, XXH_versionNumber() / 100 % 100, XXH_versionNumber() % 100);
    rod_cuda_note(cuda, sizeof cuda);
    printf("cuda %s\n", cuda);
    char devices[16][128];
    size_t n = rod_devices(devices, 16);
    for (size_t i = 0; i < n; i++) printf("device %s\n", devices[i]);
    return 0;
}
