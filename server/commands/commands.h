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
int cmd_quantise(int argc, char **argv);
int cmd_states(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_load(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* The flags of a command that has no other source of settings: into set's values, which options_fini frees whatever
 * comes back. -1 to go on, else the exit status, after the help (usage and what it does, the flags, more) or what is
 * wrong was printed. */
struct option_set;
int command_flags(const struct option_set *set, const char *name, const char *about, const char *more, int argc,
                  char **argv);

#endif
