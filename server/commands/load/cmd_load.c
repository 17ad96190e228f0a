/* cmd_load.c - rodimus load: the flags, and the report of load_run. */
#include "load_run.h"

#include "engine/base/file.h"
#include "server/base/json_file.h"
#include "server/commands/commands.h"
#include "server/settings/options.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX_BYTES ((size_t)1 << 40) /* no bound but memory */

struct load {
    struct load_plan plan;
    char *url, *prompt_tok, *output_tok, *text, *model, *api_key, *json;
    uint64_t n_streams, n_requests, vocab;
    char *address;           /* the plan's host points into it */
    struct file_bytes bytes; /* the plan's text */
};

/* Unsigned decimal within [low, high]; *end is left at the first byte behind it, NULL demands the end of the text. */
static bool read_u64(const char *text, uint64_t low, uint64_t high, uint64_t *value, const char **end) {
    const size_t n = strspn(text, "0123456789");
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (end != NULL) *end = text + n;
    return n > 0 && !errno && *value >= low && *value <= high && (end != NULL || !text[n]);
}

/* "N" or "A:B" with 1 <= A <= B. */
static bool read_range(const char *text, uint32_t *low, uint32_t *high) {
    uint64_t a, b;
    const char *rest;
    if (!read_u64(text, 1, 10000000, &a, &rest)) return false;
    b = a;
    if (*rest == ':' && !read_u64(rest + 1, a, 10000000, &b, NULL)) return false;
    if (*rest != ':' && *rest != '\0') return false;
    *low = (uint32_t)a;
    *high = (uint32_t)b;
    return true;
}

static const char *check_range(const char *text) {
    uint32_t low, high;
    return read_range(text, &low, &high) ? NULL : "N or A:B, from 1 to 10000000";
}

/* Cuts http://HOST[:PORT][/PREFIX] into the plan; the pieces live in load->address and in the URL. */
static bool read_url(struct load *load) {
    if (strncmp(load->url, "http://", 7) != 0) return false;
    load->address = strdup(load->url + 7);
    if (load->address == NULL) return false;
    struct load_plan *plan = &load->plan;
    char *path = strchr(load->address, '/'), *port;
    plan->path = "";
    plan->port = "80";
    if (path != NULL) { /* "/" and a trailing "/" mean nothing */
        size_t n = strlen(load->url);
        while (n > 0 && load->url[n - 1] == '/') load->url[--n] = '\0';
        *path = '\0';
        const char *prefix = strchr(load->url + 7, '/');
        if (prefix != NULL) plan->path = prefix;
    }
    plan->host = load->address;
    if (load->address[0] == '[') { /* IPv6 address */
        char *bracket = strchr(load->address, ']');
        if (bracket == NULL) return false;
        *bracket = '\0';
        plan->host = load->address + 1;
        port = bracket[1] == ':' ? bracket + 1 : NULL;
    } else {
        port = strchr(load->address, ':');
    }
    if (port != NULL) {
        uint64_t number;
        *port = '\0';
        plan->port = port + 1;
        if (!read_u64(plan->port, 1, 65535, &number, NULL)) return false;
    }
    return plan->host[0] != '\0';
}

/* false: it cannot be read, or is empty. */
static bool read_text(struct load *load) {
    if (file_read(load->text, FILE_REGULAR_ONLY, TEXT_MAX_BYTES, &load->bytes) != FILE_READ) return false;
    load->plan.text = load->bytes.data;
    load->plan.n_text = load->bytes.n;
    return load->bytes.n != 0;
}

#define AT(member)       .offset = offsetof(struct load, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define WHERE            .group = "Where"
#define HOW_MUCH         .group = "How much"
#define WHAT             .group = "What"
#define HUGE             18446744073709551615.0

/* clang-format off */
static const struct option load_flags[] = {
    {"url", OPTION_STRING, AT(url), WHERE, .metavar = "URL", .help = "server, http://HOST[:PORT][/PREFIX] (https is not spoken)"},
    {"model", OPTION_STRING, AT(model), WHERE, .metavar = "NAME", .help = "model to ask for; without it the server's"},
    {"api_key", OPTION_STRING, AT(api_key), WHERE, .metavar = "KEY", .secret = true, .help = "sent as a bearer token"},
    {"streams", OPTION_UINT, AT(n_streams), HOW_MUCH, .fallback = "8", RANGE(1, 100000),
     .help = "connections, the most requests in flight"},
    {"requests", OPTION_AUTO, AT(n_requests), HOW_MUCH, .fallback = "auto", RANGE(1, 100000000),
     .help = "requests in all; auto = 4 a stream"},
    {"rate", OPTION_FLOAT, AT(plan.rate), HOW_MUCH, .fallback = "0", RANGE(0, 1e6), .metavar = "R",
     .help = "R requests a second with Poisson arrivals; 0: a stream asks again when answered"},
    {"timeout_ms", OPTION_UINT, AT(plan.timeout_ms), HOW_MUCH, .fallback = "600000", RANGE(1, 86400000),
     .help = "longest time of one request"},
    {"prompt_tokens", OPTION_STRING, AT(prompt_tok), WHAT, .fallback = "128", .metavar = "N|A:B", .check = check_range,
     .help = "prompt length, one or uniform from A to B"},
    {"output_tokens", OPTION_STRING, AT(output_tok), WHAT, .fallback = "64", .metavar = "N|A:B", .check = check_range,
     .help = "output length, likewise"},
    {"stop_at_eos", OPTION_BOOL, AT(plan.stop_at_eos), WHAT, .help = "let answers end early; else they have their full length"},
    {"vocab", OPTION_UINT, AT(vocab), WHAT, .fallback = "1000", RANGE(1, 10000000),
     .help = "prompts are random token ids below N"},
    {"text", OPTION_STRING, AT(text), WHAT, .metavar = "FILE", .help = "prompts are pieces of FILE instead, 4 bytes a token"},
    {"temperature", OPTION_FLOAT, AT(plan.temperature), WHAT, .fallback = "0", RANGE(0, 2), .metavar = "T", .help = "of sampling"},
    {"seed", OPTION_UINT, AT(plan.seed), WHAT, .fallback = "1", RANGE(0, HUGE),
     .help = "prompts, lengths, arrivals and sampling follow from it"},
    {"json", OPTION_STRING, AT(json), .group = "Output", .metavar = "FILE", .help = "write the report to FILE too; - is standard output"},
};
/* clang-format on */

/* 0, or 2 after saying what is wrong. */
static int make_plan(struct load *load) {
    struct load_plan *plan = &load->plan;
    const char *wrong = NULL, *value = load->url;
    if (!*load->url)
        wrong = "--url is required";
    else if (!read_url(load))
        wrong = "--url must be http://HOST[:PORT][/PREFIX]";
    else if (!read_range(load->prompt_tok, &plan->prompt_min_tok, &plan->prompt_max_tok))
        wrong = "--prompt-tokens must be N or A:B", value = load->prompt_tok;
    else if (!read_range(load->output_tok, &plan->output_min_tok, &plan->output_max_tok))
        wrong = "--output-tokens must be N or A:B", value = load->output_tok;
    else if (*load->text && !read_text(load))
        wrong = "--text cannot be read, or is empty", value = load->text;
    if (wrong) {
        fprintf(stderr, "rodimus load: %s%s%s; 'rodimus load --help' lists the flags.\n", wrong, *value ? ": " : "",
                value);
        return 2;
    }
    plan->n_streams = (uint32_t)load->n_streams;
    plan->n_requests = (uint32_t)(load->n_requests ? load->n_requests : 4 * load->n_streams);
    plan->vocab = (uint32_t)load->vocab;
    plan->model = *load->model ? load->model : NULL;
    plan->api_key = *load->api_key ? load->api_key : NULL;
    return 0;
}

static void print_samples(const char *name, struct load_samples *samples) {
    printf("%-12s", name);
    if (samples->n == 0) {
        printf(" -\n");
        return;
    }
    printf(" %10.2f %10.2f %10.2f %10.2f %10.2f\n", load_percentile(samples, 0.50), load_percentile(samples, 0.90),
           load_percentile(samples, 0.99), load_percentile(samples, 1.0), load_mean(samples));
}

static void print_report(struct load_result *result) {
    double wall_s = (double)result->wall_ns / 1e9;
    printf("requests     %llu ok, %llu failed in %.2f s: %.2f requests/s\n", (unsigned long long)result->n_ok,
           (unsigned long long)result->n_failed, wall_s, (double)result->n_ok / wall_s);
    printf("tokens       %llu prompt, %llu output: %.1f prompt tokens/s, %.1f output tokens/s\n",
           (unsigned long long)result->prompt_tok, (unsigned long long)result->output_tok,
           (double)result->prompt_tok / wall_s, (double)result->output_tok / wall_s);
    printf("%-12s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max", "mean");
    print_samples("first token", &result->first_token);
    print_samples("inter-token", &result->inter_token);
    print_samples("per token", &result->per_token);
    print_samples("end to end", &result->end_to_end);
    for (size_t i = 0; i < result->n_reasons; i++)
        printf("failed       %llu x %s\n", (unsigned long long)result->reasons[i].n, result->reasons[i].text);
}

static json_t *json_samples(struct load_samples *samples) {
    if (samples->n == 0) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "p50", load_percentile(samples, 0.50), "p90",
                     load_percentile(samples, 0.90), "p99", load_percentile(samples, 0.99), "max",
                     load_percentile(samples, 1.0), "mean", load_mean(samples), "n", (json_int_t)samples->n);
}

static int write_json(const struct load *load, struct load_result *result) {
    const struct load_plan *plan = &load->plan;
    double wall_s = (double)result->wall_ns / 1e9;
    json_t *errors = json_object();
    for (size_t i = 0; i < result->n_reasons; i++)
        json_object_set_new(errors, result->reasons[i].text, json_integer((json_int_t)result->reasons[i].n));
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:[i,i], s:[i,i], s:f, s:I, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o}",
        "url", load->url, "streams", (int)plan->n_streams, "requests", (int)plan->n_requests, "prompt_tokens",
        (int)plan->prompt_min_tok, (int)plan->prompt_max_tok, "output_tokens", (int)plan->output_min_tok,
        (int)plan->output_max_tok, "rate", plan->rate, "seed", (json_int_t)plan->seed, "wall_s", wall_s, "ok",
        (json_int_t)result->n_ok, "failed", (json_int_t)result->n_failed, "prompt_tokens_total",
        (json_int_t)result->prompt_tok, "output_tokens_total", (json_int_t)result->output_tok, "requests_per_s",
        (double)result->n_ok / wall_s, "output_tokens_per_s", (double)result->output_tok / wall_s, "first_token_ms",
        json_samples(&result->first_token), "inter_token_ms", json_samples(&result->inter_token), "per_token_ms",
        json_samples(&result->per_token), "end_to_end_ms", json_samples(&result->end_to_end), "errors", errors);
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(6);
    int rc = root == NULL;
    if (rc == 0 && strcmp(load->json, "-") == 0)
        rc = json_dumpf(root, stdout, flags) != 0 || putchar('\n') == EOF;
    else if (rc == 0)
        rc = json_file_write(root, load->json, flags) != 0;
    if (rc != 0) fprintf(stderr, "rodimus load: cannot write %s.\n", load->json);
    json_decref(root);
    return rc;
}

static int run_load(struct load *load) {
    struct load_result result = {0};
    struct rod_error err = {0};
    int rc = make_plan(load);
    if (rc) return rc;
    if (load_run(&load->plan, &result, &err)) {
        fprintf(stderr, "rodimus load: %s\n", err.message);
        rc = 1;
    } else {
        print_report(&result);
        rc = result.n_failed == 0 ? 0 : 1;
        if (*load->json && write_json(load, &result) != 0) rc = 1;
    }
    load_result_fini(&result);
    return rc;
}

int cmd_load(int argc, char **argv) {
    struct load load = {0};
    struct option_set set = OPTION_SET(load_flags, &load);
    int rc = command_flags(
        &set, "load", "--url URL [flags]\n\nSends streaming requests to URL/v1/completions and measures the answers.",
        "Times are in milliseconds. first token: until the first text; inter-token: between two pieces of text of one\n"
        "stream (a piece may hold several tokens); per token: from first to last text by the tokens less one; end to "
        "end:\n"
        "whole request. With --rate, times count from when the request was due. Exit status 0 only if every request\n"
        "succeeded.\n",
        argc, argv);
    if (rc < 0) rc = run_load(&load);
    options_fini(&set);
    free(load.address);
    file_wipe(&load.bytes);
    return rc;
}
