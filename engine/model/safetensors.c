/* safetensors.c - see safetensors.h. The header comes from outside: every number is checked before it is used. */
#include "safetensors.h"
#include "engine/base/fail.h"
#include "engine/base/bytes.h"
#include "engine/base/half.h"
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <string.h>
#include <unistd.h>

#define MAX_EXACT 9007199254740992.0 /* 2^53: up to here a double names every integer */

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
#define SAFETENSORS_X(name, bytes) {#name, bytes},
    SAFETENSORS_DTYPES(SAFETENSORS_X)
#undef SAFETENSORS_X
};

char *safetensors_render_shape(const uint64_t *shape, uint32_t n_dims, char *dst, size_t n_bytes) {
    size_t n = (size_t)snprintf(dst, n_bytes, "[");
    for (uint32_t i = 0; i < n_dims && n < n_bytes; i++)
        n += (size_t)snprintf(dst + n, n_bytes - n, i ? ", %llu" : "%llu", (unsigned long long)shape[i]);
    if (n < n_bytes) snprintf(dst + n, n_bytes - n, "]");
    return dst;
}

/* ---- the header ---- */

static int tensor_by_name(const void *a, const void *b) {
    return strcmp(((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

static int tensor_by_place(const void *a, const void *b) {
    const struct safetensors_tensor *x = *(const struct safetensors_tensor *const *)a;
    const struct safetensors_tensor *y = *(const struct safetensors_tensor *const *)b;
    if (x->first_byte != y->first_byte) return x->first_byte < y->first_byte ? -1 : 1;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1; /* empty tensors before their neighbour */
    return 0;
}

/* A non-negative integer of the header. Numbers were read as doubles, so that one too big for 64 bits still arrives
 * here, where the tensor's name is known. */
static bool header_read_count(const json_t *value, uint64_t *out) {
    if (!json_is_real(value)) return false;
    double x = json_real_value(value);
    if (!(x >= 0 && x <= MAX_EXACT) || x != floor(x)) return false;
    *out = (uint64_t)x;
    return true;
}

/* A type that is not known here is a fault of who uses the tensor: most such tensors nobody does. So is an odd name. */
static int header_parse_dtype(const json_t *entry, const char *file, struct safetensors_table *table,
                              struct safetensors_tensor *t, struct rod_error *err) {
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype)) return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s has no dtype", file, t->name);
    t->dtype_name = json_python_keep(table->priv, json_string_value(dtype), json_string_length(dtype));
    if (!t->dtype_name) return rod_fail_no_memory(err);
    t->dtype = SAFETENSORS_N_DTYPES;
    for (uint32_t i = 0; i < SAFETENSORS_N_DTYPES; i++)
        if (!strcmp(t->dtype_name, dtypes[i].name)) t->dtype = (enum safetensors_dtype)i;
    return 0;
}

static int header_parse_shape(const json_t *entry, const char *file, struct safetensors_tensor *t,
                              struct rod_error *err) {
    const char *name = t->name;
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s has no shape", file, name);
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s has %zu dimensions, at most %d are supported", file,
                        name, json_array_size(shape), SAFETENSORS_MAX_DIMS);
    t->n_dims = (uint32_t)json_array_size(shape);
    t->n_elems = 1;
    bool empty = false;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!header_read_count(json_array_get(shape, i), &t->shape[i]))
            return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s: shape[%u] is not an integer from 0 to 2^53", file,
                            name, i);
        if (t->shape[i] == 0) empty = true;
    }
    for (uint32_t i = 0; i < t->n_dims && !empty; i++) {
        if (t->n_elems > (uint64_t)MAX_EXACT / t->shape[i])
            return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s: the product of its shape overflows", file, name);
        t->n_elems *= t->shape[i];
    }
    if (empty) t->n_elems = 0;
    assert(t->n_elems <= (uint64_t)MAX_EXACT && t->n_dims <= SAFETENSORS_MAX_DIMS);
    return 0;
}

static int header_parse_tensor(const json_t *entry, uint64_t data_first, uint64_t data_bytes, const char *file,
                               struct safetensors_table *table, struct safetensors_tensor *t, struct rod_error *err) {
    const char *name = t->name;
    if (!json_is_object(entry))
        return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s is not described by an object", file, name);
    int rc = header_parse_dtype(entry, file, table, t, err);
    if (!rc) rc = header_parse_shape(entry, file, t, err);
    if (rc) return rc;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || !header_read_count(json_array_get(offsets, 0), &begin) ||
        !header_read_count(json_array_get(offsets, 1), &end))
        return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s: data_offsets must be two integers from 0 to 2^53",
                        file, name);
    if (begin > end)
        return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s begins at %llu, after its end %llu", file, name,
                        (unsigned long long)begin, (unsigned long long)end);
    if (end > data_bytes)
        return rod_fail(err, ROD_EMODEL,
                        "%.150s: tensor %.120s ends at byte %llu of the data, the file has only %llu: truncated?", file,
                        name, (unsigned long long)end, (unsigned long long)data_bytes);
    t->first_byte = data_first + begin;
    t->n_bytes = end - begin;
    if (t->dtype == SAFETENSORS_N_DTYPES) return 0;
    t->n_bytes = t->n_elems * dtypes[t->dtype].bytes; /* at most 2^53 * 8: no overflow */
    if (end - begin != t->n_bytes) {
        char text[128];
        return rod_fail(err, ROD_EMODEL,
                        "%.150s: tensor %.120s: shape %s of %s needs %llu bytes, its offsets give %llu", file, name,
                        safetensors_render_shape(t->shape, t->n_dims, text, sizeof text), t->dtype_name,
                        (unsigned long long)t->n_bytes, (unsigned long long)(end - begin));
    }
    return 0;
}

/* The tensors must tile the data: an overlap or a gap means that the header does not belong to this file. */
static int table_check_tiling(const struct safetensors_table *table, uint64_t data_first, uint64_t file_bytes,
                              const char *file, struct rod_error *err) {
    if (table->n_tensors == 0)
        return file_bytes == data_first ? 0
                                        : rod_fail(err, ROD_EMODEL, "%.150s: %llu bytes of data belong to no tensor",
                                                   file, (unsigned long long)(file_bytes - data_first));
    const struct safetensors_tensor **order = malloc(table->n_tensors * sizeof *order);
    if (!order) return rod_fail_no_memory(err);
    for (size_t i = 0; i < table->n_tensors; i++) order[i] = &table->tensors[i];
    qsort(order, table->n_tensors, sizeof *order, tensor_by_place);
    uint64_t cursor = data_first;
    int rc = 0;
    for (size_t i = 0; i < table->n_tensors && !rc; i++) {
        const struct safetensors_tensor *t = order[i];
        if (t->first_byte < cursor)
            rc = rod_fail(err, ROD_EMODEL, "%.150s: tensor %.90s overlaps tensor %.90s", file, t->name,
                          order[i ? i - 1 : 0]->name);
        else if (t->first_byte > cursor)
            rc = rod_fail(err, ROD_EMODEL, "%.150s: a gap of %llu bytes before tensor %.120s", file,
                          (unsigned long long)(t->first_byte - cursor), t->name);
        cursor = t->first_byte + t->n_bytes;
    }
    if (!rc && cursor != file_bytes)
        rc = rod_fail(err, ROD_EMODEL, "%.150s: %llu bytes of data follow the last tensor, %.120s", file,
                      (unsigned long long)(file_bytes - cursor), order[table->n_tensors - 1]->name);
    free(order);
    return rc;
}

static int header_parse_entries(json_t *root, uint64_t data_first, uint64_t file_bytes, const char *file,
                                struct safetensors_table *out, struct rod_error *err) {
    if (!json_is_object(root)) return rod_fail(err, ROD_EMODEL, "%.150s: the header is not a JSON object", file);
    out->tensors = calloc(json_object_size(root) + 1, sizeof *out->tensors);
    if (!out->tensors) return rod_fail_no_memory(err);
    const char *name;
    size_t len;
    json_t *entry;
    json_object_keylen_foreach(root, name, len, entry) {
        if (len == 12 && !memcmp(name, "__metadata__", 12)) {
            if (!json_is_object(entry)) return rod_fail(err, ROD_EMODEL, "%.150s: __metadata__ is not an object", file);
            continue;
        }
        struct safetensors_tensor *t = &out->tensors[out->n_tensors];
        t->name = json_python_keep(out->priv, name, len);
        if (!t->name) return rod_fail_no_memory(err);
        int rc = header_parse_tensor(entry, data_first, file_bytes - data_first, file, out, t, err);
        if (rc) return rc;
        out->n_tensors++;
    }
    qsort(out->tensors, out->n_tensors, sizeof *out->tensors, tensor_by_name);
    return table_check_tiling(out, data_first, file_bytes, file, err);
}

/* ---- keys that stand twice ---- */

struct header_keys {
    const char *file;
    json_t *seen;              /* the outermost keys so far */
    const char *outer, *inner; /* the keys that this place is under, as they are spelled */
    size_t n_outer, n_inner;
    unsigned read; /* of the tensor: which keys that are read have been there, a bit each */
    struct rod_error *err;
};

/* The key as the tree has it: NULL without memory. */
static json_t *header_decode_key(const char *text, size_t n) {
    json_error_t fault;
    if (!memchr(text, '\\', n)) return json_stringn_nocheck(text, n);
    return json_python_load(text - 1, n + 2, JSON_DECODE_ANY, &fault); /* with its quotes */
}

static bool is_text(const json_t *key, const char *text) {
    return json_string_length(key) == strlen(text) && !memcmp(json_string_value(key), text, strlen(text));
}

/* Two tensors of one name are refused, and what says twice where or what a tensor is. */
static int header_take_key(struct header_keys *k, unsigned depth, const json_t *key) {
    static const char *const read[] = {"dtype", "shape", "data_offsets"};
    const int n_outer = (int)(k->n_outer < 120 ? k->n_outer : 120), n_inner = (int)(k->n_inner < 60 ? k->n_inner : 60);
    const char *text = json_string_value(key);
    const size_t len = json_string_length(key);
    if (depth == 1) {
        k->read = is_text(key, "__metadata__") ? ~0u : 0;
        if (!k->read && json_object_getn(k->seen, text, len))
            return rod_fail(k->err, ROD_EMODEL, "%.150s: header has a duplicate: tensor %.*s is there twice", k->file,
                            n_outer, k->outer);
        return json_object_setn_new_nocheck(k->seen, text, len, json_true()) ? rod_fail_no_memory(k->err) : 0;
    }
    for (unsigned i = 0; i < 3 && k->read != ~0u; i++) {
        if (!is_text(key, read[i])) continue;
        if (k->read & 1u << i)
            return rod_fail(k->err, ROD_EMODEL, "%.150s: header has a duplicate: tensor %.*s: %.*s is there twice",
                            k->file, n_outer, k->outer, n_inner, k->inner);
        k->read |= 1u << i;
    }
    return 0;
}

/* The tree has the last of each key. The text is valid, and an object: a string with a colon behind it is a key. */
static int header_refuse_duplicates(const char *header, size_t len, const char *file, struct rod_error *err) {
    struct header_keys k = {.file = file, .seen = json_object(), .err = err};
    unsigned depth = 0;
    int rc = k.seen ? 0 : rod_fail_no_memory(err);
    for (size_t i = 0; i < len && !rc; i++) {
        if (header[i] == '{' || header[i] == '[') depth++;
        if (header[i] == '}' || header[i] == ']') depth--;
        if (header[i] != '"') continue;
        const size_t first = ++i;
        while (i < len && header[i] != '"') i += header[i] == '\\' ? 2 : 1;
        size_t next = i + 1;
        while (next < len && (header[next] == ' ' || (header[next] >= '\t' && header[next] <= '\r'))) next++;
        if (depth > 2 || next >= len || header[next] != ':') continue;
        *(depth == 1 ? &k.outer : &k.inner) = header + first;
        *(depth == 1 ? &k.n_outer : &k.n_inner) = i - first;
        json_t *key = header_decode_key(header + first, i - first);
        rc = key ? header_take_key(&k, depth, key) : rod_fail_no_memory(err);
        json_decref(key);
    }
    json_decref(k.seen);
    return rc;
}

int safetensors_parse(const void *bytes, size_t n_bytes, uint64_t file_bytes, const char *file,
                      struct safetensors_table *out, struct rod_error *err) {
    *out = (struct safetensors_table){0};
    if (file_bytes < 8 || n_bytes < 8)
        return rod_fail(err, ROD_EMODEL, "%.150s: %llu bytes are too few for a safetensors file", file,
                        (unsigned long long)file_bytes);
    const uint64_t header_bytes = bytes_get(bytes, 8);
    if (header_bytes > file_bytes - 8 || header_bytes > n_bytes - 8)
        return rod_fail(err, ROD_EMODEL, "%.150s: a header of %llu bytes does not fit in a file of %llu: truncated?",
                        file, (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return rod_fail(err, ROD_EMODEL, "%.150s: header length %llu exceeds the limit of %u bytes", file,
                        (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    json_error_t json_err;
    const char *header = (const char *)bytes + 8;
    json_t *root = json_python_load(header, (size_t)header_bytes, JSON_DECODE_INT_AS_REAL, &json_err);
    if (!root && json_guard_was_short(&json_err)) return rod_fail_no_memory(err);
    if (!root)
        return rod_fail(err, ROD_EMODEL, "%.150s: header is not valid JSON at byte %d: %.160s", file, json_err.position,
                        json_err.text);
    out->priv = json_python_keeper(root);
    if (!out->priv) return rod_fail_no_memory(err);
    int rc = json_is_object(root) ? header_refuse_duplicates(header, (size_t)header_bytes, file, err) : 0;
    if (!rc) rc = header_parse_entries(root, 8 + header_bytes, file_bytes, file, out, err);
    if (rc) safetensors_free(out);
    return rc;
}

void safetensors_free(struct safetensors_table *table) {
    free(table->tensors);
    json_decref(table->priv);
    *table = (struct safetensors_table){0};
}

/* ---- the file ---- */

static int file_map(struct safetensors *st, struct rod_error *err) {
    int fd = open(st->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe answers at once and is refused */
    struct stat info;
    if (fd < 0) {
        const int why = errno;
        const bool is_missing = why == ENOENT && lstat(st->path, &info); /* a link that leads nowhere is there */
        return rod_fail(err, is_missing ? ROD_ENOTFOUND : ROD_EIO, "cannot open %.300s: %s", st->path, strerror(why));
    }
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_size < 8) {
        close(fd);
        return rod_fail(err, ROD_EMODEL, "%.300s is not a safetensors file: not a regular file of 8 bytes or more",
                        st->path);
    }
    st->n_bytes = (uint64_t)info.st_size;
    st->modified_unix_s = info.st_mtime;
    void *map = mmap(NULL, (size_t)st->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return rod_fail(err, ROD_EIO, "cannot map %.300s: %s", st->path, strerror(errno));
    st->map = map;
    return 0;
}

int safetensors_open(const char *path, struct safetensors **out, struct rod_error *err) {
    struct safetensors *st = calloc(1, sizeof *st);
    if (!st || !(st->path = strdup(path))) {
        free(st);
        return rod_fail_no_memory(err);
    }
    int rc = file_map(st, err);
    if (!rc) rc = safetensors_parse(st->map, (size_t)st->n_bytes, st->n_bytes, path, &st->table, err);
    if (rc) {
        safetensors_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void safetensors_close(struct safetensors *st) {
    if (!st) return;
    safetensors_free(&st->table);
    if (st->map) munmap((void *)(uintptr_t)st->map, (size_t)st->n_bytes);
    free(st->path);
    free(st);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name) {
    struct safetensors_tensor key = {.name = name};
    if (!st->table.n_tensors) return NULL;
    return bsearch(&key, st->table.tensors, st->table.n_tensors, sizeof key, tensor_by_name);
}

const void *safetensors_data(const struct safetensors *st, const struct safetensors_tensor *t) {
    assert(t->first_byte <= st->n_bytes && t->n_bytes <= st->n_bytes - t->first_byte);
    return st->map + t->first_byte;
}

int safetensors_read_f32(const struct safetensors *st, const struct safetensors_tensor *t, float *dst,
                         struct rod_error *err) {
    const unsigned char *src = safetensors_data(st, t);
    for (uint64_t i = 0; i < t->n_elems; i++) {
        uint16_t h;
        double x;
        switch (t->dtype) {
        case SAFETENSORS_F64:
            memcpy(&x, src + 8 * i, 8);
            dst[i] = (float)x;
            break;
        case SAFETENSORS_F32: memcpy(&dst[i], src + 4 * i, 4); break;
        case SAFETENSORS_F16:
            memcpy(&h, src + 2 * i, 2);
            dst[i] = half_f16_to_f32(h);
            break;
        case SAFETENSORS_BF16:
            memcpy(&h, src + 2 * i, 2);
            dst[i] = half_bf16_to_f32(h);
            break;
        default:
            return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s has dtype %s, a float type was expected", st->path,
                            t->name, t->dtype_name);
        }
    }
    return 0;
}

int safetensors_read_i64(const struct safetensors *st, const struct safetensors_tensor *t, int64_t *dst,
                         struct rod_error *err) {
    const unsigned char *src = safetensors_data(st, t);
    for (uint64_t i = 0; i < t->n_elems; i++) {
        int32_t x;
        switch (t->dtype) {
        case SAFETENSORS_I64: memcpy(&dst[i], src + 8 * i, 8); break;
        case SAFETENSORS_I32:
            memcpy(&x, src + 4 * i, 4);
            dst[i] = x;
            break;
        default:
            return rod_fail(err, ROD_EMODEL, "%.150s: tensor %.120s has dtype %s, I32 or I64 was expected", st->path,
                            t->name, t->dtype_name);
        }
    }
    return 0;
}
