/* Paces: how workers go through the steps of an epoch. One of the project's vtables; only
 * for trainer.c and the paces:
 *
 *     trainer_bsp       all make each step together (sync.policy bsp), or the steps of a
 *                       round, each by itself, but equally many (local)
 *     trainer_stretch   each goes on at its own pace (backup, ssp, asp, and a quorum)
 *
 * The trainer asks for its pace once, when it is created; it keeps a state of
 * its own. Slots that say NULL are optional. */
#ifndef PS_TRAINER_PACE_H
#define PS_TRAINER_PACE_H

#include "trainer.h"

typedef struct ps_trainer_pace_ops {
    /* Makes the state. Before anything is prepared: it may give the trainer another
     * sampler and a larger t->max_batch. destroy follows in every case. */
    ps_err (*create)(ps_trainer *t);
    void (*destroy)(ps_trainer *t);
    /* All ranks, before the first epoch. NULL: nothing is to be agreed on. */
    ps_err (*start)(ps_trainer *t);
    /* The steps of t->epoch, with their records and checkpoints. *stop: the ranks have
     * agreed to end (ps_trainer_agree). */
    ps_err (*epoch)(ps_trainer *t, bool *stop);
    /* All ranks, after an epoch that is not the last. NULL: nothing changes. */
    ps_err (*next_epoch)(ps_trainer *t);
    /* All ranks, before a checkpoint: what belongs to no rank is the same in all. NULL:
     * it is. */
    ps_err (*settle)(ps_trainer *t);
    /* A checkpoint is due if its step is after this one. */
    uint64_t (*checked)(const ps_trainer *t);
    /* How much of an evaluation each rank gets; NULL: all as much. Borrowed. */
    const int64_t *(*shares)(const ps_trainer *t);
    /* Before an evaluation: warns if its weights are not the newest. NULL: they are. */
    void (*warn_of_older)(ps_trainer *t);
    /* This rank's part of a snapshot that the pace knows; the lists are zeroed. */
    void (*fill)(const ps_trainer *t, ps_trainer_snapshot *s);
    /* Its figures in t->result. */
    void (*report)(const ps_trainer *t);
} ps_trainer_pace_ops;

const ps_trainer_pace_ops *ps_trainer_pace_of(const ps_config *config);

extern const ps_trainer_pace_ops ps_trainer_pace_own; // trainer_stretch.c

#endif
