/* sampling.c - the table of the options that say how tokens are drawn. */
#include "engine/rodimus.h"

const struct rod_sampling_option rod_sampling_options[ROD_N_SAMPLING] = {
#define IS_WHOLE_float   false
#define IS_WHOLE_int32_t true
#define X(kind, option, neutral_value, low_value, is_above, high_value, file_value, ...)                               \
    {.name = #option,                                                                                                  \
     .offset = offsetof(struct rod_sampling, option),                                                                  \
     .whole = IS_WHOLE_##kind,                                                                                         \
     .above = is_above,                                                                                                \
     .low = low_value,                                                                                                 \
     .high = high_value,                                                                                               \
     .file_high = file_value},
    ROD_SAMPLING(X)
#undef X
};
