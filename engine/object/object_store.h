/* object_store.h - states as objects of an S3 store: calls that wait, each with a condition where one is asked for.
 *
 * Source: the S3 API (PutObject, GetObject, HeadObject, DeleteObject, CopyObject, ListObjectsV2; If-Match,
 * If-None-Match).
 * Errors of all calls: ROD_ENOTFOUND: there is no such object. ROD_ECONFLICT: the condition did not hold. ROD_EIO: the
 * store is slow, full, forbidden, throttled or gone, after retries within the call's time, or gives what is no answer,
 * or other bytes than were written. ROD_EUNSURE: a write may or may not have been done, and the store does not say.
 * ROD_ENOMEM. Time: a call without a body ends within timeout_ms, whatever the store does. A body gives it more, a
 * second for each OBJECT_FLOOR_BPS bytes that move, and never more than three quarters of timeout_ms in advance.
 * Ownership: the caller's are keys, bytes and readers. Threads: any; connections are shared by all.
 */
#ifndef OBJECT_STORE_H
#define OBJECT_STORE_H

#include "engine/state/state_file.h"

enum { OBJECT_ETAG_BYTES = 64, OBJECT_MAX_KEY = 512, OBJECT_FLOOR_BPS = 1 << 20, OBJECT_PAGE = 1000 };

struct object_store;

struct object_store_config {
    const char *url;              /* "s3://BUCKET/PREFIX" */
    const char *endpoint;         /* "https://s3.eu-central-1.amazonaws.com", "http://127.0.0.1:8333"; "": AWS's own */
    const char *region;           /* "": AWS_REGION, AWS_DEFAULT_REGION, else us-east-1 */
    const char *style;            /* "path", "virtual"; "", "auto": path where an endpoint is given */
    const char *credentials_file; /* "": environment, then ~/.aws/credentials */
    const char *encryption;       /* "": none; "AES256", "aws:kms": server-side encryption of PUT and COPY */
    uint32_t timeout_ms;          /* of a call without a body; 0 = 8000 */
    uint32_t n_connections;       /* at once, of all calls; 0 = 16 */
    uint64_t bytes_in_flight;     /* of bodies; 0 = 1 GiB: a call waits for room within its time */
    void (*log)(void *arg, int level, const char *line); /* any thread; may be NULL */
    void *log_arg;
};
/* ROD_EINVALID: param names the setting. Opens no connection. */
int object_store_open(const struct object_store_config *config, struct object_store **out, struct rod_error *err);
void object_store_close(struct object_store *store); /* NULL: nothing; no call is on its way, no reader open */
/* Reads the credentials again (SIGHUP). On failure the old ones stay. */
int object_store_reload(struct object_store *store, struct rod_error *err);
/* True while the last calls failed; err: why. For health. */
bool object_store_down(struct object_store *store, struct rod_error *err);

/* The calls of this thread end by then, of clock_now_ns, if their own time is not over before; 0: in their own time. */
void object_store_hurry(struct object_store *store, uint64_t until_ns);

struct object_version {
    char etag[OBJECT_ETAG_BYTES]; /* as the store gave it, with its quotes; "" = there is no object */
    uint64_t n_bytes;
    int64_t modified_s;
};
enum object_condition { OBJECT_ANY, OBJECT_IF_NEW /* If-None-Match: * */, OBJECT_IF_SAME /* If-Match: etag */ };

struct object_put {
    const char *key; /* below PREFIX; [A-Za-z0-9._/-], no part of it empty, "." or ".." */
    const struct state_bytes *parts;
    size_t n_parts;
    enum object_condition condition;
    const char *etag;              /* of OBJECT_IF_SAME */
    struct object_version version; /* afterwards */
    int rc;
    struct rod_error err;
};
/* n objects at the same time, each well or badly for itself. A put whose answer was lost is asked after (a random mark
 * in the object's metadata, by HEAD) and repeated: done once, or not at all, or ROD_EUNSURE. */
void object_store_put(struct object_store *store, struct object_put *puts, size_t n);

/* An object that is open to be read, in order, one version; its body is a stream. */
struct object_reader;
/* known "": whatever there is; else *out NULL and 0 where the object is that version still (304). */
int object_store_get(struct object_store *store, const char *key, const char *known, struct object_reader **out,
                     struct object_version *version, struct rod_error *err);
/* *n_read < n_bytes only at the end; a body that ends early is ROD_EIO. */
int object_reader_get(struct object_reader *reader, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err);
void object_reader_close(struct object_reader *reader); /* before the end: the connection goes, too. NULL: nothing */
/* The first bytes of an object (a ranged GET); version: of all of it. */
int object_store_get_start(struct object_store *store, const char *key, void *dst, size_t n_bytes, size_t *n_read,
                           struct object_version *version, struct rod_error *err);
int object_store_head(struct object_store *store, const char *key, struct object_version *version,
                      struct rod_error *err);
/* etag "": whatever there is, also nothing. Where the store knows no If-Match of DELETE (the probe says so), HEAD asks
 * first, and a write between the two is lost. */
int object_store_delete(struct object_store *store, const char *key, const char *etag, struct rod_error *err);
/* Within the store. from_etag: of the source, or "": whatever it is. The target is overwritten. */
int object_store_copy(struct object_store *store, const char *from, const char *from_etag, const char *to,
                      struct rod_error *err);
/* One page (at most OBJECT_PAGE) of the keys that begin with prefix, in order, after a key ("" = from the beginning).
 * Keys that object_put would not take are left out. */
int object_store_list(struct object_store *store, const char *prefix, const char *after,
                      void (*found)(void *arg, const char *key, const struct object_version *version), void *arg,
                      bool *more, struct rod_error *err);

struct object_counts {
    uint64_t puts, gets, heads, deletes, copies, lists; /* requests, repeated ones too */
    uint64_t conflicts, failures, retries, bytes_in, bytes_out;
    struct rod_store_times times[ROD_STORE_N_WORKS];
};
void object_store_count(struct object_store *store, struct object_counts *out);

#endif
