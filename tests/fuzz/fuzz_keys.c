/* fuzz_keys.c - a file of API keys: what is accepted keeps the limits that the rest relies on, and each key in it
 * opens; what is not is told in one line. */
#include "server/settings/keys.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_key(struct keys *k, const struct key *key) {
    const size_t n = strlen(key->secret), n_name = strlen(key->name);
    if (!n || n > KEYS_SECRET_MAX || strcspn(key->secret, " \t\r\n") != n) abort();
    if (!n_name || n_name >= sizeof key->name || !key->index || key->index > KEYS_MAX) abort();
    if (key->priority < 1 || key->priority > 100) abort();
    if (keys_find(k, key->secret) != key) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct option_list none = {0};
    struct option_error err = {0};
    struct keys k = {0};
    char path[64];
    const int fd = memfd_create("keys", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int rc = keys_open(&k, &none, path, "", &err);
    if (rc && (!err.message[0] || strchr(err.message, '\n'))) abort();
    if (!rc && (!k.n || k.n > KEYS_MAX)) abort();
    for (size_t i = 0; !rc && i < k.n; i++) {
        check_key(&k, k.list[i]);
        for (size_t j = 0; j < i; j++)
            if (!strcmp(k.list[i]->name, k.list[j]->name)) abort();
    }
    keys_fini(&k);
    close(fd);
    return 0;
}
