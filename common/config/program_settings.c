#include "program_settings.h"

#include <stdio.h>
#include <string.h>

/* A key, or a section with all its keys. What is missing is about the model, the data and
 * the steps, which the program has itself. */
static const struct {
    const char *of;
    ps_setting_takers takers;
} takers[] = {
    {"job.name", {.program = true, .servers = true}},
    {"net", {.program = true, .servers = true}},
    {"server", {.program = true, .servers = true}},
    {"optimizer", {.program = true}},
    {"schedule", {.program = true}},
    {"loss_scale", {.program = true}},
    {"exchange", {.program = true}},
    {"rows", {.program = true}},
    {"metrics", {.servers = true}}, // the page is the coordinator's
};

ps_setting_takers ps_program_setting_takers(const char *setting)
{
    for (size_t i = 0; i < sizeof takers / sizeof *takers; i++) {
        const size_t n = strlen(takers[i].of);
        if (strncmp(setting, takers[i].of, n) == 0 &&
            (setting[n] == '.' || setting[n] == '='))
            return takers[i].takers;
    }
    return (ps_setting_takers){0};
}

/* Writes what the program, or else the servers alone, is given: "job.name, net". */
static const char *takers_list(bool program, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof takers / sizeof *takers && used < bytes; i++)
        if (takers[i].takers.program == program)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
                                     takers[i].of);
    return out;
}

ps_err ps_program_setting_refuse(const char *setting)
{
    char own[160], others[80];
    return ps_err_set(
        PS_ERR_CONFIG,
        "%.200s: not a setting of a program that uses libpstrain: those are "
        "of %s; psrun takes %s for the servers",
        setting, takers_list(true, own, sizeof own),
        takers_list(false, others, sizeof others));
}
