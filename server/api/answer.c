/* answer.c - see answer.h: items and calls of an answer while the model speaks, and the label of one that is kept. */
#include "form.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- items ---- */

static struct answer_item *add_item(struct answer_choice *choice, const char *name, const char *id) {
    if (choice->n_items == choice->items_cap) {
        const size_t cap = choice->items_cap ? 2 * choice->items_cap : 4;
        struct answer_item *items = realloc(choice->items, cap * sizeof *items);
        if (!items) {
            choice->failed = true;
            return NULL;
        }
        choice->items = items;
        choice->items_cap = cap;
    }
    struct answer_item *item = &choice->items[choice->n_items++];
    *item = (struct answer_item){.name = name};
    if (id) snprintf(item->id, sizeof item->id, "%s", id);
    return item;
}

static void extend(struct answer_choice *choice, struct answer_item *item, const char *text, size_t len) {
    if (!item) return;
    buf_add(&item->text, text, len);
    if (item->text.failed) choice->failed = true;
}

static struct answer_item *last_item(const struct answer_choice *choice) {
    return choice->n_items ? &choice->items[choice->n_items - 1] : NULL;
}

static void keep_text(struct answer_choice *choice, const char *text, size_t len) {
    struct answer_item *last = last_item(choice);
    if (!len || choice->failed) return;
    extend(choice, last && !last->name ? last : add_item(choice, NULL, NULL), text, len);
}

const char *answer_text(const struct answer_choice *choice, struct buf *joined, size_t *len) {
    const struct answer_item *only = NULL;
    size_t n = 0;
    for (size_t i = 0; i < choice->n_items; i++) {
        if (choice->items[i].name) continue;
        only = &choice->items[i];
        n++;
    }
    *len = only ? only->text.len : 0;
    if (n < 2) return *len ? only->text.data : "";
    for (size_t i = 0; i < choice->n_items; i++)
        if (!choice->items[i].name) buf_add(joined, choice->items[i].text.data, choice->items[i].text.len);
    *len = joined->len;
    return joined->failed ? "" : joined->data;
}

struct api_call *answer_calls(const struct answer_choice *choice, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < choice->n_items; i++) *n += choice->items[i].name != NULL;
    struct api_call *calls = *n ? calloc(*n, sizeof *calls) : NULL;
    uint32_t at = 0;
    for (size_t i = 0; calls && i < choice->n_items; i++) {
        const struct answer_item *item = &choice->items[i];
        if (!item->name) continue;
        calls[at] = (struct api_call){.index = at,
                                      .id = item->id,
                                      .name = item->name,
                                      .arguments = item->text.len ? item->text.data : "",
                                      .len = item->text.len};
        at++;
    }
    return calls;
}

/* ---- what the model says ---- */

/* "call_" and 24 characters: of the answer's id and time, so that an answer given again has the same; and of the body,
 * as clients may repeat their request ids. */
static void call_id(const struct answer_choice *choice, char id[API_CALL_ID_BYTES]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    const struct answer *a = choice->answer;
    struct {
        char answer[ANSWER_ID_BYTES];
        uint8_t digest[16];
        int64_t created;
        uint64_t choice, index;
    } from;
    memset(&from, 0, sizeof from);
    memcpy(from.answer, a->id, sizeof from.answer);
    memcpy(from.digest, a->digest, sizeof from.digest);
    from.created = a->created_unix_s;
    from.choice = choice->index;
    from.index = choice->split.n_calls - 1;
    XXH128_hash_t hash = XXH3_128bits(&from, sizeof from);
    memcpy(id, "call_", 5);
    for (int i = 0; i < 24; i++) {
        uint64_t *half = i < 12 ? &hash.high64 : &hash.low64;
        id[5 + i] = letters[*half % 32];
        *half /= 32;
    }
    id[29] = 0;
}

static bool keeps_items(const struct answer *a) { return !a->request->stream || a->form->repeats || a->keeps_items; }

static void take_text(struct answer_choice *choice, const char *text, size_t len) {
    const struct answer *a = choice->answer;
    if (keeps_items(a)) keep_text(choice, text, len);
    if (a->request->stream) a->form->text(choice, text, len);
}

static void take_call(struct answer_choice *choice, const char *name) {
    const struct answer *a = choice->answer;
    char id[API_CALL_ID_BYTES];
    call_id(choice, id);
    const struct api_call call = {.index = choice->split.n_calls - 1, .id = id, .name = name, .arguments = ""};
    if (keeps_items(a)) add_item(choice, name, id);
    if (a->request->stream) a->form->call(choice, &call);
}

static void take_arguments(struct answer_choice *choice, const char *text, size_t len) {
    const struct answer *a = choice->answer;
    const struct api_call call = {.index = choice->split.n_calls - 1, .arguments = text, .len = len};
    if (keeps_items(a)) extend(choice, last_item(choice), text, len);
    if (a->request->stream) a->form->arguments(choice, &call);
}

static void take_part(struct answer_choice *choice, const struct api_part *part) {
    switch (part->kind) {
    case API_PART_TEXT: take_text(choice, part->text, part->len); break;
    case API_PART_CALL: take_call(choice, part->name); break;
    case API_PART_ARGUMENTS: take_arguments(choice, part->text, part->len); break;
    case API_PART_NONE: assert(!"a part");
    }
}

static void check_memory(struct answer_choice *choice) {
    if (choice->split.held.failed) choice->failed = true;
    if (choice->failed && choice->answer->request->stream) choice->answer->frame.failed = true;
}

void answer_push(struct answer_choice *choice, const char *text, size_t len) {
    struct api_split *s = &choice->split;
    struct api_part part;
    choice->fresh = true;
    if (s->tools) {
        api_split_push(s, text, len);
        while (api_split_next(s, &part)) take_part(choice, &part);
    } else if (len) {
        take_text(choice, text, len);
    }
    check_memory(choice);
    if (choice->due && choice->answer->request->stream) choice->answer->form->text(choice, "", 0);
    choice->fresh = false;
}

void answer_end(struct answer_choice *choice) {
    struct api_part rest;
    if (!choice->split.tools) return;
    if (api_split_end(&choice->split, choice->reason == ROD_FINISH_LENGTH, &rest)) take_part(choice, &rest);
    check_memory(choice);
}

/* ---- its life ---- */

bool answer_begin(struct answer *a, uint32_t n_choices) {
    const struct api_tools *tools = &a->request->tools;
    assert(n_choices && !a->choices && !a->state);
    a->choices = calloc(n_choices, sizeof *a->choices);
    a->state = calloc(1, a->form->state_bytes);
    if (!a->choices || !a->state) return false;
    a->n_choices = n_choices;
    for (uint32_t i = 0; i < n_choices; i++) {
        struct answer_choice *choice = &a->choices[i];
        *choice = (struct answer_choice){.answer = a, .index = i, .stop_id = -1};
        choice->split = (struct api_split){.tools = tools->n ? tools : NULL, .tags = a->tags};
    }
    return true;
}

void answer_set_prompt(struct answer_choice *choice, const struct answer_prompt *prompt) {
    const struct answer *a = choice->answer;
    choice->prompt = prompt;
    if (prompt->n_ids && a->form->prompt) a->form->prompt(choice, NULL);
    if (prompt->echo && !a->request->stream) keep_text(choice, prompt->echo, prompt->echo_len);
}

static void choice_fini(struct answer_choice *choice) {
    for (size_t i = 0; i < choice->n_items; i++) buf_fini(&choice->items[i].text);
    free(choice->items);
    api_split_fini(&choice->split);
    free(choice->stop_string);
}

static void drop_choices(struct answer *a) {
    if (a->state && a->form->close) a->form->close(a);
    for (uint32_t i = 0; i < a->n_choices; i++) choice_fini(&a->choices[i]);
    free(a->choices);
    free(a->state);
    a->choices = NULL;
    a->state = NULL;
}

bool answer_restart(struct answer *a) {
    assert(!a->frame.len && !a->request->stream);
    const uint32_t n = a->n_choices;
    drop_choices(a);
    a->n_choices = 0;
    return answer_begin(a, n);
}

void answer_fini(struct answer *a) {
    drop_choices(a);
    free(a->model);
    buf_fini(&a->frame);
}

/* ---- an answer that is given again ---- */

char *answer_label(const struct answer *a) {
    struct buf text = {0};
    size_t len;
    assert(a->created_unix_s && *a->id);
    buf_addf(&text, "%s %lld %s", a->id, (long long)a->created_unix_s, answer_model(a));
    return buf_take(&text, &len);
}

void answer_relabel(struct answer *a, const char *label) {
    static const char id_bytes[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-";
    char *end;
    const size_t n = strspn(label, id_bytes);
    if (!n || n >= sizeof a->id || label[n] != ' ' || label[n + 1] < '0' || label[n + 1] > '9') return;
    errno = 0;
    const long long created = strtoll(label + n + 1, &end, 10);
    if (errno || *end != ' ' || !end[1]) return;
    char *model = strdup(end + 1);
    if (!model) {
        a->failed = true;
        a->frame.failed = a->request->stream;
        return;
    }
    free(a->model);
    a->model = model;
    a->created_unix_s = created;
    memset(a->id, 0, sizeof a->id);
    memcpy(a->id, label, n);
}
