/* NUMA nodes: parts of a host with cores and memory of their own. A GPU hangs on one of
 * them; copies to and from the memory of another cross the link between processors. */
#ifndef PS_NUMA_H
#define PS_NUMA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ps_numa {
    int node, n_nodes;
    char cores[512];  // of the node: "0-23,48-71"
    char online[512]; // all of the machine
    char address[32]; // of the device
} ps_numa;

/* The node on which the PCI device is. sys: "/sys"; address: "0000:3B:00.0". False: the
 * system does not say, or the machine has one node. */
bool ps_numa_of_pci(const char *sys, const char *address, ps_numa *out);

typedef enum ps_numa_result {
    PS_NUMA_BOUND,
    PS_NUMA_WAS_BOUND, // to some of the machine's cores, by somebody else: left unchanged
    PS_NUMA_REFUSED    // errno says why
} ps_numa_result;

/* Binds the threads of this process to the node's cores. From now on the calling thread,
 * and those that it starts, take memory of the node while there is some. *memory: whether
 * the system lets them (a container may not). */
ps_numa_result ps_numa_bind(const ps_numa *numa, bool *memory);

/* The same for memory that is there already, from the beginning of a page on: it moves to
 * the node. Nothing of it is pinned yet. False: the system does not let it. */
bool ps_numa_move(const ps_numa *numa, void *at, size_t bytes);

#endif
