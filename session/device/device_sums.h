/* Gradients and weights that stay in the memory of a device, where other processes of the
 * host read them (exchange.levels 2, two_levels.h). Each range of the arenas has a
 * process of its own: it adds up the gradients of all, and brings the new weights. So
 * either crosses the bus of one device.
 *
 *   device 0    device 1    device 2           host memory
 *   g0 --------> g0 + g1 <----- g2      (a range of process 1's)
 *                 + g2  --------------------> sum
 *   w <--------- w -----------> w
 *                 ^-------------------------- new weights
 */
#ifndef PS_DEVICE_SUMS_H
#define PS_DEVICE_SUMS_H

#include "device.h"

typedef struct ps_device_sums ps_device_sums;

enum { PS_DEVICE_SUMS_HANDLE = 128 }; // bytes

typedef struct ps_device_sums_options { // borrowed
    const ps_tensor_table *table;
    /* The host's arenas. Programs that are made for them afterwards leave their gradients
     * on the device, and announce them (grads_ready) when they may be read there; and
     * they compute with the weights that the calls below have brought there. */
    const float *params, *grads;
    uint64_t most; // elements of the longest range that is added
} ps_device_sums_options;

typedef struct ps_device_sums_ops {
    /* Finds the arenas of n processes of this host, own is this one's place among them.
     * The host's arenas, borrowed: `from` has new weights, `to` gets the sums. Once.
     * UNSUPPORTED says why this device cannot read another's memory. */
    ps_err (*meet)(ps_device_sums *s, const uint8_t *const *handles, int n, int own,
                   float *from, float *to);
    /* Elements [offset, offset + count) of the arena `to` become ((g0 + g1) + g2) + ...,
     * all of which have been announced. This and the next three are called by one thread
     * at a time, and return when it is done. */
    ps_err (*add)(ps_device_sums *s, uint64_t offset, uint64_t count);
    /* Copies the gradients at a place to host memory (count). */
    ps_err (*fetch)(ps_device_sums *s, int place, uint64_t offset, uint64_t count,
                    float *out);
    /* Copies weights from the arena `from` to the device. No pass reads them. */
    ps_err (*bring)(ps_device_sums *s, uint64_t offset, uint64_t count);
    /* The same from the device of the process at a place. */
    ps_err (*take)(ps_device_sums *s, int place, uint64_t offset, uint64_t count);
    /* After the last of these calls: lets go of what meet found. May come twice. */
    void (*part)(ps_device_sums *s);
    /* The programs are gone. alone: all others have let go, too. */
    void (*destroy)(ps_device_sums **s, bool alone);
} ps_device_sums_ops;

struct ps_device_sums {
    const ps_device_sums_ops *ops;
    uint8_t handle[PS_DEVICE_SUMS_HANDLE]; // by which other processes find the arenas
};

#endif
