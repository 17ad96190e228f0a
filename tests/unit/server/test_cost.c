/* test_cost.c - what a token costs between the sampler and the socket: detokenising, scan for stop strings, JSON,
 * frame. Sampling, the mailbox and the socket are not in it. Measured for the streams of one step, the best of many
 * rounds, as the machine has other work. The bound holds for an optimised build; a sanitizer's only runs through. */
#include "engine/text/text.h"
#include "server/api/api_choice.h"
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { N_STREAMS = 256, N_ROUNDS = 400 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double round_us(struct text *texts, const int32_t *ids, size_t n_ids, size_t at, const struct answer_form *form,
                       const struct buf *prefix, struct buf *out, size_t *n_frames) {
    const double begin = now_us();
    for (size_t i = 0; i < N_STREAMS; i++) {
        const int match = text_push(&texts[i], ids[(at + 97 * i) % n_ids], true, true);
        struct api_choice choice = {.text = texts[i].buf, .text_len = texts[i].n_out, .stop_id = -1};
        if (match >= 0 || !texts[i].n_out) continue;
        buf_clear(out);
        buf_puts(out, SSE_DATA);
        api_render_chunk(out, form->style, prefix, &choice, NULL, false);
        buf_puts(out, SSE_END);
        ++*n_frames;
    }
    return now_us() - begin;
}

static void the_streams_of_a_step_cost_less_than_a_twentieth_of_it(void **state) {
    (void)state;
    struct rod_error err;
    struct tokenizer *t = NULL;
    if (tokenizer_open("config/models/tales", &t, &err)) fail_msg("%s", err.message);
    static char text[65536];
    FILE *f = fopen("config/models/tales/heldout.txt", "rb");
    assert_non_null(f);
    const size_t len = fread(text, 1, 60000, f);
    fclose(f);
    int32_t *ids;
    size_t n_ids;
    if (tokenizer_encode(t, text, len, false, &ids, &n_ids, &err)) fail_msg("%s", err.message);
    char *stops[] = {(char *)"\n\nHuman:", (char *)"</answer>", (char *)"THE END", (char *)"###"};
    const struct rod_request request = {.stop = stops, .n_stop = 4};
    struct text texts[N_STREAMS];
    const size_t longest = text_max_token_bytes(t);
    for (size_t i = 0; i < N_STREAMS; i++) assert_int_equal(text_init(&texts[i], t, longest, &request, &err), 0);
    for (int chat = 0; chat < 2; chat++) {
        const struct answer_form *form = chat ? &chats_form : &completions_form;
        struct buf prefix = {0}, out = {0};
        const struct api_request asked = {0};
        struct answer a = {.id = "0f51447ed371fcd60afec9a47a96a42f",
                           .request = &asked,
                           .served_model = "tales",
                           .fingerprint = "fp_0123456789ab"};
        a.created_unix_s = 1795219161;
        api_put_head(&prefix, form->style, true, &a);
        double best = 1e30;
        size_t n_frames = 0;
        for (size_t i = 0; i < N_ROUNDS; i++) {
            const double us = round_us(texts, ids, n_ids, i, form, &prefix, &out, &n_frames);
            if (us < best) best = us;
        }
        assert_in_range(n_frames, N_STREAMS * N_ROUNDS * 9 / 10, N_STREAMS * N_ROUNDS);
        printf("note: %s: %d tokens to frames in %.0f us, %.2f %% of a 10 ms step\n", chat ? "chat" : "text", N_STREAMS,
               best, best / 100);
#ifdef __OPTIMIZE__
#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
        if (best > 500 && !getenv("RODIMUS_TEST_SLOW")) fail_msg("%.0f us, the bound is 500", best);
#endif
#endif
#endif
        buf_fini(&prefix);
        buf_fini(&out);
    }
    for (size_t i = 0; i < N_STREAMS; i++) text_fini(&texts[i]);
    free(ids);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_streams_of_a_step_cost_less_than_a_twentieth_of_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
