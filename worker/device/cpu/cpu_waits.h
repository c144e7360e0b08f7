/* How OpenMP's threads wait for each other at the end of each loop. With a core for each
 * of them they spin, which is fastest. Where they share cores with other programs, a
 * thread that spins keeps the one that it waits for from running: such a step has taken
 * 60 times as long as with one thread. So a thread looks how long the threads of this
 * process wait for a core, and while that is long, they sleep instead of spinning. The
 * number of threads stays as it is, and so do the bits. */
#ifndef PS_CPU_WAITS_H
#define PS_CPU_WAITS_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* Whether threads sleep, as far as the looks until now tell; zero at first. */
typedef struct ps_cpu_crowd {
    bool sleep;
    int looks; // sleep: until they spin again, to see whether the cores are free now
    int next;  // of them, where the cores are not free
} ps_cpu_crowd;

/* Adds a look: in the last passed_ns all threads together waited waited_ns for a core.
 * That tells something only while they spin: threads that sleep wait a moment at each
 * wake-up, on free cores too. So they spin for one look now and then, and more seldom
 * each time that this was too early. */
void ps_cpu_crowd_look(ps_cpu_crowd *c, uint64_t waited_ns, uint64_t passed_ns);

typedef struct ps_cpu_waits ps_cpu_waits;

/* Lets the threads of all OpenMP loops sleep or spin, from now on until it is stopped.
 * threads: of such a loop. NOMEM. */
ps_err ps_cpu_waits_start(int threads, ps_cpu_waits **out);
/* They spin again. Clears the caller's pointer, which may be NULL. */
void ps_cpu_waits_stop(ps_cpu_waits **w);

/* While they exist, all threads sleep at once when they wait. libgomp does that while it
 * has more threads than cores (its manual, GOMP_SPINCOUNT); it reads the environment only
 * when a program starts. So these are idle threads, of a loop of another thread: one, or
 * as many more as there are cores without one of `threads`. NOMEM. */
typedef struct ps_cpu_sleepers ps_cpu_sleepers;
ps_err ps_cpu_sleepers_create(int threads, ps_cpu_sleepers **out);
void ps_cpu_sleepers_destroy(ps_cpu_sleepers **s);

#endif
