/* What a shard computes: gradients of all ranks -> their sum -> the optimizer's step, in
 * one pass over memory.
 *
 * Block by block (256 elements, so that sum, weights and state stay in the first-level
 * caches; small tensors together): the gradients are added in rank order whatever the
 * order of arrival, the sum is checked for numbers that are not finite, the optimizer
 * updates the weights, and the new weights are copied to workers that share memory.
 */
#ifndef PS_AGGREGATE_H
#define PS_AGGREGATE_H

#include "absent.h"
#include "plan.h"
#include "step_rule.h"

/* The part of one tensor in a chunk. */
typedef struct ps_segment {
    uint64_t offset, count; // elements, from the chunk's start
    double weight_decay;
    int group;
    const char *tensor; // its name, borrowed from the table
    ps_absence absence;
} ps_segment;

/* A chunk's memory in its shard. */
typedef struct ps_aggregate {
    uint64_t count;
    int n_segments, n_runs;
    bool optional;        // segments may lack a gradient (absent.h)
    ps_segment *segments; // owned
    // Segments that the step steps alike, in one; the gaps between them belong to it,
    // too.
    ps_segment *runs; // owned
    // Borrowed from the shard's slab, 64-byte aligned, count elements each.
    float *weights;
    float *states[PS_OPTIMIZER_MAX_STATES];
    float *sum; // NULL unless keep_sum
} ps_aggregate;

/* Elements of slab that a chunk takes. */
uint64_t ps_aggregate_slab_count(const ps_chunk *chunk, const ps_optimizer *opt,
                                 bool keep_sum);
/* slab is zeroed. NOMEM; a is then safe for fini. */
ps_err ps_aggregate_init(ps_aggregate *a, const ps_tensor_table *table,
                         const ps_chunk *chunk, const ps_optimizer *opt, bool keep_sum,
                         float *slab);
void ps_aggregate_fini(ps_aggregate *a);

/* The state between two steps: arrays of count elements. 0 .. n_states - 1 are the
 * optimizer's. */
enum { PS_AGGREGATE_WEIGHTS = PS_OPTIMIZER_MAX_STATES }; // as on the wire
/* The steps that each tensor has missed, as an array of its own: a tensor's elements all
 * hold the number, a uint32_t. */
void ps_aggregate_save_missed(const ps_aggregate *a, float *out);
void ps_aggregate_load_missed(ps_aggregate *a, const float *from);
/* NULL: the chunk has no such array. Borrowed: copy from it to save the state, and into
 * it to load it. */
float *ps_aggregate_array(const ps_aggregate *a, uint64_t array);

typedef struct ps_aggregate_step {
    const ps_step_rule *rule;
    uint64_t step; // of the job, from 0
    ps_optimizer_step now;
    /* n_grads gradients of the chunk (count elements each, 4-byte aligned) in rank order.
     * They may lie in memory that a worker can still change: such a change affects values
     * only. */
    const float *const *grads;
    int n_grads;
    float factor; // each gradient that is no sum is multiplied by it; 1: it is not
    const float *factors; // (n_grads) a factor for each instead; NULL: none
    /* (n_grads) NULL, or: where not 0, gradient i becomes g + compensations[i] * g * g *
     * (weights - bases[i]) first. */
    const float *compensations;
    const float *const *bases; // (n_grads) count elements each
    const uint32_t *ranks;     // (n_grads) whose they are, for errors; NULL: 0, 1, ...
    /* The new weights are also copied here: to the chunk's place in n_copies arenas. */
    float *const *copies;
    int n_copies;
    bool bypass_caches; // for the copies: caches do not hold all weights
    bool summed;        // the one gradient is a sum already
    bool check;         // obeys the rule's `refuses`: NUMERIC names rank, tensor and step
} ps_aggregate_step;

/* NUMERIC, naming rank, tensor and step, when the gradient is not finite. */
ps_err ps_aggregate_check(const ps_aggregate *a, const float *grad, int rank,
                          uint64_t step);

/* Sums and applies. After NUMERIC a part of the chunk may have been applied. */
ps_err ps_aggregate_apply(ps_aggregate *a, const ps_aggregate_step *s);

/* Copies the weights to s->copies. */
void ps_aggregate_copy(const ps_aggregate *a, const ps_aggregate_step *s);

/* Notes which segments lack a gradient in the step. The functions that take a step do
 * this themselves, except for a sum that the caller has put into a->sum. */
void ps_aggregate_note_absent(ps_aggregate *a, const ps_aggregate_step *s);

/* Before LAMB's updates take a->sum: it begins with -0.0 only where a gradient is
 * lacking. */
void ps_aggregate_show_absent(ps_aggregate *a);

/* The step is another optimizer's: all segments miss it. sum_none: as ps_aggregate_sum.
 */
void ps_aggregate_miss(ps_aggregate *a);
void ps_aggregate_sum_none(ps_aggregate *a);

/* Only sums, into a->sum (s->now and copies are not used). */
ps_err ps_aggregate_sum(ps_aggregate *a, const ps_aggregate_step *s);

#endif
