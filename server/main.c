/* main.c - the one binary: picks the subcommand. */
#include "server/commands/commands.h"
#include "engine/base/json_guard.h"
#include "server/base/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage;
    const char *does;
};

static const struct command commands[] = {
    {"serve", cmd_serve, "[--model DIR] [flags]", "the server; without --model it serves the demo model"},
    {"generate", cmd_generate, "[--model DIR] -p TEXT [-n N]", "streams a completion to the terminal"},
    {"verify", cmd_verify, "--model DIR --golden FILE [flags]",
     "compares a device with golden results, or with the CPU"},
    {"inspect", cmd_inspect, "DIR [--json]", "what a checkpoint holds: sizes, tensors, bytes per session"},
    {"quantise", cmd_quantise, "IN OUT [--weights int4]", "writes a checkpoint with its large matrices in fewer bits"},
    {"states", cmd_states, "ls|get|rm|gc --state-dir DIR",
     "what lies in a folder or store of states; what has expired goes"},
    {"bench", cmd_bench, "[--model DIR | --synthetic NAME]", "decode and prefill speed beside the machine's ceilings"},
    {"load", cmd_load, "--url URL [flags]", "HTTP load generator: latency percentiles and throughput"},
    {"version", cmd_version, "", "version, commit, build features, devices seen"},
};

#define N_COMMANDS (sizeof commands / sizeof *commands)

static void print_help(FILE *to) {
    fprintf(to, "rodimus %s - serves Rodimus and Rodimus+ language models over the OpenAI HTTP API\n\n",
            version_string());
    fprintf(to, "Usage: rodimus COMMAND [flags]\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(to, "  %-9s %-34s %s\n", commands[i].name, commands[i].usage, commands[i].does);
    }
    fprintf(to, "\n'rodimus COMMAND --help' lists the flags of a command.\n"
                "Exit status: 0 done, 1 the work failed, 2 wrong usage.\n");
}

/* A full disk shows only when the buffer is written. serve does not fail for its first line. */
static int finish_output(const struct command *command, int rc) {
    if (command && command->run == cmd_serve) return rc;
    if (!fflush(stdout) && !ferror(stdout)) return rc;
    fprintf(stderr, "rodimus%s%s: cannot write to standard output\n", command ? " " : "", command ? command->name : "");
    return rc ? rc : 1;
}

/* Opens /dev/null where a standard file is closed, or the next file opened would get its number. Read-only: writing
 * stays an error. */
static void fill_closed(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)open("/dev/null", O_RDONLY);
    }
}

int main(int argc, char **argv) {
    fill_closed();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
        return finish_output(NULL, 0);
    }
    if (!strcmp(name, "--version")) name = "version";
    json_guard_install();
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!strcmp(name, commands[i].name)) return finish_output(&commands[i], commands[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "rodimus: there is no command '%s'; 'rodimus --help' lists them\n", name);
    return 2;
}
