/* cmd_generate.c - rodimus generate: one completion, streamed to the terminal.
 *
 * The text goes to stdout and nothing else does; progress of loading and the rate go to stderr. Ctrl-C ends the text
 * with a line break, and then the process by that signal. */
#include "commands.h"
#include "server/settings/model_path.h"
#include "server/settings/flag_help.h"
#include "server/settings/options.h"
#include "server/base/progress.h"

#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/rodimus.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PROMPT_MAX_BYTES ((size_t)64 << 20)

struct generate {
    char *model, *adapter, *prompt, *device, *precision, *weights, *window_dtype, *state_dtype;
    struct option_list stop;
    uint64_t threads, max_tokens, min_tokens;
    int64_t seed;
#define MEMBER_float       double
#define MEMBER_int32_t     int64_t
#define X(type, name, ...) MEMBER_##type name;
    ROD_SAMPLING(X)
#undef X
    bool chat, ignore_eos, special, quiet, deterministic;
};

#define AT(member)       .offset = offsetof(struct generate, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define WHAT             .group = "What to run"
#define LENGTH           .group = "Length"
#define SAMPLING         .group = "Sampling (without a flag: the model's generation_config.json)"

/* A flag that is not given: NAN, and -2, which no whole option takes. */
#define TYPE_float              OPTION_FLOAT
#define TYPE_int32_t            OPTION_INT, .fallback = "-2"
#define LOW_float(low, above)   ((above) ? 1e-6 : (low))
#define LOW_int32_t(low, above) -2
#define FLAG(kind, member, neutral, least, above, most, file, short_name, text)                                        \
    {#member,     TYPE_##kind, AT(member), SAMPLING, .letter = short_name, RANGE(LOW_##kind(least, above), most),      \
     .help = text},

/* clang-format off */
static const struct option generate_options[] = {
    {"model", OPTION_STRING, AT(model), WHAT, .letter = 'm', .metavar = "DIR",
     .help = "checkpoint directory; without it the bundled demo model"},
    {"adapter", OPTION_STRING, AT(adapter), WHAT, .metavar = "DIR", .help = ADAPTER_HELP},
    {"prompt", OPTION_STRING, AT(prompt), WHAT, .letter = 'p', .metavar = "TEXT",
     .help = "text to go on from; without it the prompt is read from standard input"},
    {"chat", OPTION_BOOL, AT(chat), WHAT, .help = "the prompt is a user's message, the answer the assistant's"},
    {"device", OPTION_CHOICE, AT(device), WHAT, .fallback = "auto", .choices = "auto|cpu|cuda|cuda:N", .metavar = "NAME",
     .help = "auto, cpu, cuda or cuda:N"},
    {"precision", OPTION_CHOICE, AT(precision), WHAT, .fallback = "auto", .choices = "auto|fp32|bf16|fp16", .metavar = "NAME",
     .help = PRECISION_HELP},
    {"weights", OPTION_CHOICE, AT(weights), WHAT, .fallback = "auto", .choices = "auto|fp8|int8|int4", .metavar = "NAME",
     .help = WEIGHTS_HELP},
    {"window_dtype", OPTION_CHOICE, AT(window_dtype), WHAT, .fallback = "auto", .choices = WINDOW_DTYPES, .metavar = "NAME",
     .help = WINDOW_DTYPE_HELP},
    {"state_dtype", OPTION_CHOICE, AT(state_dtype), WHAT, .fallback = "auto", .choices = STATE_DTYPES, .metavar = "NAME",
     .help = STATE_DTYPE_HELP},
    {"threads", OPTION_AUTO, AT(threads), WHAT, .fallback = "auto", RANGE(1, 1024), .help = THREADS_HELP},
    {"deterministic", OPTION_BOOL, AT(deterministic), WHAT, .help = DETERMINISTIC_HELP},
    {"quiet", OPTION_BOOL, AT(quiet), WHAT, .letter = 'q', .help = "no rate on standard error"},
    {"max_tokens", OPTION_UINT, AT(max_tokens), LENGTH, .letter = 'n', .fallback = "256", RANGE(1, 2147483647),
     .help = "tokens to generate at most"},
    {"min_tokens", OPTION_UINT, AT(min_tokens), LENGTH, .fallback = "0", RANGE(0, 2147483647),
     .help = "no end before so many"},
    {"ignore_eos", OPTION_BOOL, AT(ignore_eos), LENGTH, .help = "go on past the end token"},
    {"stop", OPTION_REPEAT, AT(stop), LENGTH, .metavar = "TEXT", .help = "end before this text; may be given several times"},
    ROD_SAMPLING(FLAG)
    {"seed", OPTION_INT, AT(seed), SAMPLING, .fallback = "-1", RANGE(-1, 9e18), .help = "same seed, same text; -1 = another each time"},
    {"special", OPTION_BOOL, AT(special), SAMPLING, .help = "print special tokens too"},
};
/* clang-format on */

struct run { /* what happens after the submit */
    struct rod_engine *engine;
    uint64_t ticket;
    int wake_fd, signal_fd;
    int signal; /* that interrupted it, or 0 */
    bool ended, quiet;
    struct progress progress; /* of loading */
    int rc;
    char last;
};

static void wake_reader(void *arg) {
    uint64_t one = 1;
    ssize_t n = write(*(int *)arg, &one, sizeof one);
    (void)n; /* it fails only when the count is full, and then the reader wakes anyway */
}

static void log_stderr(void *arg, int level, const char *line) {
    struct run *run = arg;
    if (level < 2) return;
    progress_hide(&run->progress);
    fprintf(stderr, "rodimus: %s\n", line);
}

/* The caller of the process learns that it was this signal. */
static void end_by(int number) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

static int pending_signal(const struct run *run) {
    struct signalfd_siginfo info;
    return read(run->signal_fd, &info, sizeof info) > 0 ? (int)info.ssi_signo : 0;
}

/* Nothing is generated yet: a signal ends the process at once. */
static void report_loading(void *arg, const struct rod_progress *at) {
    struct run *run = arg;
    const struct rod_progress_to to = progress_to(&run->progress);
    const int number = pending_signal(run);
    if (number) end_by(number);
    if (!run->quiet) to.report(to.arg, at);
}

static int print_error(const char *what, const struct rod_error *err) {
    fprintf(stderr, "rodimus generate: %s%s\n", what, err->message);
    return 1;
}

/* All of standard input without its last line break; NULL with a message on stderr. */
static char *read_prompt(void) {
    if (isatty(STDIN_FILENO)) fprintf(stderr, "rodimus generate: type the prompt, then Ctrl-D.\n");
    struct file_bytes text;
    const enum file_verdict verdict = file_read_fd(STDIN_FILENO, FILE_ANY_KIND, PROMPT_MAX_BYTES, &text);
    if (verdict == FILE_IO) return strdup("");
    if (verdict != FILE_READ) fprintf(stderr, "rodimus generate: the prompt is too long.\n");
    if (text.n && text.data[text.n - 1] == '\n') text.data[text.n - 1] = 0;
    return text.data;
}

static int encode_prompt(const struct rod_engine *engine, const struct generate *g, struct rod_request *r,
                         struct rod_error *err) {
    size_t len = strlen(g->prompt);
    if (!g->chat) return rod_encode(engine, g->prompt, len, true, &r->prompt, &r->n_prompt, err);
    const struct rod_message message = {.role = "user", .content = g->prompt, .content_len = len};
    const struct rod_chat chat = {.messages = &message, .n_messages = 1, .generation = true};
    return rod_chat_encode(engine, &chat, &r->prompt, &r->n_prompt, err);
}

/* What the flags say, over what the model says. */
static void take_sampling(const struct generate *g, const struct rod_sampling *model, struct rod_sampling *out) {
    const uint64_t seed = out->seed;
    *out = *model;
    out->seed = g->seed >= 0 ? (uint64_t)g->seed : seed;
#define IS_GIVEN_float(value)   !isnan(value)
#define IS_GIVEN_int32_t(value) ((value) != -2)
#define X(type, name, ...)                                                                                             \
    if (IS_GIVEN_##type(g->name)) out->name = (type)g->name;
    ROD_SAMPLING(X)
#undef X
}

static int request_fill(const struct rod_engine *engine, struct generate *g, struct rod_request *r,
                        struct rod_error *err) {
    int rc = encode_prompt(engine, g, r, err);
    if (rc) return rc;
    take_sampling(g, &rod_engine_info(engine)->sampling, &r->sampling);
    snprintf(r->id, sizeof r->id, "generate");
    r->max_tokens = (uint32_t)g->max_tokens;
    r->min_tokens = (uint32_t)g->min_tokens;
    r->ignore_eos = g->ignore_eos;
    r->keep_special = g->special;
    r->stop = g->stop.items; /* moved */
    r->n_stop = g->stop.n_items;
    g->stop = (struct option_list){0};
    return 0;
}

static void print_rate(const struct rod_event *e) {
    double prefill_s = (double)e->prefill_ns * 1e-9, decode_s = (double)e->decode_ns * 1e-9;
    fprintf(stderr, "%llu prompt tokens in %.1f ms", (unsigned long long)e->prompt_tok, prefill_s * 1e3);
    if (prefill_s > 0) fprintf(stderr, " (%.0f/s)", (double)e->prompt_tok / prefill_s);
    fprintf(stderr, ", %llu tokens in %.2f s", (unsigned long long)e->completion_tok, decode_s);
    /* The first token belongs to the prompt's time. */
    if (decode_s > 0 && e->completion_tok > 1) fprintf(stderr, " (%.0f/s)", (double)(e->completion_tok - 1) / decode_s);
    static const char *const ends[] = {"stop", "length", "cancelled"};
    assert((size_t)e->reason < sizeof ends / sizeof *ends);
    fprintf(stderr, ", end: %s\n", ends[e->reason]);
}

static void print_event(struct run *run, struct rod_event *e) {
    if (e->kind == ROD_EVENT_ERROR) {
        run->rc = print_error("", &e->error);
        run->ended = true;
    } else {
        if (e->text_len) {
            fwrite(e->text, 1, e->text_len, stdout);
            run->last = e->text[e->text_len - 1];
        }
        if (fflush(stdout)) rod_cancel(run->engine, run->ticket); /* the reader is gone; main.c reports it */
        run->ended = e->kind == ROD_EVENT_FINISH;
    }
    if (run->ended && run->last != '\n') putchar('\n');
    fflush(stdout);
    if (e->kind == ROD_EVENT_FINISH && !run->quiet) print_rate(e);
    rod_event_free(e);
}

static void print_events(struct run *run) {
    struct pollfd fds[] = {{run->wake_fd, POLLIN, 0}, {run->signal_fd, POLLIN, 0}};
    while (!run->ended) {
        struct rod_event *e;
        while (!run->ended && (e = rod_next_event(run->engine))) print_event(run, e);
        if (run->ended || poll(fds, 2, -1) < 0) continue;
        uint64_t count;
        int number;
        if (fds[0].revents && read(run->wake_fd, &count, sizeof count) < 0) continue;
        if (fds[1].revents && (number = pending_signal(run))) {
            run->signal = number;
            rod_cancel(run->engine, run->ticket);
        }
    }
}

static int run_model(struct generate *g, struct run *run, const char *dir) {
    struct rod_error err = {0};
    struct rod_engine_config config = {.model_dir = dir,
                                       .adapter_dir = g->adapter,
                                       .device = g->device,
                                       .precision = g->precision,
                                       .weights = g->weights,
                                       .window_dtype = g->window_dtype,
                                       .state_dtype = g->state_dtype,
                                       .deterministic = g->deterministic,
                                       .n_slots = 1,
                                       .n_threads = (uint32_t)g->threads,
                                       .wake = wake_reader,
                                       .wake_arg = &run->wake_fd,
                                       .log = log_stderr,
                                       .log_arg = run,
                                       .progress = {report_loading, run}};
    progress_open(&run->progress, "rodimus generate");
    int rc = rod_engine_open(&config, &run->engine, &err);
    progress_close(&run->progress);
    if (rc) {
        print_error("", &err);
        return rc == ROD_EINVALID ? 2 : 1; /* 2: a setting that is wrong for this model */
    }
    struct rod_request *request = rod_request_new();
    rc = request ? request_fill(run->engine, g, request, &err) : rod_fail_no_memory(&err);
    if (!rc) rc = rod_submit(run->engine, request, &run->ticket, &err);
    if (rc) {
        rod_request_free(request);
        rc = print_error("", &err);
    } else {
        print_events(run);
        rc = run->rc;
    }
    rod_engine_close(run->engine);
    if (run->signal) end_by(run->signal);
    return rc;
}

static int run_command(struct generate *g) {
    char dir[PATH_MAX];
    if (*g->model) {
        snprintf(dir, sizeof dir, "%s", g->model);
    } else if (model_path_bundled(dir, sizeof dir)) {
        fprintf(stderr, "rodimus generate: " MODEL_PATH_MISSING "\n", dir);
        return 1;
    }
    if (!*g->prompt) {
        free(g->prompt);
        g->prompt = read_prompt();
        if (!g->prompt) return 1;
    }
    sigset_t signals; /* blocked before the engine starts its threads, which inherit it; read from a descriptor */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    struct run state = {.quiet = g->quiet,
                        .last = '\n',
                        .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                        .signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
    int rc = 1;
    if (state.wake_fd >= 0 && state.signal_fd >= 0) rc = run_model(g, &state, dir);
    if (state.wake_fd >= 0) close(state.wake_fd);
    if (state.signal_fd >= 0) close(state.signal_fd);
    return rc;
}

int cmd_generate(int argc, char **argv) {
    struct generate g = {0};
    struct option_set set = OPTION_SET(generate_options, &g);
    int rc =
        command_flags(&set, "generate", "[--model DIR] -p TEXT [-n N] [flags]\n\nStreams a completion to the terminal.",
                      "Examples\n  rodimus generate -p 'Once upon a time there was'\n"
                      "  rodimus generate --chat -p 'Tell me a tale about a fox.' -t 0.7 --seed 7\n"
                      "  cat story.txt | rodimus generate --model /models/rodimus-plus -n 400\n",
                      argc, argv);
    if (rc < 0) rc = run_command(&g);
    options_fini(&set);
    return rc;
}
