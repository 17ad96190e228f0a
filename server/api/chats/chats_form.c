/* chats_form.c - the form of chats: the choices open together with a role, then chunks of text and calls. */
#include "chats.h"
#include "server/api/sse.h"

#include <assert.h>
#include <stdlib.h>

struct state {
    struct buf head; /* of every chunk */
};

static const struct buf *head_of(const struct answer *a) {
    struct state *s = a->state;
    if (!s->head.len)
        api_put_head(&s->head, "chatcmpl-", a->request->stream ? "chat.completion.chunk" : "chat.completion", a);
    return &s->head;
}

static void push(const struct answer_choice *choice, const struct api_choice *shown) {
    struct answer *a = choice->answer;
    struct api_usage usage;
    const struct api_usage *so_far = api_choice_usage(choice, shown->role, &usage);
    sse_begin(&a->frame);
    chats_render_chunk(&a->frame, head_of(a), shown, so_far, a->request->include_usage);
    sse_end(&a->frame);
}

static void open_one(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    const struct api_request *q = a->request;
    struct api_choice opening = {.index = choice->index, .role = true, .text = "", .stop_id = -1};
    struct buf ids = {0};
    const size_t before = a->frame.len;
    opening.no_text = q->tools.n && q->tools.choice != API_TOOLS_AUTO; /* there will be calls alone */
    if (q->return_token_ids) {
        api_render_ids(&ids, choice->prompt->ids, choice->prompt->n_ids);
        opening.prompt_ids = &ids;
    }
    if (q->n_prompt_logprobs >= 0) opening.prompt_logprobs = &choice->prompt_logprobs;
    push(choice, &opening);
    a->opening_bytes += a->frame.len - before;
    choice->opened = true;
    buf_fini(&ids);
    buf_fini(&choice->prompt_logprobs); /* it may be long */
}

/* The choices begin together and in order, with the first token of any: clients make their list of choices from these
 * chunks. */
static void chats_open(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    for (uint32_t i = 0; i < a->n_choices; i++) open_one(&a->choices[i]);
}

static void chats_text(struct answer_choice *choice, const char *bytes, size_t len) {
    struct api_choice shown = api_choice_next(choice);
    shown.text = bytes;
    shown.text_len = len;
    push(choice, &shown);
}

static void chats_call(struct answer_choice *choice, const struct api_call *piece) {
    struct api_choice shown = api_choice_next(choice);
    shown.calls = piece;
    shown.n_calls = 1;
    push(choice, &shown);
}

static void chats_finish(struct answer_choice *choice) {
    const struct api_choice shown = api_choice_finish(choice);
    push(choice, &shown);
}

static void chats_usage(struct answer *a) {
    sse_begin(&a->frame);
    api_render_usage_chunk(&a->frame, head_of(a), &a->usage);
    sse_end(&a->frame);
}

struct told { /* a whole choice, and what holds its parts */
    struct api_call *calls;
    struct buf text;
};

static void tell(const struct answer_choice *choice, struct api_choice *shown, struct told *told, struct buf *out) {
    *shown = api_choice_whole(choice);
    shown->text = answer_text(choice, &told->text, &shown->text_len);
    shown->calls = told->calls = answer_calls(choice, &shown->n_calls);
    shown->no_text = (shown->n_calls || choice->split.cut_head) && !shown->text_len;
    if (choice->failed || told->text.failed || (shown->n_calls && !told->calls)) out->failed = true;
}

static void chats_whole(struct answer *a, struct buf *out) {
    struct api_choice *choices = calloc(a->n_choices, sizeof *choices);
    struct told *told = calloc(a->n_choices, sizeof *told);
    struct buf ids = {0};
    const bool memory = choices && told;
    for (uint32_t i = 0; memory && i < a->n_choices; i++) tell(&a->choices[i], &choices[i], &told[i], out);
    if (!memory) out->failed = true;
    if (memory && a->request->return_token_ids) {
        api_render_ids(&ids, a->choices[0].prompt->ids, a->choices[0].prompt->n_ids);
        choices[0].prompt_ids = &ids;
    }
    if (!out->failed) chats_render_answer(out, head_of(a), choices, a->n_choices, &a->usage);
    for (uint32_t i = 0; memory && i < a->n_choices; i++) {
        free(told[i].calls);
        buf_fini(&told[i].text);
    }
    buf_fini(&ids);
    free(told);
    free(choices);
}

static void chats_close(struct answer *a) {
    struct state *s = a->state;
    buf_fini(&s->head);
}

const struct answer_form chats_form = {.name = "chat",
                                       .number = 1,
                                       .input = "messages",
                                       .state_bytes = sizeof(struct state),
                                       .ends_with_done = true,
                                       .parse = chats_parse,
                                       .join = api_join_session,
                                       .session_fault = api_session_fault,
                                       .score = chats_logprobs_add,
                                       .open = chats_open,
                                       .text = chats_text,
                                       .call = chats_call,
                                       .arguments = chats_call,
                                       .finish = chats_finish,
                                       .usage = chats_usage,
                                       .whole = chats_whole,
                                       .error = api_choice_error,
                                       .refuse = api_refuse,
                                       .close = chats_close};
