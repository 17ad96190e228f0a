/* model_write.c - see model_write.h. Codes of 4 bits are pack-quantized, with a head of 8 bits in the same packing;
 * int8 is int-quantized, fp8 float-quantized. */
#include "model_write.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/base/half.h"
#include "engine/base/json_python.h"
#include "model_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_COPIED_BYTES (256u << 20)
#define WEIGHTS_FILE     "model.safetensors"
#define PART_FILE        ".quantise.part" /* the weights until the directory is complete, locked by their writer */
#define CONFIG_FILE      "config.json"

enum { ROWS_AT_ONCE = 256, COPIED_AT_ONCE = 1 << 16 };

struct writing {
    const struct model *model;
    const char *to;
    const struct model_rows *rows;
    const struct rod_progress_to *progress;
    struct rod_error *err;
    FILE *file;
    json_t *header;
    uint64_t n_data, n_written;
    json_t *eights; /* names of the modules in 8 bits among those of 4 */
};

static int write_fail(const struct writing *w, const char *what) {
    return rod_fail(w->err, ROD_EIO, "%s: %.200s/" WEIGHTS_FILE ": %s", what, w->to, strerror(errno));
}

static int write_bytes(struct writing *w, const void *bytes, size_t n) {
    if (fwrite(bytes, 1, n, w->file) != n) return write_fail(w, "cannot write");
    w->n_written += n;
    return 0;
}

/* ---- the header ---- */

static void header_add(struct writing *w, const char *name, const char *dtype, const uint64_t *shape, uint32_t n_dims,
                       uint64_t n_bytes) {
    json_t *dims = json_array();
    for (uint32_t i = 0; i < n_dims; i++) json_array_append_new(dims, json_integer((json_int_t)shape[i]));
    json_object_set_new(w->header, name,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", dims, "data_offsets",
                                  (json_int_t)w->n_data, (json_int_t)(w->n_data + n_bytes)));
    w->n_data += n_bytes;
}

/* How a piece is kept: false, as it is. packed: in words of 32 bits. */
static bool piece_quant(const struct writing *w, const struct model_piece *piece, struct weight_quant *q,
                        bool *packed) {
    struct model *model = (struct model *)(uintptr_t)w->model; /* read alone */
    *packed = w->model->weights == WEIGHT_INT4;
    return piece->quantisable && weight_quant_of(w->model, model_piece_weight(model, piece), q);
}

static uint64_t codes_bytes(const struct weight_quant *q, uint64_t rows, uint64_t cols) {
    return q->format == WEIGHT_INT4 ? rows * ((cols + 7) / 8) * 4 : rows * cols;
}

static const char *type_of(enum dtype dtype) {
    return dtype == DTYPE_F32 ? "F32" : dtype == DTYPE_F16 ? "F16" : "BF16";
}

static void module_of(const struct model_piece *piece, char module[96]) {
    snprintf(module, 96, "%.*s", (int)(strlen(piece->name) - strlen(".weight")), piece->name);
}

static int header_piece(void *arg, const struct model_piece *piece) {
    struct writing *w = arg;
    struct weight_quant q;
    bool packed;
    const uint64_t rows = piece->rows, cols = piece->cols;
    if (!piece_quant(w, piece, &q, &packed)) {
        struct model *model = (struct model *)(uintptr_t)w->model;
        const enum dtype dtype = model_piece_weight(model, piece)->part[piece->part].dtype;
        header_add(w, piece->name, type_of(dtype), piece->shape, piece->n_dims, rows * cols * dtype_bytes(dtype));
        return 0;
    }
    char name[128], module[96];
    module_of(piece, module);
    const uint64_t n_bytes = codes_bytes(&q, rows, cols), groups = weight_quant_groups(&q, piece->cols);
    if (packed && q.format == WEIGHT_INT8) {
        if (cols % 4)
            return rod_fail(w->err, ROD_EUNSUPPORTED, "%s has %u columns: rows of 8 bits are packed by four.",
                            piece->name, piece->cols);
        json_array_append_new(w->eights, json_string(module));
    }
    snprintf(name, sizeof name, "%s.%s", module, packed ? "weight_packed" : "weight");
    header_add(w, name,
               packed                   ? "I32"
               : q.format == WEIGHT_FP8 ? "F8_E4M3"
                                        : "I8",
               (const uint64_t[]){rows, packed ? n_bytes / rows / 4 : cols}, 2, n_bytes);
    snprintf(name, sizeof name, "%s.weight_scale", module);
    header_add(w, name, "BF16", (const uint64_t[]){rows, groups}, 2, 2 * rows * groups);
    if (packed) {
        snprintf(name, sizeof name, "%s.weight_shape", module);
        header_add(w, name, "I64", (const uint64_t[]){2}, 1, 16);
    }
    return 0;
}

/* ---- the data, in the header's order ---- */

static int write_wide(struct writing *w, const struct weight_part *part, uint64_t n) {
    unsigned char bytes[COPIED_AT_ONCE];
    const uint64_t size = dtype_bytes(part->dtype), step = sizeof bytes / size;
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i += step) {
        const uint64_t m = n - i < step ? n - i : step;
        weight_part_copy(part, i, m, bytes);
        rc = write_bytes(w, bytes, m * size);
    }
    return rc;
}

/* Codes of one row as the file has them, in place: the packing writes behind what it has read. */
static size_t pack_row(const struct weight_quant *q, bool packed, uint32_t cols, uint8_t *codes) {
    if (packed && q->format == WEIGHT_INT8)
        for (uint32_t c = 0; c < cols; c++) codes[c] ^= 0x80; /* 128 is added */
    if (q->format != WEIGHT_INT4) return cols;
    const size_t n_bytes = (size_t)(cols + 7) / 8 * 4;
    for (size_t i = 0; i < n_bytes; i++) {
        const unsigned low = 2 * i < cols ? codes[2 * i] : 0, high = 2 * i + 1 < cols ? codes[2 * i + 1] : 0;
        codes[i] = (uint8_t)(low | high << 4);
    }
    return n_bytes;
}

static int write_codes(struct writing *w, const struct model_piece *piece, const struct weight_quant *q, bool packed) {
    struct model *model = (struct model *)(uintptr_t)w->model;
    const struct weight *weight = model_piece_weight(model, piece);
    const uint32_t cols = piece->cols, groups = weight_quant_groups(q, cols),
                   row0 = piece->part ? weight->part[0].rows : 0;
    uint8_t *codes = malloc((size_t)ROWS_AT_ONCE * cols + 8);
    float *scales = malloc(sizeof *scales * ROWS_AT_ONCE * groups);
    unsigned char *kept = malloc(2 * (size_t)piece->rows * groups), *to = kept; /* scales come behind the codes */
    int rc = codes && scales && kept ? 0 : rod_fail_no_memory(w->err);
    for (uint32_t first = 0; first < piece->rows && !rc; first += ROWS_AT_ONCE) {
        const uint32_t n = piece->rows - first < ROWS_AT_ONCE ? piece->rows - first : ROWS_AT_ONCE;
        rod_progress(w->progress, "quantising weights", "B", w->n_written, w->n_data);
        rc = w->rows->fill(w->rows->arg, weight, q, row0 + first, n, codes, scales, w->err);
        for (size_t i = 0; i < (size_t)n * groups && !rc; i++) to = bytes_put(to, half_f32_to_bf16(scales[i]), 2);
        for (uint32_t r = 0; r < n && !rc; r++) {
            uint8_t *row = codes + (size_t)r * cols;
            rc = write_bytes(w, row, pack_row(q, packed, cols, row));
        }
    }
    if (!rc) rc = write_bytes(w, kept, 2 * (size_t)piece->rows * groups);
    unsigned char shape[16];
    bytes_put(bytes_put(shape, piece->rows, 8), piece->cols, 8);
    if (!rc && packed) rc = write_bytes(w, shape, sizeof shape);
    free(codes);
    free(scales);
    free(kept);
    return rc;
}

static int write_piece(void *arg, const struct model_piece *piece) {
    struct writing *w = arg;
    struct weight_quant q;
    bool packed;
    if (piece_quant(w, piece, &q, &packed)) return write_codes(w, piece, &q, packed);
    struct model *model = (struct model *)(uintptr_t)w->model;
    return write_wide(w, &model_piece_weight(model, piece)->part[piece->part], (uint64_t)piece->rows * piece->cols);
}

static int write_weights(struct writing *w) {
    struct model_dims untied = w->model->dims;
    untied.tied = false; /* the head in fewer bits is a matrix of its own */
    const bool fla = !strcmp(w->model->layout, "fla");
    int rc = model_plan(&untied, fla, header_piece, w);
    char *text = rc ? NULL : json_dumps(w->header, JSON_COMPACT);
    if (!rc && !text) rc = rod_fail_no_memory(w->err);
    if (rc) return rc;
    const size_t n = strlen(text), n_padded = (n + 7) / 8 * 8;
    unsigned char length[8];
    bytes_put(length, n_padded, 8);
    if (!rc) rc = write_bytes(w, length, sizeof length);
    if (!rc) rc = write_bytes(w, text, n);
    if (!rc) rc = write_bytes(w, "        ", n_padded - n);
    w->n_written = 0;
    if (!rc) rc = model_plan(&untied, fla, write_piece, w);
    if (!rc && (fflush(w->file) || fsync(fileno(w->file)))) rc = write_fail(w, "cannot write");
    if (!rc) rod_progress(w->progress, "quantising weights", "B", w->n_data, w->n_data);
    free(text);
    return rc;
}

/* ---- the other files ---- */

static int write_text(const struct writing *w, const char *file, const char *bytes, size_t n) {
    char *path = file_path(w->to, file);
    if (!path) return rod_fail_no_memory(w->err);
    FILE *out = fopen(path, "wb");
    bool good = out && fwrite(bytes, 1, n, out) == n;
    if (out && fclose(out)) good = false;
    const int rc = good ? 0 : rod_fail(w->err, ROD_EIO, "cannot write %.200s: %s", path, strerror(errno));
    free(path);
    return rc;
}

static const char *const copied[] = {"tokenizer.json",
                                     "tokenizer_config.json",
                                     "generation_config.json",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "LICENSE"};
enum { N_COPIED = sizeof copied / sizeof *copied };

static int write_copies(const struct writing *w, const char *from) {
    for (size_t i = 0; i < N_COPIED; i++) {
        struct file_bytes bytes;
        int rc = file_load(from, copied[i], MAX_COPIED_BYTES, &bytes, w->err);
        if (rc == ROD_ENOTFOUND) continue;
        if (!rc) rc = write_text(w, copied[i], bytes.data, bytes.n);
        file_wipe(&bytes);
        if (rc) return rc;
    }
    return 0;
}

/* The part of config.json that says how the weights are kept, for other programs, too. */
static json_t *quantization_config(const struct writing *w) {
    static const struct {
        const char *format, *type;
        int bits;
    } kinds[WEIGHT_N_FORMATS] = {[WEIGHT_FP8] = {"float-quantized", "float", 8},
                                 [WEIGHT_INT8] = {"int-quantized", "int", 8},
                                 [WEIGHT_INT4] = {"pack-quantized", "int", 4}};
    const enum weight_format format = w->model->weights;
    json_t *args = json_pack("{s:i,s:s,s:b,s:s,s:b}", "num_bits", kinds[format].bits, "type", kinds[format].type,
                             "symmetric", 1, "strategy", format == WEIGHT_INT4 ? "group" : "channel", "dynamic", 0);
    if (format == WEIGHT_INT4) json_object_set_new(args, "group_size", json_integer(WEIGHT_GROUP));
    json_t *groups = json_pack("{s:{s:[s],s:o,s:s}}", "group_0", "targets", "Linear", "weights", args, "format",
                               kinds[format].format);
    if (json_array_size(w->eights))
        json_object_set_new(groups, "group_1",
                            json_pack("{s:O,s:{s:i,s:s,s:b,s:s,s:b},s:s}", "targets", w->eights, "weights", "num_bits",
                                      8, "type", "int", "symmetric", 1, "strategy", "channel", "dynamic", 0, "format",
                                      kinds[format].format));
    json_t *ignore = json_array(); /* linear layers that stay wide */
    static const char *const wide[] = {"re:.*in_proj$",      "re:.*mem_gate_proj$", "re:.*ch_gate_proj.*",
                                       "re:.*i_gate_proj.*", "re:.*g_gate_proj$",   "re:.*tau_gate_proj$",
                                       "re:.*mixer.q_proj$", "re:.*mixer.k_proj$"};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) json_array_append_new(ignore, json_string(wide[i]));
    return json_pack("{s:s,s:s,s:s,s:o,s:o}", "quant_method", "compressed-tensors", "format", kinds[format].format,
                     "quantization_status", "compressed", "config_groups", groups, "ignore", ignore);
}

/* A member of a text's outermost object. */
struct member {
    const char *key, *value;
    size_t n_key, n_value;
};

static const char *past_blanks(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *past_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return at + (*at != 0);
}

/* at: behind the object's brace or a member's comma, in a text that was parsed before. NULL: there is none; else where
 * the next one is looked for. */
static const char *next_member(const char *at, struct member *m) {
    unsigned depth = 0;
    at = past_blanks(at);
    if (*at != '"') return NULL;
    m->key = at;
    at = past_string(at);
    m->n_key = (size_t)(at - m->key);
    at = past_blanks(at);
    m->value = at = past_blanks(at + (*at == ':'));
    for (; *at && (depth || (*at != ',' && *at != '}')); at = *at == '"' ? past_string(at) : at + 1) {
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
    }
    m->n_value = (size_t)(at - m->value);
    while (m->n_value && strchr(" \t\r\n", m->value[m->n_value - 1])) m->n_value--;
    return at + (*at == ',');
}

static bool member_is_ours(const struct member *m) {
    json_error_t fault;
    json_t *key = json_python_load(m->key, m->n_key, JSON_DECODE_ANY, &fault);
    const char *name = json_python_text(key);
    const bool ours = name && (!strcmp(name, "quantization_config") || !strcmp(name, "tie_word_embeddings"));
    json_decref(key);
    return ours;
}

/* The configuration as it is spelled, whatever its numbers are, but for the two members that say how weights are kept.
 */
static int write_config(const struct writing *w, const char *from) {
    struct file_bytes bytes;
    int rc = file_load(from, CONFIG_FILE, MAX_COPIED_BYTES, &bytes, w->err);
    if (rc) return rc;
    json_t *ours = quantization_config(w);
    char *said = ours ? json_dumps(ours, JSON_INDENT(2)) : NULL, *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (out) {
        struct member m;
        const char *at = past_blanks(bytes.data);
        fputs("{\n", out);
        for (at += *at == '{'; (at = next_member(at, &m));)
            if (!member_is_ours(&m)) fprintf(out, "  %.*s: %.*s,\n", (int)m.n_key, m.key, (int)m.n_value, m.value);
        fprintf(out, "  \"quantization_config\": %s,\n  \"tie_word_embeddings\": false\n}\n", said ? said : "");
    }
    const bool ok = out && !fclose(out) && said;
    rc = ok ? write_text(w, CONFIG_FILE, text, n) : rod_fail_no_memory(w->err);
    file_wipe(&bytes);
    json_decref(ours);
    free(said);
    free(text);
    return rc;
}

/* The other files that a run leaves in its middle. */
static const char *written_file(size_t i) { return i < N_COPIED ? copied[i] : i == N_COPIED ? CONFIG_FILE : NULL; }

static bool is_written_file(const char *name) {
    size_t i = 0;
    while (written_file(i) && strcmp(written_file(i), name)) i++;
    return written_file(i);
}

static void remove_file(const char *dir, const char *file) {
    char *path = file_path(dir, file);
    if (path) unlink(path);
    free(path);
}

/* A full disk gets its room back, and the same command may be given again. */
static void remove_written(const char *to, bool made) {
    for (size_t i = 0; written_file(i); i++) remove_file(to, written_file(i));
    remove_file(to, PART_FILE); /* last: what is left is known by it */
    if (made) rmdir(to);
}

/* A new directory, an empty one, or what a run left that was ended in its middle. */
static int make_directory(const char *to, bool *made, struct rod_error *err) {
    *made = !mkdir(to, 0777);
    if (*made) return 0;
    if (errno != EEXIST) return rod_fail(err, ROD_EIO, "cannot make %.250s: %s", to, strerror(errno));
    DIR *dir = opendir(to);
    if (!dir) return rod_fail(err, ROD_EIO, "cannot read %.250s: %s", to, strerror(errno));
    bool other = false, part = false, any = false;
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        const bool is_part = !strcmp(entry->d_name, PART_FILE);
        any = true;
        part |= is_part;
        other |= !is_part && !is_written_file(entry->d_name);
    }
    const int unread = errno;
    closedir(dir);
    if (unread) return rod_fail(err, ROD_EIO, "cannot read %.250s: %s", to, strerror(unread));
    if (any && (!part || other))
        return rod_fail(err, ROD_EINVALID, "%.250s is not empty: name a directory that is not there.", to);
    return 0;
}

/* The part's file is this run's alone, until it is closed. */
static int open_part(struct writing *w) {
    char *part = file_path(w->to, PART_FILE), *done = file_path(w->to, WEIGHTS_FILE);
    const int fd = part && done ? open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666) : -1;
    int rc = 0;
    if (!part || !done)
        rc = rod_fail_no_memory(w->err);
    else if (fd < 0)
        rc = write_fail(w, "cannot make");
    else if (flock(fd, LOCK_EX | LOCK_NB) || !access(done, F_OK))
        rc = rod_fail(w->err, ROD_EINVALID, "%.250s: another run writes it.", w->to);
    else if (ftruncate(fd, 0) || !(w->file = fdopen(fd, "wb")))
        rc = write_fail(w, "cannot write");
    if (fd >= 0 && !w->file) close(fd);
    free(part), free(done);
    return rc;
}

static int finish_part(const struct writing *w) {
    char *part = file_path(w->to, PART_FILE), *done = file_path(w->to, WEIGHTS_FILE);
    int rc = 0;
    if (!part || !done)
        rc = rod_fail_no_memory(w->err);
    else if (rename(part, done))
        rc = write_fail(w, "cannot name");
    free(part), free(done);
    return rc;
}

int model_write(const struct model *model, const char *from, const char *to, const struct model_rows *rows,
                const struct rod_progress_to *progress, struct rod_error *err) {
    struct writing w = {.model = model, .to = to, .rows = rows, .progress = progress, .err = err};
    bool made;
    int rc = make_directory(to, &made, err);
    if (!rc && (rc = open_part(&w)) && made) rmdir(to);
    if (rc) return rc;
    w.header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    w.eights = json_array();
    rc = w.header && w.eights ? write_weights(&w) : rod_fail_no_memory(err);
    if (!rc) rc = write_copies(&w, from);
    if (!rc) rc = write_config(&w, from);
    if (!rc) rc = finish_part(&w);
    if (rc) remove_written(to, made);
    fclose(w.file);
    json_decref(w.header);
    json_decref(w.eights);
    return rc;
}
