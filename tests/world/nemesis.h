/* Draws what goes wrong, and when, from the schedule. */
#ifndef NEMESIS_H
#define NEMESIS_H

#include <stdbool.h>
#include <stdint.h>

#include "world.h"

enum {
    NEMESIS_DEAD_AFTER_MS = 8000, // the jobs' net.dead_after_ms
    NEMESIS_GRACE_MS = 1000       // ps_coordinator_grace_ms of the default heartbeat
};

typedef struct nemesis {
    void (*killed)(world_process *p); // may be NULL
    world_process **members;          // (n_members) borrowed: the present process of each
    int n_members;
    uint64_t span_ms; // faults begin within
    int most_kills;   // 0: members do not die
    bool keeps_links; // connections are slow, and are not lost
    bool has_killed;
    uint64_t last_ns; // when its last fault is over
    uint64_t most_ms; // that a member is kept from the others
    int kills;
} nemesis;

/* As long as it may. */
void nemesis_kill(nemesis *n, world_process *p);

/* Plans up to four faults from now on. */
void nemesis_begin(nemesis *n);

#endif
