/* load_http.c - see load_http.h. */
#include "load_http.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the response ---- */

void load_http_init(struct load_http *http) {
    memset(http, 0, offsetof(struct load_http, line));
    http->fault = NULL;
    http->state = LOAD_HTTP_STATUS;
}

static int http_fault(struct load_http *http, const char *fault) {
    http->fault = fault;
    return -1;
}

enum { LENGTH_DIGITS = 19, CHUNK_DIGITS = 16 }; /* so many fit 64 bits */

/* HTTP/1.x SP 3 digits SP reason */
static int status_line(struct load_http *http) {
    const char *line = http->line;
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
        return http_fault(http, "not an HTTP/1 status line");
    if (strspn(line + 9, "0123456789") != 3 || (line[12] != ' ' && line[12] != '\0'))
        return http_fault(http, "bad status code");
    http->status = (int)strtol(line + 9, NULL, 10);
    http->keep_alive = line[7] == '1';
    http->state = LOAD_HTTP_HEADERS;
    return 0;
}

/* If the line is the header `name`, its value without the blanks before it, else NULL. */
static const char *header_value(const char *line, const char *name) {
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    line += n + 1;
    while (*line == ' ' || *line == '\t') line++;
    return line;
}

static int header_line(struct load_http *http) {
    const char *value;
    if ((value = header_value(http->line, "Content-Length")) != NULL) {
        const size_t n = strspn(value, "0123456789");
        if (n == 0 || n > LENGTH_DIGITS || (value[n] != '\0' && value[n] != ' '))
            return http_fault(http, "bad Content-Length");
        http->has_length = true;
        http->length_bytes = strtoull(value, NULL, 10);
    } else if ((value = header_value(http->line, "Transfer-Encoding")) != NULL) {
        if (strcasecmp(value, "chunked") != 0) return http_fault(http, "unknown Transfer-Encoding");
        http->chunked = true;
    } else if ((value = header_value(http->line, "Connection")) != NULL) {
        if (strcasecmp(value, "close") == 0) http->keep_alive = false;
        if (strcasecmp(value, "keep-alive") == 0) http->keep_alive = true;
    } else if ((value = header_value(http->line, "Content-Type")) != NULL) {
        http->event_stream = strncasecmp(value, "text/event-stream", 17) == 0;
    } else if (strchr(http->line, ':') == NULL) {
        return http_fault(http, "bad header line");
    }
    return 0;
}

/* The empty line after the headers: where does the body end? */
static void headers_end(struct load_http *http) {
    if (http->status >= 100 && http->status < 200) { /* 100 Continue: the real response follows */
        load_http_init(http);
    } else if (http->status == 204 || http->status == 304) {
        http->state = LOAD_HTTP_DONE;
    } else if (http->chunked) {
        http->state = LOAD_HTTP_CHUNK_SIZE;
    } else if (http->has_length) {
        http->body_left = http->length_bytes;
        http->state = http->body_left > 0 ? LOAD_HTTP_BODY : LOAD_HTTP_DONE;
    } else {
        http->keep_alive = false;
        http->state = LOAD_HTTP_UNTIL_EOF;
    }
}

static int chunk_size_line(struct load_http *http) {
    const size_t n = strspn(http->line, "0123456789abcdefABCDEF"), n_zero = strspn(http->line, "0");
    if (n > n_zero + CHUNK_DIGITS) return http_fault(http, "chunk size too large");
    if (n == 0 || !strchr("; ", http->line[n])) return http_fault(http, "bad chunk size");
    http->body_left = strtoull(http->line + n_zero, NULL, 16);
    http->state = http->body_left > 0 ? LOAD_HTTP_CHUNK_DATA : LOAD_HTTP_TRAILERS;
    return 0;
}

static int whole_line(struct load_http *http) {
    http->line[http->n_line] = '\0';
    if (strlen(http->line) != http->n_line) return http_fault(http, "NUL in a header");
    bool empty = http->n_line == 0;
    http->n_line = 0;
    switch (http->state) {
    case LOAD_HTTP_STATUS: return status_line(http);
    case LOAD_HTTP_HEADERS:
        if (!empty) return header_line(http);
        headers_end(http);
        return 0;
    case LOAD_HTTP_CHUNK_SIZE: return chunk_size_line(http);
    case LOAD_HTTP_CHUNK_END:
        if (!empty) return http_fault(http, "chunk longer than its size");
        http->state = LOAD_HTTP_CHUNK_SIZE;
        return 0;
    case LOAD_HTTP_TRAILERS:
        if (empty) http->state = LOAD_HTTP_DONE;
        return 0;
    case LOAD_HTTP_BODY:
    case LOAD_HTTP_UNTIL_EOF:
    case LOAD_HTTP_CHUNK_DATA:
    case LOAD_HTTP_DONE: break;
    }
    return http_fault(http, "line in a body");
}

/* Lines end in \n or \r\n. Takes bytes up to and with one line end; returns how many, or -1 as a size. */
static size_t take_line(struct load_http *http, const char *bytes, size_t n) {
    const char *end = memchr(bytes, '\n', n);
    size_t n_take = end != NULL ? (size_t)(end - bytes) : n;
    if (http->n_line + n_take >= sizeof http->line || http->headers_bytes + n_take > LOAD_HEADERS_MAX) {
        http->fault = "headers too long";
        return SIZE_MAX;
    }
    memcpy(http->line + http->n_line, bytes, n_take);
    http->n_line += n_take;
    assert(http->n_line < sizeof http->line);
    /* Chunk lines of a long stream are no headers: only what comes before the body counts. */
    if (http->state == LOAD_HTTP_STATUS || http->state == LOAD_HTTP_HEADERS || http->state == LOAD_HTTP_TRAILERS)
        http->headers_bytes += n_take;
    if (end == NULL) return n;
    if (http->n_line > 0 && http->line[http->n_line - 1] == '\r') http->n_line--;
    return whole_line(http) == 0 ? n_take + 1 : SIZE_MAX;
}

int load_http_feed(struct load_http *http, const char *bytes, size_t n, size_t *used,
                   void (*body)(void *arg, const char *bytes, size_t n), void *arg) {
    size_t at = 0;
    *used = 0;
    if (http->fault != NULL) return -1;
    while (at < n && http->state != LOAD_HTTP_DONE) {
        size_t n_take = n - at;
        switch (http->state) {
        case LOAD_HTTP_BODY:
        case LOAD_HTTP_CHUNK_DATA:
            assert(http->body_left > 0);
            if (n_take > http->body_left) n_take = (size_t)http->body_left;
            body(arg, bytes + at, n_take);
            http->body_left -= n_take;
            if (http->body_left == 0)
                http->state = http->state == LOAD_HTTP_BODY ? LOAD_HTTP_DONE : LOAD_HTTP_CHUNK_END;
            break;
        case LOAD_HTTP_UNTIL_EOF: body(arg, bytes + at, n_take); break;
        case LOAD_HTTP_STATUS:
        case LOAD_HTTP_HEADERS:
        case LOAD_HTTP_CHUNK_SIZE:
        case LOAD_HTTP_CHUNK_END:
        case LOAD_HTTP_TRAILERS:
            n_take = take_line(http, bytes + at, n_take);
            if (n_take == SIZE_MAX) return -1;
            break;
        case LOAD_HTTP_DONE: break;
        }
        at += n_take;
        assert(at <= n);
        *used = at;
    }
    return 0;
}

int load_http_eof(struct load_http *http) {
    if (http->fault != NULL) return -1;
    if (http->state == LOAD_HTTP_UNTIL_EOF) http->state = LOAD_HTTP_DONE;
    if (http->state == LOAD_HTTP_DONE) return 0;
    return http_fault(http, http->state == LOAD_HTTP_STATUS ? "connection closed before an answer"
                                                            : "connection closed in mid-answer");
}

/* ---- server-sent events ---- */

void load_sse_init(struct load_sse *sse) { memset(sse, 0, sizeof *sse); }

void load_sse_fini(struct load_sse *sse) {
    buf_fini(&sse->line);
    buf_fini(&sse->data);
    load_sse_init(sse);
}

static int sse_append(struct load_sse *sse, struct buf *to, const char *bytes, size_t n) {
    if (n > LOAD_EVENT_MAX - to->len) {
        sse->fault = "event too long";
        return -1;
    }
    buf_add(to, bytes, n);
    if (to->failed) sse->fault = "out of memory";
    return to->failed ? -1 : 0;
}

static int sse_line(struct load_sse *sse, void (*event)(void *arg, const char *data, size_t n), void *arg) {
    const char *line = sse->line.data;
    const size_t n = sse->line.len;
    buf_clear(&sse->line);
    if (n == 0) { /* the blank line that ends an event */
        buf_putc(&sse->data, '\0');
        if (sse->has_data && !sse->data.failed) event(arg, sse->data.data, sse->data.len - 1);
        sse->has_data = false;
        buf_clear(&sse->data);
        return 0;
    }
    if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':')) return 0;
    size_t skip = n > 4 ? 5 : 4;
    if (n > 5 && line[5] == ' ') skip = 6;
    if (sse->has_data && sse_append(sse, &sse->data, "\n", 1) != 0) return -1;
    sse->has_data = true;
    return sse_append(sse, &sse->data, line + skip, n - skip);
}

int load_sse_feed(struct load_sse *sse, const char *bytes, size_t n,
                  void (*event)(void *arg, const char *data, size_t n), void *arg) {
    if (sse->fault != NULL) return -1;
    size_t at = 0;
    while (at < n) {
        if (sse->after_cr && bytes[at] == '\n') {
            sse->after_cr = false;
            at++;
            continue;
        }
        sse->after_cr = false;
        size_t end = at;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r') end++;
        if (sse_append(sse, &sse->line, bytes + at, end - at) != 0) return -1;
        if (end < n) {
            sse->after_cr = bytes[end] == '\r';
            if (sse_line(sse, event, arg) != 0) return -1;
            end++;
        }
        at = end;
    }
    return 0;
}

/* ---- one chunk ---- */

static void chunk_choice(const json_t *choice, struct load_chunk *chunk) {
    const json_t *text = json_object_get(choice, "text");
    if (text == NULL) text = json_object_get(json_object_get(choice, "delta"), "content");
    if (text == NULL) text = json_object_get(json_object_get(choice, "message"), "content");
    if (json_is_string(text) && json_string_length(text) > 0) chunk->text = true;
    /* a model without a tokenizer answers in token ids */
    if (json_array_size(json_object_get(choice, "token_ids")) > 0) chunk->text = true;
    if (json_is_string(json_object_get(choice, "finish_reason"))) chunk->finish = true;
}

int load_chunk_parse(const char *data, size_t n, struct load_chunk *chunk) {
    memset(chunk, 0, sizeof *chunk);
    chunk->completion_tokens = chunk->prompt_tokens = -1;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        chunk->done = true;
        return 0;
    }
    json_t *root = json_loadb(data, n, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return -1;
    }
    const json_t *error = json_object_get(root, "error");
    if (json_is_object(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        chunk->error = true;
        if (message == NULL) message = "error without a message";
        size_t n_copy = strnlen(message, sizeof chunk->message - 1);
        while (n_copy > 0 && ((unsigned char)message[n_copy] & 0xC0) == 0x80) n_copy--; /* whole characters only */
        memcpy(chunk->message, message, n_copy);
    }
    size_t index;
    json_t *choice;
    json_array_foreach(json_object_get(root, "choices"), index, choice) chunk_choice(choice, chunk);
    const json_t *usage = json_object_get(root, "usage");
    if (json_is_integer(json_object_get(usage, "completion_tokens")))
        chunk->completion_tokens = (int64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    if (json_is_integer(json_object_get(usage, "prompt_tokens")))
        chunk->prompt_tokens = (int64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    bool known = chunk->error || json_is_array(json_object_get(root, "choices"));
    json_decref(root);
    return known ? 0 : -1;
}
