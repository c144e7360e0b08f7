/* Parameters chosen by patterns of their names, in which * stands for any text, ? for one
 * character and [ab] for one of these (fnmatch; a dot is a character like others). */
#ifndef PS_PARAM_PATTERNS_H
#define PS_PARAM_PATTERNS_H

#include "config.h"
#include "tensor_table.h"

/* Whether one of the patterns matches. */
bool ps_patterns_match(const char *patterns, const char *name);

/* Every pattern has to match a parameter of the table (trained or frozen). CONFIG names
 * key, place, pattern, and parameters that may have been meant. */
ps_err ps_patterns_check(const ps_config *cfg, const char *key, const char *patterns,
                         const ps_tensor_table *table);

/* Makes buffers of the parameters that train.freeze names. map (n_tensors, as they were):
 * the new place of each, as in ps_tensor_table_at. CONFIG, also when nothing is left to
 * train; NOMEM. */
ps_err ps_patterns_freeze(const ps_config *cfg, ps_tensor_table *table, int *map);

/* Sets `group` of the trained parameters: 0, or 1 + the first of optimizer.groups that
 * matches. CONFIG. */
ps_err ps_patterns_group(const ps_config *cfg, ps_tensor_table *table);

#endif
