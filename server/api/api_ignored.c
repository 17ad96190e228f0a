/* api_ignored.c - see api_ignored.h. */
#include "api_ignored.h"

#include <stdbool.h>
#include <string.h>

const char *const api_ignored_names[API_N_IGNORED] = {
    [API_IGNORED_WEB_SEARCH] = "web_search",
    [API_IGNORED_WEB_FETCH] = "web_fetch",
    [API_IGNORED_CODE_INTERPRETER] = "code_interpreter",
    [API_IGNORED_LOCAL_SHELL] = "local_shell",
    [API_IGNORED_FILE_SEARCH] = "file_search",
    [API_IGNORED_IMAGE_GENERATION] = "image_generation",
    [API_IGNORED_COMPUTER] = "computer",
    [API_IGNORED_MCP] = "mcp",
    [API_IGNORED_TOOL_SEARCH] = "tool_search",
    [API_IGNORED_ADVISOR] = "advisor",
    [API_IGNORED_IMAGE] = "image",
    [API_IGNORED_DOCUMENT] = "document",
    [API_IGNORED_THINKING] = "thinking",
    [API_IGNORED_CONTEXT_MANAGEMENT] = "context_management",
    [API_IGNORED_BILLING_HEADER] = "billing_header",
    [API_IGNORED_TOOL_FORMAT] = "tool_format",
    [API_IGNORED_SERVER_CALL] = "server_call",
    [API_IGNORED_COMPACTION] = "compaction",
    [API_IGNORED_GHOST_SNAPSHOT] = "ghost_snapshot",
};

/* Nothing, or a date: digits behind underscores. */
static bool is_date(const char *text) {
    static const char digits[] = "0123456789";
    while (*text == '_' && strspn(text + 1, digits)) text += 1 + strspn(text + 1, digits);
    return !*text;
}

enum api_ignored api_ignored_tool(const char *type) {
    static const struct {
        const char *name; /* a date may follow */
        enum api_ignored tool;
    } tools[] = {{"web_search", API_IGNORED_WEB_SEARCH},
                 {"web_search_preview", API_IGNORED_WEB_SEARCH},
                 {"web_fetch", API_IGNORED_WEB_FETCH},
                 {"code_interpreter", API_IGNORED_CODE_INTERPRETER},
                 {"code_execution", API_IGNORED_CODE_INTERPRETER},
                 {"local_shell", API_IGNORED_LOCAL_SHELL},
                 {"shell", API_IGNORED_LOCAL_SHELL},
                 {"file_search", API_IGNORED_FILE_SEARCH},
                 {"image_generation", API_IGNORED_IMAGE_GENERATION},
                 {"computer", API_IGNORED_COMPUTER},
                 {"computer_toolset", API_IGNORED_COMPUTER},
                 {"computer_use", API_IGNORED_COMPUTER},
                 {"computer_use_preview", API_IGNORED_COMPUTER},
                 {"mcp", API_IGNORED_MCP},
                 {"mcp_toolset", API_IGNORED_MCP},
                 {"tool_search", API_IGNORED_TOOL_SEARCH},
                 {"tool_search_tool_bm25", API_IGNORED_TOOL_SEARCH},
                 {"tool_search_tool_regex", API_IGNORED_TOOL_SEARCH},
                 {"advisor", API_IGNORED_ADVISOR}};
    for (size_t i = 0; type && i < sizeof tools / sizeof *tools; i++) {
        const size_t n = strlen(tools[i].name);
        if (!strncmp(type, tools[i].name, n) && is_date(type + n)) return tools[i].tool;
    }
    return API_N_IGNORED;
}
