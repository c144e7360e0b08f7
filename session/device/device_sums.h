/* Gradients that stay in the memory of a device, where another process of the host reads
 * them and adds them up (exchange.levels 2, two_levels.h): only sums come to host memory,
 * each from one device.
 *
 *   device 0    device 1    device 2           host memory
 *   g0 --------> g0 + g1 <----- g2      (a range that process 1 adds)
 *                 + g2  --------------------> sum
 */
#ifndef PS_DEVICE_SUMS_H
#define PS_DEVICE_SUMS_H

#include "device.h"

typedef struct ps_device_sums ps_device_sums;

enum { PS_DEVICE_SUMS_HANDLE = 64 }; // bytes

typedef struct ps_device_sums_options { // borrowed
    const ps_tensor_table *table;
    /* The host's arena: programs that are made for it afterwards leave their gradients on
     * the device, and announce them (grads_ready) when they may be read there. */
    const float *grads;
    uint64_t most; // elements of the longest range that is added
} ps_device_sums_options;

typedef struct ps_device_sums_ops {
    /* What other processes need to find the gradients. */
    void (*handle)(const ps_device_sums *s, uint8_t out[PS_DEVICE_SUMS_HANDLE]);
    /* Finds the gradients of n processes of this host, own is this one's place among
     * them. to: the host's arena that gets the sums; borrowed. Once. UNSUPPORTED says why
     * this device cannot read another's memory. */
    ps_err (*meet)(ps_device_sums *s, const uint8_t *const *handles, int n, int own,
                   float *to);
    /* Elements [offset, offset + count) of the arena `to` become ((g0 + g1) + g2) + ...,
     * all of which have been announced. These two are called by one thread, and return
     * when it is done. */
    ps_err (*add)(ps_device_sums *s, uint64_t offset, uint64_t count);
    /* Copies the gradients at a place to host memory (count). */
    ps_err (*fetch)(ps_device_sums *s, int place, uint64_t offset, uint64_t count,
                    float *out);
    /* After the last of these calls: lets go of what meet found. May come twice. */
    void (*part)(ps_device_sums *s);
    /* The programs are gone. */
    void (*destroy)(ps_device_sums **s);
} ps_device_sums_ops;

struct ps_device_sums {
    const ps_device_sums_ops *ops;
};

#endif
