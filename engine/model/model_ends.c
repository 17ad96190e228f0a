/* model_ends.c - which tokens end an answer: those of three files together, as each is right for some checkpoint. Where
 * they differ it is told, as all that a model has to tell. */
#include "engine/base/utf8.h"
#include "model_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void model_warn(struct model *model, const char *format, ...) {
    if (model->n_warnings == sizeof model->warnings / sizeof *model->warnings) return;
    va_list args;
    va_start(args, format);
    vsnprintf(model->warnings[model->n_warnings], sizeof model->warnings[0], format, args);
    va_end(args);
    utf8_mend(model->warnings[model->n_warnings++], sizeof model->warnings[0]);
}

static void ends_add(struct model *model, const struct model_ends *ends) {
    for (uint32_t i = 0; i < ends->n; i++) {
        bool known = false;
        for (uint32_t k = 0; k < model->n_eos_ids; k++) known |= model->eos_ids[k] == ends->ids[i];
        if (known) continue;
        assert(model->n_eos_ids < MODEL_MAX_ENDS);
        model->eos_ids[model->n_eos_ids++] = ends->ids[i];
    }
}

void model_take_ends(struct model *model, enum model_ends_source source, const struct model_ends *ends) {
    assert(source < MODEL_N_ENDS && ends->n <= MODEL_MAX_EOS);
    model->ends[source] = *ends;
    ends_add(model, ends);
    if (model->dims.eos_id < 0 && ends->n) model->dims.eos_id = ends->ids[0];
}

static bool ends_have(const struct model_ends *ends, int32_t id) {
    for (uint32_t i = 0; i < ends->n; i++)
        if (ends->ids[i] == id) return true;
    return false;
}

/* A file that names none agrees with every other. Within one file no id stands twice. */
static bool ends_agree(const struct model_ends *a, const struct model_ends *b) {
    if (!a->n || !b->n) return true;
    for (uint32_t i = 0; i < a->n; i++)
        if (!ends_have(b, a->ids[i])) return false;
    return a->n == b->n;
}

static void ends_warn(struct model *model) {
    static const char *const names[MODEL_N_ENDS] = {
        "eos_token_id of config.json", "eos_token_id of generation_config.json", "eos_token of tokenizer_config.json"};
    const struct model_ends *e = model->ends;
    char text[sizeof model->warnings[0]];
    size_t n = 0;
    if (ends_agree(&e[0], &e[1]) && ends_agree(&e[0], &e[2]) && ends_agree(&e[1], &e[2])) return;
    for (int k = 0; k < MODEL_N_ENDS; k++)
        for (uint32_t i = 0; i < e[k].n && n < sizeof text; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%s%d", i || !n ? "" : "; ", i ? ", " : names[k],
                                  i ? "" : " is ", e[k].ids[i]);
    model_warn(model, "end tokens differ, each of them ends an answer: %s", text);
}

void model_check_tokenizer(struct model *model, uint32_t n_ids, int32_t eos_id) {
    if (n_ids > model->dims.V)
        model_warn(
            model,
            "tokenizer.json has ids up to %u, vocab_size is %u: is it another model's? Texts that need the others "
            "are refused",
            n_ids - 1, model->dims.V);
    if (eos_id == MODEL_EOS_UNKNOWN)
        model_warn(model, "eos_token of tokenizer_config.json is no token of tokenizer.json: it ends no answer");
    if (eos_id >= 0 && (uint32_t)eos_id < model->dims.V)
        model_take_ends(model, MODEL_ENDS_TOKENIZER, &(struct model_ends){.ids = {eos_id}, .n = 1});
    ends_warn(model);
}
