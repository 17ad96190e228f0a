/* second_order.h - int4 codes of a weight's rows that take the inputs into account (Frantar and others, "GPTQ", 2022).
 *
 * H = sum of x x^T over the inputs x says how errors of columns add up in W x: column after column is rounded, and what
 * that costs is taken from the columns behind it. Ownership: the caller's memory. Threads: the team's; results do not
 * depend on how many. */
#ifndef SECOND_ORDER_H
#define SECOND_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct team;

/* The member's part of H [n, n], its upper half: adds x x^T of so many rows, row r at x + r * ld. */
void second_order_add(float *H, uint32_t n, const float *x, size_t ld, uint32_t n_rows, uint32_t member,
                      uint32_t n_members);
/* H becomes U with U^T U = (H + damping)^-1, upper; work: [n, n]. The damping is a hundredth of the mean of H's
 * diagonal, or more where that does not do. false: H has no finite numbers. */
bool second_order_factor(float *H, float *work, uint32_t n, struct team *team);
/* w [n_rows, n] is rounded, and overwritten: codes [n_rows, n], scales [n_rows, groups of 128]. */
void second_order_round(const float *U, uint32_t n, float *w, uint32_t n_rows, uint8_t *codes, float *scales,
                        struct team *team);

#endif
