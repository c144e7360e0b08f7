/* How the workers of a job get links to each other: each says where it is found, in the
 * store of the coordinator, and connects to all others.
 *
 *   worker/<rank>/link/shm   the name of its door to shared memory, or nothing
 *   worker/<rank>/link/tcp   secret and endpoint of its ROUTER (link_net.h), or nothing
 */
#ifndef PS_LINK_MEET_H
#define PS_LINK_MEET_H

#include "event.h"
#include "link_net.h"
#include "links.h"
#include "mem.h"

/* What the links of a worker stand on. */
typedef struct ps_link_ground {
    const ps_links_options *o; // borrowed
    int wake_fd;               // wakes the thread; borrowed
    int *here;                 // (world_size) place among the workers of this host; -1
    int n_here;
    struct ps_shm_door *door;
    ps_shared_mem board, arena; // arena: of nothing; a door is made for arenas
    ps_link_net *net;           // NULL: all workers share memory
} ps_link_ground;

/* links (world_size): one to each other worker. Every worker calls it at the same time.
 * fini in every case, after the links were destroyed. */
ps_err ps_link_meet(ps_link_ground *p, const ps_links_options *o, const ps_event *wake,
                    ps_link **links);
void ps_link_ground_fini(ps_link_ground *p);

#endif
