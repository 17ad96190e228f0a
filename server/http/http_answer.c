/* http_answer.c - an answer, whole or as a stream, becomes the daemon's. See http.h. */
#include "http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM_BLOCK 1024
#define LARGE_BYTES  ((size_t)4 << 20)

void http_add_header(struct http_request *r, const char *name, const char *value) {
    assert(http_on_loop(r->http) && !r->queued);
    if (r->n_headers == HTTP_MAX_HEADERS) return;
    struct http_header_line *line = &r->headers[r->n_headers];
    line->name = strdup(name);
    line->value = strdup(value);
    if (line->name && line->value) {
        r->n_headers++;
    } else {
        free(line->name);
        free(line->value);
        *line = (struct http_header_line){0};
    }
}

void http_close_after(struct http_request *r) { r->close_after = true; }

static void answer_begin(struct http_request *r, unsigned status, const char *content_type) {
    assert(!r->answered && !r->queued && status >= 200 && status <= 599);
    r->answered = true;
    r->status = status;
    r->content_type = content_type ? strdup(content_type) : NULL;
    http_wake(r);
}

void http_respond(struct http_request *r, unsigned status, const char *content_type, const void *body, size_t len) {
    if (r->answered || r->gone) return;
    buf_add(&r->out, body, len);
    answer_begin(r, status, content_type);
}

void http_respond_buf(struct http_request *r, unsigned status, const char *content_type, struct buf *body) {
    if (!r->answered && !r->gone) {
        buf_fini(&r->out);
        r->out = *body;
        *body = (struct buf){0};
        answer_begin(r, status, content_type);
    }
    buf_fini(body);
}

void http_stream_begin(struct http_request *r, const char *content_type) {
    if (r->answered || r->gone) return;
    http_add_header(r, "Cache-Control", "no-cache");
    http_add_header(r, "X-Accel-Buffering", "no");
    r->streaming = true;
    answer_begin(r, MHD_HTTP_OK, content_type);
}

size_t http_stream_write(struct http_request *r, const void *bytes, size_t len) {
    if (r->streaming && !r->ended && !r->gone) {
        buf_add(&r->out, bytes, len);
        if (r->out.failed)
            http_abort(r);
        else
            http_wake(r);
    }
    return http_stream_pending(r);
}

void http_stream_end(struct http_request *r) {
    assert(r->streaming || r->gone);
    r->ended = true;
    http_wake(r);
}

void http_abort(struct http_request *r) {
    r->aborted = true;
    shutdown(r->socket->fd, SHUT_RDWR); /* a daemon that waits to write would not ask the reader again */
    http_wake(r);
}

/* Takes what is there into the daemon's buffer; several tokens that a slow client has let wait leave as one write. */
static ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max) {
    struct http_request *r = cls;
    (void)pos;
    assert(r->streaming && r->queued && r->out_at <= r->out.len);
    if (r->gone || r->aborted) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = r->out.len - r->out_at;
    if (n) {
        if (n > max) n = max;
        memcpy(to, r->out.data + r->out_at, n);
        r->out_at += n;
        r->sent += n;
        if (r->out_at == r->out.len) {
            r->out_at = 0;
            buf_clear(&r->out);
            if (r->out.cap > 65536) buf_fini(&r->out);
        } else if (r->out_at > r->out.cap / 2) {
            r->out.len -= r->out_at;
            memmove(r->out.data, r->out.data + r->out_at, r->out.len);
            r->out_at = 0;
        }
        return (ssize_t)n;
    }
    if (r->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    http_suspend(r);
    return 0;
}

/* Giving back half a gigabyte takes tens of milliseconds: not the loop's. */
struct large_answer {
    uv_work_t work;
    uv_loop_t *loop;
    void *bytes;
};

static void free_large(uv_work_t *work) { free(((struct large_answer *)work->data)->bytes); }

static void on_large_freed(uv_work_t *work, int status) {
    (void)status;
    free(work->data);
}

static void large_answer_release(void *arg) {
    struct large_answer *a = arg;
    a->work.data = a;
    if (uv_queue_work(a->loop, &a->work, free_large, on_large_freed) == 0) return;
    free(a->bytes);
    free(a);
}

static struct MHD_Response *large_response(struct http_request *r, void *body, size_t len) {
    struct large_answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    *a = (struct large_answer){.loop = r->http->loop, .bytes = body};
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback_cls(len, body, large_answer_release, a);
    if (!response) free(a);
    return response;
}

static struct MHD_Response *make_response(struct http_request *r) {
    if (r->streaming) return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, r, NULL);
    size_t len = 0;
    char *body = buf_take(&r->out, &len);
    if (!body) return NULL;
    struct MHD_Response *response = len < LARGE_BYTES
                                        ? MHD_create_response_from_buffer(len, body, MHD_RESPMEM_MUST_FREE)
                                        : large_response(r, body, len);
    if (!response) free(body);
    r->sent = len;
    return response;
}

enum MHD_Result http_queue_answer(struct http_request *r) {
    assert(r->answered && !r->queued && !r->suspended);
    struct MHD_Response *response = make_response(r);
    if (!response) return MHD_NO;
    if (r->content_type) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, r->content_type);
    for (unsigned i = 0; i < r->n_headers; i++) {
        MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    }
    if (r->close_after) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    r->queued = true;
    if (r->streaming) http_watch(r);
    enum MHD_Result rc = MHD_queue_response(r->connection, r->status, response);
    MHD_destroy_response(response);
    return rc;
}
