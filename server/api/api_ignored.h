/* api_ignored.h - the parts of a request that this server reads and leaves out: clients send them to every model, and a
 * conversation whose history has one would end with a 400. An operator learns of each from the log and a metric.
 *
 * One table. Pure; any thread.
 */
#ifndef API_IGNORED_H
#define API_IGNORED_H

#include <stddef.h>

enum api_ignored { /* bits of api_request.ignored, by number */
                   /* tools that the API's owner runs on servers of its own */
                   API_IGNORED_WEB_SEARCH,
                   API_IGNORED_WEB_FETCH,
                   API_IGNORED_CODE_INTERPRETER,
                   API_IGNORED_LOCAL_SHELL,
                   API_IGNORED_FILE_SEARCH,
                   API_IGNORED_IMAGE_GENERATION,
                   API_IGNORED_COMPUTER,
                   API_IGNORED_MCP,
                   API_IGNORED_TOOL_SEARCH,
                   API_IGNORED_ADVISOR,
                   /* what the model cannot see */
                   API_IGNORED_IMAGE,
                   API_IGNORED_DOCUMENT,
                   /* what it does not do, or has no need of */
                   API_IGNORED_THINKING,
                   API_IGNORED_CONTEXT_MANAGEMENT,
                   API_IGNORED_BILLING_HEADER,
                   API_IGNORED_TOOL_FORMAT,
                   /* items of a history that another server made */
                   API_IGNORED_SERVER_CALL,
                   API_IGNORED_COMPACTION,
                   API_IGNORED_GHOST_SNAPSHOT,
                   API_N_IGNORED
};

extern const char *const api_ignored_names[API_N_IGNORED];
/* Of a tool's type, "web_search_20250305" or "web_search"; API_N_IGNORED: a tool that is not left out. */
enum api_ignored api_ignored_tool(const char *type);

#endif
