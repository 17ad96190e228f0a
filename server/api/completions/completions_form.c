/* completions_form.c - the form of completions: text that goes on. */
#include "completions.h"
#include "server/api/api_choice.h"

static void put_said(struct buf *out, const struct api_choice *c, bool chunk) {
    (void)chunk;
    buf_puts(out, "\"text\":");
    buf_json(out, c->text, c->text_len);
}

static void put_logprobs(struct buf *out, const struct api_logprobs *l) {
    api_put_fragment(out, "tokens", &l->tokens);
    buf_putc(out, ',');
    api_put_fragment(out, "token_logprobs", &l->values);
    buf_putc(out, ',');
    api_put_fragment(out, "top_logprobs", &l->tops);
    buf_putc(out, ',');
    api_put_fragment(out, "text_offset", &l->offsets);
}

static const struct choice_style completions_style = {.id_prefix = "cmpl-",
                                                      .object = "text_completion",
                                                      .chunk_object = "text_completion",
                                                      .put_said = put_said,
                                                      .put_logprobs = put_logprobs};

const struct answer_form completions_form = {.name = "completions",
                                             .number = 0,
                                             .input = "prompt",
                                             .style = &completions_style,
                                             .state_bytes = sizeof(struct choice_state),
                                             .ends_with_done = true,
                                             .parse = completions_parse,
                                             .join = api_join_session,
                                             .session_fault = api_session_fault,
                                             .score = completions_logprobs_add,
                                             .score_first = completions_logprobs_add_first,
                                             .open = api_choice_open,
                                             .text = api_choice_text,
                                             .finish = api_choice_finish,
                                             .usage = api_choice_usage,
                                             .whole = api_choice_whole,
                                             .error = api_choice_error,
                                             .refuse = api_refuse,
                                             .close = api_choice_close};
