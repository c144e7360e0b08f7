#include "patience.h"

#include <math.h>

bool ps_patience_is_over(ps_patience *p, const ps_config *config, const ps_evaluation *e)
{
    const int64_t patience = config->train.patience;
    const double value =
        config->checkpoint.best == PS_BEST_ACCURACY ? e->accuracy : -e->loss;
    if (patience == 0 || e->samples == 0) return false;
    if (isfinite(value) && !(p->best >= value)) {
        *p = (ps_patience){.best = value};
        return false;
    }
    p->in_row++;
    return p->in_row >= patience;
}
