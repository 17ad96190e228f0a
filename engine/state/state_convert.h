/* state_convert.h - a state's bytes in other formats. A number goes through fp32 and is rounded once, to nearest, ties
 * to even; codes of int8 are those that a window gets when it is written. So fp8 in 16 bits, int8 in fp32 and bf16 in
 * fp32 are what was held, and come back as they were. Pure but for malloc. */
#ifndef STATE_CONVERT_H
#define STATE_CONVERT_H

#include "state_layout.h"

/* from and to differ in their formats alone; src has state_bytes_at(from, pos), dst gets state_bytes_at(to, pos). They
 * do not overlap. ROD_ENOMEM. */
int state_convert(const struct state_layout *from, const struct state_layout *to, uint64_t pos, const void *src,
                  void *dst, struct rod_error *err);

#endif
