/* Epochs in which workers go on at their own pace (sync_policy.h): what this pace keeps.
 * Only for trainer_stretch.c and trainer_rounds.c.
 *
 * An epoch goes on until the servers say that it is over. Then all ranks have the same
 * weights. Each rank takes its own samples of the epoch; one that is fast goes over them
 * again in another order, one that is slow leaves some out. */
#ifndef PS_TRAINER_STRETCH_H
#define PS_TRAINER_STRETCH_H

#include "policy_log.h"
#include "trainer_state.h"

typedef struct ps_trainer_own {
    uint64_t first_clock; // where t->clock began
    bool loads;           // the loader is in t->pass
    uint64_t own_steps;   // of this rank in this epoch
    double shown_seconds; // of all steps that were shown
    uint64_t version;     // updates made, at the last rest
    uint64_t n_rests;
    uint64_t log_step;      // where the job began or went on, which names policy.log
    bool asks;              // it has taken a dead worker's place, and has no weights yet
    bool repeats;           // the job repeats a record: sync.replay of worker 0
    ps_policy_lines replay; // worker 0's
    bool told_end;          // it has told the servers that it was told to end
    char *figures;          // JSON, owned; NULL: none yet
    /* With sync.steps_by_speed (trainer_rounds.h); otherwise NULL: */
    int64_t *round_steps; // (ranks) of a round; owned
    double round_seconds; // of this rank's own steps, older ones less (trainer_rounds.c)
    double round_done;    // these steps
} ps_trainer_own;

static inline ps_trainer_own *ps_trainer_own_of(const ps_trainer *t)
{
    return t->pace_state;
}

#endif
