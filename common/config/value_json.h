/* The values of a configuration as JSON: for psrun, and for the manifest of a checkpoint.
 */
#ifndef PS_VALUE_JSON_H
#define PS_VALUE_JSON_H

#include <jansson.h>

#include "config_schema.h"

/* The value of a key, as the reader has understood it. Owned by the caller. */
json_t *ps_config_value_json(const ps_config *cfg, const ps_config_key *key);

/* A whole number; a text of its digits where it is above 2^63 - 1, the largest that
 * jansson has. Owned by the caller. */
json_t *ps_count_json(uint64_t n);
/* null where it is not finite. Owned by the caller. */
json_t *ps_number_json(double value);

/* A tree of a configuration file; its scalars are strings. NULL: null. Owned by the
 * caller. */
json_t *ps_yaml_json(const ps_yaml *node);

/* What a job has to keep when it goes on from a checkpoint: the values of all keys that
 * are not free (PS_RESUME_FREE), and for model.layers a hash. Owned by the caller; NULL:
 * no memory. */
json_t *ps_config_kept_json(const ps_config *cfg);

/* Compares these of a checkpoint with the configuration of a job that goes on from it.
 * CONFIG for the first key that must not change. changed: a list of the others for
 * people, "train.seed: 2, was 1; data.batch: [64], was [32]", cut where it does not fit,
 * or "". A key that the checkpoint does not have counts as equal. */
ps_err ps_config_compare_kept(const ps_config *cfg, const json_t *kept, char *changed,
                              size_t bytes);

#endif
