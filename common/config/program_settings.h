/* Which processes get a setting, where the workers are a program that uses libpstrain.
 * The library and psrun go by the same table. */
#ifndef PS_PROGRAM_SETTINGS_H
#define PS_PROGRAM_SETTINGS_H

#include <stdbool.h>

#include "err.h"

typedef struct ps_setting_takers {
    bool program; // the program's workers
    bool servers; // the workers tell them the rest
} ps_setting_takers;

/* setting: "key=value", or "section={key: value}". Neither: nobody takes it. */
ps_setting_takers ps_program_setting_takers(const char *setting);

/* CONFIG, with what there is, for a setting that is not the program's. */
ps_err ps_program_setting_refuse(const char *setting);

#endif
