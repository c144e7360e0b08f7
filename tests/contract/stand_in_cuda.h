/* A STAND-IN for libcuda.so.1, for tests on machines without a GPU. It is not CUDA.
 *
 * The calls of library/pstrain_driver.h on host memory. A thread of it makes what the
 * streams were given, in an order that a seed draws among all that CUDA allows: each
 * stream its own work in order, a wait for an event after the record that it saw. Copies
 * are made in two halves, with other work between them; streams stand still for a while.
 * Copies of memory that is not pinned return when they are made, as CUDA's do. */
#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#define STAND_IN_API __attribute__((visibility("default")))

/* The order of what is given from now on. */
STAND_IN_API void stand_in_cuda_seed(uint64_t seed);
/* A stream of a program; NULL is the default one. */
STAND_IN_API void *stand_in_cuda_stream(void);
/* Work for a stream: a kernel. */
STAND_IN_API void stand_in_cuda_kernel(void *stream, void (*kernel)(void *), void *arg);
/* Returns when all that all streams were given is done. */
STAND_IN_API void stand_in_cuda_synchronize(void);
/* What the tests break: memory is not pinned; streams fail, as after a kernel's bad
 * access; nothing goes on; streams are being captured. */
enum {
    STAND_IN_WELL,
    STAND_IN_NO_PIN,
    STAND_IN_FAILS,
    STAND_IN_HANGS,
    STAND_IN_CAPTURES
};
STAND_IN_API void stand_in_cuda_break(int how);
/* Streams of the library, events, contexts and pinned ranges that were not given back. */
STAND_IN_API int stand_in_cuda_open(void);

#endif
