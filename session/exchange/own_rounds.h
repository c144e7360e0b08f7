/* The rounds of one rank, where it counts them by itself (sync.quorum): in each it sends
 * every fragment once, and all ranks rest when each has the answer to its last fragment.
 * With an overlap of T steps that is T steps into the next round.
 *
 *   F = 2, 6 steps, T = 1   steps   0 1 2 3 4 5 | 0 1 2 ...
 *                           sent        0     1
 *                           rest                  *           after step 0
 *
 * The last round before a rest may be cut short, where it comes too late for it: what was
 * not sent yet is sent at once.
 *
 * Pure. */
#ifndef PS_OWN_ROUNDS_H
#define PS_OWN_ROUNDS_H

#include "config.h"

typedef struct ps_round_cut {
    uint64_t round; // the number of the round, from 1 on; 0: none is cut short
    uint64_t steps; // after which
} ps_round_cut;

typedef struct ps_own_rounds {
    bool on; // false: the ranks have the rounds of local_steps.h
    uint32_t n_fragments;
    uint64_t overlap;  // T
    uint64_t steps;    // of a round
    uint64_t in_round; // of the present one that are made
    uint64_t made;     // rounds since the last rest
    ps_round_cut cut;  // since then
    ps_round_cut plan; // that a record has for this rank before the next rest
    /* Until a step was made or all have rested: */
    bool fresh;
    uint64_t begun;         // steps of the first round that were made before
    uint64_t next_fragment; // or it is a dead rank's, which had sent those before
} ps_own_rounds;

/* first_step: of the job. is_back: the rank takes a dead one's place, and sends
 * next_fragment next. */
void ps_own_rounds_init(ps_own_rounds *r, const ps_config *cfg, uint64_t first_step,
                        bool is_back, uint64_t next_fragment);
/* Rounds have that many steps from here on; not fewer than were made of this one. */
void ps_own_rounds_set_steps(ps_own_rounds *r, uint64_t steps);
/* A step was made. */
void ps_own_rounds_step(ps_own_rounds *r);
/* Whether the fragment is sent after it. */
bool ps_own_rounds_sends(const ps_own_rounds *r, uint32_t fragment);
/* What is sent after it was sent. */
void ps_own_rounds_sent(ps_own_rounds *r);
/* Whether the fragment was sent in the present round. */
bool ps_own_rounds_has_sent(const ps_own_rounds *r, uint32_t fragment);
/* Whether the plan has the present round end here. */
bool ps_own_rounds_ends_here(const ps_own_rounds *r);
/* It does: the last fragment was sent. */
void ps_own_rounds_cut(ps_own_rounds *r);
/* All ranks rest: this one has the last fragment's answer. */
void ps_own_rounds_rest(ps_own_rounds *r);

#endif
