/* Keys that have an effect only with certain values of other keys. */
#ifndef PS_CONFIG_NEEDS_H
#define PS_CONFIG_NEEDS_H

#include "config.h"

/* CONFIG, with the place, for the first key that is given in vain and says which job was
 * meant (sync.*, what only pictures have). */
ps_err ps_config_check_needs(const ps_config *cfg);

/* Logs a warning for each other key that is given in vain: a file may serve several kinds
 * of jobs, by what the command line overrides. */
void ps_config_warn_of_needs(const ps_config *cfg);

#endif
