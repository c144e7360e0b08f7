/* Parameters that a program has no gradient for in a step: a branch that is not used, a
 * layer that is frozen later. As in PyTorch, one that no worker has a gradient for is not
 * stepped, its moments stand still, and the step does not count for it; where some worker
 * has one, the others count as zero.
 *
 * Such a gradient travels as -0.0, which adds nothing: x + -0.0 is x, bit for bit. In
 * one that is there, no block of PS_GRADNORM_BLOCK elements begins with -0.0 (+0.0 takes
 * its place). A sum begins with -0.0 only if all its terms do. So the first element of a
 * tensor's part, which begins with a block, tells whether any worker has a gradient, also
 * after all-reduce. Codecs carry it beside the numbers (chunk_codec.h).
 *
 * In jobs of programs alone (ps_tensor_table.optional).
 */
#ifndef PS_ABSENT_H
#define PS_ABSENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensor.h"

static inline bool ps_absent_at(const float *part)
{
    uint32_t bits;
    memcpy(&bits, part, sizeof bits);
    return bits == UINT32_C(0x80000000);
}

/* Of a part that is there, after arithmetic that may round to -0.0. */
static inline void ps_absent_not(float *part)
{
    if (ps_absent_at(part)) *part = 0;
}

/* A whole tensor (n) without a gradient; and with one. */
static inline void ps_absent_fill(float *grad, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        grad[i] = -0.0f;
}

static inline void ps_absent_clear(float *grad, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += PS_GRADNORM_BLOCK)
        ps_absent_not(grad + i);
}

/* One tensor's part in its owner's memory. */
typedef struct ps_absence {
    bool now;        // of the step that is being made
    uint32_t missed; // of the steps made, those that left it as it was
} ps_absence;

#endif
