/* The thread of a worker that adds up the gradients of its host (two_levels.h), of the
 * chunks that are its own to add, in rank order, into the leader's arena. In a leader it
 * also pushes each sum, its own and those of the others, in the order in which the
 * leader's gradients became final. Where weights are on GPUs (levels_gpus.h) it then
 * copies those of the next step there. */
#ifndef PS_LEVELS_SUMS_H
#define PS_LEVELS_SUMS_H

#include "two_levels.h"

typedef struct ps_levels_sums ps_levels_sums;

/* What the thread tells, of its worker. */
typedef struct ps_levels_sums_hooks {
    /* Leader: the chunk's sum of the step is in the arena. NULL in the others. */
    ps_err (*push)(void *ctx, uint32_t chunk, uint64_t step);
    /* The thread has failed, with the present error message, and ends. NULL: only
     * ps_levels_sums_check says so. */
    void (*failed)(void *ctx, ps_err err);
    void *ctx;
} ps_levels_sums_hooks;

/* Starts the thread. Borrows levels until destroy. */
ps_err ps_levels_sums_create(ps_levels *levels, const ps_levels_sums_hooks *hooks,
                             ps_levels_sums **out);

/* The worker's own gradients of these chunks are final. In each step each chunk comes
 * once, and in the next step only when the version that answered it is here. */
void ps_levels_sums_give(ps_levels_sums *s, const uint32_t *chunks, uint32_t n);

/* Where weights are on GPUs (levels->sums): blocks until that version of chunks first ..
 * last, which the leader has, is on the own one. TIMEOUT names the worker that is waited
 * for. Elsewhere returns at once. */
ps_err ps_levels_sums_await_here(ps_levels_sums *s, uint32_t first, uint32_t last,
                                 int64_t version);
/* Whether it would return at once. */
bool ps_levels_sums_here(const ps_levels_sums *s, uint32_t first, uint32_t last,
                         int64_t version);
/* When all chunks are here and the thread has nothing to do: the leader's arena has the
 * exact weights, and the own GPU gets them. */
ps_err ps_levels_sums_bring_exact(ps_levels_sums *s);

/* The thread's failure, if it has failed. sums: a ps_levels_sums; for ps_levels_wait. */
ps_err ps_levels_sums_check(const void *sums);

/* TIMEOUT, naming the worker of this host whose gradients or sums the thread waits for.
 * PS_OK: none. */
ps_err ps_levels_sums_blame(const ps_levels_sums *s);

/* Ends the thread. */
void ps_levels_sums_stop(ps_levels_sums *s);
void ps_levels_sums_destroy(ps_levels_sums **s);

#endif
