/* commands.h - the subcommands of rodimus: one function a file (cmd_X.c), listed in the table of main.c.
 *
 * argv[0] is the subcommand's own name. Each handles --help itself (on stdout, 0).
 * Returns the exit code: 0 done, 1 the work failed, 2 usage.
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

#endif
