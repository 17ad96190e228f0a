/* tokenizer_open.c - a checkpoint's tokenizer files to a tokenizer. Above tokenizer_parse.c, which does no I/O. */
#include "engine/base/file.h"
#include "tokenizer.h"

#define TOKENIZER_MAX_FILE_BYTES (256u << 20)

int tokenizer_open(const char *dir, struct tokenizer **out, struct rod_error *err) {
    struct file_bytes json, config = {0};
    int rc = file_load(dir, "tokenizer.json", TOKENIZER_MAX_FILE_BYTES, &json, err);
    if (rc) return rc;
    rc = file_load(dir, "tokenizer_config.json", TOKENIZER_MAX_FILE_BYTES, &config, err);
    if (!rc || rc == ROD_ENOTFOUND) rc = tokenizer_parse(json.data, json.n, config.data, config.n, out, err);
    file_wipe(&config);
    file_wipe(&json);
    return rc;
}
