/* Whether this machine has a device. */
#ifndef TEST_DEVICE_THERE_H
#define TEST_DEVICE_THERE_H

#include "device.h"

/* false: ps_err_message() says why. */
static inline bool device_is_there(ps_device_kind kind, ps_precision precision)
{
    const ps_device_options options = {
        .index = -1, .local_rank = -1, .threads = 1, .precision = precision};
    ps_device *device = NULL;
    if (ps_device_open(kind, &options, &device) != PS_OK) return false;
    ps_device_close(&device);
    return true;
}

#endif
