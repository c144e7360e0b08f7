/* The device and the program of a step, made ahead in a thread.
 *
 * Others wait for a process that was started again. While it joins and they get ready, it
 * opens its device and makes the program once, with arenas of its own, which it frees
 * again: what libraries compile for the program they keep for the next one, and the
 * device keeps its memory.
 */
#ifndef PS_WARM_UP_H
#define PS_WARM_UP_H

#include "config.h"
#include "device.h"
#include "thread.h"

typedef struct ps_warm_up {
    const ps_config *config;
    ps_device_options options;
    ps_program_options program; // ps_trainer_program
    int rank, workers;          // expected, one or more; rank -1: any
    ps_device *device;          // opened; NULL: not, or that failed
    ps_thread thread;
} ps_warm_up;

/* Begins, where the job trains. w has all that comes before the device, and lives until
 * the end; what it points to is borrowed until then. */
ps_err ps_warm_up_begin(ps_warm_up *w);
/* Waits for the thread. Returns the device, owned by the caller; NULL: there is none, and
 * opening it says why. Again, or without a begin: NULL. */
ps_device *ps_warm_up_end(ps_warm_up *w);

#endif
