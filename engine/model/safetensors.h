/* safetensors.h - the container of the weights: 8 bytes of header length, a JSON header, the tensors' bytes.
 *
 * Ownership: an open file owns its mapping and its table; names, files and data point into it and die with it.
 * Threads: immutable after open, any number of readers. Invariant: after a successful parse every tensor lies inside
 * the file, its bytes are its shape times its element size, and the tensors cover the data without overlap or gap.
 * Data may lie at any byte address: read it with memcpy or the functions below.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "engine/rodimus.h"

#define SAFETENSORS_MAX_DIMS         8
#define SAFETENSORS_MAX_HEADER_BYTES (16u << 20) /* the 4B checkpoint's is 0.1 MB */

/* name, bytes of an element */
#define SAFETENSORS_DTYPES(X)                                                                                          \
    X(F64, 8)                                                                                                          \
    X(F32, 4)                                                                                                          \
    X(F16, 2)                                                                                                          \
    X(BF16, 2)                                                                                                         \
    X(I64, 8)                                                                                                          \
    X(I32, 4)                                                                                                          \
    X(I16, 2) X(I8, 1) X(U64, 8) X(U32, 4) X(U16, 2) X(U8, 1) X(BOOL, 1) X(F8_E4M3, 1) X(F8_E5M2, 1) X(F8_E8M0, 1)

enum safetensors_dtype {
#define SAFETENSORS_X(name, bytes) SAFETENSORS_##name,
    SAFETENSORS_DTYPES(SAFETENSORS_X)
#undef SAFETENSORS_X
        SAFETENSORS_N_DTYPES
};

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype; /* SAFETENSORS_N_DTYPES: not known here; its bytes are what the offsets say */
    const char *dtype_name; /* as the header spells it; here and in name odd bytes are spelled out (json_python_keep) */
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t n_elems, n_bytes;
    uint64_t first_byte; /* from the start of the file */
};

struct safetensors_table {
    struct safetensors_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    void *priv; /* keeps the names */
};

/* Pure. bytes: the first n_bytes of a file of file_bytes (all of it, or at least the header); file: its name, for
 * messages. Errors: ROD_EMODEL naming file and, where one is at fault, tensor. */
int safetensors_parse(const void *bytes, size_t n_bytes, uint64_t file_bytes, const char *file,
                      struct safetensors_table *out, struct rod_error *err);
void safetensors_free(struct safetensors_table *table);

struct safetensors {
    char *path;
    struct safetensors_table table;
    const unsigned char *map;
    uint64_t n_bytes;
    int64_t modified_unix_s;
};

/* Maps the file for reading. ROD_ENOTFOUND when it is not there, ROD_EIO, ROD_EMODEL. */
int safetensors_open(const char *path, struct safetensors **out, struct rod_error *err);
void safetensors_close(struct safetensors *st);
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name); /* NULL: not there */
const void *safetensors_data(const struct safetensors *st, const struct safetensors_tensor *t);
/* dst[n_elems]; F64, F32, F16, BF16 (f32) or I64, I32 (i64), anything else is ROD_EMODEL. */
int safetensors_read_f32(const struct safetensors *st, const struct safetensors_tensor *t, float *dst,
                         struct rod_error *err);
int safetensors_read_i64(const struct safetensors *st, const struct safetensors_tensor *t, int64_t *dst,
                         struct rod_error *err);
/* "[2, 3]" into dst, cut at n_bytes. Returns dst. */
char *safetensors_render_shape(const uint64_t *shape, uint32_t n_dims, char *dst, size_t n_bytes);

/* model.safetensors.index.json: which shard holds which tensor. */
struct safetensors_place {
    const char *tensor, *file;
};
struct safetensors_index {
    struct safetensors_place *places;
    size_t n_places; /* sorted by tensor */
    const char **files;
    size_t n_files; /* distinct, sorted */
    void *priv;
};
/* Pure. A shard is a plain file name beside the index: anything with a path in it is refused. */
int safetensors_parse_index(const char *json, size_t len, const char *file, struct safetensors_index *out,
                            struct rod_error *err);
void safetensors_free_index(struct safetensors_index *index);

#endif
