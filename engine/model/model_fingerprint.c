/* model_fingerprint.c - the name of a model's bytes, so that no state is loaded beside weights that did not make it. */
#include "engine/base/bytes.h"
#include "model_internal.h"
#include "safetensors.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { LABEL_BYTES = 512 };

/* fingerprint := XXH3(fingerprint, n_bytes, XXH3(bytes), label) */
void model_fingerprint_add(struct model *model, const char *label, const void *bytes, size_t n_bytes) {
    unsigned char link[2 * MODEL_FINGERPRINT_BYTES + 8 + LABEL_BYTES], *to = link;
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, n_bytes));
    memcpy(to, model->fingerprint, MODEL_FINGERPRINT_BYTES);
    to = bytes_put(to + MODEL_FINGERPRINT_BYTES, n_bytes, 8);
    memcpy(to, digest.digest, sizeof digest.digest);
    to += sizeof digest.digest;
    size_t n = strlen(label) < LABEL_BYTES ? strlen(label) : LABEL_BYTES;
    assert((size_t)(to - link) + n <= sizeof link);
    memcpy(to, label, n);
    XXH128_canonicalFromHash(&digest, XXH3_128bits(link, (size_t)(to - link) + n));
    memcpy(model->fingerprint, digest.digest, MODEL_FINGERPRINT_BYTES);
}

void model_fingerprint_add_tensor(struct model *model, const char *dtype, const uint64_t *shape, uint32_t n_dims,
                                  const char *name, const void *data, uint64_t n_bytes) {
    char text[160], label[LABEL_BYTES];
    snprintf(label, sizeof label, "%s %s %s", dtype, safetensors_render_shape(shape, n_dims, text, sizeof text), name);
    model_fingerprint_add(model, label, data, n_bytes);
}

char *model_render_fingerprint(const uint8_t fingerprint[MODEL_FINGERPRINT_BYTES],
                               char text[2 * MODEL_FINGERPRINT_BYTES + 1]) {
    for (int i = 0; i < MODEL_FINGERPRINT_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", fingerprint[i]);
    return text;
}
