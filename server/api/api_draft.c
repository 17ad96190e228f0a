/* api_draft.c - fields about drafts: speculative, and prediction, a text that the answer may be like. They change
 * when tokens come, never which. */
#include "api_fields.h"

/* Parts of text, as messages have them; one after the other. */
static bool prediction_parts(const struct api_fields *p, const json_t *parts, struct api_prompt *out) {
    struct buf joined = {0};
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (!field_is(json_object_get(part, "type"), "text") || !json_is_string(text)) {
            buf_fini(&joined);
            return field_bad(p, "prediction", "[%zu] must be a part of type text", i);
        }
        buf_add(&joined, json_string_value(text), json_string_length(text));
    }
    out->text = buf_take(&joined, &out->len);
    return out->text || field_no_memory(p);
}

static bool prediction_text(const struct api_fields *p, const json_t *text, struct api_prompt *out) {
    if (json_is_array(text)) return prediction_parts(p, text, out);
    if (!json_is_string(text))
        return field_bad(p, "prediction", "must have a content of text, not %s", text ? field_type(text) : "none");
    out->text = field_copy(text, &out->len);
    return out->text ? true : field_no_memory(p);
}

bool api_parse_draft(const struct api_fields *p, struct api_request *out) {
    const json_t *speculative = field_get(p, "speculative"), *value = field_get(p, "prediction");
    const bool plain = p->dialect->prompts;
    if (speculative && !field_is(speculative, "auto") && !field_is(speculative, "none"))
        return field_bad(p, "speculative", "must be auto or none");
    out->never_speculate = speculative && field_is(speculative, "none");
    if (!value) return true;
    if (plain && json_is_string(value)) return prediction_text(p, value, &out->prediction);
    if (plain && json_is_array(value))
        return field_ids(p, "prediction", value, &out->prediction.ids, &out->prediction.n_ids);
    if (!json_is_object(value))
        return field_bad(p, "prediction",
                         plain ? "must be a string, token ids or an object, not %s" : "must be an object, not %s",
                         field_type(value));
    if (!field_is(json_object_get(value, "type"), "content"))
        return field_bad(p, "prediction", "must be of type content");
    return prediction_text(p, json_object_get(value, "content"), &out->prediction);
}
