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
    uint64_t seed;
    void (*killed)(world_process *p); // may be NULL
    void (*joins)(void);              // somebody comes; NULL: nobody may
    void (*tells)(void);              // the job is told to end; NULL: it is not
    void (*leaves)(world_process *p); // may be told to; NULL: nobody may
    void (*doubles)(int member, uint64_t start); // an earlier start of it, or its present
                                                 // one again, comes late; NULL: none does
    world_process **members; // (n_members) borrowed: the present processes; NULL: not yet
    int n_members;
    uint64_t span_ms; // faults begin within
    int most_kills;   // 0: members do not die
    bool keeps_links; // connections are slow, and are not lost
    bool fills;       // disks, for a while
    bool sleeps;      // members may be frozen until the others take them for dead
    uint64_t without; // bit i: the i-th fault does not happen
    bool has_killed, has_slept;
    uint64_t last_ns; // when its last fault is over
    uint64_t most_ms; // that a member is kept from the others
    uint64_t n_planned;
    int kills, n_moments;
} nemesis;

/* Plans up to four faults from now on. */
void nemesis_begin(nemesis *n);
/* One more: p dies at a moment that its program has come to. As long as it may. */
void nemesis_kill_now(nemesis *n, world_process *p);
/* Whether starts have no number (PS_INCARNATION). */
bool nemesis_hides_numbers(const nemesis *n);
/* How long after the job's begin a member starts: most often at once. */
uint64_t nemesis_start_ms(nemesis *n, int member);
/* A number below `below` that follows from the seed alone: what is drawn later stays as
 * it is, whether something is chosen or not. */
uint64_t nemesis_choice(const nemesis *n, uint64_t what, uint64_t below);

#endif
