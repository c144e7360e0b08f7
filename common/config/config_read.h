/* Reads values into the fields of a configuration, by the table of keys. */
#ifndef PS_CONFIG_READ_H
#define PS_CONFIG_READ_H

#include "config_schema.h"

/* CONFIG, with a message that names the place, when the value does not fit the key. */
ps_err ps_config_read_value(ps_config *cfg, const ps_config_key *key, const ps_yaml *at);
/* Sets the field to the key's default. */
ps_err ps_config_read_default(ps_config *cfg, const ps_config_key *key);

/* CONFIG when the tree has a key that is not in the table; the message says which key may
 * be meant. */
ps_err ps_config_check_keys(const ps_yaml *tree);

#endif
