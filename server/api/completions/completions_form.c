/* completions_form.c - the form of completions: chunks of text, one stream of choices that each open for themselves. */
#include "completions.h"
#include "server/api/sse.h"

#include <assert.h>
#include <stdlib.h>

struct state {
    struct buf head; /* of every chunk */
};

static const struct buf *head_of(const struct answer *a) {
    struct state *s = a->state;
    if (!s->head.len) api_put_head(&s->head, "cmpl-", "text_completion", a);
    return &s->head;
}

static void push(struct answer_choice *choice, const struct api_choice *shown, bool opening) {
    struct answer *a = choice->answer;
    struct api_usage usage;
    const struct api_usage *so_far = api_choice_usage(choice, opening, &usage);
    sse_begin(&a->frame);
    completions_render(&a->frame, head_of(a), shown, 1, so_far, a->request->include_usage);
    sse_end(&a->frame);
}

static void push_with_ids(struct answer_choice *choice, struct api_choice *shown, bool opening) {
    struct answer *a = choice->answer;
    struct buf ids = {0};
    const size_t before = a->frame.len;
    if (a->request->return_token_ids) {
        api_render_ids(&ids, choice->prompt->ids, choice->prompt->n_ids);
        shown->prompt_ids = &ids;
    }
    push(choice, shown, opening);
    if (opening || shown->prompt_ids) a->opening_bytes += a->frame.len - before;
    buf_fini(&ids);
    choice->opened = true;
}

/* Where the prompt is echoed or was scored it leaves with the first token; its ids go with the first chunk of either
 * kind. */
static void completions_open(struct answer_choice *choice) {
    const struct api_request *q = choice->answer->request;
    struct api_choice opening = {.index = choice->index, .text = "", .stop_id = -1};
    assert(!choice->opened);
    if (!q->echo && q->n_prompt_logprobs < 0) {
        choice->due = q->return_token_ids;
        return;
    }
    if (choice->prompt->echo) {
        opening.text = choice->prompt->echo;
        opening.text_len = choice->prompt->echo_len;
    }
    if (q->echo && q->n_logprobs >= 0) opening.logprobs = &choice->logprobs;
    if (q->n_prompt_logprobs >= 0) opening.prompt_logprobs = &choice->prompt_logprobs;
    push_with_ids(choice, &opening, true);
    buf_fini(&choice->prompt_logprobs); /* it may be long */
    const uint64_t n_chars = choice->logprobs.n_chars;
    api_logprobs_fini(&choice->logprobs);
    choice->logprobs.n_chars = n_chars;
}

static void completions_text(struct answer_choice *choice, const char *bytes, size_t len) {
    struct api_choice shown = api_choice_next(choice);
    shown.text = bytes;
    shown.text_len = len;
    if (choice->opened)
        push(choice, &shown, false);
    else
        push_with_ids(choice, &shown, false);
}

static void completions_no_call(struct answer_choice *choice, const struct api_call *call) {
    (void)choice;
    (void)call;
    assert(!"a completion has no tools");
}

static void completions_finish(struct answer_choice *choice) {
    const struct api_choice shown = api_choice_finish(choice);
    push(choice, &shown, false);
}

static void completions_usage(struct answer *a) {
    sse_begin(&a->frame);
    api_render_usage_chunk(&a->frame, head_of(a), &a->usage);
    sse_end(&a->frame);
}

static void completions_whole(struct answer *a, struct buf *out) {
    struct api_choice *choices = calloc(a->n_choices, sizeof *choices);
    struct buf *ids = calloc(a->n_choices, sizeof *ids), *joined = calloc(a->n_choices, sizeof *joined);
    const bool memory = choices && ids && joined;
    for (uint32_t i = 0; memory && i < a->n_choices; i++) {
        const struct answer_choice *choice = &a->choices[i];
        choices[i] = api_choice_whole(choice);
        choices[i].text = answer_text(choice, &joined[i], &choices[i].text_len);
        if (choice->failed || joined[i].failed) out->failed = true;
        if (!a->request->return_token_ids) continue;
        api_render_ids(&ids[i], choice->prompt->ids, choice->prompt->n_ids);
        choices[i].prompt_ids = &ids[i];
    }
    if (!memory) out->failed = true;
    if (!out->failed) completions_render(out, head_of(a), choices, a->n_choices, &a->usage, false);
    for (uint32_t i = 0; memory && i < a->n_choices; i++) {
        buf_fini(&ids[i]);
        buf_fini(&joined[i]);
    }
    free(ids);
    free(joined);
    free(choices);
}

static void completions_close(struct answer *a) {
    struct state *s = a->state;
    buf_fini(&s->head);
}

const struct answer_form completions_form = {.name = "completions",
                                             .number = 0,
                                             .input = "prompt",
                                             .state_bytes = sizeof(struct state),
                                             .ends_with_done = true,
                                             .parse = completions_parse,
                                             .join = api_join_session,
                                             .session_fault = api_session_fault,
                                             .score = completions_logprobs_add,
                                             .score_first = completions_logprobs_add_first,
                                             .open = completions_open,
                                             .text = completions_text,
                                             .call = completions_no_call,
                                             .arguments = completions_no_call,
                                             .finish = completions_finish,
                                             .usage = completions_usage,
                                             .whole = completions_whole,
                                             .error = api_choice_error,
                                             .refuse = api_refuse,
                                             .close = completions_close};
