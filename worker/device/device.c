#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "cpu_device.h"
#include "cuda_device.h"
#include "log.h"

/* The order is that of "auto": the first that the machine has. */
static const ps_device_ops *const backends[] = {
#if PS_WITH_CUDA
    &ps_cuda_device_ops,
#endif
    &ps_cpu_device_ops,
};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

/* "cuda:1" -> *length 4, *index 1; without a number *index stays. */
static ps_err split_name(const char *name, size_t *length, int *index)
{
    *length = strcspn(name, ":");
    if (!name[*length]) return PS_OK;
    char *end;
    const char *digits = name + *length + 1;
    long i = strtol(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || *end || i > 1023)
        return ps_err_set(PS_ERR_CONFIG,
                          "train.device: '%s'; it is auto, cpu, cuda or cuda:N", name);
    *index = (int)i;
    return PS_OK;
}

static ps_err open_auto(const ps_device_options *options, ps_device **out)
{
    ps_err err = PS_ERR_UNSUPPORTED;
    for (int i = 0; i < N_BACKENDS && err == PS_ERR_UNSUPPORTED; i++) {
        err = backends[i]->open(options, out);
        if (err == PS_ERR_UNSUPPORTED && i + 1 < N_BACKENDS)
            PS_INFO("device", "auto takes %s: %s", backends[i + 1]->name,
                    ps_err_message());
    }
    return err;
}

ps_err ps_device_open(const char *name, const ps_device_options *options, ps_device **out)
{
    ps_device_options chosen = *options;
    size_t length;
    *out = NULL;
    if (!*name || strcmp(name, "auto") == 0) return open_auto(options, out);
    PS_TRY(split_name(name, &length, &chosen.index));
    for (int i = 0; i < N_BACKENDS; i++) {
        const char *known = backends[i]->name;
        if (strlen(known) == length && strncmp(known, name, length) == 0)
            return backends[i]->open(&chosen, out);
    }
    if (length == 4 && strncmp(name, "cuda", 4) == 0)
        return ps_err_set(
            PS_ERR_UNSUPPORTED,
            "train.device: %s was asked for, but this build has no CUDA "
            "(configure with -DPS_WITH_CUDA=ON, or cmake --preset cuda); use cpu",
            name);
    return ps_err_set(PS_ERR_CONFIG,
                      "train.device: '%s'; it is auto, cpu, cuda or cuda:N", name);
}
