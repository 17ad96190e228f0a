/* rodimus load: the flags, and the report of load_run. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "json_file.h"
#include "load_run.h"

static const char HELP[] =
    "Usage: rodimus load --url URL [flags]\n"
    "Sends streaming requests to URL/v1/completions and measures the answers.\n"
    "\n"
    "  --url URL             server, http://HOST[:PORT][/PREFIX] (https is not spoken)\n"
    "  --streams N           connections, the most requests in flight (8)\n"
    "  --requests N          requests in all (4 a stream)\n"
    "  --prompt-tokens N|A:B prompt length, one or uniform from A to B (128)\n"
    "  --output-tokens N|A:B output length, likewise (64)\n"
    "  --rate R              R requests a second with Poisson arrivals; 0: a stream asks again when answered (0)\n"
    "  --seed N              prompts, lengths, arrivals and sampling follow from it (1)\n"
    "  --temperature T       0 to 2 (0)\n"
    "  --vocab N             prompts are random token ids below N (1000)\n"
    "  --text FILE           prompts are pieces of FILE instead, 4 bytes a token\n"
    "  --stop-at-eos         let answers end early; else they have their full length\n"
    "  --model NAME          model to ask for (the server's)\n"
    "  --api-key KEY         sent as a bearer token\n"
    "  --timeout-ms N        longest time of one request (600000)\n"
    "  --json FILE           write the report to FILE too (- is standard output)\n"
    "  --help                this text\n"
    "\n"
    "Times are in milliseconds. first token: until the first text; inter-token: between two pieces of text of one "
    "stream\n"
    "(a piece may hold several tokens); per token: from first to last text by the tokens less one; end to end: whole\n"
    "request. With --rate, times count from when the request was due. Exit code 0 only if every request succeeded.\n";

struct load_options {
    struct load_plan plan;
    char *url, *host, *text;
    const char *json_file;
};

static int usage(const char *flag, const char *value, const char *want) {
    fprintf(stderr, "rodimus load: %s %s: %s\n", flag, value, want);
    return 2;
}

/* Unsigned decimal within [low, high]; *end is left at the first byte behind it, NULL demands the end of the text. */
static bool read_u64(const char *text, uint64_t low, uint64_t high, uint64_t *value, const char **end) {
    uint64_t v = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9'; c++) {
        if (v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(*c - '0');
    }
    if (c == text || v < low || v > high || (end == NULL && *c != '\0')) return false;
    *value = v;
    if (end != NULL) *end = c;
    return true;
}

static bool read_u32(const char *text, uint32_t high, uint32_t *value) {
    uint64_t v;
    if (!read_u64(text, 1, high, &v, NULL)) return false;
    *value = (uint32_t)v;
    return true;
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

static bool read_real(const char *text, double high, double *value) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !(v >= 0 && v <= high)) return false;
    *value = v;
    return true;
}

/* Cuts http://HOST[:PORT][/PREFIX] into the plan; the pieces live in options->host. */
static bool read_url(struct load_options *options) {
    if (strncmp(options->url, "http://", 7) != 0) return false;
    free(options->host);
    options->host = strdup(options->url + 7);
    if (options->host == NULL) return false;
    struct load_plan *plan = &options->plan;
    char *path = strchr(options->host, '/'), *port;
    plan->path = "";
    plan->port = "80";
    if (path != NULL) { /* "/" and a trailing "/" mean nothing */
        size_t n = strlen(options->url);
        while (n > 0 && options->url[n - 1] == '/') options->url[--n] = '\0';
        *path = '\0';
        const char *prefix = strchr(options->url + 7, '/');
        if (prefix != NULL) plan->path = prefix;
    }
    plan->host = options->host;
    if (options->host[0] == '[') { /* IPv6 address */
        char *bracket = strchr(options->host, ']');
        if (bracket == NULL) return false;
        *bracket = '\0';
        plan->host = options->host + 1;
        port = bracket[1] == ':' ? bracket + 1 : NULL;
    } else {
        port = strchr(options->host, ':');
    }
    if (port != NULL) {
        uint64_t number;
        *port = '\0';
        plan->port = port + 1;
        if (!read_u64(plan->port, 1, 65535, &number, NULL)) return false;
    }
    return plan->host[0] != '\0';
}

static char *read_file(const char *name, size_t *n) {
    FILE *file = fopen(name, "rb");
    if (file == NULL) return NULL;
    char *bytes = NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size > 0 && fseek(file, 0, SEEK_SET) == 0) bytes = malloc((size_t)size);
    if (bytes != NULL && fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    *n = bytes != NULL ? (size_t)size : 0;
    return bytes;
}

/* One flag. 0, or 2 after saying what is wrong. */
static int read_flag(struct load_options *options, int flag, const char *name, const char *value) {
    struct load_plan *plan = &options->plan;
    switch (flag) {
    case 'u':
        free(options->url);
        options->url = strdup(value);
        return options->url != NULL && read_url(options) ? 0 : usage(name, value, "is not http://HOST[:PORT][/PREFIX]");
    case 's': return read_u32(value, 100000, &plan->n_streams) ? 0 : usage(name, value, "must be 1 to 100000");
    case 'n': return read_u32(value, 100000000, &plan->n_requests) ? 0 : usage(name, value, "must be 1 to 100000000");
    case 'p':
        return read_range(value, &plan->prompt_min_tok, &plan->prompt_max_tok) ? 0
                                                                               : usage(name, value, "must be N or A:B");
    case 'o':
        return read_range(value, &plan->output_min_tok, &plan->output_max_tok) ? 0
                                                                               : usage(name, value, "must be N or A:B");
    case 'r': return read_real(value, 1e6, &plan->rate) ? 0 : usage(name, value, "must be 0 to 1000000");
    case 'S':
        return read_u64(value, 0, UINT64_MAX, &plan->seed, NULL) ? 0 : usage(name, value, "must be a whole number");
    case 't': return read_real(value, 2, &plan->temperature) ? 0 : usage(name, value, "must be 0 to 2");
    case 'v': return read_u32(value, 10000000, &plan->vocab) ? 0 : usage(name, value, "must be 1 to 10000000");
    case 'f':
        free(options->text);
        plan->text = options->text = read_file(value, &plan->n_text);
        return plan->text != NULL ? 0 : usage(name, value, "cannot be read, or is empty");
    case 'e': plan->stop_at_eos = true; return 0;
    case 'm': plan->model = value; return 0;
    case 'k': plan->api_key = value; return 0;
    case 'T':
        return read_u64(value, 1, 86400000, &plan->timeout_ms, NULL) ? 0 : usage(name, value, "must be 1 to 86400000");
    case 'j': options->json_file = value; return 0;
    default: return 2;
    }
}

static int read_options(struct load_options *options, int argc, char **argv, bool *help) {
    static const struct option flags[] = {
        {"url", required_argument, NULL, 'u'},
        {"streams", required_argument, NULL, 's'},
        {"requests", required_argument, NULL, 'n'},
        {"prompt-tokens", required_argument, NULL, 'p'},
        {"output-tokens", required_argument, NULL, 'o'},
        {"rate", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 'S'},
        {"temperature", required_argument, NULL, 't'},
        {"vocab", required_argument, NULL, 'v'},
        {"text", required_argument, NULL, 'f'},
        {"stop-at-eos", no_argument, NULL, 'e'},
        {"model", required_argument, NULL, 'm'},
        {"api-key", required_argument, NULL, 'k'},
        {"timeout-ms", required_argument, NULL, 'T'},
        {"json", required_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int flag, index = 0, rc = 0;
    optind = 1;
    while (rc == 0 && (flag = getopt_long(argc, argv, "h", flags, &index)) != -1) {
        if (flag == 'h') {
            *help = true;
            return 0;
        }
        if (flag == '?') return 2; /* getopt has said which */
        char name[32];
        snprintf(name, sizeof name, "--%s", flags[index].name);
        rc = read_flag(options, flag, name, optarg);
    }
    if (rc == 0 && optind < argc) rc = usage("argument", argv[optind], "is not understood");
    if (rc == 0 && options->url == NULL) {
        fprintf(stderr, "rodimus load: --url is missing; 'rodimus load --help' lists the flags\n");
        rc = 2;
    }
    if (options->plan.n_requests == 0) options->plan.n_requests = options->plan.n_streams * 4;
    return rc;
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

static int write_json(const struct load_options *options, struct load_result *result) {
    const struct load_plan *plan = &options->plan;
    double wall_s = (double)result->wall_ns / 1e9;
    json_t *errors = json_object();
    for (size_t i = 0; i < result->n_reasons; i++)
        json_object_set_new(errors, result->reasons[i].text, json_integer((json_int_t)result->reasons[i].n));
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:[i,i], s:[i,i], s:f, s:I, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o}",
        "url", options->url, "streams", (int)plan->n_streams, "requests", (int)plan->n_requests, "prompt_tokens",
        (int)plan->prompt_min_tok, (int)plan->prompt_max_tok, "output_tokens", (int)plan->output_min_tok,
        (int)plan->output_max_tok, "rate", plan->rate, "seed", (json_int_t)plan->seed, "wall_s", wall_s, "ok",
        (json_int_t)result->n_ok, "failed", (json_int_t)result->n_failed, "prompt_tokens_total",
        (json_int_t)result->prompt_tok, "output_tokens_total", (json_int_t)result->output_tok, "requests_per_s",
        (double)result->n_ok / wall_s, "output_tokens_per_s", (double)result->output_tok / wall_s, "first_token_ms",
        json_samples(&result->first_token), "inter_token_ms", json_samples(&result->inter_token), "per_token_ms",
        json_samples(&result->per_token), "end_to_end_ms", json_samples(&result->end_to_end), "errors", errors);
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(6);
    int rc = root == NULL;
    if (rc == 0 && strcmp(options->json_file, "-") == 0)
        rc = json_dumpf(root, stdout, flags) != 0 || putchar('\n') == EOF;
    else if (rc == 0)
        rc = json_file_write(root, options->json_file, flags) != 0;
    if (rc != 0) fprintf(stderr, "rodimus load: cannot write %s\n", options->json_file);
    json_decref(root);
    return rc;
}

int cmd_load(int argc, char **argv) {
    struct load_options options = {
        .plan = {.n_streams = 8,
                 .prompt_min_tok = 128,
                 .prompt_max_tok = 128,
                 .output_min_tok = 64,
                 .output_max_tok = 64,
                 .vocab = 1000,
                 .seed = 1,
                 .timeout_ms = 600000},
    };
    struct load_result result = {0};
    struct rod_error err = {0};
    bool help = false;
    int rc = read_options(&options, argc, argv, &help);
    if (help) {
        fputs(HELP, stdout);
    } else if (rc == 0 && load_run(&options.plan, &result, &err) != 0) {
        fprintf(stderr, "rodimus load: %s\n", err.message);
        rc = 1;
    } else if (rc == 0) {
        print_report(&result);
        rc = result.n_failed == 0 ? 0 : 1;
        if (options.json_file != NULL && write_json(&options, &result) != 0) rc = 1;
    }
    load_result_fini(&result);
    free(options.url);
    free(options.host);
    free(options.text);
    return rc;
}
