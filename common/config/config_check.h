/* What the table of keys cannot say: rules about several keys at once. */
#ifndef PS_CONFIG_CHECK_H
#define PS_CONFIG_CHECK_H

#include "config.h"

/* Also sets the defaults that depend on other keys. CONFIG, with a message that names the
 * place of the key at fault. */
ps_err ps_config_check(ps_config *cfg);

#endif
