/* load_run.c - see load_run.h. */
#include "load_run.h"

#include "engine/base/fail.h"
#include "load_http.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

struct load;

/* One connection, and the request it carries. */
struct load_stream {
    struct load *load;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    uv_timer_t timeout;
    bool open; /* tcp is initialised: closed by uv_close only */
    bool closing;
    bool again;    /* after closing, send the same request once more: an old keep-alive socket had died */
    bool reused;   /* this request went out on a socket that had carried another */
    bool answered; /* bytes of this answer have come */
    struct load_http http;
    struct load_sse sse;
    char *out; /* head and body of the request */
    size_t n_out;
    struct buf body; /* an answer that is no event stream */
    uint32_t index;
    uint64_t start_ns, first_ns, last_ns;
    int64_t prompt_tok, output_tok;
    bool finish, done, failed;
    char reason[192];
};

struct load {
    const struct load_plan *plan;
    struct load_result *result;
    uv_loop_t loop;
    uv_timer_t arrival;
    struct sockaddr_storage address;
    struct load_stream **streams;
    struct load_stream **idle;
    uint32_t n_idle;
    uint64_t *due_ns; /* [n_requests] after begin_ns; all 0 in a closed loop */
    uint64_t begin_ns;
    uint32_t next, n_ended;
    bool no_memory;
    char read_buffer[65536]; /* libuv reads one socket at a time */
};

/* ---- what is asked: a function of seed and index ---- */

/* splitmix64 */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t random_between(uint64_t *state, uint64_t low, uint64_t high) {
    return low + random_next(state) % (high - low + 1);
}

static void plan_arrivals(struct load *load) {
    uint64_t random = load->plan->seed ^ 0x6172726976616Cu;
    double at_s = 0;
    for (uint32_t i = 0; i < load->plan->n_requests && load->plan->rate > 0; i++) {
        double u = ((double)(random_next(&random) >> 11) + 0.5) * 0x1p-53;
        at_s -= log(u) / load->plan->rate;
        load->due_ns[i] = (uint64_t)(at_s * 1e9);
    }
}

static json_t *plan_prompt(const struct load_plan *plan, uint64_t *random, uint64_t n_tok) {
    if (plan->text == NULL) {
        json_t *ids = json_array();
        for (uint64_t i = 0; i < n_tok; i++)
            json_array_append_new(ids, json_integer((json_int_t)random_between(random, 0, plan->vocab - 1)));
        return ids;
    }
    size_t n = n_tok * 4 < plan->n_text ? (size_t)n_tok * 4 : plan->n_text;
    size_t begin = (size_t)random_between(random, 0, plan->n_text - n), end = begin + n;
    while (begin < end && ((unsigned char)plan->text[begin] & 0xC0) == 0x80) begin++;
    while (end > begin && end < plan->n_text && ((unsigned char)plan->text[end] & 0xC0) == 0x80) end--;
    return json_stringn(plan->text + begin, end - begin);
}

/* Head and body of request `index`, malloc'd; NULL without memory. */
static char *plan_request(const struct load_plan *plan, uint32_t index, size_t *n_out) {
    uint64_t random = plan->seed + (uint64_t)index * 0xD1342543DE82EF95u;
    uint64_t n_prompt = random_between(&random, plan->prompt_min_tok, plan->prompt_max_tok);
    uint64_t n_output = random_between(&random, plan->output_min_tok, plan->output_max_tok);
    json_t *body = json_object();
    if (plan->model != NULL) json_object_set_new(body, "model", json_string(plan->model));
    json_object_set_new(body, "prompt", plan_prompt(plan, &random, n_prompt));
    json_object_set_new(body, "max_tokens", json_integer((json_int_t)n_output));
    json_object_set_new(body, "temperature", json_real(plan->temperature));
    json_object_set_new(body, "seed", json_integer((json_int_t)(random_next(&random) >> 16)));
    if (!plan->stop_at_eos) json_object_set_new(body, "ignore_eos", json_true());
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text == NULL) return NULL;
    char *out = NULL;
    int n =
        asprintf(&out,
                 "POST %s/v1/completions HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                 "Accept: text/event-stream\r\n%s%s%sContent-Length: %zu\r\n\r\n%s",
                 plan->path, plan->host, plan->port, plan->api_key != NULL ? "Authorization: Bearer " : "",
                 plan->api_key != NULL ? plan->api_key : "", plan->api_key != NULL ? "\r\n" : "", strlen(text), text);
    free(text);
    if (n < 0) return NULL;
    *n_out = (size_t)n;
    return out;
}

/* ---- one request on one stream ---- */

static void stream_send(struct load_stream *stream);
static void load_dispatch(struct load *load);

static void count_reason(struct load_result *result, const char *text) {
    size_t i = 0;
    while (i < result->n_reasons && strcmp(result->reasons[i].text, text) != 0) i++;
    if (i == result->n_reasons) {
        if (i == LOAD_REASONS_MAX)
            i--;
        else
            snprintf(result->reasons[result->n_reasons++].text, sizeof result->reasons[i].text, "%s", text);
    }
    result->reasons[i].n++;
}

static void stream_fail(struct load_stream *stream, const char *what, const char *more) {
    if (stream->failed) return;
    stream->failed = true;
    snprintf(stream->reason, sizeof stream->reason, "%.80s%s%.100s", what, more[0] != '\0' ? ": " : "", more);
}

static double ms_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

/* The request has ended, well or not: count it and give the stream to the next one. */
static void stream_end(struct load_stream *stream) {
    struct load *load = stream->load;
    struct load_result *result = load->result;
    uint64_t now_ns = uv_hrtime();
    uv_timer_stop(&stream->timeout);
    if (stream->failed) {
        result->n_failed++;
        count_reason(result, stream->reason);
    } else {
        int rc = load_sample(&result->end_to_end, ms_between(stream->start_ns, now_ns));
        if (stream->first_ns > 0)
            rc |= load_sample(&result->first_token, ms_between(stream->start_ns, stream->first_ns));
        if (stream->first_ns > 0 && stream->output_tok > 1)
            rc |= load_sample(&result->per_token,
                              ms_between(stream->first_ns, stream->last_ns) / (double)(stream->output_tok - 1));
        if (rc != 0) load->no_memory = true;
        result->n_ok++;
        if (stream->prompt_tok > 0) result->prompt_tok += (uint64_t)stream->prompt_tok;
        if (stream->output_tok > 0) result->output_tok += (uint64_t)stream->output_tok;
    }
    free(stream->out);
    stream->out = NULL;
    buf_fini(&stream->body);
    load->idle[load->n_idle++] = stream;
    if (++load->n_ended == load->plan->n_requests) {
        result->wall_ns = now_ns - load->begin_ns;
        uv_close((uv_handle_t *)&load->arrival, NULL);
        for (uint32_t i = 0; i < load->plan->n_streams; i++) {
            struct load_stream *one = load->streams[i];
            uv_close((uv_handle_t *)&one->timeout, NULL);
            if (one->open && !one->closing) uv_close((uv_handle_t *)&one->tcp, NULL);
        }
        return;
    }
    load_dispatch(load);
}

static void on_closed(uv_handle_t *handle) {
    struct load_stream *stream = handle->data;
    assert(stream->open && stream->closing);
    stream->open = stream->closing = false;
    if (stream->again) {
        stream->again = false;
        stream_send(stream);
    } else {
        stream_end(stream);
    }
}

/* Ends the request and its connection. A socket that the server closed while idle gets one more try on a fresh one. */
static void stream_close(struct load_stream *stream) {
    assert(stream->open);
    if (stream->closing) return;
    if (stream->failed && stream->reused && !stream->answered) {
        stream->again = true;
        stream->failed = false;
    }
    stream->closing = true;
    uv_close((uv_handle_t *)&stream->tcp, on_closed);
}

static void on_event(void *arg, const char *data, size_t n) {
    struct load_stream *stream = arg;
    struct load_chunk chunk;
    if (load_chunk_parse(data, n, &chunk) != 0) {
        stream_fail(stream, "an event that is no completion chunk", "");
        return;
    }
    if (chunk.error) stream_fail(stream, "error in the stream", chunk.message);
    if (chunk.done) stream->done = true;
    if (chunk.finish) stream->finish = true;
    if (chunk.completion_tokens >= 0) stream->output_tok = chunk.completion_tokens;
    if (chunk.prompt_tokens >= 0) stream->prompt_tok = chunk.prompt_tokens;
    if (!chunk.text) return;
    uint64_t now_ns = uv_hrtime();
    assert(now_ns >= stream->last_ns);
    if (stream->first_ns == 0)
        stream->first_ns = now_ns;
    else if (load_sample(&stream->load->result->inter_token, ms_between(stream->last_ns, now_ns)) != 0)
        stream->load->no_memory = true;
    stream->last_ns = now_ns;
}

static void on_body(void *arg, const char *bytes, size_t n) {
    struct load_stream *stream = arg;
    if (stream->http.status == 200 && stream->http.event_stream) {
        if (load_sse_feed(&stream->sse, bytes, n, on_event, stream) != 0) stream_fail(stream, stream->sse.fault, "");
        return;
    }
    if (stream->body.len + n <= LOAD_EVENT_MAX)
        buf_add(&stream->body, bytes, n); /* of an error page the beginning does */
}

/* The response is complete. */
static void stream_judge(struct load_stream *stream) {
    if (stream->http.status != 200) {
        struct load_chunk chunk;
        char status[32];
        snprintf(status, sizeof status, "HTTP %d", stream->http.status);
        bool known =
            stream->body.len > 0 && load_chunk_parse(stream->body.data, stream->body.len, &chunk) == 0 && chunk.error;
        stream_fail(stream, status, known ? chunk.message : "");
    } else if (!stream->http.event_stream) {
        stream_fail(stream, "not an event stream", "");
    } else if (!stream->finish) {
        stream_fail(stream, "no finish_reason", "");
    } else if (!stream->done) {
        stream_fail(stream, "no [DONE]", "");
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)suggested;
    struct load_stream *stream = handle->data;
    *buffer = uv_buf_init(stream->load->read_buffer, sizeof stream->load->read_buffer);
}

static void on_read(uv_stream_t *tcp, ssize_t n_read, const uv_buf_t *buffer) {
    struct load_stream *stream = tcp->data;
    if (n_read == 0 || stream->closing) return;
    if (n_read < 0) {
        if (n_read != UV_EOF)
            stream_fail(stream, "read", uv_strerror((int)n_read));
        else if (load_http_eof(&stream->http) != 0)
            stream_fail(stream, stream->http.fault, "");
        else
            stream_judge(stream);
        stream_close(stream);
        return;
    }
    stream->answered = true;
    size_t used;
    if (load_http_feed(&stream->http, buffer->base, (size_t)n_read, &used, on_body, stream) != 0) {
        stream_fail(stream, stream->http.fault, "");
        stream_close(stream);
        return;
    }
    if (stream->http.state != LOAD_HTTP_DONE) return;
    stream_judge(stream);
    if (used < (size_t)n_read) stream_fail(stream, "bytes behind the answer", "");
    if (!stream->http.keep_alive || stream->failed) {
        stream_close(stream);
    } else {
        uv_read_stop(tcp);
        stream_end(stream);
    }
}

static void on_written(uv_write_t *write, int status) {
    struct load_stream *stream = write->data;
    if (status == 0 || status == UV_ECANCELED) return;
    /* An early answer (413, 503) may come with a reset: let the reader see it first. It ends the request either way. */
    if (stream->answered) return;
    stream_fail(stream, "write", uv_strerror(status));
    stream_close(stream);
}

static void stream_write(struct load_stream *stream) {
    uv_buf_t buffer = uv_buf_init(stream->out, (unsigned)stream->n_out);
    int rc = uv_read_start((uv_stream_t *)&stream->tcp, on_alloc, on_read);
    if (rc == 0) rc = uv_write(&stream->write, (uv_stream_t *)&stream->tcp, &buffer, 1, on_written);
    if (rc != 0) {
        stream_fail(stream, "write", uv_strerror(rc));
        stream_close(stream);
    }
}

static void on_connected(uv_connect_t *connect, int status) {
    struct load_stream *stream = connect->data;
    if (status == UV_ECANCELED || stream->closing) return;
    if (status != 0) {
        stream_fail(stream, "connect", uv_strerror(status));
        stream_close(stream);
        return;
    }
    stream_write(stream);
}

static void on_timeout(uv_timer_t *timer) {
    struct load_stream *stream = timer->data;
    stream->answered = true; /* no second try */
    stream_fail(stream, "no answer in time", "");
    stream_close(stream);
}

/* Sends the stream's request, on its open socket if it has one. */
static void stream_send(struct load_stream *stream) {
    assert(!stream->closing && !stream->again);
    load_http_init(&stream->http);
    load_sse_fini(&stream->sse);
    stream->finish = stream->done = stream->failed = stream->answered = false;
    stream->first_ns = stream->last_ns = 0;
    stream->prompt_tok = stream->output_tok = 0;
    stream->reused = stream->open;
    int rc;
    if (!stream->open) {
        rc = uv_tcp_init(&stream->load->loop, &stream->tcp);
        assert(rc == 0); /* makes no socket yet, so cannot fail */
        stream->tcp.data = stream;
        stream->open = true;
    }
    rc = stream->out != NULL ? 0 : UV_ENOMEM;
    if (rc == 0 && stream->reused) {
        stream_write(stream);
        return;
    }
    if (rc == 0)
        rc = uv_tcp_connect(&stream->connect, &stream->tcp, (const struct sockaddr *)&stream->load->address,
                            on_connected);
    if (rc == 0) rc = uv_tcp_nodelay(&stream->tcp, 1);
    if (rc != 0) {
        stream_fail(stream, "connect", uv_strerror(rc));
        stream_close(stream);
    }
}

/* ---- which request is next ---- */

static void on_arrival(uv_timer_t *timer) { load_dispatch(timer->data); }

/* Gives due requests to idle streams, and sets the timer for the next one that is not due. */
static void load_dispatch(struct load *load) {
    const struct load_plan *plan = load->plan;
    while (load->n_idle > 0 && load->next < plan->n_requests) {
        uint64_t now_ns = uv_hrtime(), due_ns = load->begin_ns + load->due_ns[load->next];
        if (due_ns > now_ns) {
            uv_timer_start(&load->arrival, on_arrival, (due_ns - now_ns) / 1000000 + 1, 0);
            return;
        }
        struct load_stream *stream = load->idle[--load->n_idle];
        assert(!stream->closing && stream->out == NULL);
        stream->index = load->next++;
        stream->out = plan_request(plan, stream->index, &stream->n_out);
        /* Waiting for a stream counts where requests are due; writing the request down is not the server's time. */
        stream->start_ns = plan->rate > 0 ? due_ns : uv_hrtime();
        uv_timer_start(&stream->timeout, on_timeout, plan->timeout_ms, 0);
        stream_send(stream);
    }
}

static int load_resolve(const struct load_plan *plan, struct sockaddr_storage *address, struct rod_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(plan->host, plan->port, &hints, &found);
    if (rc != 0) return rod_fail(err, ROD_EIO, "cannot resolve %s:%s: %s", plan->host, plan->port, gai_strerror(rc));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

static int load_init(struct load *load) {
    const struct load_plan *plan = load->plan;
    load->streams = calloc(plan->n_streams, sizeof *load->streams);
    load->idle = calloc(plan->n_streams, sizeof *load->idle);
    load->due_ns = calloc(plan->n_requests, sizeof *load->due_ns);
    if (load->streams == NULL || load->idle == NULL || load->due_ns == NULL) return ROD_ENOMEM;
    for (uint32_t i = 0; i < plan->n_streams; i++) {
        struct load_stream *stream = calloc(1, sizeof *stream);
        if (stream == NULL) return ROD_ENOMEM;
        stream->load = load;
        stream->connect.data = stream->write.data = stream->timeout.data = stream;
        load->streams[i] = stream;
        load->idle[plan->n_streams - 1 - i] = stream;
    }
    load->n_idle = plan->n_streams;
    return uv_loop_init(&load->loop) == 0 ? 0 : ROD_ENOMEM;
}

int load_run(const struct load_plan *plan, struct load_result *result, struct rod_error *err) {
    memset(result, 0, sizeof *result);
    struct load *load = calloc(1, sizeof *load);
    if (load == NULL) return rod_fail_no_memory(err);
    load->plan = plan;
    load->result = result;
    int rc = load_resolve(plan, &load->address, err);
    if (rc == 0 && load_init(load) != 0) rc = rod_fail_no_memory(err);
    if (rc == 0) {
        plan_arrivals(load);
        uv_timer_init(&load->loop, &load->arrival);
        load->arrival.data = load;
        for (uint32_t i = 0; i < plan->n_streams; i++) uv_timer_init(&load->loop, &load->streams[i]->timeout);
        load->begin_ns = uv_hrtime();
        load_dispatch(load);
        uv_run(&load->loop, UV_RUN_DEFAULT);
        uv_loop_close(&load->loop);
        assert(result->n_ok + result->n_failed == plan->n_requests);
        if (load->no_memory) rc = rod_fail_no_memory(err);
    }
    for (uint32_t i = 0; load->streams != NULL && i < plan->n_streams; i++) {
        if (load->streams[i] == NULL) continue;
        load_sse_fini(&load->streams[i]->sse);
        free(load->streams[i]->out);
        buf_fini(&load->streams[i]->body);
        free(load->streams[i]);
    }
    free(load->streams);
    free(load->idle);
    free(load->due_ns);
    free(load);
    return rc;
}
