/* Early stopping (train.patience): training ends after that many evaluations in a row
 * without a better result. Prechelt, "Early Stopping - But When?", 1998. */
#ifndef PS_PATIENCE_H
#define PS_PATIENCE_H

#include "config.h"
#include "evaluate.h"

typedef struct ps_patience {
    double best;    // result so far: -loss or accuracy; NAN: there was none
    int64_t in_row; // evaluations since then
} ps_patience;

/* Takes one evaluation into account. Returns whether training ends. The result is the
 * test loss, or the accuracy where checkpoint.best says so; one that is not finite is not
 * better. */
bool ps_patience_is_over(ps_patience *p, const ps_config *config, const ps_evaluation *e);

#endif
