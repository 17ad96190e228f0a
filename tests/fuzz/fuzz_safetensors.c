/* fuzz_safetensors.c - the header parser on a stranger's bytes: as a whole file, as a header whose length is right (the
 * first byte says how much data follows), and as an index of shards. What it accepts must keep its promises. */
#include "engine/model/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const void *bytes, size_t n, uint64_t file_bytes) {
    struct safetensors_table table;
    struct rod_error err = {0};
    int rc = safetensors_parse(bytes, n, file_bytes, "fuzzed", &table, &err);
    if (rc) {
        if (!err.message[0] || table.tensors) abort();
        return;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < table.n_tensors; i++) {
        const struct safetensors_tensor *t = &table.tensors[i];
        if (t->first_byte > file_bytes || t->n_bytes > file_bytes - t->first_byte) abort();
        if (i && strcmp(table.tensors[i - 1].name, t->name) >= 0) abort(); /* sorted, no name twice */
        sum += t->n_bytes;
    }
    if (sum > file_bytes) abort(); /* no overlap */
    safetensors_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size, size);
    if (size > 0) {
        size_t n_header = size - 1;
        unsigned char *file = malloc(8 + n_header);
        if (!file) abort();
        for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
        memcpy(file + 8, data + 1, n_header);
        check(file, 8 + n_header, 8 + n_header + (uint64_t)data[0] % 64 * 4);
        free(file);
    }
    struct safetensors_index index;
    struct rod_error err = {0};
    if (safetensors_parse_index((const char *)data, size, "fuzzed", &index, &err)) return 0;
    for (size_t i = 0; i < index.n_files; i++)
        if (strchr(index.files[i], '/') || index.files[i][0] == '.') abort();
    safetensors_free_index(&index);
    return 0;
}
