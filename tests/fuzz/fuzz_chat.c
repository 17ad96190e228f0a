/* fuzz_chat.c - any file beside a model as its chat format: a table, a tokenizer_config.json or a Jinja template, by
 * the first byte. What is taken renders a chat whose contents stand in it as they are; what is not has a message or a
 * note. */
#include "engine/text/chat.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *open_once(void) {
    static struct tokenizer *t;
    struct rod_error err;
    if (!t && tokenizer_open("config/models/tales", &t, &err)) abort();
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    const struct tokenizer *t = open_once();
    const char *text = (const char *)data + 1;
    struct chat_files files = {0};
    if (data[0] % 3 == 0) {
        files.table = text;
        files.table_len = size - 1;
    } else if (data[0] % 3 == 1) {
        files.config = text;
        files.config_len = size - 1;
    } else {
        files.jinja = text;
        files.jinja_len = size - 1;
    }
    struct rod_error err = {0};
    struct chat *chat = NULL;
    char note[320];
    if (chat_parse(&files, t, &chat, note, sizeof note, &err)) {
        if (chat || !err.message[0]) abort();
        return 0;
    }
    if (!chat) abort(); /* this tokenizer has <role>: there is always a format */
    const struct rod_message message = {.role = "user", .content = "ab<role>", .content_len = 8};
    char *out = NULL;
    size_t len = 0;
    if (!chat_render(chat, &message, 1, true, &out, &len, &err) && !memmem(out, len, "ab<role>", 8)) abort();
    free(out);
    const struct rod_message several[] = {{.role = "system", .content = "x", .content_len = 1},
                                          message,
                                          {.role = "assistant", .content = "</role>", .content_len = 7},
                                          message};
    int32_t *ids = NULL;
    size_t n_ids = 0, n_marks = 0, *marks = NULL;
    if (!chat_encode(chat, t, CHAT_BEGIN_FIRST, several, 4, true, &ids, &n_ids, &err)) {
        chat_marks(chat, t, several, 4, ids, n_ids, &marks, &n_marks);
        if (n_marks > 4) abort();
        for (size_t i = 0; i < n_marks; i++)
            if (marks[i] >= n_ids || (i && marks[i] <= marks[i - 1])) abort();
    }
    free(marks);
    free(ids);
    const struct rod_call call = {.name = "f", .arguments = "{}", .name_len = 1, .arguments_len = 2};
    const struct rod_message called[] = {{.role = "assistant", .calls = &call, .n_calls = 1}, message};
    static const char *const tools[] = {"{}"};
    const struct rod_chat with = {.messages = called, .n_messages = 2, .tools = tools, .n_tools = 1};
    struct rod_message *plain = NULL;
    size_t n_plain = 0;
    if (chat_plain(chat, &with, true, &plain, &n_plain, &err)) {
        if (plain || !err.message[0] || (chat->tools[0] && chat->prefix[CHAT_SYSTEM] && chat->prefix[CHAT_ASSISTANT]))
            abort();
    } else if (n_plain != 3 || !memmem(plain[1].content, plain[1].content_len, "{\"name\": \"f\", ", 14)) {
        abort();
    }
    free(plain);
    chat_close(chat);
    return 0;
}
