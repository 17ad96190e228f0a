/* object_exchange.c - see object_exchange.h. */
#include "object_exchange.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_MS = 3000, EXPECT_MS = 200, POLL_MS = 1000, UPLOAD_BYTES = 512 << 10 };

bool object_exchange_init(struct object_exchange *x) {
    x->multi = curl_multi_init();
    x->easy = curl_easy_init();
    x->spill = malloc(OBJECT_BUFFER_BYTES);
    if (x->multi) curl_multi_setopt(x->multi, CURLMOPT_MAXCONNECTS, 1L);
    return x->multi && x->easy && x->spill;
}

void object_exchange_fini(struct object_exchange *x) {
    assert(!x->is_begun);
    if (x->easy) curl_easy_cleanup(x->easy);
    if (x->multi) curl_multi_cleanup(x->multi);
    free(x->spill);
}

/* ---- what libcurl calls ---- */

static size_t on_header(char *line, size_t size, size_t n, void *arg) {
    struct object_exchange *x = arg;
    n *= size;
    x->n_in += n;
    if (object_answer_header(&x->answer, line, n)) return n;
    x->is_too_long = true;
    return 0;
}

static bool is_object(const struct object_exchange *x) {
    return x->is_stream && (x->answer.status == 200 || x->answer.status == 206);
}

static size_t keep(struct object_exchange *x, const char *data, size_t n) {
    if (x->n_kept + n > x->max_kept) {
        x->is_too_long = true;
        return 0;
    }
    if (x->n_kept + n > x->kept_cap) {
        const size_t cap = 2 * (x->n_kept + n);
        char *kept = realloc(x->kept, cap);
        if (!kept) {
            x->has_no_memory = true;
            return 0;
        }
        x->kept = kept;
        x->kept_cap = cap;
    }
    memcpy(x->kept + x->n_kept, data, n);
    x->n_kept += n;
    return n;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg) {
    struct object_exchange *x = arg;
    n *= size;
    if (is_object(x) && (x->n_got == x->n_dst || x->n_spill)) {
        x->is_paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    x->n_in += n;
    object_pace_moved(x->pace, clock_now_ns(), n);
    if (!is_object(x)) return keep(x, data, n);
    const size_t room = x->n_dst - x->n_got, n_now = n < room ? n : room;
    assert(n - n_now <= OBJECT_BUFFER_BYTES);
    memcpy(x->dst + x->n_got, data, n_now);
    x->n_got += n_now;
    memcpy(x->spill, data + n_now, n - n_now);
    x->n_spill = n - n_now;
    x->at_spill = 0;
    return n;
}

static size_t on_read(char *dst, size_t size, size_t n, void *arg) {
    struct object_exchange *x = arg;
    size_t n_now = 0;
    n *= size;
    while (n_now < n && x->part < x->n_parts) {
        const struct state_bytes *part = &x->parts[x->part];
        const size_t left = part->n - x->at_part, more = left < n - n_now ? left : n - n_now;
        if (more) memcpy(dst + n_now, (const char *)part->data + x->at_part, more);
        n_now += more;
        x->at_part += more;
        if (x->at_part == part->n) x->part++, x->at_part = 0;
    }
    x->n_sent += n_now;
    x->was_sent |= x->n_sent == x->n_out;
    object_pace_moved(x->pace, clock_now_ns(), n_now);
    return n_now;
}

/* A connection that had gone away unseen: libcurl begins again. */
static int on_seek(void *arg, curl_off_t offset, int origin) {
    struct object_exchange *x = arg;
    if (origin != SEEK_SET || offset != 0) return CURL_SEEKFUNC_CANTSEEK;
    x->part = x->at_part = 0;
    x->n_sent = 0;
    x->is_repeated |= x->was_sent;
    return CURL_SEEKFUNC_OK;
}

/* ---- */

static void set_body(struct object_exchange *x, const struct object_request *request, const struct object_body *body) {
    x->parts = body->parts;
    x->n_parts = body->n_parts;
    for (size_t i = 0; i < x->n_parts; i++) x->n_out += x->parts[i].n;
    /* A POST by another name: from 1 MiB on it asks first ("Expect"), so a condition that does not hold costs no body.
     */
    curl_easy_setopt(x->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(x->easy, CURLOPT_CUSTOMREQUEST, request->method);
    curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)x->n_out);
    if (!x->n_out) curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, "");
    curl_easy_setopt(x->easy, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(x->easy, CURLOPT_READDATA, x);
    curl_easy_setopt(x->easy, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(x->easy, CURLOPT_SEEKDATA, x);
    curl_easy_setopt(x->easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    x->was_sent = !x->n_out;
}

static void set_method(struct object_exchange *x, const struct object_request *request,
                       const struct object_body *body) {
    if (!strcmp(request->method, "PUT"))
        set_body(x, request, body);
    else if (!strcmp(request->method, "HEAD"))
        curl_easy_setopt(x->easy, CURLOPT_NOBODY, 1L);
    else if (strcmp(request->method, "GET") != 0)
        curl_easy_setopt(x->easy, CURLOPT_CUSTOMREQUEST, request->method);
    if (strcmp(request->method, "PUT") != 0) x->was_sent = true;
}

static void set_transport(CURL *easy, const struct object_line *line) {
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs holds up nobody */
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MS);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, 30L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)OBJECT_BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "rodimus");
    if (*line->ca_file) curl_easy_setopt(easy, CURLOPT_CAINFO, line->ca_file);
}

static bool set_lines(struct object_exchange *x, const struct object_request *request) {
    for (size_t i = 0; i < request->n_lines; i++) {
        struct curl_slist *lines = curl_slist_append(x->lines, request->lines[i]);
        if (!lines) return false;
        x->lines = lines;
    }
    return !curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, x->lines);
}

int object_exchange_begin(struct object_exchange *x, const struct object_line *line,
                          const struct object_request *request, const struct object_credentials *who,
                          const struct object_body *body, bool is_stream, size_t max_kept, struct object_pace *pace) {
    CURL *easy = x->easy;
    assert(!x->is_begun);
    *x = (struct object_exchange){.multi = x->multi, .easy = easy, .spill = x->spill};
    x->is_stream = is_stream;
    x->max_kept = max_kept;
    x->pace = pace;
    set_transport(easy, line);
    set_method(x, request, body);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, x->fault);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
    const bool fits = !curl_easy_setopt(easy, CURLOPT_URL, request->url) &&
                      !curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, line->provider) &&
                      !curl_easy_setopt(easy, CURLOPT_USERNAME, who->key_id) &&
                      !curl_easy_setopt(easy, CURLOPT_PASSWORD, who->secret) && set_lines(x, request);
    x->is_begun = true;
    if (fits && !curl_multi_add_handle(x->multi, easy)) return 0;
    x->is_done = true;
    x->code = CURLE_OUT_OF_MEMORY;
    return ROD_ENOMEM;
}

/* Whether what is waited for is there. */
enum wanted { WANT_ANSWER, WANT_BYTES };
static bool is_there(const struct object_exchange *x, enum wanted wanted) {
    if (x->is_done || x->is_late) return true;
    return wanted == WANT_ANSWER ? x->answer.is_complete && is_object(x) : x->n_got == x->n_dst;
}

static void look_for_end(struct object_exchange *x) {
    int n;
    for (CURLMsg *m; (m = curl_multi_info_read(x->multi, &n));) {
        if (m->msg != CURLMSG_DONE) continue;
        x->is_done = true;
        x->code = m->data.result;
    }
}

static void run(struct object_exchange *x, enum wanted wanted) {
    int running;
    while (!is_there(x, wanted)) {
        const CURLMcode code = curl_multi_perform(x->multi, &running);
        look_for_end(x);
        if (code && !x->is_done) {
            x->is_done = true;
            x->code = code == CURLM_OUT_OF_MEMORY ? CURLE_OUT_OF_MEMORY : CURLE_RECV_ERROR;
        }
        if (is_there(x, wanted)) return;
        const uint64_t left_ms = object_pace_left_ns(x->pace, clock_now_ns()) / 1000000;
        x->is_late = !left_ms;
        if (left_ms) curl_multi_poll(x->multi, NULL, 0, left_ms < POLL_MS ? (int)left_ms : POLL_MS, NULL);
    }
}

void object_exchange_answer(struct object_exchange *x) { run(x, WANT_ANSWER); }

size_t object_exchange_read(struct object_exchange *x, void *dst, size_t n) {
    const size_t n_now = n < x->n_spill ? n : x->n_spill;
    if (n_now) memcpy(dst, x->spill + x->at_spill, n_now);
    x->at_spill += n_now;
    x->n_spill -= n_now;
    x->dst = dst;
    x->n_dst = n;
    x->n_got = n_now;
    if (n_now < n && x->is_paused && !x->is_done) {
        x->is_paused = false;
        curl_easy_pause(x->easy, CURLPAUSE_CONT);
    }
    run(x, WANT_BYTES);
    const size_t n_got = x->n_got;
    x->dst = NULL;
    x->n_dst = x->n_got = 0;
    return n_got;
}

void object_exchange_end(struct object_exchange *x) {
    int running;
    if (!x->is_begun) return;
    /* Its last byte may have come without its end having been seen. */
    if (!x->is_done && !x->is_late && is_object(x) && !x->is_paused) curl_multi_perform(x->multi, &running);
    curl_multi_remove_handle(x->multi, x->easy);
    curl_easy_reset(x->easy);
    curl_slist_free_all(x->lines);
    free(x->kept);
    *x = (struct object_exchange){.multi = x->multi, .easy = x->easy, .spill = x->spill};
}

static bool is_final(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_CERTPROBLEM || code == CURLE_URL_MALFORMAT || code == CURLE_BAD_FUNCTION_ARGUMENT;
}

int object_exchange_say(const struct object_exchange *x, const char *what, bool *again, struct rod_error *err) {
    const CURLcode code = x->code;
    *again = false;
    if (x->has_no_memory || (x->is_done && code == CURLE_OUT_OF_MEMORY)) return rod_fail_no_memory(err);
    if (x->is_too_long) return rod_fail(err, ROD_EIO, "The object store's answer to %s is too long.", what);
    *again = !x->is_late && !is_final(code);
    if (x->is_late)
        return rod_fail(err, ROD_EIO, "The object store did not answer %s in time%s.", what,
                        x->answer.is_complete ? ": its body came too slowly" : "");
    if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY)
        return rod_fail(err, ROD_EIO, "The object store's answer to %s is no HTTP.", what);
    return rod_fail(err, ROD_EIO, "The object store did not do %s: %.200s.", what,
                    *x->fault ? x->fault : curl_easy_strerror(code));
}
