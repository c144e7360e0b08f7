/* What a run's folder needs, beside its weights, to be a model of its own: on any
 * machine, psrun --predict takes the folder alone.
 *
 *   config.json  the configuration with all that was set for the job; it is a
 *                configuration file itself, as JSON is YAML
 *   classes.txt  the names of the classes, a line each (class_names.h), where they have
 *                some */
#ifndef PS_RUN_CONFIG_H
#define PS_RUN_CONFIG_H

#include <stdbool.h>

#include "class_names.h"
#include "config.h"
#include "run_dir.h"

/* model.input and model.categories are set. names: in the order of the classes. A folder
 * of data is written as an absolute path. IO, NOMEM. */
ps_err ps_run_config_write(const ps_config *config, const ps_class_names *names,
                           const ps_run_dir *dir);

/* Whether the run in that folder has written the same configuration. */
bool ps_run_config_is_of(const ps_config *config, const char *run_dir);

/* The names beside a configuration of a run; none where there is no such file. Errors as
 * ps_class_names_read. */
ps_err ps_run_config_classes(const ps_config *config, ps_class_names *out);

#endif
