/* cmd_states.c - rodimus states: what lies in a folder of states, read and removed by whoever operates the servers. */
#include "commands.h"
#include "server/settings/flag_help.h"
#include "server/settings/options.h"

#include "engine/base/array.h"
#include "engine/tools/tools.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char about[] =
    "ls|get|rm|gc|convert --state-dir DIR | --state-url URL [flags]\n\n"
    "  states ls               files of states: sessions, earlier turns, bases of forks, pinned prefixes, "
    "conversations\n"
    "  states get NAME [FILE]  copies one, to standard output without FILE\n"
    "  states rm NAME...       removes these; a session with all that is its own\n"
    "  states gc               removes what has expired and what nothing needs: of a store also lost servers' marks of "
    "lazy\n"
    "                          turns, after an hour\n"
    "  states convert FILE NEW a session's file in other formats, for servers that have these; without a folder\n\n"
    "rm and gc show what would go; with --yes it goes. Servers may run: in a folder what one of them uses just now\n"
    "stays; a store has no locks, and an object goes unless it was written since it was listed.";

enum { FINGERPRINT_DIGITS = 8 };

struct states {
    const char *const *names; /* [n_names] of the arguments */
    size_t n_names;
    char *state_url, *state_endpoint, *state_region, *state_style, *state_credentials;
    uint64_t state_timeout_ms;
    struct rod_store *store; /* NULL: the folder */
    char *state_dir, *kind, *tenant, *fingerprint, *sort, *window_dtype, *state_dtype, *activations;
    uint64_t unused_s;
    bool json, yes;
    int64_t now_s;
    struct rod_state_file *files; /* [n] */
    size_t n, cap;
    bool no_memory;
};

#define AT(member) .offset = offsetof(struct states, member)
#define WHICH      .group = "Which"
#define HOW        .group = "How"
#define STORE      .group = "A store"
#define FORMATS    .group = "Formats"

/* clang-format off */
static const struct option states_flags[] = {
    {"state_dir", OPTION_STRING, AT(state_dir), WHICH, .metavar = "DIR", .help = "the servers' folder"},
    {"state_url", OPTION_STRING, AT(state_url), STORE, .metavar = "URL", .secret = true, .help = STATE_URL_HELP},
    {"state_endpoint", OPTION_STRING, AT(state_endpoint), STORE, .metavar = "URL", .secret = true, .help = STATE_ENDPOINT_HELP},
    {"state_region", OPTION_STRING, AT(state_region), STORE, .metavar = "NAME", .help = STATE_REGION_HELP},
    {"state_style", OPTION_CHOICE, AT(state_style), STORE, .fallback = "auto", .choices = "auto|path|virtual", .metavar = "HOW",
     .help = STATE_STYLE_HELP},
    {"state_credentials", OPTION_STRING, AT(state_credentials), STORE, .metavar = "FILE", .help = STATE_CREDENTIALS_HELP},
    {"state_timeout_ms", OPTION_UINT, AT(state_timeout_ms), STORE, .fallback = "8000", .min = 100, .max = 600000,
     .help = STATE_TIMEOUT_HELP},
    {"kind", OPTION_CHOICE, AT(kind), WHICH, .fallback = "all", .choices = "all|session|kept|base|pinned|conversation|notes|mark|part", .metavar = "NAME",
     .help = "ls, gc: those alone"},
    {"tenant", OPTION_STRING, AT(tenant), WHICH, .metavar = "HASH", .help = "ls, gc: those of this owner alone, by the hash that ls shows"},
    {"fingerprint", OPTION_STRING, AT(fingerprint), WHICH, .metavar = "HEX",
     .help = "of a model, or its first digits: ls: its states alone; gc: they go, pinned or not, as no server serves it any more"},
    {"unused_s", OPTION_UINT, AT(unused_s), WHICH, .fallback = "0", .min = 0, .max = 1e10, .metavar = "N",
     .help = "ls: those that were not used for so many seconds; gc: conversations of that kind go, whose time the files do not say"},
    {"sort", OPTION_CHOICE, AT(sort), HOW, .fallback = "name", .choices = "name|age|size|tenant|fingerprint|kind", .metavar = "BY",
     .help = "ls: age: the longest unused first; size: the largest first"},
    {"window_dtype", OPTION_CHOICE, AT(window_dtype), FORMATS, .fallback = "same", .choices = "same|" WINDOW_DTYPES, .metavar = "NAME",
     .help = "convert: the window's; auto: the activations'"},
    {"state_dtype", OPTION_CHOICE, AT(state_dtype), FORMATS, .fallback = "same", .choices = "same|fp32|bf16", .metavar = "NAME",
     .help = "convert: that of S"},
    {"activations", OPTION_CHOICE, AT(activations), FORMATS, .fallback = "same", .choices = "same|fp32|bf16|fp16", .metavar = "NAME",
     .help = "convert: those of the servers; a CPU's are fp32"},
    {"json", OPTION_BOOL, AT(json), HOW, .fallback = "false", .help = "one JSON object on standard output"},
    {"yes", OPTION_BOOL, AT(yes), HOW, .fallback = "false", .help = "rm, gc: remove"},
};
/* clang-format on */

static int fail(const char *message, int rc) {
    fprintf(stderr, "rodimus states: %s\n", message);
    return rc;
}

/* ---- which ---- */

static void add(void *arg, const struct rod_state_file *file) {
    struct states *s = arg;
    if (ARRAY_RESERVE(s->files, s->cap, s->n, 1))
        s->files[s->n++] = *file;
    else
        s->no_memory = true;
}

static bool of_model(const struct states *s, const struct rod_state_file *f) {
    return *s->fingerprint && *f->fingerprint && !strncmp(f->fingerprint, s->fingerprint, strlen(s->fingerprint));
}

static bool unused(const struct states *s, const struct rod_state_file *f) {
    return s->now_s - f->used_unix_s >= (int64_t)s->unused_s;
}

static bool asked(const struct states *s, const struct rod_state_file *f) {
    return (!strcmp(s->kind, "all") || !strcmp(s->kind, rod_state_kind_name(f->kind))) &&
           (!*s->tenant || !strcmp(s->tenant, f->tenant));
}

static bool listed(const struct states *s, const struct rod_state_file *f) {
    return (!*s->fingerprint || of_model(s, f)) && unused(s, f);
}

/* Why it goes; NULL: it stays. */
static const char *why_goes(const struct states *s, const struct rod_state_file *f) {
    const bool conversation = f->kind == ROD_STATE_CONVERSATION || f->kind == ROD_STATE_NOTES;
    if (of_model(s, f)) return "its model goes";
    if (f->left) return "left over";
    if (f->expires_unix_s && f->expires_unix_s <= s->now_s) return "expired";
    return conversation && s->unused_s && unused(s, f) ? "unused" : NULL;
}

static void keep_if(struct states *s, bool gc) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct rod_state_file *f = &s->files[i];
        if (asked(s, f) && (gc ? why_goes(s, f) != NULL : listed(s, f))) s->files[n++] = *f;
    }
    s->n = n;
}

/* ---- in which order ---- */

static int by_name(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}
static int by_age(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    const int order = (x->used_unix_s > y->used_unix_s) - (x->used_unix_s < y->used_unix_s);
    return order ? order : by_name(a, b);
}
static int by_size(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    const int order = (x->n_bytes < y->n_bytes) - (x->n_bytes > y->n_bytes);
    return order ? order : by_name(a, b);
}
static int by_tenant(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    const int order = strcmp(x->tenant, y->tenant);
    return order ? order : by_name(a, b);
}
static int by_fingerprint(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    const int order = strcmp(x->fingerprint, y->fingerprint);
    return order ? order : by_name(a, b);
}
static int by_kind(const void *a, const void *b) {
    const struct rod_state_file *x = a, *y = b;
    const int order = (x->kind > y->kind) - (x->kind < y->kind);
    return order ? order : by_name(a, b);
}

static void sort_files(struct states *s) {
    static const struct {
        const char *name;
        int (*compare)(const void *, const void *);
    } orders[] = {
        {"age", by_age}, {"size", by_size}, {"tenant", by_tenant}, {"fingerprint", by_fingerprint}, {"kind", by_kind}};
    int (*compare)(const void *, const void *) = by_name;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        if (!strcmp(s->sort, orders[i].name)) compare = orders[i].compare;
    if (s->n) qsort(s->files, s->n, sizeof *s->files, compare);
}

/* ---- shown ---- */

enum { CELL_BYTES = 32 };

static void put_time(char text[CELL_BYTES], int64_t seconds) {
    static const struct {
        int64_t s;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t i = 0;
    if (seconds < 0) seconds = 0;
    while (i < 3 && seconds < 2 * units[i].s) i++;
    snprintf(text, CELL_BYTES, "%" PRId64 " %s", seconds / units[i].s, units[i].unit);
}

static void put_bytes(char text[CELL_BYTES], uint64_t n) {
    if (n < 10000)
        snprintf(text, CELL_BYTES, "%" PRIu64 " B", n);
    else
        snprintf(text, CELL_BYTES, "%.2f MB", (double)n * 1e-6);
}

static void print_row(const struct states *s, const struct rod_state_file *f, const char *note) {
    char bytes[CELL_BYTES], age[CELL_BYTES];
    put_bytes(bytes, f->n_bytes);
    put_time(age, s->now_s - f->used_unix_s);
    printf("%-12s %10s %9" PRIu64 " %8s  %-16s %-12.12s %s", rod_state_kind_name(f->kind), bytes, f->n_tok, age,
           *f->tenant ? f->tenant : "-", *f->fingerprint ? f->fingerprint : "-", f->name);
    if (f->pinned) printf("  pinned");
    if (note) printf("  %s", note);
    if (*f->fault) printf("  %s", f->fault);
    printf("\n");
}

static json_t *json_row(const struct rod_state_file *f, const char *note) {
    json_t *row =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:b, s:b}", "name", f->name, "kind",
                  rod_state_kind_name(f->kind), "bytes", (json_int_t)f->n_bytes, "tokens", (json_int_t)f->n_tok,
                  "version", (json_int_t)f->version, "used_at", (json_int_t)f->used_unix_s, "tenant", f->tenant,
                  "fingerprint", f->fingerprint, "pinned", f->pinned, "left", f->left);
    if (row && f->expires_unix_s) json_object_set_new(row, "expires_at", json_integer(f->expires_unix_s));
    if (row && note) json_object_set_new(row, "note", json_string(note));
    if (row && *f->fault) json_object_set_new(row, "fault", json_string(f->fault));
    return row;
}

/* A row at once, as there may be a million. */
static int show(const struct states *s, const char *(*note)(const struct states *s, const struct rod_state_file *f)) {
    uint64_t n_bytes = 0;
    char bytes[CELL_BYTES];
    if (s->json)
        printf("{\"files\": [");
    else if (s->n)
        printf("%-12s %10s %9s %8s  %-16s %-12s %s\n", "kind", "size", "tokens", "unused", "tenant", "model", "name");
    for (size_t i = 0; i < s->n; i++) {
        const struct rod_state_file *f = &s->files[i];
        n_bytes += f->n_bytes;
        if (!s->json) {
            print_row(s, f, note ? note(s, f) : NULL);
            continue;
        }
        json_t *row = json_row(f, note ? note(s, f) : NULL);
        if (!row) return fail("out of memory", 1);
        printf("%s\n  ", i ? "," : "");
        json_dumpf(row, stdout, 0);
        json_decref(row);
    }
    put_bytes(bytes, n_bytes);
    if (s->json)
        printf("\n], \"n_files\": %zu, \"n_bytes\": %" PRIu64, s->n, n_bytes);
    else
        printf("%zu %s%s, %s\n", s->n, s->store ? "object" : "file", s->n == 1 ? "" : "s", bytes);
    return 0;
}

/* ---- the four ---- */

static struct rod_states_place place_of(const struct states *s) {
    return (struct rod_states_place){.dir = s->state_dir, .store = s->store};
}

static int list_all(struct states *s) {
    const struct rod_states_place place = place_of(s);
    struct rod_error err;
    if (rod_states_list(&place, add, s, &err)) return fail(err.message, 1);
    return s->no_memory ? fail("out of memory", 1) : 0;
}

static int run_ls(struct states *s) {
    int rc = list_all(s);
    if (rc) return rc;
    keep_if(s, false);
    sort_files(s);
    rc = show(s, NULL);
    if (s->json) printf("}\n");
    return rc;
}

static int put_out(void *arg, const void *bytes, size_t n) { return fwrite(bytes, 1, n, arg) == n ? 0 : -1; }

static int run_get(struct states *s) {
    const struct rod_states_place place = place_of(s);
    struct rod_error err;
    if (!s->n_names || s->n_names > 2) return fail("get takes a NAME, and perhaps a FILE", 2);
    const int fd = s->n_names == 2 ? open(s->names[1], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    FILE *out = s->n_names == 2 ? fd < 0 ? NULL : fdopen(fd, "w") : stdout;
    if (!out) {
        fprintf(stderr, "rodimus states: cannot make %s: ", s->names[1]);
        perror(NULL);
        return 1;
    }
    int rc = rod_states_get(&place, s->names[0], put_out, out, &err);
    if (rc) fail(err.message, 1);
    if (out == stdout) return rc ? 1 : 0;
    if (fclose(out) && !rc) rc = fail("the file cannot be written to its end", 1);
    if (rc) remove(s->names[1]);
    return rc ? 1 : 0;
}

/* What is in use stays, which is no fault of gc. */
static int remove_all(struct states *s, bool busy_fails) {
    const struct rod_states_place place = place_of(s);
    struct rod_error err;
    size_t n_removed = 0, n_busy = 0, n_failed = 0;
    if (s->n) qsort(s->files, s->n, sizeof *s->files, by_kind); /* a session goes before what is its own */
    for (size_t i = 0; i < s->n; i++) {
        const int rc = rod_states_remove(&place, &s->files[i], &err);
        const bool busy = rc == ROD_EBUSY || rc == ROD_ECONFLICT;
        n_removed += !rc || rc == ROD_ENOTFOUND; /* it went with its session */
        n_busy += busy;
        n_failed += rc && rc != ROD_ENOTFOUND && (!busy || busy_fails);
        if (rc && rc != ROD_ENOTFOUND) fprintf(stderr, "rodimus states: %s stays: %s\n", s->files[i].name, err.message);
    }
    if (s->json)
        printf(", \"n_removed\": %zu, \"n_busy\": %zu}\n", n_removed, n_busy);
    else
        printf("%zu removed, %zu in use\n", n_removed, n_busy);
    return n_failed ? 1 : 0;
}

static int show_and_remove(struct states *s,
                           const char *(*note)(const struct states *, const struct rod_state_file *)) {
    int rc = show(s, note);
    if (rc) return rc;
    if (s->yes) return remove_all(s, !note);
    printf(s->json ? ", \"n_removed\": 0}\n" : s->n ? "Nothing was removed; --yes removes it.\n" : "");
    return 0;
}

static int run_gc(struct states *s) {
    if (s->n_names) return fail("gc takes no NAME; rm does", 2);
    if (*s->fingerprint && strlen(s->fingerprint) < FINGERPRINT_DIGITS)
        return fail("--fingerprint needs at least 8 digits, as other models may begin alike", 2);
    const int rc = list_all(s);
    if (rc) return rc;
    keep_if(s, true);
    sort_files(s);
    return show_and_remove(s, why_goes);
}

static int run_rm(struct states *s) {
    const struct rod_states_place place = place_of(s);
    struct rod_state_file file;
    struct rod_error err;
    if (!s->n_names) return fail("rm takes the NAMEs that ls shows", 2);
    for (size_t i = 0; i < s->n_names; i++) {
        if (rod_states_look(&place, s->names[i], &file, &err)) return fail(err.message, 1);
        add(s, &file);
    }
    return s->no_memory ? fail("out of memory", 1) : show_and_remove(s, NULL);
}

static const char *format_asked(const char *name) { return strcmp(name, "same") ? name : ""; }

static int run_convert(struct states *s) {
    struct rod_error err;
    const struct rod_states_formats formats = {.window_dtype = format_asked(s->window_dtype),
                                               .state_dtype = format_asked(s->state_dtype),
                                               .activations = format_asked(s->activations)};
    if (s->n_names != 2) return fail("convert takes a FILE and the NEW one", 2);
    const int rc = rod_states_convert(s->names[0], s->names[1], &formats, &err);
    return rc ? fail(err.message, rc == ROD_EINVALID ? 2 : 1) : 0;
}

static int (*find_verb(const char *name))(struct states *) {
    static const struct {
        const char *name;
        int (*run)(struct states *);
    } verbs[] = {{"ls", run_ls}, {"get", run_get}, {"rm", run_rm}, {"gc", run_gc}, {"convert", run_convert}};
    for (size_t i = 0; name && i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(name, verbs[i].name)) return verbs[i].run;
    return NULL;
}

/* What only looks needs no right to write. */
static int open_store(struct states *s) {
    struct rod_error err;
    const struct rod_store_config config = {.url = s->state_url,
                                            .endpoint = s->state_endpoint,
                                            .region = s->state_region,
                                            .style = s->state_style,
                                            .credentials = s->state_credentials,
                                            .timeout_ms = (uint32_t)s->state_timeout_ms,
                                            .looks = !s->yes};
    const int rc = rod_store_open(&config, &s->store, &err);
    return rc ? fail(err.message, rc == ROD_EINVALID ? 2 : 1) : 0;
}

static int run(struct states *s, int (*verb)(struct states *)) {
    if (verb == run_convert) return verb(s);
    if (!*s->state_dir == !*s->state_url) return fail("--state-dir names the folder, or --state-url the store", 2);
    int rc = *s->state_url ? open_store(s) : 0;
    if (!rc) rc = verb(s);
    rod_store_close(s->store);
    return rc;
}

int cmd_states(int argc, char **argv) {
    struct states s = {.now_s = (int64_t)time(NULL)};
    const struct option_set set = OPTION_SET(states_flags, &s);
    int n = 0;
    while (argc > n + 1 && *argv[n + 1] != '-') n++;
    int (*const verb)(struct states *) = find_verb(n ? argv[1] : NULL);
    s.names = (const char *const *)argv + 2;
    s.n_names = n > 1 ? (size_t)n - 1 : 0;
    int rc = command_flags(&set, "states", about, "Exit status 0, or 1 where something could not be done.\n", argc - n,
                           argv + n);
    if (rc < 0 && !verb) rc = fail("ls, get, rm, gc or convert comes first; 'rodimus states --help' explains", 2);
    if (rc < 0) rc = run(&s, verb);
    free(s.files);
    options_fini(&set);
    return rc;
}
