/* Which gradients of a step are final: ranges of the arena, in any order, and the parts
 * of the arena (chunks, buckets, tensors) that they complete. */
#ifndef PS_READY_RANGES_H
#define PS_READY_RANGES_H

#include "plan.h"
#include "tensor_table.h"

typedef struct ps_ready_range {
    uint64_t begin, end; // elements of the arena
} ps_ready_range;

typedef struct ps_ready_ranges {
    const ps_tensor_table *table; // borrowed
    /* Part i reaches from begins[i] to begins[i - 1], part 0 to the arena's end. */
    uint32_t n_parts;
    uint64_t *begins;    // (n_parts)
    uint64_t *left;      // (n_parts) elements that are not final yet
    uint32_t n_complete; // parts
    /* What is final, in ascending order; ranges that meet are one. */
    ps_ready_range *ranges;
    uint32_t n_ranges, cap_ranges;
} ps_ready_ranges;

/* begins: where each part begins, in descending order; copied. The last is 0, as the
 * arena begins with the last part. NOMEM; r is safe for fini then. */
ps_err ps_ready_ranges_init(ps_ready_ranges *r, const ps_tensor_table *table,
                            const uint64_t *begins, uint32_t n_parts);
/* The same with the chunks of a plan as parts. */
ps_err ps_ready_ranges_init_chunks(ps_ready_ranges *r, const ps_tensor_table *table,
                                   const ps_plan *plan);
void ps_ready_ranges_fini(ps_ready_ranges *r);

/* A step begins: nothing is final. */
void ps_ready_ranges_restart(ps_ready_ranges *r);

/* Elements [begin, end) of the arena are final. A range that ends where a tensor ends
 * includes the gap after that tensor. complete (n_parts) receives the parts that have
 * become complete by it, *n of them, in ascending order. ARG when an element is outside
 * the arena, or was final before; nothing has changed then. */
ps_err ps_ready_ranges_add(ps_ready_ranges *r, uint64_t begin, uint64_t end,
                           uint32_t *complete, uint32_t *n);

/* The parts *first .. *last that a range of at least one element touches. */
void ps_ready_ranges_touched(const ps_ready_ranges *r, uint64_t begin, uint64_t end,
                             uint32_t *first, uint32_t *last);

/* Whether every element is final. */
bool ps_ready_ranges_all(const ps_ready_ranges *r);
/* ARG names a tensor that is not, "... was not pushed". */
ps_err ps_ready_ranges_check_all(const ps_ready_ranges *r);
/* ARG names a tensor with an element of the range that is final. */
ps_err ps_ready_ranges_check_new(const ps_ready_ranges *r, uint64_t begin, uint64_t end);

#endif
