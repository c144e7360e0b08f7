/* How far the coordinator's clock is ahead of this process's, from round trips.
 *
 * A process asks for the coordinator's time, and knows when it asked and when the answer
 * came. The coordinator has read its clock in between: it is ahead by its time less the
 * middle of the two, and that is wrong by half of the round trip at most. Round trips are
 * made in bursts, and the shortest of a burst counts. Between bursts two clocks drift
 * apart, by no more than PS_CLOCK_DRIFT of the time. */
#ifndef PS_CLOCK_SYNC_H
#define PS_CLOCK_SYNC_H

#include <stdbool.h>
#include <stdint.h>

enum { PS_CLOCK_BURST = 4 }; // round trips
#define PS_CLOCK_DRIFT 50e-6

typedef struct ps_clock_sync {
    int left;          // round trips of the present burst
    uint64_t asked_ns; // of the one under way; 0: none
    uint64_t best_ns, at_ns;
    int64_t ahead_ns; // of the shortest of the burst
    bool known;       // the rest is the estimate
    uint64_t known_at_ns, error_ns;
    int64_t known_ahead_ns;
} ps_clock_sync;

/* Begins a burst; the caller asks. A question without an answer is forgotten. */
void ps_clock_sync_begin(ps_clock_sync *s, uint64_t now_ns);
/* Takes an answer. asked_ns: as the question said; theirs_ns: the coordinator's time.
 * Returns whether the caller must ask again now: s->asked_ns. An answer that is not
 * waited for is ignored. *ended: the burst is over, and (at_ns, ahead_ns, best_ns / 2) is
 * what it has found. */
bool ps_clock_sync_answer(ps_clock_sync *s, uint64_t asked_ns, uint64_t theirs_ns,
                          uint64_t now_ns, bool *ended);

#endif
