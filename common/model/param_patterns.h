/* Parameters chosen by patterns of their names, in which * stands for any text, ? for one
 * character and [ab] for one of these (fnmatch; a dot is a character like others). */
#ifndef PS_PARAM_PATTERNS_H
#define PS_PARAM_PATTERNS_H

#include "config.h"
#include "tensor_table.h"

/* Makes buffers of the parameters that train.freeze names. map (n_tensors, as they were):
 * the new place of each, as in ps_tensor_table_at. CONFIG, also when nothing is left to
 * train; NOMEM. */
ps_err ps_patterns_freeze(const ps_config *cfg, ps_tensor_table *table, int *map);

/* Sets `group` of the trained parameters: 0, or 1 + the first of optimizer.groups that
 * matches. CONFIG. */
ps_err ps_patterns_group(const ps_config *cfg, ps_tensor_table *table);

#endif
