/* commands.h - the subcommands of rodimus: one function a file (cmd_X.c), listed in the table of main.c.
 *
 * argv[0] is the subcommand's own name. Each handles --help itself (on stdout, 0).
 * Returns the exit status: 0 done, 1 the work failed, 2 usage.
 */
#ifndef COMMANDS_H
#define COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_load(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* What flags of several commands say of themselves. */
#define PRECISION_HELP                                                                                                 \
    "type of the weights and, on a GPU, of the arithmetic: auto, fp32, bf16 or fp16; auto = the checkpoint's, but "    \
    "bf16 "                                                                                                            \
    "on a GPU where that is fp32"
#define THREADS_HELP       "compute threads of the CPU backend; auto = all cores"
#define DETERMINISTIC_HELP "the same bits in steps of any size, on a GPU too"
#define SYNTHETIC_HELP                                                                                                 \
    "random weights of a published shape instead: rodimus-1.4b, rodimus-plus-1.6b, rodimus-plus-1.6b-w1024, "          \
    "rodimus-plus-4b"

/* The flags of a command that has no other source of settings: into set's values, which options_fini frees whatever
 * comes back. -1 to go on, else the exit status, after the help (usage and what it does, the flags, more) or what is
 * wrong was printed. */
struct option_set;
int command_flags(const struct option_set *set, const char *name, const char *about, const char *more, int argc,
                  char **argv);

#endif
